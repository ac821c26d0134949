"""Invariants of the pure stages, over random worlds and policies."""

import dataclasses
import datetime
import math
import random

import hypothesis
from hypothesis import strategies as st

from rightsizer.config import PREFIX
from rightsizer.model import Mode, Usage, Usages, Verdict, Workload
from rightsizer.policy.effective import NO_FLEET
from rightsizer.policy.match import Match, PriorityRange
from rightsizer.policy.protections import SYSTEM_PRIORITY
from rightsizer.policy.rule import ACTIONS
from rightsizer.policy.schema import Policy
from rightsizer.policy.thresholds import Thresholds
from tests.rightsizer.build import AT, DAY, MANY, device, judged, pod, policy, rule, rule_on, workload

CLASSES = {"high-priority": 100_000, "medium-priority": 10_000, "low-priority": 1_000, "": 0}


@st.composite
def _usages(draw: st.DrawFn, index: int) -> Usage:
    ratio = st.none() | st.sampled_from([0.0, 0.01, 0.02, 1.0]) | st.floats(0, 1)
    return Usage(
        device(index),
        activity_mean=draw(ratio),
        activity_peak=draw(ratio),
        traffic_peak=draw(ratio),
        memory_peak_bytes=draw(st.none() | st.floats(0, 8e10)),
        power_peak_w=draw(st.none() | st.sampled_from([70.0, 120.0, 160.0, 160.1, 700.0])),
        coverage=draw(st.sampled_from([1.0, 0.9, 0.5]) | st.floats(0, 1)),
        is_fresh=draw(st.sampled_from([True, True, True, False])),
        invalid=draw(st.sampled_from([(), (), (), ("DCGM_FI_DEV_GPU_UTIL",)])),
    )


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[Workload, Usages]:
    """A workload of up to three pods, with usage for some of their devices."""
    class_name = draw(st.sampled_from(sorted(CLASSES)))
    pods, found = [], {}
    for number in range(draw(st.integers(1, 3))):
        one = pod(
            f"w-{number}",
            devices=draw(st.integers(1, 2)),
            is_shared=draw(st.booleans()),
            priority_class=class_name,
            priority=draw(st.sampled_from([CLASSES[class_name]] * 8 + [None, SYSTEM_PRIORITY + 1])),
            phase=draw(st.sampled_from(["Running"] * 8 + ["Pending", "Unknown"])),
            started=draw(st.sampled_from([AT - 10 * DAY] * 8 + [None, AT - DAY / 2])),
            is_ready=draw(st.sampled_from([True] * 8 + [False])),
            is_terminating=draw(st.sampled_from([False] * 8 + [True])),
            is_static=draw(st.sampled_from([False] * 8 + [True])),
            annotations=draw(st.sampled_from([{}] * 8 + [{PREFIX + "mode": "off"}])),
        )
        pods.append(one)
        count = draw(st.integers(0, one.devices))
        found[one.ref.namespace, one.ref.name] = [draw(_usages(number * 2 + i)) for i in range(count)]
    kind = draw(st.sampled_from(["Deployment", "StatefulSet", "Job", "Pod", "RayCluster", "DaemonSet"]))
    budgets = draw(st.sampled_from([{}] * 4 + [{"pdb": 0}, {"pdb": 5}]))
    return workload(*pods, kind=kind, budgets=budgets), found


_MATCHES = st.one_of(
    st.just(Match(everything=True)),
    st.builds(
        lambda names: Match(priorityClasses=tuple(names)),
        st.lists(st.sampled_from(["high-*", "low-priority", "*-*", ""]), min_size=1, max_size=2),
    ),
    st.builds(
        lambda low: Match(priority=PriorityRange(min=low)), st.sampled_from([-5, 0, 1_000, 10_000, 100_000])
    ),
)


@st.composite
def _policies(draw: st.DrawFn) -> Policy:
    rules = [
        rule(f"r{number}", draw(st.sampled_from(Mode)), match=draw(_MATCHES), actions=ACTIONS)
        for number in range(draw(st.integers(1, 4)))
    ]
    return policy(*rules, respectOptOut=draw(st.booleans()))


@hypothesis.given(_worlds(), _policies())
def test_protected_workload_is_never_changed(world: tuple[Workload, Usages], rules: Policy) -> None:
    """Under a policy that protects its class first, no evidence and no later rule gets through to a workload."""
    item, found = world
    names = tuple({one.priority_class for one in item.pods})
    first = rule("shield", Mode.PROTECT, match=Match(priorityClasses=names))
    shielded = policy(first, *rules.rules)
    decision = judged(item, found, shielded)
    assert decision.verdict is Verdict.PROTECTED
    assert not decision.is_enforced


@hypothesis.given(_worlds(), _policies())
def test_system_workload_is_never_changed(world: tuple[Workload, Usages], rules: Policy) -> None:
    """Whatever the configuration: one system, static or unresolved pod shields the whole workload."""
    item, found = world
    is_system = any(
        one.is_static or one.priority is None or one.priority > SYSTEM_PRIORITY for one in item.pods
    )
    hypothesis.assume(is_system or item.ref.kind == "DaemonSet")
    assert judged(item, found, rules).verdict is Verdict.PROTECTED


@st.composite
def _mixed(draw: st.DrawFn) -> tuple[Workload, Policy]:
    """A workload whose pods differ in class, and a policy of rules that differ in all they can."""
    names = draw(st.lists(st.sampled_from(sorted(CLASSES)), min_size=2, max_size=4))
    pods = [
        pod(f"w-{number}", priority_class=name, priority=CLASSES[name]) for number, name in enumerate(names)
    ]
    windows = st.sampled_from([DAY / 24, DAY, 7 * DAY])
    rules = [
        rule(
            f"r{number}",
            draw(st.sampled_from([Mode.ENFORCE, Mode.ENFORCE, Mode.ADVISE, Mode.PROTECT])),
            match=draw(_MATCHES),
            actions=tuple(draw(st.permutations(list(ACTIONS))))[: draw(st.integers(1, 3))],
            idle=draw(st.none() | st.builds(lambda window: Thresholds(window=window), windows)),
        )
        for number in range(draw(st.integers(1, 4)))
    ]
    return workload(*pods), policy(*rules)


@MANY
@hypothesis.given(_mixed(), st.randoms(use_true_random=False), st.data())
def test_rules_order_of_pods_changes_nothing(
    mixed: tuple[Workload, Policy], chance: random.Random, data: st.DataObject
) -> None:
    """Nor what is found, nor what is done."""
    item, rules = mixed
    pods = list(item.pods)
    chance.shuffle(pods)
    turned = dataclasses.replace(item, pods=tuple(pods))
    assert rule_on(turned, rules, NO_FLEET, at=AT) == rule_on(item, rules, NO_FLEET, at=AT)
    used = {(one.ref.namespace, one.ref.name): [data.draw(_usages(0))] for one in item.pods}
    first, again = (judged(which, used, rules) for which in (item, turned))
    assert (first.verdict, first.action, first.rule, first.finding.name) == (
        again.verdict,
        again.action,
        again.rule,
        again.finding.name,
    )


@hypothesis.given(st.floats(allow_nan=True, allow_infinity=True))
def test_ages_in_other_zones_are_equal(offset: float) -> None:
    """The same instant in another zone makes the same decision."""
    hypothesis.assume(math.isfinite(offset))
    zone = datetime.timezone(datetime.timedelta(hours=math.fmod(offset, 12)))
    item = workload(pod(started=(AT - 10 * DAY).astimezone(zone)))
    assert judged(item, {}, policy()) == judged(item, {}, policy(), at=AT.astimezone(zone))
