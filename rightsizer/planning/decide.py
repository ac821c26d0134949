"""Findings + policy → decisions, ordered. Pure: the same inputs give the same plan."""

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterator, Sequence

from rightsizer.changes.record_codec import SNOOZE_ANNOTATION
from rightsizer.findings.autoscaling import autoscalers_for
from rightsizer.findings.evidence import Candidate
from rightsizer.findings.finders import assess, freed
from rightsizer.findings.free_capacity import FreeCapacity
from rightsizer.kinds import action_for, is_supported, no_stop_reason, pause_for, row_of
from rightsizer.kinds.advice import command_for, stop_command, stopping
from rightsizer.kinds.change_edits import missing_field_reason
from rightsizer.kinds.notices import Notice, is_notice_valid, is_released, parse_notice
from rightsizer.kinds.patches import read_record
from rightsizer.model import (
    Action,
    Autoscalers,
    Blocker,
    BlockerCode,
    ChangeOutcome,
    Decision,
    Finding,
    FindingName,
    Fleet,
    Measured,
    Mode,
    Proposal,
    Verdict,
    Workload,
)
from rightsizer.planning.cooldown import change_rate_exceeded, conflicting_instance, cooling, memory_of
from rightsizer.policy.do_not_disrupt import controller_mode, would_revert
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator, strictest
from rightsizer.policy.limits import closed_reason
from rightsizer.policy.rule import UNUSED
from rightsizer.text import gpus, instant, read_instant

_ORDER = {Verdict.ACT: 0, Verdict.UNKNOWN: 1, Verdict.KEEP: 2, Verdict.PROTECTED: 3}
_BY_DEMAND = frozenset({FindingName.TOO_MANY_REPLICAS, FindingName.TOO_FEW_REPLICAS})
"""Findings without a notice: what is taken comes back with the demand, long before anybody answers."""
_RESTRAINT = {Verdict.PROTECTED: 0, Verdict.KEEP: 1, Verdict.UNKNOWN: 2, Verdict.ACT: 3}
"""Order in which one of two findings about the same workload prevails."""


def decide(measured: Measured, evaluator: PolicyEvaluator) -> tuple[Decision, ...]:
    """One decision for each workload, in the order of `sort_key`.

    Raises:
        ValueError: A workload appears twice.
    """
    decisions = [decide_one(workload, measured, evaluator) for workload in evaluator.fleet.workloads]
    if len({decision.workload.ref for decision in decisions}) != len(decisions):
        message = "a workload appears twice in the inventory"
        raise ValueError(message)
    rejecting = frozenset(_rejecting(evaluator))
    return tuple(sorted(decisions, key=lambda decision: sort_key(decision, rejecting)))


def _rejecting(evaluator: PolicyEvaluator) -> Iterator[str]:
    """Namespaces in which an object rejected a change within its cooldown; its neighbors may reject theirs, too."""
    for workload in evaluator.fleet.workloads:
        ends = [change.at for change in workload.past if change.end is ChangeOutcome.REJECTED]
        if ends and evaluator.at - max(ends) < evaluator.evaluate(workload).cooldown:
            yield workload.ref.namespace


def decide_one(workload: Workload, measured: Measured, evaluator: PolicyEvaluator) -> Decision:
    """Decide about one workload."""
    effective = evaluator.evaluate(workload)
    found = _findings(workload, measured, evaluator.fleet, effective)
    decision = _decided(workload, found, measured, evaluator)
    if decision.is_enforced or effective.mode is not Mode.ENFORCE or not effective.notify_before:
        return decision
    return _noticed_early(decision, found, measured, evaluator) or decision


def _noticed_early(
    decision: Decision, found: Sequence[Finding], measured: Measured, evaluator: PolicyEvaluator
) -> Decision | None:
    """The notice inside the required idle time, or what waits for its end; None if it is not time for it."""
    for place, finding in enumerate(found):
        if finding.verdict is Verdict.KEEP and finding.counts_from and finding.is_noticeable:
            idle = dataclasses.replace(finding, name=FindingName.IDLE, verdict=Verdict.ACT)
            others = (*found[:place], *found[place + 1 :])
            early = _decided(decision.workload, (idle, *others), measured, evaluator)
            is_noticed = any(block.code is BlockerCode.NOTICE for block in early.blockers)
            return early if early.is_enforced or is_noticed else None
    return None


