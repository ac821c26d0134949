"""State that the open devices of a session share across cycles."""

import collections
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from exporter.attribution.records import UsageTable
from exporter.errors import ReadingError, Reason
from exporter.nvml.gpm import Gpm
from exporter.nvml.meter import Meter
from exporter.nvml.topology import Topology
from exporter.nvml.xids import XidLog

_US_PER_S = 1_000_000


class CounterRates:
    """The last reading of each counter whose rate is requested."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}

    def rate(self, key: str, what: str, value: float, at_us: int) -> float:
        """The increase per second since the previous reading. `at_us`: time of the driver's reading."""
        before = self._last.get(key)
        if before is not None and before[1] == at_us:
            raise ReadingError(what, Reason.PENDING, "the driver has not updated it")
        self._last[key] = (value, at_us)
        if before is None:
            raise ReadingError(what, Reason.PENDING, "rates come with the second reading")
        if value < before[0] or at_us < before[1]:
            raise ReadingError(what, Reason.UNAVAILABLE, "the counter has restarted")
        return (value - before[0]) * _US_PER_S / (at_us - before[1])

    def clear(self) -> None:
        """Forget all readings."""
        self._last.clear()


WINDOW_S = 300.0
"""Seconds for which a reading counts: dcgm-exporter's default."""
_MAX_READINGS = 10_000  # readings of one device within the window: more than at the shortest interval


class ClockEvents:
    """The masks that each requested device returned within the window."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, collections.deque[tuple[float, int]]] = {}

    def record(self, key: str, mask: int) -> Mapping[int, int]:
        """Record a reading; returns for each bit the number of the device's readings within the window that had it.

        `mask`: the current bit mask of nvmlClocksEventReason*.
        """
        now_s = self._clock()
        seen = self._seen.setdefault(key, collections.deque(maxlen=_MAX_READINGS))
        seen.append((now_s, mask))
        while seen[0][0] < now_s - WINDOW_S:
            seen.popleft()
        masks = collections.Counter(mask for _, mask in seen)
        counts: collections.Counter[int] = collections.Counter()
        for known, times in masks.items():
            counts.update({1 << bit: times for bit in range(known.bit_length()) if known >> bit & 1})
        return counts


@dataclasses.dataclass(slots=True)
class DriverState:
    """The driver's state, shared by its devices."""

    meter: Meter
    usage: UsageTable = dataclasses.field(default_factory=UsageTable)
    gpm: Gpm = dataclasses.field(default_factory=Gpm)
    # last readings of counters with a requested rate
    increases: CounterRates = dataclasses.field(default_factory=CounterRates)
    # reasons of reduced clocks within the last minutes
    clock_events: ClockEvents = dataclasses.field(default_factory=ClockEvents)
    topology: Topology = dataclasses.field(default_factory=Topology)
    xids: XidLog = dataclasses.field(default_factory=XidLog)
    # readings by the UUID of a GPU that are constant while the driver is open
    constants: dict[str, dict[object, Any]] = dataclasses.field(default_factory=dict)
    driver_version: str = ""  # such as "570.133.20"
    cuda_version: str = ""  # such as "12.8"; empty if unknown
    serial_numbers: bool = False  # whether serial numbers may be published

    def forget(self) -> None:
        """Release the driver library's resources before it is closed."""
        self.gpm.clear()
        self.meter.clear()
        self.increases.clear()
        self.topology.forget()
        self.constants.clear()
