"""Whether open nodes have room for pods that are to ask for something else than they do now. Pure.

Room is what nobody holds and no pod waits for, on nodes of the same model that the pods may come to by the selector,
tolerations and affinity of their own object, and that have CPU, memory and places for them beside the pods that are
there; as far as the quotas of their namespace allow.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from rightsizer.findings.mig_profiles import card_of
from rightsizer.inventory.stranded_gpus import (
    UNKNOWN_CAPACITY,
    UnschedulablePod,
    could_host,
    template_placement,
)
from rightsizer.kinds.preconditions import pod_spec_of
from rightsizer.model import Fleet, Node, Workload
from rightsizer.model.offers import (
    ALIYUN_MEM,
    GPU,
    GPU_CORES,
    GPU_MEM,
    GPU_MEM_PERCENT,
    Asks,
    Offer,
    Pool,
    plain,
)

SHARED = "nvidia.com/gpu.shared"

_AMOUNTS = (GPU_MEM, GPU_MEM_PERCENT, ALIYUN_MEM)


@dataclasses.dataclass(frozen=True, slots=True)
class Coming:
    """Pods that are to come.

    Attributes:
        asks: What each asks for at most.
        needs: What each asks for at most besides, as a Pod's needs.
        pods: How many.
    """

    asks: Asks = ()
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pods: int = 0

    def beside(self, first: "Coming") -> "Coming":
        """All of them together with those who come first, each as large as the largest."""
        most = dict(first.asks)
        asks = tuple((name, max(count, most.get(name, 0))) for name, count in self.asks)
        return Coming(asks, largest((self.needs, first.needs)), self.pods + first.pods)


def coming(workload: Workload, asks: Asks) -> Coming:
    """The pods of a workload that hold GPUs, were they to ask for that instead."""
    return Coming(asks, largest(pod.needs for pod in workload.holding), len(workload.holding))


def largest(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Of each resource the most that any of them has."""
    found: dict[str, int] = {}
    for one in amounts:
        for name, amount in one.items():
            found[name] = max(amount, found.get(name, 0))
    return found


def shares_of(fleet: Fleet, model: str) -> list[Offer]:
    """Nodes that hand out shares of such GPUs."""
    return [one for one in fleet.offers.get(SHARED, ()) if plain(one.node.model) == plain(model)]


class Room:
    """What there is for one workload.

    Args:
        fleet: Everything else.
        workload: Whose pods are to come.
        model: Of their GPUs, by DCGM's name or by the label of GPU Feature Discovery.
    """

    def __init__(self, fleet: Fleet, workload: Workload, model: str) -> None:
        self._fleet = fleet
        self._workload = workload
        self._model = model

    @functools.cached_property
    def _wanted(self) -> UnschedulablePod | None:
        """Where its pods may come; None where that cannot be read."""
        with contextlib.suppress(msgspec.ValidationError):
            return template_placement(self._workload.ref, pod_spec_of(self._workload))
        return None

    def has(
        self, asks: Asks, first: Coming = Coming(), besides: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        """Whether its pods can come if each asks for that.

        Args:
            asks: What each asks for.
            first: Pods that ask for as much at most, and come before them.
            besides: How much pods that come before them may take of other resources, wherever these come to.
        """
        own = coming(self._workload, asks)
        everybody = own.beside(first)
        amounts = dict(everybody.asks)
        counting = next((name for name in amounts if name in _AMOUNTS), None)
        if not self._is_within_quotas(own):
            return False
        if counting is None:
            ((resource, _),) = asks
            gone = self._fleet.awaited.get(resource, 0) + besides.get(resource, 0)
            return self._free(resource, everybody) - gone >= everybody.pods
        if any(self._fleet.awaited.get(name) for name in (*_AMOUNTS, GPU_CORES)):
            return False
        pools = self._fleet.pools.get(plain(self._model), ())
        return any(self._fit(alike, counting, everybody, besides) for alike in pools)

    def _is_within_quotas(self, own: Coming) -> bool:
        """Whether their namespace may have what they ask for more than they do now; others' growth is not foreseen."""
        quotas = self._fleet.quotas_in.get(self._workload.ref.namespace, ())
        more = {
            name: own.pods * count - sum(pod.resources.get(name, 0) for pod in self._workload.holding)
            for name, count in own.asks
        }
        return all(more.get(one.resource, 0) <= max(one.hard - one.used, 0) for one in quotas)

    def _free(self, resource: str, everybody: Coming) -> int:
        """How many there are; nodes are gone through once for all pods that may come to the same ones."""
        if self._wanted is None:
            return 0
        key = ("free", resource, plain(self._model), self._wanted.shape, *sorted(everybody.needs.items()))
        return self._fleet.once(key, lambda: sum(self._offered(resource, everybody)))

    def _offered(self, resource: str, everybody: Coming) -> Iterator[int]:
        card = card_of(self._model)
        if resource == SHARED:
            offers: Sequence[Offer] = shares_of(self._fleet, self._model)
        else:
            every = self._fleet.offers.get(resource, ())
            offers = [one for one in every if card_of(one.node.model) is card]
        for one in offers:
            if self._takes(one.node):
                yield self._places(one.node, everybody, most=one.free)

    def _fit(
        self, alike: Sequence[Pool], counting: str, everybody: Coming, besides: Mapping[str, int]
    ) -> bool:
        amounts, left = dict(everybody.asks), everybody.pods
        memory, cores = amounts[counting], amounts.get(GPU_CORES, 0)
        if counting == GPU_MEM_PERCENT:
            memory = -(-alike[0].memory * memory // 100)
        if (alike[0].resource == ALIYUN_MEM) != (counting == ALIYUN_MEM):
            return False
        gone = besides.get(ALIYUN_MEM if counting == ALIYUN_MEM else GPU, 0)  # a GPU for each, at worst
        for pool in alike:
            if pool.is_full(memory):
                return False  # and so are those after it
            if not self._takes(pool.node):
                continue
            lost = min(gone, pool.gpus)
            gone -= lost
            beside = dataclasses.replace(pool, gpus=pool.gpus - lost)
            left -= beside.takes(memory, cores, self._places(pool.node, everybody, most=left))
            if left <= 0:
                return True
        return False

    def _takes(self, node: Node) -> bool:
        return self._wanted is not None and could_host(node, UNKNOWN_CAPACITY, self._wanted)

    def _places(self, node: Node, everybody: Coming, *, most: int) -> int:
        """How many of them a node has CPU, memory and places for, up to `most`; for none where it does not tell."""
        spare = self._fleet.spare.get(node.name, {})
        counts = [max(spare.get(name, 0), 0) // need for name, need in everybody.needs.items() if need]
        return min((most, *counts))
