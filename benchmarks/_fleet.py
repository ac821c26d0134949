"""A week of a made-up cluster: who holds GPUs, what a Prometheus would have recorded of it, and what was really done.

    population ──► the simulator's truth ─┬─► samples at each scrape ──► steps of half an hour ──► Record
                                         └─► when the workload worked ──► Member.works

Windows of whole steps are then read off in no time. It knows nothing of judging.
"""

import array
import bisect
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from simulator import archetypes, draws, physics
from simulator.archetypes import PERIOD_S
from simulator.cards import CARDS
from simulator.courses import Actor
from simulator.draws import DAY_S, HOUR_S
from simulator.physics import CONTEXT_BYTES, Load, Regime
from simulator.schedule import Phase
from simulator.spec import Archetype, Kind, WorkloadSpec

BEGIN_S = 1_794_787_200
"""Monday, 16 November 2026, 00:00 UTC."""
STEP_S = 1800
SCRAPE_S = 30
SAMPLES = STEP_S // SCRAPE_S
MINUTES = STEP_S // 60
_REPEATS = PERIOD_S // 2
"""After so many scrapes the noise repeats: 4,096 s is no multiple of 30 s, but half of it is of 15."""
BEFORE_S, BEYOND_S = 7 * DAY_S, 7 * DAY_S
"""How old the oldest workloads are, and how far beyond the end is looked for work: no pause in the simulator is
longer, so that whether something comes back is always known."""

MIX = {
    Archetype.TRAIN_STEADY: 0.22,
    Archetype.TRAIN_STALL: 0.15,
    Archetype.NOTEBOOK: 0.18,
    Archetype.INFERENCE_DIURNAL: 0.18,
    Archetype.INFERENCE_LONGTAIL: 0.08,
    Archetype.ABANDONED: 0.08,
    Archetype.ZOMBIE: 0.04,
    Archetype.OVERALLOCATED: 0.07,
}
"""Shares of workloads: assumed."""
TRAINING = (Archetype.TRAIN_STEADY, Archetype.TRAIN_STALL)
_LIFE_H, _LIFE_SIGMA = 6.0, 1.6  # of training, as public traces have it
_KINDS = {
    Archetype.TRAIN_STEADY: ("Job", "Job", "PyTorchJob", "Pod"),
    Archetype.TRAIN_STALL: ("Job", "Job", "PyTorchJob", "Pod"),
    Archetype.NOTEBOOK: ("StatefulSet", "Notebook"),
    Archetype.INFERENCE_DIURNAL: ("Deployment", "Deployment", "InferenceService"),
    Archetype.INFERENCE_LONGTAIL: ("Deployment", "Deployment", "InferenceService"),
    Archetype.ABANDONED: ("Deployment", "StatefulSet", "Job", "Pod"),
    Archetype.ZOMBIE: ("Job", "PyTorchJob"),
    Archetype.OVERALLOCATED: ("Job", "Deployment"),
}
_GPUS = {
    Archetype.TRAIN_STEADY: (1, 1, 1, 1, 1, 2, 4, 8, 8, 8),
    Archetype.TRAIN_STALL: (1, 1, 1, 1, 1, 2, 4, 8, 8, 8),
    Archetype.ZOMBIE: (1, 1, 1, 1, 1, 2, 4, 8, 8, 8),
    Archetype.OVERALLOCATED: (2, 4, 8),
}
_REPLICAS = {Archetype.INFERENCE_DIURNAL: (1, 2, 3, 4, 6, 8), Archetype.INFERENCE_LONGTAIL: (1, 1, 2)}
_CARDS = ("H100-SXM5-80GB", "H100-SXM5-80GB", "A100-SXM4-80GB", "L40S")

