"""Pending pods that could run on some node if it were empty, the most urgent first. Pure."""

import collections
import datetime
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.nodes import UNKNOWN_CAPACITY, NodeCapacity
from rightsizer.inventory.obstacles import Occupants, could_host, misfits
from rightsizer.inventory.turns import TryBudget, comparison_cost
from rightsizer.inventory.unschedulable_pods import UnschedulablePod, cheapest_in_turn, groups_alike
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.model import (
    DeviceInventory,
    Gang,
    Node,
    ObjectRef,
    Unserved,
    WaitingPod,
    backed_on,
    claims_on,
)

_MOST_EXPLAINED = 20
"""Number of nodes of which it is said why they do not take a pod."""
_MOST_REASONS = 3
"""Number of reasons of a pod."""
_MOST_TOLD = 3
"""Number of kinds of pods of a namespace of which it is said why they fit nowhere."""
_MOST_WORDS = 300
"""Number of characters of these reasons: labels of nodes and pods are in them."""
NOWHERE = "no node would take it if it were empty"
_UNKNOWN_AGE = datetime.datetime.max.replace(tzinfo=datetime.UTC)


class PlaceablePods(NamedTuple):
    """Pods that could run on some node if it were empty, and those that were not compared with all nodes."""

    pods: tuple[WaitingPod, ...]
    unserved: tuple[Unserved, ...]


PORT = "host port "
"""Prefix of a host port: the name of something of which each node has one."""


def placeable_pods(
    search: "NodeSearch", pods: Sequence[UnschedulablePod], gangs: Mapping[ObjectRef, Gang] | None = None
) -> PlaceablePods:
    """Unschedulable pods of known priority, with the nodes that could host them if those were empty.

    Tries are limited by namespace: nobody can make others wait by asking for many different things.
    """
    waits = collections.Counter(one.gang for one in pods)
    found: list[WaitingPod] = []
    nowhere: dict[str, list[list[UnschedulablePod]]] = collections.defaultdict(list)
    cut: dict[tuple[str, str], list[UnschedulablePod]] = collections.defaultdict(list)
    for group in _by_urgency(pods):
        namespace = group[0].ref.namespace
        who = search.budget.who_asks(namespace)
        fit = search.fitting(group[0])
        if fit is None:
            cut[namespace, who] += group
        elif not fit:
            nowhere[namespace].append(group)
        found += [
            WaitingPod(
                one.ref,
                one.gpus,
                one.priority,
                one.priority_class,
                fit,
                {**one.needs, **{f"{PORT}{port.host_port}": 1 for port in one.ports}},
                (gangs or {}).get(one.gang, Gang(one.gang, waits[one.gang])) if one.gang else None,
                one.claims,
                one.backed,
                one.created,
                search.keeping_off(one, fit),
            )
            for one in group
            if one.priority is not None and fit
        ]
    unserved = [
        Unserved(_named(of), f"{who} for too many different things to compare all of them with all nodes")
        for (_, who), of in cut.items()
    ]
    for groups in nowhere.values():
        told, others = groups[:_MOST_TOLD], list(itertools.chain.from_iterable(groups[_MOST_TOLD:]))
        unserved += [Unserved(_named(group), search.misfits(group[0])) for group in told]
        unserved += [Unserved(_named(others), NOWHERE)] if others else []
    return PlaceablePods(tuple(_in_order(found)), tuple(unserved))


def _named(pods: Sequence[UnschedulablePod]) -> str:
    return f"{pods[0].ref} and {len(pods) - 1} more pods" if len(pods) > 1 else str(pods[0].ref)


def _in_order(pods: Iterable[WaitingPod]) -> list[WaitingPod]:
    """Sort by highest priority, then by age, as kube-scheduler tries pods.

    Where that is equal or unknown, namespaces take turns: nobody is first in all cycles because of a name.
    """
    turns: dict[Hashable, dict[ObjectRef, int]] = collections.defaultdict(dict)

    def order(one: WaitingPod) -> tuple[int, datetime.datetime, int, ObjectRef]:
        created = one.created or _UNKNOWN_AGE
        alike = turns[one.priority, created, one.ref.namespace]
        return -one.priority, created, alike.setdefault(one.demand, len(alike)), one.ref

    return sorted(sorted(pods, key=lambda one: one.ref), key=order)


