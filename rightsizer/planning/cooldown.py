"""Cooldowns: how long a workload is left alone after earlier changes and reverts. Pure.

Each revert doubles the cooldown. After `maxChanges` changes in 30 days a workload is left alone. Scaling up is never
delayed, and a change of the number of replicas that held delays nothing: demand decides about the next one.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator

from rightsizer.changes.found_changes import is_past
from rightsizer.changes.memory import MONTH
from rightsizer.changes.record_codec import (
    UNDO_ANNOTATION,
    read_history,
    with_end,
    with_noticed_reverts,
)
from rightsizer.config import format_duration
from rightsizer.kinds import row_of
from rightsizer.kinds.change_edits import as_read
from rightsizer.kinds.edits import is_reverted
from rightsizer.kinds.patches import read_record, resumed_at
from rightsizer.model import (
    UNREADABLE,
    Action,
    Blocker,
    BlockerCode,
    ChangeOutcome,
    ChangeRecord,
    Fleet,
    Workload,
)
from rightsizer.policy.effective import EffectivePolicy
from rightsizer.text import instant

ANOTHERS = datetime.timedelta(hours=1)
"""A change by another instance within this time means that it manages the same workloads."""

_TAKEN_BACK = {
    ChangeOutcome.UNDONE: "restored",
    ChangeOutcome.REVERTED: "reverted by someone",
    ChangeOutcome.ROLLBACK: "rolled back",
    ChangeOutcome.NO_EFFECT: "rolled back because no pod went",
    ChangeOutcome.REFUSED: "rolled back because the API server refused the second step",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Earlier changes of one workload.

    Attributes:
        past: Oldest first; unreadable ones last.
        at: Now.
    """

    past: tuple[ChangeRecord, ...]
    at: datetime.datetime

    def since(self, begin: datetime.datetime | None) -> datetime.timedelta:
        """Time since an instant; zero if it is unreadable or in the future."""
        return max(self.at - begin, datetime.timedelta()) if begin else datetime.timedelta()

    def lately(self, span: datetime.timedelta) -> list[ChangeRecord]:
        """The changes within a time span."""
        return [change for change in self.past if self.since(change.at) < span]

    def hold_off(self, cooldown: datetime.timedelta, most: datetime.timedelta) -> datetime.timedelta:
        """The cooldown after a revert: doubled for each revert after the first, up to `most`."""
        ends = [change for change in self.past if change.takes and change.end in _TAKEN_BACK]
        times = len([change for change in ends if self.since(change.ended or change.at) < MONTH])
        longest = max(most, cooldown)
        span = cooldown
        for _ in range(times - 1):
            span = min(span * 2, longest)
        return span


def memory_of(workload: Workload, fleet: Fleet, at: datetime.datetime) -> Memory:
    """Earlier changes of a workload, from its annotations and the saved manifests of evicted pods.

    Those in the future are unreadable: they would hold off changes until then.
    """
    past = _as_it_is(workload, at)
    past = tuple(change if is_past(change, at) else UNREADABLE for change in past)
    runs = {change.run for change in past}
    named = [
        ChangeRecord(
            change.at,
            change.record.run,
            Action.EVICT if workload.ref.kind == "Pod" else "",
            change.record.gpus,
        )
        for change in fleet.changes
        if str(change.ref) == str(workload.ref) and change.ref.full_kind == workload.ref.full_kind
    ]
    began = [pod.created for pod in workload.pods if not pod.is_terminating]
    fresh = with_noticed_reverts((change for change in named if change.run not in runs), began)
    return Memory((*past, *fresh), at)


