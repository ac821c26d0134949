"""Why the clocks were held down, at each reading of the last minutes: counted by the bits of the driver's mask."""

import collections
import time
from collections.abc import Callable, Mapping

WINDOW_S = 300.0
"""How long a reading counts: dcgm-exporter's default."""
_MAX_READINGS = 10_000  # of one device within the window: more than the shortest interval brings


class ClockEvents:
    """The masks that each device has given within the window, of those that have been asked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, collections.deque[tuple[float, int]]] = {}

    def record(self, key: str, mask: int) -> Mapping[int, int]:
        """Count a reading; returns how many readings of this device within the window had each bit set.

        Args:
            key: Which device.
            mask: What it says now: a bit mask of nvmlClocksEventReason*.
        """
        now_s = self._clock()
        seen = self._seen.setdefault(key, collections.deque(maxlen=_MAX_READINGS))
        seen.append((now_s, mask))
        while seen[0][0] < now_s - WINDOW_S:
            seen.popleft()
        masks = collections.Counter(mask for _, mask in seen)
        counts: collections.Counter[int] = collections.Counter()
        for each, times in masks.items():
            counts.update({1 << bit: times for bit in range(each.bit_length()) if each >> bit & 1})
        return counts
