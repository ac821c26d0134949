"""The table of evidence: what pods did on GPUs in every five minutes, kept from one cycle to the next. Pure.

A slot that has ended does not change any more, except for late samples: the last slots are asked for again. What an
answer showed once stays: a later one may lack series for other reasons than that they have no samples.
"""

import dataclasses
import datetime
import hashlib
import io
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

SLOT = datetime.timedelta(minutes=5)
"""Interval of the recording rules."""
LATE_SLOTS = 4
"""Samples and recorded values may arrive 20 minutes late."""
MOST_SLOTS = 288
"""Number of slots in a day."""

_FEW = 0.05
"""Share of the rows above which it is cheaper to ask for all than for each by its pod."""

MOST_VALUES = 75_000_000
"""Maximum of all columns together: 300 MB."""

_DIGITS = 7
"""Significant digits that 32 bits hold: 0.05 is not 0.0500000007."""

Values = npt.NDArray[np.float32]
"""Values of slots, oldest first: NaN where none is known, infinite where it is impossible."""

PEAK, MEAN, SAMPLES, IMPOSSIBLE = "peak", "mean", "samples", "impossible"
"""Statistics. The last one has a value where the peak cannot be one, whatever it is."""

Column = tuple[str, str]
"""A metric and a statistic."""
Answer = Iterable[tuple[Column, bytes, Values]]
"""Values of a series by its labels (JSON), without those that tell the column."""
Read = Callable[[int, Collection[bytes]], Answer]
"""Asks for this number of slots, the last of which ends with the grid; of all series, or at least of those given."""


class TooManySlotsError(Exception):
    """A table would have more than MOST_VALUES, as where thousands of pods come and go in a day."""


@dataclasses.dataclass(frozen=True, slots=True)
class EvidenceTable:
    """Evidence about pods on devices by slot: a row for each target's view of one pod on one device.

    Attributes:
        end: The end of the last slot.
        slots: How many are kept.
        places: The row of each, by its labels (JSON).
        columns: An array of rows and slots for each column of which anything is known.
    """

    end: datetime.datetime
    slots: int
    places: Mapping[bytes, int]
    columns: Mapping[Column, Values]

    def peaks(self, metric: str, slots: int) -> list[float]:
        """The highest value of each row in the last slots; NaN without any."""
        return _numbers(np.fmax.reduce(self.last(metric, PEAK, slots), axis=1))

    def means(self, metric: str, slots: int) -> list[float]:
        """The mean of each row in the last slots, of samples where these are counted; NaN without any."""
        last = self.last(metric, MEAN, slots)
        is_counted = (metric, SAMPLES) in self.columns
        weights = self.last(metric, SAMPLES, slots) if is_counted else np.ones_like(last)
        weights = np.where(np.isnan(last) | np.isnan(weights), 0, weights)
        total = np.where(weights > 0, last * weights, 0).sum(axis=1, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return _numbers(total / weights.sum(axis=1, dtype=np.float64))

    def samples(self, metric: str, slots: int) -> npt.NDArray[np.uint16]:
        """The samples of each row in each of the last slots; none where it is not known what they were."""
        peaks, samples = (self.last(metric, name, slots) for name in (PEAK, SAMPLES))
        counts = np.where(np.isnan(peaks), 0, samples)
        most = np.iinfo(np.uint16).max
        return np.nan_to_num(counts, nan=0, posinf=0).clip(0, most).astype(np.uint16)

    def last(self, metric: str, statistic: str, slots: int) -> Values:
        """The values of each row in the last slots."""
        column = self.columns.get((metric, statistic))
        return _unknown(len(self.places), slots) if column is None else column[:, -slots:]


def _require_room(rows: int, slots: int, columns: int) -> None:
    if rows * slots * columns > MOST_VALUES:
        raise TooManySlotsError


def _unknown(rows: int, slots: int) -> Values:
    return np.full((rows, slots), np.nan, np.float32)


def _numbers(values: npt.NDArray[np.floating]) -> list[float]:
    """The values as they were before they had 32 bits."""
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(wide))))
        rounded = np.round(wide * unit) / unit
    found: list[float] = np.where(np.isfinite(rounded), rounded, wide).tolist()
    return found


def table_of(answer: Answer, end: datetime.datetime, slots: int, *, is_kept: bool = True) -> EvidenceTable:
    """The rows of an answer; of several series with the same labels, the highest value of each slot.

    Raises:
        TooManySlotsError: It has more than are kept.
    """
    places: dict[bytes, int] = {}
    parts: dict[Column, tuple[list[int], list[Values]]] = {}
    for column, text, values in answer:
        at, rows = parts.setdefault(column, ([], []))
        at.append(places.setdefault(text, len(places)))
        if is_kept:
            _require_room(len(places), slots, len(parts))
        rows.append(values)
    found = {column: _unknown(len(places), slots) for column in parts}
    for column, (at, rows) in parts.items():
        np.fmax.at(found[column], at, np.array(rows, np.float32))
    for metric, statistic in parts:
        if statistic == IMPOSSIBLE:
            peaks = found.setdefault((metric, PEAK), _unknown(len(places), slots))
            peaks[~np.isnan(found.pop((metric, IMPOSSIBLE)))] = np.inf
    return EvidenceTable(end, slots, places, found)


