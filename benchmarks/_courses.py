"""What workloads of a made-up fleet do, one load after another; every parameter is drawn at random for each fleet.

It knows nothing of Kubernetes, of Prometheus, or of judging. Hours of the day are UTC.
"""

import dataclasses
import enum
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks._records import Load, Spans
from simulator.workloads import draws
from simulator.workloads.draws import DAY_S, HOUR_S, MINUTE_S, Quantiles

FRIDAY = 4
BURSTS = 50
"""Of a notebook on a working day, or so: how often its user goes on a holiday follows from it."""
LONGEST_PAUSE_S = 14 * DAY_S
"""Of anything that comes back."""
_BURST_MIN = Quantiles({0.25: 3, 0.5: 5, 0.75: 11, 0.9: 32, 0.95: 95}, lowest=1, highest=240)
_GAP_MIN = Quantiles({0.5: 3, 0.75: 7, 0.9: 33, 0.95: 150, 0.99: 1500}, lowest=0.5, highest=4000)
_QUIET_MIN = Quantiles({0.5: 6, 0.75: 26, 0.9: 180, 0.95: 910, 0.99: 2950}, lowest=0.5, highest=6000)
"""Measured: a month of notebook GPU events, and 23 days of requests to 79 models."""

Steps = Iterator[tuple[float, Load]]
Course = Sequence[tuple[float, float, Load]]
"""From when, until when, and what a device does; without gaps."""


class Archetype(enum.StrEnum):
    """What a workload is like."""

    TRAINING = "training"
    LOADING = "loading"
    NOTEBOOK = "notebook"
    SERVICE = "service"
    ENDPOINT = "endpoint"
    ABANDONED = "abandoned"
    ZOMBIE = "zombie"
    OVERALLOCATED = "over-allocated"


@dataclasses.dataclass(frozen=True, slots=True)
class Board:
    """A device's power in watts: without a load but with a model loaded, and at most."""

    loaded: float
    most: float

    def idle(self, held: int = 50) -> Load:
        """Nothing runs."""
        return Load(works=False, utilization=0, spread=0, traffic=0, watts=self.loaded, sway=2, held=held)

    def work(self, utilization: float, spread: float, held: int, traffic: float = 0.55) -> Load:
        """Something useful runs."""
        watts = self.at(0.05 + 0.85 * max(0.0, utilization) / 100)
        return Load(
            works=True,
            utilization=utilization,
            spread=spread,
            traffic=traffic,
            watts=watts,
            sway=watts / 40,
            held=held,
        )

    def at(self, share: float) -> float:
        """So far up from idle to the most."""
        return self.loaded + share * (self.most - self.loaded)


@dataclasses.dataclass(frozen=True, slots=True)
class Habits:
    """The parameters of one fleet, each from its range; times in the unit of their name."""

    training_h: float
    utilization: float
    compute_bound: float
    stall_every_h: float
    stall_min: float
    stall_sigma: float
    long_stall: float
    opens_h: float
    closes_h: float
    night: float
    weekend: float
    gap_factor: float
    vacation: float
    abandoned: float
    abandoned_d: float
    demand: float
    weekend_demand: float
    crowds: float
    request_min: float
    balances: bool
    quiet_factor: float
    burst_s: float
    dead: float
    never_used: float
    hang_h: float
    hangs_at_start: float
    spins: float
    peaks: float
    waits_spinning: float

    @classmethod
    def drawn(cls, draw: random.Random) -> "Habits":
        """At random."""
        return cls(
            training_h=_log(draw, 3, 24),
            utilization=draw.uniform(70, 98),
            compute_bound=draw.uniform(0, 0.2),
            stall_every_h=_log(draw, 1, 12),
            stall_min=_log(draw, 5, 40),
            stall_sigma=draw.uniform(0.7, 1.4),
            long_stall=draw.uniform(0, 0.04),
            opens_h=draw.uniform(6, 11),
            closes_h=draw.uniform(16, 23),
            night=draw.uniform(0, 0.3),
            weekend=draw.uniform(0, 0.5),
            gap_factor=_log(draw, 0.5, 2.5),
            vacation=draw.uniform(0, 0.3),
            abandoned=draw.uniform(0.2, 0.6),
            abandoned_d=_log(draw, 0.7, 4),
            demand=draw.uniform(0.15, 0.8),
            weekend_demand=draw.uniform(0.2, 1),
            crowds=draw.uniform(0, 1),
            request_min=_log(draw, 2, 8),
            balances=draw.choice((True, False)),
            quiet_factor=_log(draw, 0.3, 4),
            burst_s=_log(draw, 10, 180),
            dead=draw.uniform(0, 0.3),
            never_used=draw.uniform(0.2, 0.7),
            hang_h=_log(draw, 2, 12),
            hangs_at_start=draw.uniform(0, 0.25),
            spins=draw.uniform(0.2, 0.8),
            peaks=draw.uniform(0, 0.3),
            waits_spinning=draw.uniform(0, 0.2),
        )


