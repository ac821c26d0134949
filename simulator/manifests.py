"""The Kubernetes objects of a cluster's spec; nodes as kubelet and device plugin write them. Pure."""

import dataclasses
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from simulator.gpus.cards import CARDS, Architecture, Card
from simulator.nodes.devices import allocatable
from simulator.spec import Archetype, Kind, NodeSpec, PriorityClassSpec, Sharing, WorkloadSpec
from simulator.workloads.population import NAME_LABEL

Object = dict[str, Any]

COLLECTIONS: Mapping[str, str] = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{namespace}/pods",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/{namespace}/statefulsets",
    "Job": "/apis/batch/v1/namespaces/{namespace}/jobs",
}
"""Where objects of a kind are created."""

_FAMILIES = {
    Architecture.TURING: "turing",
    Architecture.AMPERE: "ampere",
    Architecture.ADA: "ada-lovelace",
    Architecture.HOPPER: "hopper",
}
_IMAGES = {
    Archetype.NOTEBOOK: "quay.io/jupyter/pytorch-notebook:cuda12-python-3.12",
    Archetype.INFERENCE_DIURNAL: "vllm/vllm-openai:v0.11.0",
    Archetype.INFERENCE_LONGTAIL: "vllm/vllm-openai:v0.11.0",
}
_TRAINING_IMAGE = "nvcr.io/nvidia/pytorch:25.09-py3"


def collection(obj: Object) -> str:
    """The path under which `obj` is created."""
    return COLLECTIONS[obj["kind"]].format(namespace=obj["metadata"].get("namespace"))


def namespace(name: str) -> Object:
    """A Namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def prometheus_service(namespace: str) -> Object:
    """A Service that is labelled as the prometheus-community chart labels its server's."""
    labels = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "prometheus-server", "namespace": namespace, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": 80}]},
    }


def priority_class(spec: PriorityClassSpec) -> Object:
    """A PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": spec.name},
        "value": spec.value,
        "globalDefault": spec.global_default,
        "preemptionPolicy": spec.preemption_policy,
    }


def node(spec: NodeSpec) -> Object:
    """A Node that is ready, with its devices and with GPU feature discovery's labels."""
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "250"}
    amounts |= {
        resource: str(count) for resource, count in (allocatable(spec) | dict(spec.resources)).items()
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": labels(spec)},
        "spec": {"taints": [dataclasses.asdict(taint) for taint in spec.taints]} if spec.taints else {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [ready],
            "addresses": [
                {"type": "InternalIP", "address": _address(spec.name)},
                {"type": "Hostname", "address": spec.name},
            ],
            "nodeInfo": {"kubeletVersion": "v1.37.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def labels(spec: NodeSpec) -> dict[str, str]:
    """A node's labels: the kubelet's, GPU feature discovery's, and those of the spec over all."""
    found = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if spec.gpus:
        found |= _discovered(spec)
    return found | dict(spec.labels)


def workload(spec: WorkloadSpec) -> Object:
    """The object of a workload, as its owner would have written it."""
    body = _SHAPES[spec.kind](spec)
    api_versions = {Kind.POD: "v1", Kind.JOB: "batch/v1"}
    metadata = {"name": spec.name, "namespace": spec.namespace, "labels": _labels(spec)}
    return {
        "apiVersion": api_versions.get(spec.kind, "apps/v1"),
        "kind": spec.kind.value,
        "metadata": metadata,
        "spec": body,
    }


def _discovered(spec: NodeSpec) -> dict[str, str]:
    card = CARDS[spec.gpus[0].card]
    shared = spec.sharing is not Sharing.NONE
    major, _, minor = spec.driver_version.partition(".")
    described = {
        "gpu.present": "true",
        "gpu.product": _product(card) + ("-SHARED" if shared and not spec.rename_shared else ""),
        "gpu.family": _FAMILIES[Architecture(card.architecture)],
        "gpu.memory": str(card.memory_bytes >> 20),
        "gpu.count": str(len(spec.gpus)),
        "gpu.replicas": str(spec.replicas if shared else 1),
        "gpu.sharing-strategy": spec.sharing.value,
        "gpu.compute.major": str(card.compute_capability[0]),
        "gpu.compute.minor": str(card.compute_capability[1]),
        "cuda.driver-version.full": spec.driver_version,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor.partition(".")[0],
        "cuda.runtime-version.full": f"{spec.cuda_version // 1000}.{spec.cuda_version % 1000 // 10}",
        "mig.capable": str(bool(card.mig_profiles)).lower(),
        "mig.strategy": "mixed" if any(gpu.mig for gpu in spec.gpus) else "single",
    }
    for profile, count in Counter(profile for gpu in spec.gpus for profile in gpu.mig).items():
        cut = next(CARDS[gpu.card] for gpu in spec.gpus if profile in gpu.mig).mig_profiles[profile]
        described |= {
            f"mig-{profile}.count": str(count),
            f"mig-{profile}.product": f"{_product(card)}-MIG-{profile}",
            f"mig-{profile}.memory": str(cut.memory_bytes >> 20),
            f"mig-{profile}.multiprocessors": str(cut.multiprocessors),
            f"mig-{profile}.slices.gi": str(cut.slices),
            f"mig-{profile}.slices.ci": str(cut.slices),
            f"mig-{profile}.replicas": "1",
        }
    return {f"nvidia.com/{name}": value for name, value in described.items()}


def _address(name: str) -> str:
    """An address that stays the same, out of the range for documentation and benchmarks."""
    number = zlib.crc32(name.encode())
    return f"198.18.{number >> 8 & 255}.{number & 255}"


def _product(card: Card) -> str:
    return card.name.replace(" ", "-")


def _labels(spec: WorkloadSpec) -> dict[str, str]:
    return {NAME_LABEL: spec.name, **spec.labels}


def _pod(spec: WorkloadSpec, *, restart: str) -> Object:
    amounts = {"cpu": str(4 * spec.gpus), "memory": f"{32 * spec.gpus}Gi", spec.resource: str(spec.gpus)}
    container = {
        "name": "main",
        "image": _IMAGES.get(spec.archetype, _TRAINING_IMAGE),
        "resources": {"requests": amounts, "limits": dict(amounts)},
    }
    pod: Object = {"restartPolicy": restart, "containers": [container]}
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerates:
        pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in spec.tolerates]
    return pod


def _template(spec: WorkloadSpec, *, restart: str = "Always") -> Object:
    return {"metadata": {"labels": _labels(spec)}, "spec": _pod(spec, restart=restart)}


def _replicated(spec: WorkloadSpec) -> Object:
    selector = {"matchLabels": {NAME_LABEL: spec.name}}
    return {"replicas": spec.replicas, "selector": selector, "template": _template(spec)}


def _stateful(spec: WorkloadSpec) -> Object:
    return {**_replicated(spec), "serviceName": spec.name, "podManagementPolicy": "Parallel"}


def _job(spec: WorkloadSpec) -> Object:
    return {
        "parallelism": spec.replicas,
        "completions": spec.replicas,
        "backoffLimit": 3,
        "template": _template(spec, restart="Never"),
    }


_SHAPES: Mapping[Kind, Callable[[WorkloadSpec], Object]] = {
    Kind.DEPLOYMENT: _replicated,
    Kind.STATEFUL_SET: _stateful,
    Kind.JOB: _job,
    Kind.POD: lambda spec: _pod(spec, restart="Always"),
}
