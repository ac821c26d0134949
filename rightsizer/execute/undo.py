"""Undoes changes: from the record on each object, or from the saved manifest of an evicted pod.

Everything that undo needs is in the cluster: it works from any machine, for anybody with the right to patch the object.
Fields that somebody changed since are kept, except with --force. A pod is created only from the manifest that the
memory has a digest of. A record of a change that the memory lacks is untrusted: anybody could have written it. If it
is usable, as after 30 days, it is undone only for people who name its workload.
"""

import base64
import binascii
import dataclasses
import datetime
import http
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec

from rightsizer.changes.found_changes import is_copy
from rightsizer.changes.memory import MONTH, change_key
from rightsizer.changes.record_codec import (
    MANIFEST_LABEL,
    MANIFEST_SELECTOR,
    MANIFEST_TYPE,
    UNDO_ANNOTATION,
    manifest_name,
)
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.execute.change_log import log_intent, logged
from rightsizer.execute.known_changes import KnownChanges, read_known_changes
from rightsizer.execute.listing import list_objects, recordable_kinds
from rightsizer.execute.rollback import ChangedByOthers, WaitingForPods, restore
from rightsizer.execute.run_context import PAUSE_S, Deadline
from rightsizer.kinds import path_of
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import UNKNOWN_CHANGE, UndoItem, parse_record, read_record, recreated_manifest
from rightsizer.kinds.saved_pods import MANIFEST, RECORD, SavedPod, digest_of, saved_pod
from rightsizer.kube.api_objects import Metadata, ObjectMeta
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import api_path, require_name
from rightsizer.model import ChangeRecord, ObjectRef, Outcome, Result
from rightsizer.policy.match import is_any
from rightsizer.policy.protections import SYSTEM_NAMESPACES
from rightsizer.report.events import RESTORED
from rightsizer.text import decoded, instant

log = logging.getLogger(__name__)
_LARGEST_SECRET = 1 << 20  # v1.MaxSecretSize


class _Secret(msgspec.Struct):
    metadata: ObjectMeta
    type: str = ""
    data: dict[str, str] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class _Verifier:
    """Checks records and manifests against the memory.

    Attributes:
        closed: Patterns of the namespaces in which no pod is created.
        privileged: The pods, as namespace/name, that may exceed the Pod Security Standard baseline.
        unverified: Those that may be created although the memory forgot their eviction.
    """

    known: KnownChanges
    closed: tuple[str, ...]
    privileged: Collection[str]
    unverified: Collection[str]
    at: datetime.datetime

    def problem_of(
        self, item: UndoItem, pod: SavedPod, created: datetime.datetime | None
    ) -> tuple[str, bool]:
        """Why an evicted pod is not created; empty if it may be. And whether the memory has its eviction."""
        assert item.record is not None  # noqa: S101 - a manifest without a record was refused before
        if is_any(item.ref.namespace, self.closed):
            return f"nothing is evicted in namespace {item.ref.namespace}, which is protected", False
        if self.known.changes is None:
            return "its manifest cannot be verified without the right to read the memory", True
        known = self.known.changes.get(change_key(item.record.run, item.ref))
        if known is not None:
            is_same = known.record.manifest_digest == pod.digest
            words = (
                self._privileges_reason(item, pod)
                if is_same
                else "the manifest is not that of the evicted pod"
            )
            return words, is_same
        if created is None or self.at - created < MONTH:  # the API server sets that time
            return "its eviction is unknown to the memory of gpu-rightsizer", not self.known.is_whole
        name = f"{item.ref.namespace}/{item.ref.name}"
        if name in self.unverified:
            return self._privileges_reason(item, pod), True
        words = f"it was evicted more than {MONTH.days} days ago, so its manifest cannot be verified"
        return f"{words}; to create it all the same, add --allow-unverified {name}", True

    def _privileges_reason(self, item: UndoItem, pod: SavedPod) -> str:
        name = f"{item.ref.namespace}/{item.ref.name}"
        if not pod.privileges or name in self.privileged:
            return ""
        return f"it exceeds Pod Security baseline; to create it all the same, add --allow-privileged {name}"


