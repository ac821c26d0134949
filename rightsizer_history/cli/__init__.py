"""Commands of the history: backtest, tune and report, and the ledger of other commands. Light to import, for --help."""

import pathlib

from rightsizer.cli.flags import Command
from rightsizer.cli.ledger_parts import CycleRecorder, Page
from rightsizer.cli.options import (
    ClusterNameOptions,
    ClusterOptions,
    ClusterStateOptions,
    FormOptions,
    LedgerOptions,
    OutputOptions,
    PolicyOptions,
    PriceOptions,
    PrometheusOptions,
    Several,
    file_name,
    flag,
    option,
    repeatable,
    switch,
)
from rightsizer.errors import UsageError
from rightsizer.model import ClusterName
from rightsizer_history.ledger import BY
from rightsizer_history.report import BACKTEST_FORMS, LEDGER_FORMS


class KeptLedger:
    """Parts of the ledger for `plan`, `apply` and `run`."""

    def recorder(self, arguments: LedgerOptions, cluster: ClusterName) -> CycleRecorder | None:
        """The recorder that --ledger asks for; None without it."""
        if not arguments.ledger:
            return None
        from rightsizer_history.cli.ledger_recorder import recorder_of  # noqa: PLC0415 - most clusters have no ledger

        return recorder_of(arguments.ledger, arguments, cluster)

    def page(self, ledger: str | None, *, is_shown: bool) -> Page:
        """The page of a ledger that `run` serves if it is to be shown, else how to turn it on."""
        if is_shown and not ledger:
            raise UsageError("--serve-report: there is nothing to report without --ledger DIR")
        from rightsizer_history.cli.served_report import ServedReport  # noqa: PLC0415 - only for `run`

        return ServedReport(ledger if is_shown else None).answer


class ReplayOptions(PriceOptions, PrometheusOptions, ClusterOptions, OutputOptions):
    """The history that is replayed; the cluster tells exporters from other targets."""

    since: str = flag("DURATION", "history to read [30d]", "30d", flag="--from")
    at: str | None = flag("TIME", "end of the history (RFC 3339 or 2h) [now]")
    every: str = flag("DURATION", "time between cycles [1h]", "1h")
    step: str = flag("DURATION", "resolution, 5m to 1h [10m]", "10m")
    history: str | None = flag(
        "DIR",
        "keep what is read as Parquet files, a day each, and read only days that are missing: a directory, or a bucket "
        "as s3://NAME/DIR",
    )
    part: str | None = flag(
        "I/N", "read only this part of the GPUs into --history; part 0 of N waits for the others and reports"
    )
    restart_cost: str = flag("DURATION", "time that a return costs, on each of its GPUs [15m]", "15m")


class BacktestOptions(ReplayOptions, ClusterNameOptions, ClusterStateOptions, FormOptions):
    """Show what policies would have done.

    Replays policies over the history in Prometheus: GPU-hours that they would have
    freed, and the workloads that would have worked again. Compares them with simple
    rules, and with the best result that was possible. Learns from the first third
    of the history, and replays the rest. Only reads, except that --publish writes
    one ConfigMap. The cluster tells exporters from other targets.
    """

    epilog = """
        examples:
          gpu-rightsizer backtest --policy policy.yaml --enforce --from 30d
          gpu-rightsizer backtest --policy policy.yaml --notify --save report.html
        """
    policies: list[str] = option("FILE", "policy file; repeatable", flag="--policy", action=Several)
    enforce: bool = switch("as if rules with mode: advise enforced")
    save: pathlib.Path | None = flag(
        "FILE", "also write the report, in the form of its ending", type=file_name
    )
    notify: bool = switch("send the sums to notifications of the first policy")
    publish: bool = switch("keep the sums for the metrics of run")
    output: str = flag(
        "FORMAT", f"{', '.join(BACKTEST_FORMS)} [table]", "table", short="-o", values=BACKTEST_FORMS
    )


class TuneOptions(ReplayOptions, PolicyOptions):
    """Find the waiting times that cost least.

    Finds waiting times, notices and headroom that cost least with the history in
    Prometheus: idle GPU-hours against mistakes. Learns from the first half, shows
    what it would free in the second, and prints a policy file: that of --policy,
    or else the built-in one, with other times. Only reads. The cluster tells
    exporters from other targets.
    """

    epilog = """
        example:
          gpu-rightsizer tune --policy policy.yaml --price-of-a-mistake 24 > tuned.yaml
        """
    price_of_a_mistake: str = flag(
        "GPU-HOURS", "what stopping a workload that works again costs", required=True
    )


class ReportOptions(FormOptions):
    """Sum up GPU-hours and money over time.

    Sums up what plans and changes left in the ledger: GPU-hours held, used, unused
    and unknown, their cost, what was reclaimed and what was returned.
    Reads only files, of one or many clusters.
    """

    epilog = """
        The ledger has what run, plan and apply record with --ledger. UTC days are
        whole. csv: the columns of FOCUS, a row for each workload and day.

        examples:
          gpu-rightsizer report --ledger s3://gpus/ledger --since 30d --by team
          gpu-rightsizer report --ledger ledger -o html > report.html
        """
    ledgers: list[str] = option(
        "DIR", "directory or bucket of recorded cycles; repeatable", flag="--ledger", action=Several
    )
    since: str = flag("TIME", "begin (RFC 3339 or 7d) [30d]", "30d")
    until: str | None = flag("TIME", "end (RFC 3339 or 1d) [now]")
    by: str = flag("WHAT", f"{', '.join(BY)} [namespace]", "namespace", values=BY)
    clusters: list[str] = repeatable("NAME", "only this cluster; repeatable", flag="--cluster")
    output: str = flag(
        "FORMAT", f"{', '.join(LEDGER_FORMS)} [table]", "table", short="-o", values=LEDGER_FORMS
    )


COMMANDS: tuple[Command, ...] = (
    Command("backtest", BacktestOptions),
    Command("tune", TuneOptions),
    Command("report", ReportOptions),
)
