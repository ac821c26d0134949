"""Requests of pods for GPUs, by resource names and by annotations. Pure.

https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
"""

import collections
import dataclasses
import enum
import fnmatch
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

from kubernetes.utils.quantity import parse_quantity

from rightsizer.kube.api_objects import Container, PodObject

Amounts = Mapping[str, str | int]

LARGEST = 2**63 - 1
"""Larger quantities count as this, as in Kubernetes."""
_QUANTITY = re.compile(r"[-+.0-9eEinumkKMGTP]{1,1000}")
"""The characters of a quantity: the parser also accepts 1_000, NaN and other scripts' digits."""


def quantity_of(amount: str | int) -> Decimal:
    """The value of a Kubernetes quantity such as "2", "1k", "2e0", "4Ki" or "500m".

    Raises:
        ValueError: It is not a quantity.
    """
    text = str(amount)
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a quantity")
    return Decimal(max(-LARGEST, min(parse_quantity(text), LARGEST)))


@functools.lru_cache(maxsize=1024)
def count_of(amount: str | int) -> int:
    """A quantity as a whole number, rounded down; 0 if it is invalid."""
    try:
        return int(quantity_of(amount))
    except ValueError:
        return 0


_UNITS_PER_ONE = {"cpu": 1000, "memory": 1}


@functools.lru_cache(maxsize=8192)
def amount_of(name: str, amount: str | int | None) -> int:
    """A quantity of CPU in thousandths of a core, of memory in bytes, rounded up; 0 if absent or invalid."""
    if amount is None:
        return 0
    try:
        return math.ceil(quantity_of(amount) * _UNITS_PER_ONE.get(name, 1))
    except ValueError:
        return 0


class ClaimedProfile(NamedTuple):
    """A MIG profile of a DeviceClass."""

    device_class: str
    profile: str


def claimed_resource(device_class: str, profile: str) -> str:
    """The name that stands for claims for MIG devices of a profile."""
    return f"{CLASS_PREFIX}{device_class}/{profile}"


def claimed_profile(resource: str) -> ClaimedProfile | None:
    """The DeviceClass and the MIG profile that a name stands for; None if it is another resource."""
    name, _, profile = resource.removeprefix(CLASS_PREFIX).partition("/")
    return ClaimedProfile(name, profile) if resource.startswith(CLASS_PREFIX) and profile else None


class ResourceUnit(enum.StrEnum):
    """Meaning of one unit of a resource."""

    DEVICES = "devices"
    """A GPU or MIG instance."""
    SHARES = "shares"
    """A share of a GPU that several pods use."""
    AMOUNT = "amount"
    """An amount of one GPU, such as GiB of its memory: any number of units is one share."""
    PART = "part"
    """An amount of each requested device (HAMi), which makes the devices shares."""


@dataclasses.dataclass(frozen=True, slots=True)
class GpuResource:
    """A pattern of resource names, with * as wildcard, and their unit."""

    pattern: str
    unit: ResourceUnit


CLASS_PREFIX = "deviceclass:"
"""Prefix that turns a device class (Dynamic Resource Allocation) into a resource name."""
DRIVER = WHOLE_CLASS = "gpu.nvidia.com"
MIG_CLASS = "mig.nvidia.com"
"""NVIDIA's DRA driver, and the DeviceClasses that it installs."""

