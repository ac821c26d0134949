"""Models, pools, labels, findings, PriorityClasses, opt-outs and marks: what each makes of a effective."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from rightsizer.config import PREFIX
from rightsizer.model import (
    Action,
    FindingName,
    Fleet,
    Manager,
    Mode,
    Node,
    ObjectRef,
    PriorityClass,
    Workload,
)
from rightsizer.policy.classes import ANNOTATIONS
from rightsizer.policy.effective import NO_FLEET, EffectivePolicy, PolicyEvaluator
from rightsizer.policy.match import Match, PriorityRange
from rightsizer.policy.policy_file import workloads_by_rule
from rightsizer.policy.schema import DEFAULT_KINDS, Defaults, KindDefaults, Policy
from rightsizer.policy.thresholds import Thresholds
from tests.rightsizer.build import AT, DAY, fleet, pod, policy, rule, rule_on, workload

HOUR = datetime.timedelta(hours=1)
NODES = {
    "n1": Node("n1", model="NVIDIA-H100-80GB-HBM3", pool="gpu-a"),
    "bare": Node("bare"),
}


def _fleet(**annotations: str) -> Fleet:
    """Two nodes, and the class low-priority with annotations."""
    ours = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    return Fleet((), NODES, {"low-priority": PriorityClass("low-priority", 1000, ours)})


def _on(item: Workload, rules: Policy, fleet: Fleet | None = None, **changes: Any) -> EffectivePolicy:
    return rule_on(item, rules, fleet or _fleet(), **{"at": AT, **changes})


MATCHES = {
    "model": (Match(models=("*H100*",)), True),
    "another-model": (Match(models=("*A100*",)), False),
    "pool": (Match(nodePools=("gpu-?",)), True),
    "another-pool": (Match(nodePools=("cpu",)), False),
    "label-of-the-workload": (Match(labels={"team": "vision"}), True),
    "label-of-a-pod": (Match(labels={"run": "*"}), True),
    "labels-of-both": (Match(labels={"team": "vis*", "run": "7"}), True),
    "one-label-of-two": (Match(labels={"team": "vision", "tier": "*"}), False),
    "label-with-another-value": (Match(labels={"team": "audio"}), False),
    "model-and-namespace": (Match(models=("*H100*",), namespaces=("elsewhere",)), False),
}


@pytest.mark.parametrize(("match", "expected"), MATCHES.values(), ids=MATCHES.keys())
def test_match_labels_models_and_pools_all_must_hold(match: Match, expected: bool) -> None:
    """Labels of the workload and of its pods, model and pool of their nodes; all must hold."""
    item = workload(pod(labels={"run": "7"}), labels={"team": "vision"})
    assert (_on(item, policy(rule("r", match=match))).rule == "r") is expected


UNKNOWN = {
    "node-without-labels": workload(pod(node="bare")),
    "node-not-read": workload(pod(node="n9")),
    "no-node-yet": workload(pod(node="", phase="Pending")),
}


@pytest.mark.parametrize("item", UNKNOWN.values(), ids=UNKNOWN.keys())
@pytest.mark.parametrize("condition", ["models", "nodePools"])
def test_match_unknown_uses_strictest_rule(item: Workload, condition: str) -> None:
    """It may match, so that a protecting rule protects and an enforcing one does not make anything happen by itself."""
    match = Match.model_validate({condition: ("x*",)})
    protecting = policy(rule("shield", Mode.PROTECT, match=match), rule("all"))
    assert (_on(item, protecting).mode, _on(item, protecting).rule) == (Mode.PROTECT, "shield")
    advising = policy(rule("look", Mode.ADVISE, match=match), rule("all"))
    assert _on(item, advising).mode is Mode.ADVISE
    enforcing = policy(rule("act", match=match))
    assert (_on(item, enforcing).mode, _on(item, enforcing).rule) == (Mode.ADVISE, "(no rule)")


def test_match_two_possible_rules_need_both() -> None:
    """The actions of both, the thresholds of both, what each keeps."""
    old = rule("old", match=Match(models=("*T4*",)), actions=(Action.SUSPEND,), minGPUs=2)
    rules = policy(old, rule("all", actions=(Action.SCALE_TO_ZERO, Action.SUSPEND), cooldown=3 * DAY))
    known, unknown = _on(workload(), rules), _on(workload(pod(node="bare")), rules)
    assert (known.rule, known.actions) == ("all", (Action.SCALE_TO_ZERO, Action.SUSPEND))
    assert (unknown.rule, unknown.actions) == ("old + all", (Action.SUSPEND,))
    assert (unknown.min_gpus, unknown.cooldown) == (2, 3 * DAY)


def test_match_unread_owner_labels_are_unknown() -> None:
    """Only its pods' are: what they say counts, what they do not say may still hold."""
    shielded = policy(rule("shield", Mode.PROTECT, match=Match(labels={"tier": "gold"})), rule("all"))
    assert _on(workload(), shielded).rule == "all"
    assert _on(workload(resource_version=""), shielded).rule == "shield"
    assert _on(workload(pod(labels={"tier": "gold"}), resource_version=""), shielded).rule == "shield"


