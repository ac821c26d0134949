"""Findings + policy → decisions, ordered. Pure: the same inputs give the same plan."""

import datetime
from collections.abc import Iterable, Iterator

from rightsizer.assess import assess
from rightsizer.model import Action, Decision, Finding, Mode, UsagesByWindow, Verdict, Veto, Workload
from rightsizer.policy.document import Policy
from rightsizer.policy.rules import NO_FLEET, Rulebook, Ruling, rule_on
from rightsizer.workloads import action_for

_ORDER = {Verdict.ACT: 0, Verdict.UNKNOWN: 1, Verdict.KEEP: 2, Verdict.PROTECTED: 3}


_RESTRAINT = {Verdict.PROTECTED: 0, Verdict.KEEP: 1, Verdict.UNKNOWN: 2, Verdict.ACT: 3}
"""Which of two findings about the same workload holds."""


def windows(policy: Policy) -> frozenset[datetime.timedelta]:
    """Every window that some workload could be judged by."""
    book = Rulebook(policy, NO_FLEET, at=datetime.datetime.min.replace(tzinfo=datetime.UTC))
    return frozenset(criteria.idle.window for criteria in book.all_criteria())


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
    ruling = rule_on(workload, policy, NO_FLEET, at=at)
    finding = _finding(workload, usages, ruling, at)
    action = action_for(workload.ref)
    vetoes = list(ruling.vetoes)
    verdict = finding.verdict
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
    )


def _finding(workload: Workload, usages: UsagesByWindow, ruling: Ruling, at: datetime.datetime) -> Finding:
    """Idle only where it is by all thresholds that hold for it; then the longest window tells."""
    longest_first = sorted(
        (criteria.idle for criteria in ruling.judged_by), key=lambda idle: idle.window, reverse=True
    )
    findings = [assess(workload, usages[item.window], item, at) for item in longest_first]
    return min(findings, key=lambda finding: _RESTRAINT[finding.verdict])


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
