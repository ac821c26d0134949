"""Free GPUs on nodes that cannot host the pods that wait for GPUs, with the reasons. Pure.

The scheduler also considers volumes, topology, other pods and its plug-ins, which are not checked here.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.nodes import DROPPED_LABELS, NodeCapacity
from rightsizer.kube.api_objects import LabelSelectorRequirement, PodObject
from rightsizer.model import Node, ObjectRef, Stranded, WaitingPod

MAX_SHAPES = 20
"""Maximum number of distinct requests per resource that are compared with nodes, the most frequent first."""
MAX_NAMED = 3
"""Maximum number of waiting pods that a record names."""

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


_Terms = tuple[tuple[tuple[LabelSelectorRequirement, ...], tuple[LabelSelectorRequirement, ...]], ...]
"""Terms of a node affinity, each with its expressions and its fields."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnschedulablePod:
    """A pod for which the scheduler found no node.

    Attributes:
        gpus: What it requests, by resource name.
        needs: CPU in thousandths of a core, memory in bytes, one of "pods".
        selector: Labels that its node must have.
        terms: Required node affinity, of which one term must match; None if it has none.
        priority: Its resolved priority; None if the API server resolved none.
        gang: The first gang that it names; None if it names none.
    """

    ref: ObjectRef
    gpus: Mapping[str, int]
    needs: Mapping[str, int]
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    terms: _Terms | None
    priority: int | None = None
    priority_class: str = ""
    gang: ObjectRef | None = None

    @property
    def shape(self) -> str:
        """Equal for pods that fit on the same nodes."""
        parts = (self.gpus, self.needs, self.selector, self.tolerations, self.terms)
        return repr(tuple(sorted(part.items()) if isinstance(part, dict) else part for part in parts))


def is_unschedulable(item: PodObject) -> bool:
    """Whether the scheduler tried to place a pod and failed; gated and nominated pods do not count."""
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


def unschedulable_pod(
    item: PodObject,
    ref: ObjectRef,
    gpus: Mapping[str, int],
    needs: Mapping[str, int],
    gang: ObjectRef | None,
) -> UnschedulablePod:
    """The unschedulable pod.

    Raises:
        msgspec.DecodeError: Its tolerations or affinity cannot be read.
    """
    tolerations = msgspec.json.decode(item.spec.tolerations, type=list[Toleration] | None)
    affinity = msgspec.json.decode(item.spec.affinity, type=_Affinity | None)
    return UnschedulablePod(
        ref,
        gpus,
        needs,
        item.spec.node_selector or {},
        tuple(tolerations or ()),
        _terms(affinity),
        item.spec.priority,
        item.spec.priority_class_name,
        gang,
    )


def template_placement(ref: ObjectRef, spec: Mapping[str, Any]) -> UnschedulablePod:
    """The placement rules of a pod template's spec; requests are ignored.

    Raises:
        msgspec.ValidationError: Its selector, tolerations or affinity cannot be read.
    """
    selector = msgspec.convert(spec.get("nodeSelector"), dict[str, str] | None)
    tolerations = msgspec.convert(spec.get("tolerations"), list[Toleration] | None)
    affinity = msgspec.convert(spec.get("affinity"), _Affinity | None)
    return UnschedulablePod(ref, {}, {}, selector or {}, tuple(tolerations or ()), _terms(affinity))


def _terms(affinity: _Affinity | None) -> _Terms | None:
    """The terms that an affinity requires; None if it requires none."""
    if affinity is None or affinity.node_affinity is None:
        return None
    required = affinity.node_affinity.required_during_scheduling_ignored_during_execution
    if required is None:
        return None
    return tuple(
        (tuple(term.match_expressions or ()), tuple(term.match_fields or ()))
        for term in required.node_selector_terms or ()
    )


UNKNOWN_CAPACITY = NodeCapacity({}, {})


def find_stranded_gpus(
    nodes: Mapping[str, Node], capacities: Mapping[str, NodeCapacity], pods: Sequence[UnschedulablePod]
) -> tuple[Stranded, ...]:
    """Free GPUs per node of each resource that some pod waits for."""
    found = []
    for resource in sorted({name for one in pods for name in one.gpus if not name.startswith(CLASS_PREFIX)}):
        shapes = _shapes(one for one in pods if resource in one.gpus)
        for name, node in sorted(nodes.items()):
            capacity = capacities.get(name, UNKNOWN_CAPACITY)
            free = node.allocatable.get(resource, 0) - capacity.requested.get(resource, 0)
            if free > 0:
                reasons = _reasons(node, capacity, free=free, resource=resource, shapes=shapes)
                named = tuple(one.ref for group in shapes for one in group)[:MAX_NAMED]
                found.append(Stranded(name, resource, free, tuple(reasons), named))
    return tuple(found)


