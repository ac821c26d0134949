"""Two implementations of the policy's meaning, the second written from its documentation alone, say the same."""

import dataclasses
import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st

from rightsizer.model import FindingName, Fleet, Node, Pod, PriorityClass, Workload
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import AT, MANY, pod, workload
from tests.rightsizer.oracle import ACTIONS, FINDINGS, IDLE, MARKS, OURS, Oracle, Said

CLASSES = {"high": 100, "low": 1, "lost": 5, "": 0, "system-x": 2_000, "beyond": 2_000_000_000}
NAMESPACES = ["research", "team-a", "kube-system", "gpu-rightsizer", "elsewhere"]
KINDS = [
    "Deployment",
    "StatefulSet",
    "Job",
    "RayJob",
    "Notebook",
    "InferenceService",
    "TrainingRun",
    "DaemonSet",
]
INSTANTS = [
    *("2026-11-20", "2026-11-21", "2026-11-21T11:00:00Z", "2026-11-21T15:00:00+02:00"),
    *("soon", "2026-11-22T00:00:00+00:00"),
]
DURATIONS = ["5m", "90m", "1h", "24h", "1d12h", "7d"]
LONG = ["7d", "30d"]

Chance = random.Random
"""Worlds are drawn from one seed each: thousands a minute, which is worth more here than small examples."""


def _given(**fields: Any) -> dict[str, Any]:
    """What is there: a field that is left out is not in the file."""
    return {name: value for name, value in fields.items() if value is not None}


def _one_in(chance: Chance, count: int, make: Callable[[Chance], Any]) -> Any:
    return make(chance) if chance.randrange(count) == 0 else None


def _some(chance: Chance, values: Sequence[Any], least: int = 1, most: int = 2) -> list[Any]:
    return chance.sample(list(values), chance.randint(least, min(most, len(values))))


def _fields(chance: Chance, values: Mapping[str, Sequence[Any]], most: int) -> dict[str, Any]:
    """Some of these fields, each with one of its values."""
    return {name: chance.choice(values[name]) for name in _some(chance, sorted(values), 0, most)}


# --- the policy's file


IDLES: Mapping[str, Sequence[Any]] = {
    "window": DURATIONS,
    "minIdleTime": ["1h", "2h"],
    "unusedWindow": DURATIONS,
    "grace": DURATIONS,
    "minCoverage": [0.5, 1.0],
    "maxUtilizationPercent": [0.0, 5.0],
    "history": LONG,
    "idleFactor": [0.0, 3.0],
}
PATTERNS = {
    "priorityClasses": ["high", "l*", "?o*", "", "system-*"],
    "namespaces": ["res*", "team-?", "kube-*", "*e"],
    "kinds": ["Job", "*Job", "Notebook", "Deploy*", "*.example.com", "TrainingRun.example.com"],
    "models": ["*H100*", "*T4", "NVIDIA*"],
    "nodePools": ["a", "?", "gpu-*"],
}
PRIORITIES = [{"min": 1}, {"max": 4}, {"min": 5, "max": 100}, {"min": 0, "max": 0}]
LABELS = {"team": ["*", "vision", "v*", "a?dio"], "tier": ["*", "fr*", "vision"]}


def _match(chance: Chance) -> dict[str, Any]:
    names = _some(chance, [*PATTERNS, "priority", "labels"], 0, 2)
    return {name: _condition(chance, name) for name in names} or {"everything": True}


def _condition(chance: Chance, name: str) -> Any:
    match name:
        case "priority":
            return chance.choice(PRIORITIES)
        case "labels":
            return _fields(chance, LABELS, 2) or {"team": "*"}
    return _some(chance, PATTERNS[name])


