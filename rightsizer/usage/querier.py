"""Queries one metric source: which series, in how many shards, over raw samples or over recorded series.

Knows the source's metrics and labels, not what the results mean.
"""

import dataclasses
import datetime
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rightsizer.config import MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete, PrometheusError
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, Prometheus, QueryRange, Sample, decode_labels
from rightsizer.prometheus.sharding import Shard, ShardPlan
from rightsizer.usage.provenance import EVERYTHING, TARGET_LABELS, Provenance
from rightsizer.usage.recording_rules import (
    COUNT,
    RAW,
    RECORDED,
    RULE_INTERVAL,
    QueryForm,
    RecordingRules,
    raw_selector,
    recorded_selector,
    rules_problem,
)
from rightsizer.usage.slot_grid import Counts, SlotGrid
from rightsizer.usage.source_metrics import (
    CLUSTER,
    JOB,
    TARGET,
    Metric,
    MetricKind,
    MetricSource,
    SeriesLabels,
    Statistic,
)

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

RecordedWindows = dict[datetime.timedelta, tuple[object, datetime.datetime]]
"""The windows that rules recorded throughout: with what was asked, and their end."""

PRESENT = "present"
"""Key of the number of series that exporters have now, by name."""

T = TypeVar("T")
V = TypeVar("V")


@dataclasses.dataclass(slots=True)
class AnsweredMetrics:
    """The metrics that a query over all pods returned; there are no others over a shorter window."""

    form: QueryForm
    metrics: set[tuple[Metric, Statistic]] = dataclasses.field(default_factory=set)
    pod_labels: set[str] = dataclasses.field(default_factory=set)  # labels by which series name pods

    def add(self, metric: Metric, statistic: Statistic, series: Iterable[SeriesLabels]) -> None:
        """Add the series of one query."""
        labels = {one.pod_label for one in series}
        self.pod_labels |= labels
        if labels:
            self.metrics.add((metric, statistic))

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(sorted({one for one, _ in self.metrics if one.kind is kind}, key=lambda one: one.name))


