"""What Dynamic Resource Allocation adds to a cluster's state: published GPUs, claims, and claims that wait. Pure."""

import collections
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rightsizer.inventory.device_selectors import SelectorError
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, ResourceTable
from rightsizer.inventory.resource_claims import (
    Claim,
    ClaimObject,
    ClassObject,
    DeviceFinder,
    TemplateObject,
    claim_made_from,
    claim_of,
    device_users,
)
from rightsizer.inventory.resource_slices import SliceTable, TaintRuleObject
from rightsizer.inventory.unschedulable_pods import UnschedulablePod
from rightsizer.model import ClaimKey, DeviceChoice, DeviceInventory, DeviceRequest, Node, WaitingClaim

WHOLE = f"{CLASS_PREFIX}gpu.nvidia.com"
"""The resource name that stands for a node's GPUs where only a DRA driver publishes them."""


class Wanted(NamedTuple):
    """What a claim that is not allocated asks for.

    Attributes:
        devices: Their number, by device class.
        accepts: Those that it would accept.
    """

    devices: Mapping[str, int]
    accepts: WaitingClaim


class Asked(NamedTuple):
    """What pods ask of DRA.

    Attributes:
        used: Claims that GPU pods use, with the UIDs of these pods.
        wanted: Claims of pods that the scheduler cannot place, or that do not exist yet.
        templates: ResourceClaimTemplates of pods that do not exist yet.
        resources: Extended resources that these pods request.
    """

    used: Mapping[ClaimKey, frozenset[str]] = types.MappingProxyType({})
    wanted: frozenset[ClaimKey] = frozenset()
    templates: frozenset[ClaimKey] = frozenset()
    resources: frozenset[str] = frozenset()

    @property
    def waits(self) -> bool:
        """Whether pods wait that might ask for devices."""
        return bool(self.wanted or self.templates or self.resources)


