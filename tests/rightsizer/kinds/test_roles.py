"""Workloads whose pods have roles, such as prefill and decode: each is counted and scaled by itself."""

import dataclasses
import json
from typing import Any

import pytest

from rightsizer.findings.followup_queries import followup_queries
from rightsizer.kinds import KINDS
from rightsizer.kinds.advice import stop_command
from rightsizer.kinds.change_edits import missing_field_reason, proposal_edits, stop_edits
from rightsizer.kinds.edits import Path
from rightsizer.model import (
    Action,
    Edit,
    Finding,
    FindingName,
    ObjectRef,
    Pod,
    Proposal,
    Usage,
    Verdict,
    Workload,
)
from rightsizer.planning.victims import AtWorkError, select_victims
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    busy_usage,
    concurrency,
    criteria,
    findings,
    fleet,
    idle_usage,
    measured,
    pod,
    usages,
    workload,
)

RAY = next(row for row in KINDS if row.kind == "RayCluster")
DYNAMO = next(row for row in KINDS if row.kind == "DynamoGraphDeployment")
GROVE = next(row for row in KINDS if row.kind == "PodCliqueSet")
COMPONENT, CLIQUE = "nvidia.com/dynamo-component", "grove.io/podclique"
REPLICA = "grove.io/podcliquescalinggroup-replica-index"
SERVICES = {"prefill": {"replicas": 4}, "decode": {"replicas": 4}, "frontend": {}}


def _of(
    busy: dict[str, int], *, label: str = COMPONENT, count: int = 4, services: Any = None
) -> tuple[Workload, list[tuple[Pod, tuple[Usage, ...]]]]:
    """So many pods of each role, the first ones busy."""
    pairs: list[tuple[Pod, tuple[Usage, ...]]] = []
    for role, most in busy.items():
        for number in range(count):
            one = pod(f"{role}-{number}", labels={label: role} if role else {})
            place = len(pairs)
            pairs.append((one, (busy_usage(place) if number < most else idle_usage(place),)))
    row = DYNAMO if label == COMPONENT else GROVE
    ref = ObjectRef(row.of.api_version, row.kind, "research", "w", "uid-w")
    spec = json.dumps({"services": services or SERVICES}).encode()
    item = workload(*(each for each, _ in pairs), ref=ref, size=None, spec=spec, created=AT - 30 * DAY)
    return item, pairs


def _found(busy: dict[str, int], *, label: str = COMPONENT) -> Finding | None:
    item, pairs = _of(busy, label=label)
    counts = {f"uid-w/{role}": concurrency(most) for role, most in busy.items()}
    found = findings(item, usages(*pairs), histories=ALWAYS, concurrency=counts)
    return next((one for one in found if one.name is FindingName.TOO_MANY_REPLICAS), None)


def test_role_with_idle_replicas_is_scaled_down_by_itself() -> None:
    """Replicas of decode cannot replace those of prefill: only the pods of one role go, with its own headroom."""
    finding = _found({"decode": 4, "prefill": 1})
    assert finding is not None
    assert finding.proposal is not None
    assert (finding.verdict, finding.proposal.role, finding.proposal.replicas) == (Verdict.ACT, "prefill", 2)
    assert finding.words[0].startswith("prefill: at most 1 of 4 replicas")
    assert finding.proposal.words.startswith("prefill: 2 replicas needed")
    assert set(finding.proposal.pods) <= {"prefill-1", "prefill-2", "prefill-3"}


def test_role_without_any_work_keeps_a_replica() -> None:
    """Without its last one the others could not work."""
    finding = _found({"decode": 4, "prefill": 0})
    assert finding is not None
    assert finding.proposal is not None
    assert (finding.proposal.role, finding.proposal.replicas) == ("prefill", 1)


def test_role_that_frees_most_comes_first() -> None:
    """One change of one role at a time."""
    finding = _found({"decode": 3, "prefill": 1, "encode": 0})
    assert finding is not None
    assert finding.proposal is not None
    assert finding.proposal.role == "encode"


