"""Commands of the history: backtest, tune and report, and the ledger of other commands. Light to import, for --help."""

import argparse

from rightsizer.cli.flags import Command
from rightsizer.cli.ledger_parts import CycleRecorder, Page
from rightsizer.cli.options import (
    CLUSTER_NAME,
    GPU_RESOURCES,
    KUBECONFIG,
    LEDGER,
    POLICY_FILE,
    PRICES,
    PROMETHEUS,
    STATE,
    Option,
    add_choice,
    add_common,
    add_options,
    add_repeatable,
    file_name,
)
from rightsizer.model import ClusterName
from rightsizer_history.ledger import BY
from rightsizer_history.report import BACKTEST_FORMS, LEDGER_FORMS

_BACKTEST = """\
Replays policies over the history in Prometheus: GPU-hours that they would have
freed, and the workloads that would have worked again. Compares them with simple
rules, and with the best result that was possible. Learns from the first third
of the history, and replays the rest. Only reads, except that --publish writes
one ConfigMap.
"""

_BACKTEST_EPILOG = """\
examples:
  gpu-rightsizer backtest --policy policy.yaml --enforce --from 30d
  gpu-rightsizer backtest --policy policy.yaml --notify --save report.html
"""

_TUNE = """\
Finds waiting times, notices and headroom that cost least with the history in
Prometheus: idle GPU-hours against mistakes. Learns from the first half, shows
what it would free in the second, and prints a policy file. Only reads.
"""

_TUNE_EPILOG = """\
example:
  gpu-rightsizer tune --policy policy.yaml --price-of-a-mistake 24 > tuned.yaml
"""

_REPORT = """\
Sums up what plans and changes left in the ledger: GPU-hours held, used, unused
and unknown, their cost, what was reclaimed and what was returned.
Reads only files, of one or many clusters.
"""

_REPORT_EPILOG = """\
The ledger has what run, plan and apply record with --ledger. UTC days are
whole. csv: the columns of FOCUS, a row for each workload and day.

examples:
  gpu-rightsizer report --ledger s3://gpus/ledger --since 30d --by team
  gpu-rightsizer report --ledger ledger -o html > report.html
"""


class KeptLedger:
    """Parts of the ledger for `plan`, `apply` and `run`."""

    def recorder(self, arguments: argparse.Namespace, cluster: ClusterName) -> CycleRecorder | None:
        """The recorder that --ledger asks for; None without it."""
        if not arguments.ledger:
            return None
        from rightsizer_history.cli.ledger_recorder import recorder_of  # noqa: PLC0415 - most clusters have no ledger

        return recorder_of(arguments, cluster)

    def page(self, ledger: str | None) -> Page:
        """The page of a ledger that `run` serves."""
        from rightsizer_history.cli.served_report import ServedReport  # noqa: PLC0415 - only for `run`

        return ServedReport(ledger).answer


def _backtest(parser: argparse.ArgumentParser) -> None:
    add_repeatable(parser, POLICY_FILE[0], "policies", "policy file")
    parser.add_argument("--enforce", action="store_true", help="as if rules with mode: advise enforced")
    words = "also write the report, in the form of its ending"
    parser.add_argument("--save", metavar="FILE", type=file_name, help=words)
    words = "send the sums to notifications of the first policy"
    parser.add_argument("--notify", action="store_true", help=words)
    add_options(parser, "", CLUSTER_NAME)
    words = "keep the sums for the metrics of run"
    parser.add_argument("--publish", action="store_true", help=words)
    _add_history(parser)
    add_options(parser, "cluster, which tells exporters from other targets", (*KUBECONFIG, *STATE))
    add_common(parser, BACKTEST_FORMS)


def _tune(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "", (Option("--policy", "FILE", "policy file to tune; default: the built-in one"),))
    words = "what stopping a workload that works again costs"
    parser.add_argument("--price-of-a-mistake", metavar="GPU-HOURS", required=True, help=words)
    _add_history(parser)
    add_options(parser, "cluster, which tells exporters from other targets", KUBECONFIG)
    add_common(parser, forms=())


def _add_history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", metavar="DURATION", default="30d", dest="since", help="history to read [30d]"
    )
    parser.add_argument("--at", metavar="TIME", help="end of the history (RFC 3339 or 2h) [now]")
    parser.add_argument("--every", metavar="DURATION", default="1h", help="time between cycles [1h]")
    parser.add_argument("--step", metavar="DURATION", default="10m", help="resolution, 5m to 1h [10m]")
    words = "keep what is read as Parquet files, a day each, and read only days that are missing"
    parser.add_argument(
        "--history", metavar="DIR", help=f"{words}: a directory, or a bucket as s3://NAME/DIR"
    )
    words = "read only this part of the GPUs into --history; part 0 of N waits for the others and reports"
    parser.add_argument("--part", metavar="I/N", help=words)
    words = "time that a return costs, on each of its GPUs [15m]"
    parser.add_argument("--restart-cost", metavar="DURATION", default="15m", help=words)
    add_options(parser, "", (*PRICES, *GPU_RESOURCES))
    add_options(parser, "metrics", PROMETHEUS)


def _report(parser: argparse.ArgumentParser) -> None:
    add_repeatable(parser, LEDGER[0], "ledgers", "directory or bucket of recorded cycles")
    parser.add_argument("--since", metavar="TIME", default="30d", help="begin (RFC 3339 or 7d) [30d]")
    parser.add_argument("--until", metavar="TIME", help="end (RFC 3339 or 1d) [now]")
    words = f"{', '.join(BY)} [namespace]"
    add_choice(parser, "--by", values=BY, metavar="WHAT", default="namespace", help=words)
    words = "only this cluster; repeatable"
    parser.add_argument("--cluster", metavar="NAME", action="append", default=[], dest="clusters", help=words)
    add_common(parser, LEDGER_FORMS)


COMMANDS: tuple[Command, ...] = (
    ("backtest", "show what policies would have done", _BACKTEST, _BACKTEST_EPILOG, _backtest),
    ("tune", "find the waiting times that cost least", _TUNE, _TUNE_EPILOG, _tune),
    ("report", "sum up GPU-hours and money over time", _REPORT, _REPORT_EPILOG, _report),
)
