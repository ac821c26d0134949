"""Slots of earlier cycles, with those that are new, are what a question from scratch answers."""

import dataclasses
import datetime
import hashlib
import io
import math
from collections.abc import Callable, Collection, Iterator

import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

from rightsizer.evidence import slot_table
from rightsizer.evidence.slot_table import (
    IMPOSSIBLE,
    LATE_SLOTS,
    MEAN,
    PEAK,
    SAMPLES,
    SLOT,
    Answer,
    EvidenceTable,
    KeptTables,
    Values,
)

AT = datetime.datetime(2026, 3, 2, 12, 0, tzinfo=datetime.UTC)
SLOTS = 12
METRIC = "util"
COLUMNS = (PEAK, MEAN, SAMPLES)

A, B, C = (b'{"pod":"%s"}' % name for name in (b"a", b"b", b"c"))
"""Labels of series."""


@dataclasses.dataclass
class Truth:
    """The samples of each slot by series, and what was asked.

    Attributes:
        lost: Columns of which the next answer tells nothing.
    """

    series: dict[bytes, dict[int, list[float]]] = dataclasses.field(default_factory=dict)
    now: int = 0
    asked: list[int] = dataclasses.field(default_factory=list)
    lost: Collection[str] = ()

    @property
    def end(self) -> datetime.datetime:
        """Of the last slot."""
        return AT + self.now * SLOT

    def add(self, text: bytes, slot: int, *samples: float) -> None:
        """Samples of a slot."""
        self.series.setdefault(text, {}).setdefault(slot, []).extend(samples)

    def read(self, slots: int, of: Collection[bytes]) -> Answer:
        """As Prometheus answers: no row of a series without samples."""
        self.asked.append(slots)
        return [
            ((METRIC, name), text, row)
            for name in COLUMNS
            for text, row in self._column(name, slots)
            if not of or text in of
        ]

    def _column(self, name: str, slots: int) -> Iterator[tuple[bytes, Values]]:
        statistics: dict[str, Callable[[list[float]], float]] = {
            PEAK: max,
            MEAN: lambda some: sum(some) / len(some),
            SAMPLES: len,
        }
        of = statistics[name]
        for text, samples in self.series.items() if name not in self.lost else ():
            each = (samples.get(slot) for slot in range(self.now - slots + 1, self.now + 1))
            row = [of(some) if some else math.nan for some in each]
            if not np.isnan(row).all():
                yield text, np.array(row, np.float32)


def _kept(verified_every: int = 1_000_000) -> tuple[KeptTables, list[tuple[int, int]]]:
    compared: list[tuple[int, int]] = []
    return KeptTables(lambda *each: compared.append(each), print, verified_every=verified_every), compared


def _by_text(rows: EvidenceTable, name: str) -> dict[bytes, list[float]]:
    return {text: rows.columns[METRIC, name][place].tolist() for text, place in rows.places.items()}


def _primed(truth: Truth, verified_every: int = 1_000_000) -> tuple[KeptTables, list[tuple[int, int]]]:
    """Kept slots that were asked for twice: the second answer shows what the first one may have lacked."""
    kept, compared = _kept(verified_every)
    for _ in range(2):
        kept.begin(truth.end)
        kept.extended("x", truth.end, SLOTS, truth.read)
    return kept, compared


def _extended(kept: KeptTables, truth: Truth, slots: int = SLOTS, question: str = "x") -> EvidenceTable:
    kept.begin(truth.end)
    return kept.extended(question, truth.end, slots, truth.read)


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=300)
def test_kept_slots_are_those_of_a_question_from_scratch(data: st.DataObject) -> None:
    """Series come, go and return, samples arrive up to 20 minutes late, and cycles are any time apart."""
    truth, (kept, _) = Truth(), _kept()
    for _ in range(data.draw(st.integers(1, 8))):
        truth.now += data.draw(st.sampled_from([0, 1, 3, 3, 3, LATE_SLOTS, SLOTS, 3 * SLOTS]))
        for text in data.draw(st.sets(st.sampled_from([A, B, C]))):
            late = data.draw(st.integers(0, LATE_SLOTS - 1))
            truth.add(text, truth.now - late, data.draw(st.sampled_from([0.0, 0.25, 1.0, 3.0])))
        if data.draw(st.booleans()):
            kept = _restored(kept.saved("us"))
        found = _extended(kept, truth)
        scratch, _ = _kept()
        whole = scratch.extended("x", truth.end, SLOTS, truth.read)
        for name in COLUMNS:
            known, wanted = _by_text(found, name), _by_text(whole, name)
            assert known.keys() == wanted.keys()
            for text, row in wanted.items():
                assert np.array_equal(known[text], row, equal_nan=True), (name, text)


