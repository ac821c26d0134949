"""gpu-exporter's counters over a window: busy seconds of each device, and of each pod on it.

A counter misses nothing between two scrapes, and on a shared GPU it is the pod's own. Unattributed work of the device
could be any pod's (docs/attribution.md), so it is added to the work of each.
"""

import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import Shard
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.recording_rules import RAW
from rightsizer.usage.source_metrics import CLUSTER, JOB, TARGET, DeviceKey, LabelNames, UseKey

POD_BUSY = "gpu_pod_busy_seconds_total"
DEVICE_BUSY = "gpu_busy_seconds_total"
UNATTRIBUTED = "gpu_unattributed_busy_seconds_total"
GAPS = "gpu_busy_gap_seconds_total"
POD_MEMORY = "gpu_pod_memory_used_bytes"
POD_PROCESSES = "gpu_pod_processes"
POD_TRAFFIC = "gpu_pod_memory_busy_seconds_total"
UNATTRIBUTED_TRAFFIC = "gpu_unattributed_memory_busy_seconds_total"
METRICS = (
    *(POD_BUSY, DEVICE_BUSY, UNATTRIBUTED, GAPS, POD_MEMORY, POD_PROCESSES, POD_TRAFFIC),
    UNATTRIBUTED_TRAFFIC,
)

REASON = "reason"
NOT_A_PODS = f"{REASON}!~{promql.quoted('host|container|mig')}"
"""Excludes unattributed work that no pod on the device can have done; the rest may be a pod's."""
IN_REACH = f"{REASON}!~{promql.quoted('host|mig')}"
"""Excludes what no pod can have done that can use any GPU of its node: it may also have started containers there."""
OUT_OF_REACH = f"{REASON}=~{promql.quoted('host|mig')}"
CONTAINER = ("exported_container", "container")

SLACK_S = 1.0
"""Work of up to this long in a window is rounding."""

COMPLETE = 0.98
"""A counter is complete if it was in at least this share of its job's scrapes, or missed one."""

MAX_DIFFERENCE = 0.1
"""If the means of two sources differ by more, one of them has the wrong device or pod, or stands still."""
MAX_DEVIATIONS = 4
"""Among few samples, a difference of up to this many standard deviations of a gauge of 0 or 1 is chance."""

MAX_INEXACT = 0.5
"""Of a device's work in a slot, in which a pod's counter may begin or end."""

EARLY = 0.25
"""The first part of the window; a counter that existed throughout has its share of the samples there."""
MIN_EARLY_SHARE = 0.9


K = TypeVar("K", bound=Hashable)


@dataclasses.dataclass(slots=True)
class CounterIncrease:
    """The increase of the counters of a device, or of a pod on it."""

    busy_s: float = 0.0
    samples: float = 0.0  # scrapes that it was in
    is_complete: bool = False  # whether it was in (nearly) all scrapes of the window, from the beginning


