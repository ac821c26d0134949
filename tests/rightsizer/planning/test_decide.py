"""From findings and a effective to a decision: what is done, what stands against it, what it has to wait for."""

import dataclasses
import datetime
import itertools
import json
from typing import Any

import pytest

from rightsizer.config import PREFIX
from rightsizer.model import (
    Action,
    ActivitySeries,
    BlockerCode,
    ChangeOutcome,
    ChangeRecord,
    Concurrency,
    Decision,
    FindingName,
    Fleet,
    FoundChange,
    Manager,
    Mode,
    Node,
    ObjectRef,
    Quota,
    Verdict,
    Workload,
)
from rightsizer.policy.limits import Freeze
from rightsizer.policy.thresholds import Thresholds
from rightsizer.report.rows import advice_on
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    all_idle,
    busy_usage,
    concurrency,
    fleet,
    history,
    idle_usage,
    judged,
    judged_all,
    pod,
    policy,
    rule,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)
GENTLE = policy(rule("gentle", notifyBefore=4 * HOUR))
FREEZE = Freeze.model_validate({"from": datetime.date(2026, 11, 20), "to": datetime.date(2026, 11, 22)})


def _noticed(given: datetime.timedelta, action: str = "scale-to-zero", **changes: Any) -> Workload:
    """A workload whose owner was told so long ago."""
    at = (AT - given).isoformat()
    notice = {
        "at": at,
        "due": at,
        "action": action,
        "finding": "idle",
        "reason": "",
        "run": "r0",
        **changes,
    }
    return workload(annotations={PREFIX + "notice": json.dumps(notice)})


def _causes(decision: Decision) -> list[BlockerCode]:
    return [block.code for block in decision.blockers]


# --- notices


def test_decide_first_time_gives_notice() -> None:
    """It says what will be done and when; it frees nothing, and is what applying the plan writes."""
    decision = judged(workload(), all_idle(workload()), GENTLE)
    assert (decision.action, decision.announced, decision.due) == (
        Action.NOTICE,
        Action.SCALE_TO_ZERO,
        AT + 4 * HOUR,
    )
    assert (decision.is_enforced, decision.frees, decision.blockers) == (True, 0.0, ())
    assert decision.reclaimable == decision.workload.gpus


def test_decide_scale_down_needs_no_notice() -> None:
    """It comes back with the demand; a service that is sized all day would get a notice for each change."""
    pods = [pod(f"w-{number}") for number in range(6)]
    item = workload(*pods, created=AT - 30 * DAY)
    used = usages(*((one, (busy_usage(0) if one is pods[0] else idle_usage(),)) for one in pods))
    rules = policy(rule("r", notifyBefore=24 * HOUR, findings={FindingName.TOO_MANY_REPLICAS: "enforce"}))
    decision = judged(item, used, rules, histories=ALWAYS, concurrency={"uid-w": concurrency(1)})
    assert (decision.action, decision.is_enforced) == (Action.SCALE_DOWN, True)


def test_decide_idle_replicas_beyond_those_that_are_kept_get_a_notice() -> None:
    """They do not come back with the demand."""
    pods = [pod(f"w-{number}") for number in range(3)]
    item = workload(*pods, created=AT - 30 * DAY)
    decision = judged(item, all_idle(item), policy(rule("r", notifyBefore=4 * HOUR, minReplicas=2)))
    assert (decision.action, decision.announced) == (Action.NOTICE, Action.SCALE_DOWN)


def test_decide_notice_before_the_required_time_makes_nothing_reclaimable() -> None:
    """It is not idle for long enough yet."""
    paused = history("#" * 8 * 24 + "." * 30)
    early = Thresholds(idleFactor=0.0, minIdleTime=4 * DAY, noticeAfter=24 * HOUR)
    rules = policy(rule("r", notifyBefore=4 * HOUR, idle=early))
    decision = judged(workload(), all_idle(workload()), rules, histories={("research", "w-0"): paused})
    assert (decision.action, decision.reclaimable) == (Action.NOTICE, 0.0)


NOTICES = {
    "its-time-is-over": (_noticed(5 * HOUR), Action.SCALE_TO_ZERO, []),
    "just-over": (_noticed(4 * HOUR), Action.SCALE_TO_ZERO, []),
    "not-yet": (_noticed(3 * HOUR), Action.SCALE_TO_ZERO, [BlockerCode.NOTICE]),
    "of-another-action": (_noticed(5 * HOUR, "suspend"), Action.NOTICE, []),
    "from-the-future": (_noticed(-HOUR), Action.NOTICE, []),
    "before-it-last-worked": (_noticed(11 * DAY), Action.NOTICE, []),
    "without-a-zone": (_noticed(5 * HOUR, at="2026-11-21T01:00:00"), Action.NOTICE, []),
    "of-a-wrong-type": (_noticed(5 * HOUR, at=7), Action.NOTICE, []),
    "unreadable": (workload(annotations={PREFIX + "notice": "{"}), Action.NOTICE, []),
}


