"""Full utilization without memory traffic, at more than idle power: judged by the workload's own power at work."""

import dataclasses
import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.stuck import IdlePower
from rightsizer.model import FindingName, Usage, Verdict, WorkLevel, Workload
from rightsizer.policy.thresholds import Stuck
from tests.rightsizer.build import (
    ALWAYS,
    MANY,
    busy_usage,
    criteria,
    device,
    findings,
    history,
    idle_usage,
    pod,
    usages,
    workload,
)

KEY = ("research", "w-0")
HUNG = "#" * 100 + "." * 14
"""It worked for days, and has moved no memory for 14 hours."""
NEW = "NVIDIA B200"


def _spinning(**changes: Any) -> Usage:
    """A hung collective: all of the time busy, at half of the power of work, and no memory traffic."""
    values = {"activity_mean": 1.0, "power_mean_w": 300.0, "power_peak_w": 310.0, "traffic_peak": 0.0}
    return busy_usage(**{**values, **changes})


def _found(
    used: Usage, slots: str = HUNG, power_w: float | None = 560.0, *, kind: str = "Job", **changes: Any
) -> tuple[FindingName, Verdict]:
    item: Workload = workload(pod(), kind=kind)
    work = {KEY: WorkLevel(history(slots), power_w)}
    values: dict[str, Any] = {"work": work, "histories": ALWAYS, **changes}
    finding = findings(item, usages((item.pods[0], (used,))), **values)[0]
    return finding.name, finding.verdict


STUCK, BUSY = (FindingName.STUCK, Verdict.ACT), (FindingName.BUSY, Verdict.KEEP)


@pytest.mark.parametrize(
    ("used", "slots", "power_w", "expected"),
    [
        (_spinning(), HUNG, 560.0, STUCK),
        (_spinning(power_mean_w=460.0), HUNG, 560.0, BUSY),
        (_spinning(), HUNG, None, BUSY),
        (_spinning(), "." * 114, 560.0, BUSY),
        (_spinning(), "#" * 100 + "." * 5, 560.0, BUSY),
        (_spinning(), "#" * 100 + "." * 4 + "?" + "." * 5, 560.0, BUSY),
        (_spinning(), "#" * 10 + "." * 8 + "#" * 80 + "." * 14, 560.0, BUSY),
        (_spinning(), "#" * 10 + "." * 6 + "#" * 80 + "." * 14, 560.0, STUCK),
        (_spinning(traffic_peak=0.02), HUNG, 560.0, BUSY),
        (_spinning(traffic_peak=None), HUNG, 560.0, BUSY),
        (_spinning(power_mean_w=None), HUNG, 560.0, BUSY),
        (_spinning(activity_floor=0.0), HUNG, 560.0, BUSY),
        (_spinning(activity_mean=0.9), HUNG, 560.0, BUSY),
    ],
    ids=[
        "hung",
        "nearly-as-at-work",
        "power-at-work-unknown",
        "never-moved-memory",
        "not-for-long",
        "not-certain-for-long",
        "came-back-from-half-of-it",
        "came-back-from-less",
        "some-traffic",
        "traffic-unknown",
        "power-unknown",
        "by-one-source-only",
        "not-all-the-time",
    ],
)
def test_stuck_spinning_above_idle_power_is_judged_by_its_own_work(
    used: Usage, slots: str, power_w: float | None, expected: tuple[FindingName, Verdict]
) -> None:
    """It once moved memory at far more power, and has not for longer than ever before; else it may be its work."""
    assert _found(used, slots, power_w) == expected


@pytest.mark.parametrize(
    ("quiet_w", "expected"),
    [(None, STUCK), (120.0, STUCK), (224.0, STUCK), (226.0, BUSY), (310.0, BUSY)],
    ids=["never", "idle", "far-less", "nearly", "just-so"],
)
def test_stuck_spinning_as_in_earlier_hours_without_traffic_is_work(
    quiet_w: float | None, expected: tuple[FindingName, Verdict]
) -> None:
    """It drew about this power without memory traffic before, and moved some again; idle hours prove nothing."""
    work = {KEY: WorkLevel(history(HUNG), 560.0, quiet_w)}
    assert _found(_spinning(), work=work) == expected


@pytest.mark.parametrize(("hours", "expected"), [(14, BUSY), (25, STUCK)])
def test_stuck_service_that_waits_spinning_is_judged_as_if_idle(
    hours: int, expected: tuple[FindingName, Verdict]
) -> None:
    """Some servers of several GPUs spin until the next request, so the window of idleness has to pass."""
    assert _found(_spinning(), "#" * 100 + "." * hours, kind="Deployment") == expected


@pytest.mark.parametrize(
    ("kind", "slots", "verdict"),
    [
        ("Job", "#" * 110 + "." * 3, Verdict.ACT),
        ("Deployment", "#" * 100 + "." * 14, Verdict.KEEP),
        ("Deployment", "#" * 100 + "." * 25, Verdict.ACT),
        ("Deployment", "." * 25, Verdict.ACT),
        ("Notebook", "#" * 20 + "." * 13 + "#" * 20 + "." * 25, Verdict.KEEP),
        ("Notebook", "#" * 20 + "." * 8 + "#" * 20 + "." * 25, Verdict.ACT),
    ],
    ids=["job", "service", "service-for-a-day", "service-always", "as-once-before", "longer-than-before"],
)
def test_stuck_at_idle_power_service_gets_advice_until_it_would_be_idle(
    kind: str, slots: str, verdict: Verdict
) -> None:
    """A job that spins at idle power hangs; what answers requests may wait for one, as long as ever before."""
    found = _found(_spinning(power_mean_w=100.0, power_peak_w=105.0), slots, None, kind=kind)
    assert found == (FindingName.STUCK, verdict)


