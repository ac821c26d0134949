"""Reads what the cluster itself knows of earlier changes: notes on objects, saved manifests, our memory, Events."""

import http
import logging
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from rightsizer.changes.found_changes import evictions_of, is_copy
from rightsizer.changes.memory import NAME, MemoryStore
from rightsizer.changes.record_codec import MANIFEST_LABEL, RecordedEvent, recorded_changes
from rightsizer.config import FIELD_MANAGER
from rightsizer.errors import RequestRefused
from rightsizer.execute.listing import list_objects, recordable_kinds
from rightsizer.inventory.managers import controlled_workload
from rightsizer.kinds import CONTROL_OBJECT_KINDS
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import read_record
from rightsizer.kube.api_objects import Metadata, ObjectMeta, SpecObject
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeRecord, FoundChange, ObjectRef
from rightsizer.model.change_record import Instant

log = logging.getLogger(__name__)

T = TypeVar("T")


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
    """Every change that an object, a saved manifest or our own memory tells of, each once, latest first.

    Raises:
        ClusterError: A list could not be read whole.
    """
    found = [item for row in recordable_kinds(cluster) for item in _of_kind(cluster, row)]
    path = f"/api/v1/namespaces/{state_namespace}/secrets"
    secrets = _where_allowed(cluster, path, Metadata, label_selector=MANIFEST_LABEL)
    found.extend(evictions_of(item.metadata for item in secrets))
    told = {_key(item.ref, item.record) for item in found}
    found += [item for item in _kept(cluster, state_namespace) if _key(item.ref, item.record) not in told]
    found.sort(key=lambda item: item.ref)
    return sorted(found, key=lambda item: item.at, reverse=True)


def _key(ref: ObjectRef, change: ChangeRecord) -> tuple[str, str, str, str]:
    return change.run, ref.full_kind, ref.namespace, ref.name


def _kept(cluster: Cluster, state_namespace: str) -> list[FoundChange]:
    """What our own namespace remembers."""
    try:
        memory = MemoryStore(cluster, state_namespace).read()
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("left out: %s", refused)
        return []
    for key in sorted(memory.unreadable):
        log.warning("ConfigMaps %s-*: the key %.40r cannot be read", NAME, key)
    return [one for found in memory.by_key.values() for one in found]


def _of_kind(cluster: Cluster, row: Kind) -> Iterator[FoundChange]:
    is_lever = row in CONTROL_OBJECT_KINDS  # of these the spec says what they stop
    for ref, item in list_objects(cluster, row, SpecObject, metadata_only=not is_lever):
        if is_copy(ref, item.metadata):
            continue
        past = recorded_changes(item.metadata.annotations or {})
        record = _record(item.metadata, row) if past else None
        about = controlled_workload(ref, item) if past and is_lever else None
        for change in past:
            full = change
            if record is not None and change.is_readable and change.run == record.run:
                full = msgspec.structs.replace(record, end=change.end, ended=change.ended)
            yield FoundChange(about or ref, full, carrier=ref if about else None)


def _record(metadata: ObjectMeta, row: Kind) -> ChangeRecord | None:
    try:
        return read_record(metadata.annotations or {}, row)
    except ValueError as error:
        log.warning("%s/%s/%s: %s", metadata.namespace, row.kind, metadata.name, error)
        return None


def list_events(cluster: Cluster) -> list[RecordedEvent]:
    """The Events of ours that the cluster still has, latest first.

    Raises:
        ClusterError: The list could not be read whole.
    """
    items = _where_allowed(cluster, "/api/v1/events", _Event, field_selector=f"source={FIELD_MANAGER}")
    told = []
    for item in items:
        of = item.involved_object
        if item.last_timestamp is not None:
            ref = ObjectRef(of.api_version, of.kind, of.namespace, of.name, of.uid)
            told.append(RecordedEvent(ref, item.last_timestamp, item.reason, item.message))
    return sorted(told, key=lambda one: (one.at, one.ref), reverse=True)


def _where_allowed(
    cluster: Cluster, path: str, kind: type[T], *, label_selector: str = "", field_selector: str = ""
) -> list[T]:
    try:
        return cluster.list_all(path, kind, label_selector=label_selector, field_selector=field_selector)
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("left out: %s", refused)
        return []
