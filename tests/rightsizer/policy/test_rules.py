"""Which rule holds for whom, and what no rule can lift."""

import datetime
from typing import Any

import pytest

from rightsizer.config import PREFIX
from rightsizer.model import Action, BlockerCode, FindingName, Mode, ObjectRef, Verdict, Workload
from rightsizer.policy.effective import NO_FLEET
from rightsizer.policy.match import Match, PriorityRange
from rightsizer.policy.schema import ADVISE_ONLY, Defaults, Policy
from rightsizer.policy.thresholds import Thresholds
from tests.rightsizer.build import (
    AT,
    DAY,
    all_idle,
    busy_usage,
    concurrency,
    evaluator,
    idle_usage,
    judged,
    judged_all,
    pod,
    policy,
    rule,
    rule_on,
    usages,
    workload,
)

MODE = PREFIX + "mode"


def _decide(item: Workload, rules: Policy) -> tuple[Verdict, Mode, Action | None, str]:
    decision = judged(item, all_idle(item), rules)
    return decision.verdict, decision.mode, decision.action, decision.rule


def test_rules_first_match_applies() -> None:
    """Rules are asked in order, whatever later ones say."""
    rules = policy(rule("first", Mode.PROTECT, match=Match(priorityClasses=("low-*",))), rule("second"))
    assert _decide(workload(), rules) == (Verdict.PROTECTED, Mode.PROTECT, None, "first")


@pytest.mark.parametrize("order", [1, -1])
def test_rules_pods_of_two_rules_need_both(order: int) -> None:
    """Whichever pod comes first, only what both rules allow is done, and only where it is idle by both."""
    fast = rule(
        "fast",
        match=Match(priorityClasses=("low-*",)),
        actions=(Action.SCALE_TO_ZERO, Action.EVICT),
        idle=Thresholds(window=DAY / 24),
    )
    careful = rule(
        "careful",
        match=Match(priorityClasses=("medium-*",)),
        actions=(Action.SCALE_TO_ZERO, Action.SUSPEND),
        idle=Thresholds(window=7 * DAY),
    )
    rules = policy(fast, careful)
    item = workload(*[pod("a"), pod("b", priority_class="medium-priority", priority=10_000)][::order])
    effective = rule_on(item, rules, NO_FLEET, at=AT)
    assert (effective.rule, effective.actions) == ("fast + careful", (Action.SCALE_TO_ZERO,))
    busy_last_week = {(one.ref.namespace, one.ref.name): [busy_usage()] for one in item.pods}
    found = dict.fromkeys(evaluator(rules, item).windows(), all_idle(item)) | {7 * DAY: busy_last_week}
    assert judged(item, found, rules).verdict is Verdict.KEEP
    found[7 * DAY] = all_idle(item)
    decision = judged(item, found, rules)
    assert (decision.verdict, decision.action) == (Verdict.ACT, Action.SCALE_TO_ZERO)
    assert "for the last 7d" in decision.finding.words[0]


@pytest.mark.parametrize("order", [1, -1])
def test_rules_two_findings_the_smaller_change_applies(order: int) -> None:
    """What is idle by one rule, and only has too many replicas by the other, is not stopped, in whatever order."""
    lax = rule(
        "lax",
        match=Match(priorityClasses=("low-*",)),
        idle=Thresholds(maxUtilizationPercent=20.0, idlePowerWatts={"*H100*": 400.0}),
    )
    strict = rule("strict", match=Match(priorityClasses=("medium-*",)), idle=Thresholds())
    pods = [pod("a"), pod("b"), pod("c"), pod("d", priority_class="medium-priority", priority=10_000)]
    item = workload(*pods)
    works = idle_usage(0, activity_peak=0.15, activity_mean=0.02, power_peak_w=300.0)
    found = {**all_idle(item), **usages((pods[0], (works,)))}
    rules = policy(*[lax, strict][::order])
    decision = judged(item, found, rules, concurrency={item.ref.uid: concurrency(1)})
    assert decision.finding.name is FindingName.TOO_MANY_REPLICAS
    assert FindingName.IDLE not in {other.name for other in decision.also}
    assert not decision.is_enforced


def test_rules_without_common_action_do_nothing() -> None:
    """Nothing is done, and it is said why."""
    first = rule("first", match=Match(priorityClasses=("low-*",)), actions=(Action.SUSPEND,))
    item = workload(pod("a"), pod("b", priority_class="medium-priority"))
    rules = policy(first, rule("second", actions=(Action.SCALE_TO_ZERO,)))
    decision = judged(item, all_idle(item), rules)
    assert (decision.action, decision.is_enforced) == (None, False)
    assert "rule first + second allows nothing" in decision.restrictions[0].message