def _log(draw: random.Random, low: float, high: float) -> float:
    """Evenly by its logarithm."""
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def works_s(archetype: Archetype, habits: Habits, draw: random.Random) -> float:
    """How long after its start a workload works for the last time; inf where it never stops."""
    chance = draw.random()
    match archetype:
        case Archetype.ABANDONED:
            never = chance < habits.never_used
            return 0.0 if never else draws.lognormal(draw, median=45 * MINUTE_S, sigma=0.7)
        case Archetype.ZOMBIE:
            at_start = chance < habits.hangs_at_start
            return 0.0 if at_start else draws.lognormal(draw, median=habits.hang_h * HOUR_S, sigma=0.8)
        case Archetype.NOTEBOOK if chance < habits.abandoned:
            return draws.lognormal(draw, median=habits.abandoned_d * DAY_S, sigma=0.6)
        case Archetype.ENDPOINT if chance < habits.dead:
            return draws.lognormal(draw, median=3 * DAY_S, sigma=0.6)
        case _:
            return math.inf


def afterwards(archetype: Archetype, habits: Habits, draw: random.Random, board: Board) -> Load:
    """What a device does that works no more."""
    held = draw.choice((1, 1, draw.randint(10, 90)))
    if archetype is Archetype.ZOMBIE and draw.random() < habits.spins:
        # A hung collective: an H100 draws 150 to 400 W, and moves no memory.
        return _spinning(board.at(draw.uniform(0.05, 0.48)), held)
    return board.idle(held)


def _training(habits: Habits, draw: random.Random, start_s: float, board: Board) -> Steps:  # noqa: ARG001 - one signature
    held = draw.randint(40, 95)
    yield draws.lognormal(draw, median=5 * MINUTE_S, sigma=0.6), board.idle(5)
    train = board.work(habits.utilization, 2.5, held)
    # Some compute without memory traffic, for hours or always: that is work all the same.
    solves = dataclasses.replace(
        board.work(100, 0.5, held, traffic=0.0), watts=board.at(draw.uniform(0.45, 1.0))
    )
    only_solves = draw.random() < habits.compute_bound / 2
    alternates = draw.random() < habits.compute_bound
    while True:
        yield draw.gauss(60, 3) * MINUTE_S, solves if only_solves else train
        if alternates:
            yield draws.lognormal(draw, median=1.5 * HOUR_S, sigma=1.0), solves
        yield draw.uniform(1, 4) * MINUTE_S, board.idle(held)


def _loading(habits: Habits, draw: random.Random, start_s: float, board: Board) -> Steps:  # noqa: ARG001 - one signature
    held = draw.randint(30, 90)
    yield draws.lognormal(draw, median=15 * MINUTE_S, sigma=0.6), board.idle(5)
    train = draw.choice((board.work(55, 22, held), board.work(14, 30, held), board.work(30, 28, held)))
    loads = dataclasses.replace(
        board.work(3, 4, held, traffic=1.0), works=True, watts=board.loaded + draw.uniform(0, 60)
    )
    while True:
        yield draw.expovariate(1 / (habits.stall_every_h * HOUR_S)), train
        stall_s = draws.lognormal(draw, median=habits.stall_min * MINUTE_S, sigma=habits.stall_sigma)
        if draw.random() < habits.long_stall:
            stall_s = draw.uniform(4, 24) * HOUR_S
        yield stall_s, draw.choice((board.idle(held), loads))


