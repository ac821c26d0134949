"""Whether nodes have free capacity for pods with a different request, and who else is on their GPUs. Pure.

Capacity is free if no pod holds it or waits for it. The node must have the same GPU model, match the pods' selector,
tolerations and affinity, and have CPU and memory for them. The quotas of their namespace must allow the request.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from rightsizer.findings.gpu_slices import SHARED, card_of, has_own, how_shared, shares_of
from rightsizer.inventory.device_allocation import count_free
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, claimed_profile
from rightsizer.inventory.nodes import UNKNOWN_CAPACITY
from rightsizer.inventory.obstacles import could_host
from rightsizer.inventory.unschedulable_pods import UnschedulablePod, template_placement
from rightsizer.kinds import row_of
from rightsizer.kinds.change_edits import as_read, pod_spec_of
from rightsizer.kinds.edits import value_at
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
from rightsizer.policy.match import Sharing
from rightsizer.text import count, gpus

_MOST_PARTS = 7
"""MIG devices of one GPU; one that another change takes may be as large as all of these."""
_AMOUNTS = (GPU_MEM, GPU_MEM_PERCENT, ALIYUN_MEM)


@dataclasses.dataclass(frozen=True, slots=True)
class IncomingPods:
    """Pods with a new request."""

    asks: Asks = ()  # the GPU resources of each pod
    # Other requests of each pod, as in Pod.needs
    needs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    pods: int = 0  # their number

    def joined(self, earlier: "IncomingPods") -> "IncomingPods":
        """Pods of this and an earlier request together, each as large as the largest."""
        most = dict(earlier.asks)
        asks = tuple((name, max(count, most.get(name, 0))) for name, count in self.asks)
        return IncomingPods(asks, largest((self.needs, earlier.needs)), self.pods + earlier.pods)


def incoming_pods(workload: Workload, asks: Asks) -> IncomingPods:
    """The pods of a workload that hold GPUs, with a new request."""
    return IncomingPods(asks, largest(pod.needs for pod in workload.holding), len(workload.holding))


def largest(amounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The largest amount of each resource."""
    found: dict[str, int] = {}
    for needs in amounts:
        for name, amount in needs.items():
            found[name] = max(amount, found.get(name, 0))
    return found


