"""Builds the Fleet from the cluster state: workloads that hold GPUs, nodes and PriorityClasses. Pure.

A pod belongs to the topmost owner of its owner chain. Pods of one gang are one workload, whoever owns them.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.changes.found_changes import changes_of
from rightsizer.changes.record_codec import came_back_after, recorded_changes
from rightsizer.inventory.gpu_requests import Claim, ResourceTable, count_of
from rightsizer.inventory.managers import (
    Autoscaler,
    ControlObjects,
    TargetKey,
    managers_of,
    with_control_annotations,
    with_control_object,
)
from rightsizer.inventory.nodes import NodeCapacity
from rightsizer.inventory.owner_reader import CHANGE_ANNOTATIONS
from rightsizer.inventory.pods import GpuPod
from rightsizer.inventory.stranded_gpus import UnschedulablePod, find_stranded_gpus, placeable_pods
from rightsizer.kube.api_objects import DisruptionBudget, ObjectMeta, PriorityClassObject, QuotaObject
from rightsizer.kube.owner_kinds import (
    ObjectSummary,
    OwnerChain,
    object_key,
    owner_chain,
    owner_key,
    owner_kind,
)
from rightsizer.model import (
    AddressTable,
    ChangeRecord,
    Fleet,
    Node,
    ObjectRef,
    Pod,
    PriorityClass,
    Quota,
    Workload,
)
from rightsizer.prices import whole_gpus

T = TypeVar("T", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of the cluster.

    Attributes:
        owners: Owners of the pods and objects that gpu-rightsizer changed, by `object_key`.
        capacities: Of nodes, by name.
        namespaces: Metadata by name.
        claims: By namespace and name.
        kueue_workloads: Kueue's Workloads, which represent jobs.
        evictions: Metadata of the Secrets that keep the manifests of evicted pods.
        problems: What could not be read, or is unexpectedly missing, in words.
        minor: Minor version of Kubernetes 1.x; None if unknown or not needed.
    """

    pods: tuple[GpuPod, ...] = ()
    addresses: AddressTable = dataclasses.field(default_factory=AddressTable)
    unschedulable: tuple[UnschedulablePod, ...] = ()
    owners: Mapping[str, ObjectSummary] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    capacities: Mapping[str, NodeCapacity] = dataclasses.field(default_factory=dict)
    namespaces: Mapping[str, ObjectMeta] = dataclasses.field(default_factory=dict)
    disruption_budgets: tuple[DisruptionBudget, ...] = ()
    priority_classes: Mapping[str, PriorityClass] = dataclasses.field(default_factory=dict)
    claims: Mapping[tuple[str, str], Claim] = dataclasses.field(default_factory=dict)
    autoscalers: tuple[Autoscaler, ...] = ()
    kueue_workloads: tuple[ObjectSummary, ...] = ()
    quotas: tuple[Quota, ...] = ()
    evictions: tuple[ObjectMeta, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None


def priority_class_of(item: PriorityClassObject) -> PriorityClass:
    """The PriorityClass."""
    return PriorityClass(item.metadata.name, item.value, item.metadata.annotations or {})


def quotas_of(item: QuotaObject, resources: ResourceTable) -> list[Quota]:
    """The GPU resources of a ResourceQuota."""
    status, namespace, name = item.status, item.metadata.namespace, item.metadata.name
    found = []
    for key, amount in sorted((status.hard or {}).items()):
        resource = key.removeprefix("requests.")
        if resources.unit(resource) is not None:
            used = (status.used or {}).get(key, 0)
            found.append(Quota(namespace, name, resource, count_of(amount), count_of(used)))
    return found


def build_fleet(state: ClusterState) -> Fleet:
    """The fleet, in a stable order: every GPU pod belongs to exactly one workload."""
    members = _members(state)
    builder = _WorkloadBuilder(state)
    groups = _connected((object_key(member.chain.top), member.source.gangs) for member in members)
    by_top: dict[str, list[_Member]] = collections.defaultdict(list)
    for member in members:
        by_top[object_key(member.chain.top)].append(member)
    workloads = [builder.workload([one for top in tops for one in by_top[top]]) for tops in groups]
    pods = [member.pod for member in members]
    scaling = [one.control_object for one in state.autoscalers if one.control_object is not None]
    bare = [member.chain.top for member in members if member.chain.top.ref.kind == "Pod"]
    changed = [*state.owners.values(), *state.kueue_workloads, *scaling, *bare]
    changes, unreadable = changes_of(changed, state.evictions, pods)
    return Fleet(
        workloads=tuple(sorted(workloads, key=lambda workload: workload.ref)),
        nodes=state.nodes,
        classes=state.priority_classes,
        changes=tuple(changes),
        stranded=find_stranded_gpus(state.nodes, state.capacities, state.unschedulable),
        waiting=placeable_pods(state.nodes, state.capacities, state.unschedulable),
        spare={name: capacity.spare for name, capacity in state.capacities.items()},
        quotas=state.quotas,
        problems=(*state.problems, *unreadable),
        minor=state.minor,
        addresses=state.addresses,
        namespaces=frozenset(state.namespaces),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A GPU pod with its owner chain."""

    source: GpuPod
    pod: Pod
    chain: OwnerChain


def _members(state: ClusterState) -> list[_Member]:
    chains: dict[str, OwnerChain] = {}
    found = []
    for source in state.pods:
        pod = _completed(source, state)
        if pod is not None:
            found.append(_Member(source, _shared(pod, state), _chain(source, chains, state.owners)))
    return found


def _shared(pod: Pod, state: ClusterState) -> Pod:
    """The pod with the share of a GPU that its node gives it."""
    whole = whole_gpus(pod, state.nodes.get(pod.node))
    return pod if whole in {0.0, pod.devices} else dataclasses.replace(pod, share=whole / pod.devices)


def _chain(source: GpuPod, chains: dict[str, OwnerChain], owners: Mapping[str, ObjectSummary]) -> OwnerChain:
    """The owner chain of a pod, computed once for all pods of one owner."""
    ref, owner = source.pod.ref, source.owner
    if owner is None:
        metadata = source.metadata or ObjectMeta(name=ref.name, namespace=ref.namespace, uid=ref.uid)
        top = ObjectSummary(ref, metadata)
        return OwnerChain(top, (top,))
    key = f"{ref.namespace}/{owner.group}/{owner.kind}/{owner.name}/{owner.uid}"
    if key not in chains:
        chains[key] = owner_chain(owner, ref.namespace, owners)
    return chains[key]


def _completed(source: GpuPod, state: ClusterState) -> Pod | None:
    """A pod with what its claims and its node add; None if it has no GPUs."""
    pod = source.pod
    devices: collections.Counter[str] = collections.Counter()
    is_shared, unreadable = pod.is_shared, list(pod.unreadable)
    for name in source.claims:
        claim = state.claims.get((pod.ref.namespace, name), _unknown(name))
        devices.update(claim.devices)
        is_shared = is_shared or (bool(claim.devices) and claim.is_shared)
        unreadable += claim.unreadable
    node = state.nodes.get(pod.node)
    is_shared = is_shared or bool(node and node.sharing)
    if not (devices or pod.devices or unreadable):
        return None
    if not source.claims and is_shared == pod.is_shared:
        return pod
    return dataclasses.replace(
        pod,
        devices=pod.devices + sum(devices.values()),
        is_shared=is_shared,
        resources={**pod.resources, **devices},
        unreadable=tuple(unreadable),
    )


def _unknown(name: str) -> Claim:
    if name.startswith("?"):
        return Claim({}, unreadable=(f"claim {name[1:]}: not made yet",))
    return Claim({}, unreadable=(f"claim {name}: could not be read",))


def _connected(members: Iterable[tuple[T, Iterable[Hashable]]]) -> list[list[T]]:
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


class _WorkloadBuilder:
    """Builds workloads, with indexes for what they refer to."""

    def __init__(self, state: ClusterState) -> None:
        self._namespaces = state.namespaces
        self._autoscalers: dict[TargetKey, list[Autoscaler]] = {}
        for one in state.autoscalers:
            self._autoscalers.setdefault(one.target, []).append(one)
        self._control_objects = ControlObjects(state.kueue_workloads, state.autoscalers)
        self._budgets = _BudgetIndex(state.disruption_budgets)
        self._by_starter: dict[str, list[ObjectSummary]] = {}
        for item in state.owners.values():
            if (starter := _starter(item)) and CHANGE_ANNOTATIONS & (item.metadata.annotations or {}).keys():
                self._by_starter.setdefault(starter, []).append(item)

    def workload(self, members: Sequence[_Member]) -> Workload:
        """One workload of these pods, which have the same top or belong to one gang."""
        tops = {object_key(member.chain.top): member.chain for member in members}
        chains = sorted(tops.values(), key=lambda chain: chain.top.ref)
        gangs = sorted({gang for member in members for gang in member.source.gangs})
        is_gang = bool(gangs) and (len(chains) > 1 or chains[0].top.ref.kind == "Pod")
        pods = sorted((member.pod for member in members), key=lambda pod: pod.ref)
        plain = _of_gang(gangs[0], chains) if is_gang else _of_top(chains[0])
        control = None if is_gang else self._control_objects.of(chains[0])
        annotations = with_control_annotations(plain.annotations, control)
        namespace = self._namespaces.get(plain.ref.namespace) or ObjectMeta(name=plain.ref.namespace)
        managers = (
            with_control_object(manager, control)
            for chain in chains
            for manager in managers_of(chain, self._autoscalers)
        )
        return dataclasses.replace(
            plain,
            pods=tuple(pods),
            annotations=annotations,
            control_object=control.ref if control else None,
            came_back_after=came_back_after(annotations, [pod.created for pod in pods]),
            past=self._past(chains, annotations, pods),
            namespace_annotations=namespace.annotations or {},
            namespace_labels=namespace.labels or {},
            budgets=self._budgets.covering(pods),
            managers=tuple(dict.fromkeys(managers)),
        )

    def _past(
        self, chains: Sequence[OwnerChain], annotations: Mapping[str, str], pods: Sequence[Pod]
    ) -> tuple[ChangeRecord, ...]:
        """Earlier changes of the tops, of the control object, and of other objects from the same CronJobs."""
        began = [pod.created for pod in pods if not pod.is_terminating]
        of_tops = (chain.top.metadata.annotations or {} for chain in chains)
        every = of_tops if len(chains) > 1 else [annotations]
        own = [change for each in every for change in recorded_changes(each, began)]
        uids = {chain.top.ref.uid for chain in chains}
        starters = {starter for chain in chains if (starter := _starter(chain.top))}
        others = [one for starter in sorted(starters) for one in self._by_starter.get(starter, ())]
        of_others = (one.metadata.annotations or {} for one in others if one.ref.uid not in uids)
        past = [*own, *(change for each in of_others for change in recorded_changes(each))]
        return tuple(sorted(past, key=lambda change: change.at))


def _starter(one: ObjectSummary) -> str:
    """Key of the CronJob or the like that created an object on schedule; empty if there is none."""
    above = one.metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    is_starter = above is not None and row is not None and row.starts_others
    return owner_key(above, one.ref.namespace) if above is not None and is_starter else ""


def _of_top(chain: OwnerChain) -> Workload:
    top, metadata, above = chain.top, chain.top.metadata, chain.starter
    return Workload(
        ref=top.ref,
        generation=metadata.generation,
        resource_version=metadata.resource_version,
        pods=(),
        size=top.size,
        labels=metadata.labels or {},
        annotations=metadata.annotations or {},
        namespace_annotations={},
        budgets={},
        is_terminating=metadata.deletion_timestamp is not None,
        created=metadata.creation_timestamp,
        starter=above.ref(top.ref.namespace) if above else None,
        scalable=top.scalable,
        spec=top.spec,
    )


def _of_gang(gang: ObjectRef, chains: Sequence[OwnerChain]) -> Workload:
    """A gang without a common object, only advised on: stopping one member would leave the others waiting."""
    of_members = [_of_top(chain) for chain in chains]
    created = [one.created for one in of_members if one.created is not None]
    return Workload(
        ref=gang,
        generation=0,
        resource_version="",
        pods=(),
        size=None,
        labels=_merged(one.labels for one in of_members),
        annotations=_merged(one.annotations for one in of_members),
        namespace_annotations={},
        budgets={},
        is_terminating=any(one.is_terminating for one in of_members),
        created=min(created, default=None),
        gang=f"{gang.kind} {gang.namespace}/{gang.name}",
    )


def _merged(members: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Labels or annotations of several objects; different values are joined, which makes them invalid.

    An invalid annotation restricts gpu-rightsizer most.
    """
    found: dict[str, dict[str, None]] = {}
    for member in members:
        for key, value in member.items():
            found.setdefault(key, {})[value] = None
    return {key: " | ".join(sorted(values)) for key, values in found.items()}


class _BudgetIndex:
    """PodDisruptionBudgets by namespace and one required label, so that each pod is compared with few."""

    def __init__(self, budgets: Iterable[DisruptionBudget]) -> None:
        self._by_label: dict[tuple[str, str, str], list[DisruptionBudget]] = {}
        self._others: dict[str, list[DisruptionBudget]] = {}
        for budget in budgets:
            selector, namespace = budget.spec.selector, budget.metadata.namespace
            if selector is None:
                continue
            if selector.match_labels:
                key, value = min(selector.match_labels.items())
                self._by_label.setdefault((namespace, key, value), []).append(budget)
            else:
                self._others.setdefault(namespace, []).append(budget)

    def covering(self, pods: Iterable[Pod]) -> dict[str, int]:
        """The budgets that cover any of the pods, by name, with the disruptions that they allow now."""
        found = {
            budget.metadata.name: budget.status.disruptions_allowed
            for pod in pods
            for budget in self._candidates(pod)
            if budget.spec.selector is not None and budget.spec.selector.selects(pod.labels)
        }
        return dict(sorted(found.items()))

    def _candidates(self, pod: Pod) -> Iterator[DisruptionBudget]:
        namespace = pod.ref.namespace
        yield from self._others.get(namespace, ())
        if self._by_label:
            for key, value in pod.labels.items():
                yield from self._by_label.get((namespace, key, value), ())
