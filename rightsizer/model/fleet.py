"""The fleet as the API server knows it: the workloads that pods make up, and earlier changes. Pure."""

import array
import bisect
import collections
import dataclasses
import datetime
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from rightsizer.model.change_record import ChangeRecord, FoundChange
from rightsizer.model.cluster_objects import Manager, Node, ObjectRef, OtherPods, Pod, PriorityClass
from rightsizer.model.dra_devices import ClaimTemplate, DeviceInventory, WaitingClaim
from rightsizer.model.measurements import PodKey
from rightsizer.model.offers import Offer, Pools, offers_of, pools_of


class Address(NamedTuple):
    """The owner of an address; the namespace is empty for a node, or for a pod with the node's address.

    Attributes:
        is_of_host: Whether it is a node's address, not its name.
    """

    namespace: str
    node: str
    is_of_host: bool = False


class AddressTable:
    """The addresses of all running pods in 16 bytes each, and the addresses and names of their nodes."""

    def __init__(self) -> None:
        self._names: list[str] = []  # of namespaces and nodes
        self._numbers: dict[str, int] = {}
        self._nodes: dict[str, str] = {}
        self._on_hosts: set[int] = set()  # namespaces of pods with the address of their node, and the node
        # Hashes differ from process to process, so nobody can choose an address with the hash of another.
        self._keys = array.array("q")
        self._namespaces, self._places = array.array("I"), array.array("I")
        self._is_sorted = True

    def add(self, namespace: str, node: str, host: str, addresses: Iterable[str]) -> None:
        """Add a pod, and its node, whose address is `host`."""
        self._nodes[node] = node
        # An address of several nodes, such as a proxy, identifies none.
        if host and self._nodes.setdefault(host, node) != node:
            self._nodes[host] = ""
        for address in addresses:
            if address and address == host:
                self._on_hosts.add(self._number(namespace) << 32 | self._number(node))
            elif address:
                self._keys.append(hash(address))
                self._namespaces.append(self._number(namespace))
                self._places.append(self._number(node))
                self._is_sorted = False

    def find(self, address: str) -> Address | None:
        """The owner of an address; None if unknown. The first call sorts, so it is not thread-safe."""
        if address in self._nodes:
            node = self._nodes[address]
            return Address("", node, is_of_host=node != address) if node else None
        if not self._is_sorted:
            order = sorted(range(len(self._keys)), key=self._keys.__getitem__)
            for name in ("_keys", "_namespaces", "_places"):
                column = getattr(self, name)
                setattr(self, name, array.array(column.typecode, map(column.__getitem__, order)))
            self._is_sorted = True
        place = bisect.bisect_left(self._keys, hash(address))
        if place == len(self._keys) or self._keys[place] != hash(address):
            return None
        return Address(self._names[self._namespaces[place]], self._names[self._places[place]])

    def has_pod_on_host(self, namespaces: Iterable[str], node: str) -> bool:
        """Whether a pod of these namespaces has the address of this node."""
        number = self._numbers.get(node, -1)
        return any(self._numbers.get(name, -1) << 32 | number in self._on_hosts for name in namespaces)

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number


@dataclasses.dataclass(frozen=True, slots=True)
class Whereabouts:
    """Nodes and addresses of pods."""

    pods: Mapping[PodKey, str]  # the node of each pod that holds GPUs
    addresses: AddressTable


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
class Workload:
    """A unit that is judged and changed as one: the topmost known controller with its GPU pods, a gang, or a bare pod.

    Attributes:
        generation: The object's `metadata.generation`; 0 where it has none.
        resource_version: The object's `metadata.resourceVersion`, as read; empty where it was not read itself.
        size: What stopping changes, as read: replicas, or whether suspended; None for a pod.
        budgets: PodDisruptionBudgets that cover its pods, by name, with the disruptions they allow now.
        is_terminating: Whether the object itself is being deleted.
        created: The object's `metadata.creationTimestamp`.
        managers: Other controllers that manage it.
        gang: What makes its pods one where that is no controller, such as "PodGroup team-a/train"; empty otherwise.
        came_back_after: The longest pause after which it was resumed, by the annotations of gpu-rightsizer.
        control_object: The object that stops it in its place, such as Kueue's Workload; None if it is stopped itself.
        starter: What made it when the time had come, and makes the next, such as a CronJob.
        scalable: The scale subresource of its kind by discovery, if the kind is unknown.
        past: Earlier changes of it, or of other Jobs of its CronJob, oldest first.
        spec: The object's, as JSON; empty where it was not read.
        status: The same of a kind whose status is read.
        owned: The objects between it and its pods.
        claim_templates: The ResourceClaimTemplates that its pods' claims for GPUs were made from.
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
    past: tuple[ChangeRecord, ...] = ()
    namespace_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    control_object: ObjectRef | None = None
    starter: ObjectRef | None = None
    scalable: Scalable | None = None
    spec: bytes = b""
    status: bytes = b""
    owned: tuple[ObjectRef, ...] = ()
    claim_templates: tuple[ClaimTemplate, ...] = ()

    @property
    def holding(self) -> tuple[Pod, ...]:
        """The pods that hold GPUs now."""
        return tuple(pod for pod in self.pods if pod.holds)

    @property
    def gpus(self) -> float:
        """Whole GPUs that its pods hold now, of which MIG instances and shares are parts: the one count of GPUs."""
        whole = round(sum(pod.gpus for pod in self.pods if pod.holds), 6)
        return int(whole) if whole == int(whole) else whole

    @property
    def devices(self) -> int:
        """GPUs, MIG instances and shares that its pods hold now."""
        return sum(pod.devices for pod in self.pods if pod.holds)

    @property
    def parts(self) -> int:
        """The MIG instances and shares among them."""
        return sum(pod.devices for pod in self.pods if pod.holds and pod.share < 1)

    @property
    def priority_class(self) -> str:
        """PriorityClass of its pods; the highest's where they differ."""
        return max(((pod.priority or 0, pod.priority_class) for pod in self.pods), default=(0, ""))[1]

    @property
    def priority(self) -> int:
        """Highest priority among its pods."""
        return max((pod.priority or 0 for pod in self.pods), default=0)


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


