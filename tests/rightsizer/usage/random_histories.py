"""Random histories of GPU series, as real scrapes leave them behind: short, and with much that goes wrong.

Each has a namespace and scrape jobs of its own, so that many fit into one Prometheus and one question.
"""

import bisect
import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.usage.exporter_counters import DEVICE_BUSY, GAPS, POD_BUSY, UNATTRIBUTED
from rightsizer.usage.source_metrics import DCGM, DCGM_49, MetricKind
from simulator.history import STALE
from simulator.series_store import Series
from tests.rightsizer.metrics import H100

SLOT_S, MINUTE_S, HOUR_S = 300, 60, 3600
IMPOSSIBLE = math.nan, -5.0, 2_147_483_632.0
IDLE_POWER_W = 118.0
KINDS = "one", "one", "moves", "moves", "moves-back", "jobs", "copies", "replicas", "jobs-move"
"""One target, one that moves, perhaps back, or the same of two jobs; two of one job at once; one in two Prometheus."""
WITNESS = "witness"

Lost = list[tuple[float, float]]
"""Times without a scrape: begins and ends."""


@dataclasses.dataclass(frozen=True, slots=True)
class Track:
    """A series.

    Attributes:
        labels: All but its name.
        seconds: Of its samples, in order.
        late: Those of its samples that are stored between the second and the third cycle.
        ends: Stale markers.
    """

    name: str
    labels: Mapping[str, str]
    seconds: tuple[int, ...]
    values: Sequence[float]
    late: frozenset[int] = frozenset()
    ends: tuple[int, ...] = ()

    def series(self, *, late: bool) -> Iterator[Series]:
        """What is stored first, or later."""
        labels = {"__name__": self.name, **self.labels}
        some = [
            (second, value)
            for second, value in zip(self.seconds, self.values, strict=True)
            if (second in self.late) is late
        ]
        if some:
            seconds, values = zip(*some, strict=True)
            yield Series(labels, seconds, values)
        for second in () if late else self.ends:
            yield Series(labels, (second,), [STALE])

    def without(self, lost: frozenset[int]) -> "Track":
        """The same without these scrapes."""
        some = [
            (second, value)
            for second, value in zip(self.seconds, self.values, strict=True)
            if second not in lost
        ]
        return dataclasses.replace(self, seconds=tuple([at for at, _ in some]), values=[at for _, at in some])


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    """When a device worked, and how much: begin, end, and share."""

    spans: Sequence[tuple[float, float, float]]

    def level(self, at: float) -> float:
        return max((share for begin, end, share in self.spans if begin <= at < end), default=0.0)

    def counted(self, begin: float, seconds: Iterable[int]) -> Iterator[float]:
        """A counter that began at 0."""
        for at in seconds:
            yield sum(max(0.0, min(end, at) - max(since, begin)) * share for since, end, share in self.spans)


@dataclasses.dataclass(frozen=True, slots=True)
class _Target:
    """A scraped target: when, what it names its metrics, and when its process began."""

    job: str
    instance: str
    seconds: tuple[int, ...]
    names: int
    starts: Sequence[float]
    replica: str

    @property
    def labels(self) -> dict[str, str]:
        """Those that its series have by it."""
        found = {"job": self.job, "instance": self.instance, "replica": self.replica}
        return {name: text for name, text in found.items() if text}


@dataclasses.dataclass(frozen=True, slots=True)
class Faults:
    """What may go wrong in a history.

    Attributes:
        late: Samples until then may come late.
        may_lag: Whether the last ones before it may all be late; else only some that are older.
        kinds: Of targets, some of KINDS.
        has_witness: Whether there is a pod that loses no sample but those that all lose.
    """

    late: int = 0
    may_lag: bool = False
    kinds: Sequence[str] = KINDS
    has_witness: bool = False


