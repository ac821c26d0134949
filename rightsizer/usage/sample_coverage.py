"""Coverage: the share of the window with samples of activity, slot by slot, against the job's densest series."""

import array
import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.full_coverage import (
    STEADY,
    UNKNOWN_CAPACITY,
    JobCoverage,
    SlotCapacity,
    coverage_by_job,
    pods_of,
    slot_capacity,
)
from rightsizer.usage.provenance import TARGET_LABELS
from rightsizer.usage.querier import QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import RULE_INTERVAL, QueryForm
from rightsizer.usage.slot_grid import Counts, SlotGrid
from rightsizer.usage.source_metrics import JOB, Metric, UseKey

SAMPLES_PER_SLOT = 20
"""Of 20 samples, one more or less changes the count by 5 % only."""

MAX_SLOTS = 96
"""Of a quarter of an hour in a day."""

MIN_SLOTS = 2
"""With one slot, all samples could be from the last minutes, as of an exporter that has just started."""

HALF = 0.5

MAX_SUSPECT_SHARE = 0.05
"""If more of the uses may have gaps, all are queried slot by slot."""

CountsByUse = dict[UseKey, Counts]


@dataclasses.dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of a pod's use of a device."""

    shares: Sequence[float]  # share of each slot's samples, 0 to 1, oldest first
    samples_expected: int | None  # samples of the job's densest series in the window
    share: float  # mean of the shares
    gaps: int  # slots without any sample
    is_fresh: bool  # whether the last slot has half of its samples

    @classmethod
    def of(cls, shares: Sequence[float], samples_expected: int | None) -> "Coverage":
        """The coverage that follows from the shares."""
        gaps = sum([share == 0 for share in shares])
        return cls(shares, samples_expected, sum(shares) / len(shares), gaps, is_fresh=shares[-1] >= HALF)


NO_COVERAGE = Coverage((), None, 0.0, 0, is_fresh=False)


def coverage_by_use(
    querier: SourceQuerier,
    form: QueryForm,
    shards: QueryShards,
    window: datetime.timedelta,
    of: Collection[PodKey] | None = None,
) -> dict[UseKey, Coverage]:
    """The coverage of all pods' activity, or of these pods', if `can_query_some`.

    Jobs are counted separately, since each has its own scrape interval; then the coverage of several jobs is merged.
    """
    query = _CoverageQuery(querier, form, shards, window)
    if of is not None:
        return query.of_pods(of)
    return query.of_suspects() if form.is_recorded else query.of_all(query.densest(shards))


def can_query_some(querier: SourceQuerier, form: QueryForm) -> bool:
    """Whether some pods can be queried alone: each job needs a pod without gaps to compare them with."""
    return form.is_recorded and bool(_reference_pods(querier)) and not querier.source.has_counters


def _reference_pods(querier: SourceQuerier) -> set[PodKey]:
    """A pod without gaps of each job, over the longest window that was queried; or none."""
    return querier.once("reference pods", set)


