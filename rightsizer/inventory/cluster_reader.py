"""Reads all input of a plan, from the API server or a file, in pages, and keeps only the needed fields."""

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from rightsizer.changes.record_codec import MANIFEST_LABEL, MANIFEST_SELECTOR
from rightsizer.errors import ConfigurationError
from rightsizer.inventory.demand import DemandObjects, DemandState, asked_of_dra, demand_state
from rightsizer.inventory.demand_kinds import (
    NO_QUEUES,
    JobObject,
    NamedQueues,
    Template,
    TemplateTable,
    template_owners,
    waiting_jobs,
)
from rightsizer.inventory.dra_state import Asked, DraState, dra_state, with_devices
from rightsizer.inventory.gpu_requests import ResourceTable, parse_gpu_resource
from rightsizer.inventory.kueue_queues import (
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    LOCAL_QUEUES,
    ClusterQueueObject,
    CohortObject,
    FlavorObject,
    KueueTable,
    LocalQueueObject,
    Queues,
    WorkloadObject,
    queues_of,
)
from rightsizer.inventory.managers import AUTOSCALERS, Autoscaler, AutoscalerObject, autoscaler_of, queued_job
from rightsizer.inventory.nodes import NodeObject, NodeTable
from rightsizer.inventory.obstacles import (
    CSI_NODES,
    CsiNodeObject,
    Occupants,
    VolumeClaimObject,
    VolumeObject,
    Volumes,
    topology_keys,
    volumes_of,
)
from rightsizer.inventory.owner_reader import FEW_OWNERS, OptionalLister, OwnerReader
from rightsizer.inventory.pod_groups import (
    GROUP_KINDS,
    VOLCANO,
    VOLCANO_QUEUES,
    GroupObject,
    VolcanoQueue,
)
from rightsizer.inventory.pods import PodReader, PodTable
from rightsizer.inventory.resource_claims import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    ClaimObject,
    ClassObject,
    TemplateObject,
)
from rightsizer.inventory.resource_slices import SLICES, TAINT_RULES, SliceObject, SliceTable, TaintRuleObject
from rightsizer.inventory.unschedulable_pods import UnschedulablePod
from rightsizer.inventory.workload_builder import ClusterState, priority_class_of, quotas_of
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    Metadata,
    ObjectMeta,
    PodObject,
    PriorityClassObject,
    QuotaObject,
    SpecObject,
)
from rightsizer.kube.cluster import ObjectReader
from rightsizer.kube.kept_objects import KeptObjects, Parsing
from rightsizer.kube.object_names import api_path
from rightsizer.kube.owner_kinds import JOB, KUEUE, ObjectSummary, OwnerKind
from rightsizer.model import PriorityClass

log = logging.getLogger(__name__)

_Kind = TypeVar("_Kind")

KEPT: Final[Mapping[str, type[Any]]] = {"/api/v1/pods": PodObject, "/api/v1/nodes": NodeObject}
"""The collections that are worth to be watched: nearly all that a cycle reads."""

FEW_NODES = 32
"""Up to this many nodes are read one by one; for more the collection is listed."""


