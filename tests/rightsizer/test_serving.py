"""Sizing in closed loop on small made-up fleets: `python -m benchmarks.serving`, but smaller."""

import dataclasses

import pytest

from benchmarks._serving import DAY, Outcome, Service, live, service, traits
from benchmarks._sizers import EVERY, Ours, all_replicas, oracle
from benchmarks.serving import table
from rightsizer.model import Action


def _calm(seed: int) -> Service:
    """A small fleet without bursts, of which all that is observed is right."""
    of = service(seed, 1)
    calm = dataclasses.replace(of.traits, spread=0.0, lost=0.0, restarts=0.0, rollouts=0.0)
    return dataclasses.replace(of, traits=calm)


SMALL = next(seed for seed in range(100) if traits(seed).replicas <= 20 and not traits(seed).bursts)


def test_sizing_in_closed_loop_stays_between_all_replicas_and_the_oracle() -> None:
    """It frees what demand does not need, in few changes, and few minutes are short."""
    of = _calm(SMALL)
    sizer = Ours()
    found, best = (live(of, each, every=EVERY, days=1) for each in (sizer, oracle))
    assert 0 < found.freed < best.freed
    assert found.short <= 0.02
    assert found.changes <= DAY // EVERY
    assert {one.action for one in sizer.past} == {Action.SCALE_DOWN, Action.SCALE_UP}


def test_sizing_without_any_samples_changes_nothing() -> None:
    """What is not known counts as busy."""
    of = _calm(SMALL)
    blind = dataclasses.replace(of, traits=dataclasses.replace(of.traits, lost=1.0))
    before = dataclasses.replace(blind, need=[1] * len(of.need), began=[0] * len(of.began))
    assert live(before, Ours(), every=EVERY, days=1).changes <= 1  # by the samples from before


def test_minutes_short_with_all_replicas_count_for_nobody() -> None:
    """Demand above what there is was there before."""
    of = dataclasses.replace(_calm(SMALL), need=[1000] * len(_calm(SMALL).need))
    whole = live(of, all_replicas, every=EVERY, days=1)
    assert whole.short == pytest.approx(1.0)
    assert whole.beyond(whole).short == 0.0


def test_table_of_sizers_weighs_fleets_by_their_replicas() -> None:
    """GPU-hours are those of all fleets together."""
    rows = [{"x": Outcome(1, 30, 0.5, 0.0, 3.0)}, {"x": Outcome(2, 10, 0.1, 0.01, 1.0)}]
    (line,) = list(table(rows))[2:]
    assert line.startswith("| x | 40.0 % (10.0 to 50.0) | 0.50 % (0.00 to 1.00) | 1.00 % | 10 |")
