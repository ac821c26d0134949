"""What goes on with less than it had: whether it is well, and back with it where it is not.

What came of it stands on the object, so that it is found out once, in the run that made the change or in the next.
"""

import dataclasses
import http
from collections.abc import Sequence
from typing import Any

from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.preflight import look_at
from rightsizer.execute.rollback import ChangedSince, StillGoing, restore
from rightsizer.execute.run_context import Means, as_a_warning
from rightsizer.kinds import path_of
from rightsizer.kinds.health import Health, health_of, wanted
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import Undoable, UndoRecord, read_record, settled_patch
from rightsizer.kinds.pause_for_change import ended, wanted_pods
from rightsizer.kube.api_objects import Metadata
from rightsizer.model import ChangeOutcome, ObjectRef, Outcome, Pod, Result
from rightsizer.report.events import put_back_event, settled_event


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """An object that carries a record, as it was read.

    Attributes:
        obj: Its metadata and spec.
    """

    ref: ObjectRef
    row: Kind
    obj: dict[str, Any]
    record: UndoRecord

    @property
    def about(self) -> ObjectRef:
        """What was stopped or changed: itself, or what it was changed in place of."""
        return Undoable(self.ref, self.row, self.record).workload

    def outcome(self, means: Means, action: str, result: Result, detail: str) -> Outcome:
        """What became of a repair of it."""
        return Outcome(self.ref, action, result, detail, 0, means.clock(), is_repair=True)

    def refused(self, means: Means, action: str, refused: RequestRefused, detail: str) -> Outcome:
        """What became of a repair of it that the API server refused."""
        outcome = self.outcome(means, action, Result.REFUSED, detail)
        return dataclasses.replace(outcome, is_out_of_policy=refused.is_out_of_policy)


def found_again(ref: ObjectRef, row: Kind, means: Means) -> Found | None:
    """An object as it is now, with its record; None where it carries none that can be used, or is another one.

    Raises:
        ClusterError: It could not be read.
    """
    obj = means.cluster.get_object(path_of(ref, row))
    try:
        record = read_record(obj["metadata"].get("annotations") or {}, row)
    except ValueError:
        return None
    return Found(ref, row, obj, record) if record and obj["metadata"]["uid"] == ref.uid else None


def is_settling(found: Found) -> bool:
    """Whether it goes on with less, and it is not known yet how it bears that."""
    return found.record.leaves_some and not found.record.settled


def examined(found: Found, means: Means) -> tuple[Health, str]:
    """How it bears its change, and in words why.

    Raises:
        ClusterError: Something could not be read whole.
    """
    fresh, _ = look_at(found.ref, means.cluster)
    pods = fresh.pods if fresh else ()
    if found.row.pause is not None:
        return _work_examined(found, pods, means)
    return health_of(found.record, pods, wanted(found.record, found.obj, found.row), means.clock())


def _work_examined(found: Found, pods: Sequence[Pod], means: Means) -> tuple[Health, str]:
    """The same of work that ends: none of its pods may fail, whose place others take."""
    obj = means.cluster.get_object(path_of(found.ref, found.row))
    if words := ended(obj):
        return Health.ENDED, f"it has ended since: {words}"
    path = f"/api/v1/namespaces/{found.ref.namespace}/pods"
    failed = sorted(
        pod.metadata.name
        for pod in means.cluster.list_all(path, Metadata, field_selector="status.phase=Failed")
        if (above := pod.metadata.controller) is not None
        and above.uid == found.ref.uid
        and pod.metadata.creation_timestamp is not None
        and pod.metadata.creation_timestamp >= found.record.time
    )
    if failed:
        return Health.FAILED, f"pod {failed[0]} failed since"
    return health_of(found.record, pods, wanted_pods(obj), means.clock())


def settle(found: Found, words: str, means: Means) -> Outcome:
    """Let it remember that it is well."""
    try:
        means.cluster.patch(path_of(found.ref, found.row), settled_patch(found.obj, found.record))
    except RequestRefused as refused:
        detail = f"left to the next run: {refused}"
        if refused.code == http.HTTPStatus.CONFLICT:
            return found.outcome(means, "confirm", Result.CHANGED, detail)
        return found.refused(means, "confirm", refused, detail)
    except ClusterError as error:
        return found.outcome(means, "confirm", Result.UNKNOWN, f"left to the next run: {error}")
    with as_a_warning(f"no Event on {found.ref}"):
        means.cluster.create(*settled_event(found.ref, words, run=found.record.run, at=means.clock()))
    return found.outcome(means, "confirm", Result.DONE, words)


def put_back(found: Found, words: str, means: Means) -> Outcome:
    """Give it back what it had, since it is not well without."""
    item = Undoable(found.ref, found.row, found.record)
    try:
        what = restore(item, means.cluster, at=means.clock(), end=ChangeOutcome.ROLLED_BACK)
    except StillGoing as going:
        what = str(going)
    except ChangedSince as changed:
        return found.outcome(means, "rollback", Result.CHANGED, f"{words}; left alone: {changed}")
    except RequestRefused as refused:
        return found.refused(means, "rollback", refused, f"{words}; {refused}")
    except ClusterError as error:
        return found.outcome(means, "rollback", Result.UNKNOWN, f"{words}; {error}")
    with as_a_warning(f"no Event on {found.ref}"):
        told = put_back_event(found.ref, f"{words}; {what}", run=found.record.run, at=means.clock())
        means.cluster.create(*told)
    return found.outcome(means, "rollback", Result.DONE, f"{words}; {what}")