def test_rules_no_match_is_advised_only() -> None:
    """A policy that is silent about a workload lets nothing happen to it."""
    rules = policy(rule("others", match=Match(namespaces=("elsewhere",))))
    assert _decide(workload(), rules) == (Verdict.ACT, Mode.ADVISE, Action.SCALE_TO_ZERO, "(no rule)")


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        pytest.param(Match(priorityClasses=("low-priority",)), True, id="class-by-name"),
        pytest.param(Match(priorityClasses=("high-*", "low-*")), True, id="class-by-glob"),
        pytest.param(Match(priorityClasses=("LOW-priority",)), False, id="case-matters"),
        pytest.param(Match(priorityClasses=("",)), False, id="no-class"),
        pytest.param(Match(priority=PriorityRange(min=1000, max=1000)), True, id="priority-inclusive"),
        pytest.param(Match(priority=PriorityRange(min=1001)), False, id="priority-below"),
        pytest.param(Match(priority=PriorityRange(max=999)), False, id="priority-above"),
        pytest.param(Match(namespaces=("res*",), kinds=("Deployment",)), True, id="all-conditions-hold"),
        pytest.param(Match(namespaces=("res*",), kinds=("Job",)), False, id="one-condition-fails"),
        pytest.param(Match(kinds=("Deployment.apps",)), True, id="kind-with-its-group"),
        pytest.param(Match(kinds=("Deployment.example.com",)), False, id="kind-of-another-group"),
        pytest.param(Match(everything=True), True, id="everything"),
    ],
)
def test_rules_match_needs_all_conditions(match: Match, expected: bool) -> None:
    """All conditions that are given must hold."""
    assert (rule_on(workload(), policy(rule("r", match=match)), NO_FLEET, at=AT).rule == "r") is expected


SYSTEM = {
    "kube-system": workload(ref=ObjectRef("apps/v1", "Deployment", "kube-system", "w", "u")),
    "our-own-namespace": workload(ref=ObjectRef("apps/v1", "Deployment", "gpu-rightsizer", "w", "u")),
    "daemonset": workload(ref=ObjectRef("apps/v1", "DaemonSet", "research", "w", "u")),
    "static-pod": workload(pod(is_static=True), kind="Pod"),
    "system-class": workload(pod(priority_class="system-node-critical", priority=2_000_001_000)),
    "system-value-without-its-name": workload(pod(priority_class="mine", priority=1_000_000_001)),
    "priority-not-resolved": workload(pod(priority=None)),
    "one-protected-pod-among-others": workload(pod("a"), pod("b", priority_class="system-cluster-critical")),
}


@pytest.mark.parametrize("item", SYSTEM.values(), ids=SYSTEM.keys())
def test_rules_builtin_protection_cannot_be_lifted(item: Workload) -> None:
    """A rule that enforces everything still leaves the system alone."""
    verdict, mode, action, name = _decide(item, policy())
    assert (verdict, mode, action) == (Verdict.PROTECTED, Mode.PROTECT, None)
    assert name.startswith("built-in:")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        pytest.param(workload(annotations={MODE: "off"}), Mode.PROTECT, id="on-the-workload"),
        pytest.param(workload(pod(annotations={MODE: "off"})), Mode.PROTECT, id="on-a-pod"),
        pytest.param(workload(namespace_annotations={MODE: "off"}), Mode.PROTECT, id="on-the-namespace"),
        pytest.param(workload(annotations={MODE: "advise"}), Mode.ADVISE, id="only-advice"),
        pytest.param(workload(annotations={MODE: "enforce"}), Mode.ENFORCE, id="enforce-changes-nothing"),
        pytest.param(workload(annotations={MODE: "Off "}), Mode.PROTECT, id="unreadable-is-off"),
        pytest.param(workload(annotations={MODE: ""}), Mode.PROTECT, id="empty-is-off"),
    ],
)
def test_optout_only_reduces_the_mode(item: Workload, expected: Mode) -> None:
    """An annotation lowers the mode, and one that cannot be read lowers it all the way."""
    assert rule_on(item, policy(), NO_FLEET, at=AT).mode is expected


