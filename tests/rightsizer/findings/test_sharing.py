"""Who may share a GPU with whom: only pods of one trust domain, and none that the policy calls untrusted."""

import dataclasses
import itertools
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from rightsizer.findings.gpu_slices import ISOLATION
from rightsizer.model import Decision, FindingName, Fleet, Mode, Node, ObjectRef, Pod, Workload
from rightsizer.planning.budget import within_budgets
from rightsizer.planning.decide import decide
from rightsizer.policy.match import Sharing
from tests.rightsizer.build import (
    H100,
    MANY,
    busy_usage,
    evaluator,
    history,
    measured_for,
    pod,
    policy,
    rule,
    usages,
    workload,
)

GPU, SHARED, SLICE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
MEM, PERCENT, ALIYUN = "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "aliyun.com/gpu-mem"
HOME = Node("n1", H100, 8, 80 << 30, {GPU: 8})
MPS = Node("s1", H100, 2, 80 << 30, {SHARED: 8}, sharing="mps", labels={"pool": "a"})
SLICED = dataclasses.replace(MPS, sharing="time-slicing")
MIG = Node("m1", H100, 2, 80 << 30, {SLICE: 14})
SLICED_MIG = dataclasses.replace(MIG, labels={f"{SLICE}.replicas": "2"})
HAMI = Node("h1", H100, 2, 80 << 30, {GPU: 20}, sharing="hami", pooled=2)
GPUSHARE = Node("g1", H100, 2, 80 << 30, {ALIYUN: 160}, sharing="gpushare", pooled=2)
TEAM, OTHER = {"team": "a"}, {"team": "b"}
CLUSTER, BY_TEAM = Sharing(within="cluster"), Sharing(within="label", label="team")


def _workload(
    name: str = "w", namespace: str = "research", *, labels: Mapping[str, str] | None = None, **changes: Any
) -> Workload:
    """A Deployment of one pod, with a GPU to itself unless told otherwise, which may run in one pool only."""
    selector = {"nodeSelector": {"pool": changes.pop("pool")}} if "pool" in changes else {}
    one = pod(f"{name}-0", **{"resources": {GPU: 1}, **changes})
    limits = {key: str(amount) for key, amount in one.resources.items()}
    container = {"name": "main", "resources": {"limits": limits}}
    spec = {"template": {"spec": {"containers": [container], **selector}}}
    return workload(
        dataclasses.replace(one, ref=dataclasses.replace(one.ref, namespace=namespace)),
        ref=ObjectRef("apps/v1", "Deployment", namespace, name, f"uid-{namespace}-{name}"),
        namespace_labels=labels or {},
        spec=json.dumps(spec).encode(),
    )


def _plan(
    items: Sequence[Workload], nodes: Sequence[Node], sharing: Sharing | None = None
) -> dict[str, Decision]:
    """The plan for workloads that need 4 GiB and a tenth of their GPUs, where oversized ones are resliced."""
    around = Fleet(tuple(items), {node.name: node for node in (HOME, *nodes)}, {})
    rules = policy(
        rule("all", findings={FindingName.OVERSIZED_GPU: Mode.ENFORCE}), sharing=sharing or Sharing()
    )
    light = busy_usage(memory_peak_bytes=4 << 30, activity_peak=0.1, activity_mean=0.05, traffic_peak=0.05)
    seen = usages(*((one, (light,)) for item in items for one in item.pods if item.ref.name in "wv"))
    book = evaluator(rules, around=around)
    decided = decide(measured_for(book, seen, histories=dict.fromkeys(seen, history("#"))), book)
    return {decision.workload.ref.name: decision for decision in within_budgets(decided, book)}


def _oversized(decision: Decision) -> tuple[str, ...] | None:
    """What the plan says about slices; None if nothing."""
    found = (decision.finding, *decision.also)
    return next((one.words for one in found if one.name is FindingName.OVERSIZED_GPU), None)


def _sharer(namespace: str = "other", resource: str = SHARED, node: str = "s1", **changes: Any) -> Workload:
    """Pods that share a GPU of a node."""
    amounts = {**({GPU: 1} if resource in {MEM, PERCENT} else {}), resource: changes.pop("amount", 1)}
    return _workload("there", namespace, **{"node": node, "is_shared": True, "resources": amounts, **changes})


def _untrusted(*namespaces: str, **changes: Any) -> Sharing:
    return Sharing.model_validate({"untrusted": [{"namespaces": list(namespaces)}], **changes})


FOREIGN_POOL = dataclasses.replace(MPS, name="s2", allocatable={SHARED: 1}, labels={"pool": "b"})
W = _workload()
AT_S2 = _sharer(node="s2")
UNREADABLE = _sharer(unreadable=("x",), resources={})
UNBOUND = _sharer(node="", phase="Pending")

