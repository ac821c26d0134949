"""Pods for which the scheduler found no node: what they need, and which nodes they accept. Pure.

Where another plugin of the scheduler may decide, nobody is stopped for the pod, and the reason is said.
"""

import dataclasses
import datetime
import operator
import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from rightsizer.inventory.turns import comparison_cost, in_turn
from rightsizer.kube.api_objects import LabelSelectorRequirement, PodObject, PodSpec
from rightsizer.model import ObjectRef, WaitingClaim


class Toleration(msgspec.Struct, frozen=True):
    """corev1.Toleration."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class _Term(msgspec.Struct, rename="camel"):
    match_expressions: list[LabelSelectorRequirement] | None = None
    match_fields: list[LabelSelectorRequirement] | None = None


class NodeSelector(msgspec.Struct, rename="camel"):
    """corev1.NodeSelector."""

    node_selector_terms: list[_Term] | None = None

    @property
    def terms(self) -> "Terms":
        """The terms as pairs of expressions and fields."""
        return tuple(
            (tuple(term.match_expressions or ()), tuple(term.match_fields or ()))
            for term in self.node_selector_terms or ()
        )


class _NodeAffinity(msgspec.Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class _PodTerms(msgspec.Struct):
    """corev1.PodAffinity or corev1.PodAntiAffinity."""

    required: list[msgspec.Raw] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(msgspec.Struct, rename="camel"):
    """corev1.Affinity."""

    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodTerms | None = None
    pod_anti_affinity: _PodTerms | None = None

    @property
    def is_to_pods(self) -> bool:
        """Whether other pods decide where its pod may run."""
        return bool(self.anti_terms or (self.pod_affinity and self.pod_affinity.required))

    @property
    def anti_terms(self) -> tuple[bytes, ...]:
        """The required terms by which its pod keeps others off, as JSON."""
        return tuple(map(bytes, (self.pod_anti_affinity and self.pod_anti_affinity.required) or ()))


class _Spread(msgspec.Struct, rename="camel"):
    when_unsatisfiable: str = ""


class _ClaimSource(msgspec.Struct, rename="camel"):
    claim_name: str = ""


class HostPort(msgspec.Struct, frozen=True, rename="camel"):
    """corev1.ContainerPort."""

    host_port: int = 0
    protocol: str = "TCP"
    host_ip: str = msgspec.field(default="", name="hostIP")

    def conflicts(self, other: "HostPort") -> bool:
        """Whether one node cannot have both."""
        ips = {self.host_ip or _ANY_IP, other.host_ip or _ANY_IP}
        is_same = (self.host_port, self.protocol) == (other.host_port, other.protocol)
        return is_same and (len(ips) == 1 or _ANY_IP in ips)


_ANY_IP = "0.0.0.0"  # noqa: S104 - what kube-scheduler takes an empty hostIP for


def host_ports(spec: PodSpec) -> frozenset[HostPort]:
    """The ports of its node that a pod takes.

    Raises:
        msgspec.DecodeError: They cannot be read.
    """
    containers = (*spec.containers, *(spec.init_containers or ()))
    texts = [one.ports for one in containers if b"hostPort" in bytes(one.ports)]
    ports = (port for text in texts for port in msgspec.json.decode(text, type=list[HostPort]))
    return frozenset(port for port in ports if port.host_port > 0)


Terms = tuple[tuple[tuple[LabelSelectorRequirement, ...], tuple[LabelSelectorRequirement, ...]], ...]
"""Terms of a node affinity, each with its expressions and its fields."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnschedulablePod:
    """A pod for which the scheduler found no node.

    Attributes:
        gpus: What it requests of GPUs, by resource name.
        needs: As a Pod's.
        selector: Labels that its node must have.
        affinities: Required node affinities of the pod and of its volumes, after what has them; of each, one term must
            match.
        priority: Its resolved priority; None if the API server resolved none.
        gang: The first gang that it names; None if it names none.
        claim_names: Names of its ResourceClaims.
        template_names: Names of ResourceClaimTemplates, where its claims are not made yet.
        claims: Those for GPUs, with the devices that they accept.
        backed: As a WaitingPod's.
        why_not: Why GPUs alone may not let it start, in words; empty if they do.
        created: As a WaitingPod's.
        ports: Of its node that it takes.
        volume_claims: Names of its PersistentVolumeClaims.
    """

    ref: ObjectRef
    gpus: Mapping[str, int]
    needs: Mapping[str, int]
    selector: Mapping[str, str]
    tolerations: tuple[Toleration, ...]
    affinities: tuple[tuple[str, Terms], ...] = ()
    priority: int | None = None
    priority_class: str = ""
    gang: ObjectRef | None = None
    claim_names: tuple[str, ...] = ()
    template_names: tuple[str, ...] = ()
    claims: tuple[WaitingClaim, ...] = ()
    backed: Mapping[str, WaitingClaim] = dataclasses.field(default_factory=dict)
    why_not: str = ""
    created: datetime.datetime | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()
    volume_claims: tuple[str, ...] = ()

    @property
    def has_claims(self) -> bool:
        """Whether all of its ResourceClaims exist."""
        return not any(name.startswith("?") for name in self.claim_names)

    @property
    def shape(self) -> tuple[str, tuple[WaitingClaim, ...]]:
        """Equal for pods that fit on the same nodes."""
        parts = (self.gpus, self.needs, self.selector, self.tolerations, self.affinities)
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
    spec = item.spec
    tolerations = msgspec.json.decode(spec.tolerations, type=list[Toleration] | None)
    affinity = msgspec.json.decode(spec.affinity, type=Affinity | None) or Affinity()
    message = next((one.message for one in item.status.conditions or () if one.type == "PodScheduled"), "")
    why_not = placement_veto(spec) or _message_veto(message, has_claims=bool(claims))
    if spec.scheduler_name not in _SCHEDULERS:
        why_not = f"where the scheduler {spec.scheduler_name} places pods is not known"
    return UnschedulablePod(
        ref,
        gpus,
        needs,
        spec.node_selector or {},
        tuple(tolerations or ()),
        _affinities(affinity),
        spec.priority,
        spec.priority_class_name,
        gang,
        claims,
        why_not=why_not,
        created=item.metadata.creation_timestamp,
        labels=item.metadata.labels or {},
        ports=host_ports(spec),
        volume_claims=volume_claims(item),
    )


