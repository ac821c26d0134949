"""Everything of the API server that a plan is made from, whether it was read over the wire or from a file. Pure."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rightsizer.changes.object_history import HISTORY_ANNOTATION
from rightsizer.changes.records import UNDO_ANNOTATION
from rightsizer.inventory.claims import Claim
from rightsizer.inventory.managers import Scaler, field_writers
from rightsizer.inventory.nodes import NodeObject, has_gpus, node_of
from rightsizer.inventory.pods import LAST_APPLIED, Seen, interned, ref_of, room_of
from rightsizer.inventory.resources import ResourceTable
from rightsizer.inventory.stranded_gpus import Room, Waiting
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    ObjectMeta,
    OwnerObject,
    PriorityClassObject,
    QuotaObject,
)
from rightsizer.kube.owner_kinds import ObjectSummary, OwnerKind, object_key, owner_kind
from rightsizer.kube.quantity import parse_quantity
from rightsizer.model import Node, PriorityClass, Quota


@dataclasses.dataclass(frozen=True, slots=True)
class Objects:
    """What was read, reduced to what is needed.

    Attributes:
        controllers: Owners of the pods and whatever carries a record of ours, by `owners.key_of`.
        namespaces: Their metadata, by name.
        claims: By namespace and name.
        rooms: Of nodes, by name: what they have besides GPUs, and what all pods ask of them.
        queued: Kueue's Workloads.
        evictions: Bare pods that we evicted: the metadata of what keeps their manifests.
        problems: What could not be read, or is not there where it should be, in words.
        minor: The API server is of Kubernetes 1.minor; None where that was not asked, or is not known.
    """

    pods: tuple[Seen, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    controllers: Mapping[str, ObjectSummary] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    rooms: Mapping[str, Room] = dataclasses.field(default_factory=dict)
    namespaces: Mapping[str, ObjectMeta] = dataclasses.field(default_factory=dict)
    budgets: tuple[DisruptionBudget, ...] = ()
    priority_classes: Mapping[str, PriorityClass] = dataclasses.field(default_factory=dict)
    claims: Mapping[tuple[str, str], Claim] = dataclasses.field(default_factory=dict)
    scalers: tuple[Scaler, ...] = ()
    queued: tuple[ObjectSummary, ...] = ()
    quotas: tuple[Quota, ...] = ()
    evictions: tuple[ObjectMeta, ...] = ()
    problems: tuple[str, ...] = ()
    minor: int | None = None


class NodeTable:
    """Nodes, gathered page by page.

    Args:
        resources: Which resources are GPUs.
        named: Nodes that GPU pods are on, which are kept also where they seem to have none.
    """

    def __init__(self, resources: ResourceTable, named: frozenset[str]) -> None:
        self._resources = resources
        self._named = named
        self.nodes: dict[str, Node] = {}
        self.rooms: dict[str, Mapping[str, int]] = {}

    def add(self, items: Sequence[NodeObject]) -> None:
        """Take a page of nodes."""
        for item in items:
            name = item.metadata.name
            if name in self._named or has_gpus(item, self._resources):
                node = node_of(item, self._resources)
                self.nodes[name] = dataclasses.replace(node, labels=interned(node.labels))
                self.rooms[name] = room_of(item.status.allocatable or {})

    def with_requests(self, requested: Mapping[str, Mapping[str, int]]) -> dict[str, Room]:
        """What the nodes have, beside what their pods ask of them."""
        return {name: Room(offered, requested.get(name, {})) for name, offered in self.rooms.items()}


REMEMBERING = frozenset({UNDO_ANNOTATION, HISTORY_ANNOTATION})
"""What carries one of these was changed by us, and counts also without pods."""


class ControllerTable:
    """Objects of one kind that own pods, gathered page by page.

    Args:
        row: Their kind.
        version: Of the API, as they are read.
        keeps: Which to keep, by key; what carries a record of ours is kept anyway.
    """

    def __init__(self, row: OwnerKind, version: str, keeps: Callable[[str], bool]) -> None:
        self._row = row
        self._api_version = f"{row.group}/{version}" if row.group else version
        self._keeps = keeps
        self.found: dict[str, ObjectSummary] = {}

    def add(self, items: Sequence[OwnerObject]) -> None:
        """Take a page of objects."""
        for item in items:
            one = ObjectSummary(ref_of(self._api_version, self._row.kind, item.metadata), item.metadata)
            key = object_key(one)
            if REMEMBERING & (item.metadata.annotations or {}).keys() or self._keeps(key):
                annotations = dict(item.metadata.annotations or {})
                annotations.pop(LAST_APPLIED, None)
                item.metadata.annotations = annotations
                is_top = _may_be_top(item.metadata)
                fields, item.metadata.managed_fields = item.metadata.managed_fields or (), None
                self.found[key] = dataclasses.replace(
                    one,
                    size=size_of(item, self._row.size),
                    spec=bytes(item.spec) if is_top else b"",
                    written_by=field_writers(fields, self._row.size) if is_top else (),
                )


def _may_be_top(metadata: ObjectMeta) -> bool:
    """Whether nothing owns it but what only starts it, such as a CronJob: of others the owner is acted upon."""
    above = metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    return above is None or (row is not None and row.starts_others)


def size_of(item: OwnerObject, path: tuple[str, ...]) -> int | bool | None:
    """The number or switch at a path of an object; None where there is none."""
    if not path:
        return None
    here: object = msgspec.json.decode(item.spec)
    for part in path[1:]:
        here = here.get(part) if isinstance(here, dict) else None
    return here if isinstance(here, int) else None


def class_of(item: PriorityClassObject) -> PriorityClass:
    """A PriorityClass's record."""
    annotations = item.metadata.annotations or {}
    return PriorityClass(item.metadata.name, item.value, annotations)


def quotas_of(item: QuotaObject, resources: ResourceTable) -> list[Quota]:
    """What a ResourceQuota says of GPUs."""
    status, namespace, name = item.status, item.metadata.namespace, item.metadata.name
    found = []
    for key, amount in sorted((status.hard or {}).items()):
        resource = key.removeprefix("requests.")
        if resources.means(resource) is not None:
            used = (status.used or {}).get(key, 0)
            found.append(Quota(namespace, name, resource, _whole(amount), _whole(used)))
    return found


@functools.lru_cache(maxsize=1024)
def _whole(amount: str | int) -> int:
    try:
        return int(parse_quantity(amount))
    except ValueError:
        return 0


def by_name(items: Iterable[ObjectMeta]) -> dict[str, ObjectMeta]:
    """Objects of the cluster's own scope."""
    return {item.name: item for item in items}
