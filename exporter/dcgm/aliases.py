"""Every flag of dcgm-exporter up to 4.8.4 with its variable: supported, ignored or refused.

For a supported one, the setting's row in `settings` names the variable and its parser. Must not know how settings are
found.
"""

import dataclasses
from collections.abc import Callable

_OFF = frozenset({"", "0", "f", "false"})


@dataclasses.dataclass(frozen=True, slots=True)
class Supported:
    """It has an equivalent in gpu-exporter."""

    equivalent: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """It has no effect, and one warning says why."""

    why: str
    quiet: frozenset[str] = _OFF  # values in lower case that request nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """The exporter does not start, because ignoring it would mislead."""

    why: str  # what to do instead
    quiet: frozenset[str] = _OFF  # values in lower case that request nothing


@dataclasses.dataclass(frozen=True, slots=True)
class DcgmFlag:
    """A flag of dcgm-exporter."""

    names: tuple[str, ...]
    variable: str
    handling: Supported | Ignored | Refused
    is_switch: bool = False  # it may have no value


def _value(names: str, variable: str, handling: Supported | Ignored | Refused) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, handling)


def _switch(names: str, variable: str, handling: Supported | Ignored | Refused) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, handling, is_switch=True)


_ALL = frozenset({"", "f"})
_DUMPS = "there is nothing to dump; use --log-level debug"
_SLOW = "slow clients always have fixed time limits"
_WATCHES = "there are no DCGM watches; only the last reading is kept"
_CONTAINERS = "container labels are not supported; --pod-labels adds pod labels"
_WINDOW = "the window is five minutes; use rate() of gpu_throttle_seconds_total for others"

