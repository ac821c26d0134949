"""Whether the fields that the server reads are of the right JSON type; what Go's decoder refuses with 400. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from simulator.kube.errors import undecodable
from simulator.kube.objects import Object

_Shape = Literal["object", "objects", "strings", "texts", "string", "integer", "boolean"]

_FIELDS: Mapping[str, _Shape] = {
    **dict.fromkeys(
        ("affinity", "limits", "metadata", "requests", "resources", "spec", "template"), "object"
    ),
    **dict.fromkeys(("jobTemplate", "selector", "strategy", "updateStrategy", "deleteOptions"), "object"),
    **dict.fromkeys(("conditions", "containers", "initContainers", "matchExpressions"), "objects"),
    **dict.fromkeys(("ownerReferences", "taints", "tolerations", "env", "ports", "volumes"), "objects"),
    **dict.fromkeys(("annotations", "labels", "matchLabels", "nodeSelector"), "strings"),
    **dict.fromkeys(("finalizers", "dryRun"), "texts"),
    **dict.fromkeys(("generateName", "name", "namespace", "resourceVersion", "uid"), "string"),
    **dict.fromkeys(("nodeName", "priorityClassName", "restartPolicy", "schedule"), "string"),
    **dict.fromkeys(("backoffLimit", "completions", "parallelism", "priority", "replicas"), "integer"),
    **dict.fromkeys(("gracePeriodSeconds", "leaseDurationSeconds", "leaseTransitions"), "integer"),
    **dict.fromkeys(("minReadySeconds", "terminationGracePeriodSeconds", "value"), "integer"),
    **dict.fromkeys(("controller", "globalDefault", "suspend", "unschedulable"), "boolean"),
}
_FREE_TEXT = {"annotations", "binaryData", "data", "labels", "matchLabels", "nodeSelector", "stringData"}
_LEAVES_OF_LISTS = {
    "env",
    "tolerations",
    "taints",
    "matchExpressions",
    "conditions",
}  # `value` is a string there
_GO_TYPES: Mapping[_Shape, str] = {
    "object": "an object",
    "objects": "a list of objects",
    "strings": "map[string]string",
    "texts": "[]string",
    "string": "string",
    "integer": "int32",
    "boolean": "bool",
}


def require_shape(obj: Object) -> None:
    """Refuse an object with a field of the wrong type.

    Raises:
        ApiError: 400, naming the field.
    """
    _walk(obj, "", obj["kind"])


def _walk(node: Mapping[str, object], path: str, kind: str) -> None:
    for key, value in node.items():
        here = f"{path}.{key}" if path else key
        if key in _FREE_TEXT and not isinstance(value, dict):
            _refuse(kind, here, value, "strings")
        shape = _FIELDS.get(key)
        if shape is not None and not _FITS[shape](value):
            _refuse(kind, here, value, shape)
        if isinstance(value, dict) and key not in _FREE_TEXT:
            _walk(value, here, kind)
        elif isinstance(value, list) and key not in _LEAVES_OF_LISTS:
            for entry in value:
                if isinstance(entry, dict):
                    _walk(entry, here, kind)


def _all(kind: type, values: Iterable[object]) -> bool:
    return all(isinstance(value, kind) for value in values)


_FITS: Mapping[_Shape, Callable[[object], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "objects": lambda value: isinstance(value, list) and _all(dict, value),
    "strings": lambda value: isinstance(value, dict) and _all(str, value.values()),
    "texts": lambda value: isinstance(value, list) and _all(str, value),
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
}


def _refuse(kind: str, field: str, value: object, shape: _Shape) -> None:
    given = {dict: "object", list: "array", str: "string", bool: "bool"}.get(type(value), "number")
    raise undecodable(
        kind, f"json: cannot unmarshal {given} into Go struct field {kind}.{field} of type {_GO_TYPES[shape]}"
    )
