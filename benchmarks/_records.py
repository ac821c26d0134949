"""What a Prometheus would have recorded of one simulated device, by steps: windows of whole steps cost nothing then.

the simulator's phases ──► samples at each scrape ──► steps of half an hour
"""

import array
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from simulator.gpus.cards import CARDS
from simulator.nodes import physics
from simulator.nodes.physics import CONTEXT_BYTES, Load, Regime
from simulator.workloads import behavior
from simulator.workloads.archetypes import Actor
from simulator.workloads.behavior import PERIOD_S
from simulator.workloads.schedule import Phase

STEP_S = 1800
SCRAPE_S = 30
SAMPLES = STEP_S // SCRAPE_S
MINUTES = STEP_S // 60
_REPEATS = PERIOD_S // 2
"""After so many scrapes the noise repeats: 4,096 s is no multiple of 30 s, but half of it is of 15."""
Floats: TypeAlias = "array.array[float]"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What was recorded of one device, by step; sums run from the first step on, and are one longer.

    Attributes:
        activity: Highest sample of utilization in percent.
        traffic: Highest sample of memory utilization in percent.
        watts: Highest sample of power.
        held: Highest share of memory, in percent.
        activity_sum: Of all samples.
        watts_sum: Likewise.
        busy_s: Seconds in which a kernel ran, as counters have it.
        ran: For each step whether a kernel ran in it, by the same.
        minutes: Highest sample of utilization in each minute.
    """

    activity: bytes
    traffic: bytes
    watts: Floats
    held: bytes
    activity_sum: Sequence[float]
    watts_sum: Sequence[float]
    busy_s: Sequence[float]
    ran: bytes
    minutes: bytes


def record_of(actor: Actor, card: str, until_s: float) -> Record:
    """What was recorded of a device from its start on."""
    activity, traffic, held, watts = bytearray(), bytearray(), bytearray(), array.array("f")
    busy = array.array("d", bytes(8 * (int((until_s - actor.start_s) // STEP_S) + 1)))
    offset, memory = behavior.noise_offset(actor), CARDS[card].usable_bytes
    for start, end, phase in behavior.schedule(actor).between(actor.start_s, until_s):
        first = actor.start_s + math.ceil((start - actor.start_s) / SCRAPE_S) * SCRAPE_S
        count = max(0, math.ceil((end - first) / SCRAPE_S))
        second = (offset + int(first)) % PERIOD_S
        until = second + min(count, _REPEATS) * SCRAPE_S
        utilization, memory_utilization, power = _tables(card, phase)
        times, shown = count // _REPEATS + 1, slice(second, until, SCRAPE_S)
        activity += (utilization[shown] * times)[:count]
        traffic += (memory_utilization[shown] * times)[:count]
        watts += (power[shown] * times)[:count]
        share = (CONTEXT_BYTES / memory if phase.context else 0.0) + phase.memory
        held += bytes([math.ceil(100 * min(1.0, share))]) * count
        if phase.utilization:
            _add(busy, start - actor.start_s, end - actor.start_s)
    return Record(
        activity=_peaks(activity),
        traffic=_peaks(traffic),
        watts=array.array("f", (max(part) for part in _steps(watts))),
        held=_peaks(held),
        activity_sum=_sums(activity),
        watts_sum=_sums(watts),
        busy_s=array.array("d", itertools.accumulate(busy, initial=0.0)),
        ran=bytes(seconds > 0 for seconds in busy),
        minutes=bytes(map(max, activity[::2], activity[1::2])),
    )


@functools.cache
def _tables(card: str, phase: Phase) -> tuple[bytes, bytes, Floats]:
    """Utilization, memory utilization and power, second by second, until the scrapes repeat."""
    load = Load(phase.utilization, phase.spread, phase.spins, 1.0, 0)
    shown: Regime = physics.regime(card, (load,) if phase.utilization else (), phase.context)
    times = SCRAPE_S // 2 + 1
    watts = array.array("f", shown.power_w)
    return bytes(shown.utilization) * times, bytes(shown.memory_utilization) * times, watts * times


def _add(busy: Floats, start_s: float, end_s: float) -> None:
    for step in range(int(start_s // STEP_S), min(len(busy), math.ceil(end_s / STEP_S))):
        busy[step] += min(end_s, (step + 1) * STEP_S) - max(start_s, step * STEP_S)


def _steps(values: Sequence[float]) -> Iterator[Sequence[float]]:
    for start in range(0, len(values) - SAMPLES + 1, SAMPLES):
        yield values[start : start + SAMPLES]


def _peaks(values: bytearray) -> bytes:
    return bytes(int(max(part)) for part in _steps(values))


def _sums(values: Sequence[float]) -> Sequence[float]:
    return array.array("d", itertools.accumulate((sum(part) for part in _steps(values)), initial=0.0))
