"""What gpu-rightsizer writes about a change: annotations, and the one codec of change records. Pure.

The patch that makes a change writes the undo record, so it matches the object. Anybody who may annotate
it can write anything there: an unreadable record counts as a change made right now.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Iterable, Mapping

import msgspec

from rightsizer.config import LONGEST, PREFIX, parse_duration
from rightsizer.kube.object_names import require_name
from rightsizer.model import UNREADABLE, Action, ChangeOutcome, ChangeRecord, ObjectRef
from rightsizer.text import decoded, require_ours

UNDO_ANNOTATION = PREFIX + "undo"
"""The change record from which `undo` restores the object."""
HISTORY_ANNOTATION = PREFIX + "history"
"""The last changes of the object, by releases before the memory was the only history; the next change removes it."""
CAME_BACK_ANNOTATION = PREFIX + "came-back-after"
"""The longest pause after which the workload was needed again, such as 31h10m."""
RESUMED_ANNOTATION = PREFIX + "resumed-at"
"""When a stopped workload was last restored, RFC 3339; measurements from before say nothing about it now."""
NOTICE_ANNOTATION = PREFIX + "notice"
"""The announced change, and its time."""
SNOOZE_ANNOTATION = PREFIX + "snooze-until"
"""The owner's answer to a notice: no change before then."""
RELEASE_ANNOTATION = PREFIX + "release"
"""The owner's other answer to a notice: `true` makes the change at once."""
ORDER_ANNOTATION = PREFIX + "order"
"""The command that a command object gave to the workload's controller, such as AbortJob."""
VICTIM_ANNOTATION = PREFIX + "deletion-cost-by"
"""On a pod with a deletion cost: the run that set it."""
CHECKPOINT_ANNOTATION = PREFIX + "last-checkpoint"
"""By the workload's owner: when all of its work was last saved."""
TEMPLATE_ANNOTATION = PREFIX + "smaller-than"
"""On a ResourceClaimTemplate: the one that it was made from, for fewer devices."""
SIZE_ANNOTATION = PREFIX + "kept-size"
"""On a pod that an admission policy made smaller than its manifest: what was changed, and how to prevent it."""

MANIFEST_LABEL = PREFIX + "manifest"
"""On Secrets with the manifest of an evicted pod: the run."""
MANIFEST_TYPE = PREFIX + "pod-manifest"
"""The type of these Secrets."""
MANIFEST_SELECTOR = f"type={MANIFEST_TYPE}"
"""The field selector of these Secrets: a label alone does not prove a manifest."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""

RECORDS = frozenset(
    {
        *(UNDO_ANNOTATION, CAME_BACK_ANNOTATION, NOTICE_ANNOTATION, RESUMED_ANNOTATION, ORDER_ANNOTATION),
        *(SNOOZE_ANNOTATION, RELEASE_ANNOTATION, HISTORY_ANNOTATION, VICTIM_ANNOTATION),
        *(SIZE_ANNOTATION, CHECKPOINT_ANNOTATION),
        *(MANIFEST_LABEL, POD_ANNOTATION),
    }
)
"""All of these; none of them is an opt-out."""

LONGEST_NOTE = 16_384
"""Maximum characters of one annotation on an object: its owner needs room for others (256 KiB for all)."""

MANIFEST_NAME = "^.+-[0-9a-f]{8}$"
"""Names of the Secrets with manifests, as RE2."""

STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})
"""These leave no pods, so a pod that was created later shows that someone reverted the change."""


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


def own_change(annotations: Mapping[str, str]) -> ChangeRecord | None:
    """The change of an object's undo record, if any; UNREADABLE if that cannot be read."""
    try:
        record = read_undo_record(annotations)
    except ValueError:
        return UNREADABLE
    return record.summary if record is not None else None


def earlier_ends(annotations: Mapping[str, str]) -> dict[str, ChangeRecord]:
    """By run, the changes that ended under an earlier release, which noted that on the object and not in the memory."""
    try:
        records = decoded(annotations.get(HISTORY_ANNOTATION, "[]"), list[ChangeRecord])
        return {record.run: required_valid(record) for record in records if record.end is not None}
    except ValueError:
        return {}


def with_end(
    past: Iterable[ChangeRecord], end: ChangeOutcome, at: datetime.datetime
) -> tuple[ChangeRecord, ...]:
    """Earlier changes once all that are in effect have ended: one undo reverts several."""
    return tuple(
        change if change.end or not change.is_readable else msgspec.structs.replace(change, end=end, ended=at)
        for change in past
    )


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
    """How long a workload was idle or stopped, at most LONGEST."""
    before = datetime.timedelta(seconds=min(max(idle_s, 0), LONGEST.total_seconds()))
    return min(before + max(back - stopped, datetime.timedelta()), LONGEST)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An Event about a change; the cluster keeps it for an hour or so."""

    ref: ObjectRef
    at: datetime.datetime
    reason: str
    message: str
