"""Queries one metric source: which series, in how many shards, over raw samples or over recorded series.

Knows the source's metrics and labels, not what the results mean.
"""

import dataclasses
import datetime
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec

from rightsizer.config import MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, Prometheus, QueryRange, Sample
from rightsizer.prometheus.sharding import SeriesGroup, Shard, ShardPlan
from rightsizer.usage.recording_rules import (
    COUNT,
    RAW,
    RECORDED,
    RULE_INTERVAL,
    QueryForm,
    raw_selector,
    recorded_selector,
)
from rightsizer.usage.series_labels import CLUSTER, SeriesLabels
from rightsizer.usage.source_metrics import Metric, MetricKind, MetricSource, Statistic

INTERVAL_WINDOW = datetime.timedelta(minutes=10)
USUAL_INTERVAL_S = 15.0
LOOKBACK = datetime.timedelta(minutes=5)

MIN_RECORDED_WINDOW = datetime.timedelta(hours=1)
"""A shorter window has as few raw samples as a day has recorded values."""

MIN_RECORDED_SHARE = 0.98
"""Recorded series replace raw ones if at least this share of the series is recorded."""

MAX_SERIES = 20_000
"""In one response: some 6 MB of JSON, and several times that in memory while it is parsed."""

DEVICES_PER_POD = 8
"""Assumed for the size of queries; a query that is too large all the same is split."""

QueryShards = Sequence[tuple[ShardPlan, list[Shard]]]
"""The shards of a query, each list with the plan that can split them."""

Build = Callable[[Sequence[str]], str]
"""PromQL from the matchers of a shard."""

T = TypeVar("T")
V = TypeVar("V")


@dataclasses.dataclass(slots=True)
class AnsweredMetrics:
    """What a query over everybody returned; there is nothing else over a shorter window, either.

    Attributes:
        pod_labels: Labels by which series name pods.
    """

    metrics: set[tuple[Metric, Statistic]] = dataclasses.field(default_factory=set)
    pod_labels: set[str] = dataclasses.field(default_factory=set)

    def add(self, metric: Metric, statistic: Statistic, series: Iterable[SeriesLabels]) -> None:
        """Add the series of one query."""
        labels = {one.pod_label for one in series}
        self.pod_labels |= labels
        if labels:
            self.metrics.add((metric, statistic))

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(sorted({one for one, _ in self.metrics if one.kind is kind}, key=lambda one: one.name))


class QueryMemo:
    """Results that are needed again for other windows; those of one instant."""

    def __init__(self) -> None:
        self._at: datetime.datetime | None = None
        self._results: dict[Hashable, Any] = {}

    def get(self, at: datetime.datetime, key: Hashable, make: Callable[[], T]) -> T:
        """The result for the key as of the instant; made if it is new."""
        if self._at != at:
            self._at, self._results = at, {}
        if key not in self._results:
            self._results[key] = make()
        result: T = self._results[key]
        return result