def _decided(
    workload: Workload, found: Sequence[Finding], measured: Measured, evaluator: PolicyEvaluator
) -> Decision:
    effective = evaluator.evaluate(workload)
    findings = tuple(_keeping(workload, finding, effective) for finding in found)
    first = Decision(
        workload=workload,
        finding=findings[0],
        verdict=findings[0].verdict,
        rule=effective.rule,
        mode=effective.mode,
        action=None,
        restrictions=effective.restrictions,
        also=findings[1:],
    )
    if effective.mode is Mode.PROTECT:
        return dataclasses.replace(first, verdict=Verdict.PROTECTED)
    autoscalers = _autoscalers(workload, measured, evaluator.fleet, effective)
    has_too_many = any(finding.name is FindingName.TOO_MANY_REPLICAS for finding in findings)
    if autoscalers and (has_too_many or not autoscalers.replaces):
        first = dataclasses.replace(first, autoscalers=autoscalers)
    obstacles: list[Blocker] = []
    advised: Decision | None = None
    for finding in findings:
        if finding.verdict is Verdict.ACT:
            against = (
                *_blockers(workload, finding, effective),
                *_history_blockers(workload, finding, effective, evaluator),
            )
            if not against:
                also = tuple(other for other in findings if other is not finding)
                made = _acted_upon(
                    dataclasses.replace(first, finding=finding, also=also), effective, evaluator
                )
                if made.mode is Mode.ENFORCE:
                    return made
                # What its rule enforces must not wait behind what it only advises.
                advised = advised or made
            obstacles.extend(against)
    if advised is not None:
        return advised
    if obstacles:
        first = dataclasses.replace(first, restrictions=(*effective.restrictions, *obstacles))
    return _only_told(first)


def _only_told(decision: Decision) -> Decision:
    """Add what a finding would free, and how, where the rule forbids it or nothing is known to do it."""
    workload, finding = decision.workload, decision.finding
    if finding.verdict is not Verdict.ACT:
        return decision
    action = _action(workload, finding)
    command = command_for(workload, action, finding.proposal) if action else stop_command(workload)
    command = "" if _is_unread(workload) else command
    return dataclasses.replace(decision, frees=_frees(workload, finding), command=command)


def _is_unread(workload: Workload) -> bool:
    """Whether only its pods say that there is such an object, which they may say of any."""
    return row_of(workload) is not None and not workload.resource_version


def _findings(
    workload: Workload, measured: Measured, fleet: Fleet, effective: EffectivePolicy
) -> tuple[Finding, ...]:
    """Findings by all criteria that apply: of several the most restrained.

    That is the strictest verdict; among equals the one that frees least, and then the one with the longest window.
    """
    by_window = sorted(effective.judged_by, key=lambda criteria: criteria.idle.window, reverse=True)
    judged = [assess(workload, measured, criteria, fleet) for criteria in by_window]
    return min(judged, key=lambda found: _restraint(found[0], workload))


def _restraint(finding: Finding, workload: Workload) -> tuple[int, float]:
    """Sort key, strictest first."""
    return _RESTRAINT[finding.verdict], freed(finding, workload)


def _autoscalers(
    workload: Workload, measured: Measured, fleet: Fleet, effective: EffectivePolicy
) -> Autoscalers | None:
    """Advice to use an autoscaler; none for workloads with several criteria."""
    if (
        measured.series is None
        or len(effective.judged_by) > 1
        or workload.ref.uid not in measured.concurrency
    ):
        return None
    return autoscalers_for(Candidate(workload, measured, effective.judged_by[0], fleet), measured.series)


def _keeping(workload: Workload, finding: Finding, effective: EffectivePolicy) -> Finding:
    """Scale an idle workload down to the replicas or GPUs that must stay, instead of stopping it.

    An owner's minimum never allows a change that the rules alone would not allow.
    """
    if finding.name not in UNUSED or finding.proposal:
        return finding
    plain = effective.by_rules
    by_rules = _shrink_to(workload, finding, plain)
    if plain.min_replicas == effective.min_replicas or not _could_be_done(workload, by_rules, plain):
        return by_rules
    return _shrink_to(workload, finding, effective)


