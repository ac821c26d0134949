"""Reads the owners of pods, level by level, and only of kinds in some pod's owner chain.

A kind without a row in `owner_kinds` is found by discovery if it has a scale subresource. Its
CustomResourceDefinition gives the path of its replicas, so that one PATCH can change them and keep the undo record.
https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#scale-subresource
"""

import dataclasses
import functools
import http
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from rightsizer.changes.record_codec import HISTORY_ANNOTATION, UNDO_ANNOTATION
from rightsizer.errors import RequestRefused
from rightsizer.inventory.managers import field_writers
from rightsizer.inventory.pods import LAST_APPLIED, GpuPod
from rightsizer.kube.api_objects import ObjectMeta, OwnerObject, OwnerReference
from rightsizer.kube.cluster import ObjectReader
from rightsizer.kube.owner_kinds import (
    OWNERS,
    ObjectSummary,
    OwnerKind,
    missing_owners,
    object_key,
    owner_key,
    owner_kind,
    unread_owner,
)
from rightsizer.model import Scalable

log = logging.getLogger(__name__)

FEW_OWNERS = 3
"""Up to this many objects of one kind are read one by one; for more the collection is listed."""
_MAX_LEVELS = 16
"""Maximum length of an owner chain, which no real one reaches; owners further up count as unread."""
_BUILT_IN = frozenset({"", "apps", "batch"})
"""API groups that every cluster serves: without them there is no plan."""
CHANGE_ANNOTATIONS = frozenset({UNDO_ANNOTATION, HISTORY_ANNOTATION})
"""An object with one of these was changed by gpu-rightsizer, and matters even without pods."""

_ABSENT = frozenset({http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND})

T = TypeVar("T")

_Owner = tuple[OwnerReference, str]
"""An owner reference, and the namespace of the object that has it."""
_Level = list[_Owner]


class OptionalLister:
    """Requests for optional resources.

    Attributes:
        scope: The part of paths that names the namespace; empty for all namespaces.
        problems: Messages about resources that were not served or are forbidden.
    """

    def __init__(self, cluster: ObjectReader, scope: str) -> None:
        self.cluster = cluster
        self.scope = scope
        self.problems: list[str] = []

    def paths(self, row: OwnerKind, *, scope: str | None = None) -> tuple[str, ...]:
        """Paths of a collection in those versions that the cluster serves, the best one first."""
        scope = self.scope if scope is None else scope
        if not row.group:
            return (f"/api/v1{scope}/{row.plural}",)
        served = self.optional("/apis", self.cluster.served, None)
        # Without permission to list the versions, only the best one can be tried.
        versions = row.versions[:1] if served is None else served.get(row.group, ())
        return tuple(
            f"/apis/{row.group}/{one}{scope}/{row.plural}" for one in row.versions if one in versions
        )

    def all(self, paths: Sequence[str], kind: type[T]) -> list[T]:
        """All objects of an optional collection."""
        ask = functools.partial(self.cluster.list_all, kind=kind)
        nothing: list[T] = []
        return self.first_served(paths, ask, nothing)

    def first_served(self, paths: Sequence[str], ask: Callable[[str], T], default: T) -> T:
        """The response at the first path that exists: a group may not serve each kind in each of its versions."""
        for path in paths[:-1]:
            try:
                return ask(path)
            except RequestRefused as refused:
                if refused.code != http.HTTPStatus.NOT_FOUND:
                    break
        return self.optional(paths[-1], lambda: ask(paths[-1]), default) if paths else default

    def if_served(self, row: OwnerKind, ask: Callable[[str], T], default: T) -> T:
        """The response for a kind without namespaces; the default where no version of its group has it yet."""
        for path in self.paths(row, scope=""):
            try:
                return ask(path)
            except RequestRefused as refused:
                if refused.code != http.HTTPStatus.NOT_FOUND:
                    if refused.code not in _ABSENT:
                        raise
                    self.note(path, refused)
                    break
        return default

    def optional(self, path: str, ask: Callable[[], T], default: T) -> T:
        """The response; the default and a note if the resource is not served or forbidden."""
        try:
            return ask()
        except RequestRefused as refused:
            if refused.code not in _ABSENT:
                raise
            self.note(path, refused)
            return default

    def note(self, path: str, refused: RequestRefused) -> None:
        """Note a missing resource."""
        problem = f"{path} is left out: {refused.code} {refused.reason}: {refused.detail}"
        if problem not in self.problems:
            self.problems.append(problem)


