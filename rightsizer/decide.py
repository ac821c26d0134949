"""Findings + policy → decisions, ordered. Pure: the same inputs give the same plan."""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator

from rightsizer.assess import assess, freed
from rightsizer.assess.autoscaling import autoscalers_for
from rightsizer.assess.evidence import Case
from rightsizer.config import format_duration
from rightsizer.model import (
    Action,
    Autoscalers,
    Block,
    Cause,
    Decision,
    Finding,
    Fleet,
    Measured,
    Mode,
    Verdict,
    Veto,
    Workload,
)
from rightsizer.policy.calendar import is_open
from rightsizer.policy.rules import Rulebook, Ruling, strictest
from rightsizer.workloads import action_for
from rightsizer.workloads.changes import resumed_at
from rightsizer.workloads.commands import command_for, stop_command
from rightsizer.workloads.notices import holds, parse_notice

CARRIED_OUT = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
"""What `apply` does itself; everything else is proposed, with the command that does it."""

_ORDER = {Verdict.ACT: 0, Verdict.UNKNOWN: 1, Verdict.KEEP: 2, Verdict.PROTECTED: 3}
_RESTRAINT = {Verdict.PROTECTED: 0, Verdict.KEEP: 1, Verdict.UNKNOWN: 2, Verdict.ACT: 3}
"""Which of two findings about the same workload holds."""


def decide(measured: Measured, rulebook: Rulebook) -> tuple[Decision, ...]:
    """One decision for each workload; those that free most for each pod that has to go come first.

    Raises:
        ValueError: A workload appears twice.
    """
    decisions = [decide_one(workload, measured, rulebook) for workload in rulebook.fleet.workloads]
    if len({decision.workload.ref for decision in decisions}) != len(decisions):
        message = "a workload appears twice in the inventory"
        raise ValueError(message)
    return tuple(sorted(decisions, key=_place))


def decide_one(workload: Workload, measured: Measured, rulebook: Rulebook) -> Decision:
    """What may be done about one workload."""
    ruling = rulebook.on(workload)
    findings = _findings(workload, measured, rulebook.fleet, ruling)
    first = Decision(
        workload=workload,
        finding=findings[0],
        verdict=findings[0].verdict,
        rule=ruling.rule,
        mode=ruling.mode,
        action=None,
        vetoes=ruling.vetoes,
        also=findings[1:],
    )
    if ruling.mode is Mode.PROTECT:
        return dataclasses.replace(first, verdict=Verdict.PROTECTED)
    first = dataclasses.replace(first, autoscalers=_autoscalers(workload, measured, rulebook.fleet, ruling))
    hindrances: list[Veto] = []
    for finding in findings:
        if finding.verdict is Verdict.ACT:
            against = tuple(_hindrances(workload, finding, ruling))
            if not against:
                also = tuple(other for other in findings if other is not finding)
                return _acted_upon(dataclasses.replace(first, finding=finding, also=also), ruling, rulebook)
            hindrances.extend(against)
    return _only_told(dataclasses.replace(first, vetoes=(*ruling.vetoes, *hindrances)))


def _only_told(decision: Decision) -> Decision:
    """What a finding would free, and how, where the rule does not let it be done or nothing is known to do it."""
    workload, finding = decision.workload, decision.finding
    if finding.verdict is not Verdict.ACT:
        return decision
    action = _action(workload, finding)
    command = command_for(workload.ref, action, finding.proposal) if action else stop_command(workload.ref)
    return dataclasses.replace(decision, frees=_frees(workload, finding), command=command)


def _findings(workload: Workload, measured: Measured, fleet: Fleet, ruling: Ruling) -> tuple[Finding, ...]:
    """What holds by all criteria that apply: of several the most restrained.

    That is the verdict that lets least happen; of equal ones what frees least, and then what looks back furthest.
    """
    by_window = sorted(ruling.judged_by, key=lambda criteria: criteria.idle.window, reverse=True)
    judged = [assess(workload, measured, criteria, fleet) for criteria in by_window]
    return min(judged, key=lambda found: _restraint(found[0], workload))


def _restraint(finding: Finding, workload: Workload) -> tuple[int, bool, float]:
    """The lower, the less may happen; by less history than the policy asks for a finding is only advised on."""
    return _RESTRAINT[finding.verdict], not finding.shortfall, freed(finding, workload)


def _autoscalers(workload: Workload, measured: Measured, fleet: Fleet, ruling: Ruling) -> Autoscalers | None:
    """What would follow the need of replicas better than we; what serves several masters is left alone."""
    if measured.series is None or len(ruling.judged_by) > 1 or workload.ref.uid not in measured.concurrency:
        return None
    return autoscalers_for(Case(workload, measured, ruling.judged_by[0], fleet), measured.series)


def _action(workload: Workload, finding: Finding) -> Action | None:
    """What a finding calls for: what it proposes, or else whatever frees all GPUs of this kind."""
    return finding.proposal.action if finding.proposal else action_for(workload.ref)


def _hindrances(workload: Workload, finding: Finding, ruling: Ruling) -> Iterator[Veto]:
    """What stands against acting upon a finding that the evidence would justify."""
    action = _action(workload, finding)
    name = finding.name.value
    if workload.is_terminating:
        yield Veto("deleted", f"{workload.ref} is being deleted already")
    if ruling.mode_for(finding.name) is Mode.PROTECT:
        yield Veto(ruling.rule, f"rule {ruling.rule} lets nothing be done about {name}")
    if action is None:
        yield Veto("kind", f"no safe way to stop a {workload.ref.kind} ({workload.ref.api_version}) is known")
    elif action not in ruling.actions:
        allowed = ", ".join(ruling.actions) or "nothing"
        yield Veto(ruling.rule, f"{name} calls for {action.value}; rule {ruling.rule} allows {allowed}")
    yield from _kept(workload, finding, ruling)


