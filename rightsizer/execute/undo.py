"""Undoes changes: from the record on each object, or from the saved manifest of an evicted pod.

Everything that undo needs is in the cluster: it works from any machine, for anybody with the right to patch the object.
What somebody changed since is left alone, except with --force.
"""

import base64
import binascii
import dataclasses
import datetime
import http
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from rightsizer.changes.found_changes import is_copy
from rightsizer.changes.record_codec import MANIFEST_LABEL, UNDO_ANNOTATION, manifest_name
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.journal import Journal
from rightsizer.execute.listing import list_objects, recordable_kinds
from rightsizer.execute.rollback import ChangedByOthers, WaitingForPods, restore
from rightsizer.execute.run_context import PAUSE_S, Deadline
from rightsizer.kinds import path_of
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import MANIFEST_TYPE, UndoItem, parse_record, read_record, recreated_manifest
from rightsizer.kube.api_objects import Metadata, ObjectMeta
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeRecord, ObjectRef, Outcome, Result
from rightsizer.object_names import api_path, require_name
from rightsizer.report.events import RESTORED
from rightsizer.text import decoded

log = logging.getLogger(__name__)
_LARGEST_SECRET = 1 << 20  # v1.MaxSecretSize


class _Secret(msgspec.Struct):
    metadata: ObjectMeta
    type: str = ""
    data: dict[str, str] = {}


def find_undoable(cluster: Cluster, state_namespace: str) -> list[UndoItem]:
    """Everything in the cluster that carries a record, latest first.

    Raises:
        ClusterError: A list could not be read whole.
    """
    found = [item for row in recordable_kinds(cluster) if row is not POD for item in _annotated(cluster, row)]
    found.extend(_evicted(cluster, state_namespace))
    found.sort(key=lambda item: item.ref)
    return sorted(found, key=lambda item: _time(item.record), reverse=True)


def _time(record: ChangeRecord | None) -> datetime.datetime:
    return record.at if record else datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _annotated(cluster: Cluster, row: Kind) -> Iterator[UndoItem]:
    for ref, item in list_objects(cluster, row, Metadata, metadata_only=True):
        annotations = item.metadata.annotations or {}
        if UNDO_ANNOTATION not in annotations or is_copy(ref, item.metadata):
            continue
        try:
            yield UndoItem(ref, row, read_record(annotations, row))
        except ValueError as error:
            yield UndoItem(ref, row, None, problem=str(error))


def _evicted(cluster: Cluster, state_namespace: str) -> Iterator[UndoItem]:
    row = POD
    path = f"/api/v1/namespaces/{state_namespace}/secrets"
    try:
        secrets = cluster.list_all(path, _Secret, label_selector=MANIFEST_LABEL)
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("evicted pods cannot be listed: %s", refused)
        return
    for secret in secrets:
        if secret.type != MANIFEST_TYPE:
            continue
        place = f"{path}/{secret.metadata.name}"
        try:
            pod = _file(secret, "manifest")
            record = parse_record(json.dumps(_file(secret, "record")), row)
            ref = ObjectRef("v1", "Pod", *(str(pod["metadata"][part]) for part in ("namespace", "name")))
            require_name(ref)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            name = ObjectRef("v1", "Secret", state_namespace, secret.metadata.name)
            yield UndoItem(
                name, row, None, problem=f"the saved manifest cannot be used: {error}", secret=place
            )
        else:
            if _still_runs(ref, row, secret, cluster):
                log.warning("Secret %s is not needed: pod %s was never evicted; delete it", place, ref)
            else:
                yield UndoItem(ref, row, record, secret=place)


def _still_runs(ref: ObjectRef, row: Kind, secret: _Secret, cluster: Cluster) -> bool:
    """Whether the eviction never took effect; the Secret's name ends with the pod's UID."""
    try:
        pod = cluster.get(path_of(ref, row), Metadata).metadata
    except RequestRefused:  # it is gone, or reading it is forbidden
        return False
    is_same = secret.metadata.name == manifest_name(dataclasses.replace(ref, uid=pod.uid))
    return is_same and pod.deletion_timestamp is None


