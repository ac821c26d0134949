"""Edits of an object's fields, and the one merge patch that makes or undoes them. Pure.

A path leads through keys of mappings; an item of a list is found by one of its fields, as in `name=main`. A merge patch
(RFC 7386) replaces lists whole, so a patch is made for one version of an object and carries its resourceVersion.
"""

import copy
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.model import Edit

Path = tuple[str, ...]
"""Keys; `name=main` for an item of a list; in patterns `*` for any key, and `name=*` for any item with a name."""

ANY = "*"
ITEM = "=*"
"""Ends a step of a pattern for any item of a list, after the field that identifies items."""
NAMED, GROUP = f"name{ITEM}", f"groupName{ITEM}"
_ITEM_KEYS = ("name", "groupName")
"""Fields that identify items of lists: containers, replicated jobs, tasks; worker groups of Ray."""

_Object = Mapping[str, Any]
_LONGEST_LIST = 256
"""Maximum bytes of a list of names in a record."""
_LONGEST_FIRST = 63


def is_item(step: str) -> bool:
    """Whether a step of a path is an item of a list."""
    return step.partition("=")[0] in _ITEM_KEYS and "=" in step


def edit_of(obj: _Object, path: Path, value: Any, *, absent: bool | None = None) -> Edit:  # noqa: ANN401 - JSON
    """The edit that sets a field of an object; `absent` is its former value if it has none."""
    above = [path[:end] for end in range(len(path) - 1, 0, -1)]
    # The undo record is an annotation too, so the mapping exists.
    is_annotation = path[:2] == ("metadata", "annotations")
    missing = itertools.takewhile(lambda place: value_at(obj, place) is None, above)
    now = value_at(obj, path)
    return Edit(path, absent if now is None else now, value, 0 if is_annotation else len(list(missing)))


def shown(path: Path) -> str:
    """Text of a path: spec.template.spec.containers[main].resources.limits[nvidia.com/gpu]."""
    parts = [path[0]]
    for step in path[1:]:
        key, _, name = step.partition("=")
        is_item = bool(name) and key in _ITEM_KEYS
        plain = name if is_item else step
        parts.append(f"[{plain}]" if is_item or "." in step else f".{step}")
    return "".join(parts)


def value_at(obj: _Object, path: Path) -> Any:  # noqa: ANN401 - whatever the object holds
    """The value at a path of an object, if any."""
    value: Any = obj
    for step in path:
        value = _step(value, step)
    return value


def _step(value: Any, step: str) -> Any:  # noqa: ANN401
    if isinstance(value, Mapping):
        return value.get(step)
    if isinstance(value, list):
        return next((item for item in value if step in _names(item)), None)
    return None


def _names(item: Any) -> Iterator[str]:  # noqa: ANN401
    if isinstance(item, Mapping):
        for key in _ITEM_KEYS:
            if isinstance(name := item.get(key), str):
                yield f"{key}={name}"


def places(obj: _Object, pattern: Path) -> list[Path]:
    """The paths of an object that match a pattern, in order, without items that have no name."""
    found: list[tuple[Path, Any]] = [((), obj)]
    for step in pattern:
        found = [
            ((*path, key), value)
            for path, parent in found
            for key, value in _below(parent, step)
            if value is not None
        ]
    return [path for path, _ in found]


