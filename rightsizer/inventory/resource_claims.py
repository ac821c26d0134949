"""What ResourceClaims request and hold of GPUs. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
If a pod's extended resources became a claim (KEP-5004, status.extendedResourceClaimStatus), its spec does not name
it. So its request counts once, by its resource names; the claim only tells which devices the pod holds.
"""

import collections
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import msgspec

from rightsizer.inventory.device_selectors import (
    MAX_LENGTH,
    SelectorError,
    attribute_of,
    device_variables,
    matches,
)
from rightsizer.inventory.gpu_requests import (
    CLASS_PREFIX,
    IMPLICIT_PREFIX,
    count_of,
    long_running_containers,
    quantity_of,
)
from rightsizer.inventory.resource_slices import GPU_DRIVERS, PublishedDevice, capacity_limits, short_name
from rightsizer.inventory.unschedulable_pods import Toleration, tolerates
from rightsizer.kube.api_objects import ObjectMeta, PodObject
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import (
    Allocation,
    AttributeConstraint,
    ClaimTemplate,
    Counters,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DeviceRequest,
    DraDevice,
    Holding,
    WaitingClaim,
)
from rightsizer.prices import mig_part

MAX_SEARCHES = 20
"""Tenants write claims, and each different request is compared with all GPUs."""

_VERSIONS = ("v1", "v1beta2", "v1beta1")
CLAIMS = OwnerKind("resource.k8s.io", _VERSIONS, "ResourceClaim", "resourceclaims")
TEMPLATES = OwnerKind("resource.k8s.io", ("v1",), "ResourceClaimTemplate", "resourceclaimtemplates")
"""Since Kubernetes 1.34."""
CLASSES = OwnerKind("resource.k8s.io", _VERSIONS, "DeviceClass", "deviceclasses")


class _CelSelector(msgspec.Struct):
    expression: str = ""


class _DeviceSelector(msgspec.Struct):
    cel: _CelSelector | None = None


class _AskedCapacity(msgspec.Struct):
    """resourcev1.CapacityRequirements."""

    requests: dict[str, str | int] | None = None


class _Exactly(msgspec.Struct, rename="camel"):
    device_class_name: str = ""
    selectors: list[_DeviceSelector] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[Toleration] | None = None
    capacity: _AskedCapacity | None = None


class _Request(_Exactly, rename="camel"):
    """resourcev1.DeviceRequest; before v1 the fields of `exactly` are in the request itself."""

    name: str = ""
    exactly: _Exactly | None = None
    first_available: list["_Alternative"] | None = None


class _Alternative(_Exactly, rename="camel"):
    name: str = ""


class _Constraint(msgspec.Struct, rename="camel"):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class _Requests(msgspec.Struct):
    requests: list[_Request] | None = None
    constraints: list[_Constraint] | None = None


class _ClaimSpec(msgspec.Struct):
    devices: _Requests = msgspec.field(default_factory=_Requests)


class _Result(
    msgspec.Struct,
    rename={"share_id": "shareID", "admin_access": "adminAccess", "consumed_capacity": "consumedCapacity"},
):
    """resourcev1.DeviceRequestAllocationResult."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    share_id: str | None = None
    consumed_capacity: dict[str, str | int] | None = None


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

    @property
    def is_allocated(self) -> bool:
        """Whether it holds devices."""
        return self.status.allocation is not None


class TemplateObject(msgspec.Struct):
    """resourcev1.ResourceClaimTemplate."""

    metadata: ObjectMeta
    spec: msgspec.Raw


class _TemplateSpec(msgspec.Struct):
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)


class _ClassSpec(msgspec.Struct, rename="camel"):
    selectors: list[_DeviceSelector] | None = None
    extended_resource_name: str | None = None


class ClassObject(msgspec.Struct):
    """resourcev1.DeviceClass."""

    metadata: ObjectMeta
    spec: _ClassSpec = msgspec.field(default_factory=_ClassSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The GPUs of a ResourceClaim.

    Attributes:
        devices: By device class; empty if the claim is for something else.
        gpus: Whole GPUs that they are, with MIG devices and shares as fractions; None if that is unknown.
        is_shared: Whether several pods use the claim, or others use shares of its devices.
        unreadable: Requests that cannot be counted, in words.
        allocation: What it holds; None before it is allocated.
        requests: The names of the requests that it holds GPUs for.
    """

    devices: Mapping[str, int]
    gpus: float | None = None
    is_shared: bool = False
    unreadable: tuple[str, ...] = ()
    allocation: Allocation | None = None
    requests: frozenset[str] = frozenset()


