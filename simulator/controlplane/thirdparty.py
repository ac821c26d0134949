"""CustomResourceDefinitions of the third-party kinds in thirdparty.yaml, and their installation."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from simulator.kubeclient import KubeClient, Object

_TABLE = Path(__file__).with_suffix(".yaml")
_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_OPEN = "x-kubernetes-preserve-unknown-fields"
_TYPES: Mapping[str, Object] = {
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "count": {"type": "integer", "minimum": 0},
    "object": {"type": "object", _OPEN: True},
}
_POLL_S = 0.05
_ESTABLISHING_S = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class ThirdPartyKind:
    """A row of thirdparty.yaml.

    Attributes:
        versions: The stored version first; all are served.
        of: The release of its project with this definition.
        spec: All fields of spec; empty if every field is accepted.
        fields: Type by path, for fields of spec.
        rules: Validation rules of spec, in CEL.
        root: Type by name, for top-level fields.
        approval: Link to the API review; groups under k8s.io need one.
        scale: Paths of desired replicas, current replicas and selector; empty without a scale subresource.
    """

    group: str
    versions: tuple[str, ...]
    kind: str
    scope: str = "Namespaced"
    of: str = ""
    spec: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    root: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scale: tuple[str, ...] = ()
    approval: str = ""

    @property
    def plural(self) -> str:
        """As in a URL."""
        lower = self.kind.lower()
        return (
            f"{lower[:-1]}ies"
            if lower.endswith("y")
            else f"{lower}es"
            if lower.endswith("ss")
            else f"{lower}s"
        )

    @property
    def definition(self) -> Object:
        """Its CustomResourceDefinition."""
        lower = self.kind.lower()
        names = {"kind": self.kind, "listKind": f"{self.kind}List", "plural": self.plural, "singular": lower}
        annotations = {"api-approved.kubernetes.io": self.approval} if self.approval else {}
        versions = [self._version(name, is_stored=name == self.versions[0]) for name in self.versions]
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{self.group}", "annotations": annotations},
            "spec": {"group": self.group, "scope": self.scope, "names": names, "versions": versions},
        }

    def _version(self, name: str, *, is_stored: bool) -> Object:
        subresources: Object = {"status": {}}
        if self.scale:
            wish, count, selector = self.scale
            subresources["scale"] = {
                "specReplicasPath": wish,
                "statusReplicasPath": count,
                "labelSelectorPath": selector,
            }
        return {
            "name": name,
            "served": True,
            "storage": is_stored,
            "schema": {"openAPIV3Schema": self._schema()},
            "subresources": subresources,
        }

    def _schema(self) -> Object:
        schema: Object = {"type": "object", _OPEN: True, "properties": {}}
        for part in ("spec", "status"):
            schema["properties"][part] = {"type": "object", _OPEN: True}
        if self.spec:
            properties = {name: {_OPEN: True} for name in self.spec}
            schema["properties"]["spec"] = {"type": "object", "properties": properties}
        if self.rules:
            schema["properties"]["spec"]["x-kubernetes-validations"] = [{"rule": rule} for rule in self.rules]
        for path, kind in {**self.fields, **self.root}.items():
            node = schema
            *above, last = path.split(".")
            for step in above:
                node = node.setdefault("properties", {}).setdefault(step, {_OPEN: True})
                node["type"] = "object"
            node.setdefault("properties", {})[last] = dict(_TYPES[kind])
        return schema


@functools.cache
def third_party_kinds() -> tuple[ThirdPartyKind, ...]:
    """All rows of the table."""
    rows = yaml.load(_TABLE.read_text(), Loader=yaml.CSafeLoader)
    lists = ("versions", "scale", "spec", "rules")
    return tuple(
        ThirdPartyKind(**{**row, **{name: tuple(row.get(name, ())) for name in lists}}) for row in rows
    )


def install(client: KubeClient, kinds: Sequence[ThirdPartyKind]) -> None:
    """Create the definitions of kinds, and wait until all of them are served."""
    define(client, [kind.definition for kind in kinds])


def define(client: KubeClient, definitions: Sequence[Object]) -> None:
    """Create definitions, and wait until all of them are served."""
    for definition in definitions:
        client.create(_PATH, definition)
    deadline = time.monotonic() + _ESTABLISHING_S
    wanted = {definition["metadata"]["name"] for definition in definitions}
    while missing := wanted - _served(client):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"after {_ESTABLISHING_S:g} s the API server does not serve {', '.join(sorted(missing))}"
            )
        time.sleep(_POLL_S)


def _served(client: KubeClient) -> set[str]:
    return {
        item["metadata"]["name"]
        for item in client.get(_PATH)["items"]
        if any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in item.get("status", {}).get("conditions") or ()  # null at first
        )
    }