@dataclasses.dataclass(slots=True)
class Counters:
    """All counters over one window."""

    pods: dict[UseKey, CounterIncrease] = dataclasses.field(default_factory=dict)
    devices: dict[DeviceKey, CounterIncrease] = dataclasses.field(default_factory=dict)
    # Of each device, unattributed work and gaps
    unknown_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    # Of each device, gaps: time of which it is unknown whether it worked
    gap_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    # Time in which memory was read or written for a pod; of each device, that of all pods, and unattributed time
    traffic: dict[UseKey, CounterIncrease] = dataclasses.field(default_factory=dict)
    known_traffic_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    unknown_traffic_s: dict[DeviceKey, float] = dataclasses.field(default_factory=dict)
    # Peak memory of each pod's own processes, and their number
    memory_bytes: dict[UseKey, float] = dataclasses.field(default_factory=dict)
    processes: dict[UseKey, float] = dataclasses.field(default_factory=dict)
    # Counters of pods and of devices with a value that cannot be
    invalid: dict[UseKey, set[str]] = dataclasses.field(default_factory=dict)
    invalid_devices: dict[DeviceKey, set[str]] = dataclasses.field(default_factory=dict)

    def uses(self) -> Iterator[UseKey]:
        """The uses in which a pod worked, or has processes, which may have worked or hold memory."""
        yield from self.invalid
        for key in {*self.pods, *self.traffic, *self.processes, *self.memory_bytes} - self.invalid.keys():
            busy, traffic = self.pods.get(key), self.traffic.get(key)
            has_processes = bool(self.processes.get(key) or self.memory_bytes.get(key))
            unknown_s = self.unknown_s.get(key[2:], 0.0) if busy else 0.0
            counted_s = max(busy.busy_s if busy else 0.0, traffic.busy_s if traffic else 0.0)
            if has_processes or counted_s + unknown_s > SLACK_S:
                yield key

    def impossible(self, key: UseKey) -> set[str]:
        """The counters of a use, or of its device, with a value that cannot be."""
        return self.invalid.get(key, set()) | self.invalid_devices.get(key[2:], set())

    def pod_busy_s(self, key: UseKey) -> float | None:
        """Upper bound of the seconds that a pod's own work took, with `unknown_s` of its device; None if unknown."""
        counted_s = self._complete_s(self.pods.get(key), key)
        return None if counted_s is None else counted_s + self.unknown_s.get(key[2:], 0.0)

    def least_busy_s(self, key: UseKey, *, is_shared: bool) -> float | None:
        """Seconds that counters prove although they lack samples; None if they prove no work.

        A device that only this pod holds worked for it.
        """
        proofs = self.pods.get(key), None if is_shared else self.devices.get(key[2:])
        busy_s = max((each.busy_s for each in proofs if each is not None), default=0.0)
        return busy_s if busy_s > SLACK_S else None

    def pod_traffic_s(self, key: UseKey) -> float | None:
        """Upper bound of the seconds in which memory worked for a pod; None if unknown.

        A driver that has none for any process of a device that works does not measure it.
        """
        where = key[2:]
        counted_s, device = self._complete_s(self.traffic.get(key), key), self.devices.get(where)
        unknown_s = self.unknown_traffic_s.get(where, 0.0)
        if counted_s is None or device is None:
            return None
        if not self.known_traffic_s.get(where) and device.busy_s > SLACK_S:
            return None
        return counted_s + unknown_s + self.unknown_s.get(where, 0.0)

    def _complete_s(self, pod: CounterIncrease | None, key: UseKey) -> float | None:
        device = self.devices.get(key[2:])
        if device is None or pod is None or not device.is_complete:
            return None
        return pod.busy_s if pod.samples >= COMPLETE * device.samples else None

    def dispute(
        self, key: UseKey, gauge_mean: float, window: datetime.timedelta
    ) -> tuple[float, float] | None:
        """A device's mean activity by gauges and counters, if the gauges show far more than could be chance.

        The other way round, gauges have missed work between two scrapes, and the counters show use.
        """
        device = self.devices[key[2:]]
        counted = (device.busy_s + self.gap_s.get(key[2:], 0.0)) / window.total_seconds()
        chance = MAX_DEVIATIONS * 0.5 / math.sqrt(max(device.samples, 1.0))
        return (gauge_mean, counted) if gauge_mean - counted > max(MAX_DIFFERENCE, chance) else None

    def device_busy_s(self, key: UseKey) -> float | None:
        """Upper bound of the seconds that a device worked for anyone; None if unknown."""
        device = self.devices.get(key[2:])
        gap_s = self.gap_s.get(key[2:], 0.0)
        is_known = device is not None and device.is_complete and gap_s <= SLACK_S
        return device.busy_s + gap_s if device is not None and is_known else None


