"""Gangs as the objects of their schedulers describe them: how many pods start together, and where. Pure.

To add a gang scheduler is to add a row. Only its pods' own priority counts, which the API server admitted: owners write
the groups, and a forged one only keeps its own pods from being served.

https://github.com/kubernetes-sigs/scheduler-plugins/blob/master/apis/scheduling/v1alpha1/types.go
https://github.com/volcano-sh/apis/blob/master/pkg/apis/scheduling/v1beta1/types.go
https://github.com/kai-scheduler/KAI-Scheduler/blob/main/pkg/apis/scheduling/v2alpha2/podgroup_types.go
https://github.com/kubernetes/enhancements/tree/master/keps/sig-scheduling/4671-gang-scheduling
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

from rightsizer.inventory.gpu_requests import ResourceTable, amount_of
from rightsizer.kube.api_objects import ABSENT, ObjectMeta
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import ObjectRef, QuotaKey

T = TypeVar("T", bound=Hashable)

GroupKey = tuple[str, str, str, str]
"""API group, kind, namespace and name: the version that names a gang need not be the one that it is read in."""


def group_key(ref: ObjectRef) -> GroupKey:
    """The key of the object that makes pods a gang."""
    return ref.group, ref.kind, ref.namespace, ref.name


class GroupObject(msgspec.Struct):
    """A PodGroup of any scheduler."""

    metadata: ObjectMeta
    spec: msgspec.Raw = ABSENT
    status: msgspec.Raw = ABSENT


@dataclasses.dataclass(frozen=True, slots=True)
class PodGroup:
    """Requirements of a PodGroup.

    Attributes:
        minimum: How many of its pods start together; None for all.
        topology: The label of which their nodes must have the same value.
        queue: Whose quota it takes; empty if it says none.
        holds_back: Whether its pods are not created yet.
        why_not: Why free GPUs would not start it, for people; empty if they might.
    """

    minimum: int | None = None
    topology: str = ""
    queue: str = ""
    holds_back: bool = False
    why_not: str = ""


class _Topology(msgspec.Struct, rename="camel"):
    required_topology_level: str = ""


class _Network(msgspec.Struct):
    mode: str = ""


class _Gang(msgspec.Struct, rename="camel"):
    min_count: int | None = None


class _SchedulingPolicy(msgspec.Struct):
    gang: _Gang | None = None


class _Key(msgspec.Struct):
    key: str = ""


class _Constraints(msgspec.Struct):
    topology: list[_Key] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    """The specs of all of them: no two give a name to different things."""

    min_member: int | None = None
    queue: str = ""
    network_topology: _Network | None = None
    sub_groups: list[msgspec.Raw] | None = None
    topology_constraint: _Topology | None = None
    scheduling_policy: _SchedulingPolicy | None = None
    scheduling_constraints: _Constraints | None = None


class _Reason(msgspec.Struct):
    reason: str = ""


class _SchedulingCondition(msgspec.Struct):
    reasons: list[_Reason] | None = None


class _GroupStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    scheduling_conditions: list[_SchedulingCondition] | None = None


def _scheduler_plugins(spec: _Spec, _: _GroupStatus) -> PodGroup:
    return PodGroup(spec.min_member)


def _volcano(spec: _Spec, status: _GroupStatus) -> PodGroup:
    is_hard = spec.network_topology is not None and spec.network_topology.mode == "hard"
    return PodGroup(
        spec.min_member,
        queue=spec.queue or "default",
        holds_back=status.phase in {"", "Pending"},
        why_not="it needs a network topology that is unknown here" if is_hard else "",
    )


_KAI_QUOTA = frozenset({"NonPreemptibleOverQuota", "OverLimit"})


def _kai(spec: _Spec, status: _GroupStatus) -> PodGroup:
    topology = spec.topology_constraint or _Topology()
    reasons = {
        one.reason for each in status.scheduling_conditions or () for one in each.reasons or ()
    } & _KAI_QUOTA
    return PodGroup(
        None if spec.sub_groups else spec.min_member,
        topology=topology.required_topology_level,
        why_not=f"its queue has no quota for it: {', '.join(sorted(reasons))}" if reasons else "",
    )


def _core(spec: _Spec, _: _GroupStatus) -> PodGroup:
    gang = spec.scheduling_policy.gang if spec.scheduling_policy else None
    keys = [one.key for one in (spec.scheduling_constraints or _Constraints()).topology or ()]
    return PodGroup(
        # Without a gang its pods start one by one.
        gang.min_count if gang else 1,
        topology=keys[0] if keys else "",
        why_not="it needs several topologies at once" if len(keys) > 1 else "",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class GroupKind:
    """A kind of gang, and how it is read."""

    of: OwnerKind
    read: Callable[[_Spec, _GroupStatus], PodGroup]


VOLCANO = OwnerKind("scheduling.volcano.sh", ("v1beta1",), "PodGroup", "podgroups")
VOLCANO_QUEUES = OwnerKind("scheduling.volcano.sh", ("v1beta1",), "Queue", "queues")
_CORE_VERSIONS = ("v1", "v1beta1", "v1alpha3", "v1alpha2")

GROUP_KINDS = (
    GroupKind(OwnerKind("scheduling.x-k8s.io", ("v1alpha1",), "PodGroup", "podgroups"), _scheduler_plugins),
    GroupKind(VOLCANO, _volcano),
    GroupKind(OwnerKind("scheduling.run.ai", ("v2alpha2",), "PodGroup", "podgroups"), _kai),
    GroupKind(OwnerKind("scheduling.k8s.io", _CORE_VERSIONS, "PodGroup", "podgroups"), _core),
)


def read_group(row: GroupKind, item: GroupObject) -> PodGroup:
    """A gang; one that cannot be read starts whole, and nothing is known of where."""
    try:
        spec = msgspec.json.decode(item.spec, type=_Spec | None) or _Spec()
        status = msgspec.json.decode(item.status, type=_GroupStatus | None) or _GroupStatus()
    except msgspec.DecodeError as error:
        return PodGroup(why_not=f"it cannot be read: {error}")
    return row.read(spec, status)


# --- Volcano's queues


class _Capability(msgspec.Struct):
    capability: dict[str, str | int] | None = None


class _Allocated(msgspec.Struct):
    allocated: dict[str, str | int] | None = None
    state: str = ""


class VolcanoQueue(msgspec.Struct):
    """scheduling.volcano.sh/v1beta1 Queue."""

    metadata: ObjectMeta
    spec: _Capability = msgspec.field(default_factory=_Capability)
    status: _Allocated = msgspec.field(default_factory=_Allocated)


def volcano_pool(queue: str) -> str:
    """The pool of a queue's quota."""
    return f"Queue {queue}"


