"""Random clusters by seed in which a pending pod asks for GPUs that idle and busy pods hold.

Most are ordinary; each has a few of the features that decide whether a pod fits on a node.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Object = dict[str, Any]

NAMESPACE = "research"
GPU = "nvidia.com/gpu"
GPU_DRIVER = "gpu.nvidia.com"
NIC_DRIVER = "dra.example.com"
_CLASSES = {"low": 1_000, "pending": 10_000, "high": 50_000}
_LONG_AGO, _LATELY = "2026-11-01T00:00:00Z", "2026-11-21T11:00:00Z"
_ZONE, _HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """Objects of a cluster.

    Attributes:
        features: Names of what is special about it.
        pod: Namespace and name of the pending pod.
    """

    features: tuple[str, ...]
    objects: Sequence[Object]
    pod: str


def cluster_of(seed: int) -> Cluster:
    """The cluster of a seed."""
    return _Draw(random.Random(seed)).cluster()


class _Draw:
    """One cluster while it is drawn.

    Attributes:
        free: GPUs or names of devices that no pod holds, by node.
        special: Features of this cluster.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.objects: list[Object] = []
        self.nodes: list[Object] = []
        self.free: dict[str, list[str]] = {}
        self.deployments: dict[str, list[Object]] = {}
        self.is_dra = rng.random() < 0.4
        number = rng.choice((0, 1, 1, 1, 2, 2, 3))
        some = rng.sample(sorted(_BOTH), number)
        if self.is_dra:
            some = some[: number // 2] + rng.sample(sorted(_DRA), number - number // 2 + 1)
        self.special = tuple(sorted(some))

    def has(self, feature: str, share: float = 1.0) -> bool:
        """Whether the cluster has a feature, and this object takes part in it."""
        return feature in self.special and self.rng.random() < share

    def cluster(self) -> Cluster:
        """The cluster."""
        self.add("v1", "Namespace", NAMESPACE, "", labels={_ADMIN: "true"} if self.has("dra-admin") else {})
        self.add("v1", "Namespace", "other", "", labels={"team": "other"})
        for name, value in _CLASSES.items():
            self.add("scheduling.k8s.io/v1", "PriorityClass", name, "", value=value)
        for number in range(self.rng.randint(1, 4)):
            self._add_node(number)
        if self.is_dra:
            self._add_classes()
        pending = self.pod("urgent", NAMESPACE, self.rng.choice((1, 1, 1, 2, 2, 4, 8)), "pending")
        if self.rng.random() < 0.5:
            pending["spec"]["preemptionPolicy"] = "Never"
        for node in self.nodes:
            self._fill(node)
        for name, change in _CHANGES.items():
            if name in self.special:
                change(self, pending)
        for name, pods in self.deployments.items():
            self._add_deployment(name, pods)
        return Cluster(
            (("dra", *self.special) if self.is_dra else self.special), self.objects, f"{NAMESPACE}/urgent"
        )

    # --- objects

    def add(self, version: str, kind: str, name: str, namespace: str = NAMESPACE, **fields: Any) -> Object:
        metadata: Object = {"name": name, "uid": f"uid-{kind}-{name}", "resourceVersion": "7"}
        metadata["creationTimestamp"] = _LONG_AGO
        for key in ("labels", "annotations", "ownerReferences", "generation", "deletionTimestamp"):
            if key in fields:
                metadata[key] = fields.pop(key)
        if namespace:
            metadata["namespace"] = namespace
        item = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
        self.objects.append(item)
        return item

    def _add_node(self, number: int) -> None:
        rng, name = self.rng, f"n{number}"
        gpus = rng.choice((1, 2, 4, 4, 8))
        allocatable = {
            "cpu": str(rng.choice((8, 16, 64))),
            "memory": f"{rng.choice((32, 64, 512))}Gi",
            "ephemeral-storage": f"{rng.choice((20, 100))}Gi",
            "pods": str(rng.choice((4, 6, 110)) if self.has("pods") else 110),
        }
        has_plugin = not self.is_dra or self.has("dra-extended", 0.2)
        if has_plugin:
            allocatable[GPU] = str(gpus)
        if "rdma" in self.special:
            allocatable["rdma/hca"] = str(rng.choice((1, 2, 4)))
        if "hugepages" in self.special:
            allocatable["hugepages-2Mi"] = rng.choice(("2Gi", "4Gi"))
        if "storage" not in self.special:
            allocatable["ephemeral-storage"] = "4Ti"
        labels = {
            _HOST: name,
            _ZONE: f"z{number % 2}",
            "topology.kubernetes.io/region": "r",
            "size": str(gpus),
        }
        labels["nvidia.com/gpu.product"] = "NVIDIA-H100-80GB-HBM3"
        if number != 1:
            labels["rack"] = f"r{number // 3}"
        spec: Object = {}
        if self.has("taints", 0.6):
            effect = rng.choice(("NoSchedule", "NoExecute", "PreferNoSchedule"))
            spec["taints"] = [
                {"key": rng.choice(("team", GPU)), "value": rng.choice(("x", "")), "effect": effect}
            ]
        if self.has("cordoned", 0.5):
            spec["unschedulable"] = True
            spec.setdefault("taints", []).append(
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
            )
        is_ready = not self.has("not-ready", 0.4)
        if not is_ready:
            taint = {"key": "node.kubernetes.io/unreachable", "timeAdded": _LATELY}
            spec.setdefault("taints", []).extend(
                {**taint, "effect": one} for one in ("NoSchedule", "NoExecute")
            )
        ready = "True" if is_ready else "Unknown"
        conditions = [{"type": "Ready", "status": ready, "lastTransitionTime": _LONG_AGO}]
        status = {"allocatable": allocatable, "capacity": allocatable, "conditions": conditions}
        node = self.add("v1", "Node", name, "", labels=labels, spec=spec, status=status)
        self.nodes.append(node)
        self.free[name] = [f"gpu-{index}" for index in range(gpus)]
        self.free[f"nic {name}"] = []
        if not has_plugin:
            self._add_slices(name, gpus)

    def _fill(self, node: Object) -> None:
        """Pods on a node: idle and busy ones with GPUs, others without."""
        rng, name = self.rng, node["metadata"]["name"]
        for _ in range(rng.randint(0, 2)):
            self._bind("web", name, 0, rng.choice(("low", "high")))
        while self.free[name] and rng.random() < 0.93:
            gpus = rng.randint(1, min(4, len(self.free[name])))
            self._bind(rng.choice(("idle", "idle", "busy")), name, gpus, "low")

    def _bind(self, kind: str, node: str, gpus: int, priority_class: str) -> None:
        """A pod on a node, of a new Deployment or of one that has pods like it."""
        rng = self.rng
        alike = [name for name in self.deployments if name.startswith(f"{kind}-{gpus}-")]
        is_other = kind == "web" and rng.random() < 0.3
        if alike and rng.random() < 0.3 and kind != "web":
            deployment = rng.choice(alike)
        else:
            deployment = f"{kind}-{gpus}-{len(self.deployments)}"
        pods = self.deployments.setdefault(deployment, [])
        name = f"{deployment}-{len(pods)}"
        namespace = "other" if is_other else NAMESPACE
        pod = self.pod(name, namespace, gpus, priority_class, node=node)
        pod["metadata"]["labels"] |= {"app": deployment, "kind": kind}
        pods.append(pod)
        for feature, change in _OF_BOUND.items():
            if self.has(feature, 0.4):
                change(self, pod)

    def pod(
        self,
        name: str,
        namespace: str,
        gpus: int,
        priority_class: str,
        *,
        node: str = "",
    ) -> Object:
        """A pod on a node, or a pending one without."""
        rng = self.rng
        requests, limits = self._requests(gpus, node)
        container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": limits}}
        spec: Object = {
            "containers": [container],
            "priority": _CLASSES[priority_class],
            "priorityClassName": priority_class,
        }
        status: Object = {"phase": "Pending"}
        if node:
            spec["nodeName"] = node
            status = {
                "phase": "Running",
                "startTime": _LONG_AGO,
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": _LONG_AGO}],
                "containerStatuses": [
                    {
                        "name": "main",
                        "ready": True,
                        "restartCount": 0,
                        "image": "i",
                        "imageID": "i",
                        "state": {"running": {"startedAt": _LONG_AGO}},
                    }
                ],
            }
        tolerated = {"taints": 0.6, "cordoned": 0.3}
        if any(self.has(feature, share) for feature, share in tolerated.items()):
            spec["tolerations"] = [
                rng.choice(
                    (
                        {"operator": "Exists"},
                        {"key": "team", "operator": "Equal", "value": "x", "effect": "NoSchedule"},
                        {"key": GPU, "operator": "Exists"},
                        {"key": "team", "operator": "Equal", "value": ""},
                    )
                )
            ]
        pod = self.add("v1", "Pod", name, namespace, labels={"app": name}, spec=spec, status=status)
        if self.has("shapes", 0.6):
            _shape(self, pod)
        if gpus and not self._is_by_plugin(node):
            self._claim(pod, gpus, node)
        elif node:
            del self.free[node][:gpus]
        return pod

    def _is_by_plugin(self, node: str) -> bool:
        """Whether pods on a node, or those that wait, have GPUs by a device plugin."""
        known = {one["metadata"]["name"]: one["status"]["allocatable"] for one in self.nodes}
        return GPU in known[node] if node else not self.is_dra

    def _requests(self, gpus: int, node: str) -> tuple[Object, Object]:
        """Requests and limits of a container."""
        rng = self.rng
        requests = {"cpu": rng.choice(("500m", "1", "4")), "memory": rng.choice(("1Gi", "8Gi"))}
        for feature, resource, amounts in _AMOUNTS:
            if self.has(feature, 0.7 if gpus else 0.3):
                requests[resource] = rng.choice(amounts)
        if gpus and self._is_by_plugin(node):
            requests[GPU] = str(gpus)
        if self.has("quantities", 0.7):
            requests["cpu"] = rng.choice(("0.1", "1500m", "2e0", "4000001u"))
            requests["memory"] = rng.choice(("1G", "1e9", "1500Mi", "128974848000m", "17179869184"))
        limits = {key: value for key, value in requests.items() if "/" in key or key.startswith("hugepages")}
        if self.has("limits", 0.6):  # then requests are the limits
            return {}, requests
        return requests, limits

    def _add_deployment(self, name: str, pods: Sequence[Object]) -> None:
        """A Deployment of these pods, or a StatefulSet."""
        namespace, number = pods[0]["metadata"]["namespace"], len(pods)
        template = {
            "metadata": {"labels": pods[0]["metadata"]["labels"]},
            "spec": {"containers": [{"name": "main", "image": "i"}]},
        }
        selector = {"matchLabels": {"app": name}}
        spec: Object = {"replicas": number, "selector": selector, "template": template}
        status = {
            "replicas": number,
            "readyReplicas": number,
            "availableReplicas": number,
            "observedGeneration": 1,
        }
        fields: Object = {"generation": 1, "spec": spec, "status": status}
        if "stateful" in self.special:
            spec["serviceName"] = name
            self.add("apps/v1", "StatefulSet", name, namespace, **fields)
            owner = _owner("apps/v1", "StatefulSet", name)
        else:
            self.add("apps/v1", "Deployment", name, namespace, **fields)
            above, owner = (
                _owner("apps/v1", "Deployment", name),
                _owner("apps/v1", "ReplicaSet", f"{name}-rs"),
            )
            self.add("apps/v1", "ReplicaSet", f"{name}-rs", namespace, ownerReferences=[above], **fields)
        for pod in pods:
            pod["metadata"]["namespace"] = namespace
            pod["metadata"]["ownerReferences"] = [owner]

    # --- DRA

    def _add_classes(self) -> None:
        expression = f'device.driver == "{GPU_DRIVER}"'
        typed = f'{expression} && device.attributes["{GPU_DRIVER}"].type == "%s"'
        extended = {"extendedResourceName": GPU} if self.has("dra-extended") else {}
        for name, text, more in (
            (GPU_DRIVER, typed % "gpu", extended),
            ("mig.nvidia.com", typed % "mig", {}),
            ("any-gpu", expression, {}),
            ("nic", f'device.driver == "{NIC_DRIVER}"', {}),
        ):
            spec = {"selectors": [{"cel": {"expression": text}}], **more}
            self.add("resource.k8s.io/v1", "DeviceClass", name, "", spec=spec)

    def _add_slices(self, node: str, gpus: int) -> None:
        """What drivers publish of a node."""
        prefix = f"{GPU_DRIVER}/" if self.has("dra-names", 0.5) else ""
        is_multiple = self.has("dra-capacity", 0.7)
        gpu_devices = [self._gpu(node, index, prefix, is_multiple=is_multiple) for index in range(gpus)]
        counters = []
        pool: Object = {"name": node, "generation": 1, "resourceSliceCount": 1}
        if "dra-mig" in self.special:
            counters = [
                {"name": f"set-{index}", "counters": {"slices": {"value": "7"}}} for index in range(gpus)
            ]
            gpu_devices = [part for device in gpu_devices for part in _partitions(device, prefix)]
            pool["resourceSliceCount"] = 2
        if self.has("dra-partial", 0.4):
            pool["resourceSliceCount"] += 1
        spec: Object = {"driver": GPU_DRIVER, "nodeName": node, "pool": pool}
        self._add_slice(f"{node}-gpu", {**spec, "devices": gpu_devices})
        if counters:
            self._add_slice(f"{node}-counters", {**spec, "sharedCounters": counters})
        if self.has("dra-pools", 0.7):
            self._add_other_pools(node, gpu_devices[0])
        if "dra-nic" in self.special:
            root = "resource.kubernetes.io/pcieRoot"
            nics: list[Object] = [
                {"name": f"nic-{index}", "attributes": {root: {"string": f"pci{index}"}}}
                for index in range(self.rng.randint(0, 2))
            ]
            pool = {**pool, "resourceSliceCount": 1}
            if nics:
                spec = {"driver": NIC_DRIVER, "nodeName": node, "pool": pool, "devices": nics}
                self._add_slice(f"{node}-nic", spec)
            self.free[f"nic {node}"] = [nic["name"] for nic in nics]

    def _add_other_pools(self, node: str, device: Object) -> None:
        """Slices that are not all of a node: an older one of its pool, one of all nodes, one of nodes by label."""
        case = self.rng.choice(("old", "all", "labels", "devices"))
        other = {key: value for key, value in device.items() if key != "consumesCounters"}
        other["name"] = f"more-{node}"
        pool = {"name": f"{case}-{node}", "generation": 1, "resourceSliceCount": 1}
        spec: Object = {"driver": GPU_DRIVER, "pool": pool, "devices": [other]}
        term = {"matchExpressions": [{"key": _ZONE, "operator": "In", "values": ["z0"]}]}
        match case:
            case "old":
                spec |= {"nodeName": node, "pool": {**pool, "name": node, "generation": 0}}
            case "all":
                spec["allNodes"] = True
            case "labels":
                spec["nodeSelector"] = {"nodeSelectorTerms": [term]}
            case _:
                spec["perDeviceNodeSelection"] = True
                other["nodeName"] = node
        self._add_slice(f"{node}-more", spec)

    def _add_slice(self, name: str, spec: Object) -> None:
        self.add("resource.k8s.io/v1", "ResourceSlice", name, "", spec=spec)

    def _gpu(self, node: str, index: int, prefix: str, *, is_multiple: bool) -> Object:
        """A device; the names of some of its attributes and capacities have a prefix."""
        rng = self.rng
        memory: Object = {"value": rng.choice(("40Gi", "80Gi"))}
        attributes = {
            "type": {"string": "gpu"},
            f"{prefix}uuid": {"string": f"GPU-{node}-{index}"},
            "productName": {"string": rng.choice(("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"))},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci{index // rng.choice((1, 2, 2, 4))}"},
        }
        capacity = {f"{prefix}memory": memory}
        device: Object = {"name": f"gpu-{index}", "attributes": attributes, "capacity": capacity}
        if is_multiple:
            device["allowMultipleAllocations"] = True
            if rng.random() < 0.5:
                memory["requestPolicy"] = {"default": "10Gi", "validRange": {"min": "5Gi", "step": "5Gi"}}
        if self.has("dra-taint", 0.4):
            effect = rng.choice(("NoSchedule", "NoExecute"))
            device["taints"] = [{"key": "broken", "value": "yes", "effect": effect, "timeAdded": _LONG_AGO}]
        if self.has("dra-binding", 0.3):
            device |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]}
        return device

    def _claim(self, pod: Object, gpus: int, node: str) -> None:
        """Give a pod a claim for GPUs: an allocated one on a node; else as the features ask."""
        name = pod["metadata"]["name"]
        if not node:
            if self.has("dra-extended"):
                resources = pod["spec"]["containers"][0]["resources"]
                name = self.rng.choice((GPU, GPU, f"deviceclass.resource.kubernetes.io/{GPU_DRIVER}"))
                resources["requests"][name] = resources["limits"][name] = str(gpus)
                return
            self._attach(pod, f"{name}-gpu", self._wish(gpus), None)
            return
        if "dra-capacity" in self.special:
            gpus = 1
        free = self.free[node]
        devices = [free.pop(self.rng.randrange(len(free))) for _ in range(min(gpus, len(free)))]
        exactly: Object = {"deviceClassName": GPU_DRIVER, "count": len(devices)}
        results: list[Object] = [
            {"request": "gpu", "driver": GPU_DRIVER, "pool": node, "device": device} for device in devices
        ]
        published = next(item for item in self.objects if item["metadata"]["name"] == f"{node}-gpu")
        first = published["spec"]["devices"][0]
        for result in results if first.get("allowMultipleAllocations") else ():
            amount = {next(iter(first["capacity"])): self.rng.choice(("20Gi", "40Gi"))}
            result["shareID"] = f"00000000-0000-0000-0000-{self.rng.randrange(10**12):012d}"
            result["consumedCapacity"] = amount
            exactly["capacity"] = {"requests": amount}
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        allocation = {
            "devices": {"results": results},
            "nodeSelector": selector,
            "allocationTimestamp": _LONG_AGO,
        }
        wish = {"requests": [{"name": "gpu", "exactly": exactly}]}
        if self.has("dra-extended", 0.5) and "capacity" not in exactly:
            self._add_extended(pod, wish, allocation)
            return
        claim = self._attach(pod, f"{name}-gpu", wish, allocation)
        if self.has("dra-shared", 0.4):
            self._share(claim, pod)
        if self.has("dra-nic", 0.4) and self.free[f"nic {node}"]:
            nic = self.free[f"nic {node}"].pop()
            result = {"request": "nic", "driver": NIC_DRIVER, "pool": node, "device": nic}
            allocation = {"devices": {"results": [result]}, "nodeSelector": selector}
            wish = {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}]}
            self._attach(pod, f"{name}-nic", wish, allocation)

    def _add_extended(self, pod: Object, wish: Object, allocation: Object) -> None:
        """The claim that the scheduler makes of an extended resource."""
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        amount = str(len(allocation["devices"]["results"]))
        for amounts in ("requests", "limits"):
            container["resources"].setdefault(amounts, {})[GPU] = amount
        owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        claim = f"{metadata['name']}-extended-resources"
        self.add(
            "resource.k8s.io/v1",
            "ResourceClaim",
            claim,
            annotations={"resource.kubernetes.io/extended-resource-claim": "true"},
            ownerReferences=[{**owner, "controller": True, "blockOwnerDeletion": True}],
            spec={"devices": wish},
            status={"allocation": allocation, "reservedFor": [_consumer(pod)]},
        )
        mapping = {"containerName": "main", "resourceName": GPU, "requestName": "gpu"}
        pod["status"]["extendedResourceClaimStatus"] = {
            "resourceClaimName": claim,
            "requestMappings": [mapping],
        }

    def _share(self, claim: Object, pod: Object) -> None:
        """Let another pod use a claim too; then no template made it."""
        claim["metadata"].pop("ownerReferences", None)
        using = pod["spec"]["resourceClaims"][-1]
        using.pop("resourceClaimTemplateName", None)
        using["resourceClaimName"] = claim["metadata"]["name"]
        pod["status"].pop("resourceClaimStatuses", None)
        kind = self.rng.choice(("idle", "busy"))
        deployment = f"{kind}-s-{len(self.deployments)}"
        other = self.pod(f"{deployment}-0", NAMESPACE, 0, "low", node=pod["spec"]["nodeName"])
        other["metadata"]["labels"] |= {"app": deployment, "kind": kind}
        other["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}]
        other["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
        claim["status"]["reservedFor"].append(_consumer(other))
        self.deployments[deployment] = [other]

    def _attach(self, pod: Object, name: str, devices: Object, allocation: Object | None) -> Object:
        of_pod = name.removeprefix(f"{pod['metadata']['name']}-")
        spec, status = pod["spec"], pod["status"]
        is_own = self.rng.random() < 0.7
        using = {"name": of_pod}
        using |= {"resourceClaimTemplateName": f"{name}-template"} if is_own else {"resourceClaimName": name}
        spec.setdefault("resourceClaims", []).append(using)
        spec["containers"][0]["resources"].setdefault("claims", []).append({"name": of_pod})
        owners: Object = {}
        if is_own:
            status.setdefault("resourceClaimStatuses", []).append({"name": of_pod, "resourceClaimName": name})
            owner = {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod["metadata"]["name"],
                "uid": pod["metadata"]["uid"],
            }
            owners = {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}
            self.add(
                "resource.k8s.io/v1",
                "ResourceClaimTemplate",
                f"{name}-template",
                spec={"spec": {"devices": devices}},
            )
        claimed = {"allocation": allocation, "reservedFor": [_consumer(pod)]} if allocation else {}
        return self.add(
            "resource.k8s.io/v1", "ResourceClaim", name, **owners, spec={"devices": devices}, status=claimed
        )

    def _wish(self, gpus: int) -> Object:
        """What the pending pod claims."""
        exactly = self._exactly(gpus)
        requests: list[Object] = [{"name": "gpu", "exactly": exactly}]
        if self.has("dra-first") and "adminAccess" not in exactly:
            requests = [{"name": "gpu", "firstAvailable": self._alternatives(exactly)}]
        if self.has("dra-twice"):
            requests.append({"name": "gpu-2", "exactly": self._exactly(1)})
        if self.has("dra-nic", 0.7):
            nic = {"deviceClassName": "nic", "count": 1, "allocationMode": "ExactCount"}
            requests.append({"name": "nic", "exactly": nic})
        wish: Object = {"requests": requests}
        if self.has("dra-match"):
            wish["constraints"] = [self._constraint(requests)]
        return wish

    def _exactly(self, gpus: int) -> Object:
        """A request for GPUs."""
        rng = self.rng
        exactly: Object = {"deviceClassName": GPU_DRIVER, "allocationMode": "ExactCount", "count": gpus}
        if self.has("dra-selector"):
            exactly["selectors"] = [{"cel": {"expression": self._expression()}}]
        if self.has("dra-mig", 0.6):
            exactly["deviceClassName"] = rng.choice(("mig.nvidia.com", "any-gpu"))
        if "dra-capacity" in self.special or self.has("dra-names", 0.5):
            key = rng.choice(("memory", f"{GPU_DRIVER}/memory", "gpu.other.com/memory", "cores"))
            exactly["capacity"] = {"requests": {key: rng.choice(("10Gi", "20Gi", "60Gi", "90Gi"))}}
        if self.has("dra-taint", 0.5):
            equal = {"key": "broken", "operator": "Equal", "value": rng.choice(("yes", "no"))}
            any_value = {"key": "broken", "operator": "Exists"}
            exactly["tolerations"] = [rng.choice((any_value, {**equal, "effect": "NoSchedule"}))]
        if self.has("dra-all", 0.8):
            del exactly["count"]
            exactly["allocationMode"] = "All"
        if self.has("dra-admin", 0.7):
            exactly["adminAccess"] = True
        return exactly

    def _expression(self) -> str:
        """A selector in CEL; some ask for what no device has."""
        name = self.rng.choice((GPU_DRIVER, GPU_DRIVER, "gpu.other.com"))
        return self.rng.choice(
            (
                f'device.capacity["{name}"].memory.compareTo(quantity("50Gi")) >= 0',
                f'device.attributes["{name}"].productName.startsWith("NVIDIA H100")',
                f'"{name}" in device.attributes && device.attributes["{name}"].type == "gpu"',
                f'device.attributes["{name}"].?driverVersion.orValue("1") == "1"',
                f'device.attributes["{name}"].missing == "x"',
            )
        )

    def _alternatives(self, exactly: Object) -> list[Object]:
        """Subrequests, one of them this request."""
        rng = self.rng
        choices: list[Object] = [{"name": "best", **exactly}]
        for number in range(rng.randint(1, 2)):
            device_class = rng.choice((GPU_DRIVER, "mig.nvidia.com", "any-gpu"))
            other = {"name": f"alt-{number}", **exactly, "deviceClassName": device_class}
            if "count" in other:
                other["count"] = rng.choice((1, 2, 8))
            choices.append(other)
        rng.shuffle(choices)
        return choices

    def _constraint(self, requests: Sequence[Object]) -> Object:
        rng = self.rng
        names = [one["name"] for one in requests]
        subs = [f"{one['name']}/{sub['name']}" for one in requests for sub in one.get("firstAvailable", ())]
        attribute = rng.choice(
            (
                "resource.kubernetes.io/pcieRoot",
                f"{GPU_DRIVER}/productName",
                f"{GPU_DRIVER}/uuid",
                f"{GPU_DRIVER}/none",
            )
        )
        constraint: Object = {"matchAttribute": attribute}
        if rng.random() < 0.3:
            constraint = {"distinctAttribute": attribute}
        if rng.random() < 0.6:
            some = [*names, *subs]
            constraint["requests"] = rng.sample(some, rng.randint(1, len(some)))
            if any(
                one in constraint["requests"]
                and any(s.startswith(f"{one}/") and s in constraint["requests"] for s in subs)
                for one in names
            ):
                constraint["requests"] = names
        return constraint


_ADMIN = "resource.kubernetes.io/admin-access"


def _partitions(device: Object, prefix: str) -> list[Object]:
    """A GPU, and the MIG devices that it may be instead."""
    of = f"set-{device['name'].removeprefix('gpu-')}"
    found = [{**device, "consumesCounters": [{"counterSet": of, "counters": {"slices": {"value": "7"}}}]}]
    attributes = device["attributes"]
    uuid = attributes[f"{prefix}uuid"]
    for part in range(2):
        own = {
            **attributes,
            "type": {"string": "mig"},
            "profile": {"string": "3g.40gb"},
            "parentUUID": uuid,
            f"{prefix}uuid": {"string": f"MIG-{uuid['string']}-{part}"},
        }
        found.append(
            {
                "name": f"{device['name']}-mig-{part}",
                "attributes": own,
                "capacity": {f"{prefix}memory": {"value": "39Gi"}},
                "consumesCounters": [{"counterSet": of, "counters": {"slices": {"value": "3"}}}],
            }
        )
    return found


def _owner(version: str, kind: str, name: str) -> Object:
    return {
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "uid": f"uid-{kind}-{name}",
        "controller": True,
    }


def _consumer(pod: Object) -> Object:
    return {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}


# --- Features of pods


def _shape(draw: _Draw, pod: Object) -> None:
    """Sidecars, init containers, resources of the pod, overhead."""
    rng, spec = draw.rng, pod["spec"]
    main = spec["containers"][0]
    gpu = main["resources"]["limits"].get(GPU)
    init: Object = {
        "name": "init",
        "image": "i",
        "resources": {"requests": {"cpu": rng.choice(("1", "6", "12"))}},
    }
    sidecar: Object = {
        "name": "sidecar",
        "image": "i",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": rng.choice(("500m", "3")), "memory": "2Gi"}},
    }
    for container in (init, sidecar):
        if gpu and rng.random() < 0.2:
            container["resources"]["requests"][GPU] = gpu
            container["resources"]["limits"] = {GPU: gpu}
    spec["initContainers"] = rng.choice(([init], [sidecar], [sidecar, init], [init, sidecar]))
    if rng.random() < 0.3:
        spec["overhead"] = {"cpu": "2", "memory": "1Gi"}
        spec["runtimeClassName"] = "kata"
    if rng.random() < 0.3 and not any("hugepages" in name for name in main["resources"]["limits"]):
        spec["resources"] = {"requests": {"cpu": rng.choice(("18", "24")), "memory": "80Gi"}}


def _resize(draw: _Draw, pod: Object) -> None:
    """An in-place resize that is not made yet."""
    rng = draw.rng
    wanted, held = rng.choice((("1", "6"), ("500m", "7"), ("6", "1")))
    requests = pod["spec"]["containers"][0]["resources"]["requests"]
    if "cpu" not in requests:
        return
    requests["cpu"] = wanted
    (status,) = pod["status"]["containerStatuses"]
    before = {**requests, "cpu": held}
    if rng.random() < 0.7:
        status["allocatedResources"] = before
    if rng.random() < 0.7:
        status["resources"] = {"requests": before}
    kind, reason = rng.choice(
        (("PodResizeInProgress", ""), ("PodResizePending", "Deferred"), ("PodResizePending", "Infeasible"))
    )
    pod["status"]["conditions"].append({"type": kind, "status": "True", "reason": reason})


def _host_port(draw: _Draw, pod: Object) -> None:
    port: Object = {
        "containerPort": 8080,
        "hostPort": draw.rng.choice((8080, 8080, 8081)),
        "protocol": draw.rng.choice(("TCP", "TCP", "UDP")),
    }
    if draw.rng.random() < 0.3:
        port["hostIP"] = draw.rng.choice(("127.0.0.1", "10.0.0.1"))
    pod["spec"]["containers"][0]["ports"] = [port]
    if draw.rng.random() < 0.2:
        pod["spec"]["hostNetwork"] = True
        port["containerPort"] = port.pop("hostPort")  # the API server makes it one of the host


def _term(draw: _Draw, values: Sequence[str]) -> Object:
    rng = draw.rng
    expression = {
        "key": rng.choice(("app", "kind")),
        "operator": rng.choice(("In", "In", "In", "NotIn")),
        "values": list(values),
    }
    term: Object = {
        "topologyKey": rng.choice((_HOST, _HOST, _ZONE, "rack")),
        "labelSelector": {"matchExpressions": [expression]},
    }
    if rng.random() < 0.1:
        term["labelSelector"] = {}  # selects all
    elif rng.random() < 0.1:
        del term["labelSelector"]  # selects none
    if rng.random() < 0.2:
        term["namespaces"] = ["other", NAMESPACE]
    elif rng.random() < 0.2:
        term["namespaceSelector"] = rng.choice(({}, {"matchLabels": {"team": "other"}}))
    return term


def _repel(draw: _Draw, pod: Object) -> None:
    """Required anti-affinity of a pod that is bound."""
    term = _term(draw, ["urgent"])
    pod["spec"].setdefault("affinity", {})["podAntiAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": [term]
    }


def _terminating(draw: _Draw, pod: Object) -> None:
    if draw.rng.random() < 0.4:
        pod["metadata"] |= {
            "deletionTimestamp": draw.rng.choice((_LATELY, "2026-11-21T12:01:00Z")),
            "deletionGracePeriodSeconds": 30,
        }


def _ended(draw: _Draw, pod: Object) -> None:
    """A pod that has ended on its node holds nothing, though it is there."""
    if draw.rng.random() < 0.4:
        pod["status"]["phase"] = draw.rng.choice(("Succeeded", "Failed"))


_OF_BOUND: Mapping[str, Callable[[_Draw, Object], None]] = {
    "resize": _resize,
    "ports": _host_port,
    "repelled": _repel,
    "terminating": _terminating,
    "ended": _ended,
}


# --- Features of the pending pod


def _own_port(draw: _Draw, pending: Object) -> None:
    _host_port(draw, pending)


def _label(draw: _Draw, pending: Object) -> None:
    pending["metadata"]["labels"]["kind"] = draw.rng.choice(("urgent", "web", "idle"))


def _affinity(draw: _Draw, pending: Object) -> None:
    """Required affinity or anti-affinity to pods."""
    which = draw.rng.choice(("podAffinity", "podAntiAffinity"))
    term = _term(draw, [draw.rng.choice(("idle", "busy", "web", "urgent"))])
    pending["spec"].setdefault("affinity", {})[which] = {
        "requiredDuringSchedulingIgnoredDuringExecution": [term]
    }


def _spread(draw: _Draw, pending: Object) -> None:
    rng = draw.rng
    pending["metadata"]["labels"]["kind"] = kind = rng.choice(("idle", "busy", "web"))
    pending["spec"]["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": rng.choice((_HOST, _ZONE)),
            "whenUnsatisfiable": rng.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": {"matchLabels": {"kind": kind}},
        }
    ]


def _node_rules(draw: _Draw, pending: Object) -> None:
    rng = draw.rng
    if rng.random() < 0.4:
        pending["spec"]["nodeSelector"] = {rng.choice((_ZONE, "missing")): "z0"}
        return
    expression = rng.choice(
        (
            {"key": _ZONE, "operator": "In", "values": ["z1"]},
            {"key": _ZONE, "operator": "NotIn", "values": ["z0"]},
            {"key": "size", "operator": "Gt", "values": ["2"]},
            {"key": "size", "operator": "Lt", "values": ["4"]},
            {"key": "missing", "operator": "DoesNotExist"},
            {"key": "nvidia.com/gpu.product", "operator": "Exists"},
        )
    )
    terms: list[Object] = [{"matchExpressions": [expression]}]
    if rng.random() < 0.3:
        terms = [
            {
                "matchFields": [
                    {"key": "metadata.name", "operator": rng.choice(("In", "NotIn")), "values": ["n0"]}
                ]
            }
        ]
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pending["spec"].setdefault("affinity", {})["nodeAffinity"] = node


def _volume(draw: _Draw, pending: Object) -> None:
    """A claim for a volume: bound to one with a place, unbound, missing, or one that others use."""
    rng = draw.rng
    binding = rng.choice(("WaitForFirstConsumer", "Immediate"))
    storage_class: Object = {
        "provisioner": rng.choice(("csi.example.com", "kubernetes.io/no-provisioner")),
        "volumeBindingMode": binding,
    }
    if rng.random() < 0.3:
        storage_class["allowedTopologies"] = [{"matchLabelExpressions": [{"key": _ZONE, "values": ["z0"]}]}]
    draw.add("storage.k8s.io/v1", "StorageClass", "fast", "", **storage_class)
    case = rng.choice(("zone", "local", "label", "unbound", "missing", "available", "once", "limit"))
    mode = "ReadWriteOncePod" if case == "once" else "ReadWriteOnce"
    claim: Object = {
        "accessModes": [mode],
        "resources": {"requests": {"storage": "10Gi"}},
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
    }
    volume: Object = {
        "accessModes": [mode],
        "capacity": {"storage": "10Gi"},
        "storageClassName": "fast",
        "volumeMode": "Filesystem",
        "csi": {"driver": "csi.example.com", "volumeHandle": "v"},
    }
    key, value = (_HOST, "n0") if case == "local" else (_ZONE, "z1")
    if case in {"zone", "local", "available"}:
        volume["nodeAffinity"] = {
            "required": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
                ]
            }
        }
    labels = {_ZONE: "z1"} if case == "label" else {}
    if case not in {"unbound", "missing"}:
        if case != "available":
            claim["volumeName"] = "data"
            volume["claimRef"] = {
                "kind": "PersistentVolumeClaim",
                "namespace": NAMESPACE,
                "name": "data",
                "uid": "uid-PersistentVolumeClaim-data",
            }
        phase = "Available" if case == "available" else "Bound"
        draw.add("v1", "PersistentVolume", "data", "", labels=labels, spec=volume, status={"phase": phase})
    if case != "missing":
        bound = {"pv.kubernetes.io/bind-completed": "yes"} if "volumeName" in claim else {}
        phase = "Bound" if "volumeName" in claim else "Pending"
        draw.add(
            "v1", "PersistentVolumeClaim", "data", annotations=bound, spec=claim, status={"phase": phase}
        )
    used = [pending]
    if case in {"once", "limit"}:
        mine = [
            pods[0] for pods in draw.deployments.values() if pods[0]["metadata"]["namespace"] == NAMESPACE
        ]
        used += rng.sample(mine, min(len(mine), 1)) if case == "once" else []
    for pod in used:
        pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    if case == "limit":
        others = [pod for pods in draw.deployments.values() for pod in pods if rng.random() < 0.3]
        _limit_volumes(draw, others, claim, volume)