def test_stuck_service_at_idle_power_without_record_gets_advice() -> None:
    """For how long it has moved no memory is not known."""
    used = _spinning(power_mean_w=100.0, power_peak_w=105.0)
    assert _found(used, kind="Deployment", work={}) == (FindingName.STUCK, Verdict.KEEP)


def test_stuck_one_gpu_near_its_power_at_work_keeps_the_workload() -> None:
    """Ranks wait for each other; one that works is not waited for in vain."""
    item = workload(pod(devices=2), kind="Job")
    work = {KEY: WorkLevel(history(HUNG), 560.0)}
    for power_w, expected in ((300.0, FindingName.STUCK), (500.0, FindingName.BUSY)):
        other = dataclasses.replace(_spinning(power_mean_w=power_w), device=device(1))
        found = usages((item.pods[0], (_spinning(), other)))
        assert findings(item, found, work=work, histories=ALWAYS)[0].name is expected


@pytest.mark.parametrize(
    ("lowest", "peak_w", "expected"),
    [({NEW: 240.0}, 310.0, STUCK), ({NEW: 230.0}, 310.0, BUSY), ({}, 310.0, BUSY)],
    ids=["idle-power", "more-than-idle", "never-measured"],
)
def test_stuck_idle_power_of_unlisted_model_is_that_of_idle_gpus(
    lowest: dict[str, float], peak_w: float, expected: tuple[FindingName, Verdict]
) -> None:
    """A model without idlePowerWatts is compared with the lowest of its idle GPUs; without any, nothing is known."""
    used = _spinning(device=device(model=NEW), power_peak_w=peak_w)
    assert _found(used, power_w=None, idle_power=lowest) == expected


def test_idle_power_is_the_lowest_of_idle_gpus_that_hold_memory() -> None:
    """Invented ones only lower it; boards without a context, parts, shared ones and gaps are not comparable."""
    part = device(2, instance="1")
    used = (
        idle_usage(0, power_mean_w=131.0),
        idle_usage(1, power_mean_w=126.0),
        idle_usage(2, power_mean_w=70.0, memory_peak_bytes=0.0),
        idle_usage(3, power_mean_w=90.0, activity_peak=0.01),
        idle_usage(4, power_mean_w=90.0, traffic_peak=None),
        idle_usage(5, power_mean_w=90.0, coverage=0.5),
        idle_usage(6, power_mean_w=90.0, invalid=("x",)),
        idle_usage(7, power_mean_w=90.0, device=part),
        idle_usage(8, power_mean_w=None),
        idle_usage(9, power_mean_w=90.0),
    )
    neighbour = (idle_usage(9, activity_peak=1.0),)
    found = IdlePower.of({KEY: used, ("research", "beside"): neighbour})
    assert found.lowest == {device().model: 126.0}
    parts = IdlePower.of({KEY: used}), IdlePower.of({("research", "beside"): neighbour})
    assert parts[0].joined(parts[1]) == parts[1].joined(parts[0]) == found


@MANY
@hypothesis.given(st.data())
def test_stuck_more_careful_thresholds_never_find_more(data: st.DataObject) -> None:
    """Lower shares of power, a higher mean and longer times keep what others kept."""
    share = st.sampled_from([0.0, 30.0, 55.0, 75.0, 95.0])
    idle = st.sampled_from([100.0, 130.0, 200.0])
    hours = st.sampled_from([1, 12, 30])
    mean = st.sampled_from([50.0, 95.0, 100.0])
    pairs = [sorted((data.draw(one), data.draw(one))) for one in (share, idle, hours, mean)]
    careful = [pairs[0][0], pairs[1][0], pairs[2][1], pairs[3][1]]
    eager = [pairs[0][1], pairs[1][1], pairs[2][0], pairs[3][0]]
    used = _spinning(
        activity_mean=data.draw(st.sampled_from([0.4, 0.96, 1.0])),
        power_peak_w=data.draw(st.sampled_from([130.0, 200.0, 300.0, 500.0])),
        power_mean_w=data.draw(st.sampled_from([120.0, 200.0, 300.0, 500.0])),
    )
    slots = "#" * 100 + "." * data.draw(st.integers(0, 40))

    def found(values: list[float]) -> bool:
        by = Stuck(
            maxWorkPowerPercent=values[0],
            maxIdlePowerPercent=values[1],
            withoutTraffic=datetime.timedelta(hours=values[2]),
            minMeanPercent=values[3],
        )
        known = {device().model: 110.0}
        return _found(used, slots, by=criteria(stuck=by), idle_power=known) == STUCK

    assert found(eager) or not found(careful)


def test_stuck_power_at_work_is_not_considered_where_the_policy_says_so() -> None:
    """With maxWorkPowerPercent 0, only idle power is stuck."""
    assert _found(_spinning(), by=criteria(stuck=Stuck(maxWorkPowerPercent=0))) == BUSY


@pytest.mark.parametrize("time", [datetime.timedelta(minutes=59), datetime.timedelta(days=400)])
def test_stuck_time_without_traffic_is_an_hour_to_a_year(time: datetime.timedelta) -> None:
    """The history has slots of an hour."""
    with pytest.raises(ValueError, match=r"withoutTraffic\n.*must be 1h to 366d"):
        Stuck(withoutTraffic=time)
