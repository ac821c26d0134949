"""Kueue: Workloads that wait for quota, and the ClusterQueues and cohorts whose quota they share with others. Pure.

Whether a queue then admits a Workload is for Kueue to say: who holds quota of the same cohort goes for it, no more than
Kueue says is missing.

https://kueue.sigs.k8s.io/docs/concepts/cluster_queue/
https://github.com/kubernetes-sigs/kueue/tree/main/apis/kueue/v1beta2
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rightsizer.inventory.unschedulable_pods import Toleration
from rightsizer.kube.api_objects import ABSENT, ObjectMeta, OwnerReference, PodSpec
from rightsizer.kube.owner_kinds import KUEUE, OwnerKind

CLUSTER_QUEUES = OwnerKind(KUEUE.group, KUEUE.versions, "ClusterQueue", "clusterqueues")
FLAVORS = OwnerKind(KUEUE.group, KUEUE.versions, "ResourceFlavor", "resourceflavors")
LOCAL_QUEUES = OwnerKind(KUEUE.group, KUEUE.versions, "LocalQueue", "localqueues")

_SLICE = "kueue.x-k8s.io/workload-slice-replacement-for"
_LACKS = re.compile(r"insufficient unused quota for (\S+) in flavor \S+, ([0-9]+) more needed")
"""Kueue's words for quota that others hold (pkg/scheduler/flavorassigner, v0.6 to v0.14)."""
_NEVER = "maximum capacity"
"""Kueue's word for a request beyond all quota of its queue and cohort."""


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


class _Admission(msgspec.Struct, rename="camel"):
    cluster_queue: str = ""


class _Check(msgspec.Struct):
    name: str = ""
    state: str = ""


class _WorkloadSpec(msgspec.Struct, rename="camel"):
    pod_sets: msgspec.Raw = ABSENT
    queue_name: str = ""
    active: bool = True


class _WorkloadStatus(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] | None = None
    admission: _Admission | None = None
    admission_checks: list[_Check] | None = None


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
                (one.type, one.status) == ("QuotaReserved", "False") and "Preempt" not in one.reason
                for one in self.status.conditions or ()
            )
        )

    def is_over(self) -> bool:
        """Whether its job ended."""
        return any((one.type, one.status) == ("Finished", "True") for one in self.status.conditions or ())

    def why_not(self) -> str:
        """What it waits for, if that is no quota; empty otherwise."""
        for one in self.status.conditions or ():
            if one.type == "QuotaReserved" and one.reason == "Inadmissible":
                return "Kueue calls it inadmissible"
        if _NEVER in self._told and not self.lacks():
            return "Kueue says that it exceeds all quota of its queue"
        if _SLICE in (self.metadata.annotations or {}):
            return "it adds pods to a job that runs"
        checks = [
            one.name for one in self.status.admission_checks or () if one.state in {"Retry", "Rejected"}
        ]
        return f"its admission checks fail: {', '.join(checks)}" if checks else ""

    def lacks(self) -> dict[str, int]:
        """How much of each resource Kueue says that its queue lacks, in the worst flavor; empty if it does not say."""
        found: dict[str, int] = {}
        for name, amount in _LACKS.findall(self._told):
            found[name] = max(found.get(name, 0), int(amount))
        return found

    @property
    def _told(self) -> str:
        conditions = self.status.conditions or ()
        return next((one.message for one in conditions if one.type == "QuotaReserved"), "")


class KueueTable:
    """Workloads, collected page by page: of most of them only the metadata is kept.

    Attributes:
        metadata: Of all.
        waiting: Those that wait for quota.
        admitted: Those that hold quota, without their templates.
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


class _FlavorName(msgspec.Struct):
    name: str = ""


class _ResourceGroup(msgspec.Struct):
    flavors: list[_FlavorName] | None = None


class _QueueSpec(msgspec.Struct, rename="camel"):
    resource_groups: list[_ResourceGroup] | None = None
    cohort_name: str = ""
    cohort: str = ""
    stop_policy: str = "None"


class _QueueStatus(msgspec.Struct):
    conditions: list[_Condition] | None = None


class ClusterQueueObject(msgspec.Struct):
    """kueue.x-k8s.io ClusterQueue."""

    metadata: ObjectMeta
    spec: _QueueSpec = msgspec.field(default_factory=_QueueSpec)
    status: _QueueStatus = msgspec.field(default_factory=_QueueStatus)

    @property
    def shares(self) -> str:
        """Whose quota its Workloads share: its cohort's, or its own. The field has two names, by version."""
        cohort = self.spec.cohort_name or self.spec.cohort
        return f"Cohort {cohort}" if cohort else f"ClusterQueue {self.metadata.name}"

    def problem(self) -> str:
        """Why it admits nothing; empty if it may."""
        inactive = [
            one.reason
            for one in self.status.conditions or ()
            if (one.type, one.status) == ("Active", "False")
        ]
        if self.spec.stop_policy == "None" and not inactive:
            return ""
        why = ", ".join(inactive) or self.spec.stop_policy
        return f"ClusterQueue {self.metadata.name} is not active: {why}"


class _FlavorSpec(msgspec.Struct, rename="camel"):
    node_labels: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class FlavorObject(msgspec.Struct):
    """kueue.x-k8s.io ResourceFlavor: what its pods get of node labels and tolerations."""

    metadata: ObjectMeta
    spec: _FlavorSpec = msgspec.field(default_factory=_FlavorSpec)


class _LocalQueueSpec(msgspec.Struct, rename="camel"):
    cluster_queue: str = ""


class LocalQueueObject(msgspec.Struct):
    """kueue.x-k8s.io LocalQueue."""

    metadata: ObjectMeta
    spec: _LocalQueueSpec = msgspec.field(default_factory=_LocalQueueSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class Queues:
    """Kueue's queues.

    Attributes:
        local: The ClusterQueue of each LocalQueue, by namespace and name.
        flavors: By name.
    """

    cluster: Mapping[str, ClusterQueueObject] = dataclasses.field(default_factory=dict)
    local: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    flavors: Mapping[str, FlavorObject] = dataclasses.field(default_factory=dict)

    def of(self, item: WorkloadObject) -> ClusterQueueObject | None:
        """The ClusterQueue that a Workload waits in."""
        name = self.local.get((item.metadata.namespace, item.spec.queue_name), "")
        return self.cluster.get(name)

    def flavors_of(self, queue: ClusterQueueObject) -> tuple[FlavorObject, ...]:
        """Those that a ClusterQueue may give to pods."""
        names = {one.name for group in queue.spec.resource_groups or () for one in group.flavors or ()}
        return tuple(one for name, one in self.flavors.items() if name in names)

    def members(self, admitted: Iterable[WorkloadObject]) -> dict[str, str]:
        """Whose quota Workloads hold, by namespace and the UID of the job or pod that they stand for.

        Of a group of pods the first one stands for all: only all of them together give the quota back.
        """
        found: dict[str, str] = {}
        for item in admitted:
            queue = self.cluster.get(item.status.admission.cluster_queue) if item.status.admission else None
            if queue is not None:
                found |= {f"{item.metadata.namespace}/{one.uid}": queue.shares for one in item.owners[:1]}
        return found


def queues_of(
    cluster: Iterable[ClusterQueueObject], local: Iterable[LocalQueueObject], flavors: Iterable[FlavorObject]
) -> Queues:
    """All queues."""
    return Queues(
        {one.metadata.name: one for one in cluster},
        {(one.metadata.namespace, one.metadata.name): one.spec.cluster_queue for one in local},
        {one.metadata.name: one for one in flavors},
    )
