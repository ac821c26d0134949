"""Every flag of dcgm-exporter up to 4.9.0 with its variable: supported, or ignored with a warning.

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
    """It has no effect, and one warning says what it does in dcgm-exporter and what to do instead."""

    effect: str  # in dcgm-exporter: "it ..."
    instead: str
    quiet: frozenset[str] = _OFF  # values in lower case that request nothing


@dataclasses.dataclass(frozen=True, slots=True)
class DcgmFlag:
    """A flag of dcgm-exporter."""

    names: tuple[str, ...]
    variable: str
    handling: Supported | Ignored
    is_switch: bool = False  # it may have no value


def _value(names: str, variable: str, handling: Supported | Ignored) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, handling)


def _switch(names: str, variable: str, handling: Supported | Ignored) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, handling, is_switch=True)


def _quiet(*values: str) -> frozenset[str]:
    return frozenset({"", *values})


_LOGS = "writes DCGM's log", "there is no DCGM; use --log-level debug"
_DUMPS = "writes its state to files", "use --log-level debug"
_TIMEOUTS = "limits the time of a request", "drop it: slow clients always have fixed time limits"
_KEPT = "limits DCGM's memory of readings", "drop it: only the last reading is kept"
_CONTAINERS = "adds labels of containers", "use --pod-labels, for labels of pods"
_WINDOW = (
    "sets the window of DCGM_EXP_CLOCK_EVENTS_COUNT",
    ("the window is five minutes; use rate() of gpu_throttle_seconds_total for others"),
)
_XIDS = (
    "sets the window of DCGM_EXP_XID_ERRORS_COUNT",
    ("the window is five minutes; use increase() of DCGM_EXP_XID_ERRORS_TOTAL for others"),
)

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
    _value("--web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", Supported("--web-config-file PATH")),
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
    _switch(
        "-o --use-old-namespace",
        "DCGM_EXPORTER_USE_OLD_NAMESPACE",
        Ignored("publishes the names of 1.x", "query DCGM_FI_DEV_...; these names are served"),
    ),
    _value(
        "-m --configmap-data",
        "DCGM_EXPORTER_CONFIGMAP_DATA",
        Ignored(
            "reads the list of metrics from the API server",
            "mount the ConfigMap, and set --metrics-file to its file",
            _quiet("none"),
        ),
    ),
    _value(
        "--config-file",
        "DCGM_EXPORTER_CONFIG_FILE",
        Ignored(
            "reads settings from YAML", "use flags or variables, and --metrics-file for a list", _quiet()
        ),
    ),
    _switch(
        "--web-systemd-socket",
        "DCGM_EXPORTER_SYSTEMD_SOCKET",
        Ignored("listens on a socket from systemd", "drop it: such a socket is always used"),
    ),
    _value(
        "-r --remote-hostengine-info",
        "DCGM_REMOTE_HOSTENGINE_INFO",
        Ignored(
            "reads the GPUs of a DCGM host engine",
            "run gpu-exporter on the machine with the GPUs; it needs no host engine",
            _quiet(),
        ),
    ),
    _value(
        "-p --cpu-devices",
        "DCGM_EXPORTER_CPU_DEVICES_STR",
        Ignored("selects CPUs", "use node_exporter for CPUs", _quiet("f")),
    ),
    _value(
        "-s --switch-devices",
        "DCGM_EXPORTER_OTHER_DEVICES_STR",
        Ignored("selects NVSwitches", "use the fabric manager's log: NVML does not show them", _quiet("f")),
    ),
    _value(
        "--kubernetes-gpu-id-type",
        "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",
        Ignored("selects the kind of device ids", "drop it: both kinds are always supported", _quiet("uid")),
    ),
    _switch(
        "--kubernetes-virtual-gpus",
        "KUBERNETES_VIRTUAL_GPUS",
        Ignored(
            "adds series with the label vgpu for pods on a shared GPU",
            "each pod has its own, without vgpu; --shared-gpus attributed splits the values",
        ),
    ),
    _switch(
        "--kubernetes-enable-dra",
        "KUBERNETES_ENABLE_DRA",
        Ignored("adds pod labels to GPUs of resource claims", "drop it: such GPUs always have them"),
    ),
    _value(
        "-x --xid-count-window-size", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", Ignored(*_XIDS, _quiet("300000"))
    ),
    _value(
        "--clock-events-count-window-size",
        "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        Ignored(*_WINDOW, _quiet("300000")),
    ),
    _switch(
        "--fake-gpus",
        "DCGM_EXPORTER_USE_FAKE_GPUS",
        Ignored("accepts fake GPUs", "drop it: only GPUs of a driver are read"),
    ),
    _switch("--enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG", Ignored(*_LOGS)),
    _value("--dcgm-log-level", "DCGM_EXPORTER_DCGM_LOG_LEVEL", Ignored(*_LOGS, _quiet("none"))),
    _switch("--dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", Ignored(*_DUMPS)),
    _value("--dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", Ignored(*_DUMPS, _quiet())),
    _value("--dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", Ignored(*_DUMPS, _quiet())),
    _switch("--dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", Ignored(*_DUMPS)),
    _switch(
        "--disable-startup-validate",
        "DISABLE_STARTUP_VALIDATE",
        Ignored("skips checks at start", "drop it: only a driver and valid settings are required"),
    ),
    _switch(
        "--enable-gpu-bind-unbind-watch",
        "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
        Ignored("detects added and removed GPUs", "drop it: each reading detects them"),
    ),
    _value(
        "--gpu-bind-unbind-poll-interval",
        "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
        Ignored("sets how often GPUs are listed", "drop it: each reading lists them", _quiet()),
    ),
    _switch("--enable-pprof", "DCGM_EXPORTER_ENABLE_PPROF", Ignored("offers profiles of Go", "use py-spy")),
    _value("--web-read-timeout", "DCGM_EXPORTER_WEB_READ_TIMEOUT", Ignored(*_TIMEOUTS, _quiet())),
    _value("--web-write-timeout", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", Ignored(*_TIMEOUTS, _quiet())),
    _value(
        "--max-concurrent-scrapes",
        "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES",
        Ignored(
            "limits concurrent scrapes",
            "drop it: scrapes share one rendering, and are always limited",
            _quiet(),
        ),
    ),
    _switch(
        "--enable-exporter-metrics",
        "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS",
        Ignored("adds its own metrics", "drop it: gpu_exporter_* and process_* are always served"),
    ),
    _value("--watch-max-keep-age", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", Ignored(*_KEPT, _quiet())),
    _value("--watch-max-keep-samples", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", Ignored(*_KEPT, _quiet())),
    _switch(
        "--health-require-gpus",
        "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS",
        Ignored("makes /health fail without GPUs", "use /readyz, which reports fresh readings"),
    ),
    _switch("--container-labels", "DCGM_EXPORTER_CONTAINER_LABELS", Ignored(*_CONTAINERS)),
    _value("--container-runtime-socket", "DCGM_CONTAINER_RUNTIME_SOCKET", Ignored(*_CONTAINERS, _quiet())),
)


def remarks(given: Callable[[DcgmFlag], tuple[str, str] | None]) -> list[str]:
    """Warnings for the given flags and variables.

    `given`: origin and text of a flag's value; None if it is not set.
    """
    found: list[str] = []
    for flag in FLAGS:
        origin, text = given(flag) or ("", "")
        handling = flag.handling
        if origin and isinstance(handling, Ignored) and text.strip().lower() not in handling.quiet:
            found.append(f"{origin} is ignored; in dcgm-exporter it {handling.effect}: {handling.instead}")
    return found
