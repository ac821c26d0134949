"""Which pods of some stems there were in stretches of time, and which of them plainly miss no minute's samples.

A pod that has nearly as many samples as the one with the most cannot lack a minute's, where that one lacks none: one
number for each pod and stretch, instead of two for each minute.
"""

import dataclasses
import datetime
import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange
from rightsizer.prometheus.sharding import SeriesGroup, Shard
from rightsizer.usage.pod_name_patterns import NamePrefix, PodSelection, batches, members_of
from rightsizer.usage.quantities import Metric, MetricKind
from rightsizer.usage.querier import SourceQuerier, require_one_cluster_name
from rightsizer.usage.recording_rules import COUNT, RULE_INTERVAL, RawQueries, RecordedQueries, recorded
from rightsizer.usage.series_labels import CLUSTER

MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
EDGE = datetime.timedelta(milliseconds=1)
"""Prometheus before 3.0 counts what lies on either end of a range; of ranges shorter by this none counts it twice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Period:
    """Minutes that are asked about: as many as `count`, the last of which ends at `end`.

    Attributes:
        around: How far before and after a minute is looked for devices whose samples are missing in it.
    """

    end: datetime.datetime
    count: int
    around: datetime.timedelta

    @property
    def instants(self) -> QueryRange:
        """The ends of the minutes."""
        return QueryRange(self.end - (self.count - 1) * MINUTE, self.end, MINUTE.total_seconds())

    def later(self, at: datetime.datetime) -> QueryRange | None:
        """So much later than each of them as is looked around, but not after `at`; None where that leaves none."""
        start, end = self.instants.start + self.around, min(self.end + self.around, at)
        return QueryRange(start, end, MINUTE.total_seconds()) if start <= end else None


@dataclasses.dataclass(frozen=True, slots=True)
class DailyPeriods:
    """Stretches of one length, a day apart, the latest first: some questions are put about all of them at once.

    Attributes:
        at: Nothing after this is looked at.
    """

    stretches: tuple[Period, ...]
    at: datetime.datetime

    def length(self, reach: datetime.timedelta) -> datetime.timedelta:
        """Of a stretch with what is around it, in whole reaches."""
        first = self.stretches[0]
        length = first.count * MINUTE + first.around + (self._end(first) - first.end) + reach
        return -(-length // reach) * reach

    @property
    def ends(self) -> QueryRange:
        """The instants at which what is around them ends."""
        return QueryRange(self._end(self.stretches[-1]), self._end(self.stretches[0]), DAY.total_seconds())

    def place(self, instant: float) -> int:
        """Which of the stretches one of those instants is about."""
        return round((self._end(self.stretches[0]).timestamp() - instant) / DAY.total_seconds())

    def end(self, place: int) -> datetime.datetime:
        """Where what is around one of them ends."""
        return self._end(self.stretches[place])

    def _end(self, stretch: Period) -> datetime.datetime:
        return min(stretch.end + stretch.around, self.at)


@dataclasses.dataclass(slots=True)
class PeriodPresence:
    """What is known of a stretch.

    Attributes:
        there: Stems of which there is anything.
        replicas: Those of which plainly nothing is missing, with the number of replicas throughout.
    """

    there: set[NamePrefix] = dataclasses.field(default_factory=set)
    replicas: dict[NamePrefix, int] = dataclasses.field(default_factory=dict)


def present(
    asker: SourceQuerier,
    stems: Mapping[str, Collection[NamePrefix]],
    rounds: Sequence[DailyPeriods],
    reach: datetime.timedelta,
) -> list[PodSelection]:
    """The pods of these stems of which there is anything in or around the stretches.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    spaces = sorted({space for each in stems.values() for space, _ in each})
    wheres = []
    for label, space_label, absent in asker.source.labels.forms():
        form = PodSelection(label, space_label, tuple(absent), {}, "", ())
        named = {
            quantity: {pod for each in rounds for pod in _named(asker, quantity, form, spaces, each, reach)}
            for quantity in asker.source.of(MetricKind.ACTIVITY)
        }
        pods = sorted(set().union(*named.values()))
        quantities = tuple(quantity for quantity, those in named.items() if those)
        for suffix, members in sorted(members_of(pods, stems).items()):
            wheres += [
                dataclasses.replace(form, members=batch, suffix=suffix, quantities=quantities)
                for batch in batches(members, len(quantities))
            ]
    return wheres


