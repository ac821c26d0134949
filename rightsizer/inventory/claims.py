"""GPUs that pods hold by ResourceClaims (Dynamic Resource Allocation) instead of by resource names. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
A pod whose extended resources were turned into a claim (KEP-5004, status.extendedResourceClaimStatus) names that claim
nowhere in its spec, so what it asks for is counted once, by its resource names.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import msgspec

from rightsizer.inventory.resources import CLASS_PREFIX, ResourceTable
from rightsizer.kube.api_objects import ObjectMeta, PodObject

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")
DRIVERS = frozenset({"gpu.nvidia.com"})


class _Exactly(msgspec.Struct, rename="camel"):
    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None


class _Request(_Exactly, rename="camel"):
    """resourcev1.DeviceRequest; before v1 what `exactly` holds stands in the request itself."""

    name: str = ""
    exactly: _Exactly | None = None
    first_available: list["_Alternative"] | None = None


class _Alternative(_Exactly, rename="camel"):
    name: str = ""


class _Requests(msgspec.Struct):
    requests: list[_Request] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _Requests = msgspec.field(default_factory=_Requests)


class _Result(msgspec.Struct, rename={"share_id": "shareID", "admin_access": "adminAccess"}):
    """resourcev1.DeviceRequestAllocationResult."""

    request: str = ""
    driver: str = ""
    admin_access: bool | None = None
    share_id: str | None = None


class _Results(msgspec.Struct):
    results: list[_Result] | None = None


class _Allocation(msgspec.Struct):
    devices: _Results = msgspec.field(default_factory=_Results)


class _Consumer(msgspec.Struct):
    """resourcev1.ResourceClaimConsumerReference."""

    resource: str = ""
    uid: str = ""


class _ClaimStatus(msgspec.Struct, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class ClaimObject(msgspec.Struct):
    """resourcev1.ResourceClaim."""

    metadata: ObjectMeta
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)
    status: _ClaimStatus = msgspec.field(default_factory=_ClaimStatus)


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """What a claim holds of GPUs, or asks for.

    Attributes:
        devices: By device class; empty where it is about something else.
        is_shared: Whether several pods use it, or others have shares of its devices.
        unreadable: What cannot be counted, in words.
    """

    devices: Mapping[str, int]
    is_shared: bool = False
    unreadable: tuple[str, ...] = ()


def claim_of(item: ClaimObject, resources: ResourceTable) -> Claim:
    """A claim, by its devices where it is allocated, else by its requests for device classes that are GPUs'."""
    requests = {name: one for request in item.spec.devices.requests or [] for name, one in _named(request)}
    allocation = item.status.allocation
    users = {one.uid for one in item.status.reserved_for or [] if one.resource == "pods"}
    if allocation is None:
        return _asked(item.metadata.name, requests, resources)
    devices: dict[str, int] = {}
    is_shared = len(users) > 1
    for result in allocation.devices.results or []:
        # Who looks in with administrators' access holds nothing (KEP-5018).
        request = requests.get(result.request)
        name = CLASS_PREFIX + (request.device_class_name if request else result.driver)
        is_gpu = result.driver in DRIVERS or resources.means(name) is not None
        if is_gpu and not result.admin_access:
            devices[name] = devices.get(name, 0) + 1
            is_shared = is_shared or result.share_id is not None
    return Claim(devices, is_shared)


def claims_of(pod: PodObject) -> tuple[str, ...]:
    """Names of the claims that a pod uses, by its spec and, for those made from templates, by its status.

    A claim that is yet to be made has no name; then the pod's own name for it stands here after a question mark.
    """
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or []}
    used = []
    for one in pod.spec.resource_claims or []:
        if one.name in made and made[one.name] is None:
            continue  # nothing had to be made for it
        used.append(one.resource_claim_name or made.get(one.name) or f"?{one.name}")
    return tuple(used)


def _named(request: _Request) -> Iterator[tuple[str, _Exactly]]:
    """A request, or each of its alternatives, by the name that results give it."""
    if request.first_available:
        for one in request.first_available:
            yield f"{request.name}/{one.name}", one
    else:
        yield request.name, request.exactly or request


def _asked(name: str, requests: Mapping[str, _Exactly], resources: ResourceTable) -> Claim:
    """What a claim without devices waits for; of alternatives the first, which is tried first."""
    devices: dict[str, int] = {}
    unreadable = []
    tried: set[str] = set()
    for label, one in requests.items():
        base, slash, _ = label.partition("/")
        key = CLASS_PREFIX + one.device_class_name
        if resources.means(key) is None or one.admin_access or (slash and base in tried):
            continue
        tried.add(base)
        if one.allocation_mode == "All":
            unreadable.append(f"claim {name}: all devices of {one.device_class_name}")
            continue
        devices[key] = devices.get(key, 0) + (one.count or 1)
    return Claim(devices, unreadable=tuple(unreadable))
