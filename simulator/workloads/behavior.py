"""What a pod's device does at any instant, and what it really did in a window.

It depends only on the seed, the workload, the pod's ordinal and its start.
"""

import dataclasses
import functools
import math

from simulator.workloads import archetypes, draws
from simulator.workloads.archetypes import Actor
from simulator.workloads.schedule import Phase, Schedule


@dataclasses.dataclass(frozen=True, slots=True)
class Activity:
    """What one device of a pod does at an instant; see `Phase` for the fields."""

    phase: str
    utilization_percent: int
    memory: float
    context: bool
    spins: bool
    is_working: bool


@dataclasses.dataclass(frozen=True, slots=True)
class ActualUse:
    """What one device really did in a window, in Unix seconds.

    Attributes:
        busy: When it worked, as (from, until).
        idle_since_s: When its last work ended, or its start; None while it works.
    """

    busy: tuple[tuple[float, float], ...]
    idle_since_s: float | None

    @property
    def ran(self) -> bool:
        """Whether anything ran in the window."""
        return bool(self.busy)

    @property
    def busy_s(self) -> float:
        """Seconds of work in the window."""
        return sum(end - start for start, end in self.busy)


def activity(actor: Actor, t_s: float) -> Activity:
    """What `actor` does at `t_s` (Unix seconds)."""
    phase = schedule(actor).at(t_s)
    return Activity(
        phase=phase.name,
        utilization_percent=utilization(phase, noise_offset(actor) + math.floor(t_s)),
        memory=phase.memory,
        context=phase.context,
        spins=phase.spins,
        is_working=phase.is_working,
    )


def truth(actor: Actor, t0_s: float, t1_s: float) -> ActualUse:
    """What `actor` really did in [t0, t1)."""
    busy: list[tuple[float, float]] = []
    for start, end, phase in schedule(actor).between(actor.start_s, max(t1_s, actor.start_s)):
        if not phase.is_working:
            continue
        if busy and busy[-1][1] == start:
            busy[-1] = (busy[-1][0], end)
        else:
            busy.append((start, end))
    last = busy[-1][1] if busy else actor.start_s
    cut = tuple((max(start, t0_s), end) for start, end in busy if end > t0_s)
    return ActualUse(busy=cut, idle_since_s=None if busy and last == t1_s else last)


@functools.cache
def schedule(actor: Actor) -> Schedule:
    """The phases of `actor`; the used devices of a pod go through the same ones."""
    if actor.device and actor.is_used:
        return schedule(dataclasses.replace(actor, device=0))
    return Schedule(actor.start_s, archetypes.phases(actor))


PERIOD_S = 4096
"""After how many seconds the noise repeats; a power of two, so that looking it up is one `&`."""


@functools.lru_cache(maxsize=1)
def gaussian() -> tuple[float, ...]:
    """One period of standard normal noise, a value per second; shared by everything, entered at different places."""
    draw = draws.seeded("noise")
    return tuple(draw.gauss(0.0, 1.0) for _ in range(PERIOD_S))


@functools.cache
def noise_offset(actor: Actor) -> int:
    """Where `actor` enters the noise, in seconds."""
    key = (actor.seed, actor.spec.namespace, actor.spec.name, actor.ordinal, actor.device)
    return draws.seeded("offset", *key).randrange(PERIOD_S)


def utilization(phase: Phase, second: int) -> int:
    """The driver's utilization in percent in the second `second` of the noise; 0 only where nothing runs."""
    if not phase.utilization:
        return 0
    value = phase.utilization + phase.spread * gaussian()[second % PERIOD_S]
    return max(1, min(100, round(value)))
