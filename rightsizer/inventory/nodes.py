"""Nodes with GPUs, from their labels, annotations and status. Pure.

Labels of GPU Feature Discovery: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.inventory.gpu_requests import ResourceTable, amount_of, count_of
from rightsizer.inventory.node_holds import hold_of_node
from rightsizer.kube.api_objects import Condition, ObjectMeta, interned
from rightsizer.model import Node, NodeAutoscaler

HAMI_ANNOTATION = "hami.io/node-nvidia-register"

_BY_AMOUNT = frozenset({"", "hami-core", "mps"})
"""Modes in which a pod gets an amount of memory; in mode "mig" it gets an instance."""
_VENDOR = "NVIDIA-"
_LENGTHS = (7, 9)


class _HamiDevice(msgspec.Struct):
    """A GPU in HAMi's annotation, which omits false and 0."""

    devmem: int = 0
    type: str = ""
    health: bool = False
    mode: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class HamiGpus:
    """The GPUs of a node that HAMi allocates by amounts.

    Attributes:
        model: NVML's product name.
        gpus: Their number.
        memory_bytes: Of each; with deviceMemoryScaling more than the GPU has.
    """

    model: str
    gpus: int
    memory_bytes: int


def parse_hami_register(text: str) -> HamiGpus | None:
    """The GPUs in HAMi's annotation; None if it is invalid, or the GPUs are unhealthy or differ."""
    try:
        devices = msgspec.json.decode(text, type=list[_HamiDevice]) if text.startswith("[") else _old(text)
    except (msgspec.DecodeError, ValueError):
        return None
    usable = [one for one in devices if one.health and one.mode in _BY_AMOUNT and one.devmem > 0]
    if len({(one.type, one.devmem) for one in usable}) != 1:
        return None
    return HamiGpus(usable[0].type.removeprefix(_VENDOR), len(usable), usable[0].devmem << 20)


def _old(text: str) -> list[_HamiDevice]:
    """The format before JSON.

    Raises:
        ValueError: The text is invalid.
    """
    found = []
    for one in filter(None, text.split(":")):
        items = one.split(",")
        if len(items) not in _LENGTHS:
            raise ValueError(text)
        mode = items[8] if len(items) == max(_LENGTHS) else ""
        found.append(_HamiDevice(devmem=int(items[2]), type=items[4], health=items[6] == "true", mode=mode))
    return found


PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
_MPS_CAPABLE = "nvidia.com/mps.capable"
# GKE has its own device plugin: https://cloud.google.com/kubernetes-engine/docs/concepts/timesharing-gpus
_GKE_SHARING = "cloud.google.com/gke-gpu-sharing-strategy"
PRESENT = "nvidia.com/gpu.present"
_COUNTS = (
    "nvidia.com/gpu.count",
    "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "cloud.google.com/gke-accelerator-count",
)
_KARPENTER_POOLS = (
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",  # Karpenter before 0.32
)
POOLS = (
    *_KARPENTER_POOLS,
    "oke.oraclecloud.com/pool.name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "cloud.google.com/gke-nodepool",
)
_POOL_ANNOTATIONS = ("oci.oraclecloud.com/node-pool-id",)
REGIONS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_SPOT = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "oci.oraclecloud.com/oke-is-preemptible": "true",
}
"""Labels of Karpenter, EKS, GKE, AKS and OKE."""
ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
INSTANCE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_CLOUDS = {"aws://": "aws", "azure://": "azure", "gce://": "gcp", "oci://": "oci", "ocid1.": "oci"}
"""Cloud by the first characters of spec.providerID; OKE writes the instance's OCID alone."""

_LEAVING = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",  # Karpenter before 1.0
        "ToBeDeletedByClusterAutoscaler",
    }
)
"""Taints of nodes that are leaving or gone."""

DROPPED_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/", "failure-domain.beta.kubernetes.io/")
"""Prefixes of labels to drop: Node Feature Discovery alone sets a hundred per node."""

_ALIYUN_COUNT = "aliyun.com/gpu-count"
_MIG_SUFFIX = re.compile(r"-MIG-[0-9]++c?+\.?+[0-9a-z.+]*+$")
_MOST_DIGITS = 18
_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


