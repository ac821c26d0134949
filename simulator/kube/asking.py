"""A request as it came off the wire, and what its query and body ask for. Pure: reads nothing but the request."""

import dataclasses
import json
from collections.abc import Callable, Mapping

from simulator.kube import errors
from simulator.kube.deletion import DeleteOptions
from simulator.kube.errors import FieldError
from simulator.kube.listing import Page
from simulator.kube.objects import Object
from simulator.kube.registry import Target

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_MAX_FIELD_MANAGER = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request as it came off the wire.

    Attributes:
        query: The last value of each parameter.
        alive: Whether the client still listens; asked while a watch has nothing to say.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    alive: Callable[[], bool]

    @property
    def content_type(self) -> str:
        """Without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


def verb_of(request: Request, target: Target) -> str:
    """The API's verb: list and watch are GETs of a collection."""
    verb = _VERBS.get(request.method, request.method.lower())
    if target.name:
        return verb
    if verb == "get":
        return "watch" if request.query.get("watch") in {"true", "True", "1"} else "list"
    return "deletecollection" if verb == "delete" else verb


def require_json(request: Request) -> None:
    """Refuse a client that takes no JSON.

    Raises:
        ApiError: 406.
    """
    accepted = [entry.partition(";")[0].strip() for entry in request.headers.get("accept", "*/*").split(",")]
    if not {"*/*", "application/*", "application/json"} & set(accepted):
        raise errors.not_acceptable()


def body_of(request: Request) -> Object:
    """The JSON object that a POST or PUT carries."""
    if request.content_type not in {"", "application/json"}:
        raise errors.unsupported_media(
            "the body of the request was in an unknown format - accepted media types include: application/json"
        )
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise errors.bad_request(f"the object provided is unrecognized: {error}") from error
    if not isinstance(body, dict):
        raise errors.bad_request("the object provided is unrecognized: it must be a JSON object")
    return body


def write_options(request: Request, kind: str) -> bool:
    """Check the options that all writes share; whether this is a dry run."""
    problems = []
    dry_run = request.query.get("dryRun")
    if dry_run not in {None, "All"}:
        problems.append(FieldError.unsupported("dryRun", dry_run, ["All"]))
    manager = request.query.get("fieldManager", "")
    if len(manager) > _MAX_FIELD_MANAGER:
        problems.append(
            FieldError(
                "FieldValueTooLong",
                "fieldManager",
                f"Too long: may not be more than {_MAX_FIELD_MANAGER} bytes",
            )
        )
    if problems:
        raise errors.invalid(kind, "meta.k8s.io", "", problems)
    return dry_run == "All"


def delete_options(request: Request) -> DeleteOptions:
    """How to delete, from the query and the body together."""
    dry_run = write_options(request, "DeleteOptions")
    body: Object = body_of(request) if request.body else {}
    query = request.query
    if "propagationPolicy" in query:
        body.setdefault("propagationPolicy", query["propagationPolicy"])
    if query.get("gracePeriodSeconds", "").isdecimal():
        body.setdefault("gracePeriodSeconds", int(query["gracePeriodSeconds"]))
    return DeleteOptions.parse(body, dry_run=dry_run)


def page_of(request: Request) -> Page:
    """Which part of a list is wanted."""
    limit = request.query.get("limit", "")
    if limit and not limit.isdecimal():
        raise errors.bad_request(f'strconv.ParseInt: parsing "{limit}": invalid syntax')
    return Page(
        limit=int(limit or 0),
        token=request.query.get("continue", ""),
        resource_version=request.query.get("resourceVersion", ""),
        match=request.query.get("resourceVersionMatch", ""),
    )
