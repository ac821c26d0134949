"""GPUs that are free on a node that cannot take the pods which wait for them, and why not. Pure.

What the scheduler weighs besides (volumes, topology, other pods, its plug-ins) is not judged here, and said so.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.inventory.nodes import UNKEPT
from rightsizer.inventory.resources import CLASS_PREFIX
from rightsizer.kube.api_objects import LabelSelectorRequirement, PodObject
from rightsizer.model import Node, ObjectRef, Stranded, WaitingPod

LOOKED_AT = 20
"""Of each resource so many kinds of waiting pods are compared with the nodes, those that most pods are of."""
NAMED = 3
"""So many waiting pods stand in a record by name."""

_WORDS = {"cpu": "CPU cores", "memory": "GiB of memory", "pods": "places for pods"}
_UNITS = {"cpu": 1000, "memory": 1 << 30, "pods": 1}


class Toleration(msgspec.Struct, frozen=True):
    """corev1.Toleration."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[LabelSelectorRequirement] | None = None
    match_fields: list[LabelSelectorRequirement] | None = None


class _NodeSelector(msgspec.Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class _Affinity(msgspec.Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that the scheduler found no place for.

    Attributes:
        gpus: What it asks for, by resource name.
        needs: CPU in thousandths of a core, memory in bytes, one of "pods".
        selector: Labels that its node must have.
        terms: Its node affinity: of these at least one must hold; None where it has none.
        priority: As admitted into its spec; None where the API server resolved none.
    """

    ref: ObjectRef
    gpus: Mapping[str, int]
    needs: Mapping[str, int]
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    terms: (
        tuple[tuple[tuple[LabelSelectorRequirement, ...], tuple[LabelSelectorRequirement, ...]], ...] | None
    )
    priority: int | None = None
    priority_class: str = ""

    @property
    def shape(self) -> str:
        """The same for pods that fit where this one fits."""
        parts = (self.gpus, self.needs, self.selector, self.tolerations, self.terms)
        return repr(tuple(sorted(part.items()) if isinstance(part, dict) else part for part in parts))


def is_waiting(item: PodObject) -> bool:
    """Whether the scheduler has tried a pod and failed; one that is held back, or is promised a node, is not stuck."""
    spec, status = item.spec, item.status
    if (
        spec.node_name
        or spec.scheduling_gates
        or status.nominated_node_name
        or status.phase not in {"", "Pending"}
    ):
        return False
    conditions = [one for one in status.conditions or [] if one.type == "PodScheduled"]
    return any(one.status == "False" and one.reason == "Unschedulable" for one in conditions)


def waiting_of(item: PodObject, ref: ObjectRef, gpus: Mapping[str, int], needs: Mapping[str, int]) -> Waiting:
    """A waiting pod's record.

    Raises:
        msgspec.DecodeError: Its tolerations or its affinity cannot be read.
    """
    tolerations = msgspec.json.decode(item.spec.tolerations, type=list[Toleration] | None)
    affinity = msgspec.json.decode(item.spec.affinity, type=_Affinity | None)
    return Waiting(
        ref,
        gpus,
        needs,
        item.spec.node_selector or {},
        tuple(tolerations or ()),
        _terms(affinity),
        item.spec.priority,
        item.spec.priority_class_name,
    )


def wanted_by(ref: ObjectRef, spec: Mapping[str, Any]) -> Waiting:
    """Which nodes pods of a template want, as its spec says; of what is asked for nothing.

    Raises:
        msgspec.ValidationError: Its selector, its tolerations or its affinity cannot be read.
    """
    selector = msgspec.convert(spec.get("nodeSelector"), dict[str, str] | None)
    tolerations = msgspec.convert(spec.get("tolerations"), list[Toleration] | None)
    affinity = msgspec.convert(spec.get("affinity"), _Affinity | None)
    return Waiting(ref, {}, {}, selector or {}, tuple(tolerations or ()), _terms(affinity))


_Terms = tuple[tuple[tuple[LabelSelectorRequirement, ...], tuple[LabelSelectorRequirement, ...]], ...]


def _terms(affinity: _Affinity | None) -> _Terms | None:
    """The nodes that an affinity requires; None where it requires none."""
    if affinity is None or affinity.node_affinity is None:
        return None
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is None:
        return None
    return tuple(
        (tuple(term.match_expressions or ()), tuple(term.match_fields or ()))
        for term in required.node_selector_terms or ()
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Room:
    """What a node has besides GPUs, and what all its pods together ask for of it; in the units of Waiting.needs.

    Attributes:
        requested: Of GPU resources, too.
    """

    allocatable: Mapping[str, int]
    requested: Mapping[str, int]

    def left(self, resource: str) -> int | None:
        """What is free; None where the node does not say what it has."""
        offered = self.allocatable.get(resource)
        return None if offered is None else offered - self.requested.get(resource, 0)

    @property
    def spare(self) -> dict[str, int]:
        """What is free of all that the node says it has."""
        return {name: offered - self.requested.get(name, 0) for name, offered in self.allocatable.items()}


NOTHING_KNOWN = Room({}, {})


def stranded(
    nodes: Mapping[str, Node], rooms: Mapping[str, Room], waiting: Sequence[Waiting]
) -> tuple[Stranded, ...]:
    """Free GPUs of every resource that some pod waits for, node by node.

    Args:
        nodes: Those with GPUs.
        rooms: What they have besides, and what is asked for of them, by name.
        waiting: The pods that wait for GPUs.
    """
    found = []
    for resource in sorted(
        {name for one in waiting for name in one.gpus if not name.startswith(CLASS_PREFIX)}
    ):
        shapes = _shapes(one for one in waiting if resource in one.gpus)
        for name, node in sorted(nodes.items()):
            room = rooms.get(name, NOTHING_KNOWN)
            free = node.allocatable.get(resource, 0) - room.requested.get(resource, 0)
            if free > 0:
                reasons = _reasons(node, room, free=free, resource=resource, shapes=shapes)
                named = tuple(one.ref for group in shapes for one in group)[:NAMED]
                found.append(Stranded(name, resource, free, tuple(reasons), named))
    return tuple(found)


def wanting(
    nodes: Mapping[str, Node], rooms: Mapping[str, Room], waiting: Sequence[Waiting]
) -> tuple[WaitingPod, ...]:
    """Waiting pods with the nodes that would take them; one whose priority is not known counts for nobody.

    Args:
        nodes: Those with GPUs.
        rooms: What they have besides, and what is asked for of them, by name.
        waiting: The pods that wait for GPUs.
    """
    found = []
    for group in _shapes(waiting)[:LOOKED_AT]:
        fit = frozenset(
            name
            for name, node in nodes.items()
            if node.is_open and may_take(node, rooms.get(name, NOTHING_KNOWN), group[0])
        )
        found += [
            WaitingPod(one.ref, one.gpus, one.priority, one.priority_class, fit, one.needs)
            for one in group
            if one.priority is not None and fit
        ]
    return tuple(sorted(found, key=lambda one: (-one.priority, one.ref)))


def may_take(node: Node, room: Room, pod: Waiting) -> bool:
    """Whether nothing but what its pods hold keeps a pod from a node; what is not known keeps it off."""
    is_tolerated = all(any(_tolerates(one, taint) for one in pod.tolerations) for taint in node.taints)
    is_large_enough = all(need <= room.allocatable.get(name, 0) for name, need in pod.needs.items())
    return is_tolerated and is_large_enough and not any(_unselected(node, pod))


def _shapes(waiting: Iterable[Waiting]) -> list[list[Waiting]]:
    """Waiting pods by what they need; those that most are of come first."""
    groups: dict[str, list[Waiting]] = {}
    for one in sorted(waiting, key=lambda one: one.ref):
        groups.setdefault(one.shape, []).append(one)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].ref))


def _reasons(
    node: Node, room: Room, *, free: int, resource: str, shapes: list[list[Waiting]]
) -> Iterator[str]:
    if not node.is_open:
        yield "the node takes no new pods: it is cordoned, not ready or on its way out"
        return
    told: dict[str, tuple[str, int]] = {}
    for group in shapes[:LOOKED_AT]:
        hindrances = tuple(_hindrances(node, room, group[0], free=free, resource=resource))
        words = "; ".join(hindrances) or "not known: nothing that is judged here keeps it off"
        example, count = told.get(words, (f"{group[0].ref.namespace}/{group[0].ref.name}", 0))
        told[words] = (example, count + len(group))
    for words, (example, count) in told.items():
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"{example}{others}: {words}"
    if unseen := sum(map(len, shapes[LOOKED_AT:])):
        yield f"{unseen} more: not known, not looked at"


def _hindrances(node: Node, room: Room, pod: Waiting, *, free: int, resource: str) -> Iterator[str]:
    if pod.gpus[resource] > free:
        yield f"needs {pod.gpus[resource]} of {resource}, {free} free"
    for name, need in pod.needs.items():
        left = room.left(name)
        if left is None:
            yield f"not known: whether {_WORDS[name]} suffice"
        elif left < need:
            yield f"needs {_amount(name, need)} {_WORDS[name]}, {_amount(name, max(left, 0))} free"
    for taint in node.taints:
        if not any(_tolerates(one, taint) for one in pod.tolerations):
            yield f"does not tolerate the taint {taint}"
    yield from _unselected(node, pod)


def _amount(name: str, value: int) -> str:
    return f"{value / _UNITS[name]:.1f}".removesuffix(".0")


def _tolerates(one: Toleration, taint: str) -> bool:
    """Whether it tolerates a taint as it stands in a Node: key=value:effect."""
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if one.effect not in {"", effect}:
        return False
    if one.operator == "Exists":
        return one.key in {"", key}
    return one.key == key and one.value == value


def _unselected(node: Node, pod: Waiting) -> Iterator[str]:
    for key, value in sorted(pod.selector.items()):
        if key.startswith(UNKEPT):
            yield f"not known: whether the node has {key}={value}"
        elif node.labels.get(key) != value:
            yield f"its node selector wants {key}={value}"
    if pod.terms is None:
        return
    answers = [_term_holds(node, expressions, fields) for expressions, fields in pod.terms]
    if True not in answers:
        yield "not known: its node affinity" if None in answers else "its node affinity wants other nodes"


def _term_holds(
    node: Node,
    expressions: Iterable[LabelSelectorRequirement],
    fields: Iterable[LabelSelectorRequirement],
) -> bool | None:
    """Whether all that a term asks for holds; None where that cannot be said. One that asks for nothing never does."""
    answers = [_holds(one, node.labels) for one in expressions]
    answers += [_holds(one, {"metadata.name": node.name}) for one in fields]
    if False in answers or not answers:
        return False
    return None if None in answers else True


def _holds(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool | None:
    value, values = labels.get(requirement.key), requirement.values or []
    answer = None
    if not requirement.key.startswith(UNKEPT):
        match requirement.operator:
            case "In":
                answer = value in values
            case "NotIn":
                answer = value not in values
            case "Exists":
                answer = value is not None
            case "DoesNotExist":
                answer = value is None
            case "Gt" | "Lt":
                answer = _is_beyond(value, values, requirement.operator)
    return answer


def _is_beyond(value: str | None, limits: list[str], operator: str) -> bool:
    if value is None or not limits or not (value.isdecimal() and limits[0].isdecimal()):
        return False
    return int(value) > int(limits[0]) if operator == "Gt" else int(value) < int(limits[0])
