"""An API server that knows one made-up fleet and lists it in pages, as kubectl's and our own readers ask for them.

A watch gets bookmarks only: nothing changes.

Started as a program it prints its port and serves until its input ends. Objects are as large as real ones are, with
their managedFields. Pages are written before the first is asked for, since a real API server is another machine's
work. It speaks plain HTTP, without TLS.
"""

import contextlib
import http.server
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from benchmarks._bigfleet import (
    NODE_GPUS,
    PRIORITIES,
    Fleet,
    Pod,
    Workload,
    fleet_of,
    node_name,
    template_hash,
    uid_of,
)
from rightsizer.kube.cluster import PAGE_SIZE

_GROUPS = {
    "apps": "v1",
    "autoscaling": "v2",
    "batch": "v1",
    "kubeflow.org": "v1",
    "policy": "v1",
    "resource.k8s.io": "v1",
    "scheduling.k8s.io": "v1",
}
_CREATED = "2026-01-15T08:00:00Z"
_OTHERS_EACH = 4
"""Pods of every Deployment without GPUs."""
_MANAGED: list[dict[str, Any]] = [
    {
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            f"f:{part}": {
                f"f:{field}": {".": {}, f'k:{{"name":"{field}"}}': {"f:value": {}, "f:mountPath": {}}}
            }
            for part in ("metadata", "spec", "status")
            for field in ("containers", "env", "volumes", "tolerations", "conditions")
        },
        "manager": manager,
        "operation": "Update",
        "time": _CREATED,
    }
    for manager in ("kube-controller-manager", "kubelet")
]

Objects = list[Callable[[], dict[str, Any]]]


class Collections:
    """Every collection of a fleet: a number of objects, each made when it is asked for.

    Args:
        fleet: The fleet.
        is_dra: Whether its GPUs are only in ResourceSlices, and pods have them by ResourceClaims.
    """

    def __init__(self, fleet: Fleet, *, is_dra: bool) -> None:
        self._fleet = fleet
        self._is_dra = is_dra
        deployments = [one for one in fleet.workloads if one.row.kind == "Deployment"]
        others = -(-fleet.others // _OTHERS_EACH)
        self.made: Mapping[str, tuple[int, Callable[[int], dict[str, Any]]]] = {
            "/api/v1/pods": self._pods(),
            "/api/v1/nodes": (len(fleet.nodes), lambda place: self._node(fleet.nodes[place])),
            "/api/v1/namespaces": _of([*fleet.namespaces, "web"], lambda name: _object(name, "")),
            "/api/v1/replicationcontrollers": _of((), _scaled),
            "/api/v1/resourcequotas": _of(fleet.namespaces, _quota),
            "/apis/apps/v1/deployments": _joined(_of(deployments, _scaled), others, _other_deployment),
            "/apis/apps/v1/replicasets": _joined(_of(deployments, _replicaset), others, _other_replicaset),
            "/apis/apps/v1/statefulsets": _of(self._of_kinds("StatefulSet", "Notebook"), _statefulset),
            "/apis/batch/v1/jobs": _of(self._of_kinds("Job"), _job),
            "/apis/batch/v1/cronjobs": _of((), _scaled),
            "/apis/kubeflow.org/v1/notebooks": _of(self._of_kinds("Notebook"), _notebook),
            "/apis/policy/v1/poddisruptionbudgets": _of(deployments[::3], _budget),
            "/apis/autoscaling/v2/horizontalpodautoscalers": _of(deployments[1::8], _scaler),
            "/apis/scheduling.k8s.io/v1/priorityclasses": _of(sorted(PRIORITIES), _class),
            **(self._dra() if is_dra else {}),
        }

    def _dra(self) -> Mapping[str, tuple[int, Callable[[int], dict[str, Any]]]]:
        workloads = self._fleet.workloads
        pods = [(one, pod) for one in workloads for pod in one.pods]
        sizes = sorted({(one.namespace, len(pod.devices)) for one, pod in pods})
        nodes = self._fleet.nodes
        places = {
            f"GPU-{uid_of('gpu', node * NODE_GPUS + number)}": f"gpu-{number}"
            for node in range(len(nodes))
            for number in range(NODE_GPUS)
        }
        root = "/apis/resource.k8s.io/v1"
        return {
            f"{root}/resourceslices": (len(nodes), lambda place: _slice(nodes[place], place)),
            f"{root}/resourceclaims": _of(pods, lambda pair: _claim(pair[0], pair[1], places)),
            f"{root}/resourceclaimtemplates": _of(sizes, lambda size: _claim_template(*size)),
            f"{root}/deviceclasses": _of(["gpu.nvidia.com"], lambda name: _object(name, "", spec={})),
            f"{root}/devicetaintrules": _of((), _scaled),
        }

    def _node(self, name: str) -> dict[str, Any]:
        found = _node(name)
        if self._is_dra:
            labels, status = found["metadata"]["labels"], found["status"]
            found["metadata"]["labels"] = {
                key: value for key, value in labels.items() if not key.startswith("nvidia.com/")
            }
            amounts = {key: value for key, value in status["capacity"].items() if key != "nvidia.com/gpu"}
            found["status"] = {**status, "allocatable": amounts, "capacity": amounts}
        return found

    def _gpu_pod(self, one: Workload, pod: Pod) -> dict[str, Any]:
        found = _gpu_pod(one, pod)
        if self._is_dra:
            resources = found["spec"]["containers"][0]["resources"]
            for amounts in (resources["limits"], resources["requests"]):
                del amounts["nvidia.com/gpu"]
            resources["claims"] = [{"name": "gpus"}]
            template = f"gpus-{len(pod.devices)}"
            found["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": template}]
            found["status"]["resourceClaimStatuses"] = [
                {"name": "gpus", "resourceClaimName": f"{pod.name}-gpus-x"}
            ]
        return found

    def _of_kinds(self, *kinds: str) -> list[Workload]:
        return [one for one in self._fleet.workloads if one.row.kind in kinds]

    def _pods(self) -> tuple[int, Callable[[int], dict[str, Any]]]:
        held = [(one, pod) for one in self._fleet.workloads for pod in one.pods]
        nodes = len(self._fleet.nodes)
        return _joined(
            _of(held, lambda pair: self._gpu_pod(*pair)), self._fleet.others, lambda n: _other_pod(n, nodes)
        )


