"""Changes of what is fixed while pods run: the workload is stopped for them, and goes on with what it is left. Pure.

Two patches, each of which is whole. The first one stops it, and its record says what is still to come; once its pods
are gone the second one makes that change and lets it go on. So at any instant the record says what the next step is,
and what is to be put back. Taking such a change back goes the same way: the record then says as what it ends.
https://kubernetes.io/docs/concepts/workloads/controllers/job/ (KEP-5440)
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.kinds.edits import Path, matches, same, value_at
from rightsizer.kinds.kind import Kind, stop_edits
from rightsizer.kinds.patches import merged_with_earlier, record_patch, undo_patch
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit

_Object = Mapping[str, Any]
_OVER = ("Complete", "Failed")


def needs_pause(row: Kind, edits: Sequence[Edit]) -> bool:
    """Whether any of these edits can be made only while the workload is stopped."""
    patterns = row.pause.containers if row.pause else ()
    return any(matches(edit.path[: len(pattern)], pattern) for edit in edits for pattern in patterns)


def is_stopped(row: Kind, obj: _Object) -> bool:
    """Whether it is stopped, by whomever."""
    return row.stop is not None and same(value_at(obj, _switch(row)), row.stop.to)


def _switch(row: Kind) -> Path:
    assert row.stop is not None  # noqa: S101 - what pauses can be stopped
    assert row.stop.field is not None  # noqa: S101
    return row.stop.field.path


def is_changeable(row: Kind, obj: _Object, *, is_late: bool) -> bool:
    """Whether its pods are gone, so that the API server lets it change.

    Args:
        row: Its kind.
        obj: With its status.
        is_late: Whether pods that are only being deleted still are no longer waited for: the server does not either.
    """
    status = obj.get("status") or {}
    is_free = "startTime" not in status or _holds(status, "Suspended")
    is_left = bool(status.get("active")) or (bool(status.get("terminating")) and not is_late)
    return is_stopped(row, obj) and is_free and not is_left


def end_condition(obj: _Object) -> str:
    """How it has come to its own end, such as Complete; empty where it has not."""
    status = obj.get("status") or {}
    return next((kind for kind in _OVER if _holds(status, kind)), "")


def _holds(status: _Object, kind: str) -> bool:
    return any(
        one.get("type") == kind and one.get("status") == "True" for one in status.get("conditions") or ()
    )


def expected_job_pods(obj: _Object) -> int:
    """How many pods of it should run: not more than are still to succeed."""
    spec, status = obj["spec"], obj.get("status") or {}
    wanted, enough = int(spec.get("parallelism", 1)), spec.get("completions")
    return wanted if enough is None else max(min(wanted, enough - status.get("succeeded", 0)), 0)


def finishing_patch(obj: _Object, record: ChangeRecord, row: Kind, at: datetime.datetime) -> dict[str, Any]:
    """The second patch of a change, or of taking it back.

    Raises:
        ValueError: The object has no place for what is to come.
    """
    if record.pending_end is not None:
        return undo_patch(obj, record, at=at, end=record.pending_end)
    edits = (*_resuming(record, row), *record.pending_edits)
    plain = msgspec.structs.replace(record, edits=edits, pending_edits=(), at=_second(at))
    return record_patch(obj, edits, merged_with_earlier(plain, record, obj))


def stop_and_restore_patch(
    obj: _Object, record: ChangeRecord, row: Kind, *, at: datetime.datetime, end: ChangeOutcome
) -> tuple[dict[str, Any], ChangeRecord]:
    """The first patch of taking a change back, and the record that it carries."""
    stop = stop_edits(row, obj, at)
    kept = tuple(edit for edit in record.edits if edit.path != _switch(row))
    record = msgspec.structs.replace(
        record, edits=(*kept, *stop), pending_edits=(), pending_end=end, at=_second(at)
    )
    return record_patch(obj, stop, record), record


def resuming_patch(
    obj: _Object, record: ChangeRecord, row: Kind, *, at: datetime.datetime, end: ChangeOutcome
) -> dict[str, Any]:
    """The patch that gives a second half up: it goes on as it was before the first one.

    What had been changed before that stays so, and can still be undone.
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
