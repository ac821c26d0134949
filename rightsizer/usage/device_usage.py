"""Usage of every device by every pod: one aggregate query for each statistic of each metric; never raw samples.

What cannot be is noted as such, never bent into what can. Each series is taken at its word about whose it is; only pods
that the API server knows are looked up.
"""

import array
import dataclasses
import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import Device, PodKey, Usage, Usages
from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import ShardPlan
from rightsizer.usage import exporter_counters
from rightsizer.usage.counter_meaning import SLACK_S, Counters
from rightsizer.usage.pods_by_name import of_pods
from rightsizer.usage.quantities import STATISTICS, Metric, MetricKind, Statistic
from rightsizer.usage.querier import AnsweredMetrics, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import RULE_INTERVAL, QueryForm, RawQueries, RecordedQueries
from rightsizer.usage.sample_coverage import NOTHING, Coverage, can_be_narrow, cover
from rightsizer.usage.series_labels import SeriesLabels, UseKey

DISAGREE = 0.1
"""Two sources whose means over an hour are further apart do not speak of the same device or the same pod."""
COMPARED = datetime.timedelta(hours=1)
DISAGREEMENT = "sources disagree"

_FIELDS = {
    (MetricKind.ACTIVITY, Statistic.MEAN): "activity_mean",
    (MetricKind.ACTIVITY, Statistic.PEAK): "activity_peak",
    (MetricKind.TRAFFIC, Statistic.PEAK): "traffic_peak",
    (MetricKind.MEMORY, Statistic.PEAK): "memory_peak_bytes",
    (MetricKind.POWER, Statistic.MEAN): "power_mean_w",
    (MetricKind.POWER, Statistic.PEAK): "power_peak_w",
}


@dataclasses.dataclass(slots=True)
class UsageAccumulator:
    """What has been collected for one key, before it becomes a Usage."""

    device: Device
    activity_mean: float | None = None
    activity_peak: float | None = None
    traffic_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    busy_s: float | None = None
    is_own: bool = False
    invalid: tuple[str, ...] = ()

    def doubt(self, name: str) -> None:
        """Note what cannot be."""
        if name not in self.invalid:
            self.invalid = tuple(sorted((*self.invalid, name)))


UsageByDevice = dict[UseKey, UsageAccumulator]
Answers = list[tuple[SeriesLabels, float]]
"""What series are about, and their values, as they came."""
Kept = tuple[list[SeriesLabels], "array.array[float]"]
"""Answers of which there are many: what they are about, and the values."""


