"""Metrics of each source: the quantity, unit and labels of each, and DCGM's tables. Pure.

To add a source, write a MetricSource with a row for each metric, or a signals file (`custom_source.py`).
"""

import dataclasses
import enum

from rightsizer.usage.series_labels import LabelNames

MIB = 1 << 20


class MetricKind(enum.StrEnum):
    """The quantity that a metric measures."""

    ACTIVITY = "activity"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    POWER = "power"


class Statistic(enum.StrEnum):
    """A statistic over the window."""

    MEAN = "mean"
    PEAK = "max"
    NEGATIVE = "negative"


# A peak hides negative values, so they are queried; NaN makes a mean NaN, and an impossibly high value makes a peak so.
_ALL = (Statistic.MEAN, Statistic.PEAK, Statistic.NEGATIVE)
STATISTICS = {
    MetricKind.ACTIVITY: _ALL,
    MetricKind.TRAFFIC: _ALL,
    MetricKind.POWER: _ALL,
    MetricKind.MEMORY: (Statistic.PEAK,),
}

LIMITS = {
    MetricKind.ACTIVITY: 1.0,
    MetricKind.TRAFFIC: 1.0,
    MetricKind.POWER: 20_000.0,
    MetricKind.MEMORY: float(1 << 44),
}
"""Highest plausible values: shares, watts, bytes. DCGM's blank values (from 2147483632 on) are above each of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        scale: Factor to shares from 0 to 1, bytes or watts.
        alike: What it measures in detail; two series with the same value should agree.
        matchers: Select the metric's series.
        limit: Highest plausible value after scaling; that of the kind if None.
    """

    kind: MetricKind
    name: str
    scale: float
    alike: str = ""
    matchers: tuple[str, ...] = ()
    limit: float | None = None

    @property
    def highest(self) -> float:
        """Highest plausible value after scaling."""
        return LIMITS[self.kind] if self.limit is None else self.limit


@dataclasses.dataclass(frozen=True, slots=True)
class MetricSource:
    """The metrics and labels of an exporter.

    Attributes:
        name: The value of `--signals`.
        metrics: Possible metrics; a query tells which of them exist.
        has_counters: Whether gpu-exporter's counters (`exporter_counters.py`) exist.
        has_rules: Whether the recording rules (`recording_rules.py`) record its metrics.
    """

    name: str
    metrics: tuple[Metric, ...]
    labels: LabelNames = dataclasses.field(default_factory=LabelNames)
    has_counters: bool = False
    has_rules: bool = True

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(metric for metric in self.metrics if metric.kind is kind)


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
