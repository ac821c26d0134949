"""Usage of each device by each pod: one aggregate query for each statistic of each metric, never raw samples.

Impossible values are reported as invalid, never corrected. A series counts for the pod that it names. Gauges name the
pods that the kubelet gave a device to, counters those that work on it.
"""

import array
import collections
import dataclasses
import datetime
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import Device, PartialSignal, PodKey, SecondSignal, Usage, Usages
from rightsizer.prometheus import promql
from rightsizer.usage.exporter_counters import (
    MAX_DIFFERENCE,
    SLACK_S,
    Counters,
    device_counters,
    query_counters,
)
from rightsizer.usage.querier import AnsweredMetrics, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import RAW, RULE_INTERVAL, QueryForm, raw_selector
from rightsizer.usage.sample_coverage import (
    NO_COVERAGE,
    Coverage,
    JobUse,
    SampleCounts,
    coverage_by_use,
    pods_with_samples,
    samples_of,
)
from rightsizer.usage.slot_feed import WindowSlots, has_slots, slots_of
from rightsizer.usage.source_metrics import (
    STATISTICS,
    LabelNames,
    Metric,
    MetricKind,
    SeriesLabels,
    Statistic,
    UseKey,
)

COMPARED = datetime.timedelta(hours=1)
DISAGREEMENT = "sources disagree"

_FIELDS = {
    (MetricKind.ACTIVITY, Statistic.MEAN): "activity_mean",
    (MetricKind.ACTIVITY, Statistic.PEAK): "activity_peak",
    (MetricKind.TRAFFIC, Statistic.PEAK): "traffic_peak",
    (MetricKind.MEMORY, Statistic.PEAK): "memory_peak_bytes",
    (MetricKind.POWER, Statistic.MEAN): "power_mean_w",
    (MetricKind.POWER, Statistic.PEAK): "power_peak_w",
    (MetricKind.CLOCK, Statistic.PEAK): "clock_peak_hz",
}


@dataclasses.dataclass(slots=True)
class UsageAccumulator:
    """The fields of a Usage, while they are collected."""

    device: Device
    activity_mean: float | None = None
    activity_peak: float | None = None
    activity_floor: float | None = None
    traffic_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    busy_s: float | None = None
    is_own: bool = False
    unattributed_s: float = 0.0
    traffic_s: float | None = None
    clock_peak_hz: float | None = None
    disputed: tuple[float, float] | None = None
    invalid: tuple[str, ...] = ()
    is_held: bool = True
    is_visited: bool = False
    lacking: tuple[PartialSignal, ...] = ()

    def add_invalid(self, name: str) -> None:
        """Note a metric with impossible values."""
        self.invalid = tuple(sorted({*self.invalid, name}))


UsageByDevice = dict[UseKey, UsageAccumulator]
LabelledValues = Iterable[tuple[SeriesLabels, float]]
CompactValues = tuple[list[SeriesLabels], "array.array[float]"]


