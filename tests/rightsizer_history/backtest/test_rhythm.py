"""Hours of the week count by how often work begins in them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rightsizer_history.backtest.rhythm import WEEK_H, Rhythm, Tally, tally_of

NIGHT_H, WEEKEND_H = 16.0, 64.0
OFFICE = [
    (week * WEEK_H + day * 24 + 17, WEEKEND_H if day == 4 else NIGHT_H, True)
    for week in range(20)
    for day in range(5)
]
"""Gaps from 17 h on, which work at 9 h ends, from Mondays to Fridays."""

gaps = st.lists(st.tuples(st.floats(0, 1000), st.floats(0.1, 400), st.booleans()), max_size=20)
times = st.floats(0, 2000)


def test_rhythm_weekend_counts_as_any_night() -> None:
    """Work begins on Monday morning, as on Tuesday's: the hours in between bring none."""
    rhythm = Rhythm(tally_of(OFFICE))
    night, weekend = (rhythm.counted_h(day * 24 + 17, hours) for day, hours in ((0, NIGHT_H), (4, WEEKEND_H)))
    assert rhythm.counted_h(8, 1) > 10
    assert weekend < 1.5 * night
    assert rhythm.counted_h(0, math.inf) == math.inf


def test_rhythm_of_few_gaps_is_flat() -> None:
    """One return proves no habit, and none says nothing."""
    assert Rhythm(Tally()).counted_h(13, 40) == pytest.approx(40)
    one = Rhythm(tally_of([(17, 16, True)]))
    assert 0.9 < one.counted_h(0, WEEK_H) / WEEK_H < 1.1
    assert one.counted_h(32, 1) < 4


@given(gaps, times, times, times)
def test_rhythm_counted_hours_add_up(
    found: list[tuple[float, float, bool]], at: float, one: float, other: float
) -> None:
    """Whatever the rhythm: no hour counts less than nothing, and a gap counts as its parts."""
    rhythm = Rhythm(tally_of(found))
    whole = rhythm.counted_h(at, one + other)
    assert whole >= 0
    assert whole == pytest.approx(rhythm.counted_h(at, one) + rhythm.counted_h(at + one, other), abs=1e-6)


@given(gaps)
def test_tally_has_all_idle_hours(found: list[tuple[float, float, bool]]) -> None:
    """And each end."""
    tally = tally_of(found)
    assert sum(tally.idle_h) == pytest.approx(sum(hours for _, hours, _ in found))
    assert sum(tally.ended) == sum(is_ended for *_, is_ended in found)
