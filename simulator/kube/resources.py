"""The table of resources that the simulated API server serves; a further one is a row.

Must not know how objects are stored, checked or routed. Columns state what the real server's strategy of that
resource does (kubernetes/pkg/registry/*/strategy.go), so that no other file needs `if kind == ...` for it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from simulator.controlplane.thirdparty import third_party_kinds

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """One row: what a resource is called, where it lives and how its objects behave.

    Attributes:
        subresources: Served under `/{name}/`, such as "status" or "scale".
        fields: What field selectors may name, besides metadata.name and metadata.namespace.
        generation: Whether objects carry metadata.generation, bumped with each change of `spec`.
        generation_on_annotations: Whether a change of annotations bumps it too (Deployments only).
        orphans_by_default: Whether deletion without a propagationPolicy leaves dependents (batch/v1 Jobs).
        returns_deleted: Whether an immediate deletion answers with the object instead of a Status.
        unconditional_update: Whether a PUT without resourceVersion is accepted.
        create_on_update: Whether a PUT of what does not exist creates it.
        status_on_create: Whether `status` is accepted in a POST (Nodes only).
        status_keeps: Metadata that a write to `/status` cannot change.
        is_custom: Whether it is of a CustomResourceDefinition, so that its objects are kept as they come.
        replicas: Path of the number that its scale subresource is about.
        typed: Of what is custom: paths in `spec`, and whether a boolean, an integer from 0 or a string stands there.
        verbs: What the main resource answers to.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    generation: bool = False
    generation_on_annotations: bool = False
    orphans_by_default: bool = False
    returns_deleted: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    status_on_create: bool = False
    status_keeps: tuple[str, ...] = ("ownerReferences",)
    is_custom: bool = False
    replicas: tuple[str, ...] = ("spec", "replicas")
    typed: tuple[tuple[str, str], ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in the server's messages: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)

RESOURCES: tuple[Resource, ...] = (
    Resource(
        "",
        "v1",
        "Pod",
        "pods",
        subresources=("binding", "eviction", "status"),
        short_names=("po",),
        fields=_POD_FIELDS,
        generation=True,
        returns_deleted=True,
    ),
    Resource(
        "",
        "v1",
        "Node",
        "nodes",
        namespaced=False,
        subresources=("status",),
        short_names=("no",),
        fields=("spec.unschedulable",),
        status_on_create=True,
    ),
    Resource(
        "",
        "v1",
        "Namespace",
        "namespaces",
        namespaced=False,
        subresources=("status",),
        short_names=("ns",),
        fields=("status.phase",),
    ),
    Resource("", "v1", "Event", "events", short_names=("ev",), fields=_EVENT_FIELDS, create_on_update=True),
    Resource("", "v1", "ConfigMap", "configmaps", short_names=("cm",)),
    Resource("", "v1", "Secret", "secrets", fields=("type",)),
    Resource("", "v1", "Service", "services", subresources=("proxy", "status"), short_names=("svc",)),
    Resource("", "v1", "ServiceAccount", "serviceaccounts", short_names=("sa",), returns_deleted=True),
    Resource(
        "",
        "v1",
        "ReplicationController",
        "replicationcontrollers",
        subresources=("status",),
        short_names=("rc",),
        generation=True,
    ),
    Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
        subresources=("status",),
        short_names=("crd",),
        generation=True,
    ),
    Resource(
        "apps",
        "v1",
        "Deployment",
        "deployments",
        subresources=("scale", "status"),
        short_names=("deploy",),
        generation=True,
        generation_on_annotations=True,
        status_keeps=("labels", "ownerReferences"),
    ),
    Resource(
        "apps",
        "v1",
        "ReplicaSet",
        "replicasets",
        subresources=("scale", "status"),
        short_names=("rs",),
        fields=("status.replicas",),
        generation=True,
    ),
    Resource(
        "apps",
        "v1",
        "StatefulSet",
        "statefulsets",
        subresources=("scale", "status"),
        short_names=("sts",),
        generation=True,
    ),
    Resource(
        "apps",
        "v1",
        "DaemonSet",
        "daemonsets",
        subresources=("status",),
        short_names=("ds",),
        generation=True,
    ),
    Resource(
        "batch",
        "v1",
        "Job",
        "jobs",
        subresources=("status",),
        fields=("status.successful",),
        generation=True,
        orphans_by_default=True,
    ),
    Resource(
        "batch",
        "v1",
        "CronJob",
        "cronjobs",
        subresources=("status",),
        short_names=("cj",),
        generation=True,
    ),
    Resource(
        "policy",
        "v1",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        subresources=("status",),
        short_names=("pdb",),
        generation=True,
        unconditional_update=False,
    ),
    Resource(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        namespaced=False,
        short_names=("pc",),
        generation=True,
    ),
    Resource(
        "",
        "v1",
        "ResourceQuota",
        "resourcequotas",
        subresources=("status",),
        short_names=("quota",),
    ),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        namespaced=False,
        subresources=("status",),
        generation=True,
    ),
    Resource(
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        namespaced=False,
        generation=True,
    ),
    Resource(
        "coordination.k8s.io",
        "v1",
        "Lease",
        "leases",
        unconditional_update=False,
        create_on_update=True,
    ),
    Resource(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        subresources=("status",),
        short_names=("hpa",),
    ),
    Resource(
        "authorization.k8s.io",
        "v1",
        "SelfSubjectAccessReview",
        "selfsubjectaccessreviews",
        namespaced=False,
        verbs=("create",),
    ),
)

