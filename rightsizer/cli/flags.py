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
Says for every GPU workload of the cluster what it holds, what it used, what
should happen to it, under which rule of the policy, and why.

Nothing is changed: plan sends no request that could; a read-only account will
do.
"""

_PLAN_EPILOG = """\
verdicts:
  act        idle by two independent signals over the whole window
  keep       at work, or partly at work
  protected  the policy says so
  unknown    the evidence does not suffice; missing data is never idleness

examples:
  gpu-rightsizer plan --prometheus-url http://localhost:9090
  gpu-rightsizer plan --policy policy.yaml -o json | jq .totals
  gpu-rightsizer plan -o html > plan.html
  gpu-rightsizer plan --policy policy.yaml --save plan.json
  gpu-rightsizer apply --policy policy.yaml --plan plan.json
"""

_APPLY = """\
Makes a plan, shows it, asks, and then does what the rules with mode: enforce
say, one workload after the other. Before each change the workload, the policy
and its use since the plan was made are looked at again, and the API server is
asked whether it would accept the change (dry run).

Before the plan it repairs what earlier runs left: what somebody took back is
remembered, what is not well with less gets back what it had. After the changes
it looks what became of the pods and their GPUs.

Each change is one request that carries what undoes it: see gpu-rightsizer undo.
Each outcome is told as it is known; Ctrl-C ends the run after the change in
flight, a second one at once. Either way all outcomes are told.
"""

_APPLY_EPILOG = """\
outcomes:
  done       changed as planned
  gone       not there any more, nothing to do
  changed    not as planned any more, left alone
  blocked    a PodDisruptionBudget stands against it, or it is paused, or the
             breaker has opened; left alone
  refused    the API server said no
  unknown    the answer was lost and could not be read back: look yourself
  skipped    not attempted: interrupted, Prometheus or the API server is away,
             or an earlier one ended the run

Exit code 1 when any is refused, unknown or skipped; 130 when ended at once.

examples:
  gpu-rightsizer apply --policy policy.yaml --prometheus-url http://prom:9090
  gpu-rightsizer apply --policy policy.yaml --plan plan.json --yes -o json
"""

_UNDO = """\
Puts back what apply changed: the former number of replicas, the Job as it ran,
the evicted pod from its saved manifest. The record of each change is on the
object itself, so undo works from any machine.

Without a workload, --run, --since or --all it lists what can be put back.
"""

_UNDO_EPILOG = """\
What someone changed since is left alone, and shown; --force overrides that.
Of several evicted pods of one name the last is put back; --run names another.

examples:
  gpu-rightsizer undo
  gpu-rightsizer undo research/Deployment/eval-server
  gpu-rightsizer undo --run 20261121-031500-4f2a9c --yes
  gpu-rightsizer undo --since 2h
"""

_DOCTOR = """\
Looks at everything that plan, apply and undo need: Prometheus, its record of
GPUs, each node's series, what this account may do, the policy. Says how it
stands with each, and what to do about it. Only reads; without --prometheus-url
it looks for one, as plan does.
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
Plans at once and then on a schedule, and publishes metrics about it for
Prometheus. With --yes it carries out what the policy's rules enforce, as apply
does: of several such processes one at a time, which holds a Lease in the state
namespace. Files are read anew for each cycle; where one cannot be used, nothing
is done until it can. SIGTERM ends it after the change in flight.
"""

_RUN_EPILOG = """\
examples:
  gpu-rightsizer run --policy policy.yaml --every 10m
  gpu-rightsizer run --policy policy.yaml --yes --schedule '*/15 * * * *'
"""

_POLICY = """\
Works on policy files: write one to start from, check it, and ask it why it says
what it says about a workload. See docs/policy.md for all fields.
"""

_CHECK = """\
Checks a policy file and tells all that is wrong with it at once, each with its
line: unknown and doubled fields, values that cannot be meant, kinds that are
not known, rules that are never reached, and, unless --offline, names and
patterns of PriorityClasses that match none of the cluster's. Then it says how
many of the cluster's workloads each rule is about.
"""

_EXPLAIN = """\
Walks the rules for one workload: which condition holds and which does not, then
protections, opt-outs, what is done about which finding, by which thresholds,
when, and within which budgets. Asks the API server, not Prometheus.
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
protects the important ones and advises on the others; to act is left to you.
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
        help="say what every GPU workload uses and what should happen; only reads",
        description=_PLAN,
        epilog=_PLAN_EPILOG,
    )
    parser.set_defaults(command="plan")
    parser.add_argument(
        "--detailed-exitcode",
        action="store_true",
        help=f"exit with {CHANGES_PROPOSED} when apply would change something",
    )
    parser.add_argument("--save", metavar="FILE", help="also write the plan there as JSON, for apply --plan")
    parser.add_argument(
        "--at",
        metavar="TIME",
        help="judge as of a past moment, such as 2026-11-20T18:00:00Z; not to be applied",
    )
    parser.add_argument(
        "--cluster-objects",
        metavar="FILE",
        help="a List of objects, JSON or YAML, as kubectl get pods,nodes,... -A -o json writes it, in place of the API "
        "server; not to be applied",
    )
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_options(parser, "money", PRICES)
    add_common(parser, FORMS)


