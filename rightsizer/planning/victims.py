"""Which replicas are to go when there are to be fewer, by what they did in the last minutes. Pure.

Controllers choose by themselves: those of ReplicaSets by a cost that stands on the pods, those with ordinals from the
end. Nobody is shrunk where that would hit one at work, or might.
"""

import re
from collections.abc import Iterable, Sequence

from rightsizer.kinds.edits import value_at
from rightsizer.kinds.kind import Kind, Steering
from rightsizer.kinds.preconditions import as_read
from rightsizer.model import Pod, Proposal, Usages, Workload

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Lower ones go first; pods without one cost nothing (KEP-2255)."""

CHEAPEST = str(-(2**31))
"""The least that the annotation can say."""

_COST = re.compile("0|-?[1-9][0-9]{0,9}")
"""As the controller reads it; any other text counts as none."""

_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"


class AtWorkError(ValueError):
    """One that would go is at work, or what the replicas do is not known."""


def select_victims(
    workload: Workload, proposal: Proposal, row: Kind, *, at_work: frozenset[str], activity: Usages
) -> tuple[Pod, ...]:
    """The pods that go when a proposal leaves fewer replicas; none where their owner is not to be told.

    Args:
        workload: As it was read a moment ago.
        proposal: How many are to be left, and who was to go by the plan.
        row: Its kind.
        at_work: Names of the pods that were at work in the last minutes, or of which that is not known.
        activity: Use since the plan, by which quiet ones are told apart.

    Raises:
        AtWorkError: Some of those that would have to go, or might, are at work.
    """
    replicas = proposal.replicas or 0
    if row.steering is Steering.TAIL:
        first = _first(workload, row)
        tail = (pod for pod in workload.pods if _ordinal(pod) >= first + replicas)
        _require_quiet(tail, at_work, "its last replicas go first")
        return ()
    if row.steering is Steering.NAMED:
        named = (pod for pod in workload.pods if pod.ref.name in proposal.pods)
        _require_quiet(named, at_work, "those that were idle are to go")
        return ()
    if row.steering is Steering.NONE:
        _require_quiet(workload.pods, at_work, f"which replicas of a {row.kind} go is not known")
        return ()
    quiet = sorted(
        (pod for pod in workload.pods if pod.ref.name not in at_work),
        key=lambda pod: (_mean(pod, activity), pod.ref),
    )
    going = len(workload.pods) - replicas
    if len(quiet) < going:
        message = f"{going} of its replicas would go, but only {len(quiet)} were quiet in the last minutes"
        raise AtWorkError(message)
    if any(COST_ANNOTATION in pod.annotations for pod in workload.pods):
        cheapest = _may_go(workload.pods, going)
        _require_quiet(cheapest, at_work, f"the costs on its pods ({COST_ANNOTATION}) say which go first")
        return ()  # its people have said which are to go
    return tuple(quiet[:going])


def _require_quiet(pods: Iterable[Pod], at_work: frozenset[str], words: str) -> None:
    """Nobody goes where one of these is at work."""
    if busy := sorted(pod.ref.name for pod in pods if pod.ref.name in at_work):
        message = f"{words}, and {', '.join(busy)} of them is at work"
        raise AtWorkError(message)


def _may_go(pods: Sequence[Pod], going: int) -> list[Pod]:
    """Those that may be among so many that a ReplicaSet deletes first: not ready, then cheap; equals by their age."""
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
    """Of a StatefulSet's pod, or of its group; what has none counts as the last."""
    text = pod.labels.get(_GROUP_LABEL) or (re.search(r"-([0-9]+)$", pod.ref.name) or ("", ""))[1]
    return int(text) if text.isdecimal() else 2**31
