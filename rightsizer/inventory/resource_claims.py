"""Requests and holdings of GPUs by ResourceClaims. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
If a pod's extended resources became a claim (KEP-5004, status.extendedResourceClaimStatus), its spec does not name
it. So its request counts once, by its resource names; the claim only tells which devices the pod holds.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rightsizer.inventory.device_selectors import (
    MAX_LENGTH,
    FailedOnDeviceError,
    SelectorError,
    attribute_of,
    cost_of,
    device_variables,
    fields_read,
    matches,
)
from rightsizer.inventory.gpu_requests import (
    CLASS_PREFIX,
    IMPLICIT_PREFIX,
    ResourceTable,
    count_of,
    long_running_containers,
    quantity_of,
)
from rightsizer.inventory.resource_slices import GPU_DRIVERS, SliceTable, capacity_limits
from rightsizer.inventory.unschedulable_pods import Toleration, tolerates
from rightsizer.kube.api_objects import ObjectMeta, PodObject
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import (
    MAX_OF_CLAIM,
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
from rightsizer.model.gpu_fractions import mig_part

MAX_STEPS, MAX_STEPS_PER_GPU = 50_000, 40
"""Steps that comparing a namespace's requests with devices may take, whichever is more: tenants write claims."""

_VERSIONS = ("v1", "v1beta2", "v1beta1")
CLAIMS = OwnerKind("resource.k8s.io", _VERSIONS, "ResourceClaim", "resourceclaims")
TEMPLATES = OwnerKind("resource.k8s.io", ("v1",), "ResourceClaimTemplate", "resourceclaimtemplates")
"""Kind that exists since Kubernetes 1.34."""
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

    @property
    def number(self) -> int | None:
        """Number of devices; None for all, or by a mode that is not known."""
        return max(self.count, 1) if self.allocation_mode in {"", "ExactCount"} else None


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
        unreadable: Requests that cannot be counted, each as a predicate of the pod.
        allocation: What it holds; None before it is allocated.
        requests: The names of the requests that it holds GPUs for.
        is_admin: Whether it gives admin access to GPUs, which others may hold.
    """

    devices: Mapping[str, int]
    gpus: float | None = None
    is_shared: bool = False
    unreadable: tuple[str, ...] = ()
    allocation: Allocation | None = None
    requests: frozenset[str] = frozenset()
    is_admin: bool = False


def part_of(device: DraDevice) -> float:
    """Part of a GPU that a device is: 1, or less for a MIG device."""
    return mig_part(f"mig-{device.profile}", device.model) or 1.0


def claim_of(
    item: ClaimObject,
    resources: ResourceTable,
    is_of_gpus: Callable[[str], bool],
    known: Mapping[DeviceId, DraDevice] | None = None,
    users: Mapping[DeviceId, int] | None = None,
    pods: Collection[str] = (),
) -> Claim:
    """The allocated devices of a claim; before the allocation those that it requests.

    Args:
        item: The claim.
        resources: DeviceClasses of GPUs, by name: of other drivers' devices that it holds only these tell.
        is_of_gpus: Whether a DeviceClass is of GPUs; raises SelectorError where that is not known.
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
    is_shared, is_admin, gpus, held, names = len(using) > 1, False, 0.0, [], set()
    for result in allocation.devices.results or []:
        request = requests.get(result.request)
        name = request.device_class_name if request else result.driver
        is_gpu = result.driver in GPU_DRIVERS or resources.unit(CLASS_PREFIX + name) is not None
        if is_gpu and result.admin_access:  # holds nothing (KEP-5018)
            is_admin = True
        elif is_gpu:
            counts[CLASS_PREFIX + name] += 1
            is_shared = is_shared or result.share_id is not None
            names.add(result.request)
            one = _id(result)
            held.append(_holding(result))
            gpus += _part(result, (known or {}).get(one), (users or {}).get(one, 1))
    allocated = Allocation(tuple(held), frozenset(using))
    return Claim(
        dict(counts), gpus, is_shared, allocation=allocated, requests=frozenset(names), is_admin=is_admin
    )


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
    """The holding of a result; an amount that cannot be read counts as nothing, as that of a driver that tells none."""
    consumed = result.consumed_capacity or {} if result.share_id is not None else {}
    amounts = {name: count_of(amount) for name, amount in consumed.items()}
    return Holding(_id(result), result.share_id or "", tuple(sorted(amounts.items())))


