"""The few fields that we read of each API object. What stands in them besides is never decoded.

Spelling and meaning: https://kubernetes.io/docs/reference/kubernetes-api/
"""

import datetime

import msgspec


class OwnerReference(msgspec.Struct, rename="camel"):
    """metav1.OwnerReference."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False


class ObjectMeta(msgspec.Struct, rename="camel"):
    """metav1.ObjectMeta."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
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


class ResourceRequirements(msgspec.Struct):
    """corev1.ResourceRequirements; quantities as they are written."""

    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None


class Container(msgspec.Struct, rename="camel"):
    """corev1.Container."""

    name: str
    resources: ResourceRequirements = msgspec.field(default_factory=ResourceRequirements)
    restart_policy: str = ""


class PodSpec(msgspec.Struct, rename="camel"):
    """corev1.PodSpec."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    node_name: str = ""
    priority_class_name: str = ""
    priority: int | None = None


class RunningState(msgspec.Struct, rename="camel"):
    """corev1.ContainerStateRunning."""

    started_at: datetime.datetime | None = None


class ContainerState(msgspec.Struct):
    """corev1.ContainerState."""

    running: RunningState | None = None


class ContainerStatus(msgspec.Struct):
    """corev1.ContainerStatus."""

    name: str
    state: ContainerState = msgspec.field(default_factory=ContainerState)


class Condition(msgspec.Struct):
    """corev1.PodCondition."""

    type: str
    status: str


class PodStatus(msgspec.Struct, rename="camel"):
    """corev1.PodStatus."""

    phase: str = ""
    start_time: datetime.datetime | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


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

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether it selects an object with these labels."""
        return all(labels.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            _holds(requirement, labels) for requirement in self.match_expressions or []
        )


def _holds(requirement: LabelSelectorRequirement, labels: dict[str, str]) -> bool:
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


class ControllerSpec(msgspec.Struct):
    """What stopping changes in Deployment, StatefulSet and Job."""

    replicas: int | None = None
    suspend: bool | None = None


class Controller(msgspec.Struct):
    """A Deployment, StatefulSet or Job, as far as its size and ownership go."""

    metadata: ObjectMeta
    spec: ControllerSpec = msgspec.field(default_factory=ControllerSpec)
