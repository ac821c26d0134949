"""GPU slices: what pods hold of a GPU, what they need, and which fractions of it would be enough. Pure."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from rightsizer.findings.evidence import Candidate
from rightsizer.findings.free_capacity import SHARED, shares_of
from rightsizer.findings.mig_profiles import card_of
from rightsizer.model import Fleet, Node, Pod, Usage
from rightsizer.model.offers import (
    ALIYUN_MEM,
    GPU,
    GPU_CORES,
    GPU_MEM,
    GPU_MEM_PERCENT,
    WHOLE_CORES,
    Asks,
    Pool,
    amounts_of,
    plain,
    unit_of,
)
from rightsizer.text import GIB

_STEPS = {GPU_MEM: 256, GPU_CORES: 5}
"""Amounts are rounded up to these steps, so that a slightly higher peak does not change the proposal."""
_NO_ISOLATION = "memory is not isolated between pods that share a GPU"
_BYTES = {GPU_MEM: 1 << 20, ALIYUN_MEM: GIB}


@dataclasses.dataclass(frozen=True, slots=True)
class SliceNeed:
    """What a pod needs, with margins: bytes, and fractions of a whole GPU of its model."""

    memory_bytes: float
    compute: float
    bandwidth: float


@dataclasses.dataclass(frozen=True, slots=True)
class HeldSlice:
    """What each pod holds of its GPU.

    Attributes:
        name: The MIG profile; empty if it is none.
        share: The fraction that is unavailable to others.
        compute: The fraction of the GPU that its measured activity refers to; likewise `bandwidth`.
        asks: The requested amounts; empty if it requests none.
        memory_bytes: The requested memory.
    """

    name: str
    share: float
    compute: float = 1.0
    bandwidth: float = 1.0
    asks: Asks = ()
    memory_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSlice:
    """A MIG profile, share or amount of a GPU that pods can request.

    Attributes:
        share: The fraction of the GPU that it occupies.
        note: A remark for people.
    """

    asks: Asks
    share: float
    memory_bytes: float
    compute: float
    bandwidth: float
    note: str = ""

    def fits(self, need: SliceNeed) -> bool:
        """Whether it is enough."""
        return (
            need.memory_bytes <= self.memory_bytes
            and need.compute <= self.compute
            and need.bandwidth <= self.bandwidth
        )

    def __str__(self) -> str:
        """The resource name, or several with their amounts."""
        if len(self.asks) == 1 and self.asks[0][1] == 1:
            return self.asks[0][0]
        return ", ".join(f"{name}: {count}" for name, count in self.asks)


def held_slice(candidate: Candidate, usages: Sequence[Usage]) -> HeldSlice | None:
    """What each pod holds; None if pods differ, or if the size of a share is unknown."""
    found = {_held(pod, candidate.fleet.nodes.get(pod.node)) for pod in candidate.held}
    amounts = found.pop() if len(found) == 1 else None
    if amounts is None or amounts.asks:
        return amounts
    names = {usage.device.instance_profile if usage.device.instance else "" for usage in usages}
    if names == {""}:
        return None if any(usage.device.instance for usage in usages) else amounts
    card = card_of(usages[0].device.model)
    profiles = [profile for profile in card.profiles if {profile.name} == names] if card else []
    return next((HeldSlice(one.name, one.share, one.compute, one.bandwidth) for one in profiles), None)


def _held(pod: Pod, node: Node | None) -> HeldSlice | None:
    """What a pod holds by its request: a whole device, or amounts of one."""
    unit = unit_of(node) if node else None
    if pod.devices != 1 or pod.unreadable or (pod.is_shared and unit is None):
        return None
    if unit is None:
        return HeldSlice("", 1.0)
    resource, memory = unit
    amount, cores = amounts_of(pod, resource, memory)
    if amount >= memory:
        return HeldSlice("", 1.0)
    names = (GPU, resource, GPU_MEM_PERCENT, GPU_CORES)
    asks = tuple((name, pod.resources[name]) for name in names if name in pod.resources)
    share = max(amount / memory, cores / WHOLE_CORES)
    return HeldSlice("", share, asks=asks, memory_bytes=amount * _BYTES[resource])


def slices_of(candidate: Candidate, model: str, held: HeldSlice, need: SliceNeed) -> list[GpuSlice]:
    """All slices of the GPU model, whether any node has them free or not."""
    pools = candidate.fleet.pools.get(plain(model), ())
    if held.asks:
        mine = {candidate.fleet.nodes[pod.node].sharing for pod in candidate.held}
        pools = tuple(alike for alike in pools if {alike[0].node.sharing} == mine)
    slices = [] if held.asks else [*_cut(model), *_shares(candidate.fleet, model)]
    return slices + [found for alike in pools if (found := _amounts(alike[0], held, need)) is not None]


def _cut(model: str) -> Iterator[GpuSlice]:
    """MIG profiles."""
    card = card_of(model)
    for one in card.profiles if card else ():
        yield GpuSlice(((one.resource, 1),), one.share, one.memory_bytes, one.compute, one.bandwidth)


def _shares(fleet: Fleet, model: str) -> list[GpuSlice]:
    """Shares, one of each size."""
    return fleet.once(
        ("shares", plain(model)), lambda: list(_sizes(one.node for one in shares_of(fleet, model)))
    )


def _sizes(nodes: Iterable[Node]) -> Iterator[GpuSlice]:
    sizes = {(node.memory_bytes, node.gpus, node.allocatable[SHARED]): node for node in nodes}
    for (memory_bytes, gpus, count), node in sizes.items():
        if memory_bytes and gpus:
            share = gpus / count
            note = "" if node.sharing == "mps" else _NO_ISOLATION
            yield GpuSlice(((SHARED, 1),), share, share * memory_bytes, share, share, note=note)


def _amounts(pool: Pool, held: HeldSlice, need: SliceNeed) -> GpuSlice | None:
    """Sufficient amounts on a node; None if its GPUs are too small."""
    memory, cores = _memory(pool, need), 0
    asked = dict(held.asks)
    if pool.resource == ALIYUN_MEM:
        asks: Asks = ((ALIYUN_MEM, memory),)
    else:
        cores = _up(max(need.compute, need.bandwidth) * WHOLE_CORES, _STEPS[GPU_CORES])
        if GPU_MEM_PERCENT in asked and GPU_MEM not in asked:
            percent = math.ceil(100 * memory / pool.memory)
            memory, amount = pool.memory * percent // 100, (GPU_MEM_PERCENT, percent)
        else:
            amount = (GPU_MEM, memory)
        # Compute is only limited if it was before, or if the pod had a whole GPU.
        cores = cores if GPU_CORES in asked or not asked else 0
        asks = ((GPU, 1), amount, *([(GPU_CORES, cores)] if cores else []))
    if memory > pool.memory or cores > WHOLE_CORES:
        return None
    note = _NO_ISOLATION if pool.resource == ALIYUN_MEM else ""
    share = max(memory / pool.memory, cores / WHOLE_CORES)
    compute = max(cores / WHOLE_CORES, need.compute, need.bandwidth)
    return GpuSlice(asks, share, memory * _BYTES[pool.resource], compute, compute, note=note)


def _memory(pool: Pool, need: SliceNeed) -> int:
    """Memory to request; gpushare only counts memory, so the memory must also cover the compute."""
    amount = need.memory_bytes / _BYTES[pool.resource]
    if pool.resource == ALIYUN_MEM:
        return max(math.ceil(max(amount, max(need.compute, need.bandwidth) * pool.memory)), 1)
    return _up(amount, _STEPS[GPU_MEM])


def _up(amount: float, step: int) -> int:
    return max(math.ceil(amount / step), 1) * step
