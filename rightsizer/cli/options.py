"""Flags that several commands share, and their environment twins. Light to import, so that --help answers at once."""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TextIO

from rightsizer.cli.messages import complain, see_help
from rightsizer.config import FIND_OUT, MAX_SAMPLES
from rightsizer.errors import UsageError

ENVIRONMENT_PREFIX = "GPU_RIGHTSIZER_"
_SERVICE_LINK = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)", re.ASCII
)
"""Variables that the kubelet sets for a Service named gpu-rightsizer or gpu-rightsizer-..., without the prefix
(https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables)."""
WIDTH = 80


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help of 80 columns in every terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=WIDTH)


_ELSEWHERE = {"explain": "; plan -o explain shows the evidence, policy explain the rules"}
"""What people look for among the commands."""
_GONE = dict.fromkeys(
    ("--journal", f"{ENVIRONMENT_PREFIX}JOURNAL"),
    "removed; --log-format json writes each change to the log, and history lists the changes",
)
"""Former flags and variables."""


def _did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class Parser(argparse.ArgumentParser):
    """The flags of one command; the commands below it have the same kind of parser.

    Args:
        settings: As argparse has them.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - argparse's
        super().__init__(formatter_class=_Help, allow_abbrev=False, **settings)
        self.set_defaults(prog=self.prog)

    def format_help(self) -> str:
        """Show in the usage only arguments and required flags: the others follow it."""
        formatter = self._get_formatter()
        shown = [one for one in self._actions if one.required or not one.option_strings]
        formatter.add_usage(None, shown, [], prefix="")
        self.usage = formatter.format_help().strip().replace(self.prog, f"{self.prog} [flags]", 1)
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401 - argparse's
        """Parse, and report an unknown flag with the flags of its own command."""
        try:
            parsed, unknown = super().parse_known_args(args, namespace)
        except UsageError as error:
            self.error(str(error))
        if unknown:
            self.error(self._unknown(unknown[0].partition("=")[0]))
        return parsed, []

    def _unknown(self, text: str) -> str:
        if not text.startswith("-"):
            return f'unexpected argument "{text}"'
        if text in _GONE:
            return f"{text}: {_GONE[text]}"
        if text == STATE_FILE[0].flag:
            return f"unknown flag {text}; run has it"
        if text in {"-n", "--namespace"}:
            return f"unknown flag {text}; plan, apply, pause and resume have it"
        return f"unknown flag {text}{_did_you_mean(text, self._option_string_actions, cutoff=0.7)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - argparse's
        if action.choices is not None and value not in action.choices:
            hint = _ELSEWHERE.get(value) or _did_you_mean(value, action.choices)
            raise UsageError(f"unknown command {value}{hint}")

    def error(self, message: str) -> NoReturn:
        """Report a problem of the command line and exit."""
        commands = next((one.choices for one in self._actions if one.metavar == "COMMAND"), None)
        if commands and message.endswith("required: COMMAND"):
            message = f"a command is missing: {', '.join(commands)}"
        complain(message.removeprefix("argument "))
        see_help(self.prog)
        self.exit(UsageError.exit_code)


def add_choice(
    group: argparse._ActionsContainer,
    *names: str,
    values: Collection[str],
    **settings: Any,  # noqa: ANN401 - argparse's
) -> None:
    """Add a flag or argument that is one of some words, on the command line and in the environment."""

    def parse(text: str) -> str:
        require_one_of(names[-1] if names[-1].startswith("-") else settings["metavar"].lower(), text, values)
        return text

    group.add_argument(*names, type=parse, choices=tuple(values), **settings)


def require_one_of(name: str, text: str, values: Collection[str]) -> None:
    """Check the value of a flag or argument that is one of some words.

    Raises:
        UsageError: It is none of them.
    """
    if text not in values:
        what = f'{name} "{text}"' if name.startswith("-") else f"unknown {name} {text}"
        raise UsageError(f"{what}: must be one of {', '.join(values)}{_did_you_mean(text, values)}")


def file_name(text: str) -> str:
    """A file that must be named where the flag is given: an empty name, as of an unset variable, would mean none."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty; leave the flag out to do without")
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One flag.

    Attributes:
        metavar: What its value is called in the help; a flag without a value (true or false in the environment)
            has none.
        default: Its value where neither flag nor environment gives one; a string, as the environment's would be.
        read: What reads it from the command line; an empty variable counts as none.
        choices: All values, if it has only some; an empty variable counts as none.
        details: More about it, only for the docs.
    """

    flag: str
    metavar: str
    help: str
    default: str | None = None
    read: Callable[[str], str] = str
    choices: tuple[str, ...] = ()
    details: str = ""

    @property
    def variable(self) -> str:
        """Its environment twin."""
        return ENVIRONMENT_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()


PROMETHEUS = (
    Option(
        "--prometheus-url",
        "URL",
        "base URL; plan and doctor can also find it",
        details="other servers with its API work too",
    ),
    Option("--prometheus-token-file", "FILE", "file with a bearer token"),
    Option("--prometheus-user", "NAME", "user for basic authentication"),
    Option("--prometheus-password-file", "FILE", "file with this user's password"),
    Option(
        "--prometheus-sigv4-region",
        "REGION",
        "AWS region of Amazon Managed Prometheus",
        details="signs requests (SigV4)",
    ),
    Option("--prometheus-client-cert-file", "FILE", "client certificate (PEM)"),
    Option("--prometheus-client-key-file", "FILE", "key of the client certificate (PEM)"),
    Option("--prometheus-ca-file", "FILE", "CA certificates (PEM) of the server"),
    Option(
        "--prometheus-insecure-skip-verify",
        "",
        "accept any certificate",
        details="an attacker in between can then invent metrics",
    ),
    Option("--prometheus-timeout", "DURATION", "deadline of one query", default="100s"),
    Option("--prometheus-parallel", "N", "concurrent queries, 1 to 4", default="2"),
    Option(
        "--prometheus-max-samples",
        "N",
        "server's --query.max-samples",
        default=str(MAX_SAMPLES),
        details="one query uses at most half of it",
    ),
    Option(
        "--signals",
        "NAME|FILE",
        "the exporter's metric names",
        default=FIND_OUT,
        details="auto (detected), dcgm, dcgm-4.9, gpu-exporter, or a file with another exporter's names",
    ),
    Option(
        "--exporter-namespace",
        "NAMES",
        "namespaces of the exporters",
        details="separated by commas; GPU series of other pods are ignored; default: the namespace with scraped "
        "pods on most GPU nodes",
    ),
    Option(
        "--recording-rules",
        "MODE",
        "recorded data: auto, trusted, off",
        default="auto",
        choices=("auto", "trusted", "off"),
        details="auto uses them if the server evaluates exactly the shipped rules; trusted does not check",
    ),
)
_CONNECTION = frozenset(
    option
    for option in PROMETHEUS
    if option.flag.startswith("--prometheus-") and option.flag != "--prometheus-url"
)
"""What few users need: `--help-prometheus` shows it."""
KUBECONFIG = (
    Option(
        "--kubeconfig",
        "FILE",
        "kubeconfig file",
        details="default: $KUBECONFIG, ~/.kube/config or the pod's account",
    ),
    Option("--context", "NAME", "context of the kubeconfig"),
)
GPU_RESOURCES = (
    Option(
        "--gpu-resource",
        "NAMES",
        "more resource names that count as GPUs",
        details="separated by commas, with wildcard *; NAME=shares, amount or part sets the unit",
    ),
)
CLUSTER = (*KUBECONFIG, *GPU_RESOURCES)
PRICES = (
    Option(
        "--prices",
        "FILE",
        "prices per GPU model and hour",
        details="for nodes without an OpenCost price; before the shipped lists",
    ),
)
CLUSTER_NAME = (
    Option(
        "--cluster-name",
        "NAME",
        "name of the cluster in messages and the ledger",
        details="default: the context of the kubeconfig",
    ),
)
LEDGER = (
    Option(
        "--ledger",
        "DIR",
        "keep cycles in a directory or bucket",
        details="such as s3://NAME/DIR, for report",
    ),
    Option("--team-label", "LABEL", "label that names teams", default="team"),
)
POLICY = (Option("--policy", "FILE", "policy file", details="without one, gpu-rightsizer only advises"),)
POLICY_FILE = (Option("--policy", "FILE", "policy file"),)
STATE_FILE = (
    Option(
        "--state-file",
        "FILE",
        "keep queried slots here for the next process",
        read=file_name,
    ),
)
SCHEDULE = (
    Option("--every", "DURATION", "time between cycles", details="default: 15m"),
    Option(
        "--schedule",
        "CRON",
        "cron schedule, overrides --every",
        details="such as '0 3 * * 1-5', @daily or '@every 15m'",
    ),
    Option("--time-zone", "ZONE", "IANA time zone of the schedule", default="UTC"),
    Option("--jitter", "DURATION", "maximum random delay added to each run"),
    Option(
        "--listen",
        "HOST:PORT",
        "address of /metrics and health",
        default=":9401",
        details="/metrics, /report, /healthz and /readyz",
    ),
)
EXTENDER = (
    Option("--extender-listen", "HOST:PORT", "address for kube-scheduler", default=":9402"),
    Option("--tls-cert-file", "FILE", "certificate (PEM); without, plain HTTP", read=file_name),
    Option("--tls-key-file", "FILE", "key of the certificate (PEM)", read=file_name),
    Option("--client-ca-file", "FILE", "CA certificates of who may ask", read=file_name),
)
STATE = (
    Option(
        "--state-namespace",
        "NAME",
        "namespace for state",
        default="gpu-rightsizer",
        details="breaker, pauses and manifests of evicted pods",
    ),
)
INSTANCE = (
    Option(
        "--instance",
        "NAME",
        "unique name, if several run in one cluster",
        details="default: the state namespace",
    ),
)
LOG = (
    Option(
        "--log-level",
        "LEVEL",
        "debug, info, warning or error",
        default="warning",
        choices=("debug", "info", "warning", "error"),
        details="on stderr; info adds requests, debug queries and decisions",
    ),
    Option(
        "--log-format",
        "FORMAT",
        "text or json",
        default="text",
        choices=("text", "json"),
        details="also of what run reports on stdout; json has each change",
    ),
)


ALL = (
    *(POLICY, PRICES, LEDGER, CLUSTER_NAME, PROMETHEUS, CLUSTER, STATE),
    *(INSTANCE, STATE_FILE, SCHEDULE, EXTENDER, LOG),
)
"""Every flag with a variable, in the order of the docs."""


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse variables with the prefix that are of no flag.

    Raises:
        UsageError: There is one.
    """
    known = {option.variable for options in ALL for option in options}
    for name in sorted(environment):
        is_link = _SERVICE_LINK.fullmatch(name.removeprefix(ENVIRONMENT_PREFIX))
        if name in _GONE:
            raise UsageError(f"{name}: {_GONE[name]}")
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not is_link:
            raise UsageError(f"unknown variable {name}{_did_you_mean(name, known, 0.8)}")


