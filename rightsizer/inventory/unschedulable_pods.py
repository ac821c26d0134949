"""Pods for which the scheduler found no node: what they need, and which nodes they accept. Pure.

The scheduler also considers volumes, topology, other pods and its plug-ins, which are not checked here: a pod for which
other pods count, or of which it names no lacking resource, is not served.
"""

import dataclasses
import datetime
import operator
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.inventory.nodes import DROPPED_LABELS, NodeCapacity
from rightsizer.inventory.turns import comparison_cost, in_turn
from rightsizer.kube.api_objects import LabelSelectorRequirement, PodObject
from rightsizer.model import Node, ObjectRef, WaitingClaim


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


def could_host(node: Node, capacity: NodeCapacity, pod: UnschedulablePod) -> bool:
    """Whether an empty node could host a pod; unknown conditions count as unmet."""
    is_tolerated = all(any(tolerates(one, taint) for one in pod.tolerations) for taint in node.taints)
    is_large_enough = all(need <= capacity.allocatable.get(name, 0) for name, need in pod.needs.items())
    return is_tolerated and is_large_enough and not any(unselected(node, pod))


def tolerates(one: Toleration, taint: str) -> bool:
    """Whether it tolerates a taint, written as in Node.taints: key=value:effect."""
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if one.effect not in {"", effect}:
        return False
    if one.operator == "Exists":
        return one.key in {"", key}
    return one.key == key and one.value == value


def unselected(node: Node, pod: UnschedulablePod) -> Iterator[str]:
    """Why a pod's node selector and node affinity do not accept a node; unknown labels do not."""
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


def groups_alike(pods: Iterable[UnschedulablePod]) -> list[list[UnschedulablePod]]:
    """Pods grouped by namespace and needs, largest group first."""
    groups: dict[Hashable, list[UnschedulablePod]] = {}
    for one in pods:
        groups.setdefault((one.ref.namespace, one.shape), []).append(one)
    return largest_first(groups.values())


def largest_first(groups: Iterable[list[UnschedulablePod]]) -> list[list[UnschedulablePod]]:
    """Groups of pods by size, each in order of name."""
    ordered = [sorted(group, key=lambda one: one.ref) for group in groups]
    return sorted(ordered, key=lambda group: (-len(group), group[0].ref))


_ORDINARY = 8
"""Costs up to this count as one turn: pods with a few rules must not wait for pods with none."""


def cheapest_in_turn(groups: Iterable[list[UnschedulablePod]]) -> list[list[UnschedulablePod]]:
    """Pods that ask alike, by namespace: of each what costs least to compare with nodes first, and each in turn."""
    priced = sorted(
        ((comparison_cost(group[0].shape[0]), group) for group in groups), key=operator.itemgetter(0)
    )
    turns = in_turn(priced, lambda one: one[1][0].ref.namespace, _turns_of)
    return [group for _, group in turns]


def _turns_of(priced: tuple[int, object]) -> int:
    """The turns that a comparison takes."""
    return priced[0] if priced[0] > _ORDINARY else 1
