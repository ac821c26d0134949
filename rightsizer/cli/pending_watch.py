"""Watches for pods and objects of queues that wait for GPUs, so that a cycle begins within seconds."""

from collections.abc import Callable, Iterable
from typing import Any, Self

from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.demand_kinds import POD_DEMAND, DemandKind
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.inventory.pods import PodReader
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.watched import Collection, Connect, Watched


class PendingWatch:
    """While entered, a thread calls `found` for each object of one kind that begins to wait.

    Args:
        row: The kind. Of pods only those with GPUs count, of others all: they tell only in detail what they ask for.
        connect: A connection of the thread's own, with the present credentials; may raise RightsizerError.
        found: Returns quickly, and raises nothing.
        gates: The present scheduling gates of queues that the policy names.
    """

    def __init__(
        self,
        connect: Connect,
        found: Callable[[], None],
        row: DemandKind = POD_DEMAND,
        gates: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._gates = gates
        self._row = row
        self._found = found
        self._waiting: set[str] = set()
        self._resources = ResourceTable()
        collection = Collection(
            self._path,
            row.shape,
            put=self._put,
            drop=self._waiting.discard,
            lost=f"pending {row.of.plural} wait for the next scheduled cycle",
            selector=row.selector,
        )
        self._watched: Watched[Any] = Watched(collection, connect)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._watched.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """Let it end."""
        self._watched.__exit__(*exception)

    def _path(self, cluster: Cluster) -> str:
        """Of the collection in the best version that is served; empty if none is."""
        self._resources = resource_table(cluster.gpu_resources)
        of = self._row.of
        if not of.group:
            return f"/api/v1/{of.plural}"
        served = cluster.served().get(of.group, ())
        version = next((one for one in of.versions if one in served), "")
        is_there = version and any(
            one.name == of.plural for one in cluster.resources(f"{of.group}/{version}")
        )
        return f"/apis/{of.group}/{version}/{of.plural}" if is_there else ""

    def _put(self, item: Any) -> None:  # noqa: ANN401 - of the row's shape
        uid = item.metadata.uid
        if not self._waits(item):
            self._waiting.discard(uid)
        elif uid not in self._waiting:
            self._waiting.add(uid)
            self._found()

    def _waits(self, item: Any) -> bool:  # noqa: ANN401 - likewise
        if not isinstance(item, PodObject):
            return self._row.waits(item)
        pod = PodReader(self._resources, frozenset(self._gates()))(item).unschedulable
        # Until its claims exist, which is a moment later, it is unknown what the pod waits for.
        return pod is not None and pod.has_claims and not pod.why_not
