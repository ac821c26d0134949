"""Capacity check of reslices: together they must fit on the nodes. Pure.

Each reslice was judged alone. In plan order each takes what its pods need; later ones have that much less. The same
holds for pods that other changes of the plan recreate.
"""

import collections
import dataclasses
from collections.abc import Sequence

from rightsizer.findings.free_capacity import FreeCapacity, IncomingPods, incoming_pods, largest
from rightsizer.model import Action, Blocker, BlockerCode, Decision, Fleet
from rightsizer.model.offers import Asks


def check_capacity(decisions: Sequence[Decision], fleet: Fleet) -> tuple[Decision, ...]:
    """Block reslices that no longer fit after the earlier ones."""
    granted: dict[frozenset[str], IncomingPods] = {}
    brought: dict[frozenset[str], collections.Counter[str]] = {}
    found = []
    for decision in decisions:
        proposal, acts = decision.finding.proposal, decision.is_enforced and not decision.announced
        names = frozenset(name for name, _ in proposal.asks) if proposal else frozenset()
        if acts and proposal and names:
            first = granted.get(names, IncomingPods())
            besides = sum((most for key, most in brought.items() if key != names), collections.Counter())
            room = FreeCapacity(fleet, decision.workload, proposal.model)
            if (first.pods or besides) and not room.fits(proposal.asks, first, besides):
                words = f"free {_named(proposal.asks)} is used by an earlier change of this plan"
                blocks = (*decision.blockers, Blocker(BlockerCode.NO_CAPACITY, words))
                found.append(dataclasses.replace(decision, blockers=blocks))
                continue
            granted[names] = incoming_pods(decision.workload, proposal.asks).joined(first)
        if acts:
            brought.setdefault(names, collections.Counter()).update(_brought(decision))
        found.append(decision)
    return tuple(found)


def _brought(decision: Decision) -> dict[str, int]:
    """Total requests of the pods that a change creates, by resource name."""
    proposal, holding = decision.finding.proposal, decision.workload.holding
    if proposal is None:
        return {}
    each, pods = largest(pod.resources for pod in holding), len(holding)
    if proposal.asks:
        each = dict(proposal.asks)
    elif proposal.gpus_per_pod is not None:
        each = {name: min(amount, proposal.gpus_per_pod) for name, amount in each.items()}
    elif decision.action is Action.SCALE_UP and proposal.replicas is not None:
        pods = max(proposal.replicas * decision.pods_each - pods, 0)
    else:
        return {}
    return {name: pods * amount for name, amount in each.items()}


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
