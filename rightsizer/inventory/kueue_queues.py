"""Kueue: Workloads that wait for quota, and the quota that ClusterQueues and their cohorts have. Pure.

A Workload is started by free GPUs only if its queue has quota for it, or gets it back from those that are stopped.
Admission checks, stopped queues and quota of others than that are not in our hands.

https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
https://github.com/kubernetes-sigs/kueue/tree/main/apis/kueue/v1beta2
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.inventory.gpu_requests import amount_of
from rightsizer.inventory.unschedulable_pods import Toleration, tolerates
from rightsizer.kube.api_objects import ABSENT, ObjectMeta, OwnerReference, PodSpec
from rightsizer.kube.owner_kinds import KUEUE, OwnerKind
from rightsizer.model import Node, QueueOption, QueueQuotas, QuotaKey

CLUSTER_QUEUES = OwnerKind(KUEUE.group, KUEUE.versions, "ClusterQueue", "clusterqueues")
LOCAL_QUEUES = OwnerKind(KUEUE.group, KUEUE.versions, "LocalQueue", "localqueues")
FLAVORS = OwnerKind(KUEUE.group, KUEUE.versions, "ResourceFlavor", "resourceflavors")
COHORTS = OwnerKind(KUEUE.group, KUEUE.versions, "Cohort", "cohorts")

_SLICE = "kueue.x-k8s.io/workload-slice-replacement-for"
_Amounts = dict[str, str | int]


class TemplateMeta(msgspec.Struct):
    """metav1.ObjectMeta of a pod template."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(msgspec.Struct):
    """corev1.PodTemplateSpec."""

    spec: PodSpec
    metadata: TemplateMeta = msgspec.field(default_factory=TemplateMeta)


class _TopologyRequest(msgspec.Struct, rename="camel"):
    required: str | None = None
    pod_set_slice_required_topology: str | None = None


class PodSet(msgspec.Struct, rename="camel"):
    """Kueue's PodSet: pods of one template."""

    template: PodTemplate
    count: int = 1
    topology_request: _TopologyRequest | None = None


class _Condition(msgspec.Struct):
    type: str
    status: str
    reason: str = ""
    message: str = ""

    def tells_of_preemption(self) -> bool:
        """Whether Kueue preempts others: by its reason, or by the end of its message (pkg/scheduler/scheduler.go)."""
        return "Preempt" in self.reason or "Pending the preemption of" in self.message


class _Assignment(msgspec.Struct, rename="camel"):
    flavors: dict[str, str] | None = None
    resource_usage: _Amounts | None = None


class _Admission(msgspec.Struct, rename="camel"):
    cluster_queue: str = ""
    pod_set_assignments: list[_Assignment] | None = None


class _Check(msgspec.Struct):
    name: str = ""
    state: str = ""


class _WorkloadSpec(msgspec.Struct, rename="camel"):
    pod_sets: msgspec.Raw = ABSENT
    queue_name: str = ""
    active: bool = True


class _PodSetRequest(msgspec.Struct):
    resources: _Amounts | None = None


class _WorkloadStatus(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] | None = None
    admission: _Admission | None = None
    admission_checks: list[_Check] | None = None
    resource_requests: list[_PodSetRequest] | None = None


