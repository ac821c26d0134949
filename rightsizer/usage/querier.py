"""How a source is asked: which series are meant, how many fit into one query, and by which way of reading.

Knows the source's names of labels and metrics, not what is made of the answers.
"""

import dataclasses
import datetime
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

from rightsizer.config import MAX_SAMPLES
from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, Prometheus, Sample
from rightsizer.prometheus.sharding import Shard, ShardPlan
from rightsizer.usage.quantities import Metric, MetricKind, MetricSource, Statistic
from rightsizer.usage.recording_rules import (
    COUNT,
    RULE_INTERVAL,
    QueryForm,
    RawQueries,
    RecordedQueries,
    recorded,
)
from rightsizer.usage.series_labels import CLUSTER, SeriesLabels

DENSITY_SPAN = datetime.timedelta(minutes=10)
USUAL_INTERVAL_S = 15.0
LEAST_RECORDED = datetime.timedelta(hours=1)
"""In a shorter window the samples themselves are as few as recorded values are in a day."""

MOST_SERIES = 20_000
"""In one answer: some 6 MB of JSON, and several times that while it is read."""

QueryShards = Sequence[tuple[ShardPlan, list[Shard]]]
"""What a question is about, in pieces that can be asked about at once."""

T = TypeVar("T")

NEARLY_ALL = 0.98
"""So many of the series must be on record for the records to be used instead of them."""


@dataclasses.dataclass(slots=True)
class AnsweredMetrics:
    """Of what there were any answers: of all else there are none over a shorter window.

    Attributes:
        forms: Labels by which series name pods.
    """

    quantities: set[tuple[Metric, Statistic]] = dataclasses.field(default_factory=set)
    forms: set[str] = dataclasses.field(default_factory=set)

    def note(self, quantity: Metric, statistic: Statistic, series: Iterable[SeriesLabels]) -> None:
        """Take note of an answer."""
        forms = {described.form for described in series}
        self.forms |= forms
        if forms:
            self.quantities.add((quantity, statistic))

    def of(self, kind: MetricKind) -> tuple[Metric, ...]:
        """The metrics of one kind."""
        return tuple(
            sorted({one for one, _ in self.quantities if one.kind is kind}, key=lambda one: one.metric)
        )