def device_users(items: Sequence[ClaimObject]) -> dict[DeviceId, int]:
    """Number of claims to which each device is allocated, other than for admin access."""
    found: collections.Counter[DeviceId] = collections.Counter()
    for item in items:
        allocation = item.status.allocation
        for result in (allocation.devices.results if allocation else None) or ():
            if not result.admin_access:
                found[_id(result)] += 1
    return dict(found)


def _part(result: _Result, device: DraDevice | None, users: int) -> float:
    """Part of a GPU that a claim holds with a device; of a shared one what it consumes of its largest capacity."""
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
    """The request of an unallocated claim; of alternatives the first one."""
    devices: collections.Counter[str] = collections.Counter()
    unreadable = []
    for request in item.spec.devices.requests or ():
        try:
            one = next((one for _, one in _named(request) if is_of_gpus(one.device_class_name)), None)
        except SelectorError as error:
            unreadable.append(f"has claim {item.metadata.name}: {error}")
            continue
        if one is None or one.admin_access:
            continue
        if (number := one.number) is None:
            unreadable.append(
                f"requests all devices of class {one.device_class_name} of a node by claim {item.metadata.name}"
            )
        else:
            devices[CLASS_PREFIX + one.device_class_name] += number
    return Claim(dict(devices), unreadable=tuple(unreadable))


# --- Claims that wait


class _Matched(NamedTuple):
    """The devices that selectors match.

    Attributes:
        unknown: Why that is not known of some; empty if it is.
        failure: Why they fail on some, which are then allocated to nobody; empty if they do not.
    """

    devices: frozenset[DeviceId] = frozenset()
    unknown: str = ""
    failure: str = ""