def window_usages(
    querier: SourceQuerier, window: datetime.timedelta, *, of: Collection[PodKey] | None = None
) -> Usages:
    """Usage in the window: of all pods, or at least of these; others are left out if that is cheaper."""
    usage: UsageByDevice = {}
    form = querier.query_form(window)
    before = querier.answered(window)
    if before is not None and before.form != form:
        before = None
    kept = slots_of(querier, form, window)
    if of is not None and before is not None and not querier.source.has_counters and kept is None:
        max_series = querier.max_series(form, window)
        shards = querier.pod_shards(sorted(of), max_series, pod_labels=before.pod_labels)
    else:
        of, shards = None, querier.all_shards(form, window)
    queries = [
        _StatisticQuery(querier, shards, form, metric, statistic, window, kept)
        for metric in querier.source.metrics
        for statistic in STATISTICS[metric.kind]
        if before is None or (metric, statistic) in before.metrics
    ]
    answered = AnsweredMetrics(form)
    counted = samples_of(querier, form, window)
    successors = counted.successors(window)
    for query, values in _run(queries):
        query.add_to(usage, _joined(values, successors) if query.statistic is Statistic.MEAN else values)
        answered.add(query.metric, query.statistic, (labels for labels, _ in values if labels.key))
    if (
        kept is not None
    ):  # slots have no checks of their own, and nothing of what began after the last of them
        seen = {metric for metric, _ in answered.metrics}
        known = [one for one in querier.source.metrics if one in seen or querier.series_now(one) != 0]
        answered.metrics |= {(one, statistic) for one in known for statistic in STATISTICS[one.kind]}
    if of is None:
        querier.remember(window, answered)
    if form.is_recorded or kept is not None:
        # The last value may be five minutes old.
        for query, (series, numbers) in _latest_peaks(querier):
            query.add_to(usage, _only(of, zip(series, numbers, strict=True)))
    coverage = coverage_by_use(counted, window)
    if kept is not None:
        _require_samples(querier, coverage)
    for labels, _ in _only(of, ((labels, 0.0) for labels in _disagreeing(querier, window))):
        _entry(usage, labels).add_invalid(DISAGREEMENT)
    _add_counters(usage, querier, window, of)
    return _by_pod(usage, coverage)


def _require_samples(querier: SourceQuerier, coverage: dict[UseKey, Coverage]) -> None:
    """Let no use without a sample in the last minutes be fresh: the last whole slot may have ended five minutes ago."""
    seen = {
        labels.key
        for query, (series, _) in _latest_peaks(querier)
        if query.metric.kind is querier.source.presence
        for labels in series
    }
    for key in coverage.keys() - seen:
        coverage[key] = dataclasses.replace(coverage[key], is_fresh=False)


def usages_of_devices(querier: SourceQuerier, window: datetime.timedelta, pods: LabelNames) -> Usages:
    """Usage of devices whoever works there, by a querier of devices; unattributed work may be any pod's."""
    source = dataclasses.replace(querier.source, has_counters=False)
    found = window_usages(dataclasses.replace(querier, source=source, memo={}), window)
    if not querier.source.has_counters:
        return found
    counters = device_counters(querier, window, pods)
    return {pod: tuple([_counted(pod, usage, counters) for usage in usages]) for pod, usages in found.items()}


def _counted(pod: PodKey, usage: Usage, counters: Counters) -> Usage:
    where = usage.device.uuid, usage.device.instance
    return dataclasses.replace(
        usage,
        invalid=(*usage.invalid, *sorted(counters.impossible((*pod, *where)))),
        busy_s=counters.device_busy_s((*pod, *where)),
        unattributed_s=counters.unknown_s.get(where, 0.0),
    )


def sampled(querier: SourceQuerier, window: datetime.timedelta, pods: Collection[PodKey]) -> Usages:
    """What samples of these pods show beside their usage: second signals that lack some.

    Also peaks of these and of activity, if that usage is of recorded or kept slots.
    """
    if not pods:
        return {}
    usage: UsageByDevice = {}
    form, answered = querier.query_form(window), querier.answered(window)
    shards = querier.pod_shards(
        sorted(pods), querier.max_series(RAW, window), pod_labels=answered.pod_labels if answered else None
    )
    if form.is_recorded or has_slots(querier, window):
        kinds = MetricKind.ACTIVITY, *map(MetricKind, SecondSignal)
        for query, values in _peaks(querier, window, kinds, shards, checked=(MetricKind.ACTIVITY,)):
            query.add_to(usage, _only(pods, values))
    for signal in SecondSignal:
        counted = samples_of(querier, RAW, window, kind=MetricKind(signal), pods=frozenset(pods))
        _add_lacking(usage, counted, window, signal)
    return _by_pod(usage, {})


