"""Places pods that start together in the cheapest way: the victims of one demand, within its topology. Pure.

For what a queue holds back only those go that hold its quota, as much of it as is missing: it decides whom it admits.
"""

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence

from rightsizer.model import Node, ObjectRef, WaitingPod
from rightsizer.planning.placement import Placement, Places, best_place
from rightsizer.planning.victims import Victim, cost_of


def shape_of(pods: Sequence[WaitingPod]) -> Hashable:
    """Equal for pods and gangs that fit alike; those of a lower priority come later, and have fewer victims."""
    first, gang = pods[0], pods[0].gang
    each = (
        (
            first.priority - pod.priority,
            pod.nodes,
            pod.claims,
            tuple(sorted(pod.resources.items())),
            tuple(sorted(pod.needs.items())),
            frozenset(pod.kept_off.items()),
        )
        for pod in pods
    )
    alike = tuple((shape, len(list(same))) for shape, same in itertools.groupby(each))
    lacks = tuple(sorted(gang.lacks.items())) if gang else ()
    return alike, gang and (gang.needs, gang.topology, gang.queue), lacks


def together(waiting: Iterable[WaitingPod]) -> list[list[WaitingPod]]:
    """The pods that start together: those of a gang, in the place of its first; each other pod alone."""
    found: dict[ObjectRef, list[WaitingPod]] = {}
    for pod in waiting:
        found.setdefault(pod.demand, []).append(pod)
    return [pods for pods in found.values() if pods[0].gang is None or len(pods) >= pods[0].gang.needs]


def place_cheapest(
    pods: Sequence[WaitingPod], places: Places, spared: frozenset[Victim]
) -> list[Placement] | None:
    """Place pods in the cheapest way, whole or not at all; None if they have no place."""
    tries = places.tries[pods[0].ref.namespace]
    if tries.left <= 0:
        return None
    places.spare(spared)
    if _others_of_queue(pods, (), places) is None:
        return None
    domains = _domains(pods, places.nodes)
    places.charge(pods[0], sum(map(len, domains)))
    if len(domains) == 1:
        return _place_all(pods, domains[0], places)
    best: tuple[tuple[float, float, int, int], int] | None = None
    for number, domain in enumerate(itertools.takewhile(lambda _: tries.left > 0, domains)):
        placed = _place_all(pods, domain, places)
        if placed is not None:
            cost = cost_of([victim for one in placed for victim in one.victims])
            best = min((cost, number), best or (cost, number))
            undo(placed, places)
    return None if best is None else _place_all(pods, domains[best[1]], places)


def _domains(pods: Sequence[WaitingPod], nodes: Mapping[str, Node]) -> Sequence[frozenset[str]]:
    """The nodes that the pods could use, by the value of their gang's topology; all together without one."""
    usable, topology = _usable(pods), pods[0].gang.topology if pods[0].gang else ""
    if not topology:
        return [usable]
    by_value: dict[str, set[str]] = collections.defaultdict(set)
    for name in usable:
        if value := nodes[name].labels.get(topology) if name in nodes else None:
            by_value[value].add(name)
    return [frozenset(by_value[value]) for value in sorted(by_value)]


def _usable(pods: Iterable[WaitingPod]) -> frozenset[str]:
    return frozenset[str]().union(*{pod.nodes for pod in pods})


def undo(placed: Sequence[Placement], places: Places) -> None:
    """Take placements back."""
    for one in reversed(placed):
        places.undo(one)


def _place_all(pods: Sequence[WaitingPod], domain: frozenset[str], places: Places) -> list[Placement] | None:
    """Place as many pods as their gang needs, and those beyond that fit; undone and None if they do not."""
    places.tries[pods[0].ref.namespace].left -= len(pods)
    placed: list[Placement] = []
    gang = pods[0].gang
    spare = len(pods) - (gang.needs if gang else 1)
    for pod in pods:
        within = pod if pod.nodes <= domain else dataclasses.replace(pod, nodes=pod.nodes & domain)
        found = best_place(within, places)
        if found is not None:
            places.do(found)
            placed.append(found)
        elif spare == 0:
            break
        else:
            spare -= 1
    else:
        others = _others_of_queue(pods, placed, places)
        if others is not None:
            for one in others:
                places.do(one)
            return placed + others
    undo(placed, places)
    return None


def _others_of_queue(
    pods: Sequence[WaitingPod], placed: Sequence[Placement], places: Places
) -> list[Placement] | None:
    """Those that have to go, too, so that the queue gets back what it lacks; None if they are not enough."""
    pod = min(pods, key=lambda one: one.priority)
    missing = collections.Counter(pod.gang.lacks if pod.gang else {})
    missing -= places.returned(victim for one in placed for victim in one.victims)
    victims: list[Victim] = []
    members = places.members(pod, _usable(pods)) if missing else ()
    helping = (one for one in members if missing.keys() & places.returned([one]).keys())
    for victim in places.allowed(helping):
        victims.append(victim)
        missing -= places.returned([victim])
        if not missing:
            break
    if missing:
        return None
    return [Placement(pod, "", tuple(victims))] if victims else []
