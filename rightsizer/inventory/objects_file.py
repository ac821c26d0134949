"""Reads API objects from a file instead of an API server: `kubectl get pods,nodes,deployments,… -A -o json`.

The file is JSON or YAML, one List or several in a row. Each missing kind is reported.
"""

import codecs
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import yaml

from rightsizer.errors import INVALID_JSON, ConfigurationError
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.demand import DemandObjects, DemandState, asked_of_dra, demand_state
from rightsizer.inventory.demand_kinds import (
    NO_QUEUES,
    JobObject,
    NamedQueues,
    Template,
    TemplateTable,
    template_owners,
    waiting_jobs,
)
from rightsizer.inventory.dra_state import DraState, dra_state, with_devices
from rightsizer.inventory.gpu_requests import ResourceTable
from rightsizer.inventory.kueue_queues import (
    CLUSTER_QUEUES,
    COHORTS,
    FLAVORS,
    LOCAL_QUEUES,
    ClusterQueueObject,
    CohortObject,
    FlavorObject,
    KueueTable,
    LocalQueueObject,
    WorkloadObject,
    queues_of,
)
from rightsizer.inventory.managers import AUTOSCALERS, AutoscalerObject, autoscaler_of
from rightsizer.inventory.nodes import NodeObject, NodeTable
from rightsizer.inventory.obstacles import (
    Occupants,
    VolumeClaimObject,
    VolumeObject,
    topology_keys,
    volumes_of,
)
from rightsizer.inventory.owner_reader import OwnerTable
from rightsizer.inventory.pod_groups import GROUP_KINDS, VOLCANO_QUEUES, GroupObject, VolcanoQueue
from rightsizer.inventory.pods import GpuPod, PodTable
from rightsizer.inventory.resource_claims import (
    CLAIMS,
    CLASSES,
    TEMPLATES,
    ClaimObject,
    ClassObject,
    TemplateObject,
)
from rightsizer.inventory.resource_slices import SLICES, TAINT_RULES, SliceObject, SliceTable, TaintRuleObject
from rightsizer.inventory.workload_builder import ClusterState, priority_class_of, quotas_of
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    Metadata,
    OwnerObject,
    OwnerReference,
    PodObject,
    PriorityClassObject,
    QuotaObject,
    SpecObject,
)
from rightsizer.kube.owner_kinds import (
    JOB,
    KUEUE,
    OWNERS,
    ObjectSummary,
    OwnerKind,
    missing_owners,
    owner_key,
)

_BETWEEN = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Matches only between two JSON documents: within one there would be a comma, and strings contain no newline."""
_SEPARATOR = re.compile(rb"^---[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_FIRST = re.compile(rb"\S")
_MAX_VALUES_PER_BYTE = 10
"""For YAML with aliases expanded; without aliases it is less than one."""
_DEEPEST = 500
"""Maximum nesting depth."""


class _TextTimesLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Leaves timestamps as text, as in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(raw: bytes) -> Iterator[bytes]:
    """Every document of a file, as JSON.

    Raises:
        ValueError: It is neither JSON nor YAML.
    """
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # from a redirect in PowerShell
        raw = raw.decode("utf-16", errors="replace").encode()
    raw = raw.removeprefix(codecs.BOM_UTF8)
    is_split = raw.startswith(b"---") or b"\n---" in raw
    for part in _SEPARATOR.split(raw) if is_split else (raw,):
        first = _FIRST.search(part)
        if first is not None and first.group() == b"{":
            yield from _json_documents(part)
        elif first is not None:
            yield from _yaml_documents(part)


def _yaml_documents(text: bytes) -> Iterator[bytes]:
    try:
        _require_shallow(text)
        for document in yaml.load_all(text, _TextTimesLoader):
            if problem := _problem(document, text):
                raise ValueError(problem)
            yield msgspec.json.encode(document)
    except (LookupError, AttributeError) as error:  # as PyYAML's constructors raise for `!!int ""`
        raise ValueError("is neither JSON nor YAML: a value is not of the type that its tag names") from error
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        message = f"is neither JSON nor YAML: {' '.join(str(error).split())}"
        raise ValueError(message) from error


def _require_shallow(text: bytes) -> None:
    """Check what libyaml has no limit for: its composer overflows the stack, and merge keys multiply.

    Raises:
        RecursionError: Lists and mappings are nested too deeply.
        ValueError: There is a merge key.
    """
    depth = 0
    for event in yaml.parse(text, _TextTimesLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise RecursionError(f"nested more than {_DEEPEST} deep")
        if isinstance(event, yaml.ScalarEvent) and event.value == "<<":
            raise ValueError("uses YAML merge keys (<<); write the fields out")


def _json_documents(text: bytes) -> Iterator[bytes]:
    """The text, split if it holds several lists in a row."""
    text.decode()  # msgspec does not check text that it skips or defers
    begin = 0
    for match in _BETWEEN.finditer(text):
        yield text[begin : match.start() + 1]
        begin = match.end() - 1
    yield text[begin:] if begin else text


def _problem(document: object, text: bytes) -> str:
    if not isinstance(document, dict):
        return "is neither JSON nor YAML of Kubernetes objects"
    is_endless = _size(document, {}) > _MAX_VALUES_PER_BYTE * len(text)
    return "its YAML aliases (*name) make it endless" if is_endless else ""


def _size(value: object, known: dict[int, float]) -> float:
    """Number of values with aliases expanded; infinite if one contains itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


