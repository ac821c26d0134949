"""The devices that NVIDIA's device plugin advertises for a node, with its ids and resource names.

A GPU's UUID under nvidia.com/gpu, a MIG instance's UUID under nvidia.com/mig-<profile> ("mixed" strategy), and
`<uuid>::<n>` for each replica of a shared device; the name ends in .shared with renameByDefault.
"""

import dataclasses
import hashlib
from collections import Counter

from simulator.spec import NodeSpec, Sharing

GPU_RESOURCE = "nvidia.com/gpu"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceId:
    """One allocatable device; `gpu` is an NVML index, `instance` 0-based, `shares` the replicas of that device."""

    resource: str
    id: str
    gpu: int
    instance: int | None = None
    shares: int = 1


def devices(node: NodeSpec) -> tuple[DeviceId, ...]:
    """All devices of `node`, in the order in which the plugin lists them."""
    found: list[DeviceId] = []
    for index, gpu in enumerate(node.gpus):
        if gpu.mig:
            for instance, profile in enumerate(gpu.mig):
                resource = f"nvidia.com/mig-{profile.replace('+', '.')}"
                found += _shared(node, DeviceId(resource, node.mig_uuid(index, instance), index, instance))
        else:
            found += _shared(node, DeviceId(GPU_RESOURCE, node.gpu_uuid(index), index))
    return tuple(found)


def allocatable(node: NodeSpec) -> dict[str, int]:
    """How many devices of each resource `node` offers."""
    return dict(Counter(device.resource for device in devices(node)))


def _shared(node: NodeSpec, device: DeviceId) -> list[DeviceId]:
    if node.sharing is Sharing.NONE:
        return [device]
    resource = f"{device.resource}.shared" if node.rename_shared else device.resource
    return [
        dataclasses.replace(device, resource=resource, id=f"{device.id}::{replica}", shares=node.replicas)
        for replica in range(node.replicas)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """One container of the pod with UID `uid`."""

    namespace: str
    pod: str
    uid: str
    name: str

    @property
    def id(self) -> str:
        """The runtime's id of 64 hexadecimal digits, the same for as long as the pod lives."""
        return hashlib.sha256(f"{self.uid}/{self.name}".encode()).hexdigest()
