"""The kinds that own pods, and the owner chain from a pod up to the topmost known owner. Pure.

To add a kind is to add a row. A controller of an unknown kind ends the chain and becomes the workload itself, even
above a known kind: it would revert any change made below it.
"""

import dataclasses
import enum
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rightsizer.kube.api_objects import ObjectMeta, OwnerReference
from rightsizer.kube.pod_names import ANY_NAMES, FIVE_CHARACTERS, GROUPS, HASHES, ORDINALS, PodNames
from rightsizer.model import ObjectRef, Scalable


class Queueing(enum.Enum):
    """Treatment of an object with a queue by Kueue, as of 0.17 (pkg/controller/jobs)."""

    PODS = enum.auto()
    """Holds back its pods, and leaves the object itself alone."""
    WHOLE = enum.auto()
    """The same; its webhook refuses a change of replicas other than to and from 0."""
    SUSPENDED = enum.auto()
    """Suspends and resumes the object, and reverts what others do."""


@dataclasses.dataclass(frozen=True, slots=True)
class OwnerKind:
    """One kind of one API group.

    Attributes:
        versions: API versions with the same fields, best first.
        size: Path of the field that stops it (replicas or a switch); empty if there is none.
        ends: Whether it ends by itself: idle after activity, it is done.
        has_replicas: Whether its pods are interchangeable, maybe only within a role: fewer can serve the same requests.
        names: How its pods are named.
        starts_others: Whether it only creates another object on schedule, which becomes the workload.
        phase: Path of its state in its status, a text or conditions; empty if its status is not read.
        ended: The states in which it has ended.
        queueing: What Kueue does to an object with a queue.
        ends_autoscalers: Whether its stop removes the autoscalers that its operator made for it.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str
    size: tuple[str, ...] = ()
    ends: bool = False
    has_replicas: bool = False
    names: PodNames = ANY_NAMES
    starts_others: bool = False
    phase: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    queueing: Queueing = Queueing.PODS
    ends_autoscalers: bool = False

    @property
    def resource(self) -> str:
        """The name for kubectl, such as jobs.batch."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """The best API version."""
        return f"{self.group}/{self.versions[0]}" if self.group else self.versions[0]

    def states_in(self, status: bytes) -> frozenset[str]:
        """The state in a status by its name, or the types of True conditions; and ENDED if it has ended."""
        try:
            found: Any = msgspec.json.decode(status) if status else None
        except (msgspec.DecodeError, RecursionError):
            return frozenset()
        for step in self.phase:
            found = found.get(step) if isinstance(found, Mapping) else None
        entries = found if isinstance(found, list) else []
        conditions = [entry for entry in entries if isinstance(entry, Mapping)]
        true = (str(condition.get("type")) for condition in conditions if condition.get("status") == "True")
        names = frozenset({found} if isinstance(found, str) else true)
        return names | {ENDED} if names.intersection(self.ended) else names


ENDED = "(ended)"
"""Name of a state beside the kind's own: any in which it has ended."""

_REPLICAS = ("spec", "replicas")
_SUSPEND = ("spec", "suspend")
_RUN_POLICY = ("spec", "runPolicy", "suspend")
_MIN_SCALE = ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale")
_SHUTDOWN = ("spec", "shutdown")
_KSERVE = "serving.kserve.io"
_LLM = ("v1alpha2", "v1alpha1")
_SERVICES = ("spec", "services")
_SPARK = "sparkoperator.k8s.io"
_SCHEDULED = "ScheduledSparkApplication"

_serving = functools.partial(OwnerKind, has_replicas=True)
_queued = functools.partial(OwnerKind, queueing=Queueing.SUSPENDED)
_job = functools.partial(_queued, ends=True, phase=("conditions",), ended=("Succeeded", "Failed"))
_argo = functools.partial(OwnerKind, "argoproj.io", ("v1alpha1",))
_ray = functools.partial(_queued, "ray.io", ("v1", "v1alpha1"))
_COMPLETE = ("Complete", "Failed")
_RAY_ENDED = (*_COMPLETE, "ValidationFailed")
JOB = _job("batch", ("v1",), "Job", "jobs", _SUSPEND, ended=_COMPLETE)
_ENDED = ("Completing", "Completed", "Terminating", "Terminated", "Failed")  # JobPhase of Volcano
VOLCANO_JOB = OwnerKind(
    "batch.volcano.sh", ("v1alpha1",), "Job", "jobs", ends=True, phase=("state", "phase"), ended=_ENDED
)
KUEUE = OwnerKind("kueue.x-k8s.io", ("v1beta2", "v1beta1"), "Workload", "workloads")
KEDA = OwnerKind("keda.sh", ("v1alpha1",), "ScaledObject", "scaledobjects")
CONTROL_OBJECTS = frozenset({(KUEUE.group, KUEUE.kind), (KEDA.group, KEDA.kind)})
"""Kinds whose objects stop a workload in its place."""