def random_history(draw: random.Random, space: str, end: int, faults: Faults) -> list[Track]:
    """The series of a namespace, until the end of the last scrapes, on a full slot."""
    begin = end - draw.choice([2, 6, 26, 26]) * HOUR_S
    targets = [one for one in _targets(draw, draw.choice(faults.kinds), space, begin, end) if one.seconds]
    has_counters = draw.random() < 0.4
    optional = {"engine": 0.5, "dram": 0.3}
    left_out = {alike for alike, share in optional.items() if draw.random() > share}
    lates = [frozenset(_late(draw, one.seconds, faults.late, may_lag=faults.may_lag)) for one in targets]
    pods = list(_pods(draw, begin, end))
    if faults.has_witness:
        pods.append(([(WITNESS, (begin - 1, end), [])], _Work(())))
    found: list[Track] = []
    for number, (pods_on, work) in enumerate(pods):
        device = {"UUID": f"GPU-{space}-{number}", "modelName": H100}
        for pod, lived, lost in pods_on:
            # The same name in two namespaces would be asked for in both.
            labels = {**device, "namespace": space, "pod": f"{space}-{pod}"}
            own = work if pod == pods_on[0][0] else _Work(())
            for target, late in zip(targets, lates, strict=True):
                if seconds := tuple(_left(_within(target.seconds, *lived), lost)):
                    ends = tuple(_ends(draw, seconds)) if draw.random() < 0.5 else ()
                    columns = dict(_gauges(draw, target, seconds, work, left_out))
                    if has_counters:
                        columns[POD_BUSY] = list(_counter(target, seconds, own))
                    merged = {**labels, **target.labels}
                    found += (
                        Track(name, merged, seconds, each, late, ends) for name, each in columns.items()
                    )
        for target, late in zip(targets, lates, strict=True) if has_counters else ():
            for name, spent in ((DEVICE_BUSY, work), (GAPS, _Work(())), (UNATTRIBUTED, _Work(()))):
                reason = {"reason": "gone"} if name == UNATTRIBUTED else {}
                column = list(_counter(target, target.seconds, spent))
                found.append(Track(name, {**device, **target.labels, **reason}, target.seconds, column, late))
    return found


def _gauges(
    draw: random.Random, target: _Target, seconds: Sequence[int], work: _Work, left_out: Collection[str]
) -> Iterator[tuple[str, list[float]]]:
    """The values of each gauge; sometimes one of them cannot be."""
    values: Mapping[MetricKind, Callable[[float], float]] = {
        MetricKind.ACTIVITY: work.level,
        MetricKind.TRAFFIC: lambda at: work.level(at) / 2,
        MetricKind.MEMORY: lambda at: 4e10 + at % 7,
        MetricKind.POWER: lambda at: IDLE_POWER_W + 400 * work.level(at),
    }
    for metric in (DCGM, DCGM_49)[target.names].metrics:
        if metric.alike not in left_out:
            share = 0.8 if metric.alike in {"engine", "dram"} else 1.0
            column = [share * values[metric.kind](at) / metric.scale for at in seconds]
            if metric.kind is not MetricKind.MEMORY and draw.random() < 0.02:
                column[draw.randrange(len(column))] = draw.choice(IMPOSSIBLE)
            yield metric.name, column


def _targets(draw: random.Random, kind: str, space: str, begin: int, end: int) -> Iterator[_Target]:
    """Those of one or two jobs: one that moves, or copies at the same time; and what they lose, alone or together."""
    together = list(_lost(draw, begin, end)) if draw.random() < 0.3 else []
    for number in range(2 if kind in {"jobs", "copies", "replicas", "jobs-move"} else 1):
        job = f"{space}-{number if 'jobs' in kind else 0}"
        instance = f"10.0.0.{number if kind == 'copies' else 0}"
        since = begin if not number or draw.random() < 0.5 else draw.randrange(begin, end - HOUR_S)
        seconds = tuple(_left(_scrapes(draw, since, end), [*together, *_lost(draw, begin, end)]))
        moves = (
            sorted(draw.randrange(since, end) for _ in range(draw.randint(1, 3))) if "move" in kind else []
        )
        names = draw.choice([0, 0, 1])
        replica = str(number) if kind == "replicas" else ""
        found: dict[str, _Target] = {}
        for turn, (left, right) in enumerate(itertools.pairwise([since - 1, *moves, end])):
            pause = draw.choice([0, 40, 400]) if turn else 0
            some = _within(seconds, left + pause, right)
            restarts = [
                draw.randrange(left, right) for _ in range(draw.choice([0, 0, 1]) if right > left else 0)
            ]
            starts: list[float] = [left, *restarts]
            address = f"{instance}{turn % 2 if kind == 'moves-back' else turn}:9400"
            if known := found.get(address):
                some, starts = (*known.seconds, *some), [*known.starts, *starts]
            found[address] = _Target(job, address, some, names, starts, replica)
        yield from found.values()


