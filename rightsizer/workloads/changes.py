"""The patches that stop a workload and put it back, and the record that links the two. Pure.

The record travels as an annotation in the very patch that makes the change, so that at any instant an object is either
untouched, or changed and undoable. https://datatracker.ietf.org/doc/html/rfc7386
"""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.config import PREFIX, write_duration
from rightsizer.model import Action, Decision, ObjectRef, Workload, WorkloadKind
from rightsizer.observe.records import (
    CAME_BACK_ANNOTATION,
    NOTICE_ANNOTATION,
    RESUMED_ANNOTATION,
    UNDO_ANNOTATION,
    came_back_after,
    pause_of,
)

MANIFEST_TYPE = PREFIX + "pod-manifest"

MAX_REASON = 600
"""All annotations of an object share 256 KiB (API conventions); a record stays far below 2 KiB."""

_SERVICE_ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class UndoRecord(msgspec.Struct, frozen=True, rename="camel"):
    """What was done to an object, why, and what was there before.

    Attributes:
        field: Dotted path of the changed field.
        before: Its value before; None where it had none.
        after: The value that we gave it.
        gpus: What the change freed.
        idle: For how many seconds it had not been at work.
    """

    run: str
    time: datetime.datetime
    action: str
    rule: str
    finding: str
    reason: str
    field: str
    before: int | bool | None
    after: int | bool | None
    version: int = 1
    gpus: int = 0
    idle: int = 0

    def text(self) -> str:
        """As it stands in the annotation."""
        return msgspec.json.encode(self).decode()


@dataclasses.dataclass(frozen=True, slots=True)
class Undoable:
    """Something that was stopped and can be put back.

    Attributes:
        record: What was done; None where it cannot be read, and `problem` says why.
        secret: Path of the Secret that keeps an evicted pod's manifest; empty for the other kinds.
    """

    ref: ObjectRef
    row: WorkloadKind
    record: UndoRecord | None
    problem: str = ""
    secret: str = ""


def read_record(annotations: Mapping[str, str], row: WorkloadKind) -> UndoRecord | None:
    """The record that an object of a kind carries; None where it carries none.

    Raises:
        ValueError: There is one, but it cannot be used; the message says why.
    """
    text = annotations.get(UNDO_ANNOTATION)
    if text is None:
        return None
    try:
        return parse_record(text, row)
    except ValueError as error:
        message = f"its annotation {UNDO_ANNOTATION} {error}"
        raise ValueError(message) from error


def parse_record(text: str, row: WorkloadKind) -> UndoRecord:
    """A record, as far as it could be ours: whoever may annotate an object can write one.

    Raises:
        ValueError: It cannot be read, or says what we never do to this kind.
    """
    try:
        record = msgspec.json.decode(text, type=UndoRecord)
    except msgspec.DecodeError as error:
        message = f"cannot be read: {error}"
        raise ValueError(message) from error
    if record.version != 1:
        message = f"is of version {record.version}, written by a newer gpu-rightsizer"
        raise ValueError(message)
    if forged := "; ".join(_impossible(record, row)):
        message = f"was not written by gpu-rightsizer: {forged}"
        raise ValueError(message)
    return record


def original_replicas(annotations: Mapping[str, str]) -> int | None:
    """How many replicas a workload had before we took some; None where we did not, or its record cannot be read."""
    text = annotations.get(UNDO_ANNOTATION)
    if text is None:
        return None
    try:
        record = msgspec.json.decode(text, type=UndoRecord)
    except msgspec.DecodeError:
        return None
    before, after = record.before, record.after
    if record.version != 1 or record.action != Action.SHRINK or type(before) is not int:
        return None
    return before if type(after) is int and 1 <= after < before else None


def resumed_at(annotations: Mapping[str, str]) -> datetime.datetime | None:
    """When it was last put back; None where it was not.

    Raises:
        ValueError: The annotation cannot be read.
    """
    text = annotations.get(RESUMED_ANNOTATION)
    if text is None:
        return None
    instant = datetime.datetime.fromisoformat(text)
    if instant.tzinfo is None:
        message = f"{text!r} names no time zone"
        raise ValueError(message)
    return instant


def _impossible(record: UndoRecord, row: WorkloadKind) -> Iterator[str]:
    field = ".".join(row.field)
    if record.action != row.action:
        yield f"stopping a {row.kind} is {row.action}, not {record.action}"
    if record.field != field:
        yield f"stopping a {row.kind} changes {field or 'no field'}, not {record.field}"
    if not _is_same(record.after, row.stopped):
        yield f"{field} is {row.stopped} when stopped, not {record.after}"
    if not _could_be(record.before, row):
        yield f"{field} cannot have been {record.before}"