def _add_apply(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "apply",
        help="show the plan, ask, and carry out what the policy enforces",
        description=_APPLY,
        epilog=_APPLY_EPILOG,
    )
    parser.set_defaults(command="apply")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument(
        "--plan", metavar="FILE", help="only what this saved plan says, as far as it still holds unchanged"
    )
    parser.add_argument("--save", metavar="FILE", help="also write the outcome there as JSON")
    _add_verify_for(parser)
    parser.add_argument(
        "--accept-growth",
        action="store_true",
        help="accept that the policy is about so many workloads as it is now",
    )
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_options(parser, "money", PRICES)
    add_options(parser, "record", JOURNAL)
    add_common(parser)


def _add_verify_for(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--verify-for",
        metavar="DURATION",
        default="60s",
        help="how long to wait for pods to go, and be well; 0: left to the next run (default: 60s)",
    )


def _add_run(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "run",
        help="plan, and apply where told to, on a schedule; publish metrics",
        description=_RUN,
        epilog=_RUN_EPILOG,
    )
    parser.set_defaults(command="run")
    parser.add_argument(
        "--yes", "-y", action="store_true", help="carry out what the policy enforces; otherwise only plan"
    )
    _add_verify_for(parser)
    add_options(parser, "schedule", SCHEDULE)
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))
    add_options(parser, "money", PRICES)
    add_options(parser, "record", JOURNAL)
    add_common(parser, forms=())


def _add_undo(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "undo",
        help="list what was changed, or put it back",
        description=_UNDO,
        epilog=_UNDO_EPILOG,
    )
    parser.set_defaults(command="undo")
    parser.add_argument("workloads", metavar="NAMESPACE/KIND/NAME", nargs="*", help="what to put back")
    parser.add_argument(
        "--run", metavar="RUN", help="everything that one run changed, or of that the workloads named"
    )
    parser.add_argument(
        "--since",
        metavar="TIME",
        help="what was changed since then: 2026-11-20T18:00:00Z, or how long ago, such as 2h",
    )
    parser.add_argument("--until", metavar="TIME", help="with --since: and until then")
    parser.add_argument("--all", action="store_true", help="everything")
    parser.add_argument("--force", action="store_true", help="also what someone changed since")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--save", metavar="FILE", help="also write the outcome there as JSON")
    add_options(parser, "cluster", (*CLUSTER, *STATE, *JOURNAL))
    add_common(parser)


def _add_doctor(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "doctor",
        help="say what stands between you and a plan, and what to do about it; only reads",
        description=_DOCTOR,
        epilog=_DOCTOR_EPILOG,
    )
    parser.set_defaults(command="doctor")
    parser.add_argument(
        "--roles",
        action="store_true",
        help="print the RBAC roles that plan, apply and undo need, and ask nothing",
    )
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE))
    add_common(parser)


def _add_policy(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser("policy", help="write, check or explain a policy file", description=_POLICY)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = _add_policy_command(commands, "check", "tell everything that is wrong with a policy file", _CHECK)
    check.add_argument("file", metavar="FILE", nargs="?", help="the policy file, as --policy")
    check.add_argument("--offline", action="store_true", help="do not ask the cluster")
    add_options(check, "policy", POLICY_FILE)
    add_options(check, "cluster", (*CLUSTER, *STATE))
    explain = _add_policy_command(commands, "explain", "say why a workload is treated as it is", _EXPLAIN)
    explain.epilog = _EXPLAIN_EPILOG
    explain.add_argument("workload", metavar="NAMESPACE/KIND/NAME", help="the workload")
    add_options(explain, "policy", POLICY)
    add_options(explain, "cluster", (*CLUSTER, *STATE))
    init = _add_policy_command(commands, "init", "write a policy to start from", _INIT)
    init.epilog = _INIT_EPILOG
    add_options(init, "cluster", CLUSTER)
    rbac = _add_policy_command(commands, "rbac", "print the rights that the policy's actions need", _RBAC)
    admission = _add_policy_command(
        commands, "admission", "print what the API server is to refuse us", _ADMISSION
    )
    rbac.add_argument(
        "--discovery",
        action="store_true",
        help="also list services, by which plan finds Prometheus in the cluster where no URL is given",
    )
    for command in (rbac, admission):
        command.add_argument(
            "--service-account", metavar="NAME", default="gpu-rightsizer", help="ours (default: %(default)s)"
        )
        add_options(command, "policy", POLICY)
        add_options(command, "cluster", STATE)
    admission.add_argument(
        "--protected-class",
        metavar="NAME",
        action="append",
        default=[],
        help="a PriorityClass whose own annotations protect its pods, which the policy's rules do not say; repeatable",
    )
    for command in (check, explain, init, rbac, admission):
        add_common(command, forms=())


def _add_policy_command(commands: Any, name: str, words: str, description: str) -> argparse.ArgumentParser:  # noqa: ANN401
    parser: argparse.ArgumentParser = commands.add_parser(name, help=words, description=description)
    parser.set_defaults(command="policy", policy_command=name)
    return parser