def _of(
    items: "list[Any] | tuple[Any, ...]", make: Callable[[Any], dict[str, Any]]
) -> tuple[int, Callable[[int], dict[str, Any]]]:
    return len(items), lambda place: make(items[place])


def _joined(
    first: tuple[int, Callable[[int], dict[str, Any]]], count: int, second: Callable[[int], dict[str, Any]]
) -> tuple[int, Callable[[int], dict[str, Any]]]:
    """The one's objects, then so many of the other's."""
    return first[0] + count, lambda n: first[1](n) if n < first[0] else second(n - first[0])


def _object(name: str, namespace: str, *, uid: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": uid or uid_of(name, 0),
        "resourceVersion": "123456789",
        "generation": 1,
        "creationTimestamp": _CREATED,
        "labels": {"app.kubernetes.io/name": name},
        "managedFields": _MANAGED,
        **more.pop("metadata", {}),
    }
    return {"metadata": metadata, **more}


def _owner(kind: str, version: str, name: str, uid: str) -> dict[str, Any]:
    fields = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    return {"ownerReferences": [{**fields, "controller": True, "blockOwnerDeletion": True}]}


def _owner_of(one: Workload) -> dict[str, Any]:
    """The controller that a workload's pods name."""
    match one.row.kind:
        case "Job":
            return _owner("Job", "batch/v1", one.name, one.uid)
        case "Deployment":
            return _owner("ReplicaSet", "apps/v1", _replicaset_name(one), f"rs-{one.uid}")
        case "StatefulSet":
            return _owner("StatefulSet", "apps/v1", one.name, one.uid)
        case "Notebook":
            return _owner("StatefulSet", "apps/v1", one.name, f"sts-{one.uid}")
        case _:
            return {}


def _number(one: Workload) -> int:
    return int(one.name.rpartition("-")[2])


def _replicaset_name(one: Workload) -> str:
    return f"{one.name}-{template_hash(_number(one))}"


