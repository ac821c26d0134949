"""Finds the uses without gaps by a few queries over the whole window, for each scrape job.

A use has no gap if a count is recorded for every five minutes, as for the densest series of the job, and no count is
much lower than the highest count of that series. All other uses are suspect and queried slot by slot.
"""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.usage.querier import QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import COUNT, RECORDED, RULE_INTERVAL, recorded_selector
from rightsizer.usage.source_metrics import JOB, Metric, MetricKind, SeriesLabels, UseKey

STEADY = 0.9
"""A count of at least this share of the expected one is no gap."""


@dataclasses.dataclass(slots=True)
class JobCoverage:
    """Recorded samples of activity from one scrape job."""

    totals: dict[UseKey, float] = dataclasses.field(default_factory=dict)  # samples in the window
    suspects: set[UseKey] = dataclasses.field(default_factory=set)  # uses that may have gaps
    intervals: int = 0  # rule intervals with samples of the densest series
    max_count: float = 0.0  # its highest count of samples in one of them

    @property
    def total(self) -> float:
        """Samples of the densest series."""
        return max(self.totals.values())

    @property
    def gapless(self) -> Iterator[UseKey]:
        """The uses without gaps."""
        return (key for key in self.totals if key not in self.suspects)

    def densest(self) -> UseKey | None:
        """The densest use without gaps, always the same."""
        return max(self.gapless, key=lambda key: (self.totals[key], key), default=None)

    def min_share(self, key: UseKey, extra: int) -> float:
        """Lower bound of the coverage of a use without gaps, if a window holds `extra` intervals too many."""
        return (self.totals[key] - extra * self.max_count) / ((self.intervals - extra) * self.max_count)

    def merged(self, other: "JobCoverage") -> "JobCoverage":
        """Merged with another metric: no gaps in either one means no gaps."""
        gapless = {*self.gapless, *other.gapless}
        totals = {key: max(self.totals.get(key, 0.0), value) for key, value in other.totals.items()}
        totals = {**self.totals, **totals}
        return JobCoverage(
            totals,
            totals.keys() - gapless,
            max(self.intervals, other.intervals),
            max(self.max_count, other.max_count),
        )


class _Suspects(NamedTuple):
    """The uses of a job that may have gaps in a window, and what they were compared with.

    In a shorter window no others have gaps, unless its densest series has more intervals, or more samples in one.
    """

    window: datetime.timedelta
    excess: int  # intervals of the densest series less those of the window
    max_count: float
    uses: frozenset[UseKey] = frozenset()

    def include_those_of(self, other: "_Suspects") -> bool:
        """Whether the other's uses are among these."""
        return (
            self.window >= other.window and self.excess == other.excess and self.max_count >= other.max_count
        )


