"""Scale-down victims: idle replicas are removed first. Pure.

ReplicaSets choose by pod-deletion-cost, controllers with ordinals from the end. A scale-down that would remove an
active replica, or might, is not made. For a pending pod only the replicas go whose GPUs it needs.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from rightsizer.kinds import is_supported, row_of
from rightsizer.kinds.advice import command_for
from rightsizer.kinds.change_edits import as_read, missing_field_reason
from rightsizer.kinds.edits import value_at
from rightsizer.kinds.kind import Kind, Steering, WorkerGroups
from rightsizer.model import (
    Action,
    Decision,
    FindingName,
    Mode,
    ObjectRef,
    Pod,
    Proposal,
    Usages,
    WaitingPod,
    Workload,
)
from rightsizer.policy.do_not_disrupt import controller_mode
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.text import count, gpus

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Pods with a lower cost are removed first; the default is 0 (KEP-2255)."""

CHEAPEST = str(-(2**31))
"""The minimum value."""

_COST = re.compile("0|-?[1-9][0-9]{0,9}")
"""Values that the controller accepts; it ignores others."""

_TEMPLATE_HASH = "pod-template-hash"
"""Label by which a Deployment's ReplicaSets tell their pods apart."""

_GROUP_LABELS = ("leaderworkerset.sigs.k8s.io/group-index", "grove.io/podcliqueset-replica-index")


_Chosen = TypeVar("_Chosen")


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


def require_victims(
    workload: Workload, proposal: Proposal, row: Kind, *, at_work: frozenset[str]
) -> tuple[Pod, ...]:
    """The pods to remove, exactly those that are proposed; empty if the controller removes them by itself.

    Raises:
        AtWorkError: One is active.
        ValueError: The controller would remove others.
    """
    named = [pod for pod in workload.pods if pod.ref.name in proposal.pods]
    _require_quiet(named, at_work, "the replicas that pending pods need are to be removed")
    if row.steering is Steering.TAIL:
        return ()
    if why_not := _unsteerable(workload.pods):
        raise ValueError(why_not)
    return tuple(named)


def _require_quiet(pods: Iterable[Pod], at_work: frozenset[str], words: str) -> None:
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
    """Ranks of which the highest are removed first: index of the replica, or creation; empty if that is unknown."""
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
        usage.activity_mean for usage in activity.get((pod.ref.namespace, pod.ref.name), ())
    ]
    return max((mean for mean in used if mean is not None), default=0.0)


def _first(workload: Workload, row: Kind) -> int:
    first = value_at(as_read(workload) or {}, row.first) if row.first else None
    return first if type(first) is int else 0


def _ordinal(pod: Pod) -> int:
    """Ordinal of a StatefulSet's pod or of its group; a pod without one counts as the last."""
    group = next((pod.labels[label] for label in _GROUP_LABELS if label in pod.labels), "")
    text = group or (re.search(r"-([0-9]+)$", pod.ref.name) or ("", ""))[1]
    return int(text) if text.isdecimal() else 2**31


# --- One replica at a time


@dataclasses.dataclass(frozen=True, eq=False)
class Victim:
    """A part that goes at once for a pending pod: one replica of a workload, or all that a decision is about.

    Without slots, so that what follows is worked out once.

    Attributes:
        pods: The pods that end; empty if the decision makes them smaller, or its controller chooses them.
        after: The replica that goes before it, as its controller does not choose.
        place: How many replicas go before it.
        is_replica: Whether it is one of several replicas that can go alone.
    """

    decision: Decision
    pods: tuple[Pod, ...] = ()
    after: "Victim | None" = None
    place: int = 0
    is_replica: bool = False

    @property
    def frees(self) -> float:
        """GPUs that it frees."""
        return sum(pod.gpus for pod in self.pods) if self.is_replica else self.decision.frees

    @functools.cached_property
    def priority(self) -> int:
        """The priority of its workload."""
        return self.decision.workload.priority

    @functools.cached_property
    def loss(self) -> float:
        """GPU-hours that are lost; a replica loses its share."""
        lost = math.inf if self.decision.gpu_hours_lost is None else self.decision.gpu_hours_lost
        return lost * self.frees / self.decision.workload.gpus if self.is_replica else lost


def whole_victim(decision: Decision) -> Victim:
    """One victim with all that a decision is about."""
    return Victim(decision, decision.workload.pods if decision.finding.proposal is None else ())


def victims_of(decision: Decision, evaluator: PolicyEvaluator) -> tuple[Victim, ...]:
    """The replicas that can go one by one, those first that should; else all of the decision as one."""
    workload, row = decision.workload, row_of(decision.workload)
    if row is None or not _may_scale_down(decision, row, evaluator):
        return (whole_victim(decision),)
    if row.steering is not Steering.TAIL:
        chosen = workload.pods
        if decision.finding.name is FindingName.TOO_MANY_REPLICAS and decision.finding.proposal:
            by_name = {pod.ref.name: pod for pod in workload.pods}
            chosen = tuple(by_name[name] for name in decision.finding.proposal.pods if name in by_name)
        return tuple(Victim(decision, (pod,), is_replica=True) for pod in chosen)
    found: list[Victim] = []
    for pods in list(_replicas(workload, row))[::-1][: most_going(decision)]:
        found.append(Victim(decision, pods, found[-1] if found else None, len(found), is_replica=True))
    return tuple(found)