def _gpu_pod(one: Workload, pod: Pod) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": one.name, "team": one.namespace, "stage": one.row.name}
    found = _pod(
        _object(pod.name, one.namespace, uid=pod.uid, metadata={"labels": labels, **_owner_of(one)}),
        {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": str(len(pod.devices))},
        pod.node,
    )
    found["spec"]["priorityClassName"] = one.row.priority_class
    found["spec"]["priority"] = PRIORITIES[one.row.priority_class]
    return found


def _other_pod(number: int, nodes: int) -> dict[str, Any]:
    of = number // _OTHERS_EACH
    owner = _owner("ReplicaSet", "apps/v1", f"web-{of:05}-{template_hash(of)}", uid_of("web-rs", of))
    meta = _object(
        f"web-{of:05}-{template_hash(of)}-{number % _OTHERS_EACH:05}",
        "web",
        uid=uid_of("web", number),
        metadata={"labels": {"app.kubernetes.io/name": f"web-{of:05}"}, **owner},
    )
    return _pod(meta, {"cpu": "500m", "memory": "1Gi"}, node_name(number % nodes) if number % 3 else "cpu-1")


def _pod(item: dict[str, Any], amounts: Mapping[str, str], node: str) -> dict[str, Any]:
    """With what the kubelet and the API server add to every pod."""
    item["spec"] = {
        "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"serviceAccountToken": {}}]}}],
        "containers": [
            {
                "name": "main",
                "image": "registry.example.com/team/image:2026.11",
                "command": ["python", "-m", "serve", "--port", "8080"],
                "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(12)],
                "resources": {"limits": dict(amounts), "requests": dict(amounts)},
                "volumeMounts": [{"name": "kube-api-access", "mountPath": "/var/run/secrets"}],
                "imagePullPolicy": "IfNotPresent",
            }
        ],
        "nodeName": node,
        "priority": 0,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "nvidia.com/gpu")
        ],
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
    }
    item["status"] = {
        "phase": "Running",
        "conditions": [
            {"type": one, "status": "True", "lastProbeTime": None, "lastTransitionTime": _CREATED}
            for one in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": _CREATED,
        "containerStatuses": [
            {
                "name": "main",
                "state": {"running": {"startedAt": _CREATED}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": "registry.example.com/team/image:2026.11",
                "imageID": "registry.example.com/team/image@sha256:" + 64 * "a",
                "containerID": "containerd://" + 64 * "b",
            }
        ],
        "qosClass": "Guaranteed",
    }
    return item


def _node(name: str) -> dict[str, Any]:
    number = int(name[-5:])
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": "8",
        "nvidia.com/gpu.present": "true",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
        "node.kubernetes.io/instance-type": "gpu-h100-8",
        "karpenter.sh/nodepool": f"pool-{number % 5}",
        "kubernetes.io/hostname": name,
        **{f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{bit}": "true" for bit in range(60)},
    }
    amounts = {"cpu": "192", "memory": "2063937112Ki", "pods": "250", "nvidia.com/gpu": "8"}
    images = [{"names": [f"registry.example.com/image-{one}@sha256:" + 64 * "c"]} for one in range(30)]
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions, "images": images}
    return _object(name, "", metadata={"labels": labels}, spec={}, status=status)


def _slice(node: str, place: int) -> dict[str, Any]:
    """As NVIDIA's DRA driver publishes the GPUs of a node."""
    driver = "gpu.nvidia.com"
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "type": {"string": "gpu"},
                "uuid": {"string": f"GPU-{uid_of('gpu', place * NODE_GPUS + number)}"},
                "productName": {"string": "NVIDIA H100 80GB HBM3"},
                "brand": {"string": "Nvidia"},
                "architecture": {"string": "Hopper"},
                "cudaComputeCapability": {"version": "9.0.0"},
                "driverVersion": {"version": "580.95.5"},
                "cudaDriverVersion": {"version": "13.0.0"},
                "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number:02x}"},
                "resource.kubernetes.io/pciBusID": {"string": f"0000:{number:02x}:00.0"},
            },
            "capacity": {"memory": {"value": "81559Mi"}},
        }
        for number in range(NODE_GPUS)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return _object(f"{node}-{driver}-x", "", spec=spec)


def _requests(count: int) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
    return {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}


def _claim(one: Workload, pod: Pod, places: Mapping[str, str]) -> dict[str, Any]:
    """The allocated claim of a pod."""
    results = [
        {"request": "gpus", "driver": "gpu.nvidia.com", "pool": pod.node, "device": places[uuid]}
        for uuid in pod.devices
    ]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": pod.name, "uid": pod.uid}],
    }
    owner = _owner("Pod", "v1", pod.name, pod.uid)
    return _object(
        f"{pod.name}-gpus-x", one.namespace, metadata=owner, spec=_requests(len(pod.devices)), status=status
    )


def _claim_template(namespace: str, count: int) -> dict[str, Any]:
    return _object(f"gpus-{count}", namespace, spec={"spec": _requests(count)})


def _scaled(one: Workload) -> dict[str, Any]:
    template = {
        "spec": {
            "containers": [{"name": "main", "env": [{"name": f"S{n}", "value": "v"} for n in range(12)]}]
        }
    }
    return _object(
        one.name, one.namespace, uid=one.uid, spec={"replicas": len(one.pods), "template": template}
    )


