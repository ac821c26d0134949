"""GPUs of pods and nodes in whole ones, of which MIG instances and shares are fractions. Pure.

A MIG instance is its share of the card's compute slices, a time slice its share of the replicas. A request for
memory or cores (HAMi, gpushare) is the larger share of the two; HAMi grants all memory without a request for it.
"""

import fnmatch
import re

from rightsizer.model.cluster_objects import Node, Pod
from rightsizer.model.offers import ALIYUN_MEM, GPU, GPU_CORES, GPU_MEM, GPU_MEM_PERCENT

_PROFILE = re.compile(r"mig-(?P<slices>\d+)g\.")
_SLICES = 7
"""Compute slices of every card with more than four (NVIDIA MIG user guide, supported profiles)."""
_SLICES_OF = {"*A30*": 4, "*RTX?PRO?6000*": 4}

_MEMORY_UNITS = {GPU_MEM: 1 << 20, ALIYUN_MEM: 1 << 30}
"""Bytes per unit of these resources, on each GPU (HAMi, gpushare)."""
_PERCENTAGES = frozenset({GPU_MEM_PERCENT, GPU_CORES})
"""Resources in percent of each GPU (HAMi)."""


def whole_gpus(pod: Pod, node: Node | None) -> float:
    """GPUs held by a pod, with MIG instances and shares as fractions: never more than its devices."""
    amounts = {
        name: count for name, count in pod.resources.items() if name in _MEMORY_UNITS or name in _PERCENTAGES
    }
    is_hami = node is not None and node.sharing == "hami" and GPU in pod.resources
    if amounts.keys() == {GPU_CORES} or (is_hami and not amounts):
        return float(pod.devices)
    if amounts:
        return pod.devices * max(_of_each(name, count, node) for name, count in amounts.items())
    counted = sum(count * _part(resource, node) for resource, count in pod.resources.items())
    return min(float(pod.devices), counted)


def part_of_devices(pod: Pod, node: Node | None) -> float:
    """The part of its GPUs or MIG instances that a pod holds: below 1 where others may hold the rest.

    A device of a shared ResourceClaim counts as a whole GPU.
    """
    if not pod.is_shared:
        return 1.0
    model = node.model if node else ""
    sizes = [count * (mig_part(name, model) or 1.0) for name, count in pod.resources.items()]
    whole = min(float(pod.devices), sum(sizes))
    return min(1.0, pod.gpus / whole) if whole > 0 and pod.gpus > 0 else 1.0


def gpus_of_node(node: Node) -> float:
    """Whole GPUs in a node; without a label that says so, those that it offers."""
    if node.gpus is not None:
        return float(node.gpus)
    return sum(count * _part(resource, node) for resource, count in node.allocatable.items())


def _of_each(resource: str, count: int, node: Node | None) -> float:
    """An amount as a share of each GPU; 1 if the GPU's memory is unknown."""
    if resource in _PERCENTAGES:
        return min(1.0, count / 100)
    memory_bytes = node.memory_bytes if node else None
    return min(1.0, count * _MEMORY_UNITS[resource] / memory_bytes) if memory_bytes else 1.0


def _part(resource: str, node: Node | None) -> float:
    profile = mig_part(resource, node.model if node else "")
    if profile is not None:
        return profile
    if node is None or not node.sharing or not node.gpus:
        return 1.0
    offered = node.allocatable.get(resource, 0)
    return min(1.0, node.gpus / offered) if offered else 1.0


def mig_part(name: str, model: str) -> float | None:
    """The share of a GPU that a MIG profile is, by the name of a resource or profile; None if it names none."""
    profile = _PROFILE.search(name)
    if profile is None:
        return None
    of = next((of for pattern, of in _SLICES_OF.items() if fnmatch.fnmatchcase(model, pattern)), _SLICES)
    return min(1.0, int(profile["slices"]) / of)
