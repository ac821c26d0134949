"""The garbage collector: deletes or releases the dependents of deleted owners."""

import functools
from collections.abc import Iterator
from typing import Any

from simulator.kube.controllers.context import Context, Key
from simulator.kube.deletion import FOREGROUND, ORPHAN
from simulator.kube.objects import Object, is_terminating, uid_of
from simulator.kube.store import Event, Record


class GarbageCollector:
    """Follows ownerReferences by UID."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Owners that go, and dependents that come or change."""
        metadata = event.record.obj["metadata"]
        references = [entry["uid"] for entry in metadata.get("ownerReferences", ())]
        if event.type == "DELETED":
            yield ("", "", uid_of(event.record.obj))
            for uid in references:
                yield ("", "", uid)
        elif is_terminating(event.record.obj):
            yield ("", "", uid_of(event.record.obj))
        elif references and event.type == "ADDED":
            for uid in references:
                yield ("", "", uid)

    def reconcile(self, key: Key) -> None:
        """Look after the dependents of the owner with that UID."""
        owner = self._context.registry.store.by_uid(key[2])
        dependents = self._context.registry.store.dependents(key[2])
        if owner is None:
            for row in dependents:
                self._collect(row)
            return
        finalizers = owner.obj["metadata"].get("finalizers", ())
        if not is_terminating(owner.obj):
            return
        if ORPHAN in finalizers:
            self._release(dependents, key[2])
            self._finish(owner, ORPHAN)
        elif FOREGROUND in finalizers:
            for row in dependents:
                self._delete(row)
            if not self._context.registry.store.dependents(key[2]):
                self._finish(owner, FOREGROUND)

    def _collect(self, row: Record) -> None:
        """Delete a dependent, unless another of its owners is still there."""
        references = row.obj["metadata"]["ownerReferences"]
        owners = [self._context.registry.store.by_uid(entry["uid"]) for entry in references]
        if any(owner is not None and owner.namespace in {"", row.namespace} for owner in owners):
            self._context.change(row, lambda obj: _forget_absent(obj["metadata"], self._context))
        else:
            self._delete(row)

    def _delete(self, row: Record) -> None:
        if not is_terminating(row.obj):
            self._context.delete(row)

    def _release(self, dependents: list[Record], uid: str) -> None:
        for row in dependents:
            kept = [entry for entry in row.obj["metadata"]["ownerReferences"] if entry["uid"] != uid]
            self._context.change(row, functools.partial(_set_metadata, field="ownerReferences", value=kept))

    def _finish(self, owner: Record, finalizer: str) -> None:
        kept = [entry for entry in owner.obj["metadata"]["finalizers"] if entry != finalizer]
        self._context.change(owner, functools.partial(_set_metadata, field="finalizers", value=kept))


def _set_metadata(obj: Object, *, field: str, value: list[Any]) -> None:
    obj["metadata"][field] = value


def _forget_absent(metadata: dict[str, list[dict[str, str]]], context: Context) -> None:
    store = context.registry.store
    metadata["ownerReferences"] = [
        entry for entry in metadata["ownerReferences"] if store.by_uid(entry["uid"])
    ]
