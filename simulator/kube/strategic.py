"""Strategic merge patch: lists of objects merge by the keys that the Go types declare. Pure.

Only fields whose Go struct has `patchStrategy:"merge"` are in the table; every other list is replaced whole, which is
what the real server does for, say, tolerations and taints (k8s.io/api/*/v1/types.go).
"""

from collections.abc import Mapping
from typing import Any, cast

from simulator.kube.errors import bad_request
from simulator.kube.objects import Object, clone

MERGE_KEYS: Mapping[str, str] = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_PRIMITIVE_MERGE = {"finalizers"}
_ORDER = "$setElementOrder/"
_DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
_DIRECTIVE = "$patch"
_RETAIN = "$retainKeys"


def strategic_merge(current: Object, patch: Object) -> Object:
    """The object after the patch."""
    directive = patch.get(_DIRECTIVE)
    body = {key: value for key, value in patch.items() if key not in {_DIRECTIVE, _RETAIN}}
    match directive:
        case "replace":
            return cast("Object", _stripped(body))
        case "delete":
            return {}
        case None | "merge":
            pass
        case _:
            raise bad_request(f"Unknown patch type: {directive}")
    retained = patch.get(_RETAIN)
    result = {key: value for key, value in current.items() if retained is None or key in retained}
    for key, value in body.items():
        if key.startswith(_DELETE_PRIMITIVES):
            field = key.removeprefix(_DELETE_PRIMITIVES)
            result[field] = [entry for entry in result.get(field, []) if entry not in value]
        elif not key.startswith(_ORDER):
            _merge_field(result, key, value)
    for key, order in body.items():
        if key.startswith(_ORDER):
            _reorder(result, key.removeprefix(_ORDER), order)
    return result


def _merge_field(result: Object, key: str, value: object) -> None:
    present = result.get(key)
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        if value.get(_DIRECTIVE) == "delete":
            result.pop(key, None)
        else:
            result[key] = strategic_merge(present if isinstance(present, dict) else {}, value)
    elif isinstance(value, list) and _merges(key, value):
        result[key] = _merge_list(present if isinstance(present, list) else [], value, MERGE_KEYS[key])
    elif isinstance(value, list) and key in _PRIMITIVE_MERGE:
        result[key] = list(dict.fromkeys([*(present or []), *value]))
    else:
        result[key] = _stripped(value)


def _merges(key: str, entries: list[Any]) -> bool:
    return key in MERGE_KEYS and all(isinstance(entry, dict) for entry in entries)


def _merge_list(present: list[Object], patch: list[Object], merge_key: str) -> list[Object]:
    if any(entry.get(_DIRECTIVE) == "replace" for entry in patch):
        return [_stripped(entry) for entry in patch if entry.get(_DIRECTIVE) != "replace"]
    result = [clone(entry) for entry in present]
    for entry in patch:
        if merge_key not in entry:
            raise bad_request(f"map: {entry} does not contain declared merge key: {merge_key}")
        places = [index for index, known in enumerate(result) if known.get(merge_key) == entry[merge_key]]
        if entry.get(_DIRECTIVE) == "delete":
            result = [known for index, known in enumerate(result) if index not in places]
        elif places:
            result[places[0]] = strategic_merge(result[places[0]], entry)
        else:
            result.append(strategic_merge({}, entry))
    return result


def _reorder(result: Object, field: str, order: list[Any]) -> None:
    entries = result.get(field)
    if not isinstance(entries, list):
        return
    key = MERGE_KEYS.get(field)
    wanted = [entry.get(key) if isinstance(entry, dict) else entry for entry in order]

    def rank(entry: object) -> int:
        value = entry.get(key) if isinstance(entry, dict) else entry
        return wanted.index(value) if value in wanted else len(wanted)

    result[field] = sorted(entries, key=rank)


def _stripped(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """A new value as it is stored: without directives and nulls."""
    if isinstance(value, dict):
        return strategic_merge({}, cast("Object", {k: v for k, v in value.items() if k != _DIRECTIVE}))
    if isinstance(value, list):
        return [_stripped(entry) for entry in value]
    return value
