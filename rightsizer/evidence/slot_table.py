"""Slots of series: what each says of every five minutes, kept from one cycle to the next. Pure.

A slot that has ended does not change any more, except for late samples: the last slots are asked for again. What was
told once is never unsaid: an answer may lack series for other reasons than that they have no samples.
"""

import dataclasses
import datetime
import hashlib
import io
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

SLOT = datetime.timedelta(minutes=5)
"""How often the recording rules record."""
LATE_SLOTS = 4
"""Samples and recorded values may arrive 20 minutes late."""

_DIGITS = 7
"""Significant ones that 32 bits hold: 0.05 is not 0.0500000007."""

Values = npt.NDArray[np.float32]
"""Values of slots, oldest first: NaN where none was told, infinite where it is impossible."""

PEAK, MEAN, SAMPLES, IMPOSSIBLE = "peak", "mean", "samples", "impossible"
"""Columns. The last one has a value where the peak cannot be one, whatever it is."""

Answer = Iterable[tuple[str, Iterable[tuple[bytes, Values]]]]
"""Parts of columns: the labels (JSON) and the values of each series."""
Read = Callable[[int, Collection[bytes]], Answer]
"""Asks for this number of slots, the last of which ends with the grid; of all series, or at least of those given."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotRows:
    """The slots of the series of a metric.

    Attributes:
        end: The end of the last slot.
        places: The row of each series, by its labels (JSON).
        columns: An array of rows and slots for each column that is asked for.
    """

    end: datetime.datetime
    places: Mapping[bytes, int]
    columns: Mapping[str, Values]

    @property
    def slots(self) -> int:
        """How many are kept."""
        slots: int = self.columns[PEAK].shape[1]
        return slots

    def peaks(self, slots: int) -> list[float]:
        """The highest value of each series in the last slots; NaN without any."""
        return _numbers(np.fmax.reduce(self.columns[PEAK][:, -slots:], axis=1))

    def means(self, slots: int) -> list[float]:
        """The mean of each series in the last slots, of samples where these are counted; NaN without any."""
        last = self.columns[MEAN][:, -slots:]
        samples = self.columns.get(SAMPLES)
        weights = np.ones_like(last) if samples is None else samples[:, -slots:]
        weights = np.where(np.isnan(last) | np.isnan(weights), 0, weights)
        total = np.where(weights > 0, last * weights, 0).sum(axis=1, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return _numbers(total / weights.sum(axis=1, dtype=np.float64))

    def samples(self, slots: int) -> npt.NDArray[np.uint16]:
        """The samples of each series in each of the last slots; none where it is not known what they were."""
        counts = np.where(np.isnan(self.columns[PEAK]), 0, self.columns[SAMPLES])[:, -slots:]
        most = np.iinfo(np.uint16).max
        return np.nan_to_num(counts, nan=0, posinf=0).clip(0, most).astype(np.uint16)


def _numbers(values: npt.NDArray[np.floating]) -> list[float]:
    """As they were before they had 32 bits."""
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.abs(wide))))
        rounded = np.round(wide * unit) / unit
    found: list[float] = np.where(np.isfinite(rounded), rounded, wide).tolist()
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Rows, how many slots the last answer added, and the number of answers since one from scratch."""

    rows: SlotRows
    added: int = 0
    answers: int = 0


class KeptTables:
    """What earlier cycles read, by question; threads may ask different ones at the same time.

    Args:
        compared: Called with the number of rows, and of those that differ from an answer from scratch, which counts.
        verified_every: Which answers to a question are compared with one from scratch: each (1), each second one (2), …
    """

    def __init__(self, compared: Callable[[int, int], None], *, verified_every: int) -> None:
        self._compared = compared
        self._verified_every = verified_every
        self._tables: dict[str, _Table] = {}
        self._first: datetime.datetime | None = None
        self._ends: tuple[datetime.datetime, ...] = ()

    def begin(self, at: datetime.datetime) -> datetime.datetime:
        """Begin a cycle: the end of the last whole slot. What the last two cycles did not read is forgotten.

        Slots end at the minute of the first cycle, as those of a schedule do.
        """
        if self._first is None:
            self._first = at.replace(second=0, microsecond=0)
        end = at - (at - self._first) % SLOT
        if end not in self._ends:
            self._tables = {key: one for key, one in self._tables.items() if one.rows.end in self._ends}
            self._ends = (*self._ends[-1:], end)
        return end

    def extended(
        self, question: str, columns: Collection[str], end: datetime.datetime, slots: int, read: Read
    ) -> SlotRows:
        """The last `slots` before `end`, or more, as if all were asked for: of what is known, only the new ones are."""
        known = self._tables.get(question)
        passed = 0 if known is None else round((end - known.rows.end) / SLOT)
        if (
            known is None
            or passed < 0
            or known.rows.slots < slots
            or known.rows.columns.keys() != set(columns)  # as a file may say
        ):
            table = _Table(_rows(columns, read(slots, ()), end, slots))
        else:
            # An answer that lacked what the one before it added is mended by the next one.
            tail = min(known.rows.slots, passed + max(LATE_SLOTS, known.added))
            last = _rows(columns, read(tail, ()), end, tail)
            rows = _joined(known.rows, last, passed)
            if new := last.places.keys() - known.rows.places.keys():
                rows = _joined(rows, _rows(columns, read(rows.slots, new), end, rows.slots), 0)
            table = _Table(rows, passed, known.answers + 1)
            if table.answers % self._verified_every == 0:
                whole = _rows(columns, read(rows.slots, ()), end, rows.slots)
                self._compared(len(whole.places), differences(rows, whole))
                table = dataclasses.replace(table, rows=_joined(rows, whole, 0))
        self._tables[question] = table
        return table.rows

    def saved(self, owner: str) -> bytes:
        """All of it, for a later process of the same owner: the version of the program."""
        tables = [
            _Saved(
                question, one.rows.end, one.added, one.answers, list(one.rows.places), list(one.rows.columns)
            )
            for question, one in self._tables.items()
        ]
        head = msgspec.msgpack.encode(_Head(owner, self._first, tables))
        arrays = [column for one in self._tables.values() for column in one.rows.columns.values()]
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
            raise ValueError("it is damaged")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as parts:
                arrays = [parts[f"arr_{number}"] for number in range(len(parts.files))]
            head = msgspec.msgpack.decode(arrays.pop(0).tobytes(), type=_Head)
            found = {one.question: one.table(arrays) for one in head.tables}
        except (OSError, EOFError, KeyError, IndexError, zipfile.BadZipFile, msgspec.DecodeError) as error:
            raise ValueError(f"it cannot be read: {error}") from error
        if head.owner != owner:
            raise ValueError("it is of another version")
        self._first, self._tables = head.first, found
        self._ends = tuple(sorted({one.rows.end for one in found.values()}))[-2:]


