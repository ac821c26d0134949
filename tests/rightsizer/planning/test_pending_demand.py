"""What is done only on demand: for whom, by whom, and never more than those who wait need."""

import collections
import dataclasses
import random
from collections.abc import Mapping

import hypothesis
import hypothesis.strategies as st

from rightsizer.model import (
    Action,
    BlockerCode,
    Decision,
    FindingName,
    Fleet,
    Mode,
    ObjectRef,
    Proposal,
    Stranded,
    Verdict,
    WaitingPod,
    Workload,
)
from rightsizer.planning.pending_demand import limit_to_pending_demand
from rightsizer.policy.effective import PolicyEvaluator
from tests.rightsizer.build import AT, judged, pod, policy, rule, workload

GPU = "nvidia.com/gpu"
NODES = ("a", "b", "c")
RULES = policy(rule("r", onlyForPendingPods=[Action.SCALE_TO_ZERO]), rule("rest"))


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


def _gang(*pods: WaitingPod, waits: int | None = None) -> tuple[WaitingPod, ...]:
    ref = ObjectRef("scheduling.x-k8s.io/v1alpha1", "PodGroup", "research", "train", "")
    return tuple(dataclasses.replace(one, gang=ref, gang_waits=waits or len(pods)) for one in pods)


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
    found = limit_to_pending_demand(decisions, PolicyEvaluator(RULES, fleet, at=AT))
    assert all({block.code for block in one.blockers} <= {BlockerCode.ONLY_FOR_PENDING_PODS} for one in found)
    assert [one.workload for one in found] == [one.workload for one in decisions]
    return {
        one.workload.ref.name: None if one.blockers else tuple(ref.name for ref in one.wanted_by)
        for one in found
    }


def test_pending_demand_without_pending_pods_blocks_all() -> None:
    """Whatever it does, or does not."""
    assert _after([_decision(_holder("x", "a"))]) == {"x": None}


def test_pending_demand_equal_priority_does_not_count() -> None:
    """Equal is not higher."""
    holder = [_decision(_holder("x", "a"))]
    assert _after(holder, _waiting("w", 1, priority=1_000)) == {"x": None}
    assert _after(holder, _waiting("w", 1, priority=1_001)) == {"x": ("w",)}


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
    rules = policy(rule("r", onlyForPendingPods=[Action.SCALE_DOWN]))
    decision = dataclasses.replace(decision, action=Action.SCALE_DOWN, finding=finding, frees=1.0)
    for gpus, is_blocked in ((1, False), (2, True)):
        fleet = Fleet((item,), {}, {}, waiting=(_waiting("w", gpus),))
        (found,) = limit_to_pending_demand([decision], PolicyEvaluator(rules, fleet, at=AT))
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
    rules = policy(rule("r", onlyForPendingPods=[Action.SCALE_DOWN]))
    for cores, is_blocked in ((0, False), (4, True)):
        waits = dataclasses.replace(_waiting("w", 1), needs={"cpu": 1000 * cores})
        fleet = Fleet((item,), {}, {}, waiting=(waits,))
        (found,) = limit_to_pending_demand([decision], PolicyEvaluator(rules, fleet, at=AT))
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