CLASS_QUOTA = ".deviceclass.resource.k8s.io/devices"
"""Suffix after the name of a device class where a ResourceQuota limits its devices."""

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Prefix of an extended resource that the scheduler turns into a claim for devices of a class (KEP-5004)."""

GPU_RESOURCES = (
    # Device plugin: https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus (renameByDefault)
    GpuResource("nvidia.com/gpu", ResourceUnit.DEVICES),
    GpuResource("nvidia.com/gpu.shared", ResourceUnit.SHARES),
    GpuResource("nvidia.com/mig-*.shared", ResourceUnit.SHARES),
    GpuResource("nvidia.com/mig-*", ResourceUnit.DEVICES),
    # HAMi: https://project-hami.io/docs/userguide/nvidia-device/specify-device-memory-usage
    GpuResource("nvidia.com/gpumem", ResourceUnit.PART),
    GpuResource("nvidia.com/gpumem-percentage", ResourceUnit.PART),
    GpuResource("nvidia.com/gpucores", ResourceUnit.PART),
    # https://github.com/AliyunContainerService/gpushare-scheduler-extender: GiB of one GPU
    GpuResource("aliyun.com/gpu-mem", ResourceUnit.AMOUNT),
    # https://github.com/Project-HAMi/volcano-vgpu-device-plugin: parts of as many GPUs
    GpuResource("volcano.sh/vgpu-number", ResourceUnit.SHARES),
    # Device classes of NVIDIA's DRA driver: the only sign of a GPU before a claim is allocated.
    GpuResource(CLASS_PREFIX + WHOLE_CLASS, ResourceUnit.DEVICES),
    GpuResource(CLASS_PREFIX + MIG_CLASS, ResourceUnit.DEVICES),
    GpuResource(CLASS_PREFIX + "vfio.gpu.nvidia.com", ResourceUnit.DEVICES),
    # The name before Kubernetes 1.11, still used in some clusters.
    GpuResource("alpha.kubernetes.io/nvidia-gpu", ResourceUnit.DEVICES),
)
"""The first match counts."""

WHOLE_GPU_RESOURCES = frozenset({"nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"})
"""Resources whose unit is a whole GPU, unless the node shares its GPUs."""

_NAME = re.compile(r"[A-Za-z0-9*?]([A-Za-z0-9._/*?:-]{0,250}[A-Za-z0-9*?])?")

# KAI and Run:ai request by annotation: https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing
FRACTION_ANNOTATIONS = ("gpu-fraction", "gpu-memory")
_FRACTION_DEVICES = "gpu-fraction-num-devices"


def parse_gpu_resource(text: str) -> GpuResource:
    """A row from a flag: NAME or NAME=devices|shares|amount|part; devices by default.

    Raises:
        ValueError: It is invalid; the message says how to write it.
    """
    name, _, unit = text.partition("=")
    if not _NAME.fullmatch(name):
        message = f"{text[:60]!r} is not a resource; write a name such as example.com/gpu or example.com/gpu-mem=amount"
        raise ValueError(message)
    if unit not in {"", *ResourceUnit}:
        message = f"{text[:60]!r}: the unit must be one of {', '.join(ResourceUnit)}"
        raise ValueError(message)
    return GpuResource(name, ResourceUnit(unit or ResourceUnit.DEVICES))


@dataclasses.dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPUs that a pod requests.

    Attributes:
        devices: GPUs, MIG instances or shares by the resource that counts them.
        amounts: All requested amounts by resource name.
        is_shared: Whether some of the devices are shares, by their resource name.
        unreadable: Why its devices cannot be counted, each as a predicate of the pod.
        containers: The long-running containers that request GPUs.
        unusable: The part of the devices that only ordinary init containers request.
        others: Names of extended resources that are no known GPU resource.
    """

    devices: Mapping[str, int]
    amounts: Mapping[str, int]
    is_shared: bool = False
    unreadable: tuple[str, ...] = ()
    containers: frozenset[str] = frozenset()
    unusable: int = 0
    others: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.devices or self.unreadable)


