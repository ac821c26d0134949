"""Which of the changes that objects tell of count against others. Pure.

Whoever may annotate an object can write a history. What we cannot have done is told, and keeps that object alone from
being changed: budgets of others are not charged with it.
"""

import dataclasses
import datetime

from rightsizer.model import Change, Fleet

AHEAD = datetime.timedelta(days=2)
"""So far the clock of a machine of ours may be ahead of Prometheus's, and what it did counts all the same."""


def drop_implausible_changes(fleet: Fleet, at: datetime.datetime) -> Fleet:
    """The fleet with the changes that count, and those that do not among its problems.

    Args:
        fleet: With all changes.
        at: Now, by Prometheus's clock.
    """
    offered = sum(sum(node.allocatable.values()) for node in fleet.nodes.values())
    kept: list[Change] = []
    problems: list[str] = []
    for change in fleet.changes:
        if why := _why_not(change, offered, at):
            problems.append(f"{change.ref}: tells of a change {why}; no budget of others is charged with it")
        else:
            kept.append(change)
    if not problems:
        return fleet
    return dataclasses.replace(fleet, changes=tuple(kept), problems=(*fleet.problems, *problems))


def _why_not(change: Change, offered: int, at: datetime.datetime) -> str:
    if change.at - at > AHEAD:
        return f"at {change.at.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC, which is yet to come"
    if 0 < offered < change.gpus:
        return f"that freed {change.gpus} GPUs, where all nodes together have {offered}"
    return ""
