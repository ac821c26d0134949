"""Activity of pods over time: idle, busy or unknown slots of a history, and mean activity of a profile for charts."""

import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from rightsizer.model import History, PodKey, Slot, Usages, WorkLevel, strongest
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import RangeSeries, decode_points
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.exporter_counters import (
    CONTAINER,
    DEVICE_BUSY,
    GAPS,
    IN_REACH,
    NOT_A_PODS,
    OUT_OF_REACH,
    POD_BUSY,
    REASON,
    SLACK_S,
    UNATTRIBUTED,
    pod_busy,
    unexplained_s,
)
from rightsizer.usage.provenance import TARGET_LABELS
from rightsizer.usage.querier import Build, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import COUNT, QueryForm, recorded_selector
from rightsizer.usage.scrape_intervals import (
    HALF,
    CountsByUse,
    by_interval,
    expected_samples,
    highest_counts,
)
from rightsizer.usage.slot_grid import Counts, SlotGrid
from rightsizer.usage.source_metrics import (
    CLUSTER,
    JOB,
    TARGET,
    DeviceKey,
    LabelNames,
    Metric,
    MetricKind,
    SeriesLabels,
    Statistic,
    UseKey,
)

MAX_SLOTS = 400
_SLOT_LENGTHS_S = (300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400)
"""Multiples of the rule interval that people read easily."""

PROFILE_STEPS = 48

SlotsByUse = dict[UseKey, bytearray]
Profiles = dict[PodKey, list[float | None]]
PowerByUse = dict[UseKey, dict[int, float]]
SecondsBySlot = dict[DeviceKey, dict[int, float]]

T = TypeVar("T")

_IDLE, _UNKNOWN = bytes([Slot.IDLE]), bytes([Slot.UNKNOWN])


def activity_histories(
    querier: SourceQuerier,
    pods: Mapping[PodKey, datetime.datetime],
    span: datetime.timedelta,
    *,
    threshold: float,
) -> dict[PodKey, History]:
    """When each of these pods was busy, since its start: with activity, or a board's power, above `threshold`."""
    if not pods:
        return {}
    query = _history_query(querier, pods, span)
    by_use = _slots_by_gauges(query, threshold, querier.source.presence)
    rows = _by_pod(pods, by_use)
    if querier.source.has_counters:
        elsewhere = _by_pod(pods, _correct_by_counters(query, by_use))
        rows = {
            pod: [*(known or [bytearray(_UNKNOWN * query.grid.slots)]), *elsewhere[pod]]
            for pod, known in rows.items()
        }
    return {pod: _history(query.grid, pods[pod], found) for pod, found in rows.items()}


def histories_of_devices(
    querier: SourceQuerier,
    uuids: Iterable[str],
    span: datetime.timedelta,
    *,
    threshold: float,
    pods: LabelNames,
) -> dict[str, History]:
    """When no unknown pod can have worked on devices, by a querier of devices: idle, else unknown.

    Where counters account for all work of a device, the pods' own histories have it, by the labels of `pods`.
    """
    source = dataclasses.replace(querier.source, has_counters=False)
    begins = {(uuid, uuid): querier.at - span for uuid in uuids}
    found = activity_histories(
        dataclasses.replace(querier, source=source, memo={}), begins, span, threshold=threshold
    )
    known: dict[DeviceKey, dict[int, float]] = {}
    if found and querier.source.has_counters:
        row = next(iter(found.values()))
        grid = SlotGrid(row.end, datetime.timedelta(seconds=row.slot_s), len(row.slots))
        known = _seconds_in_reach(querier, grid, [uuid for uuid, _ in found], pods)
    by_board: dict[str, list[Mapping[int, float]]] = {}
    for (uuid, _), seconds in known.items():
        by_board.setdefault(uuid, []).append(seconds)
    return {
        uuid: dataclasses.replace(row, slots=_without_known(row.slots, by_board.get(uuid, ())))
        for (uuid, _), row in found.items()
    }


def _without_known(slots: bytes, unknown_s: Sequence[Mapping[int, float]]) -> bytes:
    """The slots of a device: a busy one is idle if counters account for all of its work, else unknown."""
    found = bytearray(slots)
    for slot, state in enumerate(slots):
        if state == Slot.BUSY:
            seconds = [each.get(slot, math.inf) for each in unknown_s]
            found[slot] = Slot.IDLE if seconds and sum(seconds) <= SLACK_S else Slot.UNKNOWN
    return bytes(found)