@pytest.mark.parametrize(("item", "action", "causes"), NOTICES.values(), ids=NOTICES.keys())
def test_decide_notice_of_another_action_is_given_again(
    item: Workload, action: Action, causes: list[BlockerCode]
) -> None:
    """Only for the same action, only while nothing worked since; any other is given anew."""
    decision = judged(item, all_idle(item), GENTLE)
    assert (decision.action, _causes(decision)) == (action, causes)


def test_decide_work_since_notice_voids_it() -> None:
    """It worked 25 hours ago: a notice of 26 hours ago is void, one of 24 holds."""
    worked = history("." * 200 + "#" + "." * 25)
    rules = policy(rule("r", notifyBefore=4 * HOUR, idle=Thresholds(idleFactor=0.0)))
    for given, action in ((26 * HOUR, Action.NOTICE), (24 * HOUR, Action.SCALE_TO_ZERO)):
        item = _noticed(given)
        decision = judged(item, all_idle(item), rules, histories={("research", "w-0"): worked})
        assert decision.action is action


@pytest.mark.parametrize(
    ("finding", "given", "action"),
    [
        ("idle", 5 * HOUR, Action.NOTICE),
        ("stuck", 5 * HOUR, Action.SUSPEND),
        ("stuck", 6 * DAY, Action.SUSPEND),
        ("stuck", 8 * DAY, Action.NOTICE),
    ],
)
def test_decide_notice_of_idleness_does_not_cover_stuck(
    finding: str, given: datetime.timedelta, action: Action
) -> None:
    """What spins does not say since when nothing was done: the notice must have said that it spins, and lately."""
    noticed = _noticed(given, "suspend", finding=finding)
    item = workload(kind="Job", annotations=noticed.annotations)
    spinning = usages((item.pods[0], (idle_usage(activity_mean=0.99, activity_peak=1.0),)))
    rules = policy(rule("r", notifyBefore=4 * HOUR, findings={FindingName.STUCK: "enforce"}))
    decision = judged(item, spinning, rules)
    assert (decision.finding.name, decision.action) == (FindingName.STUCK, action)


def test_decide_longer_notice_in_policy_is_respected() -> None:
    """A policy that asks for a longer notice than was given is obeyed, whatever the notice said to be due."""
    item = _noticed(5 * HOUR)
    longer = policy(rule("r", notifyBefore=24 * HOUR))
    assert _causes(judged(item, all_idle(item), longer)) == [BlockerCode.NOTICE]


def test_decide_blocked_change_gives_no_notice() -> None:
    """What is frozen, managed or guarded would make people wait for nothing."""
    item = workload(managers=(Manager("Flux", "app", reverts=True),))
    decision = judged(item, all_idle(item), GENTLE)
    assert (decision.action, _causes(decision)) == (Action.SCALE_TO_ZERO, [BlockerCode.OTHER_CONTROLLER])


def _worked(hours: int) -> dict[str, Any]:
    """Of a workload that worked so many hours ago: what is measured of it."""
    item = workload()
    old, new = usages((item.pods[0], (busy_usage(),))), all_idle(item)
    windows = {window: old if window / HOUR > hours else new for window in (DAY, 4 * HOUR, 2 * HOUR, HOUR)}
    return {"found": windows, "histories": {("research", "w-0"): history("#" + "." * hours)}}


@pytest.mark.parametrize(
    ("hours", "action", "due"),
    [
        (3, None, None),
        (11, None, None),
        (12, Action.NOTICE, AT + 12 * HOUR),
        (20, Action.NOTICE, AT + 4 * HOUR),
        (23, Action.NOTICE, AT + 4 * HOUR),
        (24, Action.NOTICE, AT + 4 * HOUR),
    ],
)
def test_decide_notice_is_given_inside_the_required_idle_time(
    hours: int, action: Action | None, due: datetime.datetime | None
) -> None:
    """From half of it on; the change follows at its end, and never sooner than the policy's notice."""
    decision = judged(workload(), rules=GENTLE, **_worked(hours))
    assert (decision.action, decision.due) == (action, due)
    assert decision.announced is (Action.SCALE_TO_ZERO if action else None)
    assert (decision.verdict is Verdict.ACT) is decision.is_enforced is bool(action)


