"""Tells a ReplicaSet which of its pods are to go, right before there are to be fewer.

The cost stands on the pods that go, beside the run that put it there; where the change is not made after all, it is
taken back at once, or by the next run.
"""

import contextlib
from collections.abc import Iterator, Sequence

from rightsizer.act.session import Session, as_a_warning
from rightsizer.errors import ClusterError
from rightsizer.model import Mode, Pod
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.records import STEERED_ANNOTATION
from rightsizer.policy.rules import Rulebook
from rightsizer.steering import CHEAPEST, COST_ANNOTATION


@contextlib.contextmanager
def steered(pods: Sequence[Pod], session: Session) -> Iterator[None]:
    """While entered, these pods go first.

    Raises:
        ClusterError: It could not be said of each; then of none.
    """
    told: list[Pod] = []
    try:
        for pod in pods:
            _annotate(pod, {COST_ANNOTATION: CHEAPEST, STEERED_ANNOTATION: session.run}, session.cluster)
            told.append(pod)
        yield
    except (ClusterError, ValueError):
        for pod in told:
            unsteer(pod, session.cluster)
        raise


def unsteer_left(rulebook: Rulebook, cluster: Cluster) -> None:
    """Take back what an earlier run said of pods, and did not come to make come true; what is protected stays."""
    for workload in rulebook.fleet.workloads:
        for pod in workload.pods:
            is_left = STEERED_ANNOTATION in pod.annotations and not pod.is_terminating
            if is_left and rulebook.on(workload).mode is not Mode.PROTECT:
                unsteer(pod, cluster)


def unsteer(pod: Pod, cluster: Cluster) -> None:
    """Take back what was said of a pod that did not go."""
    with as_a_warning(f"{pod.ref} keeps its annotation {COST_ANNOTATION}"):
        _annotate(pod, {COST_ANNOTATION: None, STEERED_ANNOTATION: None}, cluster)


def _annotate(pod: Pod, annotations: dict[str, str | None], cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
    version = cluster.get_object(path)["metadata"]["resourceVersion"]
    metadata = {"uid": pod.ref.uid, "resourceVersion": version, "annotations": annotations}
    cluster.patch(path, {"metadata": metadata})
