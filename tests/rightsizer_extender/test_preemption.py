"""Which pods are named to kube-scheduler as victims: none that it could not take, and idle ones before busy ones."""

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.kube.api_objects import DisruptionBudget, LabelSelector, PodObject
from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    ChangeRecord,
    Decision,
    Finding,
    FindingName,
    Fleet,
    FoundChange,
    Mode,
    ObjectRef,
    Plan,
    PriorityClass,
    Proposal,
    Verdict,
    Workload,
)
from rightsizer.policy.limits import Budget
from rightsizer_extender.preemption import (
    Answer,
    BoundPod,
    Preemptible,
    PreemptionTable,
    Preemptor,
    VictimChoice,
    Victims,
    bound_pod,
    candidates_of,
    choose,
    preemptor_of,
)
from tests.rightsizer.build import AT, MANY, pod, policy, rule, workload

GPU = "nvidia.com/gpu"
NODE = {"cpu": 64_000, "memory": 512 << 30, "pods": 100, GPU: 4}
RESOURCES = ResourceTable()


def _bound(name: str, gpus: int = 2, priority: int = 1_000, age_h: float = 5.0, **changes: Any) -> BoundPod:
    """A pod on the node `n1`."""
    values: dict[str, Any] = {
        "uid": f"uid-{name}",
        "namespace": "research",
        "name": name,
        "node": "n1",
        "priority": priority,
        "requests": {"cpu": 1_000, "memory": 1 << 30, "pods": 1, GPU: gpus},
        "labels": {"app": name},
        "began": AT - datetime.timedelta(hours=age_h),
        **changes,
    }
    known = pod(
        name,
        node=values["node"],
        devices=gpus,
        priority=priority,
        labels=values["labels"],
        resources={GPU: gpus},
    )
    return BoundPod(**{"gpu_pod": known, **values})


def decision_of(item: Workload, finding: FindingName = FindingName.IDLE, **changes: Any) -> Decision:
    """A decision to stop a workload for which a finding holds."""
    values: dict[str, Any] = {
        "finding": Finding(finding, Verdict.ACT, ("no activity",), 1.0, activity_mean=0.0),
        "verdict": Verdict.ACT,
        "rule": "r",
        "mode": Mode.ENFORCE,
        "action": Action.SCALE_TO_ZERO,
        "frees": float(item.gpus),
        **changes,
    }
    return Decision(workload=item, **values)


def _candidate(*pods: BoundPod, finding: FindingName = FindingName.IDLE, at_risk: float = 0.0) -> Preemptible:
    known = [one.gpu_pod for one in pods if one.gpu_pod is not None]
    ref = ObjectRef("apps/v1", "Deployment", "research", pods[0].name, f"uid-of-{pods[0].name}")
    item = workload(*known, ref=ref)
    return Preemptible(decision_of(item, finding, gpu_hours_at_risk=at_risk), tuple(known))


def _table(
    pods: Sequence[BoundPod],
    candidates: Sequence[Preemptible],
    *,
    nodes: Mapping[str, Mapping[str, int]] | None = None,
    budgets: Sequence[DisruptionBudget] = (),
) -> PreemptionTable:
    table = PreemptionTable()
    for name, offers in (nodes or {"n1": NODE}).items():
        table.set_node(name, offers)
    for one in pods:
        table.set_pod(one)
    for budget in budgets:
        table.set_budget(budget)
    table.set_candidates(candidates)
    return table


def _urgent(gpus: int = 2, priority: int = 100_000, **changes: Any) -> Preemptor:
    values: dict[str, Any] = {
        "uid": "uid-urgent",
        "namespace": "research",
        "name": "urgent",
        "priority": priority,
        "requests": {"cpu": 1_000, "memory": 1 << 30, "pods": 1, GPU: gpus},
        "is_plain": True,
        **changes,
    }
    return Preemptor(**values)


def _budget(app: str, allowed: int, *disrupted: str) -> DisruptionBudget:
    return msgspec.convert(
        {
            "metadata": {"name": f"keep-{app}", "namespace": "research"},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {
                "disruptionsAllowed": allowed,
                "disruptedPods": dict.fromkeys(disrupted, "2026-11-21T12:00:00Z"),
            },
        },
        DisruptionBudget,
    )


def _asked(
    pods: Sequence[BoundPod], candidates: Sequence[Preemptible], offered: Sequence[str], **given: Any
) -> VictimChoice:
    """The answer about the node `n1`."""
    budgets, preemptor = given.pop("budgets", ()), given.pop("preemptor", _urgent())
    table = _table(pods, candidates, budgets=budgets)
    return choose(preemptor, {"n1": Victims(tuple(f"uid-{name}" for name in offered))}, table)


