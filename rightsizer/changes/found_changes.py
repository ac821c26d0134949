"""The changes that objects and saved manifests record: budgets over time and cooldowns count them. Pure.

Anybody who may annotate an object can write a history. A change that the memory lacks, or that gpu-rightsizer
cannot have made, starts a cooldown of that object only. It is reported, and charged to no budget.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rightsizer.changes.memory import MONTH
from rightsizer.changes.record_codec import (
    CLASS_ANNOTATION,
    GPUS_ANNOTATION,
    HISTORY_ANNOTATION,
    MANIFEST_LABEL,
    POD_ANNOTATION,
    UNDO_ANNOTATION,
    manifest_name,
    read_undo_record,
    recorded_changes,
)
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.object_names import is_possible
from rightsizer.kube.owner_kinds import (
    CONTROL_OBJECTS,
    STOPPED_FOR_OWNER,
    ObjectSummary,
    OwnerKind,
    owner_kind,
)
from rightsizer.model import UNREADABLE, Action, ChangeRecord, Fleet, FoundChange, ObjectRef, Pod
from rightsizer.text import count

AHEAD = datetime.timedelta(days=2)
"""Maximum by which the clock of a machine that runs gpu-rightsizer may be ahead of Prometheus's clock."""


def changes_of(
    controllers: Iterable[ObjectSummary], evictions: Iterable[ObjectMeta], pods: Iterable[Pod]
) -> tuple[list[FoundChange], list[str]]:
    """The changes, oldest first, and problems with records, in words.

    `controllers` may carry a record, and `evictions` are the Secrets with manifests of evicted pods. `pods` hold GPUs:
    the eviction of one that still has them never took effect.
    """
    found: list[FoundChange] = []
    problems: list[str] = []
    for controller in controllers:
        annotations = controller.metadata.annotations or {}
        workload, priority_class = _recorded_workload(annotations)
        if not speaks_for(controller.ref, workload):
            problems.append(
                f"{controller.ref}: its annotation {UNDO_ANNOTATION} names {workload}, for which it cannot speak"
            )
            workload = None
        if is_copy(controller.ref, controller.metadata):
            continue
        past = recorded_changes(annotations)
        found.extend(
            FoundChange(
                workload or controller.controls or controller.ref,
                msgspec.structs.replace(change, gpus=max(change.gpus, 0), priority_class=priority_class),
                starter=_starter(controller),
            )
            for change in past
            if change.is_readable and change.takes
        )
        if UNREADABLE in past:
            which = f"its annotation {UNDO_ANNOTATION} or {HISTORY_ANNOTATION}"
            problems.append(f"{controller.ref}: {which} cannot be read; it counts as changed right now")
    running = {
        (f"{pod.ref.namespace}/{pod.ref.name}", manifest_name(pod.ref))
        for pod in pods
        if not pod.is_terminating
    }
    found.extend(evictions_of(meta for meta in evictions if (_pod_of(meta), meta.name) not in running))
    return sorted(found, key=lambda change: (change.at, change.ref)), sorted(problems)


def speaks_for(carrier: ObjectRef, workload: ObjectRef | None) -> bool:
    """Whether a record may name another workload: on what stops it in its place, or on the CronJob that created it."""
    if workload is None:
        return True
    kind = (carrier.group, carrier.kind)
    row = owner_kind(*kind)
    return workload.namespace == carrier.namespace and (
        kind in CONTROL_OBJECTS
        or (row is not None and row.starts_others)
        or (kind, (workload.group, workload.kind)) == STOPPED_FOR_OWNER
    )


def _recorded_workload(annotations: Mapping[str, str]) -> tuple[ObjectRef | None, str | None]:
    try:
        record = read_undo_record(annotations)
    except ValueError:
        record = None
    return (record.workload, record.priority_class) if record else (None, None)


def _starter(controller: ObjectSummary) -> ObjectRef | None:
    above, row = controller.metadata.controller, _row_above(controller.metadata)
    if above is None or row is None or not row.starts_others:
        return None
    return ObjectRef(above.api_version, above.kind, controller.ref.namespace, above.name, above.uid)


def is_copy(ref: ObjectRef, metadata: ObjectMeta) -> bool:
    """Whether a record was copied from the controller: ReplicaSets get a Deployment's annotations.

    Changes are made to the topmost controller, to objects of a CronJob or the like, and to what stops others in their
    place: its record names its own controller.
    """
    kind, above = (ref.group, ref.kind), metadata.controller
    if kind in CONTROL_OBJECTS:
        return False
    if kind == STOPPED_FOR_OWNER[0]:
        workload, _ = _recorded_workload(metadata.annotations or {})
        named = (workload.kind, workload.name, workload.uid) if workload is not None else None
        return named != ((above.kind, above.name, above.uid) if above is not None else None)
    row = _row_above(metadata)
    return row is not None and not row.starts_others


def _row_above(metadata: ObjectMeta) -> OwnerKind | None:
    above = metadata.controller
    return owner_kind(above.group, above.kind) if above is not None else None


def evictions_of(secrets: Iterable[ObjectMeta]) -> Iterator[FoundChange]:
    """The evictions that saved manifests record, by the metadata of their Secrets."""
    for secret in secrets:
        if secret.creation_timestamp is None:
            continue
        labels, annotations = secret.labels or {}, secret.annotations or {}
        namespace, _, name = _pod_of(secret).partition("/")
        ref = ObjectRef("v1", "Pod", namespace, name)
        if not is_possible(ref):
            ref = ObjectRef("v1", "Secret", secret.namespace, secret.name, secret.uid)
        gpus = annotations.get(GPUS_ANNOTATION, "")
        yield FoundChange(
            ref,
            ChangeRecord(
                secret.creation_timestamp,
                labels.get(MANIFEST_LABEL, ""),
                Action.EVICT.value,
                float(gpus) if re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,2})?", gpus) else 0,
                priority_class=annotations.get(CLASS_ANNOTATION),
            ),
        )


def _pod_of(secret: ObjectMeta) -> str:
    return (secret.annotations or {}).get(POD_ANNOTATION, "")


def is_past(change: ChangeRecord, at: datetime.datetime) -> bool:
    """Whether a change is not in the future, allowing for clock skew."""
    return max(change.at, change.ended or change.at) - at <= AHEAD


def drop_implausible_changes(fleet: Fleet, at: datetime.datetime) -> Fleet:
    """The fleet without impossible changes, which become problems; `at` is by Prometheus's clock."""
    offered = sum(sum(node.allocatable.values()) for node in fleet.nodes.values())
    kept: list[FoundChange] = []
    problems: list[str] = []
    unknown = [change for change in fleet.changes if not change.is_remembered and at - change.at < MONTH]
    if unknown:
        first = ", ".join(sorted({str(change.ref) for change in unknown})[:3])
        words = f"{count(len(unknown), 'recorded change')} unknown to the memory, such as of {first}"
        problems.append(f"{words}: charged to no budget")
    for change in fleet.changes:
        if why := _implausible_reason(change, offered, at):
            problems.append(f"{change.ref}: records a change {why}; it is charged to no budget")
        else:
            kept.append(change)
    if not problems:
        return fleet
    return dataclasses.replace(fleet, changes=tuple(kept), problems=(*fleet.problems, *problems))


def _implausible_reason(change: FoundChange, offered: int, at: datetime.datetime) -> str:
    if not is_past(change.record, at):
        return f"at {change.at.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC, which is in the future"
    if 0 < offered < change.record.gpus:
        return f"that freed {change.record.gpus} GPUs, but all nodes together have {offered}"
    return ""
