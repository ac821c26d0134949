"""Checks the health of scaled-down and resized workloads, and rolls unhealthy ones back.

The result is recorded on the object, so it is determined once: in the run that made the change, or in the next.
"""

import dataclasses
import http
from collections.abc import Sequence
from typing import Any

from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.preflight import read_workload
from rightsizer.execute.rollback import ChangedByOthers, WaitingForPods, restore
from rightsizer.execute.run_context import RunContext, log_cluster_error
from rightsizer.kinds import path_of
from rightsizer.kinds.health import Health, expected_pods, health_of
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import UndoItem, confirmed_patch, read_record
from rightsizer.kinds.pause_for_change import end_condition, expected_job_pods
from rightsizer.kube.api_objects import Metadata
from rightsizer.model import ChangeOutcome, ChangeRecord, ObjectRef, Outcome, Pod, Result
from rightsizer.report.events import CONFIRMED, UNHEALTHY


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
        """What was stopped or changed: itself, or what it was changed in place of."""
        return UndoItem(self.ref, self.row, self.record).workload

    def outcome(self, context: RunContext, action: str, result: Result, detail: str) -> Outcome:
        """What became of a repair of it."""
        return Outcome(self.ref, action, result, detail, 0, context.clock(), is_repair=True)

    def refused(self, context: RunContext, action: str, refused: RequestRefused, detail: str) -> Outcome:
        """What became of a repair of it that the API server refused."""
        outcome = self.outcome(context, action, Result.REFUSED, detail)
        return dataclasses.replace(outcome, is_out_of_policy=refused.is_out_of_policy)


def read_recorded_object(ref: ObjectRef, row: Kind, context: RunContext) -> RecordedObject | None:
    """An object as it is now, with its record; None where it carries none that can be used, or is another one.

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
    """Whether it goes on with less, and it is not known yet how it bears that."""
    return found.record.leaves_some and not found.record.confirmed


def check_health(found: RecordedObject, context: RunContext) -> tuple[Health, str]:
    """How it bears its change, and in words why.

    Raises:
        ClusterError: Something could not be read whole.
    """
    fresh, _ = read_workload(found.ref, context.cluster)
    pods = fresh.pods if fresh else ()
    if found.row.pause is not None:
        return _work_examined(found, pods, context)
    return health_of(found.record, pods, expected_pods(found.record, found.obj, found.row), context.clock())


def _work_examined(found: RecordedObject, pods: Sequence[Pod], context: RunContext) -> tuple[Health, str]:
    """The same of work that ends: none of its pods may fail, whose place others take."""
    obj = context.cluster.get_object(path_of(found.ref, found.row))
    if words := end_condition(obj):
        return Health.ENDED, f"it has ended since: {words}"
    path = f"/api/v1/namespaces/{found.ref.namespace}/pods"
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
    try:
        context.cluster.patch(path_of(found.ref, found.row), confirmed_patch(found.obj, found.record))
    except RequestRefused as refused:
        detail = f"left to the next run: {refused}"
        if refused.code == http.HTTPStatus.CONFLICT:
            return found.outcome(context, "confirm", Result.CHANGED, detail)
        return found.refused(context, "confirm", refused, detail)
    except ClusterError as error:
        return found.outcome(context, "confirm", Result.UNKNOWN, f"left to the next run: {error}")
    with log_cluster_error(f"no Event on {found.ref}"):
        context.cluster.create(*CONFIRMED.of(found.ref, words, run=found.record.run, at=context.clock()))
    return found.outcome(context, "confirm", Result.DONE, words)


def roll_back(found: RecordedObject, words: str, context: RunContext) -> Outcome:
    """Give it back what it had, since it is not well without."""
    item = UndoItem(found.ref, found.row, found.record)
    try:
        what = restore(item, context.cluster, at=context.clock(), end=ChangeOutcome.ROLLBACK)
    except WaitingForPods as going:
        what = str(going)
    except ChangedByOthers as changed:
        return found.outcome(context, "rollback", Result.CHANGED, f"{words}; left alone: {changed}")
    except RequestRefused as refused:
        return found.refused(context, "rollback", refused, f"{words}; {refused}")
    except ClusterError as error:
        return found.outcome(context, "rollback", Result.UNKNOWN, f"{words}; {error}")
    with log_cluster_error(f"no Event on {found.ref}"):
        told = UNHEALTHY.of(found.ref, f"{words}; {what}", run=found.record.run, at=context.clock())
        context.cluster.create(*told)
    return found.outcome(context, "rollback", Result.DONE, f"{words}; {what}")
