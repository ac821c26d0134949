"""Replicas at work in each minute of some stretches of time, counted by Prometheus under the stem of their pods' names.

Who was at work is asked minute by minute; who had samples only of those of whom that is not plain (`complete.py`).
"""

import bisect
import collections
import dataclasses
import datetime
import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.model import Concurrency
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange
from rightsizer.usage.pod_name_patterns import OTHERS, STEM, SUFFIXES, NamePrefix, PodSelection
from rightsizer.usage.pod_presence import (
    DAY,
    MINUTE,
    DailyPeriods,
    Period,
    PeriodPresence,
    presence_by_period,
    present,
)
from rightsizer.usage.quantities import Statistic
from rightsizer.usage.querier import SourceQuerier, require_one_cluster_name
from rightsizer.usage.recording_rules import RawQueries
from rightsizer.usage.series_labels import CLUSTER

_TIMES = 3
"""So often a question about gaps names the pods."""

Column = Mapping[int, int]
"""A number for each minute of which there is one, from the first of the stretch."""


@dataclasses.dataclass(slots=True)
class Minutes:
    """What was counted of one stem."""

    busy: Column = dataclasses.field(default_factory=dict)
    seen: Column = dataclasses.field(default_factory=dict)
    gaps: Collection[int] = ()


def minutes_of(
    asker: SourceQuerier,
    stems: Mapping[str, Collection[NamePrefix]],
    rounds: Sequence[DailyPeriods],
    *,
    threshold: float,
    reach: datetime.timedelta,
) -> list[dict[NamePrefix, Minutes]]:
    """Replicas at work, replicas with samples, and replicas whose samples are missing, by stem, of each stretch.

    Args:
        asker: The source.
        stems: By suffix.
        rounds: The stretches.
        threshold: Activity above this (0 to 1) is work.
        reach: A sample so long before the end of a minute is of that minute.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    counter = _Counter(asker, threshold, reach, rounds[0].at)
    wheres = present(asker, stems, rounds, reach)
    found: list[dict[NamePrefix, Minutes]] = []
    for each in rounds:
        wholes = presence_by_period(asker, wheres, each, reach)
        found += [
            counter.count(wheres, stretch, whole)
            for stretch, whole in zip(each.stretches, wholes, strict=True)
        ]
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Counter:
    asker: SourceQuerier
    threshold: float
    reach: datetime.timedelta
    at: datetime.datetime

    def count(
        self, wheres: Sequence[PodSelection], stretch: Period, whole: PeriodPresence
    ) -> dict[NamePrefix, Minutes]:
        """One stretch."""
        counted: dict[NamePrefix, Minutes] = {}
        those = [where.only(whole.there) for where in wheres]
        doubts = whole.there - whole.replicas.keys()
        doubtful = [part for where in wheres for part in where.only(doubts).parts(_TIMES)]
        for stem, column in self._asked(self._busy, those, stretch.instants):
            mine = counted.setdefault(stem, Minutes())
            mine.busy = _merged(mine.busy, column, int.__add__)
        for stem, column in self._asked(self._seen, doubtful, stretch.instants):
            # The same replica may be seen in both forms of naming it.
            mine = counted.setdefault(stem, Minutes())
            mine.seen = _merged(mine.seen, column, max)
        gaps = functools.partial(self._gaps, around=stretch.around)
        later = stretch.later(self.at)
        for stem, column in self._asked(gaps, doubtful, later) if later else ():
            mine = counted.setdefault(stem, Minutes())
            mine.gaps = {*mine.gaps, *column}
        for stem, replicas in whole.replicas.items():
            counted.setdefault(stem, Minutes()).seen = dict.fromkeys(range(stretch.count), replicas)
        return counted

    def _asked(
        self,
        question: Callable[[PodSelection, Sequence[str]], str],
        wheres: Iterable[PodSelection],
        span: QueryRange,
    ) -> Iterator[tuple[NamePrefix, Column]]:
        """What a question gives for each stem."""
        columns = ParseCache(functools.partial(_column, span.start.timestamp()))
        asked = [where for where in wheres if where.members]
        answers = self.asker.prometheus.run_in_order(
            [functools.partial(self._ask, question, where, span, columns) for where in asked]
        )
        for where, answer in zip(asked, answers, strict=True):
            for stem, column in answer:
                if stem in where.members:  # or it is of that name, in the namespace of another
                    yield stem, column

    def _ask(
        self,
        question: Callable[[PodSelection, Sequence[str]], str],
        where: PodSelection,
        span: QueryRange,
        columns: ParseCache[Column],
    ) -> list[tuple[NamePrefix, Column]]:
        stems = self._stems(where.space_label)
        found: list[tuple[NamePrefix, Column]] = []
        for answer in self.asker.territory(MINUTE, self.at).ask(
            where.shards(),
            lambda matchers: self.asker.prometheus.query_range_as(
                where.grouped(question(where, (*self.asker.given, where.matcher, *matchers))),
                span,
                labels=stems,
                values=columns,
            ),
        ):
            require_one_cluster_name({cluster for (cluster, _), _ in answer})
            found += [(stem, column) for (_, stem), column in answer]
        return found

    def _stems(self, space_label: str) -> ParseCache[tuple[str, NamePrefix]]:
        """The clusters and stems that series name; the same in all stretches."""
        return self.asker.memo.of(
            self.at, ("stems", space_label), lambda: ParseCache(functools.partial(_stem, space_label))
        )

    def _busy(self, where: PodSelection, matchers: Sequence[str]) -> str:
        # Of each device: most say nothing, and of what is left `grouped` makes pods.
        return " or ".join(
            f"({RawQueries().statistic(quantity, Statistic.PEAK, matchers, self.reach)}"
            f" > {self.threshold / quantity.scale!r})"
            for quantity in where.quantities
        )

    def _seen(self, where: PodSelection, matchers: Sequence[str]) -> str:
        return " or ".join(self._present(where, matchers, self.reach))

    def _gaps(self, where: PodSelection, matchers: Sequence[str], around: datetime.timedelta) -> str:
        """Looked at from so much later: devices that had samples before and have some after, but none then."""
        # Matched, not gathered, by device: it is the costliest question of all, and three times as fast so.
        use = f"on ({', '.join(self.asker.source.labels.use)})"
        before, after, then = (
            f"({f' or {use} '.join(self._present(where, matchers, length, offset))})"
            for length, offset in (
                (around, around + self.reach),
                (around, datetime.timedelta()),
                (self.reach, around),
            )
        )
        return f"({before} and {use} {after}) unless {use} {then}"

    def _present(
        self,
        where: PodSelection,
        matchers: Sequence[str],
        length: datetime.timedelta,
        offset: datetime.timedelta = datetime.timedelta(),
    ) -> Iterator[str]:
        back = f" offset {promql.duration(offset)}" if offset else ""
        for quantity in where.quantities:
            selected = promql.selector(quantity.metric, [*quantity.matchers, *matchers])
            yield f"present_over_time({selected}[{promql.duration(length)}]{back})"


def _stem(space_label: str, text: msgspec.Raw) -> tuple[str, NamePrefix]:
    """The cluster and the stem that a series' labels name."""
    labels = msgspec.json.decode(text, type=dict[str, str])
    return labels.get(CLUSTER, ""), (labels.get(space_label, ""), labels.get(STEM, ""))


