"""When pods were at work, slot by slot, as far back as is asked for: only for pods of which it matters."""

import array
import dataclasses
import datetime
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from rightsizer.model import History, PodKey, Slot, strongest
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage import counter_meaning
from rightsizer.usage.counter_meaning import DeviceKey
from rightsizer.usage.exporter_counters import CONTAINER, REASON
from rightsizer.usage.pods_by_name import of_pods
from rightsizer.usage.quantities import Metric, MetricKind, Statistic
from rightsizer.usage.querier import QueryShards, SourceQuerier, require_one_cluster_name
from rightsizer.usage.recording_rules import COUNT, QueryForm, RecordedQueries, recorded
from rightsizer.usage.sample_coverage import HALF, Ints, SlotGrid
from rightsizer.usage.series_labels import UseKey, first

MAX_SLOTS = 400
_LENGTHS_S = (300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400)
"""Slots of whole tiles of the recording rules, of lengths that people say."""

States = dict[UseKey, bytearray]

T = TypeVar("T")

_IDLE, _UNKNOWN = bytes([Slot.IDLE]), bytes([Slot.UNKNOWN])


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """One round of questions about pods, cut into as many queries as it takes."""

    asker: SourceQuerier
    grid: SlotGrid
    reading: QueryForm
    pods: Sequence[PodKey]
    most: float

    def rows(
        self, build: Callable[[Sequence[str]], str], read: Callable[[msgspec.Raw], T], places: QueryShards
    ) -> Iterator[tuple[UseKey, T]]:
        """A range query of one point for each slot, over all forms in which series name pods; what points stand for.

        What is read is shared among those whose points are the same.
        """
        wanted, values = frozenset(self.pods), ParseCache(read)
        for territory, shards in places:
            for answer in territory.ask(
                shards,
                lambda matchers: self.asker.prometheus.query_range_as(
                    build(matchers), self.grid.span, labels=self.asker.described, values=values
                ),
            ):
                require_one_cluster_name({described.cluster for described, _ in answer})
                for described, value in answer:
                    if described.key is not None and described.key[:2] in wanted:
                        yield described.key, value

    def places(self, quantity: Metric | None = None) -> QueryShards:
        """The pods, in each form in which a metric's series may name them."""
        forms = None if quantity is None else self._forms(quantity)
        return list(of_pods(self.asker, self.pods, self.grid.end, self.most, forms=forms))

    def _forms(self, quantity: Metric) -> Collection[str] | None:
        """The labels that name pods in anything that is on record of a metric; None where that is not recorded."""
        if not isinstance(self.reading, RecordedQueries):
            return None
        answered = self.asker.answered(self.grid.slot, self.grid.end)
        is_known = answered is not None and (quantity, Statistic.PEAK) in answered.quantities
        known = answered.forms if answered is not None and is_known else frozenset()
        return {
            label
            for label, _, absent in self.asker.source.labels.forms()
            if label in known or self._has(quantity, (*absent, f"{label}!=''"))
        }

    def _has(self, quantity: Metric, matchers: Sequence[str]) -> bool:
        kept = recorded(quantity, COUNT, (*self.asker.owned, *matchers))
        ever = promql.over("last_over_time", kept, self.grid.slots * self.grid.slot)
        return bool(self.asker.prometheus.query(f"count({ever})", self.grid.end))

    def place(self, instant: float) -> int:
        """Which slot a point is about."""
        back = round((self.grid.end.timestamp() - instant) / self.grid.slot.total_seconds())
        return self.grid.slots - 1 - back


