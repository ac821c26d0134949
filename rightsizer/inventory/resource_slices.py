"""The GPUs that NVIDIA's DRA driver publishes in ResourceSlices, with the taints of DeviceTaintRules. Pure.

Attributes: https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/blob/main/cmd/gpu-kubelet-plugin/deviceinfo.go
Pools of several slices: https://kubernetes.io/docs/reference/kubernetes-api/resource/resource-slice-v1/
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.inventory.gpu_requests import DRIVER, quantity_of
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import Counters, CounterSet, DeviceId, DeviceInventory, DraDevice

SLICES = OwnerKind("resource.k8s.io", ("v1", "v1beta2", "v1beta1"), "ResourceSlice", "resourceslices")
TAINT_RULES = OwnerKind(
    "resource.k8s.io", ("v1", "v1beta2", "v1alpha3"), "DeviceTaintRule", "devicetaintrules"
)
GPU_DRIVERS = frozenset({DRIVER})

_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})
_NOTHING = msgspec.Raw(b"{}")
_NONE = msgspec.Raw(b"null")


class DeviceTaintObject(msgspec.Struct):
    """resourcev1.DeviceTaint."""

    key: str = ""
    value: str = ""
    effect: str = ""

    @property
    def text(self) -> str:
        """The taint as in Node.taints: key=value:effect."""
        return f"{self.key}={self.value}:{self.effect}"


class _Amount(msgspec.Struct):
    value: str | int = 0


class _Range(msgspec.Struct):
    """resourcev1.CapacityRequestPolicyRange."""

    min: str | int = 0
    max: str | int | None = None
    step: str | int | None = None


class _RequestPolicy(msgspec.Struct, rename="camel"):
    """resourcev1.CapacityRequestPolicy."""

    default: str | int | None = None
    valid_values: list[str | int] | None = None
    valid_range: _Range | None = None


class _LimitedCapacity(_Amount, rename="camel"):
    """resourcev1.DeviceCapacity."""

    request_policy: _RequestPolicy | None = None


class _SharedCounters(msgspec.Struct):
    name: str = ""
    counters: dict[str, _Amount] | None = None


class _Consumption(msgspec.Struct, rename="camel"):
    counter_set: str = ""
    counters: dict[str, _Amount] | None = None


class _Basic(msgspec.Struct, rename="camel"):
    attributes: msgspec.Raw = _NOTHING
    capacity: msgspec.Raw = _NOTHING
    consumes_counters: msgspec.Raw = _NONE
    node_name: str = ""
    taints: list[DeviceTaintObject] | None = None
    allow_multiple_allocations: bool = False


class PublishedDevice(_Basic, rename="camel"):
    """resourcev1.Device; before v1beta2 its fields are in `basic`."""

    name: str = ""
    basic: _Basic | None = None

    @property
    def fields(self) -> _Basic:
        """The fields of the device, in either version."""
        return self.basic or self


@dataclasses.dataclass(frozen=True, slots=True)
class CapacityLimit:
    """Amounts that claims may take of one capacity of a device.

    Attributes:
        total: All of it.
        default: What a claim takes that asks for nothing; None for all.
        values: The amounts that a claim may take; empty if any in the range.
        least: The smallest amount of the range.
        most: The largest one; None if there is no limit.
        step: Of the amounts between; None for any.
    """

    total: int
    default: int | None = None
    values: tuple[int, ...] = ()
    least: int = 0
    most: int | None = None
    step: int | None = None

    def taken(self, asked: int | None) -> int | None:
        """The amount for a claim that asks for one, or for none; None if it gets nothing."""
        amount = asked if asked is not None else self.default
        amount = self.total if amount is None else amount
        if self.values:
            amount = min((one for one in self.values if one >= amount), default=self.total + 1)
        amount = max(amount, self.least)
        if self.step:
            amount = self.least - (self.least - amount) // self.step * self.step
        return amount if amount <= min(self.total, self.total if self.most is None else self.most) else None


class _Pool(msgspec.Struct, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class _SliceSpec(msgspec.Struct, rename="camel"):
    driver: str = ""
    pool: _Pool = msgspec.field(default_factory=_Pool)
    node_name: str = ""
    devices: list[PublishedDevice] | None = None
    shared_counters: list[_SharedCounters] | None = None


class SliceObject(msgspec.Struct):
    """resourcev1.ResourceSlice."""

    metadata: ObjectMeta
    spec: _SliceSpec


class _Selector(msgspec.Struct):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class _RuleSpec(msgspec.Struct, rename="camel"):
    device_selector: _Selector | None = None
    taint: DeviceTaintObject = msgspec.field(default_factory=DeviceTaintObject)


class TaintRuleObject(msgspec.Struct):
    """resourcev1.DeviceTaintRule."""

    metadata: ObjectMeta
    spec: _RuleSpec

    def selects(self, device: DeviceId) -> bool:
        """Whether it taints a device; without a selector it taints none."""
        asked = self.spec.device_selector
        if asked is None:
            return False
        pairs = ((asked.driver, device.driver), (asked.pool, device.pool), (asked.device, device.name))
        return all(wanted is None or wanted == found for wanted, found in pairs)


class _StringAttribute(msgspec.Struct):
    string: str = ""


class _GpuAttributes(msgspec.Struct, rename="camel"):
    """Attributes published by NVIDIA's driver that are read here."""

    type: _StringAttribute = msgspec.field(default_factory=_StringAttribute)
    uuid: _StringAttribute = msgspec.field(default_factory=_StringAttribute)
    parent: _StringAttribute = msgspec.field(default_factory=_StringAttribute, name="parentUUID")
    product_name: _StringAttribute = msgspec.field(default_factory=_StringAttribute)
    profile: _StringAttribute = msgspec.field(default_factory=_StringAttribute)
    bus: _StringAttribute = msgspec.field(
        default_factory=_StringAttribute, name="resource.kubernetes.io/pciBusID"
    )
    old_bus: _StringAttribute = msgspec.field(default_factory=_StringAttribute, name="pcieBusID")


