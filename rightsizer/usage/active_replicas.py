"""Busy replicas in each minute, counted by Prometheus under the name prefix of their pods.

Samples are counted minute by minute only for workloads that may miss some (`pod_presence.py`).
"""

import bisect
import collections
import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.model import Concurrency
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange, decode_labels, decode_points
from rightsizer.usage.pod_presence import (
    DAY,
    MINUTE,
    OTHER_SUFFIXES,
    PREFIX_LABEL,
    SUFFIXES,
    DailyPeriods,
    NamePrefix,
    Period,
    PeriodPresence,
    PodSelection,
    pods_with_samples,
    presence_by_period,
)
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.recording_rules import RAW, raw_selector
from rightsizer.usage.source_metrics import CLUSTER, Statistic

HOUR = datetime.timedelta(hours=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device with samples this close before and after a minute existed in it. A larger value leaves more of the last
minutes unchecked; there, current pods must have samples anyway."""

_TIMES_NAMED = 3
"""How often a query for gaps lists the pods."""

Column = Mapping[int, int]
"""A number by minute, from the first of the period."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaQuery:
    """A workload with interchangeable replicas."""

    uid: str
    namespace: str
    kind: str
    # Its pods that hold GPUs, with the time from which on each should have samples
    pods: Mapping[str, datetime.datetime]
    created: datetime.datetime | None = None  # earlier days are not queried
    window: datetime.timedelta = HOUR  # the trailing window
    days: int = 7  # how many earlier days to query
    threshold: float = 0.01  # a replica with activity above this (0 to 1) is busy

    def replicas(self) -> dict[tuple[str, str], set[str]]:
        """The replicas of its pods by name prefix and suffix; empty if a name fits no pattern."""
        found: dict[tuple[str, str], set[str]] = {}
        for name in self.pods:
            for suffix in SUFFIXES.get(self.kind, OTHER_SUFFIXES):
                match = re.fullmatch(f"(.+?)-({suffix})", name)
                if match:
                    found.setdefault((match[1], suffix), set()).add(match.groups()[-1])
                    break
            else:
                return {}
        return found

    def prefixes(self) -> list[NamePrefix]:
        """The name prefixes of its pods."""
        return [(self.namespace, prefix) for prefix, _ in self.replicas()]


@dataclasses.dataclass(slots=True)
class ReplicaMinutes:
    """Busy replicas and replicas with samples by minute, and the minutes without samples of some device."""

    busy: Column = dataclasses.field(default_factory=dict)
    seen: Column = dataclasses.field(default_factory=dict)
    gaps: Collection[int] = ()


def busy_replicas(querier: SourceQuerier, workloads: Sequence[ReplicaQuery]) -> dict[str, Concurrency]:
    """How many replicas of each workload were busy at the same time, by UID.

    Workloads whose pods' names fit no pattern are left out.
    """
    at = querier.at
    alike = collections.defaultdict(list)
    for workload in sorted(workloads, key=lambda one: one.uid):
        if workload.replicas():
            alike[workload.window, workload.days, workload.threshold].append(workload)
    found: dict[str, Concurrency] = {}
    # With one sample a minute, a range of a little more than a minute holds one.
    reach = max(MINUTE, datetime.timedelta(seconds=round(JITTER * querier.interval_s())))
    for (window, days, threshold), group in sorted(alike.items()):
        trailing = [Period(at, max(1, int(window / MINUTE)), NEAR)]
        earlier = [Period(at - day * DAY + HOUR, 60, HOUR) for day in range(1, days + 1)]
        rounds = [DailyPeriods(tuple(each), at, reach) for each in (trailing, earlier) if each]
        first, *others = _count(group, rounds, _MinuteQuery(querier, threshold, reach))
        for workload in group:
            found[workload.uid] = Concurrency(
                _trailing(workload, first, trailing[0], reach), _earlier(workload, others, at)
            )
    return found


def _count(
    workloads: Sequence[ReplicaQuery], rounds: Sequence[DailyPeriods], query: "_MinuteQuery"
) -> list[dict[NamePrefix, ReplicaMinutes]]:
    """The counts of each prefix, period by period."""
    prefixes: dict[str, set[NamePrefix]] = {}
    for workload in workloads:
        for prefix, suffix in workload.replicas():
            prefixes.setdefault(suffix, set()).add((workload.namespace, prefix))
    selections = pods_with_samples(query.querier, prefixes, rounds)
    return [
        query.count(selections, period, presence)
        for periods in rounds
        for period, presence in zip(
            periods.periods, presence_by_period(query.querier, selections, periods), strict=True
        )
    ]


def _trailing(
    workload: ReplicaQuery,
    counted: Mapping[NamePrefix, ReplicaMinutes],
    period: Period,
    reach: datetime.timedelta,
) -> tuple[int | None, ...]:
    """Busy replicas in each minute; None if samples of a current pod are missing."""
    busy, seen, gaps = _sums(workload, counted)
    starts = sorted(start + reach + MINUTE for start in _starts(workload))
    found: list[int | None] = []
    for minute in range(period.minutes):
        expected = bisect.bisect_right(starts, period.steps.start + minute * MINUTE)
        is_known = seen.get(minute, 0) >= expected and minute not in gaps
        found.append(busy.get(minute, 0) if is_known else None)
    return tuple(found)


def _starts(workload: ReplicaQuery) -> list[datetime.datetime]:
    """The start of each replica; of a group, that of its latest pod."""
    starts: dict[tuple[str, str], datetime.datetime] = {}
    for name, start in workload.pods.items():
        for (prefix, _), replicas in dataclasses.replace(workload, pods={name: start}).replicas().items():
            for replica in replicas:
                starts[prefix, replica] = max(start, starts.get((prefix, replica), start))
    return list(starts.values())


def _earlier(
    workload: ReplicaQuery, days: Sequence[Mapping[NamePrefix, ReplicaMinutes]], at: datetime.datetime
) -> tuple[int | None, ...]:
    """The most busy replicas in a minute of the hour on each earlier day; None if samples are missing."""
    found: list[int | None] = []
    for day, counted in enumerate(days, 1):
        if workload.created is not None and workload.created > at - day * DAY:
            break
        busy, seen, gaps = _sums(workload, counted)
        is_known = not gaps and all(map(seen.get, range(60)))
        found.append(max(busy.values(), default=0) if is_known else None)
    return tuple(found)


def _sums(
    workload: ReplicaQuery, counted: Mapping[NamePrefix, ReplicaMinutes]
) -> tuple[Column, Column, Collection[int]]:
    """Busy replicas, replicas with samples, and minutes with gaps, of all prefixes of a workload."""
    minutes = [counted[prefix] for prefix in workload.prefixes() if prefix in counted]
    if len(minutes) == 1:
        return minutes[0].busy, minutes[0].seen, minutes[0].gaps
    busy, seen = collections.Counter[int](), collections.Counter[int]()
    for one in minutes:
        busy.update(one.busy)
        seen.update(one.seen)
    return busy, seen, {minute for one in minutes for minute in one.gaps}


@dataclasses.dataclass(frozen=True, slots=True)
class _MinuteQuery:
    """Range queries of one step for each minute."""

    querier: SourceQuerier
    threshold: float  # a replica with activity above this (0 to 1) is busy
    reach: datetime.timedelta  # a sample so long before the end of a minute counts for that minute

    def count(
        self, selections: Sequence[PodSelection], period: Period, presence: PeriodPresence
    ) -> dict[NamePrefix, ReplicaMinutes]:
        """The counts of one period."""
        found: dict[NamePrefix, ReplicaMinutes] = collections.defaultdict(ReplicaMinutes)
        present = [selection.only(presence.present) for selection in selections]
        incomplete = presence.present - presence.complete.keys()
        partial = [part for one in selections for part in one.only(incomplete).split(_TIMES_NAMED)]
        for prefix, column in self._columns(self._busy, present, period.steps):
            found[prefix].busy = _merged(found[prefix].busy, column, int.__add__)
        for prefix, column in self._columns(self._seen, partial, period.steps):
            # Both labels may name the same replica.
            found[prefix].seen = _merged(found[prefix].seen, column, max)
        gaps = functools.partial(self._gaps, around=period.around)
        later = period.later_steps(self.querier.at)
        for prefix, column in self._columns(gaps, partial, later) if later else ():
            found[prefix].gaps = {*found[prefix].gaps, *column}
        for prefix, replicas in presence.complete.items():
            found[prefix].seen = dict.fromkeys(range(period.minutes), replicas)
        return found

    def _columns(
        self,
        build: Callable[[PodSelection, Sequence[str]], str],
        selections: Iterable[PodSelection],
        steps: QueryRange,
    ) -> Iterator[tuple[NamePrefix, Column]]:
        """The replicas of each prefix for which a query has a value, by minute."""
        columns = ParseCache(functools.partial(_parse_column, steps.start.timestamp()))

        def run(selection: PodSelection) -> list[tuple[NamePrefix, Column]]:
            namespace_label = selection.namespace_label
            parse = functools.partial(_parse_prefix, namespace_label)
            labels = self.querier.once(("prefixes", namespace_label), lambda: ParseCache(parse))

            def query(matchers: Sequence[str]) -> str:
                every = (*self.querier.matchers, selection.matcher, *matchers)
                return selection.replicas(build(selection, every))

            return list(self.querier.range_series(selection.shards(), query, steps, (labels, columns)))

        some = [selection for selection in selections if selection.pods]
        tasks = [functools.partial(run, selection) for selection in some]
        for selection, result in zip(some, self.querier.prometheus.run_in_order(tasks), strict=True):
            for prefix, column in result:
                if prefix in selection.pods:  # else a prefix of another namespace
                    yield prefix, column

    def _busy(self, selection: PodSelection, matchers: Sequence[str]) -> str:
        # By device: most have no value, and only the others are then grouped by pod.
        return " or ".join(
            f"({RAW.statistic(metric, Statistic.PEAK, matchers, self.reach)}"
            f" > {self.threshold / metric.scale!r})"
            for metric in selection.metrics
        )

    def _seen(self, selection: PodSelection, matchers: Sequence[str]) -> str:
        return " or ".join(self._present(selection, matchers, self.reach))

    def _gaps(self, selection: PodSelection, matchers: Sequence[str], around: datetime.timedelta) -> str:
        """At a step `around` later: devices with samples before and after the minute, but none in it."""
        # `on` instead of an aggregation by device: three times as fast, and this is the most expensive query.
        use = f"on ({', '.join(self.querier.source.labels.use)})"
        before, after, during = (
            f"({f' or {use} '.join(self._present(selection, matchers, length, offset))})"
            for length, offset in (
                (around, around + self.reach),
                (around, datetime.timedelta()),
                (self.reach, around),
            )
        )
        return f"({before} and {use} {after}) unless {use} {during}"

    def _present(
        self,
        selection: PodSelection,
        matchers: Sequence[str],
        length: datetime.timedelta,
        offset: datetime.timedelta = datetime.timedelta(),
    ) -> Iterator[str]:
        back = f" offset {promql.duration(offset)}" if offset else ""
        for metric in selection.metrics:
            yield f"present_over_time({raw_selector(metric, matchers)}[{promql.duration(length)}]{back})"


def _parse_prefix(namespace_label: str, text: msgspec.Raw) -> tuple[str, NamePrefix]:
    """The cluster and the prefix of a series."""
    labels = decode_labels(text)
    return labels.get(CLUSTER, ""), (labels.get(namespace_label, ""), labels.get(PREFIX_LABEL, ""))


def _parse_column(start: float, text: msgspec.Raw) -> Column:
    return {round((instant - start) / 60): round(value) for instant, value in decode_points(text)}


def _merged(one: Column, other: Column, how: Callable[[int, int], int]) -> Column:
    """Merge minute by minute; a minute of one column only stays as it is."""
    if not one:
        return other
    both = {minute: how(one[minute], value) for minute, value in other.items() if minute in one}
    return {**one, **other, **both}
