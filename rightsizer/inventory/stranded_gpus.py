"""Free GPUs on nodes that cannot host the pods that wait for GPUs, with the reasons. Pure."""

import collections
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.nodes import UNKNOWN_CAPACITY, NodeCapacity
from rightsizer.inventory.obstacles import obstacles
from rightsizer.inventory.turns import TryBudget, comparison_cost
from rightsizer.inventory.unschedulable_pods import (
    UnschedulablePod,
    cheapest_in_turn,
    groups_alike,
    largest_first,
)
from rightsizer.model import DeviceInventory, Node, Stranded

MAX_SHAPES = 20
"""Maximum number of distinct requests per resource that are compared with nodes.

Of a namespace those go first that cost least to compare, and of these the most frequent.
"""

MAX_NAMED = 3
"""Maximum number of waiting pods that a record names."""

MAX_OBSTACLES = 5
"""Maximum number of obstacles that a record names of a pod: a selector may have thousands of labels."""

_NO_OBSTACLE = "unknown: everything that gpu-rightsizer checks would allow it"

_WORDS = {
    "cpu": "CPU cores",
    "memory": "GiB of memory",
    "pods": "places for pods",
    "ephemeral-storage": "GiB of storage",
}

_UNITS = {"cpu": 1000, "memory": 1 << 30, "ephemeral-storage": 1 << 30}


def find_stranded_gpus(
    nodes: Mapping[str, Node],
    capacities: Mapping[str, NodeCapacity],
    pods: Sequence[UnschedulablePod],
    devices: DeviceInventory,
) -> tuple[Stranded, ...]:
    """Free GPUs per node of each resource, or device class, that some pod waits for.

    Tries are limited by namespace, as for `placeable_pods`.
    """
    wanting: dict[str, list[UnschedulablePod]] = collections.defaultdict(list)
    for one in pods:
        for resource in one.gpus:
            wanting[resource].append(one)
    backed = {resource for one in pods for resource in one.backed}
    offered = _free_gpus(nodes, capacities, devices, wanting.keys(), backed)
    found = []
    budget = TryBudget(len(nodes))
    for resource in sorted(offered):  # not each that is wanted: a pod may request any number of invented ones
        groups = _groups(wanting[resource], budget, len(offered[resource]))
        named = tuple(one.ref for group in (*groups.compared, *groups.others) for one in group)[:MAX_NAMED]
        for name, free in offered[resource].items():
            capacity = capacities.get(name, UNKNOWN_CAPACITY)
            reasons = _reasons(nodes[name], capacity, free=free, resource=resource, groups=groups)
            found.append(Stranded(name, resource, free, tuple(reasons), named))
    return tuple(found)


def _free_gpus(
    nodes: Mapping[str, Node],
    capacities: Mapping[str, NodeCapacity],
    devices: DeviceInventory,
    wanted: AbstractSet[str],
    backed: AbstractSet[str],
) -> dict[str, dict[str, int]]:
    """The wanted resources, and device classes, of which nodes have free GPUs: how many, by node.

    Where no device plugin offers a resource that is `backed`, it is allocated by claims.
    """
    found: dict[str, dict[str, int]] = collections.defaultdict(dict)
    claimed = {resource for resource in wanted if resource.startswith(CLASS_PREFIX)}
    for name, node in sorted(nodes.items()):
        requested = capacities.get(name, UNKNOWN_CAPACITY).requested
        offers = {one: amount for one, amount in node.allocatable.items() if amount and one in wanted}
        free = {one: amount - requested.get(one, 0) for one, amount in offers.items()}
        free |= dict.fromkeys(claimed | (backed - offers.keys()), devices.free_gpus(name))
        for resource, amount in free.items():
            if amount > 0:
                found[resource][name] = amount
    return found


class _WaitingGroups(NamedTuple):
    """Pods grouped by needs, largest group first: those that are compared with nodes, and those that are not."""

    compared: list[list[UnschedulablePod]]
    others: list[list[UnschedulablePod]]


def _groups(pods: Iterable[UnschedulablePod], budget: TryBudget, nodes: int) -> _WaitingGroups:
    """Few groups, each compared with all nodes: the cheapest of each namespace in turn."""
    alike: dict[Hashable, list[UnschedulablePod]] = collections.defaultdict(list)
    compared = set[Hashable]()
    for group in cheapest_in_turn(groups_alike(pods)):
        shape, namespace = group[0].shape, group[0].ref.namespace
        alike[shape] += group
        tries = nodes * comparison_cost(shape[0])
        if shape not in compared and len(compared) < MAX_SHAPES and tries <= budget.left(namespace):
            budget.spend(namespace, tries)
            compared.add(shape)
    others = [group for shape, group in alike.items() if shape not in compared]
    return _WaitingGroups(largest_first(alike[shape] for shape in compared), largest_first(others))


def _reasons(
    node: Node, capacity: NodeCapacity, *, free: int, resource: str, groups: _WaitingGroups
) -> Iterator[str]:
    if not node.is_open:
        yield "the node accepts no new pods: it is cordoned, not ready or about to be removed"
        return
    examples: dict[str, tuple[str, int]] = {}
    for group in groups.compared:
        obstacles = tuple(_obstacles(node, capacity, group[0], free=free, resource=resource))
        left_out = [f"{len(obstacles) - MAX_OBSTACLES} more"] if len(obstacles) > MAX_OBSTACLES else []
        words = "; ".join((*obstacles[:MAX_OBSTACLES], *left_out)) or _NO_OBSTACLE
        example, count = examples.get(words, (f"{group[0].ref.namespace}/{group[0].ref.name}", 0))
        examples[words] = (example, count + len(group))
    for words, (example, count) in examples.items():
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"{example}{others}: {words}"
    if unseen := sum(map(len, groups.others)):
        yield f"{unseen} more: not checked"


def _obstacles(
    node: Node, capacity: NodeCapacity, pod: UnschedulablePod, *, free: int, resource: str
) -> Iterator[str]:
    if pod.gpus[resource] > free:
        yield f"needs {pod.gpus[resource]} of {resource}, {free} free"
    for name, need in pod.needs.items():
        left = capacity.spare.get(name)
        if left is None:
            yield f"unknown: whether there are enough {_WORDS.get(name, name)}"
        elif left < need:
            yield f"needs {_amount(name, need)} {_WORDS.get(name, name)}, {_amount(name, max(left, 0))} free"
    yield from obstacles(node, pod)


def _amount(name: str, value: int) -> str:
    return f"{value / _UNITS.get(name, 1):.1f}".removesuffix(".0")