FLAGS = (
    _value("-f --collectors", "DCGM_EXPORTER_COLLECTORS", Supported("--metrics-file FILE")),
    _value("-a --address", "DCGM_EXPORTER_LISTEN", Supported("--listen ADDRESS")),
    _value("-c --collect-interval", "DCGM_EXPORTER_INTERVAL", Supported("--interval TIME")),
    _switch(
        "-k --kubernetes",
        "DCGM_EXPORTER_KUBERNETES",
        Supported("false: --pod-resources-socket=; true: the default"),
    ),
    _value("-d --devices", "DCGM_EXPORTER_DEVICES_STR", Supported("--devices DEVICES")),
    _switch("-n --no-hostname", "DCGM_EXPORTER_NO_HOSTNAME", Supported("--hostname-label none")),
    _switch(
        "--replace-blanks-in-model-name -rbmn",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
        Supported("--replace-blanks-in-model-name"),
    ),
    _switch("--debug", "DCGM_EXPORTER_DEBUG", Supported("--log-level debug")),
    _value("--log-format", "DCGM_EXPORTER_LOG_FORMAT", Supported("--log-format FORMAT")),
    _value(
        "--pod-resources-kubelet-socket",
        "DCGM_POD_RESOURCES_KUBELET_SOCKET",
        Supported("--pod-resources-socket PATH"),
    ),
    _value("--hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR", Supported("--hpc-job-mapping-dir DIR")),
    _value("--nvidia-resource-names", "NVIDIA_RESOURCE_NAMES", Supported("--resource-names NAMES")),
    _switch(
        "-o --use-old-namespace",
        "DCGM_EXPORTER_USE_OLD_NAMESPACE",
        Refused("names of dcgm-exporter 1.x are not supported; drop it, and query DCGM_FI_DEV_..."),
    ),
    _value(
        "-m --configmap-data",
        "DCGM_EXPORTER_CONFIGMAP_DATA",
        Refused(
            "ConfigMaps are not read; mount it, and set --metrics-file to its file", frozenset({"", "none"})
        ),
    ),
    _value("--web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", Supported("--web-config-file PATH")),
    _switch(
        "--web-systemd-socket",
        "DCGM_EXPORTER_SYSTEMD_SOCKET",
        Ignored("a socket from systemd is always used"),
    ),
    _value(
        "-r --remote-hostengine-info",
        "DCGM_REMOTE_HOSTENGINE_INFO",
        Ignored("there is no host engine; the driver's library reads this machine's GPUs", frozenset({""})),
    ),
    _value(
        "-p --cpu-devices",
        "DCGM_EXPORTER_CPU_DEVICES_STR",
        Ignored("CPUs are not read; use node_exporter", _ALL),
    ),
    _value(
        "-s --switch-devices",
        "DCGM_EXPORTER_OTHER_DEVICES_STR",
        Ignored("NVSwitches are not read; NVML does not show them", _ALL),
    ),
    _switch(
        "--kubernetes-enable-pod-labels",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
        Supported("--pod-labels '*'"),
    ),
    _value(
        "--kubernetes-pod-label-allowlist-regex",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
        Supported("--pod-labels KEYS"),
    ),
    _switch("--kubernetes-enable-pod-uid", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", Supported("--pod-uid")),
    _value(
        "--kubernetes-gpu-id-type",
        "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
        Ignored("both kinds of ids are always supported", frozenset({"", "uid"})),
    ),
    _switch(
        "--kubernetes-virtual-gpus",
        "KUBERNETES_VIRTUAL_GPUS",
        Ignored(
            "pods on a shared GPU always have their own series, without a label vgpu; --shared-gpus attributed splits "
            "the values"
        ),
    ),
    _switch(
        "--kubernetes-enable-dra",
        "KUBERNETES_ENABLE_DRA",
        Ignored("GPUs of resource claims always have pod labels"),
    ),
    _value(
        "-x --xid-count-window-size",
        "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
        Ignored(
            "the window is five minutes; use DCGM_EXP_XID_ERRORS_TOTAL for others", frozenset({"", "300000"})
        ),
    ),
    _value(
        "--clock-events-count-window-size",
        "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        Ignored(_WINDOW, frozenset({"", "300000"})),
    ),
    _switch("--fake-gpus", "DCGM_EXPORTER_USE_FAKE_GPUS", Ignored("only GPUs of a real driver are read")),
    _switch("--enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG", Ignored("there is no DCGM to write a log")),
    _value(
        "--dcgm-log-level",
        "DCGM_EXPORTER_DCGM_LOG_LEVEL",
        Ignored("there is no DCGM to write a log", frozenset({"", "none"})),
    ),
    _switch("--dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", Ignored(_DUMPS)),
    _value("--dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", Ignored(_DUMPS, frozenset({""}))),
    _value("--dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", Ignored(_DUMPS, frozenset({""}))),
    _switch("--dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", Ignored(_DUMPS)),
    _switch(
        "--disable-startup-validate",
        "DISABLE_STARTUP_VALIDATE",
        Ignored("the checks at start are required: a driver and valid settings"),
    ),
    _switch(
        "--enable-gpu-bind-unbind-watch",
        "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
        Ignored("each reading detects added and removed GPUs"),
    ),
    _value(
        "--gpu-bind-unbind-poll-interval",
        "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
        Ignored("each reading, every --interval, detects added and removed GPUs", frozenset({""})),
    ),
    _switch("--enable-pprof", "DCGM_EXPORTER_ENABLE_PPROF", Ignored("pprof profiles programs written in Go")),
    _value(
        "--config-file",
        "DCGM_EXPORTER_CONFIG_FILE",
        Refused(
            "its YAML is not supported; use flags or variables, and --metrics-file for a list of metrics",
            frozenset({""}),
        ),
    ),
    _value("--web-read-timeout", "DCGM_EXPORTER_WEB_READ_TIMEOUT", Ignored(_SLOW, frozenset({""}))),
    _value("--web-write-timeout", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", Ignored(_SLOW, frozenset({""}))),
    _value(
        "--max-concurrent-scrapes",
        "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES",
        Ignored(
            "concurrent scrapes share one rendering, and their number is always limited", frozenset({""})
        ),
    ),
    _switch(
        "--enable-exporter-metrics",
        "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS",
        Ignored("the exporter's own metrics are always served: gpu_exporter_* and process_*"),
    ),
    _value("--watch-max-keep-age", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", Ignored(_WATCHES, frozenset({""}))),
    _value(
        "--watch-max-keep-samples", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", Ignored(_WATCHES, frozenset({""}))
    ),
    _switch(
        "--health-require-gpus",
        "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS",
        Ignored("/healthz reports that the process runs, /readyz that readings are fresh"),
    ),
    _switch("--container-labels", "DCGM_EXPORTER_CONTAINER_LABELS", Ignored(_CONTAINERS)),
    _value(
        "--container-runtime-socket", "DCGM_CONTAINER_RUNTIME_SOCKET", Ignored(_CONTAINERS, frozenset({""}))
    ),
)


def remarks(given: Callable[[DcgmFlag], tuple[str, str] | None]) -> tuple[list[str], list[str]]:
    """Refusals and warnings for the given flags and variables.

    `given`: origin and text of a flag's value; None if it is not set.
    """
    refusals: list[str] = []
    warnings: list[str] = []
    for flag in FLAGS:
        found = given(flag)
        if (
            found is None
            or isinstance(flag.handling, Supported)
            or found[1].strip().lower() in flag.handling.quiet
        ):
            continue
        messages = refusals if isinstance(flag.handling, Refused) else warnings
        messages.append(f"{found[0]} of dcgm-exporter: {flag.handling.why}")
    return refusals, warnings
