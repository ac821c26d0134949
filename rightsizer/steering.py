"""Which replicas are to go when there are to be fewer, by what they did in the last minutes. Pure.

Controllers choose by themselves: those of ReplicaSets by a cost that stands on the pods, those with ordinals from the
end. Nobody is shrunk where that would hit one at work.
"""

import re
from collections.abc import Sequence

from rightsizer.model import Pod, Usages, Workload
from rightsizer.workloads.kind import Kind, Steering

COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Lower ones go first; pods without one cost nothing (KEP-2255)."""

CHEAPEST = str(-(2**31))
"""The least that the annotation can say."""

_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"


class AtWorkError(ValueError):
    """One that would go is at work, or what the replicas do is not known."""


def pods_to_go(
    workload: Workload, replicas: int, row: Kind, *, at_work: frozenset[str], activity: Usages
) -> tuple[Pod, ...]:
    """The pods that go when so many replicas are left; none where their owner is not to be told.

    Args:
        workload: As it was read a moment ago.
        replicas: How many are to be left.
        row: Its kind.
        at_work: Names of the pods that were at work in the last minutes, or of which that is not known.
        activity: Use since the plan, by which quiet ones are told apart.

    Raises:
        AtWorkError: Some of those that would have to go are at work.
    """
    if row.steering is Steering.TAIL:
        tail = tuple(pod for pod in workload.pods if _ordinal(pod) >= replicas)
        if busy := [pod.ref.name for pod in tail if pod.ref.name in at_work]:
            message = f"its last replicas go first, and {', '.join(sorted(busy))} of them is at work"
            raise AtWorkError(message)
        return ()
    quiet = sorted(
        (pod for pod in workload.pods if pod.ref.name not in at_work),
        key=lambda pod: (_mean(pod, activity), pod.ref),
    )
    going = len(workload.pods) - replicas
    if len(quiet) < going:
        message = f"{going} of its replicas would go, but only {len(quiet)} were quiet in the last minutes"
        raise AtWorkError(message)
    if row.steering is Steering.NONE or any(COST_ANNOTATION in pod.annotations for pod in workload.pods):
        return ()  # its people have said by costs of their own which are to go
    return tuple(quiet[:going])


def _mean(pod: Pod, activity: Usages) -> float:
    used: Sequence[float | None] = [
        one.activity_mean for one in activity.get((pod.ref.namespace, pod.ref.name), ())
    ]
    return max((mean for mean in used if mean is not None), default=0.0)


def _ordinal(pod: Pod) -> int:
    """Of a StatefulSet's pod, or of its group; what has none counts as the last."""
    text = pod.labels.get(_GROUP_LABEL) or (re.search(r"-([0-9]+)$", pod.ref.name) or ("", ""))[1]
    return int(text) if text.isdecimal() else 2**31
