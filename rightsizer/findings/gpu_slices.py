"""GPU slices: what pods hold of a GPU, what they need, and which fractions of it would be enough. Pure.

To add a card with MIG, add a row to CARDS.
"""

import dataclasses
import fnmatch
import functools
import math
from collections.abc import Iterable, Iterator, Sequence

from rightsizer.findings.evidence import Candidate
from rightsizer.inventory.gpu_requests import (
    CLASS_PREFIX,
    MIG_CLASS,
    WHOLE_CLASS,
    claimed_profile,
    claimed_resource,
)
from rightsizer.model import Fleet, Node, Pod, Usage
from rightsizer.model.offers import (
    ALIYUN_MEM,
    GPU,
    GPU_CORES,
    GPU_MEM,
    GPU_MEM_PERCENT,
    WHOLE_CORES,
    Asks,
    Offer,
    Pool,
    amounts_of,
    plain,
    unit_of,
)
from rightsizer.text import GIB

SHARED = "nvidia.com/gpu.shared"

_STEPS = {GPU_MEM: 256, GPU_CORES: 5}
"""Amounts are rounded up to these steps, so that a slightly higher peak does not change the proposal."""
ISOLATION = {
    "mig": "MIG isolates memory, bandwidth and faults; power, PCIe and a reset of the GPU are shared",
    "mps": "MPS limits memory, but a fatal fault ends all pods on the GPU; bandwidth is shared",
    "hami": "HAMi limits memory in the container's CUDA library, but isolates no faults; bandwidth is shared",
    "gpushare": "gpushare isolates neither memory nor faults; bandwidth is shared",
    "time-slicing": "time-slicing isolates neither memory nor faults; bandwidth is shared",
}
"""Isolation of pods on one GPU, by how they share it; the weakest last.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide, https://docs.nvidia.com/deploy/mps (error containment),
https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus, https://github.com/Project-HAMi/HAMi-core
"""
_BYTES = {GPU_MEM: 1 << 20, ALIYUN_MEM: GIB}


USABLE = 0.9
"""Usable fraction of a slice's memory: drivers reserve some, and more with each instance (nvidia-smi mig
-lgip shows 9.75 of 10 GB on an H100, and 4.75 of 5 GB on an A100)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile."""

    name: str  # as in the resource `nvidia.com/mig-NAME`
    compute: float  # fraction of the GPU's compute
    bandwidth: float  # fraction of the GPU's memory and its bandwidth
    memory_bytes: float  # what a process can allocate

    @property
    def share(self) -> float:
        """Fraction of the GPU that it occupies: compute and memory are allocated together."""
        return max(self.compute, self.bandwidth)

    @property
    def resource(self) -> str:
        """The extended resource that pods request."""
        return f"nvidia.com/mig-{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A GPU model with MIG."""

    models: tuple[str, ...]  # patterns of its names, as DCGM writes them, with spaces for hyphens
    profiles: tuple[Profile, ...]  # smallest first


def _card(gigabytes: int, parts: tuple[int, int], names: str, *models: str) -> Card:
    """A card with its memory in GB and its compute and memory slices; `1g.10gb:1` has one memory slice."""
    compute, memory = parts
    profiles = []
    for word in names.split():
        name, slices = word.split(":")
        share = int(slices) / memory
        profiles.append(
            Profile(name, int(name.split("g")[0]) / compute, share, gigabytes * GIB * share * USABLE)
        )
    return Card(models, tuple(sorted(profiles, key=lambda profile: (profile.share, profile.memory_bytes))))


_SEVEN = (7, 8)
_FOUR = (4, 4)

# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html and supported-gpus.html (R580).
# Profiles with media extensions (+me) exist once per GPU, and are left out.
CARDS = (
    _card(24, _FOUR, "1g.6gb:1 2g.12gb:2 4g.24gb:4", "*A30"),
    _card(40, _SEVEN, "1g.5gb:1 1g.10gb:2 2g.10gb:2 3g.20gb:4 4g.20gb:4 7g.40gb:8", "*A100*40GB*"),
    _card(80, _SEVEN, "1g.10gb:1 1g.20gb:2 2g.20gb:2 3g.40gb:4 4g.40gb:4 7g.80gb:8", "*A100*80GB*"),
    _card(
        94, _SEVEN, "1g.12gb:1 1g.24gb:2 2g.24gb:2 3g.47gb:4 4g.47gb:4 7g.94gb:8", "*H100*NVL*", "*H100*94GB*"
    ),
    _card(
        80,
        _SEVEN,
        "1g.10gb:1 1g.20gb:2 2g.20gb:2 3g.40gb:4 4g.40gb:4 7g.80gb:8",
        "*H100*80GB*",
        "*H100 PCIe*",
    ),
    _card(
        96, _SEVEN, "1g.12gb:1 1g.24gb:2 2g.24gb:2 3g.48gb:4 4g.48gb:4 7g.96gb:8", "*GH200*480GB*", "* H20"
    ),
    _card(144, _SEVEN, "1g.18gb:1 1g.36gb:2 2g.36gb:2 3g.72gb:4 4g.72gb:4 7g.144gb:8", "*GH200*144G*"),
    _card(141, _SEVEN, "1g.18gb:1 1g.35gb:2 2g.35gb:2 3g.71gb:4 4g.71gb:4 7g.141gb:8", "* H200*"),
    _card(180, _SEVEN, "1g.23gb:1 1g.45gb:2 2g.45gb:2 3g.90gb:4 4g.90gb:4 7g.180gb:8", "* B200*"),
    _card(96, _FOUR, "1g.24gb:1 2g.48gb:2 4g.96gb:4", "*RTX PRO 6000*"),
)


@functools.lru_cache(maxsize=1024)
def card_of(model: str) -> Card | None:
    """The row of a model, named by DCGM or GPU Feature Discovery; None if it is unknown."""
    name = plain(model)
    for card in CARDS:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in card.models):
            return card
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class SliceNeed:
    """Need of a pod, with margins: bytes, and fractions of a whole GPU of its model."""

    memory_bytes: float
    compute: float
    bandwidth: float


@dataclasses.dataclass(frozen=True, slots=True)
class HeldSlice:
    """The part of its GPU that each pod holds."""

    name: str  # the MIG profile; empty if it is none
    share: float  # the fraction that is unavailable to others
    compute: float = 1.0  # the fraction of the GPU that its measured activity refers to; likewise `bandwidth`
    bandwidth: float = 1.0
    asks: Asks = ()  # the requested amounts; empty if it requests none
    memory_bytes: int = 0  # the requested memory


@dataclasses.dataclass(frozen=True, slots=True)
class GpuSlice:
    """A MIG profile, share or amount of a GPU that pods can request."""

    asks: Asks
    share: float  # the fraction of the GPU that it occupies
    memory_bytes: float
    compute: float
    bandwidth: float
    method: str  # how it is separated from the others on the GPU: a key of ISOLATION

    def fits(self, need: SliceNeed) -> bool:
        """Whether it is enough."""
        return (
            need.memory_bytes <= self.memory_bytes
            and need.compute <= self.compute
            and need.bandwidth <= self.bandwidth
        )

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance."""
        return self.asks[0][0].startswith("nvidia.com/mig-") or claimed_profile(self.asks[0][0]) is not None

    def __str__(self) -> str:
        """The resource name, or several with their amounts."""
        if len(self.asks) == 1 and self.asks[0][1] == 1:
            return self.asks[0][0]
        return ", ".join(f"{name}: {count}" for name, count in self.asks)


def held_slice(candidate: Candidate, usages: Sequence[Usage]) -> HeldSlice | None:
    """The part that each pod holds; None if pods differ, or if the size of a share is unknown."""
    found = {_held(pod, candidate.fleet.nodes.get(pod.node)) for pod in candidate.held}
    amounts = found.pop() if len(found) == 1 else None
    if amounts is None or amounts.asks:
        return amounts
    names = {usage.device.instance_profile if usage.device.instance else "" for usage in usages}
    if names == {""}:
        return None if any(usage.device.instance for usage in usages) else amounts
    card = card_of(usages[0].device.model)
    profiles = [mig for mig in card.profiles if {mig.name} == names] if card else []
    return next((HeldSlice(mig.name, mig.share, mig.compute, mig.bandwidth) for mig in profiles), None)


def _held(pod: Pod, node: Node | None) -> HeldSlice | None:
    """The part that a pod holds by its request: a whole device, or amounts of one."""
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
    fleet = candidate.fleet
    names = {name for pod in candidate.held for name in pod.resources}
    slices: list[GpuSlice] = []
    if names and all(name.startswith(CLASS_PREFIX) for name in names):
        return _claimable(fleet, model, names, held)
    if not held.asks:
        slices = fleet.once(("slices", plain(model)), lambda: [*_cut(fleet, model), *_shares(fleet, model)])
    return slices + [found for alike in pools if (found := _amounts(alike[0], held, need)) is not None]


def _claimable(fleet: Fleet, model: str, names: Iterable[str], held: HeldSlice) -> list[GpuSlice]:
    """MIG devices for pods with ResourceClaims, of NVIDIA's own DeviceClass: what others select is not known here."""
    own = {name.removeprefix(CLASS_PREFIX) for name in names}
    is_ours = own == {MIG_CLASS if held.name else WHOLE_CLASS} and MIG_CLASS in fleet.devices.classes
    card = card_of(model) if is_ours else None
    return [
        GpuSlice(
            ((claimed_resource(MIG_CLASS, mig.name), 1),),
            mig.share,
            mig.memory_bytes,
            mig.compute,
            mig.bandwidth,
            "mig",
        )
        for mig in (card.profiles if card else ())
    ]


