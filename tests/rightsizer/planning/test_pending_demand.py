"""What is done only on demand: for whom, by whom, and never more than those who wait need."""

import collections
import cProfile
import dataclasses
import datetime
import json
import pstats
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import hypothesis
import hypothesis.strategies as st
import pytest

from rightsizer.model import (
    Action,
    Allocation,
    BlockerCode,
    ChangeRecord,
    Decision,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DeviceRequest,
    DraDevice,
    FindingName,
    Fleet,
    FoundChange,
    Gang,
    Holding,
    Mode,
    Node,
    ObjectRef,
    Pod,
    Proposal,
    QueueOption,
    QueueQuotas,
    Stranded,
    Verdict,
    WaitingClaim,
    WaitingPod,
    Workload,
)
from rightsizer.planning.budget import BudgetAccount, within_budgets
from rightsizer.planning.pending_demand import (
    limit_to_pending_demand,
    served_together,
    unserved_demand,
)
from rightsizer.planning.placement import Placement, Places, best_place
from rightsizer.planning.victims import COST_ANNOTATION, standing, victims_of
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from rightsizer.policy.match import Match
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import AT, judged, pod, policy, rule, workload

GPU = "nvidia.com/gpu"
CLASS = "deviceclass:gpu.nvidia.com"
NODES = ("a", "b", "c")
NO_LIMITS = [Budget(scope=scope, per=per, workloads=10**6) for scope in BudgetScope for per in Per]
RULES = policy(rule("r", onlyForPendingPods=[Action.SCALE_TO_ZERO]), rule("rest"), budgets=NO_LIMITS)


def _decision(item: Workload, mean: float | None = 0.0) -> Decision:
    plain = judged(item, {}, policy())
    finding = dataclasses.replace(
        plain.finding, name=FindingName.IDLE, verdict=Verdict.ACT, activity_mean=mean, proposal=None
    )
    return dataclasses.replace(
        plain,
        finding=finding,
        verdict=Verdict.ACT,
        mode=Mode.ENFORCE,
        action=Action.SCALE_TO_ZERO,
        frees=float(item.gpus),
    )


def _holder(name: str, *nodes: str, gpus: int = 1, priority: int = 1_000) -> Workload:
    members = [
        pod(f"{name}-{number}", node=node, devices=gpus, resources={GPU: gpus}, priority=priority)
        for number, node in enumerate(nodes)
    ]
    return workload(*members, ref=ObjectRef("apps/v1", "Deployment", "research", name, f"uid-{name}"))


def _waiting(name: str, gpus: int, priority: int = 5_000, nodes: tuple[str, ...] = NODES) -> WaitingPod:
    ref = ObjectRef("v1", "Pod", "research", name, f"uid-{name}")
    return WaitingPod(ref, {GPU: gpus}, priority, "high", frozenset(nodes))


def _gang(*pods: WaitingPod, waits: int | None = None, name: str = "train") -> tuple[WaitingPod, ...]:
    ref = ObjectRef("scheduling.x-k8s.io/v1alpha1", "PodGroup", "research", name, "")
    return tuple(dataclasses.replace(one, gang=Gang(ref, waits or len(pods))) for one in pods)


def _limit(decisions: Sequence[Decision], evaluator: PolicyEvaluator) -> tuple[Decision, ...]:
    """What becomes of the decisions before those that serve no pending pod are charged."""
    return limit_to_pending_demand(decisions, evaluator, BudgetAccount(evaluator)).decisions


def _after(
    decisions: list[Decision],
    *waiting: WaitingPod,
    free: tuple[Stranded, ...] = (),
    spare: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, tuple[str, ...] | None]:
    """By workload: the pods for which it goes; None where it is blocked."""
    fleet = Fleet(
        tuple(one.workload for one in decisions), {}, {}, waiting=waiting, stranded=free, spare=spare or {}
    )
    found = _limit(decisions, PolicyEvaluator(RULES, fleet, at=AT))
    assert all({block.code for block in one.blockers} <= {BlockerCode.ONLY_FOR_PENDING_PODS} for one in found)
    assert [one.workload for one in found] == [one.workload for one in decisions]
    return {
        one.workload.ref.name: None if one.blockers else tuple(ref.name for ref in one.wanted_by)
        for one in found
    }


def test_pending_demand_without_pending_pods_blocks_all() -> None:
    """Whatever it does, or does not."""
    assert _after([_decision(_holder("x", "a"))]) == {"x": None}


@pytest.mark.parametrize(
    ("ends_in_s", "gone"), [(30, None), (-60, None), (-200, ("w",)), (3600, ("w",)), (None, ("w",))]
)
def test_pending_demand_what_terminates_already_is_enough(
    ends_in_s: int | None, gone: tuple[str, ...] | None
) -> None:
    """Nobody else goes for the same pod, unless it may stay for long: tenants choose grace periods."""
    ends = None if ends_in_s is None else AT + datetime.timedelta(seconds=ends_in_s)
    (before,) = _holder("before", "a", gpus=2).pods
    going = dataclasses.replace(before, is_terminating=ends is not None, terminates_by=ends)
    stopped = dataclasses.replace(_decision(_holder("before", "a", gpus=2)), mode=Mode.ADVISE)
    stopped = dataclasses.replace(stopped, workload=dataclasses.replace(stopped.workload, pods=(going,)))
    found = _after([stopped, _decision(_holder("next", "a", gpus=2))], _waiting("w", 2))
    assert found["next"] == gone


def test_pending_demand_that_also_needs_what_terminates_waits_for_it() -> None:
    """It may take its time to end: until then nobody goes, and on another node somebody may."""
    (before,) = _holder("before", "a").pods
    ends = AT + datetime.timedelta(seconds=30)
    going = dataclasses.replace(before, is_terminating=True, terminates_by=ends)
    stopped = dataclasses.replace(_decision(_holder("before", "a")), mode=Mode.ADVISE)
    stopped = dataclasses.replace(stopped, workload=dataclasses.replace(stopped.workload, pods=(going,)))
    near, far = _decision(_holder("near", "a")), _decision(_holder("far", "b", gpus=2))
    assert _after([stopped, near], _waiting("w", 2))["near"] is None
    found = _after([stopped, near, far], _waiting("w", 2))
    assert (found["near"], found["far"]) == (None, ("w",))


def _stopped(name: str, node: str, *served: str, gpus: int = 1) -> tuple[Workload, FoundChange]:
    """A workload that was stopped for pending pods a minute ago, of which the pod still terminates."""
    item = _holder(name, node, gpus=gpus)
    ends = AT + datetime.timedelta(seconds=30)
    pods = tuple(dataclasses.replace(one, is_terminating=True, terminates_by=ends) for one in item.pods)
    wanted_by = tuple(_waiting(each, 1).ref for each in served)
    record = ChangeRecord(AT - datetime.timedelta(minutes=1), "run", "suspend", wanted_by=wanted_by)
    return dataclasses.replace(item, pods=pods), FoundChange(item.ref, record)


@pytest.mark.parametrize(
    ("stopped", "holders", "waiting", "gone"),
    [
        pytest.param(
            [_stopped("s", "a", "w1")],
            {"x": "a"},
            {"w1": 1, "w2": 1},
            {"x": ("w2",)},
            id="the-next-pod-on-the-same-node",
        ),
        pytest.param(
            [_stopped("s", "a", "w1")],
            {"x": "b"},
            {"w1": 1, "w2": 1},
            {"x": ("w2",)},
            id="the-next-pod-on-another-node",
        ),
        pytest.param(
            [_stopped("s", "a", "w1"), _stopped("t", "a", "w2")],
            {"x": "a", "y": "a"},
            {"w1": 1, "w2": 1, "w3": 1},
            {"x": ("w3",), "y": None},
            id="one-of-three-has-no-room",
        ),
        pytest.param(
            [_stopped("s", "a", "w2")],
            {"x": "a"},
            {"w1": 1, "w2": 1},
            {"x": ("w1",)},
            id="the-room-of-the-second-is-not-the-first-one's",
        ),
        pytest.param(
            [_stopped("s", "a", "w1", "w2", gpus=2)],
            {"x": "a"},
            {"w1": 1, "w2": 1, "w3": 1},
            {"x": ("w3",)},
            id="one-victim-for-two",
        ),
        pytest.param(
            [_stopped("s", "a", "w1", gpus=2)],
            {"x": "a"},
            {"w1": 1, "w2": 1},
            {"x": None},
            id="room-that-the-first-leaves",
        ),
        pytest.param(
            [_stopped("s", "a", "w1", gpus=2)],
            {"x": "a"},
            {"w1": 1, "w2": 2},
            {"x": None},
            id="the-next-needs-what-the-first-leaves-and-more",
        ),
        pytest.param(
            [_stopped("s", "a", "bound")],
            {"x": "a"},
            {"w2": 2},
            {"x": None},
            id="for-a-pod-that-does-not-wait",
        ),
        pytest.param(
            [_stopped("s", "a", "w1")],
            {"x": "a"},
            {"w1": 1},
            {"x": None},
            id="nobody-else-for-the-first",
        ),
    ],
)
def test_pending_demand_room_that_is_made_for_one_pod_leaves_the_next_its_victims(
    stopped: Sequence[tuple[Workload, FoundChange]],
    holders: Mapping[str, str],
    waiting: Mapping[str, int],
    gone: Mapping[str, tuple[str, ...] | None],
) -> None:
    """The room of the first terminates for as long as it likes: the next does not wait for that."""
    decisions = [_decision(_holder(name, node)) for name, node in holders.items()]
    decisions += [dataclasses.replace(_decision(one), mode=Mode.ADVISE) for one, _ in stopped]
    pods = tuple(_waiting(name, gpus) for name, gpus in waiting.items())
    changes = tuple(change for _, change in stopped)
    fleet = Fleet(tuple(one.workload for one in decisions), {}, {}, waiting=pods, changes=changes)
    found = _limit(decisions, PolicyEvaluator(RULES, fleet, at=AT))
    assert {
        one.workload.ref.name: None if one.blockers else tuple(ref.name for ref in one.wanted_by)
        for one in found
        if one.workload.ref.name in holders
    } == gone


