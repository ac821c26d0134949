"""The workload kinds that we know, and how each is stopped, shrunk and put back. Pure; `act` does the I/O.

To add a kind is to add a row to its family's table. A kind without a row is stopped by the field behind its scale
subresource, where that is known; otherwise it is advised on, never touched.
"""

from rightsizer.kinds import appwrapper, argo, control_objects, core, kubeflow, ray, serving, sigs, volcano
from rightsizer.kinds.fields import Field, Value
from rightsizer.kinds.kind import Kind, PauseSupport, scaled
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import Action, ObjectRef, Proposal, Scalable, Workload

KINDS: tuple[Kind, ...] = (
    *core.KINDS,
    *sigs.KINDS,
    *kubeflow.KINDS,
    *serving.KINDS,
    *ray.KINDS,
    *argo.KINDS,
    *volcano.KINDS,
    *appwrapper.KINDS,
)
CONTROL_OBJECT_KINDS = control_objects.LEVERS

RECORDABLE_KINDS = frozenset((row.group, row.kind) for row in KINDS if row is not core.POD)
"""Groups and kinds whose objects carry a record of what was done to them; levers are read in any case."""

_BY_KIND = {(row.group, row.kind): row for row in KINDS}
_LEVERS = {(row.group, row.kind): row for row in CONTROL_OBJECT_KINDS}


def kind_of(ref: ObjectRef) -> Kind | None:
    """The row of an object's kind; None where there is none."""
    return _BY_KIND.get((ref.group, ref.kind))


def row_of(workload: Workload) -> Kind | None:
    """The row of a workload's kind, made up from its scale subresource where there is none; None without either."""
    known, ref = kind_of(workload.ref), workload.ref
    if known is not None or workload.scalable is None or not workload.scalable.replicas:
        return known
    group, _, version = ref.api_version.rpartition("/")
    return scalable_row(group, version, ref.kind, workload.scalable)


def scalable_row(group: str, version: str, kind: str, found: Scalable) -> Kind:
    """The row of a kind of which only its scale is known."""
    replicas = Field(found.replicas, Value.COUNT)
    return Kind(
        group,
        kind,
        source="its CustomResourceDefinition",
        lost="memory of its pods; how its controller deletes them is unknown",
        stop=scaled(replicas),
        replicas=replicas,
        has_scale=True,
        where=OwnerKind(group, (version,), kind, found.plural, found.replicas),
    )


def stopped_by(workload: Workload) -> tuple[ObjectRef, Kind] | None:
    """The object that is changed to stop a workload, itself or its lever, and its row; None where no way is known."""
    ref, row = workload.ref, row_of(workload)
    if workload.lever is not None:
        ref, row = workload.lever, _LEVERS[workload.lever.group, workload.lever.kind]
    return (ref, row) if row is not None else None


def action_for(workload: Workload) -> Action | None:
    """How a workload's GPUs can be freed; None where no way is known."""
    by = stopped_by(workload)
    return by[1].action if by else None


def is_ours_to_do(workload: Workload, action: Action, proposal: Proposal | None) -> bool:
    """Whether `apply` knows how to do it to a workload; otherwise it is advised, with the command."""
    row = row_of(workload)
    if row is None:
        return False
    if proposal is None:
        by = stopped_by(workload)
        return by is not None and by[1].action is action
    if workload.lever is not None:  # what it asks for is what it was admitted, or is scaled, with
        return False
    if proposal.replicas is not None:
        return row.replicas is not None or row.groups is not None
    return bool(row.containers) or pause_for(workload, proposal) is not None


def pause_for(workload: Workload, proposal: Proposal | None) -> PauseSupport | None:
    """What a proposal stops a workload for, to let it go on with less; None where nothing has to stop for it."""
    row = row_of(workload)
    if row is None or workload.lever is not None or proposal is None or proposal.gpus_per_pod is None:
        return None
    return row.pause


def path_of(ref: ObjectRef, row: Kind) -> str:
    """The object's URL path."""
    return f"{collection_of(row, ref.namespace, ref.api_version)}/{ref.name}"


def collection_of(row: Kind, namespace: str = "", api_version: str = "") -> str:
    """URL path of the kind's collection, in one namespace or in all; of the best version where none is said."""
    version = api_version or row.of.api_version
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{row.of.plural}" if namespace else f"{root}/{row.of.plural}"
