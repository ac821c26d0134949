"""Every setting in one table: its name, type, default and help make the flag, the environment variable and the docs.

Must not read argv or the environment itself: the caller passes both.
"""

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from exporter.dcgm.aliases import dcgm_flags, remarks
from exporter.errors import UsageError
from exporter.model import DeviceChoice, MetricSet, Naming, SharedGpus

_ENV_PREFIX = "GPU_EXPORTER_"
_DCGM_ENV_PREFIX = "DCGM_EXPORTER_"
_SERVICE_LINK = re.compile(
    r"(?:GPU|DCGM)_EXPORTER_(?:\w+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)",
    re.ASCII,
)
"""Variables that the kubelet sets in every container for a Service named gpu-exporter or gpu-exporter-...
(Kubernetes documentation, "Discovering services")"""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 3600.0
_MAX_PORT = 65535
_CLOSE = 0.8  # similarity of variables, which all share a prefix
DCGM_EXPORTERS_LISTS = (
    "/etc/dcgm-exporter/default-counters.csv",
    "/etc/dcgm-exporter/dcp-metrics-included.csv",
)
"""Files of dcgm-exporter's image that its manifests name, and that may be absent here."""
_ENABLE_LABELS = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
_LABEL_REGEX = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
_ONLY_WITH = {
    _LABEL_REGEX: _ENABLE_LABELS
}  # variables of dcgm-exporter that have no effect while another is off
_DEFAULT_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint at the closest of the known names, with a leading "; "; empty if none is close."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


class LogFormat(enum.Enum):
    """Format of log lines."""

    TEXT = "text"
    JSON = "json"


class HostnameLabel(enum.Enum):
    """Name of the label with the hostname: dcgm-exporter renamed it in May 2026."""

    LOWER = "hostname"
    UPPER = "Hostname"
    BOTH = "both"
    NONE = "none"

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names."""
        match self:
            case HostnameLabel.BOTH:
                return ("hostname", "Hostname")
            case HostnameLabel.NONE:
                return ()
            case _:
                return (str(self.value),)


class LogLevel(enum.Enum):
    """The least severe level to log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on; an empty host means every IPv6 and IPv4 address of the machine."""

    host: str
    port: int


def address(text: str) -> Address:
    """Parse "host:port", ":port" or "[v6 address]:port"; port 0 takes a free one."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    wrong = not colon or not re.fullmatch(r"[0-9]{1,5}", port) or (":" in host and not bracketed)
    if wrong or int(port) > _MAX_PORT:
        raise ValueError(
            'is not an address; write ":9400", "127.0.0.1:9400" or "[::1]:9400", with a port up to 65535'
        )
    return Address(host.strip("[]"), int(port))


def interval(text: str) -> float:
    """Parse a duration such as "500ms", "10s" or "1m" into seconds."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError("is not a duration; write a number and a unit, such as 500ms, 10s or 1m")
    return _bounded(float(match[1]) * _SECONDS[match[2]])


def patience(text: str) -> float:
    """Parse a duration as in `interval`, or "never", into seconds."""
    return math.inf if text.strip().lower() == "never" else interval(text)


def milliseconds(text: str) -> float:
    """Parse dcgm-exporter's form of an interval, whole milliseconds, into seconds."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise ValueError(
            "is not a whole number of milliseconds, which is dcgm-exporter's form of an interval"
        )
    return _bounded(int(text) / 1000)


def _bounded(seconds: float) -> float:
    if not math.isfinite(seconds) or not _MIN_INTERVAL_S <= seconds <= _MAX_INTERVAL_S:
        raise ValueError("is out of range; an interval is between 100ms and 1h")
    return seconds


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError('is empty; write names separated by commas, or "all"')
    return found


def some_names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list that may be empty; a "*" may end each name."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in found:
        if "*" in name[:-1] or name == "*":
            raise ValueError('a "*" can only end a name, such as "example.com/gpu-*"')
    return found