def volcano_quotas(queues: Iterable[VolcanoQueue], resources: ResourceTable) -> Mapping[QuotaKey, float]:
    """Amounts of limited GPU resources that queues may still allocate; nothing if they are not open."""
    found: dict[QuotaKey, float] = {}
    for item in queues:
        used = item.status.allocated or {}
        for name, most in (item.spec.capability or {}).items():
            if resources.unit(name) is not None:
                left = amount_of(name, most) - amount_of(name, used.get(name))
                is_open = item.status.state in {"", "Open"}
                found[volcano_pool(item.metadata.name), name] = left if is_open else -float("inf")
    return found


def connected(members: Iterable[tuple[T, Iterable[Hashable]]]) -> list[list[T]]:
    """Connected groups of members with common marks, in the order given; members may repeat."""
    parents: dict[Hashable, Hashable] = {}
    order: dict[T, None] = {}
    for member, marks in members:
        order[member] = None
        here = _root(parents, ("member", member))
        for mark in marks:
            parents[_root(parents, ("mark", mark))] = here
    groups: dict[Hashable, list[T]] = {}
    for member in order:
        groups.setdefault(_root(parents, ("member", member)), []).append(member)
    return list(groups.values())


def _root(parents: dict[Hashable, Hashable], item: Hashable) -> Hashable:
    while (above := parents.setdefault(item, item)) != item:
        parents[item] = item = parents[above]
    return item