def _could_be_done(workload: Workload, finding: Finding, effective: EffectivePolicy) -> bool:
    action = _action(workload, finding)
    is_ours = action is not None and is_supported(workload, action, finding.proposal)
    return is_ours and not any(_blockers(workload, finding, effective))


def _shrink_to(workload: Workload, finding: Finding, effective: EffectivePolicy) -> Finding:
    size = workload.size
    if isinstance(size, bool) or not size or not workload.gpus:
        return finding
    kept = max(effective.min_replicas, math.ceil(effective.min_gpus * size / workload.devices))
    if not 0 < kept < size or not is_supported(workload, Action.SCALE_DOWN, _to(kept, 0.0, "")):
        return finding
    frees = (size - kept) * workload.gpus / size
    return dataclasses.replace(finding, proposal=_to(kept, frees, f"{kept} of {size} replicas are kept"))


def _to(replicas: int, frees: float, words: str) -> Proposal:
    return Proposal(Action.SCALE_DOWN, frees, words, replicas=replicas)


def _action(workload: Workload, finding: Finding) -> Action | None:
    """The action for a finding: its proposal, or else the action that frees all GPUs of this kind."""
    return finding.proposal.action if finding.proposal else action_for(workload)


def _blockers(workload: Workload, finding: Finding, effective: EffectivePolicy) -> Iterator[Blocker]:
    """Reasons not to act on a finding, although the evidence justifies it."""
    action, row = _action(workload, finding), row_of(workload)
    name = finding.name.value
    if workload.is_terminating:
        yield Blocker(BlockerCode.UNSUPPORTED, f"{workload.ref} is already being deleted")
    if _is_unread(workload):
        words = f"{workload.ref} does not exist with the UID that its pods name, or could not be read"
        yield Blocker(BlockerCode.UNSUPPORTED, words)
    try:
        _ = row and read_record(workload.annotations, row)
    except ValueError as error:
        yield Blocker(BlockerCode.UNSUPPORTED, str(error))
    if effective.mode_for(finding.name) is Mode.PROTECT:
        yield Blocker(
            BlockerCode.PROTECTED, f"rule {effective.rule} does not act on {name}", source=effective.rule
        )
    if action is None:
        yield Blocker(BlockerCode.UNSUPPORTED, no_stop_reason(workload))
    else:
        needed = [action, *([Action.SUSPEND] if pause_for(workload, finding.proposal) else [])]
        if not set(needed) <= set(effective.actions):
            allowed, called = ", ".join(effective.actions), " and ".join(needed)
            allowed = f"only {allowed}" if allowed else "nothing"
            yield Blocker(
                BlockerCode.PROTECTED,
                f"acting on {name} needs {called}; rule {effective.rule} allows {allowed}",
                source=effective.rule,
            )
    if action is Action.EVICT and any(pod.awaits_request for pod in workload.pods):
        yield Blocker(
            BlockerCode.UNSUPPORTED,
            "its evictionResponders expect an EvictionRequest, which gpu-rightsizer does not create",
        )
    yield from _kept(workload, finding, effective)


def _history_blockers(
    workload: Workload, finding: Finding, effective: EffectivePolicy, evaluator: PolicyEvaluator
) -> Iterator[Blocker]:
    """Objections of its earlier changes to another one; advice is given all the same."""
    if effective.mode is not Mode.ENFORCE:
        return
    memory = memory_of(workload, evaluator.fleet, evaluator.at)
    yield from conflicting_instance(memory, evaluator.instance)
    if _action(workload, finding) is not Action.SCALE_UP:
        yield from change_rate_exceeded(memory, effective.max_changes)


