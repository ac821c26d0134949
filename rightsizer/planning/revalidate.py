"""Revalidation for the preflight check: does a decision still hold? Pure.

Called right before each write, with the workload and its usage read again.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

from rightsizer.config import format_duration
from rightsizer.findings.evidence import kernel_ran
from rightsizer.kinds import row_of, stopped_by
from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    Decision,
    FindingName,
    Measured,
    Pod,
    PodKey,
    ServingLoads,
    Usage,
    Usages,
    Workload,
)
from rightsizer.planning.decide import decide_one
from rightsizer.planning.victims import AtWorkError, require_victims, select_victims
from rightsizer.policy.effective import EffectivePolicy, PolicyEvaluator
from rightsizer.policy.thresholds import Thresholds

RECENT = datetime.timedelta(minutes=10)
"""Window of the preflight check: a few scrapes at any usual interval."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """The usage of the fleet right before a write.

    Attributes:
        at: Now, by Prometheus's clock.
        measured: The measurements of the plan, measured again if they are old.
        since: RECENT before the end of the plan's evidence: samples may arrive late.
        activity: Peak activity from `since` to `at`.
        recent: Peak activity in the last minutes, with coverage.
        latest: Of a workload that loses replicas, peak activity in the time for which each must have been idle.
        traffic: Of a stuck workload, its memory traffic from `since` to `at`.
        requests: Of a workload without requests, those from `since` to `at`.
    """

    at: datetime.datetime
    measured: Measured
    since: datetime.datetime
    activity: Usages
    recent: Usages
    latest: Usages
    traffic: Usages = dataclasses.field(default_factory=dict)
    requests: ServingLoads = dataclasses.field(default_factory=dict)


def objections(
    decision: Decision, fresh: Workload, use: Use, evaluator: PolicyEvaluator
) -> Iterator[Blocker]:
    """All reasons why a decision no longer holds for its workload, read again, by the same policy."""
    for words in _changes(decision.workload, fresh):
        yield Blocker(BlockerCode.CHANGED, words)
    again, planned = decide_one(fresh, use.measured, evaluator), decision.whole or decision
    if not again.is_enforced or again.action is not planned.action or again.rule != planned.rule:
        against = [veto.message for veto in again.restrictions] + [block.message for block in again.blockers]
        is_same = again.finding.name is decision.finding.name
        why = again.finding.words[-1 if is_same else 0]
        reasons = "; ".join(against) or f"the verdict is now {again.verdict}: {why}"
        yield Blocker(BlockerCode.CHANGED, reasons)
    else:
        yield from _wants_otherwise(planned, again)
    idle = evaluator.evaluate(fresh).thresholds
    lately = format_duration((use.at - use.since).total_seconds())
    is_stop = planned.finding.proposal is None
    try:
        going(decision, fresh, use, evaluator)
    except ValueError as error:
        is_busy = isinstance(error, AtWorkError)
        yield Blocker(BlockerCode.BUSY if is_busy else BlockerCode.CHANGED, str(error))
    for pod in fresh.pods:
        key = (pod.ref.namespace, pod.ref.name)
        # Of replicas that are removed `going` asks; the others stay.
        if decision.action is not Action.SCALE_UP and not removes_replicas(decision):
            yield from _unseen(pod, use)
        # Both: the later answer may include work that began after the earlier one.
        seen = [(usage, use.at - use.since) for usage in use.activity.get(key, ())]
        seen += [(usage, RECENT) for usage in use.recent.get(key, ())]
        yield from _more_used(decision, pod, seen, evaluator.evaluate(fresh))
        if is_stop and (words := _works(decision.finding.name, key, seen, use, idle)):
            yield Blocker(BlockerCode.BUSY, f"pod {pod.ref.name} {words} in the last {lately}")


def _works(
    name: FindingName,
    pod: PodKey,
    seen: Sequence[tuple[Usage, datetime.timedelta]],
    use: Use,
    idle: Thresholds,
) -> str:
    """Activity that a pod had, or may have had, and its finding excludes, in words; empty if none."""
    if any(usage.invalid for usage, _ in seen):
        return "had impossible values"
    if name is FindingName.STUCK:  # it is active, but only moves memory when it works
        peaks = {_place(usage): usage.traffic_peak for usage in use.traffic.get(pod, ())}
        known = [peaks.get(_place(usage)) for usage, _ in seen]
        limit = idle.maxMemoryTrafficPercent / 100
        has_stopped = bool(known) and all(peak is not None and peak <= limit for peak in known)
        return "" if has_stopped else "may have moved memory"
    if name is FindingName.NO_REQUESTS:  # checks of its health keep it active
        load = use.requests.get(pod)
        is_unused = load is not None and load.requests == 0 and not load.has_requests
        return "" if is_unused else "may have had requests"
    return "was active" if any(_ran(usage, idle, span) is not False for usage, span in seen) else ""


def removes_replicas(decision: Decision) -> bool:
    """Whether it removes replicas that demand does not need."""
    return decision.finding.name is FindingName.TOO_MANY_REPLICAS and decision.action is Action.SCALE_DOWN


def _more_used(
    decision: Decision, pod: Pod, seen: Sequence[tuple[Usage, datetime.timedelta]], effective: EffectivePolicy
) -> Iterator[Blocker]:
    """Blocks a resize or reslice if a pod now uses more, or its usage is unknown."""
    proposal = decision.finding.proposal
    if proposal is None or proposal.replicas is not None:
        return
    if any(usage.invalid for usage, _ in seen):
        yield Blocker(BlockerCode.NO_DATA, f"pod {pod.ref.name}: impossible values in the last minutes")
    percent = min(criteria.tooManyGpus.maxUtilizationPercent for criteria in effective.judged_by)
    idle = effective.thresholds
    busy = {
        _place(usage) for usage, span in seen if kernel_ran(usage, span, idle, percent=percent) is not False
    }
    if proposal.gpus_per_pod is not None and len(busy) > proposal.gpus_per_pod:
        words = (
            f"{len(busy)} of its GPUs were active in the last minutes, {proposal.gpus_per_pod} would be left"
        )
        yield Blocker(BlockerCode.BUSY, f"pod {pod.ref.name}: {words}")


def _unseen(pod: Pod, use: Use) -> Iterator[Blocker]:
    """Blocks a pod without samples in the last minutes."""
    key = (pod.ref.namespace, pod.ref.name)
    recent = use.recent.get(key, ())
    measured = use.measured.usages.values()
    known = {_place(usage) for usages in measured for usage in usages.get(key, ()) if usage.is_sampled}
    silent = known - {_place(usage) for usage in recent}
    if silent or not recent:
        of = f" of {', '.join(sorted(silent))}" if recent else ""
        yield Blocker(BlockerCode.NO_DATA, f"pod {pod.ref.name} has no samples{of} in the last minutes")
    elif any(usage.is_sampled and (not usage.is_fresh or usage.holes) for usage in recent):
        yield Blocker(BlockerCode.NO_DATA, f"pod {pod.ref.name}: samples stopped in the last minutes")


def _place(usage: Usage) -> str:
    device = usage.device
    return f"{device.uuid} (instance {device.instance})" if device.instance else device.uuid


def going(decision: Decision, fresh: Workload, use: Use, evaluator: PolicyEvaluator) -> tuple[Pod, ...]:
    """The victims of a scale-down; empty if the controller chooses by itself.

    Replicas of a workload that may be stopped as a whole were found unused in all of its pods.

    Raises:
        AtWorkError: A victim is active.
        ValueError: Others than those that pending pods need would go.
    """
    proposal, row = decision.finding.proposal, row_of(fresh)
    if (
        decision.action is not Action.SCALE_DOWN
        or proposal is None
        or proposal.replicas is None
        or row is None
    ):
        return ()
    part = min(
        (criteria.tooManyReplicas for criteria in evaluator.evaluate(fresh).judged_by),
        key=lambda limits: limits.busyPercent,
    )
    lately = use.latest if removes_replicas(decision) else use.recent
    at_work = frozenset(
        pod.ref.name
        for pod in fresh.pods
        if not (used := lately.get((pod.ref.namespace, pod.ref.name)))
        or any(_is_busy(usage, part.busyPercent) for usage in used)
        or any(_unseen(pod, use))
    )
    if decision.whole is not None:
        is_unused = decision.whole.finding.proposal is None
        return require_victims(fresh, proposal, row, at_work=frozenset() if is_unused else at_work)
    return select_victims(fresh, proposal, row, at_work=at_work, activity=use.activity)


def _is_busy(usage: Usage, percent: float) -> bool:
    peak = usage.activity_peak
    return bool(usage.invalid) or peak is None or peak * 100 > percent


def _wants_otherwise(planned: Decision, again: Decision) -> Iterator[Blocker]:
    """Blocks a change that would now leave less than needed."""
    before, now = planned.finding.proposal, again.finding.proposal
    if before is None or now is None:
        return
    if now.role != before.role:
        yield Blocker(BlockerCode.CHANGED, f"another role has most to give since the plan: {now.words}")
    if (now.replicas or 0) > (before.replicas or 0) or (now.gpus_per_pod or 0) > (before.gpus_per_pod or 0):
        yield Blocker(BlockerCode.CHANGED, f"requirements increased since the plan: {now.words}")
    asked = dict(before.asks)
    if dict(now.asks).keys() != asked.keys() or any(count > asked[name] for name, count in now.asks):
        yield Blocker(BlockerCode.CHANGED, f"the recommended size changed since the plan: {now.words}")


def _ran(usage: Usage, idle: Thresholds, span: datetime.timedelta) -> bool | None:
    return kernel_ran(usage, span, idle, percent=idle.maxUtilizationPercent)


def _changes(planned: Workload, fresh: Workload) -> Iterator[str]:
    if not fresh.resource_version:
        yield f"{planned.ref} could not be read; only its pods could"
    if fresh.ref.uid != planned.ref.uid:
        yield f"{planned.ref} was replaced by another object with the same name"
    if fresh.generation != planned.generation or fresh.size != planned.size:
        yield f"{planned.ref} changed since the plan"
    if stopped_by(fresh) != stopped_by(planned):
        yield f"how {planned.ref} is stopped changed since the plan"
    if {pod.ref.uid for pod in fresh.pods} != {pod.ref.uid for pod in planned.pods}:
        yield f"the pods of {planned.ref} changed since the plan"
