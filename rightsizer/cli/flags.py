"""The commands' flags and help texts. Imports nothing heavy, so that --help answers at once."""

import argparse
import inspect
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rightsizer.cli.options import (
    AskingOptions,
    ClusterNameOptions,
    ClusterOptions,
    ClusterStateOptions,
    FormOptions,
    LedgerOptions,
    Options,
    OutputOptions,
    PolicyOptions,
    PrometheusOptions,
    ScheduleOptions,
    SessionOptions,
    StateFileOptions,
    StateOptions,
    add_options,
    argument,
    file_name,
    flag,
    path_of,
    repeatable,
    switch,
)
from rightsizer.model import FindingName, Verdict
from rightsizer.report import FORMS

CHANGES_PROPOSED = 10
"""Exit code of plan --detailed-exitcode; 2 would be taken for a usage error."""

_WORKLOAD = "NAMESPACE/KIND/NAME"


class FilterOptions(Options, title="filters, never of what budgets count; repeatable"):
    """Filters of workloads: repeated ones add to what is wanted, different ones must all hold."""

    workloads: list[str] = argument(_WORKLOAD, "only these workloads; also with *", nargs="*")
    namespace: list[str] = repeatable("NAME", "namespace, also with *", short="-n")
    selector: list[str] = repeatable("SELECTOR", "labels of workload or pod, as in kubectl", short="-l")
    verdict: list[str] = repeatable("VERDICT", "act, keep, protected or unknown", values=tuple(Verdict))
    finding: list[str] = repeatable("FINDING", "such as idle or too-many-gpus", values=tuple(FindingName))
    priority_class: list[str] = repeatable("NAME", "PriorityClass, also with *", flag="--class")
    owner: list[str] = repeatable("[KIND/]NAME", "controller, CronJob or manager")


class _PlanOutput(OutputOptions, title="output"):
    output: str | None = flag("FORMAT", f"{', '.join(FORMS)} [table]", short="-o", values=FORMS)


class PlanOptions(FilterOptions, SessionOptions, LedgerOptions, _PlanOutput):
    """Show what GPU workloads use and what should change.

    Shows each GPU workload: the GPUs it holds, its utilization, what should change
    by which policy rule, and why. Changes nothing; a read-only account is enough.
    """

    epilog = """
        verdicts:
          act        should change; its lines say whether apply does it
          keep       nothing should change
          protected  policy, built-in protection or opt-out forbids changes
          unknown    not enough data; missing data never counts as idle

        example:
          gpu-rightsizer plan --policy policy.yaml -n research --verdict act -o json
        """
    detailed_exitcode: bool = switch(f"exit with {CHANGES_PROPOSED} if it proposes changes")
    save: pathlib.Path | None = flag("FILE", "also write the plan as JSON", type=file_name)
    patches: pathlib.Path | None = flag("DIR", "also write patches of manifests", type=file_name)
    at: str | None = flag("TIME", "past time to plan for (RFC 3339 or 2h)")
    cluster_objects: pathlib.Path | None = flag(
        "FILE", "kubectl get -o json, instead of a cluster", type=path_of
    )


class ApplyOptions(FilterOptions, SessionOptions, LedgerOptions, AskingOptions):
    """Show the plan, ask, and make its changes.

    First rolls back earlier changes that left a workload unhealthy, and records
    those that somebody reverted; no filter limits this. Then shows what it is about
    to change, asks, and makes the changes of rules with mode: enforce, each after a
    preflight check and a dry run.
    """

    epilog = """
        outcomes: done, then verified (pods gone, GPUs free); no-effect: no pod went, so
        it was rolled back; left alone: changed since the plan, blocked (PDB, pause,
        breaker). Exit code 1: refused, unknown, skipped; 130: stopped by Ctrl-C, after
        the current change. More: docs/rightsizer.md

        example:
          gpu-rightsizer apply --policy policy.yaml --plan plan.json --yes -o json
        """
    plan: pathlib.Path | None = flag("FILE", "make only the changes of this saved plan", type=file_name)
    verify_for: str = flag("DURATION", "watch changed pods; 0: do not [60s]", "60s")
    accept_growth: bool = switch("accept how many the policy matches now")