IDLE, BUSY = _bound("idle", age_h=9), _bound("busy", age_h=1)
NAMED = Victims(("uid-idle",))


def test_choose_busy_victim_offered_names_idle_one() -> None:
    """A node of 4 GPUs, 2 each: the younger busy pod is offered, the idle one is named."""
    choice = _asked([IDLE, BUSY], [_candidate(IDLE)], ["busy"])
    assert (choice.answer, choice.victims) == (Answer.REPLACED, {"n1": NAMED})
    assert [one.pods[0].ref.name for one in choice.named] == ["idle"]


@pytest.mark.parametrize(
    ("idle", "preemptor"),
    [
        pytest.param(_bound("idle", priority=100_000), _urgent(), id="same-priority"),
        pytest.param(_bound("idle", priority=200_000), _urgent(), id="higher-priority"),
        pytest.param(_bound("idle", gpus=1), _urgent(3), id="too-few-gpus"),
        pytest.param(
            _bound("idle", requests={"pods": 1, GPU: 2, "cpu": 100}),
            _urgent(requests={"pods": 1, GPU: 2, "cpu": 63_500}),
            id="too-little-cpu",
        ),
        pytest.param(IDLE, _urgent(requests={"pods": 1, GPU: 2, "example.com/ib": 1}), id="unknown-resource"),
        pytest.param(IDLE, _urgent(is_plain=False), id="other-constraints"),
        pytest.param(
            _bound("idle", gpu_pod=pod("idle", is_terminating=True, devices=2, labels={"app": "idle"})),
            _urgent(),
            id="already-terminating",
        ),
        pytest.param(_bound("idle", is_in_gang=False, gpu_pod=None), _urgent(), id="details-unknown"),
    ],
)
def test_choose_idle_pod_that_cannot_be_taken_returns_what_was_offered(
    idle: BoundPod, preemptor: Preemptor
) -> None:
    """Each is a reason of its own; the scheduler's choice stands, as it was."""
    offered = {"n1": Victims(("uid-busy",), 3)}
    planned = _candidate(_bound("idle", gpus=2, priority=idle.priority))
    choice = choose(preemptor, offered, _table([idle, BUSY], [planned]))
    assert choice.answer in {Answer.UNCHANGED, Answer.UNKNOWN}
    assert choice.victims is offered
    assert not choice.named


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"annotations": {"gpu-rightsizer.io/mode": "off"}}, id="opted-out"),
        pytest.param({"annotations": {"gpu-rightsizer.io/snooze-until": "2099-01-01"}}, id="put-off"),
        pytest.param({"labels": {"app": "idle", "keep": "yes"}}, id="labelled-as-a-rule-matches"),
        pytest.param({"restarts": 1}, id="restarted"),
        pytest.param({"started": AT}, id="started-again"),
        pytest.param({"priority": 500}, id="other-priority"),
    ],
)
def test_choose_pod_changed_since_the_plan_is_not_named(change: dict[str, Any]) -> None:
    """The plan's judgement is about the pod as it was."""
    assert IDLE.gpu_pod is not None
    now = dataclasses.replace(IDLE, gpu_pod=dataclasses.replace(IDLE.gpu_pod, **change))
    planned = dataclasses.replace(_candidate(IDLE), labels=frozenset({"keep"}))
    assert _asked([now, BUSY], [planned], ["busy"]).answer is Answer.UNCHANGED


@pytest.mark.parametrize(
    ("change", "may_opt_out"),
    [
        pytest.param({"annotations": {"x": "1"}}, True, id="annotated"),
        pytest.param({"annotations": {"gpu-rightsizer.io/last-checkpoint": "now"}}, True, id="checkpointed"),
        pytest.param({"labels": {"app": "idle", "x": "1"}}, True, id="labelled"),
        pytest.param({"annotations": {"gpu-rightsizer.io/mode": "off"}}, False, id="no-opt-outs"),
    ],
)
def test_choose_pod_changed_in_what_no_rule_reads_is_named(
    change: dict[str, Any], *, may_opt_out: bool
) -> None:
    """Its owner would make a busy pod of another go by writing an annotation."""
    assert IDLE.gpu_pod is not None
    now = dataclasses.replace(IDLE, gpu_pod=dataclasses.replace(IDLE.gpu_pod, **change))
    planned = dataclasses.replace(_candidate(IDLE), labels=frozenset({"keep"}), may_opt_out=may_opt_out)
    assert _asked([now, BUSY], [planned], ["busy"]).answer is Answer.REPLACED


