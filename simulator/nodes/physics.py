"""What a card's sensors show under a given load: utilization, watts, joules, degrees, clocks.

A regime is one period of noise, second by second, computed once per card and load.
"""

import dataclasses
import functools
import itertools
import math
import operator

from simulator.gpus.cards import CARDS, Card
from simulator.workloads.behavior import PERIOD_S, gaussian, utilization
from simulator.workloads.schedule import Phase

CONTEXT_BYTES = 530 * 2**20
"""What a bare CUDA context holds (measured on H100)."""
MPS_SERVER_BYTES = 30 * 2**20
"""What the MPS server itself holds on a GPU that it serves, as nvidia-smi shows it on V100 and A100."""
BASE_SHARE = 0.05
"""Part of the way from loaded to maximum power that any work costs: 150 W at the least on an H100."""
FULL_SHARE = 0.9
"""Part of that way that full utilization costs on top."""
POWER_NOISE = 0.017
"""Relative spread of power from second to second; an H100 with an idle model shows 116.6 to 123 W (p5, p95)."""
MEMORY_TRAFFIC = 0.55
"""Memory utilization per utilization."""
WARM_UP_S = 90.0
"""Time constant of the temperature."""
SETTLED_S = 10 * WARM_UP_S
"""After this long it no longer moves."""
_COLDEST_C, _SPAN_C, _MEMORY_C = 28.0, 47.0, 6.0
_MASK = PERIOD_S - 1
_POWER_SHIFT = 1777
"""Power noise is the same table as utilization noise, entered elsewhere."""


Sums = tuple[float, ...]
"""A running sum over one period of the noise, a value before each second and one after the last."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The load of one tenant on a card.

    Attributes:
        utilization: Mean in percent.
        spread: Standard deviation in percentage points.
        spins: Utilization without work.
        weight: Share of the card, 0 to 1.
        offset_s: Where the tenant enters the noise, relative to the first tenant.
    """

    utilization: float
    spread: float
    spins: bool
    weight: float
    offset_s: int


@dataclasses.dataclass(frozen=True, slots=True)
class Regime:
    """A card's sensors under a constant mix of loads, a value per second of the noise's period.

    Attributes:
        joules: Energy from the period's start to each second; one entry longer than the period.
        temperature_c: Where the temperature settles.
        shares: For each load, likewise from the period's start, its busy seconds and the energy of these.
    """

    utilization: tuple[int, ...]
    memory_utilization: tuple[int, ...]
    power_w: tuple[float, ...]
    joules: tuple[float, ...]
    temperature_c: float
    sm_clock_mhz: int
    mem_clock_mhz: int
    shares: tuple[tuple[Sums, Sums], ...]


def total(sums: Sums, second: float) -> float:
    """The sum from second 0 of the noise to `second`, which may be many periods later."""
    whole = math.floor(second)
    periods, index = divmod(whole, PERIOD_S)
    return periods * sums[-1] + sums[index] + (second - whole) * (sums[index + 1] - sums[index])


@functools.cache
def regime(card_name: str, loads: tuple[Load, ...], context: bool) -> Regime:  # noqa: FBT001 - a cache key
    """The sensors of card `card_name` under `loads`; `context` says whether any process holds one."""
    card = CARDS[card_name]
    tables = [_table(load) for load in loads]
    totals = [sum(values) for values in zip(*tables, strict=True)] or [0.0] * PERIOD_S
    seen = [min(100, round(value)) for value in totals]
    real = [table for table, load in zip(tables, loads, strict=True) if not load.spins]
    work = [min(100.0, sum(values)) for values in zip(*real, strict=True)] or [0.0] * PERIOD_S
    power = _power(card, work, context=context)
    mean_w = sum(power) / PERIOD_S
    span_w = card.max_power_w - card.idle_power_w
    return Regime(
        utilization=tuple(seen),
        memory_utilization=tuple(round(MEMORY_TRAFFIC * value) for value in work),
        power_w=power,
        joules=tuple(itertools.accumulate(power, initial=0.0)),
        temperature_c=_COLDEST_C + _SPAN_C * (mean_w - card.idle_power_w) / span_w,
        sm_clock_mhz=card.max_sm_clock_mhz if context else card.idle_sm_clock_mhz,
        mem_clock_mhz=card.max_mem_clock_mhz if context else card.idle_mem_clock_mhz,
        shares=tuple(_share(table, totals, power) for table in tables),
    )


def memory_temperature_c(card: Card, temperature_c: float) -> int:
    """The memory's temperature beside the GPU's; 0 where the card has no such sensor."""
    return round(temperature_c + _MEMORY_C) if card.memory_temperature else 0


def approach(start_c: float, target_c: float, elapsed_s: float) -> float:
    """The temperature after `elapsed_s` on the way from `start_c` to `target_c`."""
    if elapsed_s >= SETTLED_S:
        return target_c
    return target_c + (start_c - target_c) * math.exp(-elapsed_s / WARM_UP_S)


def _table(load: Load) -> list[float]:
    phase = Phase("", utilization=load.utilization, spread=load.spread)
    return [load.weight * utilization(phase, second + load.offset_s) for second in range(PERIOD_S)]


def _share(table: list[float], totals: list[float], power: tuple[float, ...]) -> tuple[Sums, Sums]:
    busy = [value / max(100.0, all_) for value, all_ in zip(table, totals, strict=True)]
    joules = map(operator.mul, busy, power)
    return tuple(itertools.accumulate(busy, initial=0.0)), tuple(itertools.accumulate(joules, initial=0.0))


def _power(card: Card, work: list[float], *, context: bool) -> tuple[float, ...]:
    base_w = card.loaded_power_w if context else card.idle_power_w
    span_w = card.max_power_w - card.loaded_power_w
    noise = gaussian()
    watts = []
    for second, percent in enumerate(work):
        jitter = 1 + POWER_NOISE * noise[(second + _POWER_SHIFT) & _MASK]
        busy_w = span_w * (BASE_SHARE + FULL_SHARE * percent / 100) if percent else 0.0
        watts.append(round(min(card.max_power_w, (base_w + busy_w) * jitter), 3))
    return tuple(watts)