def _cut(fleet: Fleet, model: str) -> Iterator[GpuSlice]:
    """MIG profiles."""
    card = card_of(model)
    for mig in card.profiles if card else ():
        methods = [how_shared(offer.node, mig.resource) for offer in fleet.offers.get(mig.resource, ())]
        asks = ((mig.resource, 1),)
        yield GpuSlice(
            asks, mig.share, mig.memory_bytes, mig.compute, mig.bandwidth, _weakest(["mig", *methods])
        )


def shares_of(fleet: Fleet, model: str) -> list[Offer]:
    """Nodes with shares of such GPUs."""
    return [offer for offer in fleet.offers.get(SHARED, ()) if plain(offer.node.model) == plain(model)]


def _shares(fleet: Fleet, model: str) -> Iterator[GpuSlice]:
    """Shares, one of each size."""
    sizes: dict[tuple[int | None, int | None, int], list[str]] = {}
    for node in (offer.node for offer in shares_of(fleet, model)):
        size = (node.memory_bytes, node.gpus, node.allocatable[SHARED])
        sizes.setdefault(size, []).append(how_shared(node, SHARED))
    for (memory_bytes, gpus, count), methods in sizes.items():
        if memory_bytes and gpus:
            share = gpus / count
            yield GpuSlice(((SHARED, 1),), share, share * memory_bytes, share, share, _weakest(methods))


def how_shared(node: Node, resource: str) -> str:
    """The key of ISOLATION for the pods on one device of a resource; empty if they do not share it."""
    if resource.startswith("nvidia.com/mig-") and not resource.endswith(".shared"):
        # The label of GPU Feature Discovery.
        return "" if node.labels.get(f"{resource}.replicas", "1") in {"", "0", "1"} else "time-slicing"
    if not node.sharing and not resource.endswith(".shared"):
        return ""
    return node.sharing if node.sharing in ISOLATION else "time-slicing"


def _weakest(methods: Iterable[str]) -> str:
    return max(filter(None, methods), key=list(ISOLATION).index)


def has_own(pod: Pod, node: Node) -> bool:
    """Whether no other pod shares its GPUs or MIG instances."""
    if pod.unreadable or not pod.resources:
        return False
    if unit := unit_of(node):
        amount, cores = amounts_of(pod, *unit)
        return amount >= unit[1] or cores >= WHOLE_CORES
    return not any(how_shared(node, name) for name in pod.resources)


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
    method = "gpushare" if pool.resource == ALIYUN_MEM else "hami"
    share = max(memory / pool.memory, cores / WHOLE_CORES)
    compute = max(cores / WHOLE_CORES, need.compute, need.bandwidth)
    return GpuSlice(asks, share, memory * _BYTES[pool.resource], compute, compute, method)


def _memory(pool: Pool, need: SliceNeed) -> int:
    """Memory to request; gpushare only counts memory, so the memory must also cover the compute."""
    amount = need.memory_bytes / _BYTES[pool.resource]
    if pool.resource == ALIYUN_MEM:
        return max(math.ceil(max(amount, max(need.compute, need.bandwidth) * pool.memory)), 1)
    memory = _up(amount, _STEPS[GPU_MEM])
    # The API server stores 32000 as 32k, which is another text than the undo record has.
    return memory if memory % 1000 else memory + _STEPS[GPU_MEM]


def _up(amount: float, step: int) -> int:
    return max(math.ceil(amount / step), 1) * step