def read_cluster(
    cluster: ObjectReader,
    kinds: Collection[tuple[str, str]],
    *,
    namespace: str | None = None,
    state_namespace: str = "",
    kept: KeptObjects | None = None,
    queues: NamedQueues = NO_QUEUES,
) -> ClusterState:
    """Read the whole cluster, or what concerns the workloads of one namespace.

    Args:
        cluster: Where the objects are.
        kinds: API groups and kinds that gpu-rightsizer changes; changed objects are read even without pods.
        namespace: The only namespace to read.
        state_namespace: Where manifests of evicted pods are kept; unused with one namespace.
        kept: Collections that need not be listed.
        queues: Those whose gated pods and suspended Jobs wait for GPUs, and labels of gangs.

    Raises:
        ClusterError: Something could not be read completely.
        ConfigurationError: The name of a GPU resource is invalid.
    """
    reader = _ClusterReader(cluster, f"/namespaces/{namespace}" if namespace else "", kept)
    add = Parsing(PodReader(reader.resources, queues.gates, queues.gang_labels), PodTable.add)
    pods = reader.reduce(f"/api/v1{reader.scope}/pods", PodObject, PodTable, add=add)
    kueue = reader.kueue()
    quotas = [] if namespace else reader.all(["/api/v1/resourcequotas"], QuotaObject)
    demand = DemandState() if namespace else reader.demand(pods, kueue, quotas, queues)
    unschedulable = () if namespace else tuple(pods.unschedulable)
    dra = reader.dra(pods, unschedulable, demand, is_whole=namespace is None)
    named = frozenset(one.pod.node for one in pods.gpu_pods if one.pod.node) | dra.devices.nodes.keys()
    owners = {(one.owner.group, one.owner.kind) for one in pods.gpu_pods if one.owner is not None}
    keys = topology_keys(pods.occupants) if unschedulable or demand.queued else frozenset[str]()
    nodes = reader.nodes(named, keys, is_whole=namespace is None)
    volumes = reader.volumes(unschedulable, demand)
    found = ClusterState(
        pods=pods.grouped,
        addresses=pods.addresses,
        unschedulable=unschedulable,
        owners=OwnerReader(reader, pods.gpu_pods).read(() if namespace else kinds),
        nodes={name: with_devices(node, dra.devices) for name, node in nodes.nodes.items()},
        capacities=volumes.capacities(nodes.capacities(pods.requested)),
        occupants=Occupants(pods.occupants, nodes.domains),
        nominated=pods.nominated,
        volumes=volumes,
        other_pods=pods.other_pods,
        unknown_gpus=nodes.unknown_gpus,
        other_resources=pods.others,
        namespaces={one.name: one for one in reader.namespaces(namespace)},
        priority_classes={one.name: one for one in read_priority_classes(cluster)},
        dra=dra,
        autoscalers=tuple(reader.autoscalers()),
        kueue_workloads=tuple(_summaries(kueue)),
        demand=demand,
        resources=reader.resources,
        quotas=tuple(one for item in quotas for one in quotas_of(item, reader.resources)),
        evictions=() if namespace else reader.evictions(state_namespace),
        # last, so that they are as fresh as possible when they are evaluated
        disruption_budgets=tuple(
            cluster.list_all(f"/apis/policy/v1{reader.scope}/poddisruptionbudgets", DisruptionBudget)
        ),
        problems=(*reader.problems, *pods.problems, *dra.problems),
        # Only for Jobs does the version of Kubernetes matter.
        minor=cluster.minor() if ("batch", "Job") in owners else None,
    )
    for problem in found.problems:
        log.log(logging.DEBUG if namespace else logging.WARNING, "%s", problem)
    return found


def _summaries(kueue: KueueTable) -> Iterator[ObjectSummary]:
    for one in kueue.metadata:
        yield ObjectSummary(
            one.ref(f"{KUEUE.group}/{kueue.version}", KUEUE.kind), one, controls=queued_job(one)
        )


