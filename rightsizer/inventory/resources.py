"""What a pod asks for of GPUs: which resource names mean devices, shares or amounts of one. Pure.

https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#extended-resources
"""

import dataclasses
import enum
import fnmatch
import functools
import re
from collections.abc import Iterator, Mapping

from rightsizer.kube.api_objects import Container, PodObject
from rightsizer.kube.quantity import LARGEST, parse_quantity

Amounts = Mapping[str, str | int]


class Means(enum.StrEnum):
    """What a number of a resource counts."""

    DEVICES = "devices"
    """GPUs or MIG instances of one's own."""
    SHARES = "shares"
    """Places on GPUs that others have places on, too."""
    AMOUNT = "amount"
    """Some of one GPU, such as its memory in GiB: any number of it is one share."""
    PART = "part"
    """How much of each of the devices that are asked for besides (HAMi), which makes them shares."""


@dataclasses.dataclass(frozen=True, slots=True)
class GpuResource:
    """One row: names of resources, with * as wildcard, and what their numbers count."""

    pattern: str
    means: Means


CLASS_PREFIX = "deviceclass:"
"""What device classes of Dynamic Resource Allocation are called among resources."""

GPU_RESOURCES = (
    # Device plugin: https://github.com/NVIDIA/k8s-device-plugin#shared-access-to-gpus (renameByDefault)
    GpuResource("nvidia.com/gpu", Means.DEVICES),
    GpuResource("nvidia.com/gpu.shared", Means.SHARES),
    GpuResource("nvidia.com/mig-*.shared", Means.SHARES),
    GpuResource("nvidia.com/mig-*", Means.DEVICES),
    # HAMi: https://project-hami.io/docs/userguide/nvidia-device/specify-device-memory-usage
    GpuResource("nvidia.com/gpumem", Means.PART),
    GpuResource("nvidia.com/gpumem-percentage", Means.PART),
    GpuResource("nvidia.com/gpucores", Means.PART),
    # https://github.com/AliyunContainerService/gpushare-scheduler-extender: GiB of one GPU
    GpuResource("aliyun.com/gpu-mem", Means.AMOUNT),
    # What NVIDIA's DRA driver installs; before a claim is allocated nothing else tells that it is for GPUs.
    GpuResource(CLASS_PREFIX + "gpu.nvidia.com", Means.DEVICES),
    GpuResource(CLASS_PREFIX + "mig.nvidia.com", Means.DEVICES),
    GpuResource(CLASS_PREFIX + "vfio.gpu.nvidia.com", Means.DEVICES),
    # Before Kubernetes 1.11; still the name in some clusters of those days.
    GpuResource("alpha.kubernetes.io/nvidia-gpu", Means.DEVICES),
)
"""In this order; the first that matches tells."""

WHOLE = frozenset({"nvidia.com/gpu", "alpha.kubernetes.io/nvidia-gpu"})
"""Those of which one is a whole GPU, where its node shares none."""

_NAME = re.compile(r"[A-Za-z0-9*?]([A-Za-z0-9._/*?:-]{0,250}[A-Za-z0-9*?])?")

# KAI and Run:ai, whose pods ask by annotation: https://github.com/NVIDIA/KAI-Scheduler/tree/main/docs/gpu-sharing
FRACTIONS = ("gpu-fraction", "gpu-memory")
_FRACTION_DEVICES = "gpu-fraction-num-devices"