class QueryMemo:
    """Answers that are wanted again while nothing but the window changes; those of one instant."""

    def __init__(self) -> None:
        self._at: datetime.datetime | None = None
        self._known: dict[Hashable, Any] = {}

    def of(self, at: datetime.datetime, key: Hashable, make: Callable[[], T]) -> T:
        """What was made for the key, as of this instant; made now where it was not."""
        if self._at != at:
            self._at, self._known = at, {}
        if key not in self._known:
            self._known[key] = make()
        found: T = self._known[key]
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class SourceQuerier:
    """A source in one Prometheus.

    Attributes:
        source: What its metrics are called; those that are not there cost nothing.
        given: Matchers that every series must meet, such as the cluster's.
        max_samples: What Prometheus loads at most for one query; we ask for half of it.
        known: Pods that are known to hold GPUs; empty where that is not known.
    """

    prometheus: Prometheus
    source: MetricSource
    given: tuple[str, ...] = ()
    max_samples: int = MAX_SAMPLES
    known: frozenset[PodKey] = frozenset()
    memo: QueryMemo = dataclasses.field(default_factory=QueryMemo, repr=False, compare=False)
    described: ParseCache[SeriesLabels] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read each series' labels once."""
        object.__setattr__(self, "described", ParseCache(self.source.labels.describe))

    @property
    def owned(self) -> tuple[str, ...]:
        """Matchers of the series that name a pod and are ours."""
        return (self.source.labels.has_pod, *self.given)

    def markers(self) -> tuple[Metric, ...]:
        """Metrics of which every device has one: of MIG instances memory may be all there is."""
        return (*self.source.of(MetricKind.MEMORY), *self.source.of(MetricKind.ACTIVITY))

    def answered(self, window: datetime.timedelta, at: datetime.datetime) -> "AnsweredMetrics | None":
        """What answers there were over this window or a longer one; None where nobody asked."""
        known = self._answered(at)
        return next((known[span] for span in sorted(known) if span >= window), None)

    def note(self, window: datetime.timedelta, at: datetime.datetime, answered: "AnsweredMetrics") -> None:
        """Keep in mind what answers there were about everybody."""
        self._answered(at)[window] = answered

    def _answered(self, at: datetime.datetime) -> "dict[datetime.timedelta, AnsweredMetrics]":
        return self.memo.of(at, "answered", dict)

    def selected(self, quantities: Iterable[Metric], matchers: Sequence[str]) -> str:
        """The series of several metrics, of those with the same labels one only."""
        return " or ".join(
            promql.selector(quantity.metric, [*quantity.matchers, *matchers]) for quantity in quantities
        )

    def reading(self, window: datetime.timedelta, at: datetime.datetime) -> QueryForm:
        """Of the recorded values where they reach back over the window for (nearly) all series."""
        if not self.source.has_rules or window < LEAST_RECORDED:
            return RawQueries()
        known: dict[datetime.timedelta, QueryForm] = self.memo.of(at, "readings", dict)
        # What is on record of a longer window is of a shorter one, too.
        reading = next((known[span] for span in sorted(known) if _covers(known[span], span, window)), None)
        if reading is None:
            reading = known[window] = self._reading(window, at)
        return reading

    def _reading(self, window: datetime.timedelta, at: datetime.datetime) -> QueryForm:
        activity = self.source.of(MetricKind.ACTIVITY)
        kept = [
            promql.over("last_over_time", recorded(quantity, COUNT, self.owned), 2 * RULE_INTERVAL)
            for quantity in activity
        ]
        raw = [promql.selector(one.metric, [*one.matchers, *self.owned]) for one in activity]
        half = (window - 2 * RULE_INTERVAL) / 2
        instants = (at - 2 * half, at - half, at)
        held = self._counts(kept, instants, at)
        # Series rather than what they are about, which is never more: cheaper, and mostly enough.
        if _are_nearly_all(held, self._counts(raw, instants, at)):
            return RecordedQueries()
        use = self.source.labels.use
        both = [[promql.by("max", use, " or ".join(each))] for each in (kept, raw)]
        is_enough = min(held) > 0 and _are_nearly_all(*(self._counts(each, instants, at) for each in both))
        return RecordedQueries() if is_enough else RawQueries()

    def samples_per_series(
        self, reading: QueryForm, window: datetime.timedelta, at: datetime.datetime
    ) -> float:
        """How many samples the densest series has in the window, by the last minutes of it."""
        if isinstance(reading, RecordedQueries):
            return window / RULE_INTERVAL + 1
        return window.total_seconds() / self.interval_s(at) + 1

    def interval_s(self, at: datetime.datetime) -> float:
        """Seconds between two samples of the densest series, lately."""
        return self.memo.of(at, "interval", lambda: self._interval_s(at))

    def _interval_s(self, at: datetime.datetime) -> float:
        densest = 0.0
        for kind in (MetricKind.ACTIVITY, MetricKind.MEMORY):
            counts = (
                RawQueries().count(quantity, self.given, DENSITY_SPAN) for quantity in self.source.of(kind)
            )
            densest = densest or max((self._number(f"max({count})", at) for count in counts), default=0.0)
        return DENSITY_SPAN.total_seconds() / (densest - 1) if densest > 1 else USUAL_INTERVAL_S

    def territory(
        self, window: datetime.timedelta, at: datetime.datetime, *, of_devices: bool = False
    ) -> ShardPlan:
        """The fleet's series, by namespaces; those of devices, which name no pod, by nodes."""
        key = ("territories", of_devices)
        known: dict[datetime.timedelta, ShardPlan] = self.memo.of(at, key, dict)
        # Of a longer window there may be parts besides, of what is gone; nothing is left out.
        found = next((known[span] for span in sorted(known) if span >= window), None)
        if found is None:
            found = known[window] = self._territory(window, at, of_devices=of_devices)
        return found

    def _territory(self, window: datetime.timedelta, at: datetime.datetime, *, of_devices: bool) -> ShardPlan:
        labels = self.source.labels
        base = self.given if of_devices else self.owned

        def count(by: Sequence[str], matchers: Sequence[str]) -> str:
            return promql.by("count", by, self.selected(self.markers(), (*base, *matchers)))

        lookback = datetime.timedelta(minutes=5)
        spread = (
            (at, at - window / 2, at - window + lookback) if window > 2 * lookback else (at, at - window / 2)
        )
        return ShardPlan(
            self.prometheus,
            size=lambda: next((size for instant in spread if (size := self._size(base, instant, at))), 0),
            count=count,
            namespaces=labels.node if of_devices else labels.namespace,
            nodes=() if of_devices else labels.node,
            instants=spread,
        )

    def is_there(self, quantity: Metric, at: datetime.datetime) -> bool:
        """Whether anything has a metric now."""
        return bool(self._series(quantity, self.given, at, at))

    def most(self, per_series: float, *, at_once: float = MOST_SERIES) -> float:
        """How many series of so many samples may be asked for at once, and told of in one answer."""
        return max(1.0, min(at_once, self.max_samples / 2 / max(per_series, 1.0)))

    def samples(
        self,
        territory: ShardPlan,
        shards: list[Shard],
        build: Callable[[Sequence[str]], str],
        at: datetime.datetime,
    ) -> Iterator[Sample]:
        """What an instant query gives, shard by shard.

        Raises:
            EvidenceIncomplete: The series are of several clusters.
        """
        for answer in territory.ask(shards, lambda matchers: self.prometheus.query(build(matchers), at)):
            require_one_cluster(sample.labels for sample in answer)
            yield from answer

    def keyed(
        self, places: QueryShards, build: Callable[[Sequence[str]], str], at: datetime.datetime
    ) -> Iterator[tuple[SeriesLabels, float]]:
        """The same for a question whose answers are about devices and who uses them.

        Raises:
            EvidenceIncomplete: The series are of several clusters.
        """
        for territory, shards in places:
            for answer in territory.ask(
                shards, lambda matchers: self.prometheus.query_as(build(matchers), at, self.described)
            ):
                require_one_cluster_name({described.cluster for described, _ in answer})
                yield from answer

    def _counts(
        self, expressions: Sequence[str], instants: Sequence[datetime.datetime], at: datetime.datetime
    ) -> list[float]:
        """How many series these give together, at each of the instants.

        Asked one by one: over a range Prometheus goes through all that lies between them.
        """
        return [
            float(sum(self._count(expression, instant, at) for expression in expressions))
            for instant in instants
        ]

    def _size(self, matchers: Sequence[str], instant: datetime.datetime, at: datetime.datetime) -> int:
        """How many series there are of the kind of metric of which there is most."""
        kinds = (self.source.of(kind) for kind in (MetricKind.MEMORY, MetricKind.ACTIVITY))
        return max(sum(self._series(one, matchers, instant, at) for one in kind) for kind in kinds)

    def _series(
        self, quantity: Metric, matchers: Sequence[str], instant: datetime.datetime, at: datetime.datetime
    ) -> int:
        return self._count(promql.selector(quantity.metric, [*quantity.matchers, *matchers]), instant, at)

    def _count(self, expression: str, instant: datetime.datetime, at: datetime.datetime) -> int:
        return self.memo.of(
            at, (expression, instant), lambda: series_count(self.prometheus, expression, instant)
        )

    def _number(self, expression: str, at: datetime.datetime) -> float:
        return max((sample.value for sample in self.prometheus.query(expression, at)), default=0.0)


