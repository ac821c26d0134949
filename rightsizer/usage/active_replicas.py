"""Busy replicas in each minute, counted by Prometheus under the name prefix of their pods.

Samples are counted minute by minute only for workloads that may miss some (`pod_presence.py`).
"""

import array
import bisect
import collections
import dataclasses
import datetime
import functools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.model import Concurrency
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange, decode_labels, decode_points
from rightsizer.usage.exporter_counters import POD_BUSY
from rightsizer.usage.kept_slots import SlotRows
from rightsizer.usage.pod_presence import (
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
from rightsizer.usage.slot_grid import COUNT, Counts, SlotGrid, counted
from rightsizer.usage.source_metrics import CLUSTER, MetricKind, Statistic

HOUR = datetime.timedelta(hours=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device with samples this close before and after a minute existed in it. A larger value leaves more of the last
minutes unchecked; there, current pods must have samples anyway."""

_TIMES_NAMED = 3
"""How often a query for gaps lists the pods."""

_COLUMNS = ("busy", "seen", "gaps")


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaQuery:
    """A workload with interchangeable replicas."""

    uid: str
    namespace: str
    kind: str
    # Its pods that hold GPUs, with the time from which on each should have samples
    pods: Mapping[str, datetime.datetime]
    window: datetime.timedelta = HOUR
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


def _none() -> Counts:
    return array.array(COUNT)


@dataclasses.dataclass(slots=True)
class ReplicaMinutes:
    """Replicas by minute: busy ones, those with samples, and those of which some device lacks samples.

    A column without a replica in any minute is empty.
    """

    busy: Counts = dataclasses.field(default_factory=_none)
    seen: Counts = dataclasses.field(default_factory=_none)
    gaps: Counts = dataclasses.field(default_factory=_none)


def busy_replicas(querier: SourceQuerier, workloads: Sequence[ReplicaQuery]) -> dict[str, Concurrency]:
    """How many replicas of each workload were busy at the same time, by UID.

    Workloads whose pods' names fit no pattern are left out.
    """
    # Whole minutes: a later cycle has the same ones.
    end = querier.at - datetime.timedelta(seconds=querier.at.timestamp() % MINUTE.total_seconds())
    alike = collections.defaultdict(list)
    for workload in sorted(workloads, key=lambda one: one.uid):
        if workload.replicas():
            alike[workload.window, workload.threshold].append(workload)
    found: dict[str, Concurrency] = {}
    # With one sample a minute, a range of a little more than a minute holds one.
    reach = max(MINUTE, datetime.timedelta(seconds=round(JITTER * querier.interval_s())))
    for (window, threshold), group in sorted(alike.items()):
        grid = SlotGrid(end, MINUTE, max(1, int(window / MINUTE)))
        counted = _counted(group, grid, _MinuteQuery(querier, threshold, reach))
        for workload in group:
            found[workload.uid] = _concurrency(workload, counted, grid, reach)
    return found


def _counted(workloads: Sequence[ReplicaQuery], grid: SlotGrid, query: "_MinuteQuery") -> SlotRows:
    """The counts of each prefix, also by earlier cycles if these are kept."""
    suffixes: dict[NamePrefix, set[str]] = {}
    owners: dict[NamePrefix, set[tuple[str, str]]] = {}
    for workload in workloads:
        for prefix, suffix in workload.replicas():
            suffixes.setdefault((workload.namespace, prefix), set()).add(suffix)
            owners.setdefault((workload.namespace, prefix), set()).add((workload.uid, suffix))

    def read(prefixes: Collection[NamePrefix], grid: SlotGrid) -> SlotRows:
        some = {prefix: suffixes[prefix] for prefix in prefixes}
        return _rows(_count(some, Period(grid.end, grid.slots, NEAR), query))

    kept = query.querier.kept
    if kept is None:
        return read(suffixes, grid)
    has_counters = query.querier.source.has_counters
    asked = (query.threshold, query.reach, has_counters)
    question = ("replicas", *query.querier.question(MetricKind.ACTIVITY), *asked)
    return kept.extended(question, grid, {each: sorted(of) for each, of in owners.items()}, read)


def _count(
    suffixes: Mapping[NamePrefix, Collection[str]], period: Period, query: "_MinuteQuery"
) -> dict[NamePrefix, ReplicaMinutes]:
    """The counts of each prefix."""
    prefixes: dict[str, set[NamePrefix]] = {}
    for prefix, names in suffixes.items():
        for suffix in names:
            prefixes.setdefault(suffix, set()).add(prefix)
    periods = DailyPeriods((period,), query.querier.at, query.reach)
    selections = pods_with_samples(query.querier, prefixes, [periods])
    (presence,) = presence_by_period(query.querier, selections, periods)
    return query.count(selections, period, presence)


def _rows(counted: Mapping[NamePrefix, ReplicaMinutes]) -> SlotRows:
    columns = {
        (*prefix, name, ""): getattr(minutes, name)
        for prefix, minutes in counted.items()
        for name in _COLUMNS
    }
    return SlotRows({}, {key: column for key, column in columns.items() if any(column)})


def _concurrency(
    workload: ReplicaQuery, counted: SlotRows, grid: SlotGrid, reach: datetime.timedelta
) -> Concurrency:
    """Busy and unseen replicas in each minute."""
    busy, seen, gaps = (
        _sums([counted.counts.get((*prefix, name, "")) for prefix in workload.prefixes()], grid.slots)
        for name in _COLUMNS
    )
    starts = sorted(start + reach + MINUTE for start in _starts(workload))
    first = grid.steps.start
    expected = (bisect.bisect_right(starts, first + number * MINUTE) for number in range(grid.slots))
    # A replica with a gap may also be one that has samples of another device.
    unseen = (max(most - there - gap, 0) + gap for most, there, gap in zip(expected, seen, gaps, strict=True))
    return Concurrency(tuple(busy), tuple(unseen))


def _sums(columns: "Iterable[Counts | None]", minutes: int) -> list[int]:
    found = [column for column in columns if column]
    return list(map(sum, zip(*found, strict=True))) if found else [0] * minutes


def _starts(workload: ReplicaQuery) -> list[datetime.datetime]:
    """The start of each replica; of a group, that of its latest pod."""
    starts: dict[tuple[str, str], datetime.datetime] = {}
    for name, start in workload.pods.items():
        for (prefix, _), replicas in dataclasses.replace(workload, pods={name: start}).replicas().items():
            for replica in replicas:
                starts[prefix, replica] = max(start, starts.get((prefix, replica), start))
    return list(starts.values())


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
        by_gauges = [one.only(incomplete) for one in selections if one.metrics]
        partial = [part for one in by_gauges for part in one.split(_TIMES_NAMED)]
        for prefix, column in self._columns(self._busy, present, period.steps, period.minutes):
            found[prefix].busy = _merged(found[prefix].busy, column, operator.add)
        for prefix, column in self._columns(self._seen, partial, period.steps, period.minutes):
            # Both labels may name the same replica.
            found[prefix].seen = _merged(found[prefix].seen, column, max)
        gaps = functools.partial(self._gaps, around=period.around)
        later = period.later_steps(self.querier.at)
        for prefix, column in self._columns(gaps, partial, later, period.minutes) if later else ():
            found[prefix].gaps = _merged(found[prefix].gaps, column, max)
        for prefix, replicas in presence.complete.items():
            found[prefix].seen = array.array(COUNT, [counted(replicas)]) * period.minutes
        return found

    def _columns(
        self,
        build: Callable[[PodSelection, Sequence[str]], str],
        selections: Iterable[PodSelection],
        steps: QueryRange,
        minutes: int,
    ) -> Iterator[tuple[NamePrefix, Counts]]:
        """The replicas of each prefix for which a query has a value, by minute."""
        columns = ParseCache(functools.partial(_parse_column, steps.start.timestamp(), minutes))

        def run(selection: PodSelection) -> list[tuple[NamePrefix, Counts]]:
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
        found = [
            f"({RAW.statistic(metric, Statistic.PEAK, matchers, self.reach)}"
            f" > {self.threshold / metric.scale!r})"
            for metric in selection.metrics
        ]
        if self.querier.source.has_counters:  # of any device; two samples take twice the time of one
            increase = promql.over("increase", promql.selector(POD_BUSY, matchers), 2 * self.reach)
            found.append(f"({increase} > {self.threshold * self.reach.total_seconds()!r})")
        return " or ".join(found)

    def _seen(self, selection: PodSelection, matchers: Sequence[str]) -> str:
        return " or ".join(self._present(selection, matchers, self.reach))

    def _gaps(self, selection: PodSelection, matchers: Sequence[str], around: datetime.timedelta) -> str:
        """At a step `around` later: devices with samples before and after the minute, but none in it."""
        # `on` instead of an aggregation by device: three times as fast, and this is the most expensive query.
        use = f"on {promql.listed(self.querier.source.labels.use)}"
        before, after, during = (
            f"({f' or {use} '.join(self._present(selection, matchers, length, offset))})"
            for length, offset in (
                (around, around + self.reach),
                (around, None),
                (self.reach, around),
            )
        )
        return f"({before} and {use} {after}) unless {use} {during}"

    def _present(
        self,
        selection: PodSelection,
        matchers: Sequence[str],
        length: datetime.timedelta,
        offset: datetime.timedelta | None = None,
    ) -> Iterator[str]:
        for metric in selection.metrics:
            selected = raw_selector(metric, matchers)
            yield promql.over("present_over_time", selected, length, offset=offset)


def _parse_prefix(namespace_label: str, text: msgspec.Raw) -> tuple[str, NamePrefix]:
    """The cluster and the prefix of a series."""
    labels = decode_labels(text)
    return labels.get(CLUSTER, ""), (labels.get(namespace_label, ""), labels.get(PREFIX_LABEL, ""))


def _parse_column(start: float, minutes: int, text: msgspec.Raw) -> Counts:
    """A number for each minute, 0 where there is none."""
    column = array.array(COUNT, [0]) * minutes
    for instant, value in decode_points(text):
        minute = round((instant - start) / 60)
        if 0 <= minute < minutes:
            column[minute] = counted(value)
    return column


def _merged(one: Counts, other: Counts, how: Callable[[int, int], int]) -> Counts:
    """Merge minute by minute."""
    return array.array(COUNT, map(how, one, other)) if one else other