@dataclasses.dataclass(frozen=True)
class FreeCapacity:
    """The free capacity for one workload. Without slots, so that properties can be cached."""

    fleet: Fleet
    workload: Workload
    model: str  # of its GPUs, named by DCGM or GPU Feature Discovery

    @functools.cached_property
    def _placement(self) -> UnschedulablePod | None:
        """The placement rules of its pods; None if they cannot be read."""
        with contextlib.suppress(msgspec.ValidationError):
            return template_placement(self.workload.ref, pod_spec_of(self.workload))
        return None

    def fits(
        self,
        asks: Asks,
        earlier: IncomingPods = IncomingPods(),
        taken: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Whether all pods of the workload fit with a new request, beside earlier pods.

        `earlier` are pods with at most the same request; `taken` are amounts that others may take of each resource, on
        any node.
        """
        own = incoming_pods(self.workload, asks)
        incoming = own.joined(earlier)
        amounts = dict(incoming.asks)
        counting = next((name for name in amounts if name in _AMOUNTS), None)
        if not self._is_within_quotas(own):
            return False
        if counting is None:
            ((resource, _),) = asks
            gone = self.fleet.awaited.get(resource, 0) + taken.get(resource, 0)
            if claimed_profile(resource) is not None:
                awaited = self.fleet.once("claims", lambda: _claimed(self.fleet.awaited))
                gone = _MOST_PARTS * (awaited + _claimed(taken))
            return self._free(resource, incoming) - gone >= incoming.pods
        if any(self.fleet.awaited.get(name) for name in (*_AMOUNTS, GPU_CORES)):
            return False
        pools = self.fleet.pools.get(plain(self.model), ())
        return any(self._fit(alike, counting, incoming, taken) for alike in pools)

    def rollout_blocker(self, gpus_per_pod: int, beside: int = 0) -> str:
        """Why a rollout with this number of GPUs per pod would wait for free ones; empty if it would not.

        `beside` is the number of GPUs that other rollouts take.
        """
        resources = sorted({name for pod in self.workload.holding for name in pod.resources})
        if not self.surge or (len(resources) == 1 and self._has_room(resources[0], gpus_per_pod, beside)):
            return ""
        number = f"{count(self.surge, 'pod')} with {gpus(gpus_per_pod)}{' each' if self.surge > 1 else ''}"
        return f"its rollout starts {number} before any ends, and there is no free place"

    @functools.cached_property
    def surge(self) -> int:
        """Pods of a changed template that start before any of the former ones ends."""
        row, obj, held = row_of(self.workload), as_read(self.workload), len(self.workload.holding)
        if row is None or (obj is None and row.of.size):
            return 0  # nothing changes it
        obj = obj or {}  # of kinds without a size, lists have no spec: by their defaults
        named = value_at(obj, row.replicas.path) if row.replicas else None
        replicas = named if type(named) is int and named > 0 else held
        return row.rollout.surge_of(obj, replicas) * -(-held // max(replicas, 1))

    def _has_room(self, resource: str, per_pod: int, beside: int) -> bool:
        """Whether the first pods, with this number of a GPU resource each, fit beside all that is there."""
        pods, needs = self.surge, largest(pod.needs for pod in self.workload.holding)
        quotas = self.fleet.quotas_in.get(self.workload.ref.namespace, ())
        amounts = {**needs, resource: per_pod}
        if any(pods * amounts.get(quota.resource, 0) > max(quota.hard - quota.used, 0) for quota in quotas):
            return False
        incoming = IncomingPods(((resource, per_pod),), needs, pods)
        offers = (offer for offer in self.fleet.offers.get(resource, ()) if self._takes(offer.node))
        places = sum(self._places(offer.node, incoming, most=offer.free // per_pod) for offer in offers)
        return places - self.fleet.awaited.get(resource, 0) - beside >= pods

    @functools.cached_property
    def is_sharing(self) -> bool:
        """Whether its pods share GPUs already, by their own request."""
        pairs = [(pod, self.fleet.nodes.get(pod.node)) for pod in self.workload.holding]
        return bool(pairs) and all(
            node and node.sharing and pod.resources and not has_own(pod, node) for pod, node in pairs
        )

    def is_shared(self, asks: Asks) -> bool:
        """Whether pods with such a request share a GPU, or an instance of one, on a node that could take them."""
        return bool(self._hosts(_name_of(asks)))

    def sharing_blocker(self, asks: Asks, sharing: Sharing) -> str:
        """Why pods with a GPU of their own must not share one by this request; empty if they may.

        The scheduler chooses the node, so each that could take them counts, as do pods that wait for the same.
        """
        name = _name_of(asks)
        hosts = () if self.is_sharing else self._hosts(name)
        if not hosts:
            return ""
        own = sharing.domain_of(self.workload, self.fleet)
        if own is None:
            is_untrusted = sharing.is_untrusted(self.workload, self.fleet)
            why = (
                "the policy calls it untrusted"
                if is_untrusted
                else f"its namespace has no label {sharing.label}"
            )
            return f"it has no trust domain: {why}"
        domains = self.fleet.once(("domains", str(sharing)), lambda: trust_domains(self.fleet, sharing))
        for place in (*hosts, *(_AMOUNTS if name in _AMOUNTS else (name,))):
            if domains.get(place, set()) - {own}:
                where = (
                    f"share GPUs of {place}, which could take it" if place in hosts else f"wait for {place}"
                )
                return f"pods outside of its trust domain {where}"
        return ""

    def _hosts(self, name: str) -> tuple[str, ...]:
        """Open nodes that could take its pods, and let pods share what they hand out as a resource."""
        if self._placement is None:
            return ()
        nodes = self.fleet.once(("shared", name), lambda: list(_handing_out(self.fleet, name)))
        key = ("hosts", name, self._placement.shape)
        return self.fleet.once(key, lambda: tuple(node.name for node in nodes if self._takes(node)))

    def _is_within_quotas(self, own: IncomingPods) -> bool:
        """Whether the quotas of the namespace allow the increase."""
        quotas = self.fleet.quotas_in.get(self.workload.ref.namespace, ())
        more = {
            name: own.pods * count - sum(pod.resources.get(name, 0) for pod in self.workload.holding)
            for name, count in ((_counted_as(name), count) for name, count in own.asks)
        }
        return all(more.get(quota.resource, 0) <= max(quota.hard - quota.used, 0) for quota in quotas)

    def _free(self, resource: str, incoming: IncomingPods) -> int:
        """Number of pods that fit; cached for pods with the same placement and needs."""
        if self._placement is None:
            return 0
        key = ("free", resource, plain(self.model), self._placement.shape, *sorted(incoming.needs.items()))
        return self.fleet.once(key, lambda: sum(self._offered(resource, incoming)))

    def _offered(self, resource: str, incoming: IncomingPods) -> Iterator[int]:
        card = card_of(self.model)
        if resource == SHARED:
            offers: Sequence[Offer] = shares_of(self.fleet, self.model)
        else:
            every = _claimable(self.fleet, resource) or self.fleet.offers.get(resource, ())
            offers = [offer for offer in every if card_of(offer.node.model) is card]
        for offer in offers:
            if self._takes(offer.node):
                yield self._places(offer.node, incoming, most=offer.free)

    def _fit(
        self, alike: Sequence[Pool], counting: str, incoming: IncomingPods, taken: Mapping[str, int]
    ) -> bool:
        amounts, left = dict(incoming.asks), incoming.pods
        memory, cores = amounts[counting], amounts.get(GPU_CORES, 0)
        if counting == GPU_MEM_PERCENT:
            memory = -(-alike[0].memory * memory // 100)
        if (alike[0].resource == ALIYUN_MEM) != (counting == ALIYUN_MEM):
            return False
        gone = taken.get(ALIYUN_MEM if counting == ALIYUN_MEM else GPU, 0)  # a GPU for each, at worst
        for pool in alike:
            if pool.is_full(memory):
                return False  # so are the following ones
            if not self._takes(pool.node):
                continue
            lost = min(gone, pool.gpus)
            gone -= lost
            rest = dataclasses.replace(pool, gpus=pool.gpus - lost)
            left -= rest.takes(memory, cores, self._places(pool.node, incoming, most=left))
            if left <= 0:
                return True
        return False

    def _takes(self, node: Node) -> bool:
        return self._placement is not None and could_host(node, UNKNOWN_CAPACITY, self._placement)

    def _places(self, node: Node, incoming: IncomingPods, *, most: int) -> int:
        """Number of pods, at most `most`, for which a node has CPU, memory and pod slots; 0 if unknown."""
        spare = self.fleet.spare.get(node.name, {})
        counts = [max(spare.get(name, 0), 0) // need for name, need in incoming.needs.items() if need]
        return min((most, *counts))


def trust_domains(fleet: Fleet, sharing: Sharing) -> Mapping[str, set[str | None]]:
    """The trust domains of pods that share GPUs, by node, and of pods without a node, by what they request."""
    found: dict[str, set[str | None]] = {}
    for workload in fleet.workloads:
        places: set[str] = set()
        for pod in workload.pods:
            node = fleet.nodes.get(pod.node)
            if pod.holds and node is not None and not has_own(pod, node):
                places.add(pod.node)
            elif not pod.node and pod.phase == "Pending":
                places.update(pod.resources)
        domain = sharing.domain_of(workload, fleet) if places else None
        for place in places:
            found.setdefault(place, set()).add(domain)
    return found


def _claimed(amounts: Mapping[str, int]) -> int:
    """Number of devices of all classes."""
    return sum(count for name, count in amounts.items() if name.startswith(CLASS_PREFIX))


def _claimable(fleet: Fleet, resource: str) -> Sequence[Offer]:
    """Nodes with free MIG devices that a name stands for; the profile tells them, as DeviceClasses of MIG do not."""
    asked = claimed_profile(resource)
    if asked is None:
        return ()
    return fleet.once(("claimable", asked.profile), lambda: list(_free_devices(fleet, asked.profile)))


def _free_devices(fleet: Fleet, profile: str) -> Iterator[Offer]:
    for name, devices in sorted(fleet.devices.nodes.items()):
        fit = {mig.id for mig in devices if mig.profile == profile and not (mig.taints or mig.is_shareable)}
        node = fleet.nodes.get(name)
        free = count_free(fit, fleet.devices, name) if fit and node is not None and node.is_open else 0
        if free and node is not None:
            yield Offer(node, free)


def _counted_as(resource: str) -> str:
    """The name under which quotas count a resource."""
    asked = claimed_profile(resource)
    return resource if asked is None else f"{CLASS_PREFIX}{asked.device_class}"


def _name_of(asks: Asks) -> str:
    """The resource of a request that decides where pods share."""
    return next((name for name, _ in asks if name in _AMOUNTS), asks[0][0])


def _handing_out(fleet: Fleet, name: str) -> Iterator[Node]:
    """Open nodes that have a resource of which several pods get the same GPU."""
    amounts = "gpushare" if name == ALIYUN_MEM else "hami" if name in _AMOUNTS else ""
    for node in fleet.nodes.values():
        has = node.sharing == amounts if amounts else node.allocatable.get(name) and how_shared(node, name)
        if node.is_open and has:
            yield node