def most_going(decision: Decision) -> int:
    """Number of replicas that a decision removes."""
    size, proposal = decision.workload.size or 0, decision.finding.proposal
    return int(size) - (proposal.replicas or 0 if proposal else 0)


def _may_scale_down(decision: Decision, row: Kind, evaluator: PolicyEvaluator) -> bool:
    """Whether any number of its replicas may be removed, and it is known, or can be chosen, which ones go."""
    workload, proposal = decision.workload, decision.finding.proposal
    size, effective = workload.size, evaluator.evaluate(workload)
    if isinstance(size, bool) or not size or row.replicas is None:
        return False
    if proposal is not None and (proposal.replicas is None or proposal.role):
        return False
    fewer = Proposal(Action.SCALE_DOWN, 0.0, "", replicas=size - 1)
    return (
        size == value_at(as_read(workload) or {}, row.replicas.path)
        and len({len(pods) for pods in _replicas(workload, row)}) == 1
        and len(list(_replicas(workload, row))) == size
        and (row.steering is Steering.TAIL or not _unsteerable(workload.pods))
        and Action.SCALE_DOWN in effective.actions
        and is_supported(workload, Action.SCALE_DOWN, fewer)
        and not missing_field_reason(workload, fewer, evaluator.at)
        and not any(
            controller_mode(manager, evaluator.policy.otherControllers, Action.SCALE_DOWN) is Mode.ADVISE
            for manager in workload.managers
        )
    )


def _replicas(workload: Workload, row: Kind) -> Iterator[tuple[Pod, ...]]:
    """The pods of each replica, in the order of their ordinals; none if it is unknown how they are chosen."""
    if not all(pod.holds for pod in workload.pods):
        return
    if row.steering is Steering.DELETION_COST:
        yield from ((pod,) for pod in workload.pods)
    elif row.steering is Steering.TAIL:
        by_ordinal: dict[int, list[Pod]] = collections.defaultdict(list)
        for pod in workload.pods:
            by_ordinal[_ordinal(pod)].append(pod)
        yield from (tuple(by_ordinal[ordinal]) for ordinal in sorted(by_ordinal))


def _unsteerable(pods: Collection[Pod]) -> str:
    """Why a ReplicaSet would not delete the pods of the lowest deletion cost; empty if it does."""
    if any(COST_ANNOTATION in pod.annotations for pod in pods):
        return f"deletion costs on its pods ({COST_ANNOTATION}) decide which go first"
    if any(not pod.is_ready or pod.is_terminating for pod in pods):
        return "replicas that are not ready go first"
    if len({pod.labels.get(_TEMPLATE_HASH) for pod in pods}) > 1:
        return "its rollout is not complete"
    return ""


Going = tuple[WaitingPod, tuple[Pod, ...], float]
"""A replica that goes: for which pending pod, its pods, and its GPUs."""


def with_replicas(decision: Decision, going: Sequence[Going]) -> Decision:
    """A decision that removes only these replicas, the most needed first; all of it if it removes just these."""
    workload, proposal = decision.workload, decision.finding.proposal
    size, row = int(workload.size or 0), row_of(workload)
    is_exact = proposal is None or (row is not None and row.steering is Steering.TAIL)
    if len(going) == most_going(decision) and is_exact:
        return dataclasses.replace(decision, going=tuple(going))
    frees = sum(freed for _, _, freed in going)
    words = f"{count(len(going), 'replica')} of {size} removed for pending pods; frees {gpus(frees)}"
    part = Proposal(
        Action.SCALE_DOWN,
        frees,
        words,
        replicas=size - len(going),
        pods=tuple(sorted(pod.ref.name for _, pods, _ in going for pod in pods)),
    )
    told = [word for word in decision.finding.words if proposal is None or word != proposal.words]
    return dataclasses.replace(
        decision,
        finding=dataclasses.replace(decision.finding, proposal=part, words=(*told, words)),
        action=Action.SCALE_DOWN,
        command=command_for(workload, Action.SCALE_DOWN, part) if decision.command else "",
        frees=frees,
        lost="",
        gpu_hours_at_risk=0.0,
        gpu_hours_lost=0.0,
        along=(),
        going=tuple(going),
        whole=decision,
    )


def needed(chosen: Sequence[_Chosen], fits: Callable[[Sequence[_Chosen]], bool]) -> list[_Chosen]:
    """Keep those without which a pod would not fit; the last ones are left out first."""
    kept = list(chosen)
    for victim in reversed(chosen):
        fewer = [other for other in kept if other is not victim]
        if fits(fewer):
            kept = fewer
    return kept


def standing(victim: Victim) -> tuple[int, float, float, ObjectRef]:
    """Sort key: lowest priority, then least loss, then least utilization."""
    finding = victim.decision.finding
    mean = 1.0 if finding.activity_mean is None else finding.activity_mean
    return victim.priority, victim.loss, mean, victim.decision.workload.ref


def cost_of(victims: Collection[Victim]) -> tuple[float, float, int, int]:
    """Cost of a set of victims, most important first, by the same criteria as one of them."""
    return (
        max((victim.priority for victim in victims), default=-math.inf),
        sum(victim.loss for victim in victims),
        len({victim.decision.workload.ref for victim in victims}),
        len(victims),
    )
