"""Scale-down and scale-up by the number of replicas that are active in the same minute."""

import dataclasses
import datetime
from typing import Any

import pytest

from rightsizer.model import (
    Action,
    Finding,
    FindingName,
    Mode,
    ObjectRef,
    Proposal,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.policy.thresholds import TooManyReplicas
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    SHRUNK,
    busy_usage,
    concurrency,
    criteria,
    findings,
    idle_usage,
    judged,
    pod,
    policy,
    rule,
    usages,
    workload,
)

MINUTE = datetime.timedelta(minutes=1)


def _named(found: tuple[Finding, ...], name: FindingName) -> Finding | None:
    return next((finding for finding in found if finding.name is name), None)


def _replicas(
    count: int, *used: Usage, size: int | None = -1, kind: str = "Deployment", **changes: Any
) -> tuple[Workload, Usages]:
    """So many pods of one GPU; the first ones as given, the others idle."""
    pods = [pod(f"w-{number}") for number in range(count)]
    item = workload(*pods, kind=kind, **changes)
    if size != -1:
        item = dataclasses.replace(item, size=size)
    rest = [idle_usage(number) for number in range(len(used), count)]
    return item, usages(*((one, (usage,)) for one, usage in zip(pods, (*used, *rest), strict=True)))


def _counted(*busy: int | None, **changes: Any) -> dict[str, Any]:
    return {"histories": ALWAYS, "concurrency": {"uid-w": concurrency(*busy, **changes)}}


TURNS = _replicas(6, busy_usage(0), busy_usage(1), busy_usage(2), created=AT - 30 * DAY)