STOPPED_FOR_OWNER = (("ray.io", "RayCluster"), ("ray.io", "RayJob"))
"""A kind that is stopped in place of its controller of the other kind, in some states of that."""

OWNERS = (
    # A pod owns a SparkApplication's executors and a LeaderWorkerSet's workers.
    OwnerKind("", ("v1",), "Pod", "pods", ends=True),
    _serving(
        "", ("v1",), "ReplicationController", "replicationcontrollers", _REPLICAS, names=FIVE_CHARACTERS
    ),
    _serving("apps", ("v1",), "ReplicaSet", "replicasets", _REPLICAS, names=FIVE_CHARACTERS),
    _serving("apps", ("v1",), "Deployment", "deployments", _REPLICAS, names=HASHES),
    _serving(
        "apps", ("v1",), "StatefulSet", "statefulsets", _REPLICAS, names=ORDINALS, queueing=Queueing.WHOLE
    ),
    OwnerKind("apps", ("v1",), "DaemonSet", "daemonsets"),
    JOB,
    OwnerKind("batch", ("v1",), "CronJob", "cronjobs", _SUSPEND, starts_others=True),
    _job("jobset.x-k8s.io", ("v1alpha2",), "JobSet", "jobsets", _SUSPEND, ended=("Completed", "Failed")),
    _serving(
        "leaderworkerset.x-k8s.io", ("v1",), "LeaderWorkerSet", "leaderworkersets", _REPLICAS, names=GROUPS
    ),
    _job("kubeflow.org", ("v1",), "PyTorchJob", "pytorchjobs", _RUN_POLICY),
    _job("kubeflow.org", ("v1",), "TFJob", "tfjobs", _RUN_POLICY),
    _job("kubeflow.org", ("v2beta1", "v1"), "MPIJob", "mpijobs", _RUN_POLICY),
    _job("kubeflow.org", ("v1",), "XGBoostJob", "xgboostjobs", _RUN_POLICY),
    _job("kubeflow.org", ("v1",), "PaddleJob", "paddlejobs", _RUN_POLICY),
    _job("kubeflow.org", ("v1",), "JAXJob", "jaxjobs", _RUN_POLICY),
    _job("trainer.kubeflow.org", ("v1alpha1",), "TrainJob", "trainjobs", _SUSPEND, ended=_COMPLETE),
    OwnerKind("kubeflow.org", ("v1", "v1beta1"), "Notebook", "notebooks"),
    OwnerKind("kubeflow.org", ("v1beta1",), "Workspace", "workspaces", ("spec", "paused")),
    _serving(_KSERVE, ("v1beta1",), "InferenceService", "inferenceservices", ends_autoscalers=True),
    _serving(_KSERVE, _LLM, "LLMInferenceService", "llminferenceservices", _REPLICAS, ends_autoscalers=True),
    OwnerKind("serving.knative.dev", ("v1",), "Service", "services", _MIN_SCALE),
    OwnerKind("serving.knative.dev", ("v1",), "Configuration", "configurations"),
    OwnerKind("serving.knative.dev", ("v1",), "Revision", "revisions"),
    _serving("apps.nvidia.com", ("v1alpha1",), "NIMService", "nimservices", _REPLICAS),
    # Dynamo makes a Deployment or LeaderWorkerSet of each component, or with Grove one PodCliqueSet of them all.
    # v1beta1, to which the API server converts, has a list of components in place of services.
    _serving("nvidia.com", ("v1alpha1",), "DynamoGraphDeployment", "dynamographdeployments", _SERVICES),
    OwnerKind(
        "nvidia.com", ("v1alpha1",), "DynamoComponentDeployment", "dynamocomponentdeployments", _REPLICAS
    ),
    OwnerKind("grove.io", ("v1alpha1",), "PodClique", "podcliques", _REPLICAS),
    OwnerKind("grove.io", ("v1alpha1",), "PodCliqueScalingGroup", "podcliquescalinggroups", _REPLICAS),
    _serving("grove.io", ("v1alpha1",), "PodCliqueSet", "podcliquesets", _REPLICAS),
    _ray("RayCluster", "rayclusters", _SUSPEND, has_replicas=True),
    _ray("RayJob", "rayjobs", _SUSPEND, ends=True, phase=("jobDeploymentStatus",), ended=_RAY_ENDED),
    _ray("RayService", "rayservices", _SUSPEND, has_replicas=True),
    _argo("Rollout", "rollouts", _REPLICAS, has_replicas=True, names=HASHES),
    _argo(
        "Workflow",
        "workflows",
        _SHUTDOWN,
        ends=True,
        phase=("phase",),
        ended=("Succeeded", "Failed", "Error"),
    ),
    _argo("CronWorkflow", "cronworkflows", _SUSPEND, starts_others=True),
    VOLCANO_JOB,
    # It deletes the objects that it wraps, autoscalers among them.
    _queued(
        "workload.codeflare.dev",
        ("v1beta2",),
        "AppWrapper",
        "appwrappers",
        _SUSPEND,
        ends=True,
        ends_autoscalers=True,
        phase=("phase",),
        ended=("Succeeded", "Terminating"),
    ),
    _queued(_SPARK, ("v1beta2",), "SparkApplication", "sparkapplications", _SUSPEND),
    OwnerKind(_SPARK, ("v1beta2",), _SCHEDULED, f"{_SCHEDULED.lower()}s", _SUSPEND, starts_others=True),
    OwnerKind("keda.sh", ("v1alpha1",), "ScaledJob", "scaledjobs", starts_others=True),
)

