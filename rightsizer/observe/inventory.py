"""API objects → the workloads that hold GPUs. `read` does the asking, `assemble` is pure.

A pod belongs to the topmost controller that its owner references lead to; a controller of a kind that we do not know
ends the walk, and is named as what it is.
"""

import dataclasses
import datetime
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.model import ObjectRef, Pod, Workload, WorkloadKind
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.objects import (
    Budget,
    Container,
    Controller,
    Metadata,
    ObjectMeta,
    OwnerReference,
    PodObject,
)
from rightsizer.observe.quantity import parse_quantity

GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-*")
"""Extended resources that count GPUs, shares or MIG instances; others under nvidia.com/ are amounts of one."""

SHARING_LABEL = "nvidia.com/gpu.sharing-strategy"
REPLICAS_LABEL = "nvidia.com/gpu.replicas"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"


@dataclasses.dataclass(frozen=True, slots=True)
class Controlled:
    """A controller object that was read: where it stands in the chain, and what stopping it would change."""

    ref: ObjectRef
    metadata: ObjectMeta
    size: int | bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class Objects:
    """Everything of the API server that a plan is made from."""

    pods: tuple[PodObject, ...]
    controllers: Mapping[str, Controlled]
    nodes: Mapping[str, Mapping[str, str]]
    namespaces: Mapping[str, Mapping[str, str]]
    budgets: tuple[Budget, ...]
    priority_classes: frozenset[str]


def read(cluster: Cluster, kinds: Sequence[WorkloadKind], *, namespace: str | None = None) -> Objects:
    """Read the whole cluster, or all that concerns the workloads of one namespace.

    Raises:
        ClusterError: Something could not be read whole.
    """
    scope = f"/namespaces/{namespace}" if namespace else ""
    pods = [pod for pod in cluster.list_all(f"/api/v1{scope}/pods", PodObject) if _asks_for_gpus(pod)]
    if namespace:
        namespaces = [cluster.get(f"/api/v1/namespaces/{namespace}", Metadata)]
    else:
        namespaces = cluster.list_all("/api/v1/namespaces", Metadata, metadata_only=True)
    return Objects(
        pods=tuple(pods),
        controllers={item.metadata.uid: item for item in _controllers(cluster, kinds, scope)},
        nodes=_by_name(cluster.list_all("/api/v1/nodes", Metadata, metadata_only=True), "labels"),
        namespaces=_by_name(namespaces, "annotations"),
        budgets=tuple(cluster.list_all(f"/apis/policy/v1{scope}/poddisruptionbudgets", Budget)),
        priority_classes=frozenset(read_priority_classes(cluster)),
    )