def test_kept_slots_ask_for_new_and_late_ones() -> None:
    """From scratch for another question, a longer window, and after a clock that went back; then once more whole."""
    truth, (kept, _) = Truth(), _kept()
    truth.add(A, -100, 1.0)
    for passed, question, slots, asked in (
        (0, "x", SLOTS, SLOTS),
        (0, "x", SLOTS, SLOTS),
        (3, "x", SLOTS, 3 + LATE_SLOTS),
        (0, "x", SLOTS - 1, LATE_SLOTS),
        (0, "y", SLOTS, SLOTS),
        (6, "x", SLOTS, 6 + LATE_SLOTS),
        (1, "x", SLOTS, 1 + 6),  # what the answer before it added is asked for once more
        (3, "x", SLOTS + 1, SLOTS + 1),
        (-1, "x", SLOTS, SLOTS),
    ):
        truth.asked.clear()
        truth.now += passed
        _extended(kept, truth, slots, question)
        assert truth.asked == [asked]


def test_kept_slots_that_two_cycles_did_not_read_are_forgotten() -> None:
    """Questions of which nothing is read any more would fill memory."""
    truth, (kept, _) = Truth(), _kept()
    for passed, question, asked in (
        (0, "x", SLOTS),
        (0, "x", SLOTS),
        (1, "y", SLOTS),
        (0, "y", SLOTS),
        (1, "x", 2 + LATE_SLOTS),
        (1, "z", SLOTS),
    ):
        truth.asked.clear()
        truth.now += passed
        _extended(kept, truth, question=question)
        assert truth.asked == [asked]
    truth.asked.clear()
    truth.now += 1
    _extended(kept, truth, question="y")
    assert truth.asked == [SLOTS]


@pytest.mark.parametrize("lost", [COLUMNS, (PEAK, MEAN), (SAMPLES,)])
def test_answer_that_lacks_a_series_unsays_nothing(lost: Collection[str]) -> None:
    """The next answer tells of the slots that it should have told of; until then, they are unknown."""
    truth, (kept, _) = Truth(), _kept()
    for slot in range(-SLOTS, 10):
        truth.add(A, slot, 0.9 if slot in {-1, 2} else 0.0)
    _extended(kept, truth)
    truth.now, truth.lost = 3, lost
    rows = _extended(kept, truth)
    assert rows.peaks(METRIC, SLOTS) == [0.9]
    assert rows.samples(METRIC, SLOTS).tolist() == [[1] * (SLOTS - 3) + [0] * 3]
    truth.now, truth.lost = 9, ()
    rows = _extended(kept, truth)
    assert rows.peaks(METRIC, 8) == [0.9]
    assert rows.samples(METRIC, SLOTS).tolist() == [[1] * SLOTS]


def test_first_answer_that_lacks_a_store_is_asked_for_again() -> None:
    """As of the process that begins while Thanos has the last hours only: it would lack the others for a day."""
    truth, (kept, _) = Truth(), _kept()
    for slot in range(-SLOTS, 2):
        truth.add(A, slot, 0.9 if slot == 3 - SLOTS else 0.0)

    def lately(slots: int, of: Collection[bytes]) -> Answer:
        hidden = np.where(np.arange(slots) < slots - 3, math.nan, 0).astype(np.float32)
        return [(column, text, row + hidden) for column, text, row in truth.read(slots, of)]

    kept.begin(truth.end)
    assert kept.extended("x", truth.end, SLOTS, lately).peaks(METRIC, SLOTS) == [0.0]
    truth.now = 1
    rows = _extended(kept, truth)
    assert rows.peaks(METRIC, SLOTS) == [pytest.approx(0.9)]
    assert rows.samples(METRIC, SLOTS).tolist() == [[1] * SLOTS]


