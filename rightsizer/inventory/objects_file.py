"""Objects from a file instead of an API server, as `kubectl get pods,nodes,deployments,… -A -o json` writes them.

JSON or YAML, one List or several one after another. What a kind's absence leaves unknown is said, never made up.
"""

import codecs
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import yaml

from rightsizer.errors import ConfigurationError
from rightsizer.inventory.claims import Claim, ClaimObject, claim_of
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.cluster_state import (
    ControllerTable,
    NodeTable,
    Objects,
    by_name,
    class_of,
    quotas_of,
)
from rightsizer.inventory.managers import SCALERS, ScalerObject, scaler_of
from rightsizer.inventory.nodes import NodeObject
from rightsizer.inventory.pods import PodTable, Seen, ref_of
from rightsizer.inventory.resources import ResourceTable
from rightsizer.kube.api_objects import (
    DisruptionBudget,
    Metadata,
    OwnerObject,
    OwnerReference,
    PodObject,
    PriorityClassObject,
    QuotaObject,
)
from rightsizer.kube.owner_kinds import KUEUE, OWNERS, ObjectSummary, OwnerKind, missing_owners, owner_key

_BETWEEN = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Between two JSON documents and nowhere else: inside of one a comma would stand there; no string holds a newline."""
_SEPARATOR = re.compile(rb"^---[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_FIRST = re.compile(rb"\S")
_GROWTH = 10
"""So many values a byte of YAML may stand for; without aliases it is less than one."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay text, as they are in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(raw: bytes) -> Iterator[bytes]:
    """The JSON of every document in a file.

    Raises:
        ValueError: It is neither JSON nor YAML; the message says why.
    """
    for bom, encoding in (
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
        (codecs.BOM_UTF8, ""),
    ):
        if raw.startswith(bom):  # as PowerShell redirects
            raw = raw.decode(encoding, errors="replace").encode() if encoding else raw[len(bom) :]
    is_split = raw.startswith(b"---") or b"\n---" in raw
    for part in _SEPARATOR.split(raw) if is_split else (raw,):
        first = _FIRST.search(part)
        if first is not None and first.group() == b"{":
            yield from _json_documents(part)
        elif first is not None:
            yield from _yaml_documents(part)


def _yaml_documents(text: bytes) -> Iterator[bytes]:
    try:
        for document in yaml.load_all(text, _Loader):
            if problem := _problem(document, text):
                raise ValueError(problem)
            yield msgspec.json.encode(document)
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        message = f"is neither JSON nor YAML: {' '.join(str(error).split())}"
        raise ValueError(message) from error


def _json_documents(text: bytes) -> Iterator[bytes]:
    """A text, or its parts where it is several lists one after another."""
    begin = 0
    for match in _BETWEEN.finditer(text):
        yield text[begin : match.start() + 1]
        begin = match.end() - 1
    yield text[begin:] if begin else text


def _problem(document: object, text: bytes) -> str:
    if not isinstance(document, dict):
        return "is neither JSON nor YAML of Kubernetes objects"
    return "its YAML aliases (*name) make it endless" if _size(document, {}) > _GROWTH * len(text) else ""


def _size(value: object, known: dict[int, float]) -> float:
    """How many values there are with every alias written out; infinite where one contains itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


COMMAND = "kubectl get pods,nodes,namespaces,deployments,replicasets,statefulsets,jobs,… -A -o json"

_WITHOUT = {
    ("", "Node"): "models, sharing, pools and free GPUs are not known",
    ("", "Namespace"): "opt-outs on namespaces cannot be seen",
    (
        "scheduling.k8s.io",
        "PriorityClass",
    ): "rules about PriorityClasses cannot be checked, nor their annotations be seen",
    ("policy", "PodDisruptionBudget"): "none is taken into account",
    ("autoscaling", "HorizontalPodAutoscaler"): "none is taken into account",
}
"""Kinds that every cluster has objects of, or may well have, and what it means when a file holds none."""

_DETAIL = 300
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

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
    """One object of the file.

    Attributes:
        place: For people: where it stands, and what it is.
    """

    raw: bytes | msgspec.Raw
    version: str
    place: str


def read_file(path: pathlib.Path, gpu_resources: Sequence[str] = ()) -> Objects:
    """Everything that a plan is made from, as far as a file holds it.

    Args:
        path: The file.
        gpu_resources: As `--gpu-resource` takes them.

    Raises:
        ConfigurationError: It cannot be read, or one of its objects cannot be what it says it is.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _File(path, raw).objects(resource_table(gpu_resources))