def find_undoable(
    cluster: Cluster,
    state_namespace: str,
    *,
    at: datetime.datetime,
    protected: Sequence[str] = (),
    privileged: Collection[str] = (),
    unverified: Collection[str] = (),
) -> list[UndoItem]:
    """Everything in the cluster that carries a record, latest first.

    No pod is created in the `protected` namespaces, which may be patterns, nor in those that are always protected.
    Only pods in `privileged`, as namespace/name, may exceed the Pod Security Standard baseline. Only those in
    `unverified` may be created once the memory has forgotten their eviction.

    Raises:
        ClusterError: A list could not be read whole.
    """
    verifier = _Verifier(
        read_known_changes(cluster, state_namespace),
        closed=(*SYSTEM_NAMESPACES, state_namespace, *protected),
        privileged=privileged,
        unverified=unverified,
        at=at,
    )
    rows = [row for row in recordable_kinds(cluster) if row is not POD]
    found = [item for row in rows for item in _annotated(cluster, row, verifier)]
    found.extend(_evicted(cluster, state_namespace, verifier))
    found.sort(key=lambda item: item.ref)
    return sorted(found, key=lambda item: _time(item.record), reverse=True)


def known_only(items: Sequence[UndoItem]) -> list[UndoItem]:
    """Hold back changes that the memory lacks, for a list without names."""
    problem = f"{UNKNOWN_CHANGE}; to undo it all the same, name the workload"
    return [
        item if item.is_known or item.problem else dataclasses.replace(item, problem=problem)
        for item in items
    ]


def _time(record: ChangeRecord | None) -> datetime.datetime:
    return record.at if record else datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _annotated(cluster: Cluster, row: Kind, verifier: _Verifier) -> Iterator[UndoItem]:
    for ref, obj in list_objects(cluster, row, Metadata, metadata_only=True):
        annotations = obj.metadata.annotations or {}
        if UNDO_ANNOTATION not in annotations or is_copy(ref, obj.metadata):
            continue
        record, problem = None, ""
        try:
            record = read_record(annotations, row)
        except ValueError as error:
            problem = str(error)
        yield UndoItem(ref, row, record, problem, is_known=verifier.known.may_have(ref, row, record))


def _evicted(cluster: Cluster, state_namespace: str, verifier: _Verifier) -> Iterator[UndoItem]:
    path = f"/api/v1/namespaces/{state_namespace}/secrets"
    try:
        secrets = cluster.list_all(
            path, _Secret, label_selector=MANIFEST_LABEL, field_selector=MANIFEST_SELECTOR
        )
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
            item = _saved_item(secret, place, verifier)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            name = ObjectRef("v1", "Secret", state_namespace, secret.metadata.name)
            problem = f"the saved manifest cannot be used: {error}"
            yield UndoItem(name, POD, None, problem, place, is_known=not verifier.known.is_whole)
            continue
        if _still_runs(item.ref, POD, secret, cluster):
            log.warning("Secret %s is not needed: pod %s was never evicted; delete it", place, item.ref)
        else:
            yield item


def _saved_item(secret: _Secret, place: str, verifier: _Verifier) -> UndoItem:
    """An evicted pod.

    Raises:
        KeyError, TypeError, ValueError: gpu-rightsizer did not save it.
    """
    files = _files(secret)
    manifest = _parsed(files[MANIFEST])
    ref = ObjectRef("v1", "Pod", *(str(manifest["metadata"][part]) for part in ("namespace", "name")))
    require_name(ref)
    pod = saved_pod(manifest, digest_of(files))
    item = UndoItem(ref, POD, parse_record(json.dumps(_parsed(files[RECORD])), POD), secret=place, pod=pod)
    problem, is_known = verifier.problem_of(item, pod, secret.metadata.creation_timestamp)
    if not problem:
        return item
    problem += f"; its manifest is in Secret {place.rpartition('/')[2]}"
    return dataclasses.replace(item, problem=problem, is_known=is_known)


def _still_runs(ref: ObjectRef, row: Kind, secret: _Secret, cluster: Cluster) -> bool:
    """Whether the eviction never took effect; the Secret's name ends with the pod's UID."""
    try:
        pod = cluster.get(path_of(ref, row), Metadata).metadata
    except RequestRefused:  # it is gone, or reading it is forbidden
        return False
    is_same = secret.metadata.name == manifest_name(dataclasses.replace(ref, uid=pod.uid))
    return is_same and pod.deletion_timestamp is None


