"""The patches that change a workload and restore it, and the record that links the two. Pure.

The record is an annotation in the same patch that makes the change. So an object is always either unchanged, or changed
and undoable. After several changes, the record has the values before the first one.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.found_changes import speaks_for
from rightsizer.changes.record_codec import (
    CAME_BACK_ANNOTATION,
    HISTORY_ANNOTATION,
    LONGEST_NOTE,
    NOTICE_ANNOTATION,
    RELEASE_ANNOTATION,
    RESUMED_ANNOTATION,
    UNDO_ANNOTATION,
    came_back_after,
    decode_record,
    encode_record,
    pause_of,
    read_history,
    read_undo_record,
    with_end,
    with_record,
    write_history,
)
from rightsizer.config import write_duration
from rightsizer.kinds.edits import Path, abridged, is_as, patch_of, same, shown
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.saved_pods import SavedPod
from rightsizer.model import Action, ChangeOutcome, ChangeRecord, Decision, Edit, ObjectRef
from rightsizer.model.change_record import MOST_WANTED
from rightsizer.text import read_instant, tidy

NOTHING = datetime.timedelta()
UNKNOWN_CHANGE = "the memory of gpu-rightsizer has no such change"

MOST_BYTES = 2048
"""Maximum size of a record with a reason, which is cut to fit; a record of many edits has none and may be larger."""
_MOST_REASON = 600
_TO_COME = 512
"""Bytes for the fields that are set after the reason: the workload and the pending edits."""
_LATER = 512
"""Characters that a later step of the same change adds to a record at most, such as that it is confirmed."""


def describe(record: ChangeRecord) -> str:
    """Text of the changed fields, and of those that change once the pods are gone."""
    done = ", ".join(map(edit_text, record.edits))
    if record.pending_end:
        return f"{done}; everything is restored once its pods are gone"
    pending = ", ".join(map(edit_text, record.pending_edits))
    return f"{done}; once its pods are gone: {pending}" if pending else done


def edit_text(edit: Edit) -> str:
    """An edit for people: spec.replicas: 4 → 0."""
    return f"{shown(edit.path)}: {_value(edit.before)} → {_value(edit.after)}"


def _value(value: Any) -> str:  # noqa: ANN401 - JSON
    return "(not set)" if value is None else msgspec.json.encode(value).decode()


@dataclasses.dataclass(frozen=True, slots=True)
class UndoItem:
    """A change that can be undone.

    Attributes:
        record: None if it is unreadable.
        problem: Why it must not be undone.
        secret: Path of the Secret with an evicted pod's manifest; empty for other kinds.
        pod: What this manifest contains.
        is_known: Whether the memory has the change, or cannot be read.
    """

    ref: ObjectRef
    row: Kind
    record: ChangeRecord | None
    problem: str = ""
    secret: str = ""
    pod: SavedPod | None = None
    is_known: bool = True

    @property
    def is_final(self) -> bool:
        """Whether it cannot be undone, by design."""
        return self.record is not None and self.row.is_final(self.record.edits)

    @property
    def workload(self) -> ObjectRef:
        """The workload that it stopped or changed."""
        of = self.record.workload if self.record is not None else None
        return of if of is not None and speaks_for(self.ref, of) else self.ref


def read_record(annotations: Mapping[str, str], row: Kind) -> ChangeRecord | None:
    """The record that an object carries, if any.

    Raises:
        ValueError: There is one, but it cannot be used; the message says why.
    """
    text = annotations.get(UNDO_ANNOTATION)
    if text is None:
        return None
    try:
        record = parse_record(text, row)
    except ValueError as error:
        message = f"its annotation {UNDO_ANNOTATION} {error}"
        raise ValueError(message) from error
    if not all(_is_plain_in(text.replace('"', ""), edit) for edit in record.edits):
        message = f"its annotation {UNDO_ANNOTATION} is not in the form that gpu-rightsizer writes"
        raise ValueError(message)
    return record


def require_recordable(row: Kind, edits: Sequence[Edit]) -> None:
    """Check that an undo record can hold edits of an object.

    Raises:
        ValueError: None can; the message says why.
    """
    if why := "; ".join(row.objections(edits)):
        message = f"no undo record can hold this change: {why}"
        raise ValueError(message)
    _require_room(msgspec.json.encode(tuple(map(abridged, edits))).decode())


def _require_room(text: str) -> None:
    most = LONGEST_NOTE - _LATER
    if len(text) > most:
        message = (
            f"its undo record is longer than {most:,} characters: the admission guardrails would refuse it"
        )
        raise ValueError(message)


def _is_plain_in(text: str, edit: Edit) -> bool:
    """Whether the admission guardrails find the same value of a field: they search the text without quotes."""
    before = msgspec.json.encode(edit.before).decode().replace('"', "")
    return text.partition(f"[{','.join(edit.path)}],before:")[2].startswith(f"{before},")


def parse_record(text: str, row: Kind) -> ChangeRecord:
    """A record by gpu-rightsizer: anybody with the right to annotate an object can write one.

    Raises:
        ValueError: It is unreadable, or has a change that gpu-rightsizer never makes to this kind.
    """
    record = decode_record(text)
    if record.version != 1:
        message = f"is of version {record.version}, written by a newer gpu-rightsizer"
        raise ValueError(message)
    if forged := "; ".join(_impossible(record, row)):
        message = f"was not written by gpu-rightsizer: {forged}"
        raise ValueError(message)
    return record


def _impossible(record: ChangeRecord, row: Kind) -> Iterator[str]:
    is_evicted = row.stop is not None and row.stop.field is None
    if bool(record.edits) == is_evicted:
        yield f"{record.action} of a {row.kind} changes {'its fields' if record.edits else 'nothing'}"
    yield from row.objections((*record.edits, *record.pending_edits))
    if record.is_unfinished and row.pause is None:
        yield f"a {row.kind} is changed by one write"


def original_replicas(annotations: Mapping[str, str]) -> int | None:
    """The number of replicas before gpu-rightsizer scaled a workload down; None without a readable record of it."""
    return next((edit.before for edit in lowered_replicas(annotations)), None)


def lowered_replicas(annotations: Mapping[str, str]) -> Iterator[Edit]:
    """The edits that lowered numbers of replicas, of the workload or its groups; none without a readable record."""
    for edit in recorded_edits(annotations):
        before, after = edit.before, edit.after
        if edit.path[-1] == "replicas" and type(before) is int and type(after) is int and 1 <= after < before:
            yield edit


def recorded_edits(annotations: Mapping[str, str]) -> Sequence[Edit]:
    """The edits of the undo record; none without a readable one."""
    with contextlib.suppress(ValueError):
        record = read_undo_record(annotations)
        if record is not None and record.version == 1:
            return record.edits
    return ()


def resumed_at(annotations: Mapping[str, str]) -> datetime.datetime | None:
    """Time at which it was last restored, by undo or rollback, if ever.

    Raises:
        ValueError: The annotation cannot be read.
    """
    text = annotations.get(RESUMED_ANNOTATION)
    if text is None:
        return None
    instant = read_instant(text)
    if instant is None:
        message = f"its annotation {RESUMED_ANNOTATION} is no instant with a time zone, such as 2026-12-01T18:00:00Z"
        raise ValueError(message)
    return instant


def record_of(
    decision: Decision,
    edits: Sequence[Edit],
    *,
    run: str,
    at: datetime.datetime,
    by: str = "",
    healthy_within: datetime.timedelta = NOTHING,
) -> ChangeRecord:
    """The record of a change before it is made; `healthy_within` is the time in which it must become healthy."""
    assert decision.action is not None  # noqa: S101 - it is carried out
    record = ChangeRecord(
        at=at.replace(microsecond=0),
        run=run,
        action=decision.action.value,
        rule=decision.rule,
        finding=decision.finding.name.value,
        edits=tuple(map(abridged, edits)),
        gpus=tidy(decision.frees),
        idle_seconds=round(decision.finding.idle_s or 0.0),
        by=by,
        healthy_within_seconds=round(healthy_within.total_seconds()),
        priority_class=decision.workload.priority_class,
        wanted_by=decision.wanted_by[:MOST_WANTED],
    )
    room = min(_MOST_REASON, MOST_BYTES - _TO_COME - len(encode_record(record).encode()))
    # Brackets begin paths where the admission guardrails search the text.
    words = "; ".join(decision.finding.words).replace("[", "(").replace("]", ")")
    return msgspec.structs.replace(record, reason=_cut(words, room))


def _cut(text: str, most_bytes: int) -> str:
    """The start of a text, at most `most_bytes` long as JSON."""
    while text and len(msgspec.json.encode(text)) - len('""') > most_bytes:
        text = text[: -max(1, len(text) // 8)]
    return text


def merged_with_earlier(
    record: ChangeRecord, earlier: ChangeRecord | None, obj: Mapping[str, Any]
) -> ChangeRecord:
    """A record that undoes both changes if the earlier one is still in effect; it omits fields with no net change.

    `earlier` is the record on the object as it was read.
    """
    before: dict[Path, Edit] = {}
    for edit in earlier.edits if earlier and is_as(obj, earlier.edits) else ():
        before[edit.path] = edit
    for edit in record.edits:
        first = before.get(edit.path)
        before[edit.path] = msgspec.structs.replace(first or edit, after=edit.after)
    left = tuple(edit for edit in before.values() if not same(edit.before, edit.after))
    return msgspec.structs.replace(record, edits=left)


def change_patch(
    obj: Mapping[str, Any],
    edits: Sequence[Edit],
    record: ChangeRecord,
    *,
    came_back: datetime.timedelta | None,
) -> dict[str, Any]:
    """The one patch that changes an object: its fields, record and history, with UID and resourceVersion.

    The API server refuses it for another resourceVersion (409) or another UID (409 or 422).

    Raises:
        ValueError: The object lacks a field for an edit, or the record is too long.
    """
    past = (*read_history(obj["metadata"].get("annotations") or {}), record.summary)
    if not record.edits:
        past = with_end(past, ChangeOutcome.SCALE_UP, record.at)
    annotations = obj["metadata"].get("annotations") or {}
    text = encode_record(record) if record.edits else None
    _require_room(text or "")
    notes = {UNDO_ANNOTATION: text, **_answered(annotations)}
    return _patch(obj, edits, {**notes, HISTORY_ANNOTATION: write_history(past), **_remembered(came_back)})


def undo_patch(
    obj: Mapping[str, Any],
    record: ChangeRecord,
    *,
    at: datetime.datetime,
    end: ChangeOutcome = ChangeOutcome.UNDONE,
) -> dict[str, Any]:
    """The one patch that restores an object, removes the record, and records the time and the idle span until then.

    The cooldown starts then, and only a longer idle span makes it idle again.

    Raises:
        ValueError: The object lacks a field to restore.
    """
    annotations = obj["metadata"].get("annotations") or {}
    restored = _restored(record, annotations, at) if end is not ChangeOutcome.NO_EFFECT else {}
    notes = {UNDO_ANNOTATION: None, **_answered(annotations), **restored}
    notes[HISTORY_ANNOTATION] = _ended(annotations, record, end, at)
    return _patch(obj, [edit.reversed for edit in record.edits], notes)


def reverted_patch(
    obj: Mapping[str, Any],
    record: ChangeRecord,
    *,
    at: datetime.datetime,
    came_back: datetime.timedelta | None,
) -> dict[str, Any]:
    """The one patch that records a revert by somebody else, and changes nothing else.

    `came_back` is the longest idle span after which it was needed again.
    """
    annotations = obj["metadata"].get("annotations") or {}
    ended = _ended(annotations, record, ChangeOutcome.REVERTED, at)
    return _patch(obj, (), {UNDO_ANNOTATION: None, HISTORY_ANNOTATION: ended, **_remembered(came_back)})


def confirmed_patch(obj: Mapping[str, Any], record: ChangeRecord) -> dict[str, Any]:
    """The one patch that records that an object is healthy after its change."""
    return record_patch(obj, (), msgspec.structs.replace(record, confirmed=True))


def record_patch(obj: Mapping[str, Any], edits: Sequence[Edit], record: ChangeRecord) -> dict[str, Any]:
    """The one patch of another step of a recorded change: its fields, and the new record.

    Raises:
        ValueError: The object lacks a field for an edit.
    """
    return _patch(obj, edits, {UNDO_ANNOTATION: encode_record(record)})


def _ended(
    annotations: Mapping[str, str], record: ChangeRecord, end: ChangeOutcome, at: datetime.datetime
) -> str:
    return write_history(with_end(with_record(read_history(annotations), record.summary), end, at))


def _patch(obj: Mapping[str, Any], edits: Sequence[Edit], notes: Mapping[str, str | None]) -> dict[str, Any]:
    patch = patch_of(obj, edits)
    metadata = patch.setdefault("metadata", {})
    metadata.setdefault("annotations", {}).update(notes)
    metadata["uid"] = obj["metadata"]["uid"]
    metadata["resourceVersion"] = obj["metadata"]["resourceVersion"]
    return patch


def recreated_manifest(
    manifest: Mapping[str, Any], record: ChangeRecord, *, at: datetime.datetime
) -> dict[str, Any]:
    """The manifest to create an evicted pod again, with the time and the idle span until then."""
    metadata = manifest["metadata"]
    over = {NOTICE_ANNOTATION, RELEASE_ANNOTATION}
    kept = {key: text for key, text in metadata.get("annotations", {}).items() if key not in over}
    notes = {
        **_restored(record, kept, at),
        HISTORY_ANNOTATION: _ended(kept, record, ChangeOutcome.UNDONE, at),
    }
    return {**manifest, "metadata": {**metadata, "annotations": {**kept, **notes}}}


def _answered(annotations: Mapping[str, str]) -> dict[str, None]:
    """Removes a notice, and the answer that was about it."""
    return {
        NOTICE_ANNOTATION: None,
        **({RELEASE_ANNOTATION: None} if RELEASE_ANNOTATION in annotations else {}),
    }


def _restored(record: ChangeRecord, annotations: Mapping[str, str], at: datetime.datetime) -> dict[str, str]:
    """Notes of a restore; only a full stop shows how long the workload needs no GPUs."""
    notes = {RESUMED_ANNOTATION: _stamp(at)}
    if record.action in {Action.SCALE_DOWN, Action.SCALE_UP, Action.RESIZE, Action.RESLICE}:
        return notes
    before = came_back_after(annotations, ())
    pause = pause_of(record.idle_seconds, record.at, at)
    return {**notes, **_remembered(max(pause, before) if before else pause)}


def _remembered(pause: datetime.timedelta | None) -> dict[str, str]:
    return {CAME_BACK_ANNOTATION: write_duration(pause)} if pause else {}


def _stamp(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).isoformat(timespec="seconds")
