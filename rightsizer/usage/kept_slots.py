"""Slots of earlier cycles, so that a cycle only asks for the new ones. Pure.

A slot that has ended does not change any more, except for late samples: the last slots are asked for again.
"""

import array
import collections
import dataclasses
import datetime
import hashlib
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, TypeVar

import msgspec

from rightsizer.evidence.slot_table import LATE_SLOTS, SLOT
from rightsizer.model import PodKey, Slot
from rightsizer.usage.slot_grid import COUNT, Counts, SlotGrid
from rightsizer.usage.source_metrics import UseKey

LATE = LATE_SLOTS * SLOT
MOST_TABLES = 32
"""Slots of an hour end at one of twelve minutes, minutes at one; most policies ask one or two questions of each."""

Rows = dict[UseKey, bytes]
"""The slots of each pod's use of a device."""

JobKey = tuple[str, str, str, str, str]
"""A use of a device, and the job that tells it."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotRows:
    """The slots of pods' devices, and the samples in each slot; or only one of both.

    The first two parts of a key are those of what was asked for.
    """

    rows: Rows
    counts: dict[JobKey, Counts]


_Key = TypeVar("_Key", UseKey, JobKey)

Read = Callable[[Collection[PodKey], SlotGrid], SlotRows]
"""Asks for the slots of these pods, or of pods with these prefixes."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    end: datetime.datetime
    slots: int
    starts: Mapping[PodKey, str]
    found: SlotRows
    answers: int = 0