def test_kept_slots_outlast_cycles_without_an_answer() -> None:
    """A busy server that times out twice is not asked for a whole day."""
    truth = Truth()
    truth.add(A, 0, 0.5)
    kept, _ = _primed(truth)
    for _ in range(3):
        truth.now += 1
        kept.begin(truth.end)
    truth.asked.clear()
    assert _extended(kept, truth).peaks(METRIC, SLOTS) == [0.5]
    assert truth.asked == [3 + LATE_SLOTS]


def test_kept_slots_that_differ_from_scratch_are_mended() -> None:
    """What arrived later than 20 minutes is met by the answer that is compared, and is said."""
    truth = Truth()
    truth.add(A, 0, 0.1)
    kept, compared = _primed(truth, verified_every=3)
    truth.now = 1 + LATE_SLOTS
    truth.add(A, -LATE_SLOTS, 0.5)
    assert _extended(kept, truth).peaks(METRIC, SLOTS) == [0.1]
    assert _extended(kept, truth).peaks(METRIC, SLOTS) == [0.5]
    assert compared == [(1, 1)]


def test_slots_of_a_new_series_are_asked_for_whole() -> None:
    """It may be the series of a store that answers again, or of an exporter that was renamed."""
    truth = Truth()
    truth.add(A, 0, 0.1)
    kept, _ = _primed(truth)
    truth.now = 1 + LATE_SLOTS
    for slot in (-LATE_SLOTS, truth.now):
        truth.add(B, slot, 0.5 if slot < 0 else 0.0)
    truth.asked.clear()
    found = _extended(kept, truth)
    assert found.peaks(METRIC, SLOTS)[found.places[B]] == 0.5
    assert truth.asked == [truth.now + LATE_SLOTS, SLOTS]


def test_slots_of_a_new_column_are_asked_for_whole() -> None:
    """As of a metric that the exporter of a known device did not publish, or a store did not answer, before."""
    truth = Truth(lost=(MEAN, SAMPLES))
    for slot in range(-SLOTS, 2 + LATE_SLOTS):
        truth.add(A, slot, 0.5 if slot == -LATE_SLOTS else 0.0)
    kept, _ = _primed(truth)
    truth.now, truth.lost = 1 + LATE_SLOTS, ()
    truth.asked.clear()
    found = _extended(kept, truth)
    assert found.means(METRIC, SLOTS) == [pytest.approx(0.5 / SLOTS)]
    assert found.samples(METRIC, SLOTS).tolist() == [[1] * SLOTS]
    assert truth.asked == [truth.now + LATE_SLOTS, SLOTS]


def test_peaks_and_means_are_of_the_last_slots() -> None:
    """What is unknown is no part of them; one impossible value makes them so. Samples weigh, where they are counted."""
    nan = math.nan
    values = np.array([[0.05, nan, 350.2, 0.1], [1.0, nan, nan, nan], [0.0, math.inf, 0.0, 0.0]], np.float32)
    columns = {(METRIC, PEAK): values, (METRIC, MEAN): values}
    rows = EvidenceTable(AT, 4, {A: 0, B: 1, C: 2}, columns)
    assert rows.peaks(METRIC, 4) == [350.2, 1.0, math.inf]
    assert rows.peaks(METRIC, 1)[::2] == [0.1, 0.0]
    assert rows.means(METRIC, 4) == [pytest.approx(350.35 / 3), 1.0, math.inf]
    assert math.isnan(rows.peaks(METRIC, 3)[1])
    assert math.isnan(rows.means(METRIC, 3)[1])
    samples = np.array([[20, nan, nan, 60], [20, nan, nan, nan], [20, 20, 20, 20]], np.float32)
    weighed = EvidenceTable(AT, 4, rows.places, {**columns, (METRIC, SAMPLES): samples})
    assert weighed.means(METRIC, 4) == [pytest.approx((20 * 0.05 + 60 * 0.1) / 80), 1.0, math.inf]
    assert weighed.samples(METRIC, 2).tolist() == [[0, 60], [0, 0], [20, 20]]


