"""Limits `onlyForPendingPods` actions to what pending pods need. Pure.

Victims are chosen by lowest priority, then by what they lose. Each pending pod is served on one node: the one whose
victims lose least. Free GPUs, CPU, memory and pod slots of that node count: nobody is stopped for a pod that would
still not fit. The pods of a gang are served all or none.
"""

import collections
import dataclasses
import datetime
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.kinds import pause_for
from rightsizer.model import (
    Action,
    Allocation,
    Blocker,
    BlockerCode,
    Decision,
    DeviceId,
    Fleet,
    Holding,
    Node,
    ObjectRef,
    QueueOption,
    QuotaKey,
    WaitingClaim,
    WaitingPod,
    backed_on,
    claims_on,
)
from rightsizer.policy.effective import PolicyEvaluator

_SOON, _LATEST = datetime.timedelta(minutes=5), datetime.timedelta(minutes=2)
"""A pod that terminates is room on its way from so long before the end of its grace period until so long after it.

Tenants choose grace periods and may ignore signals: others would wait for their pods as long as they like.
"""
_MAX_TRIES = 1_000_000
"""Pods of a gang, times its options, times the domains of its topology: more take too long, whoever asks for them."""
_TOO_MANY_WAYS = (
    f"its pods have more than {_MAX_TRIES:,} ways to be placed: flavors, times domains, times pods"
)


def limit_to_pending_demand(
    decisions: Sequence[Decision], evaluator: PolicyEvaluator
) -> tuple[Decision, ...]:
    """Block changes of onlyForPendingPods that no pending pod needs; name the pending pods for the others."""
    candidates = sorted((one for one in decisions if _is_on_demand(one, evaluator)), key=_standing)
    wanted = _matched(candidates, evaluator.fleet, evaluator.at) if candidates else {}
    on_demand = {one.workload.ref for one in candidates}
    return tuple(
        _with(one, wanted.get(one.workload.ref, ())) if one.workload.ref in on_demand else one
        for one in decisions
    )


def unserved_demand(evaluator: PolicyEvaluator) -> Iterator[str]:
    """Why no GPUs are freed for some of what waits, each reason once; nothing if no rule frees any on demand."""
    fleet = evaluator.fleet
    if not any(evaluator.evaluate(workload).only_for_pending_pods for workload in fleet.workloads):
        return
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for one in fleet.unserved:
        by_reason[one.why].append(one.what)
    for pods in _together(fleet.waiting):
        if pods[0].gang and _has_too_many_ways(pods, fleet.nodes):
            by_reason[_TOO_MANY_WAYS].append(str(pods[0].gang.ref))
    for why, whats in by_reason.items():
        more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
        yield f"{whats[0]}{more}: no GPUs are freed for it: {why}"


def _is_on_demand(decision: Decision, evaluator: PolicyEvaluator) -> bool:
    if not decision.is_enforced:
        return False
    actions = {decision.announced or decision.action}
    if pause_for(decision.workload, decision.finding.proposal) is not None:
        actions.add(Action.SUSPEND)
    return not actions.isdisjoint(evaluator.evaluate(decision.workload).only_for_pending_pods)


def _standing(decision: Decision) -> tuple[int, float, float, ObjectRef]:
    """Sort key: lowest priority, then least loss, then least utilization."""
    finding, workload = decision.finding, decision.workload
    mean = 1.0 if finding.activity_mean is None else finding.activity_mean
    return workload.priority, _loss(decision), mean, workload.ref


def _loss(decision: Decision) -> float:
    return math.inf if decision.gpu_hours_lost is None else decision.gpu_hours_lost


def _cost(victims: Collection[Decision]) -> tuple[float, float, int]:
    """What a set of victims costs, most important first, by the same criteria as one of them."""
    return (
        max((one.workload.priority for one in victims), default=-math.inf),
        sum(map(_loss, victims)),
        len(victims),
    )


def _with(decision: Decision, wanted_by: tuple[ObjectRef, ...]) -> Decision:
    if wanted_by:
        return dataclasses.replace(decision, wanted_by=wanted_by)
    action = decision.announced or decision.action
    words = (
        f"rule {decision.rule} allows {action.value if action else 'nothing'} only for pending pods of a higher "
        "priority; none needs its GPUs"
    )
    return dataclasses.replace(
        decision, blockers=(*decision.blockers, Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words))
    )


