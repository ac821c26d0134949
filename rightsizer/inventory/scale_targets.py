"""Where a workload is stopped on another object than its own: Kueue's Workloads and KEDA's ScaledObjects. Pure.

Whoever is admitted as a whole by Kueue is suspended by it, and whoever KEDA scales is scaled back by it: so these are
told, not the workload.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping

from rightsizer.changes.records import RECORDS
from rightsizer.config import PREFIX
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.owner_kinds import KEDA, KUEUE, ObjectSummary, OwnerChain, owner_kind
from rightsizer.model import Manager, ObjectRef

PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
_JOB_UID = "kueue.x-k8s.io/job-uid"
_MANAGERS = {KUEUE.kind: "Kueue", KEDA.kind: "KEDA"}

Target = tuple[str, str, str, str]
"""API group, kind, namespace and name of what is scaled."""


class Levers:
    """Kueue's Workloads by the job that each stands for, and ScaledObjects by what they scale."""

    def __init__(
        self, queued: Iterable[ObjectSummary], scaling: Iterable[tuple[Target, ObjectSummary]]
    ) -> None:
        self._queued: dict[str, list[ObjectSummary]] = collections.defaultdict(list)
        for one in queued:
            self._queued[_job_of(one.metadata)].append(one)
        self._scaling: dict[Target, list[ObjectSummary]] = collections.defaultdict(list)
        for target, one in scaling:
            self._scaling[target].append(one)

    def of(self, line: OwnerChain) -> ObjectSummary | None:
        """What stops the top of a lineage in its place; None where that is itself, or where there are several."""
        ref = line.top.ref
        group = ref.api_version.rpartition("/")[0]
        found = list(self._scaling.get((group, ref.kind, ref.namespace, ref.name), ()))
        row = owner_kind(group, ref.kind)
        # Of what is scaled, not suspended, Kueue only queues the pods.
        if row is not None and row.size and row.size[-1] == "suspend" and ref.uid:
            found += self._queued.get(ref.uid, ())
        return found[0] if len(found) == 1 else None


def queue_about(metadata: ObjectMeta) -> ObjectRef | None:
    """The job that one of Kueue's Workloads stands for; None where that is named by its UID alone."""
    owner = metadata.controller
    if owner is None:
        return None
    return ObjectRef(owner.api_version, owner.kind, metadata.namespace, owner.name, owner.uid)


def _job_of(metadata: ObjectMeta) -> str:
    """UID of the job that a Workload stands for."""
    owner = metadata.controller
    return owner.uid if owner is not None and owner.uid else (metadata.labels or {}).get(_JOB_UID, "")


def through(manager: Manager, lever: ObjectSummary | None) -> Manager:
    """A manager as it behaves towards who changes the lever: what it is told itself it does not put back."""
    if lever is None or _MANAGERS[lever.ref.kind] != manager.kind:
        return manager
    return dataclasses.replace(manager, reverts=False)


def with_notes(annotations: Mapping[str, str], lever: ObjectSummary | None) -> dict[str, str]:
    """A workload's annotations, with ours on its lever: what was noted there is about the workload."""
    ours = {} if lever is None else (lever.metadata.annotations or {})
    wishes = {key: text for key, text in ours.items() if key.startswith(PREFIX)}
    records = {key: text for key, text in wishes.items() if key in RECORDS}
    return {**wishes, **annotations, **records}
