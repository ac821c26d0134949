"""When pods were at work → how long the workload has paused now, and how long it ever paused and came back. Pure.

What is not known is never to its disadvantage: a slot that turns unknown can only shorten the pause of now and
lengthen the longest of those before.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence

from rightsizer.model import History, Pod, PodKey, Slot, strongest
from rightsizer.policy.schema import Thresholds

_IDLE, _BUSY, _UNKNOWN = bytes([Slot.IDLE]), bytes([Slot.BUSY]), bytes([Slot.UNKNOWN])


@dataclasses.dataclass(frozen=True, slots=True)
class Rhythm:
    """Pauses of a workload, in seconds.

    Attributes:
        slot_s: Length of a slot: nothing here is known more exactly.
        span_s: How far back it was looked.
        idle_s: For how long it has paused now, as far as that is certain.
        unseen_s: For how long it has not been seen at work, gaps included.
        longest_return_s: The longest pause from which it came back, or may have come back unseen.
        certain_return_s: The longest from which it was seen to come back.
        unknown_s: For how much of the span nothing is known.
        worked: Whether it was ever seen at work.
        noted_s: The longest after which it was put back, by whatever means, when we had stopped it; 0 where it was not.
    """

    slot_s: float
    span_s: float
    idle_s: float
    unseen_s: float
    longest_return_s: float
    certain_return_s: float
    unknown_s: float
    worked: bool
    noted_s: float = 0.0

    def remembering(self, came_back_after: datetime.timedelta | None) -> "Rhythm":
        """The same, and that it was put back after such a pause."""
        noted_s = came_back_after.total_seconds() if came_back_after else 0.0
        return dataclasses.replace(
            self,
            longest_return_s=max(self.longest_return_s, noted_s),
            certain_return_s=max(self.certain_return_s, noted_s),
            noted_s=noted_s,
        )


def rhythm_of(slots: bytes, slot_s: float) -> Rhythm:
    """The pauses in a row of slots, oldest first."""
    *before, now = slots.split(_BUSY)
    returned = list(filter(None, before))
    known_from = now.rfind(_UNKNOWN) + 1
    longest = max([len(pause) for pause in returned] + [max(known_from - 1, 0)])
    certain = max((len(pause) - pause.rfind(_UNKNOWN) - 1 for pause in returned), default=0)
    return Rhythm(
        slot_s=slot_s,
        span_s=len(slots) * slot_s,
        idle_s=(len(now) - known_from) * slot_s,
        unseen_s=len(now) * slot_s,
        longest_return_s=longest * slot_s,
        certain_return_s=certain * slot_s,
        unknown_s=slots.count(_UNKNOWN) * slot_s,
        worked=bool(before),
    )


def rhythm_of_pods(
    pods: Iterable[Pod],
    histories: Mapping[PodKey, History],
    *,
    since: datetime.datetime,
    at: datetime.datetime,
) -> Rhythm | None:
    """The pauses of several pods together; None where the history of one is not known at all.

    Args:
        pods: Each says something from when it began; before, it says nothing.
        histories: Theirs; where one does not reach back to its pod's begin, the rest counts as unknown.
        since: From when on is looked.
        at: Until when.
    """
    rows: list[bytes] = []
    slot_s = 0.0
    for pod in pods:
        history = histories.get((pod.ref.namespace, pod.ref.name))
        begin = began(pod)
        if history is None or begin is None or (slot_s and history.slot_s != slot_s):
            return None
        slot_s = history.slot_s
        rows.append(_complete(history, (at - max(since, begin)).total_seconds(), at))
    return rhythm_of(_merged(rows), slot_s) if rows else None


def began(pod: Pod) -> datetime.datetime | None:
    """Since when there is something to know about a pod: its first start, or its creation where it was restarted."""
    return pod.created if pod.restarts and pod.created is not None else pod.started


def needed_s(longest_return_s: float, idle: Thresholds) -> float:
    """For how many seconds it must have been idle before that counts, and never longer than is looked back."""
    pause = min(idle.idleFactor * longest_return_s, idle.history.total_seconds())
    return max(idle.window.total_seconds(), pause)


def matters(idle: Thresholds) -> bool:
    """Whether pauses of the past can make one wait longer than the window."""
    return idle.idleFactor > 0 and idle.history > idle.window


def is_covered(rhythm: Rhythm | None, idle: Thresholds, window: datetime.timedelta) -> bool:
    """Whether a window is long enough to have seen a workload at work, if it works at all.

    In a shorter one than it pauses for, a device that was not used proves little.
    """
    if not matters(idle):
        return True
    if rhythm is None:
        return False
    pause_s = min(idle.idleFactor * rhythm.longest_return_s, idle.history.total_seconds())
    return pause_s <= window.total_seconds()


def _complete(history: History, reach_s: float, at: datetime.datetime) -> bytes:
    """A pod's slots up to now, with unknown ones where some are missing; one at the begin may be cut off."""
    missing = max(int((at - history.end).total_seconds() / history.slot_s), 0)
    slots = history.slots + _UNKNOWN * missing
    reach = max(int(reach_s / history.slot_s) - 1, 0)
    return _UNKNOWN * (reach - len(slots)) + slots[-(reach + 2) :]


def _merged(rows: Sequence[bytes]) -> bytes:
    """Slot by slot from the end; a pod that had not begun says nothing."""
    length = max(map(len, rows))
    return strongest([row.rjust(length, _IDLE) for row in rows])
