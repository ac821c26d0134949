"""Every flag of dcgm-exporter up to 4.8.4, with its variable, and what becomes of it here.

Where one means the same here, the setting's row in `settings` names the variable and how its value is written; the flag
is another way to give it. Must not know how settings are found.
"""

import dataclasses
from collections.abc import Callable

_OFF = frozenset({"", "0", "f", "false"})


@dataclasses.dataclass(frozen=True, slots=True)
class Supported:
    """It means what one of our settings means.

    Attributes:
        ours: What one would write here, for the docs.
    """

    ours: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """It changes nothing here; said once.

    Attributes:
        why: What people should know instead.
        quiet: Values, in lower case, that ask for nothing.
    """

    why: str
    quiet: frozenset[str] = _OFF


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """To go on without it would mislead those who asked for it.

    Attributes:
        why: What to do instead.
        quiet: Values, in lower case, that ask for nothing.
    """

    why: str
    quiet: frozenset[str] = _OFF


@dataclasses.dataclass(frozen=True, slots=True)
class DcgmFlag:
    """A flag of dcgm-exporter.

    Attributes:
        names: As it is typed.
        variable: Its environment variable.
        fate: What becomes of it.
        is_switch: Whether it may stand without a value.
    """

    names: tuple[str, ...]
    variable: str
    fate: Supported | Ignored | Refused
    is_switch: bool = False


def _value(names: str, variable: str, fate: Supported | Ignored | Refused) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, fate)


def _switch(names: str, variable: str, fate: Supported | Ignored | Refused) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, fate, is_switch=True)


_ALL = frozenset({"", "f"})
_DUMPS = "there is nothing to dump; --log-level debug says what happens"
_SLOW = "slow clients are bounded in any case, by times that cannot be set"
_WATCHES = "there are no watches of DCGM here; only the last reading is kept"
_CONTAINERS = "labels of containers are not read; --pod-labels adds those of pods"
_WINDOW = "the window is five minutes; rate() of gpu_throttle_seconds_total takes any"

