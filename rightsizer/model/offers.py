"""Free amounts of open nodes: whole resources, and amounts of GPUs that others have amounts of, too. Pure.

HAMi: https://project-hami.io/docs/userguide/nvidia-device/specify-device-memory-usage
gpushare: https://github.com/AliyunContainerService/gpushare-scheduler-extender/blob/master/docs/userguide.md
"""

import dataclasses
from collections.abc import Mapping, Sequence

from rightsizer.model.cluster_objects import Node, Pod

GPU = "nvidia.com/gpu"
GPU_MEM = "nvidia.com/gpumem"
GPU_MEM_PERCENT = "nvidia.com/gpumem-percentage"
GPU_CORES = "nvidia.com/gpucores"
ALIYUN_MEM = "aliyun.com/gpu-mem"

WHOLE_CORES = 100
_MOST_GIB = 1024
"""Maximum of one GPU; where gpushare's device plugin counts more, its unit is MiB."""


Asks = tuple[tuple[str, int], ...]
"""Requested amounts of a pod, by resource name."""


def plain(model: str) -> str:
    """A model's name by which DCGM's and GPU Feature Discovery's are the same: with spaces for hyphens."""
    return model.replace("-", " ")


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """A resource of which an open node has some free."""

    node: Node
    free: int


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """An open node whose GPUs are allocated by amounts.

    Attributes:
        resource: What counts memory: ALIYUN_MEM in GiB, or GPU_MEM in MiB.
        gpus: Handed out so, without those that one pod has to itself.
        memory: Of each GPU, in the resource's unit.
        used: What the pods on these GPUs ask for of that altogether.
        cores: Hundredths of a GPU's compute that they ask for altogether.
        pods: Those on these GPUs.
        split: How many pods a GPU takes at most.
    """

    node: Node
    resource: str
    gpus: int
    memory: int
    used: int
    cores: int
    pods: int
    split: int

    def taken(self) -> float:
        """Share of its memory that is requested; 0 to 1, or more if HAMi scales memory."""
        return self.used / (self.memory * self.gpus) if self.gpus > 0 else 1.0

    def is_full(self, memory: int) -> bool:
        """Whether no GPU is sure to have this much memory free, however the pods are distributed."""
        return self.gpus <= 0 or self.used >= self.gpus * (self.memory - memory + 1)

    def takes(self, memory: int, cores: int, most: int) -> int:
        """Lower bound of the pods of this size that fit, whichever of its GPUs the others are on; up to `most`.

        A GPU takes no more where the others on it have more than what is left beside that, or all of its compute.
        """
        beside, beside_cores = self.memory - memory + 1, WHOLE_CORES - max(cores, 1) + 1
        if beside <= 0 or beside_cores <= 0:
            return 0
        count = 0
        while count < most:
            full = (self.used + count * memory) // beside + (self.cores + count * cores) // beside_cores
            if full + (self.pods + count) // self.split >= self.gpus:
                break
            count += 1
        return count


Pools = tuple[Pool, ...]
"""Nodes with the same resource and memory per GPU; the emptiest first."""


def offers_of(
    nodes: Mapping[str, Node], pods_on: Mapping[str, Sequence[Pod]]
) -> dict[str, tuple[Offer, ...]]:
    """Free amounts on open nodes by resource name, largest first."""
    found: dict[str, list[Offer]] = {}
    for name in sorted(nodes):
        node = nodes[name]
        for resource, count in node.allocatable.items() if node.is_open else ():
            free = count - sum(pod.resources.get(resource, 0) for pod in pods_on.get(name, ()))
            if free > 0:
                found.setdefault(resource, []).append(Offer(node, free))
    return {name: tuple(sorted(offers, key=lambda offer: -offer.free)) for name, offers in found.items()}


def pools_of(nodes: Mapping[str, Node], pods_on: Mapping[str, Sequence[Pod]]) -> dict[str, tuple[Pools, ...]]:
    """Open nodes that hand out amounts, by the plain name of the model."""
    found: dict[str, dict[tuple[str, int], list[Pool]]] = {}
    for name in sorted(nodes):
        node = nodes[name]
        pool = _pool(node, pods_on.get(name, ())) if node.is_open and node.pooled else None
        if pool is not None:
            alike = found.setdefault(plain(node.model), {})
            alike.setdefault((pool.resource, pool.memory), []).append(pool)
    return {
        model: tuple(tuple(sorted(pools, key=Pool.taken)) for _, pools in sorted(alike.items()))
        for model, alike in found.items()
    }


def _pool(node: Node, pods: Sequence[Pod]) -> Pool | None:
    """Pool of a node's free amounts; None where it is not known how much each of its GPUs has."""
    unit = unit_of(node)
    if unit is None or (unit[0] == GPU_MEM and not node.allocatable.get(GPU)):
        return None
    resource, memory = unit
    asked = [(pod.devices or 1, *amounts_of(pod, resource, memory)) for pod in pods]
    parts = [amounts for amounts in asked if amounts[1] < memory and amounts[2] < WHOLE_CORES]
    return Pool(
        node=node,
        resource=resource,
        gpus=node.pooled - sum(devices for devices, _, _ in asked) + sum(devices for devices, _, _ in parts),
        memory=memory,
        used=sum(devices * amount for devices, amount, _ in parts),
        cores=sum(devices * cores for devices, _, cores in parts),
        pods=sum(devices for devices, _, _ in parts),
        split=memory if resource == ALIYUN_MEM else max(node.allocatable[GPU] // node.pooled, 1),
    )


def unit_of(node: Node) -> tuple[str, int] | None:
    """The resource that counts the memory of a node's GPUs, and the amount of each; None where that is not known."""
    if not node.pooled:
        return None
    if node.sharing == "gpushare":
        memory = node.allocatable.get(ALIYUN_MEM, 0) // node.pooled
        return (ALIYUN_MEM, memory) if 0 < memory <= _MOST_GIB else None
    if node.sharing == "hami" and node.memory_bytes:
        return GPU_MEM, node.memory_bytes >> 20
    return None


def amounts_of(pod: Pod, resource: str, memory: int) -> tuple[int, int]:
    """Requests of a pod for each of its GPUs: memory in the resource's unit, and percent of the compute.

    Without a request for memory, HAMi grants all of it (defaultMemory: 0), and with it all of the compute.
    """
    asked = pod.resources
    cores = min(asked.get(GPU_CORES, 0), WHOLE_CORES)
    if not pod.unreadable and asked.get(resource):
        return min(asked[resource], memory), cores
    percent = asked.get(GPU_MEM_PERCENT)
    if not pod.unreadable and resource == GPU_MEM and percent:
        return min(-(-memory * percent // 100), memory), cores
    return memory, WHOLE_CORES
