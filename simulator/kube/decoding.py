"""Decodes and checks a client's object: type, fields, timestamps, preconditions. Pure."""

import dataclasses
import datetime
import functools
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from simulator.kube import admission, errors
from simulator.kube.errors import ApiError, FieldError, bad_request, undecodable
from simulator.kube.objects import Object, name_of, pruned, rfc3339
from simulator.kube.quantity import parse_quantity
from simulator.kube.rbac import SERVER, User
from simulator.kube.resources import Resource, is_custom
from simulator.kube.store import Record


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    namespace: str
    name: str
    subresource: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """Options of a write.

    Attributes:
        validation: As `fieldValidation`; writes of the server itself are Trusted.
        manager: For managedFields; empty: not tracked.
        subresource: Set where the registry does not see it (scale).
        warnings: Filled with warnings for the client.
    """

    dry_run: bool = False
    validation: Literal["Strict", "Warn", "Ignore", "Trusted"] = "Trusted"
    manager: str = ""
    user: User = SERVER
    subresource: str = ""
    warnings: list[str] = dataclasses.field(default_factory=list)


def received(resource: Resource, body: Mapping[str, Any], write: Write) -> Object:
    """A client's object: copied, without nulls, its type and the types of its fields checked."""
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, **pruned(dict(body))}
    obj.setdefault("metadata", {})
    admission.check_identity(resource, obj)
    if write.validation != "Trusted":
        _settle_unknown(obj, write)
    normalise_times(obj)
    obj["metadata"].pop("managedFields", None)
    return obj


def _settle_unknown(obj: Object, write: Write) -> None:
    """Drop fields that the kind does not have, or refuse or warn of them, as the client wishes."""
    unknown = [f'unknown field "{path}"' for path in drop_unknown(obj)]
    if unknown and write.validation == "Strict":
        raise errors.undecodable(obj["kind"], f"strict decoding error: {', '.join(unknown)}")
    if write.validation == "Warn":
        write.warnings.extend(unknown)


def patch_refusal(obj: Mapping[str, Any], error: ApiError) -> ApiError:
    """What a patch makes cannot be decoded; the answer repeats all of it, as the real one does."""
    problem = FieldError.invalid("patch", json.dumps(obj), error.message.partition(": ")[2])
    return errors.invalid("", "", "", [problem])


def require_same_name(target: Target, obj: Object) -> None:
    """Refuse an object of another name than the request's."""
    if name_of(obj) != target.name:
        raise errors.bad_request(
            f"the name of the object ({name_of(obj)}) does not match the name on the URL ({target.name})"
        )


def require_same_uid(resource: Resource, record: Record, obj: Object) -> None:
    """Refuse an object that is another incarnation of the stored one."""
    uid, current = obj["metadata"].get("uid"), record.obj["metadata"]["uid"]
    if uid not in {None, "", current}:
        raise errors.conflict(
            resource,
            record.name,
            f"StorageError: invalid object, Code: 4, AdditionalErrorMsg: Precondition failed: UID in precondition: "
            f"{uid}, UID in object meta: {current}",
        )


def check_preconditions(target: Target, record: Record, new: Object) -> None:
    """Refuse a change of another version, or of what makes the object the one it is."""
    metadata, old = new["metadata"], record.obj["metadata"]
    resource = target.resource
    version = metadata.get("resourceVersion")
    if version and not version.isdecimal():
        raise ApiError(500, "", f'strconv.ParseUint: parsing "{version}": invalid syntax')
    if version not in {None, "", str(record.revision)}:
        raise errors.modified(resource, target.name)
    problems = [
        FieldError.invalid(f"metadata.{field}", metadata[field], "field is immutable")
        for field in ("name", "namespace", "creationTimestamp", "uid")
        if metadata.get(field) not in {None, "", old.get(field)}
    ]
    if problems:
        raise errors.invalid(resource.kind, resource.group, target.name, problems)


_SECONDS = {
    "completionTime",
    "creationTimestamp",
    "deletionTimestamp",
    "finishedAt",
    "firstTimestamp",
    "lastHeartbeatTime",
    "lastProbeTime",
    "lastScheduleTime",
    "lastSuccessfulTime",
    "lastTimestamp",
    "lastTransitionTime",
    "lastUpdateTime",
    "startTime",
    "startedAt",
}
_MICROSECONDS = {"acquireTime", "eventTime", "lastObservedTime", "renewTime"}
_FREE_TEXT = {"annotations", "binaryData", "data", "labels", "stringData"}


def normalise_times(node: dict[str, Any]) -> None:
    """Rewrite every timestamp of an object in place."""
    for key, value in node.items():
        if isinstance(value, str) and value:
            if key in _SECONDS:
                node[key] = rfc3339(_parse(value))
            elif key in _MICROSECONDS:
                node[key] = _parse(value).astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        elif isinstance(value, dict) and key not in _FREE_TEXT:
            normalise_times(value)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, dict):
                    normalise_times(entry)


def _parse(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise bad_request(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}"')
    return moment


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
