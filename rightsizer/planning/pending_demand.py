"""Limits `onlyForPendingPods` actions to what pending pods need. Pure.

Victims are chosen by lowest priority, then by what they lose. Each pending pod is served on one node: the one whose
victims lose least. Nobody is stopped for a pod that would still not fit. Where it is known which replicas a scale-down
removes, only those go that are needed. A gang is served whole or not.
"""

import collections
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rightsizer.inventory.pod_groups import connected
from rightsizer.kinds import pause_for
from rightsizer.model import Action, Blocker, BlockerCode, Decision, ObjectRef, Unserved, WaitingPod
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.demand_matching import Matching
from rightsizer.planning.earlier_victims import held_back
from rightsizer.planning.victims import Victim, with_replicas
from rightsizer.policy.effective import PolicyEvaluator


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """Decisions after pending demand was considered.

    Attributes:
        cut_short: What waits, by namespace, of which not every place was tried: there were too many.
        unserved: Why nobody goes for other demand.
    """

    decisions: tuple[Decision, ...]
    cut_short: Mapping[str, ObjectRef]
    unserved: tuple[Unserved, ...] = ()


def limit_to_pending_demand(
    decisions: Sequence[Decision],
    evaluator: PolicyEvaluator,
    account: BudgetAccount,
    refused: Collection[ObjectRef] = (),
) -> Limited:
    """Block changes of onlyForPendingPods that no pending pod needs; name the pending pods for the others.

    Those are charged to the account. Workloads that `refused` a change a moment ago are the last that go.
    """
    candidates = {change.workload.ref: change for change in decisions if is_on_demand(change, evaluator)}
    if not candidates:
        return Limited(tuple(decisions), {})
    matching = Matching(candidates.values(), evaluator, account, refused)
    limited = (
        _with(change, matching.wanted[change.workload.ref], matching.blocks.get(change.workload.ref, ()))
        if change.workload.ref in candidates
        else change
        for change in decisions
    )
    return Limited(tuple(limited), matching.cut_short, matching.unserved)


def without_demand(decision: Decision) -> Decision:
    """A change as it was before pending demand and budgets were considered."""
    codes = (BlockerCode.ONLY_FOR_PENDING_PODS, BlockerCode.BUDGET)
    left = tuple(blocker for blocker in decision.blockers if blocker.code not in codes)
    whole = decision.whole or decision
    return dataclasses.replace(whole, blockers=left, wanted_by=(), serves=(), going=())


def served_together(decisions: Sequence[Decision]) -> Mapping[ObjectRef, Sequence[Decision]]:
    """Decisions that free GPUs for the same pending pods or gangs, or share such through others, by workload."""
    by_ref = {decision.workload.ref: decision for decision in decisions if decision.wanted_by}
    groups = connected((ref, {*decision.serves}) for ref, decision in by_ref.items())
    return {ref: [by_ref[other] for other in group] for group in groups for ref in group}


def unserved_demand(
    evaluator: PolicyEvaluator, cut_short: Mapping[str, ObjectRef], unserved: Iterable[Unserved] = ()
) -> Iterator[str]:
    """Why no GPUs are freed for some of what waits, each reason once; nothing if no rule frees any on demand."""
    fleet = evaluator.fleet
    if not any(evaluator.evaluate(workload).only_for_pending_pods for workload in fleet.workloads):
        return
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for demand in (*fleet.unserved, *unserved):
        by_reason[demand.why].append(demand.what)
    for held in held_back(evaluator).values():
        by_reason[held.why].append(str(held.demand))
    for namespace, first in cut_short.items():
        by_reason[f"what waits in namespace {namespace} has too many ways to be placed"].append(str(first))
    for why, whats in by_reason.items():
        more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
        yield f"{whats[0]}{more}: no GPUs are freed for it: {why}"


def is_on_demand(decision: Decision, evaluator: PolicyEvaluator) -> bool:
    """Whether it is only made for pending pods."""
    if not decision.is_enforced:
        return False
    actions = {decision.announced or decision.action}
    if pause_for(decision.workload, decision.finding.proposal) is not None:
        actions.add(Action.SUSPEND)
    return not actions.isdisjoint(evaluator.evaluate(decision.workload).only_for_pending_pods)


def _with(decision: Decision, wanted: Mapping[Victim, WaitingPod], blocks: tuple[Blocker, ...]) -> Decision:
    """A decision about the victims that pending pods need; a notice announces all that may follow.

    If they need none, it is blocked: by what the budgets refuse, if they would have needed some.
    """
    if wanted:
        wanted = dict(sorted(wanted.items(), key=lambda pair: pair[0].place))
        made = dataclasses.replace(
            decision,
            wanted_by=tuple(dict.fromkeys(pod.ref for pod in wanted.values())),
            serves=tuple(dict.fromkeys(pod.demand for pod in wanted.values())),
        )
        if decision.action is Action.NOTICE or not next(iter(wanted)).is_replica:
            return made
        return with_replicas(made, [(pod, victim.pods, victim.frees) for victim, pod in wanted.items()])
    action = decision.announced or decision.action
    words = (
        f"rule {decision.rule} allows {action.value if action else 'nothing'} only for pending pods of a higher "
        "priority; none needs its GPUs"
    )
    blocks = blocks or (Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words),)
    return dataclasses.replace(decision, blockers=(*decision.blockers, *blocks))
