"""Coverage: the share of the window with samples of activity, slot by slot, against the job's densest series.

Samples are counted once, in short cells of the longest window; slots of every window are made of these.
"""

import array
import dataclasses
import datetime
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.querier import QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import RULE_INTERVAL, QueryForm
from rightsizer.usage.slot_grid import COUNT, Counts, SlotGrid
from rightsizer.usage.source_metrics import Metric, SeriesLabels, UseKey

SAMPLES_PER_SLOT = 20
"""Of 20 samples, one more or less changes the count by 5 % only."""

MAX_SLOTS = 96
"""Of a quarter of an hour in a day."""

MIN_SLOTS = 2
"""With one slot, all samples could be from the last minutes, as of an exporter that has just started."""

MAX_CELLS = 288
"""Of five minutes in a day."""

HALF = 0.5

EDGE = datetime.timedelta(milliseconds=1)
"""Prometheus before 3.0 counts samples at both ends of a range; a range shorter by this counts none twice."""

_AT_ONCE = 0.05
"""Share of the samples that targets which follow each other may have at the same time."""

_NEAR = 4
"""Cells before and after one that tell how many samples it lacks: a change of the scrape interval lasts longer."""

_STEADY = 0.8
"""Share of the samples of other cells that each has where none are lost."""

_MOST_CHANGE = 10
"""Times that one scrape interval is longer than another: from 15 s to two and a half minutes."""