def parse_gpu_resource(text: str) -> GpuResource:
    """A row as a flag or a variable gives it: NAME, or NAME=devices|shares|amount|part; devices where nothing is said.

    Raises:
        ValueError: It cannot be meant; the message says what would be right.
    """
    name, _, means = text.partition("=")
    if not _NAME.fullmatch(name):
        message = f"{text[:60]!r} is no resource; write a name such as example.com/gpu, or example.com/gpu-mem=amount"
        raise ValueError(message)
    if means not in {"", *Means}:
        message = f"{text[:60]!r}: what it counts is one of {', '.join(Means)}"
        raise ValueError(message)
    return GpuResource(name, Means(means or Means.DEVICES))


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks for of GPUs.

    Attributes:
        devices: GPUs, MIG instances or shares, by the resource that counts them.
        amounts: Everything as it is asked for, by resource name.
        is_shared: Whether some of the devices are shares by what they are called.
        unreadable: What is no whole number, in words; nobody can count it.
        containers: The lasting ones that ask.
    """

    devices: Mapping[str, int]
    amounts: Mapping[str, int]
    is_shared: bool = False
    unreadable: tuple[str, ...] = ()
    containers: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.devices or self.unreadable)


NONE = Asked({}, {})


class ResourceTable:
    """Which resource names are GPUs'.

    Args:
        configured: Further rows, asked before the known ones.
    """

    def __init__(self, configured: tuple[GpuResource, ...] = ()) -> None:
        self._rows = (*configured, *GPU_RESOURCES)
        self.means = functools.lru_cache(maxsize=1024)(self._means)

    def _means(self, name: str) -> Means | None:
        """What a resource's numbers count; None where it is no GPU's."""
        rows = (row for row in self._rows if fnmatch.fnmatchcase(name, row.pattern))
        return next((row.means for row in rows), None)

    def asked_by(self, pod: PodObject) -> Asked:
        """What a pod asks for: the sum over its lasting containers, or more where one init container asks so.

        https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
        """
        found = [
            (one, self._amounts(one)) for one in (*pod.spec.containers, *(pod.spec.init_containers or ()))
        ]
        if not any(amounts for _, amounts in found):
            return _fraction(pod)
        lasting = {one.name for one in lasting_containers(pod)}
        devices, amounts = _Sum(), _Sum()
        for one, given in found:
            whole = {name: count for name, count in ((n, _whole(a)) for n, a in given.items()) if count}
            lasts = one.name in lasting
            devices.add(self._devices(whole), lasts=lasts)
            amounts.add(whole, lasts=lasts)
        return Asked(
            devices=devices.total,
            amounts=amounts.total,
            is_shared=any(self.means(name) is not Means.DEVICES for name in amounts.total),
            unreadable=tuple(_unreadable(given for _, given in found)),
            containers=frozenset(one.name for one, given in found if given and one.name in lasting),
        )

    def _amounts(self, container: Container) -> Amounts:
        """What it asks for of GPU resources; a limit of an extended one is a request (Kubernetes's device plugins)."""
        resources = container.resources
        limits, requests = resources.limits or {}, resources.requests or {}
        named = [name for name in {**requests, **limits} if self.means(name) is not None]
        return {name: limits.get(name, requests.get(name, 0)) for name in named}

    def _devices(self, whole: Mapping[str, int]) -> dict[str, int]:
        """The devices that whole numbers of resources stand for."""
        meant = {name: self.means(name) for name in whole}
        counts = {
            name: whole[name] for name, means in meant.items() if means in {Means.DEVICES, Means.SHARES}
        }
        counts.update({name: 1 for name, means in meant.items() if means is Means.AMOUNT})
        parts = sorted(name for name, means in meant.items() if means is Means.PART)
        if parts and not counts:
            # HAMi gives one device to who names none.
            counts[parts[0]] = 1
        return counts


class _Sum:
    """As the scheduler adds up: lasting containers together, each other one by itself."""

    def __init__(self) -> None:
        self._lasting: dict[str, int] = {}
        self._passing: dict[str, int] = {}

    def add(self, counts: Mapping[str, int], *, lasts: bool) -> None:
        """Count a container."""
        for name, count in counts.items():
            if lasts:
                self._lasting[name] = self._lasting.get(name, 0) + count
            else:
                self._passing[name] = max(self._passing.get(name, 0), count)

    @property
    def total(self) -> dict[str, int]:
        """By resource name."""
        names = dict.fromkeys((*self._lasting, *self._passing))
        return {name: max(self._lasting.get(name, 0), self._passing.get(name, 0)) for name in names}


def lasting_containers(pod: PodObject) -> list[Container]:
    """Those that are there for as long as the pod is: the containers and the sidecars among the init containers."""
    sidecars = [one for one in pod.spec.init_containers or [] if one.restart_policy == "Always"]
    return [*pod.spec.containers, *sidecars]


def _fraction(pod: PodObject) -> Asked:
    """A pod that asks for part of a GPU by annotation."""
    annotations = pod.metadata.annotations or {}
    asked = [(name, annotations[name]) for name in FRACTIONS if name in annotations]
    if not asked:
        return NONE
    name, value = asked[0]
    count = _whole(annotations.get(_FRACTION_DEVICES, "1"))
    try:
        is_amount = parse_quantity(value) > 0
    except ValueError:
        is_amount = False
    if not is_amount or not count:
        return Asked({}, {}, unreadable=(f"annotation {name}: {value[:40]!r}",))
    return Asked({name: count}, {name: count}, is_shared=True)


def _unreadable(given: Iterator[Amounts]) -> Iterator[str]:
    for amounts in given:
        for name, amount in amounts.items():
            if _whole(amount) is None:
                yield f"{name}: {str(amount)[:40]!r}"


@functools.lru_cache(maxsize=4096)
def _whole(amount: str | int) -> int | None:
    """The amount as a whole number; None where it is none, or more than is counted."""
    try:
        value = parse_quantity(amount)
    except ValueError:
        return None
    return value.numerator if value.denominator == 1 and 0 <= value < LARGEST else None
