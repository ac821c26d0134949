"""Which pods hold which device: the kubelet's allocations laid over the devices that NVML shows. Pure."""

from collections.abc import Collection, Iterable, Mapping

from exporter.model import Allocation, Device, PodRef
from exporter.pods.deviceids import DeviceKey, key_of, keys_for

_VENDOR = "nvidia.com/"

Owners = Mapping[DeviceKey, Mapping[tuple[str, str], PodRef]]


def index(allocations: Iterable[Allocation], resources: Collection[str] = ()) -> Owners:
    """The holders of each device key, under all names of nvidia.com/ and those in `resources`.

    A pod counts once per device, however many replicas of it and in however many containers it holds: a sum over its
    series would otherwise count the device several times. The container is then the first that the kubelet lists.
    """
    owners: dict[DeviceKey, dict[tuple[str, str], PodRef]] = {}
    for allocation in allocations:
        is_ours = allocation.resource.startswith(_VENDOR) or allocation.resource in resources
        key = key_of(allocation.device_id) if is_ours else None
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
