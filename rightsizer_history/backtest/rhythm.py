"""Rhythm of the week: an idle hour counts by how often work begins in it, so a weekend counts as a few. Pure."""

import array
import itertools
import math
from collections.abc import Iterable

DAYS, DAY_H = 7, 24
WEEK_H = DAYS * DAY_H
_BY_HOUR = [range(hour, WEEK_H, DAY_H) for hour in range(DAY_H)]
_BY_DAY = [range(day * DAY_H, (day + 1) * DAY_H) for day in range(DAYS)]
_ROUNDS = 20
"""Rounds after which hours and days fit each other."""


class Tally:
    """Hours that gaps were idle, and gaps that work ended, in each hour of the week (UTC, from Monday on)."""

    def __init__(self) -> None:
        self.idle_h = array.array("d", bytes(8 * WEEK_H))
        self.ended = array.array("d", bytes(8 * WEEK_H))

    def add(self, at_h: float, hours: float, *, is_ended: bool) -> None:
        """Count a gap that began `at_h` hours after a Monday 00:00 UTC."""
        begin, end = at_h, at_h + hours
        while begin < end:
            stop = min(math.floor(begin) + 1.0, end)
            self.idle_h[int(begin) % WEEK_H] += stop - begin
            begin = stop
        if is_ended:
            self.ended[(math.ceil(end) - 1) % WEEK_H] += 1  # the hour of its last idle moment

    def add_part(self, other: "Tally", weight: float) -> None:
        """Count another tally's gaps, each with this weight."""
        for hour in range(WEEK_H):
            self.idle_h[hour] += weight * other.idle_h[hour]
            self.ended[hour] += weight * other.ended[hour]


class Rhythm:
    """Weight of each hour of the week: more where work begins more often.

    It is the product of the hour of the day and the day of the week, so that little history tells it. Each of these
    also counts one end that was expected, so that few gaps make no rhythm.
    """

    def __init__(self, tally: Tally) -> None:
        days, hours = [1.0] * DAYS, [1.0] * DAY_H
        ended, idle_h = sum(tally.ended), sum(tally.idle_h)
        rate = ended / idle_h if idle_h else 0.0
        for _ in range(_ROUNDS if rate else 0):
            for parts, others, places in ((hours, days, _BY_HOUR), (days, hours, _BY_DAY)):
                for number, row in enumerate(places):
                    expected = sum(
                        tally.idle_h[place] * other for place, other in zip(row, others, strict=True)
                    )
                    seen = sum(tally.ended[place] for place in row)
                    parts[number] = (seen + 1) / (expected * rate + 1)
        self._before = [0.0, *itertools.accumulate(day * hour for day in days for hour in hours)]

    def counted_h(self, at_h: float, hours: float) -> float:
        """The hours of a gap, as they count; infinite ones stay so."""
        return hours if math.isinf(hours) else self._until(at_h + hours) - self._until(at_h)

    def _until(self, at_h: float) -> float:
        weeks, rest = divmod(at_h, WEEK_H)
        hour = int(rest)
        begun = (rest - hour) * (self._before[hour + 1] - self._before[hour])
        return weeks * self._before[WEEK_H] + self._before[hour] + begun


def tally_of(gaps: Iterable[tuple[float, float, bool]]) -> Tally:
    """Tally of gaps: when each began, how long it was seen, and whether work ended it."""
    found = Tally()
    for at_h, hours, is_ended in gaps:
        found.add(at_h, hours, is_ended=is_ended)
    return found
