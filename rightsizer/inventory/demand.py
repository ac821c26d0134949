"""Demand for GPUs in addition to pods that the scheduler cannot place, as gangs and pods. Pure.

A pod that exists was admitted by the API server, with its PriorityClass. A template was not: anybody who may write such
an object may name any class. So a class only counts where the API server admitted a pod of it in the same namespace, or
a ResourceQuota grants it; the priority in the object itself never counts, and ResourceQuotas limit what counts.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rightsizer.inventory.demand_kinds import (
    NO_QUEUES,
    JobObject,
    NamedQueues,
    Queued,
    Template,
    queued_group,
    queued_job,
    queued_workload,
    template_owner,
)
from rightsizer.inventory.dra_state import Asked, DraState, UnknownClaimError, with_claims
from rightsizer.inventory.gpu_requests import CLASS_QUOTA, ResourceTable, amount_of
from rightsizer.inventory.kueue_queues import (
    KueueTable,
    PodTemplate,
    Queues,
    options_of,
    quota_requests,
    quotas_of_queues,
)
from rightsizer.inventory.obstacles import Volumes, with_volumes
from rightsizer.inventory.pod_groups import (
    GroupKey,
    GroupKind,
    GroupObject,
    PodGroup,
    VolcanoQueue,
    group_key,
    read_group,
    volcano_pool,
    volcano_quotas,
)
from rightsizer.inventory.pods import PodTable, needs_of
from rightsizer.inventory.unschedulable_pods import UnschedulablePod, unschedulable_pod
from rightsizer.kube.api_objects import ObjectMeta, PodObject, QuotaObject
from rightsizer.model import (
    ClaimKey,
    Gang,
    Node,
    ObjectRef,
    PriorityClass,
    QueueOption,
    QueueQuotas,
    Quota,
    QuotaKey,
    Unserved,
)

MAX_PODS = 1024
"""Pods of one object that waits: no gang is larger, and a forged one takes no memory."""

MAX_TEMPLATE_PODS = 4 * MAX_PODS
"""Pods of a namespace that do not exist yet: no tenant makes plans slow with thousands of objects."""


class Members(NamedTuple):
    """Pods of a gang that have not ended.

    Attributes:
        bound: Those that have a node.
        others: Those without, that ask for no GPUs.
    """

    total: int = 0
    bound: int = 0
    others: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DemandState:
    """Gangs and queued objects: demand in addition to unschedulable pods.

    Attributes:
        groups: The gangs that pods name, as their objects describe them.
        members: Pods of gangs.
        queued: Objects that wait.
        queues: Kueue's.
        quotas: Of queues.
        granted: Namespaces and PriorityClasses that the API server, or an administrator, has admitted there.
        gated: Pods by a scheduling gate that no known queue removes: an example, and their number.
    """

    groups: Mapping[GroupKey, PodGroup] = dataclasses.field(default_factory=dict)
    members: Mapping[GroupKey, Members] = dataclasses.field(default_factory=dict)
    queued: tuple[Queued, ...] = ()
    queues: Queues = dataclasses.field(default_factory=Queues)
    quotas: QueueQuotas = dataclasses.field(default_factory=QueueQuotas)
    granted: frozenset[tuple[str, str]] = frozenset()
    gated: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class DemandObjects:
    """The objects that demand is read from.

    Attributes:
        groups: PodGroups, each with its row.
        limits: Volcano's queues.
        jobs: Suspended ones, which `named` queues suspended or others.
    """

    kueue: KueueTable
    queues: Queues
    groups: Sequence[tuple[GroupKind, GroupObject]]
    limits: Sequence[VolcanoQueue]
    quotas: Sequence[QuotaObject]
    jobs: Sequence[JobObject] = ()
    named: NamedQueues = NO_QUEUES


def demand_state(
    objects: DemandObjects,
    pods: PodTable,
    resources: ResourceTable,
    templates_of: Callable[[Sequence[GroupObject]], Mapping[str, tuple[Template, ...]]],
) -> DemandState:
    """Demand in addition to unschedulable pods; `templates_of` PodGroups are those known, by owner."""
    groups: dict[GroupKey, PodGroup] = {}
    queued = [queued_workload(one, objects.kueue.version, objects.queues) for one in objects.kueue.waiting]
    queued += [queued_job(one, objects.named.jobs) for one in objects.jobs]
    held_back: list[tuple[GroupObject, PodGroup]] = []
    for row, item in objects.groups:
        key = (row.of.group, row.of.kind, item.metadata.namespace, item.metadata.name)
        group = groups[key] = read_group(row, item)
        if group.holds_back and key not in pods.members:
            held_back.append((item, group))
    templates = templates_of([item for item, _ in held_back])
    queued += [queued_group(item, group, templates.get(template_owner(item))) for item, group in held_back]
    quotas = quotas_of_queues(objects.queues, objects.kueue.admitted)
    return DemandState(
        groups,
        {key: Members(*counts) for key, counts in pods.members.items()},
        tuple(queued),
        objects.queues,
        dataclasses.replace(quotas, free={**quotas.free, **volcano_quotas(objects.limits, resources)}),
        frozenset(pods.classes).union(granted_classes(objects.quotas)),
        pods.gated,
    )


def asked_of_dra(
    pods: PodTable,
    unschedulable: Iterable[UnschedulablePod],
    state: DemandState,
    resources: ResourceTable,
) -> Asked:
    """Claims and resources that pods ask of DRA: GPU pods, unschedulable pods, and those that queues hold back."""
    used: dict[ClaimKey, frozenset[str]] = {}
    for pod in pods.gpu_pods:
        for name in pod.claims:
            key = (pod.pod.ref.namespace, name)
            used[key] = used.get(key, frozenset()) | {pod.pod.ref.uid}
    wanted, names = set[ClaimKey](), set[str]()
    for one in unschedulable:
        wanted |= {(one.ref.namespace, name) for name in one.claim_names}
        names |= one.gpus.keys()
    templates: set[ClaimKey] = set()
    for item in state.queued:
        for each in item.templates:
            claims = _claim_names(each.pod)
            wanted |= {(item.ref.namespace, name) for name in claims.existing}
            templates |= {(item.ref.namespace, name) for name in claims.templates}
            names |= resources.request_of(_pod_of(item, each)).amounts.keys()
    return Asked(used, frozenset(wanted), frozenset(templates), frozenset(names))


class _ClaimNames(NamedTuple):
    existing: tuple[str, ...]
    templates: tuple[str, ...]


def _claim_names(template: PodTemplate) -> _ClaimNames:
    """The ResourceClaims that a pod of a template would share with others, and the templates of its own."""
    claims = template.spec.resource_claims or ()
    return _ClaimNames(
        tuple(one.resource_claim_name for one in claims if one.resource_claim_name),
        tuple(one.resource_claim_template_name for one in claims if one.resource_claim_template_name),
    )


def _pod_of(item: Queued, template: Template) -> PodObject:
    metadata = template.pod.metadata
    named = ObjectMeta(
        item.ref.name,
        item.ref.namespace,
        creation_timestamp=item.created,
        labels=metadata.labels,
        annotations=metadata.annotations,
    )
    return PodObject(named, template.pod.spec)


# --- What is granted


def granted_classes(quotas: Sequence[QuotaObject]) -> Iterator[tuple[str, str]]:
    """Namespaces and PriorityClasses that ResourceQuotas name: only administrators write these.

    None that another one, or the same, forbids: it allows nothing of what pods with GPUs request or have as a limit.
    """
    forbidden: dict[str, list[frozenset[str] | None]] = collections.defaultdict(list)
    for one in quotas:
        if any(
            _is_of_pods(name) and amount_of(name, of) <= 0 for name, of in (one.status.hard or {}).items()
        ):
            forbidden[one.metadata.namespace].append(one.classes)
    for one in quotas:
        namespace = one.metadata.namespace
        for name in one.classes or ():
            if not any(classes is None or name in classes for classes in forbidden[namespace]):
                yield namespace, name


def _is_of_pods(key: str) -> bool:
    """Whether a key of a ResourceQuota limits what pods with GPUs request, or have as a limit."""
    is_request = key.startswith(("requests.", "limits.")) and key != "requests.storage"
    return is_request or key in ("pods", "count/pods", "cpu", "memory") or key.endswith(CLASS_QUOTA)


# --- Gangs and the pods in them


class Demand(NamedTuple):
    """Pods and gangs that wait, and demand that cannot be served.

    Attributes:
        pods: Pods that exist, and those that do not yet.
        gangs: By the object that makes them one.
    """

    pods: tuple[UnschedulablePod, ...]
    gangs: Mapping[ObjectRef, Gang]
    unserved: tuple[Unserved, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """State of the cluster that templates are compared with."""

    resources: ResourceTable
    nodes: Mapping[str, Node]
    classes: Mapping[str, PriorityClass]
    quotas: Sequence[Quota]
    dra: DraState
    volumes: Volumes


class NotServedError(ValueError):
    """Freeing GPUs would not help, or it is unknown whether it would; the message is for people."""


def demand_of(pods: Sequence[UnschedulablePod], state: DemandState, around: Surroundings) -> Demand:
    """Demand that could be served by freeing GPUs, and the reasons for the rest."""
    gangs: dict[ObjectRef, Gang] = {}
    unserved = [
        Unserved(f"{example} and {number - 1} more pods" if number > 1 else example, _gate_words(gate))
        for gate, (example, number) in sorted(state.gated.items())
    ]
    found: list[UnschedulablePod] = []
    by_gang: dict[ObjectRef | None, list[UnschedulablePod]] = collections.defaultdict(list)
    for one in pods:
        by_gang[one.gang].append(one)
    for ref, members in by_gang.items():
        try:
            if ref is not None:
                gangs[ref] = _gang(ref, members, state)
            found += [one for one in members if not one.why_not]
            unserved += [Unserved(str(one.ref), one.why_not) for one in members if one.why_not]
        except NotServedError as error:
            unserved.append(Unserved(str(ref), str(error)))
    queued: list[tuple[Queued, list[_Alike]]] = []
    for item in state.queued:
        try:
            if made := _pods_of(item, state, around):
                queued.append((item, made))
        except NotServedError as error:
            unserved.append(Unserved(str(item.ref), str(error)))
    asked: collections.Counter[Quota | str] = collections.Counter()
    for item, made in sorted(queued, key=lambda each: -max(one.pod.priority or 0 for one in each[1])):
        try:
            more = _asked_of_namespace(item, made, asked, around.quotas)
            gangs[item.ref] = _gang_of(item, made, state, around)
            asked += more
            found += _listed(item, made, state)
        except NotServedError as error:
            unserved.append(Unserved(str(item.ref), str(error)))
    return Demand(tuple(found), gangs, tuple(unserved))


def _gate_words(gate: str) -> str:
    return f"what the scheduling gate {gate} waits for is unknown"


def _gang(ref: ObjectRef, pods: Sequence[UnschedulablePod], state: DemandState) -> Gang:
    """The gang of pods that exist."""
    if why_not := next(filter(None, (one.why_not for one in pods)), ""):
        raise NotServedError(why_not)
    group, members = state.groups.get(group_key(ref)), state.members.get(group_key(ref), Members())
    if group is None:
        return Gang(ref, len(pods))
    if group.why_not:
        raise NotServedError(group.why_not)
    if group.minimum is not None and members.total < group.minimum:
        raise NotServedError(f"{members.total} of its {group.minimum} pods exist")
    missing = len(pods) if group.minimum is None else group.minimum - members.bound - members.others
    asked = _sum((one.gpus, 1) for one in pods)
    return Gang(ref, max(1, missing), group.topology, _volcano_options(group.queue, asked, state))


def _sum(amounts: Iterable[tuple[Mapping[str, int], int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for each, times in amounts:
        total.update({name: amount * times for name, amount in each.items()})
    return dict(total)


def _volcano_options(queue: str, asked: Mapping[str, int], state: DemandState) -> tuple[QueueOption, ...]:
    """The limits of its queue, if it has any."""
    amounts: dict[QuotaKey, float] = {}
    for name, amount in asked.items():
        key = (volcano_pool(queue), name)
        if queue and key in state.quotas.free:
            amounts[key] = amount
    return (QueueOption(None, amounts),) if amounts else ()


class _Alike(NamedTuple):
    """Pods of one template; listed only once their number is known to be within all limits."""

    pod: UnschedulablePod
    number: int


def _pods_of(item: Queued, state: DemandState, around: Surroundings) -> list[_Alike]:
    """The pods with GPUs that an object would have."""
    found: list[_Alike] = []
    if any(one.replicas < 0 for one in item.templates):
        raise NotServedError("it asks for a negative number of pods")
    if sum(one.replicas for one in item.templates) > MAX_PODS:
        raise NotServedError(f"it asks for more than {MAX_PODS} pods")
    for one in item.templates:
        if one.replicas > 0 and _asks_for_gpus(item, one, around):
            name = one.pod.spec.priority_class_name or one.default_class
            granted = _class_of(item.ref.namespace, name, state, around.classes)
            made = _pod_to_be(item, one, around)
            made = dataclasses.replace(made, priority=granted.value, priority_class=granted.name)
            found.append(_Alike(made, one.replicas))
    if item.why_not and (found or not item.templates):
        raise NotServedError(item.why_not)
    return found


def _asks_for_gpus(item: Queued, template: Template, around: Surroundings) -> bool:
    """Whether its pods ask for GPUs, or may."""
    wanted = around.dra.wanted(item.ref.namespace, *_claim_names(template.pod)).values()
    amounts = around.resources.request_of(_pod_of(item, template)).amounts
    return bool(amounts) or any(one.is_of_gpus for one in wanted)


def _pod_to_be(item: Queued, template: Template, around: Surroundings) -> UnschedulablePod:
    """A pod as it would wait for the scheduler, without its priority."""
    pod, claims = _pod_of(item, template), _claim_names(template.pod)
    amounts, needs = around.resources.request_of(pod).amounts, needs_of(pod, around.resources)
    if min(needs.values()) < 0:
        raise NotServedError("it asks for a negative amount of CPU or memory")
    try:
        made = unschedulable_pod(pod, item.ref, amounts, needs, item.ref, claims.existing)
        made = with_claims(dataclasses.replace(made, template_names=claims.templates), around.dra)
    except msgspec.DecodeError as error:
        raise NotServedError(f"its tolerations or affinity cannot be read: {error}") from error
    except UnknownClaimError as error:
        raise NotServedError(str(error)) from error
    made = with_volumes(made, around.volumes)
    if made.why_not:
        raise NotServedError(made.why_not)
    return made


def _asked_of_namespace(
    item: Queued, pods: Sequence[_Alike], before: Mapping[Quota | str, int], quotas: Iterable[Quota]
) -> collections.Counter[Quota | str]:
    """Shares of each ResourceQuota and of their namespace that new pods take, as others `before` do.

    Pods that exist are within quotas already, however many of them wait.
    """
    total = sum(one.number for one in pods)
    found: collections.Counter[Quota | str] = collections.Counter({item.ref.namespace: total})
    if before.get(item.ref.namespace, 0) + total > MAX_TEMPLATE_PODS:
        raise NotServedError(
            f"its namespace asks for more than {MAX_TEMPLATE_PODS} pods that do not exist yet"
        )
    for quota in quotas:
        if quota.namespace != item.ref.namespace:
            continue
        counted = [one for one in pods if quota.counts(one.pod.priority_class)]
        amount = sum(
            number * pod.gpus.get(quota.resource, pod.needs.get(quota.resource, 0)) for pod, number in counted
        )
        left = max(0, quota.hard - quota.used - before.get(quota, 0))
        if amount > left:
            unit = "m" if quota.resource == "cpu" else ""
            raise NotServedError(f"ResourceQuota {quota.name} leaves {left}{unit} of {quota.resource}")
        found[quota] = amount
    return found


def _gang_of(item: Queued, pods: Sequence[_Alike], state: DemandState, around: Surroundings) -> Gang:
    """The gang of pods that do not exist yet."""
    gpus = _sum((pod.gpus, number) for pod, number in pods)
    options = _volcano_options(item.queue, gpus, state)
    queue = state.queues.of(item.kueue) if item.kueue is not None else None
    if queue is not None:
        needs = _sum((needs_of(_pod_of(item, one), around.resources), one.replicas) for one in item.templates)
        asked = quota_requests(item.kueue) if item.kueue is not None else {}
        if not asked and any(one.pod.claims for one in pods):
            raise NotServedError("Kueue has not told what quota its ResourceClaims take")
        asked = asked or {name: float(amount) for name, amount in {**needs, **gpus}.items()}
        covered = {name for name in asked if name not in needs}
        options = options_of(
            queue, state.queues, asked, around.nodes, gpus=covered, tolerations=pods[0].pod.tolerations
        )
        if not options:
            raise NotServedError(f"ClusterQueue {queue.metadata.name} has no flavor for its GPUs")
    return Gang(item.ref, sum(one.number for one in pods), item.topology, options)


def _listed(item: Queued, pods: Iterable[_Alike], state: DemandState) -> Iterator[UnschedulablePod]:
    """The pods one by one, with all tolerations that Kueue's flavors give: which they get is up to the option."""
    flavors = state.queues.flavors.values() if item.kueue else ()
    given = tuple(one for flavor in flavors for one in flavor.spec.tolerations or ())
    for pod, number in pods:
        yield from [dataclasses.replace(pod, tolerations=(*pod.tolerations, *given))] * number


def _class_of(
    namespace: str, name: str, state: DemandState, classes: Mapping[str, PriorityClass]
) -> PriorityClass:
    """The PriorityClass that a pod of this namespace would get."""
    if not name:
        return next((one for one in classes.values() if one.is_default), PriorityClass("", 0))
    if name not in classes:
        raise NotServedError(f"PriorityClass {name} does not exist")
    if not classes[name].is_default and (namespace, name) not in state.granted:
        raise NotServedError(
            f"no pod of its namespace has had PriorityClass {name}, and no ResourceQuota there grants it: "
            "whether it may have it is unknown"
        )
    return classes[name]