def test_match_workload_without_pods_uses_strictest_rule() -> None:
    """Nobody can say which one is its."""
    item = dataclasses.replace(workload(), pods=())
    first = rule("first", match=Match(namespaces=("elsewhere",)))
    assert _on(item, policy(first, rule("shield", Mode.PROTECT))).rule == "shield"


def test_rule_enforce_covers_idle_findings_only() -> None:
    """Unless it says otherwise by finding; what is off is neither done nor told."""
    effective = _on(workload(), policy(rule("r", findings={"stuck": "enforce", "oversized-gpu": "off"})))
    assert effective.mode is Mode.ENFORCE
    modes = {name: effective.mode_for(name) for name in FindingName}
    enforced = {name for name, mode in modes.items() if mode is Mode.ENFORCE}
    assert enforced == {FindingName.IDLE, FindingName.IDLE, FindingName.FINISHED, FindingName.STUCK}
    assert (modes[FindingName.OVERSIZED_GPU], effective.is_off(FindingName.OVERSIZED_GPU)) == (
        Mode.PROTECT,
        True,
    )
    assert (modes[FindingName.UNDERUTILIZED], effective.is_off(FindingName.UNDERUTILIZED)) == (
        Mode.ADVISE,
        False,
    )


def test_rule_too_many_replicas_implies_too_few() -> None:
    """Enforcing too-many-replicas enforces too-few-replicas."""
    effective = _on(workload(), policy(rule("r", findings={"too-many-replicas": "enforce"})))
    assert effective.mode_for(FindingName.TOO_FEW_REPLICAS) is Mode.ENFORCE


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PROTECT])
def test_rule_finding_never_exceeds_the_mode(mode: Mode) -> None:
    """Not even with an opt-out to advice on an enforced rule."""
    effective = _on(workload(), policy(rule("r", mode)))
    assert {effective.mode_for(name) for name in FindingName} == {mode}
    wish = workload(annotations={PREFIX + "mode": "advise"})
    assert _on(wish, policy()).mode_for(FindingName.IDLE) is Mode.ADVISE


def test_rule_actions_keep_their_order() -> None:
    """As they stand in the rule, not as they are defined."""
    actions = (Action.EVICT, Action.SUSPEND, Action.SCALE_DOWN)
    assert _on(workload(), policy(rule("r", actions=actions))).actions == actions


@pytest.mark.parametrize(
    ("kind", "window_h", "notice_h"),
    [
        ("InferenceService", 4, None),
        ("Notebook", 24, 12),
        ("PyTorchJob", 16, None),
        ("Deployment", 24, None),
    ],
)
def test_thresholds_follow_the_kind(kind: str, window_h: int, notice_h: int | None) -> None:
    """What comes back by itself goes soon; a notebook's people are asked first."""
    effective = _on(workload(kind=kind), policy())
    assert effective.thresholds.window == window_h * HOUR
    assert effective.notify_before == (notice_h * HOUR if notice_h else None)


