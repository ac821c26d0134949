"""Obstacles that keep a pending pod off a node, in addition to a lack of resources. Pure.

Taints and labels of the node; volumes that other nodes mount; pods with its host ports, or with an anti-affinity to it.
What cannot be decided is an obstacle.
https://github.com/kubernetes/kubernetes/tree/v1.36.3/pkg/scheduler/framework/plugins
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rightsizer.inventory.nodes import DROPPED_LABELS, REGIONS, VOLUMES, ZONES, NodeCapacity
from rightsizer.inventory.unschedulable_pods import (
    Affinity,
    HostPort,
    NodeSelector,
    Terms,
    UnschedulablePod,
    host_ports,
    tolerates,
)
from rightsizer.kube.api_objects import LabelSelector, LabelSelectorRequirement, ObjectMeta, PodObject
from rightsizer.kube.owner_kinds import OwnerKind
from rightsizer.model import ClaimKey, Node

_HOST = "kubernetes.io/hostname"

# --- Nodes


def could_host(node: Node, capacity: NodeCapacity, pod: UnschedulablePod) -> bool:
    """Whether an empty node could host a pod."""
    return not any(misfits(node, capacity, pod))


def misfits(node: Node, capacity: NodeCapacity, pod: UnschedulablePod) -> Iterator[str]:
    """Why even an empty node could not host a pod, in words."""
    for name, need in pod.needs.items():
        if need > capacity.allocatable.get(name, 0):
            yield f"it needs more {name} than the node has"
    yield from obstacles(node, pod)


def obstacles(node: Node, pod: UnschedulablePod) -> Iterator[str]:
    """Why a node does not accept a pod, in words."""
    for taint in node.taints:
        if not any(tolerates(one, taint) for one in pod.tolerations):
            yield f"does not tolerate the taint {taint}"
    for key, value in sorted(pod.selector.items()):
        if key.startswith(DROPPED_LABELS):
            yield f"unknown: whether the node has {key}={value}"
        elif node.labels.get(key) != value:
            yield f"its node selector requires {key}={value}"
    for what, terms in pod.affinities:
        answers = [_term_holds(node, expressions, fields) for expressions, fields in terms]
        if True not in answers:
            yield f"unknown: {what}" if None in answers else f"{what} requires other nodes"


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


# --- Volumes


class _VolumeClaimSpec(msgspec.Struct, rename="camel"):
    volume_name: str = ""
    access_modes: list[str] | None = None


class VolumeClaimObject(msgspec.Struct):
    """corev1.PersistentVolumeClaim."""

    metadata: ObjectMeta
    spec: _VolumeClaimSpec = msgspec.field(default_factory=_VolumeClaimSpec)


class _VolumeNodeAffinity(msgspec.Struct):
    required: NodeSelector | None = None


_MIGRATED = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "azureFile": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
    "vsphereVolume": "csi.vsphere.vmware.com",
}
"""CSI drivers that attach the volumes of former plugins."""


class VolumeObject(msgspec.Struct):
    """corev1.PersistentVolume."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a spec that cannot be read."""
        _ = (*self.affinities, self.driver)

    @property
    def affinities(self) -> Iterator[Terms]:
        """Terms of nodes that can mount it; labels of its zone count, too (plugin volumezone)."""
        affinity = msgspec.convert(self.spec.get("nodeAffinity"), _VolumeNodeAffinity | None)
        if affinity is not None and affinity.required is not None:
            yield affinity.required.terms
        for key, text in (self.metadata.labels or {}).items():
            if (name := _PLACES.get(key)) is not None:
                yield (((LabelSelectorRequirement(name, "In", text.split("__")),), ()),)

    @property
    def driver(self) -> str:
        """The CSI driver that attaches it; empty if none does."""
        former = (driver for name, driver in _MIGRATED.items() if self.spec.get(name) is not None)
        csi = msgspec.convert(self.spec.get("csi"), dict[str, Any] | None)
        return str((csi or {}).get("driver", next(former, "")))


class _DriverLimit(msgspec.Struct):
    count: int | None = None


