"""What Dynamic Resource Allocation adds to a cluster's state: published GPUs, claims, and claims that wait. Pure."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from rightsizer.inventory.device_selectors import SelectorError
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, ResourceTable
from rightsizer.inventory.resource_claims import (
    Claim,
    ClaimObject,
    ClassObject,
    DeviceFinder,
    TemplateObject,
    claim_of,
    device_users,
)
from rightsizer.inventory.resource_slices import SliceTable, TaintRuleObject
from rightsizer.model import ClaimKey, DeviceId, DeviceInventory, Node, WaitingClaim

WHOLE = f"{CLASS_PREFIX}gpu.nvidia.com"
"""The resource name that stands for a node's GPUs where only a DRA driver publishes them."""


@dataclasses.dataclass(frozen=True, slots=True)
class DraState:
    """Published GPUs and the claims for them.

    Attributes:
        claims: Those that pods use.
        waiting: Those of them that are not allocated, where it is known which devices they accept.
        backing: The devices that the scheduler allocates for an extended resource, where that is known.
        templates: The ResourceClaimTemplates that claims were made from.
        problems: What is incomplete or cannot be evaluated, in words.
    """

    devices: DeviceInventory = dataclasses.field(default_factory=DeviceInventory)
    claims: Mapping[ClaimKey, Claim] = dataclasses.field(default_factory=dict)
    waiting: Mapping[ClaimKey, WaitingClaim] = dataclasses.field(default_factory=dict)
    backing: Mapping[str, frozenset[DeviceId]] = dataclasses.field(default_factory=dict)
    templates: Mapping[ClaimKey, TemplateObject] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


def dra_state(  # noqa: PLR0913 - one list of each kind
    items: Sequence[ClaimObject],
    slices: SliceTable,
    rules: Sequence[TaintRuleObject],
    classes: Sequence[ClassObject],
    templates: Sequence[TemplateObject],
    *,
    used: Collection[ClaimKey],
    wanted: Collection[ClaimKey],
    named: Collection[str],
    resources: ResourceTable,
) -> DraState:
    """The state that these objects tell.

    Args:
        items: All ResourceClaims that were read.
        slices: The ResourceSlices.
        rules: The DeviceTaintRules.
        classes: The DeviceClasses; only needed where claims wait.
        templates: The ResourceClaimTemplates that claims of GPU pods were made from.
        used: Claims that GPU pods use.
        wanted: Claims of pods that the scheduler cannot place.
        named: Extended resources that these request.
        resources: Which device classes are of GPUs.
    """
    inventory = slices.inventory(rules)
    known = {one.id: one for devices in inventory.nodes.values() for one in devices}
    users = device_users(items)
    finder = DeviceFinder(inventory, slices.published, classes)

    def is_of_gpus(name: str) -> bool:
        return resources.unit(CLASS_PREFIX + name) is not None or finder.is_of_gpus(name)

    every = {_key(item): claim_of(item, is_of_gpus, known, users) for item in items}
    allocations = {key: claim.allocation for key, claim in every.items() if claim.allocation}
    inventory = dataclasses.replace(inventory, allocations=allocations)
    waiting: dict[ClaimKey, WaitingClaim] = {}
    problems = list(slices.problems)
    for item in items:
        if _key(item) in wanted and not item.is_allocated and known:
            try:
                waiting[_key(item)] = finder.waiting(item)
            except SelectorError as error:
                problems.append(f"claim {'/'.join(_key(item))}: {error}; no GPUs are freed for it")
    backing: dict[str, frozenset[DeviceId]] = {}
    for resource in sorted(named) if known and classes else ():
        try:
            backing[resource] = finder.backing(resource)
        except SelectorError as error:
            problems.append(f"resource {resource}: {error}; no DRA devices are freed for it")
    claims = {key: claim for key, claim in every.items() if key in used}
    made_from = {_key(item): item for item in templates}
    return DraState(inventory, claims, waiting, backing, made_from, tuple(problems))


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