QuotaKey = tuple[str, str]
"""A pool of a queue's quota, such as the cohort of a ClusterQueue, and a resource in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class QueueOption:
    """One way in which a queue would admit a gang.

    Attributes:
        nodes: The nodes that its pods may then use; None for any.
        amounts: The quota that it takes.
    """

    nodes: frozenset[str] | None
    amounts: Mapping[QuotaKey, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Gang:
    """Pods that start together.

    Attributes:
        ref: The object that makes them one.
        needs: How many of those that wait must have a place for any of them to start.
        topology: The label of which the nodes of all of them must have the same value; empty for any nodes.
        options: Ways in which its queue would admit it; empty if no quota is in the way.
    """

    ref: ObjectRef
    needs: int = 1
    topology: str = ""
    options: tuple[QueueOption, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Unserved:
    """Demand for which freeing GPUs would do nothing, or it is unknown whether it would.

    Attributes:
        what: The object, or a number of pods, for people.
        why: For people.
    """

    what: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class QueueQuotas:
    """The quota of queues.

    Attributes:
        free: What is unused.
        held: What the stop of a workload returns, by its namespace and the UID of it or of one of its pods.
    """

    free: Mapping[QuotaKey, float] = dataclasses.field(default_factory=dict)
    held: Mapping[str, Mapping[QuotaKey, float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that the scheduler cannot place, but could if GPUs were freed; or one that a queue does not create yet.

    Attributes:
        ref: The pod; of one that does not exist yet, the object that waits.
        resources: The GPUs that it asks for, by resource name.
        nodes: Those that would take it, by name, were they empty, as far as taints, selectors, node affinity and what
            they have tell.
        needs: What it needs beyond GPUs, as a Pod's.
        gang: Its gang; None if it can start alone.
        claims: Its ResourceClaims for GPUs.
        backed: By resource, the claim that the scheduler makes of it on nodes without a device plugin.
        created: When it, or the object that waits, was created; None if unknown.
        kept_off: By node, the UIDs of pods that must not be there: they have its host ports, or repel it.
    """

    ref: ObjectRef
    resources: Mapping[str, int]
    priority: int
    priority_class: str
    nodes: frozenset[str]
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    gang: Gang | None = None
    claims: tuple[WaitingClaim, ...] = ()
    backed: Mapping[str, WaitingClaim] = dataclasses.field(default_factory=dict)
    created: datetime.datetime | None = None
    kept_off: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    @property
    def demand(self) -> ObjectRef:
        """The gang or, without one, the pod alone: it is served whole or not at all."""
        return self.gang.ref if self.gang else self.ref

    @property
    def is_created(self) -> bool:
        """Whether there is such a pod, or a queue holds it back."""
        return self.ref.kind == "Pod"


class _Claimant(Protocol):
    """A pod that waits for claims, and for resources that a claim may stand for."""

    @property
    def claims(self) -> tuple[WaitingClaim, ...]: ...
    @property
    def backed(self) -> Mapping[str, WaitingClaim]: ...


def backed_on(pod: _Claimant, node: Node | None) -> list[str]:
    """The resources that a pod would get by a claim on a node: those that no device plugin offers there."""
    return [name for name in pod.backed if node is not None and not node.allocatable.get(name)]