def add_options(parser: argparse._ActionsContainer, title: str, options: tuple[Option, ...]) -> None:
    """Add a group of flags, or without a title to a group; the environment's value is the default of each."""
    group = parser.add_argument_group(title) if title else parser
    for option in options:
        _add_option(group, option, hidden=option in _CONNECTION)
    if options is PROMETHEUS:
        _add_pairs(group, hidden=True)
        group.add_argument(
            "--help-prometheus",
            action=_HelpPrometheus,
            nargs=0,
            help="credentials, TLS and limits of queries",
        )


def _add_option(group: argparse._ActionsContainer, option: Option, *, hidden: bool) -> None:
    default = os.environ.get(option.variable, option.default)
    if option.read is not str or option.choices:
        default = default or option.default
    words = f"{option.help} [{option.default}]" if option.default else option.help
    words = argparse.SUPPRESS if hidden else words
    if option.choices:
        add_choice(
            group, option.flag, values=option.choices, metavar=option.metavar, default=default, help=words
        )
    elif option.metavar:
        group.add_argument(option.flag, metavar=option.metavar, default=default, help=words, type=option.read)
    else:
        group.add_argument(option.flag, action="store_const", const="true", default=default, help=words)


def _add_pairs(group: argparse._ActionsContainer, *, hidden: bool) -> None:
    """Add the repeatable flags of Prometheus, which have no environment twin."""
    for flag, metavar, words in (
        ("--prometheus-header", "HEADER", "NAME: VALUE or NAME=@FILE, for each query"),
        ("--prometheus-label", "NAME=VALUE", "only use series with this label"),
    ):
        shown = argparse.SUPPRESS if hidden else words
        group.add_argument(flag, metavar=metavar, action="append", default=[], help=shown)