def test_thresholds_own_idle_window_applies_to_all_kinds() -> None:
    """Who writes defaults.idle alone does not mean a day for Jobs; who writes kinds beside it does."""
    alone = Defaults.model_validate({"idle": {"window": "7d"}})
    assert _on(workload(kind="Job"), policy(defaults=alone)).thresholds.window == 7 * DAY
    rows = [{"kinds": ["Job"], "idle": {"window": "2d"}}]
    both = Defaults.model_validate({"idle": {"window": "7d"}, "kinds": rows})
    assert _on(workload(kind="Job"), policy(defaults=both)).thresholds.window == 2 * DAY


def test_notice_of_a_rule_overrides_its_kind() -> None:
    """And the longest of several rules' holds."""
    item = workload(pod("a"), pod("b", priority_class="medium", priority=5), kind="Notebook")
    short = rule("short", match=Match(priority=PriorityRange(max=10)), notifyBefore=HOUR)
    assert _on(item, policy(short, rule("long", notifyBefore=3 * HOUR))).notify_before == 3 * HOUR
    assert _on(item, policy(short, rule("long"))).notify_before == 12 * HOUR


# --- PriorityClasses


ENFORCING = {"mode": "enforce", "idle_window": "6h", "grace": "1h", "min_coverage": "0.95", "cooldown": "3d"}


def test_class_annotations_make_a_rule() -> None:
    """All of a rule can stand on it; what it does not say of idle is the kind's default."""
    fleet = _fleet(
        **ENFORCING, findings="stuck=off", actions="suspend, evict", notify_before="2h", min_replicas="1",
        min_gpus="4",
    )  # fmt: skip
    elsewhere = policy(rule("others", match=Match(namespaces=("elsewhere",))))
    unreadable = _on(workload(kind="Job"), elsewhere, fleet)
    assert "minReplicas 1 forbids every stop" in unreadable.restrictions[0].message
    fleet = _fleet(
        **ENFORCING, findings="stuck=off", actions="suspend, scale-down", notify_before="2h", min_replicas="1",
        min_gpus="4",
    )  # fmt: skip
    effective = _on(workload(kind="Job"), elsewhere, fleet)
    assert (effective.rule, effective.mode) == ("priorityclass:low-priority", Mode.ENFORCE)
    assert (effective.actions, effective.min_replicas, effective.min_gpus) == (
        (Action.SUSPEND, Action.SCALE_DOWN),
        1,
        4,
    )
    assert (effective.notify_before, effective.cooldown) == (2 * HOUR, 3 * DAY)
    idle = effective.judged_by[0].idle
    assert (idle.window, idle.grace, idle.minCoverage, idle.idleFactor) == (6 * HOUR, HOUR, 0.95, 3.0)
    assert effective.is_off(FindingName.STUCK)
    assert 6 * HOUR in PolicyEvaluator(elsewhere, fleet, at=AT).windows()


@pytest.mark.parametrize(
    ("order", "expected"),
    [("file-first", "all"), ("class-first", "priorityclass:low-priority"), ("off", "all")],
)
def test_class_annotations_order_follows_the_file(order: str, expected: str) -> None:
    """Its rules, or the class."""
    rules = policy(rule("all"), classAnnotations=order)
    assert _on(workload(), rules, _fleet(mode="protect")).rule == expected


def test_class_annotations_off_are_ignored() -> None:
    """Not even where no rule of it matches."""
    rules = policy(rule("others", match=Match(namespaces=("elsewhere",))), classAnnotations="off")
    assert _on(workload(), rules, _fleet(mode="enforce")).rule == "(no rule)"


