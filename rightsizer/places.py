"""Decisions to re-slice + what nodes have free → as many of them as fit beside each other. Pure.

Each was judged as if it were the only one. In the order of the plan each takes what its pods need; whichever of the
nodes that is on, those after it have so much less.
"""

import dataclasses
from collections.abc import Sequence

from rightsizer.assess.room import Room
from rightsizer.model import Block, Cause, Decision, Fleet
from rightsizer.model.offers import Asks


def within_room(decisions: Sequence[Decision], fleet: Fleet) -> tuple[Decision, ...]:
    """Block what nodes have no room for any more once those before it are there."""
    granted: dict[frozenset[str], tuple[Asks, int]] = {}
    found = []
    for decision in decisions:
        asks = decision.finding.proposal.asks if decision.finding.proposal else ()
        if not asks or not decision.is_enforced or decision.announced:
            found.append(decision)
            continue
        names = frozenset(name for name, _ in asks)
        largest, count = granted.get(names, ((), 0))
        pods = len(decision.workload.holding)
        if count and not _room(decision, fleet).has(asks, pods, before=largest, taken=count):
            words = f"what nodes have free of {_named(asks)} goes to what stands before it in the plan"
            decision = dataclasses.replace(  # noqa: PLW2901 - the same decision, blocked
                decision, blocks=(*decision.blocks, Block(Cause.NO_ROOM, words))
            )
        else:
            granted[names] = (_larger(asks, largest), count + pods)
        found.append(decision)
    return tuple(found)


def _room(decision: Decision, fleet: Fleet) -> Room:
    models = {node.model for pod in decision.workload.pods if (node := fleet.nodes.get(pod.node))}
    return Room(fleet, decision.workload, next(iter(sorted(models)), ""))


def _larger(one: Asks, other: Asks) -> Asks:
    counts = dict(other)
    return tuple((name, max(count, counts.get(name, 0))) for name, count in one)


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