def label_keys(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse a comma-separated list of label keys with "*" as wildcard into patterns."""
    keys = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(re.compile(r"\A" + ".*".join(map(re.escape, key.split("*"))) + r"\Z") for key in keys)


def label_regexes(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse dcgm-exporter's comma-separated list of regular expressions into patterns."""
    try:
        return tuple(re.compile(part.strip()) for part in text.split(",") if part.strip())
    except re.error as error:
        raise ValueError(f"is not a list of regular expressions: {error}") from None


def all_labels(text: str) -> tuple[re.Pattern[str], ...]:
    """Parse dcgm-exporter's switch for all labels or none."""
    return label_keys("*") if switch(text) else ()


def plain(text: str) -> str:
    """Parse a label value."""
    if not text.isprintable():
        raise ValueError("has unprintable characters")
    return text.strip()


def pod_name(text: str) -> tuple[str, str] | tuple[()]:
    """Parse "namespace/name", which may be empty."""
    namespace, _, name = text.strip().partition("/")
    if bool(namespace) is not bool(name):
        raise ValueError("is not a pod; write its namespace and name with a slash")
    return (namespace, name) if name else ()


def switch(text: str) -> bool:
    """Parse "true" or "false"."""
    value = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}.get(
        text.strip().lower()
    )
    if value is None:
        raise ValueError("must be true or false")
    return value


def _where(value: object, *, switched: bool) -> Callable[[str], object]:
    """Parse a switch of dcgm-exporter that means `value` if it is `switched`, else nothing."""
    return lambda text: value if switch(text) is switched else None


_RANGE = r"[0-9]{1,3}(?:-[0-9]{1,3})?"
_INSTANCE = r"[0-9]{1,3}(?:[-.][0-9]{1,3})?"
_DEVICES = re.compile(
    rf"(?P<gpu>g(?::(?P<gpus>{_RANGE}(?:,{_RANGE})*))?)?\+?"
    rf"(?P<mig>i(?::(?P<instances>{_INSTANCE}(?:,{_INSTANCE})*))?)?"
)


def devices(text: str) -> DeviceChoice:
    """Parse dcgm-exporter's device selection: "f", "g", "g:0,2-3", "i", "i:0,8", "g+i"; also "i:0.3"."""
    match = _DEVICES.fullmatch(text.strip())
    if text.strip() == "f":
        return DeviceChoice()
    if not match or not (match["gpu"] or match["mig"]):
        raise ValueError(
            "is not a device selection; write f for all, g for GPUs, i for MIG instances, g:0,2-3 or i:0,8 for some of "
            "them, or i:0.3 for instance 3 (GPU_I_ID) of GPU 0"
        )
    named = (match["instances"] or "").split(",")
    pairs = [part.split(".") for part in named if "." in part]
    all_instances = match["mig"] and not match["instances"]
    return DeviceChoice(
        gpus=None if match["gpu"] and not match["gpus"] else _numbers((match["gpus"] or "").split(",")),
        entities=None if all_instances else _numbers([part for part in named if "." not in part]),
        instances=frozenset((int(gpu), int(number)) for gpu, number in pairs),
    )


def _numbers(parts: Sequence[str]) -> frozenset[int]:
    """The numbers and ranges, such as "2-3", together."""
    found: set[int] = set()
    for part in filter(None, parts):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise ValueError(f"the range {part} ends before it begins")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _one_of(kind: type[enum.Enum]) -> Callable[[str], enum.Enum]:
    def parse(text: str) -> enum.Enum:
        known = [str(member.value) for member in kind]
        try:
            return kind(text.strip() if kind is HostnameLabel else text.strip().lower())
        except ValueError:
            raise ValueError(f"must be one of {', '.join(known)}{did_you_mean(text, known)}") from None

    return parse


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    group: str  # its section in the help
    default: str  # as on the command line
    help: str  # one short sentence for the help and the docs
    parse: Callable[[str], Any]  # parses the text; raises ValueError with what would be right
    metavar: str | None  # placeholder of the value in the help; None for a switch
    details: str  # further sentences, only for the docs
    # variables of dcgm-exporter with the same meaning, and their parsers. None means that it does not apply.
    dcgm: Mapping[str, Callable[[str], Any]]
    choices: tuple[str, ...] = ()  # all values of an enum


def _setting(
    group: str,
    default: str,
    help_: str,
    parse: Callable[[str], Any],
    metavar: str | None,
    details: str = "",
    **dcgm: Callable[[str], Any],
) -> Any:  # noqa: ANN401 - a field of any type
    setting = Setting(group, default, help_, parse, metavar, details, dcgm)
    return dataclasses.field(metadata={"setting": setting})