PROPOSED: dict[str, tuple[Workload, Sequence[Node], Sequence[Workload], Sharing | None]] = {
    "nobody-there": (W, [MPS], [], None),
    "its-own-namespace": (W, [MPS], [_sharer("research")], None),
    "anybody-by-policy": (W, [MPS], [_sharer()], CLUSTER),
    "same-label": (_workload(labels=TEAM), [MPS], [_sharer(labels=TEAM)], BY_TEAM),
    "node-it-cannot-go-to": (_workload(pool="a"), [MPS, FOREIGN_POOL], [AT_S2], None),
    "closed-node": (W, [MPS, dataclasses.replace(FOREIGN_POOL, is_open=False)], [AT_S2], None),
    "isolated-instances": (W, [MIG], [_sharer(resource=SLICE, node="m1")], None),
    "an-instance-although-untrusted": (W, [MIG, MPS], [], _untrusted("research")),
    "whole-gpu-beside-amounts": (W, [HAMI], [_workload("there", "other", node="h1", is_shared=True)], None),
    "less-of-what-it-shares": (
        _workload(node="h1", is_shared=True, resources={GPU: 1, MEM: 40_000}),
        [HAMI],
        [_sharer(resource=MEM, node="h1", amount=8000)],
        None,
    ),
}
REFUSED: dict[str, tuple[Workload, Sequence[Node], Sequence[Workload], Sharing | None]] = {
    "another-namespace": (W, [MPS], [_sharer()], None),
    "another-namespace-among-its-own": (W, [MPS], [_sharer("research"), _sharer()], None),
    "another-label": (_workload(labels=TEAM), [MPS], [_sharer(labels=OTHER)], BY_TEAM),
    "no-label-there": (_workload(labels=TEAM), [MPS], [_sharer()], BY_TEAM),
    "label-of-a-pod": (
        _workload(labels=TEAM),
        [MPS],
        [dataclasses.replace(_sharer(), labels=TEAM)],
        BY_TEAM,
    ),
    "untrusted-there": (W, [MPS], [_sharer()], _untrusted("oth*", within="cluster")),
    "perhaps-untrusted-there": (
        W,
        [MPS],
        [dataclasses.replace(_sharer(), resource_version="")],
        Sharing.model_validate({"within": "cluster", "untrusted": [{"labels": {"team": "guests"}}]}),
    ),
    "another-node-that-is-full": (W, [MPS, FOREIGN_POOL], [AT_S2], None),
    "unreadable-there": (W, [MPS], [UNREADABLE], None),
    "waits-for-it": (W, [MPS], [UNBOUND], None),
    "amounts-of-hami": (W, [HAMI], [_sharer(resource=PERCENT, node="h1", amount=20)], None),
    "amounts-of-gpushare": (W, [GPUSHARE], [_sharer(resource=ALIYUN, node="g1", amount=20)], None),
    "waits-for-amounts": (W, [HAMI], [_sharer(resource=PERCENT, node="", phase="Pending")], None),
    "shared-instances": (W, [SLICED_MIG], [_sharer(resource=SLICE, node="m1")], None),
}


@pytest.mark.parametrize(("item", "nodes", "there", "sharing"), PROPOSED.values(), ids=PROPOSED.keys())
def test_share_within_the_trust_domain_is_proposed(
    item: Workload, nodes: Sequence[Node], there: Sequence[Workload], sharing: Sharing | None
) -> None:
    """Isolated instances for all; a smaller amount for those that share anyway."""
    decision = _plan([item, *there], nodes, sharing)["w"]
    assert decision.is_enforced, decision.finding.words
    assert decision.finding.name is FindingName.OVERSIZED_GPU


@pytest.mark.parametrize(("item", "nodes", "there", "sharing"), REFUSED.values(), ids=REFUSED.keys())
def test_share_outside_of_the_trust_domain_is_not_proposed(
    item: Workload, nodes: Sequence[Node], there: Sequence[Workload], sharing: Sharing | None
) -> None:
    """The scheduler may choose each node that could take the pods; the plan says what is in the way."""
    found = _plan([item, *there], nodes, sharing)
    assert found["w"].finding.proposal is None
    assert _oversized(found["w"]) is not None
    assert str(_oversized(found["w"])).count("pods outside of its trust domain") == 1


def test_share_without_a_trust_domain_is_not_proposed() -> None:
    """A namespace without the label is nobody's, also where no other pod is."""
    decision = _plan([W], [MPS], BY_TEAM)["w"]
    assert decision.finding.proposal is None
    words = "nvidia.com/gpu.shared is free, but it has no trust domain: its namespace has no label team"
    assert (_oversized(decision) or ())[-1] == words


