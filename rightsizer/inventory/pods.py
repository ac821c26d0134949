"""Pods as they are read: details of GPU pods, and what all other pods request of their nodes. Pure."""

import collections
import dataclasses
import datetime
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from rightsizer.inventory.gpu_reach import reach_of
from rightsizer.inventory.gpu_requests import (
    FRACTION_ANNOTATIONS,
    GpuRequest,
    ResourceTable,
    amount_of,
    long_running_containers,
    total_of,
)
from rightsizer.inventory.node_holds import joined, other_pod
from rightsizer.inventory.nodes import VOLUMES
from rightsizer.inventory.obstacles import Occupant, occupant_of
from rightsizer.inventory.pod_groups import GroupKey, group_key
from rightsizer.inventory.resource_claims import claim_names, templates_of, unusable_claims
from rightsizer.inventory.unschedulable_pods import (
    UnschedulablePod,
    is_unschedulable,
    unschedulable_pod,
    volume_claims,
)
from rightsizer.kube.api_objects import (
    Container,
    ContainerStatus,
    ObjectMeta,
    OwnerReference,
    PodObject,
    interned,
)
from rightsizer.kube.object_names import invalid_name, is_possible
from rightsizer.model import AddressTable, ObjectRef, OtherPods, Pod, PodKey


def requests_of(pod: PodObject) -> dict[str, int]:
    """Requests of a pod to its node, as kube-scheduler counts it: CPU in thousandths of a core, one of "pods".

    After a resize in place, what its containers have counts until they have less (KEP-1287).
    """
    spec, status = pod.spec, pod.status
    is_infeasible = any(
        (one.type, one.reason) == ("PodResizePending", "Infeasible") for one in status.conditions or ()
    )
    actual = {
        one.name: [one.allocated_resources, one.resources.requests]
        for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        if one.resources is not None
    }

    def requested(one: Container) -> dict[str, int]:
        asked = {**(one.resources.limits or {}), **(one.resources.requests or {})}
        given = actual.get(one.name)
        return _largest([*(() if given and is_infeasible else (asked,)), *(given or ())])

    found = total_of(pod, requested)
    if spec.resources is not None:
        own = status.resources.requests if status.resources else None
        whole = _largest((spec.resources.requests, status.allocated_resources, own))
        found |= {name: whole[name] for name in spec.resources.requests or () if name.startswith(_OF_PODS)}
    for name, amount in (spec.overhead or {}).items():
        found[name] = found.get(name, 0) + amount_of(name, amount)
    return {"cpu": 0, "memory": 0, **found, "pods": 1}


def needs_of(pod: PodObject, resources: ResourceTable) -> dict[str, int]:
    """Requests other than GPUs, by resource name."""
    return {name: amount for name, amount in requests_of(pod).items() if resources.unit(name) is None}


_OF_PODS = ("cpu", "memory", "hugepages-")
"""Resources that a whole pod may request in place of its containers."""


