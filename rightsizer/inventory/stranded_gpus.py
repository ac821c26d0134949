"""Free GPUs on nodes that cannot host the pods that wait for GPUs, with the reasons. Pure.

The scheduler also considers volumes, topology, other pods and its plug-ins, which are not checked here: a pod for which
other pods count, or of which it names no lacking resource, is not served.
"""

import collections
import dataclasses
import datetime
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from rightsizer.inventory.device_allocation import MAX_TRIES, Tries, allocate
from rightsizer.inventory.gpu_requests import CLASS_PREFIX
from rightsizer.inventory.nodes import DROPPED_LABELS, NodeCapacity
from rightsizer.kube.api_objects import LabelSelectorRequirement, PodObject
from rightsizer.model import (
    DeviceInventory,
    Gang,
    Node,
    ObjectRef,
    Stranded,
    Unserved,
    WaitingClaim,
    WaitingPod,
    backed_on,
    claims_on,
)

T = TypeVar("T")

MAX_SHAPES = 20
"""Maximum number of distinct requests per resource that are compared with nodes, a namespace's most frequent first."""
MAX_NAMED = 3
"""Maximum number of waiting pods that a record names."""
MAX_OBSTACLES = 5
"""Maximum number of obstacles that a record names of a pod: a selector may have thousands of labels."""

TRIES_PER_NODE = 100
"""Maximum number of tries to find nodes and devices for one request, on average of all nodes."""
_NAMESPACE, _ALL = 4, 20
"""Times as many tries are for all requests of a namespace, and for those of all namespaces together."""
_LENGTH_PER_TRY = 500
"""Number of characters of selectors, tolerations and affinity that cost one more try on each node."""

_NO_OBSTACLE = "unknown: everything that gpu-rightsizer checks would allow it"
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


class PodTerms(msgspec.Struct):
    """corev1.PodAffinity or corev1.PodAntiAffinity."""

    required: list[msgspec.Raw] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )

    @property
    def is_required(self) -> bool:
        """Whether other pods decide where its pod may run."""
        return bool(self.required)


class Affinity(msgspec.Struct, rename="camel"):
    """corev1.Affinity."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: PodTerms | None = None
    pod_anti_affinity: PodTerms | None = None

    @property
    def is_to_pods(self) -> bool:
        """Whether other pods decide where its pod may run."""
        return any(one is not None and one.is_required for one in (self.pod_affinity, self.pod_anti_affinity))

    @property
    def repels(self) -> bool:
        """Whether its pod keeps others off."""
        return self.pod_anti_affinity is not None and self.pod_anti_affinity.is_required


class Spread(msgspec.Struct, rename="camel"):
    """corev1.TopologySpreadConstraint."""

    when_unsatisfiable: str = ""


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
        claim_names: Names of its ResourceClaims.
        template_names: Names of ResourceClaimTemplates, where its claims are not made yet.
        claims: Those for GPUs, with the devices that they accept.
        backed: As a WaitingPod's.
        why_not: Why GPUs alone may not let it start, in words; empty if they do.
        created: As a WaitingPod's.
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
    claim_names: tuple[str, ...] = ()
    template_names: tuple[str, ...] = ()
    claims: tuple[WaitingClaim, ...] = ()
    backed: Mapping[str, WaitingClaim] = dataclasses.field(default_factory=dict)
    why_not: str = ""
    created: datetime.datetime | None = None

    @property
    def has_claims(self) -> bool:
        """Whether all of its ResourceClaims exist."""
        return not any(name.startswith("?") for name in self.claim_names)

    @property
    def shape(self) -> tuple[str, tuple[WaitingClaim, ...]]:
        """Equal for pods that fit on the same nodes."""
        parts = (self.gpus, self.needs, self.selector, self.tolerations, self.terms)
        text = repr(tuple(sorted(part.items()) if isinstance(part, dict) else part for part in parts))
        return text, self.claims


_UNKNOWN_AGE = datetime.datetime.max.replace(tzinfo=datetime.UTC)

_NO_PLACE = frozenset({"Unschedulable", "Undetermined", "Schedulable"})
"""Reasons of PodScheduled=False; the last two are Volcano's, for members of a gang of which another fits nowhere."""


def waits_for_node(item: PodObject) -> bool:
    """Whether a pod has no node: the scheduler tried to place it and failed, or a scheduling gate holds it back."""
    return is_unschedulable(item) or (bool(item.spec.scheduling_gates) and _has_no_node(item))


def _has_no_node(item: PodObject) -> bool:
    status = item.status
    return not (item.spec.node_name or status.nominated_node_name or status.phase not in {"", "Pending"})


