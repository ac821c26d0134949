"""Scale-down victims: idle replicas are removed first. Pure.

ReplicaSets choose by pod-deletion-cost, controllers with ordinals from the end. A scale-down that would remove an
active replica, or might, is not made.
"""

import re
from collections.abc import Iterable, Sequence

from rightsizer.kinds.change_edits import as_read
from rightsizer.kinds.edits import value_at
from rightsizer.kinds.kind import Kind, Steering, WorkerGroups
from rightsizer.model import Pod, Proposal, Usages, Workload

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Pods with a lower cost are removed first; the default is 0 (KEP-2255)."""

CHEAPEST = str(-(2**31))
"""The minimum value."""

_COST = re.compile("0|-?[1-9][0-9]{0,9}")
"""Values that the controller accepts; it ignores others."""

_GROUP_LABELS = ("leaderworkerset.sigs.k8s.io/group-index", "grove.io/podcliqueset-replica-index")


class AtWorkError(ValueError):
    """A replica that would be removed is active, or its activity is unknown."""


def select_victims(
    workload: Workload, proposal: Proposal, row: Kind, *, at_work: frozenset[str], activity: Usages
) -> tuple[Pod, ...]:
    """The pods to remove in a scale-down; empty if the controller chooses by itself.

    `at_work` names the pods that were active in the last minutes, or of unknown activity. By `activity` since the plan
    the idlest pods are chosen.

    Raises:
        AtWorkError: A pod that would be removed, or might be, is active.
    """
    replicas = proposal.replicas or 0
    if row.steering is Steering.TAIL:
        first = _first(workload, row)
        tail = (pod for pod in workload.pods if _ordinal(pod) >= first + replicas)
        _require_quiet(tail, at_work, "the highest ordinals are removed first")
        return ()
    if row.steering is Steering.NAMED:
        named = (pod for pod in workload.pods if pod.ref.name in proposal.pods)
        _require_quiet(named, at_work, "the idle replicas are to be removed")
        return ()
    if row.steering is Steering.NONE:
        if row.groups is not None and proposal.role:
            _require_quiet_role(workload.pods, proposal, row.groups, at_work)
        else:
            _require_quiet(workload.pods, at_work, f"the replicas that a {row.kind} removes are unknown")
        return ()
    quiet = sorted(
        (pod for pod in workload.pods if pod.ref.name not in at_work),
        key=lambda pod: (_mean(pod, activity), pod.ref),
    )
    going = len(workload.pods) - replicas
    if len(quiet) < going:
        message = (
            f"{going} of its replicas would be removed, but only {len(quiet)} were idle in the last minutes"
        )
        raise AtWorkError(message)
    if any(COST_ANNOTATION in pod.annotations for pod in workload.pods):
        cheapest = _may_go(workload.pods, going)
        _require_quiet(
            cheapest, at_work, f"deletion costs on its pods ({COST_ANNOTATION}) decide which go first"
        )
        return ()  # its owner set deletion costs
    return tuple(quiet[:going])


def _require_quiet(pods: Iterable[Pod], at_work: frozenset[str], words: str) -> None:
    """Refuse if one of these pods is active."""
    if busy := sorted(pod.ref.name for pod in pods if pod.ref.name in at_work):
        message = f"{words}, and {', '.join(busy)} is active"
        raise AtWorkError(message)


def _require_quiet_role(
    pods: Iterable[Pod], proposal: Proposal, groups: WorkerGroups, at_work: frozenset[str]
) -> None:
    """Refuse if a pod of a role is active that may be removed: any, unless Grove's order is known."""
    own = [pod for pod in pods if pod.labels.get(groups.label) == proposal.role]
    going, ranks = len(own) - (proposal.replicas or 0), _grove_ranks(own, groups)
    if not ranks or going <= 0:
        _require_quiet(own, at_work, f"the replicas of {proposal.role} that are removed are unknown")
        return
    limit = sorted(ranks, reverse=True)[going - 1]
    first = (pod for pod, rank in zip(own, ranks, strict=True) if rank >= limit)
    _require_quiet(first, at_work, f"the newest replicas of {proposal.role} are removed first")


def _grove_ranks(pods: Sequence[Pod], groups: WorkerGroups) -> list[float]:
    """By which the highest are removed first: index of the replica, or creation; empty if that is unknown."""
    indices = [pod.labels.get(groups.replica, "") for pod in pods]
    if all(index.isdecimal() for index in indices):
        return [float(index) for index in indices]
    templates = {pod.labels.get(groups.newest, "") for pod in pods}
    starts = [
        pod.created for pod in pods if pod.created is not None and pod.is_ready and not pod.is_terminating
    ]
    is_known = len(templates) == 1 and "" not in templates and not any(indices) and len(starts) == len(pods)
    return [start.timestamp() for start in starts] if is_known else []


def _may_go(pods: Sequence[Pod], going: int) -> list[Pod]:
    """The pods that a ReplicaSet may delete first: unready, then by cost; ties by age."""
    ranks = sorted(map(_rank, pods))
    return [pod for pod in pods if going > 0 and _rank(pod) <= ranks[going - 1]]


def _rank(pod: Pod) -> tuple[bool, int]:
    text = pod.annotations.get(COST_ANNOTATION, "")
    return pod.is_ready, int(text) if _COST.fullmatch(text) else 0


def _mean(pod: Pod, activity: Usages) -> float:
    used: Sequence[float | None] = [
        one.activity_mean for one in activity.get((pod.ref.namespace, pod.ref.name), ())
    ]
    return max((mean for mean in used if mean is not None), default=0.0)


def _first(workload: Workload, row: Kind) -> int:
    """The ordinal of the first replica."""
    first = value_at(as_read(workload) or {}, row.first) if row.first else None
    return first if type(first) is int else 0


def _ordinal(pod: Pod) -> int:
    """Ordinal of a StatefulSet's pod or of its group; a pod without one counts as the last."""
    group = next((pod.labels[label] for label in _GROUP_LABELS if label in pod.labels), "")
    text = group or (re.search(r"-([0-9]+)$", pod.ref.name) or ("", ""))[1]
    return int(text) if text.isdecimal() else 2**31
