"""The phases of a pod's life by archetype, with the published parameters of each.

Numbers without a source are assumptions. Draws depend only on the seed, the workload and the pod's ordinal; hours of
the day are UTC.
"""

import dataclasses
import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping

from simulator.spec import Archetype, WorkloadSpec
from simulator.workloads import draws
from simulator.workloads.draws import DAY_S, HOUR_S, MINUTE_S, Quantiles
from simulator.workloads.schedule import Phase

# A month of notebook GPU events.
NOTEBOOK_BURST_MIN = Quantiles({0.25: 3, 0.5: 5, 0.75: 11, 0.9: 32, 0.95: 95}, lowest=1, highest=240)
NOTEBOOK_GAP_MIN = Quantiles({0.5: 3, 0.75: 7, 0.9: 33, 0.95: 150, 0.99: 1500}, lowest=0.5, highest=4000)
# A day of a real image-generation service.
INFERENCE_BURST_MIN = Quantiles({0.5: 2, 0.75: 4, 0.9: 9, 0.95: 12}, lowest=0.3, highest=20)
INFERENCE_SHARE = (0.01, 0.76)
"""Busy share of the quietest and of the busiest hour."""
# 23 days of requests to 79 models.
LONGTAIL_GAP_MIN = Quantiles({0.5: 6, 0.75: 26, 0.9: 180, 0.95: 910, 0.99: 2950}, lowest=0.5, highest=6000)