class Taint(msgspec.Struct):
    """corev1.Taint."""

    key: str
    effect: str
    value: str = ""


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class _NodeStatus(msgspec.Struct):
    allocatable: dict[str, str | int] | None = None
    capacity: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None
    volumes_attached: list[Any] | None = msgspec.field(default=None, name="volumesAttached")


class NodeObject(msgspec.Struct):
    """corev1.Node."""

    metadata: ObjectMeta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


def has_gpus(item: NodeObject, resources: ResourceTable) -> bool:
    """Whether a node has GPUs, even if its device plugin does not work."""
    labels = item.metadata.labels or {}
    offered = {**(item.status.capacity or {}), **(item.status.allocatable or {})}
    return PRESENT in labels or PRODUCT in labels or any(resources.unit(name) for name in offered)


def node_of(item: NodeObject, resources: ResourceTable) -> Node:
    """The node."""
    labels, annotations = item.metadata.labels or {}, item.metadata.annotations or {}
    product = labels.get(PRODUCT, "")
    allocatable = {
        name: count_of(amount)
        for name, amount in sorted((item.status.allocatable or {}).items())
        if resources.unit(name) is not None
    }
    # With MIG strategy "single", product, count and memory describe the slices.
    is_sliced = _MIG_SUFFIX.search(product.removesuffix("-SHARED")) is not None
    memory_mib = None if is_sliced else _number(labels.get(MEMORY))
    taints = [taint for taint in item.spec.taints or [] if taint.effect in _KEEPS_OFF]
    by_hami = parse_hami_register(annotations.get(HAMI_ANNOTATION, ""))
    gpus = None if is_sliced else _number(_first(labels, _COUNTS))
    memory_bytes = None if memory_mib is None else memory_mib << 20
    model = _MIG_SUFFIX.sub("", product.removesuffix("-SHARED"))
    pool = _first(labels, POOLS) or _first(annotations, _POOL_ANNOTATIONS) or ""
    autoscaler = _autoscaler(labels, pool)
    return Node(
        name=item.metadata.name,
        model=model or (by_hami.model if by_hami else ""),
        gpus=by_hami.gpus if gpus is None and by_hami else gpus,
        memory_bytes=by_hami.memory_bytes if memory_bytes is None and by_hami else memory_bytes,
        allocatable=allocatable,
        sharing=_sharing(labels, annotations, allocatable),
        pool=pool,
        zone=_first(labels, ZONES) or "",
        region=_first(labels, REGIONS) or "",
        is_spot=any(labels.get(key) == value for key, value in _SPOT.items()),
        instance_type=_first(labels, INSTANCE_TYPES) or "",
        cloud=next(
            (cloud for start, cloud in _CLOUDS.items() if item.spec.provider_id.startswith(start)), ""
        ),
        is_ready=_is_ready(item),
        is_open=_is_open(item, taints),
        taints=tuple(sorted(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)),
        labels={key: value for key, value in labels.items() if not key.startswith(DROPPED_LABELS)},
        pooled=_pooled(item, by_hami),
        autoscaler=autoscaler,
        kept_by=hold_of_node(autoscaler, annotations),
    )


def _autoscaler(labels: Mapping[str, str], pool: str) -> NodeAutoscaler | None:
    if _first(labels, _KARPENTER_POOLS):
        return NodeAutoscaler.KARPENTER
    return NodeAutoscaler.CLUSTER_AUTOSCALER if pool else None


def _pooled(item: NodeObject, by_hami: HamiGpus | None) -> int:
    """GPUs that are allocated by amounts; gpushare's device plugin counts them as a resource."""
    count = count_of((item.status.allocatable or {}).get(_ALIYUN_COUNT, 0))
    return by_hami.gpus if by_hami else count