_BY_KIND = {(row.group, row.kind): row for row in OWNERS}


def owner_kind(group: str, kind: str) -> OwnerKind | None:
    """The row of a kind; None if it is unknown."""
    return _BY_KIND.get((group, kind))


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectSummary:
    """An object that may own pods or control a workload, reduced to what is needed.

    Attributes:
        size: The value that stopping it would change.
        is_read: Whether the object was read; otherwise only its dependent's owner reference is known.
        scalable: The scale subresource of a kind without a row here.
        spec: As JSON; empty if not read.
        status: The same of a kind whose status is read.
        controls: The workload that this control object stops; None if it is none, or does not name it.
        written_by: Field managers that would revert a change of `size`.
    """

    ref: ObjectRef
    metadata: ObjectMeta
    size: int | bool | None = None
    is_read: bool = True
    scalable: Scalable | None = None
    spec: bytes = b""
    status: bytes = b""
    controls: ObjectRef | None = None
    written_by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class OwnerChain:
    """The owners of a pod.

    Attributes:
        top: The workload; a bare pod itself.
        owners: All owners, the top last.
        starter: What creates the top on schedule, such as a CronJob.
    """

    top: ObjectSummary
    owners: tuple[ObjectSummary, ...]
    starter: OwnerReference | None = None


def owner_chain(
    owner: OwnerReference, namespace: str, controllers: Mapping[str, ObjectSummary]
) -> OwnerChain:
    """Follow a pod's owner references; a cycle ends at an owner that counts as unread, which is never changed."""
    above: OwnerReference | None = owner
    owners: list[ObjectSummary] = []
    seen: set[str] = set()
    while above is not None:
        row = owner_kind(above.group, above.kind)
        if row is not None and row.starts_others and owners:
            return OwnerChain(owners[-1], tuple(owners), starter=above)
        ref = controllers.get(owner_key(above, namespace))
        if ref is None or object_key(ref) in seen:
            ref = unread_owner(above, namespace)
            owners.append(ref)
            break
        seen.add(object_key(ref))
        owners.append(ref)
        above = ref.metadata.controller
    return OwnerChain(owners[-1], tuple(owners))


def unread_owner(owner: OwnerReference, namespace: str) -> ObjectSummary:
    """An owner of which only the owner reference is known."""
    return ObjectSummary(owner.ref(namespace), ObjectMeta(owner.name, namespace, owner.uid), is_read=False)


def owner_key(owner: OwnerReference, namespace: str) -> str:
    """The key of an owner: all that its reference says, so that no UID alone leads to an object of others."""
    return f"{owner.kind}.{owner.group}/{namespace}/{owner.name}/{owner.uid}"


def object_key(item: ObjectSummary) -> str:
    """The same key for an object."""
    ref = item.ref
    return f"{ref.kind}.{ref.group}/{ref.namespace}/{ref.name}/{ref.uid}"


def missing_owners(
    owners: Iterable[tuple[OwnerReference, str]], controllers: Mapping[str, ObjectSummary]
) -> dict[OwnerKind, dict[str, tuple[OwnerReference, str]]]:
    """Unread owners of known kinds with their namespaces, by kind and key."""
    missing: dict[OwnerKind, dict[str, tuple[OwnerReference, str]]] = {}
    for owner, namespace in owners:
        row = owner_kind(owner.group, owner.kind)
        key = owner_key(owner, namespace)
        if row is not None and not row.starts_others and key not in controllers:
            missing.setdefault(row, {})[key] = (owner, namespace)
    return missing
