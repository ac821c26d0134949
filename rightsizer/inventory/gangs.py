"""Pods that stand or fall together though no controller joins them: the marks of those who schedule gangs. Pure.

One idle member of a gang means nothing, so all of a gang's pods are judged as one workload.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

from rightsizer.kube.api_objects import PodObject
from rightsizer.model import ObjectRef

T = TypeVar("T", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class _Mark:
    """A label or annotation that names the gang of a pod.

    Attributes:
        api_version: Of the object that the name is of.
        place: "labels" or "annotations".
    """

    key: str
    api_version: str
    kind: str
    place: str = "labels"


_MARKS = (
    # scheduler-plugins' coscheduling: https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/kep/42-podgroup-coscheduling
    _Mark("scheduling.x-k8s.io/pod-group", "scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    _Mark("pod-group.scheduling.sigs.k8s.io/name", "scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    _Mark("pod-group.scheduling.sigs.k8s.io", "scheduling.x-k8s.io/v1alpha1", "PodGroup"),
    # Volcano, and KAI
    _Mark("scheduling.k8s.io/group-name", "scheduling.volcano.sh/v1beta1", "PodGroup", "annotations"),
    _Mark("scheduling.volcano.sh/group-name", "scheduling.volcano.sh/v1beta1", "PodGroup", "annotations"),
    _Mark("pod-group-name", "scheduling.run.ai/v2alpha2", "PodGroup", "annotations"),
    # Kueue calls its Workload of a group of plain pods as the group is called.
    _Mark("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/v1beta2", "Workload"),
    # What controllers of gangs put on pods, also where their owner references are lost
    _Mark("volcano.sh/job-name", "batch.volcano.sh/v1alpha1", "Job"),
    _Mark("volcano.sh/job-name", "batch.volcano.sh/v1alpha1", "Job", "annotations"),
    _Mark("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    _Mark("ray.io/cluster", "ray.io/v1", "RayCluster"),
    _Mark("jobset.sigs.k8s.io/jobset-name", "jobset.x-k8s.io/v1alpha2", "JobSet"),
)
_TRAINING_JOB = "training.kubeflow.org/job-name"
_TRAINING_OPERATOR = "training.kubeflow.org/operator-name"
_TRAINING_KINDS = {
    f"{kind.lower()}-controller": kind
    for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
}


def gangs_of(pod: PodObject) -> tuple[ObjectRef, ...]:
    """The gangs that a pod says it belongs to, as the objects that stand for them."""
    found = dict.fromkeys(_gangs(pod))
    uid = pod.metadata.uid
    # Schedulers of gangs make one for each pod that has none, and call it by the pod's UID.
    return tuple(ref for ref in found if ref.name and not (uid and ref.name.endswith(uid)))


def _gangs(pod: PodObject) -> Iterator[ObjectRef]:
    namespace = pod.metadata.namespace
    places = {"labels": pod.metadata.labels or {}, "annotations": pod.metadata.annotations or {}}
    # KEP-4671: Kubernetes 1.36 names the PodGroup, 1.35 the Workload of which it is a part.
    if pod.spec.scheduling_group is not None:
        name = pod.spec.scheduling_group.pod_group_name
        yield ObjectRef("scheduling.k8s.io/v1beta1", "PodGroup", namespace, name)
    if pod.spec.workload_ref is not None:
        yield ObjectRef("scheduling.k8s.io/v1alpha1", "Workload", namespace, pod.spec.workload_ref.name)
    for mark in _MARKS:
        if name := places[mark.place].get(mark.key, ""):
            yield ObjectRef(mark.api_version, mark.kind, namespace, name)
    if name := places["labels"].get(_TRAINING_JOB, ""):
        operator = places["labels"].get(_TRAINING_OPERATOR, "")
        # A name that no API has where the operator is unknown: the label does not say whose job it is.
        yield ObjectRef("kubeflow.org/v1", _TRAINING_KINDS.get(operator, "TrainingJob"), namespace, name)


def joined(members: Iterable[tuple[T, Iterable[Hashable]]]) -> list[list[T]]:
    """Sets of what is connected by marks in common, each in the order given.

    Args:
        members: With the marks of each; the same member may come several times.
    """
    parents: dict[Hashable, Hashable] = {}
    order: dict[T, None] = {}
    for member, marks in members:
        order[member] = None
        here = _root(parents, ("member", member))
        for mark in marks:
            parents[_root(parents, ("mark", mark))] = here
    sets: dict[Hashable, list[T]] = {}
    for member in order:
        sets.setdefault(_root(parents, ("member", member)), []).append(member)
    return list(sets.values())


def _root(parents: dict[Hashable, Hashable], item: Hashable) -> Hashable:
    while (above := parents.setdefault(item, item)) != item:
        parents[item] = item = parents[above]
    return item


def merged(members: Iterable[Mapping[str, str]], *, separator: str = " | ") -> dict[str, str]:
    """Labels or annotations of several objects as one's.

    Where they differ both values stand there, which nothing that reads them takes for either: of annotations that
    restrain us the unreadable ones restrain most.
    """
    found: dict[str, dict[str, None]] = {}
    for member in members:
        for key, value in member.items():
            found.setdefault(key, {})[value] = None
    return {key: separator.join(sorted(values)) for key, values in found.items()}
