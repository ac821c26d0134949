"""Short windows are only queried for pods whose finding depends on them."""

import datetime
from typing import Any

import pytest

from rightsizer.findings.followup_queries import short_window_queries
from rightsizer.model import Measured, Usage, Usages, Workload
from rightsizer.policy.thresholds import Stuck
from tests.rightsizer.build import (
    AT,
    DAY,
    SHRUNK,
    busy_usage,
    concurrency,
    criteria,
    fleet,
    idle_usage,
    pod,
    usages,
    workload,
)

TWO_HOURS = datetime.timedelta(hours=2)
"""The window that only stuck looks at, by default, and replicas with it."""
SPUN: dict[str, Any] = {"activity_mean": 0.7, "activity_peak": 1.0}


def _narrow(item: Workload, used: Usage, lately: Usage, **more: Any) -> dict[str, Any]:
    by = criteria(**more.pop("by", {}))
    found = Measured(AT, {DAY: usages((item.pods[0], (used,)))}, **more)
    recent: Usages = usages((item.pods[0], (lately,)))
    return {
        str(window): pods
        for window, pods in short_window_queries(fleet(item), found, lambda: recent, lambda _: [by]).items()
    }


@pytest.mark.parametrize(
    ("used", "lately", "is_asked"),
    [
        (idle_usage(**SPUN), idle_usage(**SPUN), True),
        (idle_usage(activity_mean=0.5, activity_peak=0.94), idle_usage(**SPUN), False),
        (busy_usage(**SPUN), idle_usage(**SPUN), True),
        (idle_usage(**SPUN), idle_usage(power_peak_w=400.0), True),
        (idle_usage(**SPUN), idle_usage(power_peak_w=400.0, traffic_peak=None), False),
        (idle_usage(**SPUN), idle_usage(traffic_peak=0.4), False),
        (idle_usage(activity_peak=None), idle_usage(), True),
        (idle_usage(invalid=("DCGM_FI_DEV_GPU_UTIL",)), idle_usage(), True),
    ],
    ids=[
        "spun",
        "never-full",
        "worked-before",
        "draws-power",
        "no-traffic-measured",
        "moves-memory",
        "unknown",
        "invalid",
    ],
)
def test_short_window_of_possibly_stuck_workload_is_queried(
    used: Usage, lately: Usage, is_asked: bool
) -> None:
    """It was near full utilization in the longer window, and does not clearly work now."""
    item = workload(pod(), kind="Job")
    asked = _narrow(item, used, lately)
    assert asked == ({str(TWO_HOURS): {("research", "w-0")}} if is_asked else {})


def test_window_longer_than_all_others_is_queried_for_all() -> None:
    """No other measurement says anything about it."""
    by = {"stuck": Stuck(window=3 * DAY)}
    assert list(_narrow(workload(pod()), idle_usage(), idle_usage(power_peak_w=400.0), by=by)) == [
        str(3 * DAY)
    ]


@pytest.mark.parametrize(
    ("at_work", "annotations", "is_asked"),
    [(1, {}, True), (5, {}, False), (5, SHRUNK, True)],
    ids=["fewer-would-do", "all-are-needed", "taken-by-us"],
)
def test_short_window_of_possibly_oversized_deployment_is_queried(
    at_work: int, annotations: dict[str, str], is_asked: bool
) -> None:
    """A workload that needs all replicas is not queried."""
    item = workload(*(pod(f"w-{number}") for number in range(6)), annotations=annotations)
    found = {"uid-w": concurrency(at_work)}
    asked = _narrow(item, busy_usage(), busy_usage(), concurrency=found)
    assert bool(asked) is is_asked
    assert all(len(pods) == 6 for pods in asked.values())