def part_of(device: DraDevice) -> float:
    """How much of a GPU a device is: 1, or less for a MIG device."""
    return mig_part(f"mig-{device.profile}", device.model) or 1.0


def claim_of(
    item: ClaimObject,
    is_of_gpus: Callable[[str], bool],
    known: Mapping[DeviceId, DraDevice] | None = None,
    users: Mapping[DeviceId, int] | None = None,
    pods: Collection[str] = (),
) -> Claim:
    """The allocated devices of a claim; before the allocation those that it requests.

    Args:
        item: The claim.
        is_of_gpus: Whether a DeviceClass, by name, is of GPUs.
        known: Published devices.
        users: How many claims each device is allocated to.
        pods: UIDs of the pods that name it: a claim that is reserved for a PodGroup tells none.
    """
    allocation = item.status.allocation
    if allocation is None:
        return _requested(item, is_of_gpus)
    requests = {name: one for request in item.spec.devices.requests or [] for name, one in _named(request)}
    consumers = item.status.reserved_for or []
    groups = {one.uid for one in consumers if one.resource != "pods"}
    using = {one.uid for one in consumers if one.resource == "pods"} | set((pods or groups) if groups else ())
    counts: collections.Counter[str] = collections.Counter()
    is_shared, gpus, held, names = len(using) > 1, 0.0, [], set()
    for result in allocation.devices.results or []:
        request = requests.get(result.request)
        name = request.device_class_name if request else result.driver
        is_gpu = result.driver in GPU_DRIVERS or is_of_gpus(name)
        if is_gpu and not result.admin_access:  # admin access holds nothing (KEP-5018)
            counts[CLASS_PREFIX + name] += 1
            is_shared = is_shared or result.share_id is not None
            names.add(result.request)
            one = _id(result)
            held.append(_holding(result))
            gpus += _part(result, (known or {}).get(one), (users or {}).get(one, 1))
    allocated = Allocation(tuple(held), frozenset(using))
    return Claim(dict(counts), gpus, is_shared, allocation=allocated, requests=frozenset(names))


def claim_made_from(item: TemplateObject) -> ClaimObject:
    """A claim as it will be made from a template.

    Raises:
        msgspec.DecodeError: The template cannot be read.
    """
    return ClaimObject(item.metadata, msgspec.json.decode(item.spec, type=_TemplateSpec).spec)


def template_of(item: TemplateObject, requests: frozenset[str], *, workload: str) -> ClaimTemplate:
    """A template, and the one request by which a workload's claims, allocated for `requests`, hold GPUs."""
    spec = bytes(item.spec)
    try:
        made = msgspec.json.decode(spec, type=_TemplateSpec).spec.devices.requests or []
    except msgspec.DecodeError:
        made = []
    for request in made:
        one = request.exactly
        if one and requests == {request.name} and one.allocation_mode in {"", "ExactCount"}:
            return ClaimTemplate(item.metadata.name, spec, workload, request.name, one.count or 1)
    return ClaimTemplate(item.metadata.name, spec, workload)


def _id(result: _Result) -> DeviceId:
    return DeviceId(result.driver, result.pool, result.device)


def _holding(result: _Result) -> Holding:
    """What a claim holds; an amount that cannot be read counts as nothing, as that of a driver that tells none."""
    consumed = result.consumed_capacity or {} if result.share_id is not None else {}
    amounts = {short_name(name, result.driver): count_of(amount) for name, amount in consumed.items()}
    return Holding(_id(result), result.share_id or "", tuple(sorted(amounts.items())))


def device_users(items: Sequence[ClaimObject]) -> dict[DeviceId, int]:
    """How many claims each device is allocated to, other than for admin access."""
    found: collections.Counter[DeviceId] = collections.Counter()
    for item in items:
        allocation = item.status.allocation
        for result in (allocation.devices.results if allocation else None) or ():
            if not result.admin_access:
                found[_id(result)] += 1
    return dict(found)


def _part(result: _Result, device: DraDevice | None, users: int) -> float:
    """How much of a GPU a claim holds with a device; of a shared one what it consumes of its largest capacity."""
    if device is None:
        return 1.0
    whole = part_of(device)
    if result.share_id is None:
        return whole
    shares = [
        amount / device.capacity[name]
        for name, amount in _holding(result).consumed
        if device.capacity.get(name)
    ]
    # A driver may hand out a device without limits: then those who have it have equal parts.
    return whole * min(1.0, max(shares, default=0.0) or 1 / users)


