"""The second half of a change for which a workload was stopped: made once its pods are gone, or given up.

It is found out anew each time, from the object alone, so whoever comes by can do it: the run that began it, an undo, or
the repair of the next run.
"""

import dataclasses
import datetime
import http

from rightsizer.config import format_duration
from rightsizer.errors import RequestRefused
from rightsizer.execute.run_context import Means, as_a_warning
from rightsizer.execute.watch_health import Found
from rightsizer.kinds import path_of
from rightsizer.kinds.patches import told
from rightsizer.kinds.pause_for_change import finishing_patch, is_stopped, may_change, resuming_patch
from rightsizer.model import ChangeOutcome, Outcome, ReconcileAction, Result
from rightsizer.report.events import finished_event, given_up_event

_MEANT = frozenset(
    {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""By these the API server says no to this very change; by all others, that it could not be made just now."""


def is_due(found: Found, means: Means) -> bool:
    """Whether there is something to do about it now: its pods are gone, nobody waits any longer, or it was resumed."""
    late = _is_late(found, means)
    is_given_up = late and found.record.end is None
    is_ready = may_change(found.row, found.obj, is_late=late)
    return is_ready or is_given_up or not is_stopped(found.row, found.obj)


def go_on(found: Found, means: Means) -> Outcome | None:
    """Make the second half, or give it up; None where it is to be waited for.

    Args:
        found: The object, whole, as it was read just now.
        means: To write.

    Raises:
        ClusterError: It is not known whether it is done, or somebody wrote to the object meanwhile: look again.
    """
    record, row = found.record, found.row
    if not is_due(found, means):
        return None
    if not is_stopped(row, found.obj):
        return _given_up(found, "somebody resumed it meanwhile", ChangeOutcome.REVERTED, means)
    if not may_change(row, found.obj, is_late=_is_late(found, means)):
        waited = format_duration((means.clock() - record.time).total_seconds())
        return _given_up(found, f"its pods are not gone after {waited}", ChangeOutcome.ROLLED_BACK, means)
    path = path_of(found.ref, row)
    patch = finishing_patch(found.obj, record, row, means.clock())
    try:
        means.cluster.patch(path, patch, dry_run=True)
    except RequestRefused as refused:
        if refused.code not in _MEANT:
            raise
        outcome = _given_up(found, str(refused), ChangeOutcome.REFUSED, means)
        return dataclasses.replace(outcome, is_out_of_policy=refused.is_out_of_policy)
    means.cluster.patch(path, patch)
    edits = [edit.turned for edit in record.edits] if record.end else record.then
    words = f"its pods are gone, and it goes on: {', '.join(map(told, edits))}"
    with as_a_warning(f"no Event on {found.ref}"):
        is_back = record.end is not None
        event = finished_event(found.ref, words, run=record.run, at=means.clock(), is_back=is_back)
        means.cluster.create(*event)
    return found.outcome(means, ReconcileAction.COMPLETE.value, Result.DONE, words)


def _is_late(found: Found, means: Means) -> bool:
    return means.clock() - found.record.time >= datetime.timedelta(seconds=found.record.settle)


def _given_up(found: Found, why: str, end: ChangeOutcome, means: Means) -> Outcome:
    """Let it go on as it was before it was stopped, and remember that."""
    patch = resuming_patch(found.obj, found.record, found.row, at=means.clock(), end=end)
    means.cluster.patch(path_of(found.ref, found.row), patch)
    words = f"{why}; it goes on as it was when it was stopped"
    with as_a_warning(f"no Event on {found.ref}"):
        event = given_up_event(found.ref, words, run=found.record.run, at=means.clock())
        means.cluster.create(*event)
    return found.outcome(means, "rollback", Result.DONE, words)