def _below(value: Any, step: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    if step.endswith(ITEM):
        key = step.removesuffix(ANY)
        items = value if isinstance(value, list) else []
        yield from ((name, item) for item in items for name in _names(item) if name.startswith(key))
    elif step != ANY:
        yield step, _step(value, step)
    elif isinstance(value, Mapping):
        yield from value.items()


def matches(path: Path, pattern: Path) -> bool:
    """Whether a path matches a pattern."""
    return len(path) == len(pattern) and all(map(_matches_step, pattern, path))


def _matches_step(wanted: str, step: str) -> bool:
    return wanted in {step, ANY} or (wanted.endswith(ITEM) and step.startswith(wanted.removesuffix(ANY)))


def is_as(obj: _Object, edits: Iterable[Edit]) -> bool:
    """Whether all fields have the values of the edits; in Python 0 equals False, in JSON it does not."""
    return all(same(value_at(obj, edit.path), edit.after) for edit in edits)


def is_reverted(obj: _Object, edit: Edit) -> bool:
    """Whether somebody reverted an edit; a further change in its direction is no revert."""
    now = value_at(obj, edit.path)
    if type(now) is int and type(edit.before) is int and type(edit.after) is int:
        return now > edit.after if edit.before > edit.after else now < edit.after
    return not same(now, edit.after)


def same(value: Any, other: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether two JSON values are equal; the other may be a digest from a record."""
    if isinstance(value, list) and value and is_digest(other):
        return bool(_digest(value) == other)
    return type(value) is type(other) and bool(value == other)


def abridged(edit: Edit) -> Edit:
    """The edit for a record, with a digest in place of a long list of names."""
    if isinstance(edit.after, list) and len(msgspec.json.encode(edit.after)) > _LONGEST_LIST:
        return msgspec.structs.replace(edit, after=_digest(edit.after))
    return edit


def _digest(names: list[Any]) -> dict[str, Any]:
    text = hashlib.sha256(msgspec.json.encode(names)).hexdigest()
    return {"count": len(names), "first": str(names[0])[:_LONGEST_FIRST], "sha256": text}


def is_digest(value: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether a value is the digest of a long list of names."""
    return isinstance(value, dict) and value.keys() == {"count", "first", "sha256"}


def patch_of(obj: _Object, edits: Sequence[Edit]) -> dict[str, Any]:
    """The merge patch that makes edits of an object as it was read.

    Raises:
        ValueError: The object lacks a parent of a path, or names do not identify the items of a list.
    """
    after = copy.deepcopy(dict(obj))
    for edit in edits:
        _set(after, edit)
    patch: dict[str, Any] = {}
    for edit in edits:
        _carry(patch, after, edit)
    return patch


def _set(obj: dict[str, Any], edit: Edit) -> None:
    parent: Any = obj
    way: list[Any] = [obj]
    for depth, step in enumerate(edit.path[:-1]):
        if isinstance(parent, dict) and parent.get(step) is None:
            parent[step] = {}
        if isinstance(parent, list):
            _require_names(parent, edit.path[: depth + 1])
        parent = _step(parent, step)
        way.append(parent)
    if not isinstance(parent, dict):
        message = f"there is no {shown(edit.path[:-1])} anymore"
        raise ValueError(message)  # noqa: TRY004 - of the object, not of an argument
    if edit.after is not None:
        parent[edit.path[-1]] = edit.after
        return
    parent.pop(edit.path[-1], None)
    for depth in range(len(way) - 1, max(len(way) - 1 - edit.created_parents, 0), -1):
        if way[depth] or not isinstance(way[depth - 1], dict):
            return
        way[depth - 1].pop(edit.path[depth - 1], None)


def _require_names(items: list[Any], path: Path) -> None:
    """Check the list of an item: a path leads to the first of a name, and the admission guardrails compare all."""
    key, _, _ = path[-1].partition("=")
    names = [item.get(key) if isinstance(item, Mapping) else None for item in items]
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        message = f"not each item of {shown(path[:-1])} has a {key} of its own"
        raise ValueError(message)


def _carry(patch: dict[str, Any], after: _Object, edit: Edit) -> None:
    """Add an edit to a patch: the field itself, or the whole first list on its path."""
    into, source = patch, after
    for step in edit.path[:-1]:
        if step not in source:
            into[step] = None
            return
        source = source[step]
        if isinstance(source, list):
            into[step] = source
            return
        into = into.setdefault(step, {})
    into[edit.path[-1]] = edit.after
