"""Asks the API server for everything that a plan is made from, in pages, keeping only what is needed."""

import logging
from collections.abc import Collection, Iterator, Sequence

from rightsizer.changes.records import MANIFEST_LABEL
from rightsizer.errors import ConfigurationError
from rightsizer.inventory import claims
from rightsizer.inventory.claims import Claim, ClaimObject, claim_of
from rightsizer.inventory.cluster_state import (
    NodeTable,
    Objects,
    by_name,
    class_of,
    quotas_of,
)
from rightsizer.inventory.managers import SCALERS, Scaler, ScalerObject, scaler_of
from rightsizer.inventory.nodes import NodeObject
from rightsizer.inventory.owner_chain import read_owners
from rightsizer.inventory.pods import PodTable, Seen, ref_of
from rightsizer.inventory.resources import ResourceTable, parse_gpu_resource
from rightsizer.inventory.scale_targets import queue_about
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    Metadata,
    ObjectMeta,
    PodObject,
    PriorityClassObject,
    QuotaObject,
)
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.optional_lists import OptionalLister
from rightsizer.kube.owner_kinds import KUEUE, ObjectSummary
from rightsizer.model import PriorityClass, Quota

log = logging.getLogger(__name__)

FEW_NODES = 32
"""So many nodes are asked for one by one; of more the collection is listed."""


def read(
    cluster: Cluster,
    kinds: Collection[tuple[str, str]],
    *,
    namespace: str | None = None,
    all_nodes: bool = False,
    state_namespace: str = "",
) -> Objects:
    """Read the whole cluster, or all that concerns the workloads of one namespace.

    Args:
        cluster: Where.
        kinds: API groups and kinds that may carry a record of ours: what does is read also where it has no pods.
        namespace: All namespaces where none is given.
        all_nodes: Of one namespace: not only the nodes that its pods are on, but whatever a node offers.
        state_namespace: Ours, where evicted pods' manifests are kept; of no interest to the reading of one namespace.

    Raises:
        ClusterError: Something could not be read whole.
        ConfigurationError: A name of a GPU resource cannot be meant.
    """
    reader = _Reader(cluster, f"/namespaces/{namespace}" if namespace else "")
    pods = cluster.reduce(
        f"/api/v1{reader.scope}/pods", PodObject, lambda: PodTable(reader.resources), add=PodTable.add
    )
    named = frozenset(one.pod.node for one in pods.seen if one.pod.node)
    nodes = reader.nodes(named, is_whole=namespace is None or all_nodes)
    found = Objects(
        pods=tuple(pods.seen),
        waiting=() if namespace else tuple(pods.waiting),
        controllers=read_owners(reader, pods.seen, () if namespace else kinds),
        nodes=nodes.nodes,
        rooms=nodes.with_requests(pods.requested),
        namespaces=by_name(reader.namespaces(namespace)),
        priority_classes={one.name: one for one in read_classes(cluster)},
        claims=dict(reader.claims(pods.seen)),
        scalers=tuple(reader.scalers()),
        queued=tuple(reader.queued()),
        quotas=() if namespace else tuple(reader.quotas()),
        evictions=() if namespace else reader.evictions(state_namespace),
        # Last, so that as little time as can be passes between reading them and what they decide about.
        budgets=tuple(
            cluster.list_all(f"/apis/policy/v1{reader.scope}/poddisruptionbudgets", DisruptionBudget)
        ),
        problems=(*reader.problems, *pods.problems),
        minor=cluster.minor() if any(map(_is_of_job, pods.seen)) else None,
    )
    for problem in found.problems:
        log.log(logging.DEBUG if namespace else logging.WARNING, "%s", problem)
    return found


def _is_of_job(seen: Seen) -> bool:
    """Only for what becomes of Jobs it matters which version the API server is of."""
    return seen.owner is not None and (seen.owner.group, seen.owner.kind) == ("batch", "Job")


def read_priority_classes(cluster: Cluster) -> Iterator[str]:
    """Names of the cluster's PriorityClasses."""
    return (one.name for one in read_classes(cluster))