def usages(
    asker: SourceQuerier,
    window: datetime.timedelta,
    at: datetime.datetime,
    *,
    of: Collection[PodKey] | None = None,
) -> Usages:
    """Usage in the window that ends at `at`; empty where there is none.

    Args:
        asker: The source.
        window: How far back.
        at: The end.
        of: Only these pods matter; others are left out where that is cheaper.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    everything: UsageByDevice = {}
    reading = asker.reading(window, at)
    territory = asker.territory(window, at)
    most = asker.most(asker.samples_per_series(reading, window, at))
    before = asker.answered(window, at) if of is not None and can_be_narrow(asker, reading, at) else None
    if of is not None and before is not None:
        places = list(of_pods(asker, sorted(of), at, most, forms=before.forms))
    else:
        of, places = None, [(territory, territory.shards(most))]
    questions = [
        _Question(asker, places, reading, quantity, statistic, window, at)
        for quantity in asker.source.quantities
        for statistic in STATISTICS[quantity.kind]
        if before is None or (quantity, statistic) in before.quantities
    ]
    answered = AnsweredMetrics()
    for question, answers in _asked(asker, questions):
        question.file(everything, answers)
        answered.note(question.quantity, question.statistic, (one for one, _ in answers if one.key))
    if of is None:
        asker.note(window, at, answered)
    if isinstance(reading, RecordedQueries):
        # What was recorded ends up to five minutes ago.
        for question, (described, values) in _lately(asker, territory, at):
            question.file(everything, _about(of, zip(described, values, strict=True)))
    covers = cover(asker, reading, places, window=window, at=at, of=of)
    for one, _ in _about(of, ((one, 0.0) for one in _compared(asker, territory, min(window, COMPARED), at))):
        _place(everything, one).doubt(DISAGREEMENT)
    _count(everything, exporter_counters.ask(asker, window, at), window)
    return _by_pod(everything, covers)


def recent(asker: SourceQuerier, at: datetime.datetime) -> Usages:
    """The highest of everything in the last minutes."""
    everything: UsageByDevice = {}
    for question, (described, values) in _lately(asker, asker.territory(2 * RULE_INTERVAL, at), at):
        question.file(everything, zip(described, values, strict=True))
    return _by_pod(everything, {})


def activity(
    asker: SourceQuerier, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
) -> Usages:
    """Only the highest activity, what counters say of it and, where wanted, of how much of the window that is known."""
    everything: UsageByDevice = {}
    territory = asker.territory(window, at)
    for question, answers in _peaks(asker, territory, window, at, kinds=(MetricKind.ACTIVITY,)):
        question.file(everything, answers)
    _count(everything, exporter_counters.ask(asker, window, at), window)
    if not with_coverage:
        return _by_pod(everything, {})
    most = asker.most(asker.samples_per_series(RawQueries(), window, at))
    places = [(territory, territory.shards(most))]
    return _by_pod(everything, cover(asker, RawQueries(), places, window=window, at=at))


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    asker: SourceQuerier
    places: QueryShards
    reading: QueryForm
    quantity: Metric
    statistic: Statistic
    window: datetime.timedelta
    at: datetime.datetime

    def ask(self) -> Answers:
        """The answers, in the metric's unit, also those that do not say whose they are."""
        asker, labels = self.asker, self.asker.source.labels

        def build(matchers: Iterable[str]) -> str:
            every = (*asker.owned, *matchers)
            asked = self.reading.statistic(self.quantity, self.statistic, every, self.window)
            answer = promql.by("max", labels.described, asked)
            return promql.only_nan(answer) if self._is_check else answer

        return list(asker.keyed(self.places, build, self.at))

    @property
    def _is_check(self) -> bool:
        """Whether nobody keeps what is asked, and only what cannot be is of interest: a mean of no numbers."""
        return self.statistic is Statistic.MEAN and (self.quantity.kind, self.statistic) not in _FIELDS

    def file(self, everything: UsageByDevice, answers: Iterable[tuple[SeriesLabels, float]]) -> None:
        """Put the answers under their keys."""
        field = _FIELDS.get((self.quantity.kind, self.statistic), "")
        metric, highest, scale = (
            self.quantity.metric,
            self.quantity.highest,
            self.reading.scale(self.quantity),
        )
        for described, number in answers:
            if described.key is None:
                continue
            value = number * scale
            here = everything.get(described.key)
            if here is None or described.device is not here.device:
                here = _place(everything, described)
            if not 0 <= value <= highest:  # nor where it is NaN
                here.doubt(metric)
            elif field and metric not in here.invalid:
                before = getattr(here, field)
                if before is None or value > before:
                    setattr(here, field, value)


def _asked(asker: SourceQuerier, questions: Sequence[_Question]) -> Iterator[tuple[_Question, Answers]]:
    """The questions with their answers, of which the next are under way while one is taken."""
    answers = asker.prometheus.run_in_order([question.ask for question in questions])
    return zip(questions, answers, strict=True)


def _about(
    pods: Collection[PodKey] | None, answers: Iterable[tuple[SeriesLabels, float]]
) -> Iterable[tuple[SeriesLabels, float]]:
    """The answers about certain pods; all of them where none are named."""
    if pods is None:
        return answers
    return (each for each in answers if each[0].key is not None and each[0].key[:2] in pods)


def _place(everything: UsageByDevice, described: SeriesLabels) -> UsageAccumulator:
    """Where a sample with a key belongs. Of two descriptions of one device one is taken, always the same."""
    key, device = described.key, described.device
    assert key is not None  # noqa: S101 - or it would not have been taken
    here = everything.get(key)
    if here is None:
        here = everything[key] = UsageAccumulator(device)
    elif device is not here.device and device != here.device:
        here.device = dataclasses.replace(
            device,
            model=min(filter(None, (device.model, here.device.model)), default=""),
            instance_profile=device.instance_profile or here.device.instance_profile,
        )
    return here


def _peaks(
    asker: SourceQuerier,
    territory: ShardPlan,
    window: datetime.timedelta,
    at: datetime.datetime,
    *,
    kinds: tuple[MetricKind, ...] = tuple(MetricKind),
) -> Iterator[tuple[_Question, Answers]]:
    most = asker.most(asker.samples_per_series(RawQueries(), window, at))
    places = [(territory, territory.shards(most))]
    questions = [
        _Question(asker, places, RawQueries(), quantity, Statistic.PEAK, window, at)
        for kind in kinds
        for quantity in asker.source.of(kind)
    ]
    return _asked(asker, questions)


def _lately(
    asker: SourceQuerier, territory: ShardPlan, at: datetime.datetime
) -> list[tuple[_Question, Kept]]:
    """Peaks of the last minutes, which are asked for once for all windows."""

    def make() -> list[tuple[_Question, Kept]]:
        return [
            (question, _kept(answers))
            for question, answers in _peaks(asker, territory, 2 * RULE_INTERVAL, at)
        ]

    return asker.memo.of(at, "lately", make)


