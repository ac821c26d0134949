"""Namespaces: each has its default ServiceAccount; one that is deleted is emptied, then goes."""

from collections.abc import Iterator

from simulator.kube.controllers.context import Context, Key, is_kind, own_key
from simulator.kube.objects import is_terminating
from simulator.kube.quotas import status_of
from simulator.kube.resources import RESOURCES
from simulator.kube.store import Event


class Namespaces:
    """The namespace and service account controllers."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Namespaces, and what leaves them."""
        if is_kind(event, "Namespace"):
            yield ("", event.record.name, "")
        elif event.type == "DELETED" and event.record.namespace:
            yield ("", event.record.namespace, "")

    def reconcile(self, key: Key) -> None:
        """Furnish or empty a namespace."""
        record = self._context.find("Namespace", "", key[1])
        if record is None:
            return
        if not is_terminating(record.obj):
            if self._context.find("ServiceAccount", record.name, "default") is None:
                self._context.create("ServiceAccount", record.name, {"metadata": {"name": "default"}})
            return
        store = self._context.registry.store
        content = [row for kind in RESOURCES if kind.namespaced for row in store.rows(kind, record.name)]
        for row in content:
            if not is_terminating(row.obj):
                self._context.delete(row)
        left = any(store.rows(kind, record.name) for kind in RESOURCES if kind.namespaced)
        if not left and not record.obj["metadata"].get("finalizers"):
            store.remove(record)


class Quotas:
    """The quota controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Quotas, and those of a namespace in which something changes."""
        if is_kind(event, "ResourceQuota"):
            yield own_key(event.record.obj)
        elif event.record.namespace:
            yield from map(
                own_key, (row.obj for row in self._context.rows("ResourceQuota", event.record.namespace))
            )

    def reconcile(self, key: Key) -> None:
        """Count again."""
        quota = self._context.find("ResourceQuota", key[0], key[1])
        if quota is not None and not is_terminating(quota.obj):
            self._context.set_status(quota, status_of(self._context.registry.store, quota))
