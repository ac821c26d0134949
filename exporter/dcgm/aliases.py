"""Every flag of dcgm-exporter up to 4.9.0 with its variable: supported, or ignored with a warning.

For a supported one, the setting's row in `settings` names the variable and its parser. Must not know how settings are
found.
"""

import dataclasses
import functools
import importlib.resources
from collections.abc import Callable

_OFF = frozenset({"", "0", "f", "false"})


@dataclasses.dataclass(frozen=True, slots=True)
class Supported:
    """Flag with an equivalent in gpu-exporter."""

    equivalent: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """Flag without effect; one warning says what it does in dcgm-exporter and what to do instead."""

    effect: str  # in dcgm-exporter: "it ..."
    instead: str
    quiet: frozenset[str]  # values in lower case that request nothing


@dataclasses.dataclass(frozen=True, slots=True)
class DcgmFlag:
    """A flag of dcgm-exporter."""

    names: tuple[str, ...]
    variable: str
    handling: Supported | Ignored
    is_switch: bool = False  # it may have no value


def _value(names: str, variable: str, equivalent: str) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, Supported(equivalent))


def _switch(names: str, variable: str, equivalent: str) -> DcgmFlag:
    return DcgmFlag(tuple(names.split()), variable, Supported(equivalent), is_switch=True)


def _ignored(line: str) -> DcgmFlag:
    names, variable, effect, instead, *quiet = line.split(" | ")
    is_switch = names.startswith("=")
    handling = Ignored(effect, instead, _OFF if is_switch else frozenset({"", *quiet}))
    return DcgmFlag(tuple(names.removeprefix("=").split()), variable, handling, is_switch)


_SUPPORTED = (
    _value("-f --collectors", "DCGM_EXPORTER_COLLECTORS", "--metrics-file FILE"),
    _value("-a --address", "DCGM_EXPORTER_LISTEN", "--listen ADDRESS"),
    _value("-c --collect-interval", "DCGM_EXPORTER_INTERVAL", "--interval DURATION"),
    _switch(
        "-k --kubernetes",
        "DCGM_EXPORTER_KUBERNETES",
        "false: --pod-resources-socket=; true: the default",
    ),
    _value("-d --devices", "DCGM_EXPORTER_DEVICES_STR", "--devices DEVICES"),
    _switch("-n --no-hostname", "DCGM_EXPORTER_NO_HOSTNAME", "--hostname-label none"),
    _switch(
        "--replace-blanks-in-model-name -rbmn",
        "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",
        "--replace-blanks-in-model-name",
    ),
    _switch("--debug", "DCGM_EXPORTER_DEBUG", "--log-level debug"),
    _value("--log-format", "DCGM_EXPORTER_LOG_FORMAT", "--log-format FORMAT"),
    _value(
        "--pod-resources-kubelet-socket",
        "DCGM_POD_RESOURCES_KUBELET_SOCKET",
        "--pod-resources-socket PATH",
    ),
    _value("--hpc-job-mapping-dir", "DCGM_HPC_JOB_MAPPING_DIR", "--hpc-job-mapping-dir DIR"),
    _value("--nvidia-resource-names", "NVIDIA_RESOURCE_NAMES", "--resource-names NAMES"),
    _value("--web-config-file", "DCGM_EXPORTER_WEB_CONFIG_FILE", "--web-config-file PATH"),
    _switch(
        "--kubernetes-enable-pod-labels",
        "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",
        "--pod-labels '*'",
    ),
    _value(
        "--kubernetes-pod-label-allowlist-regex",
        "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",
        "--pod-labels KEYS",
    ),
    _switch("--kubernetes-enable-pod-uid", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "--pod-uid"),
)


@functools.cache
def dcgm_flags() -> tuple[DcgmFlag, ...]:
    """All flags; those without effect stand in flags.txt."""
    lines = importlib.resources.files("exporter.dcgm").joinpath("flags.txt").read_text().splitlines()
    return (*_SUPPORTED, *(_ignored(line) for line in lines if not line.startswith("#")))


def remarks(given: Callable[[DcgmFlag], tuple[str, str] | None]) -> list[str]:
    """Warnings for the given flags and variables.

    `given`: origin and text of a flag's value; None if it is not set.
    """
    found: list[str] = []
    for flag in dcgm_flags():
        origin, text = given(flag) or ("", "")
        handling = flag.handling
        if origin and isinstance(handling, Ignored) and text.strip().lower() not in handling.quiet:
            found.append(f"{origin} is ignored; in dcgm-exporter it {handling.effect}: {handling.instead}")
    return found
