"""Plays the kubelets: a bound pod starts, a deleted one ends after a while."""

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, is_kind, own_key
from simulator.kube.objects import Object, condition, is_terminating, phase, set_condition, uid_of
from simulator.kube.store import Event, Record

_NODE = "/nodes"  # in place of a namespace: a key that is about a node
_STARTED = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class PodLifecycle:
    """All nodes' kubelets in one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ending: set[str] = set()
        self._addresses = 0

    def keys(self, event: Event) -> Iterator[Key]:
        """Pods with a node; all pods of a node that appears."""
        if is_kind(event, "Pod") and event.type != "DELETED" and "nodeName" in event.record.obj["spec"]:
            yield (*own_key(event.record.obj)[:2], uid_of(event.record.obj))
        elif is_kind(event, "Node") and event.type == "ADDED":
            yield (_NODE, event.record.name, "")
            for pod in self._context.rows("Pod"):
                if pod.obj["spec"].get("nodeName") == event.record.name:
                    yield (*own_key(pod.obj)[:2], uid_of(pod.obj))

    def reconcile(self, key: Key) -> None:
        """Start or end a pod."""
        namespace, name, uid = key
        if namespace == _NODE:
            self._register(name)
            return
        pod = self._context.find("Pod", namespace, name)
        if pod is None or uid_of(pod.obj) != uid:
            self._ending.discard(uid)
        elif is_terminating(pod.obj):
            self._end(pod, key)
        elif phase(pod.obj) == "Pending" and self._context.find("Node", "", pod.obj["spec"]["nodeName"]):
            self._context.set_status(pod, self._started(pod))

    def _register(self, name: str) -> None:
        """A node that says nothing of itself becomes ready."""
        node = self._context.find("Node", "", name)
        if node is None or condition(node.obj, "Ready") is not None:
            return
        entry = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        now = self._context.registry.now()
        self._context.change(node, lambda obj: set_condition(obj["status"], entry, now), "status")

    def _end(self, pod: Record, key: Key) -> None:
        uid = uid_of(pod.obj)
        if uid not in self._ending:
            self._ending.add(uid)
            self._context.after(self._context.termination_delay_s, self, key)
        elif pod.obj["metadata"]["deletionGracePeriodSeconds"] > 0:
            self._context.delete(pod, grace_s=0)

    def _started(self, pod: Record) -> Object:
        now = self._context.registry.now()
        status: Object = {**pod.obj["status"], "phase": "Running", "startTime": now}
        status["conditions"] = [dict(entry) for entry in status.get("conditions", ())]
        for kind in _STARTED:
            set_condition(status, {"type": kind, "status": "True"}, now)
        self._addresses += 1
        address = f"10.{self._addresses >> 16 & 255}.{self._addresses >> 8 & 255}.{self._addresses & 255}"
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
        status["hostIP"] = self._host_ip(pod.obj["spec"]["nodeName"])
        spec, uid = pod.obj["spec"], uid_of(pod.obj)
        sidecars = [one for one in spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"]
        for field, started in (
            ("containerStatuses", spec["containers"]),
            ("initContainerStatuses", sidecars),
        ):
            if started:
                status[field] = [_running(entry, uid, now) for entry in started]
        return status

    def _host_ip(self, node: str) -> str:
        record = self._context.find("Node", "", node)
        addresses = record.obj.get("status", {}).get("addresses", ()) if record else ()
        return next((entry["address"] for entry in addresses if entry["type"] == "InternalIP"), "127.0.0.1")


def _running(container: Mapping[str, Any], pod_uid: str, now: str) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"{container['image']}@simulated",
        "containerID": f"containerd://{pod_uid.replace('-', '')}{container['name']}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
        "lastState": {},
    }