def _is_same(one: int | bool | None, other: int | bool | None) -> bool:  # noqa: FBT001
    """Whether two JSON values are equal; to Python 0 is False."""
    return type(one) is type(other) and one == other


def _could_be(before: int | bool | None, row: WorkloadKind) -> bool:  # noqa: FBT001
    """Whether a workload may have had this value: of the same type as the stopped one, or none."""
    return before is None or (type(before) is type(row.stopped) and before >= 0)


def record_of(
    decision: Decision, row: WorkloadKind, *, before: int | bool | None, run: str, at: datetime.datetime
) -> UndoRecord:
    """The record of a change that is about to be made."""
    return UndoRecord(
        run=run,
        time=at.replace(microsecond=0),
        action=row.action.value,
        rule=decision.rule,
        finding=decision.finding.name.value,
        reason="; ".join(decision.finding.words)[:MAX_REASON],
        field=".".join(row.field),
        before=before,
        after=row.stopped,
        gpus=decision.workload.gpus,
        idle=round(decision.finding.idle_s or 0.0),
    )


def stop_patch(row: WorkloadKind, record: UndoRecord, workload: Workload) -> dict[str, Any]:
    """The one patch that stops a workload: the change, its record, and that it is still the object that was read.

    The API server refuses it where the resourceVersion is another (409) or the UID is (409 or 422).
    """
    patch = _nested(row.field, row.stopped)
    metadata = {
        "uid": workload.ref.uid,
        "resourceVersion": workload.resource_version,
        "annotations": {UNDO_ANNOTATION: record.text(), **_remembered(workload.came_back_after)},
    }
    return {**patch, "metadata": metadata}


def undo_patch(
    row: WorkloadKind, record: UndoRecord, metadata: Mapping[str, Any], *, at: datetime.datetime
) -> dict[str, Any]:
    """The one patch that puts it back, takes the record away, and notes when and after which pause that was.

    The cooldown counts from then on, and it is not called idle again before it paused for longer.
    """
    patch = _nested(row.field, record.before)
    annotations = {
        UNDO_ANNOTATION: None,
        NOTICE_ANNOTATION: None,
        **_put_back(record, metadata.get("annotations") or {}, at),
    }
    return {**patch, "metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": annotations}}


def manifest_put_back(
    manifest: Mapping[str, Any], record: UndoRecord, *, at: datetime.datetime
) -> dict[str, Any]:
    """The manifest of an evicted pod as it is created anew: it says when, and after which pause, that was."""
    metadata = manifest["metadata"]
    kept = {key: text for key, text in metadata.get("annotations", {}).items() if key != NOTICE_ANNOTATION}
    return {**manifest, "metadata": {**metadata, "annotations": {**kept, **_put_back(record, kept, at)}}}


def _put_back(record: UndoRecord, annotations: Mapping[str, str], at: datetime.datetime) -> dict[str, str]:
    before = came_back_after(annotations, ())
    pause = pause_of(record.idle, record.time, at)
    return {RESUMED_ANNOTATION: _stamp(at), **_remembered(max(pause, before) if before else pause)}


def _remembered(pause: datetime.timedelta | None) -> dict[str, str]:
    return {CAME_BACK_ANNOTATION: write_duration(pause)} if pause else {}


def _stamp(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).isoformat(timespec="seconds")


def value_at(obj: Mapping[str, Any], field: tuple[str, ...]) -> Any:  # noqa: ANN401 - whatever the object holds
    """The value at a path of an object; None where there is none."""
    here: Any = obj
    for part in field:
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def _nested(field: tuple[str, ...], value: int | bool | None) -> dict[str, Any]:  # noqa: FBT001
    patch: Any = value
    for part in reversed(field):
        patch = {part: patch}
    assert isinstance(patch, dict)  # noqa: S101 - a row with a field has a path
    return patch


def recreatable(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's manifest as its author could have written it: without what the cluster added on admission and binding.

    The API server resolves the priority anew from the class, and mounts a service account token anew.
    """
    metadata = pod["metadata"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in {"nodeName", "priority", "preemptionPolicy"}
    }
    tokens = {
        volume["name"] for volume in spec.get("volumes", []) if volume["name"].startswith("kube-api-access-")
    }
    if tokens:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in tokens]
        for group in ("initContainers", "containers"):
            if group in spec:
                spec[group] = [_without_token(container) for container in spec[group]]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def _without_token(container: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [
        mount for mount in container.get("volumeMounts", []) if mount["mountPath"] != _SERVICE_ACCOUNT_MOUNT
    ]
    return {**container, "volumeMounts": mounts}