@dataclasses.dataclass(frozen=True, slots=True)
class _CounterQuery(Generic[K]):
    """Queries counters of pods, or of devices, over one window that ends at `at`."""

    querier: SourceQuerier
    window: datetime.timedelta
    at: datetime.datetime
    shards: list[Shard]
    key_of: Callable[[Mapping[str, str]], K | None]
    of_devices: bool
    invalid: dict[K, set[str]]

    def increase(self, metric: str, *matchers: str, parts: Sequence[str] = ()) -> dict[K, float]:
        """The increase, of the job with the highest."""
        found = _of_targets(self._values("increase", metric, (*parts, *CONTAINER, REASON), matchers))
        return _highest((key, value) for (key, _), value in found.items())

    def peak(self, metric: str) -> dict[K, float]:
        """The peak of the sum over containers."""
        return _highest((key, value) for key, _, value in self._values("max_over_time", metric, CONTAINER))

    def samples(self, metric: str) -> dict[K, float]:
        """The number of samples, of the job with most."""
        found = _of_targets(self._values("count_over_time", metric, ()))
        return _highest((key, value) for (key, _), value in found.items())

    def samples_by_target(self, metric: str) -> list[tuple[K, str, float]]:
        """The number of samples of each target, with its job."""
        return list(self._values("count_over_time", metric, ()))

    def _values(
        self, function: str, metric: str, parts: Sequence[str], only: Sequence[str] = ()
    ) -> Iterator[tuple[K, str, float]]:
        """A function of the samples of each exporter, summed over the parts, with the job; of copies the highest."""
        querier, of_devices = self.querier, self.of_devices
        labels = querier.source.labels
        kept = (*((CLUSTER, *labels.device_key) if of_devices else labels.use), JOB, TARGET)
        base = querier.matchers if of_devices else querier.pod_matchers

        def build(matchers: Sequence[str]) -> str:
            selected = promql.selector(metric, (*base, *only, *matchers))
            highest = promql.by("max", (*kept, *parts), promql.over(function, selected, self.window))
            return promql.by("sum", kept, highest) if parts else highest

        plan = querier.shard_plan(self.window, of_devices=of_devices)
        for sample in querier.samples(plan, self.shards, build, self.at):
            key, job = self.key_of(sample.labels), sample.labels.get(JOB, "")
            pod = None if of_devices else labels.pod_of(sample.labels)
            if key is None or not querier.provenance.accepts(pod, job, sample.labels.get(TARGET, "")):
                continue
            if 0 <= sample.value < math.inf:
                yield key, job, sample.value
            else:
                self.invalid.setdefault(key, set()).add(metric)


def _highest(values: Iterable[tuple[K, float]]) -> dict[K, float]:
    found: dict[K, float] = {}
    for key, value in values:
        found[key] = max(found.get(key, value), value)
    return found


def _of_targets(values: Iterable[tuple[K, str, float]]) -> dict[tuple[K, str], float]:
    """The sum over the targets of each job: a restarted exporter has another address."""
    found: dict[tuple[K, str], float] = {}
    for key, job, value in values:
        found[key, job] = found.get((key, job), 0.0) + value
    return found


def query_counters(querier: SourceQuerier, window: datetime.timedelta) -> Counters:
    """All counters over the window; none if the source has none."""
    counters = Counters()
    if querier.source.has_counters:
        labels = querier.source.labels
        _add_pods(counters, _query(querier, window, labels.key_of, counters.invalid, of_devices=False))
        devices = _query(querier, window, labels.device_of, counters.invalid_devices, of_devices=True)
        counted = _add_devices(counters, devices)
        _add_unexplained(counters, counters.devices.keys() - counted)
    return counters


def device_counters(querier: SourceQuerier, window: datetime.timedelta, pods: LabelNames) -> Counters:
    """The counters of devices that pods, by the labels that name these, can use without holding them.

    The series of unattributed work may not have been kept, nor those of pods.
    """
    counters = Counters()
    key_of = querier.source.labels.device_of
    query = _query(querier, window, key_of, counters.invalid_devices, of_devices=True)
    counted = _add_devices(counters, query, IN_REACH)
    counters.devices = {key: one for key, one in counters.devices.items() if key in counters.gap_s}
    others = query.increase(UNATTRIBUTED, OUT_OF_REACH)
    of_pods = query.increase(POD_BUSY, pods.has_pod, parts=pods.owner)
    for key, device in counters.devices.items():
        known_s = counters.unknown_s[key] + others.get(key, 0.0) + of_pods.get(key, 0.0)
        counters.unknown_s[key] += unexplained_s(device.busy_s, known_s, is_counted=key in counted)
    return counters


def pod_busy(
    querier: SourceQuerier,
    window: datetime.timedelta,
    matchers: Sequence[str],
    *,
    counter: str = POD_BUSY,
    labels: Sequence[str] = (),
) -> str:
    """PromQL: busy seconds of each pod in a window, by its own counters, of each target, or by these labels."""
    use = labels or (*querier.source.labels.use, JOB, TARGET)
    selected = promql.selector(counter, matchers)
    increase = promql.by("max", (*use, *CONTAINER), promql.over("increase", selected, window))
    return promql.by("sum", use, increase)


def unexplained_s(busy_s: float, known_s: float, *, is_counted: bool) -> float:
    """Seconds of a device's work that no series explains, and that therefore anybody may have done.

    Where unattributed work is counted, a small rest is only inexact: counters of pods begin and end in the window.
    """
    left_s = busy_s - known_s
    return left_s if left_s > max(SLACK_S, MAX_INEXACT * busy_s if is_counted else 0.0) else 0.0