def _matched(
    candidates: Sequence[Decision], fleet: Fleet, at: datetime.datetime
) -> dict[ObjectRef, tuple[ObjectRef, ...]]:
    """The pending pods that each chosen victim serves."""
    places = _Places(fleet, candidates)
    places.free_what_terminates(at)
    lowest = min(one.workload.priority for one in candidates)
    # Thousands of pods may ask alike: what found no place finds none either while nothing is placed.
    in_vain: set[Hashable] = set()
    for pods in _together(fleet.waiting):
        shape = None if pods[0].gang else _shape(pods[0])
        if max(pod.priority for pod in pods) <= lowest or shape in in_vain:  # nobody could go for them
            continue
        if _serve(pods, places):
            in_vain.clear()
        elif shape is not None:
            in_vain.add(shape)
    return {ref: (pod,) for ref, pod in places.victims.items()}


def _shape(pod: WaitingPod) -> Hashable:
    """Equal for pods that fit alike; those of a lower priority come later, and have fewer victims."""
    return pod.nodes, pod.claims, tuple(sorted(pod.resources.items())), tuple(sorted(pod.needs.items()))


def _together(waiting: Iterable[WaitingPod]) -> list[list[WaitingPod]]:
    """The pods that start together: those of a gang, in the place of its first; each other pod alone."""
    found: dict[ObjectRef, list[WaitingPod]] = {}
    for pod in waiting:
        found.setdefault(pod.gang.ref if pod.gang else pod.ref, []).append(pod)
    return [pods for pods in found.values() if pods[0].gang is None or len(pods) >= pods[0].gang.needs]


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to place pods that start together.

    Attributes:
        takes: The quota that they take together.
        spared: Workloads that must not go.
    """

    pods: Sequence[WaitingPod]
    takes: Mapping[QuotaKey, float]
    spared: frozenset[ObjectRef] = frozenset()


def _serve(pods: Sequence[WaitingPod], places: "_Places") -> bool:
    """Place pods in the cheapest way, whole or not at all; whether they have a place."""
    attempts = list(_attempts(pods, places.nodes))
    if len(attempts) == 1 and not attempts[0].takes:
        return _place_all(attempts[0], places) is not None
    best: tuple[tuple[float, float, int], _Attempt] | None = None
    for one in attempts:
        cost = _try(one, places)
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, one)
    if best is None:
        return False
    cost, attempt = best
    if attempt.takes:
        # A victim for the quota and another for the place may be one too many.
        for ref in _victims_of(attempt, places):
            fewer = dataclasses.replace(attempt, spared=attempt.spared | {ref})
            without = _try(fewer, places)
            if without is not None and without < cost:
                cost, attempt = without, fewer
    return _place_all(attempt, places) is not None


def _attempts(pods: Sequence[WaitingPod], nodes: Mapping[str, Node]) -> Iterator[_Attempt]:
    """Each option of its queue, in each domain of its topology; none where they are too many."""
    gang = pods[0].gang
    if gang is None:
        yield _Attempt(pods, {})
        return
    domains = _domains(pods, gang.topology, nodes)
    if _has_too_many_ways(pods, nodes):
        return
    for option in gang.options or (QueueOption(None, {}),):
        for domain in domains:
            allowed = domain if option.nodes is None else domain & option.nodes
            limited = [dataclasses.replace(pod, nodes=pod.nodes & allowed) for pod in pods]
            yield _Attempt(limited, option.amounts)


def _has_too_many_ways(pods: Sequence[WaitingPod], nodes: Mapping[str, Node]) -> bool:
    gang = pods[0].gang
    if gang is None:
        return False
    options, domains = max(1, len(gang.options)), _domains(pods, gang.topology, nodes)
    return options * len(domains) * len(pods) > _MAX_TRIES


def _domains(
    pods: Sequence[WaitingPod], topology: str, nodes: Mapping[str, Node]
) -> Sequence[frozenset[str]]:
    """The nodes that the pods could use, by the value of a label; all together without a label."""
    usable = frozenset[str]().union(*(pod.nodes for pod in pods))
    if not topology:
        return [usable]
    by_value: dict[str, set[str]] = collections.defaultdict(set)
    for name in usable:
        if value := nodes[name].labels.get(topology) if name in nodes else None:
            by_value[value].add(name)
    return [frozenset(by_value[value]) for value in sorted(by_value)]


def _try(attempt: _Attempt, places: "_Places") -> tuple[float, float, int] | None:
    """What an attempt would cost; None if it fails."""
    placed = _place_all(attempt, places)
    if placed is None:
        return None
    cost = _cost([decision for one in placed for decision in one.victims])
    for one in reversed(placed):
        places.undo(one)
    return cost


def _victims_of(attempt: _Attempt, places: "_Places") -> list[ObjectRef]:
    """Who would go, the most costly first."""
    placed = _place_all(attempt, places) or []
    for one in reversed(placed):
        places.undo(one)
    victims = [decision for one in placed for decision in one.victims]
    return [one.workload.ref for one in sorted(victims, key=_standing, reverse=True)]


def _place_all(attempt: _Attempt, places: "_Places") -> list["_Placement"] | None:
    """Place as many pods as their gang needs, and those beyond that fit; undone and None if they do not."""
    places.spared = attempt.spared
    placed: list[_Placement] = []
    gang = attempt.pods[0].gang
    spare = len(attempt.pods) - (gang.needs if gang else 1)
    reserved = _reserve(attempt, places)
    if reserved is not None:
        placed.append(reserved)
        places.do(reserved)
        for pod in attempt.pods:
            found = _best_place(pod, places)
            if found is not None:
                places.do(found)
                placed.append(found)
            elif spare == 0:
                break
            else:
                spare -= 1
        else:
            return placed
    for one in reversed(placed):
        places.undo(one)
    return None


def _reserve(attempt: _Attempt, places: "_Places") -> "_Placement | None":
    """The victims whose quota is missing, first those on nodes that the pods could use; None if it is not enough."""
    pod, missing = min(attempt.pods, key=lambda one: one.priority), dict(attempt.takes)
    usable = frozenset[str]().union(*(one.nodes for one in attempt.pods))
    victims: list[Decision] = []

    def lacks() -> list[QuotaKey]:
        return [key for key, amount in missing.items() if amount > places.free.get(key, 0.0) + 1e-9]

    for decision in places.in_quotas(pod, attempt.takes, usable):
        short = lacks()
        if not short:
            break
        given = places.freed(decision)
        if any(key in given for key in short):
            victims.append(decision)
            for key in missing:
                missing[key] -= given.get(key, 0.0)
    if lacks():
        return None
    return _Placement(pod, "", tuple(victims), takes=attempt.takes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Placement:
    """A pod on a node, in the place of these victims.

    Attributes:
        node: Empty for the quota of a gang.
        devices: What it would get of DRA devices.
        takes: The quota, in place of what the pod asks for.
    """

    pod: WaitingPod
    node: str
    victims: tuple[Decision, ...]
    devices: tuple[Holding, ...] = ()
    takes: Mapping[QuotaKey, float] = dataclasses.field(default_factory=dict)


class _Places:
    """What is free on the nodes and in queues, now or after the chosen changes.

    Attributes:
        free: Amounts, by node and resource or by pool and what it is a quota of.
        held: What is held of DRA devices that are not free.
        victims: The pod that each serves.
        spared: Workloads that must not go.
        tries: To find devices.
    """

    def __init__(self, fleet: Fleet, candidates: Sequence[Decision]) -> None:
        self.free: dict[tuple[str, str], float] = collections.defaultdict(float)
        self.free.update(fleet.free)
        self.free.update({(one.node, one.resource): one.free for one in fleet.stranded})
        self.free.update(
            {(node, name): left for node, spare in fleet.spare.items() for name, left in spare.items()}
        )
        self.free.update(fleet.queues.free)
        self.spared: frozenset[ObjectRef] = frozenset()
        self.nodes = fleet.nodes
        self._fleet = fleet
        self.devices = fleet.devices
        self._quotas = fleet.queues.held
        self._candidates = candidates
        self.held = {name: set(holdings) for name, holdings in fleet.devices.held.items()}
        self.victims: dict[ObjectRef, ObjectRef] = {}
        self.tries = Tries()
        self._gone: set[str] = set()
        self._at: dict[str, list[Decision]] = {}
        self._freed: dict[ObjectRef, dict[tuple[str, str], float]] = {}
        for one in candidates:
            for node in {pod.node for pod in one.workload.pods if pod.holds}:
                self._at.setdefault(node, []).append(one)

    def free_what_terminates(self, at: datetime.datetime) -> None:
        """Count what pods hold that terminate now: perhaps they were stopped for the same demand."""
        going = [
            pod
            for workload in self._fleet.workloads
            for pod in workload.pods
            if pod.holds and pod.terminates_by is not None
            if -_SOON <= at - pod.terminates_by < _LATEST
        ]
        self._gone |= {pod.ref.uid for pod in going}
        for pod in going:
            for resource, amount in {**pod.needs, **pod.resources}.items():
                self.free[pod.node, resource] += amount
            for name in pod.claims:
                allocation = self.devices.allocations.get((pod.ref.namespace, name))
                if allocation is not None and allocation.users <= self._gone:
                    self._hold(taken=(), released=allocation.devices)

    def lower(self, pod: WaitingPod, node: str) -> Iterator[Decision]:
        """Candidates of a lower priority on a node, in order: no victims yet, and they hold what the pod asks for."""
        for one in self._at.get(node, ()):
            if self._may_go(one, pod) and _asks_alike(one, pod, self.claims(pod, node)):
                yield one

    def claims(self, pod: WaitingPod, node: str) -> tuple[WaitingClaim, ...]:
        """What a pod would claim on a node."""
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

    def in_quotas(
        self, pod: WaitingPod, wanted: Collection[QuotaKey], usable: Collection[str]
    ) -> list[Decision]:
        """Candidates of a lower priority that return some of a quota, in order; first those on usable nodes."""
        found = [
            one
            for one in (self._candidates if wanted else ())
            if self._may_go(one, pod) and not self.freed(one).keys().isdisjoint(wanted)
        ]
        return sorted(found, key=lambda one: all(each.node not in usable for each in one.workload.holding))

    def _may_go(self, decision: Decision, pod: WaitingPod) -> bool:
        workload = decision.workload
        return (
            workload.priority < pod.priority
            and workload.ref not in self.victims
            and workload.ref not in self.spared
        )

    def freed(self, decision: Decision) -> Mapping[tuple[str, str], float]:
        """What a change frees, by node and resource."""
        ref = decision.workload.ref
        if ref not in self._freed:
            self._freed[ref] = {**_held(decision), **self._quota_of(decision)}
        return self._freed[ref]

    def _quota_of(self, decision: Decision) -> dict[QuotaKey, float]:
        """What its queue gets back; how much fewer pods return is not known before, so then it is nothing."""
        found: dict[QuotaKey, float] = collections.defaultdict(float)
        if self._quotas and _frees_all(decision):
            workload = decision.workload
            for uid in {workload.ref.uid, *(pod.ref.uid for pod in workload.pods)}:
                for key, amount in self._quotas.get(f"{workload.ref.namespace}/{uid}", {}).items():
                    found[key] += amount
        return dict(found)

    def do(self, one: _Placement) -> None:
        """Take the place."""
        self._hold(taken=one.devices, released=self.released(one.victims))
        self._gone |= _uids(one.victims)
        for decision in one.victims:
            self.victims[decision.workload.ref] = one.pod.ref
        self._add(one, 1)

    def undo(self, one: _Placement) -> None:
        """Give it back; the last placement first."""
        self._add(one, -1)
        for decision in one.victims:
            del self.victims[decision.workload.ref]
        self._gone -= _uids(one.victims)
        self._hold(taken=self.released(one.victims), released=one.devices)

    def _hold(self, *, taken: Iterable[Holding], released: Iterable[Holding]) -> None:
        for one in released:
            self.held[one.id].discard(one)
        for one in taken:
            self.held.setdefault(one.id, set()).add(one)

    def _add(self, one: _Placement, sign: int) -> None:
        for decision in one.victims:
            for key, amount in self.freed(decision).items():
                self.free[key] += sign * amount
        # A gang's quota is taken as a whole, on no node.
        asked = self.asked(one.pod, one.node).items() if one.node else ()
        for key, amount in (*one.takes.items(), *(((one.node, name), count) for name, count in asked)):
            self.free[key] -= sign * amount

    def released(self, victims: Sequence[Decision]) -> set[Holding]:
        """What becomes free of DRA devices with the victims: what claims hold that no other pod uses."""
        gone = self._gone | _uids(victims)
        return {
            holding
            for one in victims
            for allocation in self._allocations(one)
            if allocation.users <= gone
            for holding in allocation.devices
        }

    def claimed(self, decision: Decision) -> set[DeviceId]:
        """DRA devices of which a victim holds something, alone or with others."""
        return {holding.id for allocation in self._allocations(decision) for holding in allocation.devices}

    def _allocations(self, decision: Decision) -> Iterator[Allocation]:
        """Those of its claims. Which of them fewer pods would release is not known before, so then there are none."""
        if not _frees_all(decision):
            return
        for pod in decision.workload.pods:
            for name in pod.claims:
                allocation = self.devices.allocations.get((pod.ref.namespace, name))
                if allocation is not None:
                    yield allocation


def _uids(victims: Iterable[Decision]) -> set[str]:
    return {pod.ref.uid for one in victims if _frees_all(one) for pod in one.workload.pods}


def _frees_all(decision: Decision) -> bool:
    """Whether all of its pods go."""
    return decision.finding.proposal is None


def _best_place(pod: WaitingPod, places: _Places) -> _Placement | None:
    """The place with the cheapest victims for a pod; None if it fits nowhere."""
    found = (_placement(pod, node, places) for node in sorted(pod.nodes))
    return min(
        (one for one in found if one is not None),
        key=lambda one: (_cost(one.victims), one.node),
        default=None,
    )


def _asks_alike(decision: Decision, pod: WaitingPod, claims: Sequence[WaitingClaim]) -> bool:
    pods = decision.workload.pods
    return any(resource in pod.resources for one in pods for resource in one.resources) or (
        bool(claims) and any(one.claims for one in pods)
    )


def _placement(pod: WaitingPod, node: str, places: _Places) -> _Placement | None:
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
    largest = sorted(lower, key=lambda one: (one.workload.priority, -one.frees))
    other = _first_fit(pod, node, largest, places)
    return found if other is None or _cost(found.victims) <= _cost(other.victims) else other


def _first_fit(pod: WaitingPod, node: str, ordered: Iterable[Decision], places: _Places) -> _Placement | None:
    """Victims in this order until the pod fits, without those that it would fit without."""
    victims: list[Decision] = []
    found: _Placement | None = None
    for decision in ordered:
        if _helps(decision, pod, node, victims, places):
            victims.append(decision)
            found = _fitting(pod, node, victims, places)
            if found is not None:
                break
    for decision in tuple(reversed(victims)) if found is not None else ():
        fewer = [one for one in victims if one is not decision]
        if (without := _fitting(pod, node, fewer, places)) is not None:
            victims, found = fewer, without
    return found


def _missing(pod: WaitingPod, node: str, victims: Iterable[Decision], places: _Places) -> dict[str, float]:
    """What a pod lacks on a node after the victims have gone, by resource name."""
    missing = {
        resource: amount - places.free.get((node, resource), 0.0)
        for resource, amount in places.asked(pod, node).items()
    }
    for decision in victims:
        held = places.freed(decision)
        for resource in missing:
            missing[resource] -= held.get((node, resource), 0.0)
    return {resource: amount for resource, amount in missing.items() if amount > 0}


def _devices(
    pod: WaitingPod, node: str, victims: Sequence[Decision], places: _Places
) -> tuple[Holding, ...] | None:
    claims, freed = places.claims(pod, node), places.released(victims)
    return allocate(claims, places.devices, node, places.held, places.tries, freed=freed)


def _fitting(pod: WaitingPod, node: str, victims: Sequence[Decision], places: _Places) -> _Placement | None:
    if _missing(pod, node, victims, places):
        return None
    devices = _devices(pod, node, victims, places)
    return None if devices is None else _Placement(pod, node, tuple(victims), devices)


def _lacks_gpus(pod: WaitingPod, node: str, places: _Places) -> bool:
    missing = _missing(pod, node, (), places)
    return any(name in pod.resources for name in missing) or _devices(pod, node, (), places) is None


def _helps(
    decision: Decision, pod: WaitingPod, node: str, victims: Sequence[Decision], places: _Places
) -> bool:
    """Whether a victim on the node has something that the pod still lacks."""
    held = places.freed(decision)
    if any((node, resource) in held for resource in _missing(pod, node, victims, places)):
        return True
    claims = places.claims(pod, node)
    if not claims:
        return False
    devices = places.devices.nodes.get(node, ())
    accepted = {
        name
        for claim in claims
        for each in claim.requests
        for choice in each.choices
        for name in choice.eligible
    }
    gpus = {one.gpu for one in devices if one.id in accepted}
    own = places.claimed(decision)
    return any(one.gpu in gpus for one in devices if one.id in own)


def _held(decision: Decision) -> dict[tuple[str, str], float]:
    """What a change frees, by node and resource, as an equal share of every pod.

    Pods that stay keep their CPU and memory.
    """
    workload, proposal = decision.workload, decision.finding.proposal
    share = proposal.frees / workload.gpus if proposal and workload.gpus else 1.0
    are_fewer = proposal is None or proposal.replicas is not None
    found: dict[tuple[str, str], float] = collections.defaultdict(float)
    for pod in workload.pods:
        if pod.holds:
            amounts = {**pod.needs, **pod.resources} if are_fewer else pod.resources
            for resource, amount in amounts.items():
                found[pod.node, resource] += amount * share
    return found
