"""Scale-down and scale-up by the number of replicas that are active in the same minute."""

import dataclasses
import datetime
from typing import Any

import pytest

from rightsizer.findings.replicas import counted_window
from rightsizer.model import (
    Action,
    ChangeRecord,
    Concurrency,
    Finding,
    FindingName,
    Mode,
    ObjectRef,
    Proposal,
    ServingLoad,
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
    all_idle,
    busy_usage,
    concurrency,
    criteria,
    findings,
    history,
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


def _counted(*busy: int, **changes: Any) -> dict[str, Any]:
    return {"histories": ALWAYS, "concurrency": {"uid-w": concurrency(*busy, **changes)}}


TURNS = _replicas(6, busy_usage(0), busy_usage(1), busy_usage(2), created=AT - 30 * DAY)


@pytest.mark.parametrize(
    ("busy", "unseen", "left"),
    [((2,), 0, 3), ((2, 3, 1), 0, 4), ((0,), 0, 1), ((1,), 1, 3), ((1,), 4, None), ((5,), 0, None)],
    ids=["two-at-once", "three-at-once", "none-lately", "one-unseen", "most-unseen", "all-but-one"],
)
def test_required_replicas_are_the_busiest_minute_plus_headroom(
    busy: tuple[int, ...], unseen: int, left: int | None
) -> None:
    """A replica without samples in a minute counts as active in it; at least one replica stays."""
    finding = _named(findings(*TURNS, **_counted(*busy, unseen=unseen)), FindingName.TOO_MANY_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == left
    if proposal is not None and left is not None:
        assert (proposal.action, proposal.frees) == (Action.SCALE_DOWN, 6 - left)


LENGTH = counted_window(TooManyReplicas()) // MINUTE


def _minutes(*busy: tuple[int, int], before: int = 0) -> Concurrency:
    """So many active replicas (second) for so many minutes (first), up to now; before that as many as given."""
    row = [most for minutes, most in busy for _ in range(minutes)]
    return Concurrency((*[before] * (LENGTH - len(row)), *row))


JUMPS = {
    "none": (_minutes(before=20), 22),  # 10 % more
    "sudden": (_minutes((60, 20), (5, 35), (60, 20), before=20), 35),
    "within-the-lead-time": (_minutes((60, 20), (8, 25), (8, 30), (60, 20), before=20), 30),
    "slower": (_minutes((60, 20), (45, 25), (45, 30), before=20), 35),
    "over-and-back": (_minutes((100, 20), (1, 40), (5, 20), before=20), 60),
    "long-ago": (_minutes((LENGTH, 20), before=20), 22),
    "not-counted": (Concurrency((20,) * 60), None),
}


@pytest.mark.parametrize(("counted", "left"), JUMPS.values(), ids=JUMPS.keys())
def test_headroom_is_the_largest_jump_of_the_last_hours(counted: Concurrency, left: int | None) -> None:
    """How far a minute exceeded the busiest of the ten minutes that ended up to twenty minutes before it."""
    item, found = _replicas(100, busy_usage(0), created=AT - 30 * DAY)
    finding = _named(findings(item, found, concurrency={"uid-w": counted}), FindingName.TOO_MANY_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == left


def test_jumps_that_may_hide_behind_lost_samples_are_headroom() -> None:
    """Each of them may have been active in that minute, and none of those around them."""
    item, found = _replicas(100, busy_usage(0), created=AT - 30 * DAY)
    unseen = (*[0] * (LENGTH - 60), 8, *[0] * 59)
    counted = Concurrency((20,) * LENGTH, unseen)
    finding = findings(item, found, concurrency={"uid-w": counted})[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 28


def test_jumps_from_minutes_of_lost_samples_are_headroom() -> None:
    """The minutes before the jump may have had less demand than all that may have been active in them."""
    item, found = _replicas(100, busy_usage(0), created=AT - 30 * DAY)
    busy = (*[20] * (LENGTH - 130), *[0] * 30, *[20] * 100)
    unseen = (*[0] * (LENGTH - 130), *[20] * 30, *[0] * 100)
    finding = findings(item, found, concurrency={"uid-w": Concurrency(busy, unseen)})[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 40


def test_jumps_before_their_history_are_ignored() -> None:
    """The policy says how far back they are searched."""
    by = criteria(tooManyReplicas=TooManyReplicas(jumpHistory=30 * MINUTE))
    item, found = _replicas(100, busy_usage(0), created=AT - 30 * DAY)
    counted = _minutes((60, 20), (5, 35), (60, 20), before=20)
    finding = findings(item, found, by=by, concurrency={"uid-w": counted})[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 22


@pytest.mark.parametrize(("busy", "left"), [(80, 88), (82, None)])
def test_scale_down_that_saves_little_is_not_proposed(busy: int, left: int | None) -> None:
    """It must remove a tenth of the replicas."""
    item, found = _replicas(100, busy_usage(0), created=AT - 30 * DAY)
    finding = _named(findings(item, found, **_counted(busy)), FindingName.TOO_MANY_REPLICAS)
    assert (finding.proposal.replicas if finding and finding.proposal else None) == left


def test_scale_down_names_the_idle_pods() -> None:
    """The proposal names the pods, and the evidence states the numbers."""
    finding = findings(*TURNS, **_counted(2, 1))[0]
    assert finding.words[0] == ("at most 2 of 6 replicas were active in the same minute of the last 10m")
    assert finding.proposal == Proposal(
        Action.SCALE_DOWN,
        3.0,
        "3 replicas needed, with headroom (largest jump in 3h: 0); frees 3 GPUs",
        replicas=3,
        pods=("w-3", "w-4", "w-5"),
    )


def _changed(index: int, **changes: Any) -> Usages:
    """The same replicas, one of them measured otherwise."""
    key = ("research", f"w-{index}")
    return {**TURNS[1], key: (dataclasses.replace(TURNS[1][key][0], **changes),)}


KEPT: dict[str, tuple[Workload, Usages, dict[str, Any], str]] = {
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


UNPROVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "samples-stopped": ({}, {"is_fresh": False}),
    "no-second-signal": ({}, {"power_peak_w": None, "traffic_peak": None}),
    "no-activity-metric": ({}, {"activity_peak": None}),
    "impossible-values": ({}, {"invalid": ("DCGM_FI_DEV_GPU_UTIL",)}),
    "partial": ({}, {"coverage": 0.5}),
    "young": ({"started": AT - 5 * MINUTE}, {}),
    "not-ready": ({"is_ready": False}, {}),
    "not-running": ({"phase": "Pending"}, {}),
    "terminating": ({"is_terminating": True}, {}),
}


@pytest.mark.parametrize(("of_pod", "of_usage"), UNPROVEN.values(), ids=UNPROVEN.keys())
def test_replica_that_is_not_proven_idle_counts_as_active(
    of_pod: dict[str, Any], of_usage: dict[str, Any]
) -> None:
    """It keeps itself, and not all replicas."""
    pods = tuple(
        dataclasses.replace(one, **of_pod) if one.ref.name == "w-4" else one for one in TURNS[0].pods
    )
    item = dataclasses.replace(TURNS[0], pods=pods)
    finding = findings(item, _changed(4, **of_usage), **_counted(1))[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 3


def test_replica_of_two_devices_with_a_long_gap_counts_as_active() -> None:
    """In each minute one of its devices has samples, so that only its coverage shows the gap."""
    pods = [pod(f"w-{number}", devices=2) for number in range(6)]
    item = workload(*pods, kind="Deployment", created=AT - 30 * DAY)
    found = usages(
        *((one, (busy_usage(place * 2), busy_usage(place * 2 + 1))) for place, one in enumerate(pods))
    )
    key = ("research", "w-4")
    gap = {**found, key: (found[key][0], dataclasses.replace(found[key][1], coverage=0.91))}
    left = [
        finding.proposal.replicas if finding and finding.proposal else None
        for finding in (
            _named(findings(item, each, **_counted(1)), FindingName.TOO_MANY_REPLICAS)
            for each in (found, gap)
        )
    ]
    assert left == [2, 3]


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


@pytest.mark.parametrize(
    "kind", ["Deployment", "ReplicaSet", "ReplicationController", "Rollout", "StatefulSet"]
)
def test_pods_of_each_kind_with_alike_replicas_are_counted(kind: str) -> None:
    """The row of the kind says so, not a second list."""
    item, found = _replicas(6, busy_usage(0), kind=kind, created=AT - 30 * DAY)
    finding = _named(findings(item, found, **_counted(1)), FindingName.TOO_MANY_REPLICAS)
    assert finding is not None
    ref = dataclasses.replace(item.ref, api_version="acme.io/v1")
    found_of_another_group = findings(dataclasses.replace(item, ref=ref), found, **_counted(1))
    assert [one.name for one in found_of_another_group] == [FindingName.BUSY]


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
    [((1,), None), ((2,), 3), ((0, 2, 0), 3), ((1,) * 60, None)],
    ids=["enough-left", "all-at-work", "a-minute-ago", "steady"],
)
def test_demand_above_the_remaining_replicas_scales_up(busy: tuple[int, ...], target: int | None) -> None:
    """As soon as demand and headroom exceed what is left."""
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=SHRUNK, created=AT - 30 * DAY)
    finding = _named(findings(item, found, **_counted(*busy)), FindingName.TOO_FEW_REPLICAS)
    proposal = finding.proposal if finding else None
    assert (proposal.replicas if proposal else None) == target
    if finding is not None and proposal is not None:
        assert (finding.verdict, proposal.action, proposal.frees) == (Verdict.ACT, Action.SCALE_UP, -1.0)


def test_scale_up_stops_at_the_original_number() -> None:
    """Whatever the demand and its jumps."""
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=SHRUNK, created=AT - 30 * DAY)
    finding = findings(item, found, concurrency={"uid-w": _minutes((60, 1), (1, 40), (60, 2), before=1)})[0]
    assert finding.proposal is not None
    assert (finding.proposal.replicas, finding.proposal.frees) == (6, -4.0)


def test_scale_up_needs_replicas_that_were_seen_active() -> None:
    """Missing samples never lead to a change."""
    item, found = _replicas(2, busy_usage(0), busy_usage(1), annotations=SHRUNK, created=AT - 30 * DAY)
    assert _named(findings(item, found, **_counted(1, unseen=1)), FindingName.TOO_FEW_REPLICAS) is None


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
    """Both come from the policy, and a larger jump counts instead."""
    by = criteria(tooManyReplicas=TooManyReplicas(headroomPercent=100, minHeadroom=0))
    finding = findings(*TURNS, by=by, **_counted(2))[0]
    assert finding.proposal is not None
    assert finding.proposal.replicas == 4


def test_scale_down_keeps_one_replica() -> None:
    """Even without headroom and recent demand."""
    by = criteria(tooManyReplicas=TooManyReplicas(headroomPercent=0, minHeadroom=0))
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


def _served(item: Workload, *loads: ServingLoad | None) -> dict[str, Any]:
    """The load of the server in each pod."""
    pairs = zip(item.pods, loads, strict=True)
    found = {(one.ref.namespace, one.ref.name): load for one, load in pairs if load is not None}
    return {"serving": {TooManyReplicas().window: found}}


def test_requests_that_wait_forbid_a_scale_down() -> None:
    """Demand that is not served yet shows on no GPU."""
    item, used = _replicas(4, busy_usage())
    waiting = ServingLoad("vLLM", 5, 1, 3, 0.9)
    calm = ServingLoad("vLLM", 5, 1, 0, 0.1)
    counts = _counted(*[1] * 600)
    free, kept = (
        _named(
            findings(item, used, **{"histories": ALWAYS, **counts}, **_served(item, first, None, None, None)),
            FindingName.TOO_MANY_REPLICAS,
        )
        for first in (calm, waiting)
    )
    assert free is not None and free.verdict is Verdict.ACT  # noqa: PT018
    assert kept is not None and kept.verdict is Verdict.KEEP  # noqa: PT018
    assert "3 requests waited" in " ".join(kept.words)


@pytest.mark.parametrize(
    ("load", "is_kept"),
    [
        (ServingLoad("vLLM", 0, 0, 0), False),
        (ServingLoad("vLLM", 9, 0, 0), True),
        (ServingLoad("vLLM", None, 1), True),
    ],
)
def test_replicas_whose_requests_show_on_no_gpu_are_kept(load: ServingLoad, *, is_kept: bool) -> None:
    """They work between two samples, so nobody knows how many do at once."""
    item, used = _replicas(6, busy_usage())
    found = _named(
        findings(item, used, **_counted(*[1] * 600), **_served(item, None, *[load] * 5)),
        FindingName.TOO_MANY_REPLICAS,
    )
    assert (found is None or found.verdict is Verdict.KEEP) is is_kept


def test_evidence_has_time_to_first_token_of_the_slowest_server() -> None:
    """Whoever takes replicas away sees how long users wait."""
    item, used = _replicas(4, busy_usage())
    loads = [ServingLoad("vLLM", 5, 1, 0, 0.1, seconds) for seconds in (0.25, 1.75, None, 0.5)]
    given = {"histories": ALWAYS, **_counted(*[1] * 600)}
    found = _named(findings(item, used, **given, **_served(item, *loads)), FindingName.TOO_MANY_REPLICAS)
    assert found is not None
    assert found.first_token_s == 1.75
    assert ", time to first token 1.8 s, sample coverage" in " ".join(found.words)
    without = _named(findings(item, used, **given), FindingName.TOO_MANY_REPLICAS)
    assert without is not None
    assert without.first_token_s is None
    assert "first token" not in " ".join(without.words)


@pytest.mark.parametrize(
    ("loads", "advised"),
    [
        pytest.param([(0, 0.04)] * 6, True, id="hardly-used"),
        pytest.param([(0, 0.6)] * 6, False, id="full"),
        pytest.param([(0, 0.04)] * 5 + [(1, 0.04)], False, id="one-waits"),
        pytest.param([(0, 0.04)] * 5 + [(0, None)], False, id="one-without-cache"),
        pytest.param([(0, 0.04)] * 5 + [None], False, id="one-unknown"),
    ],
)
def test_busy_replicas_with_empty_caches_are_advised_on(
    loads: list[tuple[float, float | None] | None], *, advised: bool
) -> None:
    """All replicas work, so none may be removed; but fewer would do, and an autoscaler may see to that."""
    item, used = _replicas(6, *[busy_usage()] * 6)
    each = [None if one is None else ServingLoad("vLLM", 9, 1, *one) for one in loads]
    for counts in (_counted(*[6] * 600), {}):
        found = _named(
            findings(item, used, **{"histories": ALWAYS, **counts}, **_served(item, *each)),
            FindingName.TOO_MANY_REPLICAS,
        )
        assert (found is not None) == advised
        if found is not None:
            assert (found.verdict, found.proposal) == (Verdict.KEEP, None)
            assert "2 of 6 replicas suffice" in found.words[0]


WEEK = "#" * 106 + "." * 62
AT_THE_WEEKEND = ("." * 128 + WEEK + WEEK + "." * 40)[-14 * 24 :]


def test_scale_down_keeps_the_replica_whose_history_shows_when_it_works() -> None:
    """All are idle for the weekend: the one that never worked goes first, so the last one shows the weekends."""
    pods = [pod(f"w-{number}", created=AT - 60 * DAY, started=AT - 60 * DAY) for number in range(3)]
    item = workload(*pods, created=AT - 60 * DAY)
    rows = (AT_THE_WEEKEND, AT_THE_WEEKEND, "." * 14 * 24)
    histories = {("research", one.ref.name): history(row) for one, row in zip(pods, rows, strict=True)}
    found = findings(item, all_idle(item), histories=histories, concurrency={"uid-w": concurrency(0)})
    finding = _named(found, FindingName.TOO_MANY_REPLICAS)
    assert finding is not None
    assert finding.proposal is not None
    assert finding.proposal.pods == ("w-2", "w-0")


def test_replica_with_less_activity_in_the_day_goes_first() -> None:
    """Also if none of the last minutes shows any."""
    pods = [pod(f"w-{number}") for number in range(3)]
    item = workload(*pods, created=AT - 30 * DAY)
    means = dict.fromkeys(criteria().windows, (0.0, 0.0, 0.0)) | {max(criteria().windows): (0.5, 0.4, 0.0)}
    used = {
        window: usages(
            *((one, (idle_usage(activity_mean=mean),)) for one, mean in zip(pods, each, strict=True))
        )
        for window, each in means.items()
    }
    found = findings(item, {}, usages=used, histories={}, concurrency={"uid-w": concurrency(1)})
    finding = _named(found, FindingName.TOO_MANY_REPLICAS)
    assert finding is not None
    assert finding.proposal is not None
    assert finding.proposal.pods == ("w-2",)


def test_what_is_left_of_a_scaled_down_service_has_been_idle_since_then_at_most() -> None:
    """It "never worked" only beside the replicas that did."""
    scaled = ChangeRecord(AT - datetime.timedelta(hours=3), "r", "scale-down", 2, "gpu-rightsizer")
    first = pod("w-2", created=AT - 5 * DAY, started=AT - 5 * DAY)
    rows = {("research", "w-2"): history("." * 5 * 24)}
    for past in ((), (scaled,)):
        item = workload(first, created=AT - 5 * DAY, past=past)
        finding, *_ = findings(item, all_idle(item), histories=rows)
        assert finding.name is (FindingName.IDLE_TOO_BRIEFLY if past else FindingName.IDLE)
        assert any("it never worked since it was created" in words for words in finding.words) is not bool(
            past
        )
        assert finding.idle_s is not None
        assert (finding.idle_s > 24 * 3600) is not bool(past)