def _add_lacking(
    usage: UsageByDevice, counted: SampleCounts, window: datetime.timedelta, signal: SecondSignal
) -> None:
    """Add of each use how much of the window the signal covers, if not all of it, and from when on."""
    coverage, began, cells = coverage_by_use(counted, window), dict[UseKey, int](), counted.cells(window)
    for labels, row in counted.series:
        key, last = labels.key, row[-cells:]
        begin = next((cell for cell, count in enumerate(last) if count), cells)
        if key in coverage and (coverage[key].gaps or coverage[key].share < 1):
            _entry(usage, labels)
            began[key] = min(begin, began.get(key, begin))
    for key, begin in began.items():
        since = counted.querier.at - (cells - begin) * counted.cell
        usage[key].lacking += (PartialSignal(signal, coverage[key].share, coverage[key].gaps, since),)


def recent_peaks(querier: SourceQuerier) -> Usages:
    """The peaks of the last minutes."""
    usage: UsageByDevice = {}
    for query, (series, numbers) in _latest_peaks(querier):
        query.add_to(usage, zip(series, numbers, strict=True))
    return _by_pod(usage, {})


def pods_seen(querier: SourceQuerier, window: datetime.timedelta) -> set[PodKey]:
    """All pods that a gauge or a counter names in the window; recorded and kept values may be five minutes old."""
    found = set(pods_with_samples(querier, window))
    found |= {one.key[:2] for _, (series, _) in _latest_peaks(querier) for one in series if one.key}
    return found | {key[:2] for key in query_counters(querier, window).pods}


def peak_activity(querier: SourceQuerier, window: datetime.timedelta, *, with_coverage: bool) -> Usages:
    """Only the peak activity by gauges and counters and, if wanted, its coverage."""
    usage: UsageByDevice = {}
    for query, values in _peaks(querier, window, (MetricKind.ACTIVITY,)):
        query.add_to(usage, values)
    _add_counters(usage, querier, window)
    # Where a process alone shows that a pod is there, the device decides (`usages_of_devices`).
    usage = {key: entry for key, entry in usage.items() if entry.is_held or entry.is_own}
    if not with_coverage:
        return _by_pod(usage, {})
    counted = samples_of(dataclasses.replace(querier, tables=None), RAW, window)
    return _by_pod(usage, coverage_by_use(counted, window))


@dataclasses.dataclass(frozen=True, slots=True)
class _StatisticQuery:
    querier: SourceQuerier
    shards: QueryShards
    form: QueryForm
    metric: Metric
    statistic: Statistic
    window: datetime.timedelta
    kept: WindowSlots | None = None
    finds_nan: bool = False  # beside negative values

    def run(self) -> list[tuple[SeriesLabels, float]]:
        """The values in the metric's unit, also of series that name no pod."""
        if self.kept is not None:
            return self.kept.values(self.metric, self.statistic)

        def build(matchers: Sequence[str]) -> str:
            query = self.form.statistic(self.metric, self.statistic, matchers, self.window)
            if self.finds_nan:
                mean = self.form.statistic(self.metric, Statistic.MEAN, matchers, self.window)
                query = f"{query} or {promql.only_nan(mean)}"
            largest = self.form.largest(self.querier.source.labels.described, query)
            # A mean without a field is queried only to find NaN.
            is_check = self.statistic is Statistic.MEAN and not self._field
            return promql.only_nan(largest) if is_check else largest

        return list(self.querier.uses(self.shards, build))

    @property
    def _field(self) -> str:
        return _FIELDS.get((self.metric.kind, self.statistic), "")

    def add_to(self, usage: UsageByDevice, values: LabelledValues) -> None:
        """Set the field of each use."""
        field, name, highest = self._field, self.metric.name, self.metric.highest
        scale = self.form.scale(self.metric)
        for labels, number in values:
            if labels.key is None:
                continue
            value = number * scale
            entry = usage.get(labels.key)
            if entry is None or labels.device is not entry.device:
                entry = _entry(usage, labels)
            if not 0 <= value <= highest:  # nor if it is NaN
                entry.add_invalid(name)
            elif field and name not in entry.invalid:
                before = getattr(entry, field)
                if before is None or value > before:
                    setattr(entry, field, value)
                if field == "activity_mean":
                    lowest = entry.activity_floor
                    entry.activity_floor = value if lowest is None else min(lowest, value)


