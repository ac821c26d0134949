"""Flags and help texts of history, pause, resume and breaker, for whoever operates it. Imports nothing heavy."""

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
Says what was changed, when, by which run, and what became of it: from what
objects remember (annotations), the manifests of evicted pods, what our own
namespace remembers, and Events, as far as the cluster still has them. With
--journal from a file that apply wrote. Only reads.
"""

_HISTORY_EPILOG = """\
examples:
  gpu-rightsizer history
  gpu-rightsizer history research/Deployment/eval-server
  gpu-rightsizer history --since 7d -o json
  gpu-rightsizer history --journal /var/lib/gpu-rightsizer/journal
"""

_PAUSE = """\
Nothing is changed any more, in the whole cluster or in one namespace, until
resume, or for so long as --for says. A plan is still made, and says so. What
does not come up healthy after an earlier change is put back all the same. A
second pause shortens none that stands: both hold, each as long as it was said.
"""

_PAUSE_EPILOG = """\
examples:
  gpu-rightsizer pause --reason "incident 4711"
  gpu-rightsizer pause -n research --reason "paper deadline" --for 5d
"""

_RESUME = """\
Ends all pauses of the whole cluster, or with -n those of one namespace. To
have a shorter one instead, resume and pause anew.
"""

_BREAKER = """\
The breaker opens by itself: after several errors in a row, where the API server
refuses a write as out of policy, where too many GPU nodes are not ready, or
where the policy is about many more workloads than was accepted. Then nothing is
changed until a person has looked and closes it.
"""

_BREAKER_EPILOG = """\
commands:
  show          what is open or paused, and which scope was accepted (default)
  clear         close it; --reason says why that is right
  accept-growth  accept that the policy is about so many workloads as it is now

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
    parser = _parser(
        add_parser, "history", "say what was changed, and what became of it", _HISTORY, _HISTORY_EPILOG
    )
    parser.set_defaults(command="history")
    parser.add_argument(
        "workload", metavar="NAMESPACE/KIND/NAME", nargs="?", help="only what was done to this"
    )
    parser.add_argument("--run", metavar="RUN", help="only what one run did")
    parser.add_argument(
        "--since", metavar="TIME", help="only since then: 2026-11-20T18:00:00Z, or how long ago, such as 7d"
    )
    # Without a twin in the environment: where apply writes one, the cluster is still asked first.
    parser.add_argument(
        "--journal",
        metavar="FILE",
        type=file_name,
        help="what apply wrote there, instead of what the cluster remembers",
    )
    _add_rest(parser)


def _add_pause(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "pause", "change nothing until further notice", _PAUSE, _PAUSE_EPILOG)
    parser.set_defaults(command="breaker", breaker_command="pause")
    _add_namespace(parser)
    parser.add_argument("--reason", metavar="TEXT", required=True, help="stands in plans and outcomes")
    parser.add_argument("--for", metavar="DURATION", dest="span", help="how long (default: until resume)")
    _add_rest(parser)


def _add_resume(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "resume", "end a pause", _RESUME, None)
    parser.set_defaults(command="breaker", breaker_command="resume")
    _add_namespace(parser)
    _add_rest(parser)


def _add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", metavar="NAME", help="only this one (default: everything)")


def _add_breaker(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = _parser(add_parser, "breaker", "see or close the breaker", _BREAKER, _BREAKER_EPILOG)
    parser.set_defaults(command="breaker")
    add_choice(
        parser,
        "breaker_command",
        values=("show", "reset", "accept-growth"),
        metavar="COMMAND",
        nargs="?",
        default="show",
        help="show, reset or accept-growth (default: show)",
    )
    parser.add_argument("--reason", metavar="TEXT", default="", help="of clear: why that is right")
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