def placeable_pods(
    nodes: Mapping[str, Node], capacities: Mapping[str, NodeCapacity], pods: Sequence[UnschedulablePod]
) -> tuple[WaitingPod, ...]:
    """Unschedulable pods of known priority, with the nodes that could host them if those were empty."""
    waits = collections.Counter(one.gang for one in pods)
    found = []
    for group in _shapes(pods)[:MAX_SHAPES]:
        fit = frozenset(
            name
            for name, node in nodes.items()
            if node.is_open and could_host(node, capacities.get(name, UNKNOWN_CAPACITY), group[0])
        )
        found += [
            WaitingPod(
                one.ref,
                one.gpus,
                one.priority,
                one.priority_class,
                fit,
                one.needs,
                one.gang,
                waits[one.gang] if one.gang else 1,
            )
            for one in group
            if one.priority is not None and fit
        ]
    return tuple(sorted(found, key=lambda one: (-one.priority, one.ref)))


def could_host(node: Node, capacity: NodeCapacity, pod: UnschedulablePod) -> bool:
    """Whether an empty node could host a pod; unknown conditions count as unmet."""
    is_tolerated = all(any(_tolerates(one, taint) for one in pod.tolerations) for taint in node.taints)
    is_large_enough = all(need <= capacity.allocatable.get(name, 0) for name, need in pod.needs.items())
    return is_tolerated and is_large_enough and not any(_unselected(node, pod))


def _shapes(pods: Iterable[UnschedulablePod]) -> list[list[UnschedulablePod]]:
    """Pods grouped by their needs, largest group first."""
    groups: dict[str, list[UnschedulablePod]] = {}
    for one in sorted(pods, key=lambda one: one.ref):
        groups.setdefault(one.shape, []).append(one)
    return sorted(groups.values(), key=lambda group: (-len(group), group[0].ref))


def _reasons(
    node: Node, capacity: NodeCapacity, *, free: int, resource: str, shapes: list[list[UnschedulablePod]]
) -> Iterator[str]:
    if not node.is_open:
        yield "the node accepts no new pods: it is cordoned, not ready or about to be removed"
        return
    examples: dict[str, tuple[str, int]] = {}
    for group in shapes[:MAX_SHAPES]:
        obstacles = tuple(_obstacles(node, capacity, group[0], free=free, resource=resource))
        words = "; ".join(obstacles) or "unknown: everything that gpu-rightsizer checks would allow it"
        example, count = examples.get(words, (f"{group[0].ref.namespace}/{group[0].ref.name}", 0))
        examples[words] = (example, count + len(group))
    for words, (example, count) in examples.items():
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"{example}{others}: {words}"
    if unseen := sum(map(len, shapes[MAX_SHAPES:])):
        yield f"{unseen} more: not checked"


def _obstacles(
    node: Node, capacity: NodeCapacity, pod: UnschedulablePod, *, free: int, resource: str
) -> Iterator[str]:
    if pod.gpus[resource] > free:
        yield f"needs {pod.gpus[resource]} of {resource}, {free} free"
    for name, need in pod.needs.items():
        left = capacity.spare.get(name)
        if left is None:
            yield f"unknown: whether there are enough {_WORDS[name]}"
        elif left < need:
            yield f"needs {_amount(name, need)} {_WORDS[name]}, {_amount(name, max(left, 0))} free"
    for taint in node.taints:
        if not any(_tolerates(one, taint) for one in pod.tolerations):
            yield f"does not tolerate the taint {taint}"
    yield from _unselected(node, pod)


def _amount(name: str, value: int) -> str:
    return f"{value / _UNITS[name]:.1f}".removesuffix(".0")


def _tolerates(one: Toleration, taint: str) -> bool:
    """Whether it tolerates a taint, written as in Node.taints: key=value:effect."""
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if one.effect not in {"", effect}:
        return False
    if one.operator == "Exists":
        return one.key in {"", key}
    return one.key == key and one.value == value


def _unselected(node: Node, pod: UnschedulablePod) -> Iterator[str]:
    for key, value in sorted(pod.selector.items()):
        if key.startswith(DROPPED_LABELS):
            yield f"unknown: whether the node has {key}={value}"
        elif node.labels.get(key) != value:
            yield f"its node selector requires {key}={value}"
    if pod.terms is None:
        return
    answers = [_term_holds(node, expressions, fields) for expressions, fields in pod.terms]
    if True not in answers:
        yield "unknown: its node affinity" if None in answers else "its node affinity requires other nodes"


def _term_holds(
    node: Node, expressions: Iterable[LabelSelectorRequirement], fields: Iterable[LabelSelectorRequirement]
) -> bool | None:
    """Whether a term matches; None if unknown. An empty term never matches."""
    # A dropped label may match or not, which is unknown.
    answers = [None if one.key.startswith(DROPPED_LABELS) else one.holds(node.labels) for one in expressions]
    answers += [one.holds({"metadata.name": node.name}) for one in fields]
    if False in answers or not answers:
        return False
    return None if None in answers else True
