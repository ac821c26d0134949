"""Every setting in one table: its name, type, default and help give the flag, the environment variable and the docs.

Must not read argv or the environment itself: both are handed in.
"""

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from exporter.errors import UsageError
from exporter.model import MetricSet, Naming

_ENV_PREFIX = "GPU_EXPORTER_"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 3600.0
_MAX_PORT = 65535
_ENABLE_LABELS = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
_LABEL_REGEX = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
_ONLY_WITH = {
    _LABEL_REGEX: _ENABLE_LABELS
}  # a variable of dcgm-exporter that means nothing while another is off
_DEFAULT_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


class LogFormat(enum.Enum):
    """How a log line looks."""

    TEXT = "text"
    JSON = "json"


class HostnameLabel(enum.Enum):
    """What the label with the hostname is called: dcgm-exporter renamed it in May 2026."""

    LOWER = "hostname"
    UPPER = "Hostname"
    BOTH = "both"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that it has."""
        return ("hostname", "Hostname") if self is HostnameLabel.BOTH else (str(self.value),)


class LogLevel(enum.Enum):
    """The least severe lines that are logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; an empty host is every address of the machine, IPv6 and IPv4."""

    host: str
    port: int


def address(text: str) -> Address:
    """Parse "host:port", ":port" or "[v6 address]:port"; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    wrong = not colon or not re.fullmatch(r"[0-9]{1,5}", port) or (":" in host and not bracketed)
    if wrong or int(port) > _MAX_PORT:
        raise ValueError(
            'not an address; write ":9400", "127.0.0.1:9400" or "[::1]:9400", with a port up to 65535'
        )
    return Address(host.strip("[]"), int(port))


def interval(text: str) -> float:
    """Parse a duration such as "500ms", "10s" or "1m" into seconds."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError("not a duration; write a number and its unit, such as 500ms, 10s or 1m")
    return _bounded(float(match[1]) * _SECONDS[match[2]])


def milliseconds(text: str) -> float:
    """Parse dcgm-exporter's form of an interval, whole milliseconds, into seconds."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ValueError("not a whole number of milliseconds, which is how dcgm-exporter writes its interval")
    return _bounded(int(text) / 1000)


def _bounded(seconds: float) -> float:
    if not math.isfinite(seconds) or not _MIN_INTERVAL_S <= seconds <= _MAX_INTERVAL_S:
        raise ValueError("out of range; an interval is between 100ms and 1h")
    return seconds


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError('names nothing; write names separated by commas, or "all"')
    return found


def some_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list that may be empty; a "*" may end each name."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in found:
        if "*" in name[:-1] or name == "*":
            raise ValueError('a "*" stands for the rest of a name, such as in "example.com/gpu-*"')
    return found