@pytest.mark.parametrize(
    ("hours", "given", "codes"),
    [
        (13, 1, [BlockerCode.NOTICE]),
        (23, 11, [BlockerCode.NOTICE]),
        (24, 12, []),
        (24, 3, [BlockerCode.NOTICE]),
    ],
)
def test_decide_early_notice_waits_for_the_required_idle_time(
    hours: int, given: int, codes: list[BlockerCode]
) -> None:
    """The notice period alone does not end the waiting: the workload must count as idle, too."""
    decision = judged(_noticed(given * HOUR), rules=GENTLE, **_worked(hours))
    assert (decision.action, _causes(decision)) == (Action.SCALE_TO_ZERO, codes)
    if codes:
        assert "the change follows from 2026-11-2" in decision.blockers[0].message


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        (policy(), {}),
        (policy(rule("r", Mode.ADVISE, notifyBefore=4 * HOUR)), {}),
        (policy(rule("r", findings={FindingName.IDLE: "advise"}, notifyBefore=4 * HOUR)), {}),
        (GENTLE, {"managers": (Manager("Flux", "app", reverts=True),)}),
    ],
    ids=["without-notice", "advised", "idle-is-advised", "blocked"],
)
def test_decide_without_enforced_notice_nothing_is_announced(rules: Any, changes: dict[str, Any]) -> None:
    """What waits for the required idle time is kept, and the line says until when."""
    decision = judged(workload(**changes), rules=rules, **_worked(20))
    assert (decision.verdict, decision.action, decision.is_enforced) == (Verdict.KEEP, None, False)
    assert "counts as idle from 2026-11-21 16:00 UTC" in " ".join(decision.finding.words)


RELEASE = {PREFIX + "release": "true"}


def _answered(*, given: int = 1, **notes: str) -> Workload:
    """A workload whose owner was told so many hours ago, and what they answered."""
    noticed = _noticed(given * HOUR)
    answers = {PREFIX + key.replace("_", "-"): text for key, text in notes.items()}
    return dataclasses.replace(noticed, annotations={**noticed.annotations, **answers})


ANSWERS: dict[str, tuple[Workload, int, Action | None, list[BlockerCode]]] = {
    "released": (_answered(release="true"), 13, Action.SCALE_TO_ZERO, []),
    "released-later": (_answered(release="true"), 30, Action.SCALE_TO_ZERO, []),
    "not-released": (_answered(release="false"), 13, Action.SCALE_TO_ZERO, [BlockerCode.NOTICE]),
    "misspelt": (_answered(release="True"), 13, Action.SCALE_TO_ZERO, [BlockerCode.NOTICE]),
    "released-and-snoozed": (
        _answered(release="true", snooze_until="2026-11-23"),
        13,
        Action.SCALE_TO_ZERO,
        [BlockerCode.NOTICE],
    ),
    "released-after-a-snooze": (
        _answered(release="true", snooze_until="2026-11-20"),
        13,
        Action.SCALE_TO_ZERO,
        [],
    ),
    "released-and-snoozed-unreadably": (
        _answered(release="true", snooze_until="next week"),
        13,
        Action.SCALE_TO_ZERO,
        [BlockerCode.NOTICE],
    ),
    "without-a-notice": (workload(annotations=RELEASE), 13, Action.NOTICE, []),
    "without-a-notice-and-not-idle-for-long": (workload(annotations=RELEASE), 3, None, []),
    "worked-since": (_answered(given=20, release="true"), 13, Action.NOTICE, []),
    "at-work-again": (_answered(release="true"), 0, None, []),
    "of-the-pod": (
        dataclasses.replace(_answered(), pods=(pod(annotations=RELEASE),)),
        13,
        Action.SCALE_TO_ZERO,
        [BlockerCode.NOTICE],
    ),
    "of-the-namespace": (
        dataclasses.replace(_answered(), namespace_annotations=RELEASE),
        13,
        Action.SCALE_TO_ZERO,
        [BlockerCode.NOTICE],
    ),
}


@pytest.mark.parametrize(("item", "hours", "action", "codes"), ANSWERS.values(), ids=ANSWERS.keys())
def test_decide_release_ends_the_waiting_after_a_notice(
    item: Workload, hours: int, action: Action | None, codes: list[BlockerCode]
) -> None:
    """Only the object's own answer, only to a notice that holds, and a snooze beside it keeps the GPUs."""
    decision = judged(item, rules=GENTLE, **_worked(hours))
    assert (decision.action, _causes(decision)) == (action, codes)
    is_said = decision.finding.words[0] == "its owner released it after the notice"
    assert is_said is (action is Action.SCALE_TO_ZERO and not codes)


