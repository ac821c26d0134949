"""Coverage: the share of the window with samples of activity, slot by slot, against the job's densest series.

Samples are counted once, in short cells of the longest window; slots of every window are made of these.
"""

import array
import dataclasses
import datetime
import functools
import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.model import PodKey
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.querier import QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import RULE_INTERVAL, QueryForm
from rightsizer.usage.scrape_intervals import (
    HALF,
    CountsByUse,
    add_highest,
    by_interval,
    expected_samples,
    highest_counts,
    of_target,
)
from rightsizer.usage.slot_feed import has_slots, slots_of
from rightsizer.usage.slot_grid import COUNT, Counts, SlotGrid
from rightsizer.usage.source_metrics import Metric, MetricKind, SeriesLabels, UseKey

SAMPLES_PER_SLOT = 20
"""Of 20 samples, one more or less changes the count by 5 % only."""

MAX_SLOTS = 96
"""Of a quarter of an hour in a day."""

MIN_SLOTS = 2
"""With one slot, all samples could be from the last minutes, as of an exporter that has just started."""

MAX_CELLS = 288
"""Of five minutes in a day."""

_ALONE = 3
"""Samples of a target without any of others between them, after which those are not only scraped less often."""

_Number = TypeVar("_Number", int, float)
JobUse = tuple[UseKey | None, str]
"""A use, and the job that tells it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a pod's use of a device.

    Attributes:
        samples_expected: Samples of the job's densest series in the window.
        share: The mean of the cells' shares of the samples of their slots, 0 to 1.
        gaps: Slots without any sample.
        is_fresh: Whether the last slot has half of its samples.
    """

    samples_expected: int | None
    share: float
    gaps: int
    is_fresh: bool


NO_COVERAGE = Coverage(None, 0.0, 0, is_fresh=False)


def coverage_by_use(counted: "SampleCounts", window: datetime.timedelta) -> dict[UseKey, Coverage]:
    """The coverage of all pods' activity in a window that ends with what was counted.

    Scrape intervals are counted separately. Of a use that several jobs tell of, the highest share of each cell counts.
    """
    told: dict[UseKey, list[tuple[_JobSlots, Counts]]] = {}
    for counts in counted.by_interval:
        rows = {id(row): row for row in counts.values()}  # most are one
        slots = _JobSlots.of(rows.values(), counted.cells(window), may_lag=counted.form.is_recorded)
        for key, row in counts.items() if slots.samples else ():
            told.setdefault(key, []).append((slots, row))
    known: dict[tuple[int, ...], Coverage] = {}
    found: dict[UseKey, Coverage] = {}
    for key, each in told.items():
        parts = tuple([id(part) for one in each for part in one])
        if parts not in known:
            known[parts] = each[0][0].coverage(each[0][1]) if len(each) == 1 else _merged(each)
        found[key] = known[parts]
    return found


def _merged(told: Sequence[tuple["_JobSlots", Counts]]) -> Coverage:
    """The coverage by several jobs; slots are those of the job that has the fewest."""
    shares = list(map(max, *(slots.shares(row) for slots, row in told)))
    coarsest = min((slots for slots, _ in told), key=lambda slots: len(slots.expected))
    gaps = sum(not any(shares[first:end]) for first, end in itertools.pairwise(coarsest.edges))
    samples = max(slots.samples for slots, _ in told)
    return Coverage(samples, sum(shares) / len(shares), gaps, is_fresh=shares[-1] >= HALF)


def samples_of(
    querier: SourceQuerier,
    form: QueryForm,
    window: datetime.timedelta,
    *,
    kind: MetricKind | None = None,
    pods: frozenset[PodKey] | None = None,
) -> "SampleCounts":
    """The samples of all pods in this window or a longer one, counted once.

    Those of another kind than activity, of some pods, are as many as each target has of activity, if nothing is lost.
    """
    known: dict[object, SampleCounts] = querier.once("samples", dict)
    # Slots that are kept may end before the window.
    key = form, _cell(window), has_slots(querier, window), kind, pods
    if key not in known or known[key].window < window:
        activity = None
        if kind is not None:
            activity = samples_of(querier, querier.query_form(window), window)
            source = dataclasses.replace(querier.source, presence=kind)
            querier = dataclasses.replace(querier, source=source, tables=None)
        known[key] = SampleCounts(querier, form, _cell(window), window, pods, activity)
    return known[key]


def pods_with_samples(querier: SourceQuerier, window: datetime.timedelta) -> frozenset[PodKey]:
    """All pods that had samples in this window, or a longer one of which they are known."""
    known: dict[object, SampleCounts] = querier.once("samples", dict)
    form = querier.query_form(window)
    all_pods = (one for one in known.values() if one.pods is None and one.window >= window)
    counted = next(all_pods, None) or samples_of(querier, form, window)
    return frozenset(labels.key[:2] for labels, _ in counted.series if labels.key is not None)


