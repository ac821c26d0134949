"""Check of recorded changes against the memory: anybody who may edit an object can write a record."""

import dataclasses
import functools
from collections.abc import Mapping

from rightsizer.changes.memory import ChangeKey, change_key
from rightsizer.execute.listing import read_memory
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import UndoItem
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import CONTROL_OBJECTS
from rightsizer.model import ChangeRecord, FoundChange, ObjectRef


@dataclasses.dataclass(frozen=True)
class KnownChanges:
    """The changes of the memory that took GPUs.

    Attributes:
        changes: None without the right to read the memory.
        is_whole: Whether all of it could be read; otherwise it disproves nothing.
    """

    changes: Mapping[ChangeKey, FoundChange] | None
    is_whole: bool

    @functools.cached_property
    def _workloads(self) -> frozenset[ChangeKey]:
        return frozenset(("", *key[1:]) for key in self.changes or ())

    def claimed(self, ref: ObjectRef, row: Kind, record: ChangeRecord) -> ChangeKey | None:
        """The change of which a record says to be, if the memory has it; for a scale-up, its workload without a run.

        It follows a change that took GPUs, and has a run of its own.
        """
        if self.changes is None or not self.is_whole:
            return change_key("", ref)
        workload = UndoItem(ref, row, record).workload
        if record.takes:
            key = change_key(record.run, workload)
            return key if key in self.changes else None
        key = change_key("", workload)
        return key if key in self._workloads else None

    def may_have(self, ref: ObjectRef, row: Kind, record: ChangeRecord | None) -> bool:
        """Whether the memory has the change; of an unreadable record, any that it could be about."""
        if self.changes is None or not self.is_whole:
            return True
        if record is not None and record.takes:
            return self.claimed(ref, row, record) is not None
        if row.of.starts_others or (ref.group, ref.kind) in CONTROL_OBJECTS:
            return any(key[2] == ref.namespace for key in self.changes)
        return change_key("", ref) in self._workloads


def read_known_changes(cluster: Cluster, state_namespace: str) -> KnownChanges:
    """Read the changes that the memory has; without the right to read it, log a warning.

    Raises:
        ClusterError: It could not be read.
    """
    memory = read_memory(cluster, state_namespace)
    if memory is None:
        return KnownChanges(None, is_whole=False)
    changes = {key: change for key, change in memory.by_run.items() if change.record.takes}
    return KnownChanges(changes, is_whole=not memory.unreadable)
