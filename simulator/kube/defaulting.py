"""What the server fills in where a client was silent. Pure: objects in, the same objects completed.

Only what readers depend on; the table at the end maps kinds to their defaults (kubernetes/pkg/apis/*/v1/defaults.go).
"""

from collections.abc import Callable, Mapping

from simulator.kube.objects import Object, name_of
from simulator.kube.resources import is_custom
from simulator.kube.servicespec import default_service

_BEST_EFFORT_TOLERATIONS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def apply_defaults(obj: Object) -> None:
    """Complete an object of any kind in place."""
    complete = None if is_custom(obj) else _BY_KIND.get(obj["kind"])
    if complete is not None:
        complete(obj)


def default_tolerations(pod: Object) -> None:
    """As the DefaultTolerationSeconds admission plug-in: five minutes on a node that is away."""
    tolerations = pod["spec"].setdefault("tolerations", [])
    for key in _BEST_EFFORT_TOLERATIONS:
        covers = (
            entry.get("key", key) == key and entry.get("effect", "NoExecute") == "NoExecute"
            for entry in tolerations
        )
        if not any(covers):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )


def qos_class(pod: Object) -> str:
    """Guaranteed, Burstable or BestEffort, from cpu and memory alone."""
    guaranteed, any_set = True, False
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in ("cpu", "memory"):
            any_set = any_set or name in requests or name in limits
            guaranteed = guaranteed and name in limits and requests.get(name, limits[name]) == limits[name]
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _pod(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _pod_spec(spec)
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])


def _pod_spec(spec: Object) -> None:
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        _container(container)


def _container(container: Object) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    tag = str(container.get("image", "")).rpartition("/")[2].rpartition(":")
    latest = not tag[1] or tag[2] == "latest"
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    for port in container.get("ports", ()):
        port.setdefault("protocol", "TCP")


def _template(spec: Object) -> None:
    _pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))


def _deployment(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", "25%")
        rolling.setdefault("maxUnavailable", "25%")


def _replica_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)


def _stateful_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)


def _daemon_set(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxSurge", 0)
        rolling.setdefault("maxUnavailable", 1)


def _job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _template(spec)
    labels = spec["template"].get("metadata", {}).get("labels")
    if labels and not obj["metadata"].get("labels"):
        # The same map, as in the real server: the labels that admission generates for the pods are the Job's, too.
        obj["metadata"]["labels"] = labels
    spec.setdefault("manualSelector", False)
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")


def _cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    _template(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))


def _priority_class(obj: Object) -> None:
    obj.setdefault("value", 0)
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _namespace(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name_of(obj)


def _node(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")


def _autoscaler(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("minReplicas", 1)


def _with_spec(obj: Object) -> None:
    obj.setdefault("spec", {})


def _policy(obj: Object) -> None:
    obj.setdefault("spec", {}).setdefault("failurePolicy", "Fail")


_BY_KIND: Mapping[str, Callable[[Object], None]] = {
    "CronJob": _cron_job,
    "DaemonSet": _daemon_set,
    "Deployment": _deployment,
    "HorizontalPodAutoscaler": _autoscaler,
    "Job": _job,
    "Namespace": _namespace,
    "Node": _node,
    "Pod": _pod,
    "PriorityClass": _priority_class,
    "ReplicaSet": _replica_set,
    "ResourceQuota": _with_spec,
    "Secret": _secret,
    "Service": default_service,
    "StatefulSet": _stateful_set,
    "ValidatingAdmissionPolicy": _policy,
    "ValidatingAdmissionPolicyBinding": _with_spec,
}