FLAGS = (
    _value("-f --collectors", "DCGM_EXPORTER_COLLECTORS", Supported("--metrics-file FILE")),
    _value("-a --address", "DCGM_EXPORTER_LISTEN", Supported("--listen ADDRESS")),
    _value("-c --collect-interval", "DCGM_EXPORTER_INTERVAL", Supported("--interval DURATION")),
    _switch(
        "-k --kubernetes",
        "DCGM_EXPORTER_KUBERNETES",
        Supported("false: --pod-resources-socket=; true: as ever"),
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
        Refused("the names of dcgm-exporter 1.x are not served; leave it out, and ask for DCGM_FI_DEV_..."),
    ),
    _value(
        "-m --configmap-data",
        "DCGM_EXPORTER_CONFIGMAP_DATA",
        Refused(
            "the Kubernetes API is not asked; mount the ConfigMap and name its file with --metrics-file",
            frozenset({"", "none"}),
        ),
    ),
    _value("--web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", Supported("--web-config-file PATH")),
    _switch(
        "--web-systemd-socket",
        "DCGM_EXPORTER_SYSTEMD_SOCKET",
        Ignored("systemd's socket is taken over whenever it hands one over"),
    ),
    _value(
        "-r --remote-hostengine-info",
        "DCGM_REMOTE_HOSTENGINE_INFO",
        Ignored(
            "no host engine is asked; the GPUs of this machine are read, by the driver's own library",
            frozenset({""}),
        ),
    ),
    _value(
        "-p --cpu-devices",
        "DCGM_EXPORTER_CPU_DEVICES_STR",
        Ignored("CPUs are not read; node_exporter does", _ALL),
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
        Ignored("both kinds of ids are understood at any time", frozenset({"", "uid"})),
    ),
    _switch(
        "--kubernetes-virtual-gpus",
        "KUBERNETES_VIRTUAL_GPUS",
        Ignored(
            "pods that share a GPU have series of their own in any case, one for each pod, without a vgpu label; "
            "--shared-gpus attributed gives each its own values"
        ),
    ),
    _switch(
        "--kubernetes-enable-dra",
        "KUBERNETES_ENABLE_DRA",
        Ignored("GPUs that pods hold through resource claims have their pods' labels in any case"),
    ),
    _value(
        "-x --xid-count-window-size",
        "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",
        Ignored("the window is five minutes; DCGM_EXP_XID_ERRORS_TOTAL takes any", frozenset({"", "300000"})),
    ),
    _value(
        "--clock-events-count-window-size",
        "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",
        Ignored(_WINDOW, frozenset({"", "300000"})),
    ),
    _switch(
        "--fake-gpus",
        "DCGM_EXPORTER_USE_FAKE_GPUS",
        Ignored("there are no fake GPUs here but those of the driver"),
    ),
    _switch(
        "--enable-dcgm-log", "DCGM_EXPORTER_ENABLE_DCGM_LOG", Ignored("there is no DCGM here that would log")
    ),
    _value(
        "--dcgm-log-level",
        "DCGM_EXPORTER_DCGM_LOG_LEVEL",
        Ignored("there is no DCGM here that would log", frozenset({"", "none"})),
    ),
    _switch("--dump-enabled", "DCGM_EXPORTER_DUMP_ENABLED", Ignored(_DUMPS)),
    _value("--dump-directory", "DCGM_EXPORTER_DUMP_DIRECTORY", Ignored(_DUMPS, frozenset({""}))),
    _value("--dump-retention", "DCGM_EXPORTER_DUMP_RETENTION", Ignored(_DUMPS, frozenset({""}))),
    _switch("--dump-compression", "DCGM_EXPORTER_DUMP_COMPRESSION", Ignored(_DUMPS)),
    _switch(
        "--disable-startup-validate",
        "DISABLE_STARTUP_VALIDATE",
        Ignored(
            "what is checked at the start is needed: that there is a driver, and that the settings make sense"
        ),
    ),
    _switch(
        "--enable-gpu-bind-unbind-watch",
        "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
        Ignored("GPUs that come and go are noticed at each reading in any case"),
    ),
    _value(
        "--gpu-bind-unbind-poll-interval",
        "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL",
        Ignored("GPUs that come and go are noticed at each reading, every --interval", frozenset({""})),
    ),
    _switch(
        "--enable-pprof",
        "DCGM_EXPORTER_ENABLE_PPROF",
        Ignored("that is the profiler of programs written in Go"),
    ),
    _value(
        "--config-file",
        "DCGM_EXPORTER_CONFIG_FILE",
        Refused(
            "its YAML is not understood; use flags or variables, and name a list of metrics with --metrics-file",
            frozenset({""}),
        ),
    ),
    _value("--web-read-timeout", "DCGM_EXPORTER_WEB_READ_TIMEOUT", Ignored(_SLOW, frozenset({""}))),
    _value("--web-write-timeout", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", Ignored(_SLOW, frozenset({""}))),
    _value(
        "--max-concurrent-scrapes",
        "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES",
        Ignored(
            "scrapes that come together share one answer, and their number is bounded in any case",
            frozenset({""}),
        ),
    ),
    _switch(
        "--enable-exporter-metrics",
        "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS",
        Ignored("metrics of the exporter itself are served in any case: gpu_exporter_* and process_*"),
    ),
    _value("--watch-max-keep-age", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", Ignored(_WATCHES, frozenset({""}))),
    _value(
        "--watch-max-keep-samples", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", Ignored(_WATCHES, frozenset({""}))
    ),
    _switch(
        "--health-require-gpus",
        "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS",
        Ignored("/healthz says whether the process lives; /readyz says whether there are fresh readings"),
    ),
    _switch("--container-labels", "DCGM_EXPORTER_CONTAINER_LABELS", Ignored(_CONTAINERS)),
    _value(
        "--container-runtime-socket", "DCGM_CONTAINER_RUNTIME_SOCKET", Ignored(_CONTAINERS, frozenset({""}))
    ),
)


def remarks(given: Callable[[DcgmFlag], tuple[str, str] | None]) -> tuple[list[str], list[str]]:
    """What is to be said about the flags and variables that were given.

    Args:
        given: The origin and text of a flag's value; None where it has none.

    Returns:
        Reasons to refuse the start, and warnings.
    """
    refusals: list[str] = []
    warnings: list[str] = []
    for flag in FLAGS:
        found = given(flag)
        if found is None or isinstance(flag.fate, Supported) or found[1].strip().lower() in flag.fate.quiet:
            continue
        says = refusals if isinstance(flag.fate, Refused) else warnings
        says.append(f"{found[0]}: dcgm-exporter's; {flag.fate.why}")
    return refusals, warnings
