"""Our own changes as the cluster still tells of them: annotations on what was stopped, Secrets of evicted pods. Pure.

`workloads` writes these; here is read what budgets over time need, from whatever carries it, also with no pods left.
"""

import datetime
from collections.abc import Iterable, Iterator

import msgspec

from rightsizer.config import PREFIX
from rightsizer.model import Change, ObjectRef
from rightsizer.observe.objects import ObjectMeta
from rightsizer.observe.owners import Controlled

UNDO_ANNOTATION = PREFIX + "undo"
MANIFEST_LABEL = PREFIX + "manifest"
"""On the Secrets that keep the manifests of evicted pods; its value is the run."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""On the same Secrets: the GPUs that the eviction freed."""


class _Record(msgspec.Struct):
    """What budgets need of `workloads.changes.UndoRecord`."""

    time: datetime.datetime
    run: str = ""
    gpus: int = 0


def changes_of(
    controllers: Iterable[Controlled], evictions: Iterable[ObjectMeta]
) -> tuple[list[Change], list[str]]:
    """The changes, oldest first, and the records that cannot be read, in words."""
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
    found.extend(_evicted(evictions))
    return sorted(found, key=lambda change: (change.at, change.ref)), sorted(problems)


def _evicted(evictions: Iterable[ObjectMeta]) -> Iterator[Change]:
    for item in evictions:
        if item.creation_timestamp is None:
            continue
        labels, annotations = item.labels or {}, item.annotations or {}
        namespace, _, name = annotations.get(POD_ANNOTATION, "").partition("/")
        ref = ObjectRef("v1", "Pod", namespace, name)
        if not name:
            ref = ObjectRef("v1", "Secret", item.namespace, item.name, item.uid)
        gpus = annotations.get(GPUS_ANNOTATION, "")
        count = int(gpus) if gpus.isascii() and gpus.isdecimal() else 0
        yield Change(ref, _aware(item.creation_timestamp), count, labels.get(MANIFEST_LABEL, ""))


def _aware(at: datetime.datetime) -> datetime.datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
