"""The finding and verdict for each shape of evidence, with data issues and confidence."""

import dataclasses
import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.finders import assess
from rightsizer.model import (
    Confidence,
    Device,
    FindingName,
    Node,
    NodeCoverage,
    ObjectRef,
    PartialSignal,
    Pod,
    SecondSignal,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.policy.thresholds import Thresholds
from tests.rightsizer.build import (
    AT,
    DAY,
    all_idle,
    busy_usage,
    criteria,
    findings,
    fleet,
    history,
    idle_usage,
    measured,
    pod,
    usages,
    workload,
)

EIGHT = pod(devices=8)
YOUNG = pod("young", started=AT - datetime.timedelta(hours=3))
SHARED = pod("shared", devices=2, is_shared=True)
HEALTHY = pod("w-0")
SECOND = pod("w-1")
SHARER = pod("shared", is_shared=True)


def beside_a_busy_pod(worked_s: float = 0.0, *, unattributed_s: float = 0.0, traffic_s: float = 0.0) -> Usage:
    """A pod of a shared GPU by its counters, as `usage` measures it: power and traffic are the neighbour's."""
    busy_s = worked_s + unattributed_s
    return idle_usage(
        is_own=True,
        activity_mean=busy_s / 86_400,
        activity_peak=0.0 if busy_s <= 1.0 else None if worked_s <= 1.0 else 0.9,
        power_peak_w=400.0,
        traffic_peak=0.4,
        busy_s=busy_s,
        unattributed_s=unattributed_s,
        traffic_s=traffic_s + unattributed_s,
    )


RESUMED = "gpu-rightsizer.io/resumed-at"


def _one(usage: Usage) -> tuple[Workload, Usages]:
    return workload(HEALTHY), usages((HEALTHY, (usage,)))


POWER, TRAFFIC = SecondSignal


def _lacking(signal: SecondSignal, share: float, holes: int = 0) -> Usage:
    return idle_usage(lacking=(PartialSignal(signal, share, holes, AT),))


CASES = {
    "nothing-ran": (*_one(idle_usage(memory_peak_bytes=500e6)), FindingName.IDLE, Verdict.ACT),
    "memory-held-is-not-activity": (*_one(idle_usage()), FindingName.IDLE, Verdict.ACT),
    "at-the-threshold-is-idle": (*_one(idle_usage(activity_peak=0.01)), FindingName.IDLE, Verdict.ACT),
    "above-the-threshold-is-busy": (
        *_one(idle_usage(activity_peak=0.02, power_peak_w=300.0)),
        FindingName.UNDERUTILIZED,
        Verdict.KEEP,
    ),
    "one-burst-in-the-window": (
        *_one(idle_usage(activity_peak=0.4, activity_mean=0.0001, power_peak_w=350.0)),
        FindingName.UNDERUTILIZED,
        Verdict.KEEP,
    ),
    "two-of-eight-gpus": (
        workload(EIGHT),
        usages((EIGHT, (busy_usage(0), busy_usage(1), *(idle_usage(i) for i in range(2, 8))))),
        FindingName.TOO_MANY_GPUS,
        Verdict.ACT,
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
        FindingName.BUSY,
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
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "another-pod-of-its-name": (
        workload(HEALTHY),
        usages((HEALTHY, (idle_usage(0), idle_usage(1)))),
        FindingName.INVALID_DATA,
        Verdict.UNKNOWN,
    ),
    "two-shares-of-perhaps-two-devices": (
        workload(SHARED),
        usages((SHARED, (idle_usage(),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "a-hole-in-the-window": (*_one(idle_usage(holes=1)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "power-of-an-hour": (*_one(_lacking(POWER, 0.04)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "power-with-a-hole": (*_one(_lacking(POWER, 0.99, 1)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "power-of-nearly-all": (*_one(_lacking(POWER, 0.95)), FindingName.IDLE, Verdict.ACT),
    "traffic-of-an-hour": (*_one(_lacking(TRAFFIC, 0.04)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "traffic-that-is-no-signal": (
        *_one(dataclasses.replace(_lacking(TRAFFIC, 0.04), traffic_peak=None)),
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "busy-beside-a-hole": (*_one(busy_usage(holes=1)), FindingName.BUSY, Verdict.KEEP),
    "ran-between-the-samples": (*_one(idle_usage(busy_s=30.0)), FindingName.UNDERUTILIZED, Verdict.KEEP),
    "counters-that-hardly-moved": (*_one(idle_usage(busy_s=20.0)), FindingName.IDLE, Verdict.ACT),
    "its-own-idleness-beside-a-busy-neighbour": (
        workload(SHARER),
        usages((SHARER, (idle_usage(is_own=True, power_peak_w=400.0, traffic_peak=0.4),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "its-own-memory-idle-beside-a-busy-neighbour": (
        workload(SHARER),
        usages((SHARER, (beside_a_busy_pod(),))),
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "its-own-memory-read-beside-a-busy-neighbour": (
        workload(SHARER),
        usages((SHARER, (beside_a_busy_pod(traffic_s=30.0),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "a-ten-thousandth-of-the-day-unattributed": (
        workload(SHARER),
        usages((SHARER, (beside_a_busy_pod(unattributed_s=8.6),))),
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "two-minutes-of-the-day-unattributed": (
        workload(SHARER),
        usages((SHARER, (beside_a_busy_pod(unattributed_s=120.0),))),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "a-minute-of-its-own-beside-unattributed-work": (
        workload(SHARER),
        usages((SHARER, (beside_a_busy_pod(60.0, unattributed_s=8.6),))),
        FindingName.UNDERUTILIZED,
        Verdict.KEEP,
    ),
    "its-own-idleness-on-an-idle-board": (
        workload(SHARER),
        usages((SHARER, (idle_usage(is_own=True),))),
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "restored-a-day-ago": (
        workload(HEALTHY, annotations={RESUMED: (AT - DAY).isoformat()}),
        all_idle(workload(HEALTHY)),
        FindingName.IDLE_TOO_BRIEFLY,
        Verdict.KEEP,
    ),
    "restored-two-days-ago": (
        workload(HEALTHY, annotations={RESUMED: (AT - 2 * DAY).isoformat()}),
        all_idle(workload(HEALTHY)),
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "restored-who-knows-when": (
        workload(HEALTHY, annotations={RESUMED: "yesterday"}),
        all_idle(workload(HEALTHY)),
        FindingName.TOO_YOUNG,
        Verdict.UNKNOWN,
    ),
    "restored-in-no-time-zone": (
        workload(HEALTHY, annotations={RESUMED: "2026-11-01T00:00:00"}),
        all_idle(workload(HEALTHY)),
        FindingName.TOO_YOUNG,
        Verdict.UNKNOWN,
    ),
    "half-of-the-window": (*_one(idle_usage(coverage=0.5)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "just-below-the-coverage": (*_one(idle_usage(coverage=0.899)), FindingName.PARTIAL_DATA, Verdict.UNKNOWN),
    "too-few-samples-for-any-coverage": (
        *_one(idle_usage(samples_expected=17)),
        FindingName.PARTIAL_DATA,
        Verdict.UNKNOWN,
    ),
    "just-enough-samples": (*_one(idle_usage(samples_expected=18)), FindingName.IDLE, Verdict.ACT),
    "busy-by-few-samples": (*_one(busy_usage(samples_expected=3)), FindingName.BUSY, Verdict.KEEP),
    "samples-stopped": (*_one(idle_usage(is_fresh=False)), FindingName.STALE_DATA, Verdict.UNKNOWN),
    "impossible-values": (
        *_one(idle_usage(invalid=("DCGM_FI_DEV_GPU_UTIL",))),
        FindingName.INVALID_DATA,
        Verdict.UNKNOWN,
    ),
    "mig-without-activity": (
        *_one(idle_usage(activity_peak=None, activity_mean=None, coverage=0.0, is_fresh=False)),
        FindingName.NO_DATA,
        Verdict.UNKNOWN,
    ),
    "no-second-signal": (
        *_one(idle_usage(traffic_peak=None, power_peak_w=None)),
        FindingName.NO_DATA,
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
    "gauges-and-counters-disagree": (
        workload(SHARER),
        usages((SHARER, (dataclasses.replace(beside_a_busy_pod(), disputed=(0.93, 0.0003)),))),
        FindingName.CONFLICTING_SIGNALS,
        Verdict.UNKNOWN,
    ),
    "busy-though-gauges-and-counters-disagree": (
        *_one(busy_usage(disputed=(0.93, 0.0003))),
        FindingName.BUSY,
        Verdict.KEEP,
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
        FindingName.IDLE,
        Verdict.ACT,
    ),
    "in-its-grace": (
        workload(pod(started=AT - DAY - datetime.timedelta(minutes=29))),
        all_idle(workload()),
        FindingName.IDLE_TOO_BRIEFLY,
        Verdict.KEEP,
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
        workload(HEALTHY, pod("w-1", unreadable=("requests x",), devices=0, node="", phase="Pending")),
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
def test_verdict_follows_each_shape_of_evidence(
    item: Workload, found: Usages, name: FindingName, verdict: Verdict
) -> None:
    """Each shape of evidence leads to one finding and one verdict."""
    finding = findings(item, found)[0]
    assert (finding.name, finding.verdict) == (name, verdict)
    assert finding.words


def test_idle_evidence_names_devices_window_and_levels() -> None:
    """The evidence of an idle finding states devices, window, idle periods and measured levels."""
    finding = findings(workload(EIGHT), all_idle(workload(EIGHT)))[0]
    assert finding.words == (
        "all 8 GPUs stayed at or below 1% utilization for the last 1d",
        "idle for 10d; no activity in 10d of history",
        "GPU activity mean 0%, peak 0%, peak power 122 W, peak memory 37.3 GiB, sample coverage 100%",
        "confidence medium: samples and history agree, but no counters of GPU time are measured",
    )
    assert finding.busy_gpus == 0
    assert (finding.idle_s, finding.longest_return_s, finding.window) == (864_000, 0, DAY)


@pytest.mark.parametrize(
    ("holder", "instance", "words"),
    [
        (HEALTHY, "", "peak power 400 W"),
        (SHARER, "", "peak power of the whole GPU 400 W"),
        (HEALTHY, "1", "peak power of the whole GPU 400 W"),
    ],
)
def test_evidence_says_whose_power_it_shows(holder: Pod, instance: str, words: str) -> None:
    """The neighbours' power beside an idle pod would otherwise look like a contradiction."""
    usage = busy_usage(is_own=True, power_peak_w=400.0)
    usage = dataclasses.replace(usage, device=dataclasses.replace(usage.device, instance=instance))
    (levels,) = [
        text for text in findings(workload(holder), usages((holder, (usage,))))[0].words if "GPU act" in text
    ]
    assert f", {words}, " in levels


def test_mig_instance_without_activity_metric_says_who_has_one() -> None:
    """On an A100 whose other instances work, nothing that NVML has tells whether this one did."""
    usage = idle_usage(activity_peak=None)
    usage = dataclasses.replace(usage, device=dataclasses.replace(usage.device, instance="1"))
    (issue,) = findings(workload(HEALTHY), usages((HEALTHY, (usage,))))[0].words
    assert "before Hopper only dcgm-exporter has one of MIG instances" in issue


def test_busy_gpus_with_an_unmeasured_gpu_are_unknown() -> None:
    """The number of busy GPUs is unknown if one of them was not measured."""
    found = usages((EIGHT, (busy_usage(0), idle_usage(1, activity_peak=None))))
    assert findings(workload(EIGHT), found)[0].busy_gpus is None


def test_gaps_in_samples_are_reported_with_count_and_length() -> None:
    """The message states how many gaps the window has, and how long each is."""
    item, found = _one(idle_usage(holes=3, samples_expected=5760))
    assert findings(item, found)[0].words == (
        "pod w-0: 3 gaps without samples in the last 1d, 15m each: it may have been active then",
    )


MIG = {"resources": {"nvidia.com/mig-1g.10gb.shared": 3}}
INSTANCE = {"device": Device("GPU-0", instance="1")}


@pytest.mark.parametrize(
    ("on_node", "with_series", "shares", "held", "used", "verdict"),
    [
        pytest.param(1, 1, 0, {}, {}, Verdict.ACT, id="node-of-one-gpu"),
        pytest.param(2, 2, 0, {}, {}, Verdict.UNKNOWN, id="node-of-two"),
        pytest.param(1, 2, 0, {}, {}, Verdict.UNKNOWN, id="label-says-one-but-series-are-of-two"),
        pytest.param(2, 1, 0, {}, {}, Verdict.UNKNOWN, id="series-of-one-but-label-says-two"),
        pytest.param(None, 1, 0, {}, {}, Verdict.UNKNOWN, id="number-of-gpus-unknown"),
        pytest.param(2, 2, 3, {}, {}, Verdict.ACT, id="series-name-all-shares"),
        pytest.param(2, 2, 2, {}, {}, Verdict.UNKNOWN, id="series-name-two-of-three"),
        pytest.param(1, 1, 0, MIG, {}, Verdict.UNKNOWN, id="shares-of-mig-instances"),
        pytest.param(1, 1, 0, {}, INSTANCE, Verdict.UNKNOWN, id="shares-of-instances-by-series"),
    ],
)
def test_pod_with_several_shares_is_judged_if_all_their_gpus_are_named(
    on_node: int | None,
    with_series: int,
    shares: int,
    held: dict[str, Any],
    used: dict[str, Any],
    verdict: Verdict,
) -> None:
    """By the shares that series name, or by the number of GPUs of its node."""
    one = pod("w-0", devices=3, is_shared=True, **held)
    found = findings(
        workload(one),
        usages((one, (idle_usage(**used),))),
        nodes=(Node("n1", "NVIDIA L40S", on_node, 48 << 30, {"nvidia.com/gpu": 96}, sharing="time-slicing"),),
        node_coverage={"n1": NodeCoverage(devices=with_series, owned=1, coverage=1.0)},
        shares={("research", "w-0"): shares},
    )
    assert (found[0].verdict, found[0].name is FindingName.NO_DATA) == (verdict, verdict is Verdict.UNKNOWN)


@pytest.mark.parametrize(("owned", "verdict"), [(1, Verdict.UNKNOWN), (2, Verdict.ACT), (8, Verdict.ACT)])
def test_gpu_that_series_name_for_two_pods_makes_both_unknown(owned: int, verdict: Verdict) -> None:
    """If fewer GPUs have a pod label than pods hold, one of the two may have another GPU."""
    item = workload(HEALTHY, SECOND)
    coverage = {"n1": NodeCoverage(devices=8, owned=owned, coverage=1.0)}
    assert findings(item, all_idle(item), node_coverage=coverage)[0].verdict is verdict


@pytest.mark.parametrize(
    ("minutes", "seen", "verdict"),
    [
        pytest.param(10, (), Verdict.ACT, id="no-series-of-the-other"),
        pytest.param(10, (idle_usage(1),), Verdict.ACT, id="another-gpu"),
        pytest.param(10, (idle_usage(0),), Verdict.UNKNOWN, id="the-same-gpu"),
        pytest.param(10, (idle_usage(0, is_fresh=False),), Verdict.ACT, id="the-same-gpu-earlier"),
        pytest.param(9, (idle_usage(0),), Verdict.ACT, id="a-pod-that-series-may-not-name-yet"),
    ],
)
def test_pod_with_all_its_gpus_named_is_judged_beside_pods_without_series(
    minutes: int, seen: tuple[Usage, ...], verdict: Verdict
) -> None:
    """Only a GPU that series name for both leaves open who has the one without a pod label."""
    item = workload(HEALTHY)
    grown = pod("x-0", started=AT - datetime.timedelta(minutes=minutes))
    found = usages((HEALTHY, (idle_usage(0),)), (grown, seen))
    facts = measured(item, found, nodes={"n1": NodeCoverage(devices=8, owned=1, coverage=1.0)})
    assert assess(item, facts, criteria(), fleet(item, workload(grown)))[0].verdict is verdict


@pytest.mark.parametrize(
    ("held", "seen", "names"),
    [
        pytest.param({"devices": 1, "unusable": 1}, (), [FindingName.UNUSABLE_GPUS], id="init-only"),
        pytest.param(
            {"devices": 1, "unusable": 1, "started": None, "phase": "Pending"},
            (),
            [FindingName.NOT_RUNNING],
            id="init-container-runs",
        ),
        pytest.param(
            {"devices": 2, "unusable": 1},
            (idle_usage(),),
            [FindingName.IDLE, FindingName.UNUSABLE_GPUS],
            id="surplus-and-idle",
        ),
        pytest.param(
            {"devices": 2, "unusable": 1}, (busy_usage(),), [FindingName.UNUSABLE_GPUS], id="surplus"
        ),
        pytest.param(
            {"devices": 3, "unusable": 1},
            (idle_usage(),),
            [FindingName.NO_DATA, FindingName.UNUSABLE_GPUS],
            id="one-of-two-named",
        ),
    ],
)
def test_gpus_of_init_containers_are_unusable_once_these_have_ended(
    held: dict[str, Any], seen: tuple[Usage, ...], names: list[FindingName]
) -> None:
    """No series names them, so the pod is judged by the others; a pod with nothing else is never stopped."""
    one = pod("w-0", **held)
    found = findings(workload(one), usages((one, seen)))
    assert [each.name for each in found] == names
    assert all(each.verdict is not Verdict.ACT for each in found if each.name is FindingName.UNUSABLE_GPUS)


@pytest.mark.parametrize(
    ("usage", "slots", "confidence"),
    [
        (idle_usage(busy_s=0.0), ".", Confidence.HIGH),
        (idle_usage(), ".", Confidence.MEDIUM),
        (idle_usage(busy_s=20.0), ".", Confidence.MEDIUM),
        (idle_usage(busy_s=0.0), "?" + "." * 239, Confidence.LOW),
    ],
    ids=["counters-and-history", "no-counters", "counters-that-hardly-moved", "gaps-in-the-history"],
)
def test_confidence_depends_on_counters_samples_and_history(
    usage: Usage, slots: str, confidence: Confidence
) -> None:
    """Confidence is high only if all agree; the reason is part of the evidence."""
    item, found = _one(usage)
    finding = findings(item, found, histories={("research", "w-0"): history(slots)})[0]
    assert (finding.verdict, finding.confidence) == (Verdict.ACT, confidence)
    assert any(words.startswith(f"confidence {confidence.value}") for words in finding.words)


@pytest.mark.parametrize(
    ("kind", "slots", "name"),
    [
        ("Job", "#" + "." * 200, FindingName.FINISHED),
        ("Job", ".", FindingName.IDLE),
        ("Deployment", "#" + "." * 200, FindingName.IDLE),
        ("Pod", "#" + "." * 200, FindingName.FINISHED),
    ],
    ids=["worked-once", "never-worked", "serves", "bare-pod"],
)
def test_batch_workload_idle_after_work_is_finished(kind: str, slots: str, name: FindingName) -> None:
    """Batch work that ran and stopped is finished; serving may be needed again."""
    item = workload(HEALTHY, kind=kind)
    finding = findings(item, all_idle(item), histories={("research", "w-0"): history(slots)})[0]
    assert (finding.name, finding.verdict) == (name, Verdict.ACT)


def test_kind_of_another_group_does_not_end_by_itself() -> None:
    """Only its name is that of a Job."""
    item = workload(HEALTHY, ref=ObjectRef("acme.io/v1", "Job", "research", "w", "uid-w"))
    histories = {("research", "w-0"): history("#" + "." * 200)}
    assert findings(item, all_idle(item), histories=histories)[0].name is FindingName.IDLE


@pytest.mark.parametrize(("is_own", "said"), [(False, True), (True, False)])
def test_shared_gpu_with_device_metrics_says_that_activity_includes_other_pods(
    is_own: bool, said: bool
) -> None:
    """The evidence says so only if just the whole device is measured."""
    finding = findings(workload(SHARER), usages((SHARER, (busy_usage(is_own=is_own),))))[0]
    assert finding.name is FindingName.BUSY
    assert ("pods share the GPU; its activity includes that of the other pods" in finding.words) is said


def test_window_without_usage_is_no_data() -> None:
    """A window that was not measured gives no-data."""
    finding = findings(workload(HEALTHY), {}, usages={}, by=criteria())[0]
    assert (finding.name, finding.verdict) == (FindingName.NO_DATA, Verdict.UNKNOWN)


@pytest.mark.covers("P9")
@pytest.mark.parametrize(
    ("lost", "words"),
    [
        pytest.param({"power_peak_w": None, "power_mean_w": None}, "no power data for", id="power"),
        pytest.param({"traffic_peak": None}, "no memory-traffic data for", id="traffic"),
    ],
)
def test_signal_missing_on_one_gpu_of_a_node_is_partial_data(lost: dict[str, None], words: str) -> None:
    """The lost signal may have shown work; if no GPU of the node has it, nothing was lost."""
    item = workload(HEALTHY, SECOND)
    hidden = idle_usage(0, **lost)
    (first, *_) = findings(item, usages((HEALTHY, (hidden,)), (SECOND, (idle_usage(1),))))
    assert (first.name, first.verdict) == (FindingName.PARTIAL_DATA, Verdict.UNKNOWN)
    assert words in first.words[0]
    both = usages((HEALTHY, (hidden,)), (SECOND, (idle_usage(1, **lost),)))
    assert findings(item, both)[0].verdict is Verdict.ACT


_SECONDS = st.sampled_from([0.0, 0.5, 1.0, 8.6, 20.0, 23.9, 24.1, 60.0, 3600.0])


@hypothesis.given(_SECONDS, _SECONDS, st.tuples(_SECONDS, _SECONDS), st.tuples(*[st.floats(0, 36)] * 2))
def test_findings_with_more_unattributed_work_or_a_lower_bound_never_act(
    worked_s: float, traffic_s: float, lost_s: tuple[float, float], bounds: tuple[float, float]
) -> None:
    """Work that may be the pod's never turns unknown or keep into act, and neither does a more careful policy."""

    def acts(unattributed_s: float, bound: float) -> bool:
        used = beside_a_busy_pod(worked_s, unattributed_s=unattributed_s, traffic_s=traffic_s)
        by = criteria(idle=Thresholds(maxUnattributedSecondsPerHour=bound))
        found = findings(workload(SHARER), usages((SHARER, (used,))), by=by)
        return found[0].verdict is Verdict.ACT

    (less_s, more_s), (careful, bold) = sorted(lost_s), sorted(bounds)
    assert acts(less_s, bold) or not acts(more_s, bold)
    assert acts(less_s, bold) or not acts(less_s, careful)


@pytest.mark.parametrize(("bound", "verdict"), [(0.3, Verdict.UNKNOWN), (0.4, Verdict.ACT)])
def test_findings_unattributed_work_above_the_policys_bound_is_unknown(
    bound: float, verdict: Verdict
) -> None:
    """8.6 s in a day are 0.36 s in an hour."""
    by = criteria(idle=Thresholds(maxUnattributedSecondsPerHour=bound))
    used = beside_a_busy_pod(unattributed_s=8.6)
    assert findings(workload(SHARER), usages((SHARER, (used,))), by=by)[0].verdict is verdict


def test_pod_whose_devices_cannot_be_counted_is_named_with_the_reason() -> None:
    """Each reason is a predicate of the pod."""
    item = workload(pod(unreadable=("has claim c, which could not be read",), devices=0))
    (found,) = findings(item, {})
    assert found.words == ("pod w-0 has claim c, which could not be read",)
