"""How much has gathered until an instant, of what comes in at a rate that changes by steps. Pure, in whole numbers."""

import bisect
from collections.abc import Iterable


class Curve:
    """Nothing before the first step; from each step on, its rate."""

    def __init__(self, steps: Iterable[tuple[int, int]]) -> None:
        """Steps are (from when, how much per unit of time), in ascending order of time.

        Of steps at the same instant the last one counts.
        """
        self._times: list[int] = []
        self._rates: list[int] = []
        self._gathered: list[int] = []
        for at, rate in steps:
            self._gathered.append(self.until(at))
            self._times.append(at)
            self._rates.append(rate)

    def until(self, at: int) -> int:
        """What has gathered before `at`."""
        step = bisect.bisect_right(self._times, at) - 1
        return self._gathered[step] + self._rates[step] * (at - self._times[step]) if step >= 0 else 0

    def between(self, start: int, end: int) -> int:
        """What gathers from `start` until `end`; nothing where that is not later."""
        return self.until(end) - self.until(start) if start < end else 0

    def rate(self, at: int) -> int:
        """At which rate it gathers at `at`."""
        step = bisect.bisect_right(self._times, at) - 1
        return self._rates[step] if step >= 0 else 0
