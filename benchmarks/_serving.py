"""Made-up inference fleets, each with parameters of its own, and a day of one under whoever sizes it, minute by minute.

    parameters ──► demand of each minute ──► what is observed of the replicas that there are ──► size ──┐
                                                     ▲────────────── replicas, once started ────────────┘

It knows nothing of judging. Hours of the day are UTC.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence

from simulator.workloads import draws

DAY = 1440
"""Minutes."""
BEFORE = 7 * DAY
"""Minutes of demand before the first that is judged: the hours of earlier days."""
_STEPS = 2
"""Steps in a minute: the highest demand in it is the highest of these."""
_PER_NODE = 8
_MANY = 12
"""Above it a normal distribution stands for a Poisson or binomial one."""
_FRIDAY = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Traits:
    """What tells one fleet from another; assumed.

    Attributes:
        replicas: Those that its owner asks for.
        depth: How much less the quietest hour needs than the busiest, 0 to 1.
        weekend: Demand of Saturday and Sunday, of a weekday's.
        sharp: Above 1 the peak is short, below 1 it is long.
        request_min: Mean minutes of a request, each of which occupies a replica.
        bursts: In a day, and `burst` how much more they ask for, `burst_min` for how long, `ramp_min` how fast.
        noise: Standard deviation of the slow noise of demand, of its logarithm.
        spread: 0 where the load balancer fills replicas up in order, 1 where it picks any that is free.
        start_min: Minutes until a new replica is ready.
        restarts: Of each replica in a day.
        rollouts: In a day; each replaces all replicas.
        lost: Share of node-minutes without samples.
    """

    replicas: int
    depth: float
    weekend: float
    sharp: float
    peak_hour: float
    request_min: float
    bursts: float
    burst: float
    burst_min: float
    ramp_min: float
    noise: float
    margin: float
    spread: float
    start_min: int
    restarts: float
    rollouts: float
    lost: float


def traits(seed: int) -> Traits:
    """The parameters of a fleet."""
    draw = draws.seeded("serving", seed)

    def log(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    return Traits(
        replicas=draw.randint(5, 150),
        depth=draw.uniform(0.2, 0.95),
        weekend=draw.uniform(0.4, 1.1),
        sharp=draw.uniform(0.7, 2.0),
        peak_hour=draw.uniform(0, 24),
        request_min=log(0.1, 5),
        bursts=draw.choice((0.0, log(0.5, 24))),
        burst=draw.uniform(0.05, 0.6),
        burst_min=log(3, 60),
        ramp_min=log(1, 20),
        noise=draw.uniform(0, 0.12),
        margin=draw.uniform(0.0, 0.6),
        spread=draw.choice((0.0, draw.random(), 1.0)),
        start_min=round(log(1, 8)),
        restarts=log(0.005, 0.3),
        rollouts=draw.choice((0.0, 0.0, 0.5, 1.0)),
        lost=draw.choice((0.0, log(0.0001, 0.01))),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A fleet and what is asked of it, minute by minute from BEFORE minutes before the first on.

    Attributes:
        need: Replicas at work at the same time, at most.
        began: Requests that begin in the minute.
    """

    traits: Traits
    seed: int
    need: Sequence[int]
    began: Sequence[int]

    def touched(self, until: int, minutes: int, size: int) -> int:
        """How many of so many replicas work at any time in the last minutes before `until`."""
        first = until - minutes
        most = min(max(self.need[first:until]), size)
        jobs = self.need[first] + sum(self.began[first:until])
        any_of_them = size * -math.expm1(-jobs / size) if size else 0.0
        return min(size, most + round(self.traits.spread * max(0.0, any_of_them - most)))


