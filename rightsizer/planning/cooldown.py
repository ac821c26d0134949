"""How long a workload is left alone, by what we did to it before and what became of that. Pure.

Whatever an owner takes back is not repeated: the cooldown doubles each time, and after a few changes it
is left alone until the month is over. Giving back waits for nothing.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator

from rightsizer.changes.memory import MONTH
from rightsizer.changes.object_history import noticed, read_history, with_end
from rightsizer.changes.records import UNDO_ANNOTATION
from rightsizer.config import format_duration
from rightsizer.kinds import row_of
from rightsizer.kinds.edits import is_taken_back
from rightsizer.kinds.patches import read_record, resumed_at
from rightsizer.kinds.preconditions import as_read
from rightsizer.model import Action, Blocker, BlockerCode, ChangeOutcome, Fleet, PastChange, Workload

LONGEST_HOLD_OFF = datetime.timedelta(days=7)
"""Doubling ends here, unless the rule's own cooldown is longer."""
MOST_CHANGES = 3
"""So often something is taken from one owner in MONTH, then no more."""
ANOTHERS = datetime.timedelta(hours=1)
"""So long what another instance did is taken as a sign that it is at work on the same workloads."""

_TAKEN_BACK = {
    ChangeOutcome.UNDONE: "put back",
    ChangeOutcome.REVERTED: "put back by someone",
    ChangeOutcome.ROLLED_BACK: "put back since it was not healthy",
    ChangeOutcome.REFUSED: "put back since the API server refused the rest of it",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of one workload.

    Attributes:
        past: What we did to it, oldest first; what cannot be read at the end.
        at: Now.
    """

    past: tuple[PastChange, ...]
    at: datetime.datetime

    def since(self, instant: datetime.datetime | None) -> datetime.timedelta:
        """How long ago something was; nothing where that cannot be read or is said to be yet to come."""
        return max(self.at - instant, datetime.timedelta()) if instant else datetime.timedelta()

    def lately(self, span: datetime.timedelta) -> list[PastChange]:
        """The changes of so long a time."""
        return [change for change in self.past if self.since(change.at) < span]

    def hold_off(self, cooldown: datetime.timedelta) -> datetime.timedelta:
        """How long it is left alone after it was put back: the cooldown, doubled for each time but the first."""
        ends = [change for change in self.past if change.takes and change.end in _TAKEN_BACK]
        times = len([one for one in ends if self.since(one.ended or one.at) < MONTH])
        longest = max(LONGEST_HOLD_OFF, cooldown)
        span = cooldown
        for _ in range(times - 1):
            span = min(span * 2, longest)
        return span


def memory_of(workload: Workload, fleet: Fleet, at: datetime.datetime) -> Memory:
    """What is remembered of a workload, also by what is no note on it: the manifests of evicted pods of its name."""
    past = _as_it_is(workload, at)
    runs = {change.run for change in past}
    named = [
        PastChange(change.at, change.run, Action.EVICT if workload.ref.kind == "Pod" else "", change.gpus)
        for change in fleet.changes
        if str(change.ref) == str(workload.ref) and change.ref.full_kind == workload.ref.full_kind
    ]
    began = [pod.created for pod in workload.pods if not pod.is_terminating]
    fresh = noticed((change for change in named if change.run not in runs), began)
    return Memory((*past, *fresh), at)


def _as_it_is(workload: Workload, at: datetime.datetime) -> tuple[PastChange, ...]:
    """Its past, in which what somebody took back, but no cycle could note yet, was taken back right now."""
    row, notes = row_of(workload), workload.annotations
    obj = as_read(workload) if UNDO_ANNOTATION in notes and workload.lever is None else None
    if row is None or obj is None:
        return workload.past
    with contextlib.suppress(ValueError):  # `undo` tells what is wrong with it
        record = read_record(notes, row)
        if record and not record.is_unfinished and any(is_taken_back(obj, edit) for edit in record.edits):
            runs = {record.run, *(change.run for change in read_history(notes))}
            return tuple(
                with_end((one,), ChangeOutcome.REVERTED, at)[0] if one.run in runs else one
                for one in workload.past
            )
    return workload.past


def cooling(
    workload: Workload,
    memory: Memory,
    cooldown: datetime.timedelta,
    evidence: datetime.timedelta = datetime.timedelta(),
) -> Iterator[Blocker]:
    """What is left of the times for which it is left alone, after each change and each return.

    Args:
        workload: The workload.
        memory: What we did to it.
        cooldown: How long its rule leaves it alone.
        evidence: How far back it is judged; what came before a change says nothing of what is needed since.
    """
    held = memory.hold_off(cooldown)
    for change in memory.past:
        if change.at is None:
            yield _wait("was changed, but when cannot be read: taken as now", memory.at, cooldown, memory)
            continue
        if change.takes and change.end in _TAKEN_BACK:
            ended = max(change.ended or change.at, change.at)
            yield from _waits(f"was {_TAKEN_BACK[change.end]} at {_clock(ended)}", ended, held, memory)
        else:
            yield from _waits(f"was changed at {_clock(change.at)}", change.at, cooldown, memory)
            if change.takes and cooldown <= memory.since(change.at) < evidence:
                length, since = (
                    format_duration(one.total_seconds()) for one in (evidence, memory.since(change.at))
                )
                words = f"it was changed {since} ago, and is judged by what it did in the last {length}"
                yield Blocker(BlockerCode.COOLDOWN, f"{words}; that has to lie after the change")
    with contextlib.suppress(ValueError):  # one that cannot be read counts as now: nothing is idle since then
        resumed = resumed_at(workload.annotations)
        if resumed is not None and resumed not in {change.ended for change in memory.past}:
            yield from _waits(f"was put back at {_clock(resumed)}", resumed, cooldown, memory)


def _waits(
    what: str, instant: datetime.datetime, span: datetime.timedelta, memory: Memory
) -> Iterator[Blocker]:
    if memory.since(instant) < span:
        yield _wait(what, min(instant, memory.at), span, memory)


def _wait(what: str, instant: datetime.datetime, span: datetime.timedelta, memory: Memory) -> Blocker:
    left = format_duration((span - memory.since(instant)).total_seconds())
    return Blocker(BlockerCode.COOLDOWN, f"it {what}; the cooldown lasts {left} more", until=instant + span)


def change_rate_exceeded(memory: Memory) -> Iterator[Blocker]:
    """Where enough was taken from it lately."""
    taken = [change for change in memory.lately(MONTH) if change.takes]
    if len(taken) >= MOST_CHANGES:
        yield Blocker(
            BlockerCode.CHANGE_RATE,
            f"it was changed {len(taken)} times in {MONTH.days} days, and more than {MOST_CHANGES} are never made; "
            "talk to its people, or cover it by a rule with mode: advise",
        )


def conflicting_instance(memory: Memory, instance: str) -> Iterator[Blocker]:
    """Where another gpu-rightsizer is at work on the same workload."""
    others = {change.by for change in memory.lately(ANOTHERS) if change.by and change.by != instance}
    for other in sorted(others):
        yield Blocker(
            BlockerCode.OTHER_INSTANCE,
            f"another gpu-rightsizer, instance {other}, changed it in the last hour; two must not act on one workload",
        )


def _clock(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