class WorkloadObject(msgspec.Struct):
    """kueue.x-k8s.io Workload; its templates are only decoded if it waits."""

    metadata: ObjectMeta
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)
    status: _WorkloadStatus = msgspec.field(default_factory=_WorkloadStatus)

    @property
    def owners(self) -> Sequence[OwnerReference]:
        """The job, or the pods, that it stands for."""
        return self.metadata.owner_references or ()

    def waits(self) -> bool:
        """Whether Kueue tried to reserve quota for it, and failed."""
        is_gone = self.metadata.deletion_timestamp is not None or self.is_over()
        return (
            self.spec.active
            and not is_gone
            and any(
                # Once Kueue preempts others for it, nobody else has to go.
                (one.type, one.status) == ("QuotaReserved", "False") and not one.tells_of_preemption()
                for one in self.status.conditions or ()
            )
        )

    def is_over(self) -> bool:
        """Whether its job ended."""
        return any((one.type, one.status) == ("Finished", "True") for one in self.status.conditions or ())

    def why_not(self) -> str:
        """The reason why it waits, if that is no quota; empty otherwise."""
        for one in self.status.conditions or ():
            if one.type == "QuotaReserved" and one.reason == "Inadmissible":
                return "Kueue calls it inadmissible"
        if _SLICE in (self.metadata.annotations or {}):
            return "it adds pods to a job that runs"
        checks = [
            one.name for one in self.status.admission_checks or () if one.state in {"Retry", "Rejected"}
        ]
        return f"its admission checks fail: {', '.join(checks)}" if checks else ""