@dataclasses.dataclass(frozen=True, slots=True)
class _CoverageQuery:
    querier: SourceQuerier
    form: QueryForm
    shards: QueryShards
    window: datetime.timedelta

    def of_all(self, densest: Mapping[str, float]) -> dict[UseKey, Coverage]:
        """Slot by slot, for all pods."""
        if not densest:
            return {}
        max_series = self._max_series(_slots(densest))
        return self._by_slot(densest, [(plan, plan.shards(max_series)) for plan, _ in self.shards])

    def of_pods(self, pods: Collection[PodKey]) -> dict[UseKey, Coverage]:
        """Slot by slot, for these pods and the reference pods."""
        shards = self._pod_shards({*pods, *_reference_pods(self.querier)}, MAX_SLOTS)
        densest = self.densest(shards)
        return self._by_slot(densest, shards) if densest else {}

    def of_suspects(self) -> dict[UseKey, Coverage]:
        """Slot by slot only for the uses that may have gaps; for the others a lower bound of the coverage."""
        # In slots of several intervals one that everything lacks is no gap, and the last one may be recorded late.
        may_lack = int(self.window > MAX_SLOTS * RULE_INTERVAL)
        jobs = coverage_by_job(self.querier, self.shards, self.window, may_lack=may_lack)
        densest = {job: coverage.total for job, coverage in jobs.items()}
        gapless = {key for coverage in jobs.values() for key in coverage.gapless}
        suspects = {key for coverage in jobs.values() for key in coverage.suspects} - gapless
        references = [coverage.densest() for coverage in jobs.values()]
        if all(references):
            _reference_pods(self.querier).update(pods_of(filter(None, references)))
        uses = sum(len(coverage.totals) for coverage in jobs.values())
        if not gapless or len(suspects) > MAX_SUSPECT_SHARE * uses:
            return self.of_all(densest)
        # With a use without gaps of each job, the slots are the same as for all uses.
        pods = pods_of((*suspects, *filter(None, references)))
        capacity = slot_capacity(jobs, self.window)
        found = self._by_slot(densest, self._pod_shards(pods, _slots(densest)), capacity)
        for job in jobs.values():
            for key, coverage in _without_gaps(job, capacity.extra):
                if key[:2] not in pods:
                    _merge(found, key, coverage)
        return found

    def _by_slot(
        self, densest: Mapping[str, float], shards: QueryShards, capacity: SlotCapacity = UNKNOWN_CAPACITY
    ) -> dict[UseKey, Coverage]:
        """Slot by slot; `capacity` is that of a slot, if not all pods of a job are queried."""
        found: dict[UseKey, Coverage] = {}
        grids: dict[SlotGrid, list[str]] = {self._grid(_slots(densest)): []}
        while grids:
            grid, jobs = grids.popitem()
            only = (promql.one_of(JOB, jobs),) if jobs else ()
            counts = self._counts(shards, grid, only)
            for job in sorted(counts):
                of_job = counts.pop(job)
                coarser = self._coarser(of_job, grid) if not jobs else grid
                if coarser != grid:
                    grids.setdefault(coarser, []).append(job)
                    continue
                floor = capacity.of(job, grid.slot)
                for key, coverage in _coverage(of_job, round(densest.get(job, 0.0)), floor):
                    _merge(found, key, coverage)
        return found

    def _coarser(self, counts: CountsByUse, grid: SlotGrid) -> SlotGrid:
        """Larger slots for a job that is scraped so rarely that counts vary; else the same."""
        highest = max(max(row) for row in counts.values())
        if highest >= STEADY * SAMPLES_PER_SLOT:
            return grid
        slots = max(MIN_SLOTS, grid.slots * highest // SAMPLES_PER_SLOT)
        return self._grid(min(slots, grid.slots))

    def _pod_shards(self, pods: Collection[PodKey], slots: int) -> QueryShards:
        answered = self.querier.answered(self.window)
        pod_labels = answered.pod_labels if answered else None
        return self.querier.pod_shards(sorted(pods), self._max_series(slots), pod_labels=pod_labels)

    def _max_series(self, slots: int) -> float:
        return min(self.querier.max_series(self.form, self.window), MAX_POINTS / slots)

    @property
    def _metrics(self) -> tuple[Metric, ...]:
        """Metrics that show that a device was measured, and have series."""
        source = self.querier.source
        return (self.querier.answered(self.window) or source).of(source.presence)

    def densest(self, shards: QueryShards) -> dict[str, float]:
        """Samples of each job's densest series."""
        densest: dict[str, float] = {}
        for metric in self._metrics:

            def build(matchers: Sequence[str], metric: Metric = metric) -> str:
                every = (*self.querier.pod_matchers, *matchers)
                return promql.by("max", TARGET_LABELS, self.form.count(metric, every, self.window))

            for plan, some in shards:
                for sample in self.querier.samples(plan, some, build):
                    if self.querier.provenance.accepts_target(sample.labels):
                        job = sample.labels.get(JOB, "")
                        densest[job] = max(densest.get(job, 0.0), sample.count)
        return densest

    def _grid(self, slots: int) -> SlotGrid:
        if self.form.is_recorded:
            # Whole rule intervals: each recorded value then belongs to one slot.
            intervals = math.ceil(self.window / RULE_INTERVAL / slots)
            slots = max(1, int(self.window / RULE_INTERVAL) // intervals)
            return SlotGrid(self.querier.at, intervals * RULE_INTERVAL, slots)
        # Whole seconds: the last step of the range must be at its end, or the newest slot would be empty.
        slot_s = max(1, round(self.window.total_seconds() / slots))
        return SlotGrid(self.querier.at, datetime.timedelta(seconds=slot_s), slots)

    def _counts(self, shards: QueryShards, grid: SlotGrid, only: tuple[str, ...]) -> dict[str, CountsByUse]:
        """Samples of each job in each slot; of several metrics the highest count."""
        counts: dict[str, CountsByUse] = {}
        by = self.querier.source.labels.described
        for metric in self._metrics:

            def build(matchers: Sequence[str], metric: Metric = metric) -> str:
                return promql.by("max", by, self.form.count(metric, (*only, *matchers), grid.slot))

            for labels, row in self.querier.range_uses(shards, build, grid.steps, grid.counts):
                if labels.key is not None:
                    add_highest(counts.setdefault(labels.job, {}), labels.key, row)
        return counts


def _slots(densest: Mapping[str, float]) -> int:
    return max(MIN_SLOTS, min(MAX_SLOTS, int(max(densest.values())) // SAMPLES_PER_SLOT))


def add_highest(counts: CountsByUse, key: UseKey, row: Counts) -> None:
    """Set the counts of a use; of several rows, the highest count of each slot."""
    before = counts.get(key)
    counts[key] = row if before is None else array.array("I", map(max, before, row))


def highest_counts(rows: Iterable[Sequence[int]]) -> list[int]:
    """The highest count of each slot."""
    highest: list[int] = []
    for row in rows:
        highest = list(map(max, highest, row)) if highest else list(row)
    return highest


def _coverage(
    counts: Mapping[UseKey, Counts], samples_expected: int, floor: float
) -> Iterator[tuple[UseKey, Coverage]]:
    """The coverage of each use.

    A slot is complete with as many samples as the job's densest series has in it, and at least half of the highest
    count of the window: a change of the scrape interval is no gap, an outage of everything is one. If the counts are
    those of some uses only, a slot must have at least `floor` samples.
    """
    known: dict[bytes, Coverage] = {}  # most are alike
    texts = {key: row.tobytes() for key, row in counts.items()}
    distinct = dict(zip(texts.values(), counts.values(), strict=True))
    highest = highest_counts(distinct.values())
    least = max(highest, default=0) / 2
    expected = [max(value, least, floor) for value in highest]
    for text, row in distinct.items():
        shares = (min(1.0, value / full) if full else 0.0 for value, full in zip(row, expected, strict=True))
        known[text] = Coverage.of(array.array("f", shares), samples_expected)
    for key, text in texts.items():
        yield key, known[text]


def _without_gaps(job: JobCoverage, extra: int) -> Iterator[tuple[UseKey, Coverage]]:
    """Lower bounds of the coverage of the uses without gaps."""
    known: dict[float, Coverage] = {}  # most are alike
    samples_expected = round(job.total)
    for key in job.gapless:
        total = job.totals[key]
        if total not in known:
            share = min(1.0, job.min_share(key, extra))
            known[total] = Coverage.of(array.array("f", [share]), samples_expected)
        yield key, known[total]


def _merge(found: dict[UseKey, Coverage], key: UseKey, coverage: Coverage) -> None:
    """Merge with another job's coverage: slot by slot if the slots are the same, else the higher one."""
    before = found.get(key)
    if before is None:
        found[key] = coverage
    elif len(before.shares) == len(coverage.shares):
        shares = array.array("f", map(max, before.shares, coverage.shares))
        expected = max(before.samples_expected or 0, coverage.samples_expected or 0)
        found[key] = Coverage.of(shares, expected)
    elif coverage.share > before.share:
        found[key] = coverage
