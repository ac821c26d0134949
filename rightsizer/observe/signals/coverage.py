"""For which part of a window activity was recorded: slot by slot, against what its scrape job delivers."""

import array
import dataclasses
import datetime
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from rightsizer.observe import promql
from rightsizer.observe.prometheus import Track
from rightsizer.observe.sharding import MAX_POINTS, Territory
from rightsizer.observe.signals.asking import Asker, require_one_cluster
from rightsizer.observe.signals.labels import JOB, Key
from rightsizer.observe.signals.quantities import Kind
from rightsizer.observe.signals.rules import TILE, Reading, Recorded

SAMPLES_PER_SLOT = 20
"""So many samples make a slot's count steady: one more or less is 5 %."""

STEADY = 0.9

MAX_SLOTS = 96
"""A quarter of an hour each in a day."""

MIN_SLOTS = 2
"""Or all samples could be from the window's last minutes, as of an exporter that came just now."""

HALF = 0.5

Ints: TypeAlias = "array.array[int]"
Floats: TypeAlias = "array.array[float]"
Counts = dict[Key, Ints]


@dataclasses.dataclass(slots=True)
class Cover:
    """What is on record of one pod's use of one device.

    Attributes:
        shares: How much of each slot is, 0 to 1, oldest first.
        samples_expected: Samples that the whole window holds, by the densest series of the job.
    """

    shares: Floats
    samples_expected: int

    @property
    def coverage(self) -> float:
        """Share of the window."""
        return sum(self.shares) / len(self.shares)

    @property
    def holes(self) -> int:
        """Slots without any sample."""
        return self.shares.count(0)

    @property
    def is_fresh(self) -> bool:
        """Whether half of the last slot's samples are there."""
        return self.shares[-1] >= HALF


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """A window cut into slots, the last of which ends with it."""

    end: datetime.datetime
    slot: datetime.timedelta
    slots: int

    def column(self, track: Track) -> Ints:
        """The track's counts, oldest slot first, 0 where Prometheus gave none."""
        if len(track.points) == self.slots and all(map(math.isfinite, track.points.values())):
            return array.array("I", map(int, track.points.values()))
        counts = array.array("I", bytes(4 * self.slots))
        for instant, value in track.points.items():
            back = round((self.end.timestamp() - instant) / self.slot.total_seconds())
            if 0 <= back < self.slots and math.isfinite(value):
                counts[self.slots - 1 - back] = int(value)
        return counts


