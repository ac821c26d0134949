"""Every kind that can be stopped: as its owner would write it, and what it looks like once it was stopped."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Object = dict[str, Any]
_Template = Object
"""A PodTemplateSpec with one container, which asks for GPUs."""

SUSPENDED = ("spec", "suspend")
RUN_POLICY = ("spec", "runPolicy", "suspend")
REPLICAS = ("spec", "replicas")
STOP = ("metadata", "annotations", "serving.kserve.io/stop")
MIN_SCALE = ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One kind.

    Attributes:
        spec: Of an object with two pods, or with one where the kind has no more, made from a template.
        field: What stopping it sets, and to what; None where any value will do.
        pods: How many there are.
        status: What its operator writes while it runs, as far as a stop depends on it.
        absent: What undo writes where the owner left the field out; None if it removes it again.
    """

    api_version: str
    kind: str
    spec: Callable[[_Template], Object]
    field: tuple[str, ...]
    to: object
    action: str = "suspend"
    pods: int = 2
    status: Object = dataclasses.field(default_factory=dict)
    absent: object = None

    def restored(self, spec: Object) -> Object:
        """A spec after stop and undo; only the absent fields of `spec` itself may differ."""
        return spec if self.absent is None else {self.field[-1]: self.absent, **spec}


def _replicated(template: _Template) -> Object:
    return {"replicas": 2, "template": template}


def _training(member: str, specs: str) -> Callable[[_Template], Object]:
    return lambda template: {"runPolicy": {}, specs: {member: _replicated(template)}}


def _selecting(template: _Template) -> Object:
    return {**_replicated(template), "selector": template["metadata"]["labels"]}


def ray_cluster(template: _Template, *, workers: int) -> Object:
    """One group of workers."""
    group = {"groupName": "gpu", "replicas": workers, "minReplicas": workers, "template": template}
    return {"workerGroupSpecs": [group]}


def _ray_cluster(template: _Template) -> Object:
    return ray_cluster(template, workers=2)


def _nim(template: _Template) -> Object:
    (container,) = template["spec"]["containers"]
    pod = {key: value for key, value in template["spec"].items() if key != "containers"}
    return {"replicas": 2, "resources": container["resources"], **pod}


def _cliques(template: _Template) -> Object:
    clique = {"roleName": "decode", "replicas": 2, "podSpec": template["spec"]}
    return {"replicas": 1, "template": {"cliques": [{"name": "decode", "spec": clique}]}}


def _dynamo(template: _Template) -> Object:
    service = {"componentType": "worker", "extraPodSpec": template["spec"]}
    return {"services": {"prefill": service, "decode": {**service, "replicas": 1}}}


def _workflow(template: _Template) -> Object:
    (container,) = template["spec"]["containers"]
    pod = {key: value for key, value in template["spec"].items() if key != "containers"}
    step = {key: value for key, value in container.items() if key != "name"}
    return {"entrypoint": "main", "templates": [{"name": "main", "container": step, "pod": pod}]}


def _job_set(template: _Template) -> Object:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": template}}
    return {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": job}]}


def _kubeflow(kind: str, specs: str, api_version: str = "kubeflow.org/v1") -> Case:
    return Case(api_version, kind, _training("Worker", specs), RUN_POLICY, to=True)


def _scaled(api_version: str, kind: str, spec: Callable[[_Template], Object] = _replicated) -> Case:
    return Case(api_version, kind, spec, REPLICAS, to=0, action="scale-to-zero")


CASES: Mapping[str, Case] = {
    f"{one.kind}.{one.api_version.rpartition('/')[0]}".rstrip("."): one
    for one in (
        _scaled("v1", "ReplicationController", _selecting),
        Case("jobset.x-k8s.io/v1alpha2", "JobSet", _job_set, SUSPENDED, to=True),
        _scaled(
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            lambda template: {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
        ),
        _kubeflow("PyTorchJob", "pytorchReplicaSpecs"),
        _kubeflow("TFJob", "tfReplicaSpecs"),
        _kubeflow("MPIJob", "mpiReplicaSpecs", "kubeflow.org/v2beta1"),
        _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
        _kubeflow("PaddleJob", "paddleReplicaSpecs"),
        _kubeflow("JAXJob", "jaxReplicaSpecs"),
        Case(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            lambda template: {
                "runtimeRef": {"name": "torch"},
                "trainer": {"numNodes": 2, "template": template},
            },
            SUSPENDED,
            to=True,
        ),
        Case(
            "kubeflow.org/v1",
            "Notebook",
            lambda template: {"template": template},
            ("metadata", "annotations", "kubeflow-resource-stopped"),
            to=None,
            pods=1,
        ),
        Case(
            "kubeflow.org/v1beta1",
            "Workspace",
            lambda template: {"podTemplate": template},
            ("spec", "paused"),
            to=True,
            pods=1,
        ),
        Case(
            "serving.kserve.io/v1beta1",
            "InferenceService",
            lambda template: {"predictor": {"minReplicas": 2, **template["spec"]}},
            STOP,
            to="true",
        ),
        Case(
            "serving.kserve.io/v1alpha2",
            "LLMInferenceService",
            lambda template: {"replicas": 2, "template": template["spec"]},
            STOP,
            to="true",
        ),
        Case(
            "serving.knative.dev/v1",
            "Service",
            lambda template: {"template": template},
            MIN_SCALE,
            to="0",
            action="scale-to-zero",
            pods=1,
        ),
        _scaled("apps.nvidia.com/v1alpha1", "NIMService", _nim),
        _scaled("grove.io/v1alpha1", "PodCliqueSet", _cliques),
        Case(
            "nvidia.com/v1alpha1",
            "DynamoGraphDeployment",
            _dynamo,
            ("spec", "services", "decode", "replicas"),
            to=0,
            action="scale-to-zero",
        ),
        Case("ray.io/v1", "RayCluster", _ray_cluster, SUSPENDED, to=True, absent=False),
        Case(
            "ray.io/v1",
            "RayJob",
            lambda template: {
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": _ray_cluster(template),
            },
            SUSPENDED,
            to=True,
            status={"jobDeploymentStatus": "Running"},
        ),
        Case(
            "ray.io/v1",
            "RayService",
            lambda template: {"rayClusterConfig": _ray_cluster(template)},
            SUSPENDED,
            to=True,
            absent=False,
        ),
        _scaled("argoproj.io/v1alpha1", "Rollout"),
        Case(
            "argoproj.io/v1alpha1",
            "Workflow",
            _workflow,
            ("spec", "shutdown"),
            to="Stop",
            action="evict",
            pods=1,
        ),
        Case(
            "batch.volcano.sh/v1alpha1",
            "Job",
            lambda template: {"tasks": [{"name": "worker", **_replicated(template)}]},
            ("metadata", "annotations", "gpu-rightsizer.io/order"),
            to="AbortJob",
        ),
        Case(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            lambda template: {"components": [{"template": {"apiVersion": "v1", "kind": "Pod", **template}}]},
            SUSPENDED,
            to=True,
            pods=1,
        ),
        _scaled("apps.kruise.io/v1alpha1", "CloneSet"),
    )
}
UNKNOWN = Case("tekton.dev/v1", "TaskRun", lambda template: {"podTemplate": template}, (), to=None, pods=1)
"""Of a kind that we know nothing about."""


def value_at(obj: Any, path: tuple[str, ...]) -> Any:
    """What stands at a path; None where nothing does."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj
