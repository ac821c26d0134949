"""Reconciliations of one earlier change: complete it, confirm that it is healthy, record its revert, or roll it back.

The state of a change is read from its object alone, so any run can reconcile it: the run that began it, or a later one.
"""

import dataclasses
import datetime
import http
from collections.abc import Sequence
from typing import Any

from rightsizer.changes.record_codec import STOPS, pause_of
from rightsizer.config import format_duration
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.change_log import log_intent, logged
from rightsizer.execute.preflight import read_workload
from rightsizer.execute.rollback import ChangedByOthers, WaitingForPods, restore
from rightsizer.execute.run_context import RunContext
from rightsizer.kinds import path_of
from rightsizer.kinds.health import Health, expected_pods, health_of
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import UndoItem, confirmed_patch, edit_text, read_record, reverted_patch
from rightsizer.kinds.pause_for_change import (
    completing_patch,
    end_condition,
    expected_job_pods,
    is_changeable,
    is_stopped,
    resuming_patch,
)
from rightsizer.kube.api_objects import Metadata
from rightsizer.kube.object_names import api_path
from rightsizer.model import ChangeOutcome, ChangeRecord, ObjectRef, Outcome, Pod, ReconcileAction, Result
from rightsizer.report.events import (
    CANCELLED,
    COMPLETED,
    CONFIRMED,
    NO_EFFECT,
    RESTORED,
    REVERTED,
    ROLLED_BACK,
)

_PERMANENT = frozenset(
    {http.HTTPStatus.BAD_REQUEST, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.UNPROCESSABLE_ENTITY}
)
"""Codes by which the API server rejects this change for good; all others are temporary."""

NO_POD_WENT = "none of its pods is gone or terminating"
CAN_BE_COMPLETED = "it is suspended for a change that can be completed"


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedObject:
    """An object that carries a record, as it was read.

    Attributes:
        obj: Its metadata and spec.
    """

    ref: ObjectRef
    row: Kind
    obj: dict[str, Any]
    record: ChangeRecord

    @property
    def about(self) -> ObjectRef:
        """The workload that was changed: this object, or the one that it controls."""
        return UndoItem(self.ref, self.row, self.record).workload

    @property
    def path(self) -> str:
        """The URL path of the object."""
        return path_of(self.ref, self.row)

    def outcome(self, context: RunContext, action: ReconcileAction, result: Result, detail: str) -> Outcome:
        """The outcome of a reconciliation, which is logged."""
        at = context.clock()
        outcome = Outcome(self.ref, action.value, result, detail, 0, at, is_reconciliation=True)
        return logged(outcome, context.run)

    def failure(
        self, context: RunContext, action: ReconcileAction, error: ClusterError, detail: str
    ) -> Outcome:
        """The outcome of a reconciliation that the API server refused, or did not answer.

        It opens no breaker, even if an admission policy refused it: the owner may have changed the record.
        """
        result = Result.REFUSED if isinstance(error, RequestRefused) else Result.UNKNOWN
        return self.outcome(context, action, result, detail)


def read_recorded_object(ref: ObjectRef, row: Kind, context: RunContext) -> RecordedObject | None:
    """An object as it is now, with its record; None if it has no usable record, or another UID.

    Raises:
        ClusterError: It could not be read.
    """
    obj = context.cluster.get_object(path_of(ref, row))
    try:
        record = read_record(obj["metadata"].get("annotations") or {}, row)
    except ValueError:
        return None
    return RecordedObject(ref, row, obj, record) if record and obj["metadata"]["uid"] == ref.uid else None


def awaits_confirmation(found: RecordedObject) -> bool:
    """Whether it still runs with fewer GPUs, and its health is not confirmed yet."""
    return found.record.leaves_some and not found.record.confirmed


def check_health(found: RecordedObject, context: RunContext) -> tuple[Health, str]:
    """Health of the workload since the change, and the reason.

    Raises:
        ClusterError: Something could not be read whole.
    """
    fresh, _ = read_workload(found.ref, context.cluster)
    pods = fresh.pods if fresh else ()
    if found.row.pause is not None:
        return _job_health(found, pods, context)
    return health_of(found.record, pods, expected_pods(found.record, found.obj, found.row), context.clock())


def _job_health(found: RecordedObject, pods: Sequence[Pod], context: RunContext) -> tuple[Health, str]:
    """A Job replaces failed pods, so each pod that failed since the change counts."""
    obj = context.cluster.get_object(found.path)
    if words := end_condition(obj):
        return Health.ENDED, f"it has ended since: {words}"
    path = api_path("v1", found.ref.namespace, "pods")
    failed = sorted(
        pod.metadata.name
        for pod in context.cluster.list_all(path, Metadata, field_selector="status.phase=Failed")
        if (above := pod.metadata.controller) is not None
        and above.uid == found.ref.uid
        and pod.metadata.creation_timestamp is not None
        and pod.metadata.creation_timestamp >= found.record.at
    )
    if failed:
        return Health.FAILED, f"pod {failed[0]} failed since"
    return health_of(found.record, pods, expected_job_pods(obj), context.clock())


def confirm(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    """Record on the object that it is healthy."""
    action = ReconcileAction.CONFIRM
    log_intent(context.run, found.ref, action, words)
    try:
        context.cluster.patch(found.path, confirmed_patch(found.obj, found.record))
    except ClusterError as error:
        detail = f"left to the next run: {error}"
        if isinstance(error, RequestRefused) and error.code == http.HTTPStatus.CONFLICT:
            return found.outcome(context, action, Result.CHANGED, detail)
        return found.failure(context, action, error, detail)
    context.publish(CONFIRMED, found.ref, words, run=found.record.run)
    return found.outcome(context, action, Result.DONE, words)


def roll_back(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    """Restore its former fields: it is unhealthy after the change, no pod went, or it went in vain for another."""
    has_no_effect = words == NO_POD_WENT
    end, event = (
        (ChangeOutcome.NO_EFFECT, NO_EFFECT) if has_no_effect else (ChangeOutcome.ROLLBACK, ROLLED_BACK)
    )
    action, item = ReconcileAction.ROLLBACK, UndoItem(found.ref, found.row, found.record)
    log_intent(context.run, found.ref, action, words)
    try:
        what = restore(item, context.cluster, at=context.clock(), end=end)
    except WaitingForPods as waiting:
        what = str(waiting)
    except ChangedByOthers as changed:
        return found.outcome(context, action, Result.CHANGED, f"{words}; left alone: {changed}")
    except ClusterError as error:
        return found.failure(context, action, error, f"{words}; {error}")
    context.publish(event, found.ref, f"{words}; {what}", run=found.record.run)
    return found.outcome(context, action, Result.DONE, f"{words}; {what}")


def record_revert(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    """Record on the object that somebody reverted the change, so that it is not repeated."""
    action, at = ReconcileAction.RECORD_REVERT, context.clock()
    log_intent(context.run, found.ref, action, words)
    try:
        patch = reverted_patch(found.obj, found.record, at=at, came_back=_idle_span(found, context, at))
        context.cluster.patch(found.path, patch)
    except ClusterError as error:
        return found.failure(context, action, error, f"{words}; not recorded: {error}")
    context.publish(REVERTED, found.about, words, run=found.record.run)
    return found.outcome(context, action, Result.DONE, f"somebody reverted it: {words}")


def _idle_span(
    found: RecordedObject, context: RunContext, at: datetime.datetime
) -> datetime.timedelta | None:
    """Time for which it was idle before it was needed again; unknown after a change that left it some GPUs."""
    if found.record.action not in STOPS:
        return None
    fresh, _ = read_workload(found.about, context.cluster)
    known = fresh.came_back_after if fresh else None
    return known or pause_of(found.record.idle_seconds, found.record.at, at)


def can_complete(found: RecordedObject, context: RunContext) -> bool:
    """Whether its pods are gone, its time is over, or somebody resumed it."""
    late = _is_late(found, context)
    is_given_up = late and found.record.pending_end is None
    is_ready = is_changeable(found.row, found.obj, is_late=late)
    return is_ready or is_given_up or not is_stopped(found.row, found.obj)


def complete(found: RecordedObject, context: RunContext) -> Outcome | None:
    """Make the second step of a change that suspends its workload, or cancel it; None while its pods still terminate.

    The object is read with its status.

    Raises:
        ClusterError: The result is unknown, or somebody wrote to the object meanwhile: read it again.
    """
    if not can_complete(found, context):
        return None
    log_intent(context.run, found.ref, ReconcileAction.COMPLETE, CAN_BE_COMPLETED)
    try:
        return _complete_or_cancel(found, context)
    except ValueError as error:
        detail = f"its record cannot be carried out: {error}"
        return found.outcome(context, ReconcileAction.COMPLETE, Result.REFUSED, detail)


def _complete_or_cancel(found: RecordedObject, context: RunContext) -> Outcome:
    record, row = found.record, found.row
    if not is_stopped(row, found.obj):
        return _cancel(found, "somebody resumed it meanwhile", ChangeOutcome.REVERTED, context)
    if not is_changeable(row, found.obj, is_late=_is_late(found, context)):
        waited = format_duration((context.clock() - record.at).total_seconds())
        return _cancel(found, f"its pods are not gone after {waited}", ChangeOutcome.ROLLBACK, context)
    try:
        patch = completing_patch(found.obj, record, row, context.clock())
        context.cluster.patch(found.path, patch, dry_run=True)
    except RequestRefused as refused:
        if refused.code not in _PERMANENT:
            raise
        return _cancel(found, str(refused), ChangeOutcome.REFUSED, context)
    except ValueError as error:
        return _cancel(found, str(error), ChangeOutcome.REFUSED, context)
    context.cluster.patch(found.path, patch)
    edits = [edit.reversed for edit in record.edits] if record.pending_end else record.pending_edits
    words = f"its pods are gone, and it is resumed: {', '.join(map(edit_text, edits))}"
    event = RESTORED if record.pending_end else COMPLETED
    context.publish(event, found.ref, words, run=record.run)
    return found.outcome(context, ReconcileAction.COMPLETE, Result.DONE, words)


def _is_late(found: RecordedObject, context: RunContext) -> bool:
    span = datetime.timedelta(seconds=found.record.healthy_within_seconds)
    return context.clock() - found.record.at >= span


def _cancel(found: RecordedObject, why: str, end: ChangeOutcome, context: RunContext) -> Outcome:
    """Resume it without the second step, and record that."""
    patch = resuming_patch(found.obj, found.record, found.row, at=context.clock(), end=end)
    context.cluster.patch(found.path, patch)
    words = f"{why}; it is resumed without the change"
    context.publish(CANCELLED, found.ref, words, run=found.record.run)
    return found.outcome(context, ReconcileAction.ROLLBACK, Result.DONE, words)
