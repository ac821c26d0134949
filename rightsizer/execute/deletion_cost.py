"""Tells a ReplicaSet which of its pods are to go, right before there are to be fewer.

The cost stands on the pods that go, beside the instance and the run that put it there; where the change is not made
after all, it is taken back at once, or by the next run that may act there.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.changes.record_codec import STEERED_ANNOTATION
from rightsizer.errors import ClusterError
from rightsizer.execute.run_context import ApplySession, log_cluster_error
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Fleet, Mode, Outcome, Pod, Result
from rightsizer.planning.victims import CHEAPEST, COST_ANNOTATION

UNSTEER = "unsteer"
"""As what it stands in the journal."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def set_deletion_cost(pods: Sequence[Pod], session: ApplySession) -> Iterator[None]:
    """While entered, these pods go first.

    Raises:
        ClusterError: It could not be said of each; then of none.
    """
    told: list[Pod] = []
    try:
        for pod in pods:
            marks = {COST_ANNOTATION: CHEAPEST, STEERED_ANNOTATION: f"{session.instance}/{session.run}"}
            _annotate(pod, marks, session.cluster)
            told.append(pod)
        yield
    except (ClusterError, ValueError):
        for pod in told:
            with log_cluster_error(f"{pod.ref} keeps its annotation {COST_ANNOTATION}"):
                _unsteer(pod, session.cluster)
        raise


def unsteer_left(fleet: Fleet, session: ApplySession) -> None:
    """Take back what an earlier run of this instance said of pods, and did not come to make come true.

    Only where this run might have said it, too: what no rule enforces, or what is paused, stays as it is.
    """
    rulebook = session.rulebook(fleet, session.clock())
    for workload in fleet.workloads:
        for pod in workload.pods:
            by, _, run = pod.annotations.get(STEERED_ANNOTATION, "").rpartition("/")
            is_ours = bool(by) and by == session.instance and not pod.is_terminating
            if is_ours and rulebook.evaluate(workload).mode is Mode.ENFORCE:
                with log_cluster_error(f"{pod.ref} keeps its annotation {COST_ANNOTATION}"):
                    _take_back(pod, f"run {run} marked it to go first, and it did not go", session)


def _take_back(pod: Pod, words: str, session: ApplySession) -> None:
    session.cluster.require_writable()
    if why := session.gate.against(pod.ref.namespace):
        log.warning("%s keeps its annotation %s: %s", pod.ref, COST_ANNOTATION, why)
        return
    if session.journal:
        session.journal.mending(pod.ref, UNSTEER, words)
    result, detail = Result.DONE, words
    try:
        _unsteer(pod, session.cluster)
    except ClusterError as error:
        result, detail = Result.REFUSED, f"{words}; {error}"
        raise
    finally:
        if session.journal:
            outcome = Outcome(pod.ref, UNSTEER, result, detail, 0, session.clock(), is_repair=True)
            session.journal.outcome(outcome)


def _unsteer(pod: Pod, cluster: Cluster) -> None:
    """Take back what was said of a pod that did not go; a cost that somebody else gave it since is theirs."""
    _annotate(pod, {COST_ANNOTATION: None, STEERED_ANNOTATION: None}, cluster)


def _annotate(pod: Pod, annotations: Mapping[str, str | None], cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{pod.ref.namespace}/pods/{pod.ref.name}"
    now = cluster.get_object(path)["metadata"]
    is_theirs = (now.get("annotations") or {}).get(COST_ANNOTATION, CHEAPEST) != CHEAPEST
    said = {key: value for key, value in annotations.items() if key != COST_ANNOTATION or not is_theirs}
    metadata = {"uid": pod.ref.uid, "resourceVersion": now["resourceVersion"], "annotations": said}
    cluster.patch(path, {"metadata": metadata})