def test_decide_release_frees_no_other_workload() -> None:
    """A tenant who annotates their own objects ends the waiting of nobody else's."""
    mine, theirs = _answered(release="true"), _answered()
    theirs = dataclasses.replace(theirs, ref=dataclasses.replace(theirs.ref, name="x", uid="uid-x"))
    decisions = judged_all([mine, theirs], rules=GENTLE, **_worked(13))
    assert {one.workload.ref.name: one.is_enforced for one in decisions} == {"w": True, "x": False}


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        (policy(rule("r", Mode.ADVISE, notifyBefore=4 * HOUR)), {}),
        (policy(rule("r", Mode.PROTECT)), {}),
        (policy(rule("r", notifyBefore=4 * HOUR, actions=(Action.RESIZE,))), {}),
        (policy(rule("r", notifyBefore=4 * HOUR, minReplicas=1)), {}),
        (policy(rule("r", notifyBefore=4 * HOUR, findings={FindingName.IDLE: "advise"})), {}),
        (policy(rule("r", notifyBefore=4 * HOUR), freezes=(FREEZE,)), {}),
        (GENTLE, {"budgets": {"pdb": 0}}),
        (GENTLE, {"managers": (Manager("Flux", "app", reverts=True),)}),
    ],
    ids=[
        "advised",
        "protected",
        "no-action",
        "kept",
        "idle-is-advised",
        "frozen",
        "disruption-budget",
        "other-controller",
    ],
)
def test_decide_release_allows_nothing_that_is_forbidden(rules: Any, changes: dict[str, Any]) -> None:
    """It ends the waiting, and nothing else."""
    item = dataclasses.replace(_answered(release="true"), **changes)
    for hours in (13, 30):
        assert not judged(item, rules=rules, **_worked(hours)).is_enforced


# --- what stands against it


NODE = Node("n1", "NVIDIA-H100-80GB-HBM3")


