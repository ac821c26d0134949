"""Matches the kubelet's allocations with NVML's devices. Pure."""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from exporter.model import Allocation, Device, Offer, PodRef
from exporter.pods.claimants import Pod, SettledAllocations
from exporter.pods.deviceids import (
    DeviceKey,
    is_network_card,
    key_if_only_gpu,
    key_of,
    key_of_claimed,
    keys_for,
)

GPU_RESOURCES = ("nvidia.com/*", "aliyun.com/gpu-mem", "volcano.sh/vgpu-number")
_DRA_DRIVER = "gpu.nvidia.com"
_DRA_PASSTHROUGH = "gpu-vfio-"  # a virtual machine has it, so NVML no longer shows it

Owners = Mapping[DeviceKey, Mapping[tuple[str, str], PodRef]]


def is_named(resource: str, names: Iterable[str]) -> bool:
    """Whether `resource` matches one of `names`, which may end in "*"."""
    return any(resource.startswith(name[:-1]) if name.endswith("*") else resource == name for name in names)


def is_gpu(allocation: Allocation, names: Iterable[str]) -> bool:
    """Whether it is a GPU: of a resource in `names`, or claimed from NVIDIA's DRA driver."""
    if allocation.owner.claim is not None:
        return allocation.resource == _DRA_DRIVER
    return is_named(allocation.resource, names)


def index(
    allocations: Iterable[Allocation],
    names: Sequence[str] = GPU_RESOURCES,
    scheduled: Mapping[Pod, tuple[DeviceKey, ...]] | None = None,
) -> Owners:
    """The pods that hold each device key.

    `scheduled`: the GPUs of the pods of which the device id does not say it.

    A pod counts once per device, however many replicas and containers it has: otherwise a sum over its series would
    count the device several times. If several of its containers have the device, its user is unknown: the container is
    empty.
    """
    owners: dict[DeviceKey, dict[tuple[str, str], PodRef]] = {}
    for allocation in allocations:
        owner = allocation.owner
        for key in _keys(allocation, scheduled or {}) if is_gpu(allocation, names) else ():
            _add(owners.setdefault(key, {}), owner)
    return owners


def owners_of(device: Device, owners: Owners) -> tuple[PodRef, ...]:
    """The pods that hold `device`, sorted by namespace and name; several if it is shared."""
    found: dict[tuple[str, str], PodRef] = {}
    for key in keys_for(device):
        for owner in owners.get(key, {}).values():
            _add(found, owner)
    return tuple(found[pod] for pod in sorted(found))


def _add(found: dict[Pod, PodRef], owner: PodRef) -> None:
    """Add a container's hold of a device to those of its pods."""
    pod = owner.namespace, owner.pod
    known = found.setdefault(pod, owner)
    if known.container != owner.container:
        found[pod] = dataclasses.replace(known, container="")


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationMap:
    """Allocated and allocatable devices by device key."""

    owners: Owners = dataclasses.field(default_factory=dict)  # pods that hold each device
    held: Mapping[DeviceKey, Mapping[Pod, int]] = dataclasses.field(default_factory=dict)  # ids of each pod
    disputed: frozenset[DeviceKey] = frozenset()  # keys whose holder is unknown
    # allocatable devices and the number of device ids of each; empty if the kubelet does not list them
    offered: Mapping[DeviceKey, int] = dataclasses.field(default_factory=dict)
    # claimed devices, each of which must match a known device
    claimed: Mapping[str, DeviceKey | None] = dataclasses.field(default_factory=dict)
    unrecognized: frozenset[str] = frozenset()  # allocated device ids in an unknown form
    unplaced: frozenset[Pod] = frozenset()  # pods that hold a GPU, but only an annotation says which

    def allocated(self, device: Device) -> bool | None:
        """Whether a pod holds `device`; None if unknown."""
        keys = set(keys_for(device))
        if not keys.isdisjoint(self.owners):
            return True
        if not keys.isdisjoint(self.disputed) or keys.isdisjoint(self.offered.keys()):
            return None
        if self.unrecognized or self.unplaced:
            return None  # it may be theirs
        if device.instance is None and any(key.uuid == device.uuid for key in self.owners):
            return None  # a pod holds an instance of it
        return False

    def replicas(self, device: Device) -> int | None:
        """The number of replicas under which the kubelet offers `device`, 1 if it is not shared; None if unknown."""
        return max((self.offered[key] for key in keys_for(device) if key in self.offered), default=None)

    def shares(self, device: Device) -> tuple[int, ...]:
        """The number of replicas of `device` that each of its owners holds, in the order of `owners_of`."""
        held: collections.Counter[Pod] = collections.Counter()
        for key in keys_for(device):
            held.update(self.held.get(key, {}))
        return tuple(held[owner.namespace, owner.pod] for owner in owners_of(device, self.owners))

    def unattributed(self, devices: Iterable[Device]) -> tuple[tuple[str, int], ...]:
        """Number of allocated devices that match none of `devices`, by reason."""
        known = {key for device in devices for key in keys_for(device)}
        missing = [name for name, key in self.claimed.items() if key not in known]
        return (
            ("ambiguous", len(self.disputed)),
            ("unknown_claim", len(missing)),
            ("unknown_gpu", len(self.unplaced)),
            ("unknown_id", len(self.unrecognized)),
        )


