"""Columns of slots: a statistic of each series in every five minutes, kept from one cycle to the next. Pure.

A slot that has ended does not change any more, except for late samples: the last slots are asked for again.
"""

import collections
import dataclasses
import datetime
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

SLOT = datetime.timedelta(minutes=5)
"""How often the recording rules record."""
LATE_SLOTS = 4
"""Samples and recorded values may arrive 20 minutes late."""
MOST_COLUMNS = 64
"""Those that were not read for longest are forgotten; a cycle reads some thirty."""

_DIGITS = 7
"""To which 32 bits hold a share: 0.05 is not 0.0500000007."""

Values = npt.NDArray[np.float32]
"""Values of slots, oldest first: NaN where there is none, infinite where it is impossible."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """The slots of series.

    Attributes:
        labels: Of each series, as JSON.
        values: A row for each series.
    """

    labels: Sequence[bytes]
    values: Values

    def peaks(self, slots: int) -> list[float]:
        """The highest value of each series in the last slots; NaN without any."""
        return _numbers(np.fmax.reduce(self.values[:, -slots:], axis=1))

    def means(self, slots: int) -> list[float]:
        """The mean of the values of each series in the last slots; NaN without any."""
        last = self.values[:, -slots:]
        present = ~np.isnan(last)
        total = np.where(present, last, 0).sum(axis=1, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return _numbers(total / present.sum(axis=1))


def _numbers(values: npt.NDArray[np.floating]) -> list[float]:
    found: list[float] = np.round(values.astype(np.float64), _DIGITS).tolist()
    return found


Read = Callable[[int], Iterable[tuple[bytes, Values]]]
"""Asks for so many slots, the last of which ends with the grid: labels and values of each series."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    end: datetime.datetime
    places: dict[bytes, int]
    values: Values
    answers: int = 0

    def rows(self) -> Rows:
        return Rows(list(self.places), self.values)


class KeptColumns:
    """What earlier cycles read, by question; threads may ask different ones at the same time.

    Args:
        compared: Called with the number of rows, and of those that differ from an answer from scratch, which counts.
        verified_every: Which answers to a question are compared with one from scratch: each (1), each second one (2), …
    """

    def __init__(self, compared: Callable[[int, int], None], *, verified_every: int) -> None:
        self._compared = compared
        self._verified_every = verified_every
        self._columns: collections.OrderedDict[Hashable, _Column] = collections.OrderedDict()
        self._begin: datetime.datetime | None = None

    def end(self, at: datetime.datetime) -> datetime.datetime:
        """The end of the last whole slot. Slots end at the minute of the first cycle, as those of a schedule do."""
        if self._begin is None:
            self._begin = at.replace(second=0, microsecond=0)
        return at - (at - self._begin) % SLOT

    def extended(self, question: Hashable, end: datetime.datetime, slots: int, read: Read) -> Rows:
        """The last `slots` before `end`, or more: as by `read(slots)`, from those that are known and new ones."""
        known = self._columns.get(question)
        passed = 0 if known is None else round((end - known.end) / SLOT)
        if known is None or passed < 0 or known.values.shape[1] < slots:
            column = _Column(end, *_table(read(slots), slots))
        else:
            column = _extended(known, end, passed, read)
            if column.answers % self._verified_every == 0:
                length = column.values.shape[1]
                whole = _Column(end, *_table(read(length), length), column.answers)
                self._compared(len(whole.places), differences(column.rows(), whole.rows()))
                column = whole
        self._columns[question] = column
        self._columns.move_to_end(question)
        while len(self._columns) > MOST_COLUMNS:
            self._columns.popitem(last=False)
        return column.rows()


def _table(found: Iterable[tuple[bytes, Values]], slots: int) -> tuple[dict[bytes, int], Values]:
    """The rows of an answer; of several with the same labels, the highest value of each slot."""
    places: dict[bytes, int] = {}
    rows: list[Values] = []
    for labels, row in found:
        place = places.setdefault(labels, len(rows))
        if place < len(rows):
            rows[place] = np.fmax(rows[place], row)
        else:
            rows.append(row)
    return places, np.array(rows, np.float32).reshape(len(rows), slots)


def _extended(known: _Column, end: datetime.datetime, passed: int, read: Read) -> _Column:
    slots = known.values.shape[1]
    tail = min(slots, passed + LATE_SLOTS)
    places, last = _table(read(tail), tail)
    kept = known.values[:, passed : passed + slots - tail]
    is_there = ~np.isnan(kept).all(axis=1) if kept.size else np.zeros(len(kept), np.bool_)
    texts = [text for text, is_kept in zip(known.places, is_there, strict=True) if is_kept or text in places]
    numbers = {text: place for place, text in enumerate(dict.fromkeys((*texts, *places)))}
    values = np.full((len(numbers), slots), np.nan, np.float32)
    values[: len(texts), : slots - tail] = kept[[known.places[text] for text in texts]]
    values[[numbers[text] for text in places], slots - tail :] = last
    return _Column(end, numbers, values, known.answers + 1)


def differences(one: Rows, other: Rows) -> int:
    """How many series differ."""
    rows, others = (dict(zip(each.labels, each.values, strict=True)) for each in (one, other))
    return sum(
        not (text in rows and text in others and np.array_equal(rows[text], others[text], equal_nan=True))
        for text in rows.keys() | others.keys()
    )