def _rule(chance: Chance, number: int) -> dict[str, Any]:
    mode = chance.choice(["protect", "advise", "enforce", "enforce", "enforce"])
    wishes = ["advise", "off", "enforce"] if mode == "enforce" else ["advise", "off"]
    judges = 3 if mode != "protect" else 0
    return _given(
        name=f"r{number}",
        match=_match(chance),
        mode=mode,
        findings=_fields(chance, dict.fromkeys(FINDINGS, wishes), judges),
        actions=_one_in(chance, 2, lambda one: _some(one, [*ACTIONS, "evict"], 1, 6)),
        minReplicas=_one_in(chance, 3, lambda one: one.choice([0, 1])),
        minGPUs=_one_in(chance, 3, lambda one: one.randrange(4)),
        notifyBefore=_one_in(chance, 3, lambda one: one.choice(DURATIONS)),
        cooldown=_one_in(chance, 3, lambda one: one.choice(DURATIONS)),
        idle=_one_in(chance, 3, lambda one: _fields(one, IDLES, 6)),
    )


def _row(chance: Chance) -> dict[str, Any]:
    return _given(
        kinds=chance.choice([["Job"], ["*Job", "Notebook"], ["D*", "*.example.com"]]),
        idle=_fields(chance, IDLES, 6),
        notifyBefore=chance.choice([None, "1h"]),
    )


def _defaults(chance: Chance) -> dict[str, Any]:
    return _given(
        idle=_one_in(chance, 2, lambda one: _fields(one, IDLES, 6)),
        kinds=_one_in(chance, 2, lambda one: [_row(one) for _ in range(one.randrange(3))]),
    )


def _policy(chance: Chance) -> dict[str, Any]:
    return _given(
        apiVersion="gpu-rightsizer.io/v1alpha1",
        kind="Policy",
        defaults=_one_in(chance, 3, _defaults),
        classAnnotations=chance.choice([None, "file-first", "class-first", "class-first", "off"]),
        respectOptOut=chance.choice([None, None, True, False]),
        respectDoNotDisrupt=_one_in(
            chance, 3, lambda one: _some(one, sorted({name for name, _, _ in MARKS}), 0, 6)
        ),
        protectedNamespaces=_one_in(chance, 6, lambda one: one.choice([["team-*"], ["elsewhere"]])),
        rules=[_rule(chance, number) for number in range(chance.randint(1, 4))],
    )


# --- the cluster


CLASS_NOTES: Mapping[str, Sequence[str]] = {
    "findings": ["idle=advise", "stuck=off,idle=off", "idle=advise,underutilized=off"],
    "actions": ["scale-down,resize,scale-to-zero", "suspend,scale-down,resize,evict", "scale-down,resize"],
    "idle-window": [*DURATIONS, "a day"],
    "min-idle-time": ["3h"],
    "unused-window": ["1h"],
    "grace": DURATIONS,
    "min-coverage": ["0.5", "0.5", "most"],
    "max-utilization": ["0", "5"],
    "max-memory-traffic": ["2"],
    "history": LONG,
    "idle-factor": ["0", "4"],
    "notify-before": DURATIONS,
    "cooldown": DURATIONS,
    "min-replicas": ["0", "1", "one"],
    "min-gpus": ["0", "2"],
}


def _class(chance: Chance, name: str) -> PriorityClass:
    value = CLASSES[name] + (chance.randrange(5) == 0)
    mode = chance.choice(["", "enforce", "enforce", "advise", "protect"])
    notes = {} if mode in {"", "protect"} else _fields(chance, CLASS_NOTES, 4)
    if mode and chance.randrange(10):
        notes["mode"] = mode
    return PriorityClass(name, value, {OURS + key: text for key, text in notes.items()})


def _fleet(chance: Chance) -> Fleet:
    nodes = [
        Node(
            name,
            model=chance.choice(["NVIDIA-H100", "NVIDIA-T4", ""]),
            pool=chance.choice(["a", "gpu-b", ""]),
        )
        for name in ("n1", "n2")
    ]
    classes = {name: _class(chance, name) for name in CLASSES if name not in {"", "lost"}}
    return Fleet((), {node.name: node for node in nodes}, classes)


