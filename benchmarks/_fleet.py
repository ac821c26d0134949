"""A week of a made-up cluster: who holds GPUs, what a Prometheus would have recorded of it, and what was really done.

    population ──► the simulator's truth ─┬─► what was recorded of each device
                                         └─► when the workload worked

It knows nothing of judging.
"""

import bisect
import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Sequence

from benchmarks._records import STEP_S, Record, record_of
from simulator.spec import Archetype, Kind, WorkloadSpec
from simulator.workloads import behavior, draws
from simulator.workloads.archetypes import Actor
from simulator.workloads.draws import DAY_S, HOUR_S

BEGIN_S = 1_794_787_200
"""Monday, 16 November 2026, 00:00 UTC."""
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

Spans = Sequence[tuple[float, float]]
"""From and until in Unix seconds, in order, apart."""


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
    return behavior.truth(actor, actor.start_s, until_s).busy if actor.is_used else ()


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
    phases = behavior.schedule(actor).between(actor.start_s, until_s)
    return next((start for start, _, phase in phases if phase.spins), None)


def _records(actors: Sequence[Actor], card: str, until_s: float) -> Iterator[Record]:
    """The devices of a pod that work do the same, and so do those that do not: each is worked out once."""
    known: dict[object, Record] = {}
    for actor in actors:
        key = actor.is_used or actor.device == 0
        if key not in known:
            known[key] = record_of(actor, card, until_s)
        yield known[key]
