"""The API objects that a plan is made from, read from the API server or a file, reduced to what is needed. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping

from rightsizer.inventory.gpu_requests import Claim, ResourceTable, count_of
from rightsizer.inventory.managers import Autoscaler
from rightsizer.inventory.nodes import NodeCapacity
from rightsizer.inventory.pods import GpuPod
from rightsizer.inventory.stranded_gpus import UnschedulablePod
from rightsizer.kube.api_objects import DisruptionBudget, ObjectMeta, PriorityClassObject, QuotaObject
from rightsizer.kube.owner_kinds import ObjectSummary
from rightsizer.model import Node, PriorityClass, Quota


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of the cluster.

    Attributes:
        owners: Owners of the pods and objects that gpu-rightsizer changed, by `object_key`.
        capacities: Of nodes, by name.
        namespaces: Metadata by name.
        claims: By namespace and name.
        kueue_workloads: Kueue's Workloads, which represent jobs.
        evictions: Metadata of the Secrets that keep the manifests of evicted pods.
        problems: What could not be read, or is unexpectedly missing, in words.
        minor: Minor version of Kubernetes 1.x; None if unknown or not needed.
    """

    pods: tuple[GpuPod, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    owners: Mapping[str, ObjectSummary] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    capacities: Mapping[str, NodeCapacity] = dataclasses.field(default_factory=dict)
    namespaces: Mapping[str, ObjectMeta] = dataclasses.field(default_factory=dict)
    disruption_budgets: tuple[DisruptionBudget, ...] = ()
    priority_classes: Mapping[str, PriorityClass] = dataclasses.field(default_factory=dict)
    claims: Mapping[tuple[str, str], Claim] = dataclasses.field(default_factory=dict)
    autoscalers: tuple[Autoscaler, ...] = ()
    kueue_workloads: tuple[ObjectSummary, ...] = ()
    quotas: tuple[Quota, ...] = ()
    evictions: tuple[ObjectMeta, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None


def priority_class_of(item: PriorityClassObject) -> PriorityClass:
    """The PriorityClass."""
    return PriorityClass(item.metadata.name, item.value, item.metadata.annotations or {})


def quotas_of(item: QuotaObject, resources: ResourceTable) -> list[Quota]:
    """The GPU resources of a ResourceQuota."""
    status, namespace, name = item.status, item.metadata.namespace, item.metadata.name
    found = []
    for key, amount in sorted((status.hard or {}).items()):
        resource = key.removeprefix("requests.")
        if resources.unit(resource) is not None:
            used = (status.used or {}).get(key, 0)
            found.append(Quota(namespace, name, resource, count_of(amount), count_of(used)))
    return found


def by_name(items: Iterable[ObjectMeta]) -> dict[str, ObjectMeta]:
    """Cluster-scoped objects by name."""
    return {item.name: item for item in items}