def volume_claims(item: PodObject) -> tuple[str, ...]:
    """The names of the PersistentVolumeClaims that a pod has, or gets as its own.

    Raises:
        msgspec.DecodeError: They cannot be read.
    """
    text = bytes(item.spec.volumes)
    if b"persistentVolumeClaim" not in text and b"ephemeral" not in text:
        return ()
    found = []
    for volume in _volumes(item.spec):
        if "persistentVolumeClaim" in volume:
            found.append(msgspec.json.decode(volume["persistentVolumeClaim"], type=_ClaimSource).claim_name)
        elif "ephemeral" in volume:
            found.append(f"{item.metadata.name}-{msgspec.json.decode(volume['name'], type=str)}")
    return tuple(found)


# --- Why it is not known whether free resources let a pod start


def placement_veto(spec: PodSpec) -> str:
    """Why it is not known on which nodes a pod fits: what kube-scheduler considers and is not checked; empty if none.

    Raises:
        msgspec.DecodeError: It cannot be read.
    """
    affinity = msgspec.json.decode(spec.affinity, type=Affinity | None)
    spread = msgspec.json.decode(spec.topology_spread_constraints, type=list[_Spread] | None)
    odd = {kind for volume in _volumes(spec) for kind in volume.keys() - _SHAREABLE_VOLUMES}
    vetoes = {
        "its affinity to other pods is not checked": affinity is not None and affinity.is_to_pods,
        "its topology spread constraints are not checked": any(
            one.when_unsatisfiable != "ScheduleAnyway" for one in spread or ()
        ),
        f"which nodes can mount its volume of type {min(odd, default='')} is not known": bool(odd),
    }
    return next((why for why, holds in vetoes.items() if holds), "")


def _volumes(spec: PodSpec) -> list[dict[str, msgspec.Raw]]:
    return msgspec.json.decode(spec.volumes, type=list[dict[str, msgspec.Raw]] | None) or []


