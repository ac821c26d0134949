"""A timeline of phases, drawn as far as it is queried."""

import bisect
import dataclasses
import math
import threading
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True, slots=True)
class Phase:
    """What one device of a pod does for a while.

    Attributes:
        utilization: Mean in percent, as the driver reports it.
        spread: Standard deviation of the utilization, in percentage points.
        memory: Share of the device's memory that is held in addition to the context, 0 to 1.
        context: Whether a process holds a CUDA context.
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
    """Phases one after another from `start_s` (Unix); vacant before, and the last one lasts for ever."""

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
