"""Which fields an object may have: those of the official client's models, which are generated from Kubernetes' own API.

Pure but for loading those models, which takes most of a second and so waits until a client sends something.
"""

import functools
import importlib
import re
from collections.abc import Iterator
from typing import Any

from simulator.kube.objects import Object

_NAMES = {("v1", "Event"): "CoreV1Event"}
"""Models that are not called after version and kind."""
_CONTAINER = re.compile(r"(?P<container>[Ll]ist|[Dd]ict)[\[(](?:str, ?)?(?P<item>\w+)[\])]")


def drop_unknown(obj: Object) -> list[str]:
    """Remove fields that the object's kind does not have; their paths, such as `spec.replica`."""
    model = _model(obj["apiVersion"], obj["kind"])
    return list(_walk(obj, model, "")) if model is not None else []


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
    model = _named(match["item"] if match else kind)
    if model is None:
        return
    if match is None and isinstance(value, dict):
        yield from _walk(value, model, path)
    elif match is not None and isinstance(value, list):
        for index, entry in enumerate(value):
            if isinstance(entry, dict):
                yield from _walk(entry, model, f"{path}[{index}]")
    elif match is not None and isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(entry, dict):
                yield from _walk(entry, model, f"{path}[{key}]")
