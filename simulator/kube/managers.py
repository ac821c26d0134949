"""metadata.managedFields: which client set which field last. Pure.

For writes over HTTP, only `Update` operations. A path is a tuple of segments as in FieldsV1: `f:<name>`,
`k:{"name":"main"}` for an entry of a keyed list, `.` for the entry or map itself.
https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.kube.objects import Object
from simulator.kube.patch import MERGE_KEYS

Path = tuple[str, ...]

_MAPS = {"annotations", "binaryData", "data", "hard", "labels", "limits", "requests", "stringData"}
_NOT_MANAGED = {"apiVersion", "kind"}
_OWN_METADATA = {"annotations", "finalizers", "labels", "ownerReferences"}
"""The rest of metadata is the server's."""


def attribute(
    old: Mapping[str, Any] | None, new: Object, *, manager: str, subresource: str, now: str
) -> None:
    """Set the managedFields of `new`, after `manager` has changed `old` into it."""
    before = dict(_leaves(old)) if old else {}
    after = dict(_leaves(new))
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    key = (manager, new["apiVersion"], subresource)
    entries: dict[tuple[str, str, str], tuple[set[Path], str]] = {}
    for entry in (old or {}).get("metadata", {}).get("managedFields", ()):
        owner = (entry["manager"], entry["apiVersion"], entry.get("subresource", ""))
        owned = set(_paths(entry["fieldsV1"])) & after.keys()
        entries[owner] = (owned if owner == key else owned - changed, entry["time"])
    owned, time = entries.get(key, (set(), now))
    entries[key] = (owned | changed, now if changed - owned else time)
    new["metadata"]["managedFields"] = [
        _entry(owner, paths, time) for owner, (paths, time) in entries.items() if paths
    ]


def _entry(owner: tuple[str, str, str], paths: set[Path], time: str) -> Object:
    manager, api_version, subresource = owner
    entry: Object = {
        "manager": manager,
        "operation": "Update",
        "apiVersion": api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": _nested(paths),
    }
    return {**entry, "subresource": subresource} if subresource else entry


def _leaves(obj: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    metadata = {key: value for key, value in obj["metadata"].items() if key in _OWN_METADATA}
    rest = {key: value for key, value in obj.items() if key not in {*_NOT_MANAGED, "metadata"}}
    yield from _walk({"metadata": metadata, **rest}, ())


def _walk(node: Mapping[str, Any], at: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in node.items():
        here = (*at, f"f:{name}")
        if name in _MAPS and isinstance(value, dict):
            yield (*here, "."), None
            yield from (((*here, f"f:{key}"), entry) for key, entry in value.items())
        elif isinstance(value, dict) and value:
            yield from _walk(value, here)
        elif isinstance(value, list) and _is_keyed(name, value):
            for entry in value:
                key = MERGE_KEYS[name]
                keyed = (*here, f"k:{json.dumps({key: entry[key]}, separators=(',', ':'))}")
                yield (*keyed, "."), None
                yield from _walk(entry, keyed)
        else:
            yield here, value


def _is_keyed(name: str, entries: Sequence[Any]) -> bool:
    key = MERGE_KEYS.get(name)
    return key is not None and all(isinstance(entry, dict) and key in entry for entry in entries)


def _paths(fields: Mapping[str, Any], at: Path = ()) -> Iterator[Path]:
    for name, below in fields.items():
        if below:
            yield from _paths(below, (*at, name))
        else:
            yield (*at, name)


def _nested(paths: set[Path]) -> Object:
    root: Object = {}
    for path in sorted(paths):
        node = root
        for segment in path:
            node = node.setdefault(segment, {})
    return root
