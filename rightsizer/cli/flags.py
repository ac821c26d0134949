"""The commands' flags and help texts. Imports nothing heavy, so that --help answers at once."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rightsizer.cli.options import (
    CLUSTER,
    CLUSTER_NAME,
    INSTANCE,
    LEDGER,
    POLICY,
    POLICY_FILE,
    PRICES,
    PROMETHEUS,
    SCHEDULE,
    STATE,
    STATE_FILE,
    add_choice,
    add_common,
    add_options,
)
from rightsizer.report import FORMS

CHANGES_PROPOSED = 10
"""Exit code of plan --detailed-exitcode; 2 would be taken for a usage error."""

_PLAN = """\
Shows each GPU workload: the GPUs it holds, its utilization, what should change
by which policy rule, and why. Changes nothing; a read-only account is enough.
"""

_PLAN_EPILOG = """\
verdicts:
  act        should change; its lines say whether apply does it
  keep       nothing should change
  protected  policy, built-in protection or opt-out forbids changes
  unknown    not enough data; missing data never counts as idle

example:
  gpu-rightsizer plan --policy policy.yaml -n research --verdict act -o json
"""

_APPLY = """\
First rolls back earlier changes that left a workload unhealthy, and records
those that somebody reverted; no filter limits this. Then shows what it is about
to change, asks, and makes the changes of rules with mode: enforce, each after a
preflight check and a dry run.
"""

_APPLY_EPILOG = """\
outcomes: done, then verified (pods gone, GPUs free); no-effect: no pod went, so
it was rolled back; left alone: changed since the plan, blocked (PDB, pause,
breaker). Exit code 1: refused, unknown, skipped; 130: stopped by Ctrl-C, after
the current change. More: docs/rightsizer.md

example:
  gpu-rightsizer apply --policy policy.yaml --plan plan.json --yes -o json
"""

_UNDO = """\
Reverts changes of apply: restores the number of replicas, resumes the Job, or
recreates the evicted pod from its manifest. Each object holds the record of its
change, so undo works from any machine. Without a workload, --run, --since or
--all it lists the changes that can be reverted.
"""

_UNDO_EPILOG = """\
Objects that someone changed since are reverted only with --force, changes that
the memory of 30 days lacks only by name. Of several evicted pods with one name,
the last is recreated; --run selects another.

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
  gpu-rightsizer doctor --policy policy.yaml -o json
  gpu-rightsizer doctor --roles | kubectl apply -f -
"""

_RUN = """\
Plans on a schedule, and serves metrics for Prometheus. With --yes it also makes
the changes of rules with mode: enforce, as apply does. Of several replicas only
the leader does. Each cycle reads all files again, and does nothing if one is
invalid. SIGTERM stops it after the current change.
"""

_RUN_EPILOG = """\
example:
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

_CHECK_EPILOG = """\
example:
  gpu-rightsizer policy check policy.yaml
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
Prints a service account with roles and bindings for kubectl apply: the rights
to plan, and the write access that the actions of the policy need, only on the
kinds that its rules select. Notes on stderr explain unexpected rights.
"""

_RBAC_EPILOG = """\
example:
  gpu-rightsizer policy rbac --policy policy.yaml | kubectl apply -f -
"""

_ADMISSION = """\
Prints admission guardrails (ValidatingAdmissionPolicies) for kubectl apply.
With them the API server refuses writes of gpu-rightsizer to protected
namespaces and classes, and to fields that no action changes. Notes on stderr
list the parts of the policy that they cannot express. keepSizes in the policy
adds a MutatingAdmissionPolicy that keeps the size of resized workloads.
"""

_ADMISSION_EPILOG = """\
example:
  gpu-rightsizer policy admission --policy policy.yaml | kubectl apply -f -
"""

_INIT = """\
Writes a commented policy for the PriorityClasses of the cluster to stdout. It
protects the important ones and only advises on the others.
"""

_INIT_EPILOG = """\
example:
  gpu-rightsizer policy init > policy.yaml
"""

_MCP = """\
Answers questions of an AI assistant over the Model Context Protocol, on
standard input and output: who holds which GPUs and why, what is idle, what it
costs and what was changed. It never writes; a read-only account is enough.
"""