def _kept(answers: Iterable[tuple[SeriesLabels, float]]) -> Kept:
    kept: Kept = ([], array.array("d"))
    for described, value in answers:
        kept[0].append(described)
        kept[1].append(value)
    return kept


def _compared(
    asker: SourceQuerier, territory: ShardPlan, span: datetime.timedelta, at: datetime.datetime
) -> list[SeriesLabels]:
    """The devices that are in doubt since two sources disagree; asked once for all windows."""
    return asker.memo.of(at, ("compared", span), lambda: list(_compare(asker, territory, span, at)))


def _compare(
    asker: SourceQuerier, territory: ShardPlan, span: datetime.timedelta, at: datetime.datetime
) -> Iterator[SeriesLabels]:
    """The devices of which two sources that measure the same say different things.

    Only in the last hour: of an exporter that has been replaced since, the two speak of different times.
    """
    places = [(territory, territory.shards(asker.most(asker.samples_per_series(RawQueries(), span, at))))]
    answered = asker.answered(span, at)
    alike: dict[str, list[Metric]] = {}
    for quantity in answered.of(MetricKind.ACTIVITY) if answered else asker.source.of(MetricKind.ACTIVITY):
        alike.setdefault(quantity.alike, []).append(quantity)
    for quantities in alike.values():
        if len(quantities) == 1 and not _has_copies(asker, places, quantities[0], span, at):
            continue

        def build(matchers: Iterable[str], quantities: list[Metric] = quantities) -> str:
            every = (*asker.owned, *matchers)
            means = " or ".join(
                f"{RawQueries().statistic(quantity, Statistic.MEAN, every, span)} * {quantity.scale!r}"
                for quantity in quantities
            )
            use = asker.source.labels.use
            return f"{promql.by('max', use, means)} - {promql.by('min', use, means)} > {DISAGREE}"

        for described, _ in asker.keyed(places, build, at):
            if described.key is not None:
                yield described


def _has_copies(
    asker: SourceQuerier,
    places: QueryShards,
    quantity: Metric,
    span: datetime.timedelta,
    at: datetime.datetime,
) -> bool:
    """Whether a metric comes from several sources for anybody: only then can it disagree with itself."""

    def build(matchers: Iterable[str]) -> str:
        selected = promql.selector(quantity.metric, [*quantity.matchers, *asker.owned, *matchers])
        there = promql.over("last_over_time", selected, span)
        return f"count({promql.by('count', asker.source.labels.use, there)} > 1)"

    return any(
        answer
        for territory, shards in places
        for answer in territory.ask(shards, lambda matchers: asker.prometheus.query(build(matchers), at))
    )


def _count(everything: UsageByDevice, counted: Counters, window: datetime.timedelta) -> None:
    """Add what counters say: of a shared device each pod's own, as far as it is known, else the device's."""
    if not counted.devices:
        return
    holders: dict[tuple[str, str], int] = {}
    for key in everything:
        holders[key[2:]] = holders.get(key[2:], 0) + 1
    for key, here in everything.items():
        own_s = counted.own_s(key)
        is_shared = holders[key[2:]] > 1
        here.is_own = own_s is not None
        here.busy_s = counted.anybodys_s(key) if own_s is None else own_s
        if here.busy_s is None:
            continue
        mean = min(here.busy_s / window.total_seconds(), 1.0)
        if own_s is not None and is_shared:
            # The device's highest sample is nobody's alone: none of it is a pod's that did nothing.
            here.activity_mean = mean
            here.activity_peak = 0.0 if own_s <= SLACK_S else here.activity_peak
            here.memory_peak_bytes = counted.memory_bytes.get(key, here.memory_peak_bytes)
        elif here.activity_peak is not None:
            # A gauge may be the pod's part only (the exporter's --shared-gpus attributed).
            here.activity_mean = max(mean, here.activity_mean or 0.0) if is_shared else here.activity_mean
            here.activity_peak = max(mean, here.activity_peak) if is_shared else here.activity_peak


def _by_pod(everything: UsageByDevice, covers: Mapping[UseKey, Coverage]) -> Usages:
    found: dict[tuple[str, str], list[Usage]] = {}
    for key in sorted(everything):
        covered = covers.get(key)
        found.setdefault(key[:2], []).append(_usage(everything.pop(key), covered or NOTHING))
    return found


def _usage(here: UsageAccumulator, covered: Coverage) -> Usage:
    # By place: a hundred thousand of these are made, and by name each would take three times as long.
    return Usage(
        here.device,
        here.activity_mean,
        here.activity_peak,
        here.traffic_peak,
        here.memory_peak_bytes,
        here.power_mean_w,
        here.power_peak_w,
        here.busy_s,
        here.is_own,
        covered.coverage,
        covered.holes,
        covered.is_fresh,
        covered.samples_expected,
        here.invalid,
    )
