"""The examples on a real control plane: nodes for them, everything applied, and operators that are played.

Real are API server, controllers, scheduler with quotas and claims; played are Kubeflow's, KServe's and Kueue's
operators, the DRA driver and, by kwok, the kubelets.
"""

import copy
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from simulator.kubeclient import KubeClient
from simulator.placement import report_start
from simulator.prometheus import Prometheus
from simulator.series_store import Series
from tests.controlplane.contract.server import Api, Object
from tests.deploy.examples import all_objects
from tests.rightsizer.given import day_of, scrapes

LABEL = "example-nodes"
H100 = "NVIDIA-H100-80GB-HBM3"
_RDMA = {"feature.node.kubernetes.io/rdma.available": "true"}
_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
_RESERVED = {"key": "example.com/reserved", "value": "team-a", "effect": "NoExecute"}


def _labels(product: str, memory_mib: int, **more: str) -> dict[str, str]:
    words = {f"nvidia.com/{key.replace('__', '.')}": value for key, value in more.items()}
    return {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": str(memory_mib), **words}


_SHARED = {"gpu__sharing-strategy": "time-slicing", "gpu__replicas": "4"}
NODES: Mapping[str, tuple[Mapping[str, str], Mapping[str, str], Sequence[Object]]] = {
    "rdma": (
        {**_labels(H100, 81559, gpu__count="64"), **_RDMA},
        {"nvidia.com/gpu": "64", "rdma/rdma_shared_device_a": "1000"},
        [_TAINT],
    ),
    "reserved": (
        {**_labels(H100, 81559, gpu__count="8"), "example.com/pool": "reserved"},
        {"nvidia.com/gpu": "8"},
        [_TAINT, _RESERVED],
    ),
    "plain": (_labels(H100, 81559, gpu__count="32"), {"nvidia.com/gpu": "32"}, []),
    "t4": (_labels("Tesla-T4", 15360, gpu__count="4"), {"nvidia.com/gpu": "4"}, []),
    "sliced": (
        _labels("Tesla-T4-SHARED", 15360, gpu__count="4", **_SHARED),
        {"nvidia.com/gpu": "16"},
        [],
    ),
    "sliced-by-name": (
        _labels("Tesla-T4", 15360, gpu__count="4", **_SHARED),
        {"nvidia.com/gpu.shared": "16"},
        [],
    ),
    "mps": (
        _labels(
            "Tesla-T4-SHARED",
            15360,
            gpu__count="4",
            **(_SHARED | {"gpu__sharing-strategy": "mps", "gpu__replicas": "8"}),
        ),
        {"nvidia.com/gpu": "32"},
        [],
    ),
    "mig-mixed": (
        _labels(H100, 81559, gpu__count="2", mig__strategy="mixed"),
        {"nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-2g.20gb": "2", "nvidia.com/mig-3g.40gb": "2"},
        [],
    ),
    "mig-single": (
        _labels(f"{H100}-MIG-1g.10gb", 9856, gpu__count="7", mig__strategy="single"),
        {"nvidia.com/gpu": "7"},
        [],
    ),
    # These choose the GPU of a pod, whatever the kubelet says: of several, all must have series.
    "gpushare": (
        {"gpushare": "true", **_labels("Tesla-T4", 15360, gpu__count="1")},
        {"aliyun.com/gpu-mem": "15", "aliyun.com/gpu-count": "1"},
        [],
    ),
    "hami": (
        {"gpu": "on", **_labels("Tesla-T4", 15360, gpu__count="1")},
        {"nvidia.com/gpu": "10", "nvidia.com/gpumem": "15360", "nvidia.com/gpucores": "100"},
        [],
    ),
    "claims": ({}, {}, []),
}
"""By name: labels, what they have besides CPU and memory, and taints; as the device plugins and GPU Feature Discovery
write them."""


class Cluster:
    """The control plane with nodes for the examples."""

    def __init__(self, api: Api, client: KubeClient, prometheus: Prometheus) -> None:
        self.api = api
        self._client = client
        self._prometheus = prometheus
        self._paths: dict[tuple[str, str], tuple[str, bool]] = {}
        self.made: list[tuple[str, Object]] = []
        self.state = f"{LABEL}-state"

    # --- given

    def nodes(self) -> None:
        """Make the nodes, and on one of them the GPUs that a DRA driver would publish."""
        for name, (labels, resources, taints) in NODES.items():
            amounts = {"cpu": "512", "memory": "4Ti", "pods": "500", **resources}
            body = {
                "metadata": {"name": f"{LABEL}-{name}", "labels": {LABEL: "yes", **labels}},
                "spec": {"taints": taints},
                "status": {"capacity": amounts, "allocatable": amounts},
            }
            self.api.create("/api/v1/nodes", body)
        devices = [_device(number) for number in range(4)]
        spec = {
            "driver": "gpu.nvidia.com",
            "nodeName": f"{LABEL}-claims",
            "pool": {"name": f"{LABEL}-claims", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        }
        self.api.create(
            "/apis/resource.k8s.io/v1/resourceslices", {"metadata": {"name": f"{LABEL}-claims"}, "spec": spec}
        )
        volume = {
            "capacity": {"storage": "20Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
        }
        self.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"{LABEL}-home"}, "spec": volume})

    def apply(self) -> None:
        """Apply every object of every example, as `kubectl apply --server-side` does, after all namespaces."""
        found = [one for _, one in all_objects()]
        for name in sorted({one["metadata"].get("namespace", "default") for one in found}):
            self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            self._ready(name)
        self._apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.state}})
        for one in found:
            self.made.append((self.path(one), self._apply(one)))

    def _ready(self, namespace: str) -> None:
        """Pods are refused until the namespace has its service account."""
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        self.api.eventually(lambda: self.api("GET", account).status_code == 200)

    def path(self, found: Object) -> str:
        """Where an object is served."""
        version, kind = found["apiVersion"], found["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if (version, kind) not in self._paths:
            for one in self.api.get(root)["resources"]:
                self._paths[version, one["kind"]] = (one["name"].partition("/")[0], one["namespaced"])
        plural, is_namespaced = self._paths[version, kind]
        scope = f"/namespaces/{found['metadata']['namespace']}" if is_namespaced else ""
        return f"{root}{scope}/{plural}/{found['metadata']['name']}"

    def _apply(self, found: Object) -> Object:
        path = self.path(found)
        reply = self.api.session.patch(
            self.api.server.url + path,
            data=yaml.safe_dump(found),
            params={"fieldManager": "kubectl", "fieldValidation": "Strict", "force": "true"},
            headers={"Content-Type": "application/apply-patch+yaml"},
            timeout=100,
        )
        assert reply.status_code in {200, 201}, f"{path}: {reply.text}"
        answer: Object = reply.json()
        return answer

    def play_operators(self) -> None:
        """Make what those who are not here would make of the examples."""
        for path, made in list(self.made):
            for child in _children(made):
                child["metadata"].setdefault("namespace", made["metadata"]["namespace"])
                _own(child, made)
                self._make(child)
            if made["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name"):
                self._admit(path, made)

    def _make(self, child: Object) -> Object:
        made = self.api.create(self.path(child).rpartition("/")[0], child)
        for grandchild in _children(made):
            grandchild["metadata"]["namespace"] = made["metadata"]["namespace"]
            _own(grandchild, made)
            self._make(grandchild)
        return made

    def _admit(self, path: str, job: Object) -> None:
        """As Kueue: a Workload for the job, the flavor's nodes, and off it goes."""
        workload: Object = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Workload",
            "metadata": {"name": "job-sweep", "namespace": job["metadata"]["namespace"]},
            "spec": {"active": True, "queueName": "research"},
        }
        _own(workload, job)
        self._make(workload)
        flavor = next(made for _, made in self.made if made["metadata"]["name"] == "h100-rdma")["spec"]
        pod = {"nodeSelector": flavor["nodeLabels"], "tolerations": flavor["tolerations"]}
        patch = {"spec": {"suspend": False, "template": {"spec": pod}}}
        assert self.api.patch(path, patch).status_code == 200

    # --- when

    def grow_old(self, namespaces: Sequence[str], count: int) -> list[Object]:
        """Wait for `count` running pods; they started a day ago and have done nothing since. The pods."""

        def pods() -> list[Object]:
            return [pod for name in namespaces for pod in self.api.items(f"/api/v1/namespaces/{name}/pods")]

        self.api.eventually(
            lambda: sorted(_state(pod) for pod in pods()),
            lambda states: [state for _, state in states] == ["Running"] * count,
            timeout_s=60,
        )
        found = pods()
        for pod in found:
            report_start(self._client, pod, at_s=time.time() - 24.8 * 3600)
            self._prometheus.write(list(_idle(pod)))
        return found

    # --- then

    def now(self) -> Iterator[Object]:
        """The objects of the examples as they are now."""
        for path, _ in self.made:
            yield self.api.get(path)

    def clear(self) -> None:
        """Take away all that was made."""
        self.api("DELETE", f"/api/v1/namespaces/{self.state}")
        for path, _ in reversed(self.made):
            self.api("DELETE", path, {"propagationPolicy": "Background"})
        self.api("DELETE", "/api/v1/nodes", params={"labelSelector": f"{LABEL}=yes"})
        self.api("DELETE", f"/apis/resource.k8s.io/v1/resourceslices/{LABEL}-claims")
        self.api("DELETE", f"/api/v1/persistentvolumes/{LABEL}-home")