_MCP_EPILOG = """\
example, in the configuration of an assistant:
  {"mcpServers": {"gpus": {"command": "gpu-rightsizer",
                           "args": ["mcp", "--context", "production"]}}}
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

_HISTORY = """\
Shows the changes of gpu-rightsizer: time, run and outcome. It reads annotations
of objects, manifests of evicted pods, the state namespace and Events. Changes
nothing.
"""

_HISTORY_EPILOG = """\
examples:
  gpu-rightsizer history
  gpu-rightsizer history research/Deployment/eval-server
  gpu-rightsizer history --since 7d -o json
  gpu-rightsizer history --since 1d --notify --policy policy.yaml
"""

_PAUSE = """\
Makes no more changes in the cluster or in one namespace, until resume or for
the duration of --for. Plans are still made and show the pause. Changes that
left a workload unhealthy are still rolled back.

Pauses add up: a new pause never shortens an existing one.
"""

_PAUSE_EPILOG = """\
examples:
  gpu-rightsizer pause --reason "incident 4711"
  gpu-rightsizer pause -n research --reason "paper deadline" --for 5d
"""

_RESUME = """\
Ends all pauses of the whole cluster, or with -n those of one namespace.
"""

_RESUME_EPILOG = """\
example:
  gpu-rightsizer resume -n research
"""

_BREAKER = """\
The circuit breaker opens after several errors in a row, if the admission
guardrails refuse a write, if too many GPU nodes are not ready, or if the policy
matches many more workloads than an operator accepted. While it is open, nothing
is changed. Only an operator closes it.
"""

_BREAKER_EPILOG = """\
commands:
  show           show open breaker, pauses and accepted number (default)
  reset          close the breaker; --reason records why
  accept-growth  accept the number of workloads that the policy matches now

examples:
  gpu-rightsizer breaker
  gpu-rightsizer breaker reset --reason "the API server was being upgraded"
  gpu-rightsizer breaker accept-growth --policy policy.yaml
