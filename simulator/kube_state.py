"""The series of kube-state-metrics that dashboard, alerts and backtests query. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulator.history import STALE
from simulator.series_store import Series

JOB = "kube-state-metrics"
_PHASES = ("Pending", "Running", "Succeeded", "Failed")


_OWNED = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}
"""Metric and label of the owners of what owns pods."""
_NO_OWNER = {"kind": "", "name": ""}
Objects = Mapping[str, Iterable[Mapping[str, Any]]]
KINDS = {"Pod": "/api/v1/pods", "ReplicaSet": "/apis/apps/v1/replicasets", "Job": "/apis/batch/v1/jobs"}
"""Path of each kind that is read."""


def _owners(meta: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for owner in meta.get("ownerReferences", [_NO_OWNER]):
        labels = {"owner_kind": owner["kind"], "owner_name": owner["name"]}
        yield labels | {"owner_is_controller": str(owner.get("controller", "")).lower()}


def kube_state_metrics(objects: Objects) -> Iterator[tuple[dict[str, str], float]]:
    """The series of kube-state-metrics now, of objects of KINDS by kind: labels with `__name__`, and the value."""
    for kind, (name, label) in _OWNED.items():
        for meta in (one["metadata"] for one in objects.get(kind, ())):
            for owner in _owners(meta):
                own = {"__name__": name, "namespace": meta["namespace"], label: meta["name"], **owner}
                yield {k: v for k, v in own.items() if v}, 1.0
    yield from _of_pods(objects.get("Pod", ()))


def _of_pods(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, str], float]]:
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        names = {"namespace": meta["namespace"], "pod": meta["name"]}
        node, phase = spec.get("nodeName", ""), pod.get("status", {}).get("phase", "Pending")
        told = [("kube_pod_info", {"node": node, "priority_class": spec.get("priorityClassName", "")}, 1.0)]
        told += [("kube_pod_owner", owner, 1.0) for owner in _owners(meta)]
        told += [("kube_pod_status_phase", {"phase": each}, float(each == phase)) for each in _PHASES]
        for container in spec["containers"]:
            for resource, amount in container.get("resources", {}).get("requests", {}).items():
                labels = {
                    "container": container["name"],
                    "resource": re.sub(r"\W", "_", resource),
                    "node": node,
                }
                if resource.startswith("nvidia.com/"):
                    told.append(("kube_pod_container_resource_requests", labels, float(amount)))
        for name, labels, value in told:
            own = {"__name__": name, **names, **labels}
            yield {k: v for k, v in own.items() if v}, value


def kube_state_past(objects: Objects, seconds: range) -> Iterator[Series]:
    """The same at each of `seconds`, as Prometheus stores them."""
    for labels, value in kube_state_metrics(objects):
        yield Series({"job": JOB, **labels}, seconds, [value] * len(seconds))


def kube_state_end(objects: Objects, after: Objects, second: int) -> Iterator[Series]:
    """Markers that series of these objects ended, as those of the later ones do not have them."""
    left = {tuple(labels.items()) for labels, _ in kube_state_metrics(after)}
    for labels, _ in kube_state_metrics(objects):
        if tuple(labels.items()) not in left:
            yield Series({"job": JOB, **labels}, range(second, second + 1), [STALE])


def exposition(objects: Objects) -> str:
    """The same in Prometheus's text format."""
    lines = []
    for labels, value in sorted(kube_state_metrics(objects), key=lambda one: one[0]["__name__"]):
        inner = ",".join(f"{name}={json.dumps(text)}" for name, text in labels.items() if name != "__name__")
        lines.append(f"{labels['__name__']}{{{inner}}} {value:g}\n")
    return "".join(lines)
