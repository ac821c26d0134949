"""The command line: the flags of all settings, dcgm-exporter's flags, help, completion and error messages."""

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import NoReturn

from exporter import __version__
from exporter.dcgm.aliases import DcgmFlag, Supported, dcgm_flags
from exporter.errors import UsageError
from exporter.sampling import catalogue
from exporter.settings import GivenFlags, Setting, Settings, all_settings, did_you_mean, flag, resolve

_WIDTH = 80
_INDENT = 27
_MAX_DEFAULT = 10  # characters; a longer default is only in the docs
SHELLS = ("bash", "zsh", "fish")
_EXAMPLES = """\
examples:
  gpu-exporter                                serve on port 9400
  gpu-exporter --once --collectors power      print metrics once, and exit
  GPU_EXPORTER_LOG_FORMAT=json gpu-exporter   each flag has a variable
  source <(gpu-exporter --completion bash)    complete flags in this shell

exit codes: 0 stopped by a signal, 1 failed, 2 invalid flags or files
"""
_DCGM_INTRO = """\
gpu-exporter accepts these flags and environment variables of dcgm-exporter. Its
own flags and variables have priority.
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=_INDENT)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return "" if action.metavar == "BOOL" else super()._format_args(action, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _DcgmAction(argparse.Action):
    """Keeps a flag of dcgm-exporter as typed, with its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's signature
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Store both."""
        setattr(namespace, self.dest, (option_string, values))


class _Print(argparse.Action):
    """Prints a text and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - argparse's signature
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Print the help on dcgm-exporter's flags, or a completion script."""
        sys.stdout.write(_completion(str(values)) if option_string == "--completion" else _dcgm_help())
        parser.exit()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Report the problem with the flag that was probably meant."""
        _, unrecognized, rest = message.partition("unrecognized arguments: ")
        if not unrecognized:
            raise UsageError([message.removeprefix("argument ")])
        unknown = rest.split(" ", maxsplit=1)[0].split("=", maxsplit=1)[0]
        if not unknown.startswith("-"):
            raise UsageError([f'unexpected argument "{unknown}"; gpu-exporter has only flags'])
        own = ("--version", "--help", "--help-dcgm", "--completion")
        raise UsageError(
            [f"unknown flag {unknown}{did_you_mean(unknown, [*map(flag, all_settings()), *own])}"]
        )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpu-exporter",
        usage="gpu-exporter [flags]",
        description="Prometheus metrics of this node's NVIDIA GPUs, per device and per pod.\nDefaults are in brackets.",
        epilog=_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
        add_help=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, setting in all_settings().items():
        group = groups.setdefault(setting.group, parser.add_argument_group(setting.group))
        _add(group, name, setting)
    other = parser.add_argument_group("other")
    other.add_argument("-h", "--help", action="help", help="Show this help.")
    other.add_argument(
        "--help-dcgm", action=_Print, nargs=0, help="List the supported flags of dcgm-exporter."
    )
    other.add_argument(
        "--completion", action=_Print, metavar="SHELL", help="Print completions for bash, zsh or fish."
    )
    other.add_argument(
        "-v", "--version", action="version", version=f"gpu-exporter {__version__}", help="Show the version."
    )
    own = set(map(flag, all_settings()))
    for alias in dcgm_flags():
        if names := [name for name in alias.names if name not in own]:
            nargs = "?" if alias.is_switch else None
            help_ = argparse.SUPPRESS
            parser.add_argument(
                *names, action=_DcgmAction, dest=alias.variable, nargs=nargs, const="true", help=help_
            )
    return parser


def _add(group: "argparse._ArgumentGroup", name: str, setting: Setting) -> None:
    if setting.metavar is None:
        group.add_argument(flag(name), nargs="?", const="true", metavar="BOOL", help=setting.help)
        return
    shown = f" [{setting.default}]" if setting.default and len(setting.default) <= _MAX_DEFAULT else ""
    action = group.add_argument(flag(name), metavar=setting.metavar, help=setting.help + shown)
    values = tuple(catalogue.collectors()) if name == "collectors" else setting.choices
    if values:
        # Read by argcomplete; a setting parses its own value.
        action.completer = lambda **_: values  # type: ignore[attr-defined]


def _dcgm_help() -> str:
    rows = []
    for alias in dcgm_flags():
        rows += [f"  {', '.join(alias.names)}", f"      {alias.variable}"]
        rows += textwrap.wrap(_handling(alias), _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return _DCGM_INTRO + "\n" + "\n".join(rows) + "\n"


def _handling(alias: DcgmFlag) -> str:
    if isinstance(alias.handling, Supported):
        return f"as {alias.handling.equivalent}"
    return f"ignored; it {alias.handling.effect}: {alias.handling.instead}"


def _completion(shell: str) -> str:
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - only for this flag

    if shell not in SHELLS:
        raise UsageError(
            [f'--completion "{shell}": must be one of {", ".join(SHELLS)}{did_you_mean(shell, SHELLS)}']
        )
    script: str = shellcode(["gpu-exporter"], shell=shell)
    return script


def _with_two_dashes(argv: Sequence[str]) -> list[str]:
    """`argv` with two dashes before long flags: dcgm-exporter, being written in Go, accepts one."""
    long = {name[1:] for alias in dcgm_flags() for name in alias.names if name.startswith("--")}
    long |= {flag(name)[1:] for name in all_settings()}
    return [f"-{text}" if text.partition("=")[0] in long else text for text in argv]


def read_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings by flags and environment; ends the process after printing help or completions."""
    parser = _parser()
    if "_ARGCOMPLETE" in environment:
        import argcomplete  # noqa: PLC0415 - only when a shell asks for completions

        argcomplete.autocomplete(parser)
    parsed = vars(parser.parse_args(_with_two_dashes(argv)))
    flags = {name: text for name, text in parsed.items() if isinstance(text, str)}
    dcgm = {name: alias for name, alias in parsed.items() if isinstance(alias, tuple)}
    return resolve(GivenFlags(flags, dcgm), environment, collectors=tuple(catalogue.collectors()))