@pytest.mark.parametrize(
    ("gpus", "quota", "unavailable", "codes"),
    [
        pytest.param(3, None, 0, [], id="free"),
        pytest.param(2, None, 0, ["no-capacity"], id="full"),
        pytest.param(2, None, 1, [], id="may-end-first"),
        pytest.param(3, Quota("research", "q", "nvidia.com/gpu", 2, 2), 0, ["no-capacity"], id="quota"),
    ],
)
def test_resize_waits_for_the_gpus_that_its_rollout_needs_first(
    gpus: int, quota: Quota | None, unavailable: int, codes: list[str]
) -> None:
    """A pod starts before one ends, where none may be unavailable."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": unavailable}}
    template = {"spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}}
    spec = json.dumps({"replicas": 1, "strategy": rolling, "template": template}).encode()
    item = workload(pod(devices=2, resources={"nvidia.com/gpu": 2}), spec=spec)
    around = fleet(item, nodes=(dataclasses.replace(NODE, allocatable={"nvidia.com/gpu": gpus}),))
    around = dataclasses.replace(around, quotas=(quota,) if quota else ())
    found = usages((item.pods[0], (busy_usage(), idle_usage(1))))
    rules = policy(rule("r", findings={FindingName.TOO_MANY_GPUS: Mode.ENFORCE}))
    decision = judged(item, found, rules, around=around, histories=ALWAYS)
    assert (decision.action, [str(one) for one in _causes(decision)]) == (Action.RESIZE, codes)


BLOCKED = {
    "guarded": ({"budgets": {"pdb": 0}}, [BlockerCode.DISRUPTION_BUDGET]),
    "by-two-guards": ({"budgets": {"a": 0, "b": 0}}, [BlockerCode.DISRUPTION_BUDGET] * 2),
    "guarded-enough": ({"budgets": {"pdb": 1}}, []),
    "managed": ({"managers": (Manager("Flux", "x", reverts=True),)}, [BlockerCode.OTHER_CONTROLLER]),
    "managed-and-let-be": ({"managers": (Manager("Helm", "x"),)}, []),
    "scaled-by-another": ({"managers": (Manager("HPA", "x", scales=True),)}, []),
    "restored-lately": (
        {"annotations": {PREFIX + "resumed-at": "2026-11-20T13:00:00Z"}},
        [BlockerCode.COOLDOWN],
    ),
    "restored-long-ago": ({"annotations": {PREFIX + "resumed-at": "2026-11-20T11:00:00Z"}}, []),
}


@pytest.mark.parametrize(("changes", "causes"), BLOCKED.values(), ids=BLOCKED.keys())
def test_decide_blocked_change_keeps_verdict_and_action(
    changes: dict[str, Any], causes: list[BlockerCode]
) -> None:
    """Blocked is not kept: the verdict, the mode and the action stay, only nothing is written."""
    item = workload(**changes)
    rules = policy(rule("r", idle=Thresholds(window=6 * HOUR)))
    decision = judged(item, all_idle(item), rules)
    assert (decision.verdict, decision.mode, decision.action) == (
        Verdict.ACT,
        Mode.ENFORCE,
        Action.SCALE_TO_ZERO,
    )
    assert (_causes(decision), decision.is_enforced) == (causes, not causes)


@pytest.mark.parametrize(
    ("ref", "hours", "is_blocked"),
    [
        pytest.param(
            ObjectRef("apps/v1", "Deployment", "research", "w", "other-uid"), 23, True, id="by-name"
        ),
        pytest.param(ObjectRef("apps/v1", "Deployment", "research", "w", "uid-w"), 25, False, id="long-ago"),
        pytest.param(ObjectRef("apps/v1", "StatefulSet", "research", "w"), 1, False, id="another-kind"),
        pytest.param(ObjectRef("apps/v1", "Deployment", "elsewhere", "w"), 1, False, id="another-namespace"),
    ],
)
def test_decide_recreated_workload_keeps_cooldown(ref: ObjectRef, hours: int, is_blocked: bool) -> None:
    """What was deleted and made anew since is the same to its owner."""
    item = workload()
    around = Fleet((item,), {}, {}, (FoundChange(ref, ChangeRecord(AT - hours * HOUR, "r", "", 1)),))
    decision = judged(item, all_idle(item), policy(), around=around)
    assert _causes(decision) == [BlockerCode.COOLDOWN] * is_blocked


def test_decide_change_that_ended_before_it_was_made_keeps_cooldown() -> None:
    """Owners write the annotations: an end of long ago must not end the cooldown of a change made now."""
    record = ChangeRecord(
        AT - HOUR, "r", Action.SCALE_TO_ZERO, 1, end=ChangeOutcome.REVERTED, ended=AT - 9600 * HOUR
    )
    item = workload(past=(record,))
    assert BlockerCode.COOLDOWN in _causes(judged(item, all_idle(item), policy()))


def test_decide_frozen_or_outside_window_is_blocked() -> None:
    """With what stands against it."""
    freeze = {"from": "2026-11-20", "to": "2026-11-22"}
    document = policy().model_dump(mode="json", exclude_none=True, include={"apiVersion", "kind"})
    rules = type(policy()).model_validate(
        {
            **document,
            "freezes": [freeze],
            "rules": [{"name": "all", "match": {"everything": True}, "mode": "enforce"}],
        }
    )
    assert _causes(judged(workload(), all_idle(workload()), rules)) == [BlockerCode.CALENDAR]


KEPT = {
    "a-replica": ({"minReplicas": 1}, {}, "rule r keeps 1 replica, 0 would be left"),
    "a-gpu": ({"minGPUs": 1}, {}, "rule r keeps 1 GPU, 0 would be left"),
    "a-replica-by-annotation": (
        {},
        {"annotations": {PREFIX + "min-replicas": "1"}},
        "keeps 1 replica, 0 would be left",
    ),
}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "Pod"])
@pytest.mark.parametrize(("keep", "changes", "words"), KEPT.values(), ids=KEPT.keys())
def test_decide_minimum_kept_is_not_stopped(
    kind: str, keep: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    """With 1 or more kept nothing is scaled to zero, suspended or evicted, and it is said why."""
    item = workload(kind=kind, **changes)
    rules = policy(rule("r", **keep, actions=(Action.SCALE_DOWN, *STOPS)))
    decision = judged(item, all_idle(item), rules)
    assert (decision.verdict, decision.action, decision.is_enforced) == (Verdict.ACT, None, False)
    assert words in " | ".join(veto.message for veto in decision.restrictions)


STOPS = (Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT)


@pytest.mark.parametrize(
    ("keep", "left"),
    [
        ({"minReplicas": 1}, 1),
        ({"minGPUs": 1}, 1),
        ({"minGPUs": 2}, 1),
        ({"minGPUs": 3}, 2),
        ({"minGPUs": 3, "minReplicas": 1}, 2),
        ({"minGPUs": 1, "minReplicas": 3}, 3),
        ({"minGPUs": 7}, None),
        ({"minGPUs": 9}, None),
    ],
)
def test_decide_idle_workload_scales_down_to_minimum(keep: dict[str, Any], left: int | None) -> None:
    """Of four replicas with two GPUs each as many stay as hold what is kept."""
    item = workload(*(pod(f"w-{number}", devices=2) for number in range(4)))
    used = usages(*((one, (idle_usage(0), idle_usage(1))) for one in item.pods))
    decision = judged(item, used, policy(rule("r", **keep, actions=(Action.SCALE_DOWN, *STOPS))))
    proposal = decision.finding.proposal
    assert decision.action is (None if left is None else Action.SCALE_DOWN)
    assert (proposal and proposal.replicas) == left


def test_decide_scale_down_below_minimum_is_not_made() -> None:
    """Three of four could go; where two are kept, none goes."""
    item = workload(*(pod(f"w-{number}") for number in range(4)))
    used = usages(*((one, (busy_usage() if one.ref.name == "w-0" else idle_usage(),)) for one in item.pods))
    found = {"concurrency": {"uid-w": concurrency(1, 1)}}
    for keep, action in ((2, Action.SCALE_DOWN), (3, None)):
        decision = judged(item, used, policy(rule("r", minReplicas=keep)), **found)
        assert (decision.finding.name, decision.action) == (FindingName.TOO_MANY_REPLICAS, action)


# --- what is done about which finding


@pytest.mark.parametrize(
    "actions", list(itertools.permutations((Action.SCALE_DOWN, Action.RESLICE, Action.SCALE_TO_ZERO)))
)
def test_decide_order_of_actions_changes_nothing(actions: tuple[Action, ...]) -> None:
    """What does nothing is stopped, whatever else could be done to it, and work is made smaller."""
    rules = policy(rule("r", actions=actions))
    item = workload(*(pod(f"w-{number}") for number in range(4)))
    assert judged(item, all_idle(item), rules).action is Action.SCALE_TO_ZERO
    used = usages(*((one, (busy_usage() if one.ref.name == "w-0" else idle_usage(),)) for one in item.pods))
    decision = judged(item, used, rules, concurrency={"uid-w": concurrency(1, 1)})
    assert (decision.finding.name, decision.action) == (FindingName.TOO_MANY_REPLICAS, Action.SCALE_DOWN)


def test_decide_pod_with_eviction_responders_is_not_evicted() -> None:
    """KEP-4563: they end it in their own way, after an EvictionRequest."""
    actions = (Action.EVICT, Action.SCALE_TO_ZERO)
    rules = policy(rule("r", actions=actions))
    decisions = [
        judged(item, all_idle(item), rules)
        for kind in ("Pod", "Deployment")
        for item in [workload(pod(awaits_request=True), kind=kind)]
    ]
    assert [(one.action, one.is_enforced) for one in decisions] == [
        (None, False),
        (Action.SCALE_TO_ZERO, True),
    ]
    assert "expect an EvictionRequest" in decisions[0].restrictions[0].message


def test_decide_finding_off_does_nothing() -> None:
    """It is told, and with it who switched it off."""
    rules = policy(rule("r", findings={FindingName.IDLE: "off"}))
    decision = judged(workload(), all_idle(workload()), rules)
    assert (decision.action, decision.is_enforced) == (None, False)
    assert "rule r does not act on idle" in decision.restrictions[0].message


def test_decide_finding_advise_is_not_enforced() -> None:
    """Whatever the rule's mode."""
    rules = policy(rule("r", findings={FindingName.IDLE: "advise"}))
    decision = judged(workload(), all_idle(workload()), rules)
    assert (decision.mode, decision.action) == (Mode.ADVISE, Action.SCALE_TO_ZERO)


