"""How many of a workload's replicas were at work in the same minute: lately, and in the coming hour of earlier days.

Replicas are counted by Prometheus, under the stem of their pods' names, so that pods of earlier days count for their
workload though their names are gone. A minute in which some replica's samples are missing is unknown.
"""

import collections
import dataclasses
import datetime
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.model import Concurrency
from rightsizer.observe import promql
from rightsizer.observe.prometheus import Track
from rightsizer.observe.sharding import Part, Shard
from rightsizer.observe.signals.asking import Asker, require_one_cluster
from rightsizer.observe.signals.quantities import Kind, Quantity, Statistic
from rightsizer.observe.signals.rules import Raw
from rightsizer.observe.signals.stems import OTHERS, STEM, SUFFIXES, Stem, Where, batches

MINUTE = datetime.timedelta(minutes=1)
HOUR = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)
JITTER = 1.1

NEAR = datetime.timedelta(minutes=5)
"""A device that has samples so shortly before and after a minute was there in it. Lately, where the pods that are there
now must have samples anyhow, more would only keep more of the last minutes from being looked at."""


@dataclasses.dataclass(frozen=True, slots=True)
class Replicas:
    """A workload whose replicas take each other's place.

    Attributes:
        pods: Its pods that hold GPUs now, with the instant from which on each should have samples.
        created: When the workload came; of days before there is nothing to say.
        window: The trailing window.
        days: How many earlier days to look at.
        threshold: Activity above this (0 to 1) counts as work.
    """

    uid: str
    namespace: str
    kind: str
    pods: Mapping[str, datetime.datetime]
    created: datetime.datetime | None = None
    window: datetime.timedelta = HOUR
    days: int = 7
    threshold: float = 0.01

    def stems(self) -> dict[tuple[str, str], set[str]]:
        """Stem and suffix's pattern → the replicas of its present pods; empty where a name fits no pattern."""
        found: dict[tuple[str, str], set[str]] = {}
        for name in self.pods:
            for suffix in SUFFIXES.get(self.kind, OTHERS):
                match = re.fullmatch(f"(.+?)-({suffix})", name)
                if match:
                    found.setdefault((match[1], suffix), set()).add(match.groups()[-1])
                    break
            else:
                return {}
        return found


@dataclasses.dataclass(slots=True)
class _Minutes:
    """What was counted of one stem, by minute from the first of the span."""

    busy: dict[int, int] = dataclasses.field(default_factory=dict)
    seen: dict[int, int] = dataclasses.field(default_factory=dict)
    gaps: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    """Minutes that are asked about: as many as `count`, the last of which ends at `end`.

    Attributes:
        around: How far before and after a minute is looked for devices whose samples are missing in it.
        limit: Nothing after this is looked at.
    """

    end: datetime.datetime
    count: int
    around: datetime.timedelta
    limit: datetime.datetime


