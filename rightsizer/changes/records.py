"""Our own changes as the cluster still tells of them: annotations on what was stopped, Secrets of evicted pods. Pure.

`workloads` writes these; here is read what budgets over time need, from whatever carries it, also with no pods left.
"""

import contextlib
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rightsizer.changes.object_history import (
    HISTORY_ANNOTATION,
    UNREADABLE,
    read_history,
    with_noticed_reverts,
    with_record,
)
from rightsizer.config import LONGEST, PREFIX, parse_duration
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.owner_kinds import CONTROL_OBJECTS, ObjectSummary, owner_kind
from rightsizer.model import Change, ObjectRef, PastChange, Pod
from rightsizer.text import Gpus, Instant, Seconds, Steps, Word, decoded, require_name, require_ours

UNDO_ANNOTATION = PREFIX + "undo"
CAME_BACK_ANNOTATION = PREFIX + "came-back-after"
"""The longest pause after which a workload was put back, such as 31h10m: it is not idle before it paused for longer."""
STEERED_ANNOTATION = PREFIX + "steered"
"""On a pod that is to go first: the run that said so by a deletion cost."""

MANIFEST_LABEL = PREFIX + "manifest"
"""On the Secrets that keep the manifests of evicted pods; its value is the run."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""On the same Secrets: the GPUs that the eviction freed."""
CLASS_ANNOTATION = PREFIX + "priority-class"
"""On the same Secrets: the pod's PriorityClass, empty where it had none."""
NOTICE_ANNOTATION = PREFIX + "notice"
"""What was announced to a workload's people, and for when."""
RESUMED_ANNOTATION = PREFIX + "resumed-at"
"""When a stopped workload was last put back, RFC 3339: what it did before says nothing about what it will do now."""
ORDER_ANNOTATION = PREFIX + "order"
"""What the controller of a workload was told by an object of its own, such as AbortJob."""

SNOOZE_ANNOTATION = PREFIX + "snooze-until"
"""The answer of a workload's people to a notice: not before then."""

RECORDS = frozenset(
    {
        *(UNDO_ANNOTATION, CAME_BACK_ANNOTATION, NOTICE_ANNOTATION, RESUMED_ANNOTATION, ORDER_ANNOTATION),
        *(SNOOZE_ANNOTATION, HISTORY_ANNOTATION, STEERED_ANNOTATION),
        *(MANIFEST_LABEL, POD_ANNOTATION, GPUS_ANNOTATION, CLASS_ANNOTATION),
    }
)
"""All that is no wish to be left alone: what we write on objects ourselves, and the answer to a notice."""


MANIFEST_NAME = "^.+-[0-9a-f]{8}$"
"""As RE2 has it: what such a Secret is called."""


def manifest_name(ref: ObjectRef) -> str:
    """The name of the Secret that keeps a pod's manifest: one for each pod that ever was."""
    return f"{ref.name[:200]}-{ref.uid[:8]}"


class _Edit(msgspec.Struct):
    path: Steps


class _Record(msgspec.Struct, rename="camel"):
    """What budgets and rhythms need of `workloads.changes.UndoRecord`."""

    time: Instant
    run: Word = ""
    action: Word = ""
    gpus: Gpus = 0
    idle: Seconds = 0
    by: Word = ""
    of: ObjectRef | None = None
    priority_class: str | None = None
    settle: Seconds = 0
    edits: tuple[_Edit, ...] = ()
    then: tuple[_Edit, ...] = ()

    def __post_init__(self) -> None:
        require_ours(self.time)
        require_name(self.of)


def _record(annotations: Mapping[str, str]) -> _Record | None:
    """The undo record on an object; None where there is none.

    Raises:
        ValueError: It cannot be read.
    """
    text = annotations.get(UNDO_ANNOTATION)
    return None if text is None else decoded(text, _Record)


def changes_of(
    controllers: Iterable[ObjectSummary], evictions: Iterable[ObjectMeta], pods: Iterable[Pod]
) -> tuple[list[Change], list[str]]:
    """The changes, oldest first, and the records that cannot be read, in words.

    Args:
        controllers: Those that may carry a record, and what was changed in place of others.
        evictions: What keeps the manifests of evicted pods.
        pods: Those that hold GPUs: an eviction of one that does so still never took effect.
    """
    found: list[Change] = []
    problems: list[str] = []
    for item in controllers:
        annotations = item.metadata.annotations or {}
        of, priority_class = _about(annotations)
        if not speaks_for(item.ref, of):
            problems.append(
                f"{item.ref}: its annotation {UNDO_ANNOTATION} is about {of}, for which it cannot speak"
            )
            of = None
        if of is None and is_copy(item.ref, item.metadata):
            continue
        past = recorded_changes(annotations)
        found.extend(
            Change(
                of or item.controls or item.ref,
                change.at,
                max(change.gpus, 0),
                change.run,
                starter=_starter(item),
                stands=change.end is None,
                priority_class=priority_class,
            )
            for change in past
            if change.at is not None and change.takes
        )
        if UNREADABLE in past:
            which = f"its annotation {UNDO_ANNOTATION} or {HISTORY_ANNOTATION}"
            problems.append(f"{item.ref}: {which} cannot be read; it counts as changed right now")
    standing = {_manifest_of(pod.ref) for pod in pods if not pod.is_terminating}
    found.extend(evictions_of(item for item in evictions if (_pod_of(item), item.name) not in standing))
    return sorted(found, key=lambda change: (change.at, change.ref)), sorted(problems)