@pytest.mark.parametrize(
    ("refused", "gone"),
    [
        ((), {"a0"}),
        (("a0",), {"a1"}),
        (("a0", "a1"), {"a2"}),
        (("a0", "a1", "a2"), {"z"}),
        (("a0", "a1", "a2", "z"), {"a0"}),
    ],
)
def test_pending_demand_what_refused_a_moment_ago_goes_last(
    refused: Collection[str], gone: Collection[str]
) -> None:
    """All of its namespace after three, else the pod would wait for each; where all refused, the first is tried."""
    holders = [_holder(f"a{number}", "a") for number in range(5)]
    theirs = _holder("z", "a")
    holders += [dataclasses.replace(theirs, ref=dataclasses.replace(theirs.ref, namespace="theirs"))]
    refs = {one.ref for one in holders if one.ref.name in refused}
    fleet = Fleet(tuple(holders), {}, {}, waiting=(_waiting("w", 1),))
    evaluator = PolicyEvaluator(RULES, fleet, at=AT)
    decisions = [_decision(one) for one in holders]
    found = limit_to_pending_demand(decisions, evaluator, BudgetAccount(evaluator), refs).decisions
    assert {one.workload.ref.name for one in found if not one.blockers} == gone


def test_pending_demand_equal_priority_does_not_count() -> None:
    """Equal is not higher."""
    holder = [_decision(_holder("x", "a"))]
    assert _after(holder, _waiting("w", 1, priority=1_000)) == {"x": None}
    assert _after(holder, _waiting("w", 1, priority=1_001)) == {"x": ("w",)}
    beside = [*holder, _decision(_holder("low", "b", priority=10))]
    assert _after(beside, _waiting("w", 1, priority=1_000, nodes=("a",))) == {"x": None, "low": None}


def test_pending_demand_victims_by_priority_then_utilization() -> None:
    """Then whom nobody would miss; one whose use is not known comes after all others of its priority."""
    low, used, idle = (
        _holder(name, "a", priority=p) for name, p in (("low", 10), ("used", 20), ("idle", 20))
    )
    decisions = [_decision(used, 0.3), _decision(idle, 0.0), _decision(low, 0.9)]
    assert _after(decisions, _waiting("w", 2)) == {"low": ("w",), "idle": ("w",), "used": None}
    unknown = [_decision(used, None), _decision(idle, 0.5)]
    assert _after(unknown, _waiting("w", 1)) == {"idle": ("w",), "used": None}


def test_pending_demand_node_with_fewest_victims_is_chosen() -> None:
    """One pod cannot be spread over nodes; what is free already counts."""
    decisions = [_decision(_holder(name, node)) for name, node in (("a1", "a"), ("a2", "a"), ("b1", "b"))]
    free = (Stranded("b", GPU, 1, ()),)
    assert _after(decisions, _waiting("w", 2), free=free) == {"a1": None, "a2": None, "b1": ("w",)}
    assert _after(decisions, _waiting("w", 2)) == {"a1": ("w",), "a2": ("w",), "b1": None}
    assert _after(decisions, _waiting("w", 3)) == {"a1": None, "a2": None, "b1": None}
    assert _after(decisions, _waiting("w", 1, nodes=("c",))) == {"a1": None, "a2": None, "b1": None}


def test_pending_demand_pod_that_fits_needs_no_victim() -> None:
    """The scheduler will find it."""
    free = (Stranded("a", GPU, 4, ()),)
    assert _after([_decision(_holder("x", "a"))], _waiting("w", 4), free=free) == {"x": None}


def test_pending_demand_other_resource_does_not_help() -> None:
    """A MIG instance is no GPU."""
    item = _holder("x", "a")
    mig = dataclasses.replace(item.pods[0], resources={"nvidia.com/mig-1g.10gb": 1})
    assert _after([_decision(dataclasses.replace(item, pods=(mig,)))], _waiting("w", 1)) == {"x": None}


def test_pending_demand_resize_counts_what_it_frees() -> None:
    """A quarter of four pods is one GPU, not four."""
    item = _holder("x", "a", "a", "a", "a")
    decision = _decision(item)
    shrunk = Proposal(Action.SCALE_DOWN, 1.0, "", replicas=3)
    finding = dataclasses.replace(decision.finding, proposal=shrunk)
    rules = policy(rule("r", onlyForPendingPods=[Action.SCALE_DOWN]), budgets=NO_LIMITS)
    decision = dataclasses.replace(decision, action=Action.SCALE_DOWN, finding=finding, frees=1.0)
    for gpus, is_blocked in ((1, False), (2, True)):
        fleet = Fleet((item,), {}, {}, waiting=(_waiting("w", gpus),))
        (found,) = _limit([decision], PolicyEvaluator(rules, fleet, at=AT))
        assert bool(found.blockers) == is_blocked


def _with_cpu(item: Workload, cores: int) -> Workload:
    return dataclasses.replace(
        item, pods=tuple(dataclasses.replace(one, needs={"cpu": 1000 * cores}) for one in item.pods)
    )


def test_pending_demand_pod_lacking_cpu_gets_no_victim() -> None:
    """What those who go hold of it counts as free then; what is free of it already, only where that is known."""
    waits = dataclasses.replace(_waiting("w", 1, nodes=("a",)), needs={"cpu": 8000})
    decisions = [_decision(_with_cpu(_holder("x", "a"), 2)), _decision(_with_cpu(_holder("y", "a"), 4))]
    assert _after(decisions, waits) == {"x": None, "y": None}
    assert _after(decisions, waits, spare={"a": {"cpu": 1000}}) == {"x": None, "y": None}
    assert _after(decisions, waits, spare={"a": {"cpu": 2000}}) == {"x": ("w",), "y": ("w",)}
    assert _after(decisions, waits, spare={"a": {"cpu": 6000}}) == {"x": ("w",), "y": None}
    twice = (waits, dataclasses.replace(waits, ref=dataclasses.replace(waits.ref, name="v")))
    assert _after(decisions, *twice, spare={"a": {"cpu": 8000}}) == {"x": ("w",), "y": None}


def test_pending_demand_free_gpus_without_cpu_gets_no_victim() -> None:
    """GPUs given back there help nobody."""
    waits = dataclasses.replace(_waiting("w", 1, nodes=("a",)), needs={"cpu": 8000})
    free = (Stranded("a", GPU, 1, ()),)
    assert _after(
        [_decision(_with_cpu(_holder("x", "a"), 8))], waits, free=free, spare={"a": {"cpu": 0}}
    ) == {"x": None}


def test_pending_demand_resized_pods_keep_their_cpu() -> None:
    """Fewer GPUs for each pod are no fewer cores."""
    item = _with_cpu(_holder("x", "a", gpus=2), 8)
    shrunk = Proposal(Action.RESIZE, 1.0, "", gpus_per_pod=1)
    decision = _decision(item)
    decision = dataclasses.replace(
        decision,
        action=Action.SCALE_DOWN,
        finding=dataclasses.replace(decision.finding, proposal=shrunk),
        frees=1.0,
    )
    rules = policy(rule("r", onlyForPendingPods=[Action.SCALE_DOWN]), budgets=NO_LIMITS)
    for cores, is_blocked in ((0, False), (4, True)):
        waits = dataclasses.replace(_waiting("w", 1), needs={"cpu": 1000 * cores})
        fleet = Fleet((item,), {}, {}, waiting=(waits,))
        (found,) = _limit([decision], PolicyEvaluator(rules, fleet, at=AT))
        assert bool(found.blockers) == is_blocked


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[Decision], list[WaitingPod], list[Stranded]]:
    chance = random.Random(draw(st.integers()))
    decisions = []
    for number in range(chance.randint(0, 8)):
        nodes = [chance.choice(NODES) for _ in range(chance.randint(1, 3))]
        item = _holder(f"h{number}", *nodes, gpus=chance.randint(1, 4), priority=chance.choice([10, 20, 30]))
        decisions.append(_decision(item, chance.choice([None, 0.0, 0.2])))
    waiting = [
        _waiting(
            f"w{number}", chance.randint(1, 8), chance.choice([20, 30, 40]), tuple(chance.sample(NODES, 2))
        )
        for number in range(chance.randint(0, 4))
    ]
    if chance.random() < 0.5:
        waiting[:2] = _gang(*waiting[:2])
    free = [Stranded(node, GPU, chance.randint(1, 3), ()) for node in NODES if chance.random() < 0.4]
    return decisions, sorted(waiting, key=lambda one: (-one.priority, one.ref)), free


@hypothesis.given(_worlds())
def test_pending_demand_every_victim_serves_a_pod(
    world: tuple[list[Decision], list[WaitingPod], list[Stranded]],
) -> None:
    """Whoever goes has a lower priority than all for whom it goes, and each of these then has a node with room."""
    decisions, waiting, free = world
    found = _after(decisions, *waiting, free=tuple(free))
    by_name = {one.ref.name: one for one in waiting}
    room: dict[str, int] = collections.defaultdict(int, {one.node: one.free for one in free})
    served: set[str] = set()
    for decision in decisions:
        item, going = decision.workload, found[decision.workload.ref.name]
        for name in going or ():
            assert item.priority < by_name[name].priority
            assert by_name[name].nodes & {one.node for one in item.pods}
            served.add(name)
        for one in item.pods if going else ():
            room[one.node] += one.devices
    gangs = {by_name[name].gang for name in served} - {None}
    served |= {one.ref.name for one in waiting if one.gang in gangs}
    for name in served:
        assert any(room[node] >= by_name[name].resources[GPU] for node in by_name[name].nodes)
    assert sum(room.values()) >= sum(by_name[name].resources[GPU] for name in served)
    assert all(going is None or going for going in found.values())


@hypothesis.given(_worlds(), st.randoms(use_true_random=False))
def test_pending_demand_order_of_the_plan_changes_nothing(
    world: tuple[list[Decision], list[WaitingPod], list[Stranded]], chance: random.Random
) -> None:
    """The same go, whoever is named first."""
    decisions, waiting, free = world
    turned = chance.sample(decisions, len(decisions))
    assert _after(turned, *waiting, free=tuple(free)) == _after(decisions, *waiting, free=tuple(free))


def test_pending_gang_is_served_whole_or_not_at_all() -> None:
    """One member without a place, and nobody goes for the others; what they would have taken serves the next pod."""
    idle = [_decision(_holder(name, node)) for name, node in (("one", "a"), ("two", "b"))]
    members = [_waiting("m-0", 1), _waiting("m-1", 1)]
    assert _after(idle, *_gang(*members)) == {"one": ("m-0",), "two": ("m-1",)}
    third = _waiting("m-2", 1)
    assert _after(idle, *_gang(*members, third)) == {"one": None, "two": None}
    assert _after(idle, *_gang(*members, third), _waiting("solo", 1, 2_000)) == {
        "one": ("solo",),
        "two": None,
    }
    assert _after(idle, *_gang(*members, waits=3)) == {"one": None, "two": None}


def test_pending_gang_leaves_nothing_behind_that_others_lack() -> None:
    """The free GPU that its first member took is there again for the pod after it."""
    idle = [_decision(_holder("one", "a"))]
    free = (Stranded("b", GPU, 1, (), ()),)
    gang = _gang(_waiting("m-0", 1), _waiting("m-1", 1), _waiting("m-2", 1))
    assert _after(idle, *gang, _waiting("solo", 1, 2_000), free=free) == {"one": None}


