"""Watches for pods that wait for GPUs, so that a cycle begins within seconds.

A watch without a resourceVersion begins with all pods that are pending, so nothing has to be listed or remembered when
it begins again: after the server ended it, after an error, or after a restart of the API server.
https://kubernetes.io/docs/reference/using-api/api-concepts/#watch
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Self

from rightsizer.errors import RightsizerError
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.pods import PodTable
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster

LENGTH_S = 300.0
_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0

log = logging.getLogger(__name__)


class PendingWatch:
    """While entered, a thread calls `found` for each pod with GPUs that the scheduler cannot place.

    Args:
        connect: A connection of the thread's own, with the present credentials; may raise RightsizerError.
        found: Returns quickly, and raises nothing.
    """

    def __init__(self, connect: Callable[[], Cluster], found: Callable[[], None]) -> None:
        self._connect = connect
        self._found = found
        self._known: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pending-pods", daemon=True)

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
                    log.warning("pending pods wait for the next scheduled cycle: %s", error)
                told = str(error)
            lasted = time.monotonic() - began >= _LONGEST_PAUSE_S / 10
            pause_s = _SHORTEST_PAUSE_S if lasted or not told else min(2 * pause_s, _LONGEST_PAUSE_S)
            self._end.wait(pause_s)

    def _watch(self, cluster: Cluster) -> None:
        """Follow one watch until it ends. Of earlier pods it knows those that are still there when it begins."""
        resources = resource_table(cluster.gpu_resources)
        before, self._known = self._known, set()
        pods = cluster.watch("/api/v1/pods", PodObject, selector="status.phase=Pending", length_s=LENGTH_S)
        for change, pod in pods:
            if self._end.is_set():
                return
            uid, table = pod.metadata.uid, PodTable(resources)
            table.add([pod])
            if change == "DELETED" or not table.unschedulable:
                self._known.discard(uid)
                continue
            if uid not in before and uid not in self._known:
                self._found()
            self._known.add(uid)