class UnknownClaimError(ValueError):
    """It is unknown which devices a pod would accept; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraState:
    """Published GPUs and the claims for them.

    Attributes:
        claims: Those that pods use.
        waiting: Those of them that are not allocated, where it is known which devices they accept.
        promised: The same of claims that will be made from templates.
        unknown: Why that is not known of templates.
        foreign: Templates that ask for no GPUs.
        backing: The devices that the scheduler allocates for an extended resource, where that is known.
        templates: The ResourceClaimTemplates that claims were made from.
        problems: What is incomplete or cannot be evaluated, in words.
    """

    devices: DeviceInventory = dataclasses.field(default_factory=DeviceInventory)
    claims: Mapping[ClaimKey, Claim] = dataclasses.field(default_factory=dict)
    waiting: Mapping[ClaimKey, Wanted] = dataclasses.field(default_factory=dict)
    promised: Mapping[ClaimKey, Wanted] = dataclasses.field(default_factory=dict)
    unknown: Mapping[ClaimKey, str] = dataclasses.field(default_factory=dict)
    foreign: frozenset[ClaimKey] = frozenset()
    backing: Mapping[str, DeviceChoice] = dataclasses.field(default_factory=dict)
    templates: Mapping[ClaimKey, TemplateObject] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


def dra_state(  # noqa: PLR0913 - one list of each kind
    items: Sequence[ClaimObject],
    slices: SliceTable,
    rules: Sequence[TaintRuleObject],
    classes: Sequence[ClassObject],
    templates: Sequence[TemplateObject],
    *,
    asked: Asked,
    resources: ResourceTable,
) -> DraState:
    """The state that these objects tell.

    Args:
        items: All ResourceClaims that were read.
        slices: The ResourceSlices.
        rules: The DeviceTaintRules.
        classes: The DeviceClasses.
        templates: The ResourceClaimTemplates that claims of GPU pods were made from, or will be.
        asked: What pods ask for.
        resources: Which device classes are of GPUs.
    """
    inventory = slices.inventory(rules)
    known = {one.id: one for devices in inventory.nodes.values() for one in devices}
    users = device_users(items)
    finder = DeviceFinder(inventory, slices.published, classes)

    def is_of_gpus(name: str) -> bool:
        return resources.unit(CLASS_PREFIX + name) is not None or finder.is_of_gpus(name)

    every = {
        _key(item): claim_of(item, is_of_gpus, known, users, asked.used.get(_key(item), ())) for item in items
    }
    allocations = {key: claim.allocation for key, claim in every.items() if claim.allocation}
    names = frozenset(one.metadata.name for one in classes)
    inventory = dataclasses.replace(inventory, allocations=allocations, classes=names)
    waiting: dict[ClaimKey, Wanted] = {}
    problems = list(slices.problems)
    for item in items:
        if _key(item) in asked.wanted and not item.is_allocated and known:
            try:
                waiting[_key(item)] = Wanted(every[_key(item)].devices, finder.waiting(item))
            except SelectorError as error:
                problems.append(f"claim {'/'.join(_key(item))}: {error}; no GPUs are freed for it")
    backing: dict[str, DeviceChoice] = {}
    for resource in sorted(asked.resources) if known and classes else ():
        try:
            backing[resource] = finder.backing(resource)
        except SelectorError as error:
            problems.append(f"resource {resource}: {error}; no DRA devices are freed for it")
    claims = {key: claim for key, claim in every.items() if key in asked.used}
    promised = _Promised()
    for template in templates:
        if _key(template) in asked.templates:
            promised.add(template, finder, is_of_gpus)
    return DraState(
        inventory,
        claims,
        waiting,
        promised.wanted,
        {**dict.fromkeys(asked.templates - promised.known, _NO_TEMPLATE), **promised.unknown},
        frozenset(promised.foreign),
        backing,
        {_key(template): template for template in templates},
        tuple(problems),
    )


_NO_TEMPLATE = "it does not exist, or could not be read"


class _Promised:
    """What claims will ask for that are made from templates."""

    def __init__(self) -> None:
        self.wanted: dict[ClaimKey, Wanted] = {}
        self.unknown: dict[ClaimKey, str] = {}
        self.foreign: set[ClaimKey] = set()

    @property
    def known(self) -> set[ClaimKey]:
        """The templates that were added."""
        return {*self.wanted, *self.unknown}

    def add(self, item: TemplateObject, finder: DeviceFinder, is_of_gpus: Callable[[str], bool]) -> None:
        """Add a template."""
        key = _key(item)
        try:
            made = claim_made_from(item)
            claim = claim_of(made, is_of_gpus)
            if not claim.devices and not claim.unreadable:
                self.foreign.add(key)
                self.unknown[key] = "it requests other devices than GPUs"
            else:
                self.wanted[key] = Wanted(claim.devices, finder.waiting(made))
        except (msgspec.DecodeError, SelectorError) as error:
            self.unknown[key] = str(error)


def with_claims(pod: UnschedulablePod, state: DraState) -> UnschedulablePod:
    """A pod that waits, with the devices that its claims accept.

    Raises:
        UnknownClaimError: Of one of its claims that is unknown.
    """
    wanted = list(_wanted(pod, state))
    counts = collections.Counter(pod.gpus)
    for one in wanted:
        counts.update(one.devices)
    backed = {
        name: WaitingClaim((DeviceRequest(name, (dataclasses.replace(state.backing[name], count=count),)),))
        for name, count in pod.gpus.items()
        if name in state.backing
    }
    claims = tuple(one.accepts for one in wanted)
    return dataclasses.replace(pod, gpus=dict(counts), claims=claims, backed=backed)


def _wanted(pod: UnschedulablePod, state: DraState) -> Iterator[Wanted]:
    for name in pod.claim_names:
        if (key := (pod.ref.namespace, name)) not in state.waiting:
            raise UnknownClaimError(f"which devices its ResourceClaim {name} accepts is unknown")
        yield state.waiting[key]
    for name in pod.template_names:
        if (key := (pod.ref.namespace, name)) not in state.promised:
            why = state.unknown.get(key, _NO_TEMPLATE)
            raise UnknownClaimError(f"ResourceClaimTemplate {name}: {why}")
        yield state.promised[key]


def _key(item: ClaimObject | TemplateObject) -> ClaimKey:
    return item.metadata.namespace, item.metadata.name


def with_devices(node: Node, devices: DeviceInventory) -> Node:
    """A node with what a DRA driver publishes of it, where no label tells; each GPU counts once."""
    if node.name in devices.incomplete:
        return node
    whole = devices.whole_gpus(node.name)
    if not whole:
        return node
    models = {one.model for one in whole.values()}
    memory = {None if one.profile else one.memory_bytes for one in whole.values()}
    is_only = not any(node.allocatable.values())
    return dataclasses.replace(
        node,
        model=node.model or (models.pop() if len(models) == 1 else ""),
        gpus=len(whole) if node.gpus is None else node.gpus,
        memory_bytes=memory.pop() if node.memory_bytes is None and len(memory) == 1 else node.memory_bytes,
        allocatable={WHOLE: len(whole)} if is_only else node.allocatable,
    )
