"""Places for pending pods, and the victims that would have to go for them there. Pure.

Free GPUs, CPU, memory, pod slots, DRA devices and quota count, now and after the victims that are chosen already.
Victims that share a PodDisruptionBudget are no more than it allows.
"""

import collections
import dataclasses
import datetime
import heapq
import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.placeable_pods import PORT
from rightsizer.model import (
    Allocation,
    DeviceId,
    Fleet,
    Holding,
    QuotaKey,
    WaitingClaim,
    WaitingPod,
    backed_on,
    claims_on,
)
from rightsizer.planning.victims import Victim, cost_of, most_going, needed

_MOST_TRIES = 500_000
"""Maximum for all pending pods of a namespace, about 10 µs each: tenants write pods, gangs and claims, and must not
slow a plan down for others, nor use up the tries of others."""
_CANDIDATES_PER_TRY = 10
"""Number of candidates that a step may look at for each try that it costs."""
_MOST_EXPLAINED = 20
"""Number of nodes of which it is said what a pod lacks."""
_NODES_PER_CANDIDATE = 5
"""Number of nodes with a remembered place that take as long to compare as one candidate."""

_SOON, _LATEST = datetime.timedelta(minutes=5), datetime.timedelta(minutes=2)
"""A pod that terminates is room on its way from so long before the end of its grace period until so long after it.

Tenants choose grace periods and may ignore signals: others would wait for their pods as long as they like.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A pod on a node, in the place of these victims.

    Attributes:
        node: Empty for the quota of a gang.
        devices: What it would get of DRA devices.
        takes: The quota, in place of what the pod asks for.
    """

    pod: WaitingPod
    node: str
    victims: tuple[Victim, ...]
    devices: tuple[Holding, ...] = ()
    takes: Mapping[QuotaKey, float] = dataclasses.field(default_factory=dict)