def read_priority_classes(cluster: ObjectReader) -> Iterator[PriorityClass]:
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
    def __init__(self, cluster: ObjectReader, scope: str, kept: KeptObjects | None) -> None:
        super().__init__(cluster, scope)
        self.resources = resource_table(cluster.gpu_resources)
        self.reduce = functools.partial(kept.reduce, cluster) if kept else cluster.reduce

    def nodes(self, named: frozenset[str], keys: frozenset[str], *, is_whole: bool) -> NodeTable:
        """All nodes with GPUs, or the named ones."""
        start = functools.partial(NodeTable, self.resources, named, keys)
        if is_whole or len(named) > FEW_NODES:
            return self.reduce("/api/v1/nodes", NodeObject, start, add=NodeTable.add)
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

    def dra(
        self,
        pods: PodTable,
        unschedulable: Sequence[UnschedulablePod],
        demand: DemandState,
        *,
        is_whole: bool,
    ) -> DraState:
        """Published GPUs, and the claims for them: of one namespace only those that its pods use."""
        asked = asked_of_dra(pods, unschedulable, demand, self.resources)
        if not (is_whole or asked.used):
            return DraState()
        holding = frozenset(one.pod.node for one in pods.gpu_pods if one.claims and one.pod.node)
        is_few = not is_whole and len(holding) <= FEW_NODES
        slices = self._slices(holding if is_few else None)
        if not (asked.used or slices):
            return DraState()
        return dra_state(
            self.all(self.paths(CLAIMS), ClaimObject),
            slices,
            self._all_served(TAINT_RULES, TaintRuleObject) if slices and is_whole else (),
            self._all_served(CLASSES, ClassObject) if slices else (),
            self._templates(pods, asked),
            asked=asked,
            resources=self.resources,
        )

    def _templates(self, pods: PodTable, asked: Asked) -> list[TemplateObject]:
        """The ResourceClaimTemplates that claims of GPU pods were made from, or will be."""
        names = {(one.pod.ref.namespace, name) for one in pods.gpu_pods for name, _ in one.templates}
        names |= asked.templates
        found = self._all_served(TEMPLATES, TemplateObject) if names else []
        return [one for one in found if (one.metadata.namespace, one.metadata.name) in names]

    def _slices(self, nodes: Collection[str] | None) -> SliceTable:
        """The devices that DRA drivers publish, on these nodes or on all."""

        def ask(path: str) -> SliceTable:
            if nodes is None:
                return self.cluster.reduce(path, SliceObject, SliceTable, add=SliceTable.add)
            table = SliceTable()
            for name in sorted(nodes):
                selector = f"spec.nodeName={name}"
                table.add(self.cluster.list_all(path, SliceObject, field_selector=selector))
            return table

        return self.if_served(SLICES, ask, SliceTable())

    def _all_served(self, row: OwnerKind, kind: type[_Kind]) -> list[_Kind]:
        nothing: list[_Kind] = []
        return self.if_served(row, functools.partial(self.cluster.list_all, kind=kind), nothing)

    def volumes(self, unschedulable: Sequence[UnschedulablePod], demand: DemandState) -> Volumes:
        """The volumes of what waits, if any has some."""
        if not any(one.volume_claims for one in unschedulable) and not demand.queued:
            return Volumes()
        ask = functools.partial(self.cluster.list_all, kind=CsiNodeObject)
        return volumes_of(
            self.all(["/api/v1/persistentvolumeclaims"], VolumeClaimObject),
            self.all(["/api/v1/persistentvolumes"], VolumeObject),
            self.if_served(CSI_NODES, ask, None),
        )

    def autoscalers(self) -> Iterator[Autoscaler]:
        """Autoscalers of every kind that the cluster serves."""
        for row in AUTOSCALERS:
            for item in self.all(self.paths(row), AutoscalerObject):
                found = autoscaler_of(row.kind, item)
                if found is not None:
                    yield found

    def kueue(self) -> KueueTable:
        """Kueue's Workloads."""

        def ask(path: str) -> KueueTable:
            start = functools.partial(KueueTable, path.split("/")[3])
            is_part = bool(self.scope)  # which is not asked for demand
            return self.cluster.reduce(path, WorkloadObject, start, add=KueueTable.add, metadata_only=is_part)

        return self.first_served(self.paths(KUEUE), ask, KueueTable(""))

    def demand(
        self, pods: PodTable, kueue: KueueTable, quotas: Sequence[QuotaObject], named: NamedQueues
    ) -> DemandState:
        """Demand in addition to unschedulable pods."""
        queues = Queues()
        if kueue.waiting:
            queues = queues_of(
                self.all(self.paths(CLUSTER_QUEUES, scope=""), ClusterQueueObject),
                self.all(self.paths(LOCAL_QUEUES), LocalQueueObject),
                self.all(self.paths(FLAVORS, scope=""), FlavorObject),
                self.all(self.paths(COHORTS, scope=""), CohortObject),
            )
        groups = [
            (row, item)
            for row in GROUP_KINDS
            # Only Volcano's hold pods back; those of others matter if pods name them.
            if row.of is VOLCANO
            or any((one[0], one[1]) == (row.of.group, row.of.kind) for one in pods.members)
            for item in self.all(self.paths(row.of), GroupObject)
        ]
        limits = self.all(self.paths(VOLCANO_QUEUES, scope=""), VolcanoQueue) if groups else []
        jobs = self._suspended(kueue) if named.jobs else ()
        objects = DemandObjects(kueue, queues, groups, limits, quotas, jobs, named)
        return demand_state(objects, pods, self.resources, self._templates_of)

    def _suspended(self, kueue: KueueTable) -> list[JobObject]:
        """The suspended Jobs; all Jobs are read page by page, and the others are not kept."""

        def add(found: list[JobObject], items: Sequence[JobObject]) -> None:
            found += waiting_jobs(items, kueue)

        start: Callable[[], list[JobObject]] = list
        return self.cluster.reduce(self.paths(JOB)[0], JobObject, start, add=add)

    def _templates_of(self, groups: Sequence[GroupObject]) -> dict[str, tuple[Template, ...]]:
        """The pod templates of PodGroups' owners: a few are read one by one, for more the collection is listed."""
        found: dict[str, tuple[Template, ...]] = {}
        for row, wanted in template_owners(groups).items():
            start = functools.partial(TemplateTable, row, wanted.keys())
            if len(wanted) > FEW_OWNERS:
                ask = functools.partial(
                    self.cluster.reduce, kind=SpecObject, start=start, add=TemplateTable.add
                )
                found |= self.first_served(self.paths(row), ask, start()).found
            else:
                table = start()
                for owner, namespace in wanted.values():
                    table.add(self._named(row, namespace, owner.name))
                found |= table.found
        return found

    def _named(self, row: OwnerKind, namespace: str, name: str) -> list[SpecObject]:
        """The object of a kind with this name, in each version that is served."""
        paths = [f"{path}/{name}" for path in self.paths(row, scope=f"/namespaces/{namespace}")]
        asked = (
            self.optional(path, functools.partial(self.cluster.find, path, SpecObject), None)
            for path in paths
        )
        return [one for one in asked if one is not None]

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
