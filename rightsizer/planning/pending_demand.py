"""Decisions + pods that wait → of what is done only on demand, just so much as those pods need. Pure.

Whom it hits is those of the lowest priority and the least use first; each waiting pod is served on one node, the one
on which fewest workloads have to go. What is already free there counts, and so do CPU, memory and places for pods:
nobody goes for a pod that would wait for those all the same.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from rightsizer.kinds import pause_for
from rightsizer.model import Action, Blocker, BlockerCode, Decision, Fleet, ObjectRef, WaitingPod
from rightsizer.policy.effective import PolicyEvaluator

_Free = dict[tuple[str, str], float]
"""What is free, or is to be, by node and resource."""


def limit_to_pending_demand(decisions: Sequence[Decision], rulebook: PolicyEvaluator) -> tuple[Decision, ...]:
    """Blocker what is done only on demand and what nobody waits for, and name those for whom the rest is done."""
    candidates = sorted((one for one in decisions if _is_on_demand(one, rulebook)), key=_standing)
    wanted = _matched(candidates, rulebook.fleet) if candidates else {}
    on_demand = {one.workload.ref for one in candidates}
    return tuple(
        _with(one, wanted.get(one.workload.ref, ())) if one.workload.ref in on_demand else one
        for one in decisions
    )


def _is_on_demand(decision: Decision, rulebook: PolicyEvaluator) -> bool:
    if not decision.is_enforced:
        return False
    actions = {decision.announced or decision.action}
    if pause_for(decision.workload, decision.finding.proposal) is not None:
        actions.add(Action.SUSPEND)
    return not actions.isdisjoint(rulebook.evaluate(decision.workload).only_for_pending_pods)


def _standing(decision: Decision) -> tuple[int, float, ObjectRef]:
    """Lower ones go first; one whose use is not known goes last of its priority."""
    mean = decision.finding.activity_mean
    return decision.workload.priority, 1.0 if mean is None else mean, decision.workload.ref


def _with(decision: Decision, wanted_by: tuple[ObjectRef, ...]) -> Decision:
    if wanted_by:
        return dataclasses.replace(decision, wanted_by=wanted_by)
    action = decision.announced or decision.action
    words = (
        f"rule {decision.rule} takes {action.value if action else 'nothing'} only for pods of a higher priority that "
        "wait for what it frees; none does, others free enough, or they lack more than GPUs"
    )
    return dataclasses.replace(
        decision, blockers=(*decision.blockers, Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words))
    )


def _matched(candidates: Sequence[Decision], fleet: Fleet) -> dict[ObjectRef, tuple[ObjectRef, ...]]:
    """The pods for which each of the chosen goes."""
    free: _Free = collections.defaultdict(float)
    free.update({(one.node, one.resource): one.free for one in fleet.stranded})
    free.update({(node, name): left for node, spare in fleet.spare.items() for name, left in spare.items()})
    chosen: dict[ObjectRef, list[ObjectRef]] = {}
    for pod in fleet.waiting:
        place = _best_place(pod, candidates, chosen, free)
        if place is None:
            continue
        node, going = place
        for decision in going:
            chosen.setdefault(decision.workload.ref, []).append(pod.ref)
            for key, amount in _held(decision).items():
                free[key] += amount
        for resource, amount in _asked(pod).items():
            free[node, resource] -= amount
    return {ref: tuple(pods) for ref, pods in chosen.items()}


def _best_place(
    pod: WaitingPod,
    candidates: Sequence[Decision],
    chosen: Mapping[ObjectRef, object],
    free: Mapping[tuple[str, str], float],
) -> tuple[str, list[Decision]] | None:
    """The node on which a pod costs fewest workloads, and those; None where none can be made free."""
    lower = [
        one
        for one in candidates
        if one.workload.priority < pod.priority and one.workload.ref not in chosen and _asks_alike(one, pod)
    ]
    best: tuple[int, str, list[Decision]] | None = None
    for node in sorted(pod.nodes):
        going = _going(pod, node, lower, free)
        if going is not None and (best is None or (len(going), node) < best[:2]):
            best = (len(going), node, going)
    return best and best[1:]


def _asked(pod: WaitingPod) -> dict[str, int]:
    return {**pod.needs, **pod.resources}


def _asks_alike(decision: Decision, pod: WaitingPod) -> bool:
    return any(resource in pod.resources for one in decision.workload.pods for resource in one.resources)


def _going(
    pod: WaitingPod, node: str, lower: Sequence[Decision], free: Mapping[tuple[str, str], float]
) -> list[Decision] | None:
    """Who has to go from a node, in order, until the pod fits; nobody where it fits already.

    None where it cannot be made to fit, or where GPUs are not what it lacks there.
    """
    missing = {resource: amount - free.get((node, resource), 0.0) for resource, amount in _asked(pod).items()}
    if all(missing[resource] <= 0 for resource in pod.resources):
        lower = ()
    going: list[Decision] = []
    for decision in lower:
        if all(amount <= 0 for amount in missing.values()):
            break
        held = _held(decision)
        useful = [resource for resource, amount in missing.items() if amount > 0 and (node, resource) in held]
        for resource in missing if useful else ():
            missing[resource] -= held.get((node, resource), 0.0)
        if useful:
            going.append(decision)
    return going if all(amount <= 0 for amount in missing.values()) else None


def _held(decision: Decision) -> dict[tuple[str, str], float]:
    """What a change frees, by node and resource, as if it took the same share of every pod.

    Pods that stay keep their CPU and memory, however few GPUs they are left with.
    """
    workload, proposal = decision.workload, decision.finding.proposal
    share = proposal.frees / max(workload.gpus, 1) if proposal else 1.0
    are_fewer = proposal is None or proposal.replicas is not None
    found: dict[tuple[str, str], float] = collections.defaultdict(float)
    for pod in workload.pods:
        if pod.holds:
            amounts = {**pod.needs, **pod.resources} if are_fewer else pod.resources
            for resource, amount in amounts.items():
                found[pod.node, resource] += amount * share
    return found