class Places:
    """Free amounts on the nodes and in queues, now or after the chosen changes.

    Attributes:
        candidates: Those that could go.
        free: Amounts, by node and resource or by pool and what it is a quota of.
        held: What is held of DRA devices that are not free.
        gone: The UIDs of pods that end.
        leaving: The UIDs of pods that terminate now.
        on_way: Amounts that these hold, by node and resource.
        releasing: What these hold of DRA devices that nobody else holds.
        nominated: As a Fleet's.
        victims: The pod that each serves.
        tries: What is left to find a place, by namespace of the pending pods.
        kept: By node and what pods ask for, the place found there, until a change of it could make it another.
    """

    def __init__(self, fleet: Fleet, candidates: Sequence[Victim]) -> None:
        self.free: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.free.update(fleet.free)
        self.free.update({(gap.node, gap.resource): gap.free for gap in fleet.stranded})
        self.free.update(
            {(node, name): left for node, spare in fleet.spare.items() for name, left in spare.items()}
        )
        self.free.update(fleet.queues.free)
        for pod in fleet.waiting:
            ports = [name for name in pod.needs if name.startswith(PORT)]
            self.free.update({(node, port): 1 for node in pod.nodes for port in ports})
        self.nodes, self.nominated = fleet.nodes, fleet.nominated
        self._fleet = fleet
        self.devices = fleet.devices
        self._quotas = fleet.queues.held
        self.candidates = candidates
        self.held = {name: set(holdings) for name, holdings in fleet.devices.held.items()}
        self.victims: dict[Victim, WaitingPod] = {}
        self.leaving: set[str] = set()
        self.on_way: collections.Counter[tuple[str, str]] = collections.Counter()
        self.releasing: dict[DeviceId, set[Holding]] = collections.defaultdict(set)
        self.tries = collections.defaultdict[str, Tries](lambda: Tries(_MOST_TRIES))
        self.kept = collections.defaultdict[str, dict[int, _Ranked | None]](dict)
        self._spared: frozenset[Victim] = frozenset()
        self._dropped: set[Victim] = set()
        self.gone: set[str] = set()
        self._on: dict[Victim, set[str]] = {}
        self._at: dict[str, list[Victim]] = {}
        self._freed: dict[Victim, dict[tuple[str, str], float]] = {}
        self._going: collections.Counter[Hashable] = collections.Counter()
        self._most: dict[Hashable, int] = {}
        self._position = {victim: number for number, victim in enumerate(candidates)}
        self._returning: dict[QuotaKey, dict[Victim, None]] = collections.defaultdict(dict)
        self._shapes: dict[Hashable, int] = {}
        for victim in candidates:
            workload = victim.decision.workload
            for key in self._quota_of(victim):
                self._returning[key][victim] = None
            self._on[victim] = {pod.node for pod in victim.pods or workload.pods if pod.holds}
            for node in self._on[victim]:
                self._at.setdefault(node, []).append(victim)
            self._most[workload.ref] = most_going(victim.decision) if victim.is_replica else 1
            self._most |= {(workload.ref.namespace, name): most for name, most in workload.budgets.items()}
        self._tied = self._tied_nodes()

    def _tied_nodes(self) -> Mapping[Hashable, set[str]]:
        """Nodes on which less may go, or other replicas go along, once one has gone elsewhere; by what ties them."""
        numbers: collections.Counter[Hashable] = collections.Counter()
        nodes: dict[Hashable, set[str]] = collections.defaultdict(set)
        ordered = {victim.decision.workload.ref for victim in self.candidates if victim.after}
        for victim in self.candidates:
            for limit, number in _counted(victim).items():
                numbers[limit] += number
                nodes[limit] |= self._on[victim]
        return {key: on for key, on in nodes.items() if numbers[key] > self._most[key] or key in ordered}

    def spare(self, victims: frozenset[Victim]) -> None:
        """Let these not go, and others of those spared before go again."""
        if victims != self._spared:
            self._forget(victims ^ self._spared)
            self._spared = victims

    def drop(self, victims: Collection[Victim]) -> None:
        """Let these never go."""
        self._dropped.update(victims)
        self._forget(victims)

    def _forget(self, victims: Iterable[Victim], node: str = "") -> None:
        """Look again at a node, and at all nodes for which it matters whether these go."""
        nodes = {node}
        for victim in victims:
            nodes |= self._on[victim]
            for limit in _counted(victim):
                nodes |= self._tied.get(limit, set())
        for name in nodes:
            self.kept.pop(name, None)

    def free_what_terminates(self, at: datetime.datetime) -> None:
        """Count what pods hold that terminate now: perhaps they were stopped for the same demand."""
        going = [
            pod
            for workload in self._fleet.workloads
            for pod in workload.pods
            if pod.holds and pod.terminates_by is not None
            if -_SOON <= at - pod.terminates_by < _LATEST
        ]
        self.leaving |= {pod.ref.uid for pod in going}
        self.gone |= self.leaving
        for pod in going:
            for resource, amount in {**pod.needs, **pod.resources}.items():
                self.free[pod.node, resource] += amount
                self.on_way[pod.node, resource] += amount
            for name in pod.claims:
                allocation = self.devices.allocations.get((pod.ref.namespace, name))
                if allocation is not None and allocation.users <= self.gone:
                    self._hold(taken=(), released=allocation.devices)
                    for holding in allocation.devices:
                        self.releasing[holding.id].add(holding)

    def charge(self, pod: WaitingPod, candidates: int = 0) -> None:
        """Take a try for a step of the search for a pod, and more if it looks at many candidates."""
        self.tries[pod.ref.namespace].left -= 1 + candidates // _CANDIDATES_PER_TRY

    def number_on(self, node: str) -> int:
        """Number of candidates that hold something on a node."""
        return len(self._at.get(node, ()))

    def shape(self, pod: WaitingPod) -> int:
        """Equal for pods that have the same place on a node; a number, as claims are long."""
        asked = (frozenset(pod.resources.items()), frozenset(pod.needs.items()))
        shape = (
            pod.priority,
            *asked,
            pod.claims,
            frozenset(pod.backed.items()),
            frozenset(pod.kept_off.items()),
        )
        return self._shapes.setdefault(shape, len(self._shapes))

    def lower(self, pod: WaitingPod, node: str) -> Iterator[Victim]:
        """Candidates of a lower priority on a node, in order: no victims yet, and they hold what the pod asks for."""
        for victim in self._at.get(node, ()):
            if self._may_go(victim, pod) and _asks_alike(victim, pod, self.claims(pod, node)):
                yield victim

    def together(self, victims: Iterable[Victim]) -> tuple[Victim, ...]:
        """Victims with the replicas that go before them, as far as these are no victims yet."""
        found: dict[Victim, None] = {}
        for victim in victims:
            before: Victim | None = victim
            while before is not None and before not in found and before not in self.victims:
                found[before] = None
                before = before.after
        return tuple(found)

    def together_on(self, node: str, victims: Collection[Victim]) -> Iterator[Victim]:
        """Yield the victims of `together` on a node; replicas are counted, as hundreds may go before one."""
        chosen = frozenset(victims)
        last = {part.decision.workload.ref: part.place for part in sorted(victims, key=_order) if part.place}
        for victim in self._at.get(node, ()) if victims else ():
            is_before = bool(last) and victim.place < last.get(victim.decision.workload.ref, 0)
            if (victim in chosen or is_before) and victim not in self.victims:
                yield victim

    def allows(self, victims: Iterable[Victim]) -> bool:
        """Whether they may all go in addition to the victims: by PodDisruptionBudgets, and replicas that stay."""
        more: collections.Counter[Hashable] = collections.Counter()
        for victim in sorted(victims, key=_order):
            ref = victim.decision.workload.ref
            # With it go all that go before it and are no victims yet.
            more.update(_counted(victim, max(1, victim.place + 1 - self._going[ref] - more[ref])))
        return all(self._going[key] + number <= self._most[key] for key, number in more.items())

    def allowed(self, victims: Iterable[Victim]) -> Iterator[Victim]:
        """Yield victims that may go together, the first ones first, where none goes along with another."""
        more = collections.Counter(self._going)
        for victim in victims:
            counted = _counted(victim)
            if all(more[key] + number <= self._most[key] for key, number in counted.items()):
                more.update(counted)
                yield victim

    def claims(self, pod: WaitingPod, node: str) -> tuple[WaitingClaim, ...]:
        """Claims that a pod would have on a node."""
        return claims_on(pod, self.nodes.get(node))

    def asked(self, pod: WaitingPod, node: str) -> dict[str, int]:
        """Amounts that a pod needs there; DRA devices are not amounts."""
        claimed = backed_on(pod, self.nodes.get(node))
        named = {
            name: count
            for name, count in pod.resources.items()
            if not name.startswith(CLASS_PREFIX) and name not in claimed
        }
        return {**pod.needs, **named}

    def may_return(self, pod: WaitingPod, wanted: Mapping[QuotaKey, float]) -> bool:
        """Whether there would be enough quota if all candidates of a lower priority went."""
        left = dict(wanted)
        for key in wanted:
            returning = self._returning.get(key, ())
            self.charge(pod, len(returning))
            left[key] -= sum(
                self.freed(part)[key]
                for part in returning
                if part.priority < pod.priority and part not in self.victims and part not in self._dropped
            )
        return not self.lacking(left)

    def lacking(self, wanted: Mapping[QuotaKey, float]) -> list[QuotaKey]:
        """The quotas of which less is free than wanted."""
        return [key for key, amount in wanted.items() if amount > self.free.get(key, 0.0) + 1e-9]

    def in_quotas(
        self, pod: WaitingPod, wanted: Collection[QuotaKey], usable: Collection[str]
    ) -> Iterator[Victim]:
        """Candidates of a lower priority that return some of a quota, in order; first those on usable nodes."""
        returning = [self._returning.get(key, {}) for key in wanted]
        near = {
            victim
            for node in (usable if wanted else ())
            for victim in self._at.get(node, ())
            if any(victim in group for group in returning)
        }
        ordered = itertools.groupby(heapq.merge(*returning, key=self._position.__getitem__))
        far = (victim for victim, _ in ordered if victim not in near)
        self.charge(pod, len(usable) + len(near))
        for number, victim in enumerate(itertools.chain(sorted(near, key=self._position.__getitem__), far)):
            if number % _CANDIDATES_PER_TRY == 0:
                self.charge(pod)
            if self._may_go(victim, pod):
                yield victim

    def _may_go(self, victim: Victim, pod: WaitingPod) -> bool:
        return (
            victim.priority < pod.priority
            and victim not in self.victims
            and victim not in self._dropped
            and (not self._spared or self._spared.isdisjoint(self.together([victim])))
        )

    def freed(self, victim: Victim) -> Mapping[tuple[str, str], float]:
        """Amounts that a victim frees, by node and resource."""
        if victim not in self._freed:
            self._freed[victim] = {**_held(victim), **self._quota_of(victim)}
        return self._freed[victim]

    def _quota_of(self, victim: Victim) -> dict[QuotaKey, float]:
        """Quota that its queue gets back; nothing where its pods are unknown: what fewer give back is not known."""
        found: dict[QuotaKey, float] = collections.defaultdict(float)
        if self._quotas and victim.pods:
            ref = victim.decision.workload.ref
            for uid in {ref.uid, *(pod.ref.uid for pod in victim.pods)}:
                for key, amount in self._quotas.get(f"{ref.namespace}/{uid}", {}).items():
                    found[key] += amount
        return dict(found)

    def do(self, placement: Placement) -> None:
        """Take the place."""
        self._hold(taken=placement.devices, released=self.released(placement.victims))
        self.gone |= _uids(placement.victims)
        self.victims |= dict.fromkeys(placement.victims, placement.pod)
        self._add(placement, 1)
        self._forget(placement.victims, placement.node)

    def undo(self, placement: Placement) -> None:
        """Give it back; the last placement first."""
        self._add(placement, -1)
        for victim in placement.victims:
            del self.victims[victim]
        self.gone -= _uids(placement.victims)
        self._hold(taken=self.released(placement.victims), released=placement.devices)
        self._forget(placement.victims, placement.node)

    def _hold(self, *, taken: Iterable[Holding], released: Iterable[Holding]) -> None:
        for holding in released:
            self.held[holding.id].discard(holding)
        for holding in taken:
            self.held.setdefault(holding.id, set()).add(holding)

    def _add(self, placement: Placement, sign: int) -> None:
        for victim in placement.victims:
            for key, amount in self.freed(victim).items():
                self.free[key] += sign * amount
        for victim in placement.victims:
            for limit, number in _counted(victim).items():
                self._going[limit] += sign * number
        # A gang's quota is taken as a whole, on no node.
        node = placement.node
        asked = self.asked(placement.pod, node).items() if node else ()
        for key, amount in (*placement.takes.items(), *(((node, name), count) for name, count in asked)):
            self.free[key] -= sign * amount

    def released(self, victims: Sequence[Victim], *, is_now: bool = False) -> set[Holding]:
        """Holdings on DRA devices that become free with the victims: no other pod uses their claims.

        With `is_now` pods that terminate use them still.
        """
        gone = (self.gone - self.leaving if is_now else self.gone) | _uids(victims)
        return {
            holding
            for victim in victims
            for allocation in self._allocations(victim)
            if allocation.users <= gone
            for holding in allocation.devices
        }

    def claimed(self, victim: Victim) -> set[DeviceId]:
        """DRA devices of which a victim holds something, alone or with others."""
        return {holding.id for allocation in self._allocations(victim) for holding in allocation.devices}

    def _allocations(self, victim: Victim) -> Iterator[Allocation]:
        for pod in victim.pods:
            for name in pod.claims:
                allocation = self.devices.allocations.get((pod.ref.namespace, name))
                if allocation is not None:
                    yield allocation