COMMAND = "kubectl get pods,nodes,namespaces,deployments,replicasets,statefulsets,jobs,… -A -o json"

_CLASSES = ("scheduling.k8s.io", "PriorityClass")
_WITHOUT = {
    ("", "Node"): "GPU models, sharing, node pools and free GPUs are unknown",
    ("", "Namespace"): "opt-outs of namespaces are unknown",
    _CLASSES: "rules about PriorityClasses and their annotations cannot be checked",
    ("policy", "PodDisruptionBudget"): "none is taken into account",
    ("autoscaling", "HorizontalPodAutoscaler"): "none is taken into account",
}
"""Common kinds, and the consequence if a file has none of their objects."""

_MAX_DETAIL = 300

T = TypeVar("T")
Key = tuple[str, str]
"""API group and kind."""


class _Head(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    metadata: msgspec.Raw = msgspec.Raw(b"{}")
    items: list[msgspec.Raw] | None = None


class _Names(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class _Item(msgspec.Struct):
    """One object of the file, with its place for messages."""

    raw: bytes | msgspec.Raw
    version: str
    place: str


def read_file(
    path: pathlib.Path, gpu_resources: Sequence[str] = (), queues: NamedQueues = NO_QUEUES
) -> ClusterState:
    """The cluster state, as far as a file holds it; gated pods and suspended Jobs of these queues wait for GPUs.

    Raises:
        ConfigurationError: The file cannot be read, or an object is invalid.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _File(path, raw).objects(resource_table(gpu_resources), queues)


class _File:
    def __init__(self, path: pathlib.Path, raw: bytes) -> None:
        self._path = path
        self._items: dict[Key, list[_Item]] = {}
        self._names: set[tuple[Key, tuple[str, str]]] = set()
        self._count = 0
        self._problems: list[str] = []
        try:
            duplicates = sum(self._take(item, "", "") for item in documents(raw))
        except ValueError as error:
            raise ConfigurationError(f"{path}: {_short(error)}") from error
        if duplicates:
            self._problems.append(f"{path}: {duplicates} duplicate objects are ignored")

    def objects(self, resources: ResourceTable, queues: NamedQueues) -> ClusterState:
        """The cluster state."""
        pods = PodTable(resources, queues.gates, queues.gang_labels)
        for pod in self._all("", "Pod", PodObject):
            pods.add([pod])
        if ("", "Pod") not in self._items:
            raise ConfigurationError(f"{self._path}: contains no pods; create it with: {COMMAND}")
        kueue = KueueTable(KUEUE.versions[0])
        kueue.add(list(self._all(KUEUE.group, KUEUE.kind, WorkloadObject)))
        demand = self._demand(pods, kueue, resources, queues)
        dra = self._dra(pods, demand, resources)
        named = frozenset(one.pod.node for one in pods.gpu_pods if one.pod.node) | dra.devices.nodes.keys()
        nodes = NodeTable(resources, named, topology_keys(pods.occupants))
        for node in self._all("", "Node", NodeObject):
            nodes.add([node])
        owners = self._owners(pods.gpu_pods)
        self._report_missing(pods.gpu_pods, owners)
        return ClusterState(
            pods=pods.grouped,
            addresses=pods.addresses,
            unschedulable=tuple(pods.unschedulable),
            owners=owners,
            nodes={name: with_devices(node, dra.devices) for name, node in nodes.nodes.items()},
            capacities=nodes.capacities(pods.requested),
            occupants=Occupants(pods.occupants, nodes.domains),
            nominated=pods.nominated,
            volumes=volumes_of(
                self._all("", "PersistentVolumeClaim", VolumeClaimObject),
                self._all("", "PersistentVolume", VolumeObject),
            ),
            other_pods=pods.other_pods,
            unknown_gpus=nodes.unknown_gpus,
            other_resources=pods.others,
            namespaces={one.metadata.name: one.metadata for one in self._all("", "Namespace", Metadata)},
            disruption_budgets=tuple(self._all("policy", "PodDisruptionBudget", DisruptionBudget)),
            priority_classes={
                item.metadata.name: priority_class_of(item)
                for item in self._all(*_CLASSES, PriorityClassObject)
            },
            dra=dra,
            autoscalers=tuple(
                found
                for row in AUTOSCALERS
                for item in self._all(row.group, row.kind, AutoscalerObject)
                if (found := autoscaler_of(row.kind, item)) is not None
            ),
            kueue_workloads=tuple(
                ObjectSummary(one.ref(KUEUE.api_version, KUEUE.kind), one) for one in kueue.metadata
            ),
            demand=demand,
            resources=resources,
            quotas=tuple(
                quota
                for item in self._all("", "ResourceQuota", QuotaObject)
                for quota in quotas_of(item, resources)
            ),
            problems=(*self._problems, *pods.problems, *dra.problems),
        )

    def _demand(
        self, pods: PodTable, kueue: KueueTable, resources: ResourceTable, named: NamedQueues
    ) -> DemandState:
        """What waits in addition to unschedulable pods."""
        queues = queues_of(
            self._all(CLUSTER_QUEUES.group, CLUSTER_QUEUES.kind, ClusterQueueObject),
            self._all(LOCAL_QUEUES.group, LOCAL_QUEUES.kind, LocalQueueObject),
            self._all(FLAVORS.group, FLAVORS.kind, FlavorObject),
            self._all(COHORTS.group, COHORTS.kind, CohortObject),
        )
        groups = [
            (row, item) for row in GROUP_KINDS for item in self._all(row.of.group, row.of.kind, GroupObject)
        ]
        limits = list(self._all(VOLCANO_QUEUES.group, VOLCANO_QUEUES.kind, VolcanoQueue))
        quotas = list(self._all("", "ResourceQuota", QuotaObject))
        jobs = list(waiting_jobs(self._all(JOB.group, JOB.kind, JobObject), kueue)) if named.jobs else ()
        objects = DemandObjects(kueue, queues, groups, limits, quotas, jobs, named)
        return demand_state(objects, pods, resources, self._templates_of)

    def _templates_of(self, groups: Sequence[GroupObject]) -> dict[str, tuple[Template, ...]]:
        """The pod templates of PodGroups' owners."""
        found: dict[str, tuple[Template, ...]] = {}
        for row, wanted in template_owners(groups).items():
            table = TemplateTable(row, wanted.keys())
            table.add(self._all(row.group, row.kind, SpecObject))
            found |= table.found
        return found

    def _dra(self, pods: PodTable, demand: DemandState, resources: ResourceTable) -> DraState:
        """Published GPUs, and the claims for them."""
        slices = SliceTable()
        slices.add(list(self._all(SLICES.group, SLICES.kind, SliceObject)))
        return dra_state(
            list(self._all(CLAIMS.group, CLAIMS.kind, ClaimObject)),
            slices,
            list(self._all(TAINT_RULES.group, TAINT_RULES.kind, TaintRuleObject)),
            list(self._all(CLASSES.group, CLASSES.kind, ClassObject)),
            list(self._all(TEMPLATES.group, TEMPLATES.kind, TemplateObject)),
            asked=asked_of_dra(pods, pods.unschedulable, demand, resources),
            resources=resources,
        )

    def _owners(self, pods: Sequence[GpuPod]) -> dict[str, ObjectSummary]:
        """All possible owners; pods, which are many, only if an owner reference names them."""
        found: dict[str, ObjectSummary] = {}
        for row in OWNERS:
            if row.kind != "Pod":
                found.update(self._owners_of_kind(row, lambda _: True))
        named = {owner_key(owner, ns) for owner, ns in _references(pods, found) if owner.kind == "Pod"}
        while named - found.keys():
            wanted = frozenset(named - found.keys())
            read = self._owners_of_kind(OWNERS[0], wanted.__contains__)
            found.update(read)
            named = {owner_key(owner, ns) for owner, ns in _references((), read) if owner.kind == "Pod"}
        return found

    def _owners_of_kind(self, row: OwnerKind, keeps: Callable[[str], bool]) -> dict[str, ObjectSummary]:
        found: dict[str, ObjectSummary] = {}
        for item in self._items.get((row.group, row.kind), ()):
            table = OwnerTable(row, item.version, keeps)
            table.add([self._decoded(item.raw, OwnerObject, item.place)])
            found.update(table.found)
        return found

    def _report_missing(self, pods: Sequence[GpuPod], owners: Mapping[str, ObjectSummary]) -> None:
        for (group, kind), consequence in _WITHOUT.items():
            if (group, kind) not in self._items:
                self._problems.append(f"{self._path} contains no {kind}: {consequence}")
        for row, missing in missing_owners(_references(pods, owners), owners).items():
            self._problems.append(
                f"{self._path} lacks {len(missing)} {row.plural} that own its pods: each is judged separately, "
                "with an unknown owner"
            )

    # --- objects by kind

    def _all(self, group: str, kind: str, shape: type[T]) -> Iterator[T]:
        for item in self._items.get((group, kind), ()):
            yield self._decoded(item.raw, shape, item.place)

    def _decoded(self, raw: bytes | msgspec.Raw, shape: type[T], place: str) -> T:
        try:
            return msgspec.json.decode(raw, type=shape)
        except INVALID_JSON as error:
            raise ConfigurationError(f"{self._path}: {place}: {_short(error)}") from error

    # --- the file's text

    def _take(self, raw: bytes | msgspec.Raw, kind: str, version: str) -> int:
        """Add an object, or all objects of a list; returns the number of duplicates."""
        head = self._decoded(raw, _Head, f"after item {self._count}: not a Kubernetes object")
        api_version = head.api_version or version
        name = head.kind or kind
        if head.items is not None and name.endswith("List"):
            # A list from an API server names the kind only once.
            of_items = name.removesuffix("List")
            return sum(self._take(item, of_items, api_version if of_items else "") for item in head.items)
        self._count += 1
        named = self._decoded(head.metadata, _Names, f"item {self._count}: metadata")
        names = (named.namespace, named.name)
        place = f"item {self._count} ({name or 'no kind'} {'/'.join(filter(None, names))})"
        if not name or not api_version or not names[1]:
            raise ConfigurationError(f"{self._path}: {place}: kind, apiVersion or name is missing")
        group, _, of = api_version.rpartition("/")
        if (group, name) == ("", "Pod") and not names[0]:
            raise ConfigurationError(f"{self._path}: {place}: namespace is missing")
        if ((group, name), names) in self._names:
            return 1
        self._names.add(((group, name), names))
        self._items.setdefault((group, name), []).append(_Item(raw, of, place))
        return 0


def _references(
    pods: Sequence[GpuPod], owners: Mapping[str, ObjectSummary]
) -> Iterator[tuple[OwnerReference, str]]:
    """The owner references of these objects, each with its namespace."""
    for one in pods:
        if one.owner is not None:
            yield one.owner, one.pod.ref.namespace
    for item in owners.values():
        if item.metadata.controller is not None:
            yield item.metadata.controller, item.ref.namespace


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]} ..."