def _by_urgency(pods: Iterable[UnschedulablePod]) -> list[list[UnschedulablePod]]:
    """Pods of known priority that ask alike, by namespace: by priority, and within one the cheapest in turn."""
    groups = groups_alike(one for one in pods if one.priority is not None)
    equal = itertools.groupby(sorted(groups, key=_urgency), _urgency)
    return [group for _, alike in equal for group in cheapest_in_turn(alike)]


def _urgency(group: list[UnschedulablePod]) -> int:
    return -max(one.priority or 0 for one in group)


class NodeSearch:
    """Finds the nodes that could host pods if they were empty, with few tries for each namespace."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        capacities: Mapping[str, NodeCapacity],
        devices: DeviceInventory,
        occupants: Occupants,
        namespaces: Mapping[str, ObjectMeta],
    ) -> None:
        self._nodes, self._capacities, self._devices = nodes, capacities, devices
        self._occupants, self._namespaces = occupants, namespaces
        self.budget = TryBudget(len(nodes))
        self._found: dict[Hashable, frozenset[str]] = {}

    def misfits(self, pod: UnschedulablePod) -> str:
        """Why a pod fits on none of the nodes that have the GPUs it asks for, in words."""
        found: dict[str, None] = {}
        asked = [name for name in pod.gpus if not name.startswith(CLASS_PREFIX)]
        offering = (node for node in self._nodes.values() if any(map(node.allocatable.get, asked)))
        for node in itertools.islice(offering, _MOST_EXPLAINED):
            capacity = self._capacities.get(node.name, UNKNOWN_CAPACITY)
            found |= dict.fromkeys(itertools.islice(misfits(node, capacity, pod), _MOST_REASONS))
        words = "; ".join(itertools.islice(found, _MOST_REASONS))[:_MOST_WORDS]
        return f"{NOWHERE}{': ' if words else ''}{words}"

    def keeping_off(self, pod: UnschedulablePod, nodes: frozenset[str]) -> Mapping[str, frozenset[str]]:
        """UIDs of the pods that keep a pod off each node."""
        some = {name: self._nodes[name] for name in sorted(nodes)}
        return self._occupants.keeping_off(pod, some, self._namespaces)

    def fitting(self, pod: UnschedulablePod) -> frozenset[str] | None:
        """The nodes for a pod; None if none was found before the tries were used up."""
        shape, namespace = pod.shape, pod.ref.namespace
        if shape in self._found:
            return self._found[shape]
        given = self.budget.left(namespace)
        tries, cost = Tries(given), comparison_cost(shape[0])
        found = set[str]()
        for name in self._nodes:
            if tries.left <= 0:
                break
            tries.left -= cost
            if self._fits(pod, name, tries):
                found.add(name)
        self.budget.spend(namespace, given - tries.left)
        if tries.left > 0:  # else others of this shape may have tries for more nodes
            self._found[shape] = frozenset(found)
        return frozenset(found) if found or tries.left > 0 else None

    def _fits(self, pod: UnschedulablePod, name: str, tries: Tries) -> bool:
        node = self._nodes[name]
        return (
            node.is_open
            and could_host(node, self._capacities.get(name, UNKNOWN_CAPACITY), pod)
            and not _unbacked(node, pod)
            and allocate(claims_on(pod, node), self._devices, name, {}, tries) is not None
        )


def _unbacked(node: Node, pod: UnschedulablePod) -> bool:
    """Whether a node has DRA devices alone, or unknown ones, and a pod cannot get what it requests by a claim."""
    is_only = any(name.startswith(CLASS_PREFIX) for name in node.allocatable)
    is_only = is_only or not any(node.allocatable.values())
    named = (name for name in pod.gpus if not name.startswith(CLASS_PREFIX))
    return is_only and not set(named) <= set(backed_on(pod, node))