UNREADABLE = {
    "no-mode": ({"idle_window": "6h"}, "gpu-rightsizer.io/mode is missing"),
    "unknown-mode": ({"mode": "kill"}, "gpu-rightsizer.io/mode: Input should be"),
    "unknown-annotation": (
        {"mode": "enforce", "idel_window": "6h"},
        "gpu-rightsizer.io/idel-window is unknown",
    ),
    "window-without-unit": (
        {"mode": "enforce", "idle_window": "6"},
        "gpu-rightsizer.io/idle-window: '6' is not",
    ),
    "tiny-window": ({"mode": "enforce", "idle_window": "1m"}, "idle-window: must be 5m to 366d"),
    "coverage-as-percent": ({"mode": "enforce", "min_coverage": "90%"}, "write a number such as 0.95"),
    "coverage-not-a-number": ({"mode": "enforce", "min_coverage": "nan"}, "write a number such as 0.95"),
    "coverage-above-one": (
        {"mode": "enforce", "min_coverage": "90"},
        "gpu-rightsizer.io/min-coverage: Input",
    ),
    "coverage-of-little": (
        {"mode": "enforce", "min_coverage": "0.01"},
        "gpu-rightsizer.io/min-coverage: 0.01 is below 0.5: unobserved",
    ),
    "utilization-of-work": (
        {"mode": "enforce", "max_utilization": "99"},
        "gpu-rightsizer.io/max-utilization: 99 is above 20 percent: such a device",
    ),
    "traffic-of-work": (
        {"mode": "enforce", "max_memory_traffic": "99"},
        "gpu-rightsizer.io/max-memory-traffic: 99 is above 20 percent",
    ),
    "unknown-action": (
        {"mode": "enforce", "actions": "suspend,kill"},
        "gpu-rightsizer.io/actions: Input should",
    ),
    "negative": ({"mode": "enforce", "min_replicas": "-1"}, "write a whole number such as 1"),
    "finding-without-mode": ({"mode": "enforce", "findings": "idle"}, "write each finding once"),
    "finding-twice": ({"mode": "enforce", "findings": "idle=off,idle=advise"}, "write each finding once"),
    "unknown-finding": ({"mode": "enforce", "findings": "idel=off"}, "did you mean idle?"),
}