class OwnerTable:
    """Owners of one kind, collected page by page.

    Args:
        row: Their kind.
        version: Their API version.
        keeps: Which objects to keep, by key; objects that gpu-rightsizer changed are always kept.
    """

    def __init__(self, row: OwnerKind, version: str, keeps: Callable[[str], bool]) -> None:
        self._row = row
        self._api_version = f"{row.group}/{version}" if row.group else version
        self._keeps = keeps
        self.found: dict[str, ObjectSummary] = {}

    def add(self, items: Sequence[OwnerObject]) -> None:
        """Add a page of objects."""
        for item in items:
            one = ObjectSummary(item.metadata.ref(self._api_version, self._row.kind), item.metadata)
            key = object_key(one)
            if CHANGE_ANNOTATIONS & (item.metadata.annotations or {}).keys() or self._keeps(key):
                annotations = dict(item.metadata.annotations or {})
                annotations.pop(LAST_APPLIED, None)
                item.metadata.annotations = annotations
                is_top = _may_be_top(item.metadata)
                fields, item.metadata.managed_fields = item.metadata.managed_fields or (), None
                self.found[key] = dataclasses.replace(
                    one,
                    size=_size_of(item, self._row.size),
                    spec=bytes(item.spec) if is_top else b"",
                    status=bytes(item.status) if is_top and self._row.phase else b"",
                    written_by=field_writers(fields, self._row.size) if is_top else (),
                )


def _may_be_top(metadata: ObjectMeta) -> bool:
    """Whether it has no owner, or only one that creates it on schedule, such as a CronJob."""
    above = metadata.controller
    row = owner_kind(above.group, above.kind) if above is not None else None
    return above is None or (row is not None and row.starts_others)


def _size_of(item: OwnerObject, path: tuple[str, ...]) -> int | bool | None:
    """The number or switch at a path; None if there is none."""
    if not path:
        return None
    here: object = msgspec.json.decode(item.spec)
    for part in path[1:]:
        here = here.get(part) if isinstance(here, dict) else None
    return here if isinstance(here, int) else None