def test_values_that_are_impossible_make_the_peak_so() -> None:
    """As negative ones, which a peak hides."""
    truth, (kept, _) = Truth(), _kept()
    truth.add(A, 0, 0.5)

    def read(slots: int, of: Collection[bytes]) -> Answer:
        row = np.full(slots, math.nan, np.float32)
        row[-1] = -1
        return [*truth.read(slots, of), ((METRIC, IMPOSSIBLE), A, row)]

    assert kept.extended("x", truth.end, SLOTS, read).peaks(METRIC, SLOTS) == [math.inf]


def test_too_many_slots_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of thousands of pods that come and go: neither in memory nor in the file."""
    truth, (kept, _) = Truth(), _kept()
    truth.add(A, 0, 0.1)
    _extended(kept, truth)
    monkeypatch.setattr(slot_table, "MOST_VALUES", 4 * SLOTS)
    truth.add(B, 0, 0.1)
    with pytest.raises(slot_table.TooManySlotsError):
        _extended(kept, truth)
    assert kept.is_full
    assert len(kept.saved("us")) < len(_saved())


def _restored(data: bytes, owner: str = "us") -> KeptTables:
    kept, _ = _kept()
    kept.restore(data, owner)
    return kept


def _saved() -> bytes:
    truth = Truth()
    truth.add(A, 0, 0.5)
    return _primed(truth)[0].saved("us")


def _signed(array: np.ndarray) -> bytes:
    """A file of one array, where an archive of several is expected."""
    content = io.BytesIO()
    np.save(content, array)
    return hashlib.sha256(content.getvalue()).digest() + content.getvalue()


def test_saved_slots_that_are_not_ours_are_discarded() -> None:
    """Damaged, cut off, or of another version; and an answer that two processes read is not forgotten."""
    data = _saved()
    for each, owner, words in (
        (b"", "us", "damaged"),
        (data[:-3], "us", "damaged"),
        (bytes([*data[:-1], data[-1] ^ 1]), "us", "damaged"),
        (hashlib.sha256(b"").digest(), "us", "cannot be read"),
        (_signed(np.zeros(3)), "us", "cannot be read"),
        (data, "them", "another version"),
    ):
        with pytest.raises(ValueError, match=words):
            _restored(each, owner)
    truth = Truth()
    truth.now = 1
    _extended(_restored(data), truth)
    assert truth.asked == [1 + LATE_SLOTS]


@pytest.mark.parametrize(
    ("labels", "padding", "words"),
    [
        pytest.param(b"[]", 0, "cannot be read", id="labels-of-another-form"),
        pytest.param(b"{}", 10_000, "too large", id="arrays-that-are-larger-than-the-file"),
    ],
)
def test_saved_slots_that_a_forger_signed_are_discarded(
    monkeypatch: pytest.MonkeyPatch, labels: bytes, padding: int, words: str
) -> None:
    """Whoever may write the file knows its digest."""
    monkeypatch.setattr(slot_table, "_MOST_BYTES", 10_000)
    data, size = _saved(), hashlib.sha256().digest_size
    with np.load(io.BytesIO(data[size:])) as parts:
        arrays = [parts[name] for name in parts.files]
    owner, first, tables = msgspec.msgpack.decode(arrays[0].tobytes())
    for table in tables:
        table[5] = [labels] * len(table[5])
    head = np.frombuffer(msgspec.msgpack.encode((owner, first, tables)), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, head, *arrays[1:], np.zeros(padding, np.uint8))
    with pytest.raises(ValueError, match=words):
        _restored(hashlib.sha256(content.getvalue()).digest() + content.getvalue())


@pytest.mark.parametrize(
    "column",
    [
        np.zeros((2, SLOTS), np.float32),
        np.zeros((1, SLOTS, 1), np.float32),
        np.zeros((1, SLOTS - 1), np.float32),
        np.zeros((1, SLOTS), np.float64),
        np.zeros(0, np.float32),
        np.float32(0),
    ],
)
def test_saved_slots_with_arrays_that_do_not_fit_are_discarded(column: np.ndarray) -> None:
    """Whoever may write the file knows its digest."""
    data = _saved()
    size = hashlib.sha256().digest_size
    with np.load(io.BytesIO(data[size:])) as parts:
        arrays = [parts[name] for name in parts.files]
    content = io.BytesIO()
    np.savez(content, arrays[0], column, *arrays[2:])
    forged = content.getvalue()
    with pytest.raises(ValueError, match="do not fit"):
        _restored(hashlib.sha256(forged).digest() + forged)
