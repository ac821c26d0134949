"""Whether open nodes have room for pods that are to ask for something else than they do now. Pure.

Room is what nobody holds and no pod waits for, on nodes of the same model that the pods may come to by the selector,
tolerations and affinity of their own object. CPU, memory and quotas are not judged.
"""

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from rightsizer.assess.mig import card_of
from rightsizer.model import Fleet, Node, Workload
from rightsizer.model.offers import (
    ALIYUN_MEM,
    GPU_CORES,
    GPU_MEM,
    GPU_MEM_PERCENT,
    Asks,
    Offer,
    Pool,
    plain,
)
from rightsizer.observe.stranded import NOTHING_KNOWN, Waiting, may_take, wanted_by
from rightsizer.workloads.possible import pod_spec_of

SHARED = "nvidia.com/gpu.shared"

_AMOUNTS = (GPU_MEM, GPU_MEM_PERCENT, ALIYUN_MEM)


class Room:
    """What there is for one workload.

    Args:
        fleet: Everything else.
        workload: Whose pods are to come.
        model: Of their GPUs, by DCGM's name or by the label of GPU Feature Discovery.
    """

    def __init__(self, fleet: Fleet, workload: Workload, model: str) -> None:
        self._fleet = fleet
        self._model = model
        self._wanted: Waiting | None = None
        with contextlib.suppress(msgspec.ValidationError):
            self._wanted = wanted_by(workload.ref, pod_spec_of(workload))

    @property
    def shares(self) -> list[Offer]:
        """Nodes that hand out shares of such GPUs."""
        offers = self._fleet.offers.get(SHARED, ())
        return [one for one in offers if plain(one.node.model) == plain(self._model)]

    def has(self, asks: Asks, pods: int, *, before: Asks = (), taken: int = 0) -> bool:
        """Whether so many pods that ask for that can come.

        Args:
            asks: What each asks for.
            pods: How many.
            before: What others ask for at most who come before them.
            taken: How many these are.
        """
        amounts, largest = dict(asks), dict(before)
        counting = next((name for name in amounts if name in _AMOUNTS), None)
        if counting is None:
            ((resource, _),) = asks
            return self._free(resource) - self._fleet.awaited.get(resource, 0) >= pods + taken
        if any(self._fleet.awaited.get(name) for name in (*_AMOUNTS, GPU_CORES)):
            return False
        cores = max(amounts.get(GPU_CORES, 0), largest.get(GPU_CORES, 0))
        amount = max(amounts[counting], largest.get(counting, 0))
        return any(_fit(alike, counting, amount, cores=cores, pods=pods + taken) for alike in self._pools())

    def _pools(self) -> Iterator[Sequence[Pool]]:
        """Nodes that hand out amounts of such GPUs, those that are alike together."""
        for alike in self._fleet.pools.get(plain(self._model), ()):
            if pools := [pool for pool in alike if self._takes(pool.node)]:
                yield pools

    def _free(self, resource: str) -> int:
        card = card_of(self._model)
        offers = self.shares if resource == SHARED else self._fleet.offers.get(resource, ())
        return sum(
            one.free
            for one in offers
            if (resource == SHARED or card_of(one.node.model) is card) and self._takes(one.node)
        )

    def _takes(self, node: Node) -> bool:
        return self._wanted is not None and may_take(node, NOTHING_KNOWN, self._wanted)


def _fit(alike: Sequence[Pool], counting: str, amount: int, *, cores: int, pods: int) -> bool:
    memory = -(-alike[0].memory * amount // 100) if counting == GPU_MEM_PERCENT else amount
    if (alike[0].resource == ALIYUN_MEM) != (counting == ALIYUN_MEM):
        return False
    for pool in alike:
        pods -= pool.takes(memory, cores, pods)
        if pods <= 0:
            return True
    return False