def _losing(
    name: str,
    *,
    hours: float | None,
    mean: float = 0.0,
    finding: FindingName = FindingName.IDLE,
    node: str = "a",
    **held: int,
) -> Decision:
    made = _decision(_holder(name, node, **held), mean)
    return dataclasses.replace(
        made, gpu_hours_lost=hours, finding=dataclasses.replace(made.finding, name=finding)
    )


def test_among_equals_who_loses_least_work_goes_first() -> None:
    """What has just saved a checkpoint, whatever it used before."""
    saved, long = _losing("saved", hours=0.2, mean=0.01), _losing("long", hours=90.0)
    assert _after([long, saved], _waiting("w", 1)) == {"saved": ("w",), "long": None}


def test_unknown_loss_goes_after_every_known_one() -> None:
    """It may be anything."""
    unknown, long = _losing("unknown", hours=None), _losing("long", hours=900.0, mean=0.01)
    assert _after([unknown, long], _waiting("w", 1)) == {"unknown": None, "long": ("w",)}


@pytest.mark.parametrize(
    ("here", "there"),
    [
        pytest.param([{"hours": 9.0}], [{"hours": 0.2}], id="less-loss"),
        pytest.param([{"hours": 9.0}], [{"hours": 0.2}, {"hours": 0.2}], id="two-that-lose-less-than-one"),
        pytest.param([{"hours": 0.0, "priority": 2_000}], [{"hours": 9.0}], id="lower-priority"),
        pytest.param([{"hours": 0.0}, {"hours": 0.0}], [{"hours": 0.0}], id="fewer-of-equal-loss"),
        pytest.param([{"hours": None}], [{"hours": 900.0}], id="known-before-unknown"),
    ],
)
def test_node_whose_victims_lose_least_is_chosen(
    here: list[dict[str, Any]], there: list[dict[str, Any]]
) -> None:
    """By the same order as between victims of one node, whatever the names."""
    both = {"a": here, "b": there}
    found = _after(
        [
            _losing(f"{node}{number}", node=node, gpus=2 // len(each), **one)
            for node, each in both.items()
            for number, one in enumerate(each)
        ],
        _waiting("w", 2),
    )
    assert {name[0] for name, wanted in found.items() if wanted} == {"b"}


def test_no_more_go_than_needed() -> None:
    """The small one came first, and is spared once the large one goes; one large one before many small ones."""
    small, large = _losing("small", hours=0.1), _losing("large", hours=0.2, gpus=4)
    assert _after([small, large], _waiting("w", 4)) == {"small": None, "large": ("w",)}
    many = [_losing(f"small-{number}", hours=0.1) for number in range(4)]
    assert _after([*many, large], _waiting("w", 4)) == {
        **{f"small-{number}": None for number in range(4)},
        "large": ("w",),
    }
    dear = _losing("large", hours=0.5, gpus=4)
    assert _after([*many, dear], _waiting("w", 4))["large"] is None


@hypothesis.given(
    st.lists(st.floats(0, 50), min_size=2, max_size=6, unique=True), st.floats(0, 50), st.integers(1, 6)
)
def test_forged_checkpoint_makes_nobody_else_go(hours: list[float], forged: float, wanted: int) -> None:
    """It lowers its own loss, never under none and never over its run time: it goes earlier, others at most stay."""
    honest = [_losing(f"h{number}", hours=each) for number, each in enumerate(hours)]
    liar = dataclasses.replace(honest[0], gpu_hours_lost=min(forged, hours[0]))

    def going(decisions: list[Decision]) -> set[str]:
        pods = [_waiting(f"w{number}", 1, nodes=("a",)) for number in range(wanted)]
        return {name for name, by in _after(decisions, *pods).items() if by}

    before, after = going(honest), going([liar, *honest[1:]])
    assert after - before <= {"h0"}
    assert len(after) == len(before)


# --- Gangs by their schedulers, and queues


def test_gang_starts_with_as_many_pods_as_it_needs() -> None:
    """Those beyond that may start later, and take what they fit in; fewer serve nobody."""
    idle = [_decision(_holder(name, "a")) for name in ("one", "two")]
    pods = [_waiting(f"m-{number}", 1, nodes=("a",)) for number in range(3)]
    assert _after(idle, *_gang(*pods, waits=2)) == {"one": ("m-0",), "two": ("m-1",)}
    assert _after(idle[:1], *_gang(*pods, waits=2)) == {"one": None}
    assert _after(idle, *_gang(pods[0], waits=2)) == {"one": None, "two": None}


def _queued(*pods: WaitingPod, topology: str = "", options: tuple[QueueOption, ...] = ()) -> list[WaitingPod]:
    ref = ObjectRef("kueue.x-k8s.io/v1beta2", "Workload", "research", "train", "uid-train")
    gang = Gang(ref, len(pods), topology, options)
    return [dataclasses.replace(one, ref=ref, gang=gang) for one in pods]


def _by_name(
    decisions: Sequence[Decision],
    waiting: Sequence[WaitingPod],
    *,
    nodes: Mapping[str, Node] | None = None,
    free: Mapping[tuple[str, str], int] | None = None,
    quotas: QueueQuotas | None = None,
) -> set[str]:
    """Names of the workloads that go."""
    fleet = Fleet(
        tuple(one.workload for one in decisions),
        nodes or {},
        {},
        waiting=tuple(waiting),
        free=free or {},
        queues=quotas or QueueQuotas(),
    )
    found = _limit(decisions, PolicyEvaluator(RULES, fleet, at=AT))
    return {one.workload.ref.name for one in found if not one.blockers}


def test_gang_with_a_topology_is_served_within_one_value_of_its_label() -> None:
    """The rack that costs least; a node without the label is in none."""
    racks = {"a": {"rack": "1"}, "b": {"rack": "2"}, "c": {"rack": "2"}, "d": dict[str, str]()}
    nodes = {name: Node(name, labels=labels) for name, labels in racks.items()}
    pods = [_waiting(f"m-{number}", 1, nodes=("a", "b", "c", "d")) for number in range(2)]
    idle = [_decision(_holder(f"on-{name}", name)) for name in nodes]
    assert _by_name(idle, _queued(*pods, topology="rack"), nodes=nodes) == {"on-b", "on-c"}
    assert _by_name(idle[:2], _queued(*pods, topology="rack"), nodes=nodes) == set()
    both = [*idle, _losing("second-on-a", hours=9.0)]
    assert _by_name(both, _queued(*pods, topology="rack"), nodes=nodes) == {"on-b", "on-c"}


@pytest.mark.parametrize(
    ("flavors", "served", "unserved"),
    [
        pytest.param(1, {"idle", "on-b"}, [], id="all-are-tried"),
        pytest.param(
            1000,
            {"on-b"},
            ["what waits in namespace research has too many ways to be placed"],
            id="too-many",
        ),
    ],
)
def test_gang_with_too_many_ways_to_place_it_holds_up_its_own_namespace_only(
    flavors: int, served: set[str], unserved: list[str]
) -> None:
    """Nothing is freed for it, the plan says why, and what others wait for later is served."""
    racks = {f"n-{number}": Node(f"n-{number}", labels={"rack": f"{number}"}) for number in range(1001)}
    idle = [_decision(_holder("idle", "n-0")), _decision(_holder("on-b", "b"))]
    pods = [_waiting("m", 1, nodes=tuple(racks))]
    gang = _queued(*pods, topology="rack", options=(QueueOption(None, {}),) * flavors)
    other = dataclasses.replace(
        _waiting("w", 1, nodes=("b",)), ref=ObjectRef("v1", "Pod", "theirs", "w", "uid-w")
    )
    fleet = Fleet(tuple(one.workload for one in idle), racks, {}, waiting=(*gang, other))
    evaluator = PolicyEvaluator(RULES, fleet, at=AT)
    limited = limit_to_pending_demand(idle, evaluator, BudgetAccount(evaluator))
    assert {one.workload.ref.name for one in limited.decisions if not one.blockers} == served
    assert [*unserved_demand(evaluator, limited.cut_short)] == [
        f"research/Workload/train: no GPUs are freed for it: {why}" for why in unserved
    ]


POOL = ("Cohort all", "h100/nvidia.com/gpu")


def _holding(*names: str, amount: float = 1.0) -> dict[str, dict[tuple[str, str], float]]:
    return {f"research/uid-{name}": {POOL: amount} for name in names}


@pytest.mark.parametrize(
    ("unused", "holders", "free", "going"),
    [
        pytest.param(1, (), {}, {"x"}, id="quota-is-there-gpus-are-not"),
        pytest.param(0, (), {}, set[str](), id="nobody-returns-quota"),
        pytest.param(0, ("y",), {}, {"y"}, id="one-victim-for-both"),
        pytest.param(0, ("y",), {("a", GPU): 1}, {"y"}, id="quota-only"),
        pytest.param(0, ("far",), {}, {"x", "far"}, id="quota-from-elsewhere"),
        pytest.param(1, ("y",), {("a", GPU): 1}, set[str](), id="nothing-is-missing"),
        pytest.param(-1, ("x", "y"), {}, {"x", "y"}, id="others-are-over-their-quota"),
        pytest.param(-9, ("x", "y"), {}, set[str](), id="too-far-over"),
    ],
)
def test_queued_gang_is_served_only_if_its_quota_is_there_too(
    unused: float, holders: tuple[str, ...], free: Mapping[tuple[str, str], int], going: set[str]
) -> None:
    """What is stopped must give back what lacks: GPUs, quota of the same cohort, or both. Never more than that."""
    idle = [_decision(_holder(name, node)) for name, node in (("x", "a"), ("y", "a"), ("far", "b"))]
    option = QueueOption(frozenset({"a"}), {POOL: 1.0})
    waiting = _queued(_waiting("w", 1, nodes=("a", "b")), options=(option,))
    quotas = QueueQuotas({POOL: unused}, _holding(*holders))
    assert _by_name(idle, waiting, free=free, quotas=quotas) == going


def test_queued_gang_spares_the_quota_victim_that_its_place_makes_superfluous() -> None:
    """The first returns enough quota but too few GPUs; the next alone returns enough of both."""
    idle = [_decision(_holder("first", "a")), _losing("next", hours=1.0, gpus=2)]
    option = QueueOption(frozenset({"a"}), {POOL: 2.0})
    waiting = _queued(_waiting("w", 2, nodes=("a",)), options=(option,))
    quotas = QueueQuotas({POOL: 1}, {**_holding("first"), **_holding("next", amount=2.0)})
    assert _by_name(idle, waiting, quotas=quotas) == {"next"}


def test_queued_gang_takes_the_flavor_that_costs_least() -> None:
    """Its nodes, and its quota."""
    idle = [_losing("dear", hours=9.0), _losing("cheap", hours=0.1, node="b")]
    other = ("Cohort all", "a100/nvidia.com/gpu")
    options = (QueueOption(frozenset({"a"}), {POOL: 1.0}), QueueOption(frozenset({"b"}), {other: 1.0}))
    waiting = _queued(_waiting("w", 1), options=options)
    assert _by_name(idle, waiting, quotas=QueueQuotas({POOL: 1, other: 1})) == {"cheap"}
    assert _by_name(idle, waiting, quotas=QueueQuotas({POOL: 1, other: 0})) == {"dear"}


def test_quota_of_a_victim_of_higher_priority_or_that_only_shrinks_does_not_count() -> None:
    """Fewer replicas return an unknown part of it."""
    option = QueueOption(frozenset({"a"}), {POOL: 1.0})
    waiting = _queued(_waiting("w", 1, nodes=("a",)), options=(option,))
    quotas = QueueQuotas({POOL: 0}, _holding("x"))
    assert _by_name([_decision(_holder("x", "a"))], waiting, quotas=quotas) == {"x"}
    assert _by_name([_decision(_holder("x", "a", priority=9_000))], waiting, quotas=quotas) == set()
    whole = _decision(_holder("x", "a", "a"))
    shrunk = Proposal(Action.SCALE_DOWN, 1.0, "", replicas=1)
    part = dataclasses.replace(whole, finding=dataclasses.replace(whole.finding, proposal=shrunk))
    assert _by_name([part], waiting, quotas=quotas) == set()


@hypothesis.given(
    st.integers(-2, 3),
    st.sets(st.sampled_from(["h0", "h1", "h2", "h3"])),
    st.lists(st.sampled_from([500, 1_000, 6_000]), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_queued_gang_never_makes_more_go_than_quota_and_policy_allow(
    unused: int, holders: set[str], priorities: list[int], count: int
) -> None:
    """Whoever goes has a lower priority, and then both the quota and the places are enough; without one, nobody."""
    idle = [
        _losing(f"h{number}", hours=float(number), priority=each) for number, each in enumerate(priorities)
    ]
    option = QueueOption(frozenset({"a"}), {POOL: float(count)})
    pods = [_waiting(f"m{number}", 1, nodes=("a",)) for number in range(count)]
    going = _by_name(
        idle, _queued(*pods, options=(option,)), quotas=QueueQuotas({POOL: unused}, _holding(*holders))
    )
    assert all(priorities[int(name[1])] < 5_000 for name in going)
    if going:
        assert len(going) >= count
        assert unused + len(going & holders) >= count
        assert len(going) <= max(count, count - unused) + count
    possible = {name for name in ("h0", "h1", "h2", "h3") if priorities[int(name[1])] < 5_000}
    if len(possible) >= count and unused + len(possible & holders) >= count:
        assert going


# --- ResourceClaims


def _device(name: str, node: str = "a") -> DraDevice:
    return DraDevice(DeviceId("gpu.nvidia.com", node, name), node, f"{node}-{name}", "H100")


FOUR = tuple(_device(f"gpu-{number}") for number in range(4))


def _claimant(name: str, *claims: str, priority: int = 1_000) -> Workload:
    """A workload of one pod with these ResourceClaims."""
    member = pod(name, node="a", devices=1, resources={CLASS: 1}, priority=priority, claims=claims)
    return workload(member, ref=ObjectRef("apps/v1", "Deployment", "research", name, f"uid-{name}"))


def _claiming(name: str, count: int, devices: Collection[DraDevice] = FOUR) -> WaitingPod:
    choice = DeviceChoice(frozenset(one.id for one in devices), count)
    claim = WaitingClaim((DeviceRequest("r", (choice,)),))
    return dataclasses.replace(_waiting(name, 0, nodes=("a",)), resources={CLASS: count}, claims=(claim,))


def _after_claims(
    holders: Sequence[Workload],
    allocated: Mapping[str, tuple[Sequence[DraDevice], Sequence[Workload]]],
    *waiting: WaitingPod,
) -> set[str]:
    """Names of the workloads that go."""
    allocations = {
        ("research", name): Allocation(
            tuple(Holding(one.id) for one in devices), frozenset(each.pods[0].ref.uid for each in users)
        )
        for name, (devices, users) in allocated.items()
    }
    decisions = [_decision(one) for one in holders if any(each.terminates_by is None for each in one.pods)]
    devices = DeviceInventory({"a": FOUR}, allocations=allocations)
    fleet = Fleet(tuple(holders), {}, {}, waiting=waiting, devices=devices)
    found = _limit(decisions, PolicyEvaluator(RULES, fleet, at=AT))
    return {one.workload.ref.name for one in found if not one.blockers}


X, Y, Z = _claimant("x", "x"), _claimant("y", "y"), _claimant("z", "z")


def test_waiting_claim_stops_who_holds_devices_that_it_accepts() -> None:
    """Not the one whose device it would not accept, and nobody where a device is free."""
    allocated = {"x": (FOUR[:1], [X]), "y": (FOUR[1:2], [Y]), "z": (FOUR[2:], [Z])}
    assert _after_claims((X, Y, Z), allocated, _claiming("w", 1, FOUR[1:2])) == {"y"}
    assert _after_claims((X, Y), {**allocated, "z": (FOUR[2:3], [])}, _claiming("w", 1)) == set()


def test_only_as_many_claimants_go_as_the_claim_needs() -> None:
    """The first in order holds one, the second the two that suffice: the first stays."""
    allocated = {"x": (FOUR[:1], [X]), "y": (FOUR[1:3], [Y]), "z": (FOUR[3:], [])}
    assert _after_claims((X, Y), allocated, _claiming("w", 2)) == {"y"}
    assert _after_claims((X, Y), allocated, _claiming("w", 3)) == {"x", "y"}
    assert _after_claims((X, Y), allocated, _claiming("w", 4)) == set()


def test_shared_claim_is_free_only_after_all_of_its_pods() -> None:
    """Both go, or none of them."""
    x, y = _claimant("x", "both"), _claimant("y", "both")
    foreign = _claimant("foreign", "both", priority=9_000)
    assert _after_claims((x, y), {"both": (FOUR, [x, y])}, _claiming("w", 1)) == {"x", "y"}
    assert _after_claims((x, y), {"both": (FOUR, [x, y, foreign])}, _claiming("w", 1)) == set()


def test_gang_of_claimants_is_served_whole_or_not() -> None:
    """What the first of them would have freed stays, if there is no place for the second."""
    allocated = {"x": (FOUR[:2], [X]), "y": (FOUR[2:], [])}
    pods = _gang(_claiming("w1", 2), _claiming("w2", 2))
    assert _after_claims((X,), allocated, *pods) == set()
    assert _after_claims((X, Y), {**allocated, "y": (FOUR[2:], [Y])}, *pods) == {"x", "y"}


@pytest.mark.parametrize(
    ("count", "cpu", "gone"),
    [(1, 1, set()), (2, 1, {"x"}), (1, 9, set()), (2, 9, set())],
    ids=["one-is-free", "one-is-missing", "free-but-no-cpu", "missing-and-no-cpu"],
)
def test_resource_that_a_claim_stands_for_counts_free_devices(count: int, cpu: int, gone: set[str]) -> None:
    """The node offers it by no device plugin, so no free amount is known of it."""
    choice = DeviceChoice(frozenset(one.id for one in FOUR), count)
    waiting = dataclasses.replace(
        _waiting("w", count, nodes=("a",)),
        needs={"cpu": cpu},
        backed={GPU: WaitingClaim((DeviceRequest(GPU, (choice,)),))},
    )
    member = pod("x", node="a", devices=1, resources={GPU: 1}, priority=1_000, claims=("x",))
    holder = workload(member, ref=ObjectRef("apps/v1", "Deployment", "research", "x", "uid-x"))
    allocations = {
        ("research", "x"): Allocation((Holding(FOUR[0].id),), frozenset({member.ref.uid})),
        ("research", "y"): Allocation(tuple(Holding(one.id) for one in FOUR[1:3])),
    }
    node = Node("a", "H100", allocatable={CLASS: 4})
    devices = DeviceInventory({"a": FOUR}, allocations=allocations)
    fleet = Fleet((holder,), {"a": node}, {}, waiting=(waiting,), devices=devices, spare={"a": {"cpu": 1}})
    found = _limit([_decision(holder)], PolicyEvaluator(RULES, fleet, at=AT))
    assert {one.workload.ref.name for one in found if not one.blockers} == gone


def test_devices_of_what_terminates_are_enough() -> None:
    """Those of a shared claim only once all of its pods terminate."""
    soon = AT + datetime.timedelta(seconds=30)
    one, two = _claimant("one", "shared"), _claimant("two", "shared")
    allocated = {"shared": (FOUR[:2], [one, two]), "x": (FOUR[2:], [X])}

    def going(item: Workload) -> Workload:
        (member,) = item.pods
        return dataclasses.replace(item, pods=(dataclasses.replace(member, terminates_by=soon),))

    assert _after_claims((going(one), going(two), X), allocated, _claiming("w", 2)) == set()
    assert _after_claims((going(one), two, X), allocated, _claiming("w", 2)) != set()


def test_devices_of_what_terminates_are_of_one_pod_only() -> None:
    """The next gets its own victims; one that needs these devices, too, waits for them."""
    soon = AT + datetime.timedelta(seconds=30)
    (member,) = X.pods
    gone = dataclasses.replace(X, pods=(dataclasses.replace(member, terminates_by=soon),))
    allocated = {"x": (FOUR[:2], [X]), "y": (FOUR[2:], [Y])}
    assert _after_claims((gone, Y), allocated, _claiming("w1", 2), _claiming("w2", 2)) == {"y"}
    assert _after_claims((gone, Y), allocated, _claiming("w1", 1), _claiming("w2", 2)) == {"y"}
    assert _after_claims((gone, Y), allocated, _claiming("w1", 3)) == set()
    both = {"x": (FOUR[:2], [X]), "y": (FOUR[2:], [X, Y])}
    assert _after_claims((gone, Y), both, _claiming("w1", 3)) == set()


def test_freed_devices_serve_one_pod_only() -> None:
    """The second needs another victim."""
    allocated = {"x": (FOUR[:2], [X]), "y": (FOUR[2:], [Y])}
    assert _after_claims((X, Y), allocated, _claiming("w1", 2)) == {"x"}
    assert _after_claims((X, Y), allocated, _claiming("w1", 2), _claiming("w2", 2)) == {"x", "y"}


# --- Replicas


def _replicated(name: str, *nodes: str, kind: str = "Deployment", **changes: Any) -> Workload:
    """A workload of one replica on each of these nodes, as its object was read."""
    item = _holder(name, *nodes)
    ref = dataclasses.replace(item.ref, kind=kind)
    spec = json.dumps({"replicas": len(nodes)}).encode()
    return dataclasses.replace(item, ref=ref, spec=spec, **changes)


def _limited(
    decisions: Sequence[Decision], *waiting: WaitingPod, rules: Policy = RULES, **state: Any
) -> dict[str, Decision]:
    """What becomes of each decision."""
    fleet = Fleet(tuple(one.workload for one in decisions), {}, {}, waiting=waiting, **state)
    found = _limit(decisions, PolicyEvaluator(rules, fleet, at=AT))
    return {one.workload.ref.name: one for one in found}


def _going(decision: Decision) -> tuple[int | None, tuple[str, ...]]:
    """The replicas that are left, and the pods that go; None where the workload is stopped as a whole."""
    proposal = decision.finding.proposal
    assert decision.is_enforced, decision.blockers
    return (proposal.replicas, proposal.pods) if proposal else (None, ())


@pytest.mark.parametrize(
    ("kind", "wanted", "node", "going"),
    [
        pytest.param("Deployment", 1, "b", (3, ("x-2",)), id="replica-on-the-node-of-the-pod"),
        pytest.param("Deployment", 2, "a", (2, ("x-0", "x-1")), id="two-on-one-node"),
        pytest.param("StatefulSet", 1, "c", (3, ("x-3",)), id="last-ordinal"),
        pytest.param("StatefulSet", 1, "b", (2, ("x-2", "x-3")), id="ordinals-after-it-go-too"),
        pytest.param("StatefulSet", 2, "a", (None, ()), id="first-ordinal-only-with-all"),
    ],
)
def test_replicas_only_those_that_a_pending_pod_needs_go(
    kind: str, wanted: int, node: str, going: tuple[int | None, tuple[str, ...]]
) -> None:
    """Those on its node, by deletion cost; ordinals go from the end."""
    item = _replicated("x", "a", "a", "b", "c", kind=kind)
    found = _limited([_decision(item)], _waiting("w", wanted, nodes=(node,)))["x"]
    assert _going(found) == going
    assert found.frees == 4 - (going[0] or 0)
    assert found.action is (Action.SCALE_TO_ZERO if going[0] is None else Action.SCALE_DOWN)
    assert found.pods_going == found.frees
    assert (found.whole is None) == (going[0] is None)


def test_replicas_all_that_are_needed_stop_the_workload() -> None:
    """Then its own stop is the one change, with what it loses."""
    item = _replicated("x", "a", "b")
    pods = (_waiting("v", 1, nodes=("a",)), _waiting("w", 1, nodes=("b",)))
    found = _limited([_decision(item)], *pods)["x"]
    assert _going(found) == (None, ())
    assert [ref.name for ref in found.wanted_by] == ["v", "w"]


def test_replicas_words_say_how_many_are_removed() -> None:
    """In the plan, with the command that does the same."""
    decision = dataclasses.replace(_decision(_replicated("x", "a", "b", "c")), command="by hand")
    found = _limited([decision], _waiting("w", 1, nodes=("b",)))["x"]
    assert found.finding.words[-1] == "1 replica of 3 removed for pending pods; frees 1 GPU"
    assert "scale --replicas=2" in found.command or "--replicas 2" in found.command


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"annotations": {COST_ANNOTATION: "5"}}, id="owner-chooses-who-goes"),
        pytest.param({"is_ready": False}, id="unready-ones-go-first"),
        pytest.param({"labels": {"pod-template-hash": "new"}}, id="in-a-rollout"),
    ],
)
def test_replicas_that_cannot_be_chosen_go_together(changes: Mapping[str, Any]) -> None:
    """The ReplicaSet would delete others, whose GPUs do not help."""
    item = _replicated("x", "a", "b", "c")
    first = dataclasses.replace(item.pods[0], **changes)
    item = dataclasses.replace(item, pods=(first, *item.pods[1:]))
    assert _going(_limited([_decision(item)], _waiting("w", 1, nodes=("b",)))["x"]) == (None, ())