def _kept(workload: Workload, finding: Finding, effective: EffectivePolicy) -> Iterator[Blocker]:
    """Objections of a rule that keeps GPUs or replicas of each workload, whatever is found."""
    left = workload.devices * (1 - _frees(workload, finding) / workload.gpus) if workload.gpus else 0.0
    if left < effective.min_gpus:
        yield Blocker(
            BlockerCode.PROTECTED,
            f"rule {effective.rule} keeps {gpus(effective.min_gpus)}, {left:g} would be left",
            source=effective.rule,
        )
    replicas = finding.proposal.replicas if finding.proposal else 0
    if replicas is not None and replicas < effective.min_replicas:
        kept = "1 replica" if effective.min_replicas == 1 else f"{effective.min_replicas} replicas"
        yield Blocker(
            BlockerCode.PROTECTED,
            f"rule {effective.rule} keeps {kept}, {replicas} would be left",
            source=effective.rule,
        )


def _frees(workload: Workload, finding: Finding) -> float:
    return finding.proposal.frees if finding.proposal else float(workload.gpus)


def _acted_upon(decision: Decision, effective: EffectivePolicy, evaluator: PolicyEvaluator) -> Decision:
    """A decision to act: action, mode and blockers."""
    workload, finding = decision.workload, decision.finding
    action = _action(workload, finding)
    assert action is not None  # noqa: S101 - otherwise blocked
    mode = effective.mode_for(finding.name)
    impossible = tuple(_cannot_pause(workload, finding, evaluator.fleet)) if mode is Mode.ENFORCE else ()
    if no_way := missing_field_reason(workload, finding.proposal, evaluator.at):
        impossible = (
            *impossible,
            Blocker(BlockerCode.UNSUPPORTED, f"not possible for this {workload.ref.kind}: {no_way}"),
        )
    if impossible or not is_supported(workload, action, finding.proposal):
        mode = strictest((mode, Mode.ADVISE))
    made = dataclasses.replace(
        decision,
        mode=mode,
        restrictions=(*decision.restrictions, *impossible),
        action=action,
        command="" if no_way else command_for(workload, action, finding.proposal),
        frees=_frees(workload, finding),
        healthy_within=effective.healthy_within,
    )
    made = stopping(made, evaluator.fleet, evaluator.at, effective.restart_time)
    if made.mode is not Mode.ENFORCE:
        return made
    blocks = tuple(_waits(made, effective, evaluator))
    if blocks or finding.name in _BY_DEMAND or not effective.notify_before:
        return dataclasses.replace(made, blockers=blocks)
    return _after_notice(made, effective.notify_before, evaluator)


def _cannot_pause(workload: Workload, finding: Finding, fleet: Fleet) -> Iterator[Blocker]:
    """Why a workload cannot be stopped, changed and resumed, if the change needs that."""
    pause = pause_for(workload, finding.proposal)
    if pause is None:
        return
    kind = workload.ref.kind
    if fleet.minor is None or fleet.minor < pause.since:
        known = f"has version 1.{fleet.minor}" if fleet.minor is not None else "does not state its version"
        yield Blocker(
            BlockerCode.UNSUPPORTED,
            f"the pod template of a suspended {kind} can change from Kubernetes 1.{pause.since} on; "
            f"this API server {known}",
        )
    if any(change.end is ChangeOutcome.REFUSED for change in workload.past):
        yield Blocker(
            BlockerCode.UNSUPPORTED, f"the API server refused to change the pod template of this {kind}"
        )