# Third parties' kinds, by the table from which a real control plane gets their definitions. Each is served in the
# version in which it is stored.
RESOURCES += tuple(
    Resource(
        kind.group,
        kind.versions[0],
        kind.kind,
        kind.plural,
        namespaced=kind.scope == "Namespaced",
        subresources=("scale", "status") if kind.scale else ("status",),
        generation=True,
        is_custom=True,
        replicas=tuple(kind.scale[0].lstrip(".").split(".")) if kind.scale else (),
        typed=tuple({**kind.fields, **kind.root}.items()),
    )
    for kind in third_party_kinds()
)
RESOURCES += (
    # Device claims, with no controller behind them.
    Resource(
        "resource.k8s.io", "v1", "ResourceClaim", "resourceclaims", subresources=("status",), generation=True
    ),
)

_BY_PATH = {(row.group, row.version, row.plural): row for row in RESOURCES}
# Where two kinds have one name the first is meant by it, the other by its name with its group.
_BY_KIND = {row.kind: row for row in reversed(RESOURCES)} | {
    f"{row.kind}.{row.group}": row for row in RESOURCES if row.group
}
_BY_GVK = {(row.api_version, row.kind): row for row in RESOURCES}


def by_path(group: str, version: str, plural: str) -> Resource | None:
    """The row behind a URL, if there is one."""
    return _BY_PATH.get((group, version, plural))


def is_custom(obj: Mapping[str, Any]) -> bool:
    """Whether an object is of a CustomResourceDefinition's kind."""
    row = _BY_GVK.get((obj["apiVersion"], obj["kind"]))
    return row is not None and row.is_custom


def by_kind(kind: str) -> Resource:
    """The row of a kind, such as Job, or Job.batch.volcano.sh."""
    return _BY_KIND[kind]


def of_object(obj: Mapping[str, Any]) -> Resource:
    """The row of an object by its apiVersion and kind."""
    return _BY_GVK[(obj["apiVersion"], obj["kind"])]


def group_versions(*, third_party: bool) -> dict[str, list[str]]:
    """The served versions of each named group, in the table's order; with those of third parties, or without."""
    served: dict[str, list[str]] = {}
    for row in RESOURCES:
        if row.is_custom and not third_party:
            continue
        if row.group and row.version not in served.setdefault(row.group, []):
            served[row.group].append(row.version)
    return served
