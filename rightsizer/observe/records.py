"""Our own changes as the cluster still tells of them: annotations on what was stopped, Secrets of evicted pods. Pure.

`workloads` writes these; here is read what budgets over time need, from whatever carries it, also with no pods left.
"""

import contextlib
import datetime
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rightsizer.config import LONGEST, PREFIX, parse_duration
from rightsizer.model import Change, ObjectRef, Pod
from rightsizer.observe.objects import ObjectMeta
from rightsizer.observe.owners import Controlled

UNDO_ANNOTATION = PREFIX + "undo"
CAME_BACK_ANNOTATION = PREFIX + "came-back-after"
"""The longest pause after which a workload was put back, such as 31h10m: it is not idle before it paused for longer."""
MANIFEST_LABEL = PREFIX + "manifest"
"""On the Secrets that keep the manifests of evicted pods; its value is the run."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""On the same Secrets: the GPUs that the eviction freed."""
NOTICE_ANNOTATION = PREFIX + "notice"
"""What was announced to a workload's people, and for when."""
RESUMED_ANNOTATION = PREFIX + "resumed-at"
"""When a stopped workload was last put back, RFC 3339: what it did before says nothing about what it will do now."""

RECORDS = frozenset(
    {
        *(UNDO_ANNOTATION, CAME_BACK_ANNOTATION, NOTICE_ANNOTATION, RESUMED_ANNOTATION),
        *(MANIFEST_LABEL, POD_ANNOTATION, GPUS_ANNOTATION),
    }
)
"""All that we write on objects ourselves: nobody's wish."""


def manifest_name(ref: ObjectRef) -> str:
    """The name of the Secret that keeps a pod's manifest: one for each pod that ever was."""
    return f"{ref.name[:200]}-{ref.uid[:8]}"


class _Record(msgspec.Struct):
    """What budgets and rhythms need of `workloads.changes.UndoRecord`."""

    time: datetime.datetime
    run: str = ""
    gpus: int = 0
    idle: int = 0


def changes_of(
    controllers: Iterable[Controlled], evictions: Iterable[ObjectMeta], pods: Iterable[Pod]
) -> tuple[list[Change], list[str]]:
    """The changes, oldest first, and the records that cannot be read, in words.

    Args:
        controllers: Those that may carry a record.
        evictions: What keeps the manifests of evicted pods.
        pods: Those that hold GPUs: an eviction of one that does so still never took effect.
    """
    found, problems = [], []
    for item in controllers:
        text = (item.metadata.annotations or {}).get(UNDO_ANNOTATION)
        if text is None:
            continue
        try:
            record = msgspec.json.decode(text, type=_Record)
            found.append(Change(item.ref, _aware(record.time), max(record.gpus, 0), record.run))
        except msgspec.DecodeError as error:
            problems.append(f"{item.ref}: its annotation {UNDO_ANNOTATION} cannot be read: {error}")
    standing = {_manifest_of(pod.ref) for pod in pods if not pod.is_terminating}
    found.extend(_evicted(item for item in evictions if (_pod_of(item), item.name) not in standing))
    return sorted(found, key=lambda change: (change.at, change.ref)), sorted(problems)


def _evicted(evictions: Iterable[ObjectMeta]) -> Iterator[Change]:
    for item in evictions:
        if item.creation_timestamp is None:
            continue
        labels, annotations = item.labels or {}, item.annotations or {}
        namespace, _, name = _pod_of(item).partition("/")
        ref = ObjectRef("v1", "Pod", namespace, name)
        if not name:
            ref = ObjectRef("v1", "Secret", item.namespace, item.name, item.uid)
        gpus = annotations.get(GPUS_ANNOTATION, "")
        count = int(gpus) if gpus.isascii() and gpus.isdecimal() else 0
        yield Change(ref, _aware(item.creation_timestamp), count, labels.get(MANIFEST_LABEL, ""))


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
    if back is not None and (text := annotations.get(UNDO_ANNOTATION)) is not None:
        with contextlib.suppress(msgspec.DecodeError):
            record = msgspec.json.decode(text, type=_Record)
            if back > _aware(record.time):
                pauses.append(pause_of(record.idle, record.time, back))
    return max(pauses, default=None)


def pause_of(idle_s: int, stopped: datetime.datetime, back: datetime.datetime) -> datetime.timedelta:
    """How long a workload did without its GPUs: before it was stopped, and after; at most LONGEST."""
    before = datetime.timedelta(seconds=min(max(idle_s, 0), LONGEST.total_seconds()))
    return min(before + max(back - _aware(stopped), datetime.timedelta()), LONGEST)


def _pod_of(item: ObjectMeta) -> str:
    return (item.annotations or {}).get(POD_ANNOTATION, "")


def _manifest_of(ref: ObjectRef) -> tuple[str, str]:
    """What the manifest of a pod names, and is named."""
    return f"{ref.namespace}/{ref.name}", manifest_name(ref)


def _aware(at: datetime.datetime) -> datetime.datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
