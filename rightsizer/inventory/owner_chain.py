"""Reads what owns the pods, level by level: only of kinds that some pod's chain leads to."""

import dataclasses
import functools
import http
from collections.abc import Collection, Mapping, Sequence

from rightsizer.errors import RequestRefused
from rightsizer.inventory.cluster_state import ControllerTable
from rightsizer.inventory.pods import Seen
from rightsizer.inventory.scale_subresources import kind_of_scalable, scalable, scalables
from rightsizer.kube.api_objects import ObjectMeta, OwnerObject, OwnerReference
from rightsizer.kube.optional_lists import OptionalLister
from rightsizer.kube.owner_kinds import (
    OWNERS,
    ObjectSummary,
    OwnerKind,
    missing_owners,
    owner_key,
    owner_kind,
    unread_owner,
)
from rightsizer.model import Scalable

FEW = 3
"""So many objects of one kind are asked for one by one; of more the collection is listed."""
_MOST_LEVELS = 16
"""Nothing is owned through more; what would be counts as unread."""
_BUILT_IN = frozenset({"", "apps", "batch"})
"""API groups that every cluster serves: without them there is no plan."""

_Wanted = Mapping[str, tuple[OwnerReference, str]]
"""Owners by key, each with its namespace."""


def read_owners(
    asker: OptionalLister, seen: Sequence[Seen], kinds: Collection[tuple[str, str]]
) -> dict[str, ObjectSummary]:
    """The owners of these pods, and whatever of these kinds carries a record of ours.

    Raises:
        ClusterError: One of Kubernetes's own kinds could not be read.
    """
    return _OwnerReader(asker, seen).read(kinds)


class _OwnerReader:
    def __init__(self, asker: OptionalLister, seen: Sequence[Seen]) -> None:
        self._asker = asker
        self._seen = seen
        self._found: dict[str, ObjectSummary] = {}
        self._listed: set[OwnerKind] = set()
        self._asked: set[str] = set()

    def read(self, kinds: Collection[tuple[str, str]]) -> dict[str, ObjectSummary]:
        level = [(one.owner, one.pod.ref.namespace) for one in self._seen if one.owner is not None]
        for _ in range(_MOST_LEVELS):
            if not level:
                break
            level = self._read_level(level)
        for row in OWNERS:
            if (row.group, row.kind) in kinds and row not in self._listed:
                built_in = row.group in _BUILT_IN
                changed = self._list(row, frozenset()) if built_in else self._changed(row)
                self._add(changed)
        for row in scalables(self._asker.cluster) if kinds else ():
            self._add(self._changed(row))
        return self._found

    def _add(self, changed: Mapping[str, ObjectSummary]) -> None:
        """Of these only metadata was asked for: what was read for the sake of its pods is known better."""
        for key, one in changed.items():
            self._found.setdefault(key, one)

    def _changed(self, row: OwnerKind) -> dict[str, ObjectSummary]:
        """What carries a record of ours, of a kind that not every cluster has; only metadata is asked for."""
        for path in self._asker.paths(row.group, row.versions, row.plural):
            try:
                found = self._list_at(path, row, frozenset())
            except RequestRefused as refused:
                if refused.code == http.HTTPStatus.NOT_FOUND:
                    continue
                if refused.code != http.HTTPStatus.FORBIDDEN:
                    raise
                if owner_kind(row.group, row.kind) is not None:  # of others nobody is expected to let us
                    self._asker.note(path, refused)
                break
            return found
        return {}

    def _read_level(self, level: list[tuple[OwnerReference, str]]) -> list[tuple[OwnerReference, str]]:
        """Read these; the owners that they name in turn."""
        above = self._read_unknown(level)
        for row, wanted in missing_owners(iter(level), self._found).items():
            fresh = {key: wanted[key] for key in wanted if key not in self._asked}
            self._asked.update(fresh)
            found = self._read_kind(row, fresh)
            self._found.update(found)
            named = ((one.metadata.controller, one.ref.namespace) for one in found.values())
            above.extend((owner, namespace) for owner, namespace in named if owner is not None)
        return above

    def _read_unknown(self, level: list[tuple[OwnerReference, str]]) -> list[tuple[OwnerReference, str]]:
        """The same of kinds that we do not know, as far as they have a scale."""
        kinds: dict[OwnerKind, tuple[Scalable, dict[str, tuple[OwnerReference, str]]]] = {}
        for owner, namespace in level:
            key, version = owner_key(owner, namespace), owner.api_version.rpartition("/")[2]
            if owner_kind(owner.group, owner.kind) is not None or key in self._asked:
                continue
            known = scalable(self._asker.cluster, owner.group, version, owner.kind)
            if known is not None:
                row = kind_of_scalable(owner.group, version, owner.kind, known)
                kinds.setdefault(row, (known, {}))[1][key] = (owner, namespace)
        above: list[tuple[OwnerReference, str]] = []
        for row, (known, wanted) in kinds.items():
            self._asked.update(wanted)
            absent = {key: unread_owner(owner, namespace) for key, (owner, namespace) in wanted.items()}
            for key, one in {**absent, **self._read_kind(row, wanted)}.items():
                self._found[key] = dataclasses.replace(one, scalable=known)
                if one.metadata.controller is not None:
                    above.append((one.metadata.controller, one.ref.namespace))
        return above

    def _read_kind(self, row: OwnerKind, wanted: _Wanted) -> dict[str, ObjectSummary]:
        """Objects of one kind: pods that were read already, a few one by one, or the whole collection."""
        found: dict[str, ObjectSummary] = {}
        if row.kind == "Pod":
            found = {one.pod.ref.uid: _as_owner(one) for one in self._seen if one.pod.ref.uid in wanted}
        left = {key: wanted[key] for key in wanted if key not in found}
        if len(left) > FEW:
            self._listed.add(row)
            return {**found, **self._list(row, frozenset(left))}
        for key, (owner, namespace) in left.items():
            found.update(self._get(row, owner, key=key, namespace=namespace))
        return found

    def _get(
        self, row: OwnerKind, owner: OwnerReference, *, key: str, namespace: str
    ) -> dict[str, ObjectSummary]:
        """One object, if it is still the one that is meant: another may have its name by now."""

        def ask(path: str) -> dict[str, ObjectSummary]:
            item = self._asker.one(f"{path}/{owner.name}", OwnerObject)
            table = ControllerTable(row, _version_in(path, row), key.__eq__)
            table.add([item] if item else [])
            return table.found

        nothing: dict[str, ObjectSummary] = {}
        for path in self._asker.paths(row.group, row.versions, row.plural, scope=f"/namespaces/{namespace}"):
            if row.group in _BUILT_IN:
                return ask(path)
            if found := self._asker.optional(path, functools.partial(ask, path), nothing):
                return found
        return {}

    def _list(self, row: OwnerKind, keys: frozenset[str]) -> dict[str, ObjectSummary]:
        def ask(path: str) -> dict[str, ObjectSummary]:
            return self._list_at(path, row, keys)

        paths = self._asker.paths(row.group, row.versions, row.plural)
        return ask(paths[0]) if paths and row.group in _BUILT_IN else self._asker.first_served(paths, ask, {})

    def _list_at(self, path: str, row: OwnerKind, keys: frozenset[str]) -> dict[str, ObjectSummary]:
        version = _version_in(path, row)
        table = self._asker.cluster.reduce(
            path,
            OwnerObject,
            lambda: ControllerTable(row, version, keys.__contains__),
            add=ControllerTable.add,
            metadata_only=not (row.size and keys),
        )
        return table.found


def _as_owner(one: Seen) -> ObjectSummary:
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
