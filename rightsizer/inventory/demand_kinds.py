"""The kinds of objects that wait for GPUs, and how each is read: pods, Workloads, PodGroups, Jobs. Pure.

To add a kind of demand is to add a row to DEMAND_KINDS.
"""

import contextlib
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rightsizer.changes.record_codec import UNDO_ANNOTATION
from rightsizer.inventory.kueue_queues import (
    KueueTable,
    PodSet,
    PodTemplate,
    Queues,
    WorkloadObject,
    queue_problem,
)
from rightsizer.inventory.pod_groups import VOLCANO, GroupObject, PodGroup
from rightsizer.inventory.unschedulable_pods import waits_for_node
from rightsizer.kube.api_objects import ABSENT, Condition, ObjectMeta, OwnerReference, PodObject, SpecObject
from rightsizer.kube.owner_kinds import (
    JOB,
    KUEUE,
    ObjectSummary,
    OwnerKind,
    missing_owners,
    object_key,
    owner_key,
)
from rightsizer.model import ObjectRef

_ENDS = frozenset({"Complete", "Failed"})
"""Conditions of a Job that has ended."""


class Template(NamedTuple):
    """Pods that do not exist yet."""

    pod: PodTemplate
    replicas: int
    default_class: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """An object that waits for its pods to be created or released.

    Attributes:
        topology: The label of which their nodes must have the same value.
        kueue: Where it is Kueue's.
        queue: Of Volcano, whose quota it takes.
        why_not: Why freeing GPUs would not help, or cannot be said to.
        created: As a WaitingPod's.
    """

    ref: ObjectRef
    templates: tuple[Template, ...] = ()
    topology: str = ""
    kueue: WorkloadObject | None = None
    queue: str = ""
    why_not: str = ""
    created: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DemandKind:
    """One kind of object that waits for GPUs.

    Attributes:
        of: Where it is served.
        shape: Its fields.
        waits: Whether one waits.
        words: What of it waits, and how its demand is read, for people.
        selector: A field selector for those that may wait.
        is_watched: Whether one that begins to wait begins a cycle.
    """

    of: OwnerKind
    shape: Any
    waits: Callable[[Any], bool]
    words: str
    selector: str = ""
    is_watched: bool = True


class _JobSpec(msgspec.Struct, rename="camel"):
    template: msgspec.Raw = ABSENT
    suspend: bool = False
    parallelism: int = 1
    completions: int | None = None
    managed_by: str = ""


class _JobStatus(msgspec.Struct):
    succeeded: int = 0
    conditions: list[Condition] | None = None


class JobObject(msgspec.Struct):
    """batchv1.Job; its template is only decoded if it waits."""

    metadata: ObjectMeta
    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)

    def waits(self) -> bool:
        """Whether somebody suspended it, and not gpu-rightsizer."""
        is_over = any(one.type in _ENDS and one.status == "True" for one in self.status.conditions or ())
        is_gone = self.metadata.deletion_timestamp is not None or is_over
        return self.spec.suspend and not is_gone and UNDO_ANNOTATION not in (self.metadata.annotations or {})

    def is_of(self, queues: Collection[str]) -> bool:
        """Whether a label, or spec.managedBy, says that one of these queues suspended it."""
        return self.spec.managed_by in queues or not (self.metadata.labels or {}).keys().isdisjoint(queues)

    @property
    def pods(self) -> int:
        """Number of pods that it would have at once."""
        left = self.spec.completions
        most = self.spec.parallelism
        return most if left is None else min(most, max(0, left - self.status.succeeded))


class _Phase(msgspec.Struct):
    phase: str = ""


class PhaseObject(msgspec.Struct):
    """A PodGroup of Volcano, only with its phase."""

    metadata: ObjectMeta
    status: _Phase = msgspec.field(default_factory=_Phase)


POD_DEMAND = DemandKind(
    OwnerKind("", ("v1",), "Pod", "pods"),
    PodObject,
    waits_for_node,
    "no node has the resources; gangs by the PodGroups of scheduler-plugins, Volcano, KAI and Kubernetes",
    selector="status.phase=Pending",
)
DEMAND_KINDS = (
    POD_DEMAND,
    DemandKind(
        KUEUE,
        WorkloadObject,
        WorkloadObject.waits,
        "no quota is reserved; pods by spec.podSets, quota by its ClusterQueue, cohort and flavors",
    ),
    DemandKind(
        VOLCANO,
        PhaseObject,
        lambda item: item.status.phase == "Pending",
        "Volcano creates no pods yet; pods by the templates of its owner, quota by its Queue",
    ),
    DemandKind(
        JOB,
        JobObject,
        JobObject.waits,
        "suspended by a queue of `demand.suspendedJobs`; a gang of as many pods as run at once",
        is_watched=False,
    ),
)


def demand_kind(ref: ObjectRef) -> DemandKind | None:
    """The row of an object that waits."""
    return next((row for row in DEMAND_KINDS if (row.of.group, row.of.kind) == (ref.group, ref.kind)), None)


# --- Templates


_KUBEFLOW = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}
TEMPLATE_OWNERS = {
    ("batch.volcano.sh", "Job"): "tasks",
    **{("kubeflow.org", kind): field for kind, field in _KUBEFLOW.items()},
}
"""Owners of Volcano's PodGroups, and the field of their spec that holds templates with `replicas`."""


class _Replicas(msgspec.Struct):
    template: PodTemplate
    replicas: int = 1


class _Job(msgspec.Struct, rename="camel"):
    priority_class_name: str = ""