def _as_it_is(workload: Workload, at: datetime.datetime) -> tuple[ChangeRecord, ...]:
    """Earlier changes of a workload; a revert that no cycle recorded yet counts as made now."""
    row, notes = row_of(workload), workload.annotations
    obj = as_read(workload) if UNDO_ANNOTATION in notes and workload.control_object is None else None
    if row is None or obj is None:
        return workload.past
    with contextlib.suppress(ValueError):  # `undo` reports what is wrong
        record = read_record(notes, row)
        if record and not record.is_unfinished and any(is_reverted(obj, edit) for edit in record.edits):
            runs = {record.run, *(change.run for change in read_history(notes))}
            return tuple(
                with_end((change,), ChangeOutcome.REVERTED, at)[0] if change.run in runs else change
                for change in workload.past
            )
    return workload.past


def has_held(change: ChangeRecord) -> bool:
    """Whether it changed the number of replicas, and nobody reverted it; a later scale-up is no revert."""
    return change.action in {Action.SCALE_DOWN, Action.SCALE_UP} and change.end in {
        None,
        ChangeOutcome.SCALE_UP,
    }


def cooling(
    workload: Workload,
    memory: Memory,
    effective: EffectivePolicy,
    evidence: datetime.timedelta = datetime.timedelta(),
) -> Iterator[Blocker]:
    """The remaining cooldowns after each change and each revert; the evidence must start after the last change."""
    cooldown = effective.cooldown
    held = memory.hold_off(cooldown, effective.max_cooldown)
    for change in memory.past:
        if not change.is_readable:
            yield _wait("was changed at an unreadable time, which counts as now", memory.at, cooldown, memory)
        elif change.end is ChangeOutcome.REJECTED:
            yield from _waits(f"rejected a change at {instant(change.at)}", change.at, cooldown, memory)
        elif change.takes and change.end in _TAKEN_BACK:
            ended = max(change.ended or change.at, change.at)
            yield from _waits(f"was {_TAKEN_BACK[change.end]} at {instant(ended)}", ended, held, memory)
        else:
            cools = datetime.timedelta() if has_held(change) else cooldown
            yield from _waits(f"was changed at {instant(change.at)}", change.at, cools, memory)
            is_other = change.takes and not change.removed_unused
            if is_other and cools <= memory.since(change.at) < evidence:
                length, since = (
                    format_duration(span.total_seconds()) for span in (evidence, memory.since(change.at))
                )
                words = f"it was changed {since} ago, and the evidence covers the last {length}"
                yield Blocker(BlockerCode.COOLDOWN, f"{words}; the evidence must start after the change")
    with contextlib.suppress(ValueError):  # an unreadable one counts as now
        resumed = resumed_at(workload.annotations)
        if resumed is not None and resumed not in {change.ended for change in memory.past}:
            yield from _waits(f"was restored at {instant(resumed)}", resumed, cooldown, memory)


def _waits(
    what: str, begin: datetime.datetime, span: datetime.timedelta, memory: Memory
) -> Iterator[Blocker]:
    if memory.since(begin) < span:
        yield _wait(what, min(begin, memory.at), span, memory)


def _wait(what: str, begin: datetime.datetime, span: datetime.timedelta, memory: Memory) -> Blocker:
    left = format_duration((span - memory.since(begin)).total_seconds())
    return Blocker(BlockerCode.COOLDOWN, f"it {what}; cooldown ends in {left}", until=begin + span)


def change_rate_exceeded(memory: Memory, most: int) -> Iterator[Blocker]:
    """Blocks a workload that was changed too often lately; changes of replicas that held do not count."""
    taken = [change for change in memory.lately(MONTH) if change.takes and not has_held(change)]
    if len(taken) >= most:
        yield Blocker(
            BlockerCode.COOLDOWN,
            f"it was changed {len(taken)} times in {MONTH.days} days, the maximum is {most}; "
            "talk to its owner, or use a rule with mode: advise",
        )


def conflicting_instance(memory: Memory, instance: str) -> Iterator[Blocker]:
    """Blocks a workload that another gpu-rightsizer instance changes."""
    others = {change.by for change in memory.lately(ANOTHERS) if change.by and change.by != instance}
    for other in sorted(others):
        yield Blocker(
            BlockerCode.OTHER_CONTROLLER,
            f"another instance, {other}, changed this workload in the last hour; only one may manage it",
        )