def _kept(workload: Workload, finding: Finding, ruling: Ruling) -> Iterator[Veto]:
    """What a rule keeps of each workload, whatever is found."""
    left = workload.gpus - _frees(workload, finding)
    if left < ruling.keep.gpus:
        yield Veto(ruling.rule, f"rule {ruling.rule} keeps {ruling.keep.gpus} GPUs, {left:g} would be left")
    is_shrunk = finding.proposal is not None and finding.proposal.action not in CARRIED_OUT
    replicas = finding.proposal.replicas if finding.proposal and is_shrunk else 0
    if replicas is not None and replicas < ruling.keep.replicas:
        yield Veto(
            ruling.rule, f"rule {ruling.rule} keeps {ruling.keep.replicas} replicas, {replicas} would be left"
        )


def _frees(workload: Workload, finding: Finding) -> float:
    return finding.proposal.frees if finding.proposal else float(workload.gpus)


def _acted_upon(decision: Decision, ruling: Ruling, rulebook: Rulebook) -> Decision:
    """A decision to act: by what, in which mode, and what it has to wait for."""
    workload, finding = decision.workload, decision.finding
    action = _action(workload, finding)
    assert action is not None  # noqa: S101 - a hindrance otherwise
    mode = ruling.mode_for(finding.name)
    if action not in CARRIED_OUT or finding.shortfall:
        mode = strictest((mode, Mode.ADVISE))
    made = dataclasses.replace(
        decision,
        mode=mode,
        vetoes=(*decision.vetoes, *_less_history(finding)),
        action=action,
        command=command_for(workload.ref, action, finding.proposal),
        frees=_frees(workload, finding),
    )
    if made.mode is not Mode.ENFORCE:
        return made
    blocks = tuple(_waits(made, ruling, rulebook))
    if blocks or not ruling.notify_before:
        return dataclasses.replace(made, blocks=blocks)
    return _after_notice(made, ruling.notify_before, rulebook.at)


def _less_history(finding: Finding) -> Iterator[Veto]:
    """By less history than the policy asks for nothing is done, but what would be is worth knowing."""
    if finding.shortfall:
        yield Veto(
            "history",
            f"{finding.shortfall}; advised only, until there is as much or the policy asks for less",
        )


def _waits(decision: Decision, ruling: Ruling, rulebook: Rulebook) -> Iterator[Block]:
    """What keeps it from being done now, but may pass."""
    workload = decision.workload
    shut = is_open(rulebook.policy, rulebook.at)
    if shut:
        yield shut
    running = len([pod for pod in workload.pods if pod.holds])
    for name, allowed in workload.budgets.items():
        if allowed < running:
            words = f"PodDisruptionBudget {name} allows {allowed} disruptions, stopping needs {running}"
            yield Block(Cause.DISRUPTION_BUDGET, words)
    yield from _cooling(workload, ruling, rulebook)
    for manager in workload.managers:
        if manager.reverts:
            yield Block(Cause.MANAGED_ELSEWHERE, f"{manager.kind} {manager.name} would put it back")


def _cooling(workload: Workload, ruling: Ruling, rulebook: Rulebook) -> Iterator[Block]:
    """What is left of the cooldown after each change."""
    for instant, what in _changed(workload, rulebook.fleet):
        left = instant + ruling.cooldown - rulebook.at
        if left > datetime.timedelta():
            more = format_duration(left.total_seconds())
            yield Block(Cause.COOLDOWN, f"it was {what} at {_clock(instant)}; the cooldown lasts {more} more")


def _changed(workload: Workload, fleet: Fleet) -> Iterator[tuple[datetime.datetime, str]]:
    """When we changed it, by name: what was deleted and made anew since is the same to its owner."""
    for change in fleet.changes:
        is_same = str(change.ref) == str(workload.ref) and change.ref.full_kind == workload.ref.full_kind
        if is_same:
            yield change.at, "changed"
    with contextlib.suppress(ValueError):  # one that cannot be read counts as now: nothing is idle since then
        resumed = resumed_at(workload.annotations)
        if resumed is not None:
            yield resumed, "put back"


def _after_notice(decision: Decision, wait: datetime.timedelta, at: datetime.datetime) -> Decision:
    """The same once a notice has been given and its time is over; until then the notice, or waiting."""
    assert decision.action is not None  # noqa: S101 - it was chosen
    notice = parse_notice(decision.workload.annotations)
    if notice is None or not holds(notice, decision.finding, decision.action, at):
        return dataclasses.replace(
            decision, action=Action.NOTIFY, announced=decision.action, due=at + wait, frees=0.0
        )
    due = notice.at + wait
    if at < due:
        words = f"notice was given at {_clock(notice.at)}; it may be acted upon from {_clock(due)}"
        return dataclasses.replace(decision, blocks=(Block(Cause.NOTICE, words),))
    return decision


def _clock(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _place(decision: Decision) -> tuple[int, int, float, float, str, str, str]:
    """Most GPUs for each pod that has to go, then most GPUs; what is done comes first, then what waits, then advice."""
    ref = decision.workload.ref
    standing = 2 if decision.mode is not Mode.ENFORCE else 1 if decision.blocks else 0
    held = decision.frees if decision.verdict is Verdict.ACT else float(decision.workload.gpus)
    going = max(1, len([pod for pod in decision.workload.pods if pod.holds]))
    return (_ORDER[decision.verdict], standing, -held / going, -held, ref.namespace, ref.kind, ref.name)