def _column(start: float, text: msgspec.Raw) -> Column:
    points = msgspec.json.decode(text, type=list[tuple[float, str]])
    return {round((instant - start) / 60): round(float(value)) for instant, value in points}


def _merged(one: Column, other: Column, how: Callable[[int, int], int]) -> Column:
    """Minute by minute; what is known of one alone is as it is."""
    if not one:
        return other
    both = {minute: how(one[minute], value) for minute, value in other.items() if minute in one}
    return {**one, **other, **both}


HOUR = datetime.timedelta(hours=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device that has samples so shortly before and after a minute was there in it. Lately, where the pods that are there
now must have samples anyhow, more would only keep more of the last minutes from being looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaQuery:
    """A workload whose replicas take each other's place.

    Attributes:
        pods: Its pods that hold GPUs now, with the instant from which on each should have samples.
        created: When the workload came; of days before there is nothing to say.
        window: The trailing window.
        days: How many earlier days to look at.
        threshold: Activity above this (0 to 1) counts as work.
    """

    uid: str
    namespace: str
    kind: str
    pods: Mapping[str, datetime.datetime]
    created: datetime.datetime | None = None
    window: datetime.timedelta = HOUR
    days: int = 7
    threshold: float = 0.01

    def stems(self) -> dict[tuple[str, str], set[str]]:
        """Stem and suffix's pattern → the replicas of its present pods; empty where a name fits no pattern."""
        found: dict[tuple[str, str], set[str]] = {}
        for name in self.pods:
            for suffix in SUFFIXES.get(self.kind, OTHERS):
                match = re.fullmatch(f"(.+?)-({suffix})", name)
                if match:
                    found.setdefault((match[1], suffix), set()).add(match.groups()[-1])
                    break
            else:
                return {}
        return found


def concurrency(
    asker: SourceQuerier, requests: Sequence[ReplicaQuery], at: datetime.datetime
) -> dict[str, Concurrency]:
    """How many replicas of each of these workloads were at work at the same time, by UID.

    Workloads whose pods' names fit no pattern are left out.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    alike = collections.defaultdict(list)
    for request in sorted(requests, key=lambda one: one.uid):
        if request.stems():
            alike[request.window, request.days, request.threshold].append(request)
    found: dict[str, Concurrency] = {}
    # Where samples are taken once a minute, a little more than a minute surely holds one.
    reach = max(MINUTE, datetime.timedelta(seconds=round(JITTER * asker.interval_s(at))))
    for (window, days, threshold), group in sorted(alike.items()):
        lately = Period(at, max(1, int(window / MINUTE)), NEAR)
        before = [Period(at - day * DAY + HOUR, 60, HOUR) for day in range(1, days + 1)]
        rounds = [DailyPeriods(tuple(each), at) for each in ([lately], before) if each]
        trailing, *earlier = minutes_of(asker, _stems(group), rounds, threshold=threshold, reach=reach)
        for request in group:
            found[request.uid] = Concurrency(
                _trailing(request, trailing, at, max(1, int(window / MINUTE)), reach),
                _earlier(request, earlier, at),
            )
    return found


def _stems(requests: Sequence[ReplicaQuery]) -> dict[str, set[NamePrefix]]:
    found: dict[str, set[NamePrefix]] = {}
    for request in requests:
        for stem, suffix in request.stems():
            found.setdefault(suffix, set()).add((request.namespace, stem))
    return found


def _trailing(
    request: ReplicaQuery,
    counted: Mapping[NamePrefix, Minutes],
    at: datetime.datetime,
    count: int,
    reach: datetime.timedelta,
) -> tuple[int | None, ...]:
    """For each minute how many were at work; unknown where samples are missing of a pod that is there now."""
    busy, seen, gaps = _together([counted[stem] for stem in _own(request) if stem in counted])
    starts = sorted(start + reach + MINUTE for start in _starts(request))
    found: list[int | None] = []
    for place in range(count):
        expected = bisect.bisect_right(starts, at - (count - 1 - place) * MINUTE)
        is_known = seen.get(place, 0) >= expected and place not in gaps
        found.append(busy.get(place, 0) if is_known else None)
    return tuple(found)


def _starts(request: ReplicaQuery) -> list[datetime.datetime]:
    """When each present replica began: its latest pod, where it is several."""
    starts: dict[tuple[str, str], datetime.datetime] = {}
    for name, start in request.pods.items():
        alone = dataclasses.replace(request, pods={name: start})
        for (stem, _), replicas in alone.stems().items():
            for replica in replicas:
                starts[stem, replica] = max(start, starts.get((stem, replica), start))
    return list(starts.values())


def _earlier(
    request: ReplicaQuery, days: Sequence[Mapping[NamePrefix, Minutes]], at: datetime.datetime
) -> tuple[int | None, ...]:
    """Of each earlier day the most at work in a minute of that hour; unknown where somebody's samples are missing."""
    found: list[int | None] = []
    stems = _own(request)
    for day, counted in zip(itertools.count(1), days, strict=False):
        if request.created is not None and request.created > at - day * DAY:
            break
        busy, seen, gaps = _together([counted[stem] for stem in stems if stem in counted])
        is_known = not gaps and all(map(seen.get, range(60)))
        found.append(max(busy.values(), default=0) if is_known else None)
    return tuple(found)


def _own(request: ReplicaQuery) -> list[NamePrefix]:
    return [(request.namespace, stem) for stem, _ in request.stems()]


def _together(minutes: Sequence[Minutes]) -> tuple[Column, Column, Collection[int]]:
    """Replicas at work, replicas with samples, and minutes with gaps, of several stems."""
    if len(minutes) == 1:
        return minutes[0].busy, minutes[0].seen, minutes[0].gaps
    busy, seen = collections.Counter[int](), collections.Counter[int]()
    for one in minutes:
        busy.update(one.busy)
        seen.update(one.seen)
    return busy, seen, {place for one in minutes for place in one.gaps}