def _enum(
    group: str,
    metavar: str,
    kind: type[enum.Enum],
    default: enum.Enum,
    help_: str,
    details: str = "",
    **dcgm: Callable[[str], Any],
) -> Any:  # noqa: ANN401 - as above
    choices = tuple(str(member.value) for member in kind)
    setting = Setting(group, str(default.value), help_, _one_of(kind), metavar, details, dcgm, choices)
    return dataclasses.field(metadata={"setting": setting})


SERVER, METRICS, PODS, HOST, OUTPUT = "server", "metrics", "pods and jobs", "node and driver", "output"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A complete, valid configuration."""

    listen: Address = _setting(
        SERVER, ":9400", "Address to serve on.", address, "ADDRESS", "Port 0 takes a free port.",
        DCGM_EXPORTER_LISTEN=address,
    )  # fmt: skip
    web_config_file: str = _setting(
        SERVER, "", "TLS and passwords, as in node_exporter.", str.strip, "FILE",
        "It is reloaded when it or one of its certificates changes.",
        DCGM_EXPORTER_WEB_CONFIG_FILE=str.strip,
    )  # fmt: skip
    interval: float = _setting(
        METRICS, "10s", "How often the GPUs are read.", interval, "DURATION",
        "A scrape gets the last reading and never waits for the driver.",
        DCGM_EXPORTER_INTERVAL=milliseconds,
    )  # fmt: skip
    metrics: MetricSet = _enum(
        METRICS, "SET", MetricSet, MetricSet.DEFAULT, "Set of metrics: minimal, default or full.",
        "`minimal` is for common dashboards, `default` as in dcgm-exporter as far as NVML has it, `full` everything.",
    )  # fmt: skip
    collectors: tuple[str, ...] = _setting(
        METRICS, "all", "Collectors to run, separated by commas.", names, "NAMES", "Of: {collectors}.",
    )  # fmt: skip
    metrics_file: str = _setting(
        METRICS, "", "CSV file of metrics, as for dcgm-exporter.", str.strip, "FILE",
        "Only these metrics are served, under their names in the list. It is reloaded when it changes, and on SIGHUP.",
        DCGM_EXPORTER_COLLECTORS=str.strip,
    )  # fmt: skip
    naming: Naming = _enum(
        METRICS, "NAMES", Naming, Naming.DCGM, "Metric names: dcgm, dcgm-4.9, or both sets.",
        "DCGM 4.9 renamed metrics and changed units.",
    )  # fmt: skip
    shared_gpus: SharedGpus = _enum(
        METRICS, "MODE", SharedGpus, SharedGpus.DCGM, "Shared GPUs, per pod: dcgm or attributed.",
        "`dcgm` repeats the GPU's value for each pod. `attributed` serves each pod's use, and the rest without a pod.",
    )  # fmt: skip
    devices: DeviceChoice = _setting(
        METRICS, "f", "f: all; g: GPUs; i: MIG instances; g:0,2-3: some.", devices, "DEVICES",
        "`i:0,8` selects instances by DCGM's number, `i:0.3` by GPU and GPU_I_ID; `g:0+i` combines both.",
        DCGM_EXPORTER_DEVICES_STR=devices,
    )  # fmt: skip
    hostname_label: HostnameLabel = _enum(
        METRICS, "LABEL", HostnameLabel, HostnameLabel.BOTH, "hostname, Hostname, both or none.",
        "The label with the node's name. Most dashboards use `Hostname`.",
        DCGM_EXPORTER_NO_HOSTNAME=_where(HostnameLabel.NONE, switched=True),
    )  # fmt: skip
    serial_numbers: bool = _setting(METRICS, "false", "Add serial numbers to gpu_info.", switch, None)
    replace_blanks_in_model_name: bool = _setting(
        METRICS, "false", "Write modelName with dashes for blanks.", switch, None,
        DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME=switch,
    )  # fmt: skip
    pod_resources_socket: str = _setting(
        PODS, _DEFAULT_SOCKET, "Kubelet socket that names each GPU's pod.", str, "FILE",
        "If it is empty, or the default socket does not exist, GPUs are exported without pods.",
        DCGM_EXPORTER_KUBERNETES=_where("", switched=False), DCGM_POD_RESOURCES_KUBELET_SOCKET=str,
    )  # fmt: skip
    own_pod: tuple[str, str] | tuple[()] = _setting(
        PODS, "", "The exporter's own pod: NAMESPACE/NAME.", pod_name, "POD",
        "The kubelet's answer is complete if it lists it.",
    )  # fmt: skip
    resource_names: tuple[str, ...] = _setting(
        PODS, "", "Other GPU resources than nvidia.com/*.", some_names, "NAMES",
        "Separated by commas; a `*` may end a name.",
        NVIDIA_RESOURCE_NAMES=some_names,
    )  # fmt: skip
    admin_access_namespaces: tuple[str, ...] = _setting(
        PODS, "", "Namespaces of claims with adminAccess.", some_names, "NAMES",
        "Separated by commas. Their pods observe GPUs and hold none.",
    )  # fmt: skip
    pod_labels: tuple[re.Pattern[str], ...] = _setting(
        PODS, "", "Pod labels to add, such as team or app.*.", label_keys, "KEYS",
        "Label keys, separated by commas, with `*` as wildcard. They become `pod_label_…`. This queries the API "
        "server.",
        **{_LABEL_REGEX: label_regexes, _ENABLE_LABELS: all_labels},
    )  # fmt: skip
    pod_uid: bool = _setting(
        PODS, "false", "Add pod UIDs as pod_uid.", switch, None, "This queries the API server.",
        DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID=switch,
    )  # fmt: skip
    kubeconfig: str = _setting(
        PODS, "", "Access to the API server, for labels and UIDs.", str, "FILE",
        "The default is the service account of the exporter's pod.",
    )  # fmt: skip
    hpc_job_mapping_dir: str = _setting(
        PODS, "", "Directory with a file of batch jobs per GPU.", str.strip, "DIR",
        "Named after a GPU's index (`0`) or MIG instance (`0.3`), with one job id per line. Label: `hpc_job`.",
        DCGM_HPC_JOB_MAPPING_DIR=str.strip,
    )  # fmt: skip
    node_name: str = _setting(
        HOST, "", "Value of the hostname label (default: host name).", plain, "NAME", NODE_NAME=plain,
    )  # fmt: skip
    proc_root: str = _setting(
        HOST, "/proc", "The host's /proc: maps processes to pods.", str, "DIR",
        "It also lists the GPUs of the kernel's driver, to compare them with NVML's.",
    )  # fmt: skip
    pod_logs: str = _setting(
        HOST, "/var/log", "The host's /var/log: names pods.", str, "DIR",
        "Only the names of the kubelet's folders in `pods/` are used, no logs.",
    )  # fmt: skip
    give_up_after: float = _setting(
        HOST, "5m", "Exit if the driver fails this long; or never.", patience, "DURATION",
        "The exit code is 1. A new process loads the libraries of a new driver.",
    )  # fmt: skip
    log_format: LogFormat = _enum(
        OUTPUT,
        "FORMAT",
        LogFormat,
        LogFormat.TEXT,
        "text or json.",
        DCGM_EXPORTER_LOG_FORMAT=_one_of(LogFormat),
    )
    log_level: LogLevel = _enum(
        OUTPUT, "LEVEL", LogLevel, LogLevel.INFO, "debug, info, warning or error.",
        DCGM_EXPORTER_DEBUG=_where(LogLevel.DEBUG, switched=True),
    )  # fmt: skip
    once: bool = _setting(OUTPUT, "false", "Print the metrics once, and exit.", switch, None)
    given: frozenset[str] = frozenset()  # names of the settings that the user has set
    warnings: tuple[str, ...] = ()  # flags and variables of dcgm-exporter that have no effect


def all_settings() -> dict[str, Setting]:
    """All settings by name, in the order of the help."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class GivenFlags:
    """The command line."""

    flags: Mapping[str, str]  # texts by setting
    dcgm: Mapping[str, tuple[str, str]]  # flags of dcgm-exporter as typed, and their texts, by variable


