"""The kinds that own pods, and the way from a pod to the topmost known of them. Pure.

To know a further kind is to add a row. A controller of a kind that is not here ends the way and is named as what it
is, also where it stands above a known one: whatever is changed below it, it would put back.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from rightsizer.kube.api_objects import ObjectMeta, OwnerReference
from rightsizer.model import ObjectRef, Scalable


@dataclasses.dataclass(frozen=True, slots=True)
class OwnerKind:
    """One kind of one API group.

    Attributes:
        versions: Those that hold the same fields, best first.
        size: Path of the field of its spec that stops it, replicas or a switch; empty where there is none.
        starts_others: It only makes the next one when the time has come; what is judged is what it made.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    size: tuple[str, ...] = ()
    starts_others: bool = False

    @property
    def api_version(self) -> str:
        """Of the best version."""
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]


_REPLICAS = ("spec", "replicas")
_SUSPEND = ("spec", "suspend")
_RUN_POLICY = ("spec", "runPolicy", "suspend")

KUEUE = OwnerKind("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "Workload", "workloads")
KEDA = OwnerKind("keda.sh", ("v1alpha1",), "ScaledObject", "scaledobjects")
LEVERS = frozenset({(KUEUE.group, KUEUE.kind), (KEDA.group, KEDA.kind)})
"""What is changed in place of a workload to stop it."""

OWNERS = (
    OwnerKind(
        "", ("v1",), "Pod", "pods"
    ),  # of a SparkApplication's executors, of a LeaderWorkerSet's workers
    OwnerKind("", ("v1",), "ReplicationController", "replicationcontrollers", _REPLICAS),
    OwnerKind("apps", ("v1",), "ReplicaSet", "replicasets", _REPLICAS),
    OwnerKind("apps", ("v1",), "Deployment", "deployments", _REPLICAS),
    OwnerKind("apps", ("v1",), "StatefulSet", "statefulsets", _REPLICAS),
    OwnerKind("apps", ("v1",), "DaemonSet", "daemonsets"),
    OwnerKind("batch", ("v1",), "Job", "jobs", _SUSPEND),
    OwnerKind("batch", ("v1",), "CronJob", "cronjobs", _SUSPEND, starts_others=True),
    OwnerKind("jobset.x-k8s.io", ("v1alpha2",), "JobSet", "jobsets", _SUSPEND),
    OwnerKind("leaderworkerset.x-k8s.io", ("v1",), "LeaderWorkerSet", "leaderworkersets", _REPLICAS),
    OwnerKind("kubeflow.org", ("v1",), "PyTorchJob", "pytorchjobs", _RUN_POLICY),
    OwnerKind("kubeflow.org", ("v1",), "TFJob", "tfjobs", _RUN_POLICY),
    OwnerKind("kubeflow.org", ("v2beta1", "v1"), "MPIJob", "mpijobs", _RUN_POLICY),
    OwnerKind("kubeflow.org", ("v1",), "XGBoostJob", "xgboostjobs", _RUN_POLICY),
    OwnerKind("kubeflow.org", ("v1",), "PaddleJob", "paddlejobs", _RUN_POLICY),
    OwnerKind("kubeflow.org", ("v1",), "JAXJob", "jaxjobs", _RUN_POLICY),
    OwnerKind("trainer.kubeflow.org", ("v1alpha1",), "TrainJob", "trainjobs", _SUSPEND),
    OwnerKind("kubeflow.org", ("v1", "v1beta1"), "Notebook", "notebooks"),
    OwnerKind("kubeflow.org", ("v1beta1",), "Workspace", "workspaces", ("spec", "paused")),
    OwnerKind("serving.kserve.io", ("v1beta1",), "InferenceService", "inferenceservices"),
    OwnerKind(
        "serving.kserve.io",
        ("v1alpha2", "v1alpha1"),
        "LLMInferenceService",
        "llminferenceservices",
        _REPLICAS,
    ),
    OwnerKind(
        "serving.knative.dev",
        ("v1",),
        "Service",
        "services",
        ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale"),
    ),
    OwnerKind("serving.knative.dev", ("v1",), "Configuration", "configurations"),
    OwnerKind("serving.knative.dev", ("v1",), "Revision", "revisions"),
    OwnerKind("apps.nvidia.com", ("v1alpha1",), "NIMService", "nimservices", _REPLICAS),
    OwnerKind("ray.io", ("v1", "v1alpha1"), "RayCluster", "rayclusters", _SUSPEND),
    OwnerKind("ray.io", ("v1", "v1alpha1"), "RayJob", "rayjobs", _SUSPEND),
    OwnerKind("ray.io", ("v1", "v1alpha1"), "RayService", "rayservices", _SUSPEND),
    OwnerKind("argoproj.io", ("v1alpha1",), "Rollout", "rollouts", _REPLICAS),
    OwnerKind("argoproj.io", ("v1alpha1",), "Workflow", "workflows", ("spec", "shutdown")),
    OwnerKind("argoproj.io", ("v1alpha1",), "CronWorkflow", "cronworkflows", _SUSPEND, starts_others=True),
    OwnerKind("batch.volcano.sh", ("v1alpha1",), "Job", "jobs"),
    OwnerKind("workload.codeflare.dev", ("v1beta2",), "AppWrapper", "appwrappers", _SUSPEND),
    OwnerKind(
        "sparkoperator.k8s.io", ("v1beta2",), "SparkApplication", "sparkapplications", ("spec", "suspend")
    ),
    OwnerKind(
        "sparkoperator.k8s.io",
        ("v1beta2",),
        "ScheduledSparkApplication",
        "scheduledsparkapplications",
        _SUSPEND,
        starts_others=True,
    ),
    OwnerKind("keda.sh", ("v1alpha1",), "ScaledJob", "scaledjobs", starts_others=True),
)

_BY_KIND = {(row.group, row.kind): row for row in OWNERS}


def owner_kind(group: str, kind: str) -> OwnerKind | None:
    """The row of a kind; None where it is not known."""
    return _BY_KIND.get((group, kind))


@dataclasses.dataclass(frozen=True, slots=True)
class Controlled:
    """An object that may own pods, as far as it was read.

    Attributes:
        size: What stopping it would change.
        is_read: Whether the object itself was; otherwise only what its dependents say of it is known.
        scalable: What discovery says of its kind, where that is none of those here.
        spec: Of what may be acted upon, as JSON; empty where it was not read.
        about: What is stopped by changing this in its place; None of what is no lever, or does not name it.
        written_by: Field managers who would write again what stopping it changes.
    """

    ref: ObjectRef
    metadata: ObjectMeta
    size: int | bool | None = None
    is_read: bool = True
    scalable: Scalable | None = None
    spec: bytes = b""
    about: ObjectRef | None = None
    written_by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Lineage:
    """The way up from the pods of one owner.

    Attributes:
        top: What is judged and acted upon; a bare pod itself.
        passed: The objects on the way, the top last.
        starter: What makes the top when the time has come, such as a CronJob.
    """

    top: Controlled
    passed: tuple[Controlled, ...]
    starter: OwnerReference | None = None


def lineage(owner: OwnerReference, namespace: str, controllers: Mapping[str, Controlled]) -> Lineage:
    """Follow owner references up from a pod's; a circle ends at an object that counts as unread, so untouchable."""
    above: OwnerReference | None = owner
    passed: list[Controlled] = []
    seen: set[str] = set()
    while above is not None:
        row = owner_kind(above.group, above.kind)
        if row is not None and row.starts_others and passed:
            return Lineage(passed[-1], tuple(passed), starter=above)
        here = controllers.get(owner_key(above, namespace))
        if here is None or key_of(here) in seen:
            here = unread(above, namespace)
            passed.append(here)
            break
        seen.add(key_of(here))
        passed.append(here)
        above = here.metadata.controller
    return Lineage(passed[-1], tuple(passed))


def unread(owner: OwnerReference, namespace: str) -> Controlled:
    """An owner of which nothing is known but what its dependent says."""
    ref = ObjectRef(owner.api_version, owner.kind, namespace, owner.name, owner.uid)
    metadata = ObjectMeta(name=owner.name, namespace=namespace, uid=owner.uid)
    return Controlled(ref, metadata, is_read=False)


def owner_key(owner: OwnerReference, namespace: str) -> str:
    """By what an owner is found: its UID, or its name where there is none, as in files written by hand."""
    return owner.uid or _named(owner.group, owner.kind, namespace, owner.name)


def key_of(item: Controlled) -> str:
    """The same of an object."""
    ref = item.ref
    return ref.uid or _named(ref.api_version.rpartition("/")[0], ref.kind, ref.namespace, ref.name)


def _named(group: str, kind: str, namespace: str, name: str) -> str:
    return f"{kind}.{group}/{namespace}/{name}"


def missing_owners(
    owners: Iterator[tuple[OwnerReference, str]], controllers: Mapping[str, Controlled]
) -> dict[OwnerKind, dict[str, tuple[OwnerReference, str]]]:
    """Owners of known kinds that are yet to be read, with their namespaces, by kind and key."""
    missing: dict[OwnerKind, dict[str, tuple[OwnerReference, str]]] = {}
    for owner, namespace in owners:
        row = owner_kind(owner.group, owner.kind)
        key = owner_key(owner, namespace)
        if row is not None and not row.starts_others and key not in controllers:
            missing.setdefault(row, {})[key] = (owner, namespace)
    return missing