class _File:
    def __init__(self, path: pathlib.Path, raw: bytes) -> None:
        self._path = path
        self._items: dict[Key, list[_Item]] = {}
        self._names: set[tuple[Key, tuple[str, str]]] = set()
        self._count = 0
        self._problems: list[str] = []
        try:
            doubles = sum(self._take(item, "", "") for item in documents(raw))
        except ValueError as error:
            raise ConfigurationError(f"{path}: {_short(error)}") from error
        if doubles:
            self._problems.append(f"{path} holds {doubles} objects twice; the first of each counts")

    def objects(self, resources: ResourceTable) -> Objects:
        """All of it, reduced to what is needed."""
        pods = PodTable(resources)
        self._each("", "Pod", PodObject, lambda item: pods.add([item]))
        if ("", "Pod") not in self._items:
            raise ConfigurationError(f"{self._path}: holds no pods; write it by: {COMMAND}")
        nodes = NodeTable(resources, frozenset(one.pod.node for one in pods.seen if one.pod.node))
        self._each("", "Node", NodeObject, lambda item: nodes.add([item]))
        controllers = self._controllers(pods.seen)
        self._say_what_is_missing(pods.seen, controllers)
        return Objects(
            pods=tuple(pods.seen),
            waiting=tuple(pods.waiting),
            controllers=controllers,
            nodes=nodes.nodes,
            rooms=nodes.with_requests(pods.requested),
            namespaces=by_name(item.metadata for item in self._all("", "Namespace", Metadata)),
            budgets=tuple(self._all("policy", "PodDisruptionBudget", DisruptionBudget)),
            priority_classes={one.name: one for one in map(class_of, self._classes())},
            claims=dict(self._claims(resources)),
            scalers=tuple(
                scaler
                for row in SCALERS
                for item in self._all(row.group, row.kind, ScalerObject)
                if (scaler := scaler_of(row.kind, item)) is not None
            ),
            queued=tuple(
                ObjectSummary(ref_of(KUEUE.api_version, KUEUE.kind, item.metadata), item.metadata)
                for item in self._all(KUEUE.group, KUEUE.kind, Metadata)
            ),
            quotas=tuple(
                quota
                for item in self._all("", "ResourceQuota", QuotaObject)
                for quota in quotas_of(item, resources)
            ),
            problems=(*self._problems, *pods.problems),
        )

    def _classes(self) -> list[PriorityClassObject]:
        return self._all("scheduling.k8s.io", "PriorityClass", PriorityClassObject)

    def _claims(self, resources: ResourceTable) -> Iterator[tuple[tuple[str, str], Claim]]:
        for item in self._all("resource.k8s.io", "ResourceClaim", ClaimObject):
            yield (item.metadata.namespace, item.metadata.name), claim_of(item, resources)

    def _controllers(self, seen: Sequence[Seen]) -> dict[str, ObjectSummary]:
        """All that may own pods; of pods themselves, which are many, those that something names as its owner."""
        found: dict[str, ObjectSummary] = {}
        for row in OWNERS:
            if row.kind != "Pod":
                found.update(self._owners(row, lambda _: True))
        named = {
            owner_key(owner, namespace)
            for owner, namespace in _references(seen, found)
            if owner.kind == "Pod"
        }
        while named - found.keys():
            wanted = frozenset(named - found.keys())
            read = self._owners(OWNERS[0], wanted.__contains__)
            found.update(read)
            named = {owner_key(owner, ns) for owner, ns in _references((), read) if owner.kind == "Pod"}
        return found

    def _owners(self, row: OwnerKind, keeps: Callable[[str], bool]) -> dict[str, ObjectSummary]:
        found: dict[str, ObjectSummary] = {}
        for item in self._items.get((row.group, row.kind), ()):
            table = ControllerTable(row, item.version, keeps)
            table.add([self._decoded(item, OwnerObject)])
            found.update(table.found)
        return found

    def _say_what_is_missing(self, seen: Sequence[Seen], controllers: Mapping[str, ObjectSummary]) -> None:
        for (group, kind), words in _WITHOUT.items():
            if (group, kind) not in self._items:
                self._problems.append(f"{self._path} holds no {kind}: {words}")
        for row, missing in missing_owners(_references(seen, controllers), controllers).items():
            self._problems.append(
                f"{self._path} lacks {len(missing)} {row.plural} that own its pods: each is judged by itself, "
                "and what owns it is not known"
            )

    # --- objects by kind

    def _all(self, group: str, kind: str, shape: type[T]) -> list[T]:
        return [self._decoded(item, shape) for item in self._items.get((group, kind), ())]

    def _each(self, group: str, kind: str, shape: type[T], take: Callable[[T], None]) -> None:
        for item in self._items.get((group, kind), ()):
            take(self._decoded(item, shape))

    def _decoded(self, item: _Item, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(item.raw, type=shape)
        except _UNREADABLE as error:
            raise ConfigurationError(f"{self._path}: {item.place}: {_short(error)}") from error

    # --- the file's text

    def _take(self, raw: bytes | msgspec.Raw, kind: str, version: str) -> int:
        """Sort in an object, or all of a list's; how many of them were there already, by their names."""
        head = self._head(raw)
        api_version = head.api_version or version
        name = head.kind or kind
        if head.items is not None and name.endswith("List"):
            # An API server's own lists name the kind once, for all that is in them.
            of_items = name.removesuffix("List")
            return sum(self._take(item, of_items, api_version if of_items else "") for item in head.items)
        self._count += 1
        names = self._named(head.metadata, f"item {self._count}")
        place = f"item {self._count} ({name or 'of no kind'} {'/'.join(filter(None, names))})"
        if not name or not api_version or not names[1]:
            raise ConfigurationError(f"{self._path}: {place}: has no kind, no apiVersion or no name")
        group, _, of = api_version.rpartition("/")
        if (group, name) == ("", "Pod") and not names[0]:
            raise ConfigurationError(f"{self._path}: {place}: has no namespace")
        if ((group, name), names) in self._names:
            return 1
        self._names.add(((group, name), names))
        self._items.setdefault((group, name), []).append(_Item(raw, of, place))
        return 0

    def _head(self, raw: bytes | msgspec.Raw) -> _Head:
        try:
            return msgspec.json.decode(raw, type=_Head)
        except _UNREADABLE as error:
            raise ConfigurationError(
                f"{self._path}: what comes after item {self._count} is no Kubernetes object: {_short(error)}"
            ) from error

    def _named(self, metadata: msgspec.Raw, place: str) -> tuple[str, str]:
        try:
            names = msgspec.json.decode(metadata, type=_Names)
        except _UNREADABLE as error:
            raise ConfigurationError(f"{self._path}: {place}: metadata: {_short(error)}") from error
        return names.namespace, names.name


def _references(
    seen: Sequence[Seen], controllers: Mapping[str, ObjectSummary]
) -> Iterator[tuple[OwnerReference, str]]:
    """The owners that these name, each with its namespace."""
    for one in seen:
        if one.owner is not None:
            yield one.owner, one.pod.ref.namespace
    for item in controllers.values():
        if item.metadata.controller is not None:
            yield item.metadata.controller, item.ref.namespace


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _DETAIL else f"{text[:_DETAIL]} ..."