def histories(
    asker: SourceQuerier,
    pods: Mapping[PodKey, datetime.datetime],
    span: datetime.timedelta,
    at: datetime.datetime,
    *,
    threshold: float,
) -> dict[PodKey, History]:
    """When each of these pods was at work.

    Args:
        asker: The source.
        pods: With the instant from which on each has been itself; slots before it are left out.
        span: How far to look back.
        at: The end.
        threshold: Activity above this (0 to 1) counts as work.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    if not pods:
        return {}
    slot_s = next(
        (length for length in _LENGTHS_S if span.total_seconds() / length <= MAX_SLOTS), _LENGTHS_S[-1]
    )
    slots = max(1, min(MAX_SLOTS, int(span.total_seconds() // slot_s)))
    grid = SlotGrid(at, datetime.timedelta(seconds=slot_s), slots)
    reading = asker.reading(span, at)
    per_series = asker.samples_per_series(reading, span, at)
    most = min(asker.most(per_series), MAX_POINTS / slots)
    asked = _Asked(asker, grid, reading, sorted(pods), most)
    states = _states(asked, threshold)
    _correct(asked, states)
    return {pod: _merged(grid, pods[pod], devices) for pod, devices in _grouped(pods, states).items()}


def _states(asked: _Asked, threshold: float) -> States:
    """Each device's slots, by its gauges."""
    states: dict[UseKey, bytes] = {}
    counts: dict[UseKey, Ints] = {}
    for quantity in asked.asker.source.of(MetricKind.ACTIVITY):
        judge, places = functools.partial(_judged, asked, quantity, threshold), asked.places(quantity)
        for key, row in asked.rows(_statistic(asked, quantity), judge, places):
            states[key] = strongest((states[key], row)) if key in states else row
        for key, column in asked.rows(_count(asked, quantity), asked.grid.read, places):
            before = counts.get(key)
            counts[key] = column if before is None else array.array("I", map(max, before, column))
    return _left_out(states, counts)


def _statistic(asked: _Asked, quantity: Metric) -> Callable[[Sequence[str]], str]:
    def build(matchers: Sequence[str]) -> str:
        everything = (*asked.asker.owned, *matchers)
        peak = asked.reading.statistic(quantity, Statistic.PEAK, everything, asked.grid.slot)
        return promql.by("max", asked.asker.source.labels.described, peak)

    return build


def _count(asked: _Asked, quantity: Metric) -> Callable[[Sequence[str]], str]:
    def build(matchers: Sequence[str]) -> str:
        counted = asked.reading.count(quantity, (*asked.asker.owned, *matchers), asked.grid.slot)
        return promql.by("max", asked.asker.source.labels.described, counted)

    return build


def _judged(asked: _Asked, quantity: Metric, threshold: float, text: msgspec.Raw) -> bytes:
    """What the points of one series say of each slot."""
    scale, highest = asked.reading.scale(quantity), quantity.highest
    row = bytearray([Slot.IDLE]) * asked.grid.slots
    for instant, value in msgspec.json.decode(text, type=list[tuple[float, str]]):
        place, share = asked.place(instant), float(value) * scale
        if 0 <= place < len(row):
            is_possible = 0 <= share <= highest  # which NaN is not
            row[place] = (Slot.BUSY if share > threshold else Slot.IDLE) if is_possible else Slot.UNKNOWN
    return bytes(row)


def _left_out(states: Mapping[UseKey, bytes], counts: Mapping[UseKey, Ints]) -> States:
    """Nothing is known of a slot with less than half of the samples that the densest series has, then or ever."""
    densest: list[int] = []
    for row in {row.tobytes(): row for row in counts.values()}.values():
        densest = list(map(max, densest, row)) if densest else list(row)
    ever = max(densest, default=0)
    least = [max(HALF * max(most, HALF * ever), 1) for most in densest]
    unknown: dict[bytes, bytes] = {}  # most are alike
    found: States = {}
    for key, state in states.items():
        counted = counts.get(key)
        if counted is None:
            found[key] = bytearray(state.replace(_IDLE, _UNKNOWN))
            continue
        text = counted.tobytes()
        if text not in unknown:
            missing = (count < enough for count, enough in zip(counted, least, strict=True))
            unknown[text] = bytes(Slot.UNKNOWN if lacks else Slot.IDLE for lacks in missing)
        found[key] = bytearray(strongest((state, unknown[text])))
    return found


