"""Restores an object's former fields from its record, and removes the record, by one patch.

If a Job must be suspended to change, another patch suspends it before; its pods have to terminate first.
"""

import dataclasses
import datetime
import functools
import http
import json
from typing import Any

from rightsizer.errors import RequestRefused
from rightsizer.execute.template_creation import missing_template
from rightsizer.inventory.managers import JOB_UID, QUEUE, QUEUED_PODS
from rightsizer.inventory.owner_reader import OptionalLister
from rightsizer.kinds import path_of
from rightsizer.kinds.edits import same, shown, value_at
from rightsizer.kinds.kind import CommandObject
from rightsizer.kinds.patches import UndoItem, edit_text, read_record, undo_patch
from rightsizer.kinds.pause_for_change import (
    end_condition,
    is_changeable,
    is_stopped,
    needs_pause,
    stop_and_restore_patch,
)
from rightsizer.kube.api_objects import Metadata
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import KUEUE, Queueing
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit, ObjectRef


def create_command(
    cluster: Cluster, command: CommandObject, ref: ObjectRef, *, verb: str, run: str, dry_run: bool = False
) -> None:
    """Create a command about a workload; one that exists already is not created twice.

    Raises:
        ClusterError: The API server refuses, or does not answer.
    """
    collection, body = command.body(ref, verb, run=run)
    try:
        cluster.create(collection, body, dry_run=dry_run)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise


_ATTEMPTS = 5
_Object = dict[str, Any]


class WaitingForPods(Exception):  # noqa: N818 - becomes an outcome, not an error
    """Pods have to terminate before the object can be restored; `item` has the record that it carries now.

    Attributes:
        is_completed: Whether a later run restores it.
    """

    def __init__(self, item: UndoItem, words: str, *, is_completed: bool) -> None:
        self.item, self.is_completed = item, is_completed
        super().__init__(words)


class ChangedByOthers(Exception):  # noqa: N818 - becomes an outcome, not an error
    """Fields to restore hold values that somebody else set."""


def restore(
    item: UndoItem,
    cluster: Cluster,
    *,
    at: datetime.datetime,
    force: bool = False,
    end: ChangeOutcome = ChangeOutcome.UNDONE,
) -> str:
    """Restore an object's former fields by one patch, and remove the record; what that changed, for people.

    After a conflict, such as with its controller's writes to the status, the object is read and checked again. With
    `force`, it is restored even if somebody changed the fields since; `end` is how the change ends in its history.

    Raises:
        ChangedByOthers: Somebody changed it since.
        WaitingForPods: It takes two steps, and only the first one is made; or its former pods are still there.
        ClusterError: The API server refuses, or does not answer.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _restore_once(item, cluster, force=force, at=at, end=end)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
    return _restore_once(item, cluster, force=force, at=at, end=end)


def _restore_once(
    item: UndoItem, cluster: Cluster, *, force: bool, at: datetime.datetime, end: ChangeOutcome
) -> str:
    path, record = path_of(item.ref, item.row), item.record
    obj = cluster.get_object(path)
    if record is None or not _carries(obj, record, item):
        raise ChangedByOthers("it is not the object that was found, or its record was changed meanwhile")
    changed = [edit for edit in record.edits if not same(value_at(obj, edit.path), edit.after)]
    if changed and not force:
        raise ChangedByOthers("; ".join(_changed_words(obj, edit) for edit in changed))
    if needs_pause(item.row, record.edits) and not is_changeable(item.row, obj, is_late=False):
        waiting = _suspend(item, record, obj, cluster, (at, end))
        words = "it is suspended, and is restored once its pods are gone"
        raise WaitingForPods(waiting, words, is_completed=True)
    if left := _left_in_queue(item, obj, cluster):
        words = f"Kueue lets it start again once its former {left}"
        raise WaitingForPods(item, words, is_completed=False)
    try:
        patch = undo_patch(obj, record, at=at, end=end)
    except ValueError as error:
        raise ChangedByOthers(str(error)) from error
    if gone := missing_template(cluster, record.edits, item.ref.namespace):
        raise ChangedByOthers(
            f"the ResourceClaimTemplate {gone} is gone, without which no pod starts: create it again"
        )
    cluster.patch(path, patch, dry_run=True)
    command = item.row.command_for(record.edits)
    if command is not None:
        # The record is removed after the command is created, so an interruption leaves no stopped object without one.
        create_command(cluster, command, item.ref, verb=command.undo_verb, run=record.run)
    cluster.patch(path, patch)
    words = ", ".join(
        edit_text(Edit(edit.path, value_at(obj, edit.path), edit.before)) for edit in record.edits
    )
    if item.row.no_pods_reason is None:
        return words
    annotations = {**obj["metadata"]["annotations"], **patch["metadata"]["annotations"]}
    why = item.row.no_pods_reason(annotations, obj["spec"])
    return f"{words}; {why}" if why else words


def _left_in_queue(item: UndoItem, obj: _Object, cluster: Cluster) -> str:
    """The remains of an object without replicas for which Kueue's webhook would refuse new ones; empty if none.

    ValidateUpdate in pkg/controller/jobs/statefulset/statefulset_webhook.go of Kueue 0.17.
    """
    template = value_at(obj, ("spec", "template", "metadata", "annotations")) or {}
    is_queued = QUEUE in (obj["metadata"].get("labels") or {}) or QUEUED_PODS in template
    if item.row.of.queueing is not Queueing.WHOLE or not is_queued or value_at(obj, ("spec", "replicas")):
        return ""
    if (obj.get("status") or {}).get("replicas"):
        return "pods are gone"
    lister = OptionalLister(cluster, f"/namespaces/{item.ref.namespace}")
    by_job = functools.partial(
        cluster.list_all, kind=Metadata, label_selector=f"{JOB_UID}={item.ref.uid}", metadata_only=True
    )
    none: list[Metadata] = []
    return "Workload is gone" if lister.first_served(lister.paths(KUEUE), by_job, none) else ""


def _suspend(
    item: UndoItem,
    record: ChangeRecord,
    obj: _Object,
    cluster: Cluster,
    how: tuple[datetime.datetime, ChangeOutcome],
) -> UndoItem:
    """Suspend a workload for its change, with a record of the next step."""
    if is_stopped(item.row, obj):
        return item
    at, end = how
    minor, pause = cluster.minor(), item.row.pause
    if over := end_condition(obj):
        raise ChangedByOthers(f"it has ended, {over}, so nothing can change it anymore")
    if pause is not None and (minor is None or minor < pause.since):
        raise ChangedByOthers(
            f"the API server, of Kubernetes 1.{minor}, does not allow the change, though it once did"
        )
    path = path_of(item.ref, item.row)
    patch, record = stop_and_restore_patch(obj, record, item.row, at=at, end=end)
    cluster.patch(path, patch, dry_run=True)
    cluster.patch(path, patch)
    return dataclasses.replace(item, record=record)


def _changed_words(obj: Any, edit: Edit) -> str:  # noqa: ANN401 - an object as the API server gave it
    return (
        f"{shown(edit.path)} is {json.dumps(value_at(obj, edit.path))}; gpu-rightsizer had set it to "
        f"{json.dumps(edit.after)}; --force sets it to {json.dumps(edit.before)}"
    )


def _carries(obj: _Object, record: ChangeRecord, item: UndoItem) -> bool:
    try:
        now = read_record(obj["metadata"].get("annotations") or {}, item.row)
    except ValueError:
        return False
    return obj["metadata"]["uid"] == item.ref.uid and now == record