def _uids(victims: Iterable[Victim]) -> set[str]:
    return {pod.ref.uid for victim in victims for pod in victim.pods}


def _order(victim: Victim) -> int:
    return victim.place


def _counted(victim: Victim, number: int = 1) -> dict[Hashable, int]:
    """Number of victims that go with this number like it: of its workload, and of each PodDisruptionBudget."""
    workload = victim.decision.workload
    pods = len(victim.pods) if victim.is_replica else victim.decision.pods_going
    found: dict[Hashable, int] = {(workload.ref.namespace, name): pods * number for name in workload.budgets}
    return found | {workload.ref: number}


_Ranked = tuple[tuple[float, float, int, int], str, Placement]
"""A place after what it costs, and its node."""


def best_place(pod: WaitingPod, places: Places) -> Placement | None:
    """The place with the cheapest victims for a pod; None if it fits nowhere, or no tries are left."""
    if places.tries[pod.ref.namespace].left <= 0:
        return None
    places.charge(pod, len(pod.nodes) // _NODES_PER_CANDIDATE)
    shape = places.shape(pod)
    ranked = (_ranked(pod, node, places, shape) for node in sorted(pod.nodes))
    best = min((place for place in ranked if place is not None), default=None)
    return best and dataclasses.replace(best[2], pod=pod)


def _ranked(pod: WaitingPod, node: str, places: Places, shape: int) -> _Ranked | None:
    """A pod's place on a node; looked for each time where other nodes matter: for DRA devices and repelling pods."""
    kept = places.kept[node]
    if shape in kept:
        return kept[shape]
    found = _placement(pod, node, places)
    ranked = None if found is None else (cost_of(found.victims), node, found)
    if not places.claims(pod, node) and node not in pod.kept_off:
        kept[shape] = ranked
    return ranked


def _asks_alike(victim: Victim, pod: WaitingPod, claims: Sequence[WaitingClaim]) -> bool:
    pods = victim.decision.workload.pods
    return any(resource in pod.resources for held in pods for resource in held.resources) or (
        bool(claims) and any(held.claims for held in pods)
    )


def _placement(pod: WaitingPod, node: str, places: Places) -> Placement | None:
    """The cheapest victims on a node with which the pod fits, as far as two orders find them.

    None if it cannot fit, or if it lacks something other than GPUs.
    """
    found = _fitting(pod, node, (), places)
    if found is not None or not _lacks_gpus(pod, node, places):
        return found
    lower = list(places.lower(pod, node))
    found = _first_fit(pod, node, lower, places)
    if found is None or len(found.victims) == 1:
        return found
    # Many small victims together may lose more than one large one.
    largest = sorted(lower, key=lambda victim: (victim.priority, -victim.frees))
    other = _first_fit(pod, node, largest, places)
    return found if other is None or cost_of(found.victims) <= cost_of(other.victims) else other


def _first_fit(pod: WaitingPod, node: str, ordered: Iterable[Victim], places: Places) -> Placement | None:
    """Victims in this order until the pod fits, without those that it would fit without."""
    victims: list[Victim] = []
    for victim in ordered:
        if _helps(victim, pod, node, victims, places) and places.allows([*victims, victim]):
            victims.append(victim)
            if _fitting(pod, node, victims, places) is not None:
                fewest = needed(victims, lambda fewer: _fitting(pod, node, fewer, places) is not None)
                return None if _is_late(pod, node, fewest, places) else _fitting(pod, node, fewest, places)
    return None


def _is_late(pod: WaitingPod, node: str, victims: Sequence[Victim], places: Places) -> bool:
    """Whether a pod fits only once pods that terminate are gone, too: until then nobody goes for it.

    What of that is kept for other pods does not count.
    """
    asked = places.asked(pod, node)
    before, left = _left(pod, node, (), places), _left(pod, node, victims, places)
    return (
        not places.leaving.isdisjoint(pod.kept_off.get(node, ()))
        or any(
            amount < min(max(before[name] + asked[name], 0), places.on_way[node, name])
            for name, amount in left.items()
        )
        or (bool(places.releasing) and _devices(pod, node, victims, places, is_now=True) is None)
    )


def shortage(pod: WaitingPod, places: Places) -> str:
    """Resources that a pod would lack after all possible victims have gone, on the node with the least, in words."""
    found: list[list[str]] = []
    for node in sorted(pod.nodes)[:_MOST_EXPLAINED]:
        if lower := list(places.lower(pod, node)):
            lacks = [*_missing(pod, node, lower, places)]
            if _keeping_off(pod, node, lower, places):
                lacks.append("a node without pods that repel it or have its host ports")
            if not lacks and _devices(pod, node, lower, places) is None:
                lacks.append("DRA devices")
            found.append(lacks)
    if not found:
        return "no idle workload of a lower priority holds what it asks for"
    if least := min(found, key=len):
        return f"without all idle workloads of a lower priority it would still lack {', '.join(least)}"
    return "those that would have to go for it may not go together"


def _missing(pod: WaitingPod, node: str, victims: Collection[Victim], places: Places) -> dict[str, float]:
    """Amounts that a pod lacks on a node after the victims have gone, by resource name."""
    left = _left(pod, node, victims, places)
    return {resource: -amount for resource, amount in left.items() if amount < 0}


def _left(pod: WaitingPod, node: str, victims: Collection[Victim], places: Places) -> dict[str, float]:
    """Amounts left beside a pod on a node after the victims have gone, of each resource that it asks for."""
    places.charge(pod, places.number_on(node))
    left = {
        resource: places.free.get((node, resource), 0.0) - amount
        for resource, amount in places.asked(pod, node).items()
        if amount
    }
    for priority, amounts in places.nominated.get(node, ()):
        if priority >= pod.priority:
            for resource in left:
                left[resource] -= amounts.get(resource, 0)
    for victim in places.together_on(node, victims):
        held = places.freed(victim)
        for resource in left:
            left[resource] += held.get((node, resource), 0.0)
    return left


def _keeping_off(pod: WaitingPod, node: str, victims: Collection[Victim], places: Places) -> frozenset[str]:
    """The UIDs of the pods that keep a pod off a node after the victims have gone."""
    return pod.kept_off.get(node, frozenset()) - places.gone - _uids(victims)


def _devices(
    pod: WaitingPod, node: str, victims: Sequence[Victim], places: Places, *, is_now: bool = False
) -> tuple[Holding, ...] | None:
    """DRA devices for a pod after the victims have gone; with `is_now` those that pods release are held still."""
    claims, held = places.claims(pod, node), places.held
    freed = places.released(places.together(victims), is_now=is_now) if claims else set[Holding]()
    if is_now:
        held = {
            device.id: held.get(device.id, set()) | places.releasing.get(device.id, set())
            for device in places.devices.nodes.get(node, ())
        }
    tries = places.tries[pod.ref.namespace]
    return allocate(claims, places.devices, node, held, tries, freed=freed)


def _fitting(pod: WaitingPod, node: str, victims: Sequence[Victim], places: Places) -> Placement | None:
    if _missing(pod, node, victims, places) or _keeping_off(pod, node, victims, places):
        return None
    devices = _devices(pod, node, victims, places)
    return None if devices is None else Placement(pod, node, places.together(victims), devices)


def _lacks_gpus(pod: WaitingPod, node: str, places: Places) -> bool:
    missing = _missing(pod, node, (), places)
    return any(name in pod.resources for name in missing) or _devices(pod, node, (), places) is None


def _helps(victim: Victim, pod: WaitingPod, node: str, victims: Sequence[Victim], places: Places) -> bool:
    """Whether a victim on the node has something that the pod still lacks."""
    held = places.freed(victim)
    if any((node, resource) in held for resource in _missing(pod, node, victims, places)):
        return True
    if not _uids([victim]).isdisjoint(_keeping_off(pod, node, victims, places)):
        return True
    claims = places.claims(pod, node)
    if not claims:
        return False
    devices = places.devices.nodes.get(node, ())
    choices = [choice for claim in claims for request in claim.requests for choice in request.choices]
    places.charge(pod, len(devices) * len(choices))
    gpus = {device.gpu for device in devices if any(device.id in choice.eligible for choice in choices)}
    own = places.claimed(victim)
    return any(device.gpu in gpus for device in devices if device.id in own)


def _held(victim: Victim) -> dict[tuple[str, str], float]:
    """Amounts that a victim frees, by node and resource: all that its pods hold, or an equal share of every pod.

    Pods that stay keep their CPU and memory.
    """
    workload, proposal = victim.decision.workload, victim.decision.finding.proposal
    is_share = proposal is not None and not victim.is_replica
    share = proposal.frees / workload.gpus if proposal and is_share and workload.gpus else 1.0
    are_fewer = not is_share or (proposal is not None and proposal.replicas is not None)
    found: dict[tuple[str, str], float] = collections.defaultdict(float)
    for pod in victim.pods or workload.pods:
        if pod.holds:
            amounts = {**pod.needs, **pod.resources} if are_fewer else pod.resources
            for resource, amount in amounts.items():
                found[pod.node, resource] += amount * share
    return found
