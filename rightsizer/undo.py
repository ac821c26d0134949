"""Puts back what was stopped: from the record on each object, or the saved manifest of an evicted pod.

Everything that undo needs is in the cluster: it works from any machine, for whoever may patch the object. What someone
changed since is left alone unless told otherwise.
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

from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.model import ObjectRef, Outcome, Result, WorkloadKind
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.objects import Metadata
from rightsizer.observe.records import MANIFEST_LABEL, UNDO_ANNOTATION, manifest_name
from rightsizer.report.events import restored_event
from rightsizer.workloads import KINDS, collection_of, path_of
from rightsizer.workloads.changes import (
    MANIFEST_TYPE,
    Undoable,
    UndoRecord,
    manifest_put_back,
    parse_record,
    read_record,
    undo_patch,
    value_at,
)

log = logging.getLogger(__name__)
_ATTEMPTS = 5


class _Secret(msgspec.Struct):
    metadata: Any
    type: str = ""
    data: dict[str, str] = {}


def find(cluster: Cluster, state_namespace: str) -> list[Undoable]:
    """Everything in the cluster that carries a record, latest first.

    Raises:
        ClusterError: A list could not be read whole.
    """
    found = [item for row in KINDS if row.field for item in _annotated(cluster, row)]
    found.extend(_evicted(cluster, state_namespace))
    found.sort(key=lambda item: item.ref)
    return sorted(found, key=lambda item: _time(item.record), reverse=True)


def _time(record: UndoRecord | None) -> datetime.datetime:
    return record.time if record else datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _annotated(cluster: Cluster, row: WorkloadKind) -> Iterator[Undoable]:
    for item in cluster.list_all(collection_of(row), Metadata, metadata_only=True):
        annotations = item.metadata.annotations or {}
        if UNDO_ANNOTATION not in annotations:
            continue
        ref = ObjectRef(
            row.api_version, row.kind, item.metadata.namespace, item.metadata.name, item.metadata.uid
        )
        try:
            yield Undoable(ref, row, read_record(annotations, row))
        except ValueError as error:
            yield Undoable(ref, row, None, problem=str(error))


def _evicted(cluster: Cluster, state_namespace: str) -> Iterator[Undoable]:
    row = next(row for row in KINDS if not row.field)
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
        place = f"{path}/{secret.metadata['name']}"
        try:
            pod = _file(secret, "manifest")
            record = parse_record(json.dumps(_file(secret, "record")), row)
            ref = ObjectRef("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            name = ObjectRef("v1", "Secret", state_namespace, secret.metadata["name"])
            yield Undoable(
                name, row, None, problem=f"the saved manifest cannot be used: {error}", secret=place
            )
        else:
            if _still_runs(ref, row, secret, cluster):
                log.warning("Secret %s is not needed: pod %s was never evicted; delete it", place, ref)
            else:
                yield Undoable(ref, row, record, secret=place)


def _still_runs(ref: ObjectRef, row: WorkloadKind, secret: _Secret, cluster: Cluster) -> bool:
    """Whether the eviction whose answer was lost never took effect; the Secret's name ends with the pod's UID."""
    try:
        pod = cluster.get(path_of(ref, row), Metadata).metadata
    except RequestRefused:  # it is gone, or we may not know
        return False
    is_same = secret.metadata["name"] == manifest_name(dataclasses.replace(ref, uid=pod.uid))
    return is_same and pod.deletion_timestamp is None


def _file(secret: _Secret, name: str) -> Any:  # noqa: ANN401 - JSON that we wrote
    return json.loads(base64.b64decode(secret.data[name], validate=True))


def put_back(
    items: Sequence[Undoable],
    cluster: Cluster,
    *,
    force: bool,
    clock: Callable[[], datetime.datetime],
    is_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Put the items back, one by one, telling each outcome as it is known; once stopped, the rest is skipped."""
    for item in items:
        if is_stopped():
            yield skipped(item, "not attempted: the run was interrupted", at=clock())
            continue
        result, detail = _put_back_one(item, cluster, force=force, at=clock())
        yield Outcome(item.ref, "undo", result, detail, gpus=0, at=clock())


