"""Watches for pods and objects of queues that wait for GPUs, so that a cycle begins within seconds.

A watch without a resourceVersion begins with all objects that there are, so nothing has to be listed or remembered when
it begins again: after the server ended it, after an error, or after a restart of the API server.
https://kubernetes.io/docs/reference/using-api/api-concepts/#watch
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from rightsizer.errors import RightsizerError
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.demand import POD_DEMAND, DemandKind
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.inventory.pods import PodTable
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster

LENGTH_S = 300.0
_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0

log = logging.getLogger(__name__)


class PendingWatch:
    """While entered, a thread calls `found` for each object of one kind that begins to wait.

    Args:
        row: The kind. Of pods only those with GPUs count, of others all: they tell only in detail what they ask for.
        connect: A connection of the thread's own, with the present credentials; may raise RightsizerError.
        found: Returns quickly, and raises nothing.
    """

    def __init__(
        self, connect: Callable[[], Cluster], found: Callable[[], None], row: DemandKind = POD_DEMAND
    ) -> None:
        self._row = row
        self._connect = connect
        self._found = found
        self._known: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=f"pending-{row.of.plural}", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        """Let it end; a watch in progress ends with the process."""
        self._end.set()

    def _follow(self) -> None:
        pause_s, told = _SHORTEST_PAUSE_S, ""
        while not self._end.is_set():
            began = time.monotonic()
            try:
                with contextlib.closing(self._connect()) as cluster:
                    self._watch(cluster)
                told = ""
            except RightsizerError as error:
                if str(error) != told:
                    log.warning(
                        "pending %s wait for the next scheduled cycle: %s", self._row.of.plural, error
                    )
                told = str(error)
            lasted = time.monotonic() - began >= _LONGEST_PAUSE_S / 10
            pause_s = _SHORTEST_PAUSE_S if lasted or not told else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._end.wait(pause_s)

    def _watch(self, cluster: Cluster) -> None:
        """Follow one watch until it ends. Of earlier objects it knows those that are still there when it begins."""
        path = self._path(cluster)
        if not path:
            self._end.wait(LENGTH_S)  # its definition may be created later
            return
        resources = resource_table(cluster.gpu_resources)
        before, self._known = self._known, set()
        items = cluster.watch(path, self._row.shape, selector=self._row.selector, length_s=LENGTH_S)
        for change, item in items:
            if self._end.is_set():
                return
            uid = item.metadata.uid
            if change == "DELETED" or not self._waits(item, resources):
                self._known.discard(uid)
                continue
            if uid not in before and uid not in self._known:
                self._found()
            self._known.add(uid)

    def _path(self, cluster: Cluster) -> str:
        """Of the collection in the best version that is served; empty if none is."""
        of = self._row.of
        if not of.group:
            return f"/api/v1/{of.plural}"
        served = cluster.served().get(of.group, ())
        version = next((one for one in of.versions if one in served), "")
        is_there = version and any(
            one.name == of.plural for one in cluster.resources(f"{of.group}/{version}")
        )
        return f"/apis/{of.group}/{version}/{of.plural}" if is_there else ""

    def _waits(self, item: Any, resources: ResourceTable) -> bool:  # noqa: ANN401 - of the row's shape
        if not isinstance(item, PodObject):
            return self._row.waits(item)
        table = PodTable(resources)
        table.add([item])
        # Until its claims exist, which is a moment later, it is unknown what the pod waits for.
        return any(one.has_claims for one in table.unschedulable)