def test_optout_enforce_does_not_raise_advise() -> None:
    """mode: enforce on a workload does not turn advice into action."""
    item = workload(annotations={MODE: "enforce"})
    assert rule_on(item, ADVISE_ONLY, NO_FLEET, at=AT).mode is Mode.ADVISE


def test_optout_ignored_if_policy_says_so() -> None:
    """With respectOptOut: false a user's annotation changes nothing."""
    item = workload(annotations={MODE: "off"})
    assert rule_on(item, policy(respectOptOut=False), NO_FLEET, at=AT).mode is Mode.ENFORCE


def test_rules_protected_namespaces_extend_builtin_ones() -> None:
    """The policy can protect further namespaces by pattern."""
    assert _decide(workload(), policy(protectedNamespaces=("res*",)))[0] is Verdict.PROTECTED


def test_rules_unnamed_action_is_not_taken() -> None:
    """Evicting a bare pod destroys it, so it is announced only where evict is named."""
    bare = workload(kind="Pod", size=None)
    assert _decide(bare, policy())[2] is None
    decision = judged(bare, all_idle(bare), policy(rule("r", actions=(Action.EVICT,))))
    assert (decision.action, decision.announced) == (Action.NOTICE, Action.EVICT)


@pytest.mark.parametrize(
    ("defaults", "window_h", "action"),
    [
        ({}, 24, Action.NOTICE),
        ({"idle": {"window": "12h"}}, 12, Action.NOTICE),
        ({"idle": {"window": "12h"}, "kinds": []}, 12, Action.SCALE_TO_ZERO),
        (
            {"kinds": [{"kinds": ["StatefulSet"], "notifyBefore": "4h"}], "idle": {"window": "6h"}},
            6,
            Action.NOTICE,
        ),
    ],
    ids=["built-in", "own-thresholds", "own-thresholds-and-no-kinds", "a-row-without-thresholds"],
)
def test_rules_own_thresholds_keep_notices(defaults: dict[str, Any], window_h: int, action: Action) -> None:
    """Who writes defaults.idle changes how long to wait, not that people are asked before; kinds: [] changes that."""
    hub = workload(kind="StatefulSet", labels={"hub.jupyter.org/username": "ada"})
    rules = policy(defaults=Defaults.model_validate(defaults))
    decision = judged(hub, all_idle(hub), rules)
    assert decision.action is action
    assert decision.finding.window == datetime.timedelta(hours=window_h)


def test_rules_unknown_kind_is_advised_only() -> None:
    """Nobody knows how to stop it, so nothing is done, and that is said."""
    item = workload(kind="CloneSet")
    decision = judged(item, all_idle(item), policy())
    assert (decision.verdict, decision.action, decision.is_enforced) == (Verdict.ACT, None, False)
    assert "gpu-rightsizer knows no safe way to stop a CloneSet" in decision.restrictions[0].message


@pytest.mark.parametrize(("allowed", "is_blocked"), [(0, True), (1, True), (2, False)])
def test_rules_disruption_budget_blocks_scale_to_zero(allowed: int, is_blocked: bool) -> None:
    """Scaling to zero does not ask a PodDisruptionBudget; we do, and say how many it allows."""
    item = workload(pod("a"), pod("b"), budgets={"pdb": allowed})
    decision = judged(item, all_idle(item), policy())
    assert (decision.verdict, decision.is_enforced) == (Verdict.ACT, not is_blocked)
    assert [block.code for block in decision.blockers] == [BlockerCode.DISRUPTION_BUDGET] * is_blocked


def test_decide_order_is_largest_first_and_stable() -> None:
    """What is enforced comes first, the largest first; equal ones by name."""
    refs = [ObjectRef("apps/v1", "Deployment", "research", name, f"u-{name}") for name in "abc"]
    items = [
        workload(pod("a-0"), ref=refs[0]),
        workload(pod("b-0", devices=4), ref=refs[1]),
        workload(pod("c-0"), ref=refs[2]),
    ]
    found = {key: value for item in items for key, value in all_idle(item).items()}
    orders = [
        [decision.workload.ref.name for decision in judged_all(order, found, policy())]
        for order in (items, items[::-1])
    ]
    assert orders == [["b", "a", "c"], ["b", "a", "c"]]


def test_decide_duplicate_workload_raises() -> None:
    """An inventory that names one twice is refused rather than acted upon twice."""
    with pytest.raises(ValueError, match="twice"):
        judged_all([workload(), workload()], all_idle(workload()), policy())
