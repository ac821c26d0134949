"""Places pods that start together in the cheapest way: the victims of one demand, within quotas and topology. Pure."""

import collections
import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from rightsizer.model import Node, ObjectRef, QueueOption, QuotaKey, WaitingPod
from rightsizer.planning.placement import Placement, Places, best_place
from rightsizer.planning.victims import Victim, cost_of, standing


def shape_of(pods: Sequence[WaitingPod]) -> Hashable:
    """Equal for pods and gangs that fit alike; those of a lower priority come later, and have fewer victims."""
    first, gang = pods[0], pods[0].gang
    options = [(option.nodes, *sorted(option.amounts.items())) for option in gang.options] if gang else ()
    shapes = (
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
    alike = tuple((shape, len(list(same))) for shape, same in itertools.groupby(shapes))
    return alike, gang and gang.needs, gang and gang.topology, tuple(options)


def together(waiting: Iterable[WaitingPod]) -> list[list[WaitingPod]]:
    """The pods that start together: those of a gang, in the place of its first; each other pod alone."""
    found: dict[ObjectRef, list[WaitingPod]] = {}
    for pod in waiting:
        found.setdefault(pod.demand, []).append(pod)
    return [pods for pods in found.values() if pods[0].gang is None or len(pods) >= pods[0].gang.needs]


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to place pods that start together.

    Attributes:
        takes: The quota that they take together.
        spared: Those that must not go.
    """

    pods: Sequence[WaitingPod]
    takes: Mapping[QuotaKey, float]
    spared: frozenset[Victim] = frozenset()


def place_cheapest(
    pods: Sequence[WaitingPod], places: Places, spared: frozenset[Victim]
) -> list[Placement] | None:
    """Place pods in the cheapest way, whole or not at all; None if they have no place."""
    tries = places.tries[pods[0].ref.namespace]
    if tries.left <= 0:
        return None
    attempts = (dataclasses.replace(attempt, spared=spared) for attempt in _attempts(pods, places))
    first = [*itertools.islice(attempts, 2)]
    if len(first) == 1 and not first[0].takes:
        return _place_all(first[0], places)
    best: tuple[tuple[float, float, int, int], _Attempt] | None = None
    for attempt in itertools.takewhile(lambda _: tries.left > 0, itertools.chain(first, attempts)):
        cost = _try(attempt, places)
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, attempt)
    if best is None:
        return None
    cost, attempt = best
    if attempt.takes:
        # A victim for the quota and another for the place may be one too many. Half of the tries are kept for others.
        least = tries.left // 2
        for victim in itertools.takewhile(lambda _: tries.left > least, _victims_at(attempt, places)):
            fewer = dataclasses.replace(attempt, spared=attempt.spared | {victim})
            without = _try(fewer, places)
            if without is not None and without < cost:
                cost, attempt = without, fewer
    return _place_all(attempt, places)


def _attempts(pods: Sequence[WaitingPod], places: Places) -> Iterator[_Attempt]:
    """Each option of its queue for which there may be quota, in each domain of its topology."""
    gang = pods[0].gang
    if gang is None:
        yield _Attempt(pods, {})
        return
    least = min(pods, key=lambda pod: pod.priority)
    options = gang.options or (QueueOption(None, {}),)
    possible = [option for option in options if places.may_return(least, option.amounts)]
    domains = _domains(pods, gang.topology, places.nodes) if possible else ()
    places.charge(least, sum(map(len, domains)))
    for option in possible:
        for domain in domains:
            allowed = domain if option.nodes is None else domain & option.nodes
            limited = [dataclasses.replace(pod, nodes=pod.nodes & allowed) for pod in pods]
            yield _Attempt(limited, option.amounts)


def _domains(
    pods: Sequence[WaitingPod], topology: str, nodes: Mapping[str, Node]
) -> Sequence[frozenset[str]]:
    """The nodes that the pods could use, by the value of a label; all together without a label."""
    usable = frozenset[str]().union(*{pod.nodes for pod in pods})
    if not topology:
        return [usable]
    by_value: dict[str, set[str]] = collections.defaultdict(set)
    for name in usable:
        if value := nodes[name].labels.get(topology) if name in nodes else None:
            by_value[value].add(name)
    return [frozenset(by_value[value]) for value in sorted(by_value)]


def _try(attempt: _Attempt, places: Places) -> tuple[float, float, int, int] | None:
    """Cost of an attempt; None if it fails."""
    placed = _place_all(attempt, places)
    if placed is None:
        return None
    cost = cost_of([victim for place in placed for victim in place.victims])
    undo(placed, places)
    return cost


def _victims_at(attempt: _Attempt, places: Places) -> list[Victim]:
    """Victims of an attempt, the most costly first."""
    placed = _place_all(attempt, places) or []
    undo(placed, places)
    victims = [victim for place in placed for victim in place.victims]
    return sorted(victims, key=standing, reverse=True)


def undo(placed: Sequence[Placement], places: Places) -> None:
    """Take placements back."""
    for place in reversed(placed):
        places.undo(place)


def _place_all(attempt: _Attempt, places: Places) -> list[Placement] | None:
    """Place as many pods as their gang needs, and those beyond that fit; undone and None if they do not."""
    places.spare(attempt.spared)
    places.tries[attempt.pods[0].ref.namespace].left -= len(attempt.pods)
    placed: list[Placement] = []
    gang = attempt.pods[0].gang
    spare = len(attempt.pods) - (gang.needs if gang else 1)
    reserved = _reserve(attempt, places)
    if reserved is not None:
        placed.append(reserved)
        places.do(reserved)
        for pod in attempt.pods:
            found = best_place(pod, places)
            if found is not None:
                places.do(found)
                placed.append(found)
            elif spare == 0:
                break
            else:
                spare -= 1
        else:
            return placed
    undo(placed, places)
    return None


def _reserve(attempt: _Attempt, places: Places) -> Placement | None:
    """The victims whose quota is missing, first those on nodes that the pods could use; None if it is not enough."""
    pod, missing = min(attempt.pods, key=lambda pod: pod.priority), dict(attempt.takes)
    usable = frozenset[str]().union(*{pod.nodes for pod in attempt.pods})
    victims: list[Victim] = []

    found = itertools.takewhile(
        lambda _: places.lacking(missing), places.in_quotas(pod, attempt.takes, usable)
    )
    helping = (part for part in found if any(key in places.freed(part) for key in places.lacking(missing)))
    for victim in places.allowed(helping):
        victims.append(victim)
        for key in missing:
            missing[key] -= places.freed(victim).get(key, 0.0)
    if places.lacking(missing):
        return None
    return Placement(pod, "", tuple(victims), takes=attempt.takes)
