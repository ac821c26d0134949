"""A timeline of phases that grows as it is asked about: what a GPU's user does, from when to when.

Knows neither archetypes nor cards. Looking up an instant is a binary search; the phases themselves are drawn once.
"""

import bisect
import dataclasses
import math
import threading
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """What one device of a pod does for a while.

    Attributes:
        name: For people, such as "checkpoint".
        utilization: Mean utilization in percent; the driver's number, which a spinning kernel also makes.
        spread: Standard deviation of the utilization from second to second, in percentage points.
        memory: Share of the device's memory that is held, beside the context, 0 to 1.
        context: Whether a process holds a CUDA context on the device.
        spins: Utilization without work: no power, no memory traffic.
    """

    name: str
    utilization: float = 0.0
    spread: float = 0.0
    memory: float = 0.0
    context: bool = True
    spins: bool = False

    @property
    def is_working(self) -> bool:
        """Whether the device does useful work."""
        return self.utilization > 0 and not self.spins


Interval = tuple[float, float, Phase]
"""From when, until when (Unix seconds, the end not included), and what."""

VACANT = Phase("vacant", context=False)


class Schedule:
    """Phases one after another, from `start_s` on; vacant before.

    Args:
        start_s: When the first phase begins, in Unix seconds.
        phases: Durations in seconds and phases; drawn as far as anybody asks, the last one lasts for ever. Durations
            are rounded to whole seconds, the resolution of what sensors show.
    """

    def __init__(self, start_s: float, phases: Iterator[tuple[float, Phase]]) -> None:
        self._phases = phases
        self._starts: list[float] = [-math.inf]
        self._drawn: list[Phase] = [VACANT]
        self._end_s = start_s
        self._lock = threading.Lock()

    def at(self, t_s: float) -> Phase:
        """The phase at `t_s`."""
        self._draw_until(t_s)
        return self._drawn[bisect.bisect_right(self._starts, t_s) - 1]

    def between(self, t0_s: float, t1_s: float) -> list[Interval]:
        """The phases of [t0, t1), cut to it, in order and without gaps."""
        self._draw_until(t1_s)
        first = bisect.bisect_right(self._starts, t0_s) - 1
        last = bisect.bisect_left(self._starts, t1_s)
        ends = [*self._starts[first + 1 : last], t1_s]
        return [
            (max(start, t0_s), end, phase)
            for start, end, phase in zip(self._starts[first:last], ends, self._drawn[first:last], strict=True)
        ]

    def _draw_until(self, t_s: float) -> None:
        with self._lock:
            while self._end_s <= t_s:
                duration_s, phase = next(self._phases, (math.inf, self._drawn[-1]))
                if duration_s > 0:
                    self._starts.append(self._end_s)
                    self._drawn.append(phase)
                    self._end_s += duration_s if math.isinf(duration_s) else max(1, round(duration_s))
