"""Annotations and labels that gpu-rightsizer writes, and the one codec of change records. Pure.

The patch that makes a change writes the undo record and history, so they match the object. Anybody who may annotate
it can write anything there: an unreadable record counts as a change made right now.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rightsizer.config import LONGEST, PREFIX, parse_duration
from rightsizer.kube.object_names import require_name
from rightsizer.model import UNREADABLE, Action, ChangeOutcome, ChangeRecord, ObjectRef
from rightsizer.text import decoded, require_ours

UNDO_ANNOTATION = PREFIX + "undo"
"""The change record from which `undo` restores the object."""
HISTORY_ANNOTATION = PREFIX + "history"
"""The last changes of the object."""
CAME_BACK_ANNOTATION = PREFIX + "came-back-after"
"""The longest pause after which the workload was needed again, such as 31h10m."""
RESUMED_ANNOTATION = PREFIX + "resumed-at"
"""The time when a stopped workload was last restored, RFC 3339; earlier measurements say nothing about it now."""
NOTICE_ANNOTATION = PREFIX + "notice"
"""The announced change, and its time."""
SNOOZE_ANNOTATION = PREFIX + "snooze-until"
"""The owner's answer to a notice: no change before then."""
RELEASE_ANNOTATION = PREFIX + "release"
"""The owner's other answer to a notice: `true` makes the change at once."""
ORDER_ANNOTATION = PREFIX + "order"
"""The command that a command object gave to the workload's controller, such as AbortJob."""
VICTIM_ANNOTATION = PREFIX + "deletion-cost-by"
"""The run that set the deletion cost of a pod."""
CHECKPOINT_ANNOTATION = PREFIX + "last-checkpoint"
"""The time when all work of a workload was last saved, set by its owner."""
TEMPLATE_ANNOTATION = PREFIX + "smaller-than"
"""The ResourceClaimTemplate from which one for fewer devices was made."""
SIZE_ANNOTATION = PREFIX + "kept-size"
"""The change of a pod that an admission policy made smaller than its manifest, and how to prevent it."""

MANIFEST_LABEL = PREFIX + "manifest"
"""The run whose evicted pod's manifest a Secret holds."""
MANIFEST_TYPE = PREFIX + "pod-manifest"
"""The type of these Secrets."""
MANIFEST_SELECTOR = f"type={MANIFEST_TYPE}"
"""The field selector of these Secrets: a label alone does not prove a manifest."""
POD_ANNOTATION = PREFIX + "pod"
"""The evicted pod of such a Secret, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""The GPUs that this eviction freed."""
CLASS_ANNOTATION = PREFIX + "priority-class"
"""The evicted pod's PriorityClass, empty if it had none."""

RECORDS = frozenset(
    {
        *(UNDO_ANNOTATION, CAME_BACK_ANNOTATION, NOTICE_ANNOTATION, RESUMED_ANNOTATION, ORDER_ANNOTATION),
        *(SNOOZE_ANNOTATION, RELEASE_ANNOTATION, HISTORY_ANNOTATION, VICTIM_ANNOTATION),
        *(SIZE_ANNOTATION, CHECKPOINT_ANNOTATION),
        *(MANIFEST_LABEL, POD_ANNOTATION, GPUS_ANNOTATION, CLASS_ANNOTATION),
    }
)
"""Names of gpu-rightsizer's own notes; none of them is an opt-out."""

LONGEST_NOTE = 16_384
"""Maximum characters of one annotation on an object: its owner needs room for others (256 KiB for all)."""

MANIFEST_NAME = "^.+-[0-9a-f]{8}$"
"""Names of the Secrets with manifests, as RE2."""

MOST = 8
"""Entries of the history."""
MOST_BYTES = 1024
"""Maximum of the history, which holds several entries: all annotations of an object share 256 KiB (API conventions)."""
STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
"""Actions that leave no pods, so a pod that was created later shows that someone reverted the change."""


def manifest_name(ref: ObjectRef) -> str:
    """The name of the Secret with a pod's manifest, unique by the pod's UID."""
    return f"{ref.name[:200]}-{ref.uid[:8]}"


def encode_record(record: ChangeRecord) -> str:
    """A record as JSON."""
    return msgspec.json.encode(record).decode()


def decode_record(text: str) -> ChangeRecord:
    """A record from JSON; raises ValueError if it cannot be read."""
    return required_valid(decoded(text, ChangeRecord))


def required_valid(record: ChangeRecord) -> ChangeRecord:
    """The same record, if its times and names are possible; else raises ValueError."""
    require_ours(record.at, record.ended)
    require_name(record.workload)
    return record


def read_undo_record(annotations: Mapping[str, str]) -> ChangeRecord | None:
    """The undo record of an object, if any; raises ValueError if it cannot be read."""
    text = annotations.get(UNDO_ANNOTATION)
    return None if text is None else decode_record(text)