def _run(
    queries: Sequence[_StatisticQuery],
) -> Iterator[tuple[_StatisticQuery, list[tuple[SeriesLabels, float]]]]:
    """The queries with their values; the next ones run while one is consumed."""
    if not queries:
        return iter(())
    results = queries[0].querier.prometheus.run_in_order([query.run for query in queries])
    return zip(queries, results, strict=True)


def _only(pods: Collection[PodKey] | None, values: LabelledValues) -> LabelledValues:
    """The values of these pods; all if None."""
    if pods is None:
        return values
    return (each for each in values if each[0].key is not None and each[0].key[:2] in pods)


def _entry(usage: UsageByDevice, labels: SeriesLabels) -> UsageAccumulator:
    """The entry of a series with a key. Of two descriptions of one device the same one is always chosen."""
    key, device = labels.key, labels.device
    assert key is not None  # noqa: S101 - callers have checked it
    entry = usage.get(key)
    if entry is None:
        entry = usage[key] = UsageAccumulator(device)
    elif device is not entry.device and device != entry.device:
        entry.device = dataclasses.replace(
            device,
            model=min(filter(None, (device.model, entry.device.model)), default=""),
            instance_profile=device.instance_profile or entry.device.instance_profile,
        )
    return entry


def _peaks(
    querier: SourceQuerier,
    window: datetime.timedelta,
    kinds: Iterable[MetricKind] = MetricKind,
    shards: QueryShards | None = None,
    *,
    checked: Collection[MetricKind] = tuple(MetricKind),
) -> Iterator[tuple[_StatisticQuery, list[tuple[SeriesLabels, float]]]]:
    """Peaks by samples, and of the kinds to be checked the impossible values that peaks hide."""
    shards = querier.all_shards(RAW, window) if shards is None else shards
    metrics = [metric for kind in kinds for metric in querier.source.of(kind)]
    existing = querier.existing(metrics, window, shards, querier.pod_matchers)
    asked = functools.partial(_StatisticQuery, querier, shards, RAW, window=window)
    peaks = [asked(metric=one, statistic=Statistic.PEAK) for one in existing]
    checks = [
        asked(metric=one, statistic=Statistic.NEGATIVE, finds_nan=True)
        for one in existing
        if one.kind in checked and Statistic.NEGATIVE in STATISTICS[one.kind]
    ]
    return _run([*peaks, *checks])


def _latest_peaks(querier: SourceQuerier) -> list[tuple[_StatisticQuery, CompactValues]]:
    """Peaks and impossible values of the last minutes, queried once for all windows."""
    return querier.once(
        "latest peaks",
        lambda: [(query, _compact(values)) for query, values in _peaks(querier, 2 * RULE_INTERVAL)],
    )


def _compact(values: LabelledValues) -> CompactValues:
    found: CompactValues = ([], array.array("d"))
    for labels, value in values:
        found[0].append(labels)
        found[1].append(value)
    return found


def _disagreeing(querier: SourceQuerier, window: datetime.timedelta) -> list[SeriesLabels]:
    """The uses for which two sources disagree; queried once for all windows."""
    span = min(window, COMPARED)
    return querier.once(("disagreeing", span), lambda: list(_query_disagreeing(querier, span)))