def is_unschedulable(item: PodObject, gates: Collection[str] = ()) -> bool:
    """Whether the scheduler tried to place a pod and failed, or only these scheduling gates hold it back."""
    if not _has_no_node(item):
        return False
    if item.spec.scheduling_gates:
        return all(one.name in gates for one in item.spec.scheduling_gates)
    status = item.status
    conditions = [one for one in status.conditions or [] if one.type == "PodScheduled"]
    return any(one.status == "False" and one.reason in _NO_PLACE for one in conditions)


def unschedulable_pod(
    item: PodObject,
    ref: ObjectRef,
    gpus: Mapping[str, int],
    needs: Mapping[str, int],
    gang: ObjectRef | None,
    claims: tuple[str, ...],
) -> UnschedulablePod:
    """The unschedulable pod.

    Raises:
        msgspec.DecodeError: Its tolerations or affinity cannot be read.
    """
    tolerations = msgspec.json.decode(item.spec.tolerations, type=list[Toleration] | None)
    affinity = msgspec.json.decode(item.spec.affinity, type=Affinity | None)
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
        claims,
        why_not=_why_not(item, affinity, has_claims=bool(claims)),
        created=item.metadata.creation_timestamp,
    )


def _why_not(item: PodObject, affinity: Affinity | None, *, has_claims: bool) -> str:
    """Why free GPUs may not be enough for a pod: other pods count for it, or kube-scheduler names no resource.

    A pod of claims may still wait for these to be made.
    """
    spread = msgspec.json.decode(item.spec.topology_spread_constraints, type=list[Spread] | None)
    if affinity is not None and affinity.is_to_pods:
        return "its affinity to other pods is not checked"
    if any(one.when_unsatisfiable != "ScheduleAnyway" for one in spread or ()):
        return "its topology spread constraints are not checked"
    told = [one.message for one in item.status.conditions or () if one.type == "PodScheduled"]
    is_of_nodes = any(_OF_NODES in one for one in told)
    lacks = has_claims or any(word in one for one in told for word in _LACKING)
    return "kube-scheduler names no resource that is missing" if is_of_nodes and not lacks else ""


_OF_NODES = "nodes are available:"
"""In every message of kube-scheduler about a pod that no node fits (framework.FitError)."""
_LACKING = ("Insufficient ", "Too many pods")
"""In those about what other pods hold (plugin noderesources)."""


def template_placement(ref: ObjectRef, spec: Mapping[str, Any]) -> UnschedulablePod:
    """The placement rules of a pod template's spec; requests are ignored.

    Raises:
        msgspec.ValidationError: Its selector, tolerations or affinity cannot be read.
    """
    selector = msgspec.convert(spec.get("nodeSelector"), dict[str, str] | None)
    tolerations = msgspec.convert(spec.get("tolerations"), list[Toleration] | None)
    affinity = msgspec.convert(spec.get("affinity"), Affinity | None)
    return UnschedulablePod(ref, {}, {}, selector or {}, tuple(tolerations or ()), _terms(affinity))


def _terms(affinity: Affinity | None) -> _Terms | None:
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
    nodes: Mapping[str, Node],
    capacities: Mapping[str, NodeCapacity],
    pods: Sequence[UnschedulablePod],
    devices: DeviceInventory,
) -> tuple[Stranded, ...]:
    """Free GPUs per node of each resource, or device class, that some pod waits for.

    Tries are limited by namespace, as for `placeable_pods`.
    """
    found = []
    budget = _TryBudget(len(nodes))
    for resource in sorted({name for one in pods for name in one.gpus}):
        wanting = [one for one in pods if resource in one.gpus]
        backer = next((one for one in wanting if resource in one.backed), None)
        groups = _groups(wanting, budget, len(nodes))
        named = tuple(one.ref for group in (*groups.compared, *groups.others) for one in group)[:MAX_NAMED]
        for name, node in sorted(nodes.items()):
            capacity = capacities.get(name, UNKNOWN_CAPACITY)
            is_backed = backer is not None and resource in backed_on(backer, node)
            if resource.startswith(CLASS_PREFIX) or is_backed:
                free = devices.free_gpus(name)
            else:
                free = node.allocatable.get(resource, 0) - capacity.requested.get(resource, 0)
            if free > 0:
                reasons = _reasons(node, capacity, free=free, resource=resource, groups=groups)
                found.append(Stranded(name, resource, free, tuple(reasons), named))
    return tuple(found)


class PlaceablePods(NamedTuple):
    """Pods that could run on some node if it were empty, and those that were not compared with all nodes."""

    pods: tuple[WaitingPod, ...]
    unserved: tuple[Unserved, ...]


