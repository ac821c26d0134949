"""The second step of a change that suspends a workload: made once its pods are gone, or cancelled.

Its state is read from the object alone, so any run can complete it: the run that began it, an undo, or the next run.
"""

import dataclasses
import datetime
import http

from rightsizer.config import format_duration
from rightsizer.errors import RequestRefused
from rightsizer.execute.run_context import RunContext, log_cluster_error
from rightsizer.execute.watch_health import RecordedObject
from rightsizer.kinds import path_of
from rightsizer.kinds.patches import edit_text
from rightsizer.kinds.pause_for_change import finishing_patch, is_changeable, is_stopped, resuming_patch
from rightsizer.model import ChangeOutcome, Outcome, ReconcileAction, Result
from rightsizer.report.events import NOT_DONE, SHRUNK, UNDONE

_MEANT = frozenset(
    {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""By these the API server says no to this very change; by all others, that it could not be made just now."""


def can_complete(found: RecordedObject, context: RunContext) -> bool:
    """Whether there is something to do about it now: its pods are gone, nobody waits any longer, or it was resumed."""
    late = _is_late(found, context)
    is_given_up = late and found.record.pending_end is None
    is_ready = is_changeable(found.row, found.obj, is_late=late)
    return is_ready or is_given_up or not is_stopped(found.row, found.obj)


def complete(found: RecordedObject, context: RunContext) -> Outcome | None:
    """Make the second half, or give it up; None where it is to be waited for.

    Args:
        found: The object, whole, as it was read just now.
        context: To write.

    Raises:
        ClusterError: It is not known whether it is done, or somebody wrote to the object meanwhile: look again.
    """
    record, row = found.record, found.row
    if not can_complete(found, context):
        return None
    if not is_stopped(row, found.obj):
        return _given_up(found, "somebody resumed it meanwhile", ChangeOutcome.REVERTED, context)
    if not is_changeable(row, found.obj, is_late=_is_late(found, context)):
        waited = format_duration((context.clock() - record.at).total_seconds())
        return _given_up(found, f"its pods are not gone after {waited}", ChangeOutcome.ROLLBACK, context)
    path = path_of(found.ref, row)
    patch = finishing_patch(found.obj, record, row, context.clock())
    try:
        context.cluster.patch(path, patch, dry_run=True)
    except RequestRefused as refused:
        if refused.code not in _MEANT:
            raise
        outcome = _given_up(found, str(refused), ChangeOutcome.REFUSED, context)
        return dataclasses.replace(outcome, is_out_of_policy=refused.is_out_of_policy)
    context.cluster.patch(path, patch)
    edits = [edit.reversed for edit in record.edits] if record.pending_end else record.pending_edits
    words = f"its pods are gone, and it goes on: {', '.join(map(edit_text, edits))}"
    with log_cluster_error(f"no Event on {found.ref}"):
        is_back = record.pending_end is not None
        event = (UNDONE if is_back else SHRUNK).of(found.ref, words, run=record.run, at=context.clock())
        context.cluster.create(*event)
    return found.outcome(context, ReconcileAction.COMPLETE.value, Result.DONE, words)


def _is_late(found: RecordedObject, context: RunContext) -> bool:
    return context.clock() - found.record.at >= datetime.timedelta(
        seconds=found.record.healthy_within_seconds
    )


def _given_up(found: RecordedObject, why: str, end: ChangeOutcome, context: RunContext) -> Outcome:
    """Let it go on as it was before it was stopped, and remember that."""
    patch = resuming_patch(found.obj, found.record, found.row, at=context.clock(), end=end)
    context.cluster.patch(path_of(found.ref, found.row), patch)
    words = f"{why}; it goes on as it was when it was stopped"
    with log_cluster_error(f"no Event on {found.ref}"):
        event = NOT_DONE.of(found.ref, words, run=found.record.run, at=context.clock())
        context.cluster.create(*event)
    return found.outcome(context, "rollback", Result.DONE, words)