def test_replicas_go_together_where_the_rule_allows_no_scale_down() -> None:
    """What a rule lists is all that is done."""
    rules = policy(
        rule("r", actions=[Action.SCALE_TO_ZERO], onlyForPendingPods=[Action.SCALE_TO_ZERO]), rule("rest")
    )
    item = _replicated("x", "a", "b")
    assert _going(_limited([_decision(item)], _waiting("w", 1), rules=rules)["x"]) == (None, ())


def test_replicas_whose_quota_is_needed_go_together() -> None:
    """Its queue gets it back only from all of them."""
    item = _replicated("x", "a", "b")
    quotas = QueueQuotas({POOL: 0}, _holding("x"))
    assert _going(_limited([_decision(item)], _waiting("w", 1), queues=quotas)["x"]) == (None, ())


def test_replicas_that_a_rule_keeps_stay() -> None:
    """Of three one is kept: two go, whichever are needed, and no third."""
    decision = _decision(_replicated("x", "a", "b", "c"))
    kept = Proposal(Action.SCALE_DOWN, 2.0, "1 of 3 replicas are kept", replicas=1)
    decision = dataclasses.replace(
        decision,
        action=Action.SCALE_DOWN,
        frees=2.0,
        finding=dataclasses.replace(decision.finding, proposal=kept, words=("idle", kept.words)),
    )
    rules = policy(rule("r", onlyForPendingPods=[Action.SCALE_DOWN]), budgets=NO_LIMITS)
    pods = [_waiting(name, 1, nodes=(name,)) for name in NODES]
    found = _limited([decision], pods[1], rules=rules)["x"]
    assert _going(found) == (2, ("x-1",))
    assert found.finding.words == ("idle", "1 replica of 3 removed for pending pods; frees 1 GPU")
    found = _limited([decision], *pods, rules=rules)["x"]
    assert _going(found) == (1, ("x-0", "x-1"))


