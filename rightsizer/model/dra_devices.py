"""GPUs that DRA drivers publish in ResourceSlices, who holds them by ResourceClaims, and requests that wait. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple


class DeviceId(NamedTuple):
    """A device of a pool, as allocation results name it."""

    driver: str
    pool: str
    name: str


class CounterSet(NamedTuple):
    """Named counters of a pool, which its devices consume."""

    driver: str
    pool: str
    name: str


Counters = Mapping[str, int]
"""Amounts by the name of the counter."""


class Holding(NamedTuple):
    """A device that a claim holds, or a part of one.

    Attributes:
        share: Distinguishes those who have parts of one device; empty for the whole device.
        consumed: What a part takes of the device's capacity, by name.
    """

    id: DeviceId
    share: str = ""
    consumed: tuple[tuple[str, int], ...] = ()


MAX_OF_CLAIM = 32
"""Devices that a claim may get (resourcev1.AllocationResultsMaxSize)."""
ClaimKey = tuple[str, str]
"""Namespace and name of a ResourceClaim, or of a ResourceClaimTemplate."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraDevice:
    """A GPU, or a MIG device that exists or could be made of one.

    Attributes:
        node: Where it is.
        gpu: The physical GPU: its PCI bus ID, or its UUID; equal for all devices of one GPU.
        model: NVML's product name as GPU Feature Discovery writes it, with hyphens for spaces.
        profile: Of a MIG device, such as 1g.10gb; empty for a whole GPU.
        memory_bytes: None where the driver publishes none.
        capacity: What claims may have parts of, by name (consumable capacity); empty where one claim has the whole.
        consumes: What it takes of counters, by the name of their set; devices that together need more than there is
            exclude each other.
        taints: `key=value:effect` of those that keep claims off.
    """

    id: DeviceId
    node: str
    gpu: str
    model: str
    profile: str = ""
    memory_bytes: int | None = None
    capacity: Counters = dataclasses.field(default_factory=dict, hash=False)
    consumes: tuple[tuple[str, Counters], ...] = dataclasses.field(default=(), hash=False)
    taints: tuple[str, ...] = ()

    @property
    def is_shareable(self) -> bool:
        """Whether several claims may have parts of it."""
        return bool(self.capacity)


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """The GPUs of an allocated ResourceClaim.

    Attributes:
        devices: What it holds of them; admin access holds none.
        users: UIDs of the pods that it is reserved for, also as members of a PodGroup; of the PodGroup if it has none.
    """

    devices: tuple[Holding, ...]
    users: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A ResourceClaimTemplate that the claims of a workload's pods were made from.

    Attributes:
        spec: Its spec, as JSON.
        workload: UID of that workload.
        request: The name of its only request for GPUs; empty if it has several, alternatives, or asks for all.
        count: How many devices that requests.
    """

    name: str
    spec: bytes
    workload: str = ""
    request: str = ""
    count: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One way to satisfy a request.

    Attributes:
        eligible: Devices that match the selectors of the request and of its DeviceClass, and whose taints it tolerates.
        count: How many of them; None for all that a node has, which are none where it does not tolerate one.
        consumes: What it would take of the capacity of those that claims may have parts of.
        name: As one of several alternatives of its request; empty if it is the only one.
    """

    eligible: frozenset[DeviceId]
    count: int | None = 1
    consumes: Mapping[DeviceId, Counters] = dataclasses.field(default_factory=dict, hash=False)
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request of a ResourceClaim that waits; the first choice that fits is taken."""

    name: str
    choices: tuple[DeviceChoice, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeConstraint:
    """A constraint of a ResourceClaim: the devices of these requests have one value of an attribute, or all different.

    Attributes:
        requests: Names of the requests, or request/alternative.
        values: The value of each eligible device that has one.
        is_distinct: Whether no two may have the same value.
    """

    requests: frozenset[str]
    values: Mapping[DeviceId, object] = dataclasses.field(hash=False)
    is_distinct: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingClaim:
    """A ResourceClaim for GPUs that is not allocated."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[AttributeConstraint, ...] = ()


@dataclasses.dataclass(frozen=True)
class DeviceInventory:
    """All GPUs of complete pools, and the claims that hold them.

    Attributes:
        nodes: Devices by the name of their node.
        counters: What there is of each.
        allocations: By claim.
        incomplete: Nodes with a pool of which slices are missing: how many GPUs they have is unknown.
        classes: Names of the DeviceClasses.
    """

    nodes: Mapping[str, tuple[DraDevice, ...]] = dataclasses.field(default_factory=dict)
    counters: Mapping[CounterSet, Counters] = dataclasses.field(default_factory=dict)
    allocations: Mapping[ClaimKey, Allocation] = dataclasses.field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()
    classes: frozenset[str] = frozenset()

    @functools.cached_property
    def held(self) -> Mapping[DeviceId, frozenset[Holding]]:
        """Holdings of claims on each device that is not free."""
        found: dict[DeviceId, set[Holding]] = {}
        for allocation in self.allocations.values():
            for holding in allocation.devices:
                found.setdefault(holding.id, set()).add(holding)
        return {name: frozenset(holdings) for name, holdings in found.items()}

    def free_gpus(self, node: str) -> int:
        """Physical GPUs of a node of which no claim holds anything."""
        devices = self.nodes.get(node, ())
        return len({unit.gpu for unit in devices} - {unit.gpu for unit in devices if unit.id in self.held})

    def whole_gpus(self, node: str) -> dict[str, DraDevice]:
        """A device of each physical GPU of a node: the whole GPU where it is published."""
        found: dict[str, DraDevice] = {}
        for device in self.nodes.get(node, ()):
            if device.gpu not in found or (found[device.gpu].profile and not device.profile):
                found[device.gpu] = device
        return found
