"""Reads all input of a plan from the API server, in pages, and keeps only the needed fields."""

import functools
import logging
from collections.abc import Collection, Iterator, Sequence

from rightsizer.changes.record_codec import MANIFEST_LABEL, MANIFEST_SELECTOR
from rightsizer.errors import ConfigurationError
from rightsizer.inventory.gpu_requests import (
    CLAIMS,
    Claim,
    ClaimObject,
    ResourceTable,
    claim_of,
    parse_gpu_resource,
)
from rightsizer.inventory.managers import AUTOSCALERS, Autoscaler, AutoscalerObject, autoscaler_of, queued_job
from rightsizer.inventory.nodes import NodeObject, NodeTable
from rightsizer.inventory.owner_reader import OptionalLister, OwnerReader
from rightsizer.inventory.pods import GpuPod, PodTable
from rightsizer.inventory.workload_builder import ClusterState, priority_class_of, quotas_of
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    Metadata,
    ObjectMeta,
    PodObject,
    PriorityClassObject,
    QuotaObject,
)
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import api_path
from rightsizer.kube.owner_kinds import KUEUE, ObjectSummary
from rightsizer.model import PriorityClass, Quota

log = logging.getLogger(__name__)

FEW_NODES = 32
"""Up to this many nodes are read one by one; for more the collection is listed."""


def read_cluster(
    cluster: Cluster,
    kinds: Collection[tuple[str, str]],
    *,
    namespace: str | None = None,
    state_namespace: str = "",
) -> ClusterState:
    """Read the whole cluster, or what concerns the workloads of one namespace.

    Args:
        cluster: The API server.
        kinds: API groups and kinds that gpu-rightsizer changes; changed objects are read even without pods.
        namespace: The only namespace to read.
        state_namespace: Where manifests of evicted pods are kept; unused with one namespace.

    Raises:
        ClusterError: Something could not be read completely.
        ConfigurationError: The name of a GPU resource is invalid.
    """
    reader = _ClusterReader(cluster, f"/namespaces/{namespace}" if namespace else "")
    pods = cluster.reduce(
        f"/api/v1{reader.scope}/pods", PodObject, lambda: PodTable(reader.resources), add=PodTable.add
    )
    named = frozenset(one.pod.node for one in pods.gpu_pods if one.pod.node)
    owners = {(one.owner.group, one.owner.kind) for one in pods.gpu_pods if one.owner is not None}
    nodes = reader.nodes(named, is_whole=namespace is None)
    found = ClusterState(
        pods=tuple(pods.gpu_pods),
        addresses=pods.addresses,
        unschedulable=() if namespace else tuple(pods.unschedulable),
        owners=OwnerReader(reader, pods.gpu_pods).read(() if namespace else kinds),
        nodes=nodes.nodes,
        capacities=nodes.capacities(pods.requested),
        namespaces={one.name: one for one in reader.namespaces(namespace)},
        priority_classes={one.name: one for one in read_priority_classes(cluster)},
        claims=dict(reader.claims(pods.gpu_pods)),
        autoscalers=tuple(reader.autoscalers()),
        kueue_workloads=tuple(reader.kueue_workloads()),
        quotas=() if namespace else tuple(reader.quotas()),
        evictions=() if namespace else reader.evictions(state_namespace),
        # last, so that they are as fresh as possible when they are evaluated
        disruption_budgets=tuple(
            cluster.list_all(f"/apis/policy/v1{reader.scope}/poddisruptionbudgets", DisruptionBudget)
        ),
        problems=(*reader.problems, *pods.problems),
        # Only for Jobs does the version of Kubernetes matter.
        minor=cluster.minor() if ("batch", "Job") in owners else None,
    )
    for problem in found.problems:
        log.log(logging.DEBUG if namespace else logging.WARNING, "%s", problem)
    return found


def read_priority_classes(cluster: Cluster) -> Iterator[PriorityClass]:
    """The cluster's PriorityClasses."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    return map(priority_class_of, cluster.list_all(path, PriorityClassObject))


def resource_table(texts: Sequence[str]) -> ResourceTable:
    """The resource names of GPUs, with the configured ones.

    Raises:
        ConfigurationError: One of the texts is invalid.
    """
    try:
        return ResourceTable(tuple(map(parse_gpu_resource, texts)))
    except ValueError as error:
        raise ConfigurationError(f"--gpu-resource: {error}") from error


class _ClusterReader(OptionalLister):
    def __init__(self, cluster: Cluster, scope: str) -> None:
        super().__init__(cluster, scope)
        self.resources = resource_table(cluster.gpu_resources)

    def nodes(self, named: frozenset[str], *, is_whole: bool) -> NodeTable:
        """All nodes with GPUs, or the named ones."""
        start = functools.partial(NodeTable, self.resources, named)
        if is_whole or len(named) > FEW_NODES:
            return self.cluster.reduce("/api/v1/nodes", NodeObject, start, add=NodeTable.add)
        table = start()
        for name in sorted(named):
            item = self.cluster.find(api_path("v1", "", "nodes", name), NodeObject)
            table.add([item] if item else [])
        return table

    def namespaces(self, namespace: str | None) -> list[ObjectMeta]:
        """All namespaces, or the one."""
        path = "/api/v1/namespaces"
        if namespace:
            return [self.cluster.get(f"{path}/{namespace}", Metadata).metadata]
        return [item.metadata for item in self.cluster.list_all(path, Metadata, metadata_only=True)]

    def claims(self, pods: Sequence[GpuPod]) -> Iterator[tuple[tuple[str, str], Claim]]:
        """The ResourceClaims that pods use."""
        used = {(one.pod.ref.namespace, name) for one in pods for name in one.claims}
        paths = self.paths(CLAIMS) if used else ()
        for item in self.all(paths, ClaimObject):
            key = (item.metadata.namespace, item.metadata.name)
            if key in used:
                yield key, claim_of(item, self.resources)

    def autoscalers(self) -> Iterator[Autoscaler]:
        """Autoscalers of every kind that the cluster serves."""
        for row in AUTOSCALERS:
            for item in self.all(self.paths(row), AutoscalerObject):
                found = autoscaler_of(row.kind, item)
                if found is not None:
                    yield found

    def kueue_workloads(self) -> list[ObjectSummary]:
        """Kueue's Workloads."""

        def ask(path: str) -> list[ObjectSummary]:
            version = f"{KUEUE.group}/{path.split('/')[3]}"
            items = self.cluster.list_all(path, Metadata, metadata_only=True)
            return [
                ObjectSummary(one.ref(version, KUEUE.kind), one, controls=queued_job(one))
                for one in (item.metadata for item in items)
            ]

        nothing: list[ObjectSummary] = []
        return self.first_served(self.paths(KUEUE), ask, nothing)

    def quotas(self) -> Iterator[Quota]:
        """ResourceQuotas for GPUs."""
        for item in self.all(["/api/v1/resourcequotas"], QuotaObject):
            yield from quotas_of(item, self.resources)

    def evictions(self, state_namespace: str) -> tuple[ObjectMeta, ...]:
        """Metadata of the Secrets that keep manifests of evicted pods; their contents are not read."""
        if not state_namespace:
            return ()
        path = f"/api/v1/namespaces/{state_namespace}/secrets"
        nothing: list[Metadata] = []
        secrets = self.optional(
            path,
            lambda: self.cluster.list_all(
                path,
                Metadata,
                metadata_only=True,
                label_selector=MANIFEST_LABEL,
                field_selector=MANIFEST_SELECTOR,
            ),
            nothing,
        )
        return tuple(item.metadata for item in secrets)