class KueueTable:
    """Workloads, collected page by page: of most of them only the metadata is kept.

    Attributes:
        metadata: Of all.
        waiting: Those that wait for quota.
        admitted: Those that hold quota.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self.metadata: list[ObjectMeta] = []
        self.waiting: list[WorkloadObject] = []
        self.admitted: list[WorkloadObject] = []

    def add(self, items: Sequence[WorkloadObject]) -> None:
        """Add a page of Workloads."""
        for item in items:
            self.metadata.append(item.metadata)
            if item.waits():
                self.waiting.append(item)
            elif item.status.admission is not None and not item.is_over():
                item.spec.pod_sets = ABSENT
                self.admitted.append(item)


class _ResourceQuota(msgspec.Struct, rename="camel"):
    name: str
    nominal_quota: str | int = 0
    borrowing_limit: str | int | None = None
    lending_limit: str | int | None = None


class _FlavorQuotas(msgspec.Struct):
    name: str
    resources: list[_ResourceQuota] | None = None


class _ResourceGroup(msgspec.Struct, rename="camel"):
    covered_resources: list[str] | None = None
    flavors: list[_FlavorQuotas] | None = None


class _QueueSpec(msgspec.Struct, rename="camel"):
    resource_groups: list[_ResourceGroup] | None = None
    cohort_name: str = ""
    cohort: str = ""
    stop_policy: str = "None"


class _Total(msgspec.Struct):
    name: str
    total: str | int = 0


class _FlavorUsage(msgspec.Struct):
    name: str
    resources: list[_Total] | None = None


class _QueueStatus(msgspec.Struct, rename="camel"):
    flavors_reservation: list[_FlavorUsage] | None = None
    conditions: list[_Condition] | None = None


class ClusterQueueObject(msgspec.Struct):
    """kueue.x-k8s.io ClusterQueue."""

    metadata: ObjectMeta
    spec: _QueueSpec = msgspec.field(default_factory=_QueueSpec)
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)

    @property
    def cohort(self) -> str:
        """Named so in v1beta2 and v1beta1."""
        return self.spec.cohort_name or self.spec.cohort

    def quotas(self) -> Iterator[tuple[str, _ResourceQuota]]:
        """Each quota, with its flavor."""
        for group in self.spec.resource_groups or ():
            for flavor in group.flavors or ():
                for one in flavor.resources or ():
                    yield flavor.name, one


class _LocalQueueSpec(msgspec.Struct, rename="camel"):
    cluster_queue: str = ""


class LocalQueueObject(msgspec.Struct):
    """kueue.x-k8s.io LocalQueue."""

    metadata: ObjectMeta
    spec: _LocalQueueSpec = msgspec.field(default_factory=_LocalQueueSpec)


class _FlavorSpec(msgspec.Struct, rename="camel"):
    node_labels: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class FlavorObject(msgspec.Struct):
    """kueue.x-k8s.io ResourceFlavor."""

    metadata: ObjectMeta
    spec: _FlavorSpec = msgspec.field(default_factory=_FlavorSpec)


class _CohortSpec(msgspec.Struct, rename="camel"):
    parent_name: str = ""
    parent: str = ""
    resource_groups: list[msgspec.Raw] | None = None


class CohortObject(msgspec.Struct):
    """kueue.x-k8s.io Cohort."""

    metadata: ObjectMeta
    spec: _CohortSpec = msgspec.field(default_factory=_CohortSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class Queues:
    """Kueue's queues.

    Attributes:
        local: The ClusterQueue of each LocalQueue, by namespace and name.
        flavors: By name.
        nested: Cohorts that belong to others or have quota of their own.
    """

    cluster: Mapping[str, ClusterQueueObject] = dataclasses.field(default_factory=dict)
    local: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    flavors: Mapping[str, FlavorObject] = dataclasses.field(default_factory=dict)
    nested: frozenset[str] = frozenset()

    def of(self, item: WorkloadObject) -> ClusterQueueObject | None:
        """The ClusterQueue that a Workload waits in."""
        name = self.local.get((item.metadata.namespace, item.spec.queue_name), "")
        return self.cluster.get(name)


def queues_of(
    cluster: Iterable[ClusterQueueObject],
    local: Iterable[LocalQueueObject],
    flavors: Iterable[FlavorObject],
    cohorts: Iterable[CohortObject],
) -> Queues:
    """All queues."""
    nested: set[str] = set()
    for one in cohorts:
        parent = one.spec.parent_name or one.spec.parent
        nested |= {one.metadata.name, parent} if parent else set()
        nested |= {one.metadata.name} if one.spec.resource_groups else set()
    return Queues(
        {one.metadata.name: one for one in cluster},
        {(one.metadata.namespace, one.metadata.name): one.spec.cluster_queue for one in local},
        {one.metadata.name: one for one in flavors},
        frozenset(nested),
    )


def queue_problem(queue: ClusterQueueObject | None, queues: Queues) -> str:
    """Why it is unknown, or impossible, that a queue admits more; empty if it may."""
    if queue is None:
        return "its LocalQueue or ClusterQueue does not exist, or could not be read"
    inactive = [
        one.reason for one in queue.status.conditions or () if (one.type, one.status) == ("Active", "False")
    ]
    if queue.spec.stop_policy != "None" or inactive:
        return f"ClusterQueue {queue.metadata.name} is not active: {', '.join(inactive) or queue.spec.stop_policy}"
    if queue.cohort in queues.nested:
        return f"cohort {queue.cohort} of ClusterQueue {queue.metadata.name} is nested: its quota is not computed"
    members = [one for one in queues.cluster.values() if queue.cohort and one.cohort == queue.cohort]
    if any(quota.lending_limit is not None for one in members for _, quota in one.quotas()):
        return f"cohort {queue.cohort} has lending limits: its quota is not computed"
    return ""


def _pools(queue: ClusterQueueObject, quota: _ResourceQuota) -> Iterator[tuple[str, float]]:
    """The pools that a quota belongs to, each with what it adds."""
    nominal = float(amount_of(quota.name, quota.nominal_quota))
    if queue.cohort:
        yield f"Cohort {queue.cohort}", nominal
        if quota.borrowing_limit is not None:
            yield (
                f"ClusterQueue {queue.metadata.name}",
                nominal + amount_of(quota.name, quota.borrowing_limit),
            )
    else:
        yield f"ClusterQueue {queue.metadata.name}", nominal


def _keys(queue: ClusterQueueObject, flavor: str, resource: str) -> Iterator[QuotaKey]:
    for of, quota in queue.quotas():
        if (of, quota.name) == (flavor, resource):
            for pool, _ in _pools(queue, quota):
                yield pool, f"{flavor}/{resource}"


def quotas_of_queues(queues: Queues, admitted: Iterable[WorkloadObject]) -> QueueQuotas:
    """Free amounts of each quota, and amounts that the Workloads that hold it return."""
    free: dict[QuotaKey, float] = collections.defaultdict(float)
    for queue in queues.cluster.values():
        for key, amount in _unused(queue):
            free[key] += amount
    held: dict[str, dict[QuotaKey, float]] = {}
    for item in admitted:
        # Of a group of pods any one of them stands for it; only all of them together give the quota back.
        for owner in item.owners[:1]:
            mine = held.setdefault(f"{item.metadata.namespace}/{owner.uid}", {})
            for key, amount in _reserved(item, queues):
                mine[key] = mine.get(key, 0.0) + amount
    return QueueQuotas(dict(free), held)


def _unused(queue: ClusterQueueObject) -> Iterator[tuple[QuotaKey, float]]:
    """Amounts that it adds to each pool, and as negative ones those that it uses."""
    for flavor, quota in queue.quotas():
        for pool, amount in _pools(queue, quota):
            yield (pool, f"{flavor}/{quota.name}"), amount
    for used in queue.status.flavors_reservation or ():
        for one in used.resources or ():
            for key in _keys(queue, used.name, one.name):
                yield key, -float(amount_of(one.name, one.total))


def _reserved(item: WorkloadObject, queues: Queues) -> Iterator[tuple[QuotaKey, float]]:
    """The quota that a Workload holds."""
    admission = item.status.admission or _Admission()
    queue = queues.cluster.get(admission.cluster_queue)
    for each in (admission.pod_set_assignments or ()) if queue is not None else ():
        for name, flavor in (each.flavors or {}).items():
            for key in _keys(queue, flavor, name) if queue is not None else ():
                yield key, amount_of(name, (each.resource_usage or {}).get(name))


def quota_requests(item: WorkloadObject) -> dict[str, float]:
    """The quota that all of its pods need as Kueue computed it, by resource name; empty if it has told nothing.

    Claims count there by the resource that Kueue's `deviceClassMappings` name.
    """
    total: collections.Counter[str] = collections.Counter()
    for one in item.status.resource_requests or ():
        total.update({name: amount_of(name, amount) for name, amount in (one.resources or {}).items()})
    return {name: float(amount) for name, amount in total.items()}


def options_of(
    queue: ClusterQueueObject,
    queues: Queues,
    asked: Mapping[str, float],
    nodes: Mapping[str, Node],
    *,
    gpus: Iterable[str],
    tolerations: Sequence[Toleration],
) -> tuple[QueueOption, ...]:
    """The flavors that could admit pods that ask for these amounts together, in the queue's order.

    Args:
        queue: The ClusterQueue.
        queues: All queues.
        asked: Amounts by resource name.
        nodes: By name.
        gpus: The GPU resources among them, which flavors must cover.
        tolerations: Those of the pods.
    """
    groups = [
        one
        for one in queue.spec.resource_groups or ()
        if not asked.keys().isdisjoint(one.covered_resources or ())
    ]
    wanted = set(gpus)
    if not wanted <= {name for one in groups for name in one.covered_resources or ()}:
        return ()
    main = [one for one in groups if wanted & set(one.covered_resources or ())]
    fixed = [(one.flavors or [])[0].name for one in groups if one not in main and one.flavors]
    if len(main) != 1:
        return ()
    found = []
    for flavor in main[0].flavors or ():
        item = queues.flavors.get(flavor.name)
        if item is None:
            continue
        allowed = (*tolerations, *(item.spec.tolerations or ()))
        labels = item.spec.node_labels or {}
        fit = frozenset(
            name
            for name, node in nodes.items()
            if all(node.labels.get(key) == value for key, value in labels.items())
            and all(any(tolerates(one, taint) for one in allowed) for taint in node.taints)
        )
        amounts = {
            key: amount
            for used in (flavor.name, *fixed)
            for name, amount in asked.items()
            for key in _keys(queue, used, name)
        }
        found.append(QueueOption(fit, amounts))
    return tuple(found)
