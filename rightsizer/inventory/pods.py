"""Pods as they are read: of those with GPUs what is needed, of all others what they take of their nodes. Pure."""

import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence

import msgspec

from rightsizer.inventory.claims import claims_of
from rightsizer.inventory.gangs import gangs_of
from rightsizer.inventory.resources import FRACTIONS, Asked, ResourceTable, lasting_containers
from rightsizer.inventory.stranded_gpus import Waiting, is_waiting, waiting_of
from rightsizer.kube.api_objects import (
    Container,
    ContainerStatus,
    ObjectMeta,
    OwnerReference,
    PodObject,
    PodSpec,
)
from rightsizer.kube.quantity import parse_quantity
from rightsizer.model import ObjectRef, Pod

_SCALES = {"cpu": 1000, "memory": 1}


def needs_of(spec: PodSpec) -> dict[str, int]:
    """CPU in thousandths of a core, memory in bytes, and one of "pods"."""
    needs = {"pods": 1}
    whole = (spec.resources.requests if spec.resources else None) or {}
    for name in _SCALES:
        amount = whole.get(name)
        need = _requested(spec, name) if amount is None else amount_of(name, amount)
        needs[name] = need + amount_of(name, (spec.overhead or {}).get(name))
    return needs


def room_of(allocatable: Mapping[str, str | int]) -> dict[str, int]:
    """What a node has, in the same units."""
    return {
        name: amount_of(name, allocatable[name]) for name in ("cpu", "memory", "pods") if name in allocatable
    }


@functools.lru_cache(maxsize=8192)
def amount_of(name: str, amount: str | int | None) -> int:
    """A quantity in the unit that its resource is counted in here, rounded up; what cannot be read counts as none."""
    if amount is None:
        return 0
    try:
        return math.ceil(parse_quantity(amount) * _SCALES.get(name, 1))
    except ValueError:
        return 0


def _requested(spec: PodSpec, name: str) -> int:
    """The most at any one time: an init container runs beside the sidecars before it, the others beside all."""
    sidecars, most = 0, 0
    for one in spec.init_containers or ():
        need = _request(one, name)
        if one.restart_policy == "Always":
            sidecars += need
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + need)
    return max(most, sidecars + sum([_request(one, name) for one in spec.containers]))


def _request(one: Container, name: str) -> int:
    requests = one.resources.requests
    return amount_of(name, requests[name]) if requests and name in requests else 0


OOM_KILLED = "OOMKilled"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LONGEST_KEPT = 256
"""Longer values of pods' annotations are cut: some hold whole documents, none of which we read."""

PLACEHOLDERS = frozenset({"kai-resource-reservation", "runai-reservation"})
"""Namespaces of pods that hold a whole GPU for others that ask for a part of it (KAI, Run:ai); those are judged."""

_MOST_SHAPES = 20_000