@pytest.mark.parametrize(
    ("busy", "earlier", "left"),
    [((2,), 0, 3), ((2, 3, 1), 0, 4), ((0,), 0, 1), ((1,), 4, 5), ((3,), None, None), ((5,), 0, None)],
    ids=["two-at-once", "three-at-once", "none-lately", "more-at-this-hour", "a-day-unknown", "all-but-one"],
)
def test_required_replicas_are_the_busiest_minute_plus_headroom(
    busy: tuple[int, ...], earlier: int | None, left: int | None
) -> None:
    """Recent minutes and the same hour on other days count; at least one replica stays."""
    finding = _named(findings(*TURNS, **_counted(*busy, earlier=earlier)), FindingName.TOO_MANY_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == left
    if proposal is not None and left is not None:
        assert (proposal.action, proposal.frees) == (Action.SCALE_DOWN, 6 - left)


def test_scale_down_names_the_idle_pods() -> None:
    """The proposal names the pods, and the evidence states the numbers."""
    finding = findings(*TURNS, **_counted(2, 1))[0]
    assert finding.words[0] == (
        "at most 2 of 6 replicas were active in the same minute of the last 1h "
        "and, for the coming hour, of the same hour on 7 days before"
    )
    assert finding.proposal == Proposal(
        Action.SCALE_DOWN,
        3.0,
        "3 replicas needed, including 1 as headroom; frees 3 GPUs",
        replicas=3,
        pods=("w-3", "w-4", "w-5"),
    )


def _changed(index: int, **changes: Any) -> Usages:
    """The same replicas, one of them measured otherwise."""
    key = ("research", f"w-{index}")
    return {**TURNS[1], key: (dataclasses.replace(TURNS[1][key][0], **changes),)}


KEPT: dict[str, tuple[Workload, Usages, dict[str, Any], str]] = {
    "a-minute-unknown": (*TURNS, _counted(1, None, 1), "no data about active replicas for 1 of the minutes"),
    "minutes-missing": (
        *TURNS,
        {"concurrency": {"uid-w": dataclasses.replace(concurrency(), busy=(1,) * 58)}},
        "no data about active replicas for 2 of the minutes",
    ),
    "a-day-unknown": (*TURNS, _counted(1, earlier=None), "active replicas for 7 of the minutes and hours"),
    "days-missing": (*TURNS, _counted(1, days=5), "active replicas for 2 of the minutes and hours"),
    "not-counted": (*TURNS, {}, "3 of 6 pods were active in the last 1d; unknown how many at the same time"),
    "being-scaled": (
        dataclasses.replace(TURNS[0], size=8),
        TURNS[1],
        _counted(1),
        "it is being scaled: 8 replicas, 6 pods",
    ),
    "pods-that-differ": (
        dataclasses.replace(
            TURNS[0], pods=(*TURNS[0].pods[:5], pod("w-5", resources={"nvidia.com/mig-1g.10gb": 1}))
        ),
        TURNS[1],
        _counted(1),
        "its pods hold different GPUs",
    ),
    "samples-stopped": (TURNS[0], _changed(4, is_fresh=False), _counted(1), "its series ended"),
    "no-second-signal": (
        TURNS[0],
        _changed(4, power_peak_w=None, traffic_peak=None),
        _counted(1),
        "no power or memory-traffic data",
    ),
}


@pytest.mark.parametrize(("item", "found", "given", "words"), KEPT.values(), ids=KEPT.keys())
def test_scale_down_without_proof_is_advice(
    item: Workload, found: Usages, given: dict[str, Any], words: str
) -> None:
    """Incomplete data keeps all replicas; the finding stays and says why."""
    finding = findings(item, found, **given)[0]
    assert (finding.name, finding.verdict, finding.proposal) == (
        FindingName.TOO_MANY_REPLICAS,
        Verdict.KEEP,
        None,
    )
    assert words in " | ".join(finding.words)


def test_days_before_creation_are_not_missing() -> None:
    """A Deployment that is two days old has no third day."""
    item = dataclasses.replace(TURNS[0], created=AT - 2 * DAY - MINUTE)
    finding = findings(item, TURNS[1], **_counted(1, days=2))[0]
    assert finding.verdict is Verdict.ACT
    assert "on 2 days before" in finding.words[0]


def test_replica_with_power_draw_counts_as_active() -> None:
    """Even if no sample saw a kernel."""
    finding = findings(TURNS[0], _changed(4, power_peak_w=400.0), **_counted(1))[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 3
    assert "w-4" not in finding.proposal.pods


@pytest.mark.parametrize(
    "item",
    [
        dataclasses.replace(TURNS[0], ref=dataclasses.replace(TURNS[0].ref, kind="PyTorchJob")),
        dataclasses.replace(TURNS[0], gang="PodGroup research/train"),
    ],
    ids=["training", "gang"],
)
def test_pods_of_a_gang_are_not_replicas(item: Workload) -> None:
    """A waiting rank is not a superfluous replica."""
    found = findings(item, TURNS[1], **_counted(1))
    assert [finding.name for finding in found] == [FindingName.BUSY]
    assert found[0].words[0] == "3 of 6 pods were active in the last 1d"


@pytest.mark.parametrize(("busy", "left"), [(1, 2), (2, None), (4, None)])
def test_leader_worker_set_is_scaled_by_groups(busy: int, left: int | None) -> None:
    """Three groups of two pods: at most as many groups as pods can be active."""
    item, found = _replicas(6, busy_usage(0), kind="LeaderWorkerSet", size=3, created=AT - 30 * DAY)
    finding = _named(findings(item, found, **_counted(busy)), FindingName.TOO_MANY_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == left
    if proposal is not None:
        assert proposal.frees == 2.0


@pytest.mark.parametrize(
    ("hosts", "going", "left"),
    [
        ("001122", ("w-4", "w-5"), 4),  # two are needed with headroom, so three could go: that is one replica
        ("012345", ("w-3", "w-4", "w-5"), 3),
        ("000111", ("w-3", "w-4", "w-5"), 3),
        ("012012", (), None),  # of each a host is at work
    ],
)
def test_scale_down_of_multi_host_replicas_removes_whole_ones(
    hosts: str, going: tuple[str, ...], left: int | None
) -> None:
    """For RayCluster groups with several hosts."""
    ref = ObjectRef("ray.io/v1", "RayCluster", "research", "w", "uid-w")
    labels = [{"ray.io/worker-group-replica-name": f"gpu-{one}"} for one in hosts]
    pods = [pod(f"w-{number}", labels=of) for number, of in enumerate(labels)]
    item = dataclasses.replace(TURNS[0], ref=ref, pods=tuple(pods), size=None)
    finding = _named(findings(item, TURNS[1], **_counted(2)), FindingName.TOO_MANY_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None, proposal.pods if proposal else ()) == (left, going)
    assert proposal is None or (left is not None and proposal.frees == 6 - left)


def test_workload_of_idle_replicas_is_idle() -> None:
    """The finding that frees most comes first: no replica was active for long."""
    item, found = _replicas(6, created=AT - 30 * DAY)
    names = [finding.name for finding in findings(item, found, concurrency={"uid-w": concurrency()})]
    assert names == [FindingName.IDLE, FindingName.TOO_MANY_REPLICAS]


@pytest.mark.parametrize(
    ("busy", "target"),
    [((1,), None), ((2,), 3), ((0, 2, None), 3), ((1,) * 60, None)],
    ids=["enough-left", "all-at-work", "gaps-take-no-demand-away", "steady"],
)
def test_demand_above_the_remaining_replicas_scales_up(
    busy: tuple[int | None, ...], target: int | None
) -> None:
    """As soon as demand and headroom exceed what is left."""
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=SHRUNK, created=AT - 30 * DAY)
    finding = _named(findings(item, found, **_counted(*busy)), FindingName.TOO_FEW_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == target
    if finding is not None and proposal is not None:
        assert (finding.verdict, proposal.action, proposal.frees) == (Verdict.ACT, Action.SCALE_UP, -1.0)


def test_scale_up_stops_at_the_original_number() -> None:
    """Whatever the demand, now or at the same hour on other days."""
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=SHRUNK, created=AT - 30 * DAY)
    finding = findings(item, found, **_counted(2, earlier=40))[0]
    assert finding.proposal is not None
    assert (finding.proposal.replicas, finding.proposal.frees) == (6, -4.0)


@pytest.mark.parametrize(
    "record",
    [
        "{}",
        "not JSON",
        SHRUNK["gpu-rightsizer.io/undo"].replace('"after":2', '"after":0'),
        SHRUNK["gpu-rightsizer.io/undo"].replace('"before":6', '"before":1'),
        SHRUNK["gpu-rightsizer.io/undo"].replace('"before":6', '"before":true'),
    ],
    ids=["empty", "garbage", "stopped-not-shrunk", "smaller-before", "no-number"],
)
def test_scale_up_with_a_foreign_record_is_not_proposed(record: str) -> None:
    """Only a scale-down record states the original number."""
    annotations = {"gpu-rightsizer.io/undo": record}
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=annotations, created=AT - 30 * DAY)
    assert _named(findings(item, found, **_counted(2)), FindingName.TOO_FEW_REPLICAS) is None


def test_headroom_is_the_larger_of_percentage_and_number() -> None:
    """Both come from the policy."""
    by = criteria(too_many_replicas=TooManyReplicas(headroomPercent=100, minHeadroom=0))
    finding = findings(*TURNS, by=by, **_counted(2))[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 4


def test_scale_down_keeps_one_replica() -> None:
    """Even without headroom and recent demand."""
    by = criteria(too_many_replicas=TooManyReplicas(headroomPercent=0, minHeadroom=0))
    finding = findings(*TURNS, by=by, **_counted(0))[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 1


def test_scale_down_without_known_group_size_is_not_proposed() -> None:
    """Only the object itself states how many pods form a group."""
    item, found = _replicas(6, busy_usage(0), kind="LeaderWorkerSet", size=None, created=AT - 30 * DAY)
    finding = findings(item, found, **_counted(1))[0]
    assert (finding.name, finding.proposal) == (FindingName.TOO_MANY_REPLICAS, None)


@pytest.mark.parametrize(("allowed", "reason"), [(3, ""), (2, "pdb allows 2 disruptions, shrinking needs 3")])
def test_scale_down_respects_the_pod_disruption_budget(allowed: int, reason: str) -> None:
    """The budget has to allow the removed pods, not all of them."""
    item, found = _replicas(
        6, busy_usage(0), busy_usage(1), busy_usage(2), created=AT - 30 * DAY, budgets={"pdb": allowed}
    )
    rules = policy(rule("all", findings={FindingName.TOO_MANY_REPLICAS: Mode.ENFORCE}))
    decision = judged(item, found, rules, **_counted(2))
    assert decision.action is Action.SCALE_DOWN
    assert [block.message for block in decision.blockers] == (
        [f"PodDisruptionBudget {reason}"] if reason else []
    )