class _NodeDriver(msgspec.Struct):
    name: str
    allocatable: _DriverLimit | None = None


class _CsiNodeSpec(msgspec.Struct):
    drivers: list[_NodeDriver] | None = None


class CsiNodeObject(msgspec.Struct):
    """storagev1.CSINode."""

    metadata: ObjectMeta
    spec: _CsiNodeSpec = msgspec.field(default_factory=_CsiNodeSpec)

    @property
    def limits(self) -> dict[str, int]:
        """The most volumes that its node can attach, by driver."""
        return {
            one.name: _UNLIMITED
            if one.allocatable is None or one.allocatable.count is None
            else one.allocatable.count
            for one in self.spec.drivers or ()
        }


_UNLIMITED = 2**31
_ATTACHABLE = "attachable-volumes-csi-"
"""Prefix of the resource that counts the volumes of a driver that pods need and nodes have."""
CSI_NODES = OwnerKind("storage.k8s.io", ("v1",), "CSINode", "csinodes")
_PLACES = {key: keys[0] for keys in (ZONES, REGIONS) for key in keys}


@dataclasses.dataclass(frozen=True, slots=True)
class Volumes:
    """PersistentVolumeClaims that pending pods name, and all volumes by name.

    Attributes:
        limits: The most volumes of each CSI driver, by node; None if that is not known.
    """

    claims: Mapping[ClaimKey, VolumeClaimObject] = dataclasses.field(default_factory=dict)
    volumes: Mapping[str, VolumeObject] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] | None = None

    def capacities(self, capacities: Mapping[str, NodeCapacity]) -> dict[str, NodeCapacity]:
        """The capacities of nodes, with how many volumes they can attach.

        Volumes of pods count for each driver, and once more while they are attached: fewer are never free.
        """
        limits, found = self.limits or {}, {}
        drivers = {name for most in limits.values() for name in most}
        for node, has in capacities.items():
            # Without a CSINode kube-scheduler knows no limit.
            most = {
                f"{_ATTACHABLE}{name}": limits[node].get(name, 0) if node in limits else _UNLIMITED
                for name in drivers
            }
            used = dict.fromkeys(most, has.requested.get(VOLUMES, 0))
            found[node] = NodeCapacity({**has.allocatable, **most}, {**has.requested, **used})
        return found


def volumes_of(
    claims: Iterable[VolumeClaimObject],
    volumes: Iterable[VolumeObject],
    nodes: Iterable[CsiNodeObject] | None,
) -> Volumes:
    """The volumes."""
    by_key = {(one.metadata.namespace, one.metadata.name): one for one in claims}
    limits = None if nodes is None else {one.metadata.name: one.limits for one in nodes}
    return Volumes(by_key, {one.metadata.name: one for one in volumes}, limits)


def with_volumes(pod: UnschedulablePod, volumes: Volumes) -> UnschedulablePod:
    """A pod that waits, with what its volumes need of nodes, or why it is not known."""
    if not pod.volume_claims:
        return pod
    found: list[tuple[str, Terms]] = []
    needs = collections.Counter(pod.needs)
    for name in pod.volume_claims:
        claim = volumes.claims.get((pod.ref.namespace, name))
        volume = volumes.volumes.get(claim.spec.volume_name) if claim else None
        if claim is None or (claim.spec.volume_name and volume is None):
            why = "which nodes can mount it is not known"
        elif volume is None:
            why = "it is not bound to a volume"
        elif "ReadWriteOncePod" in (claim.spec.access_modes or ()):
            why = "which pod has it is not known"
        elif volume.driver and volumes.limits is None:
            why = "how many volumes nodes can attach is not known"
        else:
            needs.update({f"{_ATTACHABLE}{volume.driver}": 1} if volume.driver and volumes.limits else {})
            found += [(f"its PersistentVolumeClaim {name}", terms) for terms in volume.affinities]
            continue
        return dataclasses.replace(pod, why_not=pod.why_not or f"PersistentVolumeClaim {name}: {why}")
    return dataclasses.replace(pod, affinities=(*pod.affinities, *found), needs=dict(needs))


