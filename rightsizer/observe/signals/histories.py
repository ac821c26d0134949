"""When pods were at work, slot by slot, as far back as is asked for: only for pods of which it matters."""

import array
import dataclasses
import datetime
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.model import History, PodKey, Slot
from rightsizer.observe import promql
from rightsizer.observe.prometheus import Track
from rightsizer.observe.sharding import MAX_POINTS
from rightsizer.observe.signals import own
from rightsizer.observe.signals.asking import Asker, require_one_cluster
from rightsizer.observe.signals.bypods import of_pods
from rightsizer.observe.signals.counters import CONTAINER, REASON
from rightsizer.observe.signals.coverage import HALF, Grid, Ints
from rightsizer.observe.signals.labels import Key, first
from rightsizer.observe.signals.own import DeviceKey
from rightsizer.observe.signals.quantities import Kind, Quantity, Statistic
from rightsizer.observe.signals.rules import Reading

MAX_SLOTS = 400
_LENGTHS_S = (300, 600, 900, 1200, 1800, 3600, 7200, 10_800, 14_400, 21_600, 43_200, 86_400)
"""Slots of whole tiles of the recording rules, of lengths that people say."""

States = dict[Key, bytearray]


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """One round of questions about pods, cut into as many queries as it takes."""

    asker: Asker
    grid: Grid
    reading: Reading
    pods: Sequence[PodKey]
    most: float

    def tracks(self, build: Callable[[Sequence[str]], str]) -> Iterator[Track]:
        """A range query of one point for each slot, over all forms in which series name pods."""
        step_s = self.grid.slot.total_seconds()
        start = self.grid.end - (self.grid.slots - 1) * self.grid.slot
        for territory, shards in of_pods(self.asker, self.pods, self.grid.end, self.most):
            for answer in territory.ask(
                shards,
                lambda matchers: self.asker.prometheus.query_range(
                    build(matchers), start=start, end=self.grid.end, step_s=step_s
                ),
            ):
                require_one_cluster(track.labels for track in answer)
                yield from answer

    def place(self, instant: float) -> int:
        """Which slot a point is about."""
        back = round((self.grid.end.timestamp() - instant) / self.grid.slot.total_seconds())
        return self.grid.slots - 1 - back