@pytest.mark.parametrize(
    ("allowed", "disrupted", "answer"),
    [(0, (), Answer.UNCHANGED), (1, (), Answer.REPLACED), (0, ("idle",), Answer.REPLACED)],
)
def test_choose_disruption_budget_of_idle_pod_holds(
    allowed: int, disrupted: tuple[str, ...], answer: Answer
) -> None:
    """A pod that a budget does not let go is not named, unless the API server has already counted it."""
    budgets = [_budget("idle", allowed, *disrupted)]
    choice = _asked([IDLE, BUSY], [_candidate(IDLE)], ["busy"], budgets=budgets)
    assert choice.answer is answer
    assert choice.victims["n1"].violations == 0


def test_choose_half_of_the_need_is_idle_names_it_with_one_busy_pod() -> None:
    """Of two offered busy pods one stays: the one of the higher priority. The budget of the other is still counted."""
    senior, junior = _bound("senior", 1, priority=2_000), _bound("junior", 1)
    idle, other = _bound("idle", 1, priority=1_500), _bound("other", 1)
    choice = _asked(
        [senior, junior, idle, other],
        [_candidate(idle)],
        ["senior", "junior"],
        budgets=[_budget("junior", 0)],
    )
    assert choice.victims == {"n1": Victims(("uid-idle", "uid-junior"), 1)}
    assert [one.pods[0].ref.name for one in choice.named] == ["idle"]


def test_choose_budget_shared_with_a_busy_victim_holds() -> None:
    """It allows one disruption, and the busy pod that must go has it."""
    labels = {"app": "same"}
    idle, busy = _bound("idle", 1, labels=labels), _bound("busy", 2, labels=labels)
    other = _bound("other", 1)
    given = {"preemptor": _urgent(3), "budgets": [_budget("same", 1)]}
    assert (
        _asked([idle, busy, other], [_candidate(idle)], ["busy", "other"], **given).answer is Answer.UNCHANGED
    )
    given["budgets"] = [_budget("same", 2)]
    assert (
        _asked([idle, busy, other], [_candidate(idle)], ["busy", "other"], **given).answer is Answer.REPLACED
    )


def test_choose_lowest_priority_then_least_work_at_risk() -> None:
    """One after the other."""
    senior = _bound("senior", 1, priority=2_000)
    worked, idle, busy = _bound("worked", 1), _bound("idle", 1), _bound("busy", 1)
    left = [
        _candidate(senior),
        _candidate(worked, at_risk=9.0),
        _candidate(idle),
    ]
    nodes = {"n1": {**NODE, GPU: 4}}
    order = []
    while left:
        table = _table([senior, worked, idle, busy], left, nodes=nodes)
        (named,) = choose(_urgent(1), {"n1": Victims((busy.uid,))}, table).named
        order.append(named.pods[0].ref.name)
        left.remove(named)
    assert order == ["idle", "worked", "senior"]


def test_choose_candidate_that_the_next_makes_superfluous_is_not_named() -> None:
    """The first holds too little; the next holds all that is needed."""
    small, large, busy = _bound("small", 1), _bound("large", 2), _bound("busy", 1)
    candidates = [_candidate(small), _candidate(large, at_risk=9.0)]
    choice = _asked([small, large, busy], candidates, ["small", "busy"])
    assert choice.victims == {"n1": Victims(("uid-large",))}
    assert [one.pods[0].ref.name for one in choice.named] == ["large"]