@pytest.mark.parametrize(("annotations", "words"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_class_with_invalid_annotations_protects(annotations: dict[str, str], words: str) -> None:
    """And it is told why."""
    effective = _on(workload(), policy(classAnnotations="class-first"), _fleet(**annotations))
    assert (effective.mode, effective.rule) == (Mode.PROTECT, "priorityclass:low-priority")
    assert "has invalid annotations, so it protects" in effective.restrictions[0].message
    assert words in effective.restrictions[0].message


def test_class_with_changed_value_protects() -> None:
    """It was made anew since; what it says now was not meant for the pod, so that it is protected."""
    item = workload(pod(priority=999))
    effective = _on(item, policy(classAnnotations="class-first"), _fleet(mode="enforce"))
    assert effective.mode is Mode.PROTECT
    assert "another value" in effective.restrictions[0].message


def test_class_missing_protects_if_class_first() -> None:
    """It may have protected. Where the file comes first, what no rule matches gets only advice."""
    assert _on(workload(), policy(classAnnotations="class-first"), NO_FLEET).mode is Mode.PROTECT
    others = rule("others", match=Match(namespaces=("elsewhere",)))
    assert _on(workload(), policy(others), NO_FLEET).mode is Mode.ADVISE


def test_class_without_annotations_is_ignored() -> None:
    """Nor do pods without a class."""
    assert _on(workload(), policy(classAnnotations="class-first")).rule == "all"
    classless = workload(pod(priority_class="", priority=0))
    assert _on(classless, policy(classAnnotations="class-first"), _fleet(mode="protect")).rule == "all"


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: str(annotation.name))
def test_class_annotation_examples_are_valid(annotation: Any) -> None:
    """What the documentation shows works."""
    ours = {PREFIX + "mode": "enforce", annotation.key: annotation.example}
    fleet = Fleet((), {}, {"low-priority": PriorityClass("low-priority", 1000, ours)})
    effective = _on(workload(), policy(classAnnotations="class-first"), fleet)
    assert effective.mode is Mode.ENFORCE


# --- what stands above rules


OWN = {
    "own-namespace": (workload(namespace_annotations={}), {"own": "research"}),
    "own-label": (workload(labels={"app.kubernetes.io/name": "gpu-rightsizer"}), {}),
    "own-label-of-a-pod": (workload(pod(labels={"app.kubernetes.io/name": "gpu-rightsizer"})), {}),
}


@pytest.mark.parametrize(("item", "changes"), OWN.values(), ids=OWN.keys())
def test_protections_cover_gpu_rightsizer_itself(item: Workload, changes: dict[str, Any]) -> None:
    """Neither our namespace, whatever it is called, nor what is labelled as ours."""
    effective = _on(item, policy(), **changes)
    assert effective.mode is Mode.PROTECT
    assert effective.rule.startswith("built-in:own")


@pytest.mark.parametrize(("kind", "is_protected"), [("Flux", True), ("Argo CD", False), ("Helm", False)])
def test_protections_cover_what_the_policy_leaves_to_another_controller(
    kind: str, *, is_protected: bool
) -> None:
    """By its word `protect` alone."""
    rules = policy(otherControllers={"flux": "protect", "helm": "advise"})
    effective = _on(workload(managers=(Manager(kind, "app", reverts=True),)), rules)
    assert (effective.mode is Mode.PROTECT) is is_protected
    assert [one.source for one in effective.restrictions] == ["otherControllers"] * is_protected


def test_concerned_workloads_are_counted_by_rule() -> None:
    """What is protected above all rules is counted by itself as well."""
    items = [
        dataclasses.replace(workload(), ref=ObjectRef("apps/v1", "Deployment", namespace, name, name))
        for name, namespace in (("a", "kube-system"), ("b", "kube-system"), ("c", "team"), ("d", "team"))
    ]
    rows, protected = workloads_by_rule(PolicyEvaluator(policy(rule("all")), fleet(*items), at=AT))
    assert protected == 2
    assert rows == [("all", Mode.ENFORCE, 4, 4)]


OPT_OUTS = {
    "off": ({"mode": "off"}, Mode.PROTECT, "gpu-rightsizer.io/mode: off on Deployment w"),
    "excluded": ({"exclude": "true"}, Mode.PROTECT, "gpu-rightsizer.io/exclude: true on Deployment w"),
    "not-excluded": ({"exclude": "false"}, Mode.ENFORCE, None),
    "excluded-in-other-words": (
        {"exclude": "yes"},
        Mode.PROTECT,
        "is invalid (true or false); it counts as off",
    ),
    "until-later": ({"exclude-until": "2026-11-21T12:00:01Z"}, Mode.PROTECT, "until 2026-11-21 12:00 UTC"),
    "until-now": ({"exclude-until": "2026-11-21T12:00:00Z"}, Mode.ENFORCE, None),
    "until-later-elsewhere": (
        {"exclude-until": "2026-11-21T14:00:00+01:00"},
        Mode.PROTECT,
        "until 2026-11-21 13:00",
    ),
    "until-the-end-of-today": ({"exclude-until": "2026-11-21"}, Mode.PROTECT, "until 2026-11-22 00:00 UTC"),
    "until-yesterday": ({"exclude-until": "2026-11-20"}, Mode.ENFORCE, None),
    "until-no-zone": ({"exclude-until": "2026-11-01T12:00:00"}, Mode.PROTECT, "is invalid"),
    "until-no-day": ({"exclude-until": "2026-11-31"}, Mode.PROTECT, "is invalid"),
    "until-the-end-of-time": ({"exclude-until": "9999-12-31"}, Mode.PROTECT, "is invalid"),
    "until-next-week": ({"exclude-until": "next week"}, Mode.PROTECT, "is invalid"),
    "keep-two": ({"min-replicas": "2"}, Mode.ENFORCE, "keeps 2 replicas"),
    "keep-none": ({"min-replicas": "0"}, Mode.ENFORCE, None),
    "keep-unreadable": ({"min-replicas": "two"}, Mode.PROTECT, "is invalid (a whole number)"),
    "name-that-is-unknown": (
        {"opt-out": "true"},
        Mode.PROTECT,
        "gpu-rightsizer.io/opt-out: 'true' on Deployment w is unknown; known are gpu-rightsizer.io/mode, ",
    ),
    "name-in-capitals": (
        {"Exclude": "true"},
        Mode.PROTECT,
        "gpu-rightsizer.io/Exclude: 'true' on Deployment w is unknown",
    ),
    "name-of-a-class's": (
        {"cooldown": "7d"},
        Mode.PROTECT,
        "belongs on a PriorityClass; it counts as off",
    ),
    "name-that-says-nothing": ({"exclud": "false"}, Mode.PROTECT, "it counts as off"),
    "our-own-records": (
        {
            "undo": "{}",
            "notice": "{}",
            "resumed-at": "2026-11-01T12:00:00Z",
            "came-back-after": "31h10m",
            "manifest": "run-1",
            "pod": "a/b",
            "gpus": "1",
        },
        Mode.ENFORCE,
        None,
    ),
}


@pytest.mark.parametrize(("wish", "mode", "words"), OPT_OUTS.values(), ids=OPT_OUTS.keys())
def test_optout_annotations_are_respected(wish: dict[str, str], mode: Mode, words: str | None) -> None:
    """What can be read is done, for as long as it says; what cannot is taken as off. Each is told."""
    item = workload(annotations={PREFIX + key: value for key, value in wish.items()})
    effective = _on(item, policy())
    assert effective.mode is mode
    assert [words in veto.message for veto in effective.restrictions if words] == [True] * bool(words)
    assert (len(effective.restrictions) == 0) is (words is None)
    assert _on(item, policy(respectOptOut=False)).mode is Mode.ENFORCE


@pytest.mark.parametrize("key", ["gpu-rightsizer.io/opt-out", "GPU-rightsizer.io/exclude"])
@pytest.mark.parametrize("where", ["pod", "namespace"])
def test_optout_unknown_annotation_counts_as_off(key: str, where: str) -> None:
    """On a pod and on the namespace, too; the API server takes prefixes in capitals."""
    wish = {key: "true"}
    item = workload(pod(annotations=wish)) if where == "pod" else workload(namespace_annotations=wish)
    effective = _on(item, policy())
    assert effective.mode is Mode.PROTECT
    assert [f"{key}: 'true' on {where}" in veto.message for veto in effective.restrictions] == [True]


def test_optout_other_prefix_is_ignored() -> None:
    """Also not those that look like ours."""
    others = {"simulator.gpu-rightsizer.io/exclude": "true", "gpu-rightsizer.io.example.com/exclude": "true"}
    assert _on(workload(annotations={**others, "exclude": "true"}), policy()).mode is Mode.ENFORCE


def test_minimum_kept_is_the_highest() -> None:
    """Of the rule's number and the users'."""
    item = workload(
        pod(annotations={PREFIX + "min-replicas": "3"}), annotations={PREFIX + "min-replicas": "2"}
    )
    assert _on(item, policy(rule("r", minReplicas=1))).min_replicas == 3
    assert _on(item, policy(rule("r", minReplicas=5))).min_replicas == 5


MARKS = {
    "cluster-autoscaler": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false", True),
    "cluster-autoscaler-safe": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true", False),
    "cluster-autoscaler-slip": ("cluster-autoscaler.kubernetes.io/safe-to-evict", "flase", True),
    "karpenter": ("karpenter.sh/do-not-disrupt", "true", True),
    "karpenter-not": ("karpenter.sh/do-not-disrupt", "false", False),
    "karpenter-for-a-while": ("karpenter.sh/do-not-disrupt", "250h", True),
    "karpenter-over": ("karpenter.sh/do-not-disrupt", "230h", False),
    "karpenter-slip": ("karpenter.sh/do-not-disrupt", "1d", True),
    "descheduler": ("descheduler.alpha.kubernetes.io/prefer-no-eviction", "", True),
    "volcano": ("volcano.sh/preemptable", "false", True),
    "downscaler": ("downscaler/exclude", "true", True),
    "downscaler-until": ("downscaler/exclude-until", "2026-11-22 12:00", True),
    "downscaler-until-passed": ("downscaler/exclude-until", "2026-11-20T12:00:00", False),
    "gpu-pruner": ("gpu-pruner.io/ack-until", "2026-11-22T12:00:00Z", True),
    "gpu-pruner-passed": ("gpu-pruner.io/ack-until", "2026-11-20T12:00:00Z", False),
    "kubeflow": ("notebooks.kubeflow.org/disable-culling", "true", True),
}


@pytest.mark.parametrize(("key", "value", "holds"), MARKS.values(), ids=MARKS.keys())
@pytest.mark.parametrize("where", ["workload", "pod", "namespace"])
def test_do_not_disrupt_annotation_is_advised_only(key: str, value: str, holds: bool, where: str) -> None:
    """What carries one is shown and not touched; the mark stands beside it."""
    marked = {key: value}
    items = {
        "workload": workload(annotations=marked),
        "pod": workload(pod(annotations=marked)),
        "namespace": workload(namespace_annotations=marked),
    }
    if value.endswith("h") and where != "pod":
        holds = True  # a duration counts from a pod's start; on anything else it cannot end
    effective = _on(items[where], policy())
    assert effective.mode is (Mode.ADVISE if holds else Mode.ENFORCE)
    assert [veto.source.startswith("mark:") for veto in effective.restrictions] == [True] * holds
    assert _on(items[where], policy(respectDoNotDisrupt=())).mode is Mode.ENFORCE


def test_do_not_disrupt_label_is_advised_only() -> None:
    """Volcano's is one as well as an annotation, and neither hides the other."""
    item = workload(
        labels={"volcano.sh/preemptable": "false"}, annotations={"volcano.sh/preemptable": "true"}
    )
    assert _on(item, policy()).mode is Mode.ADVISE


def test_policy_evaluator_cached_equals_fresh() -> None:
    """Whatever it has been asked before."""
    rules = policy(rule("a", match=Match(models=("*T4*",))), rule("b", Mode.ADVISE))
    items = [workload(), workload(pod(node="bare")), workload(kind="Notebook"), *UNKNOWN.values()]
    book = PolicyEvaluator(rules, _fleet(), at=AT)
    for item in (*items, *items):
        assert book.evaluate(item) == _on(item, rules)


def test_thresholds_of_a_rule_apply_to_all_kinds() -> None:
    """And stand instead of the kind's as a whole."""
    effective = _on(workload(kind="Job"), policy(rule("r", idle=Thresholds(window=2 * DAY))))
    assert (effective.thresholds.window, effective.thresholds.minCoverage) == (2 * DAY, 0.9)


_SCALED = Manager("KEDA", "w", reverts=True, scales=True)
_WAKING = dataclasses.replace(_SCALED, wakes=True)
_ON_KNATIVE = {"serving.knative.dev/revision": "w-00001"}
_KSERVE = ("serving.kserve.io/v1beta1", "InferenceService")


@pytest.mark.parametrize(
    ("of", "pods", "changes", "minutes"),
    [
        pytest.param(("serving.knative.dev/v1", "Service"), [{}], {}, 40, id="knative"),
        pytest.param(_KSERVE, [_ON_KNATIVE, _ON_KNATIVE], {}, 40, id="kserve-on-knative"),
        pytest.param(_KSERVE, [_ON_KNATIVE, {}], {}, 240, id="kserve-in-part"),
        pytest.param(_KSERVE, [{}], {}, 240, id="kserve-without-knative"),
        pytest.param(
            ("apps/v1", "Deployment"), [{}], {"managers": (_WAKING,)}, 40, id="autoscaler-from-zero"
        ),
        pytest.param(("apps/v1", "Deployment"), [{}], {"managers": (_SCALED,)}, 1440, id="autoscaler"),
        pytest.param(("apps/v1", "Deployment"), [_ON_KNATIVE], {}, 1440, id="label-alone"),
        pytest.param(
            ("apps/v1", "Deployment"),
            [{}],
            {
                "managers": (_WAKING,),
                "control_object": ObjectRef("keda.sh/v1alpha1", "ScaledObject", "n", "w"),
            },
            1440,
            id="paused-by-its-stop",
        ),
        pytest.param(("batch/v1", "Job"), [{}], {"managers": (_WAKING,)}, 960, id="job"),
    ],
)
def test_woken_by_a_request_waits_minutes(
    of: tuple[str, str], pods: list[dict[str, str]], changes: dict[str, Any], minutes: int
) -> None:
    """A mistake costs one cold start; what is not proven to be woken waits for hours."""
    ref = ObjectRef(*of, "research", "w", "uid-w")
    item = workload(*(pod(f"w-{n}", labels=labels) for n, labels in enumerate(pods)), ref=ref, **changes)
    assert _on(item, policy(defaults=Defaults())).thresholds.window == datetime.timedelta(minutes=minutes)


@pytest.mark.parametrize(
    ("kind", "changes", "hours"),
    [
        ("StatefulSet", {}, None),
        ("StatefulSet", {"labels": {"hub.jupyter.org/username": "ada"}}, 12),
        ("StatefulSet", {"labels": {"app": "jupyterhub"}}, 12),
        ("StatefulSet", {"labels": {"notebook-name": "x"}}, 12),
        (
            "StatefulSet",
            {"spec": b'{"template":{"spec":{"containers":[{"image":"codercom/code-server:4"}]}}}'},
            12,
        ),
        (
            "StatefulSet",
            {"spec": b'{"template":{"spec":{"containers":[{"image":"vllm/vllm-openai:v1"}]}}}'},
            None,
        ),
        ("Deployment", {"labels": {"com.coder.resource": "true"}}, 12),
        ("Deployment", {}, None),
        ("Pod", {}, 12),
    ],
)
def test_workload_of_a_general_kind_is_a_notebook_only_if_it_says_so(
    kind: str, changes: dict[str, Any], hours: int | None
) -> None:
    """By labels of hubs, names of applications or images, on it or its pods."""
    found = policy(defaults=Defaults(idle=Thresholds(), kinds=DEFAULT_KINDS))
    effective = _on(workload(kind=kind, **changes), found)
    assert effective.notify_before == (hours * HOUR if hours else None)
    assert (effective.thresholds.minIdleTime is None) is (hours is None)


@pytest.mark.parametrize(
    ("classes", "hours"),
    [(("low",), 2), (("low", "low"), 2), (("low", "high"), 24), ((), 24), (("",), 4), (("lower",), 24)],
    ids=str,
)
def test_row_of_priority_classes_is_for_workloads_of_these_alone(classes: Sequence[str], hours: int) -> None:
    """Not for one with a pod of another class, nor for one without pods, whose class is unknown."""
    rows = [
        KindDefaults(
            kinds=("StatefulSet",), onlyPriorityClasses=(name,), idle=Thresholds(window=window_h * HOUR)
        )
        for name, window_h in (("low", 2), ("", 4))
    ]
    found = policy(defaults=Defaults(idle=Thresholds(), kinds=(*rows,)))
    pods = (pod(f"p{place}", priority_class=name) for place, name in enumerate(classes))
    item = dataclasses.replace(workload(kind="StatefulSet"), pods=(*pods,))
    assert _on(item, found).thresholds.window == hours * HOUR
