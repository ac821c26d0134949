"""What the API server knows: pods, the workloads that they make up, nodes, PriorityClasses. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping

from rightsizer.model.names import Action, End


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """An object of the Kubernetes API."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @property
    def full_kind(self) -> str:
        """The kind with its API group, such as Deployment.apps."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.kind}.{group}" if group else self.kind

    def __str__(self) -> str:
        """As kubectl and our own commands take it: namespace/Kind/name."""
        return f"{self.namespace}/{self.kind}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node that has GPUs, from its status and the labels of GPU Feature Discovery and the clouds.

    Attributes:
        model: `nvidia.com/gpu.product` without its suffixes for sharing; empty where unlabelled.
        gpus: Whole GPUs in it; None where no label says so.
        memory_bytes: Of each GPU; None where no label says so.
        allocatable: GPU resources that it offers, by name.
        sharing: How several pods come to share a GPU ("time-slicing", "mps", "hami", "gpushare"); empty where none do.
        pool: Node pool or group, by the labels of OKE, EKS, AKS, GKE and Karpenter.
        instance_type: `node.kubernetes.io/instance-type`.
        is_ready: Whether its kubelet says so.
        is_open: Whether new pods may come: ready, not cordoned, no taint of the end.
        taints: `key=value:effect` of those that keep pods off.
    """

    name: str
    model: str = ""
    gpus: int | None = None
    memory_bytes: int | None = None
    allocatable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    sharing: str = ""
    pool: str = ""
    zone: str = ""
    instance_type: str = ""
    is_ready: bool = True
    is_open: bool = True
    taints: tuple[str, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class PriorityClass:
    """scheduling.k8s.io/v1 PriorityClass, with our annotations if it carries any."""

    name: str
    value: int
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Manager:
    """Something else that decides about a workload, so that a change of ours may be fought or undone.

    Attributes:
        kind: Such as "Argo CD", "Flux", "Helm", "HorizontalPodAutoscaler", "KEDA", "Kueue".
        name: The object or release, as far as it is known.
        reverts: Whether it puts back what is changed by itself, and soon.
        exception: What to configure on its side so that it does not; empty where nothing can be.
        scales: Whether the number of replicas is its business.
    """

    kind: str
    name: str = ""
    reverts: bool = False
    exception: str = ""
    scales: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod that holds, or waits for, GPUs.

    Attributes:
        devices: GPUs or shares that its containers request, over all GPU resource names and DRA claims.
        is_shared: Whether its node hands out shares of GPUs (time-slicing, MPS), so that several of `devices` may be
            one GPU.
        started: Latest start among its GPU containers, so that a restart makes it young; None while one is not running.
        priority: As admitted into its spec; None where the API server resolved none.
        is_static: A mirror pod of the kubelet.
        unreadable: What its containers request that is no whole number of devices, in words.
        resources: What it asks for, by resource name; of a DRA claim by `deviceclass:NAME`.
        created: `metadata.creationTimestamp`.
        restarts: Of its GPU containers together.
        waiting: Why a container of it does not run, such as CrashLoopBackOff; empty where none waits.
        ended: Why one of its GPU containers last ended, such as OOMKilled; and `ended_at` when. Empty where none did.
    """

    ref: ObjectRef
    node: str
    phase: str
    devices: int
    is_shared: bool
    started: datetime.datetime | None
    priority_class: str
    priority: int | None
    is_ready: bool
    is_terminating: bool
    is_static: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    unreadable: tuple[str, ...] = ()
    resources: Mapping[str, int] = dataclasses.field(default_factory=dict)
    created: datetime.datetime | None = None
    restarts: int = 0
    waiting: str = ""
    ended: str = ""
    ended_at: datetime.datetime | None = None

    @property
    def holds(self) -> bool:
        """Whether its GPUs are taken: bound to a node, and not ended."""
        return bool(self.node) and self.phase in {"Pending", "Running", "Unknown"}


@dataclasses.dataclass(frozen=True, slots=True)
class Scalable:
    """A kind of which only the scale subresource is known, by discovery.

    Attributes:
        plural: As in a URL.
        replicas: Path of the number of replicas, by its CustomResourceDefinition; empty where that cannot be read.
    """

    plural: str
    replicas: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PastChange:
    """A change of ours as the object itself remembers it, also when nothing is left to be undone.

    Attributes:
        at: When it was made; None where the memory cannot be read, which counts as now.
        run: The run that made it.
        action: As `Action` spells it.
        gpus: What it freed; negative where it gave some back.
        by: The instance that made it; empty where that is not known.
        end: How it was taken back; None while it stands, as far as is known.
        ended: When that was, or was noticed.
    """

    at: datetime.datetime | None
    run: str = ""
    action: str = ""
    gpus: int = 0
    by: str = ""
    end: End | None = None
    ended: datetime.datetime | None = None

    @property
    def takes(self) -> bool:
        """Whether it took something away."""
        return self.action != Action.GROW


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """What is judged and acted upon as one: the topmost known controller with all its GPU pods, a gang, or a bare pod.

    Attributes:
        generation: The object's `metadata.generation`; 0 where it has none.
        resource_version: The object's `metadata.resourceVersion`, as read; empty where it was not read itself.
        size: What stopping changes, as read: replicas, or whether suspended; None for a pod.
        budgets: PodDisruptionBudgets that cover its pods, by name, with the disruptions they allow now.
        is_terminating: Whether the object itself is being deleted.
        created: The object's `metadata.creationTimestamp`.
        managers: Who else decides about it.
        gang: What makes its pods one where that is no controller, such as "PodGroup team-a/train"; empty otherwise.
        came_back_after: The longest pause after which it was put back, as our notes on it say.
        lever: What is changed in its place to stop it, such as Kueue's Workload; None where that is itself.
        starter: What made it when the time had come, and makes the next, such as a CronJob.
        scalable: What discovery says of its kind, where it is none of those that we know.
        past: What we did to it, or to its like of the same CronJob, oldest first.
        spec: The object's, as JSON; empty where it was not read.
    """

    ref: ObjectRef
    generation: int
    resource_version: str
    pods: tuple[Pod, ...]
    size: int | bool | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    namespace_annotations: Mapping[str, str]
    budgets: Mapping[str, int]
    is_terminating: bool = False
    created: datetime.datetime | None = None
    managers: tuple[Manager, ...] = ()
    gang: str = ""
    came_back_after: datetime.timedelta | None = None
    past: tuple[PastChange, ...] = ()
    namespace_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    lever: ObjectRef | None = None
    starter: ObjectRef | None = None
    scalable: Scalable | None = None
    spec: bytes = b""

    @property
    def gpus(self) -> int:
        """GPUs (or shares, or MIG instances) that its pods hold now."""
        return sum(pod.devices for pod in self.pods if pod.holds)

    @property
    def priority_class(self) -> str:
        """PriorityClass of its pods; the highest's where they differ."""
        return max(((pod.priority or 0, pod.priority_class) for pod in self.pods), default=(0, ""))[1]

    @property
    def priority(self) -> int:
        """Highest priority among its pods."""
        return max((pod.priority or 0 for pod in self.pods), default=0)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A change that we made and that the cluster still tells of: what budgets over time and cooldowns count.

    Attributes:
        ref: What was changed; of an evicted pod what keeps its manifest, where that does not name it.
        at: When, by the record.
        gpus: What it freed; 0 where the record does not say.
        run: The run that made it.
        pools: The node pools in which it did.
        starter: What had made it when the time had come, such as a CronJob.
        stands: Whether nobody took it back, as far as is known.
        priority_class: Of the pods that it was about, empty where they had none; None where the record does not say.
        is_told: Whether an object or a saved manifest tells of it; otherwise our own namespace alone remembers it.
    """

    ref: ObjectRef
    at: datetime.datetime
    gpus: int
    run: str = ""
    pools: tuple[str, ...] = ()
    starter: ObjectRef | None = None
    stands: bool = True
    priority_class: str | None = None
    is_told: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Stranded:
    """GPUs of one resource that are free on a node, and why no waiting pod can take them.

    Attributes:
        free: How many.
        reasons: For people; empty where nothing waits for them.
        waiting: The pods that ask for the resource and wait, at most a few.
    """

    node: str
    resource: str
    free: int
    reasons: tuple[str, ...]
    waiting: tuple[ObjectRef, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that the scheduler found no place for, and that would get one if somebody gave GPUs back.

    Attributes:
        resources: The GPUs that it asks for, by resource name.
        nodes: Those that would take it, by name, as far as taints, selectors and node affinity tell.
    """

    ref: ObjectRef
    resources: Mapping[str, int]
    priority: int
    priority_class: str
    nodes: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """What a ResourceQuota allows a namespace of one GPU resource, and what is used of it."""

    namespace: str
    name: str
    resource: str
    hard: int
    used: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """Everything of the API server that a plan is made from.

    Attributes:
        nodes: Those with GPUs, by name.
        problems: What could not be read, or is not there where it should be, in words.
        pods_on: The GPU pods of each node, by its name; follows from `workloads`.
        offers: Of each GPU resource that open nodes offer, by its name: one node for each way in which they differ as
            to model, memory, sharing and how many parts a GPU is cut into; follows from `nodes`.
        waiting: Pods that wait for GPUs, those of the highest priority first.
        minor: The API server is of Kubernetes 1.minor; None where that is not known.
    """

    workloads: tuple[Workload, ...]
    nodes: Mapping[str, Node]
    classes: Mapping[str, PriorityClass]
    changes: tuple[Change, ...] = ()
    stranded: tuple[Stranded, ...] = ()
    waiting: tuple[WaitingPod, ...] = ()
    quotas: tuple[Quota, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None
    pods_on: Mapping[str, tuple[Pod, ...]] = dataclasses.field(init=False, repr=False, compare=False)
    offers: Mapping[str, tuple[Node, ...]] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Look up once what would otherwise be sought for every workload anew."""
        object.__setattr__(self, "pods_on", _pods_on(self.workloads))
        object.__setattr__(self, "offers", _offers(self.nodes))


def _pods_on(workloads: tuple[Workload, ...]) -> dict[str, tuple[Pod, ...]]:
    found: dict[str, list[Pod]] = {}
    for workload in workloads:
        for pod in workload.pods:
            if pod.holds:
                found.setdefault(pod.node, []).append(pod)
    return {name: tuple(pods) for name, pods in found.items()}


def _offers(nodes: Mapping[str, Node]) -> dict[str, tuple[Node, ...]]:
    found: dict[str, dict[tuple[object, ...], Node]] = {}
    for name in sorted(nodes):
        node = nodes[name]
        for resource, count in node.allocatable.items() if node.is_open else ():
            if count > 0:
                kind = (node.model, node.memory_bytes, node.sharing, node.gpus and count / node.gpus)
                found.setdefault(resource, {}).setdefault(kind, node)
    return {resource: tuple(kinds.values()) for resource, kinds in found.items()}