_ENDED = frozenset({"Succeeded", "Failed"})


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A pod that asks for GPUs, as far as itself goes; what its claims and its node add is not in `pod` yet.

    Attributes:
        owner: The controller that it names.
        metadata: Its own, where it has no owner.
        claims: Names of the ResourceClaims that it uses.
    """

    pod: Pod
    owner: OwnerReference | None
    metadata: ObjectMeta | None
    gangs: tuple[ObjectRef, ...] = ()
    claims: tuple[str, ...] = ()


class PodTable:
    """Everything of a cluster's pods that is needed, gathered page by page.

    Attributes:
        seen: Those that ask for GPUs, or for claims that may be for GPUs, and have not ended.
        waiting: Those for which the scheduler found no place.
        requested: What all pods on a node ask for together, by node and resource.
        problems: What could not be read, in words.
    """

    def __init__(self, resources: ResourceTable) -> None:
        self._resources = resources
        self._shapes: dict[Hashable, tuple[Asked, dict[str, int]]] = {}
        self._owners: dict[tuple[str, str], OwnerReference] = {}
        self.seen: list[Seen] = []
        self.waiting: list[Waiting] = []
        self.requested: dict[str, dict[str, int]] = {}
        self.problems: list[str] = []

    def add(self, items: Sequence[PodObject]) -> None:
        """Take a page of pods."""
        for item in items:
            if item.status.phase in _ENDED:
                continue
            asked, needs = self._shape(item)
            if item.spec.node_name:
                self._count(item.spec.node_name, needs, asked)
            claims = claims_of(item)
            if (asked or claims) and item.metadata.namespace not in PLACEHOLDERS:
                self.seen.append(self._seen(item, asked, needs, claims))
                if is_waiting(item):
                    self._wait(item, asked, needs)

    def _shape(self, item: PodObject) -> tuple[Asked, dict[str, int]]:
        """What a pod asks for; a hundred thousand pods ask for few different things, so each is worked out once."""
        spec = item.spec
        if (
            spec.resources
            or spec.overhead
            or any(mark in (item.metadata.annotations or ()) for mark in FRACTIONS)
        ):
            return self._resources.asked_by(item), needs_of(spec)
        key = (
            *((one.name, one.restart_policy, _flat(one)) for one in spec.containers),
            None,
            *((one.name, one.restart_policy, _flat(one)) for one in spec.init_containers or ()),
        )
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            known = self._shapes[key] = (self._resources.asked_by(item), needs_of(spec))
        return known

    def _count(self, node: str, needs: Mapping[str, int], asked: Asked) -> None:
        total = self.requested.setdefault(node, {})
        for name, amount in needs.items():
            total[name] = total.get(name, 0) + amount
        for name, amount in asked.amounts.items():
            total[name] = total.get(name, 0) + amount

    def _wait(self, item: PodObject, asked: Asked, needs: Mapping[str, int]) -> None:
        ref = ref_of("v1", "Pod", item.metadata)
        try:
            self.waiting.append(waiting_of(item, ref, asked.amounts, needs))
        except msgspec.DecodeError as error:
            self.problems.append(f"{ref}: what keeps it from nodes cannot be read: {error}")

    def _seen(self, item: PodObject, asked: Asked, needs: Mapping[str, int], claims: tuple[str, ...]) -> Seen:
        owner = item.metadata.controller
        if owner is not None:
            owner = self._owners.setdefault((owner.uid, owner.name), owner)
        return Seen(
            pod=pod_of(item, asked, needs),
            owner=owner,
            metadata=item.metadata if owner is None else None,
            gangs=gangs_of(item),
            claims=claims,
        )


def _flat(one: Container) -> Hashable:
    resources = one.resources
    return tuple((resources.limits or {}).items()), tuple((resources.requests or {}).items())


def pod_of(item: PodObject, asked: Asked, needs: Mapping[str, int]) -> Pod:
    """A pod's record, as far as itself goes."""
    metadata, spec, status = item.metadata, item.spec, item.status
    ready = [one.status for one in status.conditions or () if one.type == "Ready"]
    started, restarts, waiting = _running(item, asked)
    ended, ended_at = _last_end(item, asked)
    return Pod(
        ref=ref_of("v1", "Pod", metadata),
        node=sys.intern(spec.node_name),
        phase=sys.intern(status.phase or "Pending"),
        devices=sum(asked.devices.values()),
        is_shared=asked.is_shared,
        started=started,
        priority_class=sys.intern(spec.priority_class_name),
        priority=spec.priority,
        is_ready=ready == ["True"],
        is_terminating=metadata.deletion_timestamp is not None,
        is_static=MIRROR_ANNOTATION in (metadata.annotations or {}),
        labels=interned(metadata.labels),
        annotations=kept_annotations(metadata.annotations),
        unreadable=asked.unreadable,
        resources=asked.amounts,
        needs=needs,
        created=metadata.creation_timestamp,
        restarts=restarts,
        waiting=waiting,
        ended=ended,
        ended_at=ended_at,
    )


def _running(item: PodObject, asked: Asked) -> tuple[datetime.datetime | None, int, str]:
    """When the last of its GPU containers started, how often they restarted, and why one of them does not run.

    A restart makes a pod young again. Where it is not known which containers have the GPUs, all count.
    """
    starts: list[datetime.datetime | None] = []
    restarts, waiting = 0, ""
    for one in _statuses(item, asked):
        running = one.state.running if one else None
        starts.append(running.started_at if running else None)
        if one is not None:
            restarts += one.restart_count
            ended = one.state.waiting or one.state.terminated
            waiting = max(waiting, ended.reason if ended else "")
    known = [start for start in starts if start is not None]
    started = max(known, default=None) if len(known) == len(starts) else None
    return started, restarts, waiting


def _statuses(item: PodObject, asked: Asked) -> Iterator[ContainerStatus | None]:
    """Of those of its containers that have GPUs; None of one that has no status yet."""
    status = item.status
    statuses = {
        one.name: one for one in (*(status.container_statuses or ()), *(status.init_container_statuses or ()))
    }
    lasting = lasting_containers(item)
    claiming = {one.name for one in lasting if one.resources.claims}
    for name in asked.containers | claiming or {one.name for one in lasting}:
        yield statuses.get(name)


def _last_end(item: PodObject, asked: Asked) -> tuple[str, datetime.datetime | None]:
    """Why and when one of them last ended: lack of memory, where that was the reason of any."""
    states = [
        state for one in _statuses(item, asked) if one for state in (one.state, one.last_state) if state
    ]
    ends = [state.terminated for state in states if state.terminated and state.terminated.finished_at]
    last = max(ends, key=lambda end: (end.reason == OOM_KILLED, str(end.finished_at)), default=None)
    return (last.reason, last.finished_at) if last else ("", None)


def kept_annotations(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """A pod's annotations without what is long; a value that is cut reads as none."""
    return {
        sys.intern(key): value if len(value) <= LONGEST_KEPT else f"{value[:LONGEST_KEPT]}..."
        for key, value in (annotations or {}).items()
        if key != LAST_APPLIED
    }


def interned(labels: Mapping[str, str] | None) -> dict[str, str]:
    """Labels, of which a hundred thousand pods have few different ones."""
    return {sys.intern(key): sys.intern(value) for key, value in (labels or {}).items()}


def ref_of(api_version: str, kind: str, metadata: ObjectMeta) -> ObjectRef:
    """What refers to an object."""
    return ObjectRef(api_version, kind, sys.intern(metadata.namespace), metadata.name, metadata.uid)
