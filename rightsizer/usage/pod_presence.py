"""Pods of a workload by name, deleted ones too, and whether each has samples in every minute of some periods.

A name is a prefix and a suffix that the controller adds. If the densest pod has samples in every minute, so does any
pod with nearly as many. This takes one number for each pod and period, instead of two for each minute.
"""

import dataclasses
import datetime
import functools
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange, decode_labels, decode_points
from rightsizer.prometheus.sharding import Shard
from rightsizer.usage.exporter_counters import POD_BUSY
from rightsizer.usage.provenance import Provenance
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.recording_rules import COUNT, RAW, RULE_INTERVAL, raw_selector, recorded_selector
from rightsizer.usage.source_metrics import CLUSTER, JOB, TARGET, Metric, MetricKind

# k8s.io/apimachinery/pkg/util/rand: the characters of generated names.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
HASHED = f"{_RANDOM}{{1,10}}-{_RANDOM}{{5}}"
"""Of a Deployment's pod: the hash of the pod template, and five characters."""
RANDOM = f"{_RANDOM}{{5}}"
"""Of a ReplicaSet's pod."""
ORDINAL = "[0-9]+"
"""Of a StatefulSet's pod."""
GROUPED = "([0-9]+)(?:-[0-9]+)?"
"""Of a LeaderWorkerSet's pod: all pods of one number are one replica."""

SUFFIXES = {"StatefulSet": (ORDINAL,), "LeaderWorkerSet": (GROUPED,), "ReplicaSet": (RANDOM,)}
"""By kind."""
OTHER_SUFFIXES = (HASHED, ORDINAL, RANDOM)
"""Of other kinds, whose pods belong to Deployments or StatefulSets."""

NamePrefix = tuple[str, str]
"""Namespace, and the part of a pod's name before the suffix."""

_MAX_QUERY_TEXT = promql.MAX_TEXT * 3 // 2
"""Characters of all names in one query; with more matchers, each has fewer names."""

PodsByPrefix = dict[NamePrefix, dict[str, str]]
"""The names of the pods of each prefix, with the replica of each."""

PREFIX_LABEL, _REPLICA_LABEL = "stem", "replica"


def pods_by_prefix(
    pods: Iterable[PodKey], prefixes: Mapping[str, Collection[NamePrefix]]
) -> dict[str, PodsByPrefix]:
    """The pods with these prefixes; both are grouped by suffix."""
    suffixes = {suffix: re.compile(suffix) for suffix in prefixes}
    found: dict[str, PodsByPrefix] = {suffix: {} for suffix in prefixes}
    for namespace, name in pods:
        for parts in (1, 2):
            prefix = namespace, name.rsplit("-", parts)[0]
            for suffix, wanted in prefixes.items():
                begin = len(prefix[1]) + 1
                if prefix in wanted and (match := suffixes[suffix].fullmatch(name, begin)):
                    found[suffix].setdefault(prefix, {})[name] = match[match.lastindex or 0]
    return found