def _message_veto(message: str, *, has_claims: bool) -> str:
    """Checks what kube-scheduler says: "0/2 nodes are available: 2 Insufficient cpu. …, preemption: …".

    https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/scheduler/framework/types.go (FitError)
    """
    _, is_of_nodes, told = message.partition(" nodes are available:")
    if not is_of_nodes:
        return ""
    filtered, _, rest = told.partition(". ")
    preempted = rest.partition("preemption:")[2].strip()
    reasons = [one.strip(" .") for one in filtered.split(", ")]
    words = [match[1] for one in reasons if (match := _REASON.fullmatch(one))]
    if len(words) < len(reasons):
        return "kube-scheduler names no resource that is missing"
    if odd := next((one for one in words if not one.startswith(_CHECKED)), ""):
        return f"kube-scheduler has a reason that is not checked: {odd[:_MOST_WORDS]}"
    # A resource of a DeviceClass needs no ResourceClaim of the pod's own. Perhaps only preemption met it.
    has_claims = has_claims or _NO_DEVICES in told
    if not (has_claims or any(one.startswith(_HELD_BY_PODS) for one in words)):
        return "kube-scheduler names no resource that is missing"
    if preempted and not has_claims and not preempted.startswith(_LEFT_TO_OTHERS):
        return "kube-scheduler preempts for it, and found that this does not help"
    return ""


_SCHEDULERS = frozenset({"", "default-scheduler", "volcano", "kai-scheduler", "runai-scheduler"})

_SHAREABLE_VOLUMES = frozenset(
    {
        "name",
        *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "nfs"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
)
"""Volumes that other pods on a node do not keep away; of others one node may take only one."""

_REASON = re.compile(r"[0-9]+ (.+)", re.DOTALL)
_MOST_WORDS = 100
_NO_DEVICES = "cannot allocate all claims"
"""Message of the plugin for DRA; kube-scheduler preempts nobody for devices."""
_HELD_BY_PODS = (
    "Insufficient ",
    "Too many pods",
    "node(s) didn't have free ports",
    "node(s) didn't satisfy existing pods anti-affinity rules",
)
"""Reasons of kube-scheduler's plugins that the end of other pods removes."""
_CHECKED = (
    *_HELD_BY_PODS,
    "node(s) had untolerated taint",
    "node(s) had taint",
    "node(s) were unschedulable",
    "node(s) were not ready",
    "node(s) didn't match Pod's node affinity",
    "node(s) didn't match node selector",
    "node(s) didn't match PersistentVolume's node affinity",
    "node(s) had volume node affinity conflict",
    "node(s) had no available volume zone",
    "node(s) exceed max volume count",
    "node is filtered out by the prefilter result",
    "node(s) didn't satisfy plugin(s) [NodeAffinity",
    _NO_DEVICES,
    "resourceclaim not available on the node",
    "cannot fit resource",
    "cannot schedule extended resource claim",
)
"""Reasons whose plugins are checked here, too."""
_LEFT_TO_OTHERS = (
    "not eligible due to preemptionPolicy=Never",
    "not eligible due to workload aware preemption",
    "not eligible due to placement-based pod group",
)
"""Messages of kube-scheduler where it does not try to preempt."""


def template_placement(ref: ObjectRef, spec: Mapping[str, Any]) -> UnschedulablePod:
    """The placement rules of a pod template's spec; requests are ignored.

    Raises:
        msgspec.ValidationError: Its selector, tolerations or affinity cannot be read.
    """
    selector = msgspec.convert(spec.get("nodeSelector"), dict[str, str] | None)
    tolerations = msgspec.convert(spec.get("tolerations"), list[Toleration] | None)
    affinity = msgspec.convert(spec.get("affinity"), Affinity | None)
    return UnschedulablePod(ref, {}, {}, selector or {}, tuple(tolerations or ()), _affinities(affinity))


def _affinities(affinity: Affinity | None) -> tuple[tuple[str, Terms], ...]:
    """The terms that an affinity requires of nodes."""
    of_nodes = affinity.node_affinity if affinity else None
    required = of_nodes.required_during_scheduling_ignored_during_execution if of_nodes else None
    return (("its node affinity", required.terms),) if required is not None else ()


def tolerates(one: Toleration, taint: str) -> bool:
    """Whether it tolerates a taint, written as in Node.taints: key=value:effect."""
    key, _, rest = taint.partition("=")
    value, _, effect = rest.rpartition(":")
    if one.effect not in {"", effect}:
        return False
    if one.operator == "Exists":
        return one.key in {"", key}
    return one.operator in {"", "Equal"} and (one.key, one.value) == (key, value)


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
