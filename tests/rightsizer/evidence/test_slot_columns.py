"""Columns of earlier cycles, with the slots that are new, are what a question from scratch answers."""

import dataclasses
import datetime
import math
from collections.abc import Iterator

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from rightsizer.evidence.slot_columns import LATE_SLOTS, SLOT, KeptColumns, Rows, Values

AT = datetime.datetime(2026, 3, 2, 12, 0, tzinfo=datetime.UTC)
SLOTS = 12
VALUES = (0.0, 0.25, 1.0, math.inf)


@dataclasses.dataclass
class Truth:
    """The value of each slot by series; and how many slots were asked."""

    series: dict[bytes, dict[int, float]] = dataclasses.field(default_factory=dict)
    now: int = 0
    asked: list[int] = dataclasses.field(default_factory=list)

    @property
    def end(self) -> datetime.datetime:
        """Of the last slot."""
        return AT + self.now * SLOT

    def read(self, slots: int) -> Iterator[tuple[bytes, Values]]:
        """As Prometheus answers: no row of a series without values."""
        self.asked.append(slots)
        for text, values in self.series.items():
            row = [values.get(slot, math.nan) for slot in range(self.now - slots + 1, self.now + 1)]
            if not np.isnan(row).all():
                yield text, np.array(row, np.float32)


def _kept(**more: int) -> tuple[KeptColumns, list[tuple[int, int]]]:
    compared: list[tuple[int, int]] = []
    every = more.get("verified_every", 1_000_000)
    return KeptColumns(lambda *each: compared.append(each), verified_every=every), compared


def _by_text(rows: Rows) -> dict[bytes, list[float]]:
    return {text: row.tolist() for text, row in zip(rows.labels, rows.values, strict=True)}


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=300)
def test_kept_columns_are_those_of_a_question_from_scratch(data: st.DataObject) -> None:
    """Series come, go and return, samples arrive up to 20 minutes late, and cycles are any time apart."""
    truth, (kept, _) = Truth(), _kept()
    for _ in range(data.draw(st.integers(1, 8))):
        truth.now += data.draw(st.sampled_from([0, 1, 3, 3, 3, LATE_SLOTS, SLOTS, 3 * SLOTS]))
        for text in data.draw(st.sets(st.sampled_from([b"a", b"b", b"c"]))):
            late = data.draw(st.integers(0, LATE_SLOTS - 1))
            values = truth.series.setdefault(text, {})
            values[truth.now - late] = data.draw(st.sampled_from(VALUES))
        found = kept.extended("x", truth.end, SLOTS, truth.read)
        scratch = dict(truth.read(SLOTS))
        assert sorted(found.labels) == sorted(scratch)
        for text, row in zip(found.labels, found.values, strict=True):
            assert np.array_equal(row, scratch[text], equal_nan=True)


def test_kept_columns_ask_for_new_and_late_slots() -> None:
    """From scratch for another question, a longer window, and after a clock that went back."""
    truth, (kept, _) = Truth({b"a": {-100: 1.0}}), _kept()
    for passed, question, slots, asked in (
        (0, "x", SLOTS, SLOTS),
        (3, "x", SLOTS, 3 + LATE_SLOTS),
        (0, "x", SLOTS - 1, LATE_SLOTS),
        (0, "y", SLOTS, SLOTS),
        (3, "x", SLOTS + 1, SLOTS + 1),
        (-1, "x", SLOTS, SLOTS),
    ):
        truth.asked.clear()
        truth.now += passed
        kept.extended(question, truth.end, slots, truth.read)
        assert truth.asked == [asked]


@pytest.mark.parametrize("lost", [b"a", b"b"])
def test_kept_columns_that_differ_from_scratch_do_not_count(lost: bytes) -> None:
    """What arrived later than 20 minutes is met by the answer that is compared, and is said."""
    truth, (kept, compared) = Truth({b"a": {0: 1.0}}), _kept(verified_every=2)
    kept.extended("x", truth.end, SLOTS, truth.read)
    truth.now = 1 + LATE_SLOTS
    truth.series.setdefault(lost, {})[-LATE_SLOTS] = 0.5
    assert _by_text(kept.extended("x", truth.end, SLOTS, truth.read)).keys() == {b"a"}
    found = kept.extended("x", truth.end, SLOTS, truth.read)
    assert compared == [(len(truth.series), 1)]
    assert found.peaks(SLOTS)[list(found.labels).index(lost)] == (1.0 if lost == b"a" else 0.5)


def test_peaks_and_means_are_of_the_last_slots() -> None:
    """What is unknown is no part of them; one impossible value makes them so."""
    values = np.array(
        [[0.05, math.nan, 0.3, 0.1], [1.0, math.nan, math.nan, math.nan], [0.0, math.inf, 0.0, 0.0]],
        np.float32,
    )
    rows = Rows([b"a", b"b", b"c"], values)
    assert rows.peaks(4) == [0.3, 1.0, math.inf]
    assert rows.means(4) == [0.15, 1.0, math.inf]
    assert rows.peaks(3)[::2] == [0.3, math.inf]
    assert math.isnan(rows.peaks(3)[1])
    assert math.isnan(rows.means(3)[1])
    assert rows.means(2)[::2] == [0.2, 0.0]
    assert rows.peaks(1)[0] == 0.1