def read_classes(cluster: Cluster) -> Iterator[PriorityClass]:
    """The cluster's PriorityClasses."""
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    return map(class_of, cluster.list_all(path, PriorityClassObject))


def resource_table(texts: Sequence[str]) -> ResourceTable:
    """Which resources are GPUs, with those that are configured.

    Raises:
        ConfigurationError: One of the texts cannot be meant.
    """
    try:
        return ResourceTable(tuple(map(parse_gpu_resource, texts)))
    except ValueError as error:
        raise ConfigurationError(f"--gpu-resource: {error}") from error


class _Reader(OptionalLister):
    """One reading."""

    def __init__(self, cluster: Cluster, scope: str) -> None:
        super().__init__(cluster, scope)
        self.resources = resource_table(cluster.gpu_resources)

    def nodes(self, named: frozenset[str], *, is_whole: bool) -> NodeTable:
        """All nodes with GPUs, or those that pods are on."""

        def start() -> NodeTable:
            return NodeTable(self.resources, named)

        if is_whole or len(named) > FEW_NODES:
            return self.cluster.reduce("/api/v1/nodes", NodeObject, start, add=NodeTable.add)
        table = start()
        for name in sorted(named):
            item = self.one(f"/api/v1/nodes/{name}", NodeObject)
            table.add([item] if item else [])
        return table

    def namespaces(self, namespace: str | None) -> list[ObjectMeta]:
        """All of them, or the one."""
        if namespace:
            items = [self.cluster.get(f"/api/v1/namespaces/{namespace}", Metadata)]
        else:
            items = self.cluster.list_all("/api/v1/namespaces", Metadata, metadata_only=True)
        return [item.metadata for item in items]

    def claims(self, seen: Sequence[Seen]) -> Iterator[tuple[tuple[str, str], Claim]]:
        """ResourceClaims, where pods use any; only those about GPUs, or that pods ask for, stand for anything."""
        used = {(one.pod.ref.namespace, name) for one in seen for name in one.claims}
        paths = self.paths(claims.GROUP, claims.VERSIONS, "resourceclaims") if used else ()
        for item in self.all(paths, ClaimObject):
            key = (item.metadata.namespace, item.metadata.name)
            if key in used:
                yield key, claim_of(item, self.resources)

    def scalers(self) -> Iterator[Scaler]:
        """Autoscalers of every kind that is served."""
        for row in SCALERS:
            for item in self.all(self.paths(row.group, row.versions, row.plural), ScalerObject):
                scaler = scaler_of(row.kind, item)
                if scaler is not None:
                    yield scaler

    def queued(self) -> list[ObjectSummary]:
        """Kueue's Workloads, which stand for the jobs that it admits as a whole."""
        nothing: list[ObjectSummary] = []

        def ask(path: str) -> list[ObjectSummary]:
            version = f"{KUEUE.group}/{path.split('/')[3]}"
            items = self.cluster.list_all(path, Metadata, metadata_only=True)
            return [
                ObjectSummary(
                    ref_of(version, KUEUE.kind, item.metadata),
                    item.metadata,
                    controls=queue_about(item.metadata),
                )
                for item in items
            ]

        return self.first_served(self.paths(KUEUE.group, KUEUE.versions, KUEUE.plural), ask, nothing)

    def quotas(self) -> Iterator[Quota]:
        """ResourceQuotas, as far as they are about GPUs."""
        for item in self.all(["/api/v1/resourcequotas"], QuotaObject):
            yield from quotas_of(item, self.resources)

    def evictions(self, state_namespace: str) -> tuple[ObjectMeta, ...]:
        """Metadata of the Secrets that keep evicted pods' manifests; what they hold is not asked for."""
        if not state_namespace:
            return ()
        path = f"/api/v1/namespaces/{state_namespace}/secrets"
        secrets = self.all([path], Metadata, metadata_only=True, label_selector=MANIFEST_LABEL)
        return tuple(item.metadata for item in secrets)