def _largest(amounts: Iterable[Mapping[str, str | int] | None]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in amounts:
        for name, amount in (one or {}).items():
            value = amount_of(name, amount)
            found[name] = max(found.get(name, value), value)
    return found


def _is_resized(item: PodObject) -> bool:
    """Whether its containers may have other amounts than their requests."""
    asked = {one.name: one.resources.requests or {} for one in item.spec.containers}
    asked |= {one.name: one.resources.requests or {} for one in item.spec.init_containers or ()}
    status = item.status
    return any(
        given is not None and given != asked.get(one.name)
        for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
        for given in (one.allocated_resources, one.resources and (one.resources.requests or {}))
    )


OOM_KILLED = "OOMKilled"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MAX_ANNOTATION_LENGTH = 256
"""Longer annotations of pods are truncated: they hold whole documents, none of which matters here."""

PLACEHOLDERS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of KAI's and Run:ai's pods that reserve a whole GPU for pods that request part of it."""

_MAX_SHAPES = 20_000
_Found = TypeVar("_Found")

KUEUE_GATES = frozenset({"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology", "kueue.x-k8s.io/elastic-job"})
"""Scheduling gates of pods whose Workload of Kueue says what they wait for."""

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclasses.dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that requests GPUs, without what its claims and its node add.

    Attributes:
        owner: Its controller.
        metadata: Its own, if it has no owner.
        gangs: The gangs that it belongs to.
        clusters: Those of which labels alone tell, of a pod without a controller: members need not start together.
        claims: Names of its ResourceClaims.
        unusable_claims: Those that only its ordinary init containers use.
        templates: The ResourceClaimTemplates of these, each with the claim.
    """

    pod: Pod
    owner: OwnerReference | None
    metadata: ObjectMeta | None
    gangs: tuple[ObjectRef, ...] = ()
    clusters: tuple[ObjectRef, ...] = ()
    claims: tuple[str, ...] = ()
    templates: tuple[tuple[str, str], ...] = ()
    unusable_claims: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class PodEntry:
    """Parts of a pod that a plan needs; of one that has ended only its PriorityClass.

    Attributes:
        asked: What it requests of GPUs, and beyond.
        node: Its node, or the one where the scheduler keeps room for it.
        as_other: The pods of its node without GPUs, if it were the only one; None if it has GPUs.
        gate: Its first scheduling gate of no known queue.
    """

    namespace: str
    name: str
    priority_class: str
    asked: tuple[GpuRequest, Mapping[str, int]] = (GpuRequest({}, {}), {})
    priority: int = 0
    node: str = ""
    is_bound: bool = False
    host: str = ""
    addresses: tuple[str, ...] = ()
    as_other: OtherPods | None = None
    occupant: Occupant | None = None
    volumes: int = 0
    gangs: tuple[ObjectRef, ...] = ()
    clusters: tuple[ObjectRef, ...] = ()
    gpu_pod: GpuPod | None = None
    unschedulable: UnschedulablePod | None = None
    gate: str = ""
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PodReader:
    """Reads pods; equal readers make equal entries of equal pods.

    Attributes:
        gates: Scheduling gates of queues that wait for GPUs; pods that only these hold back are unschedulable.
        gang_labels: Labels of which pods with the same value are a gang, beside the known ones.
    """

    resources: ResourceTable
    gates: frozenset[str] = frozenset()
    gang_labels: frozenset[str] = frozenset()
    _shapes: dict[Hashable, tuple[GpuRequest, dict[str, int]]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __call__(self, item: PodObject) -> PodEntry:
        """The entry of a pod."""
        metadata, spec, status = item.metadata, item.spec, item.status
        namespace, priority_class = sys.intern(metadata.namespace), sys.intern(spec.priority_class_name)
        if status.phase in _ENDED:
            return PodEntry(namespace, metadata.name, priority_class)
        request, needs = asked = self._shape(item)
        claims, node = claim_names(item), sys.intern(spec.node_name or status.nominated_node_name)
        made = status.extended_resource_claim_status
        if made and made.resource_claim_name and not request:  # by a name that is no GPU's
            claims = (*claims, made.resource_claim_name)
        gangs, clusters, problems = gangs_of(item), self._clusters_of(item), list[str]()
        ref, gang = metadata.ref("v1", "Pod"), next(iter(gangs), None)
        is_judged = bool(request or claims) and namespace not in PLACEHOLDERS
        waits = is_judged and is_unschedulable(item, self.gates)
        gates = {one.name for one in spec.scheduling_gates or () if is_judged and not waits}

        def place() -> UnschedulablePod:
            return unschedulable_pod(item, ref, request.amounts, needs, gang, claims)

        return PodEntry(
            namespace,
            metadata.name,
            priority_class,
            asked,
            spec.priority or 0,
            node,
            bool(spec.node_name),
            sys.intern(status.host_ip),
            tuple([one.ip for one in status.pod_ips or ()]),
            None if request or claims else other_pod(item, goes_with_node=_goes_with_node(item)),
            _read(problems, "ports or affinity", lambda: occupant_of(item, node)) if node else None,
            len((_read(problems, "volumes", lambda: volume_claims(item)) or ()) if node else ()),
            gangs,
            clusters,
            _gpu_pod(item, asked, gangs, clusters, claims) if is_judged else None,
            _read(problems, "tolerations or affinity", place) if waits else None,
            min(gates - KUEUE_GATES - self.gates, default=""),
            tuple([f"{ref}: its {problem}" for problem in problems]),
        )

    def _clusters_of(self, item: PodObject) -> tuple[ObjectRef, ...]:
        labels = item.metadata.labels or {}
        kinds = [(key, "Gang") for key in sorted(self.gang_labels - _CLUSTER_LABELS.keys())]
        found = {
            ObjectRef("v1", kind, item.metadata.namespace, labels[key]): None
            for key, kind in (*kinds, *_CLUSTER_LABELS.items())
            if labels.get(key)
        }
        owner = item.metadata.controller if found else None
        return () if owner is not None and owner.kind == "Pod" else tuple(map(_possible, found))

    def _shape(self, item: PodObject) -> tuple[GpuRequest, dict[str, int]]:
        """The requests of a pod, cached: a hundred thousand pods have few different requests."""
        spec, annotations, key = item.spec, item.metadata.annotations or (), None
        is_own = spec.resources or spec.overhead or any(key in annotations for key in FRACTION_ANNOTATIONS)
        if not is_own and not _is_resized(item):
            containers = (*spec.containers, None, *(spec.init_containers or ()))
            key = tuple([one and (one.name, one.restart_policy, _flat(one)) for one in containers])
        known = self._shapes.get(key)
        if known is None:
            known = self.resources.request_of(item), needs_of(item, self.resources)
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            if key is not None:
                self._shapes[key] = known
        return known


def _read(problems: list[str], what: str, find: Callable[[], _Found]) -> _Found | None:
    try:
        return find()
    except msgspec.DecodeError as error:
        problems.append(f"{what} cannot be read: {error}")
        return None


def _gpu_pod(
    item: PodObject,
    asked: tuple[GpuRequest, Mapping[str, int]],
    gangs: tuple[ObjectRef, ...],
    clusters: tuple[ObjectRef, ...],
    claims: tuple[str, ...],
) -> GpuPod:
    owner = item.metadata.controller
    if owner is not None:  # many pods have the same
        api_version, kind, name, uid = map(sys.intern, (owner.api_version, owner.kind, owner.name, owner.uid))
        owner = OwnerReference(api_version, kind, name, uid, controller=True)
    made = item.status.extended_resource_claim_status
    named = (*claims, made.resource_claim_name) if made and made.resource_claim_name else claims
    return GpuPod(
        pod_of(item, *asked, claims=tuple(dict.fromkeys(named))),
        owner,
        item.metadata if owner is None else None,
        gangs,
        clusters if owner is None else (),
        claims,
        templates_of(item),
        unusable_claims(item),
    )


class PodTable:
    """Parts of a cluster's pods that a plan needs, collected page by page.

    Attributes:
        gpu_pods: Pods that request GPUs or claims and have not ended.
        unschedulable: Those of them for which the scheduler found no node, or that a queue holds back.
        addresses: Addresses of all pods that have not ended, and of their nodes.
        requested: The sum of what all pods on a node request, by node and resource.
        classes: Namespaces, each with a PriorityClass of its pods, which the API server admitted.
        other_pods: Those that request no GPUs, by node.
        members: By gang, how many of its pods have not ended, have a node, and have neither node nor GPUs.
        occupants: Pods that keep others off their nodes.
        nominated: Priority and requests of the pods for which the scheduler keeps room, by node.
        gated: By a scheduling gate of no known queue, the first pod with GPUs that has it, and how many have.
        others: Running pods without known GPU resources, with the names of their extended resources.
        problems: What could not be read, in words.
    """

    def __init__(self) -> None:
        self._cluster_sizes: collections.Counter[ObjectRef] = collections.Counter()
        self.gpu_pods: list[GpuPod] = []
        self.unschedulable: list[UnschedulablePod] = []
        self.requested: dict[str, dict[str, int]] = {}
        self.problems: list[str] = []
        self.others: dict[PodKey, tuple[str, ...]] = {}
        self.addresses = AddressTable()
        self.classes: set[tuple[str, str]] = set()
        self.other_pods: dict[str, OtherPods] = {}
        self.members: dict[GroupKey, tuple[int, int, int]] = {}
        self.gated: dict[str, tuple[str, int]] = {}
        self.occupants: list[Occupant] = []
        self.nominated: dict[str, list[tuple[int, Mapping[str, int]]]] = {}

    def add(self, pods: Iterable[PodEntry]) -> None:
        """Add a page of pods."""
        for pod in pods:
            if pod.priority_class:
                self.classes.add((pod.namespace, pod.priority_class))
            if pod.node:
                self._add_placed(pod)
            for key in map(group_key, pod.gangs):
                total, bound, others = self.members.get(key, (0, 0, 0))
                waits = not pod.is_bound and pod.as_other is not None
                self.members[key] = (total + 1, bound + pod.is_bound, others + waits)
            if pod.clusters:
                self._cluster_sizes.update(pod.clusters)
            if pod.gpu_pod is not None:
                self.gpu_pods.append(pod.gpu_pod)
            if pod.unschedulable is not None:
                self.unschedulable.append(pod.unschedulable)
            if pod.gate:
                example, number = self.gated.get(pod.gate, (f"{pod.namespace}/Pod/{pod.name}", 0))
                self.gated[pod.gate] = (example, number + 1)
            self.problems += pod.problems

    def _add_placed(self, pod: PodEntry) -> None:
        """Add what a pod takes of its node, or of the one where the scheduler keeps room for it."""
        total = self.requested.setdefault(pod.node, {})
        request, needs = pod.asked
        if pod.is_bound:
            self.addresses.add(pod.namespace, pod.node, pod.host, pod.addresses)
            for amounts in (needs, request.amounts):
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + amount
            if pod.as_other is not None:
                self.other_pods[pod.node] = joined(self.other_pods.get(pod.node, OtherPods()), pod.as_other)
                if request.others:
                    self.others[pod.namespace, pod.name] = request.others
        else:
            self.nominated.setdefault(pod.node, []).append((pod.priority, {**needs, **request.amounts}))
        if pod.occupant is not None:
            self.occupants.append(pod.occupant)
        total[VOLUMES] = total.get(VOLUMES, 0) + pod.volumes

    @property
    def grouped(self) -> tuple[GpuPod, ...]:
        """The GPU pods; a cluster of one pod, and of pods that it owns, is none."""
        return tuple(
            dataclasses.replace(
                one, clusters=tuple(ref for ref in one.clusters if self._cluster_sizes[ref] > 1)
            )
            if one.clusters
            else one
            for one in self.gpu_pods
        )


def _goes_with_node(item: PodObject) -> bool:
    """Whether no autoscaler waits for a pod: a DaemonSet's, or a mirror pod."""
    return MIRROR_ANNOTATION in (item.metadata.annotations or ()) or any(
        owner.controller and owner.kind == "DaemonSet" for owner in item.metadata.owner_references or ()
    )


def _flat(one: Container) -> Hashable:
    resources = one.resources
    return tuple((resources.limits or {}).items()), tuple((resources.requests or {}).items())


def pod_of(
    item: PodObject, request: GpuRequest, needs: Mapping[str, int], *, claims: tuple[str, ...] = ()
) -> Pod:
    """A pod, without what its claims and its node add."""
    metadata, spec, status = item.metadata, item.spec, item.status
    ready = [one.status for one in status.conditions or () if one.type == "Ready"]
    bound = [one.last_transition_time for one in status.conditions or () if one.type == "PodScheduled"]
    started, restarts, waiting = _running(item, request)
    ended, ended_at = _last_end(item, request)
    return Pod(
        ref=metadata.ref("v1", "Pod"),
        node=sys.intern(spec.node_name),
        phase=sys.intern(status.phase or "Pending"),
        devices=sum(request.devices.values()),
        unusable=request.unusable,
        is_shared=request.is_shared,
        started=started,
        priority_class=sys.intern(spec.priority_class_name),
        priority=spec.priority,
        is_ready=ready == ["True"],
        is_terminating=metadata.deletion_timestamp is not None,
        is_static=MIRROR_ANNOTATION in (metadata.annotations or {}),
        labels=interned(metadata.labels),
        annotations=_truncated(metadata.annotations),
        unreadable=request.unreadable,
        resources=request.amounts,
        needs=needs,
        created=metadata.creation_timestamp,
        restarts=restarts,
        waiting=waiting,
        ended=ended,
        ended_at=ended_at,
        bound=bound[0] if len(bound) == 1 and spec.node_name else None,
        acknowledged=status.start_time,
        awaits_request=bool(spec.eviction_responders),
        terminates_by=metadata.deletion_timestamp,
        reach=reach_of(item),
        claims=claims,
    )


def _running(item: PodObject, request: GpuRequest) -> tuple[datetime.datetime | None, int, str]:
    """Start of the last of its GPU containers, their restarts, and why one of them does not run.

    A restart makes a pod young again. If it is unknown which containers use the GPUs, all count.
    """
    starts: list[datetime.datetime | None] = []
    restarts, waiting = 0, ""
    for one in _statuses(item, request):
        running = one.state.running if one else None
        starts.append(running.started_at if running else None)
        if one is not None:
            restarts += one.restart_count
            ended = one.state.waiting or one.state.terminated
            waiting = max(waiting, ended.reason if ended else "")
    known = [start for start in starts if start is not None]
    started = max(known, default=None) if len(known) == len(starts) else None
    return started, restarts, waiting


def _statuses(item: PodObject, request: GpuRequest) -> Iterator[ContainerStatus | None]:
    """The statuses of its GPU containers; None for a container without a status."""
    status = item.status
    statuses = {
        one.name: one for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    }
    lasting = long_running_containers(item)
    claiming = {one.name for one in lasting if one.resources.claims}
    for name in request.containers | claiming or {one.name for one in lasting}:
        yield statuses.get(name)


def _last_end(item: PodObject, request: GpuRequest) -> tuple[str, datetime.datetime | None]:
    """Why and when one of its GPU containers last ended; an OOM kill takes precedence."""
    states = [
        state for one in _statuses(item, request) if one for state in (one.state, one.last_state) if state
    ]
    ends = [state.terminated for state in states if state.terminated and state.terminated.finished_at]
    last = max(ends, key=lambda end: (end.reason == OOM_KILLED, str(end.finished_at)), default=None)
    return (last.reason, last.finished_at) if last else ("", None)


def _truncated(annotations: Mapping[str, str] | None) -> dict[str, str]:
    return {
        sys.intern(key): value
        if len(value) <= MAX_ANNOTATION_LENGTH
        else f"{value[:MAX_ANNOTATION_LENGTH]}..."
        for key, value in (annotations or {}).items()
        if key != LAST_APPLIED
    }


# --- Gangs: pods that are judged as one workload, because an idle member says nothing about the others.


_POD_GROUP = ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
_VOLCANO_GROUP = ("scheduling.volcano.sh/v1beta1", "PodGroup")
_VOLCANO_JOB = ("batch.volcano.sh/v1alpha1", "Job")
_GANG_LABELS = {
    # scheduler-plugins' coscheduling: https://github.com/kubernetes-sigs/scheduler-plugins/tree/master/kep/42-podgroup-coscheduling
    "scheduling.x-k8s.io/pod-group": _POD_GROUP,
    "pod-group.scheduling.sigs.k8s.io/name": _POD_GROUP,
    "pod-group.scheduling.sigs.k8s.io": _POD_GROUP,
    # Kueue gives its Workload for a group of plain pods the name of the group.
    "kueue.x-k8s.io/pod-group-name": ("kueue.x-k8s.io/v1beta2", "Workload"),
    # set by controllers of gangs, also on pods that lost their owner references
    "volcano.sh/job-name": _VOLCANO_JOB,
    "leaderworkerset.sigs.k8s.io/name": ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    "ray.io/cluster": ("ray.io/v1", "RayCluster"),
    "jobset.sigs.k8s.io/jobset-name": ("jobset.x-k8s.io/v1alpha2", "JobSet"),
}
"""API version and kind of the object that a label names as the gang of a pod."""
_GANG_ANNOTATIONS = {
    # Volcano, and KAI
    "scheduling.k8s.io/group-name": _VOLCANO_GROUP,
    "scheduling.volcano.sh/group-name": _VOLCANO_GROUP,
    "pod-group-name": ("scheduling.run.ai/v2alpha2", "PodGroup"),
    # https://koordinator.sh/docs/designs/gang-scheduling, also without the object
    "gang.scheduling.koordinator.sh/name": ("scheduling.sigs.k8s.io/v1alpha1", "PodGroup"),
    "armadaproject.io/gangId": ("armadaproject.io/v1", "Gang"),
    "volcano.sh/job-name": _VOLCANO_JOB,
}
_CLUSTER_LABELS = {
    # https://github.com/skypilot-org/skypilot/blob/master/sky/provision/kubernetes/instance.py, also for NeMo Run
    "skypilot-cluster-name": "SkyPilot",
    "skypilot-cluster": "SkyPilot",  # of older versions
    "ray-cluster-name": "Ray",  # Ray's cluster launcher, without KubeRay
    # https://spark.apache.org/docs/latest/running-on-kubernetes.html
    "spark-app-selector": "Spark",
    # https://github.com/dask/dask-kubernetes, https://github.com/dask/dask-gateway
    "dask.org/cluster-name": "Dask",
    "gateway.dask.org/cluster": "Dask",
    # https://github.com/SlinkyProject/slurm-bridge
    "scheduler.slinky.slurm.net/slurm-jobid": "Slurm",
}
"""Labels of pods that work together without starting together, each with a kind for people: no object is called so."""
_TRAINING_JOB = "training.kubeflow.org/job-name"
_TRAINING_OPERATOR = "training.kubeflow.org/operator-name"
_TRAINING_KINDS = {
    f"{kind.lower()}-controller": kind
    for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
}


def gangs_of(pod: PodObject) -> tuple[ObjectRef, ...]:
    """The gangs that a pod belongs to, as references to the objects that represent them."""
    found = dict.fromkeys(_gangs(pod))
    uid = pod.metadata.uid
    # A gang scheduler creates one for each pod without a gang, named after the pod's UID.
    return tuple(_possible(ref) for ref in found if ref.name and not (uid and ref.name.endswith(uid)))


def _possible(ref: ObjectRef) -> ObjectRef:
    return ref if is_possible(ref) else dataclasses.replace(ref, name=invalid_name(ref.name))


def _gangs(pod: PodObject) -> Iterator[ObjectRef]:
    namespace = pod.metadata.namespace
    labels, annotations = pod.metadata.labels or {}, pod.metadata.annotations or {}
    # KEP-4671: Kubernetes 1.36 names the PodGroup, 1.35 the Workload that contains it.
    if pod.spec.scheduling_group is not None:
        name = pod.spec.scheduling_group.pod_group_name
        yield ObjectRef("scheduling.k8s.io/v1beta1", "PodGroup", namespace, name)
    if pod.spec.workload_ref is not None:
        yield ObjectRef("scheduling.k8s.io/v1alpha1", "Workload", namespace, pod.spec.workload_ref.name)
    for marks, kinds in ((labels, _GANG_LABELS), (annotations, _GANG_ANNOTATIONS)):
        for key, of in kinds.items():
            if name := marks.get(key, ""):
                yield ObjectRef(*of, namespace, name)
    if name := labels.get(_TRAINING_JOB, ""):
        operator = labels.get(_TRAINING_OPERATOR, "")
        # TrainingJob is no real kind: without the operator's label the kind of the job is unknown.
        yield ObjectRef("kubeflow.org/v1", _TRAINING_KINDS.get(operator, "TrainingJob"), namespace, name)
