"""Small worlds for tests of the pure stages: every argument has a default that makes an ordinary idle workload."""

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

import hypothesis

from rightsizer.findings.finders import assess
from rightsizer.findings.replicas import counted_window
from rightsizer.kube.owner_kinds import OWNERS
from rightsizer.model import (
    Concurrency,
    Decision,
    Device,
    Finding,
    Fleet,
    History,
    Measured,
    Mode,
    Node,
    NodeCoverage,
    ObjectRef,
    Pod,
    Slot,
    Usage,
    Usages,
    Workload,
)
from rightsizer.planning.budget import BudgetAccount, within_budgets
from rightsizer.planning.decide import decide
from rightsizer.planning.pending_demand import limit_to_pending_demand
from rightsizer.policy.effective import Criteria, EffectivePolicy, PolicyEvaluator
from rightsizer.policy.match import Match
from rightsizer.policy.protections import OWN_NAMESPACE
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy
from rightsizer.policy.thresholds import TooManyReplicas

API_VERSIONS = {row.kind: row.api_version for row in reversed(OWNERS)}
"""By kind."""
AT = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)
DAY = datetime.timedelta(hours=24)
H100 = "NVIDIA H100 80GB HBM3"
MANY = hypothesis.settings(
    max_examples={"ci": 500, "deep": 10_000}.get(hypothesis.settings.get_current_profile_name(), 100)
)
"""Of what compares two worlds, one of which knows less or is turned around, and of what no plan may ever do: 100
examples, 500 in CI, and 10,000 under the deep profile."""


def rule_on(
    item: Workload, policy: Policy, fleet: Fleet, *, at: datetime.datetime = AT, own: str = OWN_NAMESPACE
) -> EffectivePolicy:
    """What a policy says about one workload."""
    return PolicyEvaluator(policy, fleet, at=at, own=own).evaluate(item)


def device(index: int = 0, *, model: str = H100, instance: str = "") -> Device:
    """A GPU, told from others by its index."""
    return Device(f"GPU-{index:08d}", instance, model)


def idle_usage(index: int = 0, **changes: Any) -> Usage:
    """A GPU that was measured idle for the whole window."""
    values: dict[str, Any] = {
        "device": device(index),
        "activity_mean": 0.0,
        "activity_peak": 0.0,
        "traffic_peak": 0.0,
        "memory_peak_bytes": 40e9,
        "power_mean_w": 118.0,
        "power_peak_w": 122.0,
        "coverage": 1.0,
        "is_fresh": True,
    }
    return Usage(**{**values, **changes})


def busy_usage(index: int = 0, **changes: Any) -> Usage:
    """A GPU that worked."""
    values = {"activity_mean": 0.9, "activity_peak": 1.0, "traffic_peak": 0.5, "power_mean_w": 600.0}
    return idle_usage(index, **{**values, "power_peak_w": 690.0, **changes})


def pod(name: str = "w-0", **changes: Any) -> Pod:
    """A pod with one GPU that has run for ten days."""
    values: dict[str, Any] = {
        "ref": ObjectRef("v1", "Pod", "research", name, f"uid-{name}"),
        "node": "n1",
        "phase": "Running",
        "devices": 1,
        "is_shared": False,
        "started": AT - 10 * DAY,
        "acknowledged": AT - 10 * DAY,
        "priority_class": "low-priority",
        "priority": 1000,
        "is_ready": True,
        "is_terminating": False,
        "is_static": False,
        "labels": {},
        "annotations": {},
    }
    return Pod(**{**values, **changes})


def workload(*pods: Pod, kind: str = "Deployment", **changes: Any) -> Workload:
    """A Deployment of the pods given, or of one."""
    values: dict[str, Any] = {
        "ref": ObjectRef(API_VERSIONS.get(kind, "example.com/v1"), kind, "research", "w", "uid-w"),
        "generation": 1,
        "resource_version": "7",
        "pods": pods or (pod(),),
        "size": max(len(pods), 1),
        "labels": {},
        "annotations": {},
        "namespace_annotations": {},
        "budgets": {},
    }
    return Workload(**{**values, **changes})


def usages(*pairs: tuple[Pod, tuple[Usage, ...]]) -> Usages:
    """Usage by pod."""
    return {(item.ref.namespace, item.ref.name): used for item, used in pairs}


def all_idle(item: Workload) -> Usages:
    """Every device of every pod measured idle."""
    return usages(*((one, tuple(idle_usage(i) for i in range(one.devices))) for one in item.pods))


def policy(*rules: Rule, **changes: Any) -> Policy:
    """A policy of the rules given; enforce everything by default."""
    chosen = rules or (rule("all"),)
    return Policy(apiVersion="gpu-rightsizer.io/v1alpha1", kind="Policy", rules=chosen, **changes)


