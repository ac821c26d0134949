"""What every request of ours must look like, whether or not it has an effect: an allow-list, and no more.

Must not know the policy or what is at work.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.rightsizer.kind_cases import CASES
from tests.rightsizer.wire.amounts import NAMES
from tests.rightsizer.wire.law import OURS
from tests.rightsizer.wire.recorder import OWN, Entry, Object

UNDO = OURS + "undo"
CANARY = "hunter2-canary"
"""Stands in the environment of every pod here; it may only ever be kept in a Secret."""
_REPLICAS, _COST = ("spec", "replicas"), "controller.kubernetes.io/pod-deletion-cost"
FIELDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet"), (_REPLICAS,)),
    "Job": (("spec", "suspend"),),
    **{name.partition(".")[0]: (case.field,) for name, case in CASES.items() if case.kind != "Job"},
}
"""What an action may change, by kind."""
_CONTAINERS = ("spec", "template", "spec", "containers")
_OF_GROUP = ("spec", "leaderWorkerTemplate")
TEMPLATES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("Deployment", "StatefulSet", "Notebook", "Job"), (_CONTAINERS,)),
    "LeaderWorkerSet": tuple(
        (*_OF_GROUP, part, "spec", "containers") for part in ("leaderTemplate", "workerTemplate")
    ),
    "InferenceService": (("spec", "predictor", "containers"),),
}
"""Where containers stand whose GPUs may change, by kind: those whose controller makes its pods anew by that.

A Job's does not; its template may change while it is suspended and has no pods (Kubernetes 1.36).
"""
_CREATED = {"Secret", "ConfigMap", "Lease"}
"""What we make besides Events, in our own namespace only."""


def objections(entry: Entry, *, is_person: bool) -> Iterator[str]:
    """All that is wrong with a request."""
    if CANARY in entry.text and entry.kind not in {"Secret", "Pod"} and _is_elsewhere(entry):
        yield "a credential left its place"
    extra = set(entry.query) - {"fieldManager", "fieldValidation", "dryRun"}
    if extra or (entry.method != "DELETE" and entry.query.get("fieldManager") != "gpu-rightsizer"):
        yield f"query {entry.query}"
    match entry.method, entry.subresource:
        case "POST", _:
            yield from _of_post(entry, is_person=is_person)
        case "PATCH", "":
            yield from _of_patch(entry)
        case "PUT", "" if entry.kind == "Lease" and entry.namespace == OWN:
            return
        case "DELETE", "" if entry.kind == "Secret" and entry.namespace == OWN:
            labels = (entry.scene.obj or {"metadata": {}})["metadata"].get("labels", {})
            if entry.scene.obj is not None and OURS + "manifest" not in labels:
                yield "deletes a Secret that is not ours"
        case _:
            yield "not on the list of what may be done"


def _is_elsewhere(entry: Entry) -> bool:
    """Whether the canary stands anywhere but where it was: a merge patch carries lists whole."""
    places = TEMPLATES.get(entry.kind.partition(".")[0], ())
    return any(
        CANARY in str(value) and not any(path[: len(place)] == place and "env" in path for place in places)
        for path, value in _flat(entry.body).items()
    )


def _of_post(entry: Entry, *, is_person: bool) -> Iterator[str]:
    match entry.kind, entry.subresource:
        case "Pod", "eviction":
            yield from _form_of_eviction(entry)
        case "Pod", "" if is_person:
            return
        case "Event", "":
            return
        case kind, "" if kind in _CREATED and entry.namespace == OWN:
            return
        case _:
            yield "not on the list of what may be made"


def _of_patch(entry: Entry) -> Iterator[str]:
    kind = entry.kind.partition(".")[0]
    if kind == "Pod":
        yield from _form_of_patch(entry, {_COST}, ())
    elif kind in FIELDS:
        keys = {field[-1] for field in FIELDS[kind] if "annotations" in field}
        yield from _form_of_patch(entry, keys, FIELDS[kind])
    elif (kind, entry.namespace) != ("ConfigMap", OWN):
        yield "not on the list of what may be patched"


def _form_of_eviction(entry: Entry) -> Iterator[str]:
    options = entry.body.get("deleteOptions") or {}
    uid = entry.scene.obj["metadata"]["uid"] if entry.scene.obj else None
    if not (options.get("preconditions") or {}).get("uid"):
        yield "an eviction without a UID"
    elif entry.is_done and options["preconditions"]["uid"] != uid:
        yield "an eviction of another pod"
    if set(options) - {"preconditions", "dryRun"}:
        yield f"an eviction with {options}"


def _form_of_patch(entry: Entry, keys: set[str], fields: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    body, meta = entry.body, entry.body.get("metadata", {})
    if entry.content_type != "application/merge-patch+json":
        yield f"a patch of type {entry.content_type}"
    if not meta.get("uid") or not meta.get("resourceVersion"):
        yield "a patch without UID or resourceVersion"
    elif entry.is_done and entry.scene.obj is not None:
        there = entry.scene.obj["metadata"]
        if (there["uid"], there["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            yield "a patch of another version"
    if set(body) - {"metadata", "spec"} or set(meta) - {"uid", "resourceVersion", "annotations"}:
        yield f"a patch of {sorted(body)}, {sorted(meta)}"
    if stray := {key for key in meta.get("annotations", {}) if not key.startswith(OURS)} - keys:
        yield f"a patch of annotations {stray}"
    tops = {field[:2] for field in (*fields, *TEMPLATES.get(entry.kind.partition(".")[0], ()))}
    if stray := {("spec", key) for key in body.get("spec", {})} - tops:
        yield f"a patch of {stray}"


def differing(before: Object, after: Object) -> list[tuple[str, ...]]:
    """Paths of what is not the same, but for what the server itself keeps."""
    one, other = _flat(before), _flat(after)
    ours = {("metadata", "resourceVersion"), ("metadata", "generation")}
    paths = [path for path in one.keys() | other.keys() if one.get(path) != other.get(path)]
    return sorted(
        path
        for path in paths
        if path not in ours and path[:2] != ("metadata", "managedFields") and path[0] != "status"
    )


def _flat(node: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    parts = _parts(node)
    if parts:
        return {
            key: value for name, part in parts.items() for key, value in _flat(part, (*path, name)).items()
        }
    return {path: node} if node not in ({}, None) else {}


def _parts(node: Any) -> Mapping[str, Any]:
    """What stands in a mapping, or in a list whose items have names; nothing in anything else."""
    if isinstance(node, Mapping):
        return node
    if isinstance(node, list) and all(isinstance(item, Mapping) and "name" in item for item in node):
        return {f"name={item['name']}": item for item in node}
    return {}


def value_at(node: Any, path: tuple[str, ...]) -> Any:
    """What stands at a path, which names items of lists as `name=main`; None where nothing does."""
    for step in path:
        node = _parts(node).get(step)
    return node


def containers_of(obj: Object) -> list[dict[str, Any]]:
    """Those whose GPUs may change."""
    kind = str(obj["kind"])
    return [one for path in TEMPLATES.get(kind, ()) for one in value_at(obj, path) or ()]


def is_amount(path: tuple[str, ...], kind: str) -> bool:
    """Whether it is a GPU resource of a container that may change."""
    where, what = path[:-4], path[-4:]
    return (
        where in TEMPLATES.get(kind, ())
        and what[0].startswith("name=")
        and what[1] == "resources"
        and what[2] in {"limits", "requests"}
        and what[3] in NAMES
    )


def is_note(path: tuple[str, ...]) -> bool:
    """Whether it is an annotation of ours."""
    return path[:2] == ("metadata", "annotations") and path[2].startswith(OURS)
