"""Records of the flags that commands share, with their environment twins. Light to import, so that --help is fast.

A field of a record is a flag: a command's parser has the flags of its record, and parsing makes the record.
"""

import argparse
import dataclasses
import difflib
import os
import pathlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TextIO, dataclass_transform

from rightsizer.cli.messages import complain, see_help
from rightsizer.config import FIND_OUT, MAX_SAMPLES
from rightsizer.errors import UsageError

if TYPE_CHECKING:
    from rightsizer.cli.ledger_parts import LedgerParts

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

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 - argparse's
        """Parse to the record of the command."""
        given = vars(super().parse_args(args, namespace))
        return given.pop("record")(**given)

    def _unknown(self, text: str) -> str:
        if not text.startswith("-"):
            return f'unexpected argument "{text}"'
        if text in _GONE:
            return f"{text}: {_GONE[text]}"
        if text == "--state-file":
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


def file_name(text: str) -> pathlib.Path:
    """A file that must be named where the flag is given: an empty name, as of an unset variable, would mean none."""
    if not text:
        raise argparse.ArgumentTypeError("the name of the file is empty; leave the flag out to do without")
    return pathlib.Path(text)


def path_of(text: str) -> pathlib.Path | None:
    """The file that is named; None without a name."""
    return pathlib.Path(text) if text else None


@dataclasses.dataclass(slots=True)
class Flag:
    """A flag or an argument.

    Attributes:
        settings: As argparse has them; `values` are those of a choice. A default is a string where there is a variable.
        flag: Its name on the command line, by default that of the field.
        short: Its name of one letter.
        details: More about it, only for the docs.
        has_variable: Whether it has an environment twin; of a flag with a type or values, an empty one counts as none.
        is_positional: Whether it is an argument.
        field: The name of its field.
    """

    settings: dict[str, Any]
    flag: str = ""
    short: str = ""
    details: str = ""
    has_variable: bool = False
    is_positional: bool = False
    field: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.field, self.flag = name, self.flag or f"--{name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Its environment twin."""
        return ENVIRONMENT_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()

    def add(self, group: argparse._ActionsContainer, *, hidden: bool = False) -> None:
        """Add it to a parser or a group; the environment's value is its default."""
        settings = {**self.settings} if self.is_positional else {"dest": self.field, **self.settings}
        if self.has_variable:
            default = settings["default"]
            given = os.environ.get(self.variable, default)
            if settings.keys() & {"type", "values"}:
                given = given or default
            several = [given] if given else []
            settings["default"] = several if settings.get("action") is Several else given
            settings["help"] += f" [{default}]" if default else ""
        if hidden:
            settings["help"] = argparse.SUPPRESS
        add = add_choice if "values" in settings else type(group).add_argument
        names = [self.field] if self.is_positional else [name for name in (self.short, self.flag) if name]
        add(group, *names, **settings)


def option(metavar: str | None, words: str, default: str | None = None, **more: Any) -> Any:  # noqa: ANN401 - the field says what it is
    """A field that is a flag with an environment twin."""
    return _flag(metavar, words, default=default, has_variable=True, **more)


def flag(metavar: str | None, words: str, default: str | None = None, **more: Any) -> Any:  # noqa: ANN401 - as above
    """A field that is a flag without an environment twin."""
    return _flag(metavar, words, default=default, **more)


def path(words: str, **more: Any) -> Any:  # noqa: ANN401 - as above
    """A field that is a flag with an environment twin and names a file; an empty name is none."""
    return option("FILE", words, type=path_of, **more)


def repeatable(metavar: str, words: str, **more: Any) -> Any:  # noqa: ANN401 - as above
    """A field that is a list, one value from each of several flags."""
    return _flag(metavar, words, action="append", default=[], **more)


def switch(words: str, short: str = "") -> Any:  # noqa: ANN401 - as above
    """A field that is true where its flag is given."""
    return Flag({"help": words, "action": "store_true"}, short=short)


def argument(metavar: str, words: str, **more: Any) -> Any:  # noqa: ANN401 - as above
    """A field that is an argument."""
    return _flag(metavar, words, is_positional=True, **more)


def _flag(metavar: str | None, words: str, **more: Any) -> Flag:  # noqa: ANN401 - as above
    own = {field.name: more.pop(field.name) for field in dataclasses.fields(Flag) if field.name in more}
    return Flag({"metavar": metavar, "help": words, **more}, **own)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(option, path, flag, repeatable, switch, argument),
)
class Options:
    """Values of the flags of one command, from the command line and the environment.

    Attributes:
        title: Of the fields of this class in the help; without one they are among the general flags.
        epilog: The end of the help.
        command: The command, or the one with whose module it is.
        package: That of the module.
        prog: The words before the flags.
    """

    title: ClassVar[str] = ""
    epilog: ClassVar[str] = ""
    command: str
    package: str
    prog: str

    def __init_subclass__(cls, *, title: str = "") -> None:
        cls.title = title

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - by field
        vars(self).update(values)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} cannot be changed")