class SlotCapacity(NamedTuple):
    """The highest possible number of samples in a slot."""

    by_job: Mapping[str, float]  # samples in one rule interval
    # Excess rule intervals in a slot: 1 if values were recorded at both ends of the window and
    # Prometheus counts both ends of a range (before 3.0)
    extra: int

    def of(self, job: str, slot: datetime.timedelta) -> float:
        """Samples in a slot."""
        return self.by_job.get(job, 0.0) * (slot // RULE_INTERVAL + self.extra)


UNKNOWN_CAPACITY = SlotCapacity({}, 0)


def coverage_by_job(
    querier: SourceQuerier, shards: QueryShards, window: datetime.timedelta, *, may_lack: int
) -> dict[str, JobCoverage]:
    """Recorded samples of the activity of all pods; the window is a multiple of the rule interval.

    `may_lack` is the number of intervals that everything may lack without a gap, such as the last one, recorded late.
    """
    found: dict[str, JobCoverage] = {}
    for metric in querier.source.of(MetricKind.ACTIVITY):
        for job, coverage in _CountQuery(querier, shards, metric, window, may_lack).by_job().items():
            found[job] = coverage.merged(found[job]) if job in found else coverage
    return found


def slot_capacity(coverage: Mapping[str, JobCoverage], window: datetime.timedelta) -> SlotCapacity:
    """The capacity of slots, from the samples of all pods."""
    intervals = max(one.intervals for one in coverage.values())
    return SlotCapacity(
        {job: one.max_count for job, one in coverage.items()}, intervals - window // RULE_INTERVAL
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _CountQuery:
    querier: SourceQuerier
    shards: QueryShards
    metric: Metric
    window: datetime.timedelta
    may_lack: int

    def by_job(self) -> dict[str, JobCoverage]:
        """The samples of one metric."""
        found: dict[str, JobCoverage] = {}
        for labels, value in self._run("max", "sum_over_time", shards=self.shards):
            if labels.key is not None:
                totals = found.setdefault(labels.job, JobCoverage()).totals
                # An exporter that has restarted is another target.
                totals[labels.key] = max(value, totals.get(labels.key, 0.0))
        alike: dict[tuple[int, float], list[str]] = {}
        for job, coverage in found.items():
            intervals, coverage.max_count = self._densest(job, coverage)
            coverage.intervals = max(intervals, self._intervals)
            if -self.may_lack <= intervals - self._intervals <= 1 and coverage.max_count > 0:
                alike.setdefault((intervals, coverage.max_count), []).append(job)
            else:  # the rules were not evaluated every five minutes
                coverage.suspects.update(coverage.totals)
        for (intervals, max_count), jobs in alike.items():
            for labels in self._suspects(intervals, max_count, jobs, is_only=len(found) == 1):
                if labels.key is not None and labels.job in found:
                    found[labels.job].suspects.add(labels.key)
            for job in jobs:
                uses = frozenset(found[job].suspects)
                self._known[job] = _Suspects(self.window, intervals - self._intervals, max_count, uses)
        return found

    @property
    def _intervals(self) -> int:
        """The rule intervals of the window."""
        return self.window // RULE_INTERVAL

    @property
    def _known(self) -> dict[str, _Suspects]:
        """The suspects of each job in the window that was queried before."""
        return self.querier.once(("suspects", self.metric), dict)

    def _densest(self, job: str, coverage: JobCoverage) -> tuple[int, float]:
        """Rule intervals with samples of the job's densest series, and its highest count."""
        densest = coverage.densest()
        assert densest is not None  # noqa: S101 - it has samples, and there are no suspects yet
        shards = self._pod_shards([densest[:2]])
        only = (promql.equals(JOB, job),)
        intervals, max_count = (
            max(
                (
                    value
                    for labels, value in self._run("max", function, only, shards=shards)
                    if labels.key == densest
                ),
                default=0.0,
            )
            for function in ("count_over_time", "max_over_time")
        )
        return round(intervals), max_count

    def _suspects(
        self, intervals: int, max_count: float, jobs: Sequence[str], *, is_only: bool
    ) -> Iterator[SeriesLabels]:
        shards = self.shards
        pods = self._pods_with_suspects(_Suspects(self.window, intervals - self._intervals, max_count), jobs)
        if pods is not None and len(pods) <= promql.MOST_NAMES:
            shards = self._pod_shards(pods)
        only = () if is_only else (promql.one_of(JOB, jobs),)
        limits = (("count_over_time", float(intervals)), ("min_over_time", STEADY * max_count))
        for function, limit in limits:
            # A use may have copies; none of them may have a gap.
            for labels, _ in self._run("min", function, only, limit=f" < {limit!r}", shards=shards):
                yield labels

    def _pods_with_suspects(self, here: _Suspects, jobs: Sequence[str]) -> set[PodKey] | None:
        """The pods of all suspects, if they are known from a longer window; None if not."""
        known = [self._known.get(job) for job in jobs]
        uses = [one.uses for one in known if one is not None and one.include_those_of(here)]
        return pods_of(itertools.chain(*uses)) if len(uses) == len(known) else None

    def _pod_shards(self, pods: Collection[PodKey]) -> QueryShards:
        answered = self.querier.answered(self.window)
        return self.querier.pod_shards(
            sorted(pods),
            self.querier.max_series(RECORDED, self.window),
            pod_labels=answered.pod_labels if answered else None,
        )

    def _run(
        self,
        aggregation: str,
        function: str,
        only: Sequence[str] = (),
        *,
        limit: str = "",
        shards: QueryShards,
    ) -> Iterator[tuple[SeriesLabels, float]]:
        by = self.querier.source.labels.described

        def build(matchers: Sequence[str]) -> str:
            counts = recorded_selector(self.metric, COUNT, (*only, *matchers))
            return promql.by(aggregation, by, promql.over(function, counts, self.window) + limit)

        found = self.querier.uses(shards, build)
        return ((labels, value) for labels, value in found if math.isfinite(value))


def pods_of(keys: Iterable[UseKey]) -> set[PodKey]:
    """The pods of these uses."""
    return {key[:2] for key in keys}