def _correct(asked: _Asked, states: States) -> None:
    """By the counters of our exporter: they count work between two samples, and each pod's own on a shared GPU."""
    asker = asked.asker
    if not asker.source.has_counters or not states:
        return
    labels = asker.source.labels
    shared = _shared(asked)
    doubts = _doubts(asked, sorted({key[2] for key in states}))

    def risen(matchers: Sequence[str]) -> str:
        selected = promql.selector(counter_meaning.POD_BUSY, (*asker.owned, *matchers))
        inner = promql.by(
            "max", (*labels.use, *CONTAINER), promql.over("increase", selected, asked.grid.slot)
        )
        return promql.by("sum", labels.use, inner)

    for key, points in asked.rows(risen, _points, asked.places()):
        row = states.get(key)
        for instant, value in points if row is not None else ():
            place = asked.place(instant)
            if row is None or not 0 <= place < len(row):
                continue
            if value > counter_meaning.SLACK_S:
                row[place] = Slot.BUSY
            elif (
                key[2:] in shared and doubts.get(key[2:], {}).get(place, math.inf) <= counter_meaning.SLACK_S
            ):
                row[place] = Slot.IDLE if row[place] == Slot.BUSY else row[place]


def _points(text: msgspec.Raw) -> list[tuple[float, float]]:
    return [
        (instant, float(value)) for instant, value in msgspec.json.decode(text, type=list[tuple[float, str]])
    ]


def _shared(asked: _Asked) -> set[DeviceKey]:
    """Devices on which several pods are."""
    asker, labels = asked.asker, asked.asker.source.labels
    device = (*labels.device, *labels.instance)
    selected = promql.selector(counter_meaning.POD_BUSY, asker.owned)
    held = promql.by("count", device, promql.by("max", labels.use, selected))
    found = asker.prometheus.query(f"{held} > 1", asked.grid.end)
    return {(first(one.labels, labels.device), first(one.labels, labels.instance)) for one in found}


def _doubts(asked: _Asked, uuids: Sequence[str]) -> dict[DeviceKey, dict[int, float]]:
    """For each device and slot, seconds of work that may be anybody's; no slot where that is not on record."""
    asker, labels = asked.asker, asked.asker.source.labels
    device = (*labels.device, *labels.instance)
    doubts: dict[DeviceKey, dict[int, float]] = {}
    reasons = f"{REASON}!~{promql.quoted('|'.join(counter_meaning.NOBODYS))}"
    # The gaps come with every device and make the row; unattributed work is added where there is any.
    for metric, more in ((counter_meaning.GAPS, ()), (counter_meaning.UNATTRIBUTED, (reasons,))):
        for batch in promql.batches(uuids):
            matchers = (*asker.given, *more, promql.one_of(labels.device[0], batch))
            risen = promql.over("increase", promql.selector(metric, matchers), asked.grid.slot)
            inner = promql.by("max", (*device, REASON), risen)
            for track in asker.prometheus.query_range(
                promql.by("sum", device, inner),
                asked.grid.span,
            ):
                key = (first(track.labels, labels.device), first(track.labels, labels.instance))
                row = doubts.setdefault(key, {})
                for instant, value in track.points.items():
                    row[asked.place(instant)] = row.get(asked.place(instant), 0.0) + value
    return doubts


def _grouped(pods: Mapping[PodKey, datetime.datetime], states: States) -> dict[PodKey, list[bytearray]]:
    grouped: dict[PodKey, list[bytearray]] = {pod: [] for pod in sorted(pods)}
    for key, row in states.items():
        grouped[key[0], key[1]].append(row)
    return grouped


def _merged(grid: SlotGrid, start: datetime.datetime, devices: Sequence[bytearray]) -> History:
    """One pod's slots since it began: busy where any device was, else unknown where one is."""
    length = max(0, min(grid.slots, int((grid.end - start) / grid.slot)))
    merged = strongest(devices) if devices else _UNKNOWN * grid.slots
    return History(grid.end, grid.slot.total_seconds(), merged[grid.slots - length :])
