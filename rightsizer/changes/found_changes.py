"""The undo records that objects carry, and about which workloads they may be. Pure.

Anybody who may annotate an object can write one: it shows whether a change of the memory is in effect, and adds none.
"""

import datetime
from collections.abc import Iterable

from rightsizer.changes.record_codec import UNDO_ANNOTATION, read_undo_record
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.owner_kinds import (
    CONTROL_OBJECTS,
    STOPPED_FOR_OWNER,
    ObjectSummary,
    OwnerKind,
    owner_kind,
)
from rightsizer.model import UNREADABLE, ObjectRef


def recorded_changes(
    carriers: Iterable[ObjectSummary],
) -> tuple[dict[str, datetime.datetime], list[str]]:
    """When each workload was last changed according to undo records, and problems with records, in words.

    The time of a record that cannot be read is after all others.
    """
    found: dict[str, datetime.datetime] = {}
    problems: list[str] = []
    for item in carriers:
        if UNDO_ANNOTATION not in (item.metadata.annotations or {}) or is_copy(item.ref, item.metadata):
            continue
        record = UNREADABLE
        try:
            record = read_undo_record(item.metadata.annotations or {}) or UNREADABLE
        except ValueError:
            words = "cannot be read; it counts as changed right now"
            problems.append(f"{item.ref}: its annotation {UNDO_ANNOTATION} {words}")
        about = record.workload or item.controls or item.ref
        if not speaks_for(item.ref, record.workload):
            words = f"names {record.workload}, for which it cannot speak"
            problems.append(f"{item.ref}: its annotation {UNDO_ANNOTATION} {words}")
            about = item.controls or item.ref
        found[about.full_name] = max(record.at, found.get(about.full_name, record.at))
    return found, sorted(problems)


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


def is_copy(ref: ObjectRef, metadata: ObjectMeta) -> bool:
    """Whether a record was copied from the controller: ReplicaSets get a Deployment's annotations.

    Changes are made to the topmost controller, to objects of a CronJob or the like, and to what stops others in their
    place: its record names its own controller.
    """
    kind, above = (ref.group, ref.kind), metadata.controller
    if kind in CONTROL_OBJECTS:
        return False
    if kind == STOPPED_FOR_OWNER[0]:
        workload = _recorded_workload(metadata)
        named = (workload.kind, workload.name, workload.uid) if workload is not None else None
        return named != ((above.kind, above.name, above.uid) if above is not None else None)
    row = _row_above(metadata)
    return row is not None and not row.starts_others


def _row_above(metadata: ObjectMeta) -> OwnerKind | None:
    above = metadata.controller
    return owner_kind(above.group, above.kind) if above is not None else None


def _recorded_workload(metadata: ObjectMeta) -> ObjectRef | None:
    try:
        record = read_undo_record(metadata.annotations or {})
    except ValueError:
        return None
    return record.workload if record else None
