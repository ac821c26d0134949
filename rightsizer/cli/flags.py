"""The commands' flags and help texts. Imports nothing heavy, so that --help answers at once."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from rightsizer.cli.operating_flags import add_operating
from rightsizer.cli.options import (
    CLUSTER,
    INSTANCE,
    JOURNAL,
    POLICY,
    POLICY_FILE,
    PRICES,
    PROMETHEUS,
    SCHEDULE,
    STATE,
    add_choice,
    add_common,
    add_options,
)
from rightsizer.report.forms import FORMS

CHANGES_PROPOSED = 10
"""Exit code of plan --detailed-exitcode; 2 would be taken for a usage error."""

_PLAN = """\
Shows each GPU workload: the GPUs it holds, its utilization, the decision, the
policy rule and the reason. Only reads; a read-only account is enough.
"""

_PLAN_EPILOG = """\
verdicts:
  act        idle by two independent signals over the whole window
  keep       active, or partly active
  protected  the policy protects it
  unknown    not enough data; missing data never counts as idle

examples:
  gpu-rightsizer plan --prometheus-url http://localhost:9090
  gpu-rightsizer plan --policy policy.yaml --save plan.json -o json | jq .totals
"""

_APPLY = """\
First reconciles earlier changes: records manual reverts and rolls back changes
that left a workload unhealthy. Then shows the plan, asks, and applies the
changes of rules with mode: enforce, after a preflight check and a dry run of
each. Ctrl-C stops after the change in flight, a second one at once.
"""

_APPLY_EPILOG = """\
outcomes: done; or not changed: gone, changed (differs from the plan), blocked
(by a PDB, pause or the breaker). Exit code 1: refused, unknown (check the
workload) or skipped; 130 if stopped at once. More: docs/rightsizer.md

examples:
  gpu-rightsizer apply --policy policy.yaml --prometheus-url http://prom:9090
  gpu-rightsizer apply --policy policy.yaml --plan plan.json --yes -o json
"""

_UNDO = """\
Reverts changes of apply: restores the number of replicas, resumes the Job, or
recreates the evicted pod from its manifest. Each object holds the record of its
change, so undo works from any machine. Without a workload, --run, --since or
--all it lists the changes that can be reverted.
"""

_UNDO_EPILOG = """\
Objects that someone changed since are listed and not reverted, except with
--force. Of several evicted pods with one name, the last is recreated; --run
selects another.

examples:
  gpu-rightsizer undo
  gpu-rightsizer undo research/Deployment/eval-server
  gpu-rightsizer undo --run 20261121-031500-4f2a9c --yes
  gpu-rightsizer undo --since 2h
"""

_DOCTOR = """\
Checks everything that plan, apply and undo need: Prometheus, its GPU metrics of
each node, permissions and the policy. Shows each result with its remedy. Only
reads; finds Prometheus itself without --prometheus-url.
"""

_DOCTOR_EPILOG = """\
statuses:
  ok         as it should be
  warning    works with a limitation
  error      must be fixed before a plan is useful
  unknown    could not be checked

Exit code 1 if there is an error. All checks: docs/doctor.md

examples:
  gpu-rightsizer doctor
  gpu-rightsizer doctor --policy policy.yaml -o json
  gpu-rightsizer doctor --roles | kubectl apply -f -
"""

_RUN = """\
Plans on a schedule, and serves metrics for Prometheus. With --yes
it applies what the policy enforces, as apply does; of several replicas only the
leader does, which holds a Lease in the state namespace. Each cycle reads all
files again, and does nothing if one is invalid. SIGTERM stops it after the
change in flight.
"""

_RUN_EPILOG = """\
examples:
  gpu-rightsizer run --policy policy.yaml --every 10m
  gpu-rightsizer run --policy policy.yaml --yes --schedule '*/15 * * * *'
"""

_POLICY = """\
Writes a policy file, checks it, or explains its decision about a workload. See
docs/policy.md for all fields.
"""

_CHECK = """\
Checks a policy file and reports all problems with their lines: unknown or
duplicate fields, invalid values, unknown kinds and unreachable rules. Unless
--offline, also reports PriorityClasses that the cluster does not have, and
counts the workloads that each rule selects.
"""

_EXPLAIN = """\
Evaluates the rules for one workload: the conditions that hold and those that do
not, protections, opt-outs, the action for each finding, thresholds, schedule
and budgets. Reads the API server, not Prometheus.
"""

_EXPLAIN_EPILOG = """\
example:
  gpu-rightsizer policy explain --policy policy.yaml research/Deployment/eval
"""

_RBAC = """\
Prints a service account with roles and bindings for kubectl apply: the
rights to plan, and the write access that the actions of the policy need, only
on the kinds that its rules select. Notes on stderr explain unexpected rights.
"""

_ADMISSION = """\
Prints admission guardrails (ValidatingAdmissionPolicies) for kubectl apply.
With them the API server refuses writes of gpu-rightsizer to protected
namespaces and classes, and to fields that no action changes. Notes on stderr
list the parts of the policy that they cannot express.
"""

_INIT = """\
Writes a commented policy for the PriorityClasses of the cluster to stdout. It
protects the important ones and only advises on the others.
"""

_INIT_EPILOG = """\
example:
  gpu-rightsizer policy init > policy.yaml
"""


_COMPLETION = """\
Prints a script that completes commands, flags and their values in a shell.
"""

_COMPLETION_EPILOG = """\
examples:
  source <(gpu-rightsizer completion bash)
  gpu-rightsizer completion zsh > ~/.zsh/completions/_gpu-rightsizer
  gpu-rightsizer completion fish | source
