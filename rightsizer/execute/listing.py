"""Lists what the cluster knows of earlier changes: the memory, records on objects, and Events."""

import dataclasses
import http
import logging
from collections.abc import Iterator, Mapping
from typing import Protocol, TypeVar

import msgspec

from rightsizer.changes.found_changes import is_copy
from rightsizer.changes.memory import NAME, ChangeMemory, MemoryStore
from rightsizer.changes.record_codec import HISTORY_ANNOTATION, UNDO_ANNOTATION, RecordedEvent, earlier_ends
from rightsizer.config import FIELD_MANAGER
from rightsizer.errors import RequestRefused
from rightsizer.inventory.managers import controlled_workload
from rightsizer.inventory.owner_reader import scalable_kinds
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS, collection_of, scalable_row
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import read_record
from rightsizer.kube.api_objects import ObjectMeta, SpecObject
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import owner_kind
from rightsizer.model import Action, ChangeRecord, FoundChange, ObjectRef, Scalable
from rightsizer.model.change_record import Instant

log = logging.getLogger(__name__)
_OF_EVERY_CLUSTER = frozenset({"", "apps", "batch"})


class HasMetadata(Protocol):
    """Any object, as far as it is decoded."""

    metadata: ObjectMeta


ObjectT = TypeVar("ObjectT", bound=HasMetadata)


def recordable_kinds(cluster: Cluster) -> Iterator[Kind]:
    """All kinds whose objects may carry a record: those with a row, control objects, and those with only a scale.

    Raises:
        ClusterError: The API server does not answer.
    """
    yield from KINDS
    yield from CONTROL_OBJECT_KINDS
    for where in scalable_kinds(cluster):
        found = Scalable(where.plural, where.size)
        yield scalable_row(where.group, where.versions[0], where.kind, found)


def list_objects(
    cluster: Cluster, row: Kind, of: type[ObjectT], *, metadata_only: bool = False
) -> Iterator[tuple[ObjectRef, ObjectT]]:
    """All objects of a kind; none if the cluster does not serve it, or does not allow the list, which is logged.

    Raises:
        ClusterError: One of Kubernetes's own kinds could not be listed, or a list is not whole.
    """
    for api_version in _versions(cluster, row):
        try:
            items = cluster.list_all(
                collection_of(row, api_version=api_version), of, metadata_only=metadata_only
            )
        except RequestRefused as refused:
            if refused.code == http.HTTPStatus.NOT_FOUND and row.group not in _OF_EVERY_CLUSTER:
                continue  # a group may serve a version without serving each kind in it
            if row.group in _OF_EVERY_CLUSTER or refused.code != http.HTTPStatus.FORBIDDEN:
                raise
            # Permissions on kinds without a row are not expected.
            level = logging.WARNING if owner_kind(row.group, row.kind) is not None else logging.INFO
            log.log(level, "%ss cannot be listed: %s", row.kind, refused)
            return
        for item in items:
            metadata = item.metadata
            yield ObjectRef(api_version, row.kind, metadata.namespace, metadata.name, metadata.uid), item
        return


def _versions(cluster: Cluster, row: Kind) -> Iterator[str]:
    """The API versions under which a kind is served, best first."""
    served = cluster.served().get(row.group, ()) if row.group else row.of.versions
    for version in row.of.versions:
        if version in served:
            yield f"{row.group}/{version}" if row.group else version


class _Involved(msgspec.Struct, rename="camel"):
    kind: str = ""
    namespace: str = ""
    name: str = ""
    api_version: str = ""
    uid: str = ""


class _Event(msgspec.Struct, rename="camel"):
    """corev1.Event."""

    involved_object: _Involved
    reason: str = ""
    message: str = ""
    last_timestamp: Instant | None = None


def list_changes(cluster: Cluster, state_namespace: str) -> list[FoundChange]:
    """Every change that the memory has, latest first, with what the undo record on its object says.

    Raises:
        ClusterError: A list could not be read whole.
    """
    memory = read_memory(cluster, state_namespace)
    if memory is None or (not memory.by_key and not memory.unreadable):
        return []
    for key in sorted(memory.unreadable):
        log.warning("ConfigMaps %s-*: the key %.40r cannot be read", NAME, key)
    carriers: dict[str, _Carrier] = {}
    for row in recordable_kinds(cluster):
        for about, carrier in _carriers(cluster, row):
            if carrier[1] is not None or about.full_name not in carriers:
                carriers[about.full_name] = carrier
    found = [_as_shown(item, carriers.get(item.ref.full_name)) for item in memory.by_run.values()]
    found.sort(key=lambda item: item.ref)
    return sorted(found, key=lambda item: item.at, reverse=True)


_Carrier = tuple[ObjectRef, ChangeRecord | None, Mapping[str, ChangeRecord]]
"""An object, its usable undo record, and changes of which an earlier release noted the end on it, by run."""


def _carriers(cluster: Cluster, row: Kind) -> Iterator[tuple[ObjectRef, _Carrier]]:
    """Each with its workload."""
    is_control = row in CONTROL_OBJECT_KINDS  # its spec names the workload
    for ref, item in list_objects(cluster, row, SpecObject, metadata_only=not is_control):
        annotations = item.metadata.annotations or {}
        if annotations.keys() & {UNDO_ANNOTATION, HISTORY_ANNOTATION} and not is_copy(ref, item.metadata):
            about = controlled_workload(ref, item) if is_control else None
            yield about or ref, (ref, _record(item.metadata, row), earlier_ends(annotations))


def _as_shown(item: FoundChange, carrier: _Carrier | None) -> FoundChange:
    """A change with its undo record; the memory has its time, GPUs and price, which others cannot write."""
    known = item.record
    if carrier is None or known.end is not None:
        return dataclasses.replace(item, is_recorded=known.action == Action.EVICT)
    ref, record, ends = carrier
    if (noted := ends.get(known.run)) is not None:
        known = msgspec.structs.replace(known, end=noted.end, ended=noted.ended)
    elif record is not None and record.run == known.run:
        kept = {name: getattr(known, name) for name in ("at", "gpus", "cost_per_hour", "currency")}
        known = msgspec.structs.replace(record, **kept)
    by = ref if ref.full_name != item.ref.full_name else None
    is_recorded = record is not None and record.at >= item.at
    return dataclasses.replace(item, record=known, carrier=by, is_recorded=is_recorded)


def read_memory(cluster: Cluster, state_namespace: str) -> ChangeMemory | None:
    """The memory; None, with a warning, without the right to read it.

    Raises:
        ClusterError: It could not be read.
    """
    try:
        return MemoryStore(cluster, state_namespace).read()
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("left out: %s", refused)
        return None


def _record(metadata: ObjectMeta, row: Kind) -> ChangeRecord | None:
    try:
        return read_record(metadata.annotations or {}, row)
    except ValueError as error:
        log.warning("%s/%s/%s: %s", metadata.namespace, row.kind, metadata.name, error)
        return None


def list_events(cluster: Cluster) -> list[RecordedEvent]:
    """The Events of gpu-rightsizer that the cluster still has, latest first.

    Raises:
        ClusterError: The list could not be read whole.
    """
    try:
        items = cluster.list_all("/api/v1/events", _Event, field_selector=f"source={FIELD_MANAGER}")
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("left out: %s", refused)
        return []
    found = []
    for item in items:
        of = item.involved_object
        if item.last_timestamp is not None:
            ref = ObjectRef(of.api_version, of.kind, of.namespace, of.name, of.uid)
            found.append(RecordedEvent(ref, item.last_timestamp, item.reason, item.message))
    return sorted(found, key=lambda one: (one.at, one.ref), reverse=True)
