"""Changes of fields that are immutable while pods run: the workload is suspended, changed and resumed. Pure.

The first patch suspends it, with a record of the pending edits. Once its pods are gone, the second patch makes these
edits and resumes it. So the record always has the next step, and the values to restore. Undoing such a change takes the
same two steps; its record says how the change ends.
https://kubernetes.io/docs/concepts/workloads/controllers/job/ (KEP-5440)
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.kinds.change_edits import stop_edits
from rightsizer.kinds.edits import Path, matches, same, value_at
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import merged_with_earlier, record_patch, undo_patch
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit

_Object = Mapping[str, Any]
_OVER = ("Complete", "Failed")


def needs_pause(row: Kind, edits: Sequence[Edit]) -> bool:
    """Whether any of these edits can be made only while the workload is suspended."""
    patterns = row.pause.containers if row.pause else ()
    return any(matches(edit.path[: len(pattern)], pattern) for edit in edits for pattern in patterns)


def is_stopped(row: Kind, obj: _Object) -> bool:
    """Whether it is suspended, by anybody."""
    return row.stop is not None and same(value_at(obj, _switch(row)), row.stop.to)


def _switch(row: Kind) -> Path:
    assert row.stop is not None  # noqa: S101 - what pauses has a stop
    assert row.stop.field is not None  # noqa: S101
    return row.stop.field.path


def is_changeable(row: Kind, obj: _Object, *, is_late: bool) -> bool:
    """Whether its pods are gone, so that the API server allows the change.

    If it `is_late`, terminating pods do not count, as for the API server.
    """
    status = obj.get("status") or {}
    is_free = "startTime" not in status or _holds(status, "Suspended")
    is_left = bool(status.get("active")) or (bool(status.get("terminating")) and not is_late)
    return is_stopped(row, obj) and is_free and not is_left


def end_condition(obj: _Object) -> str:
    """The condition by which an object ended by itself, such as Complete; empty if it did not."""
    status = obj.get("status") or {}
    return next((kind for kind in _OVER if _holds(status, kind)), "")


def _holds(status: _Object, kind: str) -> bool:
    found = status.get("conditions") or ()
    return any(condition.get("type") == kind and condition.get("status") == "True" for condition in found)


def expected_job_pods(obj: _Object) -> int:
    """Number of pods that should run: no more than still have to succeed."""
    spec, status = obj["spec"], obj.get("status") or {}
    wanted, enough = int(spec.get("parallelism", 1)), spec.get("completions")
    return wanted if enough is None else max(min(wanted, enough - status.get("succeeded", 0)), 0)


def completing_patch(obj: _Object, record: ChangeRecord, row: Kind, at: datetime.datetime) -> dict[str, Any]:
    """The second patch of a change, or of its undo.

    Raises:
        ValueError: The object lacks a field for the pending edits.
    """
    if record.pending_end is not None:
        return undo_patch(obj, record, at=at, end=record.pending_end)
    edits = (*_resuming(record, row), *record.pending_edits)
    plain = msgspec.structs.replace(record, edits=edits, pending_edits=(), at=_second(at))
    return record_patch(obj, edits, merged_with_earlier(plain, record, obj))


def stop_and_restore_patch(
    obj: _Object, record: ChangeRecord, row: Kind, *, at: datetime.datetime, end: ChangeOutcome
) -> tuple[dict[str, Any], ChangeRecord]:
    """The first patch of undoing a change, and its record."""
    stop = stop_edits(row, obj, at)
    kept = tuple(edit for edit in record.edits if edit.path != _switch(row))
    record = msgspec.structs.replace(
        record, edits=(*kept, *stop), pending_edits=(), pending_end=end, at=_second(at)
    )
    return record_patch(obj, stop, record), record


def resuming_patch(
    obj: _Object, record: ChangeRecord, row: Kind, *, at: datetime.datetime, end: ChangeOutcome
) -> dict[str, Any]:
    """The patch that cancels the second step: the workload is resumed as it was before the first one.

    Earlier changes stay in effect, and can still be undone.
    """
    kept = tuple(edit for edit in record.edits if edit.path != _switch(row))
    if not kept:
        return undo_patch(obj, record, at=at, end=end)
    plain = msgspec.structs.replace(record, edits=kept, pending_edits=(), pending_end=None)
    return record_patch(obj, _resuming(record, row), plain)


def _resuming(record: ChangeRecord, row: Kind) -> tuple[Edit, ...]:
    return tuple(edit.reversed for edit in record.edits if edit.path == _switch(row))


def _second(at: datetime.datetime) -> datetime.datetime:
    return at.replace(microsecond=0)
