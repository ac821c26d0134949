"""The composition root of gpu-rightsizer: reads argv and the environment, wires the parts, prints, sets the exit code.

One file for each command, with `run` for its work, here or in a package that builds on the core; it is imported when
its command is given, so that --help answers at once.
"""

import contextlib
import ctypes
import errno
import gc
import importlib
import importlib.metadata
import logging
import os
import sys
from collections.abc import Mapping, Sequence

from rightsizer.cli.flags import Command, add_all
from rightsizer.cli.ledger_parts import LedgerParts
from rightsizer.cli.messages import complain, log_to_stderr, see_help, see_roles
from rightsizer.cli.options import OutputOptions, Parser, check_variables
from rightsizer.errors import RequestRefused, RightsizerError, UsageError

INTERRUPTED = 130
"""What shells report for a program that ended by SIGINT."""

_COLLECTING = (1_000_000, 10, 100)
"""Thresholds of the garbage collector: a plan's objects live until it ends, and scanning them repeatedly takes a third
of the time of reading the usage of 100,000 GPUs."""

_TURN_S = 0.05
"""Switch interval of threads: ten times Python's default, which saves 4 % of the CPU time."""

_M_ARENA_MAX = -8
"""Option of glibc (malloc.h): number of heaps. Each keeps its freed memory, 200 MiB with 100,000 GPUs."""

_EPILOG = """\
start here:
  gpu-rightsizer plan --prometheus-url http://prometheus.monitoring:9090
      Shows each GPU workload: the GPUs it holds, its utilization and what
      should change. Changes nothing.

  gpu-rightsizer apply --policy policy.yaml --prometheus-url ...
      Shows the plan, asks, and makes the changes of rules with mode: enforce.
      gpu-rightsizer undo reverts them.

Defaults are in brackets. Environment variables set flags, too: --policy is
GPU_RIGHTSIZER_POLICY.

exit codes: 0 done or nothing to do, 1 failed, 2 invalid flags or files,
10 changes are proposed (plan --detailed-exitcode)
"""


def prepare() -> None:
    """Tune Python and the C library for large fleets."""
    gc.set_threshold(*_COLLECTING)
    sys.setswitchinterval(_TURN_S)
    with contextlib.suppress(AttributeError, OSError):  # another libc than glibc has other heaps
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def main(root: Parser, argv: Sequence[str] | None) -> int:
    """Run one command; returns the exit code. Only --log-level debug shows a traceback."""
    prepare()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # noqa: PLC0415 - only when a shell asks for completions

        argcomplete.autocomplete(root, print_suppressed=True)
    arguments: OutputOptions = root.parse_args(argv)
    log_to_stderr(arguments.log_level, as_json=arguments.log_format == "json")
    try:
        check_variables(os.environ)
        code: int = importlib.import_module(f"{arguments.package}.{arguments.command}_command").run(arguments)
        sys.stdout.flush()
    except RightsizerError as error:
        complain(str(error))
        if isinstance(error, UsageError):
            see_help(arguments.prog)
        if isinstance(error, RequestRefused) and error.is_missing_permission:
            see_roles()
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has seen enough; what is left in the buffer has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError:
        raise  # the entry says what to install
    except Exception as error:
        logging.getLogger(__name__).debug("traceback", exc_info=True)
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            complain(f"writing {error.filename or 'the output'}: {error.strerror}")
        else:
            problem = f"internal error: {type(error).__name__}: {error}: a bug in gpu-rightsizer"
            complain(f"{problem}, please report it; --log-level debug shows where")
        return 1
    return code


def parser(ledger: LedgerParts, others: Mapping[str, Sequence[Command]]) -> Parser:
    """All commands and flags, with those of other packages; a command's module is below its package."""
    root = Parser(
        prog="gpu-rightsizer",
        description="Reclaims unused GPUs in Kubernetes under a policy that you control.",
        epilog=_EPILOG,
    )
    version = importlib.metadata.version("gpu-rightsizer")
    root.add_argument("--version", action="version", version=f"gpu-rightsizer {version}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    root.set_defaults(ledger_parts=ledger)
    add_all(commands, others)
    return root