def test_replicas_cost_their_share_of_the_loss() -> None:
    """One of four that lose 0.4 GPU-hours together costs less than a whole one that loses 0.2."""
    four = dataclasses.replace(_decision(_replicated("four", "a", "a", "a", "a")), gpu_hours_lost=0.4)
    found = _limited([_losing("one", hours=0.2), four], _waiting("w", 1, nodes=("a",)))
    assert _going(found["four"])[0] == 3
    assert found["one"].blockers


def test_replicas_notice_announces_all_that_may_follow() -> None:
    """How many are needed then is not known yet."""
    decision = dataclasses.replace(
        _decision(_replicated("x", "a", "b")), action=Action.NOTICE, announced=Action.SCALE_TO_ZERO, due=AT
    )
    found = _limited([decision], _waiting("w", 1))["x"]
    assert (found.action, found.announced, found.finding.proposal) == (
        Action.NOTICE,
        Action.SCALE_TO_ZERO,
        None,
    )


# --- Notices

NOTIFYING = policy(
    rule("r", onlyForPendingPods=[Action.SCALE_TO_ZERO], notifyBefore=datetime.timedelta(hours=12)),
    rule("rest"),
    budgets=NO_LIMITS,
)


def _notice(decision: Decision) -> Decision:
    """A decision to give a notice first."""
    return dataclasses.replace(
        decision, action=Action.NOTICE, announced=Action.SCALE_TO_ZERO, due=AT, frees=0.0
    )


def _named(found: Mapping[str, Decision]) -> dict[str, str]:
    """The action of each workload that is changed, or gets a notice."""
    return {name: one.action.value for name, one in found.items() if one.is_enforced and one.action}


@pytest.mark.parametrize("number", [1, 3])
def test_notice_is_not_given_where_another_victim_can_go_now(number: int) -> None:
    """However cheap: by a workload that has to get a notice, a tenant would keep the pods of others waiting."""
    cheap = [_notice(_decision(_holder(f"x{each}", "a", priority=500))) for each in range(number)]
    found = _limited([*cheap, _decision(_holder("ready", "b"))], _waiting("w", 1), rules=NOTIFYING)
    assert _named(found) == {"ready": "scale-to-zero"}
    assert {block.code for block in found["x0"].blockers} == {BlockerCode.ONLY_FOR_PENDING_PODS}


def test_notice_for_a_pod_that_also_needs_others_lets_none_go_before_its_end() -> None:
    """Its GPUs would be free for hours, and perhaps for nothing; until then they are there for other pods."""
    idle = [_notice(_decision(_holder("x", "a"))), _decision(_holder("ready", "a"))]
    large, small = _waiting("large", 2, nodes=("a",)), _waiting("small", 1, 2_000, nodes=("a",))
    found = _limited(idle, large, rules=NOTIFYING)
    assert _named(found) == {"x": "notice"}
    assert [str(block.message) for block in found["ready"].blockers] == [
        "research/Pod/large also needs GPUs of a workload whose notice has to end first"
    ]
    assert _named(_limited(idle, large, small, rules=NOTIFYING)) == {"ready": "scale-to-zero"}


def test_replicas_release_the_devices_of_their_claims() -> None:
    """Only those that the pending pod accepts."""
    members = [
        pod(f"x-{number}", node="a", devices=1, resources={CLASS: 1}, priority=1_000, claims=(f"x-{number}",))
        for number in range(4)
    ]
    ref = ObjectRef("apps/v1", "Deployment", "research", "x", "uid-x")
    item = workload(*members, ref=ref, spec=b'{"replicas": 4}')
    allocations = {
        ("research", one.ref.name): Allocation((Holding(device.id),), frozenset({one.ref.uid}))
        for one, device in zip(members, FOUR, strict=True)
    }
    devices = DeviceInventory({"a": FOUR}, allocations=allocations)
    found = _limited([_decision(item)], _claiming("w", 1, FOUR[2:3]), devices=devices)["x"]
    assert _going(found) == (3, ("x-2",))


@pytest.mark.parametrize(("allowed", "going"), [(0, set()), (1, {"x"}), (2, {"x", "y"})])
def test_victims_under_one_disruption_budget_are_no_more_than_it_allows(
    allowed: int, going: set[str]
) -> None:
    """Each alone would be allowed; together for one pod, or for two, they may not be."""
    shared = {"shared": allowed}
    idle = [_decision(dataclasses.replace(_holder(name, "a"), budgets=shared)) for name in ("x", "y")]
    both = _limited(idle, _waiting("v", 1, nodes=("a",)), _waiting("w", 1, nodes=("a",)))
    assert {name for name, one in both.items() if one.is_enforced} == going
    one_pod = _limited(idle, _waiting("w", 2, nodes=("a",)))
    assert {name for name, one in one_pod.items() if one.is_enforced} == (going if allowed == 2 else set())


T = TypeVar("T")


