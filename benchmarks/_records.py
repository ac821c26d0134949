"""What a Prometheus would have recorded of one made-up device, by steps: windows of whole steps cost nothing then.

loads, one after another ──► a sample at each scrape ──► steps of ten minutes
"""

import array
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from simulator.workloads.behavior import gaussian

STEP_S = 600
SCRAPE_S = 30
SAMPLES = STEP_S // SCRAPE_S
MINUTES = STEP_S // 60
WATTS = 3
"""One unit of power: so 765 W fit into a byte."""
Floats: TypeAlias = "array.array[float]"
Spans: TypeAlias = Sequence[tuple[float, float]]
"""From and until in Unix seconds, in order, apart."""

_NOISE = bytes(max(0, min(255, round(128 + 32 * one))) for one in gaussian())
_TWICE = _NOISE * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """What a device does for a while.

    Attributes:
        works: Whether that is useful.
        utilization: Mean in percent; 0 where no kernel runs.
        spread: Its standard deviation, in percentage points.
        traffic: Memory traffic per utilization.
        watts: Mean power; `sway` is its standard deviation.
        held: Memory in percent.
    """

    works: bool
    utilization: float
    spread: float
    traffic: float
    watts: float
    sway: float
    held: int


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What was recorded of one device, by step; sums run from the first step on, and are one longer.

    Attributes:
        activity: Highest sample of utilization in percent.
        traffic: Highest sample of memory utilization in percent.
        watts: Highest sample of power, in units of WATTS.
        held: Highest share of memory, in percent.
        activity_sum: Of all samples.
        watts_sum: Likewise, in units of WATTS.
        samples_sum: How many samples there are.
        busy_s: Seconds in which a kernel ran, as counters have it.
        ran: For each step whether a kernel ran in it, by the same.
        minutes: Highest sample of utilization in each minute.
    """

    activity: bytes
    traffic: bytes
    watts: bytes
    held: bytes
    activity_sum: Floats
    watts_sum: Floats
    samples_sum: Floats
    busy_s: Floats
    ran: bytes
    minutes: bytes


def record_of(
    course: Sequence[tuple[float, float, Load]], start_s: float, until_s: float, offset: int, lost: Spans
) -> Record:
    """What was recorded of a device from its start on.

    Args:
        course: From when, until when, and what it does, without gaps.
        start_s: Of the course.
        until_s: When the record ends.
        offset: Where it enters the noise.
        lost: When nothing was scraped on its node.
    """
    activity, traffic, held, watts = bytearray(), bytearray(), bytearray(), bytearray()
    busy = array.array("d", bytes(8 * int((until_s - start_s) // STEP_S)))
    taken = 0
    for begin, end, load in course:
        if begin >= until_s:
            break
        last = math.ceil((min(end, until_s) - start_s) / SCRAPE_S)
        if load.utilization:
            _add(busy, begin - start_s, min(end, until_s) - start_s, min(1.0, load.utilization / 100))
        if last > taken:
            noise = _noise(offset + taken, last - taken)
            of_activity, of_traffic, of_watts = _tables(load)
            activity += noise.translate(of_activity)
            traffic += noise.translate(of_traffic)
            watts += noise.translate(of_watts)
            held += bytes((load.held,)) * (last - taken)
            taken = last
    for row in (activity, traffic, held, watts):
        del row[len(busy) * SAMPLES :]
    seen = _lose(lost, start_s, (activity, traffic, watts, held))
    return Record(
        activity=_steps(activity, max),
        traffic=_steps(traffic, max),
        watts=_steps(watts, max),
        held=_steps(held, max),
        activity_sum=_sums(activity),
        watts_sum=_sums(watts),
        samples_sum=_sums(seen),
        busy_s=array.array("d", itertools.accumulate(busy, initial=0.0)),
        ran=bytes(seconds > 0 for seconds in busy),
        minutes=bytes(map(max, activity[::2], activity[1::2])),
    )


def _noise(start: int, count: int) -> bytes:
    first = start % len(_NOISE)
    if count <= len(_NOISE):
        return _TWICE[first : first + count]
    return (_NOISE * (count // len(_NOISE) + 2))[first : first + count]


@functools.lru_cache(maxsize=4096)
def _tables(load: Load) -> tuple[bytes, bytes, bytes]:
    """Utilization, memory utilization and power by the noise."""
    deviations = [(byte - 128) / 32 for byte in range(256)]
    used = [0.0] * 256
    if load.utilization:
        # A low mean with a wide spread is idle in most samples; any other load is never seen at 0.
        least = 0.0 if load.spread > load.utilization else 1.0
        used = [max(least, min(100.0, load.utilization + load.spread * one)) for one in deviations]
    return (
        bytes(round(value) for value in used),
        bytes(round(min(100.0, value * load.traffic)) for value in used),
        bytes(max(0, min(255, round((load.watts + load.sway * one) / WATTS))) for one in deviations),
    )


def _add(busy: Floats, start_s: float, end_s: float, share: float) -> None:
    for step in range(int(start_s // STEP_S), min(len(busy), math.ceil(end_s / STEP_S))):
        busy[step] += share * (min(end_s, (step + 1) * STEP_S) - max(start_s, step * STEP_S))


def _lose(lost: Spans, start_s: float, rows: Sequence[bytearray]) -> bytearray:
    """Takes out the samples that nobody scraped; returns which are left."""
    seen = bytearray(b"\1") * len(rows[0])
    for begin, end in lost:
        first, last = (max(0, math.ceil((one - start_s) / SCRAPE_S)) for one in (begin, end))
        last = min(last, len(seen))
        for row in (seen, *rows) if first < last else ():
            row[first:last] = bytes(last - first)
    return seen


def _steps(values: bytearray, of: Callable[[bytearray], int]) -> bytes:
    return bytes(map(of, _parts(values)))


def _parts(values: bytearray) -> Iterator[bytearray]:
    for start in range(0, len(values) - SAMPLES + 1, SAMPLES):
        yield values[start : start + SAMPLES]


def _sums(values: bytearray) -> Floats:
    return array.array("d", itertools.accumulate(map(sum, _parts(values)), initial=0.0))
