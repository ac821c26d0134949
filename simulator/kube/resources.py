"""The resources that the simulated API server serves; to add one, write a row in resources.yaml."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.controlplane.thirdparty import third_party_kinds

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """A resource and how its objects behave.

    Attributes:
        fields: Supported field selectors, in addition to metadata.name and metadata.namespace.
        generation_on_annotations: Whether annotations count for metadata.generation (Deployments only).
        orphans_by_default: Whether deletion without a propagationPolicy orphans dependents (Jobs).
        returns_deleted: Whether an immediate deletion answers with the object instead of a Status.
        unconditional_update: Whether a PUT without resourceVersion is accepted.
        create_on_update: Whether a PUT creates what does not exist.
        status_on_create: Whether a POST may set `status` (Nodes).
        status_keeps: Metadata that a write to `/status` cannot change.
        is_custom: Whether a CustomResourceDefinition defines it; its objects are stored as sent.
        replicas: Path of the replicas that the scale subresource sets.
        typed: Type by path, for custom resources.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    generation: bool = False
    generation_on_annotations: bool = False
    orphans_by_default: bool = False
    returns_deleted: bool = False
    unconditional_update: bool = True
    create_on_update: bool = False
    status_on_create: bool = False
    status_keeps: tuple[str, ...] = ("ownerReferences",)
    is_custom: bool = False
    replicas: tuple[str, ...] = ("spec", "replicas")
    typed: tuple[tuple[str, str], ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS

    @property
    def api_version(self) -> str:
        """As in an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As in the server's messages: `pods`, `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _rows() -> Iterator[Resource]:
    for row in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()):
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in row.items()
        }
        yield Resource(**fields)
    for kind in third_party_kinds():  # each in the version in which it is stored
        yield Resource(
            kind.group,
            kind.versions[0],
            kind.kind,
            kind.plural,
            namespaced=kind.scope == "Namespaced",
            subresources=("scale", "status") if kind.scale else ("status",),
            generation=True,
            is_custom=True,
            replicas=tuple(kind.scale[0].lstrip(".").split(".")) if kind.scale else (),
            typed=tuple({**kind.fields, **kind.root}.items()),
        )


RESOURCES: tuple[Resource, ...] = tuple(_rows())

_BY_PATH = {(row.group, row.version, row.plural): row for row in RESOURCES}
# Of two kinds with one name, the first has the short name; the other needs its group.
_BY_KIND = {row.kind: row for row in reversed(RESOURCES)} | {
    f"{row.kind}.{row.group}": row for row in RESOURCES if row.group
}
_BY_GVK = {(row.api_version, row.kind): row for row in RESOURCES}


def by_path(group: str, version: str, plural: str) -> Resource | None:
    """The row behind a URL, if there is one."""
    return _BY_PATH.get((group, version, plural))


def is_custom(obj: Mapping[str, Any]) -> bool:
    """Whether an object is of a CustomResourceDefinition's kind."""
    row = _BY_GVK.get((obj["apiVersion"], obj["kind"]))
    return row is not None and row.is_custom


def by_kind(kind: str) -> Resource:
    """The row of a kind, such as Job, or Job.batch.volcano.sh."""
    return _BY_KIND[kind]


def of_object(obj: Mapping[str, Any]) -> Resource:
    """The row of an object by its apiVersion and kind."""
    return _BY_GVK[(obj["apiVersion"], obj["kind"])]


def group_versions(*, third_party: bool) -> dict[str, list[str]]:
    """The served versions of each named group, in the table's order; with those of third parties, or without."""
    served: dict[str, list[str]] = {}
    for row in RESOURCES:
        if row.is_custom and not third_party:
            continue
        if row.group and row.version not in served.setdefault(row.group, []):
            served[row.group].append(row.version)
    return served
