"""The workload kinds that we know, and how each is stopped and put back. Pure; `apply` does the I/O.

To add a kind is to add a row to KINDS. A kind without a row is advised on, never touched.
"""

from rightsizer.model import Action, ObjectRef, WorkloadKind

KINDS = (
    # apps/v1: the pods go when spec.replicas is 0; PodDisruptionBudgets are not asked by the API server.
    WorkloadKind(
        "apps/v1", "Deployment", "deployments", Action.SCALE_TO_ZERO, "ScaledToZero", ("spec", "replicas"), 0
    ),
    WorkloadKind(
        "apps/v1",
        "StatefulSet",
        "statefulsets",
        Action.SCALE_TO_ZERO,
        "ScaledToZero",
        ("spec", "replicas"),
        0,
    ),
    # batch/v1: a suspended Job's pods are deleted without counting as failures; resumed, it starts anew (KEP-2232).
    WorkloadKind("batch/v1", "Job", "jobs", Action.SUSPEND, "Suspended", ("spec", "suspend"), True),  # noqa: FBT003
    # v1: nothing brings a bare pod back, so its manifest is saved before it is evicted.
    WorkloadKind("v1", "Pod", "pods", Action.EVICT, "Evicted"),
)

_BY_KIND = {(row.api_version, row.kind): row for row in KINDS}


def kind_of(ref: ObjectRef) -> WorkloadKind | None:
    """The row of an object's kind; None where there is none."""
    return _BY_KIND.get((ref.api_version, ref.kind))


def action_for(ref: ObjectRef) -> Action | None:
    """How an object's GPUs can be freed; None where no way is known."""
    row = kind_of(ref)
    return row.action if row else None


def path_of(ref: ObjectRef, row: WorkloadKind) -> str:
    """The object's URL path."""
    return f"{collection_of(row, ref.namespace)}/{ref.name}"


def collection_of(row: WorkloadKind, namespace: str = "") -> str:
    """URL path of the kind's collection, in one namespace or in all."""
    root = "/api/v1" if row.api_version == "v1" else f"/apis/{row.api_version}"
    return f"{root}/namespaces/{namespace}/{row.plural}" if namespace else f"{root}/{row.plural}"
