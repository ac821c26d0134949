"""Pods as they are read: details of GPU pods, and what all other pods request of their nodes. Pure."""

import collections
import dataclasses
import datetime
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

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
from rightsizer.inventory.node_holds import with_pod
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
    """All that a pod takes of its node, as kube-scheduler counts it: CPU in thousandths of a core, one of "pods".

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
    """What it takes beyond GPUs."""
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


class PodTable:
    """What is needed of a cluster's pods, collected page by page.

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

    Args:
        gates: Scheduling gates of queues that wait for GPUs; pods that only these hold back are unschedulable.
        gang_labels: Labels of which pods with the same value are a gang, beside the known ones.
    """

    def __init__(
        self, resources: ResourceTable, gates: Iterable[str] = (), gang_labels: Iterable[str] = ()
    ) -> None:
        self._resources = resources
        self._gates = frozenset(gates)
        self._cluster_labels = {**dict.fromkeys(sorted(gang_labels), "Gang"), **_CLUSTER_LABELS}
        self._cluster_sizes: collections.Counter[ObjectRef] = collections.Counter()
        self._shapes: dict[Hashable, tuple[GpuRequest, dict[str, int]]] = {}
        self._owners: dict[tuple[str, ...], OwnerReference] = {}
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

    def add(self, items: Sequence[PodObject]) -> None:
        """Add a page of pods."""
        for item in items:
            if name := item.spec.priority_class_name:
                self.classes.add((item.metadata.namespace, name))
            if item.status.phase in _ENDED:
                continue
            request, needs = self._shape(item)
            claims = claim_names(item)
            made = item.status.extended_resource_claim_status
            if made and made.resource_claim_name and not request:  # by a name that is no GPU's
                claims = (*claims, made.resource_claim_name)
            if item.spec.node_name or item.status.nominated_node_name:
                self._add_placed(item, needs, request, has_gpus=bool(request or claims))
            if _is_in_gang(item):
                self._count_member(item, has_gpus=bool(request or claims))
            self._cluster_sizes.update(self._clusters_of(item))
            if (request or claims) and item.metadata.namespace not in PLACEHOLDERS:
                self.gpu_pods.append(self._gpu_pod(item, request, needs, claims))
                if is_unschedulable(item, self._gates):
                    self._add_unschedulable(item, request, needs, claims)
                elif (
                    gates := {one.name for one in item.spec.scheduling_gates or ()}
                    - KUEUE_GATES
                    - self._gates
                ):
                    gate = min(gates)
                    example, number = self.gated.get(gate, (str(item.metadata.ref("v1", "Pod")), 0))
                    self.gated[gate] = (example, number + 1)

    def _add_placed(
        self, item: PodObject, needs: Mapping[str, int], request: GpuRequest, *, has_gpus: bool
    ) -> None:
        """Add what a pod takes of its node, or of the one where the scheduler keeps room for it."""
        node = item.spec.node_name or item.status.nominated_node_name
        total = self.requested.setdefault(node, {})
        if item.spec.node_name:
            self._count(item, needs, request, has_gpus=has_gpus)
        else:
            asked = item.spec.priority or 0, {**needs, **request.amounts}
            self.nominated.setdefault(node, []).append(asked)
        try:
            if (found := occupant_of(item, node)) is not None:
                self.occupants.append(found)
            total[VOLUMES] = total.get(VOLUMES, 0) + len(volume_claims(item))
        except msgspec.DecodeError as error:
            ref = item.metadata.ref("v1", "Pod")
            self.problems.append(f"{ref}: its ports, volumes or affinity cannot be read: {error}")

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

    def _clusters_of(self, item: PodObject) -> tuple[ObjectRef, ...]:
        labels, owner = item.metadata.labels, item.metadata.controller
        if (
            not labels
            or (owner is not None and owner.kind == "Pod")
            or self._cluster_labels.keys().isdisjoint(labels)
        ):
            return ()
        found = {
            ObjectRef("v1", kind, item.metadata.namespace, labels[key]): None
            for key, kind in self._cluster_labels.items()
            if labels.get(key)
        }
        return tuple(map(_possible, found))

    def _count_member(self, item: PodObject, *, has_gpus: bool) -> None:
        is_bound = bool(item.spec.node_name)
        for gang in gangs_of(item):
            key = group_key(gang)
            total, bound, others = self.members.get(key, (0, 0, 0))
            waits = not is_bound and not has_gpus
            self.members[key] = (total + 1, bound + is_bound, others + waits)

    def _shape(self, item: PodObject) -> tuple[GpuRequest, dict[str, int]]:
        """What a pod requests, cached: a hundred thousand pods have few different requests."""
        spec = item.spec
        annotations = item.metadata.annotations or ()
        if (
            spec.resources
            or spec.overhead
            or any(key in annotations for key in FRACTION_ANNOTATIONS)
            or _is_resized(item)
        ):
            return self._read(item)
        key = (
            *((one.name, one.restart_policy, _flat(one)) for one in spec.containers),
            None,
            *((one.name, one.restart_policy, _flat(one)) for one in spec.init_containers or ()),
        )
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= _MAX_SHAPES:
                self._shapes.clear()
            known = self._shapes[key] = self._read(item)
        return known

    def _read(self, item: PodObject) -> tuple[GpuRequest, dict[str, int]]:
        return self._resources.request_of(item), needs_of(item, self._resources)

    def _count(
        self, item: PodObject, needs: Mapping[str, int], request: GpuRequest, *, has_gpus: bool
    ) -> None:
        node = item.spec.node_name
        addresses = [one.ip for one in item.status.pod_ips or ()]
        self.addresses.add(item.metadata.namespace, node, item.status.host_ip, addresses)
        if request.others and not has_gpus:
            self.others[item.metadata.namespace, item.metadata.name] = request.others
        total = self.requested.setdefault(node, {})
        for amounts in (needs, request.amounts):
            for name, amount in amounts.items():
                total[name] = total.get(name, 0) + amount
        if not has_gpus:
            known = self.other_pods.get(node, OtherPods())
            self.other_pods[node] = with_pod(known, item, goes_with_node=_goes_with_node(item))

    def _add_unschedulable(
        self, item: PodObject, request: GpuRequest, needs: Mapping[str, int], claims: tuple[str, ...]
    ) -> None:
        ref = item.metadata.ref("v1", "Pod")
        try:
            gang = next(iter(gangs_of(item)), None)
            self.unschedulable.append(unschedulable_pod(item, ref, request.amounts, needs, gang, claims))
        except msgspec.DecodeError as error:
            self.problems.append(f"{ref}: its tolerations or affinity cannot be read: {error}")

    def _gpu_pod(
        self, item: PodObject, request: GpuRequest, needs: Mapping[str, int], claims: tuple[str, ...]
    ) -> GpuPod:
        owner = item.metadata.controller
        if owner is not None:
            key = (owner.api_version, owner.kind, owner.name, owner.uid)
            owner = self._owners.setdefault(key, owner)
        metadata = item.metadata if owner is None else None
        made = item.status.extended_resource_claim_status
        named = (*claims, made.resource_claim_name) if made and made.resource_claim_name else claims
        pod = dataclasses.replace(pod_of(item, request, needs), claims=tuple(dict.fromkeys(named)))
        return GpuPod(
            pod,
            owner,
            metadata,
            gangs_of(item),
            self._clusters_of(item) if owner is None else (),
            claims,
            templates_of(item),
            unusable_claims(item),
        )


def _goes_with_node(item: PodObject) -> bool:
    """Whether no autoscaler waits for a pod: a DaemonSet's, or a mirror pod."""
    return MIRROR_ANNOTATION in (item.metadata.annotations or ()) or any(
        owner.controller and owner.kind == "DaemonSet" for owner in item.metadata.owner_references or ()
    )


def _flat(one: Container) -> Hashable:
    resources = one.resources
    return tuple((resources.limits or {}).items()), tuple((resources.requests or {}).items())


def pod_of(item: PodObject, request: GpuRequest, needs: Mapping[str, int]) -> Pod:
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
    )


def _running(item: PodObject, request: GpuRequest) -> tuple[datetime.datetime | None, int, str]:
    """When the last of its GPU containers started, their restarts, and why one of them does not run.

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


def _is_in_gang(item: PodObject) -> bool:
    """Whether a pod may belong to a gang: quick, because every pod is asked."""
    metadata, spec = item.metadata, item.spec
    return bool(
        (metadata.labels and not _GANG_LABELS.keys().isdisjoint(metadata.labels))
        or (metadata.annotations and not _GANG_ANNOTATIONS.keys().isdisjoint(metadata.annotations))
        or spec.scheduling_group is not None
    )


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