def _counting_calls(work: Callable[[], T]) -> tuple[T, int]:
    """What it returns, and the calls of Python functions that it makes: a measure of work on any machine."""
    profile = cProfile.Profile(builtins=False)
    found = profile.runcall(work)
    return found, pstats.Stats(profile).total_calls  # type: ignore[attr-defined] # missing in typeshed


def _train(number: int, pods: int, nodes: tuple[str, ...], **changes: Any) -> list[WaitingPod]:
    """A gang of pods of two GPUs."""
    gang = Gang(ObjectRef("batch/v1", "Job", "research", f"train-{number:03}", ""), pods)
    one = dataclasses.replace(_waiting("w", 2, nodes=nodes), gang=dataclasses.replace(gang, **changes))
    return [dataclasses.replace(one, ref=gang.ref)] * pods


@pytest.mark.parametrize(
    ("replicas", "gangs", "pods", "is_served"),
    [
        pytest.param(400, 1, 60, True, id="one-that-fits"),
        pytest.param(200, 60, 110, False, id="many-alike-that-do-not-fit"),
    ],
)
def test_gangs_and_many_ordinals_are_planned_with_little_work(
    replicas: int, gangs: int, pods: int, *, is_served: bool
) -> None:
    """What goes before each replica is not walked again, nor a place sought again that an equal gang did not find."""
    nodes = tuple(f"n{number}" for number in range(50))
    item = _replicated("x", *(nodes[number % 50] for number in range(replicas)), kind="StatefulSet")
    waiting = [one for number in range(gangs) for one in _train(number, pods, nodes)]
    found, calls = _counting_calls(lambda: _limited([_decision(item)], *waiting)["x"])
    assert calls < 5_000_000
    assert bool(found.wanted_by) is is_served


def test_gang_in_a_queue_among_many_victims_is_planned_with_little_work() -> None:
    """What it finds on a node is kept while it tries whom to spare."""
    nodes = tuple(f"n{number}" for number in range(50))
    idle = [_decision(_holder(f"x{number}", nodes[number % 50])) for number in range(400)]
    option = QueueOption(None, {POOL: 120.0})
    queues = QueueQuotas({POOL: 0}, _holding(*(f"x{number}" for number in range(400))))
    gang = _train(1, 60, nodes, options=(option,))
    found, calls = _counting_calls(lambda: _limited(idle, *gang, queues=queues))
    assert calls < 9_000_000
    assert sum(bool(one.wanted_by) for one in found.values()) >= 120


@pytest.mark.parametrize(
    ("holders", "needs"),
    [
        pytest.param(0, 1, id="nobody-returns-quota"),
        pytest.param(1_000, 1_001, id="all-together-return-too-little"),
        pytest.param(1_000, 1, id="enough-quota-and-no-place"),
    ],
)
def test_gang_in_a_queue_with_many_domains_is_planned_with_little_work(holders: int, needs: int) -> None:
    """What its queue gets back is worked out once, not in each of the domains."""
    nodes = {f"n{number}": Node(f"n{number}", labels={"host": f"n{number}"}) for number in range(200)}
    idle = [_decision(_holder(f"x{number}", f"n{number % 200}")) for number in range(1_000)]
    queues = QueueQuotas({POOL: 0}, _holding(*(f"x{number}" for number in range(holders))))
    gang = _train(1, 1, tuple(nodes), topology="host", options=(QueueOption(None, {POOL: float(needs)}),))
    waiting = [dataclasses.replace(one, needs={"memory": 1}) for one in gang]
    fleet = Fleet(tuple(one.workload for one in idle), nodes, {}, waiting=tuple(waiting), queues=queues)
    evaluator = PolicyEvaluator(RULES, fleet, at=AT)
    account = BudgetAccount(evaluator)
    found, calls = _counting_calls(lambda: limit_to_pending_demand(idle, evaluator, account))
    assert calls < 500_000
    assert not any(one.wanted_by for one in found.decisions)
    assert found.cut_short == {}


@pytest.mark.parametrize("holders", [10, 100])
def test_tries_are_more_on_nodes_with_more_candidates(holders: int) -> None:
    """A try takes as long wherever it is made: a node with slices has a hundred victims, each step looks at them."""
    idle = [_decision(_holder(f"x{number}", "a")) for number in range(holders)]
    pod = _waiting("w", holders + 1, nodes=("a",))
    fleet = Fleet(tuple(one.workload for one in idle), {}, {}, waiting=(pod,))
    evaluator = PolicyEvaluator(RULES, fleet, at=AT)
    victims = sorted((one for each in idle for one in victims_of(each, evaluator)), key=standing)
    places = Places(fleet, victims)
    before = places.tries["research"].left
    assert best_place(pod, places) is None
    used = before - places.tries["research"].left
    assert holders * holders / 10 <= used <= holders * (holders / 2 + 2)


@pytest.mark.parametrize(
    ("changes", "served"),
    [
        pytest.param({}, set(), id="alike"),
        pytest.param({"needs": 2}, {"train-002"}, id="fewer-are-enough"),
        pytest.param({"topology": "rack"}, set(), id="stricter"),
    ],
)
def test_gang_after_one_that_found_no_place_is_served_if_it_asks_for_less(
    changes: Mapping[str, Any], served: set[str]
) -> None:
    """Only one that asks for all the same is in vain, too."""
    decision = _decision(_holder("x", "a", "a", "b", "b"))
    waiting = [*_train(1, 3, ("a", "b")), *_train(2, 3, ("a", "b"), **changes)]
    found = _limited([decision], *waiting, rules=RULES)["x"]
    assert {ref.name for ref in found.serves} == served


def test_gang_names_itself_at_each_of_its_victims() -> None:
    """So that they are tried together."""
    idle = [_decision(_holder(name, node)) for name, node in (("one", "a"), ("two", "b"), ("far", "c"))]
    pods = _gang(_waiting("m-0", 1, nodes=("a",)), _waiting("m-1", 1, nodes=("b",)))
    found = _limited(idle, *pods, _waiting("solo", 1, nodes=("c",)))
    together = served_together([*found.values()])
    assert {name: len(together[one.workload.ref]) for name, one in found.items()} == {
        "one": 2,
        "two": 2,
        "far": 1,
    }


@hypothesis.given(
    st.lists(st.sampled_from(NODES), min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(NODES)), max_size=4),
    st.sampled_from(["Deployment", "StatefulSet"]),
)
def test_replicas_that_go_are_needed_and_enough(
    nodes: list[str], asked: list[tuple[int, str]], kind: str
) -> None:
    """All pods that could be served by stopping everything are, and no replica goes whose GPU none of them takes."""
    pods = [_waiting(f"w{number}", gpus, nodes=(node,)) for number, (gpus, node) in enumerate(asked)]
    item = _replicated("x", *nodes, kind=kind)
    found = _limited([_decision(item)], *pods)["x"]
    whole = _limited([_decision(dataclasses.replace(item, spec=b""))], *pods)["x"]
    assert found.is_enforced == whole.is_enforced
    if found.is_enforced:
        left, names = _going(found)
        gone = [one for one in item.pods if left is None or one.ref.name in names]
        room, used = collections.Counter(one.node for one in gone), collections.Counter[str]()
        for gpus, node in asked:
            if used[node] + gpus <= nodes.count(node):
                used[node] += gpus
        assert all(room[node] >= number for node, number in used.items())
        if kind == "Deployment":
            assert room == +used
        else:
            assert gone[0].node in used


def _in(namespace: str, decision: Decision) -> Decision:
    ref = dataclasses.replace(decision.workload.ref, namespace=namespace)
    return dataclasses.replace(decision, workload=dataclasses.replace(decision.workload, ref=ref))


def _budgeted(
    decisions: Sequence[Decision], *waiting: WaitingPod, budgets: Sequence[Budget] | None = None
) -> tuple[tuple[Decision, ...], PolicyEvaluator]:
    """What becomes of the decisions within these budgets, or the default ones, and the evaluator."""
    evaluator = _evaluator_of(decisions, *waiting, budgets=budgets)
    return _within(decisions, evaluator), evaluator


def _within(decisions: Sequence[Decision], evaluator: PolicyEvaluator) -> tuple[Decision, ...]:
    account = BudgetAccount(evaluator)
    limited = limit_to_pending_demand(decisions, evaluator, account)
    return within_budgets(limited.decisions, evaluator, account)


def _evaluator_of(
    decisions: Sequence[Decision],
    *waiting: WaitingPod,
    budgets: Sequence[Budget] | None = None,
    **changes: Any,
) -> PolicyEvaluator:
    changes |= {} if budgets is None else {"budgets": budgets}
    rules = policy(
        rule("plain", match=Match(namespaces=("plain", "plain-too"))),
        rule("r", onlyForPendingPods=[Action.SCALE_TO_ZERO]),
        rule("rest"),
        **changes,
    )
    fleet = Fleet(tuple(one.workload for one in decisions), {}, {}, waiting=waiting)
    return PolicyEvaluator(rules, fleet, at=AT)


@pytest.mark.parametrize("replicas", [8, 5], ids=["a-part", "all"])
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_budget_that_allows_few_replicas_serves_the_most_important_pods(replicas: int, kind: str) -> None:
    """Whoever makes pods of lower priority wait keeps nobody from being served."""
    urgent = _waiting("urgent", 1, priority=9_000, nodes=("a",))
    others = [_waiting(f"other-{number}", 1, priority=2_000, nodes=("a",)) for number in range(4)]
    web = _decision(_replicated("web", *["a"] * replicas, kind=kind))
    budget = Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, gpus=2)
    (found,), _ = _budgeted([web], urgent, *others, budgets=[budget])
    assert found.is_enforced
    assert (found.action, found.frees) == (Action.SCALE_DOWN, 2.0)
    assert (found.serves[0], len(found.serves)) == (urgent.ref, 2)
    assert found.whole is not None


@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "pod"])
def test_demand_for_which_budgets_allow_a_part_is_not_served(*, is_gang: bool) -> None:
    """None of its victims goes, and the next demand gets the room."""
    if is_gang:
        first = _gang(_waiting("m-0", 1, nodes=("a",)), _waiting("m-1", 1, nodes=("b",)))
        places = ["a", "b"]
    else:
        first, places = (_waiting("large", 2, nodes=("a",)),), ["a", "a"]
    victims = [
        _in(f"team-{number}", _decision(_holder(f"w-{number}", place))) for number, place in enumerate(places)
    ]
    last = _in("team-9", _decision(_holder("last", "c")))
    budget = Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, workloads=1)
    waiting = (*first, _waiting("small", 1, priority=2_000, nodes=("c",)))
    found, _ = _budgeted([*victims, last], *waiting, budgets=[budget])
    assert [one.workload.ref.name for one in found if one.is_enforced] == ["last"]
    assert {block.code for one in found[:2] for block in one.blockers} == {BlockerCode.BUDGET}