def test_choose_evaluates_no_selector_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may have thousands: they cost when pods and budgets change, and questions are answered in time."""
    budgets = [_budget(f"other-{number}", 0) for number in range(1_000)]
    table = _table([IDLE, BUSY], [_candidate(IDLE)], budgets=[*budgets, _budget("busy", 1)])
    monkeypatch.delattr(LabelSelector, "selects")
    choice = choose(_urgent(), {"n1": Victims(("uid-busy",))}, table)
    assert choice.victims == {"n1": Victims(("uid-idle",))}


def test_choose_pod_of_too_many_budgets_is_not_named() -> None:
    """Each is counted for each victim that is tried."""
    budgets = [_budget("idle", 9) for _ in range(17)]
    for number, budget in enumerate(budgets):
        budget.metadata.name = f"keep-{number}"
    given = [IDLE, BUSY], [_candidate(IDLE)], ["busy"]
    assert _asked(*given, budgets=budgets[:16]).answer is Answer.REPLACED
    assert _asked(*given, budgets=budgets).answer is Answer.UNCHANGED


def test_budgets_of_a_pod_follow_its_labels_and_their_selectors() -> None:
    """In whatever order objects come, change and go."""
    table = _table([], [])
    table.set_budget(_budget("idle", 0))
    table.set_pod(IDLE)
    answers = [table.violating([IDLE])]
    for labels in ({"app": "x"}, {"app": "idle"}, {"app": "idle", "other": ""}):
        pod = dataclasses.replace(IDLE, labels=labels)
        table.set_pod(pod)
        answers.append(table.violating([pod]))
    for change in (
        _budget("idle", 1),
        _budget("idle", 0),
        _renamed(_budget("x", 0)),
        _renamed(_budget("idle", 0)),
    ):
        table.set_budget(change)
        answers.append(table.violating([IDLE]))
    table.drop_budget("research", "keep-idle")
    answers.append(table.violating([IDLE]))
    held, free = {IDLE.uid}, set[str]()
    assert answers == [held, free, held, held, free, held, free, held, free]


def _renamed(budget: DisruptionBudget) -> DisruptionBudget:
    """A new selector of the budget of idle pods."""
    budget.metadata.name = "keep-idle"
    return budget


def test_choose_candidate_protected_by_a_budget_names_the_next() -> None:
    """One protected pod does not keep the other idle pod from being named."""
    held, other = _bound("held", 1), _bound("other", 1)
    candidates = [_candidate(held), _candidate(other, at_risk=9.0)]
    given = {"preemptor": _urgent(1), "budgets": [_budget("held", 0)]}
    assert _asked([held, other, BUSY], candidates, ["busy"], **given).victims == {
        "n1": Victims(("uid-other",))
    }


def test_choose_several_nodes_returns_only_the_least_harmful() -> None:
    """So that the scheduler, which prefers victims of a low priority, cannot choose the busy one elsewhere."""
    idle, mate = _bound("idle", priority=50_000), _bound("mate")
    low = [_bound("low", node="n2", priority=1), _bound("low2", node="n2", priority=1)]
    table = _table([idle, mate, *low], [_candidate(idle)], nodes={"n1": NODE, "n2": NODE})
    offered = {"n2": Victims(("uid-low",)), "n1": Victims(("uid-mate",))}
    assert choose(_urgent(), offered, table).victims == {"n1": NAMED}


def test_choose_scheduler_takes_idle_pods_anyway_is_unchanged() -> None:
    """Nothing is better than what it would do."""
    assert _asked([IDLE, BUSY], [_candidate(IDLE)], ["idle"]).answer is Answer.UNCHANGED


def test_choose_pods_of_a_whole_workload_go_together_or_not() -> None:
    """Two pods of one Job: both, where both are needed and there; neither without the other."""
    first, second, busy = _bound("w-0", 1), _bound("w-1", 1), _bound("busy", 2)
    both = _candidate(first, second)
    choice = _asked([first, second, busy], [both], ["busy"])
    assert set(choice.victims["n1"].uids) == {"uid-w-0", "uid-w-1"}
    gone = _asked([first, busy, _bound("new", 1)], [both], ["busy"], preemptor=_urgent(1))
    assert gone.answer is Answer.UNCHANGED


def test_choose_replica_in_a_gang_is_not_named_alone() -> None:
    """Its scheduler would see the others wait for it."""
    members = [_bound("w-0", 1, is_in_gang=True), _bound("w-1", 1, is_in_gang=True)]
    whole = _candidate(*members)
    singly = [dataclasses.replace(whole, pods=(one,)) for one in whole.pods]
    assert _asked([*members, BUSY], singly, ["busy"], preemptor=_urgent(1)).answer is Answer.UNCHANGED
    assert _asked([*members, BUSY], [whole], ["busy"]).answer is Answer.REPLACED


def test_choose_staying_pod_repels_others_is_unchanged() -> None:
    """Anti-affinity of the pod that would stay may be why the scheduler takes it."""
    repelling = dataclasses.replace(BUSY, repels=True)
    assert _asked([IDLE, repelling], [_candidate(IDLE)], ["busy"]).answer is Answer.UNCHANGED


def test_choose_staying_pod_with_volumes_is_unchanged_for_one_with_volumes() -> None:
    """It may have the claim of one pod that the pending one asks for, or the last volume that the node attaches."""
    holding = dataclasses.replace(BUSY, has_volumes=True)
    for has_volumes, answer in ((True, Answer.UNCHANGED), (False, Answer.REPLACED)):
        preemptor = dataclasses.replace(_urgent(), has_volumes=has_volumes)
        assert _asked([IDLE, holding], [_candidate(IDLE)], ["busy"], preemptor=preemptor).answer is answer


def test_choose_room_for_nominated_pods_is_kept() -> None:
    """What another pending pod of the same priority waits for is not free."""
    table = _table([IDLE, BUSY], [_candidate(IDLE)])
    table.nominate("uid-first", "n1", 100_000, {GPU: 2, "pods": 1})
    for offered in (("uid-busy", "uid-idle"), ("uid-busy",)):
        assert choose(_urgent(), {"n1": Victims(offered)}, table).answer is Answer.UNCHANGED
    table.drop_pod("uid-first")
    assert choose(_urgent(), {"n1": Victims(("uid-busy",))}, table).victims == {"n1": NAMED}


@pytest.mark.parametrize("offered", [("uid-busy", "uid-unknown"), ("uid-elsewhere",)])
def test_choose_unknown_pod_offered_is_unchanged(offered: tuple[str, ...]) -> None:
    """The scheduler knows something that the watch does not tell yet."""
    table = _table([IDLE, BUSY], [_candidate(IDLE)])
    assert choose(_urgent(), {"n1": Victims(offered)}, table).answer is Answer.UNCHANGED


def test_choose_pod_fits_without_victims_is_unchanged() -> None:
    """Then something else than its resources keeps it off the node."""
    assert _asked([IDLE, BUSY], [_candidate(IDLE)], ["busy"], preemptor=_urgent(0)).answer is Answer.UNCHANGED


# --- Properties


@st.composite
def _worlds(
    draw: st.DrawFn,
) -> tuple[Preemptor, dict[str, Victims], PreemptionTable, dict[str, BoundPod], Any]:
    """Nodes with pods, some of them candidates, and what a scheduler offers: enough pods of a lower priority."""
    names = [f"p{number}" for number in range(draw(st.integers(1, 9)))]
    pods = [
        _bound(
            name,
            draw(st.integers(0, 3)),
            priority=draw(st.sampled_from((0, 10, 20, 30))),
            node=draw(st.sampled_from(("n1", "n2"))),
            labels={"app": draw(st.sampled_from(("x", "y")))},
            repels=draw(st.integers(0, 9)) == 0,
            is_in_gang=draw(st.integers(0, 5)) == 0,
        )
        for name in names
    ]
    idle = [one for one in pods if draw(st.booleans())]
    candidates = [_candidate(one) for one in idle]
    for node in ("n1", "n2"):
        group = [one for one in idle if one.node == node][:2]
        if len(group) == 2 and draw(st.booleans()):
            candidates = [
                one for one in candidates if one.pods[0].ref.uid not in {each.uid for each in group}
            ]
            candidates.append(_candidate(*group))
    pods = [
        dataclasses.replace(one, gpu_pod=dataclasses.replace(one.gpu_pod, restarts=1))
        if one.gpu_pod and draw(st.integers(0, 7)) == 0
        else one
        for one in pods
    ]
    budgets = [_budget(app, draw(st.integers(0, 2))) for app in ("x", "y") if draw(st.booleans())]
    held = {node: sum(one.requests[GPU] for one in pods if one.node == node) for node in ("n1", "n2")}
    offers = {node: {**NODE, GPU: held[node] + draw(st.integers(0, 1))} for node in held}
    table = _table(pods, candidates, nodes=offers, budgets=budgets)
    preemptor = _urgent(draw(st.integers(1, 5)), priority=draw(st.sampled_from((10, 20, 30, 40))))
    offered = {}
    for node, offer in offers.items():
        lower = [one for one in pods if one.node == node and one.priority < preemptor.priority]
        lower = draw(st.permutations(lower))
        chosen: list[BoundPod] = []
        free = offer[GPU] - held[node]
        while lower and free + sum(one.requests[GPU] for one in chosen) < preemptor.requests[GPU]:
            chosen.append(lower.pop())
        if chosen and free + sum(one.requests[GPU] for one in chosen) >= preemptor.requests[GPU]:
            offered[node] = Victims(tuple(one.uid for one in chosen))
    return preemptor, offered, table, {one.uid: one for one in pods}, (candidates, budgets, offers)


def _allows(budgets: Sequence[DisruptionBudget], pods: Sequence[BoundPod]) -> int:
    """How many of these pods budgets do not allow to end, counted in the simplest way."""
    against = 0
    left = {one.metadata.name.removeprefix("keep-"): one.status.disruptions_allowed for one in budgets}
    for one in pods:
        app = one.labels["app"]
        if app in left:
            left[app] -= 1
            against += left[app] < 0
    return against


@MANY
@hypothesis.given(_worlds())
def test_choose_never_names_a_pod_that_the_scheduler_could_not_take(world: Any) -> None:
    """Lower priority, budgets, enough room, nothing needless, and fewer busy pods than offered."""
    preemptor, offered, table, pods, (candidates, budgets, offers) = world
    if not offered:
        return
    choice = choose(preemptor, offered, table)
    assert choose(preemptor, offered, table) == choice
    if choice.answer is not Answer.REPLACED:
        assert choice.victims is offered
        return
    ((node, victims),) = choice.victims.items()
    gone = [pods[uid] for uid in victims.uids]
    named = {known.ref.uid for one in choice.named for known in one.pods}
    allowed = {known.ref.uid for one in candidates for known in one.pods}
    assert node in offered
    assert len(set(victims.uids)) == len(victims.uids)
    assert named
    assert named <= allowed
    assert all(one.node == node and one.priority < preemptor.priority for one in gone)
    assert all(one.gpu_pod is not None and one.gpu_pod.restarts == 0 for one in gone if one.uid in named)
    assert {one.uid for one in gone} - named <= set(offered[node].uids)
    assert all(one in candidates for one in choice.named)
    assert [one.priority for one in gone] == sorted((one.priority for one in gone), reverse=True)
    free = offers[node][GPU] - sum(one.requests[GPU] for one in pods.values() if one.node == node)
    freed = sum(one.requests[GPU] for one in gone)
    assert free + freed >= preemptor.requests[GPU]
    for one in choice.named:
        going = sum(pods[known.ref.uid].requests[GPU] for known in one.pods)
        assert free + freed - going < preemptor.requests[GPU]
    first = sorted(gone, key=lambda one: one.uid in named)
    assert victims.violations == _allows(budgets, first) == _allows(budgets, first[: len(gone) - len(named)])
    busy = max(sum(uid not in named for uid in one.uids) for one in offered.values())
    assert len(gone) - len(named) < busy
    staying = set(offered[node].uids) - set(victims.uids)
    assert not any(pods[uid].repels for uid in staying)


# --- What a plan lets be preempted


def _plan(*decisions: Decision, changes: Sequence[FoundChange] = ()) -> Plan:
    fleet = Fleet(
        workloads=tuple(one.workload for one in decisions),
        nodes={},
        classes={"low-priority": PriorityClass("low-priority", 1_000)},
        changes=tuple(changes),
    )
    return Plan(AT, "run", "", "", tuple(decisions), fleet=fleet)


def _named(plan: Plan, *named: FoundChange, **given: Any) -> list[list[str]]:
    rules = policy(rule("r"), **given)
    found = candidates_of(plan, rules, own="gpu-rightsizer", instance="i", named=named)
    return [[one.ref.name for one in each.pods] for each in found]


def test_candidates_are_not_kept_for_demand_that_budgets_refuse() -> None:
    """A gang that needs more than the budgets allow: the scheduler asks for another pod, which takes less."""
    ref = ObjectRef("v1", "Pod", "research", "member", "uid-member")
    words = (Blocker(BlockerCode.BUDGET, "the gang also needs another one"),)
    kept = dataclasses.replace(
        decision_of(_workload("Job", "a")), blockers=words, serves=(ref,), wanted_by=(ref,)
    )
    assert _named(_plan(kept)) == [["w-0"]]
    assert _named(_plan(kept), budgets=[Budget(workloads=0)]) == []


def _workload(kind: str, *nodes: str, **changes: Any) -> Workload:
    pods = [pod(f"w-{number}", node=node) for number, node in enumerate(nodes)]
    return workload(*pods, kind=kind, **{"spec": b"{}", **changes})


@pytest.mark.parametrize(
    ("spec", "is_candidate"),
    [
        pytest.param("{}", True, id="six-by-default"),
        pytest.param('{"backoffLimit": 3}', True, id="one-more-than-its-pods"),
        pytest.param('{"backoffLimit": 2}', False, id="as-many-as-its-pods"),
        pytest.param('{"backoffLimit": 0}', False, id="none"),
        pytest.param('{"backoffLimitPerIndex": 9}', False, id="by-index"),
        pytest.param('{"podFailurePolicy": {"rules": []}}', False, id="by-a-policy"),
        pytest.param("", False, id="not-read"),
    ],
)
def test_candidates_are_jobs_only_that_preempted_pods_do_not_fail(spec: str, *, is_candidate: bool) -> None:
    """They count as failed pods: a Job at its limit would end for good, and nothing could undo that."""
    job = _workload("Job", "a", "a", spec=spec.encode())
    assert bool(_named(_plan(decision_of(job)))) is is_candidate


def test_candidates_are_no_other_batch_workloads() -> None:
    """Their controllers have limits of their own."""
    ref = ObjectRef("kubeflow.org/v1", "PyTorchJob", "research", "w", "uid-w")
    assert _named(_plan(decision_of(_workload("PyTorchJob", "a", ref=ref)))) == []


@pytest.mark.parametrize(
    ("kind", "nodes", "named"),
    [
        pytest.param("Deployment", ("a", "b"), [["w-0"], ["w-1"]], id="replicas-singly"),
        pytest.param("Job", ("a", "a"), [["w-0", "w-1"]], id="job-whole"),
        pytest.param("Job", ("a", "b"), [], id="job-on-two-nodes"),
        pytest.param("StatefulSet", ("a",), [["w-0"]], id="stateful-set"),
        pytest.param("Pod", ("a",), [], id="bare-pod"),
        pytest.param("Unheard", ("a",), [], id="unknown-kind"),
    ],
)
def test_candidates_by_kind(kind: str, nodes: tuple[str, ...], named: list[list[str]]) -> None:
    """Replicas are independent of each other; anything else goes as a whole, and a bare pod would not come back."""
    assert _named(_plan(decision_of(_workload(kind, *nodes)))) == named


def test_candidates_bare_pod_with_stored_manifest_is_one() -> None:
    """Undo can recreate it."""
    ref = ObjectRef("v1", "Pod", "research", "w", "uid-w")
    item = _workload("Pod", "a", ref=ref)
    stored = FoundChange(ref, ChangeRecord(AT - datetime.timedelta(days=3), "earlier", "evict"))
    assert _named(_plan(decision_of(item), changes=[stored])) == [["w-0"]]
    other = dataclasses.replace(stored, ref=dataclasses.replace(ref, uid="another"))
    assert _named(_plan(decision_of(item), changes=[other])) == []


_OF_DEMAND = (BlockerCode.ONLY_FOR_PENDING_PODS, BlockerCode.BUDGET)


@pytest.mark.parametrize(
    ("changes", "is_candidate"),
    [
        pytest.param({}, True, id="enforced"),
        *(pytest.param({"blockers": (Blocker(code, ""),)}, True, id=code.value) for code in _OF_DEMAND),
        pytest.param({"mode": Mode.ADVISE}, False, id="advised"),
        pytest.param({"verdict": Verdict.PROTECTED, "action": None}, False, id="protected"),
        pytest.param({"verdict": Verdict.KEEP, "action": None}, False, id="busy"),
        pytest.param({"action": Action.NOTICE, "announced": Action.SUSPEND}, False, id="notice-not-given"),
        pytest.param({"action": Action.SCALE_DOWN}, False, id="keeps-some"),
        *(
            pytest.param({"blockers": (Blocker(code, ""),)}, False, id=code.value)
            for code in BlockerCode
            if code not in _OF_DEMAND
        ),
    ],
)
def test_candidates_are_what_the_rules_would_stop_now(changes: dict[str, Any], is_candidate: bool) -> None:
    """Blockers hold: notice, calendar, pause, cooldown; not of what other pods need, and budgets count again."""
    assert bool(_named(_plan(decision_of(_workload("Job", "a"), **changes)))) is is_candidate


@pytest.mark.parametrize(
    ("finding", "is_candidate"),
    [(name, name in {"idle", "finished", "no-requests"}) for name in FindingName],
)
def test_candidates_are_unused(finding: FindingName, is_candidate: bool) -> None:
    """A workload that is too large, or stuck, works."""
    assert bool(_named(_plan(decision_of(_workload("Job", "a"), finding)))) is is_candidate


def test_candidates_with_a_proposal_are_none() -> None:
    """The rule keeps some of it, and the scheduler cannot take a part of a pod."""
    plain = decision_of(_workload("Deployment", "a"))
    proposal = Proposal(Action.SCALE_DOWN, 1.0, "", replicas=1)
    kept = dataclasses.replace(plain, finding=dataclasses.replace(plain.finding, proposal=proposal))
    assert _named(_plan(kept)) == []


def test_candidates_earlier_preemptions_are_charged_to_the_budgets() -> None:
    """Only one workload an hour may be stopped, and one was."""
    budgets = [{"scope": "cluster", "per": "hour", "workloads": 1}]
    plan = _plan(decision_of(_workload("Job", "a")))
    earlier = FoundChange(ObjectRef("batch/v1", "Job", "other", "x", "y"), ChangeRecord(AT, "s", "suspend"))
    assert _named(plan, budgets=budgets) == [["w-0"]]
    assert _named(plan, earlier, budgets=budgets) == []


# --- Pods as they are read


def _spec(**fields: Any) -> dict[str, Any]:
    container = {
        "name": "main",
        "resources": {"requests": {GPU: "2", "cpu": "500m", "ephemeral-storage": "1Gi"}},
    }
    return {"containers": [container], "priority": 7, **fields}


def _object(kind: type[PodObject], **fields: Any) -> Any:
    body = {"metadata": {"name": "a", "namespace": "b", "uid": "u"}, "spec": _spec(**fields), "status": {}}
    return msgspec.json.decode(json.dumps(body), type=kind)


_TERM = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
_NODE_TERM: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}
_SOFT = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}


@pytest.mark.parametrize(
    ("fields", "is_plain"),
    [
        ({}, True),
        ({"affinity": {"nodeAffinity": _NODE_TERM}}, True),
        ({"affinity": {"podAntiAffinity": _SOFT}}, True),
        ({"affinity": {"podAntiAffinity": _TERM}}, False),
        ({"affinity": {"podAffinity": _TERM}}, False),
        ({"affinity": 7}, False),
        ({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}]}, False),
        ({"containers": [{"name": "a", "ports": [{"containerPort": 80}]}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}, False),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, True),
        ({"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": "c"}}]}, False),
    ],
)
def test_preemptor_is_plain_if_resources_alone_decide(fields: dict[str, Any], is_plain: bool) -> None:
    """Ports, claims and relations to other pods are the scheduler's to check, which nobody can do for it."""
    assert preemptor_of(_object(PodObject, **fields)).is_plain is is_plain


