"""Structs for the fields that gpu-rightsizer reads of each API object; other fields are never decoded. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/
"""

import sys
from collections.abc import Mapping

import msgspec

from rightsizer.kube.object_names import INVALID_OWNER, invalid_name, is_possible
from rightsizer.model import ObjectRef
from rightsizer.model.change_record import Instant

ABSENT = msgspec.Raw(b"null")
"""Stands for a part that the object does not have."""


def interned(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels with shared strings: a hundred thousand pods have few different ones."""
    return {sys.intern(key): sys.intern(value) for key, value in (labels or {}).items()}


class OwnerReference(msgspec.Struct, rename="camel"):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    def ref(self, namespace: str) -> ObjectRef:
        """The reference to the owner of an object in this namespace."""
        return ObjectRef(self.api_version, self.kind, namespace, self.name, self.uid)


class ObjectMeta(msgspec.Struct, rename="camel"):
    """metav1.ObjectMeta."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: Instant | None = None
    deletion_timestamp: Instant | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with `controller: true`; an INVALID_OWNER if nothing can be called so."""
        found = next((owner for owner in self.owner_references or [] if owner.controller), None)
        if found is None or is_possible(found.ref("")):
            return found
        name = invalid_name(found.api_version, found.kind, found.name, found.uid)
        return OwnerReference("v1", INVALID_OWNER, name, controller=True)

    def ref(self, api_version: str, kind: str) -> ObjectRef:
        """The reference to this object."""
        return ObjectRef(api_version, kind, sys.intern(self.namespace), self.name, self.uid)


class Metadata(msgspec.Struct):
    """The metadata of any object."""

    metadata: ObjectMeta


class NameReference(msgspec.Struct):
    """A reference by name alone, such as corev1.ResourceClaim in a container."""

    name: str = ""


class ResourceRequirements(msgspec.Struct):
    """corev1.ResourceRequirements, with quantities as text."""

    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None
    claims: list[NameReference] | None = None


class EnvVar(msgspec.Struct, rename="camel"):
    """corev1.EnvVar; the API server leaves an empty value out."""

    name: str
    value: str | None = None
    value_from: msgspec.Raw = ABSENT


class SecurityContext(msgspec.Struct):
    """corev1.SecurityContext."""

    privileged: bool | None = None


class Container(msgspec.Struct, rename="camel"):
    """corev1.Container and corev1.EphemeralContainer."""

    name: str
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str = ""
    env: list[EnvVar] | None = None
    security_context: SecurityContext | None = None
    ports: msgspec.Raw = ABSENT
    volume_mounts: msgspec.Raw = ABSENT


class PodClaim(msgspec.Struct, rename="camel"):
    """corev1.PodResourceClaim and corev1.PodResourceClaimStatus."""

    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class ExtendedResourceClaim(msgspec.Struct, rename="camel"):
    """corev1.PodExtendedResourceClaimStatus (KEP-5004)."""

    resource_claim_name: str = ""


class SchedulingGroup(msgspec.Struct, rename="camel"):
    """corev1.PodSchedulingGroup (Kubernetes 1.36, KEP-4671)."""

    pod_group_name: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    """corev1.PodSpec; what is raw is decoded where it counts."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None
    overhead: dict[str, str | int] | None = None
    resource_claims: list[PodClaim] | None = None
    node_name: str = ""
    node_selector: dict[str, str] | None = None
    tolerations: msgspec.Raw = ABSENT
    affinity: msgspec.Raw = ABSENT
    topology_spread_constraints: msgspec.Raw = ABSENT
    volumes: msgspec.Raw = ABSENT
    scheduler_name: str = ""
    scheduling_gates: list[NameReference] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: NameReference | None = None
    eviction_responders: list[NameReference] | None = None
    priority_class_name: str = ""
    priority: int | None = None


class RunningState(msgspec.Struct, rename="camel"):
    """corev1.ContainerStateRunning."""

    started_at: Instant | None = None


class StoppedState(msgspec.Struct, rename="camel"):
    """corev1.ContainerStateWaiting and corev1.ContainerStateTerminated."""

    reason: str = ""
    finished_at: Instant | None = None


class ContainerState(msgspec.Struct):
    """corev1.ContainerState."""

    running: RunningState | None = None
    waiting: StoppedState | None = None
    terminated: StoppedState | None = None


class ContainerStatus(msgspec.Struct, rename="camel"):
    """corev1.ContainerStatus."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    last_state: ContainerState | None = None
    restart_count: int = 0
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int] | None = None


class Condition(msgspec.Struct, rename="camel"):
    """corev1.PodCondition and corev1.NodeCondition."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: Instant | None = None


class PodAddress(msgspec.Struct):
    """corev1.PodIP."""

    ip: str = ""


class PodStatus(msgspec.Struct, rename="camel"):
    """corev1.PodStatus."""

    phase: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ips: list[PodAddress] | None = msgspec.field(default=None, name="podIPs")
    nominated_node_name: str = ""
    start_time: Instant | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[PodClaim] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None
    resources: ResourceRequirements | None = None
    allocated_resources: dict[str, str | int] | None = None


class PodObject(msgspec.Struct):
    """corev1.Pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = msgspec.field(default_factory=PodStatus)


class LabelSelectorRequirement(msgspec.Struct):
    """metav1.LabelSelectorRequirement, and corev1.NodeSelectorRequirement with Gt and Lt."""

    key: str
    operator: str
    values: list[str] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool | None:
        """Whether an object with these labels matches; None if the operator is unknown."""
        value, values = labels.get(self.key), self.values or []
        match self.operator:
            case "In":
                return value in values
            case "NotIn":
                return value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return _is_beyond(value, values, self.operator)
            case _:
                return None


def _is_beyond(value: str | None, limits: list[str], operator: str) -> bool:
    if value is None or not limits or not (value.isdecimal() and limits[0].isdecimal()):
        return False
    return int(value) > int(limits[0]) if operator == "Gt" else int(value) < int(limits[0])


class LabelSelector(msgspec.Struct, rename="camel"):
    """metav1.LabelSelector; an empty one selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[LabelSelectorRequirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels matches; an unknown operator does: a budget may cover the pod."""
        return all(labels.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            requirement.holds(labels) is not False for requirement in self.match_expressions or []
        )


class DisruptionBudgetSpec(msgspec.Struct):
    """policyv1.PodDisruptionBudgetSpec."""

    selector: LabelSelector | None = None


class DisruptionBudgetStatus(msgspec.Struct, rename="camel"):
    """policyv1.PodDisruptionBudgetStatus."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None


class DisruptionBudget(msgspec.Struct):
    """policyv1.PodDisruptionBudget."""

    metadata: ObjectMeta
    spec: DisruptionBudgetSpec = msgspec.field(default_factory=DisruptionBudgetSpec)
    status: DisruptionBudgetStatus = msgspec.field(default_factory=DisruptionBudgetStatus)


class SpecObject(msgspec.Struct):
    """Any object with its undecoded spec."""

    metadata: ObjectMeta
    spec: msgspec.Raw = ABSENT


class FieldsV1(msgspec.Struct):
    """metav1.FieldsV1, limited to the spec; its keys are field names after `f:`."""

    spec: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="f:spec")


class ManagedFieldsEntry(msgspec.Struct, rename="camel"):
    """metav1.ManagedFieldsEntry."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: FieldsV1 | None = None


class OwnerMeta(ObjectMeta):
    """metav1.ObjectMeta with managedFields."""

    managed_fields: list[ManagedFieldsEntry] | None = None


class OwnerObject(msgspec.Struct):
    """An object that may own pods, with managedFields and its undecoded spec and status."""

    metadata: OwnerMeta
    spec: msgspec.Raw = ABSENT
    status: msgspec.Raw = ABSENT


class PriorityClassObject(msgspec.Struct):
    """schedulingv1.PriorityClass."""

    metadata: ObjectMeta
    value: int = 0
    global_default: bool = msgspec.field(default=False, name="globalDefault")


class QuotaStatus(msgspec.Struct):
    """corev1.ResourceQuotaStatus."""

    hard: dict[str, str | int] | None = None
    used: dict[str, str | int] | None = None


class ScopeSelector(msgspec.Struct, rename="camel"):
    """corev1.ScopedResourceSelectorRequirement."""

    scope_name: str = ""
    operator: str = ""
    values: list[str] | None = None

    @property
    def is_of_classes(self) -> bool:
        """Whether it selects pods with one of the PriorityClasses that it names."""
        return (self.scope_name, self.operator) == ("PriorityClass", "In")


class QuotaScopes(msgspec.Struct, rename="camel"):
    """corev1.ScopeSelector."""

    match_expressions: list[ScopeSelector] | None = None


class QuotaSpec(msgspec.Struct, rename="camel"):
    """corev1.ResourceQuotaSpec."""

    scopes: list[str] | None = None
    scope_selector: QuotaScopes | None = None


class QuotaObject(msgspec.Struct):
    """corev1.ResourceQuota."""

    metadata: ObjectMeta
    spec: QuotaSpec = msgspec.field(default_factory=QuotaSpec)
    status: QuotaStatus = msgspec.field(default_factory=QuotaStatus)

    @property
    def classes(self) -> frozenset[str] | None:
        """The PriorityClasses of the pods that it counts; None if it may count those of any.

        All of its scopes must match. Only `PriorityClass In` is compared with pods: any other counts as matched.
        """
        scopes = self.spec.scope_selector
        expressions = (scopes.match_expressions if scopes else None) or ()
        named = [frozenset(expression.values or ()) for expression in expressions if expression.is_of_classes]
        return frozenset.intersection(*named) if named else None
