"""Slots of earlier cycles, so that a cycle only asks for the new ones. Pure.

A slot that has ended does not change any more, except for late samples: the last slots are asked for again.
"""

import array
import collections
import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Hashable, Mapping

from rightsizer.model import PodKey, Slot
from rightsizer.usage.slot_grid import Counts, SlotGrid
from rightsizer.usage.source_metrics import UseKey

LATE = datetime.timedelta(minutes=20)
"""Samples and recorded values may arrive this late."""
MOST_TABLES = 24
"""Slots of an hour end at one of twelve minutes; most policies ask one or two questions."""

Rows = dict[UseKey, bytes]
"""The slots of each pod's use of a device."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotRows:
    """The slots of pods' devices, and the samples in each slot; without the latter where none are known."""

    rows: Rows
    counts: dict[UseKey, Counts]


Read = Callable[[Collection[PodKey], SlotGrid], SlotRows]
"""Asks for these pods' slots."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    end: datetime.datetime
    starts: Mapping[PodKey, datetime.datetime]
    found: SlotRows


class KeptSlots:
    """What earlier cycles read, by question.

    Args:
        differed: Called with the number of differences from an answer from scratch, which then counts.
        verified_every: Which answers are compared with one from scratch: each (1), each second one (2), …
    """

    def __init__(self, differed: Callable[[int], None], *, verified_every: int) -> None:
        self._differed = differed
        self._verified_every = verified_every
        self._answers = 0
        self._tables: collections.OrderedDict[Hashable, _Table] = collections.OrderedDict()

    def extended(
        self, question: Hashable, grid: SlotGrid, starts: Mapping[PodKey, datetime.datetime], read: Read
    ) -> SlotRows:
        """The same as `read(starts, grid)`, by the slots that are known and those that are new.

        `starts` are the pods and their starts: another start is another pod.
        """
        question = (question, grid.slot, grid.slots, grid.end.timestamp() % grid.slot.total_seconds())
        table = self._tables.pop(question, None)
        found = read(starts.keys(), grid) if table is None else _extended(table, grid, starts, read)
        self._answers += table is not None
        if table is not None and self._answers % self._verified_every == 0:
            whole = read(starts.keys(), grid)
            if number := _differences(found, whole):
                self._differed(number)
            found = whole
        self._tables[question] = _Table(grid.end, dict(starts), _shared(found))
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return found


def _extended(
    table: _Table, grid: SlotGrid, starts: Mapping[PodKey, datetime.datetime], read: Read
) -> SlotRows:
    passed = round((grid.end - table.end) / grid.slot)
    tail = dataclasses.replace(grid, slots=passed + max(1, math.ceil(LATE / grid.slot)))
    known = {pod for pod, start in starts.items() if table.starts.get(pod) == start}
    if passed < 0 or tail.slots >= grid.slots or not known:
        return read(starts.keys(), grid)
    new = starts.keys() - known
    found = read(new, grid) if new else SlotRows({}, {})
    last = read(known, tail)
    kept = grid.slots - tail.slots
    idle = bytes([Slot.IDLE])
    for key in table.found.rows.keys() | last.rows.keys():
        if key[:2] not in known:
            continue
        before = table.found.rows.get(key, idle * grid.slots)
        found.rows[key] = before[passed : passed + kept] + last.rows.get(key, idle * tail.slots)
        if counts := _joined(
            table.found.counts.get(key), last.counts.get(key), passed, grid.slots, tail.slots
        ):
            found.counts[key] = counts
            if not any(counts):  # its samples are older than the window
                del found.rows[key], found.counts[key]
    return found


def _joined(
    before: "Counts | None", last: "Counts | None", passed: int, slots: int, tail: int
) -> "Counts | None":
    if before is None and last is None:
        return None
    before = array.array("I", bytes(4 * slots)) if before is None else before
    last = array.array("I", bytes(4 * tail)) if last is None else last
    return before[passed : passed + slots - tail] + last


def _shared(found: SlotRows) -> SlotRows:
    """With one row for all that are alike, as most are."""
    rows: dict[bytes, bytes] = {}
    counts: dict[bytes, Counts] = {}
    return SlotRows(
        {key: rows.setdefault(row, row) for key, row in found.rows.items()},
        {key: counts.setdefault(row.tobytes(), row) for key, row in found.counts.items()},
    )


def _differences(one: SlotRows, other: SlotRows) -> int:
    return sum(
        one.rows.get(key) != other.rows.get(key) or one.counts.get(key) != other.counts.get(key)
        for key in one.rows.keys() | other.rows.keys()
    )