def _limit_volumes(draw: _Draw, others: Sequence[Object], claim: Object, volume: Object) -> None:
    """Let nodes attach few volumes, and these pods have some, or share that of the pending one."""
    rng = draw.rng
    if rng.random() < 0.2:
        volume["awsElasticBlockStore"] = {"volumeID": "vol-1"}
        del volume["csi"]
    for number, pod in enumerate(others):
        namespace, name = pod["metadata"]["namespace"], "data"
        if namespace != NAMESPACE or rng.random() < 0.8:
            name = f"data-{number}"
            uid = f"uid-PersistentVolumeClaim-{name}"
            reference = {**volume["claimRef"], "namespace": namespace, "name": name, "uid": uid}
            other = {**volume, "claimRef": reference}
            if "csi" in other:
                other["csi"] = {**other["csi"], "volumeHandle": name}
            else:
                other["awsElasticBlockStore"] = {"volumeID": f"vol-{name}"}
            draw.add("v1", "PersistentVolume", name, "", spec=other, status={"phase": "Bound"})
            draw.add(
                "v1",
                "PersistentVolumeClaim",
                name,
                namespace,
                annotations={"pv.kubernetes.io/bind-completed": "yes"},
                spec={**claim, "volumeName": name},
                status={"phase": "Bound"},
            )
        pod["spec"].setdefault("volumes", []).append(
            {"name": "data", "persistentVolumeClaim": {"claimName": name}}
        )
    drivers = {
        "csi.example.com": rng.choice((0, 1, 1, 2, 3)),
        "ebs.csi.aws.com": rng.choice((0, 1, 2, 3, None)),
    }
    for node in draw.nodes:
        of_node = [
            {"name": name, "nodeID": "x", "topologyKeys": [_ZONE]}
            | ({} if count is None else {"allocatable": {"count": count}})
            for name, count in drivers.items()
        ]
        if rng.random() < 0.9:
            name = node["metadata"]["name"]
            annotations = {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs"}
            draw.add(
                "storage.k8s.io/v1",
                "CSINode",
                name,
                "",
                annotations=annotations,
                spec={"drivers": of_node},
            )


def _inline_volume(draw: _Draw, pending: Object) -> None:
    """A volume without a claim, or with one of the pod's own, which another pod may have too."""
    rng = draw.rng
    disk: Object = rng.choice(
        (
            {"gcePersistentDisk": {"pdName": "disk"}},
            {"awsElasticBlockStore": {"volumeID": "disk"}},
            {"iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.example.com:x", "lun": 0}},
            {"rbd": {"monitors": ["10.0.0.1"], "image": "x"}},
            {
                "ephemeral": {
                    "volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {}}}
                }
            },
            {"emptyDir": {"sizeLimit": "1Gi"}},
            {"csi": {"driver": "inline.example.com"}},
        )
    )
    if "ephemeral" in disk:
        disk["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"] = {"requests": {"storage": "1Gi"}}
    users = [pending, *(pods[0] for pods in draw.deployments.values() if rng.random() < 0.4)]
    for pod in users:
        pod["spec"].setdefault("volumes", []).append({"name": "disk", **disk})


