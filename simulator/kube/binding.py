"""The binding subresource: the one way in which a pod gets its node."""

from collections.abc import Mapping
from typing import Any

from simulator.kube import errors
from simulator.kube.decoding import Target
from simulator.kube.objects import Object, is_terminating, set_condition
from simulator.kube.registry import Registry


def bind(registry: Registry, target: Target, body: Mapping[str, Any], *, dry_run: bool) -> Object:
    """Bind a pod to the node that the Binding names; the answer is a Status."""
    node = (body.get("target") or {}).get("name")
    if not node:
        raise errors.bad_request("target.name: Required value")
    with registry.store.lock:
        pod = registry.find(target.resource, target.namespace, target.name)
        if is_terminating(pod.obj):
            raise errors.conflict(
                target.resource,
                target.name,
                f"pod {target.name} is being deleted, cannot be assigned to a host",
            )
        if "nodeName" in pod.obj["spec"]:
            taken = pod.obj["spec"]["nodeName"]
            raise errors.conflict(
                target.resource, target.name, f'pod {target.name} is already assigned to node "{taken}"'
            )
        if not dry_run:
            assign(registry, pod.copy(), node)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def assign(registry: Registry, pod: Object, node: str) -> None:
    """Store a pod with its node; spec.nodeName is not open to ordinary updates."""
    resource = registry.store.by_uid(pod["metadata"]["uid"])
    if resource is None:
        return
    pod["spec"]["nodeName"] = node
    set_condition(pod["status"], {"type": "PodScheduled", "status": "True"}, registry.now())
    for entry in pod["status"]["conditions"]:
        if entry["type"] == "PodScheduled":
            entry.pop("reason", None)
            entry.pop("message", None)
    registry.store.put(resource.resource, pod)