@pytest.mark.parametrize("item", [W, _workload(node="h1", is_shared=True, resources={GPU: 1, MEM: 40_000})])
def test_untrusted_workload_is_never_told_to_share(item: Workload) -> None:
    """Not even as advice, and also where it shares by its own request."""
    nodes = [dataclasses.replace(MPS, gpus=4), HAMI, GPUSHARE]
    slices = _oversized(_plan([item], nodes, _untrusted("res*"))["w"])
    assert not slices or "MIG isolates" in slices[0]
    assert not _plan([item], nodes, _untrusted("res*"))["w"].is_enforced


@pytest.mark.parametrize(("namespace", "causes"), [("research", 0), ("other", 1)])
def test_two_trust_domains_do_not_begin_to_share_in_one_plan(namespace: str, causes: int) -> None:
    """Each is alone on the empty node, until the other comes."""
    found = _plan([W, _workload("v", namespace)], [MPS])
    assert [block.message for one in found.values() for block in one.blockers] == [
        "another change of this plan shares GPUs with pods outside of its trust domain"
    ] * causes
    assert sum(one.is_enforced for one in found.values()) == 2 - causes


METHODS = {
    "mig": [MIG],
    "mps": [MPS],
    "hami": [HAMI],
    "gpushare": [GPUSHARE],
    "time-slicing": [SLICED],
    "sliced-mig": [SLICED_MIG],
    "mps-or-sliced": [SLICED, dataclasses.replace(MPS, name="s2")],
}


@pytest.mark.parametrize(("method", "nodes"), METHODS.items(), ids=METHODS.keys())
def test_share_names_what_is_not_isolated(method: str, nodes: Sequence[Node]) -> None:
    """The weakest of those that the nodes offer."""
    words = _plan([W], nodes)["w"].finding.words[0]
    told = [name for name, text in ISOLATION.items() if words.endswith(f"; {text}")]
    assert told == [method if method in ISOLATION else "time-slicing"]


UNTRUSTED = _untrusted("research", within="cluster")
NARROWER = [
    (CLUSTER, Sharing()),
    (CLUSTER, BY_TEAM),
    (CLUSTER, _untrusted("b", within="cluster")),
    (CLUSTER, UNTRUSTED),
    (Sharing(), _untrusted("b")),
    (BY_TEAM, _untrusted("b", within="label", label="team")),
]


def _frees(found: Mapping[str, Decision]) -> float:
    return found["w"].frees if found["w"].is_enforced else 0.0


def _asked(found: Mapping[str, Decision]) -> list[str]:
    proposal = found["w"].finding.proposal
    return [name for name, _ in proposal.asks] if proposal else []


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_narrower_trust_never_frees_more(chance: random.Random) -> None:
    """A namespace instead of the cluster, a label instead of the cluster, one more that is untrusted."""
    nodes = chance.sample([MPS, SLICED_MIG, HAMI, GPUSHARE, FOREIGN_POOL], chance.randint(1, 4))
    spots = [("s1", SHARED, 1), ("m1", SLICE, 1), ("h1", MEM, 8000), ("g1", ALIYUN, 10), ("s2", SHARED, 1)]
    names = itertools.count()

    def there(spot: tuple[str, str, int]) -> Workload:
        node, resource, amount = spot
        found = _sharer(chance.choice(["research", "b", "c"]), resource, node, amount=amount)
        return _named(found, f"there{next(names)}", chance.choice([TEAM, OTHER, {}]))

    around = [there(spot) for spot in chance.choices(spots, k=chance.randint(0, 4))]
    item = _named(W, "w", chance.choice([TEAM, {}]))
    wide, narrow = chance.choice(NARROWER)
    assert _frees(_plan([item, *around], nodes, narrow)) <= _frees(_plan([item, *around], nodes, wide))
    if narrow is UNTRUSTED:
        assert all(name == SLICE for name in _asked(_plan([item, *around], nodes, narrow)))


def _named(item: Workload, name: str, labels: Mapping[str, str]) -> Workload:
    """The same under a name of its own, in a namespace with these labels."""
    pods: list[Pod] = [
        dataclasses.replace(one, ref=dataclasses.replace(one.ref, name=f"{name}-0", uid=f"uid-{name}"))
        for one in item.pods
    ]
    ref = dataclasses.replace(item.ref, name=name, uid=f"uid-{name}")
    return dataclasses.replace(item, ref=ref, pods=tuple(pods), namespace_labels=labels)