def histories(
    asker: Asker,
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
    grid = Grid(at, datetime.timedelta(seconds=slot_s), slots)
    reading = asker.reading(span, at)
    per_series = asker.samples_per_series(reading, span, at)
    most = min(asker.most(per_series), MAX_POINTS / slots)
    asked = _Asked(asker, grid, reading, sorted(pods), most)
    states = _states(asked, pods, threshold)
    _correct(asked, pods, states)
    return {pod: _merged(grid, pods[pod], devices) for pod, devices in _grouped(pods, states).items()}


def _states(asked: _Asked, pods: Mapping[PodKey, datetime.datetime], threshold: float) -> States:
    """Each device's slots, by its gauges."""
    states: States = {}
    counts: dict[Key, Ints] = {}
    for quantity in asked.asker.source.of(Kind.ACTIVITY):
        for key, track in _keyed(asked, pods, asked.tracks(_statistic(asked, quantity))):
            row = states.setdefault(key, bytearray([Slot.IDLE]) * asked.grid.slots)
            _judge(asked, row, track, quantity, threshold)
        for key, track in _keyed(asked, pods, asked.tracks(_count(asked, quantity))):
            column = asked.grid.column(track)
            before = counts.get(key)
            counts[key] = column if before is None else array.array("I", map(max, before, column))
    _leave_out(states, counts)
    return states


def _statistic(asked: _Asked, quantity: Quantity) -> Callable[[Sequence[str]], str]:
    def build(matchers: Sequence[str]) -> str:
        everything = (*asked.asker.owned, *matchers)
        peak = asked.reading.statistic(quantity, Statistic.PEAK, everything, asked.grid.slot)
        return promql.by("max", asked.asker.source.labels.use, peak)

    return build


def _count(asked: _Asked, quantity: Quantity) -> Callable[[Sequence[str]], str]:
    def build(matchers: Sequence[str]) -> str:
        counted = asked.reading.count(quantity, (*asked.asker.owned, *matchers), asked.grid.slot)
        return promql.by("max", asked.asker.source.labels.use, counted)

    return build


def _keyed(
    asked: _Asked, pods: Mapping[PodKey, datetime.datetime], tracks: Iterator[Track]
) -> Iterator[tuple[Key, Track]]:
    for track in tracks:
        key = asked.asker.source.labels.key_of(track.labels)
        if key is not None and key[:2] in pods:
            yield key, track


def _judge(asked: _Asked, row: bytearray, track: Track, quantity: Quantity, threshold: float) -> None:
    scale = asked.reading.scale(quantity)
    for instant, value in track.points.items():
        place, share = asked.place(instant), value * scale
        if not 0 <= place < len(row) or row[place] == Slot.BUSY:
            continue
        if not math.isfinite(share) or not 0 <= share <= quantity.highest:
            row[place] = Slot.UNKNOWN
        elif share > threshold:
            row[place] = Slot.BUSY


def _leave_out(states: States, counts: Mapping[Key, Sequence[int]]) -> None:
    """Nothing is known of a slot with less than half of the samples that the densest series has, then or ever."""
    columns: list[int] = []
    for row in counts.values():
        columns = list(map(max, columns, row)) if columns else list(row)
    least = max(columns, default=0) * HALF
    for key, row in states.items():
        for place, count in enumerate(counts.get(key, bytes(len(row)))):
            if row[place] == Slot.IDLE and (not count or count < HALF * max(columns[place], least)):
                row[place] = Slot.UNKNOWN


def _correct(asked: _Asked, pods: Mapping[PodKey, datetime.datetime], states: States) -> None:
    """By our exporter's counters: work between two samples is work, and on a shared GPU each pod has its own."""
    asker = asked.asker
    if not asker.source.has_counters or not states:
        return
    labels = asker.source.labels
    shared = _shared(asked)
    doubts = _doubts(asked, sorted({key[2] for key in states}))

    def risen(matchers: Sequence[str]) -> str:
        selected = promql.selector(own.POD_BUSY, (*asker.owned, *matchers))
        inner = promql.by(
            "max", (*labels.use, *CONTAINER), promql.over("increase", selected, asked.grid.slot)
        )
        return promql.by("sum", labels.use, inner)

    for key, track in _keyed(asked, pods, asked.tracks(risen)):
        row = states.get(key)
        for instant, value in track.points.items() if row is not None else ():
            place = asked.place(instant)
            if row is None or not 0 <= place < len(row):
                continue
            if value > own.SLACK_S:
                row[place] = Slot.BUSY
            elif key[2:] in shared and doubts.get(key[2:], {}).get(place, math.inf) <= own.SLACK_S:
                row[place] = Slot.IDLE if row[place] == Slot.BUSY else row[place]


def _shared(asked: _Asked) -> set[DeviceKey]:
    """Devices on which several pods are."""
    asker, labels = asked.asker, asked.asker.source.labels
    device = (*labels.device, *labels.instance)
    selected = promql.selector(own.POD_BUSY, asker.owned)
    held = promql.by("count", device, promql.by("max", labels.use, selected))
    found = asker.prometheus.query(f"{held} > 1", asked.grid.end)
    return {(first(one.labels, labels.device), first(one.labels, labels.instance)) for one in found}


def _doubts(asked: _Asked, uuids: Sequence[str]) -> dict[DeviceKey, dict[int, float]]:
    """For each device and slot, seconds of work that may be anybody's; no slot where that is not on record."""
    asker, labels = asked.asker, asked.asker.source.labels
    device = (*labels.device, *labels.instance)
    doubts: dict[DeviceKey, dict[int, float]] = {}
    reasons = f"{REASON}!~{promql.quoted('|'.join(own.NOBODYS))}"
    # The gaps come with every device and make the row; unattributed work is added where there is any.
    for metric, more in ((own.GAPS, ()), (own.UNATTRIBUTED, (reasons,))):
        for batch in promql.batches(uuids):
            matchers = (*asker.given, *more, promql.one_of(labels.device[0], batch))
            risen = promql.over("increase", promql.selector(metric, matchers), asked.grid.slot)
            inner = promql.by("max", (*device, REASON), risen)
            for track in asker.prometheus.query_range(
                promql.by("sum", device, inner),
                start=asked.grid.end - (asked.grid.slots - 1) * asked.grid.slot,
                end=asked.grid.end,
                step_s=asked.grid.slot.total_seconds(),
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


def _merged(grid: Grid, start: datetime.datetime, devices: Sequence[bytearray]) -> History:
    """One pod's slots since it began: busy where any device was, else unknown where one is."""
    length = max(0, min(grid.slots, int((grid.end - start) / grid.slot)))
    merged = bytearray()
    for place in range(grid.slots - length, grid.slots):
        seen = {row[place] for row in devices} or {int(Slot.UNKNOWN)}
        merged.append(Slot.BUSY if Slot.BUSY in seen else Slot.UNKNOWN if Slot.UNKNOWN in seen else Slot.IDLE)
    return History(grid.end, grid.slot.total_seconds(), bytes(merged))