def test_decide_enforced_finding_does_not_wait_behind_one_that_is_only_advised() -> None:
    """Three of four replicas are idle, which the rule only advises on; each has four GPUs and uses one of them."""
    item = workload(*(pod(f"w-{number}", devices=4) for number in range(4)))
    used = usages(*((one, (busy_usage(), *[idle_usage() for _ in range(3)])) for one in item.pods))
    both = {FindingName.TOO_MANY_REPLICAS: "enforce", FindingName.TOO_MANY_GPUS: "enforce"}
    seen: dict[str, Any] = {"concurrency": {"uid-w": concurrency(0, 0)}, "histories": ALWAYS}
    first = judged(item, used, policy(rule("r", findings=both)), **seen)
    assert [first.finding.name, *(one.name for one in first.also)] == list(both)
    second = judged(
        item, used, policy(rule("r", findings={**both, FindingName.TOO_MANY_REPLICAS: "advise"})), **seen
    )
    assert (second.mode, second.finding.name) == (Mode.ENFORCE, FindingName.TOO_MANY_GPUS)
    neither = policy(rule("r", findings=dict.fromkeys(both, "advise")))
    assert judged(item, used, neither, **seen).finding.name is FindingName.TOO_MANY_REPLICAS


def test_decide_too_many_replicas_scales_down() -> None:
    """Where the rule lets it be done; the command that does it by hand stands beside it."""
    item = workload(*(pod(f"w-{number}") for number in range(4)))
    used = usages(*((one, (busy_usage() if one.ref.name == "w-0" else idle_usage(),)) for one in item.pods))
    rules = policy(
        rule(
            "r", findings={FindingName.TOO_MANY_REPLICAS: "enforce", FindingName.TOO_FEW_REPLICAS: "enforce"}
        )
    )
    decision = judged(item, used, rules, concurrency={"uid-w": concurrency(1, 1)})
    assert (decision.mode, decision.action, decision.frees) == (Mode.ENFORCE, Action.SCALE_DOWN, 2.0)
    assert decision.command == "kubectl -n research scale deployment.apps w --replicas 2"


@pytest.mark.parametrize(
    ("known", "days", "action"),
    [
        ("#" + "." * 66, 5, None),
        ("#" + "." * 67, 5, Action.SCALE_TO_ZERO),
        ("#" + "." * 32, 10, None),
        ("#" + "." * 33, 10, Action.SCALE_TO_ZERO),
        ("#" + "." * 50 + "#" + "." * 119, 10, None),
        ("#" + "." * 50 + "#" + "." * 140, 10, Action.SCALE_TO_ZERO),
        (".", 2, None),
        (".", 4, Action.SCALE_TO_ZERO),
    ],
)
def test_decide_short_record_waits_longer(known: str, days: int, action: Action | None) -> None:
    """So many times as long as the record is shorter than the history; idle for the whole record is idle."""
    item = workload(pod(started=AT - 40 * DAY, created=AT - 40 * DAY))
    given = {("research", "w-0"): history(known)}
    decision = judged(item, all_idle(item), policy(), histories=given, begins=AT - days * DAY)
    assert (decision.action, decision.is_enforced) == (action, bool(action))
    assert f"Prometheus has only {days}d of data" in " ".join(decision.finding.words)