class RunOptions(StateFileOptions, ScheduleOptions, SessionOptions, LedgerOptions, OutputOptions):
    """Plan on a schedule, with --yes also apply; serve metrics.

    Plans on a schedule, and serves metrics for Prometheus. With --yes it also makes
    the changes of rules with mode: enforce, as apply does. Of several replicas only
    the leader does. Each cycle reads all files again, and does nothing if one is
    invalid. SIGTERM stops it after the current change.
    """

    epilog = """
        example:
          gpu-rightsizer run --policy policy.yaml --yes --schedule '*/15 * * * *'
        """
    yes: bool = switch("make changes of rules with mode: enforce", short="-y")
    verify_for: str = flag("DURATION", "watch changed pods; 0: do not [60s]", "60s")
    no_watch: bool = switch("with --yes: list pods and nodes in each cycle, instead of watching them")
    verify_state: bool = switch(
        "compare what is watched or kept with a list or query in each cycle (default: in one of 96)"
    )
    serve_report: bool = switch("show the report of --ledger at /report, to whoever reaches the port")


class UndoOptions(PolicyOptions, ClusterStateOptions, AskingOptions):
    """List earlier changes, or revert them.

    Reverts changes of apply: restores the number of replicas, resumes the Job, or
    recreates the evicted pod from its manifest. Each object holds the record of its
    change, so undo works from any machine. Without a workload, --run, --since or
    --all it lists the changes that can be reverted.
    """

    epilog = """
        Objects that someone changed since are reverted only with --force, changes that
        the memory of 30 days lacks only by name. Of several evicted pods with one name,
        the last is recreated; --run selects another.

        examples:
          gpu-rightsizer undo
          gpu-rightsizer undo research/Deployment/eval-server
          gpu-rightsizer undo --run 20261121-031500-4f2a9c --yes
          gpu-rightsizer undo --since 2h
        """
    workloads: list[str] = argument(_WORKLOAD, "workloads to revert", nargs="*")
    run: str | None = flag("RUN", "changes of this run")
    since: str | None = flag("TIME", "changes since a time (RFC 3339 or 2h)")
    until: str | None = flag("TIME", "changes until a time, with --since")
    all: bool = switch("all changes")
    force: bool = switch("also objects that someone changed since")
    allow_privileged: list[str] = repeatable(
        "NAMESPACE/POD", "recreate this pod even if it exceeds Pod Security baseline; repeatable"
    )
    allow_unverified: list[str] = repeatable(
        "NAMESPACE/POD", "recreate this pod even if it was evicted more than 30 days ago; repeatable"
    )


class HistoryOptions(PolicyOptions, ClusterNameOptions, ClusterStateOptions, FormOptions):
    """Show changes and their outcomes.

    Shows the changes of gpu-rightsizer: time, run and outcome. It reads annotations
    of objects, manifests of evicted pods, the state namespace and Events. Changes
    nothing.
    """

    epilog = """
        examples:
          gpu-rightsizer history
          gpu-rightsizer history research/Deployment/eval-server
          gpu-rightsizer history --since 7d -o json
          gpu-rightsizer history --since 1d --notify --policy policy.yaml
        """
    workload: str | None = argument(_WORKLOAD, "only changes of this workload", nargs="?")
    run: str | None = flag("RUN", "only changes of this run")
    since: str | None = flag("TIME", "only since a time (RFC 3339 or 7d)")
    notify: bool = switch("also send the changes to notifications of the policy, as a digest")


class ControlOptions(ClusterStateOptions, FormOptions):
    """Flags of `breaker`, `pause` and `resume`."""

    command: str = "breaker"


class ResumeOptions(ControlOptions):
    """End a pause of all changes.

    Ends all pauses of the whole cluster, or with -n those of one namespace.
    """

    epilog = """
        example:
          gpu-rightsizer resume -n research
        """
    namespace: str | None = flag("NAME", "only this namespace", short="-n")