def batches(pods: PodsByPrefix, matchers: int) -> Iterator[PodsByPrefix]:
    """The prefixes in order, in batches whose pod names fit into this many matchers; none is split."""
    limits = (promql.MOST_NAMES, _MAX_QUERY_TEXT // max(matchers, 2))

    def costs(prefix: NamePrefix) -> tuple[int, int]:
        return len(pods[prefix]), sum(map(len, (*prefix, *pods[prefix])))

    for batch in promql.packed(sorted(pods), costs, limits):
        yield {prefix: pods[prefix] for prefix in batch}


@dataclasses.dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods of some prefixes, by one label that names pods, and the metrics that have series of them."""

    label: str
    namespace_label: str
    matchers: tuple[str, ...]
    pods: PodsByPrefix
    suffix: str
    metrics: tuple[Metric, ...]

    def shards(self) -> list[Shard]:
        """Their namespaces, in one shard."""
        names = sorted({namespace for namespace, _ in self.pods})
        return [Shard.of(self.namespace_label, names, 1, self.matchers)]

    def one_pod(self, pod: PodKey) -> "PodSelection":
        """One pod alone."""
        namespace, name = pod
        prefix = next(each for each, names in self.pods.items() if each[0] == namespace and name in names)
        return dataclasses.replace(self, pods={prefix: {name: self.pods[prefix][name]}})

    def only(self, prefixes: Collection[NamePrefix]) -> "PodSelection":
        """The pods of some of the prefixes."""
        pods = {prefix: pods for prefix, pods in self.pods.items() if prefix in prefixes}
        return dataclasses.replace(self, pods=pods)

    def split(self, times: int) -> "Iterator[PodSelection]":
        """Parts that fit into one query that lists the names this often for each metric."""
        for batch in batches(self.pods, times * len(self.metrics)):
            yield dataclasses.replace(self, pods=batch)

    @property
    def pod_labels(self) -> tuple[str, ...]:
        """Labels of the pod."""
        return CLUSTER, self.namespace_label, self.label

    @property
    def matcher(self) -> str:
        """A matcher for the pods."""
        return promql.one_of(self.label, sorted({name for pods in self.pods.values() for name in pods}))

    def replicas(self, expression: str) -> str:
        """PromQL: how many replicas of each prefix have a value."""
        is_grouped = self.suffix.startswith("(")
        # Other suffixes have a fixed number of parts, so the pattern need not list the prefixes.
        names = sorted({name for _, name in self.pods}) if is_grouped else ()
        prefix = "|".join(map(promql.escaped, names)) or ".+"
        pattern = promql.quoted(f"({prefix})-{self.suffix if is_grouped else f'({self.suffix})'}")
        keys, label = (CLUSTER, self.namespace_label, PREFIX_LABEL), promql.quoted(self.label)
        # By pod first: label_replace then runs on fewer series.
        pods = promql.by("max", self.pod_labels, expression)
        named = f'label_replace({pods}, "{PREFIX_LABEL}", "$1", {label}, {pattern})'
        if is_grouped:  # several pods are one replica
            named = f'label_replace({named}, "{_REPLICA_LABEL}", "$2", {label}, {pattern})'
            named = promql.by("max", (*keys, _REPLICA_LABEL), named)
        return promql.by("count", keys, named)


MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
ClusterPod = tuple[str, PodKey]
"""Cluster and pod."""
Points = Sequence[tuple[int, float]]
"""Number of a period, and samples."""
CountsByPeriod = dict[int, dict[PodKey, float]]
"""Samples of each pod's device that has least, by the number of the period."""


@dataclasses.dataclass(frozen=True, slots=True)
class Period:
    """A number of minutes, the last of which ends at `end`."""

    end: datetime.datetime
    minutes: int
    # How far before and after a minute to look for devices that have no samples in it
    around: datetime.timedelta

    @property
    def steps(self) -> QueryRange:
        """The ends of the minutes."""
        return QueryRange(self.end - (self.minutes - 1) * MINUTE, self.end, MINUTE.total_seconds())

    def later_steps(self, at: datetime.datetime) -> QueryRange | None:
        """The ends of the minutes, later by `around` but not after `at`; None if there are none."""
        start, end = self.steps.start + self.around, min(self.end + self.around, at)
        return QueryRange(start, end, MINUTE.total_seconds()) if start <= end else None


@dataclasses.dataclass(frozen=True, slots=True)
class DailyPeriods:
    """Periods of one length, a day apart, the latest first; one range query covers all of them."""

    periods: tuple[Period, ...]
    at: datetime.datetime  # no query looks at later samples
    reach: datetime.timedelta  # a sample so long before the end of a minute counts for that minute

    @property
    def reaches(self) -> int:
        """The length of a period with `around`, rounded up to whole reaches."""
        first = self.periods[0]
        length = first.minutes * MINUTE + first.around + (self.end(0) - first.end) + self.reach
        return -(-length // self.reach)

    @property
    def steps(self) -> QueryRange:
        """The ends of the periods with `around`."""
        return QueryRange(self.end(-1), self.end(0), DAY.total_seconds())

    def number(self, instant: float) -> int:
        """The number of the period that ends at a Unix time."""
        return round((self.end(0).timestamp() - instant) / DAY.total_seconds())

    def end(self, number: int) -> datetime.datetime:
        """The end of a period with `around`."""
        period = self.periods[number]
        return min(period.end + period.around, self.at)


@dataclasses.dataclass(slots=True)
class PeriodPresence:
    """Prefixes with samples in a period."""

    present: set[NamePrefix] = dataclasses.field(default_factory=set)
    # Those with samples in every minute, with their number of replicas throughout the period
    complete: dict[NamePrefix, int] = dataclasses.field(default_factory=dict)


def pods_with_samples(
    querier: SourceQuerier, prefixes: Mapping[str, Collection[NamePrefix]], rounds: Sequence[DailyPeriods]
) -> list[PodSelection]:
    """The pods of these prefixes (given by suffix) that have samples in or around the periods."""
    namespaces = sorted({namespace for each in prefixes.values() for namespace, _ in each})
    selections = []
    for label, namespace_label, absent in querier.source.labels.pod_labels():
        empty = PodSelection(label, namespace_label, absent, {}, "", ())
        shards = [
            Shard.of(namespace_label, batch, 1, absent)
            for batch in promql.batches(namespaces, promql.MAX_TEXT // 2)
        ]
        found = _Exporters()
        metrics = tuple(
            metric
            for metric in querier.source.of(MetricKind.ACTIVITY)
            if found.add(
                querier.provenance,
                (one for periods in rounds for one in _of_metric(querier, metric, empty, shards, periods)),
            )
        )
        if querier.source.has_counters:
            busy = (_of_metric(querier, _COUNTER, empty, shards, periods) for periods in rounds)
            found.add(querier.provenance, itertools.chain.from_iterable(busy))
        for suffix, pods in sorted(pods_by_prefix(sorted(found.by_pod), prefixes).items()):
            selections += [
                dataclasses.replace(
                    empty,
                    pods=batch,
                    suffix=suffix,
                    metrics=metrics,
                    matchers=(*absent, *found.matchers(batch)),
                )
                for batch in batches(pods, len(metrics) * (2 if found.matchers(pods) else 1))
            ]
    return selections


_COUNTER = Metric(MetricKind.ACTIVITY, POD_BUSY, 1.0)

PodTarget = tuple[PodKey, str, str]
"""A pod, and the job and instance of a target with a series of it."""


@dataclasses.dataclass(slots=True)
class _Exporters:
    """The exporters with series of each pod, and the pods that another target names, too."""

    by_pod: dict[PodKey, set[str]] = dataclasses.field(default_factory=dict)
    forged: set[PodKey] = dataclasses.field(default_factory=set)

    def add(self, provenance: Provenance, found: Iterable[PodTarget]) -> bool:
        """Add targets; whether any is an exporter."""
        is_any = False
        for pod, job, instance in found:
            if provenance.accepts(pod, job, instance):
                is_any = True
                self.by_pod.setdefault(pod, set()).add(instance)
            else:
                self.forged.add(pod)
        return is_any

    def matchers(self, pods: PodsByPrefix) -> tuple[str, ...]:
        """A matcher of the pods' exporters, if queries would merge series of other targets with theirs."""
        keys = {(namespace, name) for (namespace, _), names in pods.items() for name in names}
        if self.forged.isdisjoint(keys):
            return ()
        return (promql.one_of(TARGET, sorted({one for key in keys for one in self.by_pod[key]})),)


def _of_metric(
    querier: SourceQuerier,
    metric: Metric,
    selection: PodSelection,
    shards: Sequence[Shard],
    periods: DailyPeriods,
) -> Iterator[PodTarget]:
    """The pods in these namespaces that have series of a metric, with the targets of these."""
    length = periods.reaches * periods.reach
    # The last recorded value may be five minutes old.
    is_past = periods.steps.end + RULE_INTERVAL <= periods.at
    may_be_recorded = is_past and metric is not _COUNTER
    form = querier.query_form(periods.at - periods.steps.start + length) if may_be_recorded else RAW

    def build(matchers: Sequence[str]) -> str:
        every = (*querier.pod_matchers, *matchers)
        is_recorded = form.is_recorded
        selected = recorded_selector([metric], COUNT, every) if is_recorded else raw_selector(metric, every)
        present = promql.over("present_over_time", selected, length + RULE_INTERVAL)
        return promql.by("max", (*selection.pod_labels, JOB, TARGET), present)

    def parse(text: msgspec.Raw) -> tuple[str, PodTarget]:
        labels = decode_labels(text)
        pod = labels.get(selection.namespace_label, ""), labels.get(selection.label, "")
        return labels.get(CLUSTER, ""), (pod, labels.get(JOB, ""), labels.get(TARGET, ""))

    caches = ParseCache(parse), ParseCache(_no_points)
    yield from (one for one, _ in querier.range_series(list(shards), build, periods.steps, caches))


def _pod_cache(querier: SourceQuerier, selection: PodSelection) -> ParseCache[ClusterPod]:
    """Pods of series by one label; the same for all queries."""
    names = selection.namespace_label, selection.label
    return querier.once(("pods", *names), lambda: ParseCache(functools.partial(_parse_pod, *names)))


def _parse_pod(namespace_label: str, label: str, text: msgspec.Raw) -> ClusterPod:
    labels = decode_labels(text)
    return labels.get(CLUSTER, ""), (labels.get(namespace_label, ""), labels.get(label, ""))


def _no_points(_: msgspec.Raw) -> None:
    """Ignores points: only the existence of the series matters."""


def presence_by_period(
    querier: SourceQuerier, selections: Sequence[PodSelection], periods: DailyPeriods
) -> list[PeriodPresence]:
    """The prefixes with samples in each period."""
    query = _SamplesQuery(querier, periods)
    found = [PeriodPresence() for _ in periods.periods]
    incomplete: list[set[NamePrefix]] = [set() for _ in periods.periods]
    counts = [
        (selection, metric, query.counts(selection, metric))
        for selection in selections
        for metric in selection.metrics
    ]
    enough = query.enough(counts)
    for selection, metric, by_period in counts:
        for number, pods in by_period.items():
            presence, least = found[number], enough.get((metric, number), math.inf)
            for prefix, members in selection.pods.items():
                samples = {name: pods[prefix[0], name] for name in members if (prefix[0], name) in pods}
                if not samples:
                    continue
                replicas = len({members[name] for name in samples})
                # By two labels or two metrics, these may not be the same replicas.
                if min(samples.values()) < least or presence.complete.get(prefix, replicas) != replicas:
                    incomplete[number].add(prefix)
                presence.present.add(prefix)
                presence.complete[prefix] = replicas
    for presence, prefixes in zip(found, incomplete, strict=True):
        for prefix in prefixes:
            del presence.complete[prefix]
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _SamplesQuery:
    querier: SourceQuerier
    periods: DailyPeriods

    def counts(self, selection: PodSelection, metric: Metric) -> CountsByPeriod:
        """Samples of each pod in and around each period."""
        found = CountsByPeriod()
        wanted = {(namespace, name) for (namespace, _), names in selection.pods.items() for name in names}
        length = self.periods.reaches * self.periods.reach
        for pod, points in self._query(selection, metric, self.periods.steps, length):
            for number, value in points if pod in wanted else ():
                found.setdefault(number, {})[pod] = value
        return found

    def enough(
        self, counts: Sequence[tuple[PodSelection, Metric, CountsByPeriod]]
    ) -> dict[tuple[Metric, int], float]:
        """Samples of a metric in a period that prove one in each minute; missing if unknown."""
        most: dict[tuple[Metric, int], tuple[float, PodKey, PodSelection]] = {}
        for selection, metric, by_period in counts:
            for number, pods in by_period.items():
                count, pod = max((count, pod) for pod, count in pods.items())
                if (metric, number) not in most or (count, pod) > most[metric, number][:2]:
                    most[metric, number] = (count, pod, selection)
        found = {}
        for (metric, number), (count, pod, selection) in most.items():
            densest = self._densest_reach(selection, metric, pod, number)
            if densest is not None:
                highest, reaches = densest
                lost = highest * reaches - count
                # A minute may hold one sample less than the densest, depending on where it begins.
                found[metric, number] = count - (highest - 1 - lost) + 1
        return {key: least for key, least in found.items() if least <= most[key][0]}

    def _densest_reach(
        self, selection: PodSelection, metric: Metric, pod: PodKey, number: int
    ) -> tuple[float, int] | None:
        """A pod's highest number of samples in a reach, and the number of reaches; None if one has none."""
        end, reach, reaches = self.periods.end(number), self.periods.reach, self.periods.reaches
        steps = QueryRange(end - (reaches - 1) * reach, end, reach.total_seconds())
        tracks = self._query(selection.one_pod(pod), metric, steps, reach)
        counts = [value for _, points in tracks for _, value in points]
        return (max(counts), reaches) if len(counts) == reaches else None

    def _query(
        self, selection: PodSelection, metric: Metric, steps: QueryRange, length: datetime.timedelta
    ) -> Iterator[tuple[PodKey, Points]]:
        def build(matchers: Sequence[str]) -> str:
            every = (*self.querier.matchers, *metric.matchers, selection.matcher, *matchers)
            counted = promql.over("count_over_time", promql.selector(metric.name, every), length)
            return promql.by("min", selection.pod_labels, counted)

        caches = _pod_cache(self.querier, selection), ParseCache(self._parse_points)
        return self.querier.range_series(selection.shards(), build, steps, caches)

    def _parse_points(self, text: msgspec.Raw) -> Points:
        return [(self.periods.number(instant), value) for instant, value in decode_points(text)]
