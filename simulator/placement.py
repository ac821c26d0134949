"""Waits until pods are scheduled, and backdates their start.

A real API server sets creation times itself, but the kubelet reports when a container started, and gpu-rightsizer
judges a pod's age by that.
"""

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence

from simulator.kubeclient import KubeClient, Object
from simulator.spec import Kind, WorkloadSpec
from simulator.workloads.population import NAME_LABEL

_POLL_S = 0.05
_PLACED = {"Running", "Succeeded", "Failed"}


def wait_placed(client: KubeClient, workloads: Sequence[WorkloadSpec], *, timeout_s: float) -> list[Object]:
    """The pods of `workloads`, once each workload has all of its own and each of them runs or can not be scheduled."""
    deadline = time.monotonic() + timeout_s
    wanted = {(spec.namespace, spec.name): _pods_of(spec) for spec in workloads}
    while True:
        pods = [pod for pod in client.get("/api/v1/pods")["items"] if _key(pod) in wanted]
        settled = [_key(pod) for pod in pods if _is_settled(pod)]
        waiting = sorted(f"{key[0]}/{key[1]}" for key, count in wanted.items() if settled.count(key) < count)
        if not waiting:
            return pods
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {timeout_s:g} s no pods run for {', '.join(waiting)}")
        time.sleep(_POLL_S)


def age(
    client: KubeClient, pods: Sequence[Object], workloads: Sequence[WorkloadSpec], *, now_s: float
) -> None:
    """Let the kubelets report that each running pod started `age_s` of its workload before `now_s` (Unix seconds)."""
    ages = {(spec.namespace, spec.name): spec.age_s for spec in workloads}
    for pod in pods:
        if pod["status"]["phase"] == "Running":
            report_start(client, pod, at_s=now_s - ages[_key(pod)])


def report_start(client: KubeClient, pod: Object, *, at_s: float) -> None:
    """Report, as its kubelet, that a running pod and its containers started at `at_s` (Unix seconds)."""
    stamp = datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = pod["metadata"]
    # Under its resourceVersion: what changed since it was read is not overwritten with what it was.
    patch = {
        "metadata": {"resourceVersion": meta["resourceVersion"]},
        "status": dict(_backdated(pod["status"], stamp)),
    }
    client.patch(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status", patch)


def _backdated(status: Mapping[str, object], stamp: str) -> Iterator[tuple[str, object]]:
    yield "startTime", stamp
    for name in ("containerStatuses", "initContainerStatuses"):
        statuses = status.get(name)
        if isinstance(statuses, list):
            yield name, [_started(entry, stamp) for entry in statuses]


def _started(entry: Object, stamp: str) -> Object:
    if "running" not in entry.get("state", {}):
        return entry
    return {**entry, "state": {"running": {"startedAt": stamp}}}


def _is_settled(pod: Object) -> bool:
    if pod["status"].get("phase") in _PLACED:
        return True
    conditions = {entry["type"]: entry for entry in pod["status"].get("conditions", ())}
    return bool(conditions.get("PodScheduled", {}).get("reason") == "Unschedulable")


def _pods_of(spec: WorkloadSpec) -> int:
    return 1 if spec.kind is Kind.POD else spec.replicas


def _key(pod: Object) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"].get("labels", {}).get(NAME_LABEL, "")
