"""Objects as `kubectl get … -o json` shows them, and the fleet that is made of a file of them."""

import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from rightsizer.inventory.demand_kinds import NO_QUEUES, NamedQueues
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import ClusterState, build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.model import Fleet, Workload

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
TEAM = "team"
_API_VERSIONS = {
    "Pod": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}


def obj(kind: str, name: str, *owners: Object, api_version: str = "", **fields: Any) -> Object:
    """Any namespaced object; of several owners the last is the controller."""
    metadata: Object = {"name": name, "namespace": TEAM, "uid": f"uid-{kind}-{name}", "resourceVersion": "7"}
    metadata.update(fields.pop("metadata", {}))
    if owners:
        metadata["ownerReferences"] = [{**_reference(one), "controller": one is owners[-1]} for one in owners]
    return {"apiVersion": api_version or _API_VERSIONS[kind], "kind": kind, "metadata": metadata, **fields}


def pod(name: str, *owners: Object, **changes: Any) -> Object:
    """A running pod with one GPU on n1.

    Keywords: limits, spec, status, and metadata's own fields.
    """
    limits = changes.pop("limits", {GPU: "1"})
    containers = [{"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}]
    spec = {"containers": containers, "nodeName": "n1", "priority": 0, **changes.pop("spec", {})}
    status = {"phase": "Running", "startTime": "2026-11-01T00:00:00Z", **changes.pop("status", {})}
    return obj("Pod", name, *owners, metadata=changes, spec=spec, status=status)


def node(name: str = "n1", *, gpus: int = 8, **changes: Any) -> Object:
    """A node with GPUs that is ready; keywords: labels, annotations, allocatable, spec, ready."""
    allocatable = {
        GPU: str(gpus),
        "cpu": "64",
        "memory": "512Gi",
        "pods": "110",
        **changes.pop("allocatable", {}),
    }
    metadata = {
        "name": name,
        "labels": changes.pop("labels", {}),
        "annotations": changes.pop("annotations", {}),
    }
    conditions = [{"type": "Ready", "status": changes.pop("ready", "True")}]
    status = {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": changes.pop("spec", {}),
        "status": status,
    }


def claim(name: str, *, devices: int | None, driver: str = "gpu.nvidia.com", **changes: Any) -> Object:
    """A ResourceClaim; with no devices one that is not allocated yet. Keywords: users, request, result."""
    request = {"deviceClassName": driver, **changes.pop("request", {})}
    status: Object = {}
    if devices is not None:
        result = {"request": "r", "driver": driver, "pool": "n1", **changes.pop("result", {})}
        results = [{**result, "device": f"gpu-{number}"} for number in range(devices)]
        users = [
            {"resource": "pods", "name": user, "uid": f"uid-Pod-{user}"} for user in changes.pop("users", ())
        ]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    spec = {"devices": {"requests": [{"name": "r", "exactly": request}]}}
    return obj("ResourceClaim", name, api_version="resource.k8s.io/v1", spec=spec, status=status)


def dra_gpu(number: int, *, profile: str = "", start: int = 0, **changes: Any) -> Object:
    """A GPU as NVIDIA's DRA driver publishes it, or a MIG device of it at a place. Keywords: attributes, and fields."""
    name = f"gpu-{number}" + (f"-mig-{profile.replace('.', '')}-19-{start}" if profile else "")
    attributes = {
        "type": {"string": "mig" if profile else "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "resource.kubernetes.io/pciBusID": {"string": f"0000:{number:02x}:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // 2:02x}"},
        **({"profile": {"string": profile}} if profile else {"uuid": {"string": f"GPU-{number}"}}),
        **changes.pop("attributes", {}),
    }
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "81559Mi"}}, **changes}


def resource_slice(name: str, *devices: Object, node: str = "n1", of: int = 1, **changes: Any) -> Object:
    """A ResourceSlice of a node's pool that has `of` slices; keywords: generation, driver, version, counters."""
    spec: Object = {
        "driver": changes.pop("driver", "gpu.nvidia.com"),
        "nodeName": node,
        "pool": {"name": node, "generation": changes.pop("generation", 1), "resourceSliceCount": of},
        "devices": list(devices),
    }
    if counters := changes.pop("counters", None):
        spec["sharedCounters"] = counters
    version = f"resource.k8s.io/{changes.pop('version', 'v1')}"
    return {"apiVersion": version, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


WHOLE = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
MIG = WHOLE.replace('"gpu"', '"mig"')


def device_class(name: str = "gpu.nvidia.com", *expressions: str, resource: str = "") -> Object:
    """A DeviceClass; without expressions of whole GPUs. `resource` is the extended resource that it stands for."""
    selectors = [{"cel": {"expression": one}} for one in expressions or (WHOLE,)]
    version = "resource.k8s.io/v1"
    return {
        "apiVersion": version,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": selectors, **({"extendedResourceName": resource} if resource else {})},
    }


def using(*names: str, made: Mapping[str, str | None] | None = None) -> Object:
    """Fields of a pod that has claims by name, or made from templates, instead of a GPU resource."""
    claims = [{"name": f"c-{name}", "resourceClaimName": name} for name in names]
    claims += [{"name": name, "resourceClaimTemplateName": "t"} for name in made or {}]
    statuses = [
        {"name": name, **({"resourceClaimName": to} if to else {})} for name, to in (made or {}).items()
    ]
    containers = [
        {"name": "main", "image": "x", "resources": {"claims": [{"name": one["name"]} for one in claims]}}
    ]
    return {
        "limits": {},
        "spec": {"resourceClaims": claims, "containers": containers},
        "status": {"phase": "Running", "resourceClaimStatuses": statuses},
    }


def objects_of(
    *items: Object, gpu_resources: Sequence[str] = (), queues: NamedQueues = NO_QUEUES
) -> ClusterState:
    """What is read of these objects from a file."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "objects.json"
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        return read_file(path, RECORDABLE_KINDS, gpu_resources, queues)


def fleet_of(*items: Object, gpu_resources: Sequence[str] = (), queues: NamedQueues = NO_QUEUES) -> Fleet:
    """The fleet that these objects make, where a policy names these queues."""
    return build_fleet(objects_of(*items, gpu_resources=gpu_resources, queues=queues))


def workloads_of(*items: Object) -> dict[str, Workload]:
    """The workloads that these objects make, by Kind/name."""
    return {f"{one.ref.kind}/{one.ref.name}": one for one in fleet_of(*items).workloads}


def _reference(owner: Object) -> Object:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
