"""The idle periods of a workload, now and in the past, from the activity of its pods. Pure.

Unknown slots count in the workload's favour: they shorten the present idle period and lengthen earlier ones.
"""

import bisect
import dataclasses
import datetime
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.model import History, Pod, PodKey, Slot, Workload, strongest
from rightsizer.policy.thresholds import Thresholds

_IDLE, _BUSY, _UNKNOWN = bytes([Slot.IDLE]), bytes([Slot.BUSY]), bytes([Slot.UNKNOWN])


@dataclasses.dataclass(frozen=True, slots=True)
class ActivityHistory:
    """Idle periods of a workload, in seconds."""

    slot_s: float  # length of a slot, the resolution of the other values
    span_s: float  # how far back the history reaches
    idle_s: float  # the present idle period, as far as it is certain
    unseen_s: float  # time since it was last seen active, including gaps
    longest_return_s: float  # the longest idle period after which it was, or may have been, active again
    certain_return_s: float  # the longest idle period after which it was seen active again
    unknown_s: float  # total length of unknown slots
    worked: bool  # whether it was ever active
    # The longest idle period before a stop by gpu-rightsizer that was reverted; 0 if there is none
    noted_s: float = 0.0
    pauses_s: tuple[float, ...] = ()  # the idle periods after which it was seen active again, longest first

    @property
    def certain(self) -> "ActivityHistory":
        """The same, as if there were no gaps: only idle periods that are certain count."""
        return dataclasses.replace(self, longest_return_s=self.certain_return_s)

    def with_revert(self, came_back_after: datetime.timedelta | None) -> "ActivityHistory":
        """The same, with the idle period before a reverted stop."""
        noted_s = came_back_after.total_seconds() if came_back_after else 0.0
        return dataclasses.replace(
            self,
            longest_return_s=max(self.longest_return_s, noted_s),
            certain_return_s=max(self.certain_return_s, noted_s),
            noted_s=noted_s,
        )

    def idle_for_at_most(self, most_s: float) -> "ActivityHistory":
        """The same, where replicas were removed so long ago: earlier, these may have worked."""
        return dataclasses.replace(self, idle_s=min(self.idle_s, most_s), unseen_s=min(self.unseen_s, most_s))


def history_of_slots(slots: bytes, slot_s: float) -> ActivityHistory:
    """The idle periods in a row of slots, oldest first."""
    *before, now = slots.split(_BUSY)
    returned = list(filter(None, before))
    known_from = now.rfind(_UNKNOWN) + 1
    longest = max([len(pause) for pause in returned] + [max(known_from - 1, 0)])
    certain = max((len(pause) - pause.rfind(_UNKNOWN) - 1 for pause in returned), default=0)
    return ActivityHistory(
        slot_s=slot_s,
        span_s=len(slots) * slot_s,
        idle_s=(len(now) - known_from) * slot_s,
        unseen_s=len(now) * slot_s,
        longest_return_s=longest * slot_s,
        certain_return_s=certain * slot_s,
        unknown_s=slots.count(_UNKNOWN) * slot_s,
        worked=bool(before),
        pauses_s=tuple(sorted((len(pause) * slot_s for pause in returned), reverse=True)),
    )


def history_of_pods(
    pods: Iterable[Pod],
    histories: Mapping[PodKey, History],
    *,
    since: datetime.datetime,
    at: datetime.datetime,
) -> ActivityHistory | None:
    """The common idle periods of several pods; None if the history of one is unknown.

    A pod is idle before its start. Where its history starts later, the rest is unknown.
    """
    rows: list[bytes] = []
    slot_s = 0.0
    for pod in pods:
        history = histories.get((pod.ref.namespace, pod.ref.name))
        begin = observed_since(pod)
        if history is None or begin is None or (slot_s and history.slot_s != slot_s):
            return None
        slot_s = history.slot_s
        rows.append(_complete(history, (at - max(since, begin)).total_seconds(), at))
    length = max(map(len, rows), default=0)
    return history_of_slots(strongest([row.rjust(length, _IDLE) for row in rows]), slot_s) if rows else None


def observed_since(pod: Pod) -> datetime.datetime | None:
    """A pod's first start, or its creation if it was restarted."""
    return pod.created if pod.restarts and pod.created is not None else pod.started