@dataclasses.dataclass(frozen=True)
class ResourceTable:
    """The resource names of GPUs.

    Attributes:
        configured: Additional rows, matched before the built-in ones.
    """

    configured: tuple[GpuResource, ...] = ()

    @functools.cached_property
    def unit(self) -> Callable[[str], ResourceUnit | None]:
        """The unit of a resource by its name; None if it is not a GPU resource."""
        return functools.lru_cache(maxsize=1024)(self._unit)

    def _unit(self, name: str) -> ResourceUnit | None:
        if name.startswith(IMPLICIT_PREFIX):
            name = CLASS_PREFIX + name.removeprefix(IMPLICIT_PREFIX)
        rows = (*self.configured, *GPU_RESOURCES)
        return next((row.unit for row in rows if fnmatch.fnmatchcase(name, row.pattern)), None)

    def request_of(self, pod: PodObject) -> GpuRequest:
        """Read a pod's request for GPUs."""
        found = [
            (one, self._amounts(one)) for one in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        ]
        if not any(amounts for _, amounts in found):
            others = {name for one, _ in found for name in _names(one) if "/" in name}
            return dataclasses.replace(_fraction(pod), others=tuple(sorted(others)))
        lasting = {one.name for one in long_running_containers(pod)}
        whole = {
            id(one): {name: count for name, amount in given.items() if (count := _whole(amount))}
            for one, given in found
        }
        amounts = total_of(pod, lambda one: whole[id(one)])
        devices = total_of(pod, lambda one: self._devices(whole[id(one)]))
        usable = collections.Counter[str]()
        for one, _ in found:
            if one.name in lasting:
                usable.update(self._devices(whole[id(one)]))
        return GpuRequest(
            devices=devices,
            amounts=amounts,
            is_shared=any(self.unit(name) is not ResourceUnit.DEVICES for name in amounts),
            unreadable=tuple(
                f"requests {name}: {str(amount)[:40]!r}, which is not a whole number of devices"
                for _, given in found
                for name, amount in given.items()
                if _whole(amount) is None
            ),
            containers=frozenset(one.name for one, given in found if given and one.name in lasting),
            unusable=sum(devices.values()) - sum(usable.values()),
        )

    def _amounts(self, container: Container) -> Amounts:
        """GPU resources that a container requests; a limit of an extended resource is also its request."""
        resources = container.resources
        limits, requests = resources.limits or {}, resources.requests or {}
        named = [name for name in _names(container) if self.unit(name) is not None]
        return {name: limits.get(name, requests.get(name, 0)) for name in named}

    def is_like_a_gpu(self, name: str) -> bool:
        """Whether NVIDIA's device plugin may have renamed GPUs to this name, which no row matches."""
        domain, _, rest = name.partition("/")
        is_gpu = "gpu" in rest or rest.endswith(".shared")
        return domain == "nvidia.com" and is_gpu and self.unit(name) is None

    def _devices(self, whole: Mapping[str, int]) -> dict[str, int]:
        """The number of devices for whole amounts of resources."""
        units = {name: self.unit(name) for name in whole}
        counts = {
            name: whole[name]
            for name, unit in units.items()
            if unit in {ResourceUnit.DEVICES, ResourceUnit.SHARES}
        }
        counts.update({name: 1 for name, unit in units.items() if unit is ResourceUnit.AMOUNT})
        parts = sorted(name for name, unit in units.items() if unit is ResourceUnit.PART)
        if parts and not counts:
            counts[parts[0]] = 1  # HAMi's default number of devices
        return counts


def total_of(pod: PodObject, amounts: Callable[[Container], Mapping[str, int]]) -> dict[str, int]:
    """The most that a pod needs at any one time, by resource, as kube-scheduler counts it.

    Containers and sidecars run together; an init container runs beside the sidecars that are listed before it.
    https://github.com/kubernetes/component-helpers/blob/v0.36.3/resource/helpers.go
    """
    sidecars, most = collections.Counter[str](), collections.Counter[str]()
    for one in pod.spec.init_containers or ():
        own = collections.Counter(amounts(one))
        most |= sidecars + own
        if one.restart_policy == "Always":
            sidecars.update(own)
    for one in pod.spec.containers:
        sidecars.update(amounts(one))
    return dict(most | sidecars)


def _names(container: Container) -> Iterable[str]:
    """The resources that a container requests, or has a limit of."""
    return {**(container.resources.requests or {}), **(container.resources.limits or {})}


def long_running_containers(pod: PodObject) -> list[Container]:
    """The containers and sidecars, which run as long as the pod does."""
    sidecars = [one for one in pod.spec.init_containers or [] if one.restart_policy == "Always"]
    return [*pod.spec.containers, *sidecars]


def _fraction(pod: PodObject) -> GpuRequest:
    """The request of a pod that may ask for part of a GPU by annotation."""
    annotations = pod.metadata.annotations or {}
    asked = [(name, annotations[name]) for name in FRACTION_ANNOTATIONS if name in annotations]
    if not asked:
        return GpuRequest({}, {})
    name, value = asked[0]
    number = annotations.get(_FRACTION_DEVICES, "1")
    count = _whole(number)
    try:
        is_amount = quantity_of(value) > 0
    except ValueError:
        is_amount = False
    if not is_amount or not count:
        wrong = f"{_FRACTION_DEVICES}: {number[:40]!r}" if is_amount else f"{name}: {value[:40]!r}"
        return GpuRequest({}, {}, unreadable=(f"has an invalid annotation {wrong}",))
    return GpuRequest({name: count}, {name: count}, is_shared=True)


@functools.lru_cache(maxsize=4096)
def _whole(amount: str | int) -> int | None:
    """The amount as a whole number; None if it is fractional, negative, too large or invalid."""
    try:
        value = quantity_of(amount)
    except ValueError:
        return None
    return int(value) if 0 <= value < LARGEST and value == value.to_integral_value() else None