class DeviceFinder:
    """Finds the devices that requests accept, by their selectors and those of their DeviceClass.

    Args:
        inventory: All GPUs.
        slices: The devices of all drivers, as they were published.
        classes: The cluster's DeviceClasses.
    """

    def __init__(
        self, inventory: DeviceInventory, slices: SliceTable, classes: Sequence[ClassObject]
    ) -> None:
        self._devices = {one.id: one for devices in inventory.nodes.values() for one in devices}
        self._published = dict(slices.published())
        self._skipped = slices.skipped
        self._classes = {one.metadata.name: one.spec.selectors or [] for one in classes}
        self._resources = collections.defaultdict[str, list[str]](list)
        for one in classes:
            self._resources[one.spec.extended_resource_name or ""].append(one.metadata.name)
        self._variables: dict[DeviceId, Mapping[str, Any]] = {}
        self._of_class = functools.cache(lambda name: self._match(self._classes[name], self._published))
        self._are_gpus = functools.cache(
            lambda name: any(one.driver in GPU_DRIVERS for one in self._of_class(name).devices)
        )
        self._answers: dict[tuple[str, str], bool | SelectorError] = {}
        self._found: dict[bytes, DeviceChoice] = {}
        self._values: dict[tuple[str, frozenset[DeviceId]], Mapping[DeviceId, tuple[type, object]]] = {}
        self._max_steps = max(MAX_STEPS, MAX_STEPS_PER_GPU * len(self._devices))
        self._steps: collections.Counter[str] = collections.Counter()

    def is_of_gpus(self, name: str) -> bool:
        """Whether devices of a DeviceClass are GPUs; a class that does not exist has none.

        Raises:
            SelectorError: That is not known.
        """
        if name not in self._classes:
            return False
        found = self._of_class(name)
        if found.unknown and not self._are_gpus(name):
            raise SelectorError(f"whether DeviceClass {name} is of GPUs is not known: {found.unknown}")
        return self._are_gpus(name)

    def waiting(self, item: ClaimObject) -> WaitingClaim:
        """A claim that is not allocated, with the devices that it would accept.

        Raises:
            SelectorError: It is unknown which those are.
        """
        asked, namespace = item.spec.devices, item.metadata.namespace
        requests = []
        for request in asked.requests or ():
            if request.first_available:
                choices = [self._choice(one, namespace, one.name) for one in request.first_available]
            else:
                choices = [self._choice(request.exactly or request, namespace)]
            if not any(one.eligible for one in choices):
                raise SelectorError(f"no GPU matches its request {request.name}")
            requests.append(DeviceRequest(request.name, tuple(choices)))
        constraints = [self._constraint(one, requests, namespace) for one in asked.constraints or ()]
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
        found = self._choice(_Exactly(names[0]), "")
        if not found.eligible:
            raise SelectorError(f"no GPU matches DeviceClass {names[0]}")
        return found

    def _choice(self, one: _Exactly, namespace: str, name: str = "") -> DeviceChoice:
        """The devices for a request, which may be none.

        Raises:
            SelectorError: They are not known.
        """
        if one.admin_access:
            raise SelectorError("which devices admin access would get is not known")
        own = (one.selectors, one.tolerations, one.capacity)
        key = msgspec.json.encode((one.device_class_name, one.allocation_mode, *own))
        if key not in self._found:
            if sum(map(len, _expressions(one.selectors or ()))) > MAX_LENGTH:
                raise SelectorError(
                    f"only selectors of up to {MAX_LENGTH} characters are compared with devices"
                )
            self._charge(namespace, any(own) * len(self._devices))
            self._found[key] = self._eligible(one, namespace)
        return dataclasses.replace(self._found[key], count=one.number, name=name)

    def _charge(self, namespace: str, steps: int) -> None:
        """Count steps of comparing a namespace's requests; of DeviceClasses, which administrators write, none.

        Raises:
            SelectorError: They are too many.
        """
        self._steps[namespace] += steps if namespace else 0
        if self._steps[namespace] > self._max_steps:
            raise SelectorError(
                f"the requests of namespace {namespace} take more than {self._max_steps} steps to compare with devices"
            )

    def _eligible(self, one: _Exactly, namespace: str) -> DeviceChoice:
        tolerations = one.tolerations or ()
        asked = (one.capacity.requests if one.capacity else None) or {}
        selected = {each: self._part(each, asked) for each in self._selected(one, namespace)}
        parts = {each: part for each, part in selected.items() if part is not None}
        kept_off = {
            each
            for each in parts
            if not all(
                any(tolerates(by, taint) for by in tolerations) for taint in self._devices[each].taints
            )
        }
        if one.number is None:
            nodes = collections.Counter(self._devices[each].node for each in parts)
            if one.allocation_mode != "All" or self._skipped or max(nodes.values(), default=0) > MAX_OF_CLAIM:
                raise SelectorError(
                    "it asks for all devices of a node, which the scheduler may refuse for all nodes"
                )
            # A node has all of them or none.
            without = {self._devices[each].node for each in kept_off}
            kept_off = {each for each in parts if self._devices[each].node in without}
        eligible = frozenset(parts.keys() - kept_off)
        return DeviceChoice(eligible, consumes={each: parts[each] for each in eligible if parts[each]})

    def _part(self, one: DeviceId, asked: Mapping[str, str | int]) -> Counters | None:
        """Capacity of a device that a request would take; nothing of a whole one, None if it has too little."""
        try:
            amounts = {name: math.ceil(quantity_of(each)) for name, each in asked.items()}
            limits = capacity_limits(self._published[one])
        except (msgspec.DecodeError, ValueError) as error:
            raise SelectorError(f"capacity cannot be read: {error}") from error
        found = {name: limit.taken(amounts.get(name)) for name, limit in limits.items()}
        taken = {name: amount for name, amount in found.items() if amount is not None}
        if len(taken) < len(found) or not amounts.keys() <= found.keys():
            return None
        return taken if self._devices[one].is_shareable else {}

    def _selected(self, one: _Exactly, namespace: str) -> Collection[DeviceId]:
        """The GPUs that a request and its DeviceClass select.

        Raises:
            SelectorError: That is not known, fails for some device, or they select devices that are no GPU of a node.
        """
        name = one.device_class_name
        if name not in self._classes:
            raise SelectorError(f"DeviceClass {name} is not known")
        found = self._of_class(name)
        if not (found.unknown or found.failure):
            found = self._match(one.selectors or (), found.devices, namespace)
        if problem := found.unknown or found.failure:
            raise SelectorError(problem)
        for each in found.devices:
            if each not in self._devices and each[:2] not in self._skipped:
                raise SelectorError(f"its request for {name} also accepts device {'/'.join(each)}")
        return found.devices & self._devices.keys()

    def _match(
        self, selectors: Sequence[_DeviceSelector], devices: Collection[DeviceId], namespace: str = ""
    ) -> _Matched:
        self._charge(namespace, len(selectors) * len(devices))
        found, unknown, failure = set(), "", ""
        for one in devices:
            answer = self._answer(selectors, one, namespace)
            if isinstance(answer, FailedOnDeviceError):
                failure = failure or str(answer)
            elif isinstance(answer, SelectorError):
                unknown = unknown or str(answer)
            elif answer:
                found.add(one)
        return _Matched(frozenset(found), unknown, failure)

    def _answer(
        self, selectors: Sequence[_DeviceSelector], one: DeviceId, namespace: str
    ) -> bool | SelectorError:
        """Whether a device matches, evaluated once in a plan for all of which an expression sees the same."""
        try:
            for expression in _expressions(selectors):
                seen = self._seen(expression, one)
                key = expression, repr(seen)
                if key not in self._answers:
                    self._charge(namespace, cost_of(expression))
                    self._answers[key] = _evaluated(expression, seen)
                if (answer := self._answers[key]) is not True:
                    return answer
        except SelectorError as error:
            return error
        return True

    def _seen(self, expression: str, one: DeviceId) -> Mapping[str, Any]:
        """The fields of a device that an expression may read."""
        if (reads := fields_read(expression)) is None:
            return self._of(one)
        seen: dict[str, Any] = {
            "driver": one.driver,
            "allowMultipleAllocations": self._published[one].fields.allow_multiple_allocations,
            "attributes": {},
            "capacity": {},
        }
        for kind, domain, name in reads:
            if (values := self._of(one)[kind].get(domain)) is not None:
                kept = seen[kind].setdefault(domain, {})
                kept.update({name: values[name]} if name in values else {})
        return seen

    def _of(self, name: DeviceId) -> Mapping[str, Any]:
        if name not in self._variables:
            self._variables[name] = device_variables(name, self._published[name])
        return self._variables[name]

    def _constraint(
        self, one: _Constraint, requests: Sequence[DeviceRequest], namespace: str
    ) -> AttributeConstraint:
        attribute = one.match_attribute or one.distinct_attribute
        if attribute is None:
            raise SelectorError("a constraint other than matchAttribute and distinctAttribute is not known")
        choices = [each for request in requests for each in request.choices]
        if any(each.count is None for each in choices):
            raise SelectorError("a constraint on all devices of a node ends the search of the scheduler")
        key = attribute, frozenset[DeviceId]().union(*{each.eligible for each in choices})
        if key not in self._values:
            self._charge(namespace, len(key[1]))
            values = {name: attribute_of(self._of(name), attribute) for name in key[1]}
            self._values[key] = {name: value for name, value in values.items() if value is not None}
        known = self._values[key]
        if any(kind is list for kind, _ in known.values()):
            raise SelectorError(f"its constraint is about {attribute}, which has several values")
        names = frozenset(one.requests or (each.name for each in requests))
        return AttributeConstraint(names, known, is_distinct=one.match_attribute is None)


def _expressions(selectors: Sequence[_DeviceSelector]) -> Iterator[str]:
    for one in selectors:
        if one.cel is None:
            raise SelectorError("a selector other than CEL is not known")
        yield one.cel.expression


def _evaluated(expression: str, seen: Mapping[str, Any]) -> bool | SelectorError:
    try:
        return matches(expression, seen)
    except SelectorError as error:
        return error