def _query(
    querier: SourceQuerier,
    window: datetime.timedelta,
    key_of: Callable[[Mapping[str, str]], K | None],
    invalid: dict[K, set[str]],
    *,
    of_devices: bool,
) -> _CounterQuery[K]:
    shards = querier.shard_plan(window, of_devices=of_devices).shards(querier.max_series(RAW, window))
    return _CounterQuery(querier, window, querier.at, shards, key_of, of_devices, invalid)


def _add_pods(counters: Counters, query: _CounterQuery[UseKey]) -> None:
    for metric, found in ((POD_BUSY, counters.pods), (POD_TRAFFIC, counters.traffic)):
        samples = query.samples(metric)
        for key, busy_s in query.increase(metric).items():
            found[key] = CounterIncrease(busy_s, samples.get(key, 0.0))
    for key, pod in counters.traffic.items():
        where = key[2:]
        counters.known_traffic_s[where] = counters.known_traffic_s.get(where, 0.0) + pod.busy_s
    counters.memory_bytes = query.peak(POD_MEMORY)
    counters.processes = query.peak(POD_PROCESSES)


def _add_devices(
    counters: Counters, query: _CounterQuery[DeviceKey], reasons: str = NOT_A_PODS
) -> Collection[DeviceKey]:
    """Add the counters of devices; those of which unattributed work was counted as long: it is from the start."""
    counters.devices = {key: CounterIncrease(busy_s) for key, busy_s in query.increase(DEVICE_BUSY).items()}
    _set_complete(counters, query)
    counters.gap_s = query.increase(GAPS)
    counters.unknown_s = dict(counters.gap_s)
    unattributed = query.increase(UNATTRIBUTED, reasons)
    for device, seconds in unattributed.items():
        counters.unknown_s[device] = counters.unknown_s.get(device, 0.0) + seconds
    counters.unknown_traffic_s = query.increase(UNATTRIBUTED_TRAFFIC, reasons)
    samples = query.samples(UNATTRIBUTED)
    return {
        key for key, device in counters.devices.items() if samples.get(key, 0.0) >= COMPLETE * device.samples
    }


def _add_unexplained(counters: Counters, devices: Collection[DeviceKey]) -> None:
    """Add the work of devices without all of these series, for example dropped ones, that is no known pod's."""
    known_s = {device: counters.unknown_s.get(device, 0.0) for device in devices}
    for key, pod in counters.pods.items():
        if key[2:] in known_s:
            known_s[key[2:]] += pod.busy_s
    for device, seconds in known_s.items():
        left_s = unexplained_s(counters.devices[device].busy_s, seconds, is_counted=False)
        counters.unknown_s[device] = counters.unknown_s.get(device, 0.0) + left_s


def _set_complete(counters: Counters, query: _CounterQuery[DeviceKey]) -> None:
    """Set which devices have counters, also of gaps, over the whole window, from its begin to its end.

    Targets of a job may follow each other. A part of the window has few of them, so its densest target tells how many
    samples the window can have; else a device that two tell of at the same time would make all others incomplete.
    """
    parts = (query.at - query.window * (1 - EARLY), query.at)
    early, late = (
        dataclasses.replace(query, window=query.window * EARLY, at=at).samples_by_target(DEVICE_BUSY)
        for at in parts
    )
    told = query.samples_by_target(DEVICE_BUSY)
    rates = [(job, count) for _, job, count in told]
    densest = _highest([*rates, *((job, count / EARLY) for _, job, count in (*early, *late))])
    counts = _of_targets(told)
    most = _highest((job, count) for (_, job), count in counts.items())
    ends, gaps = (_of_targets(early), _of_targets(late)), query.samples(GAPS)
    for (device, job), count in counts.items():
        if (increase := counters.devices.get(device)) is not None:
            increase.samples = max(increase.samples, count)
            expected = min(most[job], densest[job])
            least = MIN_EARLY_SHARE * EARLY * min(count, expected)
            is_whole = all(end.get((device, job), 0.0) + 1 >= least for end in ends)
            # The same window may contain one more scrape of one target than of another.
            is_whole &= min(count, gaps.get(device, 0.0)) + 1 >= COMPLETE * expected
            increase.is_complete |= is_whole
