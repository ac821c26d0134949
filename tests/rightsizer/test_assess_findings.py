"""What is stuck, input-bound, underutilized or stranded."""

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
from rightsizer.policy.schema import Thresholds, TooManyGpus
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
def test_one_that_spins_speaks_for_its_ranks_not_for_other_replicas(kind: str, verdict: Verdict) -> None:
    """A replica that hangs is named; those beside it may only have had nothing to do."""
    item = workload(pod(), pod("w-1"), kind=kind)
    found = usages((item.pods[0], (idle_usage(0),)), (item.pods[1], (_spinning(1),)))
    finding = findings(item, found, histories=ALWAYS)[0]
    assert (finding.name, finding.verdict) == (FindingName.STUCK, verdict)
    assert ("the others may be well: delete w-1" in finding.words) is (verdict is Verdict.KEEP)


def test_one_that_spins_is_told_once() -> None:
    """Signals that contradict each other are no second finding beside it; one GPU is not counted."""
    found = findings(*_eight(_spinning(), devices=1), histories=ALWAYS)
    assert [finding.name for finding in found] == [FindingName.STUCK]
    assert found[0].words[0].startswith("its GPU spun at ")


@pytest.mark.parametrize(("world", "name", "verdict"), SPINS.values(), ids=SPINS.keys())
def test_full_utilization_is_no_proof_of_work(
    world: tuple[Workload, Usages], name: FindingName, verdict: Verdict
) -> None:
    """Stuck only where power and memory traffic say so of every GPU; with one of them alone nobody knows."""
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
def test_what_waits_is_named(waits: Waits, words: str | None) -> None:
    """A workload that uses its GPUs little while it waits for something else is kept, and told why."""
    item = workload(pod())
    usage = busy_usage(activity_mean=0.3)
    found = findings(
        item, usages((item.pods[0], (usage,))), waits={("research", "w-0"): waits}, histories=ALWAYS
    )
    assert [finding.name for finding in found] == [FindingName.INPUT_BOUND if words else FindingName.BUSY]
    assert found[0].verdict is Verdict.KEEP
    if words:
        assert words in found[0].words[0]


def test_waiting_takes_confidence_not_the_verdict() -> None:
    """What is measured beside the GPUs never makes a verdict; its absence could not unmake it."""
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
def test_what_works_far_below_what_it_holds(mean: float, coverage: float, name: FindingName) -> None:
    """Named where all of the window is known."""
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
def test_gpus_held_by_pods_that_do_not_run(changes: dict[str, Any], words: str | None) -> None:
    """Named after half an hour, whatever keeps them; before that, and where nothing is held, they are not running."""
    item = workload(pod(**changes))
    found = findings(item, {})
    assert found[-1].name is FindingName.NOT_RUNNING
    assert found[0].name is (FindingName.NOT_STARTING if words else FindingName.NOT_RUNNING)
    assert all(finding.verdict is not Verdict.ACT for finding in found)
    if words:
        assert words in found[0].words[0]


def test_a_stranded_pod_beside_one_that_works() -> None:
    """Somebody should look into it, though the workload works."""
    down: Pod = pod("w-1", phase="Pending", started=None, created=AT - HOURS, is_ready=False)
    item = workload(pod(), down)
    found = findings(item, usages((item.pods[0], (busy_usage(),))), histories=ALWAYS)
    assert (found[0].name, found[0].verdict) == (FindingName.NOT_STARTING, Verdict.KEEP)


def test_thresholds_are_each_findings_own() -> None:
    """A GPU below the utilization that a finding calls use is unused to it alone."""
    item, found = _eight(busy_usage(0), idle_usage(1, activity_peak=0.04), devices=2)
    by = criteria(too_many_gpus=TooManyGpus(maxUtilizationPercent=5), idle=Thresholds())
    assert findings(item, found, by=by, histories=ALWAYS)[0].name is FindingName.TOO_MANY_GPUS
    assert findings(item, found, histories=ALWAYS)[0].name is FindingName.BUSY
