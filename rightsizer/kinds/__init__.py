"""The known workload kinds, and how each is stopped, scaled down and restored. Pure: `execute` does the I/O.

To add a kind, add a row to its family's table. A kind without a row is stopped by the field behind its scale
subresource if that is known; otherwise gpu-rightsizer only advises on it.
"""

from rightsizer.kinds import batch, core, serving
from rightsizer.kinds.kind import Field, Kind, PauseSupport, Value, scaled
from rightsizer.kube.object_names import api_path
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import Action, ObjectRef, Proposal, Scalable, Workload
from rightsizer.policy.recognition import runs_on_knative
from rightsizer.text import count

KINDS: tuple[Kind, ...] = (*core.KINDS, *batch.KINDS, *serving.KINDS)
CONTROL_OBJECT_KINDS = (batch.KUEUE_WORKLOAD, serving.SCALED_OBJECT)
"""Kinds of control objects, which stop a workload.

Kueue, or KEDA, would revert a change to the workload itself. The undo record is on the object that is changed.
"""

RECORDABLE_KINDS = frozenset((row.group, row.kind) for row in KINDS if row is not core.POD)
"""Groups and kinds of workloads that carry a change record; control objects are always read."""

_BY_KIND = {(row.group, row.kind): row for row in KINDS}
_CONTROL_OBJECTS = {(row.group, row.kind): row for row in CONTROL_OBJECT_KINDS}


def kind_of(ref: ObjectRef) -> Kind | None:
    """The row of an object's kind, if any."""
    return _BY_KIND.get((ref.group, ref.kind))


def row_for(ref: ObjectRef) -> Kind | None:
    """The row of an object's kind, also of control objects."""
    return kind_of(ref) or _CONTROL_OBJECTS.get((ref.group, ref.kind))


def row_of(workload: Workload) -> Kind | None:
    """The row of a workload's kind, or one from its scale subresource; None without either, and for gangs.

    Several writes would stop a gang, and what comes between them would leave a part of it.
    """
    known, ref = (None if workload.gang else kind_of(workload.ref)), workload.ref
    if known is not None and known.on_knative is not None and runs_on_knative(workload):
        return known.woken_by_knative()
    if known is not None:
        return known.in_state(workload.status)
    if workload.scalable is None or not workload.scalable.replicas:
        return None
    group, _, version = ref.api_version.rpartition("/")
    return scalable_row(group, version, ref.kind, workload.scalable)


def scalable_row(group: str, version: str, kind: str, found: Scalable) -> Kind:
    """The row of a kind with only a known scale subresource."""
    replicas = Field(found.replicas, Value.COUNT)
    return Kind(
        group,
        kind,
        lost="memory of its pods; how its controller deletes them is unknown",
        stop=scaled(replicas),
        replicas=replicas,
        has_scale=True,
        where=OwnerKind(group, (version,), kind, found.plural, found.replicas),
    )


def stopped_by(workload: Workload) -> tuple[ObjectRef, Kind] | None:
    """The object that is changed to stop a workload (itself or its control object), and its row; None if unknown."""
    ref, row = workload.ref, row_of(workload)
    if row is not None and row.stop is not None and row.stop.owned:
        below = [ref for ref in workload.owned if ref.kind == row.stop.owned]
        return (below[0], _BY_KIND[below[0].group, below[0].kind]) if len(below) == 1 else None
    if workload.control_object is not None and (row is None or row.is_usual):
        ref = workload.control_object
        row = _CONTROL_OBJECTS[ref.group, ref.kind]
    return (ref, row) if row is not None else None


CLUSTERS = {
    "SkyPilot": ("SkyPilot cluster", "sky down ends it"),
    "Ray": ("Ray cluster", "ray down ends it"),
    "Spark": ("Spark application", "it ends with its driver"),
    "Dask": ("Dask cluster", "its client ends it"),
    "Slurm": ("Slurm job", "scancel ends it"),
}
"""Clusters of bare pods by the kind of their gang: what they are called, and what ends them for good."""


def no_stop_reason(workload: Workload) -> str:
    """Why nothing stops a workload in its state."""
    row, ref = row_of(workload), workload.ref
    kind = f"{ref.kind} ({ref.api_version})"
    if workload.gang:
        called, end = CLUSTERS.get(ref.kind, (ref.kind if ref.kind != "Gang" else "gang", ""))
        named = f"the {called} {ref.name} ({count(len(workload.pods), 'GPU pod')})"
        return "; ".join(
            filter(None, (f"gpu-rightsizer cannot stop {named} as a whole, and stops no part of it", end))
        )
    why = ""
    if row is not None and row.state is not None:
        why = row.state.why or (f"no single {row.stop.owned} of its own was read" if row.stop else "")
    return (
        f"not possible for this {kind}: {why}"
        if why
        else f"gpu-rightsizer knows no safe way to stop a {kind}"
    )


def action_for(workload: Workload) -> Action | None:
    """The action that frees all GPUs of a workload; None if unknown."""
    by = stopped_by(workload)
    return by[1].action if by else None


def is_supported(workload: Workload, action: Action, proposal: Proposal | None) -> bool:
    """Whether `apply` supports the action on a workload; otherwise it is advised, with the command."""
    row = row_of(workload)
    if row is None:
        return False
    if proposal is None:
        by = stopped_by(workload)
        return by is not None and by[1].action is action
    # Kueue admitted it, or KEDA scales it, with these requests; what has ended runs no more pods.
    if workload.control_object is not None or not row.is_usual:
        return False
    if proposal.replicas is not None:
        return row.replicas is not None or row.groups is not None
    return bool(row.containers) or pause_for(workload, proposal) is not None


def pause_for(workload: Workload, proposal: Proposal | None) -> PauseSupport | None:
    """The suspension that a workload needs before a proposal is applied; None if it needs none."""
    row = row_of(workload)
    if (
        row is None
        or workload.control_object is not None
        or proposal is None
        or proposal.gpus_per_pod is None
    ):
        return None
    return row.pause


def path_of(ref: ObjectRef, row: Kind) -> str:
    """The object's URL path."""
    return api_path(ref.api_version or row.of.api_version, ref.namespace, row.of.plural, ref.name)


def collection_of(row: Kind, namespace: str = "", api_version: str = "") -> str:
    """URL path of the kind's collection, in one namespace or in all; by default of the best version."""
    return api_path(api_version or row.of.api_version, namespace, row.of.plural)