def service(seed: int, days: int) -> Service:
    """A fleet, over so many days."""
    of = traits(seed)
    draw = draws.seeded("demand", seed)
    minutes = BEFORE + days * DAY
    level = _level(of, draw, minutes, first_day=draw.randrange(7))
    busiest = max(level)
    # So much load that the busiest minute takes about what there is, less the margin.
    erlangs = max(1.0, _load_of(of.replicas / (1 + of.margin)))
    keep = math.exp(-1 / (_STEPS * of.request_min))
    busy, need, began = 0, [], []
    gauss, rand = draw.gauss, draw.random
    for each in level:
        mean = erlangs * each / busiest
        most, new = busy, 0
        for _ in range(_STEPS):
            ended = _binomial(busy, 1 - keep, gauss, rand)
            starts = _poisson(mean * (1 - keep), gauss, rand)
            new += starts
            busy += starts - ended
            most = max(most, busy)
        if of.request_min < 1 / _STEPS:  # those that begin and end within a step
            new = max(new, _poisson(mean / of.request_min, gauss, rand))
        need.append(most)
        began.append(new)
    return Service(of, seed, need, began)


def _load_of(replicas: float) -> float:
    """The load whose highest minutes take so many replicas: three standard deviations more than the mean."""
    root = (-3 + math.sqrt(9 + 4 * replicas)) / 2
    return root * root


def _level(of: Traits, draw: random.Random, minutes: int, *, first_day: int) -> list[float]:
    slow, level = 0.0, []
    extra = _bursts(of, draw, minutes)
    for minute in range(minutes):
        day, hour = divmod(minute, DAY)
        wave = (1 + math.cos(2 * math.pi * (hour / 60 - of.peak_hour) / 24)) / 2
        slow += draw.gauss(0, of.noise * math.sqrt(2 / 60)) - slow / 60
        week = of.weekend if (first_day + day) % 7 > _FRIDAY else 1.0
        level.append((1 - of.depth + of.depth * wave**of.sharp) * week * math.exp(slow) * (1 + extra[minute]))
    return level


def _bursts(of: Traits, draw: random.Random, minutes: int) -> list[float]:
    extra = [0.0] * (minutes + 1)
    at = draw.expovariate(of.bursts / DAY) if of.bursts else math.inf
    while at < minutes:
        size, length = of.burst * draw.expovariate(1.0), of.burst_min * draw.expovariate(1.0)
        for minute in range(int(at), min(minutes, int(at + length + 2 * of.ramp_min))):
            since, left = minute - at + 1, at + length + 2 * of.ramp_min - minute
            extra[minute] += size * max(0.0, min(1.0, since / of.ramp_min, left / of.ramp_min))
        at += draw.expovariate(of.bursts / DAY)
    return extra


def _poisson(mean: float, gauss: Callable[[float, float], float], rand: Callable[[], float]) -> int:
    if mean > _MANY:
        return max(0, round(gauss(mean, math.sqrt(mean))))
    count, product, least = 0, rand(), math.exp(-mean)
    while product > least:
        product *= rand()
        count += 1
    return count


def _binomial(
    count: int, share: float, gauss: Callable[[float, float], float], rand: Callable[[], float]
) -> int:
    if count * share * (1 - share) > _MANY:
        return min(count, max(0, round(gauss(count * share, math.sqrt(count * share * (1 - share))))))
    return sum(rand() < share for _ in range(count))


@dataclasses.dataclass(slots=True)
class Replica:
    """A replica: when it began and is ready, in minutes from the first of the demand on."""

    name: str
    node: int
    began: int
    ready: int


