"""Single objects of the API server, reduced to what is needed: nodes, pods, PriorityClasses, managers. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping

from rightsizer.model.names import NodeAutoscaler


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """An object of the Kubernetes API."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def full_kind(self) -> str:
        """The kind with its API group, such as Deployment.apps."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def __str__(self) -> str:
        """Write the name as gpu-rightsizer's commands take it: namespace/Kind/name."""
        return f"{self.namespace}/{self.kind}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A node that has GPUs, from its status and the labels of GPU Feature Discovery and the clouds.

    Attributes:
        model: `nvidia.com/gpu.product` without its suffixes for sharing; empty where unlabelled.
        gpus: Whole GPUs in it; None where no label says so.
        memory_bytes: Of each GPU; None where no label says so.
        allocatable: GPU resources that it offers, by name.
        sharing: How several pods share a GPU ("time-slicing", "mps", "hami", "gpushare"); empty where none do.
        pool: Node pool or group, by the labels of OKE, EKS, AKS, GKE and Karpenter.
        instance_type: `node.kubernetes.io/instance-type`.
        region: `topology.kubernetes.io/region`.
        is_spot: Whether a label of its cloud or of Karpenter says that the cloud may take it back at any time.
        cloud: By `spec.providerID`: aws, azure, gcp or oci; empty where it is none of these.
        is_ready: Whether its kubelet says so.
        is_open: Whether new pods may come: ready, not cordoned, no taint of the end.
        taints: `key=value:effect` of those that keep pods off.
        pooled: How many of its GPUs are handed out by amounts of them (HAMi, gpushare).
        autoscaler: Karpenter where a label names it; cluster-autoscaler where the node is of a cloud's node group,
            which it may scale or not; None where nothing tells.
        kept_by: The annotation of the node that keeps its autoscaler from removing it; empty where there is none.
    """

    name: str
    model: str = ""
    gpus: int | None = None
    memory_bytes: int | None = None
    allocatable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    sharing: str = ""
    pool: str = ""
    zone: str = ""
    region: str = ""
    is_spot: bool = False
    instance_type: str = ""
    cloud: str = ""
    is_ready: bool = True
    is_open: bool = True
    taints: tuple[str, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pooled: int = 0
    autoscaler: NodeAutoscaler | None = None
    kept_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """Why an autoscaler does not evict a pod.

    Attributes:
        until: When that ends; None if never.
    """

    reason: str
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class OtherPods:
    """The pods of a node that hold no GPUs.

    Attributes:
        number: Of those that do not go with the node, as DaemonSets' do.
        kept_by: By autoscaler, the hold that lasts longest.
        system: Those in kube-system that cluster-autoscaler evicts only if a PodDisruptionBudget covers their labels.
    """

    number: int = 0
    kept_by: Mapping[NodeAutoscaler, Hold] = dataclasses.field(default_factory=dict)
    system: tuple[tuple[str, Mapping[str, str]], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PriorityClass:
    """scheduling.k8s.io/v1 PriorityClass, with gpu-rightsizer's annotations, if any.

    Attributes:
        is_default: Whether pods without a class get it.
    """

    name: str
    value: int
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_default: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Manager:
    """Another controller that manages a workload, and may revert changes.

    Attributes:
        kind: Such as "Argo CD", "Flux", "Helm", "HorizontalPodAutoscaler", "KEDA", "Kueue".
        name: The object or release, as far as it is known.
        reverts: Whether it reverts changes by itself, and soon.
        exception: What to configure on its side so that it does not; empty where nothing can be.
        scales: Whether the number of replicas is its business.
        wakes: Whether it starts a workload without replicas again on the next request.
    """

    kind: str
    name: str = ""
    reverts: bool = False
    exception: str = ""
    scales: bool = False
    wakes: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod that holds, or waits for, GPUs.

    Attributes:
        devices: GPUs or shares that the scheduler reserves for it, over all GPU resource names and DRA claims.
        unusable: The part of them that no long-running container can use: requested by ordinary init containers alone.
        is_shared: Whether its node hands out shares of GPUs (time-slicing, MPS), so that several of `devices` may be
            one GPU.
        started: Latest start among its GPU containers, so that a restart makes it young; None while one is not running.
        priority: As admitted into its spec; None where the API server resolved none.
        is_static: A mirror pod of the kubelet.
        share: How much of a GPU each of them is: less than 1 for a MIG instance or a share.
        unreadable: Why its devices cannot be counted, each as a predicate of the pod.
        resources: What it asks for, by resource name; of a DRA claim by `deviceclass:NAME`.
        needs: What it needs beyond GPUs: CPU in thousandths of a core, memory in bytes, one of "pods".
        claims: Names of its ResourceClaims, also of the one that the scheduler made of its extended resources.
        created: `metadata.creationTimestamp`.
        restarts: Of its GPU containers together.
        waiting: Why a container of it does not run, such as CrashLoopBackOff; empty where none waits.
        bound: When the scheduler gave it its node; None where that is not known.
        acknowledged: When the kubelet saw it first (`status.startTime`); None before.
        awaits_request: Whether it names responders of EvictionRequests, so that nobody should evict it without one.
        terminates_by: When its grace period ends, once it is deleted.
        reach: Why it can use GPUs of its node that it does not hold, in words; empty if nothing says that it can.
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
    share: float = 1.0
    unreadable: tuple[str, ...] = ()
    resources: Mapping[str, int] = dataclasses.field(default_factory=dict)
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    claims: tuple[str, ...] = ()
    created: datetime.datetime | None = None
    restarts: int = 0
    waiting: str = ""
    ended: str = ""
    ended_at: datetime.datetime | None = None
    bound: datetime.datetime | None = None
    acknowledged: datetime.datetime | None = None
    awaits_request: bool = False
    terminates_by: datetime.datetime | None = None
    reach: str = ""
    unusable: int = 0

    @property
    def usable(self) -> int:
        """Devices that its long-running containers can use; PodResources lists no others."""
        return self.devices - self.unusable

    @property
    def held_since(self) -> datetime.datetime | None:
        """The time from which its GPUs are taken; None where that is not known."""
        return self.bound or self.created or self.started

    @property
    def gpus(self) -> float:
        """Whole GPUs that it asks for, of which MIG instances and shares are parts."""
        return self.devices * self.share

    @property
    def holds(self) -> bool:
        """Whether its GPUs are taken: bound to a node, and not ended."""
        return bool(self.node) and self.phase in {"Pending", "Running", "Unknown"}
