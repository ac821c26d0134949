"""Nodes that a plan empties of GPU pods, and those that one more move would empty. Pure.

A freed GPU is paid for until its node is removed.
"""

import collections
import dataclasses
import datetime
import heapq
from collections.abc import Collection, Hashable, Iterator

from rightsizer.model import (
    Action,
    Fleet,
    Hold,
    Node,
    ObjectRef,
    OtherPods,
    Plan,
    Pod,
    Verdict,
    Workload,
)
from rightsizer.text import instant

_NO_PODS = OtherPods()


@dataclasses.dataclass(frozen=True, slots=True)
class EmptiedNode:
    """A node without GPU pods once the plan is applied.

    Attributes:
        other_pods: Those without GPUs that have to leave it, too.
        kept_by: Why its autoscaler would not remove it; empty if nothing is known that keeps it.
        last: The workload whose pod is left, and has to go first; None if none is left.
        fits_on: The node with GPU pods that has room for that pod; empty if an advised action would remove it.
    """

    node: Node
    other_pods: int
    kept_by: str
    last: ObjectRef | None = None
    fits_on: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class EmptiedNodes:
    """What applying a plan does to whole nodes."""

    emptied: tuple[EmptiedNode, ...] = ()
    one_more_move: tuple[EmptiedNode, ...] = ()


def emptied_nodes(plan: Plan) -> EmptiedNodes:
    """The nodes that lose their last GPU pod, or all but one; none if the plan frees nothing."""
    going = frozenset(_going(plan))
    if plan.fleet is None or not going:
        return EmptiedNodes()
    state = _AfterPlan(plan, plan.fleet, going)
    emptied = tuple(state.node(name) for name in sorted(state.touched - state.left.keys()))
    return EmptiedNodes(emptied, tuple(filter(None, map(state.one_more_move, sorted(state.left)))))


def _going(plan: Plan) -> Iterator[ObjectRef]:
    """The pods that certainly leave their nodes; those that a changed template replaces may come back."""
    for decision in plan.enforced:
        if decision.action is Action.NOTICE:
            continue
        holding, proposal = decision.workload.holding, decision.finding.proposal
        if decision.pods_left == 0:
            yield from (pod.ref for pod in holding)
        elif proposal and proposal.replicas is not None and len(proposal.pods) == decision.pods_going:
            yield from (pod.ref for pod in holding if pod.ref.name in proposal.pods)


class _AfterPlan:
    """The nodes with GPU pods once these pods are gone.

    Attributes:
        touched: Nodes of the pods that go.
        left: The pods that stay, with their workloads, by node.
    """

    def __init__(self, plan: Plan, fleet: Fleet, going: Collection[ObjectRef]) -> None:
        self._fleet = fleet
        self._at = plan.at
        self._decisions = {one.workload.ref: one for one in plan.decisions}
        self.left: dict[str, list[tuple[Pod, Workload]]] = collections.defaultdict(list)
        self._rooms: dict[str, collections.Counter[str]] = {}
        self._heaps: dict[tuple[Hashable, str], list[tuple[int, str]]] = {}
        self._freed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for workload in fleet.workloads:
            for pod in workload.holding:
                if pod.ref in going:
                    self._freed[pod.node].update({**pod.needs, **pod.resources})
                else:
                    self.left[pod.node].append((pod, workload))
        self.touched = self._freed.keys() & fleet.nodes.keys()

    def node(self, name: str, last: ObjectRef | None = None, fits_on: str = "") -> EmptiedNode:
        """A node, and what keeps its autoscaler from removing it."""
        node, others = self._fleet.nodes[name], self._fleet.other_pods.get(name, _NO_PODS)
        hold = others.kept_by.get(node.autoscaler) if node.autoscaler else None
        kept_by = node.kept_by or (_hold_words(hold, self._at) if hold else "")
        return EmptiedNode(node, others.number, kept_by, last, fits_on)

    def one_more_move(self, name: str) -> EmptiedNode | None:
        """A node with one GPU pod, if an advised action stops it or a node with others has room for it."""
        node = self._fleet.nodes.get(name)
        (pod, workload), *others = self.left[name]
        decision = self._decisions.get(workload.ref)
        if node is None or others or decision is None or decision.verdict is Verdict.PROTECTED:
            return None
        if decision.verdict is Verdict.ACT and decision.pods_left == 0:
            return self.node(name, workload.ref)
        place = "" if workload.gang or pod.claims else self._place_for(pod, node)
        return self.node(name, workload.ref, place) if place else None

    def _place_for(self, pod: Pod, node: Node) -> str:
        """The emptiest of the nodes like this one that keep several GPU pods, if it has room; it has less then."""
        resource = max(pod.resources, default="")
        places = self._places(_likeness(node), resource)
        if not places:
            return ""
        _, name = places[0]
        room, needs = self._room(name), {**pod.needs, **pod.resources}
        if any(need > room[key] for key, need in needs.items()):
            return ""
        room.subtract(needs)
        heapq.heapreplace(places, (-room[resource], name))
        return name

    def _places(self, likeness: Hashable, resource: str) -> list[tuple[int, str]]:
        """A heap of nodes by how much of a resource they have free."""
        if (likeness, resource) not in self._heaps:
            alike = (
                name
                for name, pods in self.left.items()
                if len(pods) > 1 and (node := self._fleet.nodes.get(name)) and node.is_open
                if _likeness(node) == likeness
            )
            heap = self._heaps[likeness, resource] = [(-self._room(name)[resource], name) for name in alike]
            heapq.heapify(heap)
        return self._heaps[likeness, resource]

    def _room(self, name: str) -> collections.Counter[str]:
        if name not in self._rooms:
            fleet = self._fleet
            free = {key: fleet.free.get((name, key), 0) for key in fleet.nodes[name].allocatable}
            self._rooms[name] = collections.Counter({**fleet.spare.get(name, {}), **free})
            self._rooms[name].update(self._freed.get(name, {}))
        return self._rooms[name]


def _hold_words(hold: Hold, at: datetime.datetime) -> str:
    """Why an autoscaler does not evict a pod; empty if that has ended."""
    if hold.until is None:
        return hold.reason
    return f"{hold.reason}, until {instant(hold.until)}" if at < hold.until else ""


def _likeness(node: Node) -> Hashable:
    """What a pod's placement rules probably ask for: a pod of one node can be placed on any that is alike."""
    return node.model, node.pool, node.zone, node.sharing, node.taints
