"""Earlier stops for pods that still wait: they get no more until these have helped, or came back. Pure."""

import collections
import dataclasses
import datetime
from collections.abc import Iterator, Mapping

from rightsizer.config import format_duration
from rightsizer.model import ChangeOutcome, FoundChange, ObjectRef
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import DemandSettings
from rightsizer.text import count, instant

_LONGEST_PAUSE = datetime.timedelta(days=7)
"""Unless the policy's `retryAfter` is longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldBack:
    """Demand for which nobody is stopped now.

    Attributes:
        is_room_made: Whether its victims went a moment ago: the room is there, or on its way.
    """

    demand: ObjectRef
    why: str
    is_room_made: bool


def held_back(evaluator: PolicyEvaluator) -> Mapping[ObjectRef, HeldBack]:
    """Pods or gangs for which nobody else is stopped, and why; what only an object records, anybody can forge."""
    fleet, settings = evaluator.fleet, evaluator.policy.demand
    changes: dict[str, list[FoundChange]] = collections.defaultdict(list)
    for change in fleet.changes:
        if change.is_remembered and change.record.end in {None, ChangeOutcome.ROLLBACK}:
            for ref in change.record.wanted_by:
                changes[ref.uid].append(change)
    by_demand: dict[ObjectRef, dict[tuple[str, ObjectRef], FoundChange]] = collections.defaultdict(dict)
    for pod in fleet.waiting if changes else ():
        by_demand[pod.demand].update({(stop.record.run, stop.ref): stop for stop in changes[pod.ref.uid]})
    found = (
        _held_back(demand, list(ones.values()), settings, evaluator.at)
        for demand, ones in by_demand.items()
        if ones
    )
    return {held.demand: held for of_demand in found for held in of_demand}


def _held_back(
    demand: ObjectRef, changes: list[FoundChange], settings: DemandSettings, at: datetime.datetime
) -> Iterator[HeldBack]:
    within, first = settings.bindWithin, settings.retryAfter
    fresh = [change for change in changes if change.record.end is None and at - change.at < within]
    if fresh:
        words = f"{count(len(fresh), 'workload')} made room for it at {instant(min(change.at for change in fresh))}"
        wait = f"others may follow if it is not bound within {format_duration(within.total_seconds())}"
        yield HeldBack(demand, f"{words}; {wait}", is_room_made=True)
        return
    times = len({change.record.run for change in changes})
    pause = min(first * 2 ** min(times - 1, 16), max(first, _LONGEST_PAUSE))
    until = max(change.record.ended or change.at + within for change in changes) + pause
    if at < until:
        words = f"it was not bound after {count(times, 'time')} that room was made for it"
        yield HeldBack(
            demand, f"{words}; nobody is stopped for it until {instant(until)}", is_room_made=False
        )
