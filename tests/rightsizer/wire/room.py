"""Whether nodes have what pods are to be given: instances that are free, and GPUs of HAMi's that others leave room on.

Which GPU a pod is on only HAMi knows: here dice of their own say it, so that what is called room has to be some
whatever they say.
"""

import random
from collections.abc import Mapping, Sequence

from tests.rightsizer.wire.amounts import CORES, GPU, GPU_MIB, INSTANCES, MEMORY, asked
from tests.rightsizer.wire.recorder import Object

_GPU = (GPU_MIB, 100)


def is_offered(
    amounts: Mapping[str, int], wanted: int, nodes: Sequence[Object], pods: Sequence[Object]
) -> bool:
    """Whether open nodes have room for so many pods more, each of which asks for these amounts."""
    for node in filter(_is_open, nodes):
        on_node = [
            asked(pod["spec"]["containers"])
            for pod in pods
            if pod["spec"].get("nodeName") == node["metadata"]["name"]
            and pod["status"].get("phase") not in {"Succeeded", "Failed"}
        ]
        here = [one for one in on_node if one]  # the exporter's pod asks for nothing
        wanted -= _places(node, here, amounts, wanted)
    return wanted <= 0


def _is_open(node: Object) -> bool:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", ())}
    return str(conditions.get("Ready", "True")) == "True"


def _places(node: Object, here: Sequence[Mapping[str, int]], amounts: Mapping[str, int], most: int) -> int:
    offered = node["status"]["allocatable"]
    left = {name: int(offered.get(name, 0)) - sum(one.get(name, 0) for one in here) for name in amounts}
    places = min(left[name] // amount for name, amount in amounts.items() if amount)
    if amounts.keys() & INSTANCES.keys():
        return places
    return min(places, _on_gpus(int(offered.get(MEMORY, 0)) // GPU_MIB, here, amounts, most))


def _on_gpus(count: int, here: Sequence[Mapping[str, int]], amounts: Mapping[str, int], most: int) -> int:
    """How many fit beside what is there, each on the first GPU that has room for it."""
    dice = random.Random(f"{here}")
    gpus = [_GPU] * count
    for one in sorted(here, key=_part, reverse=True):  # the larger ones cannot have come last
        for _ in range(one.get(GPU, 1)):
            if not _put(gpus, _part(one), dice.sample(range(count), count)):
                return 0
    placed = 0
    while placed < most and _put(gpus, _part(amounts), range(count)):
        placed += 1
    return placed


def _part(amounts: Mapping[str, int]) -> tuple[int, int]:
    """Memory and cores; who asks for no memory has all of both."""
    return (amounts[MEMORY], amounts.get(CORES, 0)) if MEMORY in amounts else _GPU


def _put(gpus: list[tuple[int, int]], part: tuple[int, int], order: Sequence[int]) -> bool:
    for number in order:
        memory, cores = (has - needs for has, needs in zip(gpus[number], part, strict=True))
        if memory >= 0 and cores >= 0:
            gpus[number] = memory, cores
            return True
    return False