def _state(pod: Object) -> tuple[str, str]:
    """Its name, and its phase or why it has no node."""
    conditions = {one["type"]: one.get("message", "") for one in pod["status"].get("conditions", ())}
    waits = pod["status"]["phase"] == "Pending" and conditions.get("PodScheduled")
    return pod["metadata"]["name"], waits or pod["status"]["phase"]


def _device(number: int) -> Object:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "uuid": {"string": f"GPU-{uuid.uuid4()}"},
    }
    return {
        "name": f"gpu-{number}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "81559Mi"}},
    }


def _own(child: Object, owner: Object) -> None:
    reference = {key: owner[key] for key in ("apiVersion", "kind")}
    meta = {key: owner["metadata"][key] for key in ("name", "uid")}
    child["metadata"]["ownerReferences"] = [{**reference, **meta, "controller": True}]


def _children(made: Object) -> Iterator[Object]:
    """What the operator of an object makes directly below it."""
    name, spec = made["metadata"]["name"], made.get("spec", {})
    match made["kind"]:
        case "CronJob":
            template = copy.deepcopy(spec["jobTemplate"])
            yield _object("batch/v1", "Job", f"{name}-1", template["spec"])
        case "PyTorchJob":
            for member, group in spec["pytorchReplicaSpecs"].items():
                for number in range(group["replicas"]):
                    pod = copy.deepcopy(group["template"]["spec"])
                    yield _object("v1", "Pod", f"{name}-{member.lower()}-{number}", pod)
        case "Notebook":
            yield _object("apps/v1", "StatefulSet", name, _set(name, 1, spec["template"]["spec"]))
        case "InferenceService":
            pod = _predictor(spec["predictor"])
            yield _object(
                "apps/v1",
                "Deployment",
                f"{name}-predictor",
                _set(name, spec["predictor"]["minReplicas"], pod),
            )
        case "TrainJob":
            yield _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, _job_set(spec["trainer"]))
        case "JobSet":
            for group in spec["replicatedJobs"]:
                job = copy.deepcopy(group["template"]["spec"])
                yield _object("batch/v1", "Job", f"{name}-{group['name']}-0", job)