def placeable_pods(
    nodes: Mapping[str, Node],
    capacities: Mapping[str, NodeCapacity],
    pods: Sequence[UnschedulablePod],
    devices: DeviceInventory,
    gangs: Mapping[ObjectRef, Gang] | None = None,
) -> PlaceablePods:
    """Unschedulable pods of known priority, with the nodes that could host them if those were empty.

    Tries are limited by namespace: nobody can make others wait by asking for many different things.
    """
    waits = collections.Counter(one.gang for one in pods)
    search = _NodeSearch(nodes, capacities, devices)
    found: list[WaitingPod] = []
    cut: dict[tuple[str, str], list[UnschedulablePod]] = collections.defaultdict(list)
    for group in _by_urgency(pods):
        namespace = group[0].ref.namespace
        who = search.budget.who_asks(namespace)
        fit = search.fitting(group[0])
        if fit is None:
            cut[namespace, who] += group
        found += [
            WaitingPod(
                one.ref,
                one.gpus,
                one.priority,
                one.priority_class,
                fit,
                one.needs,
                (gangs or {}).get(one.gang, Gang(one.gang, waits[one.gang])) if one.gang else None,
                one.claims,
                one.backed,
                one.created,
            )
            for one in group
            if one.priority is not None and fit
        ]
    unserved = (
        Unserved(
            f"{of[0].ref} and {len(of) - 1} more pods" if len(of) > 1 else str(of[0].ref),
            f"{who} for too many different things to compare all of them with all nodes",
        )
        for (_, who), of in cut.items()
    )
    return PlaceablePods(tuple(_in_order(found)), tuple(unserved))


def _in_order(pods: Iterable[WaitingPod]) -> list[WaitingPod]:
    """Those of the highest priority first, then the oldest, as kube-scheduler tries them.

    Where that is equal or unknown, namespaces take turns: nobody is first in all cycles because of a name.
    """
    turns: dict[Hashable, dict[ObjectRef, int]] = collections.defaultdict(dict)

    def order(one: WaitingPod) -> tuple[int, datetime.datetime, int, ObjectRef]:
        created = one.created or _UNKNOWN_AGE
        alike = turns[one.priority, created, one.ref.namespace]
        return -one.priority, created, alike.setdefault(one.demand, len(alike)), one.ref

    return sorted(sorted(pods, key=lambda one: one.ref), key=order)


def _by_urgency(pods: Iterable[UnschedulablePod]) -> list[list[UnschedulablePod]]:
    """Pods of known priority that ask alike, by namespace: by priority, and within one each namespace in turn."""
    groups = _shapes(one for one in pods if one.priority is not None)
    equal = itertools.groupby(sorted(groups, key=_urgency), _urgency)
    return [group for _, alike in equal for group in in_turn(alike, _namespace)]


def _urgency(group: list[UnschedulablePod]) -> int:
    return -max(one.priority or 0 for one in group)


def _namespace(group: list[UnschedulablePod]) -> str:
    return group[0].ref.namespace


def in_turn(items: Iterable[T], namespace: Callable[[T], str]) -> list[T]:
    """The first item of each namespace, then the second of each, and so on."""
    before = collections.Counter[str]()
    turns: list[tuple[int, str, T]] = []
    for item in items:
        of = namespace(item)
        turns.append((before[of], of, item))
        before[of] += 1
    return [item for *_, item in sorted(turns, key=lambda turn: turn[:2])]


class _TryBudget:
    """How many tries are left for requests, with a limit for each, for each namespace and for all together."""

    def __init__(self, nodes: int) -> None:
        self._of_one = MAX_TRIES + TRIES_PER_NODE * nodes
        self._of_all = _ALL * self._of_one
        self._of = collections.defaultdict[str, int](lambda: _NAMESPACE * self._of_one)

    def left(self, namespace: str) -> int:
        """Tries for one request."""
        return min(self._of_one, self._of[namespace], self._of_all)

    def spend(self, namespace: str, tries: int) -> None:
        """Count tries."""
        self._of[namespace] -= tries
        self._of_all -= tries

    def who_asks(self, namespace: str) -> str:
        """Who has asked for most of what can be tried, for people."""
        is_of_all = self._of_all < min(self._of_one, self._of[namespace])
        return "all namespaces together ask" if is_of_all else "its namespace asks"


def _cost(shape: str) -> int:
    """Tries that comparing a request with a node costs."""
    return 1 + len(shape) // _LENGTH_PER_TRY


