"""Objects as clients send them: for any namespace, with pods that run on the contract's nodes."""

from typing import Any

from tests.controlplane.contract.server import POOL, Object


def pod_spec(gpus: int = 0, **more: object) -> Object:
    """One container, which asks for GPUs where it should."""
    container: Object = {"name": "main", "image": "app:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {"containers": [container], "nodeSelector": dict(POOL), **more}


def pod(name: str = "p", gpus: int = 0, *, labels: dict[str, str] | None = None, **spec: object) -> Object:
    """A Pod."""
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": pod_spec(gpus, **spec)}


def replicated(name: str = "w", replicas: int = 1, *, pod: Object | None = None, **spec: Any) -> Object:
    """A Deployment, ReplicaSet or StatefulSet whose pods carry the label app=<name>."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod or pod_spec()}
    whole = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"metadata": {"name": name}, "spec": {**whole, **spec}}


def job(name: str = "j", *, pod: Object | None = None, **spec: object) -> Object:
    """A Job whose pods carry the label app=<name>."""
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"restartPolicy": "Never", **(pod or pod_spec())},
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def budget(name: str = "b", app: str = "w", **spec: object) -> Object:
    """A PodDisruptionBudget over the pods of one app."""
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": app}}, **spec}}


def config_map(name: str = "c", **fields: object) -> Object:
    """A ConfigMap."""
    return {"metadata": {"name": name}, **fields}


def names(objects: list[Object]) -> list[str]:
    """The names of objects, in their order."""
    return [obj["metadata"]["name"] for obj in objects]


def conditions(obj: Object) -> dict[str, tuple[str, str]]:
    """Status and reason of an object's conditions, by type."""
    found = obj.get("status", {}).get("conditions", ())
    return {entry["type"]: (entry["status"], entry.get("reason", "")) for entry in found}