def resolve(given: GivenFlags, environment: Mapping[str, str], *, collectors: Sequence[str]) -> Settings:
    """The settings by flags and environment. A flag wins over a variable, gpu-exporter's names over dcgm-exporter's."""
    given = _with_list(given)
    values: dict[str, Any] = {}
    named: set[str] = set()
    problems: list[str] = []
    for name, setting in all_settings().items():
        for origin, text, parse in _sources(name, setting, given, environment):
            try:
                value = parse(text)
                if name == "collectors":
                    value = _existing(value, collectors)
            except ValueError as error:
                problems.append(f'{origin} "{text}": {error}')
                break
            if value is not None:
                values[name] = value
                named |= {name} if origin != "default" else set()
                break
    problems += _unknown_variables(environment)
    if problems:
        raise UsageError(problems)
    if not named & {"metrics_file", "metrics", "collectors"} and _replaces_dcgm_exporter(given, environment):
        values["metrics_file"] = DCGM_EXPORTERS_LISTS[0]
    ignored = remarks(lambda flag: given.dcgm.get(flag.variable) or _in(environment, flag.variable))
    return Settings(**values, given=frozenset(named), warnings=(*ignored, *_dcgm_warnings(environment)))


def _replaces_dcgm_exporter(given: GivenFlags, environment: Mapping[str, str]) -> bool:
    """Whether a manifest of dcgm-exporter starts it. Its chart mounts a list at the default path without naming it."""
    return bool(given.dcgm) or any(
        name.startswith(_DCGM_ENV_PREFIX) and value and not _SERVICE_LINK.fullmatch(name)
        for name, value in environment.items()
    )