def _notebook(habits: Habits, draw: random.Random, start_s: float, board: Board) -> Steps:
    held, t_s = draw.randint(5, 60), start_s
    gap = board.idle(held)
    while True:
        mean = draw.choice((20.0, 35.0, 50.0, 65.0, 80.0))
        burst_s = _BURST_MIN.draw(draw) * MINUTE_S
        yield burst_s, board.work(mean, 15, held)
        pause_s = _GAP_MIN.draw(draw) * MINUTE_S * habits.gap_factor
        if draw.random() < habits.vacation / BURSTS / 15:
            pause_s += draw.uniform(2, 12) * DAY_S
        resumes_s = opened(t_s + burst_s + pause_s, habits, draw)
        pause_s = min(resumes_s - t_s - burst_s, LONGEST_PAUSE_S)
        yield pause_s, gap
        t_s += burst_s + pause_s


def opened(t_s: float, habits: Habits, draw: random.Random) -> float:
    """The next time from then on at which somebody works."""
    for _ in range(30):
        hour, weekday = t_s % DAY_S / HOUR_S, (t_s // DAY_S + 3) % 7
        morning_s = t_s // DAY_S * DAY_S + (habits.opens_h + draw.uniform(0, 1.5)) * HOUR_S
        if weekday > FRIDAY and draw.random() >= habits.weekend / 2:
            t_s = t_s // DAY_S * DAY_S + DAY_S
        elif hour < habits.opens_h and draw.random() >= habits.night:
            return max(t_s, morning_s)
        elif hour >= habits.closes_h and draw.random() >= habits.night:
            t_s = t_s // DAY_S * DAY_S + DAY_S
        else:
            return t_s
    return t_s


def _endpoint(habits: Habits, draw: random.Random, start_s: float, board: Board) -> Steps:  # noqa: ARG001 - one signature
    held = draw.randint(40, 90)
    yield 30, board.idle(5)
    busy = board.work(draw.choice((30.0, 60.0, 90.0)), 15, held)
    waits = waiting(habits, draw, board, held)
    while True:
        yield draws.lognormal(draw, median=habits.burst_s, sigma=0.5), busy
        gap_s = _QUIET_MIN.draw(draw) * MINUTE_S * habits.quiet_factor
        yield min(gap_s, LONGEST_PAUSE_S), waits


def waiting(habits: Habits, draw: random.Random, board: Board, held: int) -> Load:
    """Without a request: idle, or spinning, as some servers of several GPUs do."""
    if draw.random() >= habits.waits_spinning:
        return board.idle(held)
    return _spinning(board.at(draw.uniform(0.02, 0.2)), held)


def _spinning(watts: float, held: int) -> Load:
    """Full utilization, and nothing done."""
    return Load(
        works=False, utilization=100, spread=0, traffic=0, watts=watts, sway=watts / 60, held=max(held, 10)
    )


def _trial(habits: Habits, draw: random.Random, start_s: float, board: Board) -> Steps:  # noqa: ARG001 - one signature
    yield draw.uniform(1, 4) * MINUTE_S, board.idle(2)
    yield math.inf, board.work(45, 20, draw.randint(20, 60))


_COURSES: Mapping[Archetype, Callable[[Habits, random.Random, float, Board], Steps]] = {
    Archetype.TRAINING: _training,
    Archetype.LOADING: _loading,
    Archetype.NOTEBOOK: _notebook,
    Archetype.ENDPOINT: _endpoint,
    Archetype.ABANDONED: _trial,
    Archetype.ZOMBIE: _training,
    Archetype.OVERALLOCATED: _training,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """When something starts, for how long it works (inf: always), and until when it is looked at."""

    start_s: float
    works_s: float
    until_s: float


def course(archetype: Archetype, habits: Habits, draw: random.Random, board: Board, life: Life) -> Course:
    """What a device does: it works for as long as its life says, and does something else then."""
    after = afterwards(archetype, habits, draw, board)
    steps = _COURSES[archetype](habits, draw, life.start_s, board) if life.works_s else iter(())
    found, t_s, ends_s = [], life.start_s, min(life.start_s + life.works_s, life.until_s)
    for length_s, load in steps:
        end_s = min(t_s + max(1.0, length_s), ends_s)
        found.append((t_s, end_s, load))
        t_s = end_s
        if t_s >= ends_s:
            break
    if t_s < life.until_s:
        found.append((t_s, life.until_s, after))
    return found


def served(
    habits: Habits, draw: random.Random, replicas: int, start_s: float, until_s: float
) -> tuple[list[Spans], list[int]]:
    """When each replica of a service has a request, and how many requests there are in each minute."""
    peak = max(0.5, habits.demand * replicas)
    crowd_until, factor = 0.0, 1.0
    free_s = [start_s] * replicas
    spans: list[list[tuple[float, float]]] = [[] for _ in range(replicas)]
    minutes = int((until_s - start_s) // 60)
    requests = [0] * (minutes + 1)
    turn = draw.randrange(replicas)
    t_s = start_s
    mean_s = habits.request_min * MINUTE_S * 1.2
    while t_s < until_s:
        t_s += draw.expovariate(1.5 * peak / mean_s)
        if t_s >= crowd_until and draw.random() < habits.crowds * mean_s / (1.5 * peak * DAY_S):
            crowd_until, factor = t_s + draw.uniform(10, 40) * MINUTE_S, draw.uniform(1.5, 3)
        share = _share(t_s, habits) * (factor if t_s < crowd_until else 1.0)
        if draw.random() * 1.5 > share:
            continue
        turn = (
            (turn + 1) % replicas
            if habits.balances
            else min(
                range(replicas),
                key=lambda one: (free_s[one] > t_s, one),
            )
        )
        begin = max(t_s, free_s[turn])
        if begin - t_s > 10 * MINUTE_S:
            continue  # overloaded: it gives up
        end = begin + draws.lognormal(draw, median=habits.request_min * MINUTE_S, sigma=0.6)
        if spans[turn] and begin <= spans[turn][-1][1]:
            spans[turn][-1] = (spans[turn][-1][0], end)
        else:
            spans[turn].append((begin, end))
        free_s[turn] = end
        for minute in range(
            int((t_s - start_s) // 60), min(minutes, int((t_s + end - begin - start_s) // 60) + 1)
        ):
            requests[minute] += 1
    return [[(a, min(b, until_s)) for a, b in of if a < until_s] for of in spans], requests


def _share(t_s: float, habits: Habits) -> float:
    """Of the peak, 0 to 1, by the hour and the day of the week."""
    wave = (1 - math.cos(2 * math.pi * (t_s % DAY_S / HOUR_S - habits.opens_h + 3) / 24)) / 2
    is_weekend = (t_s // DAY_S + 3) % 7 > FRIDAY
    return (0.05 + 0.95 * math.pow(wave, 1.5)) * (habits.weekend_demand if is_weekend else 1.0)


def serving(spans: Spans, board: Board, waits: Load, start_s: float, until_s: float) -> Course:
    """What the device of a replica does that has these requests."""
    busy = board.work(22, 10, 70)
    edges = [start_s, *itertools.chain.from_iterable(spans), until_s]
    loads = itertools.cycle((waits, busy))
    return [(a, b, load) for (a, b), load in zip(itertools.pairwise(edges), loads, strict=False) if b > a]


def at_work(course: Course) -> list[tuple[float, float]]:
    """When it worked."""
    found: list[tuple[float, float]] = []
    for begin, end, load in course:
        if load.works and found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        elif load.works:
            found.append((begin, end))
    return found
