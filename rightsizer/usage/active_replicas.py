"""Busy replicas in each minute: of the pods that have the same name prefix, deleted ones too."""

import bisect
import collections
import dataclasses
import datetime
import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from rightsizer.kube.pod_names import NamePrefix, PodNames, replicas_by_prefix
from rightsizer.model import Concurrency, PodKey
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.device_usage import pods_seen
from rightsizer.usage.exporter_counters import pod_busy
from rightsizer.usage.querier import Build, SourceQuerier
from rightsizer.usage.recording_rules import RAW
from rightsizer.usage.slot_grid import Counts, SlotGrid, counts_of
from rightsizer.usage.source_metrics import Metric, MetricKind, Statistic, UseKey

MINUTE = datetime.timedelta(minutes=1)
HOUR = datetime.timedelta(hours=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device with samples this close before and after a minute existed in it."""

_COLUMNS = ("busy", "seen", "gaps")

CountsByPrefix = dict[tuple[str, str, str], Counts]
"""Replicas in each minute, by namespace, name prefix and column."""


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaQuery:
    """A workload with interchangeable replicas."""

    uid: str
    namespace: str
    names: PodNames
    # Its pods that hold GPUs, with the time from which on each should have samples
    pods: Mapping[str, datetime.datetime]
    window: datetime.timedelta = HOUR
    threshold: float = 0.01  # a replica with activity above this (0 to 1) is busy
    name: str = ""  # of the workload: one that ends in a number may look like a group of another

    def replicas(self) -> dict[tuple[str, str], set[str]]:
        """The replicas of its pods by name prefix and suffix; empty if a name fits no pattern."""
        found: dict[tuple[str, str], set[str]] = {}
        prefix = re.escape(self.name) if self.name and self.names.is_group else ".+?"
        for name in self.pods:
            for suffix in self.names.suffixes:
                match = re.fullmatch(f"({prefix})-({suffix})", name)
                if match:
                    found.setdefault((match[1], suffix), set()).add(match.groups()[-1])
                    break
            else:
                return {}
        return found

    def prefixes(self) -> list[NamePrefix]:
        """The name prefixes of its pods."""
        return [(self.namespace, prefix) for prefix, _ in self.replicas()]


States = npt.NDArray[np.uint8]
"""A state for each minute; of several, the highest counts."""
_FINITE = float(np.finfo(np.float32).max)
_NONE, _IDLE, _IMPOSSIBLE, _BUSY = range(4)
"""No sample, no work, a value that cannot be, and work."""


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


def _counted(workloads: Sequence[ReplicaQuery], grid: SlotGrid, query: "_MinuteQuery") -> CountsByPrefix:
    """The counts of each prefix."""
    suffixes: dict[NamePrefix, set[str]] = {}
    for workload in workloads:
        for prefix, suffix in workload.replicas():
            suffixes.setdefault((workload.namespace, prefix), set()).add(suffix)
    current = {(workload.namespace, name) for workload in workloads for name in workload.pods}
    pods = current | pods_seen(query.querier, grid.slots * grid.slot + NEAR)
    return query.counts(replicas_by_prefix(pods, suffixes), grid)


def _concurrency(
    workload: ReplicaQuery, counted: CountsByPrefix, grid: SlotGrid, reach: datetime.timedelta
) -> Concurrency:
    """Busy and unseen replicas in each minute."""
    busy, seen, gaps = (
        _sums([counted.get((*prefix, name)) for prefix in workload.prefixes()], grid.slots)
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

    def counts(
        self, pods: Mapping[PodKey, Sequence[tuple[NamePrefix, str]]], grid: SlotGrid
    ) -> CountsByPrefix:
        """The replicas of each prefix that were busy, had samples, or lack those of a device, by minute."""
        near = NEAR // MINUTE
        longer = dataclasses.replace(grid, slots=grid.slots + near)
        by_replica: dict[tuple[NamePrefix, str], list[States]] = collections.defaultdict(list)
        for key, row in self._states(pods.keys(), longer).items():
            for replica in pods[key[:2]]:
                by_replica[replica].append(row)
        columns: dict[tuple[str, str, str], npt.NDArray[np.int64]] = {}
        for (prefix, _), rows in by_replica.items():
            devices = np.array(rows)
            highest = devices.max(axis=0)[near:]
            lacking = _gaps(devices, near)[near:]
            for name, is_so in zip(_COLUMNS, (highest == _BUSY, highest != _NONE, lacking), strict=True):
                column = (*prefix, name)
                columns[column] = columns.get(column, 0) + is_so.astype(np.int64)
        return {key: counts_of(column) for key, column in columns.items()}

    def _states(self, pods: Collection[PodKey], grid: SlotGrid) -> dict[UseKey, States]:
        """What each use of a device did, by every gauge and counter."""
        found: dict[UseKey, States] = {}
        for build, parse, pod_labels in self._questions(grid):
            size = min(self.querier.max_series(RAW, grid.slots * grid.slot), MAX_POINTS / grid.slots)
            shards = self.querier.pod_shards(pods, size, pod_labels=pod_labels)
            for labels, row in self.querier.range_uses(shards, build, grid.steps, parse):
                if labels.key is not None and labels.key[:2] in pods:
                    known = found.get(labels.key)
                    found[labels.key] = row if known is None else np.maximum(known, row)
        return found

    def _questions(
        self, grid: SlotGrid
    ) -> Iterator[tuple[Build, Callable[[msgspec.Raw], States], Collection[str] | None]]:
        """PromQL, how its points are read, and the labels that name pods in it; None if unknown."""
        querier, answered = self.querier, self.querier.answered(grid.slots * grid.slot)
        for metric in (answered or querier.source).of(MetricKind.ACTIVITY):

            def peak(matchers: Sequence[str], metric: Metric = metric) -> str:
                statistic = RAW.statistic(metric, Statistic.PEAK, matchers, self.reach)
                return RAW.largest(querier.source.labels.described, statistic)

            states = functools.partial(self._states_of, grid, metric.scale, metric.highest, _IDLE)
            yield peak, states, answered.pod_labels if answered else None
        if querier.source.has_counters:  # of any device; two samples take twice the time of one
            busy = functools.partial(pod_busy, querier, 2 * self.reach)
            share = 1 / self.reach.total_seconds()
            yield busy, functools.partial(self._states_of, grid, share, _FINITE, _NONE), None

    def _states_of(
        self, grid: SlotGrid, scale: float, highest: float, idle: int, text: msgspec.Raw
    ) -> States:
        """The states of a series, from the JSON of its points: `idle` where it was not above the threshold."""
        shares = grid.values(text) * np.float32(scale)
        states = np.where(shares > np.float32(self.threshold), _BUSY, idle)
        states[~((shares >= 0) & (shares <= highest))] = _IMPOSSIBLE
        states[np.isnan(shares)] = _NONE
        return states.astype(np.uint8)


def _gaps(devices: npt.NDArray[np.uint8], near: int) -> npt.NDArray[np.bool_]:
    """The minutes in which a device lacks samples that count, though it has some shortly before and after."""
    is_seen = devices != _NONE
    before, after = np.zeros_like(is_seen), np.zeros_like(is_seen)
    for minutes in range(1, near + 1):
        before[:, minutes:] |= is_seen[:, :-minutes]
        after[:, :-minutes] |= is_seen[:, minutes:]
    lacking: npt.NDArray[np.bool_] = np.any((~is_seen & before & after) | (devices == _IMPOSSIBLE), axis=0)
    return lacking