def speaks_for(carrier: ObjectRef, of: ObjectRef | None) -> bool:
    """Whether a record on an object can be about another: on what stops it in its place, or what had made it."""
    if of is None:
        return True
    group = carrier.api_version.rpartition("/")[0]
    row = owner_kind(group, carrier.kind)
    return of.namespace == carrier.namespace and (
        (group, carrier.kind) in CONTROL_OBJECTS or (row is not None and row.starts_others)
    )


def _about(annotations: Mapping[str, str]) -> tuple[ObjectRef | None, str | None]:
    """The workload that a record is about, where it stands on another object, and the class of its pods."""
    try:
        record = _record(annotations)
    except ValueError:
        record = None
    return (record.of, record.priority_class) if record else (None, None)


def recorded_changes(
    annotations: Mapping[str, str], began: Iterable[datetime.datetime | None] = ()
) -> tuple[PastChange, ...]:
    """What we did to an object, by its own notes; UNREADABLE in place of what cannot be read.

    Args:
        annotations: The object's.
        began: When its pods that live were created: by them it is noticed that someone put it back.
    """
    past = read_history(annotations)
    try:
        record = _record(annotations)
    except ValueError:
        return (*past, UNREADABLE)
    if record is not None:
        past = with_record(past, PastChange(record.time, record.run, record.action, record.gpus, record.by))
    return with_noticed_reverts(past, began)


def _starter(item: ObjectSummary) -> ObjectRef | None:
    """What made it when the time had come, such as a CronJob."""
    above = item.metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    if above is None or row is None or not row.starts_others:
        return None
    return ObjectRef(above.api_version, above.kind, item.ref.namespace, above.name, above.uid)


def is_copy(ref: ObjectRef, metadata: ObjectMeta) -> bool:
    """Whether a record on an object is its controller's: a Deployment's annotations are copied to its ReplicaSets.

    We change the topmost known controller, what a CronJob or the like has made, or what stops another in its place,
    which is often owned by that.
    """
    if (ref.api_version.rpartition("/")[0], ref.kind) in CONTROL_OBJECTS:
        return False
    above = metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    return row is not None and not row.starts_others


def evictions_of(evictions: Iterable[ObjectMeta]) -> Iterator[Change]:
    """The evictions that saved manifests tell of, by the metadata of the Secrets that keep them."""
    for item in evictions:
        if item.creation_timestamp is None:
            continue
        labels, annotations = item.labels or {}, item.annotations or {}
        namespace, _, name = _pod_of(item).partition("/")
        ref = ObjectRef("v1", "Pod", namespace, name)
        if not name:
            ref = ObjectRef("v1", "Secret", item.namespace, item.name, item.uid)
        gpus = annotations.get(GPUS_ANNOTATION, "")
        count = int(gpus) if re.fullmatch("[0-9]{1,5}", gpus) else 0
        yield Change(
            ref,
            item.creation_timestamp,
            count,
            labels.get(MANIFEST_LABEL, ""),
            priority_class=annotations.get(CLASS_ANNOTATION),
        )


def came_back_after(
    annotations: Mapping[str, str], begins: Iterable[datetime.datetime | None]
) -> datetime.timedelta | None:
    """The longest pause after which a workload was put back, by its notes; None where none tells of one.

    `undo` notes it. Whoever put it back by other means left the record of the stop on it: when that was is not known,
    only that it was before the pods that are there now began, so that the pause may have been shorter.

    Args:
        annotations: The workload's. A note that cannot be read counts as the longest pause there is.
        begins: When its pods were created.
    """
    pauses = []
    if (text := annotations.get(CAME_BACK_ANNOTATION)) is not None:
        try:
            pauses.append(parse_duration(text))
        except ValueError:
            pauses.append(LONGEST)
    back = min((begin for begin in begins if begin is not None), default=None)
    with contextlib.suppress(ValueError):
        record = _record(annotations)
        if back is not None and record is not None and back >= record.time:
            pauses.append(pause_of(record.idle, record.time, back))
    return max(pauses, default=None)


def pause_of(idle_s: int, stopped: datetime.datetime, back: datetime.datetime) -> datetime.timedelta:
    """How long a workload did without its GPUs: before it was stopped, and after; at most LONGEST."""
    before = datetime.timedelta(seconds=min(max(idle_s, 0), LONGEST.total_seconds()))
    return min(before + max(back - stopped, datetime.timedelta()), LONGEST)


def _pod_of(item: ObjectMeta) -> str:
    return (item.annotations or {}).get(POD_ANNOTATION, "")


def _manifest_of(ref: ObjectRef) -> tuple[str, str]:
    """What the manifest of a pod names, and is named."""
    return f"{ref.namespace}/{ref.name}", manifest_name(ref)
