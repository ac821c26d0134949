"""Whose recorded activity is plainly without gaps: found out with a few questions about the whole window.

It is where something is on record of every five minutes, as of the densest series of the job, and never much less than
of the fullest five minutes of that one. Whoever is not is no worse for it: of them it is asked slot by slot.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.usage.pods_by_name import of_pods
from rightsizer.usage.quantities import Metric, MetricKind
from rightsizer.usage.querier import QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import COUNT, RULE_INTERVAL, recorded
from rightsizer.usage.series_labels import JOB, SeriesLabels, UseKey

STEADY = 0.9
"""Of as many samples as there should be: so many make no difference."""


@dataclasses.dataclass(slots=True)
class JobCoverage:
    """What was recorded of everybody's activity by one job.

    Attributes:
        totals: Samples in the window.
        doubtful: Those of whom it is not plain that nothing is missing.
        tiles: Of how many five minutes something is on record of the densest series.
        fullest: Samples of the fullest of them.
    """

    totals: dict[UseKey, float] = dataclasses.field(default_factory=dict)
    doubtful: set[UseKey] = dataclasses.field(default_factory=set)
    tiles: int = 0
    fullest: float = 0.0

    @property
    def total(self) -> float:
        """Samples of the densest series."""
        return max(self.totals.values())

    @property
    def plain(self) -> Iterator[UseKey]:
        """Those of whom it is plain."""
        return (key for key in self.totals if key not in self.doubtful)

    def densest(self) -> UseKey | None:
        """The densest series of those, always the same."""
        return max(self.plain, key=lambda key: (self.totals[key], key), default=None)

    def share(self, key: UseKey, more: int) -> float:
        """At least so much of what could be is on record of one of those, 0 to 1, with `more` tiles than fit in."""
        return (self.totals[key] - more * self.fullest) / ((self.tiles - more) * self.fullest)

    def beside(self, other: "JobCoverage") -> "JobCoverage":
        """What two metrics tell: where one is without gaps the other need not be."""
        plain = {*self.plain, *other.plain}
        totals = {key: max(self.totals.get(key, 0.0), value) for key, value in other.totals.items()}
        totals = {**self.totals, **totals}
        return JobCoverage(
            totals, totals.keys() - plain, max(self.tiles, other.tiles), max(self.fullest, other.fullest)
        )


class SlotCapacity(NamedTuple):
    """What slots can hold at most.

    Attributes:
        by_job: Samples of five minutes.
        more: So many more five minutes a slot holds than fit into it: 1 where something was recorded just when the
            window began and ended, and Prometheus counts both ends of a range (as before 3.0).
    """

    by_job: Mapping[str, float]
    more: int

    def of(self, job: str, slot: datetime.timedelta) -> float:
        """Samples of a slot."""
        return self.by_job.get(job, 0.0) * (slot // RULE_INTERVAL + self.more)


NONE = SlotCapacity({}, 0)


def coverage_by_job(
    asker: SourceQuerier, places: QueryShards, *, window: datetime.timedelta, at: datetime.datetime
) -> dict[str, JobCoverage]:
    """What was recorded of everybody's activity, by job.

    Args:
        asker: The source, which has rules.
        places: Its series.
        window: A multiple of five minutes.
        at: Its end.
    """
    tallies: dict[str, JobCoverage] = {}
    for quantity in asker.source.of(MetricKind.ACTIVITY):
        for job, tally in _Counting(asker, places, quantity, window, at).tallies().items():
            tallies[job] = tally.beside(tallies[job]) if job in tallies else tally
    return tallies


def slot_capacity(tallies: Mapping[str, JobCoverage], window: datetime.timedelta) -> SlotCapacity:
    """What slots can hold at most, by what was recorded of everybody."""
    tiles = max(tally.tiles for tally in tallies.values())
    return SlotCapacity(
        {job: tally.fullest for job, tally in tallies.items()}, tiles - window // RULE_INTERVAL
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Counting:
    asker: SourceQuerier
    places: QueryShards
    quantity: Metric
    window: datetime.timedelta
    at: datetime.datetime

    def tallies(self) -> dict[str, JobCoverage]:
        """What is on record of one metric."""
        found: dict[str, JobCoverage] = {}
        for described, value in self._ask("max", "sum_over_time"):
            if described.key is not None:
                found.setdefault(described.job, JobCoverage()).totals[described.key] = value
        alike: dict[tuple[int, float], list[str]] = {}
        for job, tally in found.items():
            tally.tiles, tally.fullest = self._of_densest(job, tally)
            if 0 <= tally.tiles - self.window // RULE_INTERVAL <= 1:
                alike.setdefault((tally.tiles, tally.fullest), []).append(job)
            else:  # it was not every five minutes that something was recorded
                tally.doubtful.update(tally.totals)
        for (tiles, fullest), jobs in alike.items():
            for described in self._doubtful(tiles, fullest, jobs if len(found) > 1 else ()):
                if described.key is not None and described.job in found:
                    found[described.job].doubtful.add(described.key)
        return found

    def _of_densest(self, job: str, tally: JobCoverage) -> tuple[int, float]:
        """Of how many five minutes something is on record of it, and how much of the fullest of them."""
        densest = tally.densest()
        assert densest is not None  # noqa: S101 - it was counted, and nobody is in doubt yet
        places = list(
            of_pods(self.asker, [densest[:2]], self.at, self.asker.most(self.window / RULE_INTERVAL))
        )
        only = (promql.equals(JOB, job),)
        tiles, fullest = (
            max(
                value
                for described, value in self._ask("max", function, only=only, places=places)
                if described.key == densest
            )
            for function in ("count_over_time", "max_over_time")
        )
        return round(tiles), fullest

    def _doubtful(self, tiles: int, fullest: float, jobs: Sequence[str]) -> Iterable[SeriesLabels]:
        """Of whom something may be missing."""
        only = (promql.one_of(JOB, jobs),) if jobs else ()
        for function, least in (("count_over_time", float(tiles)), ("min_over_time", STEADY * fullest)):
            # Of a pod's use of a device there may be copies: all of them must be without gaps.
            for described, _ in self._ask("min", function, below=least, only=only):
                yield described

    def _ask(
        self,
        aggregation: str,
        function: str,
        *,
        below: float | None = None,
        only: Sequence[str] = (),
        places: QueryShards | None = None,
    ) -> Iterator[tuple[SeriesLabels, float]]:
        labels = self.asker.source.labels.described
        limit = "" if below is None else f" < {below!r}"

        def build(matchers: Sequence[str]) -> str:
            counts = recorded(self.quantity, COUNT, (*self.asker.owned, *only, *matchers))
            return promql.by(aggregation, labels, promql.over(function, counts, self.window) + limit)

        return self.asker.keyed(self.places if places is None else places, build, self.at)


def pods_of(keys: Iterable[UseKey]) -> set[PodKey]:
    """Whose use it is."""
    return {key[:2] for key in keys}