def _waits(decision: Decision, effective: EffectivePolicy, evaluator: PolicyEvaluator) -> Iterator[Blocker]:
    """Temporary blockers. Only other controllers block a scale-up."""
    workload = decision.workload
    for manager in workload.managers:
        if controller_mode(manager, evaluator.policy.otherControllers, decision.action) is Mode.ADVISE:
            reverts = would_revert(manager, decision.action)
            would = "would revert the change" if reverts else "also manages this workload"
            yield Blocker(BlockerCode.OTHER_CONTROLLER, f"{manager.kind} {manager.name} {would}")
    if decision.action is Action.SCALE_UP:
        return
    proposal, going = decision.finding.proposal, decision.pods_going
    if proposal is not None and proposal.gpus_per_pod is not None:
        room = FreeCapacity(evaluator.fleet, workload, proposal.model)
        if words := room.rollout_blocker(proposal.gpus_per_pod):
            yield Blocker(BlockerCode.NO_CAPACITY, words)
    shut = closed_reason(evaluator.policy, evaluator.at)
    if shut:
        yield shut
    what = "shrinking" if proposal is not None and proposal.replicas is not None else "stopping"
    for name, allowed in workload.budgets.items():
        if allowed < going:
            words = f"PodDisruptionBudget {name} allows {allowed} disruptions, {what} needs {going}"
            yield Blocker(BlockerCode.DISRUPTION_BUDGET, words)
    memory = memory_of(workload, evaluator.fleet, evaluator.at)
    # Demand before the last change of replicas is demand all the same.
    follows_demand = decision.finding.name is FindingName.TOO_MANY_REPLICAS
    evidence = datetime.timedelta() if follows_demand else _evidence(decision, evaluator.at)
    yield from cooling(workload, memory, effective, evidence)


def _evidence(decision: Decision, at: datetime.datetime) -> datetime.timedelta:
    """The length of the evidence: the window, or the age of the oldest pod if that is shorter."""
    window = decision.finding.window or datetime.timedelta()
    began = [pod.created for pod in decision.workload.pods if pod.created is not None]
    return min([window, *([at - min(began)] if len(began) == len(decision.workload.pods) else [])])


def _put_off(
    workload: Workload, given: datetime.datetime, due: datetime.datetime, evaluator: PolicyEvaluator
) -> datetime.datetime:
    """Time at which the change after a notice is due; an unreadable snooze counts as the longest."""
    text = workload.annotations.get(SNOOZE_ANNOTATION)
    if text is None:
        return due
    latest = max(due, given + evaluator.policy.maxSnooze)
    asked = read_instant(text, zone=datetime.UTC) or latest
    return min(max(due, asked), latest)


def noticed_until(notice: Notice, wait: datetime.timedelta, most: datetime.timedelta) -> datetime.datetime:
    """The earliest time of the change after a notice; one that was announced for later than `most` is forged."""
    return max(notice.at + wait, min(notice.due, notice.at + most))


def _after_notice(decision: Decision, wait: datetime.timedelta, evaluator: PolicyEvaluator) -> Decision:
    """The decision after its notice period and required idle time; before that, the notice or a blocker."""
    at = evaluator.at
    not_before = decision.finding.counts_from or at
    assert decision.action is not None  # noqa: S101 - it was chosen
    notice = parse_notice(decision.workload.annotations)
    if notice is None or not is_notice_valid(notice, decision.finding, decision.action, at):
        return dataclasses.replace(
            decision,
            action=Action.NOTICE,
            announced=decision.action,
            due=max(at + wait, not_before),
            frees=0.0,
        )
    if is_released(decision.workload.annotations, at):
        said = ("its owner released it after the notice", *decision.finding.words)
        return dataclasses.replace(decision, finding=dataclasses.replace(decision.finding, words=said))
    least = max(not_before, noticed_until(notice, wait, evaluator.policy.maxSnooze))
    due = _put_off(decision.workload, notice.at, least, evaluator)
    if at < due:
        words = f"notice was given at {instant(notice.at)}; the change follows from {instant(due)}"
        return dataclasses.replace(decision, blockers=(Blocker(BlockerCode.NOTICE, words, until=due),))
    return decision


def sort_key(
    decision: Decision, rejecting: Collection[str] = ()
) -> tuple[int, int, bool, float, float, str, str, str]:
    """Changes first, then blocked ones, then advice; in each, most GPUs per stopped pod, then most GPUs.

    Those in namespaces that reject changes come last: many such workloads delay others by one cycle.
    """
    ref = decision.workload.ref
    standing = 2 if decision.mode is not Mode.ENFORCE else 1 if decision.blockers else 0
    held = decision.frees if decision.verdict is Verdict.ACT else float(decision.workload.gpus)
    per_pod = held / max(1, decision.pods_going)
    last = ref.namespace in rejecting
    return (_ORDER[decision.verdict], standing, last, -per_pod, -held, ref.namespace, ref.kind, ref.name)
