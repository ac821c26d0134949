"""A window in slots, and the samples in each of them. Pure."""

import array
import dataclasses
import datetime
import math
from typing import TypeAlias

import msgspec

from rightsizer.prometheus.query_api import QueryRange, decode_points

Counts: TypeAlias = "array.array[int]"
"""Samples in each slot, oldest first; MOST where there are more."""

COUNT = "H"
"""The type of a count in an array: there are hundreds for each device of a fleet."""
MOST = 0xFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class SlotGrid:
    """A window in slots, the last of which ends with it."""

    end: datetime.datetime
    slot: datetime.timedelta
    slots: int

    @property
    def steps(self) -> QueryRange:
        """One step at the end of each slot."""
        return QueryRange(self.end - (self.slots - 1) * self.slot, self.end, self.slot.total_seconds())

    def slot_of(self, instant: float) -> int:
        """The number of the slot that ends at a Unix time; outside the window it is out of range."""
        return self.slots - 1 - round((self.end.timestamp() - instant) / self.slot.total_seconds())

    def counts(self, text: msgspec.Raw) -> Counts:
        """The counts of a series, from the JSON of its points; 0 without a point."""
        points = decode_points(text)
        if len(points) == self.slots:
            return array.array(COUNT, [counted(value) for _, value in points])
        counts = array.array(COUNT, [0]) * self.slots
        for instant, value in points:
            slot = self.slot_of(instant)
            if 0 <= slot < self.slots:
                counts[slot] = counted(value)
        return counts


def counted(value: float) -> int:
    """A value as a count: MOST at most, and 0 for what is none."""
    return int(min(max(value, 0.0), MOST)) if math.isfinite(value) else 0