def possible_pause_s(history: ActivityHistory, idle: Thresholds, alike_s: Sequence[float] = ()) -> float:
    """Longest time that a pause of a workload may last, in seconds.

    It follows from its own pauses, and from the longest of its kind in each namespace (`alike_s`) while its own history
    is shorter than the policy asks for. With gaps, the longest possible pause decides.
    """
    if history.unknown_s:
        return idle.idleFactor * history.longest_return_s
    shortest_s, history_s = idle.shortest_s, idle.history.total_seconds()
    own_s = exceeded_rarely_s(history.pauses_s, idle, idle.idleFactor, most=history_s / shortest_s)
    own_s = max(own_s, idle.idleFactor * history.noted_s)
    if not (history.worked and history.span_s + history.slot_s < history_s):
        return own_s
    long_enough = bisect.bisect_right(alike_s, -shortest_s, key=operator.neg)
    alike = exceeded_rarely_s(alike_s, idle, min(idle.idleFactor, 1.0), most=max(long_enough, 1))
    return max(own_s, alike)


def exceeded_rarely_s(
    pauses_s: Sequence[float], idle: Thresholds, factor: float, *, most: float = math.inf
) -> float:
    """A length that few pauses exceed, by pauses in falling order: each counts with the factor, a rare one with less.

    How often pauses are as long as one of them is estimated from above: after few pauses all are frequent. A longer
    pause, or one more that is no shorter than the one that decides, never shortens it.

    A pause is rare among at most `most`: as many as are, or could be, long enough to matter. Else a hundred lunch
    breaks would make weekends rare.
    """
    rare = idle.rarePausePercent / 100
    found = 0.0
    for number, pause_s in enumerate(pauses_s, start=1):
        share = min(1.0, (1.0 + math.sqrt(number)) ** 2 / min(len(pauses_s), most))
        counts = min(factor, share / rare) if rare else factor
        found = max(found, pause_s * counts)
        if counts == factor:  # the others are shorter, and count no more
            break
    return found


def longest_pauses(
    workloads: Iterable[Workload], histories: Mapping[PodKey, History], at: datetime.datetime
) -> Iterator[tuple[str, str, float]]:
    """The full kind, namespace and longest pause of each workload with a known history without gaps."""
    for workload in workloads if histories else ():
        held = [pod for pod in workload.pods if pod.holds]
        known = (histories.get((pod.ref.namespace, pod.ref.name)) for pod in held)
        longest_s = max((history.span_s for history in known if history is not None), default=0.0)
        since = at - datetime.timedelta(seconds=longest_s)
        history = history_of_pods(held, histories, since=since, at=at)
        if history is not None and not history.unknown_s and history.pauses_s:
            yield workload.ref.full_kind, workload.ref.namespace, history.pauses_s[0]


def pauses_by_kind(pauses: Iterable[tuple[str, str, float]]) -> dict[str, tuple[float, ...]]:
    """The longest pause of each kind in each namespace, longest first: many of one make those of others no rarer."""
    found: dict[str, dict[str, float]] = {}
    for kind, namespace, pause_s in sorted(pauses, key=operator.itemgetter(2), reverse=True):
        found.setdefault(kind, {}).setdefault(namespace, pause_s)
    return {kind: tuple(longest.values()) for kind, longest in found.items()}


def history_matters(idle: Thresholds) -> bool:
    """Whether more than the window can be required."""
    is_longer = idle.shortest_s > idle.window.total_seconds()
    return is_longer or (idle.idleFactor > 0 and idle.history > idle.window)


def covers_pauses(
    history: ActivityHistory | None, idle: Thresholds, window: datetime.timedelta, stretch: float = 1.0
) -> bool:
    """Whether a window is longer than the workload's idle periods: otherwise, unused devices prove nothing.

    `stretch` is how many times as long they may be, since the record is short.
    """
    if not idle.idleFactor or not history_matters(idle):
        return True
    if history is None:
        return False
    pause_s = stretch * possible_pause_s(history, idle)
    return min(pause_s, idle.history.total_seconds()) <= window.total_seconds()


def _complete(history: History, reach_s: float, at: datetime.datetime) -> bytes:
    """A pod's slots up to now, with unknown ones for missing ones; the first may be cut off."""
    missing = max(int((at - history.end).total_seconds() / history.slot_s), 0)
    slots = history.slots + _UNKNOWN * missing
    reach = max(int(reach_s / history.slot_s) - 1, 0)
    return _UNKNOWN * (reach - len(slots)) + slots[-(reach + 2) :]
