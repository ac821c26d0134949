"""Room for pods that are to ask for something else: where they may come, beside those who wait and each other."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest

from rightsizer.changes.records import remembered
from rightsizer.findings.node_room import Coming, Room
from rightsizer.kinds.patches import record_of
from rightsizer.model import (
    Action,
    BlockerCode,
    FindingName,
    Fleet,
    Mode,
    Node,
    ObjectRef,
    Quota,
    WaitingPod,
    Workload,
)
from rightsizer.model.offers import Asks
from rightsizer.planning.capacity import check_capacity
from rightsizer.planning.decide import decide
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    H100,
    all_idle,
    busy_usage,
    idle_usage,
    judged,
    measured_for,
    pod,
    policy,
    rule,
    rulebook,
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
def test_room_counts_where_the_pods_may_come(template: dict[str, Any], node: Node, fits: bool) -> None:
    """By their own object's selector, tolerations and affinity; what cannot be read keeps them off."""
    item = _workload(**template)
    asks = ((GPU, 1), (MEM, 8000)) if node is HAMI else ((SLICE, 1),)
    assert Room(Fleet((item,), {node.name: node}, {}), item, H100).has(asks) is fits


@pytest.mark.parametrize(("resource", "pods", "fits"), [(SLICE, 1, True), (SLICE, 2, False), (MEM, 1, True)])
def test_those_who_wait_come_first(resource: str, pods: int, fits: bool) -> None:
    """Of two slices one is left beside a pod that waits for one."""
    item = _workload(pods=pods)
    waiting = WaitingPod(ObjectRef("v1", "Pod", "a", "p"), {resource: 1}, 0, "", frozenset({"m1"}))
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, waiting=(waiting,))
    assert Room(fleet, item, H100).has(((SLICE, 1),)) is fits
    assert Room(fleet, item, H100).has(((GPU, 1), (MEM, 8000))) is (resource == SLICE)


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
def test_cpu_memory_and_places_are_room_too(asks: Asks, short: dict[str, int], pods: int, fits: bool) -> None:
    """On each node those count that fit beside the pods that are there."""
    item = _workload(pods=pods, needs=NEEDS)
    spare = {"m1": {**NEEDS, **short}, "h1": {**NEEDS, **short}}
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, spare=spare)
    assert Room(fleet, item, H100).has(asks) is fits
    unknown = dataclasses.replace(fleet, spare={})
    assert not Room(unknown, item, H100).has(asks)


@pytest.mark.parametrize("asks", ASKS)
def test_those_before_it_may_need_more_than_it_does(asks: Asks) -> None:
    """Of eight cores four are left beside one that needs four, and none beside one that needs eight."""
    item = _workload(needs={"cpu": 1000})
    fleet = Fleet((item,), {"m1": CUT, "h1": HAMI}, {}, spare={"m1": {"cpu": 8000}, "h1": {"cpu": 8000}})
    assert Room(fleet, item, H100).has(asks, Coming(asks, {"cpu": 4000}, 1))
    assert not Room(fleet, item, H100).has(asks, Coming(asks, {"cpu": 8000}, 1))


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
def test_quotas_are_room_too(quota: Quota, fits: bool) -> None:
    """Of their own namespace, as far as they ask for more of it than they do now."""
    item = _workload()
    fleet = Fleet((item,), {"m1": CUT}, {}, quotas=(quota,))
    assert Room(fleet, item, H100).has(((SLICE, 1),)) is fits


def test_who_asks_for_a_part_of_what_it_has_needs_no_quota_of_it() -> None:
    """One GPU in amounts takes the place of one that it has whole."""
    item = _workload()
    fleet = Fleet((item,), {"h1": HAMI}, {}, quotas=(Quota("research", "q", GPU, 1, 1),))
    assert Room(fleet, item, H100).has(((GPU, 1), (MEM, 8000)))


@pytest.mark.parametrize(("node", "fit"), [(CUT, 2), (dataclasses.replace(HAMI, allocatable={GPU: 2}), 2)])
def test_what_one_takes_is_not_there_for_the_next(node: Node, fit: int) -> None:
    """In the order of the plan; the others say that they wait for room."""
    items = [_workload(f"w{number}") for number in range(4)]
    light: dict[str, Any] = {"activity_peak": 0.1, "activity_mean": 0.05, "traffic_peak": 0.05}
    seen = usages(*((item.pods[0], (busy_usage(memory_peak_bytes=4 << 30, **light),)) for item in items))
    home = Node("n1", H100, 8, 80 << 30, {GPU: 8})
    around = Fleet(tuple(items), {node.name: node, "n1": home}, {})
    rules = policy(rule("all", findings={FindingName.OVERSIZED_GPU: Mode.ENFORCE}))
    book = rulebook(rules, around=around)
    histories = {key: next(iter(ALWAYS.values())) for key in seen}
    made = check_capacity(decide(measured_for(book, seen, histories=histories), book), around)
    causes = [block.code for one in made for block in one.blockers]
    assert [one.is_enforced for one in made].count(True) == fit
    assert causes == [BlockerCode.NO_CAPACITY] * (4 - fit)


@pytest.mark.parametrize(
    ("asks", "besides", "fits"),
    [
        (((SLICE, 1),), {SLICE: 1}, True),
        (((SLICE, 1),), {SLICE: 2}, False),
        (((SLICE, 1),), {GPU: 9}, True),
        (((GPU, 1), (MEM, 8000)), {GPU: 1}, True),
        (((GPU, 1), (MEM, 8000)), {GPU: 2}, False),
        (((GPU, 1), (MEM, 8000)), {SLICE: 9}, True),
    ],
)
def test_pods_of_others_may_come_to_the_same_nodes(asks: Asks, besides: dict[str, int], fits: bool) -> None:
    """At worst each of them takes what is looked for, or a GPU that would have been shared."""
    item = _workload()
    assert Room(Fleet((item,), {"m1": CUT, "h1": HAMI}, {}), item, H100).has(asks, besides=besides) is fits


@pytest.mark.parametrize(("gpus", "causes"), [(1, [BlockerCode.NO_CAPACITY]), (2, [])])
def test_pods_that_are_made_anew_may_come_where_others_are_sent(gpus: int, causes: list[BlockerCode]) -> None:
    """One that asked for four GPUs, which no such node has, and is left with one, may take the only one there is."""
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
    book = rulebook(policy(rule("all", findings=dict.fromkeys(names, Mode.ENFORCE))), around=around)
    histories = {key: next(iter(ALWAYS.values())) for key in seen}
    made = check_capacity(decide(measured_for(book, seen, histories=histories), book), around)
    assert [(one.workload.ref.name, one.action) for one in made] == [
        ("large", Action.RESIZE),
        ("small", Action.RESLICE),
    ]
    assert [block.code for block in made[1].blockers] == causes


@pytest.mark.parametrize(("frees", "kept"), [(0.4615, 0.46), (0.857142, 0.86), (2.0, 2), (1.999, 2)])
def test_parts_of_gpus_are_remembered_as_such(frees: float, kept: float) -> None:
    """A budget over time counts them; what is whole is written without a point."""
    item = _workload()
    decision = dataclasses.replace(judged(item, all_idle(item), policy()), frees=frees)
    record = record_of(decision, (), run="r1", at=AT)
    assert (record.gpus, f'"gpus":{kept},' in record.text()) == (kept, True)
    assert remembered({"gpu-rightsizer.io/undo": record.text()})[0].gpus == kept
