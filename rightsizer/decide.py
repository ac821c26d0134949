"""Findings + policy → decisions, ordered. Pure: the same inputs give the same plan."""

import dataclasses
import datetime
from collections.abc import Iterable, Iterator

from rightsizer.assess import assess
from rightsizer.model import (
    Action,
    Decision,
    Finding,
    Fleet,
    Measured,
    Mode,
    UsagesByWindow,
    Verdict,
    Veto,
    Workload,
)
from rightsizer.policy.criteria import Criteria
from rightsizer.policy.document import Policy
from rightsizer.policy.rules import Ruling, rule_on
from rightsizer.workloads import action_for

_ORDER = {Verdict.ACT: 0, Verdict.UNKNOWN: 1, Verdict.KEEP: 2, Verdict.PROTECTED: 3}


_RESTRAINT = {Verdict.PROTECTED: 0, Verdict.KEEP: 1, Verdict.UNKNOWN: 2, Verdict.ACT: 3}
"""Which of two findings about the same workload holds."""


def windows(policy: Policy) -> frozenset[datetime.timedelta]:
    """Every window that some workload could be judged by."""
    thresholds = [policy.defaults.idle, *(rule.idle for rule in policy.rules if rule.idle)]
    return frozenset(item.window for item in thresholds)


def decide(
    workloads: Iterable[Workload], usages: UsagesByWindow, policy: Policy, at: datetime.datetime
) -> tuple[Decision, ...]:
    """One decision for each workload; those that free most come first.

    Raises:
        ValueError: A workload appears twice.
    """
    decisions = [decide_one(workload, usages, policy, at) for workload in workloads]
    refs = [decision.workload.ref for decision in decisions]
    if len(set(refs)) != len(refs):
        message = "a workload appears twice in the inventory"
        raise ValueError(message)
    return tuple(sorted(decisions, key=_place))


def decide_one(workload: Workload, usages: UsagesByWindow, policy: Policy, at: datetime.datetime) -> Decision:
    """What may be done about one workload."""
    ruling = rule_on(workload, policy)
    finding, *also = _findings(workload, usages, ruling, at)
    action = action_for(workload.ref)
    vetoes = list(ruling.vetoes)
    # A proposal is for people to carry out: to stop the whole workload is not what it says.
    verdict = finding.verdict if finding.proposal is None else Verdict.KEEP
    if ruling.mode is Mode.PROTECT:
        verdict = Verdict.PROTECTED
    elif verdict is Verdict.ACT:
        hindrances = tuple(_hindrances(workload, ruling, action))
        vetoes.extend(hindrances)
        if any(veto.rule.startswith("poddisruptionbudget:") for veto in hindrances):
            verdict = Verdict.PROTECTED
        if hindrances:
            action = None
    return Decision(
        workload=workload,
        finding=finding,
        verdict=verdict,
        rule=ruling.rule,
        mode=ruling.mode,
        action=action if verdict is Verdict.ACT else None,
        vetoes=tuple(vetoes),
        also=tuple(also),
    )


def _findings(
    workload: Workload, usages: UsagesByWindow, ruling: Ruling, at: datetime.datetime
) -> tuple[Finding, ...]:
    """Idle only where it is by all thresholds that hold for it; then the longest window tells."""
    measured, fleet = Measured(at, usages), Fleet((workload,), {}, {})
    longest_first = sorted(ruling.judged_by, key=lambda criteria: criteria.idle.window, reverse=True)
    found = [assess(workload, measured, _impatient(criteria), fleet) for criteria in longest_first]
    return min(found, key=lambda findings: _RESTRAINT[findings[0].verdict])


def _impatient(criteria: Criteria) -> Criteria:
    """The criteria without a wait for pauses of the past, which are not asked for yet."""
    return dataclasses.replace(criteria, idle=criteria.idle.model_copy(update={"returnFactor": 0.0}))


def _hindrances(workload: Workload, ruling: Ruling, action: Action | None) -> Iterator[Veto]:
    """What stands against stopping an idle workload that the policy leaves open."""
    if workload.is_terminating:
        yield Veto("deleted", f"{workload.ref} is being deleted already")
    if action is None:
        yield Veto("kind", f"no safe way to stop a {workload.ref.kind} ({workload.ref.api_version}) is known")
    elif action not in ruling.actions:
        allowed = ", ".join(ruling.actions) or "nothing"
        yield Veto(ruling.rule, f"stopping it means {action.value}; rule {ruling.rule} allows {allowed}")
    running = len([pod for pod in workload.pods if pod.holds])
    for name, allowed_disruptions in workload.budgets.items():
        if allowed_disruptions < running:
            words = f"PodDisruptionBudget {name} allows {allowed_disruptions} disruptions, stopping needs {running}"
            yield Veto(f"poddisruptionbudget:{name}", words)


def _place(decision: Decision) -> tuple[int, int, int, str, str, str]:
    ref = decision.workload.ref
    is_advice = 0 if decision.is_enforced else 1
    return (_ORDER[decision.verdict], is_advice, -decision.workload.gpus, ref.namespace, ref.kind, ref.name)
