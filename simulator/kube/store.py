"""Versioned objects with a history, under one lock and one revision counter, as in etcd.

Stored objects never change in place: a record is a version.
"""

import bisect
import collections
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, cast

from simulator.kube.errors import Expired
from simulator.kube.objects import Object, controller_of, name_of, namespace_of
from simulator.kube.resources import Resource

Key = tuple[Resource, str, str]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

_HISTORY = 100_000  # events kept; older ones are compacted away
_SNAPSHOTS = 64  # paged lists in progress; the least recently begun is given up first


class Record:
    """One version of one object."""

    __slots__ = ("_item", "name", "namespace", "obj", "resource", "revision")

    def __init__(self, resource: Resource, obj: Object, revision: int) -> None:
        self.resource = resource
        self.obj: Mapping[str, Any] = obj
        self.revision = revision
        self.namespace = namespace_of(obj)
        self.name = name_of(obj)
        self._item: bytes | None = None

    @property
    def key(self) -> Key:
        """Where it is stored."""
        return (self.resource, self.namespace, self.name)

    @property
    def order(self) -> tuple[str, str]:
        """Lists are in this order, as etcd keeps its keys."""
        return (self.namespace, self.name)

    @property
    def item(self) -> bytes:
        """JSON as in a list: without kind and apiVersion. Made once per version."""
        if self._item is None:
            body = {key: value for key, value in self.obj.items() if key not in {"kind", "apiVersion"}}
            self._item = json.dumps(body, separators=(",", ":")).encode()
        return self._item

    @property
    def document(self) -> bytes:
        """JSON of the whole object."""
        head = f'{{"kind":"{self.resource.kind}","apiVersion":"{self.resource.api_version}",'
        return head.encode() + self.item[1:]

    def copy(self) -> Object:
        """A mutable copy; parsing the JSON is many times faster than a deep copy."""
        return cast("Object", json.loads(self.document))


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One change: `record` is the new version, or for DELETED the last one; `previous` what it replaced."""

    type: EventType
    record: Record
    previous: Record | None

    @property
    def revision(self) -> int:
        """The revision that this change made."""
        return self.record.revision


class Store:
    """All objects, their indices and their history. Every method may be called with or without `lock` held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.revision = 1
        self.compacted = 0
        self.listeners: list[Callable[[Event], None]] = []
        self._objects: dict[Resource, dict[str, dict[str, Record]]] = {}
        self._sorted: dict[Resource, list[Record]] = {}
        self._uids: dict[str, Record] = {}
        self._owned: dict[str, dict[Key, None]] = {}
        self._orphans: dict[tuple[Resource, str], dict[Key, None]] = {}
        self._history: collections.deque[Event] = collections.deque()
        self._snapshots: collections.OrderedDict[tuple[Resource, int], list[Record]] = (
            collections.OrderedDict()
        )

    # --- reading

    def get(self, resource: Resource, namespace: str, name: str) -> Record | None:
        """The current version, if the object exists."""
        with self.lock:
            return self._objects.get(resource, {}).get(namespace, {}).get(name)

    def by_uid(self, uid: str) -> Record | None:
        """The current version of the object with that UID."""
        with self.lock:
            return self._uids.get(uid)

    def rows(self, resource: Resource, namespace: str | None = None) -> list[Record]:
        """All current versions, of one namespace or of all, in key order."""
        with self.lock:
            if namespace is not None:
                return sorted(
                    self._objects.get(resource, {}).get(namespace, {}).values(), key=lambda row: row.name
                )
            if resource not in self._sorted:
                rows = (row for names in self._objects.get(resource, {}).values() for row in names.values())
                self._sorted[resource] = sorted(rows, key=lambda row: row.order)
            return self._sorted[resource]

    def dependents(self, uid: str) -> list[Record]:
        """What names the object with that UID as an owner, in order of creation."""
        with self.lock:
            return [self._require(key) for key in self._owned.get(uid, ())]

    def orphans(self, resource: Resource, namespace: str) -> list[Record]:
        """What has no controller."""
        with self.lock:
            return [self._require(key) for key in self._orphans.get((resource, namespace), ())]

    def _require(self, key: Key) -> Record:
        resource, namespace, name = key
        return self._objects[resource][namespace][name]

    # --- history

    def snapshot(self, resource: Resource, revision: int | None = None) -> tuple[int, list[Record]]:
        """All versions that were current at a revision: of now, or of a paged list in progress."""
        with self.lock:
            if revision is None:
                return self.revision, self.rows(resource)
            if (resource, revision) not in self._snapshots:
                raise Expired(
                    "The provided continue parameter is too old to display a consistent list result. "
                    "You must start a new list without the continue parameter."
                )
            return revision, self._snapshots[(resource, revision)]

    def keep(self, resource: Resource, revision: int, rows: list[Record]) -> None:
        """Keep a list, so that its next page shows the same state."""
        with self.lock:
            self._snapshots[(resource, revision)] = rows
            while len(self._snapshots) > _SNAPSHOTS:
                self._snapshots.popitem(last=False)

    def compact(self) -> None:
        """Forget all history up to now: continue tokens and old resourceVersions expire."""
        with self.lock:
            self._history.clear()
            self._snapshots.clear()
            self.compacted = self.revision

    def events_after(self, revision: int) -> list[Event]:
        """All changes since a revision, oldest first."""
        with self.lock:
            if revision < self.compacted:
                raise Expired(f"too old resource version: {revision} ({self.compacted})")
            start = bisect.bisect_right(self._history, revision, key=lambda event: event.revision)
            return [self._history[index] for index in range(start, len(self._history))]

    # --- writing

    def put(self, resource: Resource, obj: Object) -> Record:
        """Store a new version; the object must not be changed afterwards."""
        with self.lock:
            self.revision += 1
            obj["metadata"]["resourceVersion"] = str(self.revision)
            record = Record(resource, obj, self.revision)
            previous = self.get(resource, record.namespace, record.name)
            if previous is not None:
                self._unindex(previous)
            self._objects.setdefault(resource, {}).setdefault(record.namespace, {})[record.name] = record
            self._index(record)
            self._publish(Event("MODIFIED" if previous else "ADDED", record, previous))
            return record

    def remove(self, record: Record) -> Record:
        """Remove an object; what is returned is its last version, under the revision of the removal."""
        with self.lock:
            self.revision += 1
            last = record.copy()
            last["metadata"]["resourceVersion"] = str(self.revision)
            del self._objects[record.resource][record.namespace][record.name]
            self._unindex(record)
            gone = Record(record.resource, last, self.revision)
            self._publish(Event("DELETED", gone, record))
            return gone

    def _index(self, record: Record) -> None:
        self._sorted.pop(record.resource, None)
        self._uids[record.obj["metadata"]["uid"]] = record
        for uid in _owner_uids(record):
            self._owned.setdefault(uid, {})[record.key] = None
        if controller_of(record.obj) is None:
            self._orphans.setdefault((record.resource, record.namespace), {})[record.key] = None

    def _unindex(self, record: Record) -> None:
        self._sorted.pop(record.resource, None)
        self._uids.pop(record.obj["metadata"]["uid"], None)
        for uid in _owner_uids(record):
            self._owned[uid].pop(record.key)
            if not self._owned[uid]:
                del self._owned[uid]
        self._orphans.get((record.resource, record.namespace), {}).pop(record.key, None)

    def _publish(self, event: Event) -> None:
        self._history.append(event)
        if len(self._history) > _HISTORY:
            self.compacted = self._history.popleft().revision
        for listener in self.listeners:
            listener(event)
        self.changed.notify_all()


def _owner_uids(record: Record) -> Iterator[str]:
    references = record.obj["metadata"].get("ownerReferences", ())
    return iter(dict.fromkeys(str(reference["uid"]) for reference in references))