def test_demand_that_budgets_never_allow_leaves_its_victims_to_others() -> None:
    """Of equal priority and first in line, or more urgent; a gang of four nodes, where two fit into the budget."""
    idle = [_team(n, _decision(_holder(f"x{n}", f"n{n}", gpus=8))) for n in range(4)]
    nodes = tuple(f"n{n}" for n in range(4))
    gang = _gang(*(_waiting(f"m{n}", 8, nodes=nodes) for n in range(4)))
    pod = _waiting("w", 8, nodes=nodes)
    budgets = [Budget(per=Per.RUN, gpus=16)]
    found, _ = _budgeted(idle, *gang, pod, budgets=budgets)
    assert [one.serves for one in found if one.is_enforced] == [(pod.ref,)]
    refused = [block.message for one in found for block in one.blockers]
    assert any("GPUs are used up by other changes" in one for one in refused)
    assert any(one.startswith("research/PodGroup/train also needs") for one in refused)


def test_victim_that_no_budget_allows_leaves_its_pod_to_the_next() -> None:
    """It would be chosen again in every cycle."""
    idle = [_team(n, _decision(_holder(f"x{n}", "a", gpus=2 - n))) for n in range(2)]
    waiting = [_waiting("w", 1, nodes=("a",))]
    assert _names_of_enforced(_budgeted(idle, *waiting)[0]) == ["x0"]
    found, _ = _budgeted(idle, *waiting, budgets=[Budget(per=Per.RUN, gpus=1)])
    assert _names_of_enforced(found) == ["x1"]
    assert "it never allows more than 1" in found[0].blockers[0].message


@pytest.mark.parametrize("kind", ["", "Deployment", "StatefulSet"])
def test_victims_for_which_a_budget_has_no_room_left_leave_pods_to_others(kind: str) -> None:
    """A team with many idle workloads or replicas that stand first does not hold up the rest of the plan."""
    if kind:
        team = [_in("a", _decision(_replicated("web", *["a"] * 4, kind=kind)))]
    else:
        team = [_in("a", _decision(_holder(f"x{n}", "a"))) for n in range(4)]
    waiting = [_waiting(f"w{n}", 1, nodes=("a",)) for n in range(3)]
    other = _in("b", _decision(_holder("z", "a")))
    budgets = [Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, gpus=2), Budget(per=Per.RUN, gpus=3)]
    found, _ = _budgeted([*team, other], *waiting, budgets=budgets)
    assert sum(one.frees for one in found if one.is_enforced) == 3.0
    assert len(found[-1].serves) == 1


def test_victims_that_together_exceed_a_budget_leave_the_pod_to_others() -> None:
    """Three cheap workloads of one namespace would block it in every run: the default budgets allow two of them."""
    cheap = [_in("many", _decision(_holder(f"x{n}", "a", priority=900))) for n in range(3)]
    other = _in("other", _decision(_holder("other", "b", gpus=3)))
    found, _ = _budgeted([*cheap, other], _waiting("w", 3))
    assert _names_of_enforced(found) == ["other"]


@pytest.mark.parametrize("kind", ["", "Deployment", "StatefulSet"])
@pytest.mark.parametrize("is_gang", [True, False], ids=["gang", "pod"])
def test_victims_as_many_as_budgets_allow_go_with_others_for_one_demand(kind: str, *, is_gang: bool) -> None:
    """Of one namespace two GPUs, and what is missing of another one, although it would go after them."""
    if kind:
        team = [_in("a", _decision(_replicated("web", *["a"] * 5, kind=kind)))]
    else:
        team = [_in("a", _decision(_holder(f"x{n}", "a"))) for n in range(5)]
    others = [_in("b", _decision(_holder(f"z{n}", "a", priority=2_000))) for n in range(2)]
    gang = _gang(*(_waiting(f"m-{n}", 1, nodes=("a",)) for n in range(4)))
    waiting = gang if is_gang else (_waiting("w", 4, nodes=("a",)),)
    budgets = [Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, gpus=2)]
    found, _ = _budgeted([*team, *others], *waiting, budgets=budgets)
    made = [one for one in found if one.is_enforced]
    assert sum(one.frees for one in made if one.workload.ref.namespace == "a") == 2.0
    assert {ref for one in made for ref in one.serves} == {waiting[0].demand}
    assert all(one.is_enforced for one in found[-2:])


def test_victims_that_use_up_a_budget_of_all_leave_the_demand_to_others() -> None:
    """Two cheap ones in place of one take the room for the only victim on the other node of the gang."""
    cheap = [_team(n, _decision(_holder(f"x{n}", "a", priority=900))) for n in range(2)]
    large, only = (
        _team(2, _decision(_holder("large", "b", gpus=2))),
        _team(3, _decision(_holder("only", "c"))),
    )
    gang = _gang(_waiting("m-0", 2, nodes=("a", "b")), _waiting("m-1", 1, nodes=("c",)))
    found, _ = _budgeted([*cheap, large, only], *gang, budgets=[Budget(per=Per.RUN, workloads=2)])
    assert _names_of_enforced(found) == ["large", "only"]


def test_demand_refused_in_all_ways_names_what_refused_the_cheapest() -> None:
    """Others were tried in its place, and say less about what to change in the policy."""
    idle = [_in(team, _decision(_holder(f"{team}{n}", team))) for team in "ab" for n in range(3)]
    idle += [_in("c", _decision(_holder("c", "c")))]
    found, _ = _budgeted(idle, _waiting("w", 3), _waiting("last", 1, 2_000, nodes=("c",)))
    assert _names_of_enforced(found) == ["c"]
    codes = [{block.code for block in one.blockers} for one in found]
    assert codes == [{BlockerCode.BUDGET}] * 3 + [{BlockerCode.ONLY_FOR_PENDING_PODS}] * 3 + [set()]


def test_demand_refused_after_many_victims_of_a_namespace_is_planned_with_little_work() -> None:
    """All that a budget leaves no room for is spared at once, not one after the other."""
    many = [_in("many", _decision(_holder(f"x{n:03}", f"n{n % 40}", priority=900))) for n in range(400)]
    other = _in("other", _decision(_holder("other", "z", gpus=3)))
    pod = _waiting("w", 3, nodes=(*(f"n{n}" for n in range(40)), "z"))
    budgets = [Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, workloads=2)]
    evaluator = _evaluator_of([*many, other], pod, budgets=budgets)
    found, calls = _counting_calls(lambda: _within([*many, other], evaluator))
    assert calls < 300_000
    assert _names_of_enforced(found) == ["other"]


def test_gang_that_found_no_place_is_served_once_others_make_room() -> None:
    """It lacked CPU, which nobody is stopped for; what goes for a pod between them has some left."""
    first, second = (
        _gang(
            dataclasses.replace(_waiting("m-0", 1, nodes=("a",)), needs={"cpu": 4_000}),
            _waiting("m-1", 1, nodes=("b",)),
            name=name,
        )
        for name in ("first", "second")
    )
    between = _waiting("w", 2, nodes=("a",))
    idle = [_decision(_with_cpu(_holder("large", "a", gpus=2), 4)), _decision(_holder("x", "b"))]
    free = (Stranded("a", GPU, 1, ()),)
    found = _limited(idle, *first, between, *second, stranded=free, spare={"a": {"cpu": 0}})
    assert {name: {ref.name for ref in one.serves} for name, one in found.items()} == {
        "large": {"w"},
        "x": {"second"},
    }


def test_replicas_of_unused_workloads_count_like_their_stops() -> None:
    """Otherwise the budgets of stops would not hold on demand; by the default ones, two of a namespace."""
    decisions = [_decision(_replicated(f"w-{number}", *[f"n-{number}"] * 4)) for number in range(6)]
    busy = dataclasses.replace(_decision(_holder("busy", *["z"] * 200)), mode=Mode.ADVISE)
    waiting = [
        _waiting(f"p-{number}-{each}", 1, nodes=(f"n-{number}",)) for number in range(6) for each in (0, 1)
    ]
    found, _ = _budgeted([*decisions, busy], *waiting)
    assert [one.action for one in found if one.is_enforced] == [Action.SCALE_DOWN] * 2


def test_gang_on_replicas_of_one_workload_is_served_whole_or_not() -> None:
    """A budget that allows one of its two replicas serves another pod instead."""
    gang = _gang(*(_waiting(f"m-{number}", 1, nodes=("a",)) for number in range(2)))
    web = _decision(_replicated("web", *["a"] * 4))
    budget = Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, gpus=1)
    (found,), _ = _budgeted([web], *gang, budgets=[budget])
    assert not found.is_enforced
    small = _waiting("small", 1, priority=9_000, nodes=("a",))
    (found,), _ = _budgeted([web], small, *gang, budgets=[budget])
    assert (found.is_enforced, found.frees, found.serves) == (True, 1.0, (small.ref,))
    assert found.wanted_by == (small.ref,)


def _team(number: int, decision: Decision) -> Decision:
    return _in(f"team-{number}", decision)


def _names_of_enforced(decisions: Sequence[Decision]) -> list[str]:
    return [one.workload.ref.name for one in decisions if one.is_enforced]


@pytest.mark.parametrize("first", [0, 1], ids=["urgent-first-in-the-plan", "urgent-last-in-the-plan"])
def test_budget_too_small_for_two_gangs_serves_the_urgent_one(first: int) -> None:
    """Their victims alternate in the plan, so neither would get all of its own in its order."""
    idle = [_team(number, _decision(_holder(f"x{number}", f"n{number}"))) for number in range(8)]
    waiting = [
        one
        for name, priority, places in (
            ("urgent", 9_000, range(first, 8, 2)),
            ("other", 2_000, range(1 - first, 8, 2)),
        )
        for one in _gang(*(_waiting(f"{name}{n}", 1, priority, (f"n{n}",)) for n in places), name=name)
    ]
    found, _ = _budgeted(idle, *waiting)
    assert _names_of_enforced(found) == [f"x{number}" for number in range(first, 8, 2)]
    assert found[1 - first].blockers[0].message.startswith("research/PodGroup/other also needs team-")


def test_budget_too_small_for_all_pods_serves_the_urgent_one() -> None:
    """Whatever stands before its victim in the plan, for pods of a lower priority or for none."""
    idle = [_team(number, _decision(_holder(f"x{number}", f"n{number}"))) for number in range(3)]
    idle.insert(0, _in("plain", _decision(_holder("plain", "n3"))))
    pods = (_waiting("urgent", 1, 9_000, ("n2",)), _waiting("other", 1, 2_000, ("n1",)))
    found, _ = _budgeted(idle, *pods, budgets=[Budget(per=Per.RUN, workloads=1)])
    assert _names_of_enforced(found) == ["x2"]


