"""What the measurements say about a workload: the verdict for each shape of evidence."""

import datetime

import pytest

from rightsizer.assess import assess
from rightsizer.model import FindingName, Usage, Usages, Verdict, Workload
from tests.rightsizer.build import (
    AT,
    DAY,
    THRESHOLDS,
    all_idle,
    busy_usage,
    idle_usage,
    pod,
    usages,
    workload,
)

EIGHT = pod(devices=8)
YOUNG = pod("young", started=AT - datetime.timedelta(hours=3))
SHARED = pod("shared", devices=2, is_shared=True)
HEALTHY = pod("w-0")
SECOND = pod("w-1")


def _one(usage: Usage) -> tuple[Workload, Usages]:
    return workload(HEALTHY), usages((HEALTHY, (usage,)))


CASES = {
    "nothing-ran": (*_one(idle_usage(memory_peak_bytes=500e6)), FindingName.IDLE, Verdict.ACT),
    "memory-held-is-not-activity": (*_one(idle_usage()), FindingName.PARKED, Verdict.ACT),
    "at-the-threshold-is-idle": (*_one(idle_usage(activity_peak=0.01)), FindingName.PARKED, Verdict.ACT),
    "above-the-threshold-is-busy": (
        *_one(idle_usage(activity_peak=0.02, power_peak_w=300.0)),
        FindingName.BUSY,
        Verdict.KEEP,
    ),
    "one-burst-in-the-window": (
        *_one(idle_usage(activity_peak=0.4, activity_mean=0.0001, power_peak_w=350.0)),
        FindingName.BUSY,
        Verdict.KEEP,
    ),
    "two-of-eight-gpus": (
        workload(EIGHT),
        usages((EIGHT, (busy_usage(0), busy_usage(1), *(idle_usage(i) for i in range(2, 8))))),
        FindingName.TOO_MANY_GPUS,
        Verdict.KEEP,
    ),
    "one-of-two-replicas": (
        workload(HEALTHY, SECOND),
        usages((HEALTHY, (busy_usage(0),)), (SECOND, (idle_usage(1),))),
        FindingName.TOO_MANY_REPLICAS,
        Verdict.KEEP,
    ),
    "busy-though-another-replica-has-no-data": (
        workload(HEALTHY, SECOND),
        usages((HEALTHY, (busy_usage(0),))),
        FindingName.TOO_MANY_REPLICAS,
        Verdict.KEEP,
    ),
    "idle-and-another-replica-has-no-data": (
        workload(HEALTHY, SECOND),
        usages((HEALTHY, (idle_usage(0),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "no-series-at-all": (workload(HEALTHY), {}, FindingName.NO_DATA, Verdict.UNKNOWN),
    "seven-of-eight-devices-have-series": (
        workload(EIGHT),
        usages((EIGHT, tuple(idle_usage(i) for i in range(7)))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "a-share-of-an-idle-device": (
        workload(pod("shared", is_shared=True)),
        usages((SHARED, (idle_usage(),))),
        FindingName.PARKED,
        Verdict.ACT,
    ),
    "another-pod-of-its-name": (
        workload(HEALTHY),
        usages((HEALTHY, (idle_usage(0), idle_usage(1)))),
        FindingName.AMBIGUOUS_DATA,
        Verdict.UNKNOWN,
    ),
    "two-shares-of-perhaps-two-devices": (
        workload(SHARED),
        usages((SHARED, (idle_usage(),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "half-of-the-window": (*_one(idle_usage(coverage=0.5)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "just-below-the-coverage": (*_one(idle_usage(coverage=0.899)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "too-few-samples-for-any-coverage": (
        *_one(idle_usage(samples_expected=17)),
        FindingName.WINDOW_TOO_SHORT,
        Verdict.UNKNOWN,
    ),
    "just-enough-samples": (*_one(idle_usage(samples_expected=18)), FindingName.PARKED, Verdict.ACT),
    "busy-by-few-samples": (*_one(busy_usage(samples_expected=3)), FindingName.BUSY, Verdict.KEEP),
    "samples-stopped": (*_one(idle_usage(is_fresh=False)), FindingName.STALE_DATA, Verdict.UNKNOWN),
    "impossible-values": (
        *_one(idle_usage(invalid=("DCGM_FI_DEV_GPU_UTIL",))),
        FindingName.INVALID_DATA,
        Verdict.UNKNOWN,
    ),
    "mig-without-activity": (
        *_one(idle_usage(activity_peak=None, activity_mean=None, coverage=0.0, is_fresh=False)),
        FindingName.UNMEASURABLE,
        Verdict.UNKNOWN,
    ),
    "no-second-signal": (
        *_one(idle_usage(traffic_peak=None, power_peak_w=None)),
        FindingName.UNMEASURABLE,
        Verdict.UNKNOWN,
    ),
    "idle-but-draws-power": (
        *_one(idle_usage(power_peak_w=400.0)),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "idle-but-moves-memory": (
        *_one(idle_usage(traffic_peak=0.3)),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "spinning-at-idle-power": (
        *_one(busy_usage(power_peak_w=121.0)),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "younger-than-the-window": (
        workload(YOUNG),
        usages((YOUNG, (idle_usage(),))),
        FindingName.TOO_YOUNG,
        Verdict.UNKNOWN,
    ),
    "old-enough-to-the-second": (
        workload(pod(started=AT - DAY - datetime.timedelta(minutes=30))),
        all_idle(workload()),
        FindingName.PARKED,
        Verdict.ACT,
    ),
    "in-its-grace": (
        workload(pod(started=AT - DAY - datetime.timedelta(minutes=29))),
        all_idle(workload()),
        FindingName.TOO_YOUNG,
        Verdict.UNKNOWN,
    ),
    "young-but-busy": (
        workload(YOUNG),
        usages((YOUNG, (busy_usage(),))),
        FindingName.BUSY,
        Verdict.KEEP,
    ),
    "pending": (
        workload(pod(phase="Pending", node="", started=None)),
        {},
        FindingName.NOT_RUNNING,
        Verdict.UNKNOWN,
    ),
    "not-ready": (
        workload(pod(is_ready=False)),
        all_idle(workload()),
        FindingName.NOT_RUNNING,
        Verdict.UNKNOWN,
    ),
    "being-deleted": (
        workload(pod(is_terminating=True)),
        all_idle(workload()),
        FindingName.NOT_RUNNING,
        Verdict.UNKNOWN,
    ),
    "gpus-that-cannot-be-counted": (
        workload(
            HEALTHY, pod("w-1", unreadable=("nvidia.com/gpu: '500m'",), devices=0, node="", phase="Pending")
        ),
        usages((HEALTHY, (idle_usage(0),))),
        FindingName.INVALID_DATA,
        Verdict.UNKNOWN,
    ),
    "container-restarting": (
        workload(pod(started=None)),
        all_idle(workload()),
        FindingName.NOT_RUNNING,
        Verdict.UNKNOWN,
    ),
}


@pytest.mark.parametrize(("item", "found", "name", "verdict"), CASES.values(), ids=CASES.keys())
def test_verdict_for_each_shape_of_evidence(
    item: Workload, found: Usages, name: FindingName, verdict: Verdict
) -> None:
    """Each shape of evidence has one finding and one verdict."""
    finding = assess(item, found, THRESHOLDS, AT)
    assert (finding.name, finding.verdict) == (name, verdict)
    assert finding.words


def test_evidence_says_numbers_in_words() -> None:
    """The words of an idle finding name the devices, the window and each level that was measured."""
    finding = assess(workload(EIGHT), all_idle(workload(EIGHT)), THRESHOLDS, AT)
    assert finding.words == (
        "none of its 8 GPUs was above 1% at any time in the last 1d",
        "activity mean 0%, peak 0%, power peak 122 W, memory peak 37.3 GiB, coverage 100%",
    )
    assert finding.busy_gpus == 0


def test_unknown_activity_is_not_counted_as_idle() -> None:
    """How many GPUs are busy stays unknown where one of them was not measured."""
    found = usages((EIGHT, (busy_usage(0), idle_usage(1, activity_peak=None))))
    assert assess(workload(EIGHT), found, THRESHOLDS, AT).busy_gpus is None
