"""What a person types to do by hand what is advised: a table from kinds to kubectl commands. Pure.

Sources of each row: the kinds' own API references, as named; a kind without a row gets no command.
"""

import json
import shlex
from collections.abc import Mapping

from rightsizer.model import Action, ObjectRef, Proposal

_SCALE = "scale"
_PATCH = "patch"
_ANNOTATE = "annotate"

# Full kind → how its GPUs are given back.
STOPS: Mapping[str, tuple[str, object]] = {
    # apps/v1, batch/v1
    "Deployment.apps": (_SCALE, 0),
    "StatefulSet.apps": (_SCALE, 0),
    "ReplicaSet.apps": (_SCALE, 0),
    "ReplicationController": (_SCALE, 0),
    "Job.batch": (_PATCH, {"spec": {"suspend": True}}),
    "CronJob.batch": (_PATCH, {"spec": {"suspend": True}}),
    "Pod": ("evict", None),
    # jobset.x-k8s.io/v1alpha2, leaderworkerset.x-k8s.io/v1
    "JobSet.jobset.x-k8s.io": (_PATCH, {"spec": {"suspend": True}}),
    "LeaderWorkerSet.leaderworkerset.x-k8s.io": (_SCALE, 0),
    # Kubeflow: training-operator's runPolicy.suspend, trainer's spec.suspend, the notebook controllers
    "PyTorchJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "TFJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "MPIJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "XGBoostJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "PaddleJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "JAXJob.kubeflow.org": (_PATCH, {"spec": {"runPolicy": {"suspend": True}}}),
    "TrainJob.trainer.kubeflow.org": (_PATCH, {"spec": {"suspend": True}}),
    "Notebook.kubeflow.org": (_ANNOTATE, 'kubeflow-resource-stopped="$(date -u +%FT%TZ)"'),
    "Workspace.kubeflow.org": (_PATCH, {"spec": {"paused": True}}),
    # serving.kserve.io: the stop annotation works in every deployment mode, minReplicas: 0 in one of them
    "InferenceService.serving.kserve.io": (_ANNOTATE, "serving.kserve.io/stop=true"),
    "LLMInferenceService.serving.kserve.io": (_ANNOTATE, "serving.kserve.io/stop=true"),
    # apps.nvidia.com/v1alpha1
    "NIMService.apps.nvidia.com": (_PATCH, {"spec": {"replicas": 0}}),
    # ray.io/v1
    "RayCluster.ray.io": (_PATCH, {"spec": {"suspend": True}}),
    "RayJob.ray.io": (_PATCH, {"spec": {"suspend": True}}),
    "RayService.ray.io": (_PATCH, {"spec": {"suspend": True}}),
    # argoproj.io/v1alpha1: a suspended Workflow's running pods go on, so it is stopped
    "Rollout.argoproj.io": (_PATCH, {"spec": {"replicas": 0}}),
    "Workflow.argoproj.io": (_PATCH, {"spec": {"shutdown": "Stop"}}),
    "CronWorkflow.argoproj.io": (_PATCH, {"spec": {"suspend": True}}),
    # workload.codeflare.dev/v1beta2
    "AppWrapper.workload.codeflare.dev": (_PATCH, {"spec": {"suspend": True}}),
}

_SCALABLE = frozenset(kind for kind, (verb, _) in STOPS.items() if verb == _SCALE) | {"Rollout.argoproj.io"}


def stop_command(ref: ObjectRef) -> str:
    """What gives all of a workload's GPUs back; empty where no way is known."""
    verb, value = STOPS.get(ref.full_kind, ("", None))
    match verb:
        case "scale":
            return _scale(ref, 0)
        case "patch":
            return f"{_kubectl('patch', ref)} --type merge -p {shlex.quote(json.dumps(value))}"
        case "annotate":
            return f"{_kubectl('annotate --overwrite', ref)} {value}"
        case "evict":
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": ref.name, "namespace": ref.namespace},
            }
            path = f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}/eviction"
            return f"echo {shlex.quote(json.dumps(body))} | kubectl create --raw {shlex.quote(path)} -f -"
        case _:
            return ""


def command_for(ref: ObjectRef, action: Action, proposal: Proposal | None) -> str:
    """What does by hand what is advised; empty where that takes more than one command."""
    if proposal is None:
        return stop_command(ref)
    if proposal.replicas is not None and action in {Action.SHRINK, Action.GROW}:
        return _scale(ref, proposal.replicas) if ref.full_kind in _SCALABLE else ""
    return ""


def _scale(ref: ObjectRef, replicas: int) -> str:
    return f"{_kubectl('scale', ref)} --replicas {replicas}"


def _kubectl(verb: str, ref: ObjectRef) -> str:
    """A command about one object, whatever its name: names come from the cluster."""
    kind, dot, group = ref.full_kind.partition(".")
    resource, namespace, name = map(shlex.quote, (kind.lower() + dot + group, ref.namespace, ref.name))
    return f"kubectl -n {namespace} {verb} {resource} {name}"
