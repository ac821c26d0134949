"""Nodes that have GPUs: from their labels and status to what they offer and to whom. Pure.

Labels of GPU Feature Discovery: https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rightsizer.inventory.resources import ResourceTable
from rightsizer.kube.api_objects import Condition, ObjectMeta
from rightsizer.kube.quantity import parse_quantity
from rightsizer.model import Node

REGISTER = "hami.io/node-nvidia-register"

_BY_AMOUNT = frozenset({"", "hami-core", "mps"})
"""Modes in which a pod gets the memory that it asks for; with "mig" it gets an instance."""
_VENDOR = "NVIDIA-"
_LENGTHS = (7, 9)


class _Device(msgspec.Struct):
    """A GPU as it is registered; what is false or 0 is left out."""

    devmem: int = 0
    type: str = ""
    health: bool = False
    mode: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Registered:
    """The GPUs of a node that are handed out by amounts.

    Attributes:
        model: As NVML calls it.
        gpus: How many.
        memory_bytes: Of each, as HAMi counts it: with deviceMemoryScaling more than there is.
    """

    model: str
    gpus: int
    memory_bytes: int


def registered(text: str) -> Registered | None:
    """What the annotation says; None where it cannot be read, no GPU is healthy, or they are not all alike."""
    try:
        devices = msgspec.json.decode(text, type=list[_Device]) if text.startswith("[") else _old(text)
    except (msgspec.DecodeError, ValueError):
        return None
    usable = [one for one in devices if one.health and one.mode in _BY_AMOUNT and one.devmem > 0]
    if len({(one.type, one.devmem) for one in usable}) != 1:
        return None
    return Registered(usable[0].type.removeprefix(_VENDOR), len(usable), usable[0].devmem << 20)


def _old(text: str) -> list[_Device]:
    """Before it was JSON.

    Raises:
        ValueError: It is not of that form.
    """
    found = []
    for one in filter(None, text.split(":")):
        items = one.split(",")
        if len(items) not in _LENGTHS:
            message = f"{len(items)} items"
            raise ValueError(message)
        mode = items[8] if len(items) == max(_LENGTHS) else ""
        found.append(_Device(devmem=int(items[2]), type=items[4], health=items[6] == "true", mode=mode))
    return found


PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"
REPLICAS = "nvidia.com/gpu.replicas"
SHARING = "nvidia.com/gpu.sharing-strategy"
PRESENT = "nvidia.com/gpu.present"
_COUNTS = (
    "nvidia.com/gpu.count",
    "karpenter.k8s.aws/instance-gpu-count",
    "karpenter.azure.com/sku-gpu-count",
    "cloud.google.com/gke-accelerator-count",
)
POOLS = (
    "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name",  # Karpenter before 0.32
    "oke.oraclecloud.com/pool.name",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "cloud.google.com/gke-nodepool",
)
_POOL_ANNOTATIONS = ("oci.oraclecloud.com/node-pool-id",)
ZONES = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
INSTANCE_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")

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
"""Taints of nodes that are on their way out, or away."""

UNKEPT = ("feature.node.kubernetes.io/", "beta.kubernetes.io/", "failure-domain.beta.kubernetes.io/")
"""Prefixes of labels that are not kept: Node Feature Discovery alone puts a hundred on each node."""

_ALIYUN_COUNT = "aliyun.com/gpu-count"
_MIG_SUFFIX = re.compile(r"-MIG-[0-9]+c?\.?[0-9a-z.+]*$")
_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})


class Taint(msgspec.Struct):
    """corev1.Taint."""

    key: str
    effect: str
    value: str = ""


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class _NodeStatus(msgspec.Struct):
    allocatable: dict[str, str | int] | None = None
    capacity: dict[str, str | int] | None = None
    conditions: list[Condition] | None = None


class NodeObject(msgspec.Struct):
    """corev1.Node."""

    metadata: ObjectMeta
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


def has_gpus(item: NodeObject, resources: ResourceTable) -> bool:
    """Whether a node offers GPUs, or would if its device plugin worked."""
    labels = item.metadata.labels or {}
    offered = {**(item.status.capacity or {}), **(item.status.allocatable or {})}
    return PRESENT in labels or PRODUCT in labels or any(resources.means(name) for name in offered)


def node_of(item: NodeObject, resources: ResourceTable) -> Node:
    """A node's record."""
    labels, annotations = item.metadata.labels or {}, item.metadata.annotations or {}
    product = labels.get(PRODUCT, "")
    allocatable = {
        name: _count(amount)
        for name, amount in sorted((item.status.allocatable or {}).items())
        if resources.means(name) is not None
    }
    # With MIG in the "single" strategy the product is called after its slices, and so are their number and memory.
    is_sliced = _MIG_SUFFIX.search(product.removesuffix("-SHARED")) is not None
    memory_mib = None if is_sliced else _number(labels.get(MEMORY))
    taints = [taint for taint in item.spec.taints or [] if taint.effect in _KEEPS_OFF]
    by_hami = registered(annotations.get(REGISTER, ""))
    gpus = None if is_sliced else _number(_first(labels, _COUNTS))
    memory_bytes = None if memory_mib is None else memory_mib << 20
    model = _MIG_SUFFIX.sub("", product.removesuffix("-SHARED"))
    return Node(
        name=item.metadata.name,
        model=model or (by_hami.model if by_hami else ""),
        gpus=by_hami.gpus if gpus is None and by_hami else gpus,
        memory_bytes=by_hami.memory_bytes if memory_bytes is None and by_hami else memory_bytes,
        allocatable=allocatable,
        sharing=_sharing(labels, annotations, allocatable),
        pool=_first(labels, POOLS) or _first(annotations, _POOL_ANNOTATIONS) or "",
        zone=_first(labels, ZONES) or "",
        instance_type=_first(labels, INSTANCE_TYPES) or "",
        is_ready=_is_ready(item),
        is_open=_is_open(item, taints),
        taints=tuple(sorted(f"{taint.key}={taint.value}:{taint.effect}" for taint in taints)),
        labels={key: value for key, value in labels.items() if not key.startswith(UNKEPT)},
        pooled=_pooled(item, by_hami),
    )


def _pooled(item: NodeObject, by_hami: Registered | None) -> int:
    """GPUs that are handed out by amounts; gpushare's device plugin counts them as a resource."""
    count = _count((item.status.allocatable or {}).get(_ALIYUN_COUNT, 0))
    return by_hami.gpus if by_hami else count


def _sharing(
    labels: Mapping[str, str], annotations: Mapping[str, str], allocatable: Mapping[str, int]
) -> str:
    strategy = labels.get(SHARING, "none")
    if strategy not in {"", "none"}:
        return strategy
    if REGISTER in annotations:
        return "hami"
    if labels.get("gpushare") == "true" or "aliyun.com/gpu-mem" in allocatable:
        return "gpushare"
    is_multiplied = labels.get(REPLICAS, "1") not in {"", "0", "1"}
    # Before GPU Feature Discovery told the strategy, time-slicing was the only one.
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
    """A label's number; None where it is none."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _count(amount: str | int) -> int:
    try:
        return int(parse_quantity(amount))
    except ValueError:
        return 0