TEAMS = {"team": ["vision", "audio"], "tier": ["front", "vision"], "hub.jupyter.org/username": ["ada"]}
WISHES = {
    OURS + "mode": ["off", "advise", "enforce", "never"],
    OURS + "exclude": ["true", "false", "yes please"],
    OURS + "exclude-until": INSTANTS,
    OURS + "min-replicas": ["0", "1", "3", "-1", "many"],
}
TOOLS = {key: ["true", "false", "30m", *INSTANTS] for _, key, _ in MARKS}
SYSTEM = {"app.kubernetes.io/name": ["gpu-rightsizer"]}


def _notes(chance: Chance, one_in: int, values: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return _one_in(chance, one_in, lambda one: _fields(one, values, 2)) or {}


def _pod(chance: Chance, number: int) -> Pod:
    name = chance.choice(["high", "low", ""] * 5 + list(CLASSES))
    return pod(
        f"w-{number}",
        priority_class=name,
        priority=chance.choice([CLASSES[name]] * 20 + [None, 3]),
        node=chance.choice(["n1", "n1", "n2", "n9", ""]),
        is_static=chance.randrange(40) == 0,
        labels=_notes(chance, 1, TEAMS) | _notes(chance, 20, TOOLS) | _notes(chance, 40, SYSTEM),
        annotations=_notes(chance, 12, WISHES) | _notes(chance, 12, TOOLS),
        created=AT - datetime.timedelta(minutes=chance.choice([10, 14_400])),
    )


def _workload(chance: Chance) -> Workload:
    item = workload(
        *(_pod(chance, number) for number in range(chance.randint(1, 3))),
        kind=chance.choice(KINDS),
        labels=_notes(chance, 1, TEAMS) | _notes(chance, 30, TOOLS),
        annotations=_notes(chance, 8, WISHES) | _notes(chance, 12, TOOLS),
        namespace_annotations=_notes(chance, 12, WISHES) | _notes(chance, 20, TOOLS),
        resource_version=chance.choice(["7", "7", "7", ""]),
    )
    space = chance.choice(NAMESPACES[:2] * 5 + NAMESPACES)
    return dataclasses.replace(item, ref=dataclasses.replace(item.ref, namespace=space))


# --- what both say


def _said(effective: EffectivePolicy) -> Said:
    """A effective in the oracle's words."""
    is_by_rule = not effective.rule.startswith("built-in:")
    return Said(
        mode=effective.mode.value,
        rules=frozenset(rule.name for rule in effective.rules) if is_by_rule else None,
        modes={name: effective.mode_for(FindingName(name)).value for name in FINDINGS},
        actions=tuple(action.value for action in effective.actions),
        keep=(effective.min_replicas, effective.min_gpus),
        notify_s=effective.notify_before.total_seconds() if effective.notify_before else 0.0,
        cooldown_s=effective.cooldown.total_seconds(),
        idle=frozenset(
            tuple((name, _number(getattr(each.idle, name))) for name in IDLE) for each in effective.judged_by
        ),
    )


def _number(value: float | datetime.timedelta | None) -> float:
    if value is None:
        return 0.0
    return value.total_seconds() if isinstance(value, datetime.timedelta) else value


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_policy_evaluator_agrees_with_the_oracle(chance: Chance) -> None:
    """Which rules hold, in which mode for each finding, by what thresholds, and what follows."""
    document, fleet = _policy(chance), _fleet(chance)
    try:
        policy = Policy.model_validate(document)
    except ValueError:
        hypothesis.reject()
    book = PolicyEvaluator(policy, fleet, at=AT, own="elsewhere")
    oracle = Oracle(document, fleet, AT, own="elsewhere")
    for item in [_workload(chance) for _ in range(5)]:
        expected, said = oracle.on(item), _said(book.evaluate(item))
        assert said.mode == expected.mode
        if expected.mode == "protect":
            assert said.rules == expected.rules or expected.rules is None
        else:
            assert said == expected