# --- Saved


_DIGEST = hashlib.sha256().digest_size
_Instant = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Saved(msgspec.Struct, array_like=True):
    """A table without its arrays."""

    question: str
    end: _Instant
    added: _Number
    answers: _Number
    labels: list[bytes]
    columns: list[str]

    def table(self, arrays: list[npt.NDArray[np.generic]]) -> _Table:
        """With its arrays, which it takes from those of all tables; raises ValueError if they do not fit."""
        columns = {name: arrays.pop(0) for name in self.columns}
        places = {text: place for place, text in enumerate(self.labels)}
        slots = max((each.shape[-1] for each in columns.values() if each.ndim), default=0)
        if (
            not {PEAK} <= columns.keys() <= {PEAK, MEAN, SAMPLES}
            or len(columns) < len(self.columns)
            or len(places) < len(self.labels)
            or not slots
            or any(
                each.shape != (len(places), slots) or each.dtype != np.float32 for each in columns.values()
            )
        ):
            raise ValueError("its arrays and labels do not fit")
        found = {name: each.astype(np.float32, copy=False) for name, each in columns.items()}
        return _Table(SlotRows(self.end, places, found), self.added, self.answers)


class _Head(msgspec.Struct, array_like=True):
    owner: str
    first: _Instant | None
    tables: list[_Saved]


def _rows(columns: Collection[str], answer: Answer, end: datetime.datetime, slots: int) -> SlotRows:
    """The rows of an answer; of several series with the same labels, the highest value of each slot."""
    places: dict[bytes, int] = {}
    parts = [
        (name, [(places.setdefault(text, len(places)), row) for text, row in rows]) for name, rows in answer
    ]
    found = {name: np.full((len(places), slots), np.nan, np.float32) for name in (*columns, IMPOSSIBLE)}
    for name, rows in parts:
        for place, row in rows:
            found[name][place] = np.fmax(found[name][place], row)
    found[PEAK][~np.isnan(found.pop(IMPOSSIBLE))] = np.inf
    return SlotRows(end, places, found)


def _joined(known: SlotRows, last: SlotRows, passed: int) -> SlotRows:
    """The known slots, of which the oldest have passed, with what is told of the last ones."""
    slots, tail = known.slots, slice(known.slots - last.slots, None)
    there = np.zeros(len(known.places), np.bool_)
    for column in known.columns.values():
        there |= ~np.isnan(column[:, passed:]).all(axis=1)
    texts = [
        text for text, is_there in zip(known.places, there, strict=True) if is_there or text in last.places
    ]
    places = {text: place for place, text in enumerate(dict.fromkeys((*texts, *last.places)))}
    columns, later = dict[str, Values](), dict[str, Values]()
    for name, column in known.columns.items():
        columns[name] = np.full((len(places), slots), np.nan, np.float32)
        shifted = column[[known.places[text] for text in texts], passed:]
        columns[name][: len(texts), : shifted.shape[1]] = shifted
        later[name] = np.full((len(places), last.slots), np.nan, np.float32)
        later[name][[places[text] for text in last.places]] = last.columns[name]
    before = {name: column[:, tail].copy() for name, column in columns.items()}
    for name, column in columns.items():
        column[:, tail] = _merged(name, before, later)
    return SlotRows(last.end, places, columns)


def _merged(name: str, before: Mapping[str, Values], later: Mapping[str, Values]) -> Values:
    """What either tells: the higher value, and the mean of the one that saw more samples."""
    if name != MEAN:
        return np.fmax(before[name], later[name])
    is_newer = ~np.isnan(later[name])
    if SAMPLES in later:
        is_newer &= np.isnan(before[name]) | ~(later[SAMPLES] < before[SAMPLES])
    return np.where(is_newer, later[name], before[name])


def differences(one: SlotRows, other: SlotRows) -> int:
    """How many series differ."""
    nothing = np.full(one.slots, np.nan, np.float32)

    def row(rows: SlotRows, name: str, text: bytes) -> Values:
        return rows.columns[name][rows.places[text]] if text in rows.places else nothing

    return sum(
        not all(
            np.array_equal(row(one, name, text), row(other, name, text), equal_nan=True)
            for name in one.columns
        )
        for text in one.places.keys() | other.places.keys()
    )
