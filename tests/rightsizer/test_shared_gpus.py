"""Pods of shared GPUs that a plan calls idle, and what they did: `python -m benchmarks.shared_gpus`, but shorter."""

from pathlib import Path

import pytest

from benchmarks.shared_gpus import Mode, measure, schedule
from simulator.prometheus import Prometheus

pytestmark = [pytest.mark.slow, pytest.mark.prometheus, pytest.mark.driver]


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.deep] * (mode is Mode.AMPERE)) for mode in Mode], ids=str
)
def test_plan_calls_pods_of_shared_gpus_idle_that_did_nothing(mode: Mode, tmp_path: Path) -> None:
    """None that worked for more than 0.1 % of the window; before Hopper, only on boards on which nobody worked.

    Under MPS a few pods have no counter of their own: these are unknown.
    """
    with Prometheus(tmp_path) as prometheus:
        found = measure(mode, 5, prometheus, workers=2)
    assert sum(one.worked for one in found.values()) > 0
    for way, one in found.items():
        assert one.wrong == [], way
        if "at work" in way:
            assert one.idle == 0
        else:
            assert one.idle >= (0.8 if mode is Mode.MPS else 1) * one.rested, one.others


@pytest.mark.parametrize("mode", Mode, ids=str)
def test_schedules_have_idle_and_busy_pods_and_one_to_many(mode: Mode) -> None:
    """Whatever is measured is drawn; a number stands for one schedule."""
    drawn = [schedule(mode, number) for number in range(30)]
    assert drawn[0] == schedule(mode, 0)
    assert {len(one.works) for one in drawn} >= {1, 7}
    busy = [any(work.bursts for work in works) for one in drawn for works in one.works.values()]
    assert 0.3 < sum(busy) / len(busy) < 0.7