class OwnerReader:
    """Reads the owners of these pods.

    Raises:
        ClusterError: One of Kubernetes's own kinds could not be read.
    """

    def __init__(self, lister: OptionalLister, pods: Sequence[GpuPod]) -> None:
        self._lister = lister
        self._pods = pods
        self._found: dict[str, ObjectSummary] = {}
        self._listed: set[OwnerKind] = set()
        self._asked: set[str] = set()

    def read(self, kinds: Collection[tuple[str, str]]) -> dict[str, ObjectSummary]:
        """The owners, and all objects of these kinds that gpu-rightsizer changed."""
        level = [(one.owner, one.pod.ref.namespace) for one in self._pods if one.owner is not None]
        for _ in range(_MAX_LEVELS):
            if not level:
                break
            level = self._read_level(level)
        for row in OWNERS:
            if (row.group, row.kind) in kinds and row not in self._listed:
                built_in = row.group in _BUILT_IN
                self._add(self._list(row, frozenset()) if built_in else self._changed(row))
        for row in scalable_kinds(self._lister.cluster) if kinds else ():
            self._add(self._changed(row))
        return self._found

    def _add(self, changed: Mapping[str, ObjectSummary]) -> None:
        """Add objects of which only metadata was read; those that were read with their spec take precedence."""
        for key, one in changed.items():
            self._found.setdefault(key, one)

    def _changed(self, row: OwnerKind) -> dict[str, ObjectSummary]:
        """Objects of an optional kind that gpu-rightsizer changed, metadata only."""
        for path in self._lister.paths(row):
            try:
                return self._list_at(path, row, frozenset())
            except RequestRefused as refused:
                if refused.code == http.HTTPStatus.NOT_FOUND:
                    continue
                if refused.code != http.HTTPStatus.FORBIDDEN:
                    raise
                if owner_kind(row.group, row.kind):  # permissions for other kinds are not expected
                    self._lister.note(path, refused)
                break
        return {}

    def _read_level(self, level: _Level) -> _Level:
        """Read these owners; returns their owners."""
        above: _Level = []
        known = {row: (None, owners) for row, owners in missing_owners(level, self._found).items()}
        for row, (scalable, owners) in {**self._scalable(level), **known}.items():
            wanted = {key: owners[key] for key in owners if key not in self._asked}
            self._asked.update(wanted)
            found = self._read_kind(row, wanted)
            if scalable is not None:
                absent = {key: unread_owner(*one) for key, one in wanted.items()}
                found = {
                    key: dataclasses.replace(one, scalable=scalable)
                    for key, one in {**absent, **found}.items()
                }
            self._found.update(found)
            named = ((one.metadata.controller, one.ref.namespace) for one in found.values())
            above.extend((owner, namespace) for owner, namespace in named if owner is not None)
        return above

    def _scalable(self, level: _Level) -> dict[OwnerKind, tuple[Scalable, dict[str, _Owner]]]:
        """Owners of unknown kinds that have a scale subresource, by kind."""
        kinds: dict[OwnerKind, tuple[Scalable, dict[str, _Owner]]] = {}
        for owner, namespace in level:
            key, version = owner_key(owner, namespace), owner.api_version.rpartition("/")[2]
            if owner_kind(owner.group, owner.kind) is not None or key in self._asked:
                continue
            found = find_scalable(self._lister.cluster, owner.group, version, owner.kind)
            if found is not None:
                row = OwnerKind(owner.group, (version,), owner.kind, found.plural, found.replicas)
                kinds.setdefault(row, (found, {}))[1][key] = (owner, namespace)
        return kinds

    def _read_kind(self, row: OwnerKind, wanted: Mapping[str, _Owner]) -> dict[str, ObjectSummary]:
        """Objects of one kind: pods that were read already, a few one by one, or the whole collection."""
        found: dict[str, ObjectSummary] = {}
        if row.kind == "Pod":
            uids = {owner.uid for owner, _ in wanted.values()}
            own = map(_as_owner, (one for one in self._pods if one.pod.ref.uid in uids))
            found = {object_key(one): one for one in own if object_key(one) in wanted}
        left = {key: wanted[key] for key in wanted if key not in found}
        if len(left) > FEW_OWNERS:
            self._listed.add(row)
            return {**found, **self._list(row, frozenset(left))}
        for key, (owner, namespace) in left.items():
            found.update(self._get(row, owner, key=key, namespace=namespace))
        return found

    def _get(
        self, row: OwnerKind, owner: OwnerReference, *, key: str, namespace: str
    ) -> dict[str, ObjectSummary]:
        """One object; none if its name is now another's."""

        def ask(path: str) -> dict[str, ObjectSummary]:
            item = self._lister.cluster.find(f"{path}/{owner.name}", OwnerObject)
            table = OwnerTable(row, _version_in(path, row), key.__eq__)
            table.add([item] if item else [])
            return table.found

        nothing: dict[str, ObjectSummary] = {}
        for path in self._lister.paths(row, scope=f"/namespaces/{namespace}"):
            if row.group in _BUILT_IN:
                return ask(path)
            if found := self._lister.optional(path, functools.partial(ask, path), nothing):
                return found
        return {}

    def _list(self, row: OwnerKind, keys: frozenset[str]) -> dict[str, ObjectSummary]:
        ask = functools.partial(self._list_at, row=row, keys=keys)
        paths = self._lister.paths(row)
        if paths and row.group in _BUILT_IN:
            return ask(paths[0])
        return self._lister.first_served(paths, ask, {})

    def _list_at(self, path: str, row: OwnerKind, keys: frozenset[str]) -> dict[str, ObjectSummary]:
        version = _version_in(path, row)
        table = self._lister.cluster.reduce(
            path,
            OwnerObject,
            lambda: OwnerTable(row, version, keys.__contains__),
            add=OwnerTable.add,
            metadata_only=not (row.size and keys),
        )
        return table.found