def _unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Problems of unknown variables with gpu-exporter's prefix."""
    known = [variable(name) for name in all_settings()]
    return [
        f"unknown variable {name}{did_you_mean(name, known, _CLOSE)}"
        for name in _unknown_names(environment, _ENV_PREFIX, known)
    ]


def _dcgm_warnings(environment: Mapping[str, str]) -> list[str]:
    """One warning for unknown variables with dcgm-exporter's prefix. It ignores empty ones too."""
    known = [flag.variable for flag in dcgm_flags()]
    names_ = [name for name in _unknown_names(environment, _DCGM_ENV_PREFIX, known) if environment[name]]
    return [f"{', '.join(names_)}: unknown, ignored"] if names_ else []


def _unknown_names(environment: Mapping[str, str], prefix: str, known: Sequence[str]) -> list[str]:
    return sorted(
        name
        for name in environment
        if name.startswith(prefix) and name not in known and not _SERVICE_LINK.fullmatch(name)
    )


def _with_list(given: GivenFlags) -> GivenFlags:
    """Move a path in --collectors to --metrics-file: dcgm-exporter's flag with that name takes a file."""
    text = given.flags.get("collectors", "")
    if "/" not in text and not text.endswith((".csv", ".yaml", ".yml")):
        return given
    flags = {name: value for name, value in given.flags.items() if name != "collectors"}
    return GivenFlags(flags, {"DCGM_EXPORTER_COLLECTORS": ("--collectors", text), **given.dcgm})


def _in(environment: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """A variable of dcgm-exporter and its text; empty means unset, as in dcgm-exporter."""
    return (name, environment[name]) if environment.get(name) else None


def _sources(
    name: str, setting: Setting, given: GivenFlags, environment: Mapping[str, str]
) -> Iterator[tuple[str, str, Callable[[str], Any]]]:
    """The sources of a setting by priority: origin, text and parser."""
    if name in given.flags:
        yield flag(name), given.flags[name], setting.parse
    for dcgm, parse in setting.dcgm.items():
        if dcgm in given.dcgm and _counts(dcgm, given, environment):
            yield *given.dcgm[dcgm], parse
    if variable(name) in environment:
        yield variable(name), environment[variable(name)], setting.parse
    for dcgm, parse in setting.dcgm.items():
        if (found := _in(environment, dcgm)) and _counts(dcgm, given, environment):
            yield *found, parse
    yield "default", setting.default, setting.parse


def _counts(variable_name: str, given: GivenFlags, environment: Mapping[str, str]) -> bool:
    """Whether a variable of dcgm-exporter applies: the one that turns it on, if there is one, is on."""
    needed = _ONLY_WITH.get(variable_name)
    if needed is None:
        return True
    _, text = given.dcgm.get(needed) or _in(environment, needed) or ("", "")
    return text.strip().lower() in {"true", "1"}


def _existing(wanted: Sequence[str], collectors: Sequence[str]) -> tuple[str, ...]:
    if "all" in wanted:
        return tuple(collectors)
    for name in wanted:
        if name not in collectors:
            hint = did_you_mean(name, collectors) or f"; available: {', '.join(collectors)}"
            raise ValueError(f'unknown collector "{name}"{hint}')
    return tuple(name for name in collectors if name in wanted)
