"""The series of kube-state-metrics 2.20 that dashboard, alerts and backtests query. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulator.history import STALE
from simulator.kube.quantity import parse_quantity
from simulator.series_store import Series

JOB = "kube-state-metrics"
_PHASES = ("Pending", "Succeeded", "Failed", "Unknown", "Running")
_STATUSES = {"containers": "containerStatuses", "initContainers": "initContainerStatuses"}
_UNITS = {"cpu": "core", "memory": "byte", "storage": "byte", "ephemeral-storage": "byte"}
"""By resource; others are hugepages, or extended resources in whole numbers."""

_OWNED = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}
"""Metric and label of the owners of what owns pods."""
Objects = Mapping[str, Iterable[Mapping[str, Any]]]
KINDS = {"Pod": "/api/v1/pods", "ReplicaSet": "/apis/apps/v1/replicasets", "Job": "/apis/batch/v1/jobs"}
"""Path of each kind that is read."""


def _owners(meta: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for owner in meta.get("ownerReferences", ()):
        labels = {"owner_kind": owner["kind"], "owner_name": owner["name"]}
        yield labels | {"owner_is_controller": str(owner.get("controller", False)).lower()}
    if not meta.get("ownerReferences"):
        yield {}


def kube_state_metrics(objects: Objects) -> Iterator[tuple[dict[str, str], float]]:
    """The series of kube-state-metrics now, of objects of KINDS by kind: labels with `__name__`, and the value."""
    for kind, (name, label) in _OWNED.items():
        for meta in (one["metadata"] for one in objects.get(kind, ())):
            for owner in _owners(meta):
                yield {"__name__": name, "namespace": meta["namespace"], label: meta["name"], **owner}, 1.0
    for pod in objects.get("Pod", ()):
        meta = pod["metadata"]
        names = {"namespace": meta["namespace"], "pod": meta["name"], "uid": meta.get("uid", "")}
        for name, labels, value in (*_of_pod(pod), *_of_containers(pod)):
            own = {"__name__": name, **names, **labels}
            yield {k: v for k, v in own.items() if v}, value


_Row = tuple[str, Mapping[str, str], float]
"""Metric, labels beside those that name the pod, and value."""


def _of_pod(pod: Mapping[str, Any]) -> Iterator[_Row]:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    created_by: Mapping[str, str] = next(
        (one for one in meta.get("ownerReferences", ()) if one.get("controller")), {}
    )
    info = {
        "host_ip": status.get("hostIP", ""),
        "pod_ip": status.get("podIP", ""),
        "node": spec.get("nodeName", ""),
        "created_by_kind": created_by.get("kind", ""),
        "created_by_name": created_by.get("name", ""),
        "priority_class": spec.get("priorityClassName", ""),
        "host_network": str(spec.get("hostNetwork", False)).lower(),
    }
    yield "kube_pod_info", info, 1.0
    yield from (("kube_pod_owner", owner, 1.0) for owner in _owners(meta))
    phase = status.get("phase", "Pending")
    yield from (("kube_pod_status_phase", {"phase": each}, float(each == phase)) for each in _PHASES)
    made = {one["name"]: one.get("resourceClaimName", "") for one in status.get("resourceClaimStatuses", ())}
    for claim in spec.get("resourceClaims", ()):
        labels = {
            "claim_name": claim["name"],
            "resourceclaim_name": claim.get("resourceClaimName") or made.get(claim["name"], ""),
            "resourceclaim_template_name": claim.get("resourceClaimTemplateName", ""),
        }
        yield "kube_pod_resourceclaim_info", labels, 1.0


def _of_containers(pod: Mapping[str, Any]) -> Iterator[_Row]:
    node = pod["spec"].get("nodeName", "")
    for field, prefix in (
        ("containers", "kube_pod_container"),
        ("initContainers", "kube_pod_init_container"),
    ):
        statuses = {one["name"]: one for one in pod.get("status", {}).get(_STATUSES[field], ())}
        for container in pod["spec"].get(field, ()):
            name = {"container": container["name"]}
            if status := statuses.get(container["name"]):
                info = {
                    "image_spec": container.get("image", ""),
                    "image": status.get("image", ""),
                    "image_id": status.get("imageID", ""),
                    "container_id": status.get("containerID", ""),
                    "restart_policy": container.get("restartPolicy", "") if field == "initContainers" else "",
                }
                yield f"{prefix}_info", name | info, 1.0
            for resource, amount in container.get("resources", {}).get("requests", {}).items():
                unit = _UNITS.get(resource, "byte" if resource.startswith("hugepages-") else "integer")
                labels = {
                    **name,
                    "node": node,
                    "resource": re.sub(r"[^a-zA-Z0-9_]", "_", resource),
                    "unit": unit,
                }
                yield f"{prefix}_resource_requests", labels, float(parse_quantity(amount))


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
        lines.append(f"{labels['__name__']}{{{inner}}} {value!r}\n")
    return "".join(lines)
