"""ResourceQuotas: how much of each is used."""

from collections.abc import Iterator

from simulator.kube.controllers.context import Context, Key, is_kind, own_key
from simulator.kube.objects import is_terminating
from simulator.kube.quotas import status_of
from simulator.kube.store import Event


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