@dataclasses.dataclass(frozen=True, slots=True)
class _KeptTable:
    """Rows, how many slots the last answer added, and the number of answers since one from scratch."""

    rows: EvidenceTable
    added: int = 0
    answers: int = 0


class KeptTables:
    """Tables that earlier cycles read, by question.

    Args:
        compared: Called with the number of rows, and of those that differ from an answer from scratch; both are merged.
        full: Called when there are too many slots.
        verified_every: Which answers to a question are compared with one from scratch: each (1), each second one (2), …

    Attributes:
        is_full: Whether there were too many slots, so that none are kept.
    """

    def __init__(
        self, compared: Callable[[int, int], None], full: Callable[[], None], *, verified_every: int
    ) -> None:
        self._compared = compared
        self._full = full
        self._verified_every = verified_every
        self._tables: dict[str, _KeptTable] = {}
        self.is_full = False
        self._first: datetime.datetime | None = None
        self._ends: tuple[datetime.datetime, ...] = ()

    def begin(self, at: datetime.datetime) -> datetime.datetime:
        """Begin a cycle: the end of the last whole slot. What the last two answered cycles did not read is forgotten.

        Slots end at the minute of the first cycle, as those of a schedule do.
        """
        if self._first is None:
            self._first = at.replace(second=0, microsecond=0)
        end = at - (at - self._first) % SLOT
        if end not in self._ends:
            self._tables = {key: table for key, table in self._tables.items() if table.rows.end in self._ends}
        return end

    def extended(self, question: str, end: datetime.datetime, slots: int, read: Read) -> EvidenceTable:
        """The last `slots` before `end`, or more, as if all were asked for: of what is known, only the new ones are.

        What is written of the question must not depend on the process.

        Raises:
            TooManySlotsError: There are too many; nothing is kept from then on.
        """
        try:
            return self._extended(question, end, slots, read)
        except TooManySlotsError:
            self._tables, self.is_full = {}, True
            self._full()
            raise

    def _extended(self, question: str, end: datetime.datetime, slots: int, read: Read) -> EvidenceTable:
        question = hashlib.sha256(question.encode()).hexdigest()
        known = self._tables.get(question)
        passed = 0 if known is None else round((end - known.rows.end) / SLOT)
        if known is None or passed < 0 or known.rows.slots < slots:
            table = _KeptTable(table_of(read(slots, ()), end, slots), added=slots)
        else:
            # The next answer also shows what this one may lack of the slots that the one before it added.
            tail = min(known.rows.slots, passed + max(LATE_SLOTS, known.added))
            last = table_of(read(tail, ()), end, tail)
            rows = _joined(known.rows, last, passed)
            if new := _new(known.rows, last):
                new = (
                    new if len(new) <= _FEW * len(last.places) else []
                )  # after a roll-out of the exporter all are
                rows = _joined(rows, table_of(read(rows.slots, new), end, rows.slots), 0)
            table = _KeptTable(rows, passed, known.answers + 1)
            if table.answers % self._verified_every == 0:
                whole = table_of(read(rows.slots, ()), end, rows.slots)
                self._compared(len(whole.places), differences(rows, whole))
                table = dataclasses.replace(table, rows=_joined(rows, whole, 0))
        self._tables[question] = table
        if end not in self._ends:
            self._ends = (*self._ends[-1:], end)
        return table.rows

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._tables)

    def forget(self) -> None:
        """Ask for all of it the next time."""
        self._tables = {}

    def saved(self, owner: str) -> bytes:
        """Encode all tables for a later process of the same owner: version and cluster."""
        tables = [
            _TableInFile(
                question,
                table.rows.end,
                table.rows.slots,
                table.added,
                table.answers,
                list(table.rows.places),
                list(table.rows.columns),
            )
            for question, table in self._tables.items()
            if table.rows.columns
        ]
        head = msgspec.msgpack.encode(_TablesFile(owner, self._first, tables))
        arrays = [column for table in self._tables.values() for column in table.rows.columns.values()]
        content = io.BytesIO()
        np.savez(content, np.frombuffer(head, np.uint8), *arrays)
        data = content.getvalue()
        return hashlib.sha256(data).digest() + data

    def restore(self, data: bytes, owner: str) -> None:
        """Continue with what another process saved.

        Raises:
            ValueError: It is damaged, another owner's, or not as `saved` writes it; nothing was taken over.
        """
        digest, content = data[:_DIGEST], memoryview(data)[_DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("it is damaged, or of another version")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as parts:
                if sum(part.file_size for part in parts.zip.infolist()) > _MOST_BYTES:
                    raise ValueError("it is too large")
                head = msgspec.msgpack.decode(parts["arr_0"].tobytes(), type=_TablesFile)
                if head.owner != owner:
                    raise ValueError("it is of another version, or of another cluster")
                arrays = [parts[f"arr_{number}"] for number in range(1, len(parts.files))]
            found = {table.question: table.table(arrays) for table in head.tables}
        except (*_UNREADABLE, msgspec.DecodeError, MemoryError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
        self._first, self._tables = head.first, found
        self._ends = tuple(sorted({table.rows.end for table in found.values()}))[-2:]


# --- Saved


_UNREADABLE = (OSError, EOFError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, zlib.error)
"""Exceptions of numpy for a file that is none of its archives, or a damaged one."""
_DIGEST = hashlib.sha256().digest_size
_MOST_BYTES = 1 << 30
"""Maximum of all arrays and labels, not compressed."""
_Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


_LABELS = msgspec.json.Decoder(dict[str, str])


class _TableInFile(msgspec.Struct, array_like=True):
    """A table without its arrays."""

    question: str
    end: _Instant
    slots: Annotated[int, msgspec.Meta(ge=1, le=MOST_SLOTS)]
    added: _Number
    answers: _Number
    labels: list[bytes]
    columns: list[Column]

    def table(self, arrays: list[npt.NDArray[np.generic]]) -> _KeptTable:
        """Add its arrays, taken from those of all tables; raises ValueError if they do not fit."""
        columns = {name: arrays.pop(0) for name in self.columns}
        places = {text: place for place, text in enumerate(self.labels)}
        for text in self.labels:
            _LABELS.decode(text)
        if (
            not 0 < len(columns) == len(self.columns)
            or len(places) < len(self.labels)
            or any(
                column.shape != (len(places), self.slots) or column.dtype != np.float32
                for column in columns.values()
            )
        ):
            raise ValueError("its arrays and labels do not fit")
        found = {name: column.astype(np.float32, copy=False) for name, column in columns.items()}
        return _KeptTable(EvidenceTable(self.end, self.slots, places, found), self.added, self.answers)


class _TablesFile(msgspec.Struct, array_like=True):
    owner: str
    first: _Instant | None
    tables: list[_TableInFile]


def _is_known(values: Values | None, rows: int) -> npt.NDArray[np.bool_]:
    found = np.zeros(rows, np.bool_)
    if values is not None:
        found |= ~np.isnan(values).all(axis=1)
    return found


def _new(known: EvidenceTable, last: EvidenceTable) -> list[bytes]:
    """The rows of which the last answer tells what was not known: perhaps not only of the last slots."""
    before = np.array([known.places.get(text, -1) for text in last.places], np.intp)
    new = np.zeros(len(last.places), np.bool_)
    for name, values in last.columns.items():
        was = np.append(_is_known(known.columns.get(name), len(known.places)), False)
        new |= _is_known(values, len(new)) & ~was[before]
    return [text for text, is_new in zip(last.places, new, strict=True) if is_new]


def _joined(known: EvidenceTable, last: EvidenceTable, passed: int) -> EvidenceTable:
    """The known slots, of which the oldest have passed, with what the last answer shows."""
    slots, tail = known.slots, slice(known.slots - last.slots, None)
    there = np.zeros(len(known.places), np.bool_)
    for column in known.columns.values():
        there |= _is_known(column[:, passed:], len(there))
    texts = [
        text for text, is_there in zip(known.places, there, strict=True) if is_there or text in last.places
    ]
    places = {text: place for place, text in enumerate(dict.fromkeys((*texts, *last.places)))}
    names = dict.fromkeys((*known.columns, *last.columns))
    _require_room(len(places), slots, len(names))
    before = [known.places[text] for text in texts]
    after = [places[text] for text in last.places]
    columns, earlier, later = dict[Column, Values](), dict[Column, Values](), dict[Column, Values]()
    for name in names:
        columns[name] = _unknown(len(places), slots)
        if name in known.columns:
            shifted = known.columns[name][before, passed:]
            columns[name][: len(texts), : shifted.shape[1]] = shifted
        later[name] = _unknown(len(places), last.slots)
        if name in last.columns:
            later[name][after] = last.columns[name]
        earlier[name] = columns[name][:, tail].copy()
    for name, values in columns.items():
        values[:, tail] = _merged(name, earlier, later)
    return EvidenceTable(last.end, slots, places, columns)


def _merged(name: Column, before: Mapping[Column, Values], later: Mapping[Column, Values]) -> Values:
    """The higher value; of two means, the one with more samples."""
    metric, statistic = name
    if statistic != MEAN:
        return np.fmax(before[name], later[name])
    is_newer = ~np.isnan(later[name])
    if (samples := (metric, SAMPLES)) in later:
        is_newer &= np.isnan(before[name]) | ~(later[samples] < before[samples])
    return np.where(is_newer, later[name], before[name])


def differences(kept: EvidenceTable, other: EvidenceTable) -> int:
    """Count the rows that differ."""
    nothing = _unknown(1, kept.slots)[0]

    def row(rows: EvidenceTable, name: Column, text: bytes) -> Values:
        is_there = name in rows.columns and text in rows.places
        values: Values = rows.columns[name][rows.places[text]] if is_there else nothing
        return values

    names = kept.columns.keys() | other.columns.keys()
    return sum(
        any(
            not np.array_equal(row(kept, name, text), row(other, name, text), equal_nan=True)
            for name in names
        )
        for text in kept.places.keys() | other.places.keys()
    )