class PauseOptions(ResumeOptions):
    """Make no more changes until resume, except scale-ups.

    Makes no more changes in the cluster or in one namespace, until resume or for
    the duration of --for. Plans are still made and show the pause. Changes that
    left a workload unhealthy are still rolled back.

    Pauses add up: a new pause never shortens an existing one.
    """

    epilog = """
        examples:
          gpu-rightsizer pause --reason "incident 4711"
          gpu-rightsizer pause -n research --reason "paper deadline" --for 5d
        """
    reason: str = flag("TEXT", "shown in plans and outcomes", required=True)
    span: str | None = flag("DURATION", "how long; default: until resume", flag="--for")


class BreakerOptions(PolicyOptions, ControlOptions):
    """Show or reset the stop after errors.

    The circuit breaker opens after several errors in a row, if the admission
    guardrails refuse a write, if too many GPU nodes are not ready, or if the policy
    matches many more workloads than an operator accepted. While it is open, nothing
    is changed. Only an operator closes it.
    """

    epilog = """
        commands:
          show           show open breaker, pauses and accepted number (default)
          reset          close the breaker; --reason records why
          accept-growth  accept the number of workloads that the policy matches now

        examples:
          gpu-rightsizer breaker
          gpu-rightsizer breaker reset --reason "the API server was being upgraded"
          gpu-rightsizer breaker accept-growth --policy policy.yaml
        """
    action: str = argument(
        "COMMAND",
        "show, reset or accept-growth [show]",
        values=("show", "reset", "accept-growth"),
        nargs="?",
        default="show",
    )
    reason: str = flag("TEXT", "for reset: why it is safe", "")


class DoctorOptions(PolicyOptions, PrometheusOptions, ClusterStateOptions, FormOptions):
    """Check connectivity, permissions and metrics.

    Checks everything that plan, apply and undo need: Prometheus, its GPU metrics of
    each node, permissions and the policy. Shows each result with its remedy. Only
    reads; finds Prometheus itself without --prometheus-url.
    """

    epilog = """
        statuses:
          ok         as it should be
          warning    works with a limitation
          error      must be fixed before a plan is useful
          unknown    could not be checked

        Exit code 1 if there is an error. All checks: docs/doctor.md

        examples:
          gpu-rightsizer doctor --policy policy.yaml -o json
          gpu-rightsizer doctor --roles | kubectl apply -f -
        """
    roles: bool = switch("only print the RBAC roles that are needed")


class McpOptions(SessionOptions, OutputOptions):
    """Answer questions of AI assistants; only reads.

    Answers questions of an AI assistant over the Model Context Protocol, on
    standard input and output: who holds which GPUs and why, what is idle, what it
    costs and what was changed. It never writes; a read-only account is enough.
    """

    epilog = """
        example, in the configuration of an assistant:
          {"mcpServers": {"gpus": {"command": "gpu-rightsizer",
                                   "args": ["mcp", "--context", "production"]}}}
        """


class PolicyCommand(OutputOptions):
    """Write, check or explain a policy file.

    Writes a policy file, checks it, or explains its decision about a workload. See
    docs/policy.md for all fields.
    """

    command: str = "policy"


class InitOptions(ClusterOptions, PolicyCommand):
    """Write a policy to start with.

    Writes a commented policy for the PriorityClasses of the cluster to stdout. It
    protects the important ones and only advises on the others.
    """

    epilog = """
        example:
          gpu-rightsizer policy init > policy.yaml
        """


class CheckOptions(PolicyOptions, ClusterStateOptions, PolicyCommand):
    """Report all problems of a policy file.

    Checks a policy file and reports all problems with their lines: unknown or
    duplicate fields, invalid values, unknown kinds and unreachable rules. Unless
    --offline, also reports PriorityClasses that the cluster does not have, and
    counts the workloads that each rule selects.
    """

    epilog = """
        example:
          gpu-rightsizer policy check policy.yaml
        """
    file: pathlib.Path | None = argument("FILE", "the policy file, as --policy", nargs="?", type=path_of)
    offline: bool = switch("do not read the cluster")


class ExplainOptions(PolicyOptions, ClusterStateOptions, PolicyCommand):
    """Explain the decision about a workload.

    Evaluates the rules for one workload: the conditions that hold and those that do
    not, protections, opt-outs, the action for each finding, thresholds, schedule
    and budgets. Reads the API server, not Prometheus.
    """

    epilog = """
        example:
          gpu-rightsizer policy explain --policy policy.yaml research/Deployment/eval
        """
    workload: str = argument(_WORKLOAD, "the workload")