@pytest.mark.parametrize(
    ("volume", "has_volumes"),
    [
        ({"persistentVolumeClaim": {"claimName": "c"}}, True),
        ({"ephemeral": {"volumeClaimTemplate": {}}}, True),
        ({"emptyDir": {}}, False),
        ({"persistentVolumeClaim": 7}, True),
    ],
)
def test_pods_with_persistent_volume_claims_have_volumes(volume: dict[str, Any], has_volumes: bool) -> None:
    """Also where these cannot be read."""
    item = _object(PodObject, nodeName="n1", volumes=[{"name": "v", **volume}])
    bound = bound_pod(item, RESOURCES)
    assert bound is not None
    assert (bound.has_volumes, preemptor_of(item).has_volumes) == (has_volumes, has_volumes)


def test_bound_pod_requests_all_resources_as_the_scheduler_counts_them() -> None:
    """CPU in thousandths, memory in bytes, one pod, and every extended resource."""
    found = bound_pod(_object(PodObject, nodeName="n1"), RESOURCES)
    assert found is not None
    assert found.requests == {"cpu": 500, "memory": 0, "pods": 1, "ephemeral-storage": 1 << 30, GPU: 2}
    assert (found.node, found.priority, found.repels) == ("n1", 7, False)
    assert bound_pod(_object(PodObject), RESOURCES) is None
    repelling = bound_pod(_object(PodObject, nodeName="n1", affinity={"podAntiAffinity": _TERM}), RESOURCES)
    assert repelling is not None
    assert repelling.repels


def test_scores_pack_on_nodes_whose_gpus_are_used() -> None:
    """Free GPUs count against a node, GPUs held idle by half."""
    full = [_bound("a", 2, node="full"), _bound("b", 2, node="full")]
    idle = [_bound("c", 2, node="idle"), _bound("d", 2, node="idle")]
    half = [_bound("e", 2, node="half")]
    nodes = dict.fromkeys(("full", "idle", "half", "empty"), NODE)
    table = _table([*full, *idle, *half], [_candidate(idle[0])], nodes=nodes)
    names = ["full", "idle", "half", "empty", "unknown"]
    assert table.scores(_urgent(), names, RESOURCES) == [10, 7, 5, 0, 0]
    table.drop_node("full")
    assert table.scores(_urgent(), ["full"], RESOURCES) == [0]