def read_priority_classes(cluster: Cluster) -> Iterator[str]:
    """Names of the cluster's PriorityClasses."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    return (item.metadata.name for item in cluster.list_all(path, Metadata, metadata_only=True))


def _controllers(cluster: Cluster, kinds: Sequence[WorkloadKind], scope: str) -> Iterator[Controlled]:
    replica_sets = cluster.list_all(f"/apis/apps/v1{scope}/replicasets", Metadata, metadata_only=True)
    for item in replica_sets:
        yield Controlled(_ref("apps/v1", "ReplicaSet", item.metadata), item.metadata, None)
    for row in kinds:
        if row.field:
            path = f"/apis/{row.api_version}{scope}/{row.plural}"
            for controller in cluster.list_all(path, Controller):
                ref = _ref(row.api_version, row.kind, controller.metadata)
                yield Controlled(ref, controller.metadata, getattr(controller.spec, row.field[-1]))


def _by_name(items: Iterable[Metadata], field: str) -> dict[str, Mapping[str, str]]:
    return {item.metadata.name: getattr(item.metadata, field) or {} for item in items}


def assemble(objects: Objects) -> tuple[Workload, ...]:
    """The workloads that hold or wait for GPUs, each once, in a stable order."""
    members: dict[str, list[Pod]] = {}
    tops: dict[str, Controlled] = {}
    for item in objects.pods:
        if item.status.phase in {"Succeeded", "Failed"}:
            continue
        top = _topmost(item, objects.controllers)
        tops[top.ref.uid] = top
        members.setdefault(top.ref.uid, []).append(_pod(item, objects.nodes))
    workloads = [_workload(tops[uid], pods, objects) for uid, pods in members.items()]
    return tuple(sorted(workloads, key=lambda workload: workload.ref))


def _topmost(pod: PodObject, controllers: Mapping[str, Controlled]) -> Controlled:
    here = Controlled(_ref("v1", "Pod", pod.metadata), pod.metadata, None)
    seen: set[str] = set()
    while (owner := here.metadata.controller) is not None and owner.uid not in seen:
        seen.add(owner.uid)
        known = controllers.get(owner.uid)
        if known is None:
            return _unread(owner, pod.metadata.namespace)
        here = known
    return here


def _unread(owner: OwnerReference, namespace: str) -> Controlled:
    ref = ObjectRef(owner.api_version, owner.kind, namespace, owner.name, owner.uid)
    return Controlled(ref, ObjectMeta(name=owner.name, namespace=namespace, uid=owner.uid), None)


def _workload(top: Controlled, pods: list[Pod], objects: Objects) -> Workload:
    namespace = top.ref.namespace
    return Workload(
        ref=top.ref,
        generation=top.metadata.generation,
        resource_version=top.metadata.resource_version,
        pods=tuple(sorted(pods, key=lambda pod: pod.ref)),
        size=top.size,
        labels=top.metadata.labels or {},
        annotations=top.metadata.annotations or {},
        namespace_annotations=objects.namespaces.get(namespace, {}),
        budgets=dict(sorted(_budgets(namespace, pods, objects.budgets))),
        is_terminating=top.metadata.deletion_timestamp is not None,
    )


def _budgets(namespace: str, pods: list[Pod], budgets: Iterable[Budget]) -> Iterator[tuple[str, int]]:
    for budget in budgets:
        selector = budget.spec.selector
        if budget.metadata.namespace != namespace or selector is None:
            continue
        if any(selector.selects(dict(pod.labels)) for pod in pods):
            yield budget.metadata.name, budget.status.disruptions_allowed


def _pod(item: PodObject, nodes: Mapping[str, Mapping[str, str]]) -> Pod:
    resources = devices_of(item)
    metadata, spec, status = item.metadata, item.spec, item.status
    conditions = {condition.type: condition.status for condition in status.conditions or []}
    return Pod(
        ref=_ref("v1", "Pod", metadata),
        node=spec.node_name,
        phase=status.phase or "Pending",
        devices=sum(resources.values()),
        is_shared=_is_shared(resources, nodes.get(spec.node_name, {})),
        started=_started(item),
        priority_class=spec.priority_class_name,
        priority=spec.priority,
        is_ready=conditions.get("Ready") == "True",
        is_terminating=metadata.deletion_timestamp is not None,
        is_static=MIRROR_ANNOTATION in (metadata.annotations or {}),
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        unreadable=unreadable_of(item),
    )


def _is_shared(resources: Mapping[str, int], node: Mapping[str, str]) -> bool:
    return (
        any(name.endswith(".shared") for name in resources)
        or node.get(SHARING_LABEL, "none") not in {"", "none"}
        or node.get(REPLICAS_LABEL, "1") not in {"", "0", "1"}
    )


def _started(item: PodObject) -> datetime.datetime | None:
    """When the last of its GPU containers started; a restart makes a pod young again."""
    statuses = [*(item.status.container_statuses or []), *(item.status.init_container_statuses or [])]
    running = {status.name: status.state.running for status in statuses}
    starts = []
    for container in _lasting(item):
        if not _gpus(container):
            continue
        state = running.get(container.name)
        if state is None or state.started_at is None:
            return None
        starts.append(state.started_at)
    return max(starts, default=item.status.start_time)


def devices_of(item: PodObject) -> dict[str, int]:
    """GPU resources that a pod holds: the sum over its lasting containers, or more where one init container asks so.

    https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
    """
    total: dict[str, int] = {}
    for container in _lasting(item):
        for name, count in _gpus(container).items():
            total[name] = total.get(name, 0) + count
    for container in item.spec.init_containers or []:
        for name, count in _gpus(container).items():
            total[name] = max(total.get(name, 0), count)
    return total


def unreadable_of(item: PodObject) -> tuple[str, ...]:
    """What a pod asks for of GPU resources that is no whole number of devices, in words; nobody can count it."""
    containers = [*item.spec.containers, *(item.spec.init_containers or [])]
    found = (pair for container in containers for pair in _amounts(container).items())
    return tuple(f"{name}: {str(amount)[:40]!r}" for name, amount in found if _whole(amount) is None)


def _asks_for_gpus(item: PodObject) -> bool:
    return bool(devices_of(item) or unreadable_of(item))


def _lasting(item: PodObject) -> list[Container]:
    sidecars = [
        container for container in item.spec.init_containers or [] if container.restart_policy == "Always"
    ]
    return [*item.spec.containers, *sidecars]


def _gpus(container: Container) -> dict[str, int]:
    """Devices by resource, as far as they can be counted."""
    counts = ((name, _whole(amount)) for name, amount in _amounts(container).items())
    return {name: count for name, count in counts if count}


def _amounts(container: Container) -> dict[str, str | int]:
    """What it asks for of GPU resources; a limit of an extended one is a request (device plugins' documentation)."""
    amounts = {**(container.resources.requests or {}), **(container.resources.limits or {})}
    return {
        name: amount
        for name, amount in amounts.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in GPU_RESOURCES)
    }


def _whole(amount: str | int) -> int | None:
    """The amount as a number of devices; None where it is none."""
    try:
        value = parse_quantity(amount)
    except ValueError:
        return None
    return value.numerator if value.denominator == 1 and value >= 0 else None


def _ref(api_version: str, kind: str, metadata: ObjectMeta) -> ObjectRef:
    return ObjectRef(api_version, kind, metadata.namespace, metadata.name, metadata.uid)