def slot_length(window: datetime.timedelta, samples: int) -> datetime.timedelta:
    """The length of a slot of a window with this number of expected samples, as far as cells allow."""
    return window / _slots_of(-(-window // _cell(window)), samples)


def _slots_of(cells: int, samples: int) -> int:
    return max(MIN_SLOTS, min(MAX_SLOTS, cells, samples // SAMPLES_PER_SLOT))


def _cell(window: datetime.timedelta) -> datetime.timedelta:
    """The length of the cells of a window: whole rule intervals, so that each recorded value is in one."""
    if window < MIN_SLOTS * RULE_INTERVAL:
        return window / MIN_SLOTS
    cell = RULE_INTERVAL
    while window > MAX_CELLS * cell:
        cell *= 2  # windows of nearly the same length have the same
    return cell


@dataclasses.dataclass(frozen=True)
class SampleCounts:
    """The samples of each series of a use in each cell of a window; those of a shorter one are the last of them."""

    querier: SourceQuerier
    form: QueryForm
    cell: datetime.timedelta
    window: datetime.timedelta
    pods: frozenset[PodKey] | None = None  # None for all
    activity: "SampleCounts | None" = None

    def cells(self, window: datetime.timedelta) -> int:
        """How many cells hold a window; the oldest may begin before it."""
        return -(-window // self.cell)

    @property
    def _grid(self) -> SlotGrid:
        return SlotGrid(self.querier.at, self.cell, self.cells(self.window))

    @functools.cached_property
    def series(self) -> list[tuple[SeriesLabels, Counts]]:
        """Of every metric that shows that a device was measured; only series with a key."""
        grid = self._grid
        max_series = min(self.querier.max_series(self.form, self.window), MAX_POINTS / grid.slots)
        shards = self._shards(max_series)
        by, source = self.querier.source.labels.described, self.querier.source
        found: list[tuple[SeriesLabels, Counts]] = []
        kept = slots_of(self.querier, self.form, self.window) if self.cell == RULE_INTERVAL else None
        for metric in (self.querier.answered(self.window) or source).of(source.presence):
            if kept is not None:
                found += filter(self._is_asked_for, kept.counts(metric))
                continue

            def build(matchers: Sequence[str], metric: Metric = metric) -> str:
                count = self.form.count(metric, matchers, self.cell)
                return self.form.largest(by, count)

            uses = self.querier.range_uses(shards, build, grid.steps, grid.counts)
            found += filter(self._is_asked_for, uses)
        return found

    def _is_asked_for(self, counted: tuple[SeriesLabels, Counts]) -> bool:
        key = counted[0].key
        return key is not None and (self.pods is None or key[:2] in self.pods)

    def _shards(self, max_series: float) -> QueryShards:
        if self.pods is not None:
            answered = self.querier.answered(self.window)
            labels = answered.pod_labels if answered else None
            return self.querier.pod_shards(sorted(self.pods), max_series, pod_labels=labels)
        plan = self.querier.shard_plan(self.window)
        return [(plan, plan.shards(max_series))]

    @functools.cached_property
    def by_interval(self) -> list[CountsByUse]:
        """The highest count of each use by each job and scrape interval."""
        return by_interval(
            [*self.series, *self._expected], functools.partial(self.querier.scrapes, self._grid)
        )

    @property
    def _expected(self) -> Iterator[tuple[SeriesLabels, Counts]]:
        """The samples that each target has of activity, where this is another signal of some pods."""
        if self.activity is not None:
            cells = self.cells(self.window)
            yield from ((labels, row[-cells:]) for labels, row in self.activity.densest)

    @functools.cached_property
    def densest(self) -> list[tuple[SeriesLabels, Counts]]:
        """The highest counts of each target of a job."""
        rows: dict[tuple[str, str], dict[int, Counts]] = {}
        for labels, row in self.series:
            rows.setdefault((labels.job, labels.target), {})[id(row)] = row  # most are one
        return [
            (of_target(*target), array.array(COUNT, highest_counts(some.values())))
            for target, some in rows.items()
        ]

    @functools.cached_property
    def _moved(self) -> frozenset[JobUse]:
        """The uses by job of which several series tell, of other targets or with other labels."""
        first: dict[JobUse, SeriesLabels] = {}
        return frozenset(
            use
            for use, labels in (((labels.key, labels.job), labels) for labels, _ in self.series)
            if first.setdefault(use, labels) != labels
        )

    def successors(self, window: datetime.timedelta) -> dict[JobUse, Mapping[SeriesLabels, int]]:
        """By use and job the samples of each series in a window, where series follow each other.

        A restarted exporter is another target, perhaps one that was there before; an upgraded one may name the model or
        the pod by other labels. Two at the same time are copies, and not here, nor is a series without a sample.
        """
        series: dict[JobUse, dict[SeriesLabels, Counts]] = {}
        for labels, row in self.series if self._moved else ():
            if (use := (labels.key, labels.job)) in self._moved:
                last = row[-self.cells(window) :]
                if any(last):
                    add_highest(series.setdefault(use, {}), labels, last)
        return {
            use: {labels: sum(row) for labels, row in rows.items()}
            for use, rows in series.items()
            if _take_turns(tuple(map(bytes, rows.values())))
        }


@functools.lru_cache(maxsize=1024)  # most uses by one target are alike
def _take_turns(rows: Sequence[bytes]) -> bool:
    """Whether targets follow each other, by the samples of each in every cell; in doubt they are copies.

    They share a cell only where one ends and another begins, and there they have together what one has alone. One that
    was alone between two others for hardly an interval may be a copy with a later scrape.
    """
    counts = [array.array(COUNT, row) for row in rows]
    cells = [{at: count for at, count in enumerate(cell) if count} for cell in zip(*counts, strict=True)]
    parts = [
        (alone, list(some))
        for alone, some in itertools.groupby(
            filter(None, cells), lambda cell: min(cell) if len(cell) == 1 else None
        )
    ]
    around = [parts[max(place - 1, 0) : place + 2] for place in range(len(parts))]
    samples = [
        sum(cell.get(alone, 0) for _, some in around[place] for cell in some)
        for place, (alone, _) in enumerate(parts)
        if alone is not None
    ]
    if min(samples[1:-1], default=max(samples, default=0)) < _ALONE:
        return False
    for place, (alone, shared) in enumerate(parts):
        if alone is None:
            beside = [part for part in around[place] if part[0] is not None]
            ends = {target for target, _ in beside}
            most = max(max(cell.values()) for _, some in beside for cell in some)
            is_change = len(ends) == len(beside) and len(shared) < len(ends.union(*shared))
            if not is_change or max(sum(cell.values()) for cell in shared) >= min(most + 2, 2 * most):
                return False
    return True


@dataclasses.dataclass(frozen=True, slots=True)
class _JobSlots:
    """The slots of one job in a window.

    A slot is complete with as many samples as the job's densest series has in it, unless everything lacks some there.

    Attributes:
        samples: Those of the densest series in the window.
        edges: The numbers of the cells at which the slots begin, and the last one ends.
        expected: The samples of each slot that lacks none.
    """

    samples: int
    edges: Sequence[int]
    expected: Sequence[float]

    @classmethod
    def of(cls, rows: Collection[Counts], cells: int, *, may_lag: bool) -> "_JobSlots":
        """The slots by the different rows of a job; `may_lag` if the last cell may be recorded later."""
        samples = max(sum(row[-cells:]) for row in rows)
        densest = highest_counts(row[-cells:] for row in rows)
        # Cells without any sample make the slots no longer, which would hide gaps.
        number = _slots_of(cells, samples * cells // max(cells - densest.count(0), 1))
        edges = [place * cells // number for place in range(number + 1)]
        lacking = list(map(operator.sub, expected_samples(densest), densest))
        if may_lag and not densest[-1]:
            lacking[-1] = 0.0
        lost = _between(list(itertools.accumulate(lacking, initial=0.0)), edges)
        highest = highest_counts(_sums(row, edges) for row in rows)
        return cls(samples, edges, list(map(operator.add, highest, lost)))

    def coverage(self, row: Counts) -> Coverage:
        """The coverage of a use by this job alone."""
        sums = _sums(row, self.edges)
        parts = [
            min(1.0, value / full) if full else 0.0 for value, full in zip(sums, self.expected, strict=True)
        ]
        lengths = _between(self.edges, range(len(self.edges)))
        share = sum(map(operator.mul, parts, lengths)) / self.edges[-1]
        return Coverage(self.samples, share, sums.count(0), is_fresh=parts[-1] >= HALF)

    def shares(self, row: Counts) -> list[float]:
        """The share of samples that the slot of each cell has."""
        found: list[float] = []
        lengths = _between(self.edges, range(len(self.edges)))
        for value, full, length in zip(_sums(row, self.edges), self.expected, lengths, strict=True):
            found += [min(1.0, value / full) if full else 0.0] * length
        return found


def _sums(row: Counts, edges: Sequence[int]) -> list[int]:
    """The samples of each slot, of the last cells of a row."""
    return _between(list(itertools.accumulate(row[-edges[-1] :], initial=0)), edges)


def _between(sums: Sequence[_Number], edges: Sequence[int]) -> list[_Number]:
    """How much is between two edges, by the sums up to each."""
    at_edges = [sums[edge] for edge in edges]
    return list(map(operator.sub, at_edges[1:], at_edges))