def _as_owner(one: GpuPod) -> ObjectSummary:
    """A GPU pod that owns others."""
    ref = one.pod.ref
    owners = [one.owner] if one.owner else None
    metadata = one.metadata or ObjectMeta(
        name=ref.name, namespace=ref.namespace, uid=ref.uid, owner_references=owners
    )
    return ObjectSummary(ref, metadata)


def _version_in(path: str, row: OwnerKind) -> str:
    """The API version in a path."""
    return path.split("/")[3] if row.group else row.versions[0]


# --- Kinds without a row that have a scale subresource

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NOT_CUSTOM = frozenset({"apps", "batch", "autoscaling", "policy", "extensions"})


class _Scale(msgspec.Struct, rename="camel"):
    spec_replicas_path: str = ""


class _Subresources(msgspec.Struct):
    scale: _Scale | None = None


class _DefinitionVersion(msgspec.Struct):
    name: str
    subresources: _Subresources | None = None

    @property
    def scale(self) -> _Scale | None:
        """The scale subresource; None if it has none."""
        return self.subresources.scale if self.subresources else None


class _DefinitionNames(msgspec.Struct):
    plural: str = ""
    kind: str = ""


class _DefinitionSpec(msgspec.Struct):
    versions: list[_DefinitionVersion]
    group: str = ""
    names: _DefinitionNames = msgspec.field(default_factory=_DefinitionNames)


class CustomDefinition(msgspec.Struct):
    """apiextensionsv1.CustomResourceDefinition."""

    spec: _DefinitionSpec


def find_scalable(cluster: ObjectReader, group: str, version: str, kind: str) -> Scalable | None:
    """The scale subresource of a kind; None if it has none, or discovery fails.

    Raises:
        ClusterError: The API server does not respond.
    """
    if not _is_custom(group):
        return None
    names = _names(cluster, f"{group}/{version}")
    plural = next((name for name, of in names.items() if of == kind and "/" not in name), "")
    if f"{plural}/scale" not in names:
        return None
    return Scalable(plural, _replicas_path(cluster, f"{plural}.{group}", version))


def scalable_kinds(cluster: ObjectReader) -> Iterator[OwnerKind]:
    """All kinds without a row whose replicas can be changed.

    Raises:
        ClusterError: The API server does not respond.
    """
    try:
        served = cluster.served()
    except RequestRefused:
        return
    for group, versions in served.items():
        if not _is_custom(group):
            continue
        names = _names(cluster, f"{group}/{versions[0]}")
        for name in [kind for plural, kind in names.items() if f"{plural}/scale" in names]:
            found = None if owner_kind(group, name) else find_scalable(cluster, group, versions[0], name)
            if found is not None and found.replicas:
                yield OwnerKind(group, (versions[0],), name, found.plural, found.replicas)


def _is_custom(group: str) -> bool:
    """Whether a group may have custom resources; of the k8s.io groups only those of SIGs (x-k8s.io) do."""
    is_kubernetes = group in _NOT_CUSTOM or (group.endswith(".k8s.io") and not group.endswith(".x-k8s.io"))
    return bool(group) and not is_kubernetes


def _names(cluster: ObjectReader, group_version: str) -> dict[str, str]:
    """Kinds by resource name; none if an aggregated API does not respond."""
    try:
        return {one.name: one.kind for one in cluster.resources(group_version)}
    except RequestRefused:
        return {}


def _replicas_path(cluster: ObjectReader, name: str, version: str) -> tuple[str, ...]:
    """The path of the number of replicas; empty if the definition cannot be read."""
    try:
        definition = cluster.get(f"{DEFINITIONS}/{name}", CustomDefinition)
    except RequestRefused as refused:
        if refused.code == http.HTTPStatus.FORBIDDEN:
            log.warning("%s: cannot read the path of its replicas, so it gets only advice: %s", name, refused)
        return ()
    for one in definition.spec.versions:
        scale = one.scale
        if one.name == version and scale is not None and scale.spec_replicas_path.startswith(".spec."):
            return tuple(scale.spec_replicas_path.split(".")[1:])
    return ()
