"""Flags and help texts of history, pause, resume and breaker. Imports nothing heavy."""

import argparse
from collections.abc import Callable

from rightsizer.cli.options import (
    CLUSTER,
    POLICY_FILE,
    STATE,
    add_choice,
    add_common,
    add_options,
    file_name,
)

_HISTORY = """\
Shows the changes of gpu-rightsizer: time, run and outcome. Reads
annotations of objects, the manifests of evicted pods, the state namespace and
Events; with --journal, a file that apply wrote. Only reads.
"""

_HISTORY_EPILOG = """\
examples:
  gpu-rightsizer history
  gpu-rightsizer history research/Deployment/eval-server
  gpu-rightsizer history --since 7d -o json
  gpu-rightsizer history --journal /var/lib/gpu-rightsizer/journal
"""

_PAUSE = """\
Stops all changes in the cluster or in one namespace, until resume or for the
duration of --for. Plans are still made and show the pause. Unhealthy workloads
are still rolled back.

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

_BREAKER = """\
The breaker opens after several errors in a row, if the API server refuses a
write as out of policy, if too many GPU nodes are not ready, or if the policy
selects many more workloads than were accepted. Then nothing is changed until
an operator resets it.
"""

_BREAKER_EPILOG = """\
commands:
  show           show open breaker, pauses and accepted number (default)
  reset          close the breaker; --reason records why
  accept-growth  accept the current number of eligible workloads

examples:
  gpu-rightsizer breaker
  gpu-rightsizer breaker reset --reason "the API server was being upgraded"
  gpu-rightsizer breaker accept-growth --policy policy.yaml
"""


def add_operating(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add these commands."""
    for add in (_add_history, _add_pause, _add_resume, _add_breaker):
        add(add_parser)


def _add_history(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "history", "show changes and their outcomes", _HISTORY, _HISTORY_EPILOG)
    parser.set_defaults(command="history")
    parser.add_argument(
        "workload", metavar="NAMESPACE/KIND/NAME", nargs="?", help="only changes of this workload"
    )
    parser.add_argument("--run", metavar="RUN", help="only changes of this run")
    parser.add_argument("--since", metavar="TIME", help="only since a time (RFC 3339), or such as 7d ago")
    # Without a twin in the environment: where apply writes one, the cluster is still asked first.
    parser.add_argument(
        "--journal",
        metavar="FILE",
        type=file_name,
        help="read this journal of apply, not the cluster",
    )
    _add_rest(parser)


def _add_pause(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "pause", "stop all changes", _PAUSE, _PAUSE_EPILOG)
    parser.set_defaults(command="breaker", breaker_command="pause")
    _add_namespace(parser)
    parser.add_argument("--reason", metavar="TEXT", required=True, help="shown in plans and outcomes")
    parser.add_argument("--for", metavar="DURATION", dest="span", help="how long; default: until resume")
    _add_rest(parser)


def _add_resume(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "resume", "end a pause", _RESUME, None)
    parser.set_defaults(command="breaker", breaker_command="resume")
    _add_namespace(parser)
    _add_rest(parser)


def _add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only this namespace")


def _add_breaker(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "breaker", "show or reset the breaker", _BREAKER, _BREAKER_EPILOG)
    parser.set_defaults(command="breaker")
    add_choice(
        parser,
        "breaker_command",
        values=("show", "reset", "accept-growth"),
        metavar="COMMAND",
        nargs="?",
        default="show",
        help="show, reset or accept-growth [show]",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="of reset: why it is safe")
    add_options(parser, "policy", POLICY_FILE)
    _add_rest(parser)


def _parser(
    add_parser: Callable[..., argparse.ArgumentParser],
    name: str,
    words: str,
    description: str,
    epilog: str | None,
) -> argparse.ArgumentParser:
    return add_parser(name, help=words, description=description, epilog=epilog)


def _add_rest(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "cluster", (*CLUSTER, *STATE))
    add_common(parser)