def skipped(item: Undoable, reason: str, *, at: datetime.datetime) -> Outcome:
    """The outcome of an item that was not attempted."""
    return Outcome(item.ref, "undo", Result.SKIPPED, reason, gpus=0, at=at)


def _put_back_one(
    item: Undoable, cluster: Cluster, *, force: bool, at: datetime.datetime
) -> tuple[Result, str]:
    if item.record is None:
        return Result.REFUSED, item.problem
    try:
        if item.secret:
            ref, detail = _recreate(item, item.record, cluster, at=at)
        else:
            ref, detail = _restore(item, item.record, cluster, force=force, at=at)
    except _ChangedSince as changed:
        return Result.CHANGED, str(changed)
    except RequestRefused as refused:
        return Result.REFUSED, str(refused)
    except ClusterError as error:
        return Result.UNKNOWN, f"{error}; run undo again to see what is left"
    try:
        cluster.create(*restored_event(ref, detail, run=item.record.run, at=at))
    except ClusterError as error:
        detail += f" (no Event: {error})"
    return Result.DONE, detail


class _ChangedSince(Exception):  # noqa: N818 - becomes an outcome, not an error
    """Somebody changed since what we would put back."""


def _restore(
    item: Undoable, record: UndoRecord, cluster: Cluster, *, force: bool, at: datetime.datetime
) -> tuple[ObjectRef, str]:
    """Give a controller its former size by one patch, and take the record away.

    Its own controller writes its status all along, above all just after it was stopped: where that comes between, the
    object is read, and judged, again.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return _restore_once(item, record, cluster, force=force, at=at)
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.CONFLICT:
                raise
    return _restore_once(item, record, cluster, force=force, at=at)


def _restore_once(
    item: Undoable, record: UndoRecord, cluster: Cluster, *, force: bool, at: datetime.datetime
) -> tuple[ObjectRef, str]:
    path = path_of(item.ref, item.row)
    obj = cluster.get_object(path)
    if not _carries(obj, record, item):
        raise _ChangedSince("it is not the object that was found, or its record was changed meanwhile")
    now = value_at(obj, item.row.field)
    if now != record.after and not force:
        raise _ChangedSince(
            f"{record.field} is {json.dumps(now)} now, not {json.dumps(record.after)} as we left it; "
            f"--force sets it to {json.dumps(record.before)} all the same"
        )
    patch = undo_patch(item.row, record, obj["metadata"], at=at)
    cluster.patch(path, patch, dry_run=True)
    cluster.patch(path, patch)
    return item.ref, f"{record.field}: {json.dumps(now)} → {json.dumps(record.before)}"


def _carries(obj: Any, record: UndoRecord, item: Undoable) -> bool:  # noqa: ANN401 - an object as it was given to us
    try:
        now = read_record(obj["metadata"].get("annotations") or {}, item.row)
    except ValueError:
        return False
    return obj["metadata"]["uid"] == item.ref.uid and now == record


def _recreate(
    item: Undoable, record: UndoRecord, cluster: Cluster, *, at: datetime.datetime
) -> tuple[ObjectRef, str]:
    """Create an evicted pod anew from its saved manifest, and drop the manifest."""
    secret = cluster.get(item.secret, _Secret)
    path = f"/api/v1/namespaces/{item.ref.namespace}/pods"
    manifest = manifest_put_back(_file(secret, "manifest"), record, at=at)
    cluster.create(path, manifest, dry_run=True)
    cluster.create(path, manifest)
    created = cluster.get(f"{path}/{item.ref.name}", Metadata).metadata
    cluster.delete(item.secret)
    return dataclasses.replace(
        item.ref, uid=created.uid
    ), "created anew from its saved manifest; it starts from scratch"
