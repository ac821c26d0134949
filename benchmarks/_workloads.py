"""Six kinds of work that GPUs are given, as the ground truth knows them: bursts to the millisecond. Pure.

Knows neither the exporter nor how work is measured. The figures are made up, of the sizes that published traces show.
"""

import dataclasses
import random
from collections.abc import Callable, Iterator
from functools import partial

Bursts = Iterator[tuple[int, int]]
"""When there is work for the GPU: [from, to) in milliseconds, ascending, disjoint."""
Pod = Callable[[random.Random, int, int], Bursts]
"""What a pod does between two instants, in milliseconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A kind of work.

    Attributes:
        name: For people.
        pods: What each pod does; it has one process.
    """

    name: str
    pods: tuple[Pod, ...]


def _steady(draw: random.Random, at: int, end: int) -> Bursts:
    """Training steps of 0.3 s, nearly without a pause."""
    at += draw.randrange(300)
    while at < end:
        to = at + draw.randint(270, 300)
        yield at, to
        at = to + draw.randint(5, 25)


def _stalling(draw: random.Random, at: int, end: int) -> Bursts:
    """Training that now and then waits for data, and stops for half a minute every ten for a checkpoint."""
    checkpoint = at + draw.randrange(600_000)
    while at < end:
        to = at + draw.randint(500, 900)
        yield at, to
        at = to + (draw.randint(500, 4_000) if draw.random() < 0.2 else draw.randint(20, 80))  # noqa: PLR2004 - a fifth
        if at > checkpoint:
            at += draw.randint(20_000, 40_000)
            checkpoint = at + 600_000


def _bursts(draw: random.Random, at: int, end: int, *, starts_ms: tuple[int, int]) -> Bursts:
    """Bursts of 2 s, their starts apart by a time within bounds."""
    at += draw.randrange(15_000)
    while at < end:
        yield at, at + 2_000
        at += draw.randint(*starts_ms)


def _requests(draw: random.Random, at: int, end: int) -> Bursts:
    """Inference: requests of 20 to 200 ms that come by chance, twice a second, and are served in turn."""
    free = at
    while (at := at + round(draw.expovariate(0.002)) + 1) < end:
        start = max(at, free)
        free = start + draw.randint(20, 200)
        if start < end:
            yield start, free


def _notebook(draw: random.Random, at: int, end: int) -> Bursts:
    """Somebody runs a cell of 1 to 90 s, and thinks for some minutes."""
    while (at := at + 1_000 + round(draw.expovariate(1 / 300_000))) < end:
        to = at + draw.choice((1_000, 3_000, 10_000, 30_000, 90_000))
        yield at, to
        at = to


WORKLOADS = (
    Workload("steady training", (_steady,)),
    Workload("training with stalls and checkpoints", (_stalling,)),
    Workload("bursts of 2 s every 13 to 17 s", (partial(_bursts, starts_ms=(13_000, 17_000)),)),
    Workload(
        "bursts of 2 s every 15 s, in step with the scrapes", (partial(_bursts, starts_ms=(15_000, 15_000)),)
    ),
    Workload("inference, requests of 20 to 200 ms", (_requests,)),
    Workload("a notebook", (_notebook,)),
    Workload("training and inference, time-slicing", (_stalling, _requests)),
)
