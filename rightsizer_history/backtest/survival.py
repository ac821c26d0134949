"""Length of gaps, where the record cuts some off: the estimator of Kaplan and Meier. Pure.

https://en.wikipedia.org/wiki/Kaplan%E2%80%93Meier_estimator
"""

import bisect
import itertools
import math
from collections.abc import Iterable


class Survival:
    """The share of gaps that last longer than a time.

    Args:
        gaps: Of each, how long it was seen in hours, whether work ended it, and how much it counts.
    """

    def __init__(self, gaps: Iterable[tuple[float, bool, float]]) -> None:
        found = sorted(gaps)
        left = sum(weight for *_, weight in found)
        share, self._hours, self._shares = 1.0, [0.0], [1.0]
        for hours, alike in itertools.groupby(found, key=lambda gap: gap[0]):
            ended, gone = 0.0, 0.0
            for _, is_ended, weight in alike:
                ended += weight if is_ended else 0.0
                gone += weight
            if ended:
                share *= max(0.0, 1 - ended / left)
                self._hours.append(hours)
                self._shares.append(share)
            left -= gone

    def longer_than(self, hours: float) -> float:
        """The share of gaps that last longer, 0 to 1."""
        return self._shares[bisect.bisect_right(self._hours, hours) - 1]

    def ends_after(self, hours: float, within: float = math.inf) -> float:
        """The probability, 0 to 1, that work ends a gap of this length.

        Args:
            hours: How long the gap has lasted.
            within: Count only ends in this many hours from then; none is known after the longest gap's.
        """
        now = self.longer_than(hours)
        return 1 - self.longer_than(hours + within) / now if now else 0.0
