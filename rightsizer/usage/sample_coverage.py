"""For which part of a window activity was recorded: slot by slot, against what its scrape job delivers."""

import array
import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange, RangeSeries, Sample
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.full_coverage import (
    NONE,
    STEADY,
    JobCoverage,
    SlotCapacity,
    coverage_by_job,
    pods_of,
    slot_capacity,
)
from rightsizer.usage.pods_by_name import of_pods
from rightsizer.usage.quantities import Metric, MetricKind
from rightsizer.usage.querier import QueryShards, SourceQuerier, require_one_cluster_name
from rightsizer.usage.recording_rules import RULE_INTERVAL, QueryForm, RecordedQueries
from rightsizer.usage.series_labels import JOB, SeriesLabels, UseKey

SAMPLES_PER_SLOT = 20
"""So many samples make a slot's count steady: one more or less is 5 %."""

MAX_SLOTS = 96
"""A quarter of an hour each in a day."""

MIN_SLOTS = 2
"""Or all samples could be from the window's last minutes, as of an exporter that came just now."""

HALF = 0.5

MAX_SUSPECT_SHARE = 0.05
"""Where gaps may be in more of the series than this, all are asked slot by slot."""

Ints: TypeAlias = "array.array[int]"
Floats: TypeAlias = "array.array[float]"
Counts = dict[UseKey, Ints]


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """What is on record of one pod's use of one device.

    Attributes:
        shares: How much of each slot is, 0 to 1, oldest first.
        samples_expected: Samples that the whole window holds, by the densest series of the job.
        coverage: Share of the window.
        holes: Slots without any sample.
        is_fresh: Whether half of the last slot's samples are there.
    """

    shares: Sequence[float]
    samples_expected: int | None
    coverage: float
    holes: int
    is_fresh: bool


NOTHING = Coverage((), None, 0.0, 0, is_fresh=False)