def claim_names(pod: PodObject) -> tuple[str, ...]:
    """Names of the claims that a pod uses; "?" and the pod's own name for a claim that does not exist yet."""
    return tuple(claim for _, _, claim in _used(pod))


def templates_of(pod: PodObject) -> tuple[tuple[str, str], ...]:
    """The ResourceClaimTemplates that its claims were made from, each with the claim."""
    return tuple((template, claim) for _, template, claim in _used(pod) if template)


def unusable_claims(pod: PodObject) -> frozenset[str]:
    """Names of the claims that only ordinary init containers use."""
    lasting, every = long_running_containers(pod), pod.spec.init_containers or ()
    by_any, by_lasting = (
        {one.name for each in some for one in each.resources.claims or ()} for some in (every, lasting)
    )
    return frozenset(claim for name, _, claim in _used(pod) if name in by_any) - {
        claim for name, _, claim in _used(pod) if name in by_lasting
    }


def _used(pod: PodObject) -> Iterator[tuple[str, str, str]]:
    made = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or []}
    for one in pod.spec.resource_claims or []:
        if one.name in made and made[one.name] is None:
            continue  # no claim was needed
        claim = one.resource_claim_name or made.get(one.name) or f"?{one.name}"
        yield one.name, one.resource_claim_template_name or "", claim


def _named(request: _Request) -> Iterator[tuple[str, _Exactly]]:
    """A request, or each of its alternatives, with its name in the allocation results."""
    if request.first_available:
        for one in request.first_available:
            yield f"{request.name}/{one.name}", one
    else:
        yield request.name, request.exactly or request


def _requested(item: ClaimObject, is_of_gpus: Callable[[str], bool]) -> Claim:
    """What an unallocated claim requests; of alternatives the first one."""
    devices: dict[str, int] = {}
    unreadable = []
    for request in item.spec.devices.requests or ():
        one = next((one for _, one in _named(request) if is_of_gpus(one.device_class_name)), None)
        if one is None or one.admin_access:
            continue
        if one.allocation_mode == "All":
            unreadable.append(f"claim {item.metadata.name}: all devices of {one.device_class_name}")
            continue
        key = CLASS_PREFIX + one.device_class_name
        devices[key] = devices.get(key, 0) + (one.count or 1)
    return Claim(devices, unreadable=tuple(unreadable))


# --- Claims that wait


