"""The series of kube-state-metrics that dashboard, alerts and backtests query. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simulator.prometheus import Series

JOB = "kube-state-metrics"
_PHASES = ("Pending", "Running", "Succeeded", "Failed")


def kube_state_metrics(pods: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, str], float]]:
    """The pod series of kube-state-metrics now: labels with `__name__`, and the value."""
    for pod in pods:
        meta, spec = pod["metadata"], pod["spec"]
        names = {"namespace": meta["namespace"], "pod": meta["name"]}
        node, phase = spec.get("nodeName", ""), pod.get("status", {}).get("phase", "Pending")
        told = [("kube_pod_info", {"node": node, "priority_class": spec.get("priorityClassName", "")}, 1.0)]
        told += [
            ("kube_pod_owner", {"owner_kind": owner["kind"], "owner_name": owner["name"]}, 1.0)
            for owner in meta.get("ownerReferences", [{"kind": "", "name": ""}])
        ]
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


def kube_state_past(pods: Iterable[Mapping[str, Any]], seconds: range) -> Iterator[Series]:
    """The same at each of `seconds`, as Prometheus stores them."""
    for labels, value in kube_state_metrics(pods):
        yield Series({"job": JOB, **labels}, seconds, [value] * len(seconds))


def exposition(pods: Iterable[Mapping[str, Any]]) -> str:
    """The same in Prometheus's text format."""
    lines = []
    for labels, value in sorted(kube_state_metrics(pods), key=lambda one: one[0]["__name__"]):
        inner = ",".join(f"{name}={json.dumps(text)}" for name, text in labels.items() if name != "__name__")
        lines.append(f"{labels['__name__']}{{{inner}}} {value:g}\n")
    return "".join(lines)