def covered(shares: Sequence[float], samples_expected: int | None) -> Coverage:
    """What follows from the shares."""
    return Coverage(
        shares,
        samples_expected,
        coverage=sum(shares) / len(shares),
        holes=sum([share == 0 for share in shares]),
        is_fresh=shares[-1] >= HALF,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SlotGrid:
    """A window cut into slots, the last of which ends with it."""

    end: datetime.datetime
    slot: datetime.timedelta
    slots: int

    @property
    def span(self) -> QueryRange:
        """One instant for each slot, at its end."""
        return QueryRange(self.end - (self.slots - 1) * self.slot, self.end, self.slot.total_seconds())

    def column(self, track: RangeSeries) -> Ints:
        """The track's counts, oldest slot first, 0 where Prometheus gave none."""
        return self.counts(track.points)

    def read(self, text: msgspec.Raw) -> Ints:
        """The same of points as they stand in an answer."""
        points = msgspec.json.decode(text, type=list[tuple[float, str]])
        return self.counts({instant: float(value) for instant, value in points})

    def counts(self, points: Mapping[float, float]) -> Ints:
        """The same of points."""
        if len(points) == self.slots and all(map(math.isfinite, points.values())):
            return array.array("I", map(int, points.values()))
        counts = array.array("I", bytes(4 * self.slots))
        for instant, value in points.items():
            back = round((self.end.timestamp() - instant) / self.slot.total_seconds())
            if 0 <= back < self.slots and math.isfinite(value):
                counts[self.slots - 1 - back] = int(value)
        return counts


def cover(
    asker: SourceQuerier,
    reading: QueryForm,
    places: QueryShards,
    *,
    window: datetime.timedelta,
    at: datetime.datetime,
    of: Collection[PodKey] | None = None,
) -> dict[UseKey, Coverage]:
    """What is on record of everybody's activity, or of that of these pods, where `can_be_narrow`.

    Jobs are counted apart, since each has an interval of its own; what several of them recorded is put together.
    """
    coverage = _Coverage(asker, reading, places, window, at)
    if of is not None:
        return coverage.of_these(of)
    return (
        coverage.of_some()
        if isinstance(reading, RecordedQueries)
        else coverage.of_all(coverage.densest(places))
    )


def can_be_narrow(asker: SourceQuerier, reading: QueryForm, at: datetime.datetime) -> bool:
    """Whether some pods can be asked about alone: somebody of each job is known by whom to measure them."""
    return (
        isinstance(reading, RecordedQueries)
        and bool(_whole_pods(asker, at))
        and not asker.source.has_counters
    )


def _whole_pods(asker: SourceQuerier, at: datetime.datetime) -> set[PodKey]:
    """A pod of each job of which plainly nothing is missing, over the longest window that was asked for; or none."""
    return asker.memo.of(at, "whole pods", set)


@dataclasses.dataclass(frozen=True, slots=True)
class _Coverage:
    asker: SourceQuerier
    reading: QueryForm
    places: QueryShards
    window: datetime.timedelta
    at: datetime.datetime

    def of_all(self, densest: Mapping[str, float]) -> dict[UseKey, Coverage]:
        """Slot by slot, for everybody."""
        if not densest:
            return {}
        most = min(self._most(), MAX_POINTS / _slots(densest))
        return self._slotted(densest, [(territory, territory.shards(most)) for territory, _ in self.places])

    def of_these(self, pods: Collection[PodKey]) -> dict[UseKey, Coverage]:
        """Slot by slot, for these pods and one of each job that is whole, against which they are held."""
        asked = sorted({*pods, *_whole_pods(self.asker, self.at)})
        most = min(self._most(), MAX_POINTS / MAX_SLOTS)
        places = list(of_pods(self.asker, asked, self.at, most, forms=self._forms))
        densest = self.densest(places)
        return self._slotted(densest, places) if densest else {}

    def of_some(self) -> dict[UseKey, Coverage]:
        """Slot by slot only for those of whom it is not plain that there are no gaps.

        Which is plain where something was recorded of every five minutes of the window, and never much less than of
        the fullest five minutes of the densest of the job. Of those the coverage is at least what is said here.
        """
        tallies = coverage_by_job(self.asker, self.places, window=self.window, at=self.at)
        densest = {job: tally.total for job, tally in tallies.items()}
        plain = {key for tally in tallies.values() for key in tally.plain}
        doubtful = {key for tally in tallies.values() for key in tally.doubtful} - plain
        whole = [tally.densest() for tally in tallies.values()]
        if all(whole):
            _whole_pods(self.asker, self.at).update(pods_of(filter(None, whole)))
        if not plain or len(doubtful) > MAX_SUSPECT_SHARE * sum(
            len(tally.totals) for tally in tallies.values()
        ):
            return self.of_all(densest)
        # One that is whole of each job goes with them: by it the slots are made as they would be for all.
        asked = pods_of((*doubtful, *filter(None, whole)))
        most = min(self._most(), MAX_POINTS / _slots(densest))
        fullest = slot_capacity(tallies, self.window)
        covers = self._slotted(
            densest, list(of_pods(self.asker, sorted(asked), self.at, most, forms=self._forms)), fullest
        )
        for tally in tallies.values():
            for key, cover_ in _whole(tally, fullest.more):
                if key[:2] not in asked:
                    _put(covers, key, cover_)
        return covers

    def _slotted(
        self, densest: Mapping[str, float], places: QueryShards, fullest: SlotCapacity = NONE
    ) -> dict[UseKey, Coverage]:
        """Slot by slot; `fullest` says what a slot could hold, where not everybody of a job is asked."""
        covers: dict[UseKey, Coverage] = {}
        grids: dict[SlotGrid, list[str]] = {self._grid(_slots(densest)): []}
        while grids:
            grid, jobs = grids.popitem()
            only = (promql.one_of(JOB, jobs),) if jobs else ()
            counts = self._counts(places, grid, only)
            for job in sorted(counts):
                mine = counts.pop(job)
                fewer = self._coarser(mine, grid) if not jobs else grid
                if fewer != grid:
                    grids.setdefault(fewer, []).append(job)
                    continue
                floor = fullest.of(job, grid.slot)
                for key, cover_ in _covers(mine, round(densest.get(job, 0.0)), floor):
                    _put(covers, key, cover_)
        return covers

    def _coarser(self, counts: Counts, grid: SlotGrid) -> SlotGrid:
        """The grid for a job that is scraped so seldom that its slots' counts are not steady; the same for others."""
        fullest = max(max(row) for row in counts.values())
        if fullest >= STEADY * SAMPLES_PER_SLOT:
            return grid
        slots = max(MIN_SLOTS, grid.slots * fullest // SAMPLES_PER_SLOT)
        return self._grid(min(slots, grid.slots))

    @property
    def _forms(self) -> Collection[str] | None:
        """How series name pods, where that is known."""
        answered = self.asker.answered(self.window, self.at)
        return answered.forms if answered else None

    @property
    def _quantities(self) -> tuple[Metric, ...]:
        """Metrics of activity, but those of which there is nothing."""
        answered = self.asker.answered(self.window, self.at)
        return answered.of(MetricKind.ACTIVITY) if answered else self.asker.source.of(MetricKind.ACTIVITY)

    def _most(self) -> float:
        return self.asker.most(self.asker.samples_per_series(self.reading, self.window, self.at))

    def densest(self, places: QueryShards) -> dict[str, float]:
        """Samples of each job's densest series."""
        densest: dict[str, float] = {}
        for quantity in self._quantities:

            def ask(matchers: Sequence[str], quantity: Metric = quantity) -> list[Sample]:
                counted = self.reading.count(quantity, (*self.asker.owned, *matchers), self.window)
                return self.asker.prometheus.query(promql.by("max", [JOB], counted), self.at)

            for territory, shards in places:
                for answer in territory.ask(shards, ask):
                    for sample in answer:
                        job = sample.labels.get(JOB, "")
                        densest[job] = max(densest.get(job, 0.0), sample.value)
        return densest

    def _grid(self, slots: int) -> SlotGrid:
        if isinstance(self.reading, RecordedQueries):
            # A slot of whole tiles: the last ones' samples then belong to one slot each.
            tiles = math.ceil(self.window / RULE_INTERVAL / slots)
            return SlotGrid(self.at, tiles * RULE_INTERVAL, max(1, int(self.window / RULE_INTERVAL) // tiles))
        # In whole seconds: the last step of the range must fall on its end, or the newest slot would seem empty.
        slot_s = max(1, round(self.window.total_seconds() / slots))
        return SlotGrid(self.at, datetime.timedelta(seconds=slot_s), slots)

    def _counts(self, places: QueryShards, grid: SlotGrid, only: tuple[str, ...]) -> dict[str, Counts]:
        """Of each job the samples in each slot; where several metrics tell of activity, the most of any."""
        counts: dict[str, Counts] = {}
        labels, columns = self.asker.source.labels.described, ParseCache(grid.read)
        for quantity in self._quantities:

            def ask(matchers: Sequence[str], quantity: Metric = quantity) -> list[tuple[SeriesLabels, Ints]]:
                counted = self.reading.count(quantity, (*self.asker.owned, *only, *matchers), grid.slot)
                return self.asker.prometheus.query_range_as(
                    promql.by("max", labels, counted),
                    grid.span,
                    labels=self.asker.described,
                    values=columns,
                )

            for territory, shards in places:
                for answer in territory.ask(shards, ask):
                    require_one_cluster_name({described.cluster for described, _ in answer})
                    for described, column in answer:
                        if described.key is not None:
                            _most(counts.setdefault(described.job, {}), described.key, column)
        return counts


def _slots(densest: Mapping[str, float]) -> int:
    return max(MIN_SLOTS, min(MAX_SLOTS, int(max(densest.values())) // SAMPLES_PER_SLOT))


def _most(counts: Counts, key: UseKey, column: Ints) -> None:
    before = counts.get(key)
    counts[key] = column if before is None else array.array("I", map(max, before, column))


def _covers(
    counts: Mapping[UseKey, Ints], samples_expected: int, floor: float
) -> Iterator[tuple[UseKey, Coverage]]:
    """How much of each slot each key was recorded, 0 to 1.

    A slot is whole where it holds as many samples as the job's densest series has in it, and at least half of the
    densest slot of the whole window: a change of the scrape interval is no gap, an outage of everything is one. Where
    others of the job are not among these, it must hold as many as `floor`.
    """
    known: dict[bytes, Coverage] = {}  # most are alike
    rows = {key: row.tobytes() for key, row in counts.items()}
    alike = dict(zip(rows.values(), counts.values(), strict=True))
    densest = _columns(alike.values())
    least = max(densest, default=0) / 2
    expected = [max(value, least, floor) for value in densest]
    for text, row in alike.items():
        shares = (min(1.0, value / full) if full else 0.0 for value, full in zip(row, expected, strict=True))
        known[text] = covered(array.array("f", shares), samples_expected)
    for key, text in rows.items():
        yield key, known[text]


def _whole(tally: JobCoverage, more: int) -> Iterator[tuple[UseKey, Coverage]]:
    """At least so much of these is on record, however full others' slots are."""
    known: dict[float, Coverage] = {}  # most are alike
    samples_expected = round(tally.total)
    for key in tally.plain:
        total = tally.totals[key]
        if total not in known:
            known[total] = covered(array.array("f", [min(1.0, tally.share(key, more))]), samples_expected)
        yield key, known[total]


def _columns(rows: Iterable[Sequence[int]]) -> list[int]:
    densest: list[int] = []
    for row in rows:
        densest = list(map(max, densest, row)) if densest else list(row)
    return densest


def _put(covers: dict[UseKey, Coverage], key: UseKey, cover_: Coverage) -> None:
    """Beside what another job recorded: slot by slot where the slots are the same, else the better one."""
    before = covers.get(key)
    if before is None:
        covers[key] = cover_
    elif len(before.shares) == len(cover_.shares):
        shares = array.array("f", map(max, before.shares, cover_.shares))
        expected = max(before.samples_expected or 0, cover_.samples_expected or 0)
        covers[key] = covered(shares, expected)
    elif cover_.coverage > before.coverage:
        covers[key] = cover_