def _query_disagreeing(querier: SourceQuerier, span: datetime.timedelta) -> Iterator[SeriesLabels]:
    """The uses for which two sources of the same quantity have different means.

    Only of the last hour: before that, another exporter may have been in place.
    """
    shards = querier.all_shards(RAW, span)
    use = querier.source.labels.use
    alike: dict[str, list[Metric]] = {}
    for metric in (querier.answered(span) or querier.source).of(MetricKind.ACTIVITY):
        alike.setdefault(metric.alike, []).append(metric)
    for metrics in alike.values():
        if len(metrics) == 1 and not _has_copies(querier, shards, metrics[0], span):
            continue

        def build(matchers: Sequence[str], metrics: list[Metric] = metrics) -> str:
            means = " or ".join(
                f"{RAW.statistic(metric, Statistic.MEAN, matchers, span)} * {metric.scale!r}"
                for metric in metrics
            )
            return f"{promql.by('max', use, means)} - {promql.by('min', use, means)} > {MAX_DIFFERENCE}"

        found = [labels for labels, _ in querier.uses(shards, build) if labels.key is not None]
        yield from _confirmed(querier, metrics, span, found)


def _confirmed(
    querier: SourceQuerier, metrics: Sequence[Metric], span: datetime.timedelta, found: Sequence[SeriesLabels]
) -> Iterator[SeriesLabels]:
    """Those of the uses for which exporters disagree: not only an exporter and any other target, or its successor."""
    if not found:
        return
    means: dict[UseKey, list[float]] = {}
    pods = sorted({labels.key[:2] for labels in found if labels.key is not None})
    shards = querier.pod_shards(pods, querier.max_series(RAW, span))
    successors = samples_of(querier, RAW, span, pods=frozenset(pods)).successors(span)
    for metric in metrics:

        def build(matchers: Sequence[str], metric: Metric = metric) -> str:
            mean = RAW.statistic(metric, Statistic.MEAN, matchers, span)
            return promql.by("max", querier.source.labels.described, mean)

        for labels, mean in _joined(querier.uses(shards, build), successors):
            if labels.key is not None:
                means.setdefault(labels.key, []).append(mean * metric.scale)
    for labels in found:
        if labels.key in means and max(means[labels.key]) - min(means[labels.key]) > MAX_DIFFERENCE:
            yield labels


def _joined(
    values: LabelledValues, successors: Mapping[JobUse, Mapping[SeriesLabels, int]]
) -> LabelledValues:
    """Means with one for all series of a job that follow each other: that of all of their samples."""
    sums: dict[JobUse, tuple[SeriesLabels, float, int]] = {}
    for labels, mean in values:
        use = labels.key, labels.job
        samples = successors.get(use, {}).get(labels)
        if samples is None:
            yield labels, mean
        else:
            _, total, number = sums.get(use, (labels, 0.0, 0))
            sums[use] = labels, total + mean * samples, number + samples
    for labels, total, number in sums.values():
        yield labels, total / number


def _has_copies(
    querier: SourceQuerier, shards: QueryShards, metric: Metric, span: datetime.timedelta
) -> bool:
    """Whether several sources have the metric for any use: only then can it disagree with itself."""

    def build(matchers: Sequence[str]) -> str:
        selected = raw_selector(metric, [*querier.pod_matchers, *matchers])
        present = promql.over("last_over_time", selected, span)
        return f"count({promql.by('count', querier.source.labels.use, present)} > 1)"

    return any(sample for plan, some in shards for sample in querier.samples(plan, some, build))


