"""A client's object as it comes in: completed, decoded as its kind, and compared with the one that is meant. Pure."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal

from simulator.kube import admission, errors, schema
from simulator.kube.errors import ApiError, FieldError
from simulator.kube.objects import Object, name_of, pruned
from simulator.kube.rbac import SERVER, User
from simulator.kube.resources import Resource
from simulator.kube.store import Record
from simulator.kube.times import normalise_times


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    resource: Resource
    namespace: str
    name: str
    subresource: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """How a client wants its write to be taken.

    Attributes:
        dry_run: Do everything but store it.
        validation: What becomes of unknown fields, as in `fieldValidation`; what the server itself writes is Trusted.
        user: Whom it is from, for policies.
        manager: Who writes, for managedFields; nobody's fields are not tracked.
        subresource: Through which it is written, where the registry does not see it (scale).
        warnings: Filled with what the client should be warned of.
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
    unknown = [f'unknown field "{path}"' for path in schema.drop_unknown(obj)]
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
