"""Every setting in one table: its name, type, default and help make the flag, the environment variable and the docs.

Must not read argv or the environment itself: both are handed in.
"""

import dataclasses
import difflib
import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from exporter.dcgm.flags import FLAGS, remarks
from exporter.errors import UsageError
from exporter.model import DeviceChoice, MetricSet, Naming, SharedGpus

_ENV_PREFIX = "GPU_EXPORTER_"
_DCGM_ENV_PREFIX = "DCGM_EXPORTER_"
_SERVICE_LINK = re.compile(
    r"(?:GPU|DCGM)_EXPORTER_(?:\w+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)",
    re.ASCII,
)
"""What the kubelet puts into every container for a Service called gpu-exporter or gpu-exporter-...: nobody's mistake.
(Kubernetes documentation, "Discovering services")"""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.1, 3600.0
_MAX_PORT = 65535
DCGM_EXPORTERS_LISTS = (
    "/etc/dcgm-exporter/default-counters.csv",
    "/etc/dcgm-exporter/dcp-metrics-included.csv",
)
"""What lies in dcgm-exporter's image, and is named in its manifests, but need not lie in ours."""
_ENABLE_LABELS = "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS"
_LABEL_REGEX = "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX"
_ONLY_WITH = {
    _LABEL_REGEX: _ENABLE_LABELS
}  # a variable of dcgm-exporter that means nothing while another is off
_SEE_HELP = "see gpu-exporter --help"
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
    NONE = "none"

    @property
    def labels(self) -> tuple[str, ...]:
        """The names that it has."""
        match self:
            case HostnameLabel.BOTH:
                return ("hostname", "Hostname")
            case HostnameLabel.NONE:
                return ()
            case _:
                return (str(self.value),)


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


def patience(text: str) -> float:
    """Parse a duration as of `interval`, or "never", into seconds."""
    return math.inf if text.strip().lower() == "never" else interval(text)


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