class _NodeSearch:
    """Finds the nodes that could host pods if they were empty, with few tries for each namespace."""

    def __init__(
        self, nodes: Mapping[str, Node], capacities: Mapping[str, NodeCapacity], devices: DeviceInventory
    ) -> None:
        self._nodes, self._capacities, self._devices = nodes, capacities, devices
        self.budget = _TryBudget(len(nodes))
        self._found: dict[Hashable, frozenset[str]] = {}

    def fitting(self, pod: UnschedulablePod) -> frozenset[str] | None:
        """The nodes for a pod; None if none was found before the tries were used up."""
        shape, namespace = pod.shape, pod.ref.namespace
        if shape in self._found:
            return self._found[shape]
        given = self.budget.left(namespace)
        tries, cost = Tries(given), _cost(shape[0])
        found = set[str]()
        for name in self._nodes:
            if tries.left <= 0:
                break
            tries.left -= cost
            if self._fits(pod, name, tries):
                found.add(name)
        self.budget.spend(namespace, given - tries.left)
        if tries.left > 0:  # else others of this shape may have tries for more nodes
            self._found[shape] = frozenset(found)
        return frozenset(found) if found or tries.left > 0 else None

    def _fits(self, pod: UnschedulablePod, name: str, tries: Tries) -> bool:
        node = self._nodes[name]
        return (
            node.is_open
            and could_host(node, self._capacities.get(name, UNKNOWN_CAPACITY), pod)
            and not _unbacked(node, pod)
            and allocate(claims_on(pod, node), self._devices, name, {}, tries) is not None
        )


def _unbacked(node: Node, pod: UnschedulablePod) -> bool:
    """Whether a node has DRA devices alone, and the scheduler may not allocate them for what a pod requests."""
    is_only = any(name.startswith(CLASS_PREFIX) for name in node.allocatable)
    named = {name for name in pod.gpus if not name.startswith(CLASS_PREFIX)}
    return is_only and not named <= set(backed_on(pod, node))


def could_host(node: Node, capacity: NodeCapacity, pod: UnschedulablePod) -> bool:
    """Whether an empty node could host a pod; unknown conditions count as unmet."""
    is_tolerated = all(any(tolerates(one, taint) for one in pod.tolerations) for taint in node.taints)
    is_large_enough = all(need <= capacity.allocatable.get(name, 0) for name, need in pod.needs.items())
    return is_tolerated and is_large_enough and not any(_unselected(node, pod))


def _shapes(pods: Iterable[UnschedulablePod]) -> list[list[UnschedulablePod]]:
    """Pods grouped by namespace and needs, largest group first."""
    groups: dict[Hashable, list[UnschedulablePod]] = {}
    for one in pods:
        groups.setdefault((one.ref.namespace, one.shape), []).append(one)
    return _largest_first(groups.values())


def _largest_first(groups: Iterable[list[UnschedulablePod]]) -> list[list[UnschedulablePod]]:
    ordered = [sorted(group, key=lambda one: one.ref) for group in groups]
    return sorted(ordered, key=lambda group: (-len(group), group[0].ref))


class _WaitingGroups(NamedTuple):
    """Pods grouped by needs, largest group first: those that are compared with nodes, and those that are not."""

    compared: list[list[UnschedulablePod]]
    others: list[list[UnschedulablePod]]


def _groups(pods: Iterable[UnschedulablePod], budget: _TryBudget, nodes: int) -> _WaitingGroups:
    """Few groups, each compared with all nodes; namespaces take turns."""
    alike: dict[Hashable, list[UnschedulablePod]] = collections.defaultdict(list)
    compared = set[Hashable]()
    for group in in_turn(_shapes(pods), _namespace):
        shape, namespace = group[0].shape, _namespace(group)
        alike[shape] += group
        tries = nodes * _cost(shape[0])
        if shape not in compared and len(compared) < MAX_SHAPES and tries <= budget.left(namespace):
            budget.spend(namespace, tries)
            compared.add(shape)
    others = [group for shape, group in alike.items() if shape not in compared]
    return _WaitingGroups(_largest_first(alike[shape] for shape in compared), _largest_first(others))


def _reasons(
    node: Node, capacity: NodeCapacity, *, free: int, resource: str, groups: _WaitingGroups
) -> Iterator[str]:
    if not node.is_open:
        yield "the node accepts no new pods: it is cordoned, not ready or about to be removed"
        return
    examples: dict[str, tuple[str, int]] = {}
    for group in groups.compared:
        obstacles = tuple(_obstacles(node, capacity, group[0], free=free, resource=resource))
        left_out = [f"{len(obstacles) - MAX_OBSTACLES} more"] if len(obstacles) > MAX_OBSTACLES else []
        words = "; ".join((*obstacles[:MAX_OBSTACLES], *left_out)) or _NO_OBSTACLE
        example, count = examples.get(words, (f"{group[0].ref.namespace}/{group[0].ref.name}", 0))
        examples[words] = (example, count + len(group))
    for words, (example, count) in examples.items():
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"{example}{others}: {words}"
    if unseen := sum(map(len, groups.others)):
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
        if not any(tolerates(one, taint) for one in pod.tolerations):
            yield f"does not tolerate the taint {taint}"
    yield from _unselected(node, pod)


def _amount(name: str, value: int) -> str:
    return f"{value / _UNITS[name]:.1f}".removesuffix(".0")


def tolerates(one: Toleration, taint: str) -> bool:
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