Floats: TypeAlias = "array.array[float]"
Spans = Sequence[tuple[float, float]]
"""From and until in Unix seconds, in order, apart."""


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


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A workload and its truth.

    Attributes:
        kind: Of Kubernetes.
        start_s: When its pods began; a whole number of steps from BEGIN_S.
        end_s: When it ends by itself, and frees its GPUs; inf where it does not.
        records: Of each device of each pod, from the start on.
        worked: When each pod really worked.
        works: When any of them did.
        busy: How many of its pods show activity in each minute from the start on.
        demand: How many of them really worked in it.
        worked_gpu_s: GPU-seconds of work in the week.
        spins: Since when it spins; None where it never does.
    """

    seed: int
    spec: WorkloadSpec
    kind: str
    card: str
    start_s: float
    end_s: float
    records: tuple[tuple[Record, ...], ...]
    worked: tuple[Spans, ...]
    works: Spans
    busy: Sequence[int]
    demand: Sequence[int]
    worked_gpu_s: float
    spins: float | None

    @property
    def gpus(self) -> int:
        """All that it holds."""
        return self.spec.gpus * self.spec.replicas

    def resumes_s(self, at_s: float) -> float:
        """When it works next, from `at_s` on: at once where it works; inf where never again."""
        place = bisect.bisect_right(self.works, (at_s, math.inf))
        if place and self.works[place - 1][1] > at_s:
            return at_s
        return self.works[place][0] if place < len(self.works) else math.inf

    def has_worked(self, from_s: float, until_s: float) -> bool:
        """Whether it worked at any time in between."""
        return self.resumes_s(from_s) < until_s


def population(seed: int, count: int, days: float) -> list[Member]:
    """So many workloads, by MIX, and their truth over so many days from BEGIN_S on."""
    numbers = _numbers(count)
    return [
        _member(seed, archetype, number, days) for archetype in MIX for number in range(numbers[archetype])
    ]


def _numbers(count: int) -> dict[Archetype, int]:
    """Whole numbers by MIX, one of each at the least; the first takes up what is left over."""
    numbers = {archetype: max(1, round(share * count)) for archetype, share in MIX.items()}
    numbers[Archetype.TRAIN_STEADY] += count - sum(numbers.values())
    return numbers


def _member(seed: int, archetype: Archetype, number: int, days: float) -> Member:
    draw = draws.seeded("judgement", seed, archetype.value, number)
    start_s, life_s = _life(draw, archetype, days)
    spec = WorkloadSpec(
        Kind.DEPLOYMENT,
        "team",
        f"{archetype.value.replace('_', '-')}-{number}",
        archetype,
        replicas=draw.choice(_REPLICAS.get(archetype, (1,))),
        gpus=draw.choice(_GPUS.get(archetype, (1,))),
        works_s=None if math.isinf(life_s) else life_s,
    )
    kind, card = draw.choice(_KINDS[archetype]), draw.choice(_CARDS)
    end_s, until_s = start_s + life_s, BEGIN_S + days * DAY_S
    pods = [
        [Actor(seed, spec, pod, device, start_s) for device in range(spec.gpus)]
        for pod in range(spec.replicas)
    ]
    worked = tuple(_worked(actors[0], min(end_s, until_s + BEYOND_S)) for actors in pods)
    records = tuple(tuple(_records(actors, card, until_s)) for actors in pods)
    return Member(
        seed=seed,
        spec=spec,
        kind=kind,
        card=card,
        start_s=start_s,
        end_s=end_s,
        records=records,
        worked=worked,
        works=_union(worked),
        busy=[sum(row) for row in zip(*(_active(devices) for devices in records), strict=True)],
        demand=_demand(worked, start_s, until_s),
        worked_gpu_s=sum(
            sum(actor.is_used for actor in actors) * _within(spans, BEGIN_S, until_s)
            for actors, spans in zip(pods, worked, strict=True)
        ),
        spins=_spins(pods[0][0], until_s),
    )


def _life(draw: random.Random, archetype: Archetype, days: float) -> tuple[float, float]:
    """When it starts, and how long it lives; drawn again where it would be over before the week."""
    while True:
        start_s = BEGIN_S + round(draw.uniform(-BEFORE_S, (days - 0.5) * DAY_S) / STEP_S) * STEP_S
        life_s = math.inf
        if archetype in TRAINING:
            life_s = draws.lognormal(draw, median=_LIFE_H * HOUR_S, sigma=_LIFE_SIGMA)
        if start_s + life_s > BEGIN_S + STEP_S:
            return start_s, life_s


def _worked(actor: Actor, until_s: float) -> Spans:
    return archetypes.truth(actor, actor.start_s, until_s).busy if actor.is_used else ()


def _active(devices: Sequence[Record]) -> Iterator[bool]:
    """For each minute whether a pod's gauges showed it at work."""
    return (
        percent > 1 for percent in map(max, zip(*(record.minutes for record in set(devices)), strict=True))
    )


def _demand(worked: Sequence[Spans], start_s: float, until_s: float) -> Sequence[int]:
    minutes = int((until_s - start_s) // 60)
    counts = [0] * minutes
    for spans in worked:
        last = -1
        for start, end in spans:
            for minute in range(
                max(last + 1, int((start - start_s) // 60)), min(minutes, math.ceil((end - start_s) / 60))
            ):
                counts[minute] += 1
                last = minute
    return counts


def _within(spans: Spans, from_s: float, until_s: float) -> float:
    return sum(max(0.0, min(end, until_s) - max(start, from_s)) for start, end in spans)


def _union(spans: Sequence[Spans]) -> Spans:
    found: list[tuple[float, float]] = []
    for start, end in sorted(itertools.chain.from_iterable(spans)):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _spins(actor: Actor, until_s: float) -> float | None:
    phases = archetypes.schedule(actor).between(actor.start_s, until_s)
    return next((start for start, _, phase in phases if phase.spins), None)


def _records(actors: Sequence[Actor], card: str, until_s: float) -> Iterator[Record]:
    """The devices of a pod that work do the same, and so do those that do not: each is worked out once."""
    known: dict[object, Record] = {}
    for actor in actors:
        key = actor.is_used or actor.device == 0
        if key not in known:
            known[key] = _record(actor, card, until_s)
        yield known[key]


def _record(actor: Actor, card: str, until_s: float) -> Record:
    activity, traffic, held, watts = bytearray(), bytearray(), bytearray(), array.array("f")
    busy = array.array("d", bytes(8 * (int((until_s - actor.start_s) // STEP_S) + 1)))
    offset, memory = archetypes.noise_offset(actor), CARDS[card].usable_bytes
    for start, end, phase in archetypes.schedule(actor).between(actor.start_s, until_s):
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