CountsByUse = dict[UseKey, Counts]


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a pod's use of a device.

    Attributes:
        samples_expected: Samples of the job's densest series in the window.
        share: The mean of the slots' shares of their samples, 0 to 1.
        gaps: Slots without any sample.
        is_fresh: Whether the last slot has half of its samples.
    """

    samples_expected: int | None
    share: float
    gaps: int
    is_fresh: bool

    @classmethod
    def of(cls, shares: Sequence[float], size: int, samples_expected: int) -> "Coverage":
        """The coverage by the share of samples that the slot of each cell has; `size` cells make a slot."""
        mean, empty = sum(shares) / len(shares), shares.count(0)
        gaps = max(empty // size, min(empty, 1))
        return cls(samples_expected, mean, gaps, is_fresh=shares[-1] >= HALF)


NO_COVERAGE = Coverage(None, 0.0, 0, is_fresh=False)


def coverage_by_use(counted: "SampleCounts", window: datetime.timedelta) -> dict[UseKey, Coverage]:
    """The coverage of all pods' activity in a window that ends with what was counted.

    Jobs are counted separately, since each has its own scrape interval. Of a use that several tell of, the highest
    share of each cell counts.
    """
    cells = window // counted.cell
    every = [(_JobSlots.of(counts.values(), cells), counts) for counts in counted.by_job.values()]
    jobs = [(slots, counts) for slots, counts in every if slots.samples]
    found: dict[UseKey, Coverage] = {}
    known: dict[tuple[int, int], Coverage] = {}  # most rows are one
    for number, (slots, counts) in enumerate(jobs):
        others = [other for other in jobs if other[1] is not counts]
        for key, row in counts.items():
            again = [(each, rows[key]) for each, rows in others if key in rows]
            if again and key not in found:
                told = [(slots, row), *again]
                shares = list(map(max, *(each.shares(one) for each, one in told)))
                size, samples = (max(getattr(each, name) for each, _ in told) for name in ("size", "samples"))
                found[key] = Coverage.of(shares, size, samples)
            elif not again:
                if (number, id(row)) not in known:
                    known[number, id(row)] = Coverage.of(slots.shares(row), slots.size, slots.samples)
                found[key] = known[number, id(row)]
    return found


def samples_of(
    querier: SourceQuerier, form: QueryForm, shards: QueryShards, window: datetime.timedelta
) -> "SampleCounts":
    """The samples of this window or of a longer one, which were counted before."""
    cell = _cell(window)
    known: dict[object, SampleCounts] = querier.once("samples", dict)
    counted = known.get((form, cell))
    if counted is None or counted.window < window:
        counted = known[form, cell] = SampleCounts(querier, form, shards, cell, window)
    return counted


def slot_length(window: datetime.timedelta, samples: int) -> datetime.timedelta:
    """The length of a slot of a window with this number of expected samples."""
    cell = _cell(window)
    return cell * _slot_size(window // cell, samples)


def _cell(window: datetime.timedelta) -> datetime.timedelta:
    """The length of the cells of a window: whole rule intervals, so that each recorded value is in one."""
    if window < MIN_SLOTS * RULE_INTERVAL:
        return window / MIN_SLOTS
    cell = RULE_INTERVAL
    while window > MAX_CELLS * cell:
        cell *= 3  # windows of nearly the same length have the same
    return cell


@dataclasses.dataclass(frozen=True)
class SampleCounts:
    """The samples of each series of a use in each cell of a window; those of a shorter one are the last of them."""

    querier: SourceQuerier
    form: QueryForm
    shards: QueryShards
    cell: datetime.timedelta
    window: datetime.timedelta

    @functools.cached_property
    def series(self) -> list[tuple[SeriesLabels, Counts]]:
        """Of every metric that shows that a device was measured; only series with a key."""
        grid = SlotGrid(self.querier.at, self.cell, self.window // self.cell)
        max_series = min(self.querier.max_series(self.form, self.window), MAX_POINTS / grid.slots)
        shards = [(plan, plan.shards(max_series)) for plan, _ in self.shards]
        by, source = self.querier.source.labels.described, self.querier.source
        found: list[tuple[SeriesLabels, Counts]] = []
        for metric in (self.querier.answered(self.window) or source).of(source.presence):

            def build(matchers: Sequence[str], metric: Metric = metric) -> str:
                count = self.form.count(metric, matchers, self.cell - EDGE)
                # Recorded series have few other labels: grouping them would take most of the time.
                return count if self.form.is_recorded else promql.by("max", by, count)

            uses = self.querier.range_uses(shards, build, grid.steps, grid.counts)
            found += ((labels, row) for labels, row in uses if labels.key is not None)
        return found

    @functools.cached_property
    def by_job(self) -> dict[str, CountsByUse]:
        """The highest count of each use."""
        counts: dict[str, CountsByUse] = {}
        for labels, row in self.series:
            assert labels.key is not None  # noqa: S101 - of a series with one
            add_highest(counts.setdefault(labels.job, {}), labels.key, row)
        return counts

    @functools.cached_property
    def _moved(self) -> frozenset[tuple[UseKey | None, str]]:
        """The uses by job of which several targets tell."""
        one: dict[tuple[UseKey | None, str], str] = {}
        return frozenset(
            use
            for use, target in (((labels.key, labels.job), labels.target) for labels, _ in self.series)
            if one.setdefault(use, target) != target
        )

    def successors(self, window: datetime.timedelta) -> dict[tuple[UseKey | None, str], dict[str, int]]:
        """By use and job the samples of each target in a window, where targets follow each other.

        A restarted exporter is another target; two at the same time are copies, and not here.
        """
        targets: dict[tuple[UseKey | None, str], dict[str, Counts]] = {}
        for labels, row in self.series if self._moved else ():
            if (labels.key, labels.job) not in self._moved:
                continue
            rows = targets.setdefault((labels.key, labels.job), {})
            before, last = rows.get(labels.target), row[-(window // self.cell) :]
            rows[labels.target] = last if before is None else array.array(COUNT, map(max, before, last))
        found: dict[tuple[UseKey | None, str], dict[str, int]] = {}
        most: dict[str, list[float]] = {}
        for use, rows in targets.items():
            if len(rows) > 1:
                if use[1] not in most:
                    most[use[1]] = self._most(use[1], window)
                samples = {target: sum(row) for target, row in rows.items()}
                cells = zip(zip(*rows.values(), strict=True), most[use[1]], strict=True)
                if sum(max(0, sum(cell) - full) for cell, full in cells) <= _AT_ONCE * sum(samples.values()):
                    found[use] = samples
        return found

    def _most(self, job: str, window: datetime.timedelta) -> list[float]:
        """In each cell of a window the most samples that any use of a job has in it or beside it."""
        highest = highest_counts(row[-(window // self.cell) :] for row in self.by_job[job].values())
        return [max(highest[max(0, place - 1) : place + 2]) for place in range(len(highest))]


def add_highest(counts: CountsByUse, key: UseKey, row: Counts) -> None:
    """Set the counts of a use; of several rows, the highest count of each slot."""
    before = counts.get(key)
    counts[key] = row if before in (None, row) else array.array(COUNT, map(max, before or (), row))


def highest_counts(rows: Iterable[Sequence[float]]) -> list[float]:
    """The highest count of each slot."""
    highest: list[float] = []
    for row in rows:
        highest = list(map(max, highest, row)) if highest else list(row)
    return highest


@dataclasses.dataclass(frozen=True, slots=True)
class _JobSlots:
    """The slots of one job in a window.

    A slot is complete with as many samples as the job's densest series has in it, unless everything lacks some there.

    Attributes:
        cells: Those of the window.
        size: How many of them make a slot.
        samples: Those of the densest series.
        lengths: How many cells each slot has; the oldest may have some more.
        expected: The samples of each slot that lacks none.
    """

    cells: int
    size: int
    samples: int
    lengths: Sequence[int]
    expected: Sequence[float]

    @classmethod
    def of(cls, rows: Iterable[Counts], cells: int) -> "_JobSlots":
        """The slots by the rows of all uses of the job."""
        distinct = {id(row): row for row in rows}.values()
        densest = highest_counts(row[-cells:] for row in distinct)
        samples = round(sum(densest))
        size = _slot_size(cells, samples)
        lengths = [size + cells % size, *[size] * (cells // size - 1)]
        highest = highest_counts(_sums(row[-cells:], lengths) for row in distinct)
        lost = _sums(
            [full - count for count, full in zip(densest, expected_samples(densest), strict=True)], lengths
        )
        expected = [count + more for count, more in zip(highest, lost, strict=True)]
        return cls(cells, size, samples, lengths, expected)

    def shares(self, row: Counts) -> list[float]:
        """The share of samples that the slot of each cell has."""
        sums = _sums(row[-self.cells :], self.lengths)
        parts = zip(sums, self.expected, self.lengths, strict=True)
        found: list[float] = []
        for value, full, length in parts:
            found += [min(1.0, value / full) if full else 0.0] * length
        return found


def _sums(row: Sequence[float], lengths: Iterable[int]) -> list[float]:
    ends = list(itertools.accumulate(lengths, initial=0))
    return [sum(row[first:end]) for first, end in itertools.pairwise(ends)]


def _slot_size(cells: int, samples: int) -> int:
    """How many cells make a slot."""
    number = max(MIN_SLOTS, min(MAX_SLOTS, samples // SAMPLES_PER_SLOT))
    return math.ceil(cells / number)


def expected_samples(highest: Sequence[float]) -> list[float]:
    """The samples of each cell that lacks none, by the highest count in it and in those near it.

    After a change of the scrape interval there are as many in each. Where there were more before and are more after it,
    beyond one that falls to either side of an edge, or fewer than any change leaves, everything lacks some.
    """
    found, least = [], max(highest, default=0) / _MOST_CHANGE
    for place, value in enumerate(highest):
        sides = highest[max(0, place - _NEAR) : place], highest[place + 1 : place + 1 + _NEAR]
        usual = min((max(side) for side in sides if side), default=0)
        found.append(max(value, least, min(_STEADY * usual, usual - 1)))
    return found
