"""Errors as `Status` objects, in the words of k8s.io/apimachinery/pkg/api/errors.

ApiError            any failure that a client sees
└── Expired         410: a continue token or a resourceVersion that is too old
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from simulator.kube.objects import Object
from simulator.kube.resources import Resource


class ApiError(Exception):
    """A failure, with the Status object that tells a client about it."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    @property
    def status(self) -> Object:
        """The `Status` object of this failure."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body


class Expired(ApiError):  # noqa: N818 - the API's own name for it
    """What was asked for is older than the history that the server keeps."""

    def __init__(self, message: str) -> None:
        super().__init__(410, "Expired", message)


@dataclasses.dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field: `reason` is a StatusCause type such as FieldValueInvalid."""

    reason: str
    field: str
    message: str

    @classmethod
    def invalid(cls, field: str, value: object, detail: str) -> "FieldError":
        """A value that is not acceptable."""
        return cls("FieldValueInvalid", field, f"Invalid value: {_shown(value)}: {detail}")

    @classmethod
    def required(cls, field: str, detail: str = "") -> "FieldError":
        """A value that is missing."""
        return cls("FieldValueRequired", field, "Required value" + (f": {detail}" if detail else ""))

    @classmethod
    def forbidden(cls, field: str, detail: str) -> "FieldError":
        """A value that may not be given here."""
        return cls("FieldValueForbidden", field, f"Forbidden: {detail}")

    @classmethod
    def unsupported(cls, field: str, value: object, supported: Iterable[str]) -> "FieldError":
        """A value outside a closed set."""
        known = ", ".join(f'"{entry}"' for entry in supported)
        return cls(
            "FieldValueNotSupported", field, f"Unsupported value: {_shown(value)}: supported values: {known}"
        )

    @classmethod
    def duplicate(cls, field: str, value: object) -> "FieldError":
        """A value that must be unique and is not."""
        return cls("FieldValueDuplicate", field, f"Duplicate value: {_shown(value)}")


def _shown(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _about(resource: Resource, name: str) -> Object:
    details: Object = {"name": name, "group": resource.group, "kind": resource.plural}
    return {key: value for key, value in details.items() if value}


def bad_request(message: str) -> ApiError:
    """The request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def undecodable(kind: str, why: str) -> ApiError:
    """The body is not what its kind looks like."""
    return bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: {why}')


def unauthorized() -> ApiError:
    """No token, or one that is not known."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    """Refused by admission or authorization."""
    subject = f'{resource.qualified} "{name}"' if name else resource.qualified
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {why}", details=_about(resource, name))


def not_found(resource: Resource, name: str) -> ApiError:
    """There is no such object."""
    return ApiError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', details=_about(resource, name)
    )


def no_such_path() -> ApiError:
    """Nothing is served under this path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed(resource: Resource, verb: str) -> ApiError:
    """The resource does not answer to this verb."""
    return ApiError(
        405,
        "MethodNotAllowed",
        f'{verb} is not supported on resources of kind "{resource.qualified}"',
        details=_about(resource, ""),
    )


def not_acceptable() -> ApiError:
    """The client accepts nothing that the server can write."""
    return ApiError(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json",
    )


def already_exists(resource: Resource, name: str) -> ApiError:
    """An object of that name is there."""
    return ApiError(
        409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', details=_about(resource, name)
    )


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    """A precondition does not hold."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}',
        details=_about(resource, name),
    )


def modified(resource: Resource, name: str) -> ApiError:
    """The resourceVersion that the client saw is no longer current."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def too_large() -> ApiError:
    """The body exceeds what the server reads."""
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY_BYTES}")


MAX_BODY_BYTES = 3 * 1024 * 1024  # the real server's limit for one request


def unsupported_media(message: str) -> ApiError:
    """The body is in a format that this request does not take."""
    return ApiError(415, "UnsupportedMediaType", message)


def invalid(kind: str, group: str, name: str, problems: list[FieldError]) -> ApiError:
    """Validation failed; every problem is listed."""
    words = [f"{problem.field}: {problem.message}" for problem in problems]
    text = words[0] if len(words) == 1 else f"[{', '.join(words)}]"
    details: Object = {"name": name, "group": group, "kind": kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [
        {"reason": problem.reason, "message": problem.message, "field": problem.field} for problem in problems
    ]
    qualified = f"{kind}.{group}" if group else kind
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def unprocessable() -> ApiError:
    """A JSON patch that does not apply, such as a failed `test`."""
    return ApiError(422, "Invalid", "the server rejected our request due to an error in our request")


def too_many_requests(message: str, retry_after_s: int, cause: Mapping[str, str]) -> ApiError:
    """Try again later; `retry_after_s` of 0 means: no idea when."""
    details: Object = {"causes": [dict(cause)]}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return ApiError(429, "TooManyRequests", message, details=details)


def internal() -> ApiError:
    """A bug of the server."""
    return ApiError(500, "InternalError", "Internal error occurred: see the server's log")
