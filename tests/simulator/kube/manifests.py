"""Objects as clients send them."""

from typing import Any

Object = dict[str, Any]


def node(name: str, gpus: int = 8, **metadata: object) -> Object:
    """A Node with GPUs, 64 CPUs and room for 110 pods."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, **metadata},
        "status": {"capacity": capacity},
    }


def pod_spec(gpus: int = 1, **more: object) -> Object:
    """One container that asks for GPUs."""
    container: Object = {"name": "main", "image": "app:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {"containers": [container], **more}


def pod(name: str = "p", gpus: int = 1, *, labels: dict[str, str] | None = None, **spec: object) -> Object:
    """A Pod in "default"."""
    metadata: Object = {"name": name, "namespace": "default"}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(gpus, **spec)}


def workload(
    kind: str, name: str = "w", replicas: int = 1, *, pod: Object | None = None, **spec: Any
) -> Object:
    """A Deployment, ReplicaSet or StatefulSet whose pods carry the label app=<name>."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod or pod_spec()}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **spec,
        },
    }


def job(name: str = "j", **spec: object) -> Object:
    """A Job in "default"."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": pod_spec(restartPolicy="Never")}, **spec},
    }


def budget(name: str = "b", app: str = "w", **spec: object) -> Object:
    """A PodDisruptionBudget over the pods of one app."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }


def configmap(name: str = "c", **metadata: object) -> Object:
    """A ConfigMap in "default"."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", **metadata},
    }


def names(objects: list[Object]) -> list[str]:
    """The names of objects, in their order."""
    return [obj["metadata"]["name"] for obj in objects]