class KeptSlots:
    """What earlier cycles read, by question.

    Args:
        compared: Called with the number of pods, and of the rows that differ from an answer from scratch, which counts.
        verified_every: Which answers to a question are compared with one from scratch: each (1), each second one (2), …
    """

    def __init__(self, compared: Callable[[int, int], None], *, verified_every: int) -> None:
        self._compared = compared
        self._verified_every = verified_every
        self._tables: collections.OrderedDict[str, _Table] = collections.OrderedDict()

    def extended(
        self, question: object, grid: SlotGrid, given: Mapping[PodKey, object], read: Read
    ) -> SlotRows:
        """The same as `read(given, grid)`, by the slots that are known and those that are new.

        `given` are the pods with what tells them from others of the same name, such as their start. What is written of
        the question, by repr(), must not depend on the process.
        """
        starts = {pod: str(start) for pod, start in given.items()}
        asked = hashlib.sha256(repr((question, grid.slot, grid.slots)).encode()).hexdigest()
        name = f"{asked} {grid.end.timestamp() % grid.slot.total_seconds():g}"
        answers = max((one.answers for key, one in self._tables.items() if key.startswith(asked)), default=0)
        table = self._tables.pop(name, None)
        found = read(starts.keys(), grid) if table is None else _extended(table, grid, starts, read)
        answers += table is not None
        if table is not None and answers % self._verified_every == 0:
            whole = read(starts.keys(), grid)
            self._compared(len(starts), _differences(found, whole))
            found = whole
        self._tables[name] = _Table(grid.end, grid.slots, starts, _shared(found), answers)
        while len(self._tables) > MOST_TABLES:
            self._tables.popitem(last=False)
        return found

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._tables)

    def forget(self) -> None:
        """Ask for all of it the next time."""
        self._tables.clear()

    def saved(self, owner: str) -> bytes:
        """All of it, for a later process of the same owner: version and cluster."""
        tables = {name: _packed(table) for name, table in self._tables.items()}
        content = zlib.compress(_ENCODER.encode(_Saved(owner, tables)), level=1)
        return hashlib.sha256(content).digest() + content

    def restore(self, data: bytes, owner: str) -> None:
        """Continue with what another process saved.

        Raises:
            ValueError: It is damaged, another owner's, too large, or not as `saved` writes it; nothing was taken over.
        """
        digest, content = data[:_DIGEST], data[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("it is damaged")
        expander = zlib.decompressobj()
        try:
            saved = msgspec.msgpack.decode(expander.decompress(content, MOST_BYTES), type=_Saved)
            tables = {name: _unpacked(table) for name, table in saved.tables.items()}
        except (zlib.error, msgspec.DecodeError, IndexError) as error:
            raise ValueError(
                f"it cannot be read, or is larger than {MOST_BYTES >> 20} MiB: {error}"
            ) from error
        if saved.owner != owner:
            raise ValueError("it is of another version, or of another cluster")
        self._tables = collections.OrderedDict(tables)


# --- Saved


MOST_BYTES = 256 << 20
"""Of saved slots, not compressed; those of 100,000 GPUs take less than half of it."""
_DIGEST = hashlib.sha256().digest_size
_ENCODER = msgspec.msgpack.Encoder()
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _SavedTable(msgspec.Struct, array_like=True):
    """A table; equal rows are saved once."""

    end: Annotated[datetime.datetime, msgspec.Meta(tz=True)]
    answers: _Number
    starts: list[tuple[str, str, str]]
    rows: list[bytes]
    row_of: list[tuple[UseKey, _Number]]
    counts: list[bytes]
    counts_of: list[tuple[JobKey, _Number]]


class _Saved(msgspec.Struct, array_like=True):
    owner: str
    tables: dict[str, _SavedTable]


def _packed(table: _Table) -> _SavedTable:
    rows, row_of = _numbered(table.found.rows.items())
    counts, counts_of = _numbered((key, row.tobytes()) for key, row in table.found.counts.items())
    starts = [(*pod, start) for pod, start in table.starts.items()]
    return _SavedTable(table.end, table.answers, starts, rows, row_of, counts, counts_of)


def _numbered(rows: Iterable[tuple[_Key, bytes]]) -> tuple[list[bytes], list[tuple[_Key, int]]]:
    """The different rows, and the number of each key's."""
    numbers: dict[bytes, int] = {}
    of = [(key, numbers.setdefault(row, len(numbers))) for key, row in rows]
    return list(numbers), of


def _unpacked(saved: _SavedTable) -> _Table:
    counts = [array.array(COUNT, row) for row in saved.counts]
    lengths = {len(row) for row in (*saved.rows, *counts)}
    if len(lengths) > 1 or any(row.translate(None, bytes(Slot)) for row in saved.rows):
        raise ValueError("its rows are damaged")
    return _Table(
        saved.end,
        max(lengths, default=0),
        {(namespace, name): start for namespace, name, start in saved.starts},
        SlotRows(
            {key: saved.rows[number] for key, number in saved.row_of},
            {key: counts[number] for key, number in saved.counts_of},
        ),
        saved.answers,
    )


# --- Extended


def _extended(table: _Table, grid: SlotGrid, starts: Mapping[PodKey, str], read: Read) -> SlotRows:
    passed = round((grid.end - table.end) / grid.slot)
    tail = dataclasses.replace(grid, slots=passed + max(1, math.ceil(LATE / grid.slot)))
    known = {pod for pod, start in starts.items() if table.starts.get(pod) == start}
    if passed < 0 or tail.slots >= grid.slots or not known or table.slots != grid.slots:
        return read(starts.keys(), grid)
    new = starts.keys() - known
    found = read(new, grid) if new else SlotRows({}, {})
    last = read(known, tail)
    middle = slice(passed, passed + grid.slots - tail.slots)
    idle, none = bytes([Slot.IDLE]), array.array(COUNT, [0])
    counts = _joined(table.found.counts, last.counts, known, middle, (none * grid.slots, none * tail.slots))
    # Samples without a state are no idleness: one of two answers lacked the series.
    unseen = _uses(last.counts) & table.found.rows.keys() - last.rows.keys()
    states = last.rows | dict.fromkeys(unseen, bytes([Slot.UNKNOWN]) * tail.slots)
    rows = _joined(table.found.rows, states, known, middle, (idle * grid.slots, idle * tail.slots))
    # Without any samples, those that there were are older than the window.
    found.counts.update((key, row) for key, row in counts.items() if any(row))
    gone = _uses(counts) - _uses(found.counts)
    found.rows.update((key, row) for key, row in rows.items() if key not in gone)
    return found


def _uses(counts: Iterable[JobKey]) -> set[UseKey]:
    return {key[:4] for key in counts}


_Row = TypeVar("_Row", bytes, Counts)


def _joined(
    before: Mapping[_Key, _Row],
    last: Mapping[_Key, _Row],
    known: Collection[PodKey],
    middle: slice,
    blank: tuple[_Row, _Row],
) -> dict[_Key, _Row]:
    """The middle of what was known, and the last slots, for what is known."""
    return {
        key: before.get(key, blank[0])[middle] + last.get(key, blank[1])
        for key in before.keys() | last.keys()
        if key[:2] in known
    }


def _shared(found: SlotRows) -> SlotRows:
    """With one row for all that are alike, as most are."""
    rows: dict[bytes, bytes] = {}
    counts: dict[bytes, Counts] = {}
    return SlotRows(
        {key: rows.setdefault(row, row) for key, row in found.rows.items()},
        {key: counts.setdefault(row.tobytes(), row) for key, row in found.counts.items()},
    )


def _differences(one: SlotRows, other: SlotRows) -> int:
    rows = {key for key in one.rows.keys() | other.rows.keys() if one.rows.get(key) != other.rows.get(key)}
    keys = one.counts.keys() | other.counts.keys()
    return len(rows | _uses(key for key in keys if one.counts.get(key) != other.counts.get(key)))
