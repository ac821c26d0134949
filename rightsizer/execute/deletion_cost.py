"""Sets the deletion cost of the pods that a ReplicaSet is to delete, right before it is scaled down.

Another annotation names the instance and the run. If the change is not made, the cost is removed at once, or by the
next run that may act there.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.changes.record_codec import VICTIM_ANNOTATION
from rightsizer.errors import ClusterError
from rightsizer.execute.change_log import log_intent, logged
from rightsizer.execute.run_context import ApplySession, log_cluster_error
from rightsizer.inventory.turns import in_turn
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import api_path
from rightsizer.model import Fleet, Mode, Outcome, Pod, Result
from rightsizer.planning.victims import CHEAPEST, COST_ANNOTATION

_ACTION = "clear-deletion-cost"
"""Name of the action in the log."""
MOST_CLEARED = 100
"""Maximum number of pods in a run; namespaces take turns."""

log = logging.getLogger(__name__)


@contextlib.contextmanager
def set_deletion_cost(pods: Sequence[Pod], session: ApplySession) -> Iterator[None]:
    """While entered, these pods are deleted first.

    Raises:
        ClusterError: One could not be set; then none is.
    """
    marked: list[Pod] = []
    try:
        for pod in pods:
            marks = {COST_ANNOTATION: CHEAPEST, VICTIM_ANNOTATION: f"{session.instance}/{session.run}"}
            _annotate(pod, marks, session.cluster)
            marked.append(pod)
        yield
    except (ClusterError, ValueError):
        for pod in marked:
            with log_cluster_error(f"{pod.ref} keeps its annotation {COST_ANNOTATION}"):
                _remove_marks(pod, session.cluster)
        raise


def clear_deletion_costs(fleet: Fleet, session: ApplySession) -> None:
    """Remove the deletion costs that an earlier run of this instance set, if the pods were not deleted.

    Only from workloads with an enforcing rule and without a pause; of few pods, since their owners can write such
    annotations, too.
    """
    evaluator = session.evaluator(fleet, session.clock())
    marked = [
        (pod, run)
        for workload in fleet.workloads
        for pod, run in _marked_by(session.instance, workload.pods)
        if evaluator.evaluate(workload).mode is Mode.ENFORCE
    ]
    for pod, run in in_turn(marked, lambda mark: mark[0].ref.namespace)[:MOST_CLEARED]:
        with log_cluster_error(f"{pod.ref} keeps its annotation {COST_ANNOTATION}"):
            _clear(pod, f"run {run} marked it for deletion, and it was not deleted", session)


def _marked_by(instance: str, pods: Iterable[Pod]) -> Iterator[tuple[Pod, str]]:
    """Yield the pods that an instance marked, each with the run in which it did."""
    for pod in pods:
        by, _, run = pod.annotations.get(VICTIM_ANNOTATION, "").rpartition("/")
        if by and by == instance and not pod.is_terminating:
            yield pod, run


def _clear(pod: Pod, words: str, session: ApplySession) -> None:
    session.cluster.require_writable()
    if why := session.gate.blocked_reason(pod.ref.namespace):
        log.warning("%s keeps its annotation %s: %s", pod.ref, COST_ANNOTATION, why)
        return
    log_intent(session.run, pod.ref, _ACTION, words)
    result, detail = Result.DONE, words
    try:
        _remove_marks(pod, session.cluster)
    except ClusterError as error:
        result, detail = Result.REFUSED, f"{words}; {error}"
        raise
    finally:
        outcome = Outcome(pod.ref, _ACTION, result, detail, 0, session.clock(), is_reconciliation=True)
        logged(outcome, session.run)


def _remove_marks(pod: Pod, cluster: Cluster) -> None:
    """Keeps a cost that somebody else set since."""
    _annotate(pod, {COST_ANNOTATION: None, VICTIM_ANNOTATION: None}, cluster)


def _annotate(pod: Pod, annotations: Mapping[str, str | None], cluster: Cluster) -> None:
    path = api_path("v1", pod.ref.namespace, "pods", pod.ref.name)
    now = cluster.get_object(path)["metadata"]
    is_of_others = (now.get("annotations") or {}).get(COST_ANNOTATION, CHEAPEST) != CHEAPEST
    marks = {key: value for key, value in annotations.items() if key != COST_ANNOTATION or not is_of_others}
    metadata = {"uid": pod.ref.uid, "resourceVersion": now["resourceVersion"], "annotations": marks}
    cluster.patch(path, {"metadata": metadata})
