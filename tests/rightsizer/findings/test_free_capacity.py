"""Free capacity for pods with a new request, beside pending pods and earlier changes."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from rightsizer.changes.record_codec import encode_record, recorded_changes
from rightsizer.findings.free_capacity import FreeCapacity, IncomingPods
from rightsizer.kinds.patches import record_of
from rightsizer.model import (
    Action,
    BlockerCode,
    Decision,
    FindingName,
    Fleet,
    Gang,
    Mode,
    Node,
    ObjectRef,
    Quota,
    WaitingPod,
    Workload,
)
from rightsizer.model.offers import Asks
from rightsizer.planning.budget import BudgetAccount, within_budgets
from rightsizer.planning.decide import decide
from rightsizer.planning.pending_demand import limit_to_pending_demand
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    H100,
    all_idle,
    busy_usage,
    evaluator,
    idle_usage,
    judged,
    measured_for,
    pod,
    policy,
    rule,
    usages,
    workload,
)

SLICE = "nvidia.com/mig-1g.10gb"
GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
CUT = Node("m1", H100, 1, 80 << 30, {SLICE: 2}, labels={"pool": "mig"})
HAMI = Node("h1", H100, 2, 80 << 30, {GPU: 20}, sharing="hami", pooled=2)


def _workload(
    name: str = "w", *, pods: int = 1, needs: Mapping[str, int] | None = None, **template: Any
) -> Workload:
    container = {"name": "main", "resources": {"limits": {GPU: "1"}}}
    spec = {"template": {"spec": {"containers": [container], **template}}}
    return workload(
        *(pod(f"{name}-{number}", resources={GPU: 1}, needs=needs or {}) for number in range(pods)),
        ref=ObjectRef("apps/v1", "Deployment", "research", name, f"uid-{name}"),
        spec=json.dumps(spec).encode(),
    )


TAINTED = dataclasses.replace(CUT, taints=("team=x:NoSchedule",))
_TOLERATES = {"tolerations": [{"key": "team", "operator": "Exists"}]}


def _affinity(pool: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("template", "node", "fits"),
    [
        ({}, CUT, True),
        ({"nodeSelector": {"pool": "mig"}}, CUT, True),
        ({"nodeSelector": {"pool": "whole"}}, CUT, False),
        ({}, TAINTED, False),
        (_TOLERATES, TAINTED, True),
        (_affinity("mig"), CUT, True),
        (_affinity("whole"), CUT, False),
        ({"nodeSelector": ["no", "mapping"]}, CUT, False),
        ({"nodeSelector": {"pool": "whole"}}, HAMI, False),
        ({}, HAMI, True),
    ],
)
def test_capacity_requires_matching_placement_rules(template: dict[str, Any], node: Node, fits: bool) -> None:
    """Selector, tolerations and affinity of the workload; unreadable ones count as unmet."""
    item = _workload(**template)
    asks = ((GPU, 1), (MEM, 8000)) if node is HAMI else ((SLICE, 1),)
    assert FreeCapacity(Fleet((item,), {node.name: node}, {}), item, H100).fits(asks) is fits


@pytest.mark.parametrize(("resource", "pods", "fits"), [(SLICE, 1, True), (SLICE, 2, False), (MEM, 1, True)])
def test_capacity_excludes_what_pending_pods_wait_for(resource: str, pods: int, fits: bool) -> None:
    """Of two free slices one is left if a pending pod waits for one."""
    item = _workload(pods=pods)
    waiting = WaitingPod(ObjectRef("v1", "Pod", "a", "p"), {resource: 1}, 0, "", frozenset({"m1"}))
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, waiting=(waiting,))
    assert FreeCapacity(fleet, item, H100).fits(((SLICE, 1),)) is fits
    assert FreeCapacity(fleet, item, H100).fits(((GPU, 1), (MEM, 8000))) is (resource == SLICE)


NEEDS = {"cpu": 4000, "memory": 16 << 30, "pods": 1}
ASKS = [((SLICE, 1),), ((GPU, 1), (MEM, 8000))]


@pytest.mark.parametrize("asks", ASKS)
@pytest.mark.parametrize(
    ("short", "pods", "fits"),
    [
        ({}, 1, True),
        ({}, 2, False),
        ({"cpu": 8000, "memory": 32 << 30, "pods": 2}, 2, True),
        ({"cpu": 3999}, 1, False),
        ({"memory": (16 << 30) - 1}, 1, False),
        ({"pods": 0}, 1, False),
        ({"pods": -3}, 1, False),
    ],
)
def test_capacity_requires_cpu_memory_and_pod_slots(
    asks: Asks, short: dict[str, int], pods: int, fits: bool
) -> None:
    """Each node counts what fits beside its present pods."""
    item = _workload(pods=pods, needs=NEEDS)
    spare = {"m1": {**NEEDS, **short}, "h1": {**NEEDS, **short}}
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, spare=spare)
    assert FreeCapacity(fleet, item, H100).fits(asks) is fits
    unknown = dataclasses.replace(fleet, spare={})
    assert not FreeCapacity(unknown, item, H100).fits(asks)


@pytest.mark.parametrize("asks", ASKS)
def test_capacity_beside_larger_earlier_pods_is_smaller(asks: Asks) -> None:
    """Of eight cores four are left beside a pod of four, none beside a pod of eight."""
    item = _workload(needs={"cpu": 1000})
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, spare={"m1": {"cpu": 8000}, "h1": {"cpu": 8000}})
    assert FreeCapacity(fleet, item, H100).fits(asks, IncomingPods(asks, {"cpu": 4000}, 1))
    assert not FreeCapacity(fleet, item, H100).fits(asks, IncomingPods(asks, {"cpu": 8000}, 1))


@pytest.mark.parametrize(
    ("quota", "fits"),
    [
        (Quota("research", "q", SLICE, 2, 1), True),
        (Quota("research", "q", SLICE, 2, 2), False),
        (Quota("research", "q", SLICE, 1, 2), False),
        (Quota("serving", "q", SLICE, 1, 1), True),
        (Quota("research", "q", GPU, 1, 1), True),
    ],
)
def test_capacity_is_limited_by_quotas(quota: Quota, fits: bool) -> None:
    """By those of its own namespace, as far as the request grows."""
    item = _workload()
    fleet = Fleet((item,), {"m1": CUT}, {}, quotas=(quota,))
    assert FreeCapacity(fleet, item, H100).fits(((SLICE, 1),)) is fits


def test_smaller_request_needs_no_additional_quota() -> None:
    """An amount of a GPU replaces the whole GPU that it holds."""
    item = _workload()
    fleet = Fleet((item,), {"h1": HAMI}, {}, quotas=(Quota("research", "q", GPU, 1, 1),))
    assert FreeCapacity(fleet, item, H100).fits(((GPU, 1), (MEM, 8000)))


@pytest.mark.parametrize(("node", "fit"), [(CUT, 2), (dataclasses.replace(HAMI, allocatable={GPU: 2}), 2)])
def test_capacity_taken_by_an_earlier_change_is_not_free(node: Node, fit: int) -> None:
    """In the order of the plan; later changes are blocked."""
    made = within_budgets(*_oversized(node, 4))
    causes = [block.code for one in made for block in one.blockers]
    assert [one.is_enforced for one in made].count(True) == fit
    assert causes == [BlockerCode.NO_CAPACITY] * (4 - fit)


def test_capacity_for_a_gang_that_lacks_more_is_left_to_the_next_pod() -> None:
    """It needs three reslices, of which two would fit: none is made for it, so two are for another pod."""
    gang, pod = (
        WaitingPod(ObjectRef("v1", "Pod", "a", name), {GPU: gpus}, 9_000, "", frozenset({"n1"}))
        for name, gpus in (("g", 2), ("p", 1))
    )
    ref = ObjectRef("scheduling.x-k8s.io/v1alpha1", "PodGroup", "a", "gang")
    decisions, book = _oversized(CUT, 4, dataclasses.replace(gang, gang=Gang(ref)), pod)
    made = limit_to_pending_demand(decisions, book, BudgetAccount(book)).decisions
    assert [one.serves for one in made] == [(pod.ref,), (pod.ref,), (), ()]
    causes = [block.code for one in made for block in one.blockers]
    assert causes == [BlockerCode.NO_CAPACITY, BlockerCode.ONLY_FOR_PENDING_PODS]


def _oversized(node: Node, number: int, *waiting: WaitingPod) -> tuple[tuple[Decision, ...], PolicyEvaluator]:
    """Decisions to reslice that number of workloads, before budgets, beside a node with free slices."""
    items = [_workload(f"w{each}") for each in range(number)]
    light: dict[str, Any] = {"activity_peak": 0.1, "activity_mean": 0.05, "traffic_peak": 0.05}
    seen = usages(*((item.pods[0], (busy_usage(memory_peak_bytes=4 << 30, **light),)) for item in items))
    home = Node("n1", H100, 8, 80 << 30, {GPU: 8})
    around = Fleet(tuple(items), {node.name: node, "n1": home}, {}, waiting=waiting)
    limit = Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, workloads=9)
    on_demand = [Action.RESLICE] if waiting else []
    every = rule("all", findings={FindingName.OVERSIZED_GPU: Mode.ENFORCE}, onlyForPendingPods=on_demand)
    rules = policy(every, budgets=[limit])
    book = evaluator(rules, around=around)
    histories = {key: next(iter(ALWAYS.values())) for key in seen}
    return tuple(decide(measured_for(book, seen, histories=histories), book)), book


@pytest.mark.parametrize(
    ("asks", "taken", "fits"),
    [
        (((SLICE, 1),), {SLICE: 1}, True),
        (((SLICE, 1),), {SLICE: 2}, False),
        (((SLICE, 1),), {GPU: 9}, True),
        (((GPU, 1), (MEM, 8000)), {GPU: 1}, True),
        (((GPU, 1), (MEM, 8000)), {GPU: 2}, False),
        (((GPU, 1), (MEM, 8000)), {SLICE: 9}, True),
    ],
)
def test_capacity_assumes_that_other_changes_take_the_same_nodes(
    asks: Asks, taken: dict[str, int], fits: bool
) -> None:
    """At worst each takes what is needed, or a whole GPU."""
    item = _workload()
    assert (
        FreeCapacity(Fleet((item,), {"m1": CUT, "h1": HAMI}, {}), item, H100).fits(asks, taken=taken) is fits
    )


@pytest.mark.parametrize(
    ("gpus", "budget", "causes"),
    [
        pytest.param(1, 9, [[], [BlockerCode.NO_CAPACITY]], id="one-gpu-for-both"),
        pytest.param(2, 9, [[], []], id="enough-for-both"),
        pytest.param(1, 2, [[BlockerCode.BUDGET], []], id="the-first-is-not-made"),
    ],
)
def test_reslice_is_blocked_if_a_resized_pod_may_take_the_capacity(
    gpus: int, budget: int, causes: list[list[BlockerCode]]
) -> None:
    """A pod that needed four GPUs and is left with one may take the only free one, unless a budget keeps it."""
    small, large = _workload("small"), _workload("large", needs={"pods": 1})
    large = dataclasses.replace(
        large, pods=(dataclasses.replace(large.pods[0], devices=4, resources={GPU: 4}),)
    )
    light: dict[str, Any] = {"activity_peak": 0.1, "activity_mean": 0.05, "traffic_peak": 0.05}
    seen = usages(
        (small.pods[0], (busy_usage(memory_peak_bytes=4 << 30, **light),)),
        (large.pods[0], (busy_usage(0), *(idle_usage(index) for index in (1, 2, 3)))),
    )
    hami = dataclasses.replace(HAMI, gpus=gpus, pooled=gpus, allocatable={GPU: 10 * gpus})
    home = Node("n1", H100, 8, 80 << 30, {GPU: 8})
    around = Fleet((small, large), {"h1": hami, "n1": home}, {}, spare={"h1": {"pods": 9}})
    names = (FindingName.OVERSIZED_GPU, FindingName.TOO_MANY_GPUS)
    enforced = rule("all", findings=dict.fromkeys(names, Mode.ENFORCE))
    limit = Budget(scope=BudgetScope.CLUSTER, per=Per.RUN, gpus=budget)
    book = evaluator(policy(enforced, budgets=[limit]), around=around)
    histories = {key: next(iter(ALWAYS.values())) for key in seen}
    made = within_budgets(decide(measured_for(book, seen, histories=histories), book), book)
    assert [(one.workload.ref.name, one.action) for one in made] == [
        ("large", Action.RESIZE),
        ("small", Action.RESLICE),
    ]
    assert [[block.code for block in one.blockers] for one in made] == causes


@pytest.mark.parametrize(("frees", "kept"), [(0.4615, 0.46), (0.857142, 0.86), (2.0, 2), (1.999, 2)])
def test_undo_record_keeps_fractions_of_gpus(frees: float, kept: float) -> None:
    """Budgets count them; whole numbers have no decimal point."""
    item = _workload()
    decision = dataclasses.replace(judged(item, all_idle(item), policy()), frees=frees)
    record = record_of(decision, (), run="r1", at=AT)
    assert (record.gpus, f'"gpus":{kept},' in encode_record(record)) == (kept, True)
    assert recorded_changes({"gpu-rightsizer.io/undo": encode_record(record)})[0].gpus == kept