class DeviceFinder:
    """Finds the devices that requests accept, by their selectors and those of their DeviceClass.

    Args:
        inventory: All devices.
        published: As they were published.
        classes: The cluster's DeviceClasses.
    """

    def __init__(
        self,
        inventory: DeviceInventory,
        published: Mapping[DeviceId, PublishedDevice],
        classes: Sequence[ClassObject],
    ) -> None:
        self._devices = {one.id: one for devices in inventory.nodes.values() for one in devices}
        self._published = published
        self._classes = {one.metadata.name: one.spec.selectors or [] for one in classes}
        self._resources = collections.defaultdict[str, list[str]](list)
        for one in classes:
            self._resources[one.spec.extended_resource_name or ""].append(one.metadata.name)
        self._variables: dict[DeviceId, Mapping[str, object]] = {}
        self._found: dict[tuple[tuple[str, ...], tuple[Toleration, ...]], frozenset[DeviceId]] = {}
        self._searches: collections.Counter[str] = collections.Counter()

    def is_of_gpus(self, name: str) -> bool:
        """Whether devices of a DeviceClass are GPUs; False where that is not known."""
        selectors = self._classes.get(name)
        if selectors is None:
            return False
        return any(self._is_selected(selectors, one) for one in self._devices)

    def _is_selected(self, selectors: Sequence[_DeviceSelector], one: DeviceId) -> bool:
        try:
            return all(matches(each, self._of(one)) for each in _expressions(selectors))
        except SelectorError:
            return False

    def waiting(self, item: ClaimObject) -> WaitingClaim:
        """A claim that is not allocated, with the devices that it would accept.

        Raises:
            SelectorError: It is unknown which those are.
        """
        asked = item.spec.devices
        requests = []
        for request in asked.requests or ():
            choices = [
                self._choice(one, item.metadata.namespace)
                for _, one in _named(request)
                if not one.admin_access
            ]
            if choices:
                requests.append(DeviceRequest(request.name, tuple(choices)))
        eligible = frozenset(one for each in requests for choice in each.choices for one in choice.eligible)
        constraints = [self._constraint(one, requests, eligible) for one in asked.constraints or ()]
        return WaitingClaim(tuple(requests), tuple(constraints))

    def backing(self, resource: str) -> DeviceChoice:
        """The devices that the scheduler allocates for an extended resource where no device plugin offers it.

        https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource

        Raises:
            SelectorError: There are none, or it is unknown which those are.
        """
        implicit = resource.removeprefix(IMPLICIT_PREFIX)
        names = self._resources[resource] if implicit == resource else [implicit]
        if len(names) != 1:
            raise SelectorError(f"{len(names)} DeviceClasses stand for it, not one")
        return self._choice(_Exactly(names[0]), "")

    def _choice(self, one: _Exactly, namespace: str) -> DeviceChoice:
        name = one.device_class_name
        if name not in self._classes:
            raise SelectorError(f"DeviceClass {name} is not known")
        expressions = [*_expressions(self._classes[name]), *_expressions(one.selectors or [])]
        tolerations = tuple(one.tolerations or ())
        eligible = self._matching(namespace, expressions, tolerations)
        count = None if one.allocation_mode == "All" else one.count or 1
        asked = (one.capacity.requests if one.capacity else None) or {}
        parts = {each: self._part(each, asked) for each in eligible}
        fit = frozenset(each for each, part in parts.items() if part is not None)
        if not fit:
            raise SelectorError(f"no GPU matches its request for {name}")
        return DeviceChoice(fit, count, {each: parts[each] or {} for each in fit if parts[each]})

    def _part(self, one: DeviceId, asked: Mapping[str, str | int]) -> Counters | None:
        """What a request would take of a device's capacity; nothing of a whole one, None if it has too little."""
        is_shareable = self._devices[one].is_shareable
        if not (asked or is_shareable):
            return {}
        try:
            amounts = {
                short_name(name, one.driver): math.ceil(quantity_of(each)) for name, each in asked.items()
            }
            limits = capacity_limits(self._published[one], one.driver)
        except (msgspec.DecodeError, ValueError) as error:
            raise SelectorError(f"capacity cannot be read: {error}") from error
        if not is_shareable:
            is_enough = all(
                name in limits and amount <= limits[name].total for name, amount in amounts.items()
            )
            return {} if is_enough else None
        found = {name: limit.taken(amounts.get(name)) for name, limit in limits.items()}
        taken = {name: amount for name, amount in found.items() if amount is not None}
        return taken if len(taken) == len(found) and amounts.keys() <= found.keys() else None

    def _matching(
        self, namespace: str, expressions: Sequence[str], tolerations: tuple[Toleration, ...]
    ) -> frozenset[DeviceId]:
        key = (tuple(expressions), tolerations)
        if key not in self._found:
            self._searches[namespace] += 1
            if self._searches[namespace] > MAX_SEARCHES or sum(map(len, expressions)) > MAX_LENGTH:
                message = (
                    f"only {MAX_SEARCHES} different requests of a namespace are compared with devices, each with "
                    f"selectors of up to {MAX_LENGTH} characters"
                )
                raise SelectorError(message)
            self._found[key] = frozenset(self._eligible(expressions, tolerations))
        return self._found[key]

    def _eligible(
        self, expressions: Sequence[str], tolerations: Collection[Toleration]
    ) -> Iterator[DeviceId]:
        for name, device in self._devices.items():
            if all(any(tolerates(each, taint) for each in tolerations) for taint in device.taints):
                variables = self._of(name)
                if all(matches(each, variables) for each in expressions):
                    yield name

    def _of(self, name: DeviceId) -> Mapping[str, object]:
        if name not in self._variables:
            self._variables[name] = device_variables(name, self._published[name])
        return self._variables[name]

    def _constraint(
        self, one: _Constraint, requests: Sequence[DeviceRequest], eligible: Collection[DeviceId]
    ) -> AttributeConstraint:
        attribute = one.match_attribute or one.distinct_attribute
        if attribute is None:
            raise SelectorError("a constraint other than matchAttribute and distinctAttribute is not known")
        values = {name: attribute_of(self._of(name), attribute) for name in eligible}
        if any(isinstance(value, list) for value in values.values()):
            raise SelectorError(f"its constraint is about {attribute}, which has several values")
        names = frozenset(one.requests or (each.name for each in requests))
        known = {name: value for name, value in values.items() if value is not None}
        return AttributeConstraint(names, known, is_distinct=one.match_attribute is None)


def _expressions(selectors: Sequence[_DeviceSelector]) -> Iterator[str]:
    for one in selectors:
        if one.cel is None:
            raise SelectorError("a selector other than CEL is not known")
        yield one.cel.expression