def _nominated(draw: _Draw, _pending: Object) -> None:
    """Another pending pod for which the scheduler keeps room."""
    rng = draw.rng
    other = draw.pod("nominated", NAMESPACE, 0, rng.choice(sorted(_CLASSES)))
    if not draw.is_dra:
        resources = other["spec"]["containers"][0]["resources"]
        resources["requests"][GPU] = resources["limits"][GPU] = str(rng.choice((1, 2)))
    other["status"]["nominatedNodeName"] = rng.choice(draw.nodes)["metadata"]["name"]
    if rng.random() < 0.3:
        rng.choice((_host_port, _repel))(draw, other)


def _budget(draw: _Draw, _pending: Object) -> None:
    allowed = draw.rng.choice((0, 1))
    status = {
        "disruptionsAllowed": allowed,
        "currentHealthy": 3,
        "desiredHealthy": 2,
        "expectedPods": 3,
        "observedGeneration": 1,
    }
    draw.add(
        "policy/v1",
        "PodDisruptionBudget",
        "keep",
        spec={"selector": {"matchLabels": {"kind": "idle"}}, "minAvailable": 1},
        status=status,
    )


def _gate(_draw: _Draw, pending: Object) -> None:
    pending["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]


def _foreign(draw: _Draw, pending: Object) -> None:
    """Claims that another pod uses, or that are allocated elsewhere."""
    rng = draw.rng
    claims = [
        item
        for item in draw.objects
        if item["kind"] == "ResourceClaim"
        and not item["metadata"].get("ownerReferences")
        and item["status"].get("allocation")
    ]
    if claims and "resourceClaims" in pending["spec"]:
        using = pending["spec"]["resourceClaims"][0]
        using.pop("resourceClaimTemplateName", None)
        using["resourceClaimName"] = rng.choice(claims)["metadata"]["name"]
        pending["status"].pop("resourceClaimStatuses", None)


def _lost_claim(draw: _Draw, _pending: Object) -> None:
    """The claim of the pending pod does not exist."""
    draw.objects[:] = [
        item
        for item in draw.objects
        if item["kind"] != "ResourceClaim" or item["metadata"]["name"] != "urgent-gpu"
    ]


_CHANGES: Mapping[str, Callable[[_Draw, Object], None]] = {
    "labels": _label,
    "ports": _own_port,
    "affinity": _affinity,
    "spread": _spread,
    "node-rules": _node_rules,
    "volume": _volume,
    "inline": _inline_volume,
    "nominated": _nominated,
    "budget": _budget,
    "gate": _gate,
    "dra-foreign": _foreign,
    "dra-lost": _lost_claim,
}

_AMOUNTS = (
    ("rdma", "rdma/hca", ("1", "2")),
    ("hugepages", "hugepages-2Mi", ("1Gi", "2Gi")),
    ("storage", "ephemeral-storage", ("5Gi", "15Gi", "50Gi")),
    ("cpu", "cpu", ("3", "6", "12")),
    ("memory", "memory", ("16Gi", "30Gi", "60Gi")),
)
"""Resources that pods may lack in addition to GPUs: feature, name, amounts."""

_BOTH = frozenset(
    {
        *_OF_BOUND,
        *_CHANGES,
        *(feature for feature, _, _ in _AMOUNTS),
        "shapes",
        "taints",
        "cordoned",
        "pods",
        "quantities",
        "limits",
        "not-ready",
        "stateful",
    }
    - {"dra-foreign", "dra-lost"}
)
_DRA = frozenset(
    {
        *(
            "dra-foreign",
            "dra-lost",
            "dra-first",
            "dra-match",
            "dra-all",
            "dra-admin",
            "dra-taint",
            "dra-capacity",
            "dra-names",
        ),
        *(
            "dra-mig",
            "dra-nic",
            "dra-extended",
            "dra-selector",
            "dra-twice",
            "dra-shared",
            "dra-partial",
            "dra-binding",
        ),
    }
)