def templates_in(kind: tuple[str, str], spec: bytes) -> tuple[Template, ...]:
    """The pod templates of a PodGroup's owner.

    Raises:
        msgspec.DecodeError: They cannot be read.
    """
    field = TEMPLATE_OWNERS[kind]
    parts = msgspec.json.decode(spec, type=dict[str, msgspec.Raw]).get(field, msgspec.Raw(b"[]"))
    shape: Any = list[_Replicas] if field == "tasks" else dict[str, _Replicas]
    found = msgspec.json.decode(parts, type=shape)
    default = msgspec.json.decode(spec, type=_Job).priority_class_name
    rows: Iterable[_Replicas] = found if isinstance(found, list) else found.values()
    return tuple(Template(one.template, one.replicas, default) for one in rows)


def template_owner(group: GroupObject) -> str:
    """The key of the owner with the templates of a PodGroup's pods; empty if it is of no kind that has them."""
    owner = group.metadata.controller
    is_known = owner is not None and (owner.group, owner.kind) in TEMPLATE_OWNERS
    return owner_key(owner, group.metadata.namespace) if owner is not None and is_known else ""


def template_owners(
    groups: Iterable[GroupObject],
) -> Mapping[OwnerKind, Mapping[str, tuple[OwnerReference, str]]]:
    """Owners of templates with their namespaces, by kind and key: each once, however many PodGroups name it."""
    named = ((one.metadata.controller, one.metadata.namespace) for one in groups if template_owner(one))
    return missing_owners(((owner, namespace) for owner, namespace in named if owner is not None), {})


class TemplateTable:
    """The pod templates of PodGroups' owners of one kind, by key, collected page by page.

    Args:
        row: Their kind.
        keys: Which to keep.
    """

    def __init__(self, row: OwnerKind, keys: Collection[str]) -> None:
        self._row, self._keys = row, keys
        self.found: dict[str, tuple[Template, ...]] = {}

    def add(self, items: Iterable[SpecObject]) -> None:
        """Add a page of objects; those that cannot be read are unknown."""
        for item in items:
            ref = item.metadata.ref(self._row.api_version, self._row.kind)
            key = object_key(ObjectSummary(ref, item.metadata))
            if key in self._keys:
                with contextlib.suppress(msgspec.DecodeError):
                    self.found[key] = templates_in((self._row.group, self._row.kind), bytes(item.spec))


def queued_workload(item: WorkloadObject, version: str, queues: Queues) -> Queued:
    """A Workload that waits for quota."""
    ref = item.metadata.ref(f"{KUEUE.group}/{version}", KUEUE.kind)
    try:
        sets = msgspec.json.decode(item.spec.pod_sets, type=list[PodSet] | None) or []
    except msgspec.DecodeError as error:
        return Queued(ref, why_not=f"its podSets cannot be read: {error}")
    asked = [one.topology_request for one in sets if one.topology_request is not None]
    levels = {one.required for one in asked if one.required}
    is_unknown = len(levels) > 1 or any(one.pod_set_slice_required_topology for one in asked)
    why_not = item.why_not() or queue_problem(queues.of(item), queues)
    return Queued(
        ref,
        tuple(Template(one.template, one.count) for one in sets),
        topology=next(iter(levels), ""),
        kueue=item,
        why_not=why_not or ("it needs several topologies at once" if is_unknown else ""),
        created=item.metadata.creation_timestamp,
    )


def queued_job(item: JobObject, queues: Collection[str]) -> Queued:
    """A suspended Job."""
    ref = item.metadata.ref(JOB.api_version, JOB.kind)
    try:
        template = msgspec.json.decode(item.spec.template, type=PodTemplate)
    except msgspec.DecodeError as error:
        return Queued(ref, why_not=f"its template cannot be read: {error}")
    why_not = "" if item.is_of(queues) else "whether a queue or a person suspended it is unknown"
    created = item.metadata.creation_timestamp
    return Queued(ref, (Template(template, item.pods),), why_not=why_not, created=created)


def queued_group(item: GroupObject, group: PodGroup, templates: Sequence[Template] | None) -> Queued:
    """A PodGroup of Volcano whose pods are not created yet."""
    ref = item.metadata.ref(VOLCANO.api_version, VOLCANO.kind)
    why_not = group.why_not or ("what pods its owner would create is unknown" if templates is None else "")
    return Queued(
        ref,
        tuple(templates or ()),
        group.topology,
        queue=group.queue,
        why_not=why_not,
        created=item.metadata.creation_timestamp,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NamedQueues:
    """Queues and gangs that an administrator names, because nothing else tells of them.

    Attributes:
        gates: The scheduling gates of pods that queues hold back.
        jobs: Labels, or values of spec.managedBy, of Jobs that queues suspend.
        gang_labels: Labels of pods; those with the same value in a namespace are a gang.
    """

    gates: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    gang_labels: frozenset[str] = frozenset()


NO_QUEUES = NamedQueues()


def waiting_jobs(items: Iterable[JobObject], kueue: KueueTable) -> Iterator[JobObject]:
    """The suspended Jobs that wait, or may: not those of Kueue, whose Workloads tell, or that a controller suspends.

    A controller suspends its Jobs with itself, whatever their labels say; gpu-rightsizer may have suspended it.
    """
    of_kueue = {
        owner.ref(one.namespace)
        for one in kueue.metadata
        if one.deletion_timestamp is None
        for owner in one.owner_references or ()
    }
    for item in items:
        above = item.metadata.controller
        is_own = above is None or above.kind == "CronJob"
        if item.waits() and item.metadata.ref(JOB.api_version, JOB.kind) not in of_kueue and is_own:
            yield item