def work_levels(
    querier: SourceQuerier,
    pods: Mapping[PodKey, datetime.datetime],
    span: datetime.timedelta,
    *,
    threshold: float,
) -> dict[PodKey, WorkLevel]:
    """When the GPUs of each of these pods moved memory, above `threshold` (0 to 1), and their power then.

    By every source, and the power that says least against a workload: one that is invented must not make it look as
    if it had worked at more.
    """
    if not pods:
        return {}
    query = _history_query(querier, pods, span)
    by_use = _slots_by_gauges(query, threshold, MetricKind.TRAFFIC)
    lowest, highest = _powers_by_slot(query)
    at_work = {key: _highest(row, Slot.BUSY, lowest.get(key, {})) for key, row in by_use.items()}
    quiet = {
        key: _highest(row[: row.rfind(Slot.BUSY) + 1], Slot.IDLE, highest.get(key, {}))
        for key, row in by_use.items()
    }
    levels, quiets = _by_pod(pods, at_work), _by_pod(pods, quiet)
    return {
        pod: WorkLevel(
            _history(query.grid, pods[pod], rows),
            min(filter(None, levels[pod]), default=None),
            max(filter(None, quiets[pod]), default=None),
        )
        for pod, rows in _by_pod(pods, by_use).items()
    }


def _highest(row: bytearray, state: Slot, power: Mapping[int, float]) -> float:
    """The highest power of the slots in this state; 0 if unknown."""
    return max((power.get(slot, 0.0) for slot, each in enumerate(row) if each == state), default=0.0)


def _powers_by_slot(query: "_HistoryQuery") -> tuple[PowerByUse, PowerByUse]:
    """The mean power of each device in each slot: of several sources the lowest, and the highest."""
    lowest: PowerByUse = {}
    highest: PowerByUse = {}
    for metric in query.querier.source.of(MetricKind.POWER):
        for key, points in query.rows(
            functools.partial(query.mean, metric), decode_points, query.shards(metric)
        ):
            low, high = lowest.setdefault(key, {}), highest.setdefault(key, {})
            for instant, value in points:
                slot, watts = query.grid.slot_of(instant), value * query.form.scale(metric)
                is_possible = 0 <= watts <= metric.highest  # which NaN is not
                low[slot] = min(low.get(slot, watts), watts) if is_possible else 0.0
                high[slot] = max(high.get(slot, 0.0), watts if is_possible else 0.0)
    return lowest, highest


def _by_pod(pods: Iterable[PodKey], by_use: Mapping[UseKey, T]) -> dict[PodKey, list[T]]:
    found: dict[PodKey, list[T]] = {pod: [] for pod in sorted(pods)}
    for key, value in by_use.items():
        found[key[:2]].append(value)
    return found