"""


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


def add_all(commands: Any) -> None:  # noqa: ANN401 - argparse does not name the type
    """Add every command."""
    for add in (_add_plan, _add_apply, _add_run, _add_undo, add_operating, _add_doctor, _add_policy):
        add(commands.add_parser)
    completion = commands.add_parser(
        "completion",
        help="print completions for bash, zsh or fish",
        description=_COMPLETION,
        epilog=_COMPLETION_EPILOG,
    )
    add_choice(
        completion,
        "shell",
        values=("bash", "zsh", "fish"),
        metavar="SHELL",
        action=_PrintCompletion,
        help="bash, zsh or fish",
    )


def _add_plan(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "plan",
        help="show what GPU workloads use, and decisions; only reads",
        description=_PLAN,
        epilog=_PLAN_EPILOG,
    )
    parser.set_defaults(command="plan")
    parser.add_argument(
        "--detailed-exitcode",
        action="store_true",
        help=f"exit with {CHANGES_PROPOSED} if there are changes",
    )
    parser.add_argument("--save", metavar="FILE", help="also write the plan there as JSON")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help="plan as of a time (RFC 3339), or such as 2h ago",
    )
    parser.add_argument(
        "--cluster-objects",
        metavar="FILE",
        help="read objects from this List instead",
    )
    add_options(parser, "", (*POLICY, *PRICES))
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_common(parser, FORMS)


def _add_apply(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "apply",
        help="show the plan, ask, and apply what the policy enforces",
        description=_APPLY,
        epilog=_APPLY_EPILOG,
    )
    parser.set_defaults(command="apply")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--plan", metavar="FILE", help="apply only this saved plan")
    parser.add_argument("--save", metavar="FILE", help="also write the outcomes there as JSON")
    _add_verify_for(parser)
    parser.add_argument(
        "--accept-growth",
        action="store_true",
        help="accept how many workloads are eligible",
    )
    add_options(parser, "", (*POLICY, *PRICES, *JOURNAL))
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_common(parser)


def _add_verify_for(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify-for",
        metavar="DURATION",
        default="60s",
        help="wait for healthy pods; 0: do not [60s]",
    )


def _add_run(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "run",
        help="plan, and with --yes apply, on a schedule; serve metrics",
        description=_RUN,
        epilog=_RUN_EPILOG,
    )
    parser.set_defaults(command="run")
    parser.add_argument("--yes", "-y", action="store_true", help="apply what the policy enforces")
    _add_verify_for(parser)
    add_options(parser, "schedule", SCHEDULE)
    add_options(parser, "", (*POLICY, *PRICES, *JOURNAL))
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_common(parser, forms=())


def _add_undo(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "undo",
        help="list changes, or revert them",
        description=_UNDO,
        epilog=_UNDO_EPILOG,
    )
    parser.set_defaults(command="undo")
    parser.add_argument("workloads", metavar="NAMESPACE/KIND/NAME", nargs="*", help="workloads to revert")
    parser.add_argument("--run", metavar="RUN", help="changes of this run")
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="changes since a time (RFC 3339), or such as 2h ago",
    )
    parser.add_argument("--until", metavar="TIME", help="changes until a time, with --since")
    parser.add_argument("--all", action="store_true", help="all changes")
    parser.add_argument("--force", action="store_true", help="also objects that someone changed since")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--save", metavar="FILE", help="also write the outcomes there as JSON")
    add_options(parser, "cluster", (*CLUSTER, *STATE, *JOURNAL))
    add_common(parser)


def _add_doctor(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "doctor",
        help="check connectivity, permissions and metrics; only reads",
        description=_DOCTOR,
        epilog=_DOCTOR_EPILOG,
    )
    parser.set_defaults(command="doctor")
    parser.add_argument(
        "--roles",
        action="store_true",
        help="only print the RBAC roles that are needed",
    )
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE))
    add_common(parser)


def _add_policy(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser("policy", help="write, check or explain a policy file", description=_POLICY)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _add_policy_command(commands, "check", "report all problems of a policy file", _CHECK)
    check.add_argument("file", metavar="FILE", nargs="?", help="the policy file, as --policy")
    check.add_argument("--offline", action="store_true", help="do not read the cluster")
    add_options(check, "policy", POLICY_FILE)
    add_options(check, "cluster", (*CLUSTER, *STATE))
    explain = _add_policy_command(commands, "explain", "explain the decision about a workload", _EXPLAIN)
    explain.epilog = _EXPLAIN_EPILOG
    explain.add_argument("workload", metavar="NAMESPACE/KIND/NAME", help="the workload")
    add_options(explain, "policy", POLICY)
    add_options(explain, "cluster", (*CLUSTER, *STATE))
    init = _add_policy_command(commands, "init", "write a policy to start with", _INIT)
    init.epilog = _INIT_EPILOG
    add_options(init, "cluster", CLUSTER)
    rbac = _add_policy_command(commands, "rbac", "print the RBAC roles that the policy's actions need", _RBAC)
    admission = _add_policy_command(commands, "admission", "print admission guardrails", _ADMISSION)
    rbac.add_argument(
        "--discovery",
        action="store_true",
        help="also list services, to find Prometheus",
    )
    for command in (rbac, admission):
        command.add_argument(
            "--service-account",
            metavar="NAME",
            default="gpu-rightsizer",
            help="service account of gpu-rightsizer [%(default)s]",
        )
        add_options(command, "policy", POLICY)
        add_options(command, "cluster", STATE)
    admission.add_argument(
        "--protected-class",
        metavar="NAME",
        action="append",
        default=[],
        help="also protect this PriorityClass; repeatable",
    )
    for command in (check, explain, init, rbac, admission):
        add_common(command, forms=())


def _add_policy_command(commands: Any, name: str, words: str, description: str) -> argparse.ArgumentParser:  # noqa: ANN401
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=description)
    parser.set_defaults(command="policy", policy_command=name)
    return parser