def flags_of(options: type[Options]) -> Iterator[Flag]:
    """The flags that a class declares itself."""
    return (value for value in vars(options).values() if isinstance(value, Flag))


def add_options(parser: argparse.ArgumentParser, options: type[Options]) -> None:
    """Add the flags of a record, each in the group of its class: its own first, then those of its bases.

    A flag that is declared again stays in its place.
    """
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for owner in (cls for cls in options.__mro__ if issubclass(cls, Options)):
        for name in (flag.field for flag in flags_of(owner) if not hasattr(super(owner, owner), flag.field)):
            flag: Flag = getattr(options, name)
            title = "" if flag.is_positional else owner.title
            groups[title] = groups.get(title) or parser.add_argument_group(title)
            flag.add(groups[title], hidden=name.startswith("prometheus_") and name != "prometheus_url")
    parser.set_defaults(record=options)


class Several(argparse.Action):
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


class _HelpPrometheus(argparse.Action):
    """Prints the flags that `--help` leaves out, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:  # noqa: ANN401 - argparse's signature
        """Print them."""
        shown = Parser(prog=parser.prog, add_help=False)
        group = shown.add_argument_group("connection to Prometheus")
        for flag in flags_of(PrometheusOptions):
            if flag.field != self.dest:
                flag.add(group)
        shown.print_help()
        parser.exit()


class PrometheusOptions(Options, title="metrics"):
    """Prometheus, and the names of its metrics; `--help-prometheus` shows what few users need."""

    prometheus_url: str | None = option(
        "URL", "base URL; plan and doctor can also find it", details="other servers with its API work too"
    )
    prometheus_token_file: pathlib.Path | None = path("file with a bearer token")
    prometheus_user: str | None = option("NAME", "user for basic authentication")
    prometheus_password_file: pathlib.Path | None = path("file with this user's password")
    prometheus_sigv4_region: str | None = option(
        "REGION", "AWS region of Amazon Managed Prometheus", details="signs requests (SigV4)"
    )
    prometheus_client_cert_file: pathlib.Path | None = path("client certificate (PEM)")
    prometheus_client_key_file: pathlib.Path | None = path("key of the client certificate (PEM)")
    prometheus_ca_file: pathlib.Path | None = path("CA certificates (PEM) of the server")
    prometheus_insecure_skip_verify: str | None = option(
        None,
        "accept any certificate",
        details="an attacker in between can then invent metrics",
        action="store_const",
        const="true",
    )
    prometheus_timeout: str = option("DURATION", "deadline of one query", "100s")
    prometheus_parallel: str = option("N", "concurrent queries, 1 to 4", "2")
    prometheus_max_samples: str = option(
        "N", "server's --query.max-samples", str(MAX_SAMPLES), details="one query uses at most half of it"
    )
    signals: str = option(
        "NAME|FILE",
        "the exporter's metric names",
        FIND_OUT,
        details="auto (detected), dcgm, dcgm-4.9, gpu-exporter, or a file with another exporter's names",
    )
    exporter_namespace: str | None = option(
        "NAMES",
        "namespaces of the exporters",
        details="separated by commas; GPU series of other pods are ignored; default: the namespace with scraped "
        "pods on most GPU nodes",
    )
    recording_rules: str = option(
        "MODE",
        "recorded data: auto, trusted, off",
        "auto",
        values=("auto", "trusted", "off"),
        details="auto uses them if the server evaluates exactly the shipped rules; trusted does not check",
    )
    prometheus_header: list[str] = repeatable("HEADER", "NAME: VALUE or NAME=@FILE, for each query")
    prometheus_label: list[str] = repeatable("NAME=VALUE", "only use series with this label")
    help_prometheus: None = flag(
        None, "credentials, TLS and limits of queries", action=_HelpPrometheus, nargs=0
    )


class ClusterOptions(Options, title="cluster"):
    """The API server, and what counts as a GPU there."""

    kubeconfig: pathlib.Path | None = path(
        "kubeconfig file", details="default: $KUBECONFIG, ~/.kube/config or the pod's account"
    )
    context: str | None = option("NAME", "context of the kubeconfig")
    gpu_resource: str | None = option(
        "NAMES",
        "more resource names that count as GPUs",
        details="separated by commas, with wildcard *; NAME=shares, amount or part sets the unit",
    )


class PriceOptions(Options):
    """Prices."""

    prices: pathlib.Path | None = path(
        "prices per GPU model and hour",
        details="for nodes without an OpenCost price; before the shipped lists",
    )


class ClusterNameOptions(Options):
    """How people call the cluster."""

    cluster_name: str | None = option(
        "NAME",
        "name of the cluster in messages and the ledger",
        details="default: the context of the kubeconfig",
    )


class LedgerOptions(ClusterNameOptions):
    """The ledger; `ledger_parts` keep it."""

    ledger_parts: "LedgerParts"
    ledger: str | None = option(
        "DIR", "keep cycles in a directory or bucket", details="such as s3://NAME/DIR, for report"
    )
    team_label: str = option("LABEL", "label that names teams", "team")


class PolicyOptions(Options):
    """The policy file."""

    policy: pathlib.Path | None = path("policy file", details="without one, gpu-rightsizer only advises")


class StateFileOptions(Options):
    """The file of kept slots."""

    state_file: pathlib.Path | None = option(
        "FILE", "keep queried slots here for the next process", type=file_name
    )


class ScheduleOptions(Options, title="schedule"):
    """The schedule of cycles, and where their metrics are served."""

    every: str | None = option("DURATION", "time between cycles", details="default: 15m")
    schedule: str | None = option(
        "CRON", "cron schedule, overrides --every", details="such as '0 3 * * 1-5', @daily or '@every 15m'"
    )
    time_zone: str = option("ZONE", "IANA time zone of the schedule", "UTC")
    jitter: str | None = option("DURATION", "maximum random delay added to each run")
    listen: str = option(
        "HOST:PORT",
        "address of /metrics, /healthz and /readyz",
        ":9401",
    )


class ExtenderOptions(Options, title="questions"):
    """Where kube-scheduler asks."""

    extender_listen: str = option("HOST:PORT", "address for kube-scheduler", ":9402")
    tls_cert_file: pathlib.Path | None = option(
        "FILE", "certificate (PEM); without, plain HTTP", type=file_name
    )
    tls_key_file: pathlib.Path | None = option("FILE", "key of the certificate (PEM)", type=file_name)
    client_ca_file: pathlib.Path | None = option("FILE", "CA certificates of who may ask", type=file_name)


class StateOptions(Options, title="cluster"):
    """Where state is kept."""

    state_namespace: str = option(
        "NAME",
        "namespace for state",
        "gpu-rightsizer",
        details="breaker, pauses and manifests of evicted pods",
    )


class ClusterStateOptions(ClusterOptions, StateOptions):
    """The API server, and where state is kept there."""


class InstanceOptions(ClusterStateOptions, title="cluster"):
    """One of several instances in a cluster."""

    instance: str | None = option(
        "NAME", "unique name, if several run in one cluster", details="default: the state namespace"
    )


class OutputOptions(Options, title="output"):
    """Colours and logs."""

    color: str = flag("WHEN", "auto, always or never [auto]", "auto", values=("auto", "always", "never"))
    log_level: str = option(
        "LEVEL",
        "debug, info, warning or error",
        "warning",
        values=("debug", "info", "warning", "error"),
        details="on stderr; info adds requests, debug queries and decisions",
    )
    log_format: str = option(
        "FORMAT",
        "text or json",
        "text",
        values=("text", "json"),
        details="also of what run reports on stdout; json has each change",
    )


ALL: tuple[type[Options], ...] = (
    *(PolicyOptions, PriceOptions, LedgerOptions, ClusterNameOptions, PrometheusOptions, ClusterOptions),
    *(StateOptions, InstanceOptions, StateFileOptions, ScheduleOptions, ExtenderOptions, OutputOptions),
)
"""Every record with variables, in the order of the docs."""


def check_variables(environment: Mapping[str, str]) -> None:
    """Refuse variables with the prefix that are of no flag.

    Raises:
        UsageError: There is one.
    """
    known = {flag.variable for options in ALL for flag in flags_of(options) if flag.has_variable}
    for name in sorted(environment):
        is_link = _SERVICE_LINK.fullmatch(name.removeprefix(ENVIRONMENT_PREFIX))
        if name in _GONE:
            raise UsageError(f"{name}: {_GONE[name]}")
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not is_link:
            raise UsageError(f"unknown variable {name}{_did_you_mean(name, known, 0.8)}")


class FormOptions(OutputOptions, title="output"):
    """The form of a result."""

    output: str = flag(
        "FORMAT", "table, json, yaml [table]", "table", short="-o", values=("table", "json", "yaml")
    )


class SessionOptions(PolicyOptions, PriceOptions, PrometheusOptions, InstanceOptions):
    """What a plan is made from."""


class AskingOptions(FormOptions):
    """Commands that ask a person, and then change something."""

    yes: bool = switch("do not ask", short="-y")
    save: pathlib.Path | None = flag("FILE", "also write the outcomes as JSON", type=file_name)


def wants_colour(arguments: OutputOptions, stream: TextIO) -> bool:
    """Whether to colour what goes to a stream; NO_COLOR is respected (https://no-color.org)."""
    if arguments.color != "auto":
        return arguments.color == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def width_of(stream: TextIO) -> int:
    """Columns of the terminal behind a stream; 80 if it is none, or a narrower one."""
    return max(WIDTH, os.get_terminal_size(stream.fileno()).columns) if stream.isatty() else WIDTH
