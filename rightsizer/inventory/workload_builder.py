"""Builds the Fleet from the cluster state: workloads that hold GPUs, nodes and PriorityClasses. Pure.

A pod belongs to the topmost owner of its owner chain. Pods of one gang are one workload, whoever owns them; so are the
pods without a controller of one cluster, of which only labels tell.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.changes.found_changes import changes_of
from rightsizer.changes.record_codec import came_back_after, recorded_changes
from rightsizer.inventory.demand import DemandState, Surroundings, demand_of
from rightsizer.inventory.dra_state import DraState, UnknownClaimError, with_claims
from rightsizer.inventory.gpu_reach import reach_on
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, CLASS_QUOTA, ResourceTable, amount_of
from rightsizer.inventory.managers import (
    Autoscaler,
    Controllers,
    with_control_annotations,
    with_control_object,
)
from rightsizer.inventory.node_holds import with_budgets
from rightsizer.inventory.nodes import NodeCapacity
from rightsizer.inventory.obstacles import Occupants, Volumes, with_volumes
from rightsizer.inventory.owner_reader import CHANGE_ANNOTATIONS
from rightsizer.inventory.placeable_pods import NodeSearch, placeable_pods
from rightsizer.inventory.pod_groups import connected, group_key, volcano_pool
from rightsizer.inventory.pods import GpuPod
from rightsizer.inventory.resource_claims import Claim, template_of
from rightsizer.inventory.stranded_gpus import find_stranded_gpus
from rightsizer.inventory.unschedulable_pods import UnschedulablePod
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
    ClaimKey,
    ClaimTemplate,
    Fleet,
    Node,
    ObjectRef,
    OtherPods,
    Pod,
    PodKey,
    PriorityClass,
    QueueQuotas,
    Quota,
    QuotaKey,
    Workload,
)
from rightsizer.model.gpu_fractions import whole_gpus


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of the cluster.

    Attributes:
        owners: Owners of the pods and objects that gpu-rightsizer changed, by `object_key`.
        capacities: Of nodes, by name.
        occupants: Pods that keep others off their nodes.
        nominated: As a Fleet's.
        volumes: Of pods that wait.
        other_pods: Those without GPUs, by node.
        unknown_gpus: Resources with names like GPUs', but unknown, with the nodes that offer them.
        other_resources: Extended resources of running pods without known GPU resources.
        namespaces: Metadata by name.
        dra: Published GPUs and the claims for them.
        kueue_workloads: Kueue's Workloads, which represent jobs.
        evictions: Metadata of the Secrets that keep the manifests of evicted pods.
        problems: What could not be read, or is unexpectedly missing, in words.
        minor: Minor version of Kubernetes 1.x; None if unknown or not needed.
        demand: What waits in addition to unschedulable pods.
        resources: The resource names of GPUs.
    """

    pods: tuple[GpuPod, ...] = ()
    addresses: AddressTable = dataclasses.field(default_factory=AddressTable)
    unschedulable: tuple[UnschedulablePod, ...] = ()
    owners: Mapping[str, ObjectSummary] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    capacities: Mapping[str, NodeCapacity] = dataclasses.field(default_factory=dict)
    occupants: Occupants = dataclasses.field(default_factory=Occupants)
    nominated: Mapping[str, Sequence[tuple[int, Mapping[str, int]]]] = dataclasses.field(default_factory=dict)
    volumes: Volumes = dataclasses.field(default_factory=Volumes)
    other_pods: Mapping[str, OtherPods] = dataclasses.field(default_factory=dict)
    unknown_gpus: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    other_resources: Mapping[PodKey, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    namespaces: Mapping[str, ObjectMeta] = dataclasses.field(default_factory=dict)
    disruption_budgets: tuple[DisruptionBudget, ...] = ()
    priority_classes: Mapping[str, PriorityClass] = dataclasses.field(default_factory=dict)
    dra: DraState = dataclasses.field(default_factory=DraState)
    autoscalers: tuple[Autoscaler, ...] = ()
    kueue_workloads: tuple[ObjectSummary, ...] = ()
    quotas: tuple[Quota, ...] = ()
    evictions: tuple[ObjectMeta, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None
    demand: DemandState = dataclasses.field(default_factory=DemandState)
    resources: ResourceTable = dataclasses.field(default_factory=ResourceTable)


def priority_class_of(item: PriorityClassObject) -> PriorityClass:
    """The PriorityClass."""
    return PriorityClass(
        item.metadata.name, item.value, item.metadata.annotations or {}, is_default=item.global_default
    )


def quotas_of(item: QuotaObject, resources: ResourceTable) -> list[Quota]:
    """Limits of a ResourceQuota on GPUs, pods, and requests of CPU and memory; limits of these are not read."""
    status = item.status
    found = []
    for key, amount in sorted((status.hard or {}).items()):
        resource = _limited_resource(key)
        if resource in ("pods", "cpu", "memory") or resources.unit(resource) is not None:
            hard, used = (amount_of(resource, one) for one in (amount, (status.used or {}).get(key)))
            found.append(
                Quota(item.metadata.namespace, item.metadata.name, resource, hard, used, item.classes)
            )
    return found


def _limited_resource(key: str) -> str:
    """The resource that a key of a ResourceQuota limits, as pods name it."""
    name_of_class = key.removesuffix(CLASS_QUOTA)
    if name_of_class != key:
        return f"{CLASS_PREFIX}{name_of_class}"
    return "pods" if key == "count/pods" else key.removeprefix("requests.")


def build_fleet(state: ClusterState) -> Fleet:
    """The fleet, in a stable order: every GPU pod belongs to exactly one workload."""
    members = _members(state)
    builder = _WorkloadBuilder(state)
    groups = connected(
        (object_key(member.chain.top), (*member.source.gangs, *member.source.clusters)) for member in members
    )
    by_top: dict[str, list[_Member]] = collections.defaultdict(list)
    for member in members:
        by_top[object_key(member.chain.top)].append(member)
    workloads = [builder.workload([one for top in tops for one in by_top[top]]) for tops in groups]
    pods = [member.pod for member in members]
    scaling = [one.control_object for one in state.autoscalers if one.control_object is not None]
    bare = [member.chain.top for member in members if member.chain.top.ref.kind == "Pod"]
    changed = [*state.owners.values(), *state.kueue_workloads, *scaling, *bare]
    changes, unreadable = changes_of(changed, state.evictions, pods)
    waiting, devices = _with_claims(state), state.dra.devices
    around = Surroundings(
        state.resources, state.nodes, state.priority_classes, state.quotas, state.dra, state.volumes
    )
    demand = demand_of(waiting, state.demand, around)
    search = NodeSearch(state.nodes, state.capacities, devices, state.occupants, state.namespaces)
    placeable = placeable_pods(search, demand.pods, demand.gangs)
    return Fleet(
        workloads=tuple(sorted(workloads, key=lambda workload: workload.ref)),
        nodes=state.nodes,
        classes=state.priority_classes,
        changes=tuple(changes),
        stranded=find_stranded_gpus(state.nodes, state.capacities, waiting, devices),
        waiting=placeable.pods,
        spare={name: capacity.spare for name, capacity in state.capacities.items()},
        free=_free_gpus(state),
        nominated=state.nominated,
        devices=devices,
        queues=_quotas(state, members),
        unserved=(*demand.unserved, *placeable.unserved),
        quotas=state.quotas,
        problems=(*state.problems, *unreadable),
        minor=state.minor,
        addresses=state.addresses,
        namespaces=frozenset(state.namespaces),
        other_pods={
            name: with_budgets(found, state.disruption_budgets)
            for name in state.nodes
            if (found := state.other_pods.get(name))
        },
        unknown_gpus=state.unknown_gpus,
        other_resources=state.other_resources,
    )


def _free_gpus(state: ClusterState) -> dict[tuple[str, str], int]:
    """Free units of each GPU resource, by node and resource."""
    return {
        (name, resource): amount - state.capacities[name].requested.get(resource, 0)
        for name, node in state.nodes.items()
        if name in state.capacities
        for resource, amount in node.allocatable.items()
    }


def _quotas(state: ClusterState, members: Iterable["_Member"]) -> QueueQuotas:
    """The quota of queues, with what the pods in Volcano's queues hold."""
    held = dict(state.demand.quotas.held)
    for one in members:
        group = next(
            (found for gang in one.source.gangs if (found := state.demand.groups.get(group_key(gang)))), None
        )
        if group is not None and group.queue and one.pod.holds:
            pool = volcano_pool(group.queue)
            mine: dict[QuotaKey, float] = {
                (pool, name): float(count) for name, count in one.pod.resources.items()
            }
            held[f"{one.pod.ref.namespace}/{one.pod.ref.uid}"] = mine
    return QueueQuotas(state.demand.quotas.free, held)


def _with_claims(state: ClusterState) -> list[UnschedulablePod]:
    """Pods that the scheduler cannot place, without those that ask for no GPUs."""
    found = []
    for one in state.unschedulable:
        wanted = state.dra.wanted(one.ref.namespace, one.claim_names, one.template_names).values()
        if one.gpus or any(each.is_of_gpus for each in wanted):
            try:
                found.append(with_volumes(with_claims(one, state.dra), state.volumes))
            except UnknownClaimError as error:
                found.append(dataclasses.replace(one, why_not=one.why_not or str(error)))
    return found


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
            found.append(
                _Member(source, _shared(pod, source.claims, state), _chain(source, chains, state.owners))
            )
    return found


def _shared(pod: Pod, claims: Iterable[str], state: ClusterState) -> Pod:
    """The pod with the share of a GPU that its node, or its claims, give it."""
    node = state.nodes.get(pod.node)
    by_claims = [
        claim.gpus / max(1, len(claim.allocation.users))
        for claim in (state.dra.claims.get((pod.ref.namespace, name)) for name in claims)
        if claim and claim.gpus and claim.allocation
    ]
    if by_claims:
        named = {name: count for name, count in pod.resources.items() if not name.startswith(CLASS_PREFIX)}
        rest = whole_gpus(dataclasses.replace(pod, resources=named), node) if named else 0.0
        whole = sum(by_claims) + rest
    else:
        whole = whole_gpus(pod, node)
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
    is_shared, unreadable, unusable, admin = pod.is_shared, list(pod.unreadable), pod.unusable, ""
    for name in source.claims:
        claim = state.dra.claims.get((pod.ref.namespace, name), _unknown(name))
        devices.update(claim.devices)
        admin = f"its claim {name} has admin access" if claim.is_admin else admin
        is_shared = is_shared or (bool(claim.devices) and claim.is_shared)
        unreadable += claim.unreadable
        unusable += sum(claim.devices.values()) if name in source.unusable_claims else 0
    node = state.nodes.get(pod.node)
    is_shared = is_shared or bool(node and node.sharing)
    if not (devices or pod.devices or unreadable):
        return None
    reach = reach_on(pod, node) or admin
    if not source.claims and is_shared == pod.is_shared and reach == pod.reach:
        return pod
    return dataclasses.replace(
        pod,
        reach=reach,
        devices=pod.devices + sum(devices.values()),
        is_shared=is_shared,
        resources={**pod.resources, **devices},
        unreadable=tuple(unreadable),
        unusable=unusable,
    )


def _unknown(name: str) -> Claim:
    if name.startswith("?"):
        return Claim({}, unreadable=(f"needs a claim {name[1:]}, which is not made yet",))
    return Claim({}, unreadable=(f"has claim {name}, which could not be read",))


class _WorkloadBuilder:
    """Builds workloads, with indexes for what they refer to."""

    def __init__(self, state: ClusterState) -> None:
        self._namespaces = state.namespaces
        self._dra = state.dra
        self._controllers = Controllers(state.kueue_workloads, state.autoscalers)
        self._budgets = _BudgetIndex(state.disruption_budgets)
        self._by_starter: dict[str, list[ObjectSummary]] = {}
        for item in state.owners.values():
            if (starter := _starter(item)) and CHANGE_ANNOTATIONS & (item.metadata.annotations or {}).keys():
                self._by_starter.setdefault(starter, []).append(item)

    def workload(self, members: Sequence[_Member]) -> Workload:
        """One workload of these pods, which have the same top or belong to one gang."""
        tops = {object_key(member.chain.top): member.chain for member in members}
        chains = sorted(tops.values(), key=lambda chain: chain.top.ref)
        ways = list({id(member.chain): member.chain for member in members}.values())
        gangs = sorted({gang for member in members for gang in member.source.gangs})
        clusters = sorted({one for member in members for one in member.source.clusters})
        is_gang = len(chains) > 1 or bool(clusters) or (bool(gangs) and chains[0].top.ref.kind == "Pod")
        pods = sorted((member.pod for member in members), key=lambda pod: pod.ref)
        plain = _of_gang((*gangs, *clusters)[0], chains) if is_gang else _of_top(chains[0])
        control = None if is_gang else self._controllers.control_object(ways)
        annotations = with_control_annotations(plain.annotations, control)
        namespace = self._namespaces.get(plain.ref.namespace) or ObjectMeta(name=plain.ref.namespace)
        managers = (
            with_control_object(manager, control)
            for chain in sorted(ways, key=lambda chain: [item.ref for item in reversed(chain.owners)])
            for manager in self._controllers.managers_of(chain)
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
            claim_templates=tuple(_claim_templates(members, self._dra, plain.ref.uid)),
            owned=_owned(members, is_gang=is_gang),
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


def _claim_templates(members: Sequence[_Member], dra: DraState, uid: str) -> Iterator[ClaimTemplate]:
    """The templates of its pods' claims for GPUs, by name."""
    requests: dict[ClaimKey, frozenset[str]] = {}
    for member in members:
        namespace = member.pod.ref.namespace
        for template, name in member.source.templates:
            claim = dra.claims.get((namespace, name))
            if claim is not None and claim.requests:
                key = (namespace, template)
                requests[key] = requests.get(key, frozenset()) | claim.requests
    for key in sorted(requests):
        if key in dra.templates:
            yield template_of(dra.templates[key], requests[key], workload=uid)


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
        status=top.status,
    )


def _owned(members: Sequence[_Member], *, is_gang: bool) -> tuple[ObjectRef, ...]:
    """The objects that were read between a top and its pods; of a gang, all that own its pods."""
    every = (one for member in members for one in member.chain.owners[: None if is_gang else -1])
    return tuple(sorted({one.ref for one in every if (is_gang or one.is_read) and one.ref.kind != "Pod"}))


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
