"""Nodes that a plan empties of GPU pods. Pure.

A freed GPU is paid for until its node is removed.
"""

import dataclasses
import datetime
from collections.abc import Iterator

from rightsizer.model import Action, Fleet, Hold, Node, OtherPods, Plan, Pod
from rightsizer.text import instant

_NO_PODS = OtherPods()


@dataclasses.dataclass(frozen=True, slots=True)
class EmptiedNode:
    """A node without GPU pods once the plan is applied.

    Attributes:
        other_pods: Those without GPUs that have to leave it, too.
        kept_by: Why its autoscaler would not remove it; empty if nothing is known that keeps it.
    """

    node: Node
    other_pods: int
    kept_by: str


def emptied_nodes(plan: Plan) -> tuple[EmptiedNode, ...]:
    """The nodes that lose their last GPU pod, by name."""
    fleet = plan.fleet
    if fleet is None:
        return ()
    going = {pod.ref: pod.node for pod in _going(plan)}
    holding = (pod for workload in fleet.workloads for pod in workload.holding)
    left = {pod.node for pod in holding if pod.ref not in going}
    names = fleet.nodes.keys() & {*going.values()} - left
    return tuple(_emptied_node(fleet, name, plan.at) for name in sorted(names))


def _going(plan: Plan) -> Iterator[Pod]:
    """The pods that certainly leave their nodes; those that a changed template replaces may come back."""
    for decision in plan.enforced:
        if decision.action is Action.NOTICE:
            continue
        holding, proposal = decision.workload.holding, decision.finding.proposal
        if decision.pods_left == 0:
            yield from holding
        elif proposal and proposal.replicas is not None and len(proposal.pods) == decision.pods_going:
            yield from (pod for pod in holding if pod.ref.name in proposal.pods)


def _emptied_node(fleet: Fleet, name: str, at: datetime.datetime) -> EmptiedNode:
    node, others = fleet.nodes[name], fleet.other_pods.get(name, _NO_PODS)
    hold = others.kept_by.get(node.autoscaler) if node.autoscaler else None
    return EmptiedNode(node, others.number, node.kept_by or (_hold_words(hold, at) if hold else ""))


def _hold_words(hold: Hold, at: datetime.datetime) -> str:
    """Why an autoscaler does not evict a pod; empty if that has ended."""
    if hold.until is None:
        return hold.reason
    return f"{hold.reason}, until {instant(hold.until)}" if at < hold.until else ""