def map_allocations(
    settled: SettledAllocations,
    offers: Iterable[Offer],
    names: Sequence[str],
    annotated: Mapping[Pod, tuple[DeviceKey, ...] | None],
) -> AllocationMap:
    """The kubelet's answer by device key.

    `names`: the resources that are GPUs. `annotated`: the GPUs in the pods' annotations, if the API server is queried.
    """
    offered = [offer for offer in offers if is_named(offer.resource, names)]
    gpus = {key for offer in offered if (key := key_if_only_gpu(offer.device_id))}
    only = tuple(gpus) if len(gpus) == 1 else ()
    holders = {
        _pod(held): only if (chosen := annotated.get(_pod(held))) is None else chosen
        for held in settled.allocations
        if held.owner.claim is None and is_gpu(held, names) and key_if_only_gpu(held.device_id)
    }
    disputed = {key_of(device_id) for _, device_id in settled.disputed}
    return AllocationMap(
        owners=index(settled.allocations, names, holders),
        held=_held(settled.allocations, names, holders),
        disputed=frozenset(key for key in (*disputed, *map(key_of_claimed, settled.contested)) if key),
        offered=_counted(offered),
        unplaced=frozenset(pod for pod, keys in holders.items() if not keys),
        claimed={
            allocation.device_id: key_of_claimed(allocation.device_id)
            for allocation in settled.allocations
            if allocation.owner.claim is not None
            and is_gpu(allocation, names)
            and not allocation.device_id.startswith(_DRA_PASSTHROUGH)
        },
        unrecognized=frozenset(
            allocation.device_id
            for allocation in settled.allocations
            if allocation.owner.claim is None
            and is_gpu(allocation, names)
            and key_of(allocation.device_id) is None
            and key_if_only_gpu(allocation.device_id) is None
            and not is_network_card(allocation.device_id)
        ),
    )


def _held(
    allocations: Iterable[Allocation], names: Sequence[str], scheduled: Mapping[Pod, tuple[DeviceKey, ...]]
) -> dict[DeviceKey, collections.Counter[Pod]]:
    """The number of ids of each device that each pod holds, over all of its containers."""
    ids = {
        (key, _pod(held), held.resource, held.device_id)
        for held in allocations
        if is_gpu(held, names)
        for key in _keys(held, scheduled)
    }
    found: dict[DeviceKey, collections.Counter[Pod]] = {}
    for key, pod, _, _ in ids:
        found.setdefault(key, collections.Counter())[pod] += 1
    return found


def _counted(offers: Iterable[Offer]) -> dict[DeviceKey, int]:
    """The number of ids of each device; the largest if several resources offer it, and 1 for what annotations place."""
    ids = collections.Counter(
        (key, offer.resource) for offer in offers if (key := key_of(offer.device_id)) is not None
    )
    counts = {key: 1 for offer in offers if (key := key_if_only_gpu(offer.device_id)) is not None}
    for (key, _), number in ids.items():
        counts[key] = max(number, counts.get(key, 0))
    return counts


def _keys(allocation: Allocation, scheduled: Mapping[Pod, tuple[DeviceKey, ...]]) -> tuple[DeviceKey, ...]:
    if allocation.owner.claim is None and key_if_only_gpu(allocation.device_id):
        return scheduled.get(_pod(allocation), ())
    parse = key_of if allocation.owner.claim is None else key_of_claimed
    key = parse(allocation.device_id)
    return () if key is None else (key,)


def _pod(allocation: Allocation) -> Pod:
    return allocation.owner.namespace, allocation.owner.pod
