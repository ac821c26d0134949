"""A made-up fleet: parameters drawn at random, who holds GPUs, what was recorded of them, and what was really done.

    seed ──► habits, places, scrapes ──► workloads and their truth ──► what a Prometheus has recorded of each device

It knows nothing of judging.
"""

import bisect
import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from benchmarks._courses import (
    Archetype,
    Board,
    Course,
    Habits,
    Life,
    at_work,
    course,
    opened,
    served,
    serving,
    waiting,
    works_s,
)
from benchmarks._records import SCRAPE_S, STEP_S, Record, Spans, record_of
from simulator.gpus.cards import CARDS
from simulator.workloads import draws
from simulator.workloads.draws import DAY_S, HOUR_S, MINUTE_S

MONDAY_S = 1_794_787_200
"""16 November 2026, 00:00 UTC. A fleet begins on any day of that week, and is seen for at least a week."""
BEYOND_S = 15 * DAY_S
"""How far beyond the end is looked for work: longer than any pause, so that whether something comes back is known."""
MOST_ENDED_S = 7 * DAY_S
"""Of what had ended, the first week counts: so a long record proves no more than a short one."""
WAKER_S = 5 * MINUTE_S
"""How long what wakes an endpoint on request keeps it awake after its last one."""

_SHARES = {
    Archetype.TRAINING: (0.08, 0.3),
    Archetype.LOADING: (0.05, 0.2),
    Archetype.NOTEBOOK: (0.1, 0.3),
    Archetype.SERVICE: (0.06, 0.15),
    Archetype.ENDPOINT: (0.08, 0.25),
    Archetype.ABANDONED: (0.04, 0.15),
    Archetype.ZOMBIE: (0.04, 0.12),
    Archetype.OVERALLOCATED: (0.06, 0.2),
}
"""Ranges of the shares of workloads, before they add up to one; every fleet has one of each at least."""
JOBS = frozenset({"Job", "PyTorchJob", "RayJob"})
_KINDS = {
    Archetype.TRAINING: ("Job", "Job", "PyTorchJob", "Pod"),
    Archetype.LOADING: ("Job", "Job", "PyTorchJob", "Pod"),
    Archetype.NOTEBOOK: ("Notebook", "Notebook", "StatefulSet", "Pod"),
    Archetype.SERVICE: ("Deployment", "Deployment", "StatefulSet", "InferenceService"),
    Archetype.ENDPOINT: ("Deployment", "Deployment", "StatefulSet", "InferenceService"),
    Archetype.ABANDONED: ("Deployment", "StatefulSet", "Job", "Pod", "Notebook"),
    Archetype.ZOMBIE: ("Job", "Job", "PyTorchJob", "Pod"),
    Archetype.OVERALLOCATED: ("Job", "Deployment", "Deployment", "StatefulSet"),
}
_GPUS = {
    Archetype.TRAINING: (1, 1, 1, 2, 4, 8),
    Archetype.LOADING: (1, 1, 1, 2, 4, 8),
    Archetype.ZOMBIE: (1, 2, 4, 8, 8),
    Archetype.OVERALLOCATED: (2, 4, 4, 8),
    Archetype.SERVICE: (1, 1, 1, 2),
}
BATCH = 0.6
"""Share of what is over-allocated that ends by itself."""
_CARDS = ("H100-SXM5-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "A100-SXM4-80GB", "L40S")


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet and its truth.

    Attributes:
        begin_s: When it is first judged; `end_s` when last.
        kept_s: How long Prometheus keeps samples.
        has_counters: Whether gpu-exporter's counters are there, or gauges alone, as of dcgm-exporter.
        lost: When each node was not scraped.
    """

    seed: int
    begin_s: int
    end_s: int
    kept_s: float
    has_counters: bool
    lost: Sequence[Spans]
    members: "Sequence[Member]"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A workload and its truth.

    Attributes:
        kind: Of Kubernetes.
        start_s: When it was created; a whole number of steps from MONDAY_S.
        end_s: When it ends by itself, and frees its GPUs; inf where it does not.
        records: Of each device of each pod, from the start on.
        works: When any of its pods really worked.
        needs: When each pod needs all of its GPUs; at any other time it needs `used`.
        used: How many GPUs of each pod ever work, but for `needs`.
        busy: How many of its pods show activity in each minute from the start on; -1 where that was not scraped.
        demand: How many replicas its requests need in it.
        nodes: Where each pod is.
        restarts: When its containers were restarted.
        wakes: Whether a request wakes it.
        spins_s: Since when it spins; None where it never does.
        ended_s: When it worked for the last time, or its start if it never did; None where it goes on.
        hours: Its history, once it has been worked out.
    """

    seed: int
    name: str
    archetype: Archetype
    kind: str
    card: str
    gpus: int
    replicas: int
    start_s: float
    end_s: float
    records: tuple[tuple[Record, ...], ...]
    works: Spans
    needs: Spans
    used: int
    busy: Sequence[int]
    demand: Sequence[int]
    nodes: Sequence[int]
    restarts: Sequence[float]
    wakes: bool
    spins_s: float | None
    ended_s: float | None
    hours: dict[tuple[int, int], bytes] = dataclasses.field(default_factory=dict)

    def resumes_s(self, at_s: float) -> float:
        """When it works next, from `at_s` on: at once where it works; inf where never again."""
        return _next(self.works, at_s)

    def idle_from_s(self, at_s: float) -> float:
        """When the work ends in which it is."""
        return self.works[bisect.bisect_right(self.works, (at_s, math.inf)) - 1][1]

    def needs_all_s(self, at_s: float) -> float:
        """When it next needs all GPUs of a pod; inf where never."""
        return _next(self.needs, at_s)

    def has_worked(self, from_s: float, until_s: float) -> bool:
        """Whether it worked at any time in between."""
        return self.resumes_s(from_s) < until_s


def _next(spans: Spans, at_s: float) -> float:
    place = bisect.bisect_right(spans, (at_s, math.inf))
    if place and spans[place - 1][1] > at_s:
        return at_s
    return spans[place][0] if place < len(spans) else math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class _Places:
    """What all workloads of a fleet have in common."""

    seed: int
    habits: Habits
    begin_s: int
    end_s: int
    past_s: float
    idle_factor: float
    crashes_per_day: float
    wakers: float
    lost: Sequence[Spans]


def fleet(seed: int, workloads: int, days: float | None = None) -> Fleet:
    """A fleet; without `days`, one to two weeks of it are seen."""
    draw = draws.seeded("fleet", seed)
    habits = Habits.drawn(draw)
    begin_s = MONDAY_S + draw.randrange(7) * int(DAY_S)
    length_s = (draw.choice((7, 7, 10, 14)) if days is None else days) * DAY_S
    places = _Places(
        seed=seed,
        habits=habits,
        begin_s=begin_s,
        end_s=begin_s + int(length_s),
        past_s=draw.uniform(0, 10) * DAY_S,
        idle_factor=draw.uniform(0.7, 1.15),
        crashes_per_day=draw.choice((0.0, draw.uniform(0, 0.1))),
        wakers=draw.uniform(0.2, 0.8),
        lost=(),
    )
    places = dataclasses.replace(places, lost=_lost(draw, places, nodes=max(2, workloads // 5)))
    shares = {one: draw.uniform(*part) for one, part in _SHARES.items()}
    kept_s = draw.choice((10.0, 15.0, 30.0)) * DAY_S
    has_counters = draw.choice((True, False, False))
    return Fleet(
        seed=seed,
        begin_s=begin_s,
        end_s=places.end_s,
        kept_s=kept_s,
        has_counters=has_counters,
        lost=places.lost,
        members=[
            _member(places, archetype, number)
            for archetype, count in _numbers(shares, workloads).items()
            for number in range(count)
        ],
    )


def _lost(draw: random.Random, places: _Places, nodes: int) -> list[Spans]:
    """Single scrapes, and outages of minutes to hours, of each node."""
    often, outages = draw.choice((0.0, draw.uniform(0, 0.002))), draw.choice((0.0, draw.uniform(0, 0.1)))
    first_s, span_s = places.begin_s - places.past_s, places.end_s - places.begin_s + places.past_s
    found: list[Spans] = []
    for _ in range(nodes):
        single = [draw.uniform(0, span_s) for _ in range(round(often * span_s / SCRAPE_S))]
        longer = [
            draw.uniform(0, span_s) for _ in range(round(outages * span_s / DAY_S + draw.random() - 0.5))
        ]
        spans = [(at, at + SCRAPE_S) for at in single]
        spans += [(at, at + draws.lognormal(draw, median=20 * MINUTE_S, sigma=1.2)) for at in longer]
        found.append(_union([(first_s + a, first_s + b) for a, b in spans]))
    return found


def _numbers(shares: dict[Archetype, float], count: int) -> dict[Archetype, int]:
    """Whole numbers, one of each at the least; the first takes up what is left over."""
    total = sum(shares.values())
    numbers = {one: max(1, round(share / total * count)) for one, share in shares.items()}
    numbers[Archetype.TRAINING] += max(1 - numbers[Archetype.TRAINING], count - sum(numbers.values()))
    return numbers


def _member(places: _Places, archetype: Archetype, number: int) -> Member:
    draw = draws.seeded("member", places.seed, archetype.value, number)
    habits = places.habits
    start_s, works, life_s = _life(draw, archetype, places)
    card = CARDS[card_name := draw.choice(_CARDS)]
    replicas = draw.choice((1, 2, 3, 4, 6, 8)) if archetype is Archetype.SERVICE else 1
    gpus = draw.choice(_GPUS.get(archetype, (1,)))
    wakes = archetype is Archetype.ENDPOINT and draw.random() < places.wakers
    kind = "Service" if wakes else draw.choice(_KINDS[archetype])
    loaded_w = card.loaded_power_w * places.idle_factor * draw.uniform(0.93, 1.07)
    board = Board(loaded_w, card.max_power_w)
    end_s = start_s + life_s
    until_s = min(end_s, places.end_s + BEYOND_S)
    nodes = [draw.randrange(len(places.lost)) for _ in range(replicas)]
    used = (
        max(1, draw.choice((gpus // 2, gpus // 2, gpus // 4)))
        if archetype is Archetype.OVERALLOCATED
        else gpus
    )
    needs: Spans = ()
    demand: list[int] = []
    if archetype is Archetype.SERVICE:
        until_s = min(end_s, places.end_s + 4 * DAY_S)
        spans, demand = served(habits, draw, replicas, start_s, until_s)
        waits = waiting(habits, draw, board, 75)
        pods = [[serving(of, board, waits, start_s, until_s)] * gpus for of in spans]
    else:
        own = course(archetype, habits, draw, board, Life(start_s, works, until_s))
        needs = _needs(draw, archetype, places, start_s, until_s)
        pods = [[own] * used + [_beside(own, needs, board)] * (gpus - used)]
    record_s = min(end_s, float(places.end_s))
    records = tuple(
        _records(pod, start_s, record_s, draw.randrange(4096), places.lost[node])
        for pod, node in zip(pods, nodes, strict=True)
    )
    works_at = _union(list(itertools.chain.from_iterable(at_work(pod[0]) for pod in pods)))
    last_s, _, last = pods[0][0][-1]
    hung = last_s if last.utilization and not last.works and archetype is Archetype.ZOMBIE else None
    has_ended = not math.isinf(works) and start_s + works < end_s
    return Member(
        seed=places.seed,
        name=f"{archetype.value}-{number}",
        archetype=archetype,
        kind=kind,
        card=card_name,
        gpus=gpus,
        replicas=replicas,
        start_s=start_s,
        end_s=end_s,
        records=records,
        works=works_at,
        needs=needs,
        used=used,
        busy=_busy(records, nodes, places, start_s) if replicas > 1 else (),
        demand=demand,
        nodes=nodes,
        restarts=_restarts(draw, places, start_s, record_s),
        wakes=wakes,
        spins_s=hung if hung is None or hung < record_s else None,
        ended_s=max(start_s, works_at[-1][1] if works_at else start_s) if has_ended else None,
    )


def _life(draw: random.Random, archetype: Archetype, places: _Places) -> tuple[float, float, float]:
    """When it starts, how long it works, and how long it lives.

    Drawn again where it would be over, or have nothing to do, before the fleet is first judged: that would have been
    found long ago.
    """
    oldest_s = places.past_s if archetype is not Archetype.SERVICE else min(places.past_s, 3 * DAY_S)
    while True:
        start_s = places.begin_s + draw.uniform(-oldest_s, places.end_s - places.begin_s - 0.5 * DAY_S)
        if archetype is Archetype.NOTEBOOK:
            start_s = opened(start_s, places.habits, draw)
        start_s = MONDAY_S + round((start_s - MONDAY_S) / STEP_S) * STEP_S
        works, life_s = works_s(archetype, places.habits, draw), math.inf
        if archetype in {Archetype.TRAINING, Archetype.LOADING}:
            life_s = draws.lognormal(draw, median=places.habits.training_h * HOUR_S, sigma=1.3)
        elif archetype is Archetype.OVERALLOCATED and draw.random() < BATCH:
            life_s = draws.lognormal(draw, median=4 * places.habits.training_h * HOUR_S, sigma=1.0)
        is_seen = start_s < places.end_s - DAY_S / 4 and start_s + min(works, life_s) >= places.begin_s
        if is_seen and life_s > STEP_S:
            return start_s, works, life_s


def _needs(
    draw: random.Random, archetype: Archetype, places: _Places, start_s: float, until_s: float
) -> list[tuple[float, float]]:
    """Some that look over-allocated need all GPUs now and then."""
    if archetype is not Archetype.OVERALLOCATED or draw.random() >= places.habits.peaks:
        return []
    found, t_s, every_s = [], start_s, draws.lognormal(draw, median=18 * HOUR_S, sigma=0.8)
    while (t_s := t_s + draw.expovariate(1 / every_s)) < until_s:
        found.append((t_s, min(until_s, t_s := t_s + draw.uniform(5, 60) * MINUTE_S)))
    return found


def _beside(own: Course, needs: Spans, board: Board) -> Course:
    """What a device does that is only needed now and then."""
    begin, end = own[0][0], own[-1][1]
    edges = [begin, *itertools.chain.from_iterable(needs), end]
    loads = itertools.cycle((board.idle(0), board.work(90, 5, 50)))
    return [(a, b, load) for (a, b), load in zip(itertools.pairwise(edges), loads, strict=False) if b > a]


def _records(
    pod: Sequence[Course], start_s: float, until_s: float, offset: int, lost: Spans
) -> tuple[Record, ...]:
    """The devices of a pod that do the same are worked out once."""
    known = {
        id(each): record_of(each, start_s, until_s, offset, lost)
        for each in {id(one): one for one in pod}.values()
    }
    return tuple(known[id(each)] for each in pod)


def _busy(
    records: Sequence[Sequence[Record]], nodes: Sequence[int], places: _Places, start_s: float
) -> list[int]:
    """For each minute how many pods' gauges showed them at work; -1 where one was not scraped in it."""
    active = [[percent > 1 for percent in devices[0].minutes] for devices in records]
    counts = [sum(row) for row in zip(*active, strict=True)]
    for node in set(nodes):
        for begin, end in places.lost[node]:
            # Of two samples in a minute, one is enough.
            for minute in range(
                max(0, math.ceil((begin - start_s) / 60)), min(len(counts), int((end - start_s) // 60))
            ):
                counts[minute] = -1
    return counts


def _restarts(draw: random.Random, places: _Places, start_s: float, until_s: float) -> list[float]:
    found, t_s = [], start_s
    while (
        places.crashes_per_day and (t_s := t_s + draw.expovariate(places.crashes_per_day / DAY_S)) < until_s
    ):
        found.append(t_s)
    return found


def _union(spans: Sequence[tuple[float, float]]) -> Spans:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
