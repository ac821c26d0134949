"""Lists what the cluster knows of earlier changes: records on objects, saved manifests, the memory, and Events."""

import dataclasses
import http
import logging
from collections.abc import Iterator
from typing import Protocol, TypeVar

import msgspec

from rightsizer.changes.found_changes import evictions_of, is_copy
from rightsizer.changes.memory import NAME, ChangeMemory, MemoryStore, change_key
from rightsizer.changes.record_codec import MANIFEST_LABEL, MANIFEST_SELECTOR, RecordedEvent, recorded_changes
from rightsizer.config import FIELD_MANAGER
from rightsizer.errors import RequestRefused
from rightsizer.inventory.managers import controlled_workload
from rightsizer.inventory.owner_reader import scalable_kinds
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS, collection_of, scalable_row
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import read_record
from rightsizer.kube.api_objects import Metadata, ObjectMeta, SpecObject
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import owner_kind
from rightsizer.model import ChangeRecord, FoundChange, ObjectRef, Scalable
from rightsizer.model.change_record import Instant

log = logging.getLogger(__name__)
_OF_EVERY_CLUSTER = frozenset({"", "apps", "batch"})


class HasMetadata(Protocol):
    """Any object, as far as it is decoded."""

    metadata: ObjectMeta


T = TypeVar("T")
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
        for obj in items:
            metadata = obj.metadata
            yield ObjectRef(api_version, row.kind, metadata.namespace, metadata.name, metadata.uid), obj
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
    """Every change that an object, a saved manifest or the memory records, each once, latest first.

    Raises:
        ClusterError: A list could not be read whole.
    """
    found = [change for row in recordable_kinds(cluster) for change in _of_kind(cluster, row)]
    path = f"/api/v1/namespaces/{state_namespace}/secrets"
    secrets = _list_if_allowed(
        cluster, path, Metadata, label_selector=MANIFEST_LABEL, field_selector=MANIFEST_SELECTOR
    )
    found.extend(evictions_of(secret.metadata for secret in secrets))
    known = {change_key(change.record.run, change.ref) for change in found}
    memory = read_memory(cluster, state_namespace) or ChangeMemory()
    for key in sorted(memory.unreadable):
        log.warning("ConfigMaps %s-*: the key %.40r cannot be read", NAME, key)
    found = [
        _priced(change, memory.by_run.get(change_key(change.record.run, change.ref))) for change in found
    ]
    found += [change for key, change in memory.by_run.items() if key not in known]
    found.sort(key=lambda change: change.ref)
    return sorted(found, key=lambda change: change.at, reverse=True)


def _priced(change: FoundChange, remembered: FoundChange | None) -> FoundChange:
    """Take the price from the memory: whoever may change an object may write another one into it."""
    cost, currency = (
        (remembered.record.cost_per_hour, remembered.record.currency) if remembered else (0.0, "")
    )
    record = msgspec.structs.replace(change.record, cost_per_hour=cost, currency=currency)
    return dataclasses.replace(change, record=record)


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


def _of_kind(cluster: Cluster, row: Kind) -> Iterator[FoundChange]:
    is_control = row in CONTROL_OBJECT_KINDS  # its spec names the workload
    for ref, obj in list_objects(cluster, row, SpecObject, metadata_only=not is_control):
        if is_copy(ref, obj.metadata):
            continue
        past = recorded_changes(obj.metadata.annotations or {})
        record = _record(obj.metadata, row) if past else None
        about = controlled_workload(ref, obj) if past and is_control else None
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
    """The Events of gpu-rightsizer that the cluster still has, latest first.

    Raises:
        ClusterError: The list could not be read whole.
    """
    items = _list_if_allowed(cluster, "/api/v1/events", _Event, field_selector=f"source={FIELD_MANAGER}")
    found = []
    for event in items:
        of = event.involved_object
        if event.last_timestamp is not None:
            ref = ObjectRef(of.api_version, of.kind, of.namespace, of.name, of.uid)
            found.append(RecordedEvent(ref, event.last_timestamp, event.reason, event.message))
    return sorted(found, key=lambda event: (event.at, event.ref), reverse=True)


def _list_if_allowed(
    cluster: Cluster, path: str, kind: type[T], *, label_selector: str = "", field_selector: str = ""
) -> list[T]:
    try:
        return cluster.list_all(path, kind, label_selector=label_selector, field_selector=field_selector)
    except RequestRefused as refused:
        if refused.code != http.HTTPStatus.FORBIDDEN:
            raise
        log.warning("left out: %s", refused)
        return []