OFFICE_HOURS = (9.0, 19.0)
NIGHT_WORK = 0.15
"""In how many of its nights a notebook is worked at."""
ABANDONED_NOTEBOOKS = 0.4
NEVER_USED = 0.5
SPINNING_ZOMBIES = 0.25
_WEEKEND_DAYS = (2, 3)
"""Saturday and Sunday as days since the epoch modulo seven; the epoch was a Thursday."""


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """One device (0-based) of one pod (ordinal, 0-based) that started at `start_s` (Unix)."""

    seed: int
    spec: WorkloadSpec
    ordinal: int
    device: int
    start_s: float

    @property
    def is_used(self) -> bool:
        """Whether this device of this replica is among those that ever do work."""
        busy_gpus = self.spec.busy_gpus
        if busy_gpus is None:
            shrunk = self.spec.archetype is Archetype.OVERALLOCATED
            busy_gpus = max(1, self.spec.gpus // 2) if shrunk else self.spec.gpus
        busy_replicas = self.spec.replicas if self.spec.busy_replicas is None else self.spec.busy_replicas
        return self.device < busy_gpus and self.ordinal < busy_replicas


_Phases = Iterator[tuple[float, Phase]]


def phases(actor: Actor) -> _Phases:
    """What happens after the start: the archetype's course, ended early where the spec or the archetype says so."""
    spec = actor.spec
    draw = draws.seeded(actor.seed, spec.namespace, spec.name, actor.ordinal)
    held = _held_memory(spec.archetype, draw)
    stopped = _stopped(actor, draw, held)
    works_s = _works_s(spec, draw) if actor.is_used else 0.0
    if works_s <= 0:
        return iter([(math.inf, stopped)])
    return _until(works_s, _COURSES[spec.archetype](draw, actor.start_s, held), stopped)


def _until(works_s: float, course: _Phases, stopped: Phase) -> _Phases:
    left_s = works_s
    for duration_s, phase in course:
        yield min(duration_s, left_s), phase
        left_s -= duration_s
        if left_s <= 0:
            break
    yield math.inf, stopped


def _works_s(spec: WorkloadSpec, draw: random.Random) -> float:
    """How long after the start the work ends for good, in seconds."""
    drawn = math.inf
    chance = draw.random()
    match spec.archetype:
        case Archetype.ABANDONED:
            drawn = 0.0 if chance < NEVER_USED else draws.lognormal(draw, median=45 * MINUTE_S, sigma=0.5)
        case Archetype.ZOMBIE:
            drawn = draws.lognormal(draw, median=240 * MINUTE_S, sigma=0.5)
        case Archetype.NOTEBOOK if chance < ABANDONED_NOTEBOOKS:
            drawn = draws.lognormal(draw, median=1.5 * DAY_S, sigma=0.3)
        case _:
            pass
    return drawn if spec.works_s is None else spec.works_s


def _held_memory(archetype: Archetype, draw: random.Random) -> float:
    """Share of the memory that an idle process keeps; minus one: it does not even keep a context."""
    match archetype:
        case Archetype.ABANDONED:
            return draw.choice((-1.0, 0.0, draw.uniform(0.1, 0.6)))
        case Archetype.INFERENCE_DIURNAL | Archetype.INFERENCE_LONGTAIL:
            return draw.uniform(0.6, 0.85)
        case Archetype.NOTEBOOK:
            return draw.uniform(0.05, 0.5)
        case _:
            return draw.uniform(0.5, 0.9)


def _stopped(actor: Actor, draw: random.Random, held: float) -> Phase:
    """What a device does that does not work (any more)."""
    spec = actor.spec
    lucky = draw.random() < SPINNING_ZOMBIES
    spins = (spec.archetype is Archetype.ZOMBIE and lucky) if spec.spins is None else spec.spins
    if spins:
        return Phase("spinning", utilization=100.0, memory=max(held, 0.0), spins=True)
    if held < 0 or spec.archetype is Archetype.OVERALLOCATED or not (actor.is_used or actor.device == 0):
        return Phase("unused", context=False)
    return Phase("idle", memory=held)


def _train_steady(draw: random.Random, start_s: float, held: float) -> _Phases:  # noqa: ARG001 - one signature
    yield draws.lognormal(draw, median=5 * MINUTE_S, sigma=0.6), Phase("start-up", memory=0.05)
    while True:
        yield draw.gauss(60, 3) * MINUTE_S, Phase("train", utilization=97.0, spread=2.5, memory=held)
        yield draw.uniform(1, 4) * MINUTE_S, Phase("checkpoint", memory=held)


def _train_stall(draw: random.Random, start_s: float, held: float) -> _Phases:  # noqa: ARG001 - one signature
    yield draws.lognormal(draw, median=15 * MINUTE_S, sigma=0.6), Phase("start-up", memory=0.05)
    while True:
        yield (
            draw.expovariate(1 / (240 * MINUTE_S)),
            Phase("train", utilization=55.0, spread=22.0, memory=held),
        )
        yield draws.lognormal(draw, median=12 * MINUTE_S, sigma=1.0), Phase("stall", memory=held)


def _notebook(draw: random.Random, start_s: float, held: float) -> _Phases:
    gap = Phase("gap", memory=held)
    night_owl = functools.cache(lambda _night: draw.random() < NIGHT_WORK)
    yield 2 * MINUTE_S, Phase("start-up")
    t_s = start_s + 2 * MINUTE_S
    while True:
        # Few levels, as each is a table of its own in physics.py.
        mean = draw.choice((20.0, 35.0, 50.0, 65.0, 80.0))
        burst_s = NOTEBOOK_BURST_MIN.draw(draw) * MINUTE_S
        yield burst_s, Phase("burst", utilization=mean, spread=15.0, memory=held)
        pause_s = NOTEBOOK_GAP_MIN.draw(draw) * MINUTE_S
        resumes_s = t_s + burst_s + pause_s
        if (closed_s := _closed_s(resumes_s)) and not night_owl(_night(resumes_s)):
            pause_s += closed_s + draw.uniform(0, HOUR_S)
        yield pause_s, gap
        t_s += burst_s + pause_s


def _closed_s(t_s: float) -> float:
    """How long until office hours begin; 0 within them."""
    opens, closes = OFFICE_HOURS
    hour = t_s % DAY_S / HOUR_S
    return 0.0 if opens <= hour < closes else (opens - hour) % 24 * HOUR_S


def _night(t_s: float) -> int:
    """The number of the night around `t_s`, from opening to opening."""
    return math.floor((t_s - OFFICE_HOURS[0] * HOUR_S) / DAY_S)


def busy_share(t_s: float) -> float:
    """How much of the time a diurnal service is busy at this time of the day and the week, 0 to 1 (UTC)."""
    lowest, highest = INFERENCE_SHARE
    wave = (1 - math.cos(2 * math.pi * (t_s % DAY_S / HOUR_S - 4) / 24)) / 2
    weekend = 0.5 if int(t_s // DAY_S) % 7 in _WEEKEND_DAYS else 1.0
    return (lowest + (highest - lowest) * math.pow(wave, 1.5)) * weekend


@functools.lru_cache(maxsize=1)
def _mean_burst_s() -> float:
    return INFERENCE_BURST_MIN.mean() * MINUTE_S


def _inference_diurnal(draw: random.Random, start_s: float, held: float) -> _Phases:
    busy = Phase("serving", utilization=22.0, spread=10.0, memory=held * 0.88)
    waiting = Phase("waiting", memory=held)
    t_s = start_s + 30
    yield 30, Phase("start-up", memory=0.05)
    while True:
        pause_s = _diurnal_gap_s(draw, t_s)
        burst_s = INFERENCE_BURST_MIN.draw(draw) * MINUTE_S
        yield pause_s, waiting
        yield burst_s, busy
        t_s += pause_s + burst_s


def _diurnal_gap_s(draw: random.Random, t_s: float) -> float:
    """A gap that is shorter in busy hours, so that the busy share is `busy_share`."""
    patience, waited_s, step_s = draw.expovariate(1.0), 0.0, 5 * MINUTE_S
    while True:
        share = busy_share(t_s + waited_s)
        rate = share / (_mean_burst_s() * (1 - share))
        if patience < rate * step_s:
            return waited_s + patience / rate
        patience -= rate * step_s
        waited_s += step_s


def _inference_longtail(draw: random.Random, start_s: float, held: float) -> _Phases:  # noqa: ARG001 - one signature
    yield 30, Phase("start-up", memory=0.05)
    while True:
        yield (
            draws.lognormal(draw, median=MINUTE_S, sigma=0.4),
            Phase("serving", utilization=60.0, spread=15.0, memory=held),
        )
        yield LONGTAIL_GAP_MIN.draw(draw) * MINUTE_S, Phase("waiting", memory=held)


def _trial(draw: random.Random, start_s: float, held: float) -> _Phases:  # noqa: ARG001 - one signature
    yield draw.uniform(1, 4) * MINUTE_S, Phase("start-up", memory=0.02)
    yield math.inf, Phase("trial", utilization=45.0, spread=20.0, memory=max(held, 0.2))


_COURSES: Mapping[Archetype, Callable[[random.Random, float, float], _Phases]] = {
    Archetype.TRAIN_STEADY: _train_steady,
    Archetype.TRAIN_STALL: _train_stall,
    Archetype.NOTEBOOK: _notebook,
    Archetype.INFERENCE_DIURNAL: _inference_diurnal,
    Archetype.INFERENCE_LONGTAIL: _inference_longtail,
    Archetype.ABANDONED: _trial,
    Archetype.ZOMBIE: _train_steady,
    Archetype.OVERALLOCATED: _train_steady,
}
"""What each archetype does while it works; before that it starts up, afterwards it stops (see `_stopped`)."""