def _file(secret: _Secret, name: str) -> Any:  # noqa: ANN401 - JSON of gpu-rightsizer
    return decoded(
        base64.b64decode(secret.data[name], validate=True).decode(), dict[str, Any], longest=_LARGEST_SECRET
    )


def undo_changes(
    items: Sequence[UndoItem],
    cluster: Cluster,
    *,
    force: bool,
    clock: Callable[[], datetime.datetime],
    deadline: Deadline,
    journal: Journal | None = None,
) -> Iterator[Outcome]:
    """Undo the items one by one, and yield each outcome; once stopped, the rest is skipped.

    If a workload has to be suspended for that, undo waits for its pods to terminate.
    """
    for item in items:
        if reason := _stop_reason(cluster, deadline):
            yield skipped(item, f"not attempted: {reason}", at=clock())
            continue
        if journal:
            journal.repair_intent(
                item.ref, "undo", f"of run {item.record.run}" if item.record else item.problem
            )
        result, detail = Result.BLOCKED, ""
        now = item
        for spent_s in deadline.rounds():
            result, detail, now = _undo_one(now, cluster, force=force, at=clock())
            if result is not Result.BLOCKED or spent_s >= PAUSE_S or deadline.is_stopped():
                break
        outcome = Outcome(item.ref, "undo", result, detail, gpus=0, at=clock())
        if journal:
            journal.outcome(outcome)
        yield outcome


def _stop_reason(cluster: Cluster, deadline: Deadline) -> str:
    """Why nothing more is undone; empty if it may be."""
    if deadline.is_stopped():
        return "the run was interrupted"
    try:
        cluster.require_writable()
    except ClusterError as error:
        return str(error)
    return ""


def skipped(item: UndoItem, reason: str, *, at: datetime.datetime) -> Outcome:
    """The outcome of an item that was not attempted."""
    return Outcome(item.ref, "undo", Result.SKIPPED, reason, gpus=0, at=at)


def _undo_one(
    item: UndoItem, cluster: Cluster, *, force: bool, at: datetime.datetime
) -> tuple[Result, str, UndoItem]:
    """The result, and the item as it is now; BLOCKED while its pods terminate."""
    if item.record is None:
        return Result.REFUSED, item.problem, item
    if item.is_final:
        return Result.REFUSED, f"cannot be undone: it lost {item.row.lost}", item
    try:
        if item.secret:
            ref, detail = _recreate(item, item.record, cluster, at=at)
        else:
            ref, detail = item.workload, restore(item, cluster, force=force, at=at)
    except WaitingForPods as waiting:
        return Result.BLOCKED, f"{waiting}; undo again, or the next run, completes it", waiting.item
    except (ChangedByOthers, ClusterError) as error:
        return *_failure(error), item
    try:
        cluster.create(*RESTORED.of(ref, detail, run=item.record.run, at=at))
    except ClusterError as error:
        detail += f" (no Event: {error})"
    return Result.DONE, detail, item


def _failure(error: ChangedByOthers | ClusterError) -> tuple[Result, str]:
    match error:
        case ChangedByOthers():
            return Result.CHANGED, str(error)
        case RequestRefused():
            return Result.REFUSED, str(error)
        case _:
            return Result.UNKNOWN, f"{error}; run undo again to see what is left"


def _recreate(
    item: UndoItem, record: ChangeRecord, cluster: Cluster, *, at: datetime.datetime
) -> tuple[ObjectRef, str]:
    """Create an evicted pod again from its saved manifest, and delete the manifest."""
    secret = cluster.get(item.secret, _Secret)
    path = api_path("v1", item.ref.namespace, "pods")
    manifest = recreated_manifest(_file(secret, "manifest"), record, at=at)
    cluster.create(path, manifest, dry_run=True)
    cluster.create(path, manifest)
    created = cluster.get(f"{path}/{item.ref.name}", Metadata).metadata
    cluster.delete(item.secret)
    return dataclasses.replace(
        item.ref, uid=created.uid
    ), "created again from its saved manifest; it starts from scratch"
