"""The manifest of a pod as its author could have written it, so that undo can create it anew. Pure."""

from collections.abc import Mapping
from typing import Any

_SERVICE_ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def recreatable(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's manifest as its author could have written it: without what the cluster added on admission and binding.

    The API server resolves the priority anew from the class, and mounts a service account token anew.
    """
    metadata = pod["metadata"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in {"nodeName", "priority", "preemptionPolicy"}
    }
    tokens = {
        volume["name"] for volume in spec.get("volumes", []) if volume["name"].startswith("kube-api-access-")
    }
    if tokens:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in tokens]
        for group in ("initContainers", "containers"):
            if group in spec:
                spec[group] = [_without_token(container) for container in spec[group]]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def _without_token(container: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [
        mount for mount in container.get("volumeMounts", []) if mount["mountPath"] != _SERVICE_ACCOUNT_MOUNT
    ]
    return {**container, "volumeMounts": mounts}