"""


def _plan(parser: argparse.ArgumentParser) -> None:
    words = f"exit with {CHANGES_PROPOSED} if it proposes changes"
    parser.add_argument("--detailed-exitcode", action="store_true", help=words)
    parser.add_argument("--save", metavar="FILE", help="also write the plan as JSON")
    parser.add_argument("--patches", metavar="DIR", help="also write patches of manifests")
    parser.add_argument("--at", metavar="TIME", help="past time to plan for (RFC 3339 or 2h)")
    parser.add_argument("--cluster-objects", metavar="FILE", help="kubectl get -o json, instead of a cluster")
    add_options(parser, "", (*POLICY, *PRICES, *CLUSTER_NAME, *LEDGER))
    _add_filters(parser, "shown")
    add_sources(parser)
    add_common(parser, FORMS, default=None)


def _add_filters(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the filters; repeated ones add to what is wanted, different ones must all hold."""
    words = f"only these are {what}; also with *"
    parser.add_argument("workloads", metavar="NAMESPACE/KIND/NAME", nargs="*", help=words)
    group = parser.add_argument_group(f"filters of what is {what}, never of what budgets count; repeatable")

    def add(*names: str, metavar: str, words: str) -> None:
        group.add_argument(*names, metavar=metavar, action="append", default=[], help=words)

    add("-n", "--namespace", metavar="NAME", words="namespace, also with *")
    add("-l", "--selector", metavar="SELECTOR", words="labels of workload or pod, as in kubectl")
    add("--verdict", metavar="VERDICT", words="act, keep, protected or unknown")
    add("--finding", metavar="FINDING", words="such as idle or too-many-gpus")
    add("--class", metavar="NAME", words="PriorityClass, also with *")
    add("--owner", metavar="[KIND/]NAME", words="controller, CronJob or manager")


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the flags of Prometheus and the cluster."""
    add_options(parser, "metrics", PROMETHEUS)
    add_options(parser, "cluster", (*CLUSTER, *STATE, *INSTANCE))


def _apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    parser.add_argument("--plan", metavar="FILE", help="make only the changes of this saved plan")
    _add_save(parser)
    _add_verify_for(parser)
    words = "accept how many the policy matches now"
    parser.add_argument("--accept-growth", action="store_true", help=words)
    add_options(parser, "", (*POLICY, *PRICES, *CLUSTER_NAME, *LEDGER))
    _add_filters(parser, "changed")
    add_sources(parser)
    add_common(parser)


def _add_save(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--save", metavar="FILE", help="also write the outcomes as JSON")


def _add_verify_for(parser: argparse.ArgumentParser) -> None:
    words = "watch changed pods; 0: do not [60s]"
    parser.add_argument("--verify-for", metavar="DURATION", default="60s", help=words)


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="make changes of rules with mode: enforce")
    _add_verify_for(parser)
    words = "with --yes: list pods and nodes in each cycle, instead of watching them"
    parser.add_argument("--no-watch", action="store_true", help=words)
    words = "compare what is watched or kept with a list or query in each cycle (default: in one of 96)"
    parser.add_argument("--verify-state", action="store_true", help=words)
    add_options(parser, "", (*POLICY, *PRICES, *STATE_FILE, *CLUSTER_NAME, *LEDGER))
    add_options(parser, "schedule", SCHEDULE)
    add_sources(parser)
    add_common(parser, forms=())


def _undo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workloads", metavar="NAMESPACE/KIND/NAME", nargs="*", help="workloads to revert")
    parser.add_argument("--run", metavar="RUN", help="changes of this run")
    parser.add_argument("--since", metavar="TIME", help="changes since a time (RFC 3339 or 2h)")
    parser.add_argument("--until", metavar="TIME", help="changes until a time, with --since")
    parser.add_argument("--all", action="store_true", help="all changes")
    parser.add_argument("--force", action="store_true", help="also objects that someone changed since")
    for name, condition in (
        ("--allow-privileged", "if it exceeds Pod Security baseline"),
        ("--allow-unverified", "if it was evicted more than 30 days ago"),
    ):
        words = f"recreate this pod even {condition}; repeatable"
        parser.add_argument(name, metavar="NAMESPACE/POD", action="append", default=[], help=words)
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")
    _add_save(parser)
    add_options(parser, "", POLICY_FILE)
    add_options(parser, "cluster", (*CLUSTER, *STATE))
    add_common(parser)


def _history(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload", metavar="NAMESPACE/KIND/NAME", nargs="?", help="only changes of this workload"
    )
    parser.add_argument("--run", metavar="RUN", help="only changes of this run")
    parser.add_argument("--since", metavar="TIME", help="only since a time (RFC 3339 or 7d)")
    words = "also send the changes to notifications of the policy, as a digest"
    parser.add_argument("--notify", action="store_true", help=words)
    add_options(parser, "", (*POLICY_FILE, *CLUSTER_NAME))
    _add_cluster_and_output(parser)


def _add_cluster_and_output(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "cluster", (*CLUSTER, *STATE))
    add_common(parser)


def _pause(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="breaker", breaker_command="pause")
    _add_namespace(parser)
    parser.add_argument("--reason", metavar="TEXT", required=True, help="shown in plans and outcomes")
    parser.add_argument("--for", metavar="DURATION", dest="span", help="how long; default: until resume")
    _add_cluster_and_output(parser)


def _add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only this namespace")


def _resume(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command="breaker", breaker_command="resume")
    _add_namespace(parser)
    _add_cluster_and_output(parser)


def _breaker(parser: argparse.ArgumentParser) -> None:
    add_choice(
        parser,
        "breaker_command",
        values=("show", "reset", "accept-growth"),
        metavar="COMMAND",
        nargs="?",
        default="show",
        help="show, reset or accept-growth [show]",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="for reset: why it is safe")
    add_options(parser, "policy", POLICY_FILE)
    _add_cluster_and_output(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--roles", action="store_true", help="only print the RBAC roles that are needed")
    add_options(parser, "policy", POLICY)
    add_options(parser, "metrics", PROMETHEUS)
    _add_cluster_and_output(parser)


def _mcp(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "", (*POLICY, *PRICES))
    add_sources(parser)
    add_common(parser, forms=())


def _policy(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _add_commands(commands, _POLICY_COMMANDS):
        command.set_defaults(command="policy", policy_command=command.prog.rpartition(" ")[2])
        add_common(command, forms=())


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="the policy file, as --policy")
    parser.add_argument("--offline", action="store_true", help="do not read the cluster")
    add_options(parser, "policy", POLICY_FILE)
    add_options(parser, "cluster", (*CLUSTER, *STATE))


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="NAMESPACE/KIND/NAME", help="the workload")
    add_options(parser, "policy", POLICY)
    add_options(parser, "cluster", (*CLUSTER, *STATE))


def _init(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "cluster", CLUSTER)


def _rbac(parser: argparse.ArgumentParser) -> None:
    words = "also list services, to find Prometheus"
    parser.add_argument("--discovery", action="store_true", help=words)
    _add_account(parser)


def _add_account(parser: argparse.ArgumentParser) -> None:
    words = "service account of gpu-rightsizer [%(default)s]"
    parser.add_argument("--service-account", metavar="NAME", default="gpu-rightsizer", help=words)
    add_options(parser, "policy", POLICY)
    add_options(parser, "cluster", STATE)


def _admission(parser: argparse.ArgumentParser) -> None:
    words = "also protect this PriorityClass; repeatable"
    parser.add_argument("--protected-class", metavar="NAME", action="append", default=[], help=words)
    _add_account(parser)


def _completion(parser: argparse.ArgumentParser) -> None:
    shells = ("bash", "zsh", "fish")
    add_choice(
        parser, "shell", values=shells, metavar="SHELL", action=_PrintCompletion, help="bash, zsh or fish"
    )


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


Command = tuple[str, str, str, str, Callable[[argparse.ArgumentParser], None]]
"""Name, one line about it, description, epilog, and the function that adds its flags."""

_POLICY_COMMANDS: tuple[Command, ...] = (
    ("check", "report all problems of a policy file", _CHECK, _CHECK_EPILOG, _check),
    ("explain", "explain the decision about a workload", _EXPLAIN, _EXPLAIN_EPILOG, _explain),
    ("init", "write a policy to start with", _INIT, _INIT_EPILOG, _init),
    ("rbac", "print the RBAC roles that the policy's actions need", _RBAC, _RBAC_EPILOG, _rbac),
    ("admission", "print admission guardrails", _ADMISSION, _ADMISSION_EPILOG, _admission),
)
_COMMANDS: tuple[Command, ...] = (
    ("plan", "show what GPU workloads use and what should change", _PLAN, _PLAN_EPILOG, _plan),
    ("doctor", "check connectivity, permissions and metrics", _DOCTOR, _DOCTOR_EPILOG, _doctor),
    ("apply", "show the plan, ask, and make its changes", _APPLY, _APPLY_EPILOG, _apply),
    ("undo", "list earlier changes, or revert them", _UNDO, _UNDO_EPILOG, _undo),
    ("policy", "write, check or explain a policy file", _POLICY, "", _policy),
    ("run", "plan on a schedule, with --yes also apply; serve metrics", _RUN, _RUN_EPILOG, _run),
    ("history", "show changes and their outcomes", _HISTORY, _HISTORY_EPILOG, _history),
    ("pause", "make no more changes until resume, except scale-ups", _PAUSE, _PAUSE_EPILOG, _pause),
    ("resume", "end a pause of all changes", _RESUME, _RESUME_EPILOG, _resume),
    ("breaker", "show or reset the stop after errors", _BREAKER, _BREAKER_EPILOG, _breaker),
    ("mcp", "answer questions of AI assistants; only reads", _MCP, _MCP_EPILOG, _mcp),
    ("completion", "print completions for bash, zsh or fish", _COMPLETION, _COMPLETION_EPILOG, _completion),
)


def add_all(commands: Any, others: Mapping[str, Sequence[Command]]) -> None:  # noqa: ANN401 - argparse does not name the type
    """Add every command; those of other packages, by the package with their modules, come last."""
    for package, rows in [("rightsizer.cli", _COMMANDS), *others.items()]:
        for parser in _add_commands(commands, rows):
            parser.set_defaults(package=package)


def _add_commands(commands: Any, rows: Iterable[Command]) -> list[argparse.ArgumentParser]:  # noqa: ANN401 - as above
    parsers = []
    for name, words, description, epilog, add in rows:
        parser = commands.add_parser(name, help=words, description=description, epilog=epilog)
        parser.set_defaults(command=name)
        add(parser)
        parsers.append(parser)
    return parsers
