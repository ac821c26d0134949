"""The benchmark of `tune` compares at equal harm."""

import pytest

from benchmarks.tune_proof import PRICES, Point, freed_at, gain


@pytest.mark.parametrize(
    ("harm", "freed"),
    [
        (0, 0.0),
        (5, 50.0),  # half of the time one judge, else nothing
        (10, 100.0),
        (15, 120.0),
        (30, 140.0),
        (40, 140.0),  # the one that frees less with more harm is never chosen
    ],
)
def test_freed_at_mixes_judges_up_to_the_harm(harm: float, freed: float) -> None:
    """As of judges who take turns."""
    points = [Point(100, 10), Point(140, 20), Point(130, 35)]
    assert freed_at(points, harm) == pytest.approx(freed)


def test_gain_is_of_all_fleets_together() -> None:
    """A fleet with many GPU-hours counts for more."""
    tuned = {f"tune, price {price:g}": Point(100, 10) for price in PRICES}
    rows = [{**tuned, "other": Point(60, 10)}, {**tuned, "other": Point(40, 10)}]
    assert gain(rows, "other") == pytest.approx(2.0)