def concurrency(asker: Asker, requests: Sequence[Replicas], at: datetime.datetime) -> dict[str, Concurrency]:
    """How many replicas of each of these workloads were at work at the same time, by UID.

    Workloads whose pods' names fit no pattern are left out.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    alike = collections.defaultdict(list)
    for request in sorted(requests, key=lambda one: one.uid):
        if request.stems():
            alike[request.window, request.days, request.threshold].append(request)
    found: dict[str, Concurrency] = {}
    # Where samples are taken once a minute, a little more than a minute surely holds one.
    reach = max(MINUTE, datetime.timedelta(seconds=round(JITTER * asker.interval_s(at))))
    for (window, days, threshold), group in sorted(alike.items()):
        spans = [_Span(at, max(1, int(window / MINUTE)), NEAR, at)]
        spans += [_Span(at - day * DAY + HOUR, 60, HOUR, at) for day in range(1, days + 1)]
        trailing, *earlier = (
            _Counter(asker, group, threshold, reach, _there(asker, span, reach)).count(span) for span in spans
        )
        for request in group:
            found[request.uid] = Concurrency(
                _trailing(request, trailing, at, max(1, int(window / MINUTE)), reach),
                _earlier(request, earlier, at),
            )
    return found


def _there(asker: Asker, span: _Span, reach: datetime.timedelta) -> tuple[Quantity, ...]:
    """Metrics of activity of which there is anything in or around the span: the others only make questions slow."""
    end = min(span.end + span.around, span.limit)
    length = end - span.end + span.count * MINUTE + span.around + 2 * reach
    found = []
    for quantity in asker.source.of(Kind.ACTIVITY):
        selected = promql.selector(quantity.metric, [*quantity.matchers, *asker.given])
        # The second question costs much of a metric that is there, and nothing of one that is not.
        at_all = ((selected, span.end), (promql.over("present_over_time", selected, length), end))
        if any(asker.prometheus.query(f"count({one})", instant) for one, instant in at_all):
            found.append(quantity)
    return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class _Counter:
    """Asks for workloads of the same terms at once."""

    asker: Asker
    requests: Sequence[Replicas]
    threshold: float
    reach: datetime.timedelta
    quantities: tuple[Quantity, ...]

    def count(self, span: _Span) -> dict[Stem, _Minutes]:
        """Replicas at work, replicas with samples, and replicas whose samples are missing, by stem and minute."""
        counted: dict[Stem, _Minutes] = collections.defaultdict(_Minutes)
        if not self.quantities:
            return counted
        now = datetime.timedelta()
        for stem, minute, value in self._asked(self._busy, span, now):
            busy = counted[stem].busy
            busy[minute] = busy.get(minute, 0) + value
        for stem, minute, value in self._asked(self._seen, span, now):
            # The same replica may be seen in both forms of naming it.
            seen = counted[stem].seen
            seen[minute] = max(seen.get(minute, 0), value)
        gaps = functools.partial(self._gaps, around=span.around)
        for stem, minute, _ in self._asked(gaps, span, span.around):
            counted[stem].gaps.add(minute)
        return counted

    def _asked(
        self, question: Callable[[Where, Sequence[str]], str], span: _Span, delay: datetime.timedelta
    ) -> Iterator[tuple[Stem, int, int]]:
        """What a question gives for each stem and minute; it looks so much beyond each minute."""
        begin = span.end - (span.count - 1) * MINUTE
        end = min(span.end + delay, span.limit)
        if end < begin + delay:
            return
        territory = self.asker.territory(NEAR, span.limit)
        for where in self._places():
            spaces = sorted({space for space, _ in where.stems})
            shards = [Shard(tuple(Part(where.space_label, space, 1, where.absent) for space in spaces))]
            for answer in territory.ask(
                shards,
                lambda matchers, where=where: self.asker.prometheus.query_range(  # type: ignore[misc]
                    where.grouped(question(where, (*self.asker.given, where.matcher, *matchers))),
                    start=begin + delay,
                    end=end,
                    step_s=MINUTE.total_seconds(),
                ),
            ):
                yield from self._points(answer, where, begin + delay)

    def _places(self) -> Iterator[Where]:
        """All stems in each form of naming a pod, by namespace: as many at a time as a question has room for."""
        for suffix, stems in sorted(self._stems().items()):
            for batch in batches(sorted(stems)):
                for label, space_label, absent in self.asker.source.labels.forms():
                    yield Where(label, space_label, tuple(absent), frozenset(batch), suffix)

    def _points(
        self, tracks: Sequence[Track], where: Where, begin: datetime.datetime
    ) -> Iterator[tuple[Stem, int, int]]:
        require_one_cluster(track.labels for track in tracks)
        for track in tracks:
            stem = (track.labels.get(where.space_label, ""), track.labels.get(STEM, ""))
            if stem not in where.stems:  # of that name, in the namespace of another
                continue
            for instant, value in track.points.items():
                yield stem, round((instant - begin.timestamp()) / 60), round(value)

    def _stems(self) -> dict[str, set[Stem]]:
        found: dict[str, set[Stem]] = {}
        for request in self.requests:
            for stem, suffix in request.stems():
                found.setdefault(suffix, set()).add((request.namespace, stem))
        return found

    def _busy(self, where: Where, matchers: Sequence[str]) -> str:
        return " or ".join(
            f"({promql.by('max', where.pod, Raw().statistic(quantity, Statistic.PEAK, matchers, self.reach))}"
            f" > {self.threshold / quantity.scale!r})"
            for quantity in self.quantities
        )

    def _seen(self, where: Where, matchers: Sequence[str]) -> str:
        return " or ".join(promql.by("max", where.pod, one) for one in self._present(matchers, self.reach))

    def _gaps(self, where: Where, matchers: Sequence[str], around: datetime.timedelta) -> str:  # noqa: ARG002
        """Looked at from so much later: devices that had samples before and have some after, but none then."""
        # Matched, not gathered, by device: it is the costliest question of all, and three times as fast so.
        use = f"on ({', '.join(self.asker.source.labels.use)})"
        before, after, then = (
            f"({f' or {use} '.join(self._present(matchers, length, offset))})"
            for length, offset in (
                (around, around + self.reach),
                (around, datetime.timedelta()),
                (self.reach, around),
            )
        )
        return f"({before} and {use} {after}) unless {use} {then}"

    def _present(
        self,
        matchers: Sequence[str],
        length: datetime.timedelta,
        offset: datetime.timedelta = datetime.timedelta(),
    ) -> Iterator[str]:
        back = f" offset {promql.span(offset)}" if offset else ""
        for quantity in self.quantities:
            selected = promql.selector(quantity.metric, [*quantity.matchers, *matchers])
            yield f"present_over_time({selected}[{promql.span(length)}]{back})"


def _trailing(
    request: Replicas,
    counted: Mapping[Stem, _Minutes],
    at: datetime.datetime,
    count: int,
    reach: datetime.timedelta,
) -> tuple[int | None, ...]:
    """For each minute how many were at work; unknown where samples are missing of a pod that is there now."""
    stems = request.stems()
    minutes = [counted.get((request.namespace, stem), _Minutes()) for stem, _ in stems]
    starts = _starts(request)
    found: list[int | None] = []
    for place in range(count):
        instant = at - (count - 1 - place) * MINUTE
        expected = sum(start + reach + MINUTE <= instant for start in starts)
        seen = sum(one.seen.get(place, 0) for one in minutes)
        is_known = seen >= expected and not any(place in one.gaps for one in minutes)
        found.append(sum(one.busy.get(place, 0) for one in minutes) if is_known else None)
    return tuple(found)


def _starts(request: Replicas) -> list[datetime.datetime]:
    """When each present replica began: its latest pod, where it is several."""
    starts: dict[tuple[str, str], datetime.datetime] = {}
    for name, start in request.pods.items():
        alone = dataclasses.replace(request, pods={name: start})
        for (stem, _), replicas in alone.stems().items():
            for replica in replicas:
                starts[stem, replica] = max(start, starts.get((stem, replica), start))
    return list(starts.values())


def _earlier(
    request: Replicas, days: Sequence[Mapping[Stem, _Minutes]], at: datetime.datetime
) -> tuple[int | None, ...]:
    """Of each earlier day the most at work in a minute of that hour; unknown where somebody's samples are missing."""
    found: list[int | None] = []
    stems = [(request.namespace, stem) for stem, _ in request.stems()]
    for day, counted in zip(itertools.count(1), days, strict=False):
        if request.created is not None and request.created > at - day * DAY:
            break
        minutes = [counted.get(stem, _Minutes()) for stem in stems]
        is_known = all(
            any(one.seen.get(place) for one in minutes) and not any(place in one.gaps for one in minutes)
            for place in range(60)
        )
        most = max(sum(one.busy.get(place, 0) for one in minutes) for place in range(60))
        found.append(most if is_known else None)
    return tuple(found)
