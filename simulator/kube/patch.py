"""JSON merge patch (RFC 7386) and JSON patch (RFC 6902). Pure; strategic merge patch has its own file."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from simulator.kube.errors import ApiError, bad_request, unprocessable, unsupported_media
from simulator.kube.objects import Object, clone

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
_MAX_OPERATIONS = 10_000  # as the real server


def apply_patch(content_type: str, current: Object, body: bytes) -> Object:
    """The object after the patch; `current` is left as it is."""
    if content_type == APPLY_PATCH:
        raise unsupported_media(
            "server-side apply is not served by this simulator - accepted media types include: "
            f"{JSON_PATCH}, {MERGE_PATCH}, {STRATEGIC_MERGE_PATCH}"
        )
    if content_type not in _TYPES:
        raise unsupported_media(
            "the body of the request was in an unknown format - accepted media types include: "
            f"{JSON_PATCH}, {MERGE_PATCH}, {APPLY_PATCH}, {STRATEGIC_MERGE_PATCH}"
        )
    try:
        patch = json.loads(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    patched = _TYPES[content_type](clone(current), patch)
    if not isinstance(patched, dict):
        raise bad_request("the patched document is not an object")
    return patched


def _merge(current: Object, patch: object) -> object:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a merge patch must be a JSON object")
    return merge(current, patch)


def merge(target: object, patch: object) -> object:
    """RFC 7386: objects merge, null deletes, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def _strategic(current: Object, patch: object) -> object:
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a strategic merge patch must be a JSON object")
    return strategic_merge(current, patch)


def _json_patch(document: object, operations: object) -> object:
    if not isinstance(operations, list) or not all(isinstance(entry, dict) for entry in operations):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type jsonpatch.Patch"
        )
    if len(operations) > _MAX_OPERATIONS:
        raise ApiError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {_MAX_OPERATIONS}, got {len(operations)}",
        )
    holder: list[Any] = [document]  # so that the root can be replaced like any other value
    for entry in operations:
        try:
            _OPERATIONS[entry["op"]](holder, entry)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise unprocessable() from error
    return holder[0]


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise ValueError(pointer)
    return ["0", *(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])]


def _index(step: str, *, end: int) -> int:
    index = int(step)
    if not 0 <= index < end:
        raise IndexError(step)
    return index


def _child(node: Any, step: str) -> Any:  # noqa: ANN401 - any JSON value
    return node[_index(step, end=len(node))] if isinstance(node, list) else node[step]


def _parent(holder: list[Any], pointer: str) -> tuple[Any, str]:
    node: Any = holder
    *path, last = _steps(pointer)
    for step in path:
        node = _child(node, step)
    return node, last


def _read(holder: list[Any], pointer: str) -> Any:  # noqa: ANN401 - any JSON value
    return _child(*_parent(holder, pointer))


def _insert(holder: list[Any], pointer: str, value: object) -> None:
    node, last = _parent(holder, pointer)
    if node is holder:
        holder[0] = value
    elif isinstance(node, list):
        node.insert(len(node) if last == "-" else _index(last, end=len(node) + 1), value)
    else:
        node[last] = value


def _take(holder: list[Any], pointer: str) -> Any:  # noqa: ANN401 - any JSON value
    node, last = _parent(holder, pointer)
    return node.pop(_index(last, end=len(node))) if isinstance(node, list) else node.pop(last)


def _replace(holder: list[Any], entry: Mapping[str, Any]) -> None:
    node, last = _parent(holder, entry["path"])
    if isinstance(node, list):
        _child(node, last)  # must exist; in an object the real server's library adds what is not there
    node[int(last) if isinstance(node, list) else last] = entry["value"]


def _test(holder: list[Any], entry: Mapping[str, Any]) -> None:
    expected = entry["value"]
    try:
        actual = _read(holder, entry["path"])
    except KeyError:
        if expected is not None:  # a missing value equals null, as in the real server's library
            raise
        return
    if actual != expected or isinstance(actual, bool) is not isinstance(expected, bool):
        raise ValueError(entry["path"])


_OPERATIONS: Mapping[str, Callable[[list[Any], Mapping[str, Any]], None]] = {
    "add": lambda holder, entry: _insert(holder, entry["path"], entry["value"]),
    "remove": lambda holder, entry: _take(holder, entry["path"]),
    "replace": _replace,
    "move": lambda holder, entry: _insert(holder, entry["path"], _take(holder, entry["from"])),
    "copy": lambda holder, entry: _insert(holder, entry["path"], clone(_read(holder, entry["from"]))),
    "test": _test,
}
_TYPES: Mapping[str, Callable[[Object, object], object]] = {
    JSON_PATCH: _json_patch,
    MERGE_PATCH: _merge,
    STRATEGIC_MERGE_PATCH: _strategic,
}


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
_DIRECTIVE = "$patch"
_RETAIN, _REMOVE, _ORDER = "$retainKeys", "$deleteFromPrimitiveList/", "$setElementOrder/"
"""What `kubectl apply` adds to its patches."""


def strategic_merge(current: Object, patch: Object) -> Object:
    """The object after the patch."""
    directive = patch.get(_DIRECTIVE)
    body = {key: value for key, value in patch.items() if not key.startswith("$")}
    match directive:
        case "replace":
            return cast("Object", _stripped(body))
        case "delete":
            return {}
        case None | "merge":
            pass
        case _:
            raise bad_request(f"Unknown patch type: {directive}")
    kept = patch.get(_RETAIN, current)
    result = {key: value for key, value in current.items() if key in kept}
    for key, values in _directed(patch, _REMOVE):
        result[key] = [value for value in result.get(key) or [] if value not in values]
    for key, value in body.items():
        _merge_field(result, key, value)
    for key, values in _directed(patch, _ORDER):
        result[key] = _ordered(result.get(key) or [], values, MERGE_KEYS.get(key))
    return result


def _directed(patch: Object, directive: str) -> Iterator[tuple[str, list[Any]]]:
    """The fields to which a directive of the patch applies, and its values."""
    for key, values in patch.items():
        if key.startswith(directive):
            yield key.removeprefix(directive), values


def _ordered(entries: list[Any], order: list[Any], merge_key: str | None) -> list[Any]:
    """In the order of a directive; what it does not name comes last."""
    names = [entry.get(merge_key) if isinstance(entry, dict) else entry for entry in order]

    def place(entry: Any) -> int:  # noqa: ANN401 - any JSON value
        name = entry.get(merge_key) if isinstance(entry, dict) else entry
        return names.index(name) if name in names else len(names)

    return sorted(entries, key=place)


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


def _stripped(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """A new value as it is stored: without directives and nulls."""
    if isinstance(value, dict):
        return strategic_merge({}, cast("Object", {k: v for k, v in value.items() if k != _DIRECTIVE}))
    if isinstance(value, list):
        return [_stripped(entry) for entry in value]
    return value
