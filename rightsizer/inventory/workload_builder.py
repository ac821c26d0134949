"""API objects → the fleet: the workloads that hold GPUs, nodes, PriorityClasses. `read` asks, `assemble` is pure.

A pod belongs to the topmost controller that its owner references lead to; a controller of a kind that we do not know
ends the walk, and is named as what it is. Pods of one gang are one workload, whoever owns them.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.changes.records import came_back_after, changes_of, remembered
from rightsizer.inventory.claims import Claim
from rightsizer.inventory.cluster_reader import read, read_classes, read_priority_classes
from rightsizer.inventory.cluster_state import REMEMBERING, Objects
from rightsizer.inventory.gangs import joined, merged
from rightsizer.inventory.managers import Scaler, managers_of
from rightsizer.inventory.pods import Seen
from rightsizer.inventory.scale_targets import Levers, Target, through, with_notes
from rightsizer.inventory.stranded_gpus import stranded, wanting
from rightsizer.kube.api_objects import DisruptionBudget, ObjectMeta
from rightsizer.kube.owner_kinds import ObjectSummary, OwnerChain, object_key, owner_chain, owner_kind
from rightsizer.model import Fleet, ObjectRef, PastChange, Pod, Workload

__all__ = ["Objects", "assemble", "read", "read_classes", "read_priority_classes"]


def assemble(objects: Objects) -> Fleet:
    """The fleet: every GPU pod in exactly one workload, everything in a stable order."""
    members = _members(objects)
    makers = _Makers(objects)
    groups = joined((object_key(member.line.top), member.seen.gangs) for member in members)
    by_top: dict[str, list[_Member]] = collections.defaultdict(list)
    for member in members:
        by_top[object_key(member.line.top)].append(member)
    workloads = [makers.workload([one for top in tops for one in by_top[top]]) for tops in groups]
    pods = [member.pod for member in members]
    scaling = [scaler.lever for scaler in objects.scalers if scaler.lever is not None]
    bare = [member.line.top for member in members if member.line.top.ref.kind == "Pod"]
    changed = [*objects.controllers.values(), *objects.queued, *scaling, *bare]
    changes, unreadable = changes_of(changed, objects.evictions, pods)
    return Fleet(
        workloads=tuple(sorted(workloads, key=lambda workload: workload.ref)),
        nodes=objects.nodes,
        classes=objects.priority_classes,
        changes=tuple(changes),
        stranded=stranded(objects.nodes, objects.rooms, objects.waiting),
        waiting=wanting(objects.nodes, objects.rooms, objects.waiting),
        spare={name: room.spare for name, room in objects.rooms.items()},
        quotas=objects.quotas,
        problems=(*objects.problems, *unreadable),
        minor=objects.minor,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """A GPU pod on its place."""

    seen: Seen
    pod: Pod
    line: OwnerChain


def _members(objects: Objects) -> list[_Member]:
    lines: dict[str, OwnerChain] = {}
    found = []
    for seen in objects.pods:
        pod = _completed(seen, objects)
        if pod is not None:
            found.append(_Member(seen, pod, _line(seen, lines, objects.controllers)))
    return found


def _line(seen: Seen, lines: dict[str, OwnerChain], controllers: Mapping[str, ObjectSummary]) -> OwnerChain:
    """The way up from a pod, walked once for all pods of one owner."""
    ref, owner = seen.pod.ref, seen.owner
    if owner is None:
        top = ObjectSummary(
            ref, seen.metadata or ObjectMeta(name=ref.name, namespace=ref.namespace, uid=ref.uid)
        )
        return OwnerChain(top, (top,))
    key = f"{ref.namespace}/{owner.group}/{owner.kind}/{owner.name}/{owner.uid}"
    if key not in lines:
        lines[key] = owner_chain(owner, ref.namespace, controllers)
    return lines[key]


def _completed(seen: Seen, objects: Objects) -> Pod | None:
    """A pod with what its claims and its node say; None where it turns out to have no GPUs."""
    pod = seen.pod
    devices: dict[str, int] = {}
    is_shared, unreadable = pod.is_shared, list(pod.unreadable)
    for name in seen.claims:
        claim = objects.claims.get((pod.ref.namespace, name), _unknown(name))
        for key, count in claim.devices.items():
            devices[key] = devices.get(key, 0) + count
        is_shared = is_shared or (bool(claim.devices) and claim.is_shared)
        unreadable += claim.unreadable
    node = objects.nodes.get(pod.node)
    is_shared = is_shared or bool(node and node.sharing)
    if not (devices or pod.devices or unreadable):
        return None
    if not seen.claims and is_shared == pod.is_shared:
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


class _Makers:
    """What workloads are made of, looked up rather than searched."""

    def __init__(self, objects: Objects) -> None:
        self._namespaces = objects.namespaces
        self._scalers: dict[Target, list[Scaler]] = {}
        for scaler in objects.scalers:
            self._scalers.setdefault(scaler.target, []).append(scaler)
        self._levers = Levers(
            objects.queued, [(one.target, one.lever) for one in objects.scalers if one.lever is not None]
        )
        self._budgets = _BudgetIndex(objects.budgets)
        self._made: dict[str, list[ObjectSummary]] = {}
        for one in objects.controllers.values():
            if (starter := _starter(one)) and REMEMBERING & (one.metadata.annotations or {}).keys():
                self._made.setdefault(starter, []).append(one)

    def workload(self, members: Sequence[_Member]) -> Workload:
        """One workload of the pods given, all of one top or of one gang."""
        tops = {object_key(member.line.top): member.line for member in members}
        lines = sorted(tops.values(), key=lambda line: line.top.ref)
        gangs = sorted({gang for member in members for gang in member.seen.gangs})
        is_gang = bool(gangs) and (len(lines) > 1 or lines[0].top.ref.kind == "Pod")
        pods = sorted((member.pod for member in members), key=lambda pod: pod.ref)
        plain = _of_gang(gangs[0], lines) if is_gang else _of_top(lines[0])
        lever = None if is_gang else self._levers.of(lines[0])
        annotations = with_notes(plain.annotations, lever)
        namespace = self._namespaces.get(plain.ref.namespace) or ObjectMeta(name=plain.ref.namespace)
        return dataclasses.replace(
            plain,
            pods=tuple(pods),
            annotations=annotations,
            lever=lever.ref if lever else None,
            came_back_after=came_back_after(annotations, [pod.created for pod in pods]),
            past=self._past(lines, annotations, pods),
            namespace_annotations=namespace.annotations or {},
            namespace_labels=namespace.labels or {},
            budgets=self._budgets.covering(pods),
            managers=tuple(
                dict.fromkeys(
                    through(manager, lever) for line in lines for manager in managers_of(line, self._scalers)
                )
            ),
        )

    def _past(
        self, lines: Sequence[OwnerChain], annotations: Mapping[str, str], pods: Sequence[Pod]
    ) -> tuple[PastChange, ...]:
        """What we did to the tops, or to the lever of the one, and to what else their CronJobs have made."""
        began = [pod.created for pod in pods if not pod.is_terminating]
        notes_of_tops = (line.top.metadata.annotations or {} for line in lines)
        every = notes_of_tops if len(lines) > 1 else [annotations]
        own = [change for each in every for change in remembered(each, began)]
        uids = {line.top.ref.uid for line in lines}
        starters = {starter for line in lines if (starter := _starter(line.top))}
        others = [one for starter in sorted(starters) for one in self._made.get(starter, ())]
        notes = (one.metadata.annotations or {} for one in others if one.ref.uid not in uids)
        past = [*own, *(change for annotations in notes for change in remembered(annotations))]
        return tuple(sorted(past, key=lambda change: change.at.timestamp() if change.at else math.inf))


def _starter(one: ObjectSummary) -> str:
    """The CronJob or the like that made an object, which makes the next when this one was stopped; empty otherwise."""
    above = one.metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    return above.uid if above is not None and row is not None and row.starts_others else ""


def _of_top(line: OwnerChain) -> Workload:
    top, metadata = line.top, line.top.metadata
    maker = line.starter
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
        starter=ObjectRef(maker.api_version, maker.kind, top.ref.namespace, maker.name, maker.uid)
        if maker
        else None,
        scalable=top.scalable,
        spec=top.spec,
    )


def _of_gang(gang: ObjectRef, lines: Sequence[OwnerChain]) -> Workload:
    """What no one object stands for: advised on, since stopping one member would leave the others waiting."""
    of_members = [_of_top(line) for line in lines]
    created = [one.created for one in of_members if one.created is not None]
    return Workload(
        ref=gang,
        generation=0,
        resource_version="",
        pods=(),
        size=None,
        labels=merged(one.labels for one in of_members),
        annotations=merged(one.annotations for one in of_members),
        namespace_annotations={},
        budgets={},
        is_terminating=any(one.is_terminating for one in of_members),
        created=min(created, default=None),
        gang=f"{gang.kind} {gang.namespace}/{gang.name}",
    )


class _BudgetIndex:
    """PodDisruptionBudgets by namespace and by one label that they want, so that few are compared with each pod."""

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
        """Those that cover any of the pods of one namespace, by name, with the disruptions that they allow now."""
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