@dataclasses.dataclass(slots=True)
class Running:
    """A fleet as it stands, and what has been seen of it.

    Attributes:
        busy: Replicas seen at work, minute by minute.
        unseen: Replicas without samples in the minute.
        dark: Nodes without samples in the last minute.
        log: Changes: minute, from, to.
        memo: What a sizer keeps.
    """

    of: Service
    now: int
    replicas: list[Replica]
    draw: random.Random
    busy: list[int]
    unseen: list[int]
    dark: frozenset[int] = frozenset()
    log: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    short: int = 0
    kept: int = 0
    waiting: float = 0.0
    names: int = 0
    memo: list[int] = dataclasses.field(default_factory=list)

    @property
    def size(self) -> int:
        """Replicas that there are, started or not."""
        return len(self.replicas)

    def active(self, minutes: int) -> int:
        """Replicas that worked at any time in the last minutes."""
        return self.of.touched(self.now, minutes, max(1, self.ready))

    def add(self, count: int, *, began: int) -> None:
        """New replicas, which start."""
        for _ in range(count):
            self.names += 1
            node = min(range(1 + (self.size + 1) // _PER_NODE), key=self._on)
            ready = began + self.of.traits.start_min
            self.replicas.append(Replica(f"svc-5d6c7f8b9-{_suffix(self.names)}", node, began, ready))

    def _on(self, node: int) -> int:
        return sum(one.node == node for one in self.replicas)

    def resize(self, size: int) -> None:
        """From now on as many."""
        if size == self.size:
            return
        self.log.append((self.now, self.size, size))
        if size > self.size:
            self.add(size - self.size, began=self.now)
        else:
            self.replicas = self.replicas[:size]  # the eldest stay: their names matter to no figure

    def minute(self) -> None:
        """The next minute."""
        of, traits = self.of, self.of.traits
        self._restart()
        ready = self.ready
        need = of.need[self.now] + self.waiting
        self.short += need > ready
        self.waiting = max(0.0, need - ready)
        self.kept += self.size
        busy = (
            ready if need >= ready else max(min(math.ceil(need), ready), of.touched(self.now + 1, 1, ready))
        )
        self.dark = frozenset(
            node for node in {one.node for one in self.replicas} if self.draw.random() < traits.lost
        )
        unseen = sum(one.node in self.dark for one in self.replicas)
        self.busy.append(busy - round(busy * unseen / self.size))
        self.unseen.append(unseen)
        self.now += 1

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return sum(one.ready <= self.now for one in self.replicas)

    def _restart(self) -> None:
        traits = self.of.traits
        if self.draw.random() < traits.rollouts / DAY:
            for place, one in enumerate(
                self.replicas
            ):  # with one more than there are: none is missing meanwhile
                self.names += 1
                began = self.now + 15 * place // self.size
                self.replicas[place] = Replica(
                    f"svc-7b8c9d5f6-{_suffix(self.names)}", one.node, began, self.now
                )
        if self.draw.random() < traits.restarts * self.size / DAY:
            one = self.draw.choice(self.replicas)
            one.began, one.ready = self.now, self.now + traits.start_min


_LETTERS = "bcdfghjklmnpqrstvwxz"


def _suffix(number: int) -> str:
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(5))


Sizer = Callable[[Running], int]
"""How many replicas there should be now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it: shares of GPU-hours freed and of minutes short, and changes in a day."""

    seed: int
    replicas: int
    freed: float
    short: float
    changes: float

    def beyond(self, whole: "Outcome") -> "Outcome":
        """The same without the minutes that are short with all replicas."""
        return dataclasses.replace(self, short=max(0.0, self.short - whole.short))


def live(of: Service, sizer: Sizer, *, every: int, days: int) -> Outcome:
    """The last days of a fleet under a sizer, asked every so many minutes; before that it has all its replicas."""
    first = BEFORE
    full = of.traits.replicas
    busy = [min(full, of.touched(minute + 1, 1, full)) for minute in range(first)]
    running = Running(of, first, [], draws.seeded("life", of.seed), busy, [0] * first)
    running.add(full, began=first - 3 * DAY)
    for one in running.replicas:
        one.ready = one.began
    minutes = days * DAY
    offset = of.seed % every
    for minute in range(minutes):
        if minute % every == offset:
            running.resize(sizer(running))
        running.minute()
    return Outcome(
        of.seed, full, 1 - running.kept / (minutes * full), running.short / minutes, len(running.log) / days
    )