def _files(secret: _Secret) -> dict[str, str]:
    """The texts of a Secret; raises ValueError or KeyError."""
    return {name: base64.b64decode(secret.data[name], validate=True).decode() for name in (MANIFEST, RECORD)}


def _parsed(text: str) -> dict[str, Any]:
    return decoded(text, dict[str, Any], longest=_LARGEST_SECRET)


def undo_changes(
    items: Sequence[UndoItem],
    cluster: Cluster,
    *,
    force: bool,
    clock: Callable[[], datetime.datetime],
    deadline: Deadline,
) -> Iterator[Outcome]:
    """Undo the items one by one, and yield each outcome; once stopped, the rest is skipped.

    If a workload has to be suspended for that, undo waits for its pods to terminate.
    """
    for item in items:
        if reason := _stop_reason(cluster, deadline):
            yield skipped(item, f"not attempted: {reason}", at=clock())
            continue
        record = item.record
        run = record.run if record else ""
        if record and not item.problem:
            log_intent(run, item.ref, "undo", f"to revert {record.action} of {instant(record.at)}")
        result, detail = Result.BLOCKED, ""
        now = item
        for spent_s in deadline.rounds():
            result, detail, now = _undo_one(now, cluster, force=force, at=clock())
            if result is not Result.BLOCKED or spent_s >= PAUSE_S or deadline.is_stopped():
                break
        yield logged(Outcome(item.ref, "undo", result, detail, gpus=0, at=clock()), run)


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
    if item.record is None or item.problem:
        return *_rejected(item, Result.REFUSED, item.problem), item
    if item.is_final:
        return *_rejected(item, Result.REFUSED, f"cannot be undone: it lost {item.row.lost}"), item
    try:
        if item.secret:
            ref, detail = _recreate(item, item.record, cluster, at=at)
        else:
            ref, detail = item.workload, restore(item, cluster, force=force, at=at)
    except WaitingForPods as waiting:
        later = "undo again, or the next run, completes it" if waiting.is_completed else "undo it again then"
        return Result.BLOCKED, f"{waiting}; {later}", waiting.item
    except (ChangedByOthers, ClusterError) as error:
        return *_failure(item, error), item
    try:
        cluster.create(*RESTORED.of(ref, detail, run=item.record.run, at=at))
    except ClusterError as error:
        detail += f" (no Event: {error})"
    return Result.DONE, detail, item


def _failure(item: UndoItem, error: ChangedByOthers | ClusterError) -> tuple[Result, str]:
    match error:
        case ChangedByOthers():
            return _rejected(item, Result.CHANGED, str(error))
        case RequestRefused():
            return _rejected(item, Result.REFUSED, str(error))
        case _:
            return Result.UNKNOWN, f"{error}; run undo again to see what is left"


def _rejected(item: UndoItem, result: Result, words: str) -> tuple[Result, str]:
    """The result for what cannot be undone: a failure if the memory has the change, else UNTRUSTED."""
    return (result if item.is_known else Result.UNTRUSTED), words


def _recreate(
    item: UndoItem, record: ChangeRecord, cluster: Cluster, *, at: datetime.datetime
) -> tuple[ObjectRef, str]:
    """Create an evicted pod again from its saved manifest, and delete the manifest."""
    try:
        files = _files(cluster.get(item.secret, _Secret))
    except (KeyError, ValueError) as error:
        raise ChangedByOthers("its saved manifest was changed meanwhile") from error
    if item.pod is None or digest_of(files) != item.pod.digest:
        raise ChangedByOthers("its saved manifest was changed meanwhile")
    path = api_path("v1", item.ref.namespace, "pods")
    manifest = recreated_manifest(_parsed(files[MANIFEST]), record, at=at)
    cluster.create(path, manifest, dry_run=True)
    cluster.create(path, manifest)
    created = cluster.get(f"{path}/{item.ref.name}", Metadata).metadata
    cluster.delete(item.secret)
    return dataclasses.replace(
        item.ref, uid=created.uid
    ), "created again from its saved manifest; it starts from scratch"
