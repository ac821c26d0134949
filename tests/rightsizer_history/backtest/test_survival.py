"""How long gaps last is estimated from those that ended and those that the record cuts off."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rightsizer_history.backtest.survival import Survival

gaps = st.lists(st.tuples(st.floats(0.5, 100), st.booleans(), st.just(1.0)), min_size=1, max_size=30)


def test_survival_known_example() -> None:
    """Freireich's 21 patients with 6-MP: weeks in remission, of which 12 were still going on (Cox, 1972)."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    going_on = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    survival = Survival([*((week, True, 1.0) for week in ended), *((week, False, 1.0) for week in going_on)])
    published = {5: 1.0, 6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {week: round(survival.longer_than(week), 3) for week in published} == published
    assert round(survival.ends_after(10), 3) == round(1 - 0.448 / 0.753, 3)


@given(gaps)
def test_survival_without_censoring_is_the_share_that_lasted_longer(
    found: list[tuple[float, bool, float]],
) -> None:
    """And then every gap ends."""
    survival = Survival([(hours, True, weight) for hours, _, weight in found])
    for hours, *_ in found:
        longer = sum(other > hours for other, *_ in found) / len(found)
        assert math.isclose(survival.longer_than(hours), longer, abs_tol=1e-9)
    assert math.isclose(survival.ends_after(0), 1.0)


@given(gaps, st.floats(0, 120), st.floats(0, 120))
def test_survival_falls_with_time(found: list[tuple[float, bool, float]], one: float, other: float) -> None:
    """It is a share, and gaps that never end keep it up."""
    survival = Survival([*found, (math.inf, False, 1.0)])
    short, long = sorted((one, other))
    assert 0 < survival.longer_than(long) <= survival.longer_than(short) <= 1
    assert 0 <= survival.ends_after(long) < 1
