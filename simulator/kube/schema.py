"""Which fields an object may have, and of what type, as the official client's models say.

Those are generated from Kubernetes' own API. Pure but for loading them, which takes most of a second and so waits until
a client sends something.
"""

import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.errors import undecodable
from simulator.kube.objects import Object
from simulator.kube.quantity import parse_quantity
from simulator.kube.resources import is_custom

_NAMES = {("v1", "Event"): "CoreV1Event"}
"""Models that are not called after version and kind."""
_CONTAINER = re.compile(r"(?P<container>[Ll]ist|[Dd]ict)[\[(](?:str, ?)?(?P<item>\w+)[\])]")


_QUANTITIES = {"allocatable", "capacity", "hard", "limits", "requests", "used"}
"""Maps of quantities, which may be written as numbers, too."""
_ZERO: Mapping[str, object] = {"bool": False, "float": 0, "int": 0, "str": ""}
"""What Go makes of a null in a list; of an object, an empty one."""
_SCALARS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "bool"),
    "bytearray": ((str,), "[]uint8"),
    "datetime": ((str,), "Time"),
    "float": ((int, float), "float64"),
    "int": ((int,), "int32"),
    "str": ((str,), "string"),
}
"""Python type as the models name it → JSON types that fit, and Go's name of it."""


class _MisfitError(Exception):
    """A value of the wrong type: where, what it is, and what it should be."""

    def __init__(self, path: str, value: object, wanted: str) -> None:
        given = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
        super().__init__(path, given, wanted)


def drop_unknown(obj: Object) -> list[str]:
    """Remove fields that the object's kind does not have; their paths, such as `spec.replica`."""
    model = None if is_custom(obj) else _model(obj["apiVersion"], obj["kind"])
    try:
        return list(_walk(obj, model, "")) if model is not None else []
    except _MisfitError as misfit:
        path, given, wanted = misfit.args
        where = f"Go struct field {obj['kind']}.{path}"
        raise undecodable(
            obj["kind"], f"json: cannot unmarshal {given} into {where} of type {wanted}"
        ) from misfit
    except ValueError as error:
        raise undecodable(obj["kind"], str(error)) from error


def _model(api_version: str, kind: str) -> Any:  # noqa: ANN401 - a class of the client's, or none
    version = api_version.rpartition("/")[2]
    name = _NAMES.get((api_version, kind), f"{version.capitalize()}{kind}")
    return _named(name)


@functools.cache
def _named(name: str) -> Any:  # noqa: ANN401 - a class of the client's, or none
    return getattr(importlib.import_module("kubernetes.client.models"), name, None)


@functools.cache
def _fields(model: Any) -> dict[str, str]:  # noqa: ANN401 - a class of the client's
    """JSON name → type of each field."""
    return {json: model.openapi_types[python] for python, json in model.attribute_map.items()}


def _walk(node: Object, model: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - a class of the client's
    fields = _fields(model)
    for key in list(node):
        here = f"{path}.{key}" if path else key
        if key not in fields:
            del node[key]
            yield here
        else:
            yield from _enter(node[key], fields[key], here)


def _enter(value: Any, kind: str, path: str) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    match = _CONTAINER.fullmatch(kind)
    if match is None:
        yield from _single(value, kind, path)
    elif match["container"].lower() == "list":
        if not isinstance(value, list):
            raise _MisfitError(path, value, f"[]{match['item']}")
        for index, entry in enumerate(value):
            if entry is None:
                entry = value[index] = _ZERO.get(match["item"], {})  # noqa: PLW2901 - the list gets it, too
            yield from _single(entry, match["item"], f"{path}[{index}]")
    else:
        if not isinstance(value, dict):
            raise _MisfitError(path, value, f"map[string]{match['item']}")
        if path.rpartition(".")[2] in _QUANTITIES:
            for amount in value.values():
                parse_quantity(amount)
        else:
            for key, entry in value.items():
                yield from _single(entry, match["item"], f"{path}[{key}]")


def _single(value: Any, kind: str, path: str) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    if kind in _SCALARS:
        fitting, wanted = _SCALARS[kind]
        if not isinstance(value, fitting) or (isinstance(value, bool) and kind != "bool"):
            raise _MisfitError(path, value, wanted)
    elif (model := _named(kind)) is not None:
        if not isinstance(value, dict):
            raise _MisfitError(path, value, kind)
        yield from _walk(value, model, path)