@dataclasses.dataclass(frozen=True, slots=True)
class SourceQuerier:
    """A metric source in one Prometheus.

    Attributes:
        source: Its metrics; those that do not exist cost nothing.
        matchers: Matchers of every series, such as the cluster's.
        max_samples: Samples that Prometheus loads for one query at most; queries load half of that.
        gpu_pods: Pods that hold GPUs; empty if unknown.
    """

    prometheus: Prometheus
    source: MetricSource
    matchers: tuple[str, ...] = ()
    max_samples: int = MAX_SAMPLES
    gpu_pods: frozenset[PodKey] = frozenset()
    memo: QueryMemo = dataclasses.field(default_factory=QueryMemo, repr=False, compare=False)
    labels_cache: ParseCache[SeriesLabels] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the labels of each series once."""
        object.__setattr__(self, "labels_cache", ParseCache(self.source.labels.parse))

    @property
    def pod_matchers(self) -> tuple[str, ...]:
        """Matchers of the series that name a pod."""
        return (self.source.labels.has_pod, *self.matchers)

    def markers(self) -> tuple[Metric, ...]:
        """Metrics that count devices: every device has one of them, a MIG instance perhaps only memory."""
        return (*self.source.of(MetricKind.MEMORY), *self.source.of(MetricKind.ACTIVITY))

    def answered(self, window: datetime.timedelta, at: datetime.datetime) -> AnsweredMetrics | None:
        """What a query over this window or a longer one returned; None if there was none."""
        known = self._answered(at)
        return next((known[span] for span in sorted(known) if span >= window), None)

    def remember(self, window: datetime.timedelta, at: datetime.datetime, answered: AnsweredMetrics) -> None:
        """Remember what a query over everybody returned."""
        self._answered(at)[window] = answered

    def _answered(self, at: datetime.datetime) -> dict[datetime.timedelta, AnsweredMetrics]:
        return self.memo.get(at, "answered", dict)

    def selected(self, metrics: Iterable[Metric], matchers: Sequence[str]) -> str:
        """The series of several metrics; of series with the same labels only one."""
        return " or ".join(raw_selector(metric, matchers) for metric in metrics)

    # --- recorded or raw

    def query_form(self, window: datetime.timedelta, at: datetime.datetime) -> QueryForm:
        """Recorded series if (nearly) all series are recorded over the whole window, else raw samples."""
        if not self.source.has_rules or window < MIN_RECORDED_WINDOW:
            return RAW
        known: dict[datetime.timedelta, QueryForm] = self.memo.get(at, "query forms", dict)
        for span in sorted(known):
            # What is recorded over a longer window is recorded over a shorter one, too.
            if span == window or (span > window and known[span].is_recorded):
                return known[span]
        known[window] = RECORDED if self._is_recorded(window, at) else RAW
        return known[window]

    def _is_recorded(self, window: datetime.timedelta, at: datetime.datetime) -> bool:
        activity = self.source.of(MetricKind.ACTIVITY)
        recorded = [
            promql.over(
                "last_over_time", recorded_selector(metric, COUNT, self.pod_matchers), 2 * RULE_INTERVAL
            )
            for metric in activity
        ]
        raw = [raw_selector(metric, self.pod_matchers) for metric in activity]
        half = (window - 2 * RULE_INTERVAL) / 2
        instants = (at - 2 * half, at - half, at)
        counts = self._counts(recorded, instants, at)
        # Counts of series, which are no lower than those of uses: cheaper, and usually enough.
        if _is_enough(counts, self._counts(raw, instants, at)):
            return True
        use = self.source.labels.use
        by_use = ([promql.by("max", use, " or ".join(each))] for each in (recorded, raw))
        return min(counts) > 0 and _is_enough(*(self._counts(each, instants, at) for each in by_use))

    def _counts(
        self, expressions: Sequence[str], instants: Sequence[datetime.datetime], at: datetime.datetime
    ) -> list[int]:
        """The number of series of all expressions at each instant.

        These are instant queries: a range query would load all samples in between.
        """
        return [
            sum(self._count(expression, instant, at) for expression in expressions) for instant in instants
        ]

    # --- sizes

    def samples_per_series(self, form: QueryForm, window: datetime.timedelta, at: datetime.datetime) -> float:
        """Samples of the densest series in the window."""
        if form.is_recorded:
            return window / RULE_INTERVAL + 1
        return window.total_seconds() / self.interval_s(at) + 1

    def interval_s(self, at: datetime.datetime) -> float:
        """Seconds between two samples of the densest series in the last minutes."""
        return self.memo.get(at, "interval", lambda: self._interval_s(at))

    def _interval_s(self, at: datetime.datetime) -> float:
        densest = 0.0
        for kind in (MetricKind.ACTIVITY, MetricKind.MEMORY):
            for metric in self.source.of(kind) if not densest else ():
                count = RAW.count(metric, self.matchers, INTERVAL_WINDOW)
                samples = self.prometheus.query(f"max({count})", at)
                densest = max([densest, *(sample.value for sample in samples)])
        return INTERVAL_WINDOW.total_seconds() / (densest - 1) if densest > 1 else USUAL_INTERVAL_S

    def max_series(self, samples_per_series: float, *, limit: float = MAX_SERIES) -> float:
        """The number of series that one query may select."""
        return max(1.0, min(limit, self.max_samples / 2 / max(samples_per_series, 1.0)))

    def exists(self, metric: Metric, at: datetime.datetime) -> bool:
        """Whether a metric has any series now."""
        return bool(self._count(raw_selector(metric, self.matchers), at, at))

    def _size(self, matchers: Sequence[str], instant: datetime.datetime, at: datetime.datetime) -> int:
        """The number of series of the kind that has most."""
        return max(
            sum(self._count(raw_selector(one, matchers), instant, at) for one in self.source.of(kind))
            for kind in (MetricKind.MEMORY, MetricKind.ACTIVITY)
        )

    def _count(self, expression: str, instant: datetime.datetime, at: datetime.datetime) -> int:
        return self.memo.get(
            at, (expression, instant), lambda: series_count(self.prometheus, expression, instant)
        )

    # --- shards

    def all_shards(self, form: QueryForm, window: datetime.timedelta, at: datetime.datetime) -> QueryShards:
        """Shards of all series that name pods, for queries over the window."""
        plan = self.shard_plan(window, at)
        return [(plan, plan.shards(self.max_series(self.samples_per_series(form, window, at))))]

    def shard_plan(
        self, window: datetime.timedelta, at: datetime.datetime, *, of_devices: bool = False
    ) -> ShardPlan:
        """The fleet's series by namespace; series of devices, which name no pod, by node."""
        known: dict[datetime.timedelta, ShardPlan] = self.memo.get(at, ("shard plans", of_devices), dict)
        # The plan of a longer window may have namespaces that are gone by now; it lacks none.
        found = next((known[span] for span in sorted(known) if span >= window), None)
        if found is None:
            found = known[window] = self._shard_plan(window, at, of_devices=of_devices)
        return found

    def _shard_plan(
        self, window: datetime.timedelta, at: datetime.datetime, *, of_devices: bool
    ) -> ShardPlan:
        labels = self.source.labels
        base = self.matchers if of_devices else self.pod_matchers

        def count(by: Sequence[str], matchers: Sequence[str]) -> str:
            return promql.by("count", by, self.selected(self.markers(), (*base, *matchers)))

        instants = [at, at - window / 2]
        if window > 2 * LOOKBACK:
            instants.append(at - window + LOOKBACK)
        return ShardPlan(
            self.prometheus,
            size=lambda: next((size for instant in instants if (size := self._size(base, instant, at))), 0),
            count=count,
            namespaces=labels.node if of_devices else labels.namespace,
            nodes=() if of_devices else labels.node,
            instants=instants,
        )

    def pod_shards(
        self,
        pods: Sequence[PodKey],
        at: datetime.datetime,
        max_series: float,
        *,
        pod_labels: Collection[str] | None = None,
    ) -> QueryShards:
        """Shards of the series of these pods, and of pods with the same name in another of their namespaces.

        Args:
            pods: Namespaces and names.
            at: The instant of the query.
            max_series: Series in one query.
            pod_labels: Labels that name pods; None if unknown.
        """
        plan = self.shard_plan(LOOKBACK, at)
        namespaces: dict[str, set[str]] = {}
        for namespace, name in pods:
            namespaces.setdefault(name, set()).add(namespace)
        size = max(1, int(max_series / DEVICES_PER_POD))
        batches = [
            batch[begin : begin + size]
            for batch in promql.batches(sorted(namespaces), promql.MAX_TEXT * 3 // 4)
            for begin in range(0, len(batch), size)
        ]
        found: list[tuple[ShardPlan, list[Shard]]] = []
        for label, namespace_label, absent in self.source.labels.pod_labels():
            if pod_labels is not None and label not in pod_labels:
                continue
            shards = []
            for names in batches:
                within = sorted({namespace for name in names for namespace in namespaces[name]})
                is_short = len(next(promql.batches(within, promql.MAX_TEXT // 2), [])) == len(within)
                fixed = (promql.one_of(namespace_label, within),) if is_short else ()
                matchers = (*absent, *fixed)
                shards.append(
                    Shard(tuple(SeriesGroup(label, name, DEVICES_PER_POD, matchers) for name in names))
                )
            found.append((plan, shards))
        return found

    # --- queries; each raises EvidenceIncomplete if the series are of several clusters

    def samples(
        self, plan: ShardPlan, shards: list[Shard], build: Build, at: datetime.datetime
    ) -> Iterator[Sample]:
        """The result of an instant query, shard by shard."""
        for result in plan.run(shards, lambda matchers: self.prometheus.query(build(matchers), at)):
            require_one_cluster(sample.labels for sample in result)
            yield from result

    def uses(
        self, shards: QueryShards, build: Build, at: datetime.datetime
    ) -> Iterator[tuple[SeriesLabels, float]]:
        """The same for series of pods' use of devices."""
        for plan, some in shards:
            for result in plan.run(
                some, lambda matchers: self.prometheus.query_as(build(matchers), at, self.labels_cache)
            ):
                require_one_cluster_name({labels.cluster for labels, _ in result})
                yield from result

    def range_uses(
        self, shards: QueryShards, build: Build, steps: QueryRange, parse: Callable[[msgspec.Raw], T]
    ) -> Iterator[tuple[SeriesLabels, T]]:
        """The result of a range query, with the parsed points, which series with equal points share."""
        values = ParseCache(parse)
        for plan, some in shards:
            for result in plan.run(
                some,
                lambda matchers: self.prometheus.query_range_as(
                    build(matchers), steps, labels=self.labels_cache, values=values
                ),
            ):
                require_one_cluster_name({labels.cluster for labels, _ in result})
                yield from result

    def range_series(
        self,
        plan: ShardPlan,
        shards: list[Shard],
        build: Build,
        steps: QueryRange,
        caches: tuple[ParseCache[tuple[str, T]], ParseCache[V]],
    ) -> Iterator[tuple[T, V]]:
        """The same with other labels, which are parsed as cluster and key."""
        labels, values = caches
        for result in plan.run(
            shards,
            lambda matchers: self.prometheus.query_range_as(
                build(matchers), steps, labels=labels, values=values
            ),
        ):
            require_one_cluster_name({cluster for (cluster, _), _ in result})
            yield from ((key, value) for (_, key), value in result)


def series_count(prometheus: Prometheus, expression: str, instant: datetime.datetime) -> int:
    """The number of series of an expression."""
    return max((round(one.value) for one in prometheus.query(f"count({expression})", instant)), default=0)


def _is_enough(recorded: Sequence[float], raw: Sequence[float]) -> bool:
    """Whether (nearly) all series are recorded at each instant."""
    return all(
        count and count >= MIN_RECORDED_SHARE * there for count, there in zip(recorded, raw, strict=True)
    )


def require_one_cluster(series: Iterable[Mapping[str, str]]) -> None:
    """Refuse series of several clusters: pods of the same name would be mistaken for one another.

    Raises:
        EvidenceIncomplete: There are several clusters.
    """
    require_one_cluster_name({labels.get(CLUSTER, "") for labels in series})


def require_one_cluster_name(clusters: AbstractSet[str]) -> None:
    """The same, by their names.

    Raises:
        EvidenceIncomplete: There are several clusters.
    """
    if len(clusters) > 1:
        ordered = sorted(clusters)
        names = ", ".join(name or "(none)" for name in ordered[:5])
        raise EvidenceIncomplete(
            f"Prometheus holds GPU series of several clusters ({names}); "
            f"name yours: --prometheus-label {CLUSTER}={ordered[-1]}"
        )
