"""State that Dynamic Resource Allocation adds to a cluster's: published GPUs, claims, and claims that wait. Pure."""

import collections
import dataclasses
import types
from collections.abc import Iterable, Mapping, Sequence
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
    """Devices that a claim of pending pods asks for.

    Attributes:
        devices: Their number, by device class.
        accepts: Those that it would accept, if it is not allocated.
        why_not: Why that is not known; empty if it is.
        is_of_gpus: Whether it asks for GPUs, or may.
    """

    devices: Mapping[str, int]
    accepts: WaitingClaim
    why_not: str = ""
    is_of_gpus: bool = True


_NOT_READ = Wanted({}, WaitingClaim(()), "it does not exist, or could not be read")


class Asked(NamedTuple):
    """Claims and resources that pods ask of DRA.

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


class UnknownClaimError(ValueError):
    """The devices that a pod would accept are unknown; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraState:
    """Published GPUs and the claims for them.

    Attributes:
        claims: Those that pods use.
        waiting: Those that pods wait for.
        promised: The same of claims that will be made from templates.
        backing: The devices that the scheduler allocates for an extended resource, where that is known.
        templates: The ResourceClaimTemplates that claims were made from.
        problems: What is incomplete or cannot be evaluated, in words.
    """

    devices: DeviceInventory = dataclasses.field(default_factory=DeviceInventory)
    claims: Mapping[ClaimKey, Claim] = dataclasses.field(default_factory=dict)
    waiting: Mapping[ClaimKey, Wanted] = dataclasses.field(default_factory=dict)
    promised: Mapping[ClaimKey, Wanted] = dataclasses.field(default_factory=dict)
    backing: Mapping[str, DeviceChoice] = dataclasses.field(default_factory=dict)
    templates: Mapping[ClaimKey, TemplateObject] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def wanted(self, namespace: str, claims: Iterable[str], templates: Iterable[str]) -> dict[str, Wanted]:
        """Devices that a pod's claims ask for, existing ones and those that templates will make, by kind and name."""
        made = {f"ResourceClaim {name}": self.waiting.get((namespace, name), _NOT_READ) for name in claims}
        to_be = {
            f"ResourceClaimTemplate {name}": self.promised.get((namespace, name), _NOT_READ)
            for name in templates
        }
        return {**made, **to_be}


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
    finder = DeviceFinder(inventory, slices, classes)

    def is_of_gpus(name: str) -> bool:
        return resources.unit(CLASS_PREFIX + name) is not None or finder.is_of_gpus(name)

    def read(item: ClaimObject) -> Claim:
        return claim_of(item, resources, is_of_gpus, known, users, asked.used.get(_key(item), ()))

    def promised(item: TemplateObject) -> Wanted:
        try:
            made = claim_made_from(item)
        except msgspec.DecodeError as error:
            return _NOT_READ._replace(why_not=str(error))
        return _wanted(made, read(made), finder)

    every = {_key(item): read(item) for item in items}
    allocations = {key: claim.allocation for key, claim in every.items() if claim.allocation}
    names = frozenset(one.metadata.name for one in classes)
    inventory = dataclasses.replace(inventory, allocations=allocations, classes=names)
    problems = list(slices.problems)
    backing: dict[str, DeviceChoice] = {}
    for resource in sorted(asked.resources) if known and classes else ():
        try:
            backing[resource] = finder.backing(resource)
        except SelectorError as error:
            problems.append(f"resource {resource}: {error}; no DRA devices are freed for it")
    return DraState(
        inventory,
        {key: claim for key, claim in every.items() if key in asked.used},
        {
            _key(item): _wanted(item, every[_key(item)], finder)
            for item in items
            if _key(item) in asked.wanted
        },
        {_key(template): promised(template) for template in templates if _key(template) in asked.templates},
        backing,
        {_key(template): template for template in templates},
        tuple(problems),
    )


def _wanted(item: ClaimObject, claim: Claim, finder: DeviceFinder) -> Wanted:
    if not (claim.devices or claim.unreadable):
        words = "it requests other devices than GPUs"
        return Wanted({}, WaitingClaim(()), words, is_of_gpus=False)
    if item.is_allocated:
        return Wanted(claim.devices, WaitingClaim(()), "it is allocated already")
    try:
        return Wanted(claim.devices, finder.waiting(item))
    except SelectorError as error:
        return Wanted(claim.devices, WaitingClaim(()), str(error))


def with_claims(pod: UnschedulablePod, state: DraState) -> UnschedulablePod:
    """A pod that waits, with the devices that its claims accept.

    Raises:
        UnknownClaimError: Of one of its claims that is unknown.
    """
    wanted = state.wanted(pod.ref.namespace, pod.claim_names, pod.template_names)
    for name, one in wanted.items():
        if one.why_not:
            raise UnknownClaimError(f"{name}: {one.why_not}")
    counts = collections.Counter(pod.gpus)
    for one in wanted.values():
        counts.update(one.devices)
    backed = {
        name: WaitingClaim((DeviceRequest(name, (dataclasses.replace(state.backing[name], count=count),)),))
        for name, count in pod.gpus.items()
        if name in state.backing
    }
    claims = tuple(one.accepts for one in wanted.values())
    return dataclasses.replace(pod, gpus=dict(counts), claims=claims, backed=backed)


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