class _HelpPrometheus(argparse.Action):
    """Prints the flags that `--help` leaves out, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - argparse's signature
        values: Any,  # noqa: ANN401, ARG002 - argparse's signature
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        """Print them."""
        shown = Parser(prog=parser.prog, add_help=False)
        group = shown.add_argument_group("connection to Prometheus")
        for option in PROMETHEUS:
            _add_option(group, option, hidden=False)
        _add_pairs(group, hidden=False)
        shown.print_help()
        parser.exit()


def add_repeatable(parser: argparse._ActionsContainer, option: Option, dest: str, words: str) -> None:
    """Add a flag that may be given several times; without it the environment's value is the only one."""
    given = os.environ.get(option.variable)
    parser.add_argument(
        option.flag,
        metavar=option.metavar,
        action=_Several,
        default=[given] if given else [],
        dest=dest,
        help=f"{words}; repeatable",
    )


class _Several(argparse.Action):
    """Flags replace the environment's value, and add to each other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,  # noqa: ANN401 - argparse's signature
        option_string: str | None = None,  # noqa: ARG002 - argparse's signature
    ) -> None:
        """Add a value."""
        if not values:
            parser.error(f"{self.option_strings[0]}: the value is empty")
        known = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if known is self.default else known), values])


def add_common(
    parser: argparse.ArgumentParser,
    forms: Collection[str] = ("table", "json", "yaml"),
    *,
    default: str | None = "table",
) -> None:
    """Add the flags about what is printed; without forms there is nothing to choose."""
    group = parser.add_argument_group("output")
    if forms:
        help_ = f"{', '.join(forms)} [table]"
        add_choice(group, "-o", "--output", values=forms, metavar="FORMAT", default=default, help=help_)
    add_choice(
        group,
        "--color",
        values=("auto", "always", "never"),
        metavar="WHEN",
        default="auto",
        help="auto, always or never [auto]",
    )
    add_options(group, "", LOG)


def wants_colour(arguments: argparse.Namespace, stream: TextIO) -> bool:
    """Whether to colour what goes to a stream; NO_COLOR is respected (https://no-color.org)."""
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    return stream.isatty() and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream; 80 if it is none, or a narrower one."""
    return max(WIDTH, os.get_terminal_size(stream.fileno()).columns) if stream.isatty() else WIDTH


def path_of(text: str | None) -> pathlib.Path | None:
    """What a flag that names a file says; nothing where it is not given, or empty."""
    return pathlib.Path(text) if text else None
