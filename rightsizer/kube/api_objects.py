"""The few fields that we read of each API object. What stands in them besides is never decoded.

Spelling and meaning: https://kubernetes.io/docs/reference/kubernetes-api/
"""

import datetime
from collections.abc import Mapping

import msgspec

from rightsizer.kube.field_managers import ManagedFieldsEntry

NOTHING = msgspec.Raw(b"null")
"""In place of a part that is not there."""


class OwnerReference(msgspec.Struct, rename="camel"):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False

    @property
    def group(self) -> str:
        """The API group; empty for the core's."""
        return self.api_version.rpartition("/")[0]


class ObjectMeta(msgspec.Struct, rename="camel"):
    """metav1.ObjectMeta."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime.datetime | None = None
    deletion_timestamp: datetime.datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The one owner that manages this object."""
        return next((owner for owner in self.owner_references or [] if owner.controller), None)


class Metadata(msgspec.Struct):
    """Any object, as far as its metadata goes."""

    metadata: ObjectMeta


class Named(msgspec.Struct):
    """Whatever is referred to by its name alone, such as corev1.ResourceClaim in a container."""

    name: str = ""


class ResourceRequirements(msgspec.Struct):
    """corev1.ResourceRequirements; quantities as they are written."""

    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None
    claims: list[Named] | None = None


class Container(msgspec.Struct, rename="camel"):
    """corev1.Container."""

    name: str
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str = ""


class PodClaim(msgspec.Struct, rename="camel"):
    """corev1.PodResourceClaim, and corev1.PodResourceClaimStatus: a claim by the name that the pod has for it."""

    name: str
    resource_claim_name: str | None = None


class SchedulingGroup(msgspec.Struct, rename="camel"):
    """corev1.PodSchedulingGroup (Kubernetes 1.36, KEP-4671)."""

    pod_group_name: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    """corev1.PodSpec; what keeps a pod from a node stays as it is until a pod waits."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    overhead: dict[str, str | int] | None = None
    resource_claims: list[PodClaim] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    tolerations: msgspec.Raw = NOTHING
    affinity: msgspec.Raw = NOTHING
    scheduling_gates: list[Named] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: Named | None = None
    priority_class_name: str = ""
    priority: int | None = None


class RunningState(msgspec.Struct, rename="camel"):
    """corev1.ContainerStateRunning."""

    started_at: datetime.datetime | None = None


class EndedState(msgspec.Struct, rename="camel"):
    """corev1.ContainerStateWaiting and corev1.ContainerStateTerminated, as far as reason and end go."""

    reason: str = ""
    finished_at: datetime.datetime | None = None


class ContainerState(msgspec.Struct):
    """corev1.ContainerState."""

    running: RunningState | None = None
    waiting: EndedState | None = None
    terminated: EndedState | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """corev1.ContainerStatus."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState | None = None
    restart_count: int = 0


class Condition(msgspec.Struct):
    """corev1.PodCondition and corev1.NodeCondition."""

    type: str
    status: str
    reason: str = ""


class PodStatus(msgspec.Struct, rename="camel"):
    """corev1.PodStatus."""

    phase: str = ""
    start_time: datetime.datetime | None = None
    nominated_node_name: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None


class PodObject(msgspec.Struct):
    """corev1.Pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class LabelSelectorRequirement(msgspec.Struct):
    """metav1.LabelSelectorRequirement."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(msgspec.Struct, rename="camel"):
    """metav1.LabelSelector; in a PodDisruptionBudget an empty one selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these labels."""
        return all(labels.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            _holds(requirement, labels) for requirement in self.match_expressions or []
        )


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in (requirement.values or [])
        case "NotIn":
            return value not in (requirement.values or [])
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            # An operator of the future: a budget that we cannot read is taken to cover the pod.
            return True


class BudgetSpec(msgspec.Struct):
    """policyv1.PodDisruptionBudgetSpec."""

    selector: LabelSelector | None = None


class BudgetStatus(msgspec.Struct, rename="camel"):
    """policyv1.PodDisruptionBudgetStatus."""

    disruptions_allowed: int = 0


class Budget(msgspec.Struct):
    """policyv1.PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: BudgetSpec = msgspec.field(default_factory=BudgetSpec)
    status: BudgetStatus = msgspec.field(default_factory=BudgetStatus)


class Controller(msgspec.Struct):
    """Any object that may own pods; its spec stays as it is until it is known to matter."""

    metadata: ObjectMeta
    spec: msgspec.Raw = NOTHING


class OwnerMeta(ObjectMeta):
    """metav1.ObjectMeta of what owns pods: also who wrote which field."""

    managed_fields: list[ManagedFieldsEntry] | None = None


class Owner(msgspec.Struct):
    """What owns pods, with who wrote it."""

    metadata: OwnerMeta
    spec: msgspec.Raw = NOTHING


class PriorityClassObject(msgspec.Struct):
    """schedulingv1.PriorityClass."""

    metadata: ObjectMeta
    value: int = 0


class QuotaStatus(msgspec.Struct):
    """corev1.ResourceQuotaStatus."""

    hard: dict[str, str | int] | None = None
    used: dict[str, str | int] | None = None


class QuotaObject(msgspec.Struct):
    """corev1.ResourceQuota."""

    metadata: ObjectMeta
    status: QuotaStatus = msgspec.field(default_factory=QuotaStatus)