class _AccountOptions(PolicyOptions, StateOptions, PolicyCommand):
    service_account: str = flag("NAME", "service account of gpu-rightsizer [%(default)s]", "gpu-rightsizer")


class RbacOptions(_AccountOptions):
    """Print the RBAC roles that the policy's actions need.

    Prints a service account with roles and bindings for kubectl apply: the rights
    to plan, and the write access that the actions of the policy need, only on the
    kinds that its rules select. Notes on stderr explain unexpected rights.
    """

    epilog = """
        example:
          gpu-rightsizer policy rbac --policy policy.yaml | kubectl apply -f -
        """
    discovery: bool = switch("also list services, to find Prometheus")


class AdmissionOptions(_AccountOptions):
    """Print admission guardrails.

    Prints admission guardrails (ValidatingAdmissionPolicies) for kubectl apply.
    With them the API server refuses writes of gpu-rightsizer to protected
    namespaces and classes, and to fields that no action changes. Notes on stderr
    list the parts of the policy that they cannot express. keepSizes in the policy
    adds a MutatingAdmissionPolicy that keeps the size of resized workloads.
    """

    epilog = """
        example:
          gpu-rightsizer policy admission --policy policy.yaml | kubectl apply -f -
        """
    protected_class: list[str] = repeatable("NAME", "also protect this PriorityClass; repeatable")


class _PrintCompletion(argparse.Action):
    """Prints the completion script of a shell and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - argparse's signature
        values: Any,  # noqa: ANN401 - argparse's signature
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        """Print it."""
        from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - only for this command

        sys.stdout.write(shellcode(["gpu-rightsizer"], shell=values))
        parser.exit()


class _CompletionOptions(Options):
    """Print completions for bash, zsh or fish.

    Prints a script that completes commands, flags and their values in a shell.
    """

    epilog = """
        examples:
          source <(gpu-rightsizer completion bash)
          gpu-rightsizer completion zsh > ~/.zsh/completions/_gpu-rightsizer
          gpu-rightsizer completion fish | source
        """
    shell: str = argument(
        "SHELL", "bash, zsh or fish", values=("bash", "zsh", "fish"), action=_PrintCompletion
    )


class Command(NamedTuple):
    """A command: the docstring of its record is its help. A command with others below it has no flags."""

    name: str
    options: type[Options]
    below: "tuple[Command, ...]" = ()


_POLICY_COMMANDS: tuple[Command, ...] = (
    Command("check", CheckOptions),
    Command("explain", ExplainOptions),
    Command("init", InitOptions),
    Command("rbac", RbacOptions),
    Command("admission", AdmissionOptions),
)
_COMMANDS: tuple[Command, ...] = (
    Command("plan", PlanOptions),
    Command("doctor", DoctorOptions),
    Command("apply", ApplyOptions),
    Command("undo", UndoOptions),
    Command("policy", PolicyCommand, _POLICY_COMMANDS),
    Command("run", RunOptions),
    Command("history", HistoryOptions),
    Command("pause", PauseOptions),
    Command("resume", ResumeOptions),
    Command("breaker", BreakerOptions),
    Command("mcp", McpOptions),
    Command("completion", _CompletionOptions),
)


def add_all(commands: Any, others: Mapping[str, Sequence[Command]]) -> None:  # noqa: ANN401 - argparse does not name the type
    """Add every command; those of other packages, by the package with their modules, come last."""
    for package, rows in [("rightsizer.cli", _COMMANDS), *others.items()]:
        _add_commands(commands, rows, package)


def _add_commands(commands: Any, rows: Iterable[Command], package: str) -> None:  # noqa: ANN401 - as above
    for row in rows:
        summary, _, description = inspect.cleandoc(row.options.__doc__ or "").partition("\n\n")
        words, epilog = (
            summary[:1].lower() + summary[1:].removesuffix("."),
            inspect.cleandoc(row.options.epilog),
        )
        parser = commands.add_parser(row.name, help=words, description=description, epilog=epilog)
        if row.below:
            below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
            _add_commands(below, row.below, package)
        else:
            parser.set_defaults(package=package, command=getattr(row.options, "command", row.name))
            add_options(parser, row.options)
