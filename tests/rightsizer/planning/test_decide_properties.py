"""What holds for every decision, from what was measured to the budgets, over random fleets and policies.

Worlds are drawn from one seed each, which is much faster than drawing each of their parts.
"""

import dataclasses
import datetime
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.config import PREFIX
from rightsizer.findings.evidence import Candidate
from rightsizer.findings.finders import freed
from rightsizer.findings.idle_history import covers_pauses
from rightsizer.kinds import is_supported
from rightsizer.model import (
    Action,
    BlockerCode,
    ChangeRecord,
    Decision,
    FindingName,
    Fleet,
    FoundChange,
    History,
    Manager,
    Measured,
    Mode,
    Node,
    ObjectRef,
    Plan,
    Pod,
    PodKey,
    PriorityClass,
    Slot,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.planning.budget import within_budgets
from rightsizer.planning.decide import decide
from rightsizer.policy.do_not_disrupt import ROWS
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import DEFAULT_BUDGETS, Budget, BudgetScope, Freeze, Per
from rightsizer.policy.rule import UNUSED
from rightsizer.policy.schema import Policy
from rightsizer.report.documents import plan_json
from tests.rightsizer.build import (
    AT,
    DAY,
    MANY,
    busy_usage,
    concurrency,
    history,
    idle_usage,
    planned,
    pod,
    rule,
    workload,
)
from tests.rightsizer.reported import accounted

HOUR = datetime.timedelta(hours=1)
MODELS = {"n1": "NVIDIA H100 80GB HBM3", "n2": "NVIDIA L4"}
CLASSES = {"high": 100, "low": 1, "": 0}
Chance = random.Random


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """A policy, a fleet, and what was measured of it."""

    rules: Policy
    fleet: Fleet
    seen: Measured

    @property
    def book(self) -> PolicyEvaluator:
        """The policy beside the fleet."""
        return PolicyEvaluator(self.rules, self.fleet, at=AT)

    def decisions(self) -> tuple[Decision, ...]:
        """The whole way, budgets included."""
        return planned(self.book, self.seen)

    def with_items(self, change: Callable[[Workload], Workload]) -> "World":
        """The same with every workload changed."""
        items = tuple(map(change, self.fleet.workloads))
        return dataclasses.replace(self, fleet=dataclasses.replace(self.fleet, workloads=items))

    def with_usages(self, change: Callable[[PodKey, list[Usage]], list[Usage] | None]) -> "World":
        """The same with the usage of each pod changed, in every window; None where it is not there any more."""
        windows = {
            window: {key: now for key, used in found.items() if (now := change(key, list(used))) is not None}
            for window, found in self.seen.usages.items()
        }
        return dataclasses.replace(self, seen=dataclasses.replace(self.seen, usages=windows))

    def with_rules(self, **changes: Any) -> "World":
        """The same under a policy that differs."""
        return dataclasses.replace(self, rules=self.rules.model_copy(update=changes))


# --- how worlds are drawn


GENEROUS = {(budget.scope, budget.per): {"workloads": 100} for budget in DEFAULT_BUDGETS}
"""Instead of the default budgets, which leave hardly anything to be done in so small a fleet."""


def _policy(chance: Chance) -> Policy:
    places = [(scope, per) for scope in BudgetScope for per in Per]
    amounts = GENEROUS | {place: _amount(chance) for place in chance.sample(places, chance.randrange(3))}
    return Policy.model_validate(
        {
            "apiVersion": "gpu-rightsizer.io/v1alpha1",
            "kind": "Policy",
            "classAnnotations": chance.choice(["file-first", "file-first", "class-first"]),
            "budgets": [
                {"scope": scope.value, "per": per.value, **amount} for (scope, per), amount in amounts.items()
            ],
            "rules": [_rule(chance, number) for number in range(chance.randint(1, 3))],
        }
    )


def _amount(chance: Chance) -> dict[str, Any]:
    return chance.choice(
        [{"gpus": chance.randrange(9)}, {"workloads": chance.randrange(4)}, {"share": "30%"}]
    )


def _rule(chance: Chance, number: int) -> dict[str, Any]:
    mode = chance.choice(["enforce"] * 8 + ["advise", "protect"])
    rule: dict[str, Any] = {"name": f"r{number}", "match": _match(chance), "mode": mode}
    if mode == "enforce":
        wishes = ["advise", "off", "enforce"]
        names = chance.sample(
            ["idle", "idle", "stuck", "too-many-gpus", "oversized-gpu"], chance.randrange(3)
        )
        rule["findings"] = {name: chance.choice(wishes) for name in names}
        rule["actions"] = ["scale-down", "resize", "reslice", "scale-to-zero", "suspend", "evict"]
        rule["minReplicas"] = chance.choice([0] * 6 + [1])
        rule["minGPUs"] = chance.choice([0] * 6 + [2])
        rule["cooldown"] = chance.choice(["1h", "24h"])
        if chance.random() < 0.3:
            rule["notifyBefore"] = chance.choice(["1h", "1d"])
    if chance.random() < 0.3:
        rule["idle"] = {"window": "6h", "history": "7d", "idleFactor": chance.choice([0.0, 1.0, 3.0])}
    return rule


def _match(chance: Chance) -> dict[str, Any]:
    return chance.choice(
        [
            *[{"everything": True}] * 6,
            {"priorityClasses": ["low"]},
            {"kinds": ["Job", "Deployment"]},
            {"nodePools": ["a"]},
            {"models": ["*H100*"]},
        ]
    )


def _item(chance: Chance, number: int) -> Workload:
    kind = chance.choice([*["Deployment", "StatefulSet", "Job", "Pod"] * 3, "RayCluster", "Notebook"])
    space = chance.choice(["team-a", "team-b"])
    count = 1 if kind == "Pod" else chance.randint(1, 3)
    devices = chance.choice([1, 1, 2, 4])
    pods = tuple(_pod(chance, f"w{number}-{one}", space, devices) for one in range(count))
    made = workload(
        *pods,
        kind=kind,
        size=None if kind == "Pod" else count,
        budgets=chance.choice([{}] * 6 + [{"pdb": chance.randrange(4)}]),
        managers=chance.choice(
            [()] * 6 + [(Manager("Argo CD", "app", reverts=True),), (Manager("Helm", "app"),)]
        ),
        annotations=_notes(chance),
        is_terminating=chance.random() < 0.05,
    )
    ref = dataclasses.replace(made.ref, namespace=space, name=f"w{number}", uid=f"uid-w{number}")
    return dataclasses.replace(made, ref=ref)


def _notes(chance: Chance) -> dict[str, str]:
    at = AT - chance.choice([HOUR / 2, 2 * HOUR, 30 * HOUR])
    action = chance.choice(["scale-to-zero", "suspend"])
    notice = (
        f'{{"at":"{at.isoformat()}","due":"{at.isoformat()}","action":"{action}",'
        '"finding":"idle","reason":"","run":"r"}'
    )
    notes = [
        {},
        {},
        {PREFIX + "notice": notice},
        {PREFIX + "notice": notice},
        {PREFIX + "min-replicas": "1"},
    ]
    return chance.choice([*notes, {PREFIX + "mode": "advise"}, {PREFIX + "resumed-at": at.isoformat()}])


def _pod(chance: Chance, name: str, space: str, devices: int) -> Pod:
    class_name = chance.choice(list(CLASSES))
    return pod(
        name,
        ref=ObjectRef("v1", "Pod", space, name, f"uid-{name}"),
        devices=devices,
        node=chance.choice(["n1", "n1", "n2"]),
        priority_class=class_name,
        priority=chance.choice([CLASSES[class_name]] * 30 + [None]),
        started=AT - chance.choice([10 * DAY] * 12 + [DAY / 2]),
        created=AT - 10 * DAY,
    )


def _fleet(chance: Chance) -> Fleet:
    items = tuple(_item(chance, number) for number in range(chance.randint(1, 4)))
    pools = {"n1": "a", "n2": chance.choice(["a", "b", ""])}
    nodes = {name: Node(name, model=model, pool=pools[name], gpus=8) for name, model in MODELS.items()}
    modes = [{}, {}, {PREFIX + "mode": "enforce"}, {PREFIX + "mode": "what"}]
    classes = {
        name: PriorityClass(name, value, chance.choice(modes)) for name, value in CLASSES.items() if name
    }
    changes = tuple(
        FoundChange(
            item.ref,
            ChangeRecord(AT - chance.choice([HOUR / 2, 3 * HOUR, 30 * HOUR]), "r", "", chance.randrange(5)),
            pools=("a",),
        )
        for item in items
        if chance.random() < 0.15
    )
    return Fleet(items, nodes, classes, changes)


LOOKS: Mapping[str, Callable[[int], Usage]] = {
    "idle": idle_usage,
    "small": lambda number: busy_usage(number, activity_mean=0.05, activity_peak=0.1, traffic_peak=0.05),
    "busy": busy_usage,
    "spinning": lambda number: idle_usage(number, activity_mean=0.99, activity_peak=1.0),
    "hot": lambda number: idle_usage(number, power_peak_w=500.0),
    "thin": lambda number: idle_usage(number, coverage=0.4),
    "stale": lambda number: idle_usage(number, is_fresh=False),
    "broken": lambda number: idle_usage(number, invalid=("DCGM_FI_DEV_GPU_UTIL",)),
    "blind": lambda number: idle_usage(number, activity_peak=None, activity_mean=None),
}


def _usages(chance: Chance, fleet: Fleet) -> Usages:
    found: dict[PodKey, list[Usage]] = {}
    for item in fleet.workloads:
        look = chance.choice(["idle"] * 7 + ["mixed", "spinning", "small", "odd"])
        choices = {"mixed": ["idle", "busy"], "odd": sorted(LOOKS)}.get(look, [look])
        for place, one in enumerate(item.pods):
            devices = [LOOKS[chance.choice(choices)](place * 8 + number) for number in range(one.devices)]
            found[one.ref.namespace, one.ref.name] = devices
    return found


def _histories(chance: Chance, fleet: Fleet) -> dict[PodKey, History]:
    texts = [".", ".", ".", ".", ".", ".", "#" + "." * 100, "#" + "." * 20 + "#" + "." * 40, "?" + "." * 60]
    keys = [(one.ref.namespace, one.ref.name) for item in fleet.workloads for one in item.pods]
    return {key: history(chance.choice(texts)) for key in keys if chance.random() < 0.98}


def _world(chance: Chance) -> World:
    rules, fleet = _policy(chance), _fleet(chance)
    usages = _usages(chance, fleet)
    counted = {
        item.ref.uid: concurrency(*[chance.randrange(len(item.pods) + 1)] * 3)
        for item in fleet.workloads
        if chance.random() < 0.5
    }
    seen = Measured(
        AT,
        dict.fromkeys(sorted(PolicyEvaluator(rules, fleet, at=AT).windows()), usages),
        histories=_histories(chance, fleet),
        concurrency=counted,
        begins=chance.choice([*[None] * 6, AT - 20 * DAY, AT - 5 * DAY]),
    )
    return World(rules, fleet, seen)


# --- how far a decision goes


def _reach(decision: Decision) -> int:
    """0: nothing called for, 1: advice, or given back, 2: enforced, but a notice or waiting, 3: stopped or shrunk."""
    if decision.verdict is not Verdict.ACT:
        return 0
    if decision.mode is not Mode.ENFORCE or decision.action in {None, Action.SCALE_UP}:
        return 1
    return 3 if decision.is_enforced and decision.action is not Action.NOTICE else 2


def _is_too_much(decision: Decision) -> bool:
    """Whether nothing but how much it frees keeps it from being done: less may be done in its place."""
    causes = {block.code for block in decision.blockers}
    return bool(causes) and causes <= {BlockerCode.BUDGET, BlockerCode.DISRUPTION_BUDGET}


def _is_for_others(decision: Decision, world: World) -> bool:
    """Whether its rule keeps, or only advises on, what does nothing, and may let more be done about what works."""
    effective = world.book.evaluate(decision.workload)
    obstacles = [veto.message for veto in decision.restrictions if veto.source != "opt-out"]
    kept = [re.search("keeps .* would be left$|does not act on ", reason) for reason in obstacles]
    if decision.action is None:
        return bool(kept) and all(kept)
    return (effective.mode, effective.mode_for(decision.finding.name)) == (Mode.ENFORCE, Mode.ADVISE)


def _frees(decision: Decision) -> float:
    return freed(decision.finding, decision.workload)


def _reaches(decisions: tuple[Decision, ...]) -> dict[str, int]:
    return {decision.workload.ref.uid: _reach(decision) for decision in decisions}


def _alone(world: World, item: Workload) -> World:
    """The same world, of which only one workload is planned for; the others are there."""
    return dataclasses.replace(world, fleet=dataclasses.replace(world.fleet, workloads=(item,)))


_NOT_YET_IDLE = (FindingName.IDLE_TOO_BRIEFLY, FindingName.TOO_YOUNG)


def _each(change: Callable[[Usage], Usage]) -> Callable[[World, Chance], World]:
    return lambda world, _: world.with_usages(lambda _, used: [change(usage) for usage in used])


def _some(change: Callable[[Usage], Usage]) -> Callable[[World, Chance], World]:
    def worse(world: World, chance: Chance) -> World:
        chosen = {
            (key, usage.device)
            for found in world.seen.usages.values()
            for key in found
            for usage in found[key]
            if chance.random() < 0.4
        }
        return world.with_usages(
            lambda key, used: [change(usage) if (key, usage.device) in chosen else usage for usage in used]
        )

    return worse


def _without(world: World, names: set[str]) -> World:
    return world.with_usages(lambda key, used: None if key[1] in names else used)


def _works(usage: Usage) -> Usage:
    return dataclasses.replace(
        usage, activity_mean=0.9, activity_peak=1.0, traffic_peak=0.9, power_peak_w=690.0
    )


def _known_to_work(usage: Usage) -> Usage:
    """It works, where it was known what it did: to come to know more is something else."""
    return usage if usage.activity_peak is None else _works(usage)


def _all_at_work(world: World) -> World:
    """Replicas that work are counted as such."""
    counted = {
        item.ref.uid: concurrency(len(item.pods))
        for item in world.fleet.workloads
        if item.ref.uid in world.seen.concurrency
    }
    return dataclasses.replace(world, seen=dataclasses.replace(world.seen, concurrency=counted))


def _annotated(**notes: str) -> Callable[[World, Chance], World]:
    def worse(world: World, chance: Chance) -> World:
        where = chance.choice(["annotations", "namespace_annotations", "pods"])

        def noted(item: Workload) -> Workload:
            if where == "pods":
                first, *rest = item.pods
                held = dataclasses.replace(first, annotations={**first.annotations, **notes})
                return dataclasses.replace(item, pods=(held, *rest))
            if where == "annotations":
                return dataclasses.replace(item, annotations={**item.annotations, **notes})
            return dataclasses.replace(item, namespace_annotations={**item.namespace_annotations, **notes})

        return world.with_items(noted)

    return worse


def _marked(world: World, chance: Chance) -> World:
    return _annotated(**{chance.choice(ROWS).key: "2099-01-01"})(world, chance)


def _cooled(world: World, _: Chance) -> World:
    changes = tuple(
        FoundChange(item.ref, ChangeRecord(AT - HOUR / 2, "r", "", 1), pools=("a", "b"))
        for item in world.fleet.workloads
    )
    return dataclasses.replace(
        world, fleet=dataclasses.replace(world.fleet, changes=(*world.fleet.changes, *changes))
    )


def _lower(world: World, chance: Chance) -> World:
    def less(budget: Budget) -> Budget:
        if budget.workloads is not None:
            return budget.model_copy(update={"workloads": chance.randint(0, budget.workloads)})
        return budget.model_copy(update={"gpus": chance.randint(0, budget.gpus or 0)})

    return world.with_rules(budgets=tuple(map(less, world.rules.budgets)))


def _one_more(world: World, chance: Chance) -> World:
    budget = Budget(scope=chance.choice(list(BudgetScope)), gpus=chance.randrange(4))
    return world.with_rules(budgets=(*world.rules.budgets, budget))


def _frozen(world: World, _: Chance) -> World:
    freeze = {"from": "2026-11-20", "to": "2026-11-22"}
    return world.with_rules(freezes=(Freeze.model_validate(freeze),))


def _shut(world: World, _: Chance) -> World:
    window = {"maintenanceWindows": [{"from": "01:00", "to": "02:00"}]}
    document = Policy.model_validate(
        {
            "apiVersion": "gpu-rightsizer.io/v1alpha1",
            "kind": "Policy",
            "rules": [{"name": "x", "match": {"everything": True}, "mode": "advise"}],
            **window,
        }
    )
    return world.with_rules(maintenanceWindows=document.maintenanceWindows)


WORSE: Mapping[str, Callable[[World, Chance], World]] = {
    "all-samples-removed": lambda world, _: world.with_usages(lambda _, __: None),
    "some-pods-removed": lambda world, chance: _without(
        world, {chance.choice(world.fleet.workloads[0].pods).ref.name}
    ),
    "a-device-removed": lambda world, _: world.with_usages(lambda _, used: used[1:]),
    "thinned": _some(lambda usage: dataclasses.replace(usage, coverage=usage.coverage / 2, holes=9)),
    "delayed": _some(lambda usage: dataclasses.replace(usage, is_fresh=False)),
    "corrupted": _some(lambda usage: dataclasses.replace(usage, invalid=("x",))),
    "activity-lost": _some(lambda usage: dataclasses.replace(usage, activity_mean=None, activity_peak=None)),
    "second-signal-lost": _each(
        lambda usage: dataclasses.replace(usage, power_peak_w=None, traffic_peak=None)
    ),
    "more-use-of-all": lambda world, chance: _all_at_work(_each(_works)(world, chance)),
    "more-use-of-some": lambda world, chance: _all_at_work(_some(_known_to_work)(world, chance)),
    "histories-lost": lambda world, _: dataclasses.replace(
        world, seen=dataclasses.replace(world.seen, histories={})
    ),
    "histories-with-gaps": lambda world, _: dataclasses.replace(
        world,
        seen=dataclasses.replace(
            world.seen,
            histories={
                key: dataclasses.replace(one, slots=one.slots[:-3] + bytes([Slot.UNKNOWN] * 3))
                for key, one in world.seen.histories.items()
            },
        ),
    ),
    "replicas-not-counted": lambda world, _: dataclasses.replace(
        world, seen=dataclasses.replace(world.seen, concurrency={})
    ),
    "opted-out": _annotated(**{PREFIX + "mode": "off"}),
    "opted-out-unreadably": _annotated(**{PREFIX + "exclude-until": "some day"}),
    "advice-only": _annotated(**{PREFIX + "mode": "advise"}),
    "replicas-kept": _annotated(**{PREFIX + "min-replicas": "2"}),
    "marked": _marked,
    "static": lambda world, _: world.with_items(
        lambda item: dataclasses.replace(
            item, pods=tuple(dataclasses.replace(one, is_static=True) for one in item.pods)
        )
    ),
    "restarted": lambda world, _: world.with_items(
        lambda item: dataclasses.replace(
            item, pods=tuple(dataclasses.replace(one, started=AT - HOUR) for one in item.pods)
        )
    ),
    "guarded": lambda world, _: world.with_items(lambda item: dataclasses.replace(item, budgets={"pdb": 0})),
    "managed": lambda world, _: world.with_items(
        lambda item: dataclasses.replace(item, managers=(Manager("Flux", "app", reverts=True),))
    ),
    "leaving": lambda world, _: world.with_items(lambda item: dataclasses.replace(item, is_terminating=True)),
    "changed-lately": _cooled,
    "frozen": _frozen,
    "outside-of-windows": _shut,
    "lower-budgets": _lower,
    "one-more-budget": _one_more,
    "protected-namespaces": lambda world, _: world.with_rules(protectedNamespaces=("team-a",)),
}


@pytest.mark.parametrize("how", WORSE)
@MANY
@hypothesis.example(
    random.Random(1319)
)  # idle for half of the required time; a disruption budget allows one pod
@hypothesis.example(random.Random(16279))  # its rule acts on too many GPUs, and never on what is idle
@hypothesis.example(random.Random(1338))  # idle, of which the replicas that are kept stay
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_with_less_evidence_never_do_more(how: str, chance: Chance) -> None:
    """No keep, unknown or protected turns into act, no advice into a change, no waiting into a stop.

    But less may be done where that alone was too much, and of what works in part, where a rule speaks of that only.
    """
    world = _world(chance)
    worse = WORSE[how](world, chance)
    for item, changed in zip(world.fleet.workloads, worse.fleet.workloads, strict=True):
        (before,), (after,) = _alone(world, item).decisions(), _alone(worse, changed).decisions()
        if how == "more-use-of-some" and before.finding.name in _NOT_YET_IDLE:
            continue  # what is at work is judged by its size, for which it is old enough
        if how == "replicas-kept" and before.finding.name is FindingName.IDLE_TOO_BRIEFLY and _reach(after):
            # A notice inside the required time is given where the change could follow: a smaller one can.
            assert after.action in {Action.NOTICE, Action.SCALE_DOWN} or after.blockers
            assert _frees(after) < item.gpus
            continue
        if _reach(after) > _reach(before):
            is_in_part = how == "more-use-of-some" and _is_for_others(before, world)
            assert _reach(before)
            assert _is_too_much(before) or is_in_part
            assert _frees(after) < _frees(before)


@MANY
@hypothesis.example(random.Random(1568550))  # what was before the record might have been a pause
@hypothesis.example(random.Random(62795001272056))  # two rules, of which only one asks for a history
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_with_late_record_wait_longer(chance: Chance) -> None:
    """What was before is not known then, so it must be idle for as many times longer, or for the whole record.

    What works is judged by its size, over a window that is as many times longer than its pauses.
    """
    world = _world(chance)
    late = dataclasses.replace(world, seen=dataclasses.replace(world.seen, begins=AT - 2 * DAY))
    for item in world.fleet.workloads:
        (before,), (after,) = (_alone(each, item).decisions() for each in (world, late))
        if _reach(after) <= max(_reach(before), 1):
            continue
        for criteria in late.book.evaluate(item).judged_by:
            candidate = Candidate(item, late.seen, criteria, late.fleet)
            if after.finding.proposal is not None and after.finding.name not in UNUSED:
                longest = max(criteria.idle.window, after.finding.window or HOUR)
                assert covers_pauses(candidate.history, criteria.idle, longest, candidate.stretch)
                continue
            least = min(2 * DAY, criteria.idle.window * candidate.stretch)
            assert datetime.timedelta(seconds=after.finding.idle_s or 0.0) + HOUR >= least


@pytest.mark.parametrize("mode", [Mode.PROTECT, Mode.ADVISE])
@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_first_rule_for_everything_applies_to_all(mode: Mode, chance: Chance) -> None:
    """Whatever later rules and, file-first, PriorityClasses say."""
    world = _world(chance)
    first = rule("first", mode)
    shielded = world.with_rules(rules=(first, *world.rules.rules), classAnnotations="file-first")
    for decision in shielded.decisions():
        assert _reach(decision) <= (0 if mode is Mode.PROTECT else 1)
        assert decision.verdict is Verdict.PROTECTED or mode is Mode.ADVISE


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_order_of_inputs_changes_no_byte(chance: Chance) -> None:
    """Workloads, pods, nodes, classes, usage and histories in any order: the same JSON."""
    world = _world(chance)
    assert _json(world) == _json(world)
    assert _json(_shuffled(world, chance)) == _json(world)


def _json(world: World) -> str:
    plan = Plan(AT, "r1", "policy.yaml", "0" * 64, world.decisions(), fleet=world.fleet, measured=world.seen)
    return plan_json(*accounted(plan))


def _shuffled(world: World, chance: Chance) -> World:
    def turned(values: Mapping[Any, Any]) -> dict[Any, Any]:
        return dict(chance.sample(list(values.items()), len(values)))

    fleet, seen = world.fleet, world.seen
    return World(
        world.rules,
        dataclasses.replace(
            fleet,
            workloads=tuple(chance.sample(fleet.workloads, len(fleet.workloads))),
            nodes=turned(fleet.nodes),
            classes=turned(fleet.classes),
        ),
        dataclasses.replace(
            seen,
            usages=turned({window: turned(found) for window, found in seen.usages.items()}),
            histories=turned(seen.histories),
            concurrency=turned(seen.concurrency),
        ),
    )


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_enforced_action_exists_for_its_kind(chance: Chance) -> None:
    """What is enforced is a notice or what a row of the kinds knows; what is blocked or advised is no write."""
    for decision in _world(chance).decisions():
        if decision.is_enforced:
            action = decision.announced or decision.action
            assert action is not None
            assert is_supported(decision.workload, action, decision.finding.proposal)
            assert (decision.verdict, decision.mode, decision.blockers) == (Verdict.ACT, Mode.ENFORCE, ())
        if decision.verdict is not Verdict.ACT:
            assert (decision.action, decision.is_enforced) == (None, False)


# --- budgets


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_enforced_never_exceed_a_budget(chance: Chance) -> None:
    """In no scope, absolute or share, with what was changed lately; counted here anew, without the purse."""
    world = _world(chance)
    stopped = [one for one in world.decisions() if _reach(one) == 3]
    for budget in world.rules.budgets:
        span = {"run": datetime.timedelta(0), "hour": HOUR, "day": DAY}[budget.per.value]
        lately = [change for change in world.fleet.changes if AT - change.at < span]
        places = {key for one in stopped for key in _places(budget.scope, one.workload, world.fleet)}
        for key in places:
            here = [one for one in stopped if key in _places(budget.scope, one.workload, world.fleet)]
            before = [change for change in lately if key in _places_of(budget.scope, change)]
            held = sum(
                item.gpus for item in world.fleet.workloads if key in _places(budget.scope, item, world.fleet)
            )
            gpus = budget.gpus_of(held)
            if budget.workloads is not None:
                assert len(here) + len(before) <= max(budget.workloads, len(before))
            if gpus is not None:
                spent = sum(change.record.gpus for change in before)
                assert sum(one.frees for one in here) + spent <= max(gpus, spent)


def _places(scope: BudgetScope, item: Workload, fleet: Fleet) -> set[str]:
    match scope:
        case BudgetScope.CLUSTER:
            return {""}
        case BudgetScope.NAMESPACE:
            return {item.ref.namespace}
        case BudgetScope.OWNER:
            return {str(item.ref)}
        case BudgetScope.NODE_POOL:
            return {fleet.nodes[one.node].pool or "(no pool)" for one in item.pods if one.holds}


def _places_of(scope: BudgetScope, change: FoundChange) -> set[str]:
    places = {
        BudgetScope.CLUSTER: {""},
        BudgetScope.NAMESPACE: {change.ref.namespace},
        BudgetScope.OWNER: {str(change.ref)},
    }
    return places.get(scope, set(change.pools))


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_blocked_by_budget_are_not_charged(chance: Chance) -> None:
    """Without what budgets blocked, and what was not to be stopped anyway, the same is stopped."""
    world = _world(chance)
    decisions = decide(world.seen, world.book)
    allowed = within_budgets(decisions, world.book)
    stopped = [one for one in allowed if _reach(one) == 3]
    candidates = [one for one in decisions if one.workload.ref in {each.workload.ref for each in stopped}]
    assert [one for one in within_budgets(candidates, world.book) if one.is_enforced] == stopped


@MANY
@hypothesis.given(st.randoms(use_true_random=True))
def test_decisions_budgets_change_only_blockers(chance: Chance) -> None:
    """Each decision stays what it was and where it stood; each blocker names its budget."""
    world = _world(chance)
    decisions = decide(world.seen, world.book)
    titles = tuple(budget.title for budget in world.book.policy.budgets)
    for before, after in zip(decisions, within_budgets(decisions, world.book), strict=True):
        assert dataclasses.replace(after, blockers=before.blockers) == before
        assert after.blockers[: len(before.blockers)] == before.blockers
        assert before.is_enforced or after == before
        added = after.blockers[len(before.blockers) :]
        assert all(block.message.startswith(titles) for block in added)
        assert {block.code for block in added} <= {BlockerCode.BUDGET}
