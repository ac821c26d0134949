"""What every controller works with: the registry, the clock, timers, and the few moves that all of them make."""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from simulator.kube.decoding import Target
from simulator.kube.deletion import DeleteOptions, delete
from simulator.kube.objects import (
    Object,
    controller_of,
    controller_reference,
    labels_of,
    name_of,
    namespace_of,
)
from simulator.kube.registry import Registry
from simulator.kube.resources import Resource, by_kind
from simulator.kube.selectors import Selector, from_object
from simulator.kube.store import Event, Record

Key = tuple[str, str, str]  # namespace, name, and where it matters which one of that name: UID


class Controller(Protocol):
    """One reconciler."""

    def keys(self, event: Event) -> Iterable[Key]:
        """What a change makes it look at again."""

    def reconcile(self, key: Key) -> None:
        """Bring what is behind the key closer to what it should be; with nothing to do, change nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """What every controller works with.

    Attributes:
        after: Reconciles a key again after some seconds of real time.
        later: The same, for deadlines: settling does not wait for them.
        termination_delay_s: How long containers take to terminate, in seconds of real time.
    """

    registry: Registry
    after: Callable[[float, Controller, Key], None]
    later: Callable[[float, Controller, Key], None]
    termination_delay_s: float

    def find(self, kind: str, namespace: str, name: str) -> Record | None:
        """The current version of an object, if it exists."""
        return self.registry.store.get(by_kind(kind), namespace, name)

    def rows(self, kind: str, namespace: str | None = None) -> list[Record]:
        """All objects of a kind."""
        return self.registry.store.rows(by_kind(kind), namespace)

    def create(self, kind: str, namespace: str, body: Mapping[str, Any]) -> Object:
        """Create a child. Raises ApiError where admission refuses it."""
        return self.registry.create(by_kind(kind), namespace, body)

    def delete(self, record: Record, *, grace_s: int | None = None) -> None:
        """Delete an object, its dependents in the background."""
        target = Target(record.resource, record.namespace, record.name)
        delete(self.registry, target, DeleteOptions(grace_s=grace_s, policy="Background"))

    def change(self, record: Record, edit: Callable[[Object], None], subresource: str = "") -> None:
        """Edit an object in place through the registry."""

        def apply(obj: Object) -> Object:
            edit(obj)
            return obj

        self.registry.change(Target(record.resource, record.namespace, record.name, subresource), apply)

    def set_status(self, record: Record, status: Mapping[str, Any]) -> None:
        """Replace an object's status."""
        self.change(record, lambda obj: obj.update(status=dict(status)), "status")

    def record_event(self, about: Record, kind: str, reason: str, message: str, *, component: str) -> None:
        """Record an Event; a repeated one increments its count."""
        now, namespace = self.registry.now(), about.namespace
        uid = about.obj["metadata"]["uid"]
        name = f"{about.name}.{zlib.crc32(f'{uid} {reason}'.encode()):08x}"
        known = self.find("Event", namespace, name)
        if known is not None:
            again = {"count": known.obj["count"] + 1, "lastTimestamp": now, "message": message}
            self.change(known, lambda obj: obj.update(again))
            return
        involved = {
            "apiVersion": about.resource.api_version,
            "kind": about.resource.kind,
            "namespace": namespace,
            "name": about.name,
            "uid": uid,
        }
        event = {
            "metadata": {"name": name},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": component},
            "reportingComponent": component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.create("Event", namespace, event)

    def children(self, owner: Record, kind: str) -> list[Record]:
        """The objects of a kind that the owner controls, after adopting orphans that its selector matches."""
        resource = by_kind(kind)
        selector = from_object(owner.obj["spec"].get("selector"))
        for orphan in self.registry.store.orphans(resource, owner.namespace):
            if _adoptable(orphan, selector):
                self._adopt(owner, orphan)
        return [
            row
            for row in self.registry.store.dependents(owner.obj["metadata"]["uid"])
            if row.resource is resource
            and (controller_of(row.obj) or {}).get("uid") == owner.obj["metadata"]["uid"]
        ]

    def _adopt(self, owner: Record, orphan: Record) -> None:
        reference = controller_reference(owner.resource, owner.obj)
        self.change(orphan, lambda obj: obj["metadata"].setdefault("ownerReferences", []).append(reference))


def _adoptable(orphan: Record, selector: Selector | None) -> bool:
    terminating = "deletionTimestamp" in orphan.obj["metadata"]
    return (
        bool(selector)
        and selector is not None
        and not terminating
        and selector.matches(labels_of(orphan.obj))
    )


def own_key(obj: Mapping[str, Any]) -> Key:
    """The key of an object itself."""
    return (namespace_of(obj), name_of(obj), "")


def owner_keys(event: Event, kind: str) -> Iterator[Key]:
    """The key of the controller of what changed, before and after, where it is of that kind."""
    for record in filter(None, (event.record, event.previous)):
        owner = controller_of(record.obj)
        if owner is not None and is_of(owner, kind):
            yield (record.namespace, owner["name"], "")


def matching_keys(event: Event, candidates: Iterable[Record]) -> Iterator[Key]:
    """The keys of the candidates that could adopt the changed object."""
    if controller_of(event.record.obj) is None:
        for row in candidates:
            selector = from_object(row.obj["spec"].get("selector"))
            if selector and selector.matches(labels_of(event.record.obj)):
                yield own_key(row.obj)


def is_of(owner: Mapping[str, Any], kind: str) -> bool:
    """Whether an owner reference is to that kind."""
    return (owner["kind"], owner["apiVersion"]) == (by_kind(kind).kind, by_kind(kind).api_version)


def is_kind(event: Event, kind: str) -> bool:
    """Whether a change is about that kind."""
    return event.record.resource is by_kind(kind)


def child_pod(owner: Record, template: Mapping[str, Any], resource: Resource) -> Object:
    """A pod made from an owner's template, yet without a name."""
    metadata = template.get("metadata", {})
    return {
        "metadata": {
            "labels": dict(metadata.get("labels", {})),
            "annotations": dict(metadata.get("annotations", {})),
            "finalizers": list(metadata.get("finalizers", [])),
            "ownerReferences": [controller_reference(resource, owner.obj)],
        },
        "spec": template["spec"],
    }


def share_of(value: int | str, total: int, *, round_up: bool) -> int:
    """An IntOrString such as 2 or "25%" as a number of `total`."""
    if isinstance(value, int):
        return value
    percent = int(value.removesuffix("%"))
    return -(-percent * total // 100) if round_up else percent * total // 100
