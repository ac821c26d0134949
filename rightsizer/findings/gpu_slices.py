"""Parts of a GPU: what pods hold of one, what they need at most, and what would do. Pure."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

from rightsizer.findings.evidence import Case
from rightsizer.findings.mig_profiles import card_of
from rightsizer.findings.node_room import SHARED, shares_of
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
"""Amounts are asked for in whole steps, so that a peak that is a little higher does not change what would do."""
_BYTES = {GPU_MEM: 1 << 20, ALIYUN_MEM: GIB}


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a pod needs at most, margins included: bytes, and shares of a whole GPU of its model."""

    memory_bytes: float
    compute: float
    bandwidth: float


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What each of the pods holds of its GPU now.

    Attributes:
        name: The MIG profile; empty where it is none.
        share: What others cannot have, 0 to 1.
        compute: What of the GPU's compute its measured activity is a share of; and so for `bandwidth`.
        asks: The amounts that the pods ask for; empty where these are none.
        memory_bytes: By these.
    """

    name: str
    share: float
    compute: float = 1.0
    bandwidth: float = 1.0
    asks: Asks = ()
    memory_bytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a GPU that can be asked for.

    Attributes:
        share: What it takes away from the GPU, 0 to 1.
        note: What is to be known of it, for people.
    """

    asks: Asks
    share: float
    memory_bytes: float
    compute: float
    bandwidth: float
    note: str = ""

    def fits(self, need: Need) -> bool:
        """Whether it suffices."""
        return (
            need.memory_bytes <= self.memory_bytes
            and need.compute <= self.compute
            and need.bandwidth <= self.bandwidth
        )

    def __str__(self) -> str:
        """For people: a name alone where one of it is asked for."""
        if len(self.asks) == 1 and self.asks[0][1] == 1:
            return self.asks[0][0]
        return ", ".join(f"{name}: {count}" for name, count in self.asks)


def held_by(case: Case, usages: Sequence[Usage]) -> Held | None:
    """What each pod holds; None where that differs, is a share of which nobody knows how large it is, or not known."""
    found = {_held(pod, case.fleet.nodes.get(pod.node)) for pod in case.held}
    amounts = found.pop() if len(found) == 1 else None
    if amounts is None or amounts.asks:
        return amounts
    names = {usage.device.instance_profile if usage.device.instance else "" for usage in usages}
    if names == {""}:
        return None if any(usage.device.instance for usage in usages) else amounts
    card = card_of(usages[0].device.model)
    profiles = [profile for profile in card.profiles if {profile.name} == names] if card else []
    return next((Held(one.name, one.share, one.compute, one.bandwidth) for one in profiles), None)


def _held(pod: Pod, node: Node | None) -> Held | None:
    """As far as what a pod asks for tells; a whole device, or amounts of one."""
    unit = unit_of(node) if node else None
    if pod.devices != 1 or pod.unreadable or (pod.is_shared and unit is None):
        return None
    if unit is None:
        return Held("", 1.0)
    resource, memory = unit
    amount, cores = amounts_of(pod, resource, memory)
    if amount >= memory:
        return Held("", 1.0)
    names = (GPU, resource, GPU_MEM_PERCENT, GPU_CORES)
    asks = tuple((name, pod.resources[name]) for name in names if name in pod.resources)
    share = max(amount / memory, cores / WHOLE_CORES)
    return Held("", share, asks=asks, memory_bytes=amount * _BYTES[resource])


def parts_of(case: Case, model: str, held: Held, need: Need) -> list[Part]:
    """Everything that a GPU of their model can be cut into, whether nodes have room for it or not."""
    pools = case.fleet.pools.get(plain(model), ())
    if held.asks:
        mine = {case.fleet.nodes[pod.node].sharing for pod in case.held}
        pools = tuple(alike for alike in pools if {alike[0].node.sharing} == mine)
    parts = [] if held.asks else [*_cut(model), *_shares(case.fleet, model)]
    return parts + [part for alike in pools if (part := _amounts(alike[0], held, need)) is not None]


def _cut(model: str) -> Iterator[Part]:
    """MIG profiles."""
    card = card_of(model)
    for one in card.profiles if card else ():
        yield Part(((one.resource, 1),), one.share, one.memory_bytes, one.compute, one.bandwidth)


def _shares(fleet: Fleet, model: str) -> list[Part]:
    """Shares of GPUs, each size once."""
    return fleet.once(
        ("shares", plain(model)), lambda: list(_sizes(one.node for one in shares_of(fleet, model)))
    )


def _sizes(nodes: Iterable[Node]) -> Iterator[Part]:
    sizes = {(node.memory_bytes, node.gpus, node.allocatable[SHARED]): node for node in nodes}
    for (memory_bytes, gpus, count), node in sizes.items():
        if memory_bytes and gpus:
            share = gpus / count
            note = (
                "" if node.sharing == "mps" else "nothing keeps those who share it from each other's memory"
            )
            yield Part(((SHARED, 1),), share, share * memory_bytes, share, share, note=note)


def _amounts(pool: Pool, held: Held, need: Need) -> Part | None:
    """The amounts that suffice on a node; None where no GPU of it has as much."""
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
        # Who was not held to part of the compute before is not held to it now, but for who had all to themselves.
        cores = cores if GPU_CORES in asked or not asked else 0
        asks = ((GPU, 1), amount, *([(GPU_CORES, cores)] if cores else []))
    if memory > pool.memory or cores > WHOLE_CORES:
        return None
    note = "nothing keeps those who share it from each other's memory" if pool.resource == ALIYUN_MEM else ""
    share = max(memory / pool.memory, cores / WHOLE_CORES)
    compute = max(cores / WHOLE_CORES, need.compute, need.bandwidth)
    return Part(asks, share, memory * _BYTES[pool.resource], compute, compute, note=note)


def _memory(pool: Pool, need: Need) -> int:
    """What to ask for; gpushare counts nothing but memory, so that has to stand for compute as well."""
    amount = need.memory_bytes / _BYTES[pool.resource]
    if pool.resource == ALIYUN_MEM:
        return max(math.ceil(max(amount, max(need.compute, need.bandwidth) * pool.memory)), 1)
    return _up(amount, _STEPS[GPU_MEM])


def _up(amount: float, step: int) -> int:
    return max(math.ceil(amount / step), 1) * step