def label_keys(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse a comma-separated list of label keys, in which "*" stands for anything, into what finds them."""
    keys = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(re.compile(r"\A" + ".*".join(map(re.escape, key.split("*"))) + r"\Z") for key in keys)


def label_regexes(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse dcgm-exporter's form, a comma-separated list of regular expressions, into the same."""
    try:
        return tuple(re.compile(part.strip()) for part in text.split(",") if part.strip())
    except re.error as error:
        raise ValueError(f"not a list of regular expressions: {error}") from None


def all_labels(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse dcgm-exporter's switch for labels: every label, or none."""
    return label_keys("*") if switch(text) else ()


def switch(text: str) -> bool:
    """Parse "true" or "false"."""
    value = {"true": True, "1": True, "false": False, "0": False}.get(text.strip().lower())
    if value is None:
        raise ValueError("neither true nor false")
    return value


def _one_of(kind: type[enum.Enum]) -> Callable[[str], enum.Enum]:
    def parse(text: str) -> enum.Enum:
        try:
            return kind(text.strip() if kind is HostnameLabel else text.strip().lower())
        except ValueError:
            raise ValueError(f"not one of {', '.join(str(member.value) for member in kind)}") from None

    return parse


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What is said about a setting beside its name and type.

    Attributes:
        default: As one would write it on the command line.
        help: One or two sentences; the flag's help and the docs.
        parse: From text; raises ValueError with what would be right.
        metavar: What stands for the value in the help; None for a flag without a value.
        also: Variables of dcgm-exporter that mean the same, each with its own way of writing the value.
    """

    default: str
    help: str
    parse: Callable[[str], Any]
    metavar: str | None
    also: Mapping[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)


def _about(
    default: str, help_: str, parse: Callable[[str], Any], metavar: str | None, **also: Callable[[str], Any]
) -> dict[str, Setting]:
    return {"setting": Setting(default, help_, parse, metavar, also)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A complete, valid configuration. `given` names the settings that are not at their default."""

    listen: Address = dataclasses.field(
        metadata=_about(
            ":9400",
            "Where to serve. Port 0 takes a free one.",
            address,
            "ADDRESS",
            DCGM_EXPORTER_LISTEN=address,
        )
    )
    interval: float = dataclasses.field(
        metadata=_about(
            "10s",
            "How often the GPUs are read. A scrape is answered from the last reading and never waits for the driver.",
            interval,
            "DURATION",
            DCGM_EXPORTER_INTERVAL=milliseconds,
        )
    )
    collectors: tuple[str, ...] = dataclasses.field(
        metadata=_about("all", "What to read, separated by commas, out of: {collectors}.", names, "NAMES")
    )
    metrics: MetricSet = dataclasses.field(
        metadata=_about(
            "default",
            "How many metrics: minimal, what the best-known dashboards show; default, what dcgm-exporter serves by "
            "default, as far as NVML has it; full, everything.",
            _one_of(MetricSet),
            "SET",
        )
    )
    naming: Naming = dataclasses.field(
        metadata=_about(
            "dcgm",
            "Whose metric names and units: dcgm, as public dashboards ask for them; dcgm-4.9, as dcgm-exporter has "
            "renamed and rescaled them; or both.",
            _one_of(Naming),
            "NAMES",
        )
    )
    hostname_label: HostnameLabel = dataclasses.field(
        metadata=_about(
            "hostname",
            "The label with the node's name: hostname, Hostname as before dcgm-exporter 4.6, or both.",
            _one_of(HostnameLabel),
            "LABEL",
        )
    )
    node_name: str = dataclasses.field(
        metadata=_about(
            "", "The hostname label; by default the machine's name.", str.strip, "NAME", NODE_NAME=str.strip
        )
    )
    pod_resources_socket: str = dataclasses.field(
        metadata=_about(
            _DEFAULT_SOCKET,
            "The kubelet's PodResources socket, which says which pod holds which GPU. Where the default is not there, "
            "GPUs are exported without pods; an empty value switches pods off.",
            str,
            "PATH",
            DCGM_POD_RESOURCES_KUBELET_SOCKET=str,
        )
    )
    resource_names: tuple[str, ...] = dataclasses.field(
        metadata=_about(
            "",
            "Resources of device plugins that are GPUs beside nvidia.com/*, separated by commas; a * at the end of a "
            "name stands for its rest.",
            some_names,
            "NAMES",
            NVIDIA_RESOURCE_NAMES=some_names,
        )
    )
    pod_labels: tuple[re.Pattern[str], ...] = dataclasses.field(
        metadata=_about(
            "",
            "Labels of pods to add to their GPUs' series as pod_label_..., by key, separated by commas; * stands for "
            "anything. This asks the API server, which nothing else does.",
            label_keys,
            "KEYS",
            **{_LABEL_REGEX: label_regexes, _ENABLE_LABELS: all_labels},
        )
    )
    pod_uid: bool = dataclasses.field(
        metadata=_about(
            "false",
            "Add pods' UIDs to their GPUs' series as pod_uid. This asks the API server.",
            switch,
            None,
            DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID=switch,
        )
    )
    kubeconfig: str = dataclasses.field(
        metadata=_about(
            "",
            "How the API server is reached where labels or UIDs are wanted: a kubeconfig as JSON; by default the "
            "service account of the exporter's pod.",
            str,
            "PATH",
        )
    )
    proc_root: str = dataclasses.field(
        metadata=_about(
            "/proc",
            "The host's /proc, to compare the GPUs that the kernel's driver knows with those that NVML shows.",
            str,
            "DIR",
        )
    )
    log_format: LogFormat = dataclasses.field(
        metadata=_about(
            "text",
            "text or json.",
            _one_of(LogFormat),
            "FORMAT",
            DCGM_EXPORTER_LOG_FORMAT=_one_of(LogFormat),
        )
    )
    log_level: LogLevel = dataclasses.field(
        metadata=_about("info", "debug, info, warning or error.", _one_of(LogLevel), "LEVEL")
    )
    once: bool = dataclasses.field(metadata=_about("false", "Print one exposition and exit.", switch, None))
    given: frozenset[str] = frozenset()


def table() -> dict[str, Setting]:
    """All settings by their name in `Settings`, in the order of the help."""
    return {
        field.name: field.metadata["setting"]
        for field in dataclasses.fields(Settings)
        if "setting" in field.metadata
    }


def flag(name: str) -> str:
    """The command-line flag of setting `name`."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """The environment variable of setting `name`."""
    return _ENV_PREFIX + name.upper()


def resolve(
    flags: Mapping[str, str], environment: Mapping[str, str], *, collectors: Sequence[str]
) -> Settings:
    """The configuration that flags and environment make together; a flag wins over a variable, ours over DCGM's.

    Args:
        flags: Values given on the command line, by setting name.
        environment: The process's environment.
        collectors: The collectors that exist.

    Raises:
        UsageError: Whatever is wrong, all of it at once.
    """
    values: dict[str, Any] = {}
    given: set[str] = set()
    problems: list[str] = []
    for name, setting in table().items():
        origin, text, parse = _source(name, setting, flags, environment)
        if origin != "default":
            given.add(name)
        try:
            values[name] = parse(text)
            if name == "collectors":
                values[name] = _existing(values[name], collectors)
        except ValueError as error:
            problems.append(f'{origin} "{text}": {error}')
    if problems:
        raise UsageError(problems)
    return Settings(**values, given=frozenset(given))


def _source(
    name: str, setting: Setting, flags: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[str, str, Callable[[str], Any]]:
    if name in flags:
        return flag(name), flags[name], setting.parse
    for variable_name, parse in {variable(name): setting.parse, **setting.also}.items():
        if variable_name in environment and _counts(variable_name, environment):
            return variable_name, environment[variable_name], parse
    return "default", setting.default, setting.parse


def _counts(variable_name: str, environment: Mapping[str, str]) -> bool:
    needed = _ONLY_WITH.get(variable_name)
    return needed is None or environment.get(needed, "").strip().lower() in {"true", "1"}


def _existing(wanted: Sequence[str], collectors: Sequence[str]) -> tuple[str, ...]:
    if "all" in wanted:
        return tuple(collectors)
    for name in wanted:
        if name not in collectors:
            near = difflib.get_close_matches(name, collectors, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f'no collector is called "{name}"; {hint}there are {", ".join(collectors)}')
    return tuple(name for name in collectors if name in wanted)
