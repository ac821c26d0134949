"""Gives an object its former fields from the record that it carries, and takes the record away.

One patch does it. What only changes while it is stopped is stopped by another one before; its pods have to go first.
"""

import dataclasses
import datetime
import http
import json
from typing import Any

from rightsizer.errors import RequestRefused
from rightsizer.kinds import path_of
from rightsizer.kinds.command_objects import command_body
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
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit, ObjectRef


def create_command(
    cluster: Cluster, orders: CommandObject, ref: ObjectRef, *, verb: str, run: str, dry_run: bool = False
) -> None:
    """Order something about a workload; what this run has ordered already is not ordered twice.

    Raises:
        ClusterError: The API server refuses, or does not answer.
    """
    collection, body = command_body(orders, ref, verb, run=run)
    try:
        cluster.create(collection, body, dry_run=dry_run)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise


_ATTEMPTS = 5
_Object = dict[str, Any]


class WaitingForPods(Exception):  # noqa: N818 - becomes an outcome, not an error
    """Its pods have to go before it can be put back: it is stopped for that; `item` is how it is remembered now."""

    def __init__(self, item: UndoItem) -> None:
        self.item = item
        super().__init__("it is stopped, and gets back what it had once its pods are gone")


class ChangedByOthers(Exception):  # noqa: N818 - becomes an outcome, not an error
    """Somebody changed since what we would put back."""


def restore(
    item: UndoItem,
    cluster: Cluster,
    *,
    at: datetime.datetime,
    force: bool = False,
    end: ChangeOutcome = ChangeOutcome.UNDONE,
) -> str:
    """Give an object its former fields by one patch, and take the record away; what that changed, for people.

    Its own controller writes its status all along, above all just after it was stopped: where that comes between, the
    object is read, and judged, again.

    Args:
        item: With its record.
        cluster: Where.
        at: Now.
        force: Also where someone changed the fields since.
        end: What it is remembered as.

    Raises:
        ChangedSince: Somebody changed it since.
        StillGoing: That takes two steps, and only the first one is made.
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
        raise WaitingForPods(_stopped(item, record, obj, cluster, (at, end)))
    try:
        patch = undo_patch(obj, record, at=at, end=end)
    except ValueError as error:
        raise ChangedByOthers(str(error)) from error
    cluster.patch(path, patch, dry_run=True)
    orders = item.row.orders_for(record.edits)
    if orders is not None:
        # The record goes once its controller was told: being cut short leaves nothing stopped that carries none.
        create_command(cluster, orders, item.ref, verb=orders.back, run=record.run)
    cluster.patch(path, patch)
    return ", ".join(
        edit_text(Edit(edit.path, value_at(obj, edit.path), edit.before)) for edit in record.edits
    )


def _stopped(
    item: UndoItem,
    record: ChangeRecord,
    obj: _Object,
    cluster: Cluster,
    how: tuple[datetime.datetime, ChangeOutcome],
) -> UndoItem:
    """Stop what only changes while it is stopped, with a record that says what comes next."""
    if is_stopped(item.row, obj):
        return item
    at, end = how
    minor, pause = cluster.minor(), item.row.pause
    if over := end_condition(obj):
        raise ChangedByOthers(f"it has ended, {over}, so nothing can change it any more")
    if pause is not None and (minor is None or minor < pause.since):
        raise ChangedByOthers(
            f"the API server, of Kubernetes 1.{minor}, does not let it change, though it once did"
        )
    path = path_of(item.ref, item.row)
    patch, record = stop_and_restore_patch(obj, record, item.row, at=at, end=end)
    cluster.patch(path, patch, dry_run=True)
    cluster.patch(path, patch)
    return dataclasses.replace(item, record=record)


def _changed_words(obj: Any, edit: Edit) -> str:  # noqa: ANN401 - an object as the API server gave it
    return (
        f"{shown(edit.path)} is {json.dumps(value_at(obj, edit.path))} now, "
        f"not {json.dumps(edit.after)} as we left it; --force sets it to {json.dumps(edit.before)} all the same"
    )


def _carries(obj: _Object, record: ChangeRecord, item: UndoItem) -> bool:
    try:
        now = read_record(obj["metadata"].get("annotations") or {}, item.row)
    except ValueError:
        return False
    return obj["metadata"]["uid"] == item.ref.uid and now == record
