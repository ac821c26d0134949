"""The collectors: each file in this package is one, defined by its `ROWS`.

To add a metric, add a row; to add a collector, add a file: `catalogue` finds it. This file runs collectors: it owns
timing, success and failures.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from exporter.attribution.records import DeviceUsage, Usage
from exporter.errors import ReadingError, Reason
from exporter.model import Kind, Metric, MetricName, MetricSet, Reading, Split
from exporter.nvml.devices import OpenDevice


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One of several values of a metric on one device: in NVML's unit, with its labels."""

    value: float
    labels: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One metric and how to read it."""

    metric: Metric
    # returns one value in NVML's unit, or several; raises ReadingError
    read: Callable[[OpenDevice], float | Sequence[Point]]
    per_instance: bool = False  # whether NVML also reports it for a MIG instance
    # splits the value by pod; None if unknown. Only for rows with one value.
    split: Callable[[OpenDevice, float], Split | None] | None = None


def gauge(
    name: MetricName,
    help_: str,
    source: str,
    read: Callable[[OpenDevice], float | Sequence[Point]],
    *,
    within: MetricSet = MetricSet.FULL,
    needs: str = "",
) -> Row:
    """A gauge with one name in all generations of DCGM."""
    return Row(Metric(name, name, Kind.GAUGE, help_, source, within, needs), read)


def split_by(
    part: Callable[[Usage], float | None], whole: Callable[[DeviceUsage], float | None] | None = None
) -> Callable[[OpenDevice, float], Split | None]:
    """Split a reading by pod. The parts never exceed it, even if they were read slightly earlier.

    `part`: a container's part. `whole`: the sum of the parts; by default the reading itself.
    """

    def split(device: OpenDevice, value: float) -> Split | None:
        try:
            entry = device.account()
        except ReadingError:
            return None  # usage is not collected
        total = value if whole is None else whole(entry)
        parts = {holder: part(use) for holder, use in entry.containers.items()}
        if total is None:
            return None
        by_pod: dict[tuple[str, str], float] = {}
        for holder, amount in parts.items():
            if amount is None:
                return None
            pod = holder.namespace, holder.pod
            by_pod[pod] = by_pod.get(pod, 0) + amount
        scale = min(1, total / known) if (known := sum(by_pod.values())) else 1
        return Split(tuple((pod, amount * scale) for pod, amount in by_pod.items()), max(0, total - known))

    return split


def if_supported(read: Callable[[OpenDevice], float]) -> Callable[[OpenDevice], Sequence[Point]]:
    """The value of `read`, or no point if unsupported: for parts that many cards lack."""

    def read_if_supported(device: OpenDevice) -> Sequence[Point]:
        try:
            return [Point(read(device), {})]
        except ReadingError as error:
            if error.reason in {Reason.NOT_SUPPORTED, Reason.UNAVAILABLE}:
                return []
            raise

    return read_if_supported


@dataclasses.dataclass(frozen=True, slots=True)
class Collector:
    """A family of metrics that is enabled and disabled as one."""

    name: str
    rows: tuple[Row, ...]

    def within(self, wanted: MetricSet) -> "Collector":
        """The rows of a set; there may be none."""
        return Collector(self.name, tuple(row for row in self.rows if wanted.holds(row.metric.within)))


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A reading that failed."""

    collector: str
    reason: Reason  # why, for the counter
    message: str  # why, in words
    defect: Exception | None = None  # the exception, if it is a bug and not an answer of the driver


@dataclasses.dataclass(frozen=True, slots=True)
class CollectorResult:
    """Readings of one collector from one device, and the duration in seconds."""

    collector: str
    readings: tuple[Reading, ...]
    failures: tuple[Failure, ...]
    duration_s: float


def run(collector: Collector, device: OpenDevice, clock: Callable[[], float]) -> CollectorResult:
    """Read all rows of `collector` that `device` supports. Never raises: a failure costs only its own reading."""
    started = clock()
    readings: list[Reading] = []
    failures: list[Failure] = []
    for row in collector.rows:
        if device.record.instance is not None and not row.per_instance:
            continue
        try:
            readings += _readings(row, device)
        except ReadingError as error:
            failures.append(Failure(collector.name, error.reason, str(error)))
        except Exception as error:  # noqa: BLE001 - the one broad catch for collectors: counted, logged, goes on
            what = f"reading {row.metric.dcgm.name} of {device.name}"
            message = f"{what}: {error!r}: a bug in gpu-exporter, please report it"
            failures.append(Failure(collector.name, Reason.DEFECT, message, defect=error))
    return CollectorResult(collector.name, tuple(readings), tuple(failures), clock() - started)


def _readings(row: Row, device: OpenDevice) -> Iterator[Reading]:
    found = row.read(device)
    if isinstance(found, float | int):
        yield Reading(row.metric, found, split=row.split(device, found) if row.split is not None else None)
        return
    for point in found:
        yield Reading(row.metric, point.value, tuple(point.labels.items()))