def _sharing(
    labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, int]
) -> str:
    by_gke = labels.get(_GKE_SHARING, "none")
    strategy = labels.get(SHARING, "time-slicing" if by_gke == "time-sharing" else by_gke)
    if strategy not in {"", "none"}:
        return strategy
    if labels.get(_MPS_CAPABLE) == "true":
        return "mps"
    if HAMI_ANNOTATION in annotations:
        return "hami"
    if labels.get("gpushare") == "true" or "aliyun.com/gpu-mem" in allocatable:
        return "gpushare"
    is_multiplied = labels.get(REPLICAS, "1") not in {"", "0", "1"}
    # Old versions of GPU Feature Discovery have no label for the strategy, and only time-slicing.
    if is_multiplied or labels.get(PRODUCT, "").endswith("-SHARED"):
        return "time-slicing"
    return ""


def _is_ready(item: NodeObject) -> bool:
    return {one.type: one.status for one in item.status.conditions or []}.get("Ready", "True") == "True"


def _is_open(item: NodeObject, taints: Iterable[Taint]) -> bool:
    is_leaving = item.metadata.deletion_timestamp is not None or any(one.key in _LEAVING for one in taints)
    return _is_ready(item) and not item.spec.unschedulable and not is_leaving


def _first(found: Mapping[str, str], keys: Iterable[str]) -> str | None:
    values: Iterator[str] = (found[key] for key in keys if found.get(key))
    return next(values, None)


def _number(text: str | None) -> int | None:
    """A label as a number; None if it is not one."""
    is_number = text is not None and len(text) <= _MOST_DIGITS and text.isascii() and text.isdecimal()
    return int(text) if text is not None and is_number else None


@dataclasses.dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Resources of a node in addition to GPUs, and its pods' requests of them, in the units of a pod's needs.

    Attributes:
        requested: Also of GPU resources, and how many VOLUMES.
    """

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]

    @property
    def spare(self) -> dict[str, int]:
        """Free amount of each resource that the node reports."""
        return {name: offered - self.requested.get(name, 0) for name, offered in self.allocatable.items()}


UNKNOWN_CAPACITY = NodeCapacity({}, {})
VOLUMES = "persistentvolumeclaims"
"""Among what is requested of a node: the PersistentVolumeClaims of its pods and the volumes that are attached."""


class NodeTable:
    """Nodes with GPUs, collected page by page.

    Args:
        resources: The resource names of GPUs.
        named: Nodes of GPU pods, kept even if they seem to have no GPUs.
        keys: Labels to keep of all nodes.

    Attributes:
        domains: These labels, by node.
    """

    def __init__(
        self, resources: ResourceTable, named: frozenset[str], keys: frozenset[str] = frozenset()
    ) -> None:
        self._resources = resources
        self._named = named
        self._keys = keys
        self.domains: dict[str, dict[str, str]] = {}
        self._allocatable: dict[str, Mapping[str, int]] = {}
        self._attached: dict[str, int] = {}
        self.nodes: dict[str, Node] = {}
        self.unknown_gpus: dict[
            str, tuple[str, ...]
        ] = {}  # by resource like a GPU's, the nodes that offer it

    def add(self, items: Iterable[NodeObject]) -> None:
        """Add a page of nodes."""
        for item in items:
            name, labels = item.metadata.name, item.metadata.labels or {}
            if self._keys:
                self.domains[name] = interned({key: labels[key] for key in self._keys & labels.keys()})
            for resource, amount in (item.status.allocatable or {}).items():
                if count_of(amount) and self._resources.is_like_a_gpu(resource):
                    self.unknown_gpus[resource] = (*self.unknown_gpus.get(resource, ()), name)
            if name in self._named or has_gpus(item, self._resources):
                node = node_of(item, self._resources)
                self.nodes[name] = dataclasses.replace(node, labels=interned(node.labels))
                self._attached[name] = len(item.status.volumes_attached or ())
                allocatable = item.status.allocatable or {}
                self._allocatable[name] = {
                    key: amount_of(key, amount)
                    for key, amount in allocatable.items()
                    if self._resources.unit(key) is None
                }

    def capacities(self, requested: Mapping[str, Mapping[str, int]]) -> dict[str, NodeCapacity]:
        """The capacity of each node, given what all its pods request."""
        found = {}
        for name, has in self._allocatable.items():
            taken = requested.get(name, {})
            volumes = taken.get(VOLUMES, 0) + self._attached[name]
            found[name] = NodeCapacity(has, {**taken, VOLUMES: volumes})
        return found