def plain(text: str) -> str:
    """Parse a name that is to stand in a label."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text.strip()


def switch(text: str) -> bool:
    """Parse "true" or "false"."""
    value = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}.get(
        text.strip().lower()
    )
    if value is None:
        raise ValueError("neither true nor false")
    return value


def _where(value: object, *, switched: bool) -> Callable[[str], object]:
    """Parse a switch of dcgm-exporter that stands for `value` of a setting where it is `switched`, else for nothing."""
    return lambda text: value if switch(text) is switched else None


_RANGE = r"[0-9]{1,3}(?:-[0-9]{1,3})?"
_INSTANCE = r"[0-9]{1,3}(?:[-.][0-9]{1,3})?"
_DEVICES = re.compile(
    rf"(?P<gpu>g(?::(?P<gpus>{_RANGE}(?:,{_RANGE})*))?)?\+?"
    rf"(?P<mig>i(?::(?P<instances>{_INSTANCE}(?:,{_INSTANCE})*))?)?"
)


def devices(text: str) -> DeviceChoice:
    """Parse dcgm-exporter's way of naming devices: "f", "g", "g:0,2-3", "i", "i:0,8", "g+i"; also "i:0.3"."""
    match = _DEVICES.fullmatch(text.strip())
    if text.strip() == "f":
        return DeviceChoice()
    if not match or not (match["gpu"] or match["mig"]):
        raise ValueError(
            "not devices; write f for all, g for GPUs, i for MIG instances, g:0,2-3 or i:0,8 for some of them, "
            "or i:0.3 for instance 3 (GPU_I_ID) of GPU 0"
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
            raise ValueError(f"{part} is a range that ends before it begins")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


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
        also: Variables of dcgm-exporter that mean the same, each with its own way of writing the value, which may come
            to None: then it says nothing about this setting.
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
    """A complete, valid configuration.

    Attributes:
        given: Names the settings that are not at their default.
        warnings: What somebody set, as for dcgm-exporter, and what changes nothing here.
    """

    listen: Address = dataclasses.field(
        metadata=_about(
            ":9400",
            "Address to listen on; port 0 uses a free one.",
            address,
            "ADDRESS",
            DCGM_EXPORTER_LISTEN=address,
        )
    )
    web_config_file: str = dataclasses.field(
        metadata=_about(
            "",
            "Web configuration file with TLS and passwords, in the format of Prometheus exporters; "
            "reloaded on changes.",
            str.strip,
            "PATH",
            DCGM_EXPORTER_WEB_CONFIG_FILE=str.strip,
        )
    )
    interval: float = dataclasses.field(
        metadata=_about(
            "10s",
            "Interval of GPU readings; a scrape gets the last reading and never waits for the driver.",
            interval,
            "DURATION",
            DCGM_EXPORTER_INTERVAL=milliseconds,
        )
    )
    collectors: tuple[str, ...] = dataclasses.field(
        metadata=_about("all", "Enabled collectors, separated by commas: {collectors}.", names, "NAMES")
    )
    metrics: MetricSet = dataclasses.field(
        metadata=_about(
            "default",
            "Set of metrics: minimal (popular dashboards), default (dcgm-exporter's defaults that "
            "NVML has), or full.",
            _one_of(MetricSet),
            "SET",
        )
    )
    metrics_file: str = dataclasses.field(
        metadata=_about(
            "",
            "CSV file with the exact metrics to serve, as dcgm-exporter's -f; reloaded on changes "
            "and SIGHUP.",
            str.strip,
            "FILE",
            DCGM_EXPORTER_COLLECTORS=str.strip,
        )
    )
    naming: Naming = dataclasses.field(
        metadata=_about(
            "dcgm",
            "Metric names and units: dcgm (public dashboards), dcgm-4.9 (renamed by dcgm-exporter "
            "4.9), or both.",
            _one_of(Naming),
            "NAMES",
        )
    )
    hostname_label: HostnameLabel = dataclasses.field(
        metadata=_about(
            "hostname",
            "Label with the node's name: hostname, Hostname (before dcgm-exporter 4.6), both, or none.",
            _one_of(HostnameLabel),
            "LABEL",
            DCGM_EXPORTER_NO_HOSTNAME=_where(HostnameLabel.NONE, switched=True),
        )
    )
    serial_numbers: bool = dataclasses.field(
        metadata=_about("false", "Add the GPUs' serial numbers as a label of gpu_info.", switch, None)
    )
    node_name: str = dataclasses.field(
        metadata=_about(
            "", "Value of the hostname label; default: the machine's name.", plain, "NAME", NODE_NAME=plain
        )
    )
    pod_resources_socket: str = dataclasses.field(
        metadata=_about(
            _DEFAULT_SOCKET,
            "The kubelet's PodResources socket, which maps GPUs to pods. Without the default socket, "
            "or if empty, pods are off.",
            str,
            "PATH",
            DCGM_EXPORTER_KUBERNETES=_where("", switched=False),
            DCGM_POD_RESOURCES_KUBELET_SOCKET=str,
        )
    )
    resource_names: tuple[str, ...] = dataclasses.field(
        metadata=_about(
            "",
            "Device plugin resources that are GPUs, in addition to nvidia.com/*, separated by "
            "commas; may end with *.",
            some_names,
            "NAMES",
            NVIDIA_RESOURCE_NAMES=some_names,
        )
    )
    pod_labels: tuple[re.Pattern[str], ...] = dataclasses.field(
        metadata=_about(
            "",
            "Keys of pod labels to add as pod_label_..., separated by commas; * matches anything. "
            "Queries the API server.",
            label_keys,
            "KEYS",
            **{_LABEL_REGEX: label_regexes, _ENABLE_LABELS: all_labels},
        )
    )
    pod_uid: bool = dataclasses.field(
        metadata=_about(
            "false",
            "Add the label pod_uid. Queries the API server.",
            switch,
            None,
            DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID=switch,
        )
    )
    kubeconfig: str = dataclasses.field(
        metadata=_about(
            "",
            "Kubeconfig with a token for --pod-labels and --pod-uid; default: the pod's service account.",
            str,
            "PATH",
        )
    )
    hpc_job_mapping_dir: str = dataclasses.field(
        metadata=_about(
            "",
            "Directory with one file per GPU (0) or MIG instance (0.3) that lists job IDs; adds the "
            "label hpc_job.",
            str.strip,
            "DIR",
            DCGM_HPC_JOB_MAPPING_DIR=str.strip,
        )
    )
    devices: DeviceChoice = dataclasses.field(
        metadata=_about(
            "f",
            "Devices: f (all), g (whole GPUs), i (MIG instances), or some, such as g:0,2-3, i:0,8, "
            "i:0.3 or g:0+i.",
            devices,
            "DEVICES",
            DCGM_EXPORTER_DEVICES_STR=devices,
        )
    )
    replace_blanks_in_model_name: bool = dataclasses.field(
        metadata=_about(
            "false",
            "Replace blanks in the label modelName with dashes.",
            switch,
            None,
            DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME=switch,
        )
    )
    shared_gpus: SharedGpus = dataclasses.field(
        metadata=_about(
            "dcgm",
            "DCGM metrics of a shared GPU: dcgm (a copy for each pod) or attributed (each pod's "
            "share, if known).",
            _one_of(SharedGpus),
            "MODE",
        )
    )
    proc_root: str = dataclasses.field(
        metadata=_about(
            "/proc",
            "The host's /proc, to map GPU processes to pods and to find GPUs that NVML does not show.",
            str,
            "DIR",
        )
    )
    pod_logs: str = dataclasses.field(
        metadata=_about(
            "/var/log",
            "The host's /var/log; directory names in pods/ map pod UIDs to names. No log is read.",
            str,
            "DIR",
        )
    )
    give_up_after: float = dataclasses.field(
        metadata=_about(
            "5m",
            "Time without a usable driver after which the exporter exits with code 1, to get new "
            "driver libraries; or never.",
            patience,
            "DURATION",
        )
    )
    log_format: LogFormat = dataclasses.field(
        metadata=_about(
            "text",
            "Log format: text or json.",
            _one_of(LogFormat),
            "FORMAT",
            DCGM_EXPORTER_LOG_FORMAT=_one_of(LogFormat),
        )
    )
    log_level: LogLevel = dataclasses.field(
        metadata=_about(
            "info",
            "Log level: debug, info, warning or error.",
            _one_of(LogLevel),
            "LEVEL",
            DCGM_EXPORTER_DEBUG=_where(LogLevel.DEBUG, switched=True),
        )
    )
    once: bool = dataclasses.field(metadata=_about("false", "Print one exposition and exit.", switch, None))
    given: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()


def all_settings() -> dict[str, Setting]:
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


@dataclasses.dataclass(frozen=True, slots=True)
class GivenFlags:
    """What the command line says.

    Attributes:
        flags: Texts by setting.
        dcgm: Flags of dcgm-exporter: as typed, and their text, by their variable.
    """

    flags: Mapping[str, str]
    dcgm: Mapping[str, tuple[str, str]]


def resolve(given: GivenFlags, environment: Mapping[str, str], *, collectors: Sequence[str]) -> Settings:
    """The configuration that flags and environment make together; a flag wins over a variable, ours over DCGM's.

    Args:
        given: The command line.
        environment: The process's environment.
        collectors: The collectors that exist.

    Raises:
        UsageError: Whatever is wrong, all of it at once.
    """
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
    refusals, warnings = remarks(
        lambda flag: given.dcgm.get(flag.variable) or _in(environment, flag.variable)
    )
    problems += _unknown(environment)
    if problems or refusals:
        raise UsageError([*problems, *refusals])
    warnings += _unknown_of_dcgm(environment)
    return Settings(**values, given=frozenset(named), warnings=tuple(warnings))


def _unknown(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with the variables that look like ours and are not."""
    known = [variable(name) for name in all_settings()]
    problems = []
    for name in _of_nobody(environment, _ENV_PREFIX, known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)  # the prefix makes all of them alike
        problems.append(f"{name}: no such variable; " + (f"did you mean {near[0]}?" if near else _SEE_HELP))
    return problems


def _unknown_of_dcgm(environment: Mapping[str, str]) -> list[str]:
    """One warning for those that another dcgm-exporter may understand; empty ones mean nothing to any."""
    known = [flag.variable for flag in FLAGS]
    names_ = [name for name in _of_nobody(environment, _DCGM_ENV_PREFIX, known) if environment[name]]
    return [f"{', '.join(names_)}: not known here, and ignored"] if names_ else []


def _of_nobody(environment: Mapping[str, str], prefix: str, known: Sequence[str]) -> list[str]:
    return sorted(
        name
        for name in environment
        if name.startswith(prefix) and name not in known and not _SERVICE_LINK.fullmatch(name)
    )


def _with_list(given: GivenFlags) -> GivenFlags:
    """With a path in --collectors where it belongs: dcgm-exporter's flag of that name takes a file, ours names."""
    text = given.flags.get("collectors", "")
    if "/" not in text and not text.endswith((".csv", ".yaml", ".yml")):
        return given
    flags = {name: value for name, value in given.flags.items() if name != "collectors"}
    return GivenFlags(flags, {"DCGM_EXPORTER_COLLECTORS": ("--collectors", text), **given.dcgm})


def _in(environment: Mapping[str, str], name: str) -> tuple[str, str] | None:
    """A variable of dcgm-exporter and its text; to it, and so to us, an empty one is one that is not there."""
    return (name, environment[name]) if environment.get(name) else None


def _sources(
    name: str, setting: Setting, given: GivenFlags, environment: Mapping[str, str]
) -> Iterator[tuple[str, str, Callable[[str], Any]]]:
    """Where a setting's value may come from, the strongest first: origin, text, and how to read it."""
    if name in given.flags:
        yield flag(name), given.flags[name], setting.parse
    for dcgm, parse in setting.also.items():
        if dcgm in given.dcgm and _counts(dcgm, given, environment):
            yield *given.dcgm[dcgm], parse
    if variable(name) in environment:
        yield variable(name), environment[variable(name)], setting.parse
    for dcgm, parse in setting.also.items():
        if (found := _in(environment, dcgm)) and _counts(dcgm, given, environment):
            yield *found, parse
    yield "default", setting.default, setting.parse


def _counts(variable_name: str, given: GivenFlags, environment: Mapping[str, str]) -> bool:
    """Whether a variable of dcgm-exporter means anything, as long as the one that switches it on is not off."""
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
            near = difflib.get_close_matches(name, collectors, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f'no collector is called "{name}"; {hint}there are {", ".join(collectors)}')
    return tuple(name for name in collectors if name in wanted)