def read_history(annotations: Mapping[str, str]) -> tuple[ChangeRecord, ...]:
    """The history of an object, oldest first; UNREADABLE in place of each entry that cannot be read."""
    text = annotations.get(HISTORY_ANNOTATION)
    if text is None:
        return ()
    try:
        raws = decoded(text, list[msgspec.Raw])
    except ValueError:
        return (UNREADABLE,)
    return tuple(map(_read_entry, raws))


def _read_entry(raw: msgspec.Raw) -> ChangeRecord:
    try:
        return decode_record(bytes(raw).decode()).summary
    except ValueError:
        return UNREADABLE


def write_history(past: Sequence[ChangeRecord]) -> str:
    """The annotation's text; above its limits it drops the oldest entries, those that only added GPUs first."""
    kept = [_stored(change) for change in past if change.is_readable]
    while len(kept) > MOST or len(msgspec.json.encode(kept)) > MOST_BYTES:
        first_grown = (place for place, change in enumerate(kept[:-1]) if not change.takes)
        del kept[next(first_grown, 0)]
    return msgspec.json.encode(kept).decode()


def _stored(change: ChangeRecord) -> ChangeRecord:
    ended = _second(change.ended) if change.ended else None
    return msgspec.structs.replace(change.summary, at=_second(change.at), ended=ended)


def _second(at: datetime.datetime) -> datetime.datetime:
    return at.astimezone(datetime.UTC).replace(microsecond=0)


def recorded_changes(
    annotations: Mapping[str, str], began: Iterable[datetime.datetime | None] = ()
) -> tuple[ChangeRecord, ...]:
    """The changes that an object's annotations record; UNREADABLE in place of each that cannot be read.

    `began` says when its live pods were created; they show that someone reverted a stop.
    """
    past = read_history(annotations)
    try:
        record = read_undo_record(annotations)
    except ValueError:
        return (*past, UNREADABLE)
    return with_noticed_reverts(with_record(past, record) if record else past, began)


def with_record(past: Sequence[ChangeRecord], record: ChangeRecord) -> tuple[ChangeRecord, ...]:
    """The history, with the change of the undo record if the history lacks it."""
    known = any((change.run, change.action) == (record.run, record.action) for change in past)
    return tuple(past) if known else (*past, record.summary)


def with_end(
    past: Iterable[ChangeRecord], end: ChangeOutcome, at: datetime.datetime
) -> tuple[ChangeRecord, ...]:
    """The history once all changes in effect are reverted: one undo reverts several."""
    return tuple(
        change if change.end or not change.is_readable else msgspec.structs.replace(change, end=end, ended=at)
        for change in past
    )


def with_noticed_reverts(
    past: Iterable[ChangeRecord], began: Iterable[datetime.datetime | None]
) -> tuple[ChangeRecord, ...]:
    """The history, in which stops have ended once a live pod was created after them."""
    begins = sorted(begin for begin in began if begin is not None)

    def seen(change: ChangeRecord) -> ChangeRecord:
        if change.end or change.action not in STOPS:
            return change
        back = next((begin for begin in begins if begin >= change.at), None)
        return msgspec.structs.replace(change, end=ChangeOutcome.REVERTED, ended=back) if back else change

    return tuple(map(seen, past))


def came_back_after(
    annotations: Mapping[str, str], begins: Iterable[datetime.datetime | None]
) -> datetime.timedelta | None:
    """The longest pause after which the workload was needed again, by its annotations; None if there was none.

    `undo` writes it; an unreadable one counts as the longest possible pause. Reverts by other means leave
    the undo record: then the oldest pod that was created since bounds that pause.
    """
    pauses = []
    if (text := annotations.get(CAME_BACK_ANNOTATION)) is not None:
        try:
            pauses.append(parse_duration(text))
        except ValueError:
            pauses.append(LONGEST)
    back = min((begin for begin in begins if begin is not None), default=None)
    with contextlib.suppress(ValueError):
        record = read_undo_record(annotations)
        if back is not None and record is not None and back >= record.at:
            pauses.append(pause_of(record.idle_seconds, record.at, back))
    return max(pauses, default=None)


def pause_of(idle_s: int, stopped: datetime.datetime, back: datetime.datetime) -> datetime.timedelta:
    """Time for which a workload was idle or stopped, at most LONGEST."""
    before = datetime.timedelta(seconds=min(max(idle_s, 0), LONGEST.total_seconds()))
    return min(before + max(back - stopped, datetime.timedelta()), LONGEST)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An Event about a change; the cluster keeps it for an hour or so."""

    ref: ObjectRef
    at: datetime.datetime
    reason: str
    message: str