def _object(version: str, kind: str, name: str, spec: Object) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _set(name: str, replicas: int, pod: Object) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": copy.deepcopy(pod)}
    return {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": template,
    }


def _job_set(trainer: Object) -> Object:
    """What Kubeflow's Trainer makes of a TrainJob: one job, with a pod on each node."""
    job = {"parallelism": trainer["numNodes"], "completions": trainer["numNodes"]}
    template = {"spec": {**job, "template": {"spec": _trained(trainer)}}}
    return {"replicatedJobs": [{"name": "node", "replicas": 1, "template": template}]}


def _predictor(predictor: Object) -> Object:
    """A pod as KServe makes it in standard mode."""
    server = {
        "name": "kserve-container",
        "image": "registry.example.com/server:1.0",
        "resources": predictor["model"]["resources"],
    }
    return {**{key: predictor[key] for key in ("priorityClassName", "nodeSelector")}, "containers": [server]}


def _trained(trainer: Object) -> Object:
    """A pod as the example's runtime has it, with what the TrainJob says in its place."""
    runtime = next(found for _, found in all_objects() if found["kind"] == "TrainingRuntime")
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod: Object = copy.deepcopy(group["template"]["spec"]["template"]["spec"])
    pod["containers"][0] |= {"image": trainer["image"], "resources": trainer["resourcesPerNode"]}
    return {**pod, "restartPolicy": "Never"}


def _idle(pod: Object) -> Iterator[Series]:
    """A day in which none of a pod's devices did anything."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    asked: dict[str, Any] = {}
    for container in pod["spec"]["containers"]:
        asked.update(container["resources"].get("limits", {}))
    instances = {key: int(value) for key, value in asked.items() if key.startswith("nvidia.com/mig-")}
    selector = pod["spec"].get("nodeSelector", {})
    if selector.get("nvidia.com/mig.strategy") == "single":
        instances = {"nvidia.com/mig-1g.10gb": 1}
    if instances:
        for resource, count in instances.items():
            for number in range(count):
                yield from _instance(namespace, name, resource.removeprefix("nvidia.com/mig-"), number)
        return
    count = 2 if name.startswith("rag-") else int(asked.get("nvidia.com/gpu", 1))
    yield from day_of(namespace, name, ["idle"] * count)


def _instance(namespace: str, pod: str, profile: str, number: int) -> Iterator[Series]:
    """A day of a MIG instance, with the profiling metrics without which its utilization is not known."""
    seconds = scrapes()
    labels = {
        "UUID": f"GPU-{pod}",
        "GPU_I_ID": str(number + 1),
        "GPU_I_PROFILE": profile,
        "modelName": "NVIDIA H100 80GB HBM3",
        "namespace": namespace,
        "pod": pod,
        "container": "main",
        "job": "gpu",
    }
    values = {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.0,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.0,
        "DCGM_FI_DEV_FB_USED": 3000.0,
    }
    for metric, value in values.items():
        yield Series({"__name__": metric, **labels}, seconds, [value] * len(seconds))
