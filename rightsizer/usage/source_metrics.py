"""What each source has: metrics with their quantities and units, and labels that name pods, devices and nodes. Pure.

To add a source, write a MetricSource with a row for each metric, or a signals file (`sources.py`).

Prometheus renames labels of the exporter that collide with its own (honor_labels: false): `exported_pod` is then the
workload's pod and `pod` the exporter's. So each thing has several label names, and the first that is set counts.
"""

import dataclasses
import enum
import sys
from collections.abc import Mapping, Sequence

import msgspec

from rightsizer.model import Device, PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import decode_labels

CLUSTER = "cluster"
"""The usual label of the cluster in a Prometheus that has series of several."""

JOB = "job"
"""The scrape job; pools of one may have several scrape intervals."""

TARGET = "instance"
"""The scraped target: its host and port."""

UseKey = tuple[str, str, str, str]
"""A pod's use of a device: namespace, pod, UUID, MIG instance."""

DeviceKey = tuple[str, str]
"""UUID and MIG instance."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesLabels:
    """The parsed labels of a series."""

    key: UseKey | None  # None if the series names no pod or no device
    device: Device
    cluster: str
    job: str
    pod_label: str  # the label that names the pod; empty if none does
    target: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class LabelNames:
    """Names of labels, in order of preference; empty if the source has none."""

    namespace: tuple[str, ...] = ("exported_namespace", "namespace")
    pod: tuple[str, ...] = ("exported_pod", "pod")
    device: tuple[str, ...] = ("UUID",)
    instance: tuple[str, ...] = ("GPU_I_ID",)
    profile: tuple[str, ...] = ("GPU_I_PROFILE",)
    model: tuple[str, ...] = ("modelName",)
    node: tuple[str, ...] = ("Hostname", "hostname", "node")
    # Whether series may have `exported_pod` without `pod`, or labels of pod and namespace from different places
    is_mixed: bool = False

    @property
    def owner(self) -> tuple[str, ...]:
        """Of the pod."""
        return (CLUSTER, *self.namespace, *self.pod)

    @property
    def device_key(self) -> tuple[str, ...]:
        """Of the device."""
        return (*self.device, *self.instance)

    @property
    def use(self) -> tuple[str, ...]:
        """Labels of a pod's use of a device.

        Copies from a second Prometheus, job or exporter differ in other labels only, so `max` merges them.
        """
        return (*self.owner, *self.device_key)

    @property
    def described(self) -> tuple[str, ...]:
        """The same with the device's description, job and target. All queries keep these, so each is parsed once."""
        return (*self.use, *self.profile, *self.model, JOB, TARGET)

    @property
    def has_pod(self) -> str:
        """A matcher for series that name a pod; it may match others, too.

        `exported_pod` implies `pod`; other alternatives imply nothing.
        """
        last = self.pod[-1]
        is_implied = not self.is_mixed and all(name == f"exported_{last}" for name in self.pod[:-1])
        return promql.is_set(last if is_implied else self.device[0])

    def pod_labels(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """For each label that may name a pod: it, its namespace's label, and matchers that exclude earlier labels."""
        last = len(self.namespace) - 1
        if self.is_mixed:
            return [
                (pod, namespace, (*promql.without_labels(others), promql.is_set(namespace)))
                for place, pod in enumerate(self.pod)
                for number, namespace in enumerate(self.namespace)
                for others in [(*self.pod[:place], *self.namespace[:number])]
            ]
        return [
            (label, self.namespace[min(place, last)], promql.without_labels(self.pod[:place]))
            for place, label in enumerate(self.pod)
        ]

    def pod_of(self, labels: Mapping[str, str]) -> PodKey | None:
        """The pod of a series; None if it names none."""
        pod, namespace = first(labels, self.pod), first(labels, self.namespace)
        # The same names are in the series of each device.
        return (sys.intern(namespace), sys.intern(pod)) if pod and namespace else None

    def device_of(self, labels: Mapping[str, str]) -> DeviceKey:
        """The device of a series."""
        return first(labels, self.device), first(labels, self.instance)

    def key_of(self, labels: Mapping[str, str]) -> UseKey | None:
        """The pod and the device of a series; None if it does not name both."""
        pod, device = self.pod_of(labels), self.device_of(labels)
        return (*pod, *device) if pod and device[0] else None

    def parse(self, text: msgspec.Raw) -> SeriesLabels:
        """Parse the labels of a series, from JSON."""
        labels = decode_labels(text)
        model, profile = sys.intern(first(labels, self.model)), first(labels, self.profile)
        return SeriesLabels(
            self.key_of(labels),
            Device(*self.device_of(labels), model, profile),
            sys.intern(labels.get(CLUSTER, "")),
            sys.intern(labels.get(JOB, "")),
            next((name for name in self.pod if labels.get(name)), ""),
            sys.intern(labels.get(TARGET, "")),
        )


def first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The value of the first of these labels that is set."""
    for name in names:
        if value := labels.get(name):
            return value
    return ""


MIB = 1 << 20


class MetricKind(enum.StrEnum):
    """The quantity that a metric measures."""

    ACTIVITY = "activity"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    POWER = "power"
    CLOCK = "clock"


class Statistic(enum.StrEnum):
    """A statistic over the window."""

    MEAN = "mean"
    PEAK = "max"
    NEGATIVE = "negative"


# A peak hides negative values, so they are queried. NaN shows in the mean, an impossibly high value in the peak.
STATISTICS = {kind: tuple(Statistic) for kind in MetricKind} | {MetricKind.MEMORY: (Statistic.PEAK,)}

LIMITS = {
    MetricKind.ACTIVITY: 1.0,
    MetricKind.TRAFFIC: 1.0,
    MetricKind.POWER: 20_000.0,
    MetricKind.MEMORY: float(1 << 44),
    MetricKind.CLOCK: 2_147_483_600.0,
}
"""Highest plausible values: shares, watts, bytes, hertz. DCGM's blank values, from 2147483632 on, are above each."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    kind: MetricKind
    name: str
    scale: float  # factor to shares from 0 to 1, bytes or watts
    alike: str = ""  # what it measures in detail; two series with the same value should agree
    matchers: tuple[str, ...] = ()  # select the metric's series
    limit: float | None = None  # highest plausible value after scaling; that of the kind if None

    @property
    def highest(self) -> float:
        """Highest plausible value after scaling."""
        return LIMITS[self.kind] if self.limit is None else self.limit


@dataclasses.dataclass(frozen=True, slots=True)
class MetricSource:
    """The metrics and labels of an exporter."""

    name: str  # the value of `--signals`
    metrics: tuple[Metric, ...]  # possible metrics; a query tells which of them exist
    labels: LabelNames = dataclasses.field(default_factory=LabelNames)
    has_counters: bool = False  # whether gpu-exporter's counters (`exporter_counters.py`) exist
    has_rules: bool = True  # whether the recording rules (`recording_rules.py`) record its metrics
    presence: MetricKind = MetricKind.ACTIVITY  # the kind that coverage and histories are of

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(metric for metric in self.metrics if metric.kind is kind)

    def of_devices(self) -> "MetricSource":
        """The same of GPUs, each of which takes the place of a pod, with its UUID as name and namespace."""
        labels = dataclasses.replace(self.labels, namespace=self.labels.device, pod=self.labels.device)
        return MetricSource(self.name, self.metrics, labels, has_rules=False)

    def of_boards(self) -> "MetricSource":
        """The same of whole boards."""
        return dataclasses.replace(
            self.of_devices(), metrics=(*self.metrics, *SM_CLOCKS), presence=MetricKind.POWER
        )


SM_CLOCKS = (
    Metric(MetricKind.CLOCK, "DCGM_FI_DEV_SM_CLOCK", 1e6),
    Metric(MetricKind.CLOCK, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.0),
)
"""Only of boards: it is the same for everything on one."""

# Units: dcgm-exporter's etc/default-counters.csv; from 4.9 on every name ends in its unit.
DCGM = MetricSource(
    "dcgm",
    (
        Metric(MetricKind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL", 0.01, "utilization"),
        Metric(MetricKind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, "engine"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_DEV_MEM_COPY_UTIL", 0.01, "copy"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_PROF_DRAM_ACTIVE", 1.0, "dram"),
        Metric(MetricKind.MEMORY, "DCGM_FI_DEV_FB_USED", MIB, "framebuffer"),
        Metric(MetricKind.POWER, "DCGM_FI_DEV_POWER_USAGE", 1.0, "board"),
    ),
)
DCGM_49 = MetricSource(
    "dcgm-4.9",
    (
        Metric(MetricKind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL_RATIO", 1.0, "utilization"),
        Metric(MetricKind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0, "engine"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 1.0, "copy"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 1.0, "dram"),
        Metric(MetricKind.MEMORY, "DCGM_FI_DEV_FB_USED_BYTES", 1.0, "framebuffer"),
        Metric(MetricKind.POWER, "DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0, "board"),
    ),
)
