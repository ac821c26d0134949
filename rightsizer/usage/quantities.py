"""What is measured, and the table in which a source says which metric gives which of it. Pure.

To add a source, write a table: a Source with a row for each metric (`dcgm.py`), or a file (`table.py`).
"""

import dataclasses
import enum

from rightsizer.usage.series_labels import LabelNames


class MetricKind(enum.StrEnum):
    """What a metric says of a device."""

    ACTIVITY = "activity"
    TRAFFIC = "traffic"
    MEMORY = "memory"
    POWER = "power"


class Statistic(enum.StrEnum):
    """What is asked of it over the window."""

    MEAN = "mean"
    PEAK = "max"
    NEGATIVE = "negative"


STATISTICS = {
    # A negative value hides behind higher ones; NaN makes a mean NaN, and what is too high makes a peak too high.
    MetricKind.ACTIVITY: (Statistic.MEAN, Statistic.PEAK, Statistic.NEGATIVE),
    MetricKind.TRAFFIC: (Statistic.MEAN, Statistic.PEAK, Statistic.NEGATIVE),
    MetricKind.POWER: (Statistic.MEAN, Statistic.PEAK, Statistic.NEGATIVE),
    MetricKind.MEMORY: (Statistic.PEAK,),
}

LIMITS = {
    MetricKind.ACTIVITY: 1.0,
    MetricKind.TRAFFIC: 1.0,
    MetricKind.POWER: 20_000.0,
    MetricKind.MEMORY: float(1 << 44),
}
"""Highest values that can be: shares, watts, bytes. DCGM's blanks (from 2147483632 on) lie above each of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metric:
    """One metric that gives one quantity.

    Attributes:
        scale: Factor from the metric's unit to ours: shares from 0 to 1, bytes, watts.
        alike: What it measures in detail: two series of which this is the same should agree.
        matchers: Which of the metric's series.
        limit: Highest value that can be, in our unit; that of the kind where none is given.
    """

    kind: MetricKind
    metric: str
    scale: float
    alike: str = ""
    matchers: tuple[str, ...] = ()
    limit: float | None = None

    @property
    def highest(self) -> float:
        """What is above this is no measurement."""
        return LIMITS[self.kind] if self.limit is None else self.limit


@dataclasses.dataclass(frozen=True, slots=True)
class MetricSource:
    """A table of metrics.

    Attributes:
        name: What `--signals` calls it.
        quantities: Its metrics; which of them there are is found out by asking.
        has_counters: Whether our exporter's counters (own.py) belong to it.
        has_rules: Whether our recording rules (rules.py) know its metrics.
    """

    name: str
    quantities: tuple[Metric, ...]
    labels: LabelNames = dataclasses.field(default_factory=LabelNames)
    has_counters: bool = False
    has_rules: bool = True

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(quantity for quantity in self.quantities if quantity.kind is kind)
