"""Our own changes as the cluster still tells of them: annotations on what was stopped, Secrets of evicted pods. Pure.

`workloads` writes these; here is read what budgets over time need, from whatever carries it, also with no pods left.
"""

import datetime
from collections.abc import Iterable, Iterator

import msgspec

from rightsizer.config import PREFIX
from rightsizer.model import Change, ObjectRef, Pod
from rightsizer.observe.objects import ObjectMeta
from rightsizer.observe.owners import Controlled

UNDO_ANNOTATION = PREFIX + "undo"
MANIFEST_LABEL = PREFIX + "manifest"
"""On the Secrets that keep the manifests of evicted pods; its value is the run."""
POD_ANNOTATION = PREFIX + "pod"
"""On the same Secrets: the pod, as namespace/name."""
GPUS_ANNOTATION = PREFIX + "gpus"
"""On the same Secrets: the GPUs that the eviction freed."""


def manifest_name(ref: ObjectRef) -> str:
    """The name of the Secret that keeps a pod's manifest: one for each pod that ever was."""
    return f"{ref.name[:200]}-{ref.uid[:8]}"


class _Record(msgspec.Struct):
    """What budgets need of `workloads.changes.UndoRecord`."""

    time: datetime.datetime
    run: str = ""
    gpus: int = 0


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


def _pod_of(item: ObjectMeta) -> str:
    return (item.annotations or {}).get(POD_ANNOTATION, "")


def _manifest_of(ref: ObjectRef) -> tuple[str, str]:
    """What the manifest of a pod names, and is named."""
    return f"{ref.namespace}/{ref.name}", manifest_name(ref)


def _aware(at: datetime.datetime) -> datetime.datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=datetime.UTC)
