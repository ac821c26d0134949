"""Reads API objects from a file instead of an API server: `kubectl get pods,nodes,deployments,… -A -o json`.

The file is JSON or YAML, one List or several in a row. Each missing kind is reported.
"""

import codecs
import dataclasses
import math
import pathlib
import re
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import yaml

from rightsizer.errors import INVALID_JSON, ConfigurationError, RequestRefused
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.demand_kinds import NO_QUEUES, NamedQueues
from rightsizer.inventory.obstacles import CSI_NODES
from rightsizer.inventory.owner_reader import DEFINITIONS, CustomDefinition
from rightsizer.inventory.pods import GpuPod
from rightsizer.inventory.workload_builder import ClusterState
from rightsizer.kube.api_objects import OwnerReference
from rightsizer.kube.cluster import PAGE_SIZE, ApiResource, ObjectReader
from rightsizer.kube.owner_kinds import ObjectSummary, missing_owners

_BETWEEN = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Matches only between two JSON documents: within one there would be a comma, and strings contain no newline."""
_SEPARATOR = re.compile(rb"^---[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_FIRST = re.compile(rb"\S")
_MAX_VALUES_PER_BYTE = 10
"""Limit for YAML with aliases expanded; without aliases it is less than one."""
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
_FIXED = frozenset({"", "apps", "batch", "policy", "scheduling.k8s.io"})
"""API groups of Kubernetes that are read in v1; objects of older versions have the same fields."""

_OF_EACH_NODE = frozenset({(CSI_NODES.group, CSI_NODES.plural)})
"""Kinds of which kubelets write an object for each node: a file without them leaves them out."""

T = TypeVar("T")
A = TypeVar("A")
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


class _Item(NamedTuple):
    """One object of the file, as it is and with its metadata alone, and its place for messages."""

    raw: bytes | msgspec.Raw
    metadata: bytes
    place: str


def read_file(
    path: pathlib.Path,
    kinds: Collection[Key],
    gpu_resources: Sequence[str] = (),
    queues: NamedQueues = NO_QUEUES,
) -> ClusterState:
    """The cluster state, as far as a file holds it; the arguments are those of `read_cluster`.

    Raises:
        ConfigurationError: The file cannot be read, or an object is invalid.
    """
    file = ObjectsFile(path, gpu_resources)
    state = read_cluster(file, kinds, queues=queues)
    return dataclasses.replace(state, problems=(*file.problems(state), *state.problems))


class ObjectsFile(ObjectReader):
    """The objects of a file, read by the paths of an API server that holds them all.

    Raises:
        ConfigurationError: The file cannot be read, or holds no pods.
    """

    def __init__(self, path: pathlib.Path, gpu_resources: Sequence[str] = ()) -> None:
        self.host = str(path)
        self.gpu_resources = gpu_resources
        self._items: dict[Key, dict[str, _Item]] = {}
        self._versions: dict[Key, dict[str, None]] = {}
        self._count = 0
        try:
            raw = path.read_bytes()
            self._duplicates = sum(self._take(item, "", "") for item in documents(raw))
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
        except ValueError as error:
            raise ConfigurationError(f"{path}: {_short(error)}") from error
        if ("", "Pod") not in self._items:
            raise ConfigurationError(f"{path}: contains no pods; create it with: {COMMAND}")
        self._kinds = {(group, _plural(kind)): (group, kind) for group, kind in self._items}
        self._definitions = self.list_all(DEFINITIONS, CustomDefinition)
        for spec in (one.spec for one in self._definitions):
            key = (spec.group, spec.names.kind)
            self._kinds[spec.group, spec.names.plural] = key
            self._versions.setdefault(key, {}).update(dict.fromkeys(each.name for each in spec.versions))

    def problems(self, state: ClusterState) -> Iterator[str]:
        """Yield what is missing in the file, and its consequence, in words."""
        if self._duplicates:
            yield f"{self.host}: {self._duplicates} duplicate objects are ignored"
        for key, consequence in _WITHOUT.items():
            if key not in self._items:
                yield f"{self.host} contains no {key[1]}: {consequence}"
        for row, missing in missing_owners(_references(state.pods, state.owners), state.owners).items():
            yield (
                f"{self.host} lacks {len(missing)} {row.plural} that own its pods: each is judged separately, "
                "with an unknown owner"
            )

    def reduce(
        self,
        path: str,
        kind: type[T],
        start: Callable[[], A],
        *,
        add: Callable[[A, list[T]], None],
        metadata_only: bool = False,
        selectors: Mapping[str, str] = types.MappingProxyType({}),
    ) -> A:
        """A collection, in the order of an API server; all of its objects, so that no selectors can be given.

        Raises:
            RequestRefused: The file holds the kind in other versions.
        """
        if any(selectors.values()):
            raise ValueError(f"{path}: a file is read as a whole")
        found, items = start(), [one for _, one in sorted(self._at(path)[0].items())]
        for place in range(0, len(items), PAGE_SIZE):
            page = [
                self._decoded(one.metadata if metadata_only else one.raw, kind, one.place)
                for one in items[place : place + PAGE_SIZE]
            ]
            add(found, page)
        return found

    def get(self, path: str, kind: type[T]) -> T:
        """One object.

        Raises:
            RequestRefused: The file does not hold it.
        """
        items, key = self._at(path)
        if key not in items:
            raise self._refused(path, "it does not hold it")
        return self._decoded(items[key].raw, kind, items[key].place)

    def served(self) -> Mapping[str, tuple[str, ...]]:
        """Versions in which the file holds or defines objects of each API group."""
        found = {group: {"v1": None} for group in _FIXED if group}
        for (group, _), versions in self._versions.items():
            found.setdefault(group, {}).update(versions)
        return {group: tuple(versions) for group, versions in found.items()}

    def resources(self, group_version: str) -> list[ApiResource]:
        """Resources that the file's CustomResourceDefinitions define."""
        found = []
        for spec in (one.spec for one in self._definitions):
            for version in spec.versions:
                if f"{spec.group}/{version.name}" == group_version:
                    found.append(ApiResource(spec.names.plural, spec.names.kind))
                    found += [ApiResource(f"{spec.names.plural}/scale", "Scale")] if version.scale else []
        return found

    def minor(self) -> None:
        """None: objects do not tell the version of Kubernetes."""

    def _at(self, path: str) -> tuple[Mapping[str, _Item], str]:
        """The collection that a path names, and the key of the object in it."""
        _, api, *rest = path.split("/")
        group = "" if api == "api" else rest.pop(0)
        version, *rest = rest
        namespace = rest[1] if rest[0] == "namespaces" and rest[2:] else ""
        plural, *name = rest[2:] if namespace else rest
        key = self._kinds.get((group, plural), ("", ""))
        if not any(key) and (group, plural) in _OF_EACH_NODE:
            raise self._refused(path, "it holds none")
        versions = self._versions.get(key, {})
        if versions and group not in _FIXED and version not in versions:
            raise self._refused(path, f"it holds them as {', '.join(versions)}")
        return self._items.get(key, {}), f"{namespace}/{''.join(name)}"

    def _refused(self, path: str, why: str) -> RequestRefused:
        return RequestRefused(f"reading {path} in {self.host}", code=404, reason="NotFound", detail=why)

    def _decoded(self, raw: bytes | msgspec.Raw, shape: type[T], place: str) -> T:
        try:
            return msgspec.json.decode(raw, type=shape)
        except INVALID_JSON as error:
            raise ConfigurationError(f"{self.host}: {place}: {_short(error)}") from error

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
        names = self._decoded(head.metadata, _Names, f"item {self._count}: metadata")
        key = f"{names.namespace}/{names.name}"
        place = f"item {self._count} ({name or 'no kind'} {key.strip('/')})"
        if not name or not api_version or not names.name:
            raise ConfigurationError(f"{self.host}: {place}: kind, apiVersion or name is missing")
        group, _, of = api_version.rpartition("/")
        if (group, name) == ("", "Pod") and not names.namespace:
            raise ConfigurationError(f"{self.host}: {place}: namespace is missing")
        items = self._items.setdefault((group, name), {})
        if key in items:
            return 1
        items[key] = _Item(raw, b'{"metadata":' + bytes(head.metadata) + b"}", place)
        self._versions.setdefault((group, name), {})[of] = None
        return 0


def _plural(kind: str) -> str:
    """The name of a kind's resource (meta.UnsafeGuessKindToResource)."""
    name = kind.lower()
    if name.endswith("s"):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


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