def _named(
    asker: SourceQuerier,
    quantity: Metric,
    form: PodSelection,
    spaces: Sequence[str],
    rounds: DailyPeriods,
    reach: datetime.timedelta,
) -> Iterator[PodKey]:
    """Whom a metric tells of, in these namespaces."""
    length = rounds.length(reach)
    # What was recorded ends up to five minutes ago.
    is_past = rounds.ends.end + RULE_INTERVAL <= rounds.at
    reading = asker.reading(rounds.at - rounds.ends.start + length, rounds.at) if is_past else RawQueries()

    whose, nothing = _whose(asker, form, rounds.at), ParseCache(_nothing)

    def ask(matchers: Sequence[str]) -> list[tuple[Whose, None]]:
        every = (*asker.owned, *matchers)
        selected = promql.selector(quantity.metric, [*quantity.matchers, *every])
        if isinstance(reading, RecordedQueries):
            selected = recorded(quantity, COUNT, every)
        there = promql.over("present_over_time", selected, length + RULE_INTERVAL)
        return asker.prometheus.query_range_as(
            promql.by("max", form.pod, there), rounds.ends, labels=whose, values=nothing
        )

    territory = asker.territory(MINUTE, rounds.at)
    shards = [
        Shard(tuple(SeriesGroup(form.space_label, space, 1, form.absent) for space in batch))
        for batch in promql.batches(spaces, promql.MAX_TEXT // 2)
    ]
    for answer in territory.ask(shards, ask):
        require_one_cluster_name({cluster for (cluster, _), _ in answer})
        yield from (pod for (_, pod), _ in answer)


Whose = tuple[str, PodKey]
"""A cluster, and a pod in it."""


def _whose(asker: SourceQuerier, form: PodSelection, at: datetime.datetime) -> ParseCache[Whose]:
    """Whom series name in one form; the same for all questions."""
    return asker.memo.of(
        at,
        ("whose", form.space_label, form.label),
        lambda: ParseCache(functools.partial(_pod, form.space_label, form.label)),
    )


def _pod(space_label: str, label: str, text: msgspec.Raw) -> Whose:
    labels = msgspec.json.decode(text, type=dict[str, str])
    return labels.get(CLUSTER, ""), (labels.get(space_label, ""), labels.get(label, ""))


def _nothing(_: msgspec.Raw) -> None:
    """Of points of which only their being there matters."""


def presence_by_period(
    asker: SourceQuerier, wheres: Sequence[PodSelection], rounds: DailyPeriods, reach: datetime.timedelta
) -> list[PeriodPresence]:
    """What there is, and what is plainly whole, of each of the stretches.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    counting = _Counting(asker, rounds, reach)
    found = [PeriodPresence() for _ in rounds.stretches]
    doubtful: list[set[NamePrefix]] = [set() for _ in rounds.stretches]
    counts = [
        (where, quantity, counting.ask(where, quantity)) for where in wheres for quantity in where.quantities
    ]
    least = counting.least(counts)
    for where, quantity, by_place in counts:
        for place, pods in by_place.items():
            whole = found[place]
            enough = least.get((quantity, place), math.inf)
            for stem, members in where.members.items():
                mine = {name: pods[stem[0], name] for name in members if (stem[0], name) in pods}
                if not mine:
                    continue
                replicas = len({members[name] for name in mine})
                # In two forms, or by two metrics, not all may be the same replicas.
                if min(mine.values()) < enough or whole.replicas.get(stem, replicas) != replicas:
                    doubtful[place].add(stem)
                whole.there.add(stem)
                whole.replicas[stem] = replicas
    for whole, stems in zip(found, doubtful, strict=True):
        for stem in stems:
            del whole.replicas[stem]
    return found


Points = Sequence[tuple[int, float]]
"""The place of a stretch, and a number of samples."""

Counts = dict[int, dict[PodKey, float]]
"""Samples of the device of each pod that has least of them, by the stretch's place."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Counting:
    asker: SourceQuerier
    rounds: DailyPeriods
    reach: datetime.timedelta

    def ask(self, where: PodSelection, quantity: Metric) -> Counts:
        """How many samples there are of each pod in each stretch and around it."""
        found = Counts()
        wanted = {(space, name) for (space, _), names in where.members.items() for name in names}
        for pod, points in self._tracks(where, quantity, self.rounds.ends, self.rounds.length(self.reach)):
            for place, value in points if pod in wanted else ():
                found.setdefault(place, {})[pod] = value
        return found

    def least(self, counts: Sequence[tuple[PodSelection, Metric, Counts]]) -> dict[tuple[Metric, int], float]:
        """With how many samples of a metric plainly no minute lacks any, by the stretch; where that is known."""
        most: dict[tuple[Metric, int], tuple[float, PodKey, PodSelection]] = {}
        for where, quantity, by_place in counts:
            for place, pods in by_place.items():
                count, pod = max((count, pod) for pod, count in pods.items())
                if (quantity, place) not in most or (count, pod) > most[quantity, place][:2]:
                    most[quantity, place] = (count, pod, where)
        found = {}
        for (quantity, place), (count, pod, where) in most.items():
            full = self._full(where, quantity, pod, place)
            if full is not None:
                lost = full[0] * full[1] - count
                # By where a minute begins it may hold one sample less than the fullest.
                found[quantity, place] = count - (full[0] - 1 - lost) + 1
        return {key: least for key, least in found.items() if least <= most[key][0]}

    def _full(
        self, where: PodSelection, quantity: Metric, pod: PodKey, place: int
    ) -> tuple[float, int] | None:
        """The most samples that a pod has in a reach, and of how many reaches; None where one of them has none."""
        length, end = self.rounds.length(self.reach), self.rounds.end(place)
        parts = length // self.reach
        span = QueryRange(end - (parts - 1) * self.reach, end, self.reach.total_seconds())
        alone = where.about(pod)
        counts = [
            value for _, points in self._tracks(alone, quantity, span, self.reach) for _, value in points
        ]
        return (max(counts), parts) if len(counts) == parts else None

    def _tracks(
        self, where: PodSelection, quantity: Metric, span: QueryRange, length: datetime.timedelta
    ) -> Iterator[tuple[PodKey, Points]]:
        whose, values = _whose(self.asker, where, self.rounds.at), ParseCache(self._points)

        def ask(matchers: Sequence[str]) -> list[tuple[Whose, Points]]:
            every = (*self.asker.given, *quantity.matchers, where.matcher, *matchers)
            counted = promql.over("count_over_time", promql.selector(quantity.metric, every), length - EDGE)
            return self.asker.prometheus.query_range_as(
                promql.by("min", where.pod, counted), span, labels=whose, values=values
            )

        territory = self.asker.territory(MINUTE, self.rounds.at)
        for answer in territory.ask(where.shards(), ask):
            require_one_cluster_name({cluster for (cluster, _), _ in answer})
            yield from ((pod, points) for (_, pod), points in answer)

    def _points(self, text: msgspec.Raw) -> Points:
        points = msgspec.json.decode(text, type=list[tuple[float, str]])
        return [(self.rounds.place(instant), float(value)) for instant, value in points]
