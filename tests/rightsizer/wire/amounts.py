"""What containers ask for of GPUs, and what that is: whole ones, MIG instances, amounts that HAMi hands out.

An independent reading of NVIDIA's MIG user guide and HAMi's documents; it must know nothing of the rightsizer.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
GPU_MIB = 81_559
"""Of an H100, as HAMi registers it."""
_MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a pod has of each of its devices.

    Attributes:
        weight: What others cannot have of the GPU, 0 to 1.
        compute: Of the GPU's, 0 to 1; and so for `bandwidth`.
        profile: Of a MIG instance; empty where it is none.
    """

    weight: float
    compute: float
    bandwidth: float
    memory_bytes: float
    profile: str = ""


WHOLE = Share(1.0, 1.0, 1.0, GPU_MIB * _MIB)
INSTANCES = {
    "nvidia.com/mig-1g.10gb": Share(1 / 7, 1 / 7, 1 / 8, 9_856 * _MIB, "1g.10gb"),
    "nvidia.com/mig-3g.40gb": Share(1 / 2, 3 / 7, 1 / 2, 40_192 * _MIB, "3g.40gb"),
}
NAMES = {GPU, MEMORY, CORES, *INSTANCES}


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What a pod asks for: so many devices, and the same of each."""

    devices: int
    share: Share

    @property
    def weight(self) -> float:
        """GPUs that others cannot have."""
        return self.devices * self.share.weight

    @property
    def whole(self) -> float:
        """Whole GPUs: of a MIG instance what it has of the compute."""
        share = self.share
        return self.devices * (share.compute if share.profile else share.weight)


def asked(containers: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """GPU resources in the limits of all of these containers together."""
    found: dict[str, int] = {}
    for one in containers:
        for name, amount in one.get("resources", {}).get("limits", {}).items():
            if name in NAMES:
                found[name] = found.get(name, 0) + int(amount)
    return found


def holding(amounts: Mapping[str, int]) -> Holding:
    """What such amounts mean; no sane pod asks for instances and GPUs at once."""
    for name, share in INSTANCES.items():
        if amounts.get(name):
            return Holding(amounts[name], share)
    part = amounts.get(MEMORY, GPU_MIB) / GPU_MIB
    # Who asks HAMi for no cores may use them all, as others on the GPU may; who asks for no memory has all of both.
    cores = amounts[CORES] / 100 if CORES in amounts else 0.0
    if part >= 1:
        return Holding(amounts.get(GPU, 0), WHOLE)
    share = Share(max(part, cores), cores or 1.0, cores or 1.0, part * WHOLE.memory_bytes)
    return Holding(amounts.get(GPU, 1), share)


def held(pod: Mapping[str, Any]) -> Holding:
    """What a pod holds."""
    return holding(asked(pod["spec"]["containers"]))


def whole_gpus(pods: Iterable[Mapping[str, Any]]) -> float:
    """GPUs that pods hold, as budgets count them."""
    return sum(held(pod).whole for pod in pods)


def unequal(containers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """GPU resources whose requests are not their limits, where both stand."""
    for one in containers:
        resources = one.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in NAMES & requests.keys() | NAMES & limits.keys():
            if requests and requests.get(name) != limits.get(name):
                yield f"{name}: {requests.get(name)} requested, {limits.get(name)} is the limit"