def test_roles_unknown_of_a_pod_are_not_counted() -> None:
    """A pod without a label may be of any."""
    item, pairs = _of({"decode": 4, "prefill": 0, "": 1})
    found = findings(item, usages(*pairs), histories=ALWAYS, concurrency={"uid-w": concurrency(4)})
    assert FindingName.TOO_MANY_REPLICAS not in {one.name for one in found}


def test_roles_of_grove_are_advised_on() -> None:
    """Their replicas are fields of PodCliques, which the set only creates."""
    finding = _found({"w-0-decode": 4, "w-0-prefill": 1}, label=CLIQUE)
    assert finding is not None
    assert (finding.verdict, finding.proposal) == (Verdict.KEEP, None)
    assert finding.words[0].startswith("w-0-prefill: ")
    assert "another object" in finding.words[-1]


def test_roles_are_counted_apart() -> None:
    """Prometheus is asked for each."""
    item, pairs = _of({"decode": 4, "prefill": 1})
    asked = followup_queries(fleet(item), measured(item, usages(*pairs)), lambda _: [criteria()]).concurrency
    assert {(one.ref.uid, len(one.pods)) for request in asked for one in request.workloads} == {
        ("uid-w/decode", 4),
        ("uid-w/prefill", 4),
    }


def _down(*names: str, replicas: int = 2) -> Proposal:
    return Proposal(Action.SCALE_DOWN, 2.0, "", replicas=replicas, pods=names, role="prefill")


def _edits(proposal: Proposal, pods: list[Pod], **service: Any) -> list[Edit]:
    obj = {"metadata": {}, "spec": {"services": {**SERVICES, "prefill": {"replicas": 4, **service}}}}
    return proposal_edits(DYNAMO, obj, proposal, resources=["nvidia.com/gpu"], pods=pods)


def test_scale_down_of_a_role_changes_its_number_only() -> None:
    """The controller chooses the pods."""
    item, _ = _of({"decode": 4, "prefill": 1})
    edits = _edits(_down("prefill-2", "prefill-3"), list(item.pods))
    assert edits == [Edit(("spec", "services", "prefill", "replicas"), 4, 2)]