@dataclasses.dataclass(frozen=True, slots=True)
class SourceQuerier:
    """A metric source in one Prometheus, at the instant at which every window ends."""

    prometheus: Prometheus
    source: MetricSource  # its metrics; those that do not exist cost nothing
    at: datetime.datetime
    matchers: tuple[str, ...] = ()  # matchers of every series, such as the cluster's
    # Samples that Prometheus loads for one query at most; queries load half of that
    max_samples: int = MAX_SAMPLES
    gpu_pods: frozenset[PodKey] = frozenset()  # pods that hold GPUs; empty if unknown
    recording: RecordingRules = RecordingRules.AUTO
    label_matchers: tuple[str, ...] = ()  # of `--prometheus-label`, also for series of other exporters
    provenance: Provenance = EVERYTHING
    tables: KeptTables | None = None  # slots of earlier cycles; None to ask for all
    recorded: RecordedWindows = dataclasses.field(default_factory=dict)
    # Results that are needed again for other windows
    memo: dict[Hashable, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The result for a key; made if it is new."""
        if key not in self.memo:
            self.memo[key] = make()
        result: T = self.memo[key]
        return result

    @property
    def pod_matchers(self) -> tuple[str, ...]:
        """Matchers of the series that name a pod."""
        return (self.source.labels.has_pod, *self.matchers)

    def markers(self) -> tuple[Metric, ...]:
        """Metrics that count devices: every device has one of them, a MIG instance perhaps only memory."""
        return (*self.source.of(MetricKind.MEMORY), *self.source.of(MetricKind.ACTIVITY))

    def answered(self, window: datetime.timedelta) -> AnsweredMetrics | None:
        """What a query over this window or a longer one returned; None if there was none."""
        return _of_covering_window(self._answered, window)

    def remember(self, window: datetime.timedelta, answered: AnsweredMetrics) -> None:
        """Remember the metrics that a query over all pods returned."""
        self._answered[window] = answered

    @property
    def _answered(self) -> dict[datetime.timedelta, AnsweredMetrics]:
        return self.once("answered", dict)

    def selected(self, metrics: Iterable[Metric], matchers: Sequence[str]) -> str:
        """The series of several metrics; of series with the same labels only one."""
        return " or ".join(raw_selector(metric, matchers) for metric in metrics)

    # --- recorded or raw

    def query_form(self, window: datetime.timedelta) -> QueryForm:
        """Recorded series if known rules recorded (nearly) all series over the whole window, else raw samples."""
        if not self.source.has_rules or window < MIN_RECORDED_WINDOW or self.rules_problem():
            return RAW
        known: dict[datetime.timedelta, QueryForm] = self.once("query forms", dict)
        if window not in known:
            # What is recorded over a longer window is recorded over a shorter one, too.
            is_covered = any(form.is_recorded for span, form in known.items() if span > window)
            known[window] = RECORDED if is_covered or self._is_recorded(window) else RAW
        return known[window]

    def rules_problem(self) -> str:
        """Why recorded series may not be used; empty if they may."""
        return self.once("rules problem", self._rules_problem)

    def _rules_problem(self) -> str:
        if self.recording is not RecordingRules.AUTO:
            return "" if self.recording is RecordingRules.TRUSTED else "--recording-rules off"
        try:
            return rules_problem(self.prometheus.rules())
        except PrometheusError as error:
            return str(error)

    def _is_recorded(self, window: datetime.timedelta) -> bool:
        activity = self.source.of(MetricKind.ACTIVITY)
        half = (window - 2 * RULE_INTERVAL) / 2
        # What an earlier cycle found over the window until then holds.
        where, which = self.prometheus.where, self.provenance.cache_key
        question = where, self.matchers, which, self.source.labels, activity
        asked, before = self.recorded.pop(window, ((), self.at))
        is_known = asked == question and before <= self.at <= before + half
        instants = [self.at, *(() if is_known else (self.at - half, self.at - 2 * half))]
        selected = recorded_selector(activity, COUNT, self.pod_matchers)
        recorded = promql.over("last_over_time", selected, 2 * RULE_INTERVAL)
        name = promql.one_of("__name__", [metric.name for metric in activity])
        raw = promql.selector("", [name, *self.pod_matchers])
        counts = self._counts(recorded, instants)
        # Counts of series, which are no lower than those of uses: cheaper, and usually enough.
        is_enough = _is_enough(counts, self._counts(raw, instants))
        if not is_enough and min(counts) > 0:
            use = (*self.source.labels.use, JOB, TARGET)
            by_use = (promql.by("max", use, each) for each in (recorded, raw))
            is_enough = _is_enough(*(self._counts(each, instants) for each in by_use))
        if is_enough:
            self.recorded[window] = question, self.at
        return is_enough

    def _counts(self, expression: str, instants: Sequence[datetime.datetime]) -> list[int]:
        """The number of series of exporters at each instant; a range query would load all samples in between."""

        def count(at: datetime.datetime) -> int:
            return sum(one.count for one in self.by_exporter("count", expression, at))

        return [self.once((expression, "of exporters", at), functools.partial(count, at)) for at in instants]

    def by_exporter(self, aggregation: str, expression: str, at: datetime.datetime) -> list[Sample]:
        """An aggregation of the series of each target that is an exporter: any target can expose what rules record."""
        samples = self.prometheus.query(promql.by(aggregation, TARGET_LABELS, expression), at)
        return [one for one in samples if self.provenance.accepts_target(one.labels)]

    def scrapes(self, grid: SlotGrid, job: str, targets: Collection[str]) -> Iterator[tuple[str, Counts]]:
        """The scrapes of a job's targets in each slot, failed ones, too, by the series `up` that Prometheus writes."""
        labels, values = ParseCache(decode_labels), ParseCache(grid.counts)
        for names in promql.batches(sorted(targets)):
            matchers = (promql.equals(JOB, job), promql.one_of(TARGET, names), *self.label_matchers)
            counted = promql.over("count_over_time", promql.selector("up", matchers), grid.slot)
            asked = promql.by("max", TARGET_LABELS, counted)
            for found, row in self.prometheus.query_range_as(asked, grid.steps, labels=labels, values=values):
                if self.provenance.accepts_target(found):
                    yield found.get(TARGET, ""), row

    # --- sizes

    def interval_s(self) -> float:
        """Seconds between two samples of the densest series in the last minutes."""
        return self.once("interval", self._interval_s)

    def _interval_s(self) -> float:
        densest = 0.0
        for kind, is_absent in itertools.product((MetricKind.ACTIVITY, MetricKind.MEMORY), (False, True)):
            for metric in self.source.of(kind) if not densest else ():
                if (self.series_now(metric) == 0) is is_absent:
                    count = RAW.count(metric, self.matchers, INTERVAL_WINDOW)
                    values = (sample.value for sample in self.by_exporter("max", count, self.at))
                    densest = max([densest, *filter(math.isfinite, values)])
        return INTERVAL_WINDOW.total_seconds() / (densest - 1) if densest > 1 else USUAL_INTERVAL_S

    def max_series(self, form: QueryForm, window: datetime.timedelta, *, limit: float = MAX_SERIES) -> float:
        """The number of series over a window that one query may select."""
        interval_s = RULE_INTERVAL.total_seconds() if form.is_recorded else self.interval_s()
        return self.series_within(window.total_seconds() / interval_s + 1, limit=limit)

    def series_within(self, samples_per_series: float, *, limit: float = MAX_SERIES) -> float:
        """The number of series that one query may select, by the samples of each."""
        return max(1.0, min(limit, self.max_samples / 2 / max(samples_per_series, 1.0)))

    def count(self, expression: str, instant: datetime.datetime) -> int:
        """The number of series of an expression."""

        def counted() -> int:
            samples = self.prometheus.query(f"count({expression})", instant)
            return max((one.count for one in samples), default=0)

        return self.once((expression, instant), counted)

    def series_now(self, metric: Metric) -> int | None:
        """The number of series of a metric at the instant; None if it was not counted."""
        known: Mapping[str, int] | None = self.memo.get(PRESENT)
        return None if known is None or metric.matchers else known.get(metric.name, 0)

    def existing(
        self, metrics: Sequence[Metric], window: datetime.timedelta, shards: QueryShards, base: Sequence[str]
    ) -> list[Metric]:
        """The metrics that may have raw samples in the window; those without series now are asked for together."""
        absent = [metric.name for metric in metrics if self.series_now(metric) == 0]

        def build(matchers: Sequence[str]) -> str:
            selected = promql.selector("", [promql.one_of("__name__", absent), *base, *matchers])
            return promql.by("count", ["__name__"], promql.over("last_over_time", selected, window))

        samples = (one for plan, some in shards for one in self.samples(plan, some, build))
        found = {one.labels.get("__name__", "") for one in samples} if absent else set()
        return [one for one in metrics if one.name not in absent or found & {one.name, ""}]

    # --- shards

    def all_shards(self, form: QueryForm, window: datetime.timedelta) -> QueryShards:
        """Shards of all series that name pods, for queries over the window."""
        plan = self.shard_plan(window)
        return [(plan, plan.shards(self.max_series(form, window)))]

    def shard_plan(self, window: datetime.timedelta, *, of_devices: bool = False) -> ShardPlan:
        """The fleet's series by namespace; series of devices, which name no pod, by node."""
        known: dict[datetime.timedelta, ShardPlan] = self.once(("shard plans", of_devices), dict)
        # The plan of a longer window may have deleted namespaces, but it lacks none.
        found = _of_covering_window(known, window)
        if found is None:
            found = known[window] = self._shard_plan(window, of_devices=of_devices)
        return found

    def _shard_plan(self, window: datetime.timedelta, *, of_devices: bool) -> ShardPlan:
        labels = self.source.labels
        base = self.matchers if of_devices else self.pod_matchers

        def count(by: Sequence[str], matchers: Sequence[str]) -> str:
            return promql.by("count", by, self.selected(self.markers(), (*base, *matchers)))

        def size_at(instant: datetime.datetime) -> int:
            """The number of series of the kind that has most."""
            return max(
                sum(count_at(one, instant) for one in self.source.of(kind))
                for kind in (MetricKind.MEMORY, MetricKind.ACTIVITY)
            )

        def count_at(metric: Metric, instant: datetime.datetime) -> int:
            """Those without pods are counted already; with them, a fleet is hardly larger."""
            known = self.series_now(metric) if instant == self.at else None
            return (
                self.count(raw_selector(metric, base), instant)
                if known is None or known > MAX_SERIES
                else known
            )

        instants = [self.at, self.at - window / 2]
        if window > 2 * LOOKBACK:
            instants.append(self.at - window + LOOKBACK)
        return ShardPlan(
            self.prometheus,
            size=lambda: next(filter(None, map(size_at, instants)), 0),
            count=count,
            namespaces=labels.node if of_devices else labels.namespace,
            nodes=() if of_devices else labels.node,
            instants=instants,
        )

    def pod_shards(
        self, pods: Iterable[PodKey], max_series: float, *, pod_labels: Collection[str] | None = None
    ) -> QueryShards:
        """Shards of the series of these pods, and of pods with the same name in another of their namespaces.

        `pod_labels` are the labels that name pods; None if unknown.
        """
        plan = self.shard_plan(LOOKBACK)
        namespaces: dict[str, set[str]] = {}
        for namespace, name in pods:
            namespaces.setdefault(name, set()).add(namespace)
        size = max(1, int(max_series / DEVICES_PER_POD))
        batches = list(promql.batches(sorted(namespaces), promql.MAX_TEXT * 3 // 4, most=size))
        found: list[tuple[ShardPlan, list[Shard]]] = []
        for label, namespace_label, absent in self.source.labels.pod_labels():
            if pod_labels is not None and label not in pod_labels:
                continue
            shards = []
            for names in batches:
                within = sorted({namespace for name in names for namespace in namespaces[name]})
                is_short = len(next(promql.batches(within, promql.MAX_TEXT // 2), [])) == len(within)
                matchers = (*absent, *([promql.one_of(namespace_label, within)] if is_short else ()))
                shards.append(Shard.of(label, names, DEVICES_PER_POD, matchers))
            found.append((plan, shards))
        return found

    # --- queries; each raises EvidenceIncomplete if the series are of several clusters

    def samples(
        self, plan: ShardPlan, shards: list[Shard], build: Build, at: datetime.datetime | None = None
    ) -> Iterator[Sample]:
        """The result of an instant query, shard by shard."""
        at = at or self.at
        for result in plan.run(shards, lambda matchers: self.prometheus.query(build(matchers), at)):
            yield from self.of_one_cluster(result, lambda sample: sample.labels.get(CLUSTER, ""))

    def uses(self, shards: QueryShards, build: Build) -> Iterator[tuple[SeriesLabels, float]]:
        """The same for series of pods' use of devices; `build` also gets the matchers of every such series."""
        return self._uses(
            shards, lambda matchers: self.prometheus.query_as(build(matchers), self.at, self._labels)
        )

    def range_uses(
        self, shards: QueryShards, build: Build, steps: QueryRange, parse: Callable[[msgspec.Raw], T]
    ) -> Iterator[tuple[SeriesLabels, T]]:
        """The same for a range query, with the parsed points, which series with equal points share."""
        values = ParseCache(parse)
        return self._uses(
            shards,
            lambda matchers: self.prometheus.query_range_as(
                build(matchers), steps, labels=self._labels, values=values
            ),
        )

    def _uses(
        self, shards: QueryShards, query: Callable[[Sequence[str]], list[tuple[SeriesLabels, T]]]
    ) -> Iterator[tuple[SeriesLabels, T]]:
        for plan, some in shards:
            for result in plan.run(some, lambda matchers: query((*self.pod_matchers, *matchers))):
                self._require_one_cluster([labels for labels, _ in result if labels.key is not None])
                yield from result

    def _require_one_cluster(self, series: Sequence[SeriesLabels]) -> None:
        """Raise EvidenceIncomplete if pods of two clusters could be mistaken for one another.

        Series without the label are the cluster's own, unless they show that a pod is another one: its devices are
        others than by those with the label, or it has both kinds of series now.
        """
        clusters: set[str] = self.once("clusters", set)
        clusters.update(one.cluster for one in series)
        require_one_cluster(clusters)
        pods: dict[PodKey, dict[str, set[str]]] = self.once("devices by cluster", dict)
        for one in series:
            if one.key is not None:
                pods.setdefault(one.key[:2], {}).setdefault(one.cluster, set()).add(one.key[2])
        if len(clusters) == 1:
            return
        for pod in {one.key[:2] for one in series if one.key is not None and len(pods[one.key[:2]]) > 1}:
            is_other = not set.intersection(*pods[pod].values())
            if is_other or len(self._clusters_now().get(pod, ())) > 1:
                raise EvidenceIncomplete(
                    f"Prometheus holds GPU series of pod {'/'.join(pod)} with {CLUSTER}={max(clusters)} and without "
                    f"that label, {'of other GPUs' if is_other else 'at the same time'}: they may be of several "
                    f"clusters; name yours: --prometheus-label {CLUSTER}=NAME"
                )

    def _clusters_now(self) -> Mapping[PodKey, set[str]]:
        """The clusters that present series of each pod name."""

        def asked() -> Mapping[PodKey, set[str]]:
            labels, found = self.source.labels, dict[PodKey, set[str]]()
            selected = self.selected(self.markers(), self.pod_matchers)
            by = promql.by("count", (*labels.owner, JOB, TARGET), selected)
            for sample in self.prometheus.query(by, self.at):
                pod, target = labels.pod_of(sample.labels), sample.labels.get(TARGET, "")
                if pod and self.provenance.accepts(pod, sample.labels.get(JOB, ""), target):
                    found.setdefault(pod, set()).add(sample.labels.get(CLUSTER, ""))
            return found

        return self.once("clusters now", asked)

    def _parse(self, text: msgspec.Raw) -> SeriesLabels:
        """The labels of a series; one that is no evidence has no key."""
        labels, provenance = self.source.labels.parse(text), self.provenance
        if labels.key is None or (
            provenance.accepts(labels.key[:2], labels.job, labels.target)
            and not provenance.is_foreign(labels.cluster)
        ):
            return labels
        return dataclasses.replace(labels, key=None)

    def labels_of(self, texts: Iterable[bytes]) -> list[SeriesLabels]:
        """The labels of series, from JSON."""
        found = [self._labels.get(msgspec.Raw(text)) for text in texts]
        self._require_one_cluster([one for one in found if one.key is not None])
        return found

    @property
    def _labels(self) -> ParseCache[SeriesLabels]:
        """The labels of each series, parsed once."""
        return self.once(("labels", self.source.labels), lambda: ParseCache(self._parse))

    def of_one_cluster(self, result: Sequence[T], cluster_of: Callable[[T], str]) -> Sequence[T]:
        """The result without series of other clusters than the exporters'; several exporters' clusters are an error."""
        clusters = set(map(cluster_of, result))
        foreign = set(filter(self.provenance.is_foreign, clusters))
        require_one_cluster(clusters - foreign)
        return [one for one in result if cluster_of(one) not in foreign] if foreign else result


def _of_covering_window(known: Mapping[datetime.timedelta, T], window: datetime.timedelta) -> T | None:
    """The entry of the shortest window that is at least as long."""
    return next((known[span] for span in sorted(known) if span >= window), None)


def _is_enough(recorded: Sequence[float], raw: Sequence[float]) -> bool:
    """Whether (nearly) all series are recorded at each instant."""
    return all(
        count and count >= MIN_RECORDED_SHARE * there for count, there in zip(recorded, raw, strict=True)
    )


def require_one_cluster(clusters: Iterable[str]) -> None:
    """Raise EvidenceIncomplete for several clusters: pods of the same name would be mistaken for one another."""
    ordered = sorted(set(clusters) - {""})
    if len(ordered) > 1:
        names = ", ".join(ordered[:5])
        raise EvidenceIncomplete(
            f"Prometheus holds GPU series of several clusters ({names}); "
            f"name yours: --prometheus-label {CLUSTER}=NAME"
        )