def _replicaset(one: Workload) -> dict[str, Any]:
    found = _scaled(one)
    found["metadata"] |= {"name": _replicaset_name(one), "uid": f"rs-{one.uid}"}
    found["metadata"] |= _owner("Deployment", "apps/v1", one.name, one.uid)
    return found


def _statefulset(one: Workload) -> dict[str, Any]:
    found = _scaled(one)
    if one.row.kind == "Notebook":
        found["metadata"] |= {
            "uid": f"sts-{one.uid}",
            **_owner("Notebook", "kubeflow.org/v1", one.name, one.uid),
        }
    return found


def _job(one: Workload) -> dict[str, Any]:
    return _object(
        one.name, one.namespace, uid=one.uid, spec={"suspend": False, "parallelism": len(one.pods)}
    )


def _notebook(one: Workload) -> dict[str, Any]:
    return _object(one.name, one.namespace, uid=one.uid, spec={})


def _other_deployment(number: int) -> dict[str, Any]:
    return _object(f"web-{number:05}", "web", uid=uid_of("web-d", number), spec={"replicas": _OTHERS_EACH})


def _other_replicaset(number: int) -> dict[str, Any]:
    owner = _owner("Deployment", "apps/v1", f"web-{number:05}", uid_of("web-d", number))
    uid, name = uid_of("web-rs", number), f"web-{number:05}-{template_hash(number)}"
    return _object(name, "web", uid=uid, metadata=owner, spec={"replicas": _OTHERS_EACH})


def _quota(namespace: str) -> dict[str, Any]:
    return _object(
        "gpus",
        namespace,
        status={"hard": {"requests.nvidia.com/gpu": "400"}, "used": {"requests.nvidia.com/gpu": "200"}},
    )


def _budget(one: Workload) -> dict[str, Any]:
    selector = {"matchLabels": {"app.kubernetes.io/name": one.name}}
    return _object(one.name, one.namespace, spec={"selector": selector}, status={"disruptionsAllowed": 1})


def _scaler(one: Workload) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": one.name}
    return _object(
        one.name, one.namespace, spec={"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 12}
    )


def _class(name: str) -> dict[str, Any]:
    return _object(name, "", value=PRIORITIES[name])


def _pages(count: int, make: Callable[[int], dict[str, Any]]) -> list[bytes]:
    """A collection's pages of the size that we ask for; what continues one is the number of the next."""
    found: list[bytes] = []
    for begin in range(0, max(count, 1), PAGE_SIZE):
        end = min(count, begin + PAGE_SIZE)
        metadata = {"resourceVersion": "1", **({"continue": str(len(found) + 1)} if end < count else {})}
        items = [make(place) for place in range(begin, end)]
        found.append(msgspec.json.encode({"metadata": metadata, "items": items}))
    return found


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    pages: Mapping[str, list[bytes]]

    def do_GET(self) -> None:
        """Answer a list."""
        split = urlsplit(self.path)
        pages = self.pages.get(split.path)
        if split.path == "/apis":
            groups = [{"name": name, "versions": [{"version": version}]} for name, version in _GROUPS.items()]
            self._send(200, json.dumps({"groups": groups}).encode())
        elif split.path == "/version":
            self._send(200, json.dumps({"major": "1", "minor": "34"}).encode())
        elif "watch=true" in split.query:
            self._bookmark(float(parse_qs(split.query)["timeoutSeconds"][0]))
        elif pages is None:
            self._send(404, json.dumps({"kind": "Status", "code": 404, "reason": "NotFound"}).encode())
        else:
            self._send(200, pages[int(parse_qs(split.query).get("continue", ["0"])[0])])

    def _bookmark(self, length_s: float) -> None:
        self.send_response(200)
        self.end_headers()
        end = time.monotonic() + length_s
        with contextlib.suppress(OSError):  # the watcher has gone
            while time.monotonic() < end:
                self.wfile.write(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"1"}}}\n')
                self.wfile.flush()
                time.sleep(10)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _lines() -> Iterator[str]:
    return iter(sys.stdin.readline, "")


def main(gpus: int, *, is_dra: bool) -> None:
    """Serve until nobody is there any more."""
    made = Collections(fleet_of(gpus), is_dra=is_dra).made
    _Handler.pages = {path: _pages(*collection) for path, collection in made.items()}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    for _ in _lines():
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]), is_dra="dra" in sys.argv[2:])
