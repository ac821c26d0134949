"""A window in slots, and the samples in each of them. Pure."""

import array
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from rightsizer.evidence.slot_table import Values
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
        """The counts of a series, from the JSON of its points; 0 without a point, or where it is no count."""
        values = self.values(text)
        return counts_of(np.where(np.isfinite(values), values, 0))

    def values(self, text: msgspec.Raw) -> Values:
        """The values of a series, from the JSON of its points."""
        texts = bytes(text).split(b'"')[1::2]
        row = np.full(self.slots, np.nan, np.float32)
        if len(texts) == self.slots:  # of most series
            row[:] = _possible([float(value) for value in texts])
            return row
        points = [(self.slot_of(instant), value) for instant, value in decode_points(text)]
        known = [(slot, value) for slot, value in points if 0 <= slot < self.slots]
        row[[slot for slot, _ in known]] = _possible([value for _, value in known])
        return row


def _possible(values: Sequence[float]) -> Values:
    """Values with infinity in place of what is no number, or too large for 32 bits."""
    with np.errstate(over="ignore"):
        found = np.array(values, np.float32)
    found[~np.isfinite(found)] = np.inf
    return found


def counts_of(values: npt.NDArray[Any]) -> Counts:
    """Numbers as counts: 0 at least, and MOST at most."""
    return array.array(COUNT, values.clip(0, MOST).astype(np.uint16).tobytes())
