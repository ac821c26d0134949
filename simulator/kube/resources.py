"""The table of resources that the simulated API server serves; a further one is a row.

Must not know how objects are stored, checked or routed. Columns state what the real server's strategy of that
resource does (kubernetes/pkg/registry/*/strategy.go), so that no other file needs `if kind == ...` for it.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

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

_CUSTOM = (
    # Third parties' kinds that own GPU pods or decide about who does, and device claims: kept as they come, with no
    # controller behind them. Kinds that are also called like one above, such as Volcano's Job, are not among them.
    ("apps.nvidia.com", "v1alpha1", "NIMService"),
    ("argoproj.io", "v1alpha1", "Rollout"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    ("keda.sh", "v1alpha1", "ScaledObject"),
    ("kubeflow.org", "v1", "Notebook"),
    ("kubeflow.org", "v1", "PyTorchJob"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
    ("ray.io", "v1", "RayCluster"),
    ("ray.io", "v1", "RayJob"),
    ("resource.k8s.io", "v1", "ResourceClaim"),
    ("serving.kserve.io", "v1beta1", "InferenceService"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
)
RESOURCES += tuple(
    Resource(group, version, kind, f"{kind.lower()}s", subresources=("status",), generation=True)
    for group, version, kind in _CUSTOM
)

_BY_PATH = {(row.group, row.version, row.plural): row for row in RESOURCES}
_BY_KIND = {row.kind: row for row in RESOURCES}
_BY_GVK = {(row.api_version, row.kind): row for row in RESOURCES}


def by_path(group: str, version: str, plural: str) -> Resource | None:
    """The row behind a URL, if there is one."""
    return _BY_PATH.get((group, version, plural))


def by_kind(kind: str) -> Resource:
    """The row of a kind.

    Raises:
        KeyError: The table has no such kind.
    """
    return _BY_KIND[kind]


def of_object(obj: Mapping[str, Any]) -> Resource:
    """The row of an object by its apiVersion and kind.

    Raises:
        KeyError: The table has no such kind.
    """
    return _BY_GVK[(obj["apiVersion"], obj["kind"])]


def group_versions() -> dict[str, list[str]]:
    """The served versions of each named group, in the table's order."""
    served: dict[str, list[str]] = {}
    for row in RESOURCES:
        if row.group and row.version not in served.setdefault(row.group, []):
            served[row.group].append(row.version)
    return served