def series_count(prometheus: Prometheus, expression: str, instant: datetime.datetime) -> int:
    """How many series an expression gives."""
    return max((round(one.value) for one in prometheus.query(f"count({expression})", instant)), default=0)


def _are_nearly_all(held: Sequence[float], raw: Sequence[float]) -> bool:
    """Whether at each instant so many are on record as there were."""
    return all(kept and kept >= NEARLY_ALL * there for kept, there in zip(held, raw, strict=True))


def _covers(reading: QueryForm, span: datetime.timedelta, window: datetime.timedelta) -> bool:
    return span == window or (span > window and isinstance(reading, RecordedQueries))


def require_one_cluster(series: Iterable[Mapping[str, str]]) -> None:
    """Two clusters may have a pod of the same name: its idleness there must not count here.

    Raises:
        EvidenceIncomplete: The series are of several clusters.
    """
    require_one_cluster_name({labels.get(CLUSTER, "") for labels in series})


def require_one_cluster_name(clusters: AbstractSet[str]) -> None:
    """The same, by their names.

    Raises:
        EvidenceIncomplete: There are several.
    """
    if len(clusters) > 1:
        ordered = sorted(clusters)
        names = ", ".join(name or "(none)" for name in ordered[:5])
        raise EvidenceIncomplete(
            f"Prometheus holds GPU series of several clusters ({names}); "
            f"name yours: --prometheus-label {CLUSTER}={ordered[-1]}"
        )