def _history_query(
    querier: SourceQuerier, pods: Iterable[PodKey], span: datetime.timedelta
) -> "_HistoryQuery":
    span_s = span.total_seconds()
    slot_s = next((length for length in _SLOT_LENGTHS_S if span_s / length <= MAX_SLOTS), _SLOT_LENGTHS_S[-1])
    slots = max(1, min(MAX_SLOTS, int(span_s // slot_s)))
    grid = SlotGrid(querier.at, datetime.timedelta(seconds=slot_s), slots)
    return _HistoryQuery(querier, grid, querier.query_form(span), sorted(pods))


def _history(grid: SlotGrid, start: datetime.datetime, devices: Sequence[bytearray]) -> History:
    """A pod's slots since its start: busy if any device was, else unknown if one is."""
    length = max(0, min(grid.slots, int((grid.end - start) / grid.slot)))
    merged = strongest(devices) if devices else _UNKNOWN * grid.slots
    return History(grid.end, grid.slot.total_seconds(), merged[grid.slots - length :])


@dataclasses.dataclass(frozen=True, slots=True)
class _HistoryQuery:
    """Range queries of one step for each slot."""

    querier: SourceQuerier
    grid: SlotGrid
    form: QueryForm
    pods: Sequence[PodKey]

    def rows(
        self, build: Build, parse: Callable[[msgspec.Raw], T], shards: QueryShards
    ) -> Iterator[tuple[UseKey, T]]:
        """The parsed points of the pods' series; series with equal points share them."""
        described = self.described(build, parse, shards)
        return ((labels.key, value) for labels, value in described if labels.key is not None)

    def described(
        self, build: Build, parse: Callable[[msgspec.Raw], T], shards: QueryShards
    ) -> Iterator[tuple[SeriesLabels, T]]:
        """The same, with all labels."""
        wanted = frozenset(self.pods)
        for labels, value in self.querier.range_uses(shards, build, self.grid.steps, parse):
            if labels.key is not None and labels.key[:2] in wanted:
                yield labels, value

    def shards(self, metric: Metric | None = None) -> QueryShards:
        """The pods, by each label that may name them in a metric's series."""
        pod_labels = None if metric is None else self._pod_labels(metric)
        length = self.grid.slots * self.grid.slot
        max_series = min(self.querier.max_series(self.form, length), MAX_POINTS / self.grid.slots)
        return self.querier.pod_shards(self.pods, max_series, pod_labels=pod_labels)

    def _pod_labels(self, metric: Metric) -> Collection[str] | None:
        """The labels that name pods in a recorded metric; None if it is not recorded."""
        if not self.form.is_recorded:
            return None
        answered = self.querier.answered(self.grid.slot)
        known: Collection[str] = ()
        if answered is not None and (metric, Statistic.PEAK) in answered.metrics:
            known = answered.pod_labels
        return {
            label
            for label, _, absent in self.querier.source.labels.pod_labels()
            if label in known or self._exists(metric, (*absent, promql.is_set(label)))
        }

    def _exists(self, metric: Metric, matchers: Sequence[str]) -> bool:
        recorded = recorded_selector([metric], COUNT, (*self.querier.pod_matchers, *matchers))
        ever = promql.over("last_over_time", recorded, self.grid.slots * self.grid.slot)
        return bool(self.querier.prometheus.query(f"count({ever})", self.querier.at))

    def peak(self, metric: Metric, matchers: Sequence[str]) -> str:
        """The peak of each slot."""
        peak = self.form.statistic(metric, Statistic.PEAK, matchers, self.grid.slot)
        return self.form.largest(self.querier.source.labels.described, peak)

    def mean(self, metric: Metric, matchers: Sequence[str]) -> str:
        """The mean of each slot."""
        mean = self.form.statistic(metric, Statistic.MEAN, matchers, self.grid.slot)
        return promql.by("min", self.querier.source.labels.described, mean)

    def count(self, metric: Metric, matchers: Sequence[str]) -> str:
        """The samples of each slot."""
        counted = self.form.count(metric, matchers, self.grid.slot)
        return self.form.largest(self.querier.source.labels.described, counted)

    def classify(self, metric: Metric, threshold: float, text: msgspec.Raw) -> bytes:
        """The slots of a series, from the JSON of its points."""
        scale, highest = self.form.scale(metric), metric.highest
        row = bytearray([Slot.IDLE]) * self.grid.slots
        for instant, value in decode_points(text):
            slot, share = self.grid.slot_of(instant), value * scale
            if 0 <= slot < len(row):
                is_possible = 0 <= share <= highest  # which NaN is not
                row[slot] = (Slot.BUSY if share > threshold else Slot.IDLE) if is_possible else Slot.UNKNOWN
        return bytes(row)


def _slots_by_gauges(query: _HistoryQuery, threshold: float, kind: MetricKind) -> SlotsByUse:
    """BUSY is activity or power by any source, but memory traffic by every one: what says most against a change."""
    rows: dict[UseKey, bytes] = {}
    counts: list[tuple[SeriesLabels, Counts]] = []
    merged = _weakest if kind is MetricKind.TRAFFIC else strongest
    for metric in query.querier.source.of(kind):
        classify, shards = functools.partial(query.classify, metric, threshold), query.shards(metric)
        for key, row in query.rows(functools.partial(query.peak, metric), classify, shards):
            rows[key] = merged((rows[key], row)) if key in rows else row
        counted = functools.partial(query.count, metric)
        counts += query.described(counted, query.grid.counts, shards)
    scrapes = functools.partial(query.querier.scrapes, query.grid)
    return _with_gaps(rows, by_interval(counts, scrapes))


def _weakest(rows: Sequence[bytes]) -> bytes:
    """BUSY only if all are, UNKNOWN if one is."""
    return bytes(Slot.UNKNOWN if Slot.UNKNOWN in each else min(each) for each in zip(*rows, strict=True))


def _with_gaps(rows: Mapping[UseKey, bytes], jobs: Iterable[CountsByUse]) -> SlotsByUse:
    """A slot is unknown unless one of the jobs has at least half of the samples that it should have there."""
    gaps: dict[UseKey, bytes] = {}
    for counts in jobs:
        known = _gaps_by_row({row.tobytes(): row for row in counts.values()})  # most are alike
        for key, row in counts.items():
            own = known[row.tobytes()]
            gaps[key] = bytes(map(min, gaps[key], own)) if key in gaps else own
    return {key: bytearray(strongest((row, gaps.get(key, _UNKNOWN * len(row))))) for key, row in rows.items()}


def _gaps_by_row(rows: Mapping[bytes, Counts]) -> dict[bytes, bytes]:
    """The slots in which each of one job's rows has too few samples are UNKNOWN, the others IDLE."""
    least = [max(HALF * count, 1) for count in expected_samples(highest_counts(rows.values()))]
    found: dict[bytes, bytes] = {}
    for text, row in rows.items():
        missing = (count < enough for count, enough in zip(row, least, strict=True))
        found[text] = bytes(Slot.UNKNOWN if is_missing else Slot.IDLE for is_missing in missing)
    return found


def _correct_by_counters(query: _HistoryQuery, by_use: SlotsByUse) -> SlotsByUse:
    """Counters include work between two samples, and tell a shared GPU's pods apart.

    Returns the slots of devices that the kubelet did not give to the pod: no gauge names it there.
    """
    querier, grid = query.querier, query.grid
    shared = _shared_devices(querier)
    unattributed_s, unknown_s = unknown_seconds(querier, grid, sorted({key[2] for key in by_use}))
    build = functools.partial(pod_busy, querier, grid.slot)
    counted_busy: dict[UseKey, bytearray] = {}  # by any exporter
    elsewhere: SlotsByUse = {}
    for key, points in query.rows(build, decode_points, query.shards()):
        row = by_use[key] if key in by_use else elsewhere.setdefault(key, bytearray(_IDLE * grid.slots))
        is_busy = counted_busy.setdefault(key, bytearray(len(row)))
        device = key[2:]
        for instant, value in points:
            slot = grid.slot_of(instant)
            if not 0 <= slot < len(row):
                continue
            is_known = unknown_s.get(device, {}).get(slot, math.inf) <= SLACK_S
            if not 0 <= value < math.inf:
                row[slot] = row[slot] or Slot.UNKNOWN
            elif value > SLACK_S:
                row[slot], is_busy[slot] = Slot.BUSY, True
            elif row[slot] == Slot.BUSY and device in shared and not is_busy[slot]:
                row[slot] = Slot.IDLE if is_known else Slot.UNKNOWN
    for key, row in by_use.items():
        for slot, seconds in () if key[2:] in shared else unattributed_s.get(key[2:], {}).items():
            if seconds > SLACK_S and row[slot] == Slot.IDLE:
                row[slot] = Slot.BUSY if seconds < math.inf else Slot.UNKNOWN  # no other pod has the device
    return elsewhere


def _shared_devices(querier: SourceQuerier) -> set[DeviceKey]:
    """Devices for which an exporter names several pods."""
    labels = querier.source.labels
    selected = promql.selector(POD_BUSY, querier.pod_matchers)
    uses = promql.by("max", (*labels.use, JOB, TARGET), selected)
    pods = promql.by("count", (*labels.device_key, *TARGET_LABELS), uses)
    samples = querier.prometheus.query(f"{pods} > 1", querier.at)
    return {labels.device_of(one.labels) for one in samples if querier.provenance.accepts_target(one.labels)}


def unknown_seconds(
    querier: SourceQuerier, grid: SlotGrid, uuids: Sequence[str]
) -> tuple[SecondsBySlot, SecondsBySlot]:
    """Seconds of unattributed work of each device, and of that and gaps: there no slot without both counters."""
    gaps = _increases(querier, grid, uuids, GAPS)
    unattributed = _increases(querier, grid, uuids, UNATTRIBUTED, NOT_A_PODS)
    return unattributed, {
        device: {slot: value + gaps[device][slot] for slot, value in row.items() if slot in gaps[device]}
        for device, row in unattributed.items()
        if device in gaps
    }


def _seconds_in_reach(
    querier: SourceQuerier, grid: SlotGrid, uuids: Sequence[str], pods: LabelNames
) -> SecondsBySlot:
    """Those of devices in reach, with what no series explains."""
    query = functools.partial(_increases, querier, grid, uuids)
    found, total, unattributed = query(GAPS), query(DEVICE_BUSY), query(UNATTRIBUTED)
    explained = (
        query(UNATTRIBUTED, IN_REACH),
        query(UNATTRIBUTED, OUT_OF_REACH),
        query(POD_BUSY, pods.has_pod, parts=(*pods.owner, *CONTAINER)),
    )
    for device, row in found.items():
        busy_s, counted = total.get(device, {}), unattributed.get(device, {})
        for slot in row:
            own_s, others_s, pods_s = (each.get(device, {}).get(slot, 0.0) for each in explained)
            row[slot] += own_s
            total_s, known_s = busy_s.get(slot, math.inf), row[slot] + others_s + pods_s
            is_known = max(total_s, known_s) < math.inf
            left_s = unexplained_s(total_s, known_s, is_counted=slot in counted) if is_known else math.inf
            row[slot] += left_s
    return found


def _increases(
    querier: SourceQuerier,
    grid: SlotGrid,
    uuids: Sequence[str],
    metric: str,
    *more: str,
    parts: Sequence[str] = (REASON,),
) -> SecondsBySlot:
    """A counter's increase in each slot, summed over its parts; of exporters the highest, infinite if impossible."""
    labels = querier.source.labels
    target = (*labels.device_key, *TARGET_LABELS)
    found: dict[DeviceKey, dict[int, float]] = {}
    for batch in promql.batches(uuids):
        matchers = (*querier.matchers, *more, promql.one_of(labels.device[0], batch))
        increase = promql.over("increase", promql.selector(metric, matchers), grid.slot)
        total = promql.by("sum", target, promql.by("max", (*target, *parts), increase))
        for series in querier.prometheus.query_range(total, grid.steps):
            if querier.provenance.accepts_target(series.labels):
                row = found.setdefault(labels.device_of(series.labels), {})
                for instant, value in series.points.items():
                    slot = grid.slot_of(instant)
                    row[slot] = max(row.get(slot, 0.0), value if 0 <= value < math.inf else math.inf)
    return found


def activity_profiles(
    querier: SourceQuerier, window: datetime.timedelta, *, usages: Usages, shared: Collection[PodKey]
) -> Profiles:
    """Mean activity of each pod's devices in equal steps of the window, oldest first, 0 to 1; None if unknown.

    The gauge of a shared GPU counts all of its pods. A pod there has a profile only from its own counter, if all of
    its usages are marked as its own.
    """
    query = _ProfileQuery(querier, window, querier.query_form(window))
    own = {
        pod
        for pod in shared
        if usages.get(pod) and all(one.is_own and one.unattributed_s <= SLACK_S for one in usages[pod])
    }
    found = {pod: row for pod, row in query.by_gauges().items() if pod not in shared}
    if own:
        found |= {pod: row for pod, row in query.by_counters().items() if pod in own}
    return dict(sorted(found.items()))


@dataclasses.dataclass(frozen=True, slots=True)
class _ProfileQuery:
    querier: SourceQuerier
    window: datetime.timedelta
    form: QueryForm

    @property
    def _step(self) -> datetime.timedelta:
        return self.window / PROFILE_STEPS

    def by_gauges(self) -> Profiles:
        found = Profiles()
        for metric in self.querier.source.of(MetricKind.ACTIVITY):

            def build(matchers: Sequence[str], metric: Metric = metric) -> str:
                return self.form.statistic(metric, Statistic.MEAN, matchers, self._step)

            self._add(found, build, self.form.scale(metric))
        return found

    def by_counters(self) -> Profiles:
        """An increase is extrapolated, so it may exceed its step."""
        found, step_s = Profiles(), self._step.total_seconds()

        def build(matchers: Sequence[str]) -> str:
            return f"clamp_max({pod_busy(self.querier, self._step, matchers)}, {step_s!r})"

        self._add(found, build, 1 / step_s)
        return found

    def _add(self, found: Profiles, build: Build, scale: float) -> None:
        """Add the mean of each pod's devices; of several values the highest."""
        querier, grid = self.querier, SlotGrid(self.querier.at, self._step, PROFILE_STEPS)
        plan = querier.shard_plan(self.window)
        size = min(querier.max_series(self.form, self._step), querier.series_within(PROFILE_STEPS))

        def query(matchers: Sequence[str]) -> list[RangeSeries]:
            expression = build((*querier.pod_matchers, *matchers))
            mean = promql.by("avg", (*querier.source.labels.owner, JOB, TARGET), expression)
            return querier.prometheus.query_range(mean, grid.steps)

        for result in plan.run(plan.shards(size), query):
            for series in querier.of_one_cluster(result, lambda one: one.labels.get(CLUSTER, "")):
                pod = querier.source.labels.pod_of(series.labels)
                target = (series.labels.get(name, "") for name in (JOB, TARGET))
                if pod is not None and querier.provenance.accepts(pod, *target):
                    row = found.setdefault(pod, [None] * PROFILE_STEPS)
                    for instant, value in series.points.items():
                        step, share = grid.slot_of(instant), value * scale
                        if 0 <= step < PROFILE_STEPS and 0 <= share <= 1:
                            row[step] = max(share, row[step] or 0.0)
