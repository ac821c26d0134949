"""Stuck, input-bound, underutilized and not-starting workloads."""

import datetime
from typing import Any

import pytest

from rightsizer.model import (
    FindingName,
    Pod,
    Usage,
    Usages,
    Verdict,
    Waits,
    Workload,
)
from rightsizer.policy.thresholds import Thresholds, TooManyGpus
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    all_idle,
    busy_usage,
    criteria,
    findings,
    idle_usage,
    pod,
    usages,
    workload,
)

STUCK = criteria().stuck.window


def _eight(*used: Usage, devices: int = 8, **changes: Any) -> tuple[Workload, Usages]:
    """One pod whose first GPUs are those given, and whose others are idle."""
    one = pod(devices=devices, **changes)
    rest = tuple(idle_usage(number) for number in range(len(used), devices))
    return workload(one, kind="Job"), usages((one, (*used, *rest)))


def _spinning(index: int = 0, **changes: Any) -> Usage:
    values = {"activity_mean": 0.99, "power_peak_w": 121.0, "traffic_peak": 0.0}
    return busy_usage(index, **{**values, **changes})


SPINS = {
    "both-signals": (_eight(_spinning(), devices=1), FindingName.STUCK, Verdict.ACT),
    "one-rank-of-eight": (_eight(_spinning()), FindingName.STUCK, Verdict.ACT),
    "power-alone": (
        _eight(_spinning(traffic_peak=None), devices=1),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "traffic-flows": (
        _eight(_spinning(traffic_peak=0.5), devices=1),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "traffic-alone": (_eight(_spinning(power_peak_w=None), devices=1), FindingName.BUSY, Verdict.KEEP),
    "not-all-the-time": (
        _eight(_spinning(activity_mean=0.9), devices=1),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "by-one-source-only": (
        _eight(_spinning(activity_floor=0.0), devices=1),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "another-rank-works": (_eight(_spinning(), busy_usage(1), devices=2), FindingName.BUSY, Verdict.KEEP),
    "shared": (
        _eight(_spinning(), devices=1, is_shared=True),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "samples-stopped": (
        _eight(_spinning(is_fresh=False), devices=1),
        FindingName.STALE_DATA,
        Verdict.UNKNOWN,
    ),
    "just-started": (
        _eight(_spinning(), devices=1, started=AT - STUCK),
        FindingName.TOO_YOUNG,
        Verdict.UNKNOWN,
    ),
}


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("PyTorchJob", Verdict.ACT), ("Deployment", Verdict.KEEP)],
    ids=["ranks", "replicas"],
)
def test_stuck_rank_stops_its_job_but_stuck_replica_is_advice(kind: str, verdict: Verdict) -> None:
    """A hung replica is named; the others may only lack requests."""
    item = workload(pod(), pod("w-1"), kind=kind)
    found = usages((item.pods[0], (idle_usage(0),)), (item.pods[1], (_spinning(1),)))
    finding = findings(item, found, histories=ALWAYS)[0]
    assert (finding.name, finding.verdict) == (FindingName.STUCK, verdict)
    assert ("other pods may work: delete only w-1" in finding.words) is (verdict is Verdict.KEEP)


def test_stuck_workload_has_one_finding() -> None:
    """Conflicting signals are no second finding; a single GPU is not counted."""
    found = findings(*_eight(_spinning(), devices=1), histories=ALWAYS)
    assert [finding.name for finding in found] == [FindingName.STUCK]
    assert found[0].words[0].startswith("its GPU reported ")


@pytest.mark.parametrize(
    ("devices", "cause"), [(1, "perhaps a kernel that does not end"), (8, "perhaps a hung NCCL collective")]
)
def test_stuck_names_a_collective_only_for_several_gpus(devices: int, cause: str) -> None:
    """A GPU alone waits for no other."""
    finding = findings(*_eight(_spinning(), devices=devices), histories=ALWAYS)[0]
    assert f"{cause}: restart the workload" in finding.words


@pytest.mark.parametrize(("world", "name", "verdict"), SPINS.values(), ids=SPINS.keys())
def test_full_utilization_without_power_and_traffic_is_stuck(
    world: tuple[Workload, Usages], name: FindingName, verdict: Verdict
) -> None:
    """Stuck requires idle power and no memory traffic on every GPU."""
    finding = findings(*world, histories=ALWAYS)[0]
    assert (finding.name, finding.verdict) == (name, verdict)


# Input-bound, underutilized, not starting.


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        (Waits(cpu_throttled=0.6), "its CPU limit 60% of the time"),
        (Waits(cpu_pressure=0.3, io_pressure=0.4), "CPU 30% of the time and disk or network 40% of the time"),
        (Waits(io_pressure=0.1), None),
        (Waits(), None),
    ],
    ids=["throttled", "two-pressures", "hardly", "not-measured"],
)
def test_waiting_workload_with_low_activity_is_input_bound(waits: Waits, words: str | None) -> None:
    """It is kept, and the evidence names what it waits for."""
    item = workload(pod())
    usage = busy_usage(activity_mean=0.3)
    found = findings(
        item, usages((item.pods[0], (usage,))), waits={("research", "w-0"): waits}, histories=ALWAYS
    )
    assert [finding.name for finding in found] == [FindingName.INPUT_BOUND if words else FindingName.BUSY]
    assert found[0].verdict is Verdict.KEEP
    if words:
        assert words in found[0].words[0]


def test_waiting_lowers_confidence_but_keeps_the_verdict() -> None:
    """Measurements besides the GPUs never change a verdict."""
    item = workload(pod())
    waits = {("research", "w-0"): Waits(io_pressure=0.9)}
    finding = findings(item, all_idle(item), waits=waits)[0]
    assert [each.name for each in findings(item, all_idle(item), waits=waits)] == [FindingName.IDLE]
    assert (finding.verdict, finding.confidence.value) == (Verdict.ACT, "low")
    assert "it waits for disk or network 90% of the time" in finding.words[-1]


@pytest.mark.parametrize(
    ("mean", "coverage", "name"),
    [(0.1, 1.0, FindingName.UNDERUTILIZED), (0.3, 1.0, FindingName.BUSY), (0.1, 0.5, FindingName.BUSY)],
    ids=["far-below", "enough", "half-of-the-window"],
)
def test_low_mean_activity_is_underutilized(mean: float, coverage: float, name: FindingName) -> None:
    """It requires data for the whole window."""
    item = workload(pod())
    usage = busy_usage(activity_mean=mean, coverage=coverage)
    found = findings(item, usages((item.pods[0], (usage,))), histories=ALWAYS)
    assert (found[0].name, found[0].verdict) == (name, Verdict.KEEP)


HOURS = datetime.timedelta(hours=3)
DOWN: dict[str, tuple[dict[str, Any], str | None]] = {
    "pending": (
        {"phase": "Pending", "started": None, "created": AT - HOURS},
        "pod w-0 has held 1 GPU for 3h and does not run: Pending",
    ),
    "image-not-found": (
        {"phase": "Pending", "started": None, "created": AT - HOURS, "waiting": "ImagePullBackOff"},
        "does not run: ImagePullBackOff",
    ),
    "crash-loop": (
        {"started": None, "created": AT - HOURS, "waiting": "CrashLoopBackOff", "restarts": 12},
        "CrashLoopBackOff, 12 restarts",
    ),
    "completed-beside-a-sidecar": (
        {"started": None, "created": AT - HOURS, "waiting": "Completed"},
        "does not run: Completed",
    ),
    "restarted-once": (
        {"started": None, "created": AT - HOURS, "waiting": "CrashLoopBackOff", "restarts": 1},
        None,
    ),
    "pulls-its-image": (
        {"phase": "Pending", "started": None, "created": AT - datetime.timedelta(minutes=29)},
        None,
    ),
    "age-unknown": ({"phase": "Pending", "started": None}, None),
    "not-bound": ({"phase": "Pending", "started": None, "created": AT - HOURS, "node": ""}, None),
    "being-deleted": (
        {"phase": "Pending", "started": None, "created": AT - HOURS, "is_terminating": True},
        None,
    ),
}


@pytest.mark.parametrize(("changes", "words"), DOWN.values(), ids=DOWN.keys())
def test_pod_without_running_container_for_long_is_not_starting(
    changes: dict[str, Any], words: str | None
) -> None:
    """After half an hour, for any reason; before that the workload is not-running."""
    item = workload(pod(**changes))
    found = findings(item, {})
    assert found[-1].name is FindingName.NOT_RUNNING
    assert found[0].name is (FindingName.NOT_STARTING if words else FindingName.NOT_RUNNING)
    assert all(finding.verdict is not Verdict.ACT for finding in found)
    if words:
        assert words in found[0].words[0]


def test_not_starting_pod_beside_a_working_one_is_reported() -> None:
    """Somebody should look into it, even though the workload works."""
    down: Pod = pod("w-1", phase="Pending", started=None, created=AT - HOURS, is_ready=False)
    item = workload(pod(), down)
    found = findings(item, usages((item.pods[0], (busy_usage(),))), histories=ALWAYS)
    assert (found[0].name, found[0].verdict) == (FindingName.NOT_STARTING, Verdict.KEEP)


def test_threshold_of_one_finding_does_not_affect_others() -> None:
    """A GPU below one finding's utilization threshold is unused for that finding only."""
    item, found = _eight(busy_usage(0), idle_usage(1, activity_peak=0.04), devices=2)
    by = criteria(tooManyGpus=TooManyGpus(maxUtilizationPercent=5), idle=Thresholds())
    assert findings(item, found, by=by, histories=ALWAYS)[0].name is FindingName.TOO_MANY_GPUS
    assert findings(item, found, histories=ALWAYS)[0].name is FindingName.BUSY