class SliceTable:
    """ResourceSlices of all drivers, collected page by page; devices of GPU drivers are GPUs.

    Attributes:
        skipped: Drivers and names of the pools that the allocator does not use; known after `inventory`.
        problems: What is incomplete or unreadable of GPUs, in words.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[str, str], list[SliceObject]] = {}
        self.skipped: set[tuple[str, str]] = set()
        self.problems: list[str] = []

    def __bool__(self) -> bool:
        return any(driver in GPU_DRIVERS for driver, _ in self._pools)

    def add(self, items: Sequence[SliceObject]) -> None:
        """Add a page of slices: of each pool those of its newest generation."""
        for item in items:
            spec = item.spec
            known = self._pools.setdefault((spec.driver, spec.pool.name), [])
            newest = max((one.spec.pool.generation for one in known), default=spec.pool.generation)
            if spec.pool.generation > newest:
                known.clear()
            if spec.pool.generation >= newest:
                known.append(item)

    def published(self) -> Iterator[tuple[DeviceId, PublishedDevice]]:
        """Each device as it was published: selectors see those of all drivers."""
        for (driver, pool), slices in self._pools.items():
            for item in slices:
                for device in item.spec.devices or ():
                    yield DeviceId(driver, pool, device.name), device

    def inventory(self, rules: Iterable[TaintRuleObject] = ()) -> DeviceInventory:
        """All GPUs of complete pools."""
        tainting = [rule for rule in rules if rule.spec.taint.effect in _KEEPS_OFF]
        nodes: dict[str, list[DraDevice]] = collections.defaultdict(list)
        counters: dict[CounterSet, Counters] = {}
        incomplete: set[str] = set()
        for (driver, pool), slices in sorted(self._pools.items()):
            try:
                shared = _counters(slices)
            except ValueError as error:
                self.skipped.add((driver, pool))
                if driver in GPU_DRIVERS:
                    self.problems.append(
                        f"ResourceSlices of {driver}, pool {pool}: {error}; its GPUs are not known"
                    )
                    incomplete.update(one.spec.node_name for one in slices if one.spec.node_name)
                continue
            if driver in GPU_DRIVERS:
                counters.update(shared)
                for item in slices:
                    for device in self._devices(item, tainting):
                        nodes[device.node].append(device)
        devices = {node: tuple(sorted(found, key=lambda one: one.id)) for node, found in nodes.items()}
        return DeviceInventory(devices, counters, incomplete=frozenset(incomplete))

    def _devices(self, item: SliceObject, rules: Sequence[TaintRuleObject]) -> Iterator[DraDevice]:
        spec = item.spec
        for published in spec.devices or ():
            one = DeviceId(spec.driver, spec.pool.name, published.name)
            node = spec.node_name or published.fields.node_name
            try:
                device = _device(one, node, published.fields)
            except (msgspec.DecodeError, ValueError) as error:
                self.problems.append(f"device {'/'.join(one)}: {error}; it is not counted")
                continue
            if device is not None:
                taints = [rule.spec.taint.text for rule in rules if rule.selects(one)]
                yield dataclasses.replace(device, taints=(*device.taints, *taints)) if taints else device


def capacity_limits(published: PublishedDevice) -> Mapping[str, CapacityLimit]:
    """Limits of what claims may take, by the name of each capacity: the allocator compares names as they are.

    Raises:
        msgspec.DecodeError: A capacity has no such form.
        ValueError: A quantity is invalid.
    """
    found = msgspec.json.decode(published.fields.capacity, type=dict[str, _LimitedCapacity])
    return {name: _limit(each) for name, each in found.items()}


def _limit(one: _LimitedCapacity) -> CapacityLimit:
    policy = one.request_policy or _RequestPolicy()
    span = policy.valid_range or _Range()
    return CapacityLimit(
        int(quantity_of(one.value)),
        _whole(policy.default),
        tuple(int(quantity_of(each)) for each in policy.valid_values or ()),
        int(quantity_of(span.min)),
        _whole(span.max),
        _whole(span.step),
    )


def _whole(amount: str | int | None) -> int | None:
    return None if amount is None else int(quantity_of(amount))


def _counters(slices: Sequence[SliceObject]) -> dict[CounterSet, Counters]:
    """The counters of a pool.

    Raises:
        ValueError: The allocator would not use the pool; the message says why.
    """
    if {one.spec.pool.resource_slice_count for one in slices} != {len(slices)}:
        expected = max(one.spec.pool.resource_slice_count for one in slices)
        raise ValueError(f"{len(slices)} of {expected} are there")
    devices = [device for one in slices for device in one.spec.devices or ()]
    if len({device.name for device in devices}) != len(devices):
        raise ValueError("two devices have one name")
    found: dict[CounterSet, Counters] = {}
    try:
        for spec, each in [(one.spec, each) for one in slices for each in one.spec.shared_counters or ()]:
            found[CounterSet(spec.driver, spec.pool.name, each.name)] = _amounts(each.counters)
        consumed = [each for one in devices for each in _consumed(bytes(one.fields.consumes_counters))]
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"its counters cannot be read: {error}") from error
    known = {each.name: amounts.keys() for each, amounts in found.items()}
    for name, amounts in consumed:
        if not amounts.keys() <= known.get(name, set()):
            raise ValueError(f"counters of {name} are missing")
    return found


def _amounts(counters: Mapping[str, _Amount] | None) -> Counters:
    return {name: int(quantity_of(counter.value)) for name, counter in (counters or {}).items()}


def _device(one: DeviceId, node: str, fields: _Basic) -> DraDevice | None:
    """The GPU or MIG device; None if it has no single node.

    Raises:
        msgspec.DecodeError: An attribute has another type than NVIDIA's driver publishes.
        ValueError: A quantity is invalid.
    """
    if not node:
        return None
    attributes = msgspec.json.decode(fields.attributes, type=_GpuAttributes)
    capacity = _amounts(msgspec.json.decode(fields.capacity, type=dict[str, _Amount]))
    physical = (
        attributes.bus.string
        or attributes.old_bus.string
        or attributes.parent.string
        or attributes.uuid.string
    )
    return DraDevice(
        id=one,
        node=node,
        gpu=physical or one.name,
        model=attributes.product_name.string.replace(" ", "-"),
        profile=attributes.profile.string,
        memory_bytes=capacity.get("memory", capacity.get(f"{one.driver}/memory")),
        capacity=capacity if fields.allow_multiple_allocations else {},
        consumes=_consumed(bytes(fields.consumes_counters)),
        taints=tuple(taint.text for taint in fields.taints or () if taint.effect in _KEEPS_OFF),
    )


@functools.lru_cache(maxsize=4096)
def _consumed(raw: bytes) -> tuple[tuple[str, Counters], ...]:
    """Cached: the partitions of all GPUs of one model consume alike, and there are hundreds on a node.

    Raises:
        msgspec.DecodeError: It is not a list of consumptions.
        ValueError: A quantity is invalid.
    """
    found = msgspec.json.decode(raw, type=list[_Consumption] | None) or ()
    return tuple((each.counter_set, _amounts(each.counters)) for each in found)