def claims_on(pod: _Claimant, node: Node | None) -> tuple[WaitingClaim, ...]:
    """All claims that a pod would have on a node."""
    return (*pod.claims, *(pod.backed[name] for name in backed_on(pod, node)))


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """Limit and use of one resource by a ResourceQuota: GPUs, pods, or what they request of CPU and memory.

    Attributes:
        resource: As a pod's resources and needs name it.
        classes: The PriorityClasses of the pods that it counts; None if it may count those of any.
    """

    namespace: str
    name: str
    resource: str
    hard: int
    used: int
    classes: frozenset[str] | None = None

    def counts(self, priority_class: str) -> bool:
        """Whether it counts pods of a PriorityClass, or may."""
        return self.classes is None or priority_class in self.classes


_Found = TypeVar("_Found")


@dataclasses.dataclass(frozen=True)
class Fleet:
    """State of the API server from which a plan is made. Without slots, so that what follows is worked out once.

    Attributes:
        nodes: Those with GPUs, by name.
        problems: What could not be read, or is not there where it should be, in words.
        waiting: Pods that wait for GPUs, those of the highest priority first.
        spare: What nodes have free beyond GPUs, by node and then as a Pod's needs.
        free: GPUs that nobody requested, by node and resource.
        nominated: Priority and requests of the pods for which the scheduler keeps room, by node.
        devices: GPUs that DRA drivers publish.
        queues: The quota of queues that pods wait for.
        unserved: What waits, but not for GPUs that could be freed.
        minor: The API server is of Kubernetes 1.minor; None where that is not known.
        namespaces: Names of all that exist; empty where they are not known.
        other_pods: Those without GPUs, by node.
        unknown_gpus: Resources with names like GPUs', but unknown, with the nodes that offer them.
        other_resources: Extended resources of running pods without known GPU resources.
    """

    workloads: tuple[Workload, ...]
    nodes: Mapping[str, Node]
    classes: Mapping[str, PriorityClass]
    changes: tuple[FoundChange, ...] = ()
    stranded: tuple[Stranded, ...] = ()
    waiting: tuple[WaitingPod, ...] = ()
    spare: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict, repr=False)
    free: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict, repr=False)
    nominated: Mapping[str, Sequence[tuple[int, Mapping[str, int]]]] = dataclasses.field(
        default_factory=dict, repr=False
    )
    devices: DeviceInventory = dataclasses.field(default_factory=DeviceInventory, repr=False)
    queues: QueueQuotas = dataclasses.field(default_factory=QueueQuotas, repr=False)
    unserved: tuple[Unserved, ...] = ()
    quotas: tuple[Quota, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None
    addresses: AddressTable = dataclasses.field(default_factory=AddressTable, repr=False, compare=False)
    namespaces: frozenset[str] = dataclasses.field(default=frozenset(), repr=False)
    other_pods: Mapping[str, OtherPods] = dataclasses.field(default_factory=dict, repr=False)
    unknown_gpus: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)
    other_resources: Mapping[PodKey, tuple[str, ...]] = dataclasses.field(default_factory=dict, repr=False)

    def once(self, key: Hashable, find: Callable[[], _Found]) -> _Found:
        """The result of `find`, computed once for each key."""
        if key not in self._known:
            self._known[key] = find()
        return cast("_Found", self._known[key])

    @functools.cached_property
    def _known(self) -> dict[Hashable, object]:
        return {}

    @functools.cached_property
    def pods_on(self) -> Mapping[str, tuple[Pod, ...]]:
        """The GPU pods of each node, by its name."""
        found: dict[str, list[Pod]] = {}
        for workload in self.workloads:
            for pod in workload.holding:
                found.setdefault(pod.node, []).append(pod)
        return {name: tuple(pods) for name, pods in found.items()}

    @functools.cached_property
    def awaited(self) -> Mapping[str, int]:
        """Sum of the waiting pods' requests, by resource name; without pods that a queue holds back."""
        found: collections.Counter[str] = collections.Counter()
        for pod in self.waiting:
            if pod.is_created:
                found.update(pod.resources)
        return found

    @functools.cached_property
    def quotas_in(self) -> Mapping[str, tuple[Quota, ...]]:
        """The quotas of each namespace."""
        found: dict[str, tuple[Quota, ...]] = {}
        for quota in self.quotas:
            found[quota.namespace] = (*found.get(quota.namespace, ()), quota)
        return found

    @functools.cached_property
    def offers(self) -> Mapping[str, tuple[Offer, ...]]:
        """Open nodes that have some of a GPU resource free, by its name."""
        return offers_of(self.nodes, self.pods_on)

    @functools.cached_property
    def pools(self) -> Mapping[str, tuple[Pools, ...]]:
        """Open nodes that hand out amounts of GPUs, by the plain name of the model; those alike together."""
        return pools_of(self.nodes, self.pods_on)