# --- Pods that are there


@dataclasses.dataclass(frozen=True, slots=True)
class Occupant:
    """A pod on a node that keeps others off by more than what it requests.

    Attributes:
        terms: Its required anti-affinity, as JSON.
    """

    uid: str
    namespace: str
    node: str
    ports: frozenset[HostPort] = frozenset()
    terms: tuple[bytes, ...] = ()


def occupant_of(item: PodObject, node: str) -> Occupant | None:
    """A pod on a node as an occupant; None if it keeps nobody off.

    Raises:
        msgspec.DecodeError: Its affinity or its ports cannot be read.
    """
    affinity = None
    if b"podAntiAffinity" in bytes(item.spec.affinity):
        affinity = msgspec.json.decode(item.spec.affinity, type=Affinity | None)
    terms, ports = affinity.anti_terms if affinity else (), host_ports(item.spec)
    if not terms and not ports:
        return None
    return Occupant(item.metadata.uid, item.metadata.namespace, node, ports, terms)


class _PodTerm(msgspec.Struct, rename="camel"):
    """corev1.PodAffinityTerm."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None

    def selects(
        self, own: str, namespace: str, labels: Mapping[str, str], namespaces: Mapping[str, ObjectMeta]
    ) -> bool:
        """Whether the term of a pod of the namespace `own` is about a pod; true if that is unknown."""
        if self.label_selector is None or not self.label_selector.selects(labels):
            return False
        if not self.namespaces and self.namespace_selector is None:
            return namespace == own
        if namespace in (self.namespaces or ()):
            return True
        known = namespaces.get(namespace)
        selector = self.namespace_selector
        return selector is not None and (known is None or selector.selects(known.labels or {}))


def topology_keys(occupants: Iterable[Occupant]) -> frozenset[str]:
    """The labels of nodes that matter for anti-affinity."""
    return frozenset(
        msgspec.json.decode(term, type=_PodTerm).topology_key
        for term in {term for one in occupants for term in one.terms}
    )


class Occupants:
    """The pods that keep others off.

    Args:
        occupants: The pods.
        domains: The labels of their nodes that matter for anti-affinity, by node.
    """

    def __init__(
        self, occupants: Iterable[Occupant] = (), domains: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self._with_ports: dict[str, list[Occupant]] = collections.defaultdict(list)
        self._terms: dict[tuple[str, bytes], dict[str | None, set[str]]] = {}
        for one in occupants:
            if one.ports:
                self._with_ports[one.node].append(one)
            for text in one.terms:
                key = msgspec.json.decode(text, type=_PodTerm).topology_key
                labels = (domains or {}).get(one.node)
                value = None if labels is None else labels.get(key, "")
                if key == _HOST:
                    value = value or one.node
                places = self._terms.setdefault((one.namespace, text), collections.defaultdict(set))
                places[value].add(one.uid)

    def keeping_off(
        self, pod: UnschedulablePod, nodes: Mapping[str, Node], namespaces: Mapping[str, ObjectMeta]
    ) -> dict[str, frozenset[str]]:
        """UIDs of the pods that keep a pod off each node for as long as they are there."""
        found: dict[str, set[str]] = collections.defaultdict(set)
        for (own, text), places in self._terms.items():
            term = msgspec.json.decode(text, type=_PodTerm)
            if term.selects(own, pod.ref.namespace, pod.labels, namespaces):
                key = term.topology_key
                for name, node in nodes.items():
                    found[name] |= places.get(None, set())  # of an unknown place
                    if key.startswith(DROPPED_LABELS):
                        found[name] |= set[str]().union(*places.values())
                    elif value := node.labels.get(key, name if key == _HOST else ""):
                        found[name] |= places.get(value, set())
        for name in nodes if pod.ports else ():
            found[name].update(
                one.uid
                for one in self._with_ports.get(name, ())
                if any(mine.conflicts(port) for mine in pod.ports for port in one.ports)
            )
        return {name: frozenset(uids) for name, uids in found.items() if uids}
