"""Keeps what is taken also in ConfigMaps of our own namespace: what objects remember goes where they are replaced.

Remembered is before the change is made, and forgotten where that is refused: being cut short never makes us forget.
"""

import contextlib
import datetime
import logging
from collections.abc import Iterator

from rightsizer.changes.memory import (
    NAME,
    NAMES,
    ChangeMemory,
    Taken,
    key_of,
    merge_memories,
    owner_of,
    parse_memory,
    part_of,
    with_change,
    without_change,
)
from rightsizer.errors import ClusterError, RequestRefused
from rightsizer.kinds.patches import UndoRecord
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import ConfigMap
from rightsizer.model import Workload

log = logging.getLogger(__name__)


class MemoryStore:
    """The ConfigMaps.

    Args:
        cluster: Where.
        namespace: Our own.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        contents = "the history of changes"
        self._parts = [ConfigMap(cluster, namespace, name, contents) for name in NAMES]
        self.place = f"ConfigMaps {namespace}/{NAME}-*"

    def read(self) -> ChangeMemory:
        """All that is remembered.

        Raises:
            ClusterError: It could not be read whole.
        """
        return merge_memories(parse_memory(part.read()) for part in self._parts)

    def of(self, workload: Workload) -> ChangeMemory:
        """What is remembered of a workload, and of what is kept with it.

        Raises:
            ClusterError: It could not be read.
        """
        return parse_memory(self._part(workload).read())

    @contextlib.contextmanager
    def kept(self, workload: Workload, record: UndoRecord, at: datetime.datetime) -> Iterator[None]:
        """Around the one request that takes something: it is remembered before, and forgotten where it is refused.

        Args:
            workload: As it was looked at.
            record: What it is to remember itself.
            at: Now.

        Raises:
            ClusterError: It could not be remembered; then nothing was sent.
            ValueError: There is no room for it.
        """
        past = record.as_past
        if not past.takes:
            yield
            return
        taken = Taken(workload.ref, past, workload.generation, record.idle, record.priority_class)
        part = self._part(workload)
        part.change(lambda texts: with_change(texts, taken, workload, at))
        try:
            yield
        except RequestRefused:
            try:
                part.change(lambda texts: without_change(texts, taken, workload))
            except ClusterError as error:
                log.warning("%s: a change that was refused stays remembered: %s", part.place, error)
            raise

    def _part(self, workload: Workload) -> ConfigMap:
        return self._parts[part_of(key_of(owner_of(workload)))]