@pytest.mark.parametrize(
    ("known", "hours", "action"),
    [
        ("." * 48, 48, Action.SCALE_TO_ZERO),
        ("#" + "." * 46, 48, None),
        ("." * 20, 20, None),
    ],
)
def test_decide_record_that_does_not_grow_asks_for_no_more_than_it_can_show(
    known: str, hours: int, action: Action | None
) -> None:
    """A Prometheus that keeps two days never shows the seven times 24 hours that a growing one would need."""
    item = workload(pod(started=AT - 40 * DAY, created=AT - 40 * DAY))
    given = {("research", "w-0"): history(known)}
    full = judged(item, all_idle(item), policy(), histories=given, begins=AT - hours * HOUR, is_full=True)
    assert full.action is action
    growing = judged(item, all_idle(item), policy(), histories=given, begins=AT - hours * HOUR)
    assert growing.action is None


def test_decide_notice_of_full_record_announces_a_time_that_stays() -> None:
    """The required idle time does not change from plan to plan, so neither does the time of the notice."""
    item = workload(pod(started=AT - 40 * DAY, created=AT - 40 * DAY))
    rules = policy(rule("r", notifyBefore=12 * HOUR))
    told = []
    for hours in (40, 44):
        given = {("research", "w-0"): history("#" + "." * hours)}
        decision = judged(item, all_idle(item), rules, histories=given, begins=AT - 3 * DAY, is_full=True)
        assert decision.action is Action.NOTICE
        assert decision.due is not None
        told.append(decision.due + (44 - hours) * -HOUR)
        assert "at the earliest" not in " ".join(decision.finding.words)
    assert told == [told[0]] * 2


def test_decide_notice_of_short_record_announces_the_earliest_time() -> None:
    """While the record grows, less idle time is required: the notice never promises more than is kept."""
    item = workload(pod(started=AT - 40 * DAY, created=AT - 40 * DAY))
    idle = Thresholds(minIdleTime=4 * DAY, history=14 * DAY)
    rules = policy(rule("r", notifyBefore=12 * HOUR, idle=idle))
    given = {("research", "w-0"): history("." * 48)}
    decision = judged(item, all_idle(item), rules, histories=given, begins=AT - 2 * DAY)
    assert decision.action is Action.NOTICE
    assert decision.due is not None
    assert abs(decision.due - (AT + 5.48 * DAY)) < HOUR
    assert "at the earliest" in " ".join(decision.finding.words)
    for days, action in ((7.4, None), (7.6, Action.SCALE_TO_ZERO)):
        known = {("research", "w-0"): history("." * int(days * 24))}
        later = judged(
            item, all_idle(item), policy(rule("r", idle=idle)), histories=known, begins=AT - days * DAY
        )
        assert later.action is action


@pytest.mark.parametrize(
    ("due", "codes"),
    [
        pytest.param(HOUR, [BlockerCode.NOTICE], id="announced-for-later"),
        pytest.param(-HOUR, [], id="announced-for-earlier"),
        pytest.param(40 * DAY, [BlockerCode.NOTICE], id="forged"),
    ],
)
def test_decide_change_is_not_made_before_it_was_announced(
    due: datetime.timedelta, codes: list[BlockerCode]
) -> None:
    """Even if less idle time is required by now; a notice that says years ends after the longest snooze."""
    item = _noticed(5 * HOUR, due=(AT + due).isoformat())
    decision = judged(item, all_idle(item), GENTLE)
    assert _causes(decision) == codes
    if codes:
        assert decision.blockers[0].until == min(AT + due, AT - 5 * HOUR + 7 * DAY)


@pytest.mark.parametrize(
    ("answer", "until"),
    [
        pytest.param("2026-11-23", datetime.datetime(2026, 11, 24, tzinfo=datetime.UTC), id="whole-day"),
        pytest.param(
            "2026-11-23T01:00:00+01:00", datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC), id="zone"
        ),
        pytest.param("2099-01-01", AT - 5 * HOUR + 7 * DAY, id="longest"),
        pytest.param("tomorrow", AT - 5 * HOUR + 7 * DAY, id="unreadable"),
        pytest.param("2026-11-20", None, id="past"),
    ],
)
def test_decide_snooze_puts_the_change_off(answer: str, until: datetime.datetime | None) -> None:
    """Up to the longest snooze, and an answer that cannot be read counts as that."""
    item = _answered(given=5, snooze_until=answer)
    decision = judged(item, all_idle(item), GENTLE)
    assert [one.until for one in decision.blockers] == ([until] if until else [])
    assert decision.is_enforced is (until is None)