def _add_counters(
    usage: UsageByDevice,
    querier: SourceQuerier,
    window: datetime.timedelta,
    of: Collection[PodKey] | None = None,
) -> None:
    """Add busy seconds: on a shared device the pod's own if they are known, else the device's."""
    counters = query_counters(querier, window)
    held = dict(usage)
    _add_elsewhere(usage, counters, window, of)
    for key, entry in usage.items():
        for name in counters.impossible(key):
            entry.add_invalid(name)
    visited = {key[2:] for key in usage.keys() - held.keys()}
    pods_on = collections.Counter(key[2:] for key in usage)
    for key, entry in held.items() if counters.devices else ():
        own_s, unknown_s = counters.pod_busy_s(key), counters.unknown_s.get(key[2:], 0.0)
        entry.is_visited = key[2:] in visited
        is_shared = pods_on[key[2:]] > 1
        if own_s is not None and entry.activity_mean is not None:
            entry.disputed = counters.dispute(key, entry.activity_mean, window)
        if unknown_s > SLACK_S and not is_shared:
            own_s = None  # it was probably this pod's
        entry.is_own = own_s is not None
        entry.busy_s = counters.device_busy_s(key) if own_s is None else own_s
        if entry.busy_s is None:
            entry.busy_s = counters.least_busy_s(key, is_shared=is_shared)
            continue
        mean = min(entry.busy_s / window.total_seconds(), 1.0)
        if own_s is not None and is_shared:
            # The device's peak is not a single pod's: an idle pod has no part in it.
            entry.activity_mean, entry.unattributed_s = mean, unknown_s
            if own_s - unknown_s <= SLACK_S:
                entry.activity_peak = 0.0 if own_s <= SLACK_S else None
            entry.traffic_s = counters.pod_traffic_s(key)
            entry.memory_peak_bytes = counters.memory_bytes.get(key, entry.memory_peak_bytes)
        elif entry.activity_peak is not None and is_shared:
            # A gauge may have the pod's part only (gpu-exporter's --shared-gpus attributed).
            entry.activity_mean = max(mean, entry.activity_mean or 0.0)
            entry.activity_peak = max(mean, entry.activity_peak)


def _add_elsewhere(
    usage: UsageByDevice, counters: Counters, window: datetime.timedelta, of: Collection[PodKey] | None
) -> None:
    """Add the uses of devices that the kubelet did not give to the pod: no gauge names it there.

    A part of the window is enough to show use. Without a counter of the pod's own, only the device's may say that it
    was idle.
    """
    devices = {key[2:]: entry.device for key, entry in usage.items()}
    for key in sorted(set(counters.uses()) - usage.keys()):
        if of is None or key[:2] in of:
            entry = UsageAccumulator(devices.get(key[2:], Device(*key[2:])), is_held=False)
            counted, unknown_s = counters.pods.get(key), counters.unknown_s.get(key[2:], 0.0)
            busy_s = counters.device_busy_s(key) if counted is None else counted.busy_s
            if busy_s is not None:
                entry.activity_mean = entry.activity_peak = min(busy_s / window.total_seconds(), 1.0)
            if counted is not None:
                entry.is_own, entry.busy_s, entry.unattributed_s = True, counted.busy_s + unknown_s, unknown_s
            traffic = counters.traffic.get(key)
            entry.traffic_s = None if traffic is None else traffic.busy_s
            usage[key] = entry


def _by_pod(usage: UsageByDevice, coverage: Mapping[UseKey, Coverage]) -> Usages:
    found: dict[PodKey, list[Usage]] = {}
    for key in sorted(usage):
        found.setdefault(key[:2], []).append(_usage(usage.pop(key), coverage.get(key, NO_COVERAGE)))
    return found


def _usage(entry: UsageAccumulator, coverage: Coverage) -> Usage:
    # Positional: keyword arguments would take three times as long for a hundred thousand of these.
    return Usage(
        entry.device,
        entry.activity_mean,
        entry.activity_peak,
        entry.traffic_peak,
        entry.memory_peak_bytes,
        entry.power_mean_w,
        entry.power_peak_w,
        entry.busy_s,
        entry.is_own,
        coverage.share,
        coverage.gaps,
        coverage.is_fresh,
        coverage.samples_expected,
        entry.invalid,
        entry.activity_floor,
        entry.unattributed_s,
        entry.traffic_s,
        entry.clock_peak_hz,
        entry.disputed,
        is_held=entry.is_held,
        is_visited=entry.is_visited,
        lacking=entry.lacking,
    )