def cover(
    asker: Asker, reading: Reading, territory: Territory, *, window: datetime.timedelta, at: datetime.datetime
) -> dict[Key, Cover]:
    """What is on record of everybody's activity.

    Jobs are counted apart, since each has an interval of its own; what several of them recorded is put together.
    """
    per_series = asker.samples_per_series(reading, window, at)
    densest = _densest(asker, reading, territory, window=window, at=at, per_series=per_series)
    covers: dict[Key, Cover] = {}
    if not densest:
        return covers
    slots = max(MIN_SLOTS, min(MAX_SLOTS, int(max(densest.values())) // SAMPLES_PER_SLOT))
    grids: dict[Grid, list[str]] = {_grid(slots, reading, window, at): []}
    while grids:
        grid, jobs = grids.popitem()
        only = (promql.one_of(JOB, jobs),) if jobs else ()
        counts = _counts(asker, reading, territory, grid=grid, only=only, per_series=per_series)
        for job in sorted(counts):
            mine = counts.pop(job)
            fewer = _coarser(mine, grid, reading, window) if not jobs else grid
            if fewer != grid:
                grids.setdefault(fewer, []).append(job)
                continue
            for key, shares in _shares(mine):
                _put(covers, key, Cover(shares, round(densest.get(job, 0.0))))
    return covers


def _coarser(counts: Counts, grid: Grid, reading: Reading, window: datetime.timedelta) -> Grid:
    """The grid for a job that is scraped so seldom that its slots' counts are not steady; the same for others."""
    fullest = max(max(row) for row in counts.values())
    if fullest >= STEADY * SAMPLES_PER_SLOT:
        return grid
    slots = max(MIN_SLOTS, grid.slots * fullest // SAMPLES_PER_SLOT)
    return _grid(min(slots, grid.slots), reading, window, grid.end)


def _densest(
    asker: Asker,
    reading: Reading,
    territory: Territory,
    *,
    window: datetime.timedelta,
    at: datetime.datetime,
    per_series: float,
) -> dict[str, float]:
    """Samples of each job's densest series."""
    shards = territory.shards(asker.most(per_series))
    densest: dict[str, float] = {}
    for quantity in asker.source.of(Kind.ACTIVITY):
        for answer in territory.ask(
            shards,
            lambda matchers, quantity=quantity: asker.prometheus.query(  # type: ignore[misc]
                promql.by("max", [JOB], reading.count(quantity, (*asker.owned, *matchers), window)), at
            ),
        ):
            for sample in answer:
                job = sample.labels.get(JOB, "")
                densest[job] = max(densest.get(job, 0.0), sample.value)
    return densest


def _grid(slots: int, reading: Reading, window: datetime.timedelta, at: datetime.datetime) -> Grid:
    if isinstance(reading, Recorded):
        # A slot of whole tiles: the last ones' samples then belong to one slot each.
        tiles = math.ceil(window / TILE / slots)
        return Grid(at, tiles * TILE, max(1, int(window / TILE) // tiles))
    # In whole seconds: the last step of the range must fall on its end, or the newest slot would seem empty.
    return Grid(at, datetime.timedelta(seconds=max(1, round(window.total_seconds() / slots))), slots)


def _counts(
    asker: Asker,
    reading: Reading,
    territory: Territory,
    *,
    grid: Grid,
    only: tuple[str, ...],
    per_series: float,
) -> dict[str, Counts]:
    """Of each job the samples in each slot; where several metrics tell of activity, the most of any."""
    shards = territory.shards(min(asker.most(per_series), MAX_POINTS / grid.slots))
    counts: dict[str, Counts] = {}
    labels = (*asker.source.labels.use, JOB)
    for quantity in asker.source.of(Kind.ACTIVITY):
        for tracks in territory.ask(
            shards,
            lambda matchers, quantity=quantity: asker.prometheus.query_range(  # type: ignore[misc]
                promql.by(
                    "max", labels, reading.count(quantity, (*asker.owned, *only, *matchers), grid.slot)
                ),
                start=grid.end - (grid.slots - 1) * grid.slot,
                end=grid.end,
                step_s=grid.slot.total_seconds(),
            ),
        ):
            require_one_cluster(track.labels for track in tracks)
            for track in tracks:
                key = asker.source.labels.key_of(track.labels)
                if key is not None:
                    _most(counts.setdefault(track.labels.get(JOB, ""), {}), key, grid.column(track))
    return counts


def _most(counts: Counts, key: Key, column: Ints) -> None:
    before = counts.get(key)
    counts[key] = column if before is None else array.array("I", map(max, before, column))


def _shares(counts: Mapping[Key, Sequence[int]]) -> Iterator[tuple[Key, Floats]]:
    """How much of each slot each key was recorded, 0 to 1.

    A slot is whole where it holds as many samples as the job's densest series has in it, and at least half of the
    densest slot of the whole window: a change of the scrape interval is no gap, an outage of everything is one.
    """
    densest = _columns(counts.values())
    least = max(densest, default=0) / 2
    # No count is above the densest, so no share is above one; of a slot in which nobody has any, all have none.
    expected = [max(value, least) or 1 for value in densest]
    for key, row in counts.items():
        yield key, array.array("f", map(operator.truediv, row, expected))


def _columns(rows: Iterable[Sequence[int]]) -> list[int]:
    densest: list[int] = []
    for row in rows:
        densest = list(map(max, densest, row)) if densest else list(row)
    return densest


def _put(covers: dict[Key, Cover], key: Key, cover_: Cover) -> None:
    """Beside what another job recorded: slot by slot where the slots are the same, else the better one."""
    before = covers.get(key)
    if before is None:
        covers[key] = cover_
    elif len(before.shares) == len(cover_.shares):
        shares = array.array("f", map(max, before.shares, cover_.shares))
        covers[key] = Cover(shares, max(before.samples_expected, cover_.samples_expected))
    elif cover_.coverage > before.coverage:
        covers[key] = cover_
