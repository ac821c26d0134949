"""Which pods hold which device: the kubelet's allocations laid over the devices that NVML shows. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from exporter.model import Allocation, Device, Offer, PodRef
from exporter.pods.claimants import Settled
from exporter.pods.deviceids import DeviceKey, key_of, key_of_claimed, keys_for

NVIDIA_RESOURCES = "nvidia.com/*"
_DRA_DRIVER = "gpu.nvidia.com"
_DRA_UNSEEN = "gpu-vfio-"  # passed through to a virtual machine: not NVML's any more

Owners = Mapping[DeviceKey, Mapping[tuple[str, str], PodRef]]


def is_named(resource: str, names: Iterable[str]) -> bool:
    """Whether `resource` is one of `names`, of which those that end in "*" stand for all that begin so."""
    return any(resource.startswith(name[:-1]) if name.endswith("*") else resource == name for name in names)


def is_gpu(allocation: Allocation, names: Iterable[str]) -> bool:
    """Whether it is about a GPU: of a resource with one of `names`, or claimed from NVIDIA's driver for GPUs."""
    if allocation.owner.claim is not None:
        return allocation.resource == _DRA_DRIVER
    return is_named(allocation.resource, names)


def index(allocations: Iterable[Allocation], names: Sequence[str] = (NVIDIA_RESOURCES,)) -> Owners:
    """The holders of each device key.

    A pod counts once per device, however many replicas of it and in however many containers it holds: a sum over its
    series would otherwise count the device several times. The container is then the first that the kubelet lists.
    """
    owners: dict[DeviceKey, dict[tuple[str, str], PodRef]] = {}
    for allocation in allocations:
        key = _key(allocation) if is_gpu(allocation, names) else None
        if key is not None:
            owner = allocation.owner
            owners.setdefault(key, {}).setdefault((owner.namespace, owner.pod), owner)
    return owners


def owners_of(device: Device, owners: Owners) -> tuple[PodRef, ...]:
    """The pods that hold `device`, sorted by namespace and name; several where it is shared."""
    found: dict[tuple[str, str], PodRef] = {}
    for key in keys_for(device):
        for pod, owner in owners.get(key, {}).items():
            found.setdefault(pod, owner)
    return tuple(found[pod] for pod in sorted(found))


@dataclasses.dataclass(frozen=True, slots=True)
class Holdings:
    """Who holds what, and what could be held, by device key.

    Attributes:
        owners: The holders.
        disputed: Keys of device ids of which it cannot be told who holds them.
        offered: Keys of what the kubelet offers; empty where it does not say.
        claimed: Devices of claims that a device must be found for: whose cannot is not attributed.
        strange: Device ids of GPUs that pods hold, in a form that nobody is known to use.
    """

    owners: Owners = dataclasses.field(default_factory=dict)
    disputed: frozenset[DeviceKey] = frozenset()
    offered: frozenset[DeviceKey] = frozenset()
    claimed: Mapping[str, DeviceKey | None] = dataclasses.field(default_factory=dict)
    strange: frozenset[str] = frozenset()

    def allocated(self, device: Device) -> bool | None:
        """Whether a pod holds `device`; None where that is not known."""
        keys = set(keys_for(device))
        if not keys.isdisjoint(self.owners):
            return True
        if not keys.isdisjoint(self.disputed) or keys.isdisjoint(self.offered) or self.strange:
            return None  # an id that is not understood may be this very device's
        return False

    def unattributed(self, devices: Iterable[Device]) -> tuple[tuple[str, int], ...]:
        """How many devices that pods hold are attributed to none of them, by reason.

        Args:
            devices: All that are known.
        """
        known = {key for device in devices for key in keys_for(device)}
        missing = [name for name, key in self.claimed.items() if key not in known]
        return (
            ("ambiguous", len(self.disputed)),
            ("unknown_claim", len(missing)),
            ("unknown_id", len(self.strange)),
        )


def holdings(settled: Settled, offers: Iterable[Offer], names: Sequence[str]) -> Holdings:
    """What the kubelet said, by device key.

    Args:
        settled: Who holds what.
        offers: What the kubelet offers.
        names: Of resources that are GPUs.
    """
    return Holdings(
        owners=index(settled.allocations, names),
        disputed=frozenset(key for _, device_id in settled.disputed if (key := key_of(device_id))),
        offered=frozenset(
            key for offer in offers if is_named(offer.resource, names) and (key := key_of(offer.device_id))
        ),
        claimed={
            allocation.device_id: key_of_claimed(allocation.device_id)
            for allocation in settled.allocations
            if allocation.owner.claim is not None
            and is_gpu(allocation, names)
            and not allocation.device_id.startswith(_DRA_UNSEEN)
        },
        strange=frozenset(
            allocation.device_id
            for allocation in settled.allocations
            if allocation.owner.claim is None
            and is_gpu(allocation, names)
            and key_of(allocation.device_id) is None
        ),
    )


def _key(allocation: Allocation) -> DeviceKey | None:
    of = key_of if allocation.owner.claim is None else key_of_claimed
    return of(allocation.device_id)