def test_scale_down_of_a_role_counts_whole_replicas_of_many_nodes() -> None:
    """Two pods of two are one replica."""
    pods = [pod(f"p-{n}", labels={COMPONENT: "prefill", REPLICA: str(n // 2)}) for n in range(8)]
    edits = _edits(_down("p-6", "p-7"), pods, multinode={"nodeCount": 2})
    assert [edit.after for edit in edits] == [3]


def test_scale_down_never_takes_the_last_replica_of_a_role() -> None:
    """Not even where the object asks for fewer than there are."""
    item, _ = _of({"prefill": 0})
    with pytest.raises(ValueError, match="asks for 2 replicas, of which 2 are to be deleted"):
        _edits(_down("prefill-2", "prefill-3"), list(item.pods), replicas=2)


@pytest.mark.parametrize(("busy", "is_refused"), [("decode-0", False), ("prefill-0", True)])
def test_victims_are_of_the_role_alone(busy: str, is_refused: bool) -> None:
    """Which of its pods go is unknown, so all of them must be idle; those of other roles stay."""
    item, _ = _of({"decode": 4, "prefill": 1})
    proposal = _down("prefill-3")
    if is_refused:
        with pytest.raises(AtWorkError, match="prefill-0 is active"):
            select_victims(item, proposal, DYNAMO, at_work=frozenset({busy}), activity={})
    else:
        assert select_victims(item, proposal, DYNAMO, at_work=frozenset({busy}), activity={}) == ()


HASH = "grove.io/pod-template-hash"
ONE_HASH = {HASH: "a"}


@pytest.mark.parametrize(
    ("busy", "labels", "changes", "is_refused"),
    [
        pytest.param("p-1", ONE_HASH, {}, False, id="an-older-one"),
        pytest.param("p-2", ONE_HASH, {}, True, id="one-of-the-newest"),
        pytest.param("p-1", ONE_HASH, {"created": None}, True, id="of-unknown-age"),
        pytest.param("p-1", ONE_HASH, {"created": AT}, True, id="as-old-as-the-newest"),
        pytest.param("p-1", ONE_HASH, {"is_ready": False}, True, id="unready-ones-go-first"),
        pytest.param("p-1", {HASH: "b"}, {}, True, id="older-templates-go-first"),
        pytest.param("p-1", {}, {}, True, id="without-grove"),
    ],
)
def test_victims_of_grove_are_the_newest(
    busy: str, labels: dict[str, str], changes: dict[str, Any], is_refused: bool
) -> None:
    """Grove's order is known for ready pods of one template; p-1 is as the case says."""
    made: list[Pod] = []
    for number in range(4):
        own = labels if number == 1 else (ONE_HASH if labels else {})
        said = changes if number == 1 else {}
        start = {"created": AT - (4 - min(number, 2)) * DAY}
        made.append(pod(f"p-{number}", **{**start, **said, "labels": {COMPONENT: "prefill", **own}}))
    if changes.get("created") == AT:
        made[2] = dataclasses.replace(made[2], created=AT)
        made[3] = dataclasses.replace(made[3], created=AT)
    item = dataclasses.replace(_of({"decode": 1})[0], pods=tuple(made))
    _select(item, busy, is_refused=is_refused)


@pytest.mark.parametrize(("busy", "is_refused"), [("p-3", False), ("p-4", True)])
def test_victims_of_grove_groups_have_the_highest_index(busy: str, is_refused: bool) -> None:
    """Of four replicas of two pods, one goes."""
    made = tuple(pod(f"p-{n}", labels={COMPONENT: "prefill", REPLICA: str(n // 2)}) for n in range(8))
    item = dataclasses.replace(_of({"decode": 1})[0], pods=made)
    _select(item, busy, is_refused=is_refused, left=4)


def _select(item: Workload, busy: str, *, is_refused: bool, left: int = 2) -> None:
    proposal = _down(replicas=left)
    if is_refused:
        with pytest.raises(AtWorkError, match=f"{busy} is active"):
            select_victims(item, proposal, DYNAMO, at_work=frozenset({busy}), activity={})
    else:
        assert select_victims(item, proposal, DYNAMO, at_work=frozenset({busy}), activity={}) == ()


def test_stop_sets_every_role_to_zero() -> None:
    """A service without a number has one replica; one that has none is left as it is."""
    obj = {"metadata": {}, "spec": {"services": {**SERVICES, "off": {"replicas": 0}}}}
    edits = stop_edits(DYNAMO, obj, AT)
    assert [(edit.path[2], edit.before, edit.after) for edit in edits] == [
        ("prefill", 4, 0),
        ("decode", 4, 0),
        ("frontend", None, 0),
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"services": {"decode": {"scalingAdapter": {"enabled": True}}}}, "scalingAdapter.enabled is True"),
        ({"services": {"decode": {}, "plan": {"componentType": "planner"}}}, "componentType is 'planner'"),
        ({"services": {"decode": {}}, "experimental": {"componentGroups": [{}]}}, "componentGroups is set"),
        ({"services": {"decode": {"replicas": 0}}}, "is 0 already"),
        ({}, r"it has no spec.services.\*.replicas"),
    ],
)
def test_stop_is_refused_where_something_else_counts_the_replicas(spec: Any, words: str) -> None:
    """Dynamo's webhook or planner would revert it."""
    with pytest.raises(ValueError, match=words):
        stop_edits(DYNAMO, {"metadata": {}, "spec": spec}, AT)


def test_stop_of_what_grove_runs_is_advised_on() -> None:
    """Grove restarts a gang in which a role has no pods; a scale-down of a role stays possible."""
    item, _ = _of({"decode": 4, "prefill": 1})
    assert missing_field_reason(item, None, AT) == ""
    pods = tuple(dataclasses.replace(one, labels={**one.labels, CLIQUE: "c"}) for one in item.pods)
    item = dataclasses.replace(item, pods=pods)
    assert missing_field_reason(item, None, AT).startswith("Grove runs it")
    assert missing_field_reason(item, _down("prefill-3"), AT) == ""


def test_stop_command_names_every_role() -> None:
    """As kubectl takes it."""
    command = stop_command(_of({"decode": 1})[0])
    assert '"decode": {"replicas": 0}' in command
    assert '"frontend": {"replicas": 0}' in command


def _record(*edits: tuple[Path, Any, Any]) -> dict[str, str]:
    """The annotations after a scale-down that made these edits."""
    made = [{"path": path, "before": before, "after": after} for path, before, after in edits]
    record = {"run": "r1", "at": "2026-11-20T00:00:00Z", "action": "scale-down", "rule": "all"}
    text = json.dumps({**record, "finding": "too-many-replicas", "reason": "", "edits": made})
    return {"gpu-rightsizer.io/undo": text}


PREFILL = ("spec", "services", "prefill", "replicas")


@pytest.mark.parametrize(("busy", "replicas"), [(2, 3), (1, None)])
def test_role_that_was_scaled_down_grows_with_its_demand(busy: int, replicas: int | None) -> None:
    """By itself, with its own headroom; not another role whose replicas are all busy."""
    services = {**SERVICES, "prefill": {"replicas": 2}, "decode": {"replicas": 2}}
    item, pairs = _of({"decode": 2, "prefill": busy}, count=2, services=services)
    item = dataclasses.replace(item, annotations=_record((PREFILL, 10, 2)))
    counts = {"uid-w/decode": concurrency(2), "uid-w/prefill": concurrency(busy)}
    found = findings(item, usages(*pairs), histories=ALWAYS, concurrency=counts)
    growth = next((one for one in found if one.name is FindingName.TOO_FEW_REPLICAS), None)
    proposal = growth.proposal if growth else None
    assert (proposal and (proposal.role, proposal.replicas)) == (replicas and ("prefill", replicas))
    if proposal is not None:
        assert missing_field_reason(item, proposal, AT) == ""
        obj = {"metadata": {"annotations": item.annotations}, "spec": {"services": services}}
        edits = proposal_edits(DYNAMO, obj, proposal, resources=["nvidia.com/gpu"], pods=item.pods)
        assert edits == [Edit(PREFILL, 2, 3)]


def test_worker_groups_get_back_all_that_was_taken() -> None:
    """Which group has the demand is not known; the lower bound and the names of deleted workers go back, too."""
    place = ("spec", "workerGroupSpecs", "groupName=gpu")
    going = (*place, "scaleStrategy", "workersToDelete")
    taken = (((*place, "replicas"), 6, 2), ((*place, "minReplicas"), 4, 2), (going, None, ["w-5"]))
    pods = [pod(f"w-{number}", labels={"ray.io/group": "gpu"}) for number in range(2)]
    ref = ObjectRef("ray.io/v1", "RayCluster", "research", "w", "uid-w")
    item = workload(*pods, ref=ref, size=None, annotations=_record(*taken), created=AT - 30 * DAY)
    used = usages(*((one, (busy_usage(place),)) for place, one in enumerate(pods)))
    found = findings(item, used, histories=ALWAYS, concurrency={"uid-w": concurrency(2)})
    (proposal,) = (one.proposal for one in found if one.name is FindingName.TOO_FEW_REPLICAS)
    assert proposal is not None
    assert (proposal.action, proposal.replicas, proposal.frees) == (Action.SCALE_UP, 6, -4)
    group = {
        "groupName": "gpu",
        "replicas": 2,
        "minReplicas": 2,
        "scaleStrategy": {"workersToDelete": ["w-5"]},
    }
    obj = {"metadata": {"annotations": item.annotations}, "spec": {"workerGroupSpecs": [group]}}
    edits = proposal_edits(RAY, obj, proposal, resources=["nvidia.com/gpu"], pods=pods)
    assert {edit.path: edit.after for edit in edits} == {path: before for path, before, _ in taken}


def test_group_from_which_nothing_was_taken_does_not_grow() -> None:
    """Such as one whose record somebody removed since the plan."""
    with pytest.raises(ValueError, match="took no replicas from its groups"):
        _edits(Proposal(Action.SCALE_UP, -2.0, "", replicas=6, role="prefill"), [])