def rule(name: str, mode: Mode = Mode.ENFORCE, *, match: Match | None = None, **changes: Any) -> Rule:
    """A rule that matches everything unless told otherwise."""
    return Rule(name=name, mode=mode, match=match or Match(everything=True), **changes)


def criteria(**changes: Any) -> Criteria:
    """The defaults' criteria, but for what is given."""
    return Criteria(**changes)


HOUR_S = 3600.0


def history(text: str = ".", *, slot_s: float = HOUR_S, hours: int = 240) -> History:
    """A history up to AT: # is busy, . idle, ? unknown; what stands before is repeated at the begin for ten days."""
    slots = text.rjust(hours, text[0])
    values = {"#": Slot.BUSY, ".": Slot.IDLE, "?": Slot.UNKNOWN}
    return History(AT, slot_s, bytes(values[each] for each in slots))


ALWAYS = {("research", f"w-{number}"): history("#") for number in range(8)}
"""Histories of pods that were at work all the time."""

SHRUNK = {
    "gpu-rightsizer.io/undo": (
        '{"run":"r1","at":"2026-11-20T00:00:00Z","action":"scale-down","rule":"all","finding":"too-many-replicas",'
        '"reason":"","edits":[{"path":["spec","replicas"],"before":6,"after":2}]}'
    )
}
"""Annotations of a workload of which four of six replicas were taken."""


def concurrency(*busy: int, unseen: int = 0) -> Concurrency:
    """So many replicas at work in the last minutes, and before as in the busiest; some unseen in the last minute."""
    length = counted_window(TooManyReplicas()) // datetime.timedelta(minutes=1)
    return Concurrency((max(busy, default=0),) * (length - len(busy)) + busy, (0,) * (length - 1) + (unseen,))


def measured(item: Workload, found: Usages, **changes: Any) -> Measured:
    """The same usage over every window, and pods of whom nothing was seen at work before, unless told otherwise."""
    values: dict[str, Any] = {
        "at": AT,
        "usages": dict.fromkeys(criteria().windows, found),
        "histories": {(one.ref.namespace, one.ref.name): history() for one in item.pods},
    }
    return Measured(**{**values, **changes})


def fleet(*items: Workload, nodes: tuple[Node, ...] = ()) -> Fleet:
    """A fleet of these workloads and nodes."""
    return Fleet(items, {node.name: node for node in nodes}, {})


def findings(
    item: Workload,
    found: Usages,
    *,
    by: Criteria | None = None,
    nodes: tuple[Node, ...] = (),
    node_coverage: Mapping[str, NodeCoverage] | None = None,
    around: tuple[Workload, ...] = (),
    **changes: Any,
) -> tuple[Finding, ...]:
    """What is found about a workload beside others; `node_coverage` and `changes` are to what was measured."""
    seen = measured(item, found, nodes=node_coverage or {}, **changes)
    return assess(item, seen, by or criteria(), fleet(item, *around, nodes=nodes))


def evaluator(
    rules: Policy, *items: Workload, around: Fleet | None = None, at: datetime.datetime = AT
) -> PolicyEvaluator:
    """A policy beside a fleet of these workloads, or beside this one."""
    return PolicyEvaluator(rules, around or fleet(*items), at=at)


def measured_for(
    book: PolicyEvaluator, found: Usages | Mapping[datetime.timedelta, Usages], **changes: Any
) -> Measured:
    """Usage over every window of a policy, the same unless it is told by window, and pods not seen at work before."""
    pods = [(one.ref.namespace, one.ref.name) for item in book.fleet.workloads for one in item.pods]
    is_by_window = any(isinstance(key, datetime.timedelta) for key in found)
    values: dict[str, Any] = {
        "at": book.at,
        "usages": found if is_by_window else dict.fromkeys(sorted(book.windows()), found),
        "histories": dict.fromkeys(pods, history()),
    }
    return Measured(**{**values, **changes})


def judged_all(
    items: Iterable[Workload],
    found: Usages | Mapping[datetime.timedelta, Usages],
    rules: Policy,
    *,
    around: Fleet | None = None,
    **changes: Any,
) -> tuple[Decision, ...]:
    """What is decided about these workloads, before budgets; `changes` are to what was measured."""
    book = evaluator(rules, *items, around=around, at=changes.get("at", AT))
    return decide(measured_for(book, found, **changes), book)


def judged(
    item: Workload,
    found: Usages | Mapping[datetime.timedelta, Usages],
    rules: Policy,
    **changes: Any,
) -> Decision:
    """What is decided about one workload, before budgets."""
    (decision,) = judged_all([item], found, rules, **changes)
    return decision


def planned(book: PolicyEvaluator, seen: Measured) -> tuple[Decision, ...]:
    """The decisions of a plan: as far as somebody waits, and within every budget."""
    account = BudgetAccount(book)
    wanted = limit_to_pending_demand(decide(seen, book), book, account).decisions
    return within_budgets(wanted, book, account)
