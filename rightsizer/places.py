"""Decisions to re-slice + what nodes have free → as many of them as fit beside each other. Pure.

Each was judged as if it were the only one. In the order of the plan each takes what its pods need; whichever of the
nodes that is on, those after it have so much less.
"""

import dataclasses
from collections.abc import Sequence

from rightsizer.assess.room import Coming, Room, coming
from rightsizer.model import Block, Cause, Decision, Fleet
from rightsizer.model.offers import Asks


def within_room(decisions: Sequence[Decision], fleet: Fleet) -> tuple[Decision, ...]:
    """Block what nodes have no room for any more once those before it are there."""
    granted: dict[frozenset[str], Coming] = {}
    found = []
    for decision in decisions:
        proposal = decision.finding.proposal
        if proposal is None or not proposal.asks or not decision.is_enforced or decision.announced:
            found.append(decision)
            continue
        names = frozenset(name for name, _ in proposal.asks)
        first = granted.get(names, Coming())
        if first.pods and not Room(fleet, decision.workload, proposal.model).has(proposal.asks, first):
            words = (
                f"what nodes have free of {_named(proposal.asks)} goes to what stands before it in the plan"
            )
            decision = dataclasses.replace(  # noqa: PLW2901 - the same decision, blocked
                decision, blocks=(*decision.blocks, Block(Cause.NO_ROOM, words))
            )
        else:
            granted[names] = coming(decision.workload, proposal.asks).beside(first)
        found.append(decision)
    return tuple(found)


def _named(asks: Asks) -> str:
    return ", ".join(name for name, _ in asks)
