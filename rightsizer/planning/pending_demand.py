"""Limits `onlyForPendingPods` actions to what pending pods need. Pure.

Victims are chosen by lowest priority, then lowest utilization. Each pending pod is served on one node: the one with the
fewest victims. Free GPUs, CPU, memory and pod slots of that node count: nobody is stopped for a pod that would still
not fit. The pods of a gang are served all or none.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rightsizer.kinds import pause_for
from rightsizer.model import Action, Blocker, BlockerCode, Decision, Fleet, ObjectRef, WaitingPod
from rightsizer.policy.effective import PolicyEvaluator

_Free = dict[tuple[str, str], float]
"""Free amounts, now or after the chosen changes, by node and resource."""
_Change = tuple[list[ObjectRef], _Free]
"""The victims for one pod, and how the free amounts changed."""


def limit_to_pending_demand(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator
) -> tuple[Decision, ...]:
    """Block on-demand changes that no pending pod needs; name the pending pods for the others."""
    candidates = sorted((one for one in decisions if _is_on_demand(one, evaluator)), key=_standing)
    wanted = _matched(candidates, evaluator.fleet) if candidates else {}
    on_demand = {one.workload.ref for one in candidates}
    return tuple(
        _with(one, wanted.get(one.workload.ref, ())) if one.workload.ref in on_demand else one
        for one in decisions
    )


def _is_on_demand(decision: Decision, evaluator: PolicyEvaluator) -> bool:
    if not decision.is_enforced:
        return False
    actions = {decision.announced or decision.action}
    if pause_for(decision.workload, decision.finding.proposal) is not None:
        actions.add(Action.SUSPEND)
    return not actions.isdisjoint(evaluator.evaluate(decision.workload).only_for_pending_pods)


def _standing(decision: Decision) -> tuple[int, float, ObjectRef]:
    """Sort key: lowest priority first; unknown utilization last within a priority."""
    mean = decision.finding.activity_mean
    return decision.workload.priority, 1.0 if mean is None else mean, decision.workload.ref


def _with(decision: Decision, wanted_by: tuple[ObjectRef, ...]) -> Decision:
    if wanted_by:
        return dataclasses.replace(decision, wanted_by=wanted_by)
    action = decision.announced or decision.action
    words = (
        f"rule {decision.rule} allows {action.value if action else 'nothing'} only for pending pods of a higher "
        "priority; none needs its GPUs"
    )
    return dataclasses.replace(
        decision, blockers=(*decision.blockers, Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words))
    )


def _matched(candidates: Sequence[Decision], fleet: Fleet) -> dict[ObjectRef, tuple[ObjectRef, ...]]:
    """The pending pods that each chosen victim serves."""
    free: _Free = collections.defaultdict(float)
    free.update({(one.node, one.resource): one.free for one in fleet.stranded})
    free.update({(node, name): left for node, spare in fleet.spare.items() for name, left in spare.items()})
    chosen: dict[ObjectRef, ObjectRef] = {}
    for pods in _together(fleet.waiting):
        served: list[_Change] = []
        for pod in pods:
            place = _best_place(pod, candidates, chosen, free)
            if place is None:
                _take_back(served, chosen, free)
                break
            served.append(_place(pod, *place, chosen, free))
    return {ref: (pod,) for ref, pod in chosen.items()}


def _together(waiting: Iterable[WaitingPod]) -> list[list[WaitingPod]]:
    """The pods that start together: those of a gang, in the place of its first; each other pod alone."""
    found: dict[ObjectRef, list[WaitingPod]] = {}
    for pod in waiting:
        found.setdefault(pod.gang or pod.ref, []).append(pod)
    return [pods for pods in found.values() if len(pods) >= pods[0].gang_waits]


def _place(
    pod: WaitingPod, node: str, going: Sequence[Decision], chosen: dict[ObjectRef, ObjectRef], free: _Free
) -> _Change:
    """Choose the victims and take the place; what that changed."""
    amounts: _Free = collections.defaultdict(float)
    for decision in going:
        chosen[decision.workload.ref] = pod.ref
        for key, amount in _held(decision).items():
            amounts[key] += amount
    for resource, amount in _asked(pod).items():
        amounts[node, resource] -= amount
    for key, amount in amounts.items():
        free[key] += amount
    return [decision.workload.ref for decision in going], amounts


def _take_back(changes: Iterable[_Change], chosen: dict[ObjectRef, ObjectRef], free: _Free) -> None:
    for victims, amounts in changes:
        for ref in victims:
            del chosen[ref]
        for key, amount in amounts.items():
            free[key] -= amount


def _best_place(
    pod: WaitingPod,
    candidates: Sequence[Decision],
    chosen: Mapping[ObjectRef, object],
    free: Mapping[tuple[str, str], float],
) -> tuple[str, list[Decision]] | None:
    """The node with the fewest victims for a pod, and the victims; None if it fits nowhere."""
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
    """The victims on a node, in order, until the pod fits; empty if it already fits.

    None if it cannot fit, or if it lacks something other than GPUs.
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
    """What a change frees, by node and resource, as an equal share of every pod.

    Pods that stay keep their CPU and memory.
    """
    workload, proposal = decision.workload, decision.finding.proposal
    share = proposal.frees / workload.gpus if proposal and workload.gpus else 1.0
    are_fewer = proposal is None or proposal.replicas is not None
    found: dict[tuple[str, str], float] = collections.defaultdict(float)
    for pod in workload.pods:
        if pod.holds:
            amounts = {**pod.needs, **pod.resources} if are_fewer else pod.resources
            for resource, amount in amounts.items():
                found[pod.node, resource] += amount * share
    return found