def _scrapes(draw: random.Random, begin: int, end: int) -> tuple[int, ...]:
    """Regular ones, of which the interval may change; often on the edges of minutes and slots."""
    steps = [15, 30, 60] if end - begin <= 6 * HOUR_S else [30, 60]
    turn = draw.randrange(begin, end) if draw.random() < 0.3 else end
    aligned = draw.random() < 0.5
    found: list[int] = []
    for since, until in ((begin, turn), (turn, end)):
        step = draw.choice(steps)
        offset = 0 if aligned else draw.randrange(1, step)
        found += range(since - since % step + step + offset, until + 1, step)
    return tuple(sorted(set(found)))


def _lost(draw: random.Random, begin: int, end: int) -> Lost:
    """Runs, single scrapes, and the gap of just one slot."""
    found: Lost = []
    for _ in range(draw.choice([0, 0, 1, 2])):
        since = draw.randrange(begin, end)
        found.append((since, since + draw.choice([30, 130, 700, 5000])))
    if draw.random() < 0.3:
        since = draw.randrange(begin, end) // SLOT_S * SLOT_S
        found.append((since, since + SLOT_S))
    if draw.random() < 0.3:
        share = draw.choice([0.01, 0.1, 0.6])
        found += [(at, at + 1) for at in range(begin, end) if draw.random() < share / 2]
    return found


def _late(draw: random.Random, seconds: Sequence[int], until: int, *, may_lag: bool) -> Iterable[int]:
    """The last ones before a cycle, or some of those before."""
    kind, lag = draw.choice(["none", "none", "some", "last"]), draw.choice([300, 1000, 2700])
    if kind == "last" and may_lag:
        return [at for at in seconds if until - lag < at <= until]
    share = draw.choice([0.01, 0.2]) if kind == "some" else 0.0
    return [at for at in seconds if at <= until and draw.random() < share]


def _pods(
    draw: random.Random, begin: int, end: int
) -> Iterator[tuple[list[tuple[str, tuple[int, int], Lost]], _Work]]:
    """For each device the pods on it, with when each lived and what was lost of it alone; and its work."""
    shares = draw.random() < 0.2
    for number in range(draw.randint(1, 3)):
        pods = [f"pod-{number if number < 2 else 0}", *([f"other-{number}"] if shares else [])]
        some = []
        for pod in pods:
            lived = draw.choice([(begin - 1, end)] * 4 + [(end - HOUR_S, end), (begin - 1, end - 1200)])
            some.append((pod, lived, _lost(draw, begin, end) if draw.random() < 0.5 else []))
        yield some, _work(draw, begin, end)


def _work(draw: random.Random, begin: int, end: int) -> _Work:
    spans: list[tuple[float, float, float]] = []
    for _ in range(draw.choice([0, 0, 1, 1, 2, 3])):
        since = draw.randrange(begin, end)
        spans.append((since, since + draw.choice([9, 50, 240, 3000]), round(draw.uniform(0.02, 1), 3)))
    edge = draw.randrange(begin, end) // SLOT_S * SLOT_S
    if draw.random() < 0.3:  # seen, if at all, by a sample on the edge of a slot
        spans.append((edge, edge + 1, 0.9))
    return _Work(spans)


def _counter(target: _Target, seconds: Sequence[int], work: _Work) -> Iterator[float]:
    """A counter of a target's process, which begins at 0 whenever that does."""
    starts = sorted(target.starts)
    for at in seconds:
        yield next(work.counted(starts[max(0, bisect.bisect_left(starts, at) - 1)], [at]))


def _within(seconds: Sequence[int], begin: float, end: float) -> tuple[int, ...]:
    """Those after the begin."""
    return tuple([at for at in seconds if begin < at <= end])


def _left(seconds: Iterable[int], lost: Lost) -> Iterator[int]:
    """Those that are not lost."""
    once = {int(begin) for begin, end in lost if end - begin <= 1}
    runs = [(begin, end) for begin, end in lost if end - begin > 1]
    for at in seconds:
        if at not in once and not any(begin <= at < end for begin, end in runs):
            yield at


def _ends(draw: random.Random, seconds: Sequence[int]) -> Iterator[int]:
    """Stale markers: after some gap, and at the end."""
    for at, after in itertools.pairwise(seconds):
        if after - at > 130:
            yield at + draw.choice([15, 60])
    yield seconds[-1] + 15