def test_decide_replicas_that_another_controller_scales_are_left_to_it() -> None:
    """It would revert another number, but not a stop."""
    item = workload(*(pod(f"w-{n}") for n in range(4)), managers=(Manager("HPA", "x", scales=True),))
    decision = judged(item, all_idle(item), policy(rule("r", minReplicas=1, healthyWithin="7m")))
    assert (decision.action, _causes(decision)) == (Action.SCALE_DOWN, [BlockerCode.OTHER_CONTROLLER])
    assert decision.healthy_within == datetime.timedelta(minutes=7)


def test_decide_terminating_workload_is_left_alone() -> None:
    """Its owner was faster."""
    item = workload(is_terminating=True)
    decision = judged(item, all_idle(item), policy())
    assert decision.action is None
    assert "is already being deleted" in decision.restrictions[0].message


def test_decide_protected_workload_shows_finding() -> None:
    """So that its class can be judged by it."""
    decision = judged(workload(), all_idle(workload()), policy(rule("r", Mode.PROTECT)))
    assert (decision.verdict, decision.finding.name, decision.action) == (
        Verdict.PROTECTED,
        FindingName.IDLE,
        None,
    )


def test_decide_order_is_enforced_blocked_advised() -> None:
    """Of each the most GPUs for each pod that goes first."""
    names = {"small": 1, "large": 4, "waiting": 8, "advised": 8}
    items = [
        workload(
            pod(f"{name}-0", devices=gpus),
            ref=ObjectRef("apps/v1", "Deployment", "research", name, f"uid-{name}"),
            budgets={"pdb": 0} if name == "waiting" else {},
            annotations={PREFIX + "mode": "advise"} if name == "advised" else {},
        )
        for name, gpus in names.items()
    ]
    found = {key: used for item in items for key, used in all_idle(item).items()}
    order = [decision.workload.ref.name for decision in judged_all(items, found, policy())]
    assert order == ["large", "small", "waiting", "advised"]


@pytest.mark.parametrize(("hours", "order"), [(23, "other own rejecting"), (25, "rejecting own other")])
def test_decide_order_in_namespaces_that_reject_changes_is_last(hours: int, order: str) -> None:
    """During the cooldown, so that many workloads that reject changes delay others by one plan only."""
    at = AT - datetime.timedelta(hours=hours)
    rejected = ChangeRecord(at, "run-1", "scale-to-zero", end=ChangeOutcome.REJECTED, ended=at)
    items = [
        workload(
            pod(
                f"{name}-0", devices=gpus, ref=ObjectRef("v1", "Pod", namespace, f"{name}-0", f"uid-{name}-0")
            ),
            ref=ObjectRef("apps/v1", "Deployment", namespace, name, f"uid-{name}"),
            past=(rejected,) if name == "rejecting" else (),
        )
        for name, gpus, namespace in (
            ("rejecting", 8, "theirs"),
            ("own", 4, "theirs"),
            ("other", 1, "research"),
        )
    ]
    found = {key: used for item in items for key, used in all_idle(item).items()}
    assert " ".join(one.workload.ref.name for one in judged_all(items, found, policy())) == order


@pytest.mark.parametrize(
    ("busy", "advised"), [((*[1] * 100, *[2] * 50, *[3] * 60), True), ((*[2] * 150, *[6] * 60), False)]
)
def test_autoscaler_with_too_many_replicas_gets_another_query(
    busy: tuple[int, ...], *, advised: bool
) -> None:
    """Its replicas are left to it; one that leaves few idle is left alone."""
    hpa = Manager("HorizontalPodAutoscaler", "by-cpu", scales=True)
    item = dataclasses.replace(
        workload(*(pod(f"w-{number}") for number in range(6)), managers=(hpa,)), created=AT - 30 * DAY
    )
    found = usages(*((one, (busy_usage(number),)) for number, one in enumerate(item.pods)))
    decision = judged(
        item,
        found,
        policy(),
        concurrency={"uid-w": Concurrency(busy)},
        series=ActivitySeries("http://prometheus:9090"),
        histories=ALWAYS,
    )
    told = advice_on(decision, "below")
    assert not decision.is_enforced
    assert ("HorizontalPodAutoscaler by-cpu would follow it with 1 to 6 replicas" in told) is advised
    assert advised or decision.autoscalers is None


@pytest.mark.parametrize("text", ["[", '{"version": 7}', "x" * 300], ids=["cut", "newer", "long"])
def test_decide_record_that_gpu_rightsizer_did_not_write_blocks(text: str) -> None:
    """Every write would refuse it: it takes no budget, and is no victim for a pending pod."""
    item = workload(annotations={PREFIX + "undo": text})
    decision = judged(item, all_idle(item), policy())
    assert not decision.is_enforced
    assert "annotation gpu-rightsizer.io/undo" in decision.restrictions[-1].message