def test_many_gangs_beyond_a_budget_are_planned_with_little_work() -> None:
    """Each is looked at a few times, not all again after each that is not served."""
    idle = [_team(n, _decision(_holder(f"x{n}-{side}", f"n{n}"))) for n in range(150) for side in "ab"]
    waiting = [
        one
        for n in range(150)
        for one in _gang(*(_waiting(f"w{n}-{side}", 1, nodes=(f"n{n}",)) for side in "ab"), name=f"g{n:03}")
    ]
    evaluator = _evaluator_of(idle, *waiting, budgets=[Budget(per=Per.RUN, workloads=1)])
    found, calls = _counting_calls(lambda: _within(idle, evaluator))
    assert calls < 450_000
    assert _names_of_enforced(found) == []


def test_gang_that_budgets_never_allow_is_given_up_soon() -> None:
    """Otherwise it would be placed again without one workload after the other, which takes the tries of all pods."""
    nodes = tuple(f"n{number}" for number in range(60))
    idle = [
        _team(number, _decision(_holder(f"{node}-{side}", node)))
        for number, node in enumerate(nodes)
        for side in "ab"
    ]
    gang = _gang(*(_waiting(f"m{number}", 2, nodes=nodes) for number in range(16)))
    budgets = [Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, workloads=1)]
    evaluator = _evaluator_of(idle, *gang, budgets=budgets)
    found, calls = _counting_calls(lambda: _within(idle, evaluator))
    assert _names_of_enforced(found) == []
    assert calls < 400_000


def test_many_pods_on_replicas_of_one_workload_are_planned_with_little_work() -> None:
    """What each of them needs is counted, not cut out of the change again."""
    web = _decision(_replicated("web", *["a"] * 600))
    waiting = [_waiting(f"w{number:03}", 1, nodes=("a",)) for number in range(600)]
    scopes = (
        (Per.RUN, BudgetScope.CLUSTER, 500),
        (Per.HOUR, BudgetScope.CLUSTER, 600),
        (Per.RUN, BudgetScope.NODE_POOL, 600),
    )
    budgets = [Budget(scope=scope, per=per, gpus=most) for per, scope, most in scopes]
    evaluator = _evaluator_of([web], *waiting, budgets=budgets)
    (found,), calls = _counting_calls(lambda: _within([web], evaluator))
    assert calls < 3_800_000  # nearly all to find places
    assert len(found.serves) == 500


@st.composite
def _various(draw: st.DrawFn) -> list[Decision]:
    """Single pods, replicas that go one by one in either order, and workloads that share a PodDisruptionBudget."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4))
        kind = draw(st.sampled_from([None, "Deployment", "StatefulSet"]))
        item = _replicated(f"x{number}", *nodes, kind=kind) if kind else _holder(f"x{number}", *nodes)
        budgets = draw(st.sampled_from([{}, {}, {"shared": 1}, {"shared": 2}]))
        priority = draw(st.sampled_from([500, 1_000]))
        pods = tuple(dataclasses.replace(one, priority=priority) for one in item.pods)
        lost = draw(st.sampled_from([0.0, 1.0, None]))
        decision = _decision(dataclasses.replace(item, pods=pods, budgets=budgets))
        found.append(dataclasses.replace(decision, gpu_hours_lost=lost))
    return found


_PODS = st.builds(
    _waiting,
    st.just("w"),
    st.sampled_from([1, 1, 2]),
    priority=st.sampled_from([5_000, 5_000, 700]),
    nodes=st.sampled_from([NODES, ("a",), ("b",), ("b", "c")]),
)


@st.composite
def _contested(draw: st.DrawFn) -> tuple[list[Decision], list[WaitingPod], list[Budget]]:
    """Idle workloads of three teams, pods and gangs that wait, the most urgent first, and budgets."""
    idle = [_team(draw(st.integers(0, 2)), one) for one in draw(_various())]
    waiting = []
    for number in range(draw(st.integers(1, 6))):
        pod = _waiting(
            f"w{number}", draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([9_000, 5_000, 2_000]))
        )
        waiting.append(dataclasses.replace(pod, nodes=draw(_PODS).nodes))
    gang = draw(st.integers(0, len(waiting)))
    waiting[:gang] = _gang(*waiting[:gang])
    amounts = st.sampled_from([{"workloads": 1}, {"workloads": 2}, {"gpus": 1}, {"gpus": 3}])
    budgets = draw(
        st.lists(st.builds(_budget, st.sampled_from([*BudgetScope]), amounts), min_size=1, max_size=2)
    )
    by_scope = {one.scope: one for one in budgets}
    return idle, sorted(waiting, key=lambda one: (-one.priority, one.ref)), [*by_scope.values()]


def _budget(scope: BudgetScope, amounts: Mapping[str, Any]) -> Budget:
    return Budget(scope=scope, per=Per.RUN, **amounts)


def _pods_going(decision: Decision) -> list[Pod]:
    parts = [one for _, pods, _ in decision.going for one in pods]
    return parts or [*decision.workload.pods]


def _fit(pods: Sequence[WaitingPod], free: Mapping[str, int]) -> bool:
    """Whether all of them find GPUs on nodes that they can use."""
    if not pods:
        return True
    first, *others = pods
    asked = first.resources[GPU]
    return any(
        free.get(node, 0) >= asked and _fit(others, {**free, node: free[node] - asked})
        for node in first.nodes
    )


_Contested = tuple[list[Decision], list[WaitingPod], list[Budget]]


def _needs_of(decisions: Sequence[Decision]) -> dict[ObjectRef, collections.Counter[ObjectRef]]:
    """By pending pod or gang, how many replicas of each workload go for it."""
    found: dict[ObjectRef, collections.Counter[ObjectRef]] = collections.defaultdict(collections.Counter)
    for one in decisions:
        if one.is_enforced:
            for demand in [pod.demand for pod, _, _ in one.going] or one.serves:
                found[demand][one.workload.ref] += 1
    return found


@hypothesis.given(_contested())
def test_budgets_serve_each_demand_whole_or_not(world: _Contested) -> None:
    """All pods fit of all that are served; all that goes serves one, and no budget is exceeded."""
    idle, waiting, budgets = world
    found, evaluator = _budgeted(idle, *waiting, budgets=budgets)
    served = _needs_of(found)
    free = collections.Counter(pod.node for one in found if one.is_enforced for pod in _pods_going(one))
    assert _fit([one for one in waiting if one.demand in served], free)
    assert all(bool(one.serves) == one.is_enforced for one in found if not one.blockers)
    assert [one.workload.ref for one in found] == [one.workload.ref for one in idle]
    _require_within_budgets(found, evaluator)


def _require_within_budgets(decisions: Sequence[Decision], evaluator: PolicyEvaluator) -> None:
    for budget in evaluator.policy.budgets:
        purses: dict[str, list[float]] = collections.defaultdict(list)
        for one in decisions:
            place = {
                BudgetScope.NAMESPACE: one.workload.ref.namespace,
                BudgetScope.OWNER: str(one.workload.ref),
            }
            is_part = one.whole is not None and budget.scope is not BudgetScope.OWNER
            if one.is_enforced and (budget.counts(one.action or "") or is_part):
                purses[place.get(budget.scope, "")].append(one.frees)
        for frees in purses.values():
            assert budget.workloads is None or len(frees) <= budget.workloads
            assert budget.gpus is None or sum(frees) <= budget.gpus


@hypothesis.given(_contested())
def test_budgets_take_nothing_from_a_demand_for_one_of_lower_priority(world: _Contested) -> None:
    """Without the least urgent one, the same are served of the others, by the same."""
    idle, waiting, budgets = world
    *_, last = dict.fromkeys(one.demand for one in waiting)
    others = [one for one in waiting if one.demand != last]
    beside = _needs_of(_budgeted(idle, *waiting, budgets=budgets)[0])
    beside.pop(last, None)
    assert beside == _needs_of(_budgeted(idle, *others, budgets=budgets)[0])


@hypothesis.example(
    (
        [_decision(_holder("ready", "b"))],
        [_waiting("first", 1, nodes=("a",)), _waiting("next", 2, nodes=("b",))],
        [Budget(per=Per.RUN, workloads=9)],
    ),
    [_decision(_holder("x", "a", "b"))],
)
@hypothesis.given(_contested(), _various())
def test_workloads_that_get_a_notice_first_change_nothing_that_goes_now(
    world: _Contested, others: Sequence[Decision]
) -> None:
    """They serve what nobody serves otherwise, so no tenant holds up others by them."""
    idle, waiting, budgets = world
    baits = []
    for one in others:
        ref = dataclasses.replace(one.workload.ref, name=f"bait-{one.workload.ref.name}")
        item = dataclasses.replace(one.workload, ref=ref, budgets={})
        baits.append(_notice(dataclasses.replace(one, workload=item)))
    found, evaluator = _budgeted(
        [*baits, *idle], *waiting, budgets=budgets
    )  # those by share count baits, too
    going = [one for one in found if one.is_enforced and one.action is not Action.NOTICE]
    assert going == [one for one in _within(idle, evaluator) if one.is_enforced]


# --- Places that are kept between pending pods


def _from_scratch(waits: WaitingPod, places: Places) -> Placement | None:
    places.kept.clear()
    return best_place(waits, places)


@hypothesis.example(
    [_decision(_replicated("x", "a", "b", kind="StatefulSet"))],
    [("do", _waiting("w", 1)), ("do", _waiting("w", 1, nodes=("a",)))],
)
@hypothesis.given(
    _various(),
    st.lists(st.tuples(st.sampled_from(["do", "do", "undo", "spare"]), _PODS), min_size=2, max_size=8),
)
def test_kept_places_are_those_that_would_be_found_again(
    decisions: list[Decision], steps: list[tuple[str, WaitingPod]]
) -> None:
    """Whatever was placed, taken back, or spared in between."""
    fleet = Fleet(tuple(one.workload for one in decisions), {}, {}, queues=QueueQuotas())
    evaluator = PolicyEvaluator(RULES, fleet, at=AT)
    victims = sorted((one for each in decisions for one in victims_of(each, evaluator)), key=standing)
    places, again = Places(fleet, victims), Places(fleet, victims)
    done: list[Placement] = []
    for step, waits in steps:
        found, expected = best_place(waits, places), _from_scratch(waits, again)
        assert found == expected
        if step == "do" and found is not None:
            done.append(found)
            places.do(found)
            again.do(found)
        elif step == "undo" and done:
            last = done.pop()
            places.undo(last)
            again.undo(last)
        elif step == "spare":
            spared = frozenset(victims[: waits.priority % 3])
            places.spare(spared)
            again.spare(spared)
