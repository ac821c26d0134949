"""A request as it came off the wire, and what its query and body ask for. Pure: reads nothing but the request."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Literal

from simulator.kube import errors
from simulator.kube.decoding import Target, Write
from simulator.kube.deletion import DeleteOptions
from simulator.kube.errors import FieldError
from simulator.kube.listing import Page
from simulator.kube.objects import Object
from simulator.kube.rbac import SERVER, User
from simulator.kube.resources import by_path

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_VALIDATIONS: Mapping[str, Literal["Strict", "Warn", "Ignore"]] = {
    "Ignore": "Ignore",
    "Warn": "Warn",
    "Strict": "Strict",
}
_MAX_FIELD_MANAGER = 128


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request; `alive` tells whether the client still listens."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    alive: Callable[[], bool]
    user: User = SERVER

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
    """Refuse a client that takes no JSON."""
    accepted = [entry.partition(";")[0].strip() for entry in request.headers.get("accept", "*/*").split(",")]
    if not {"*/*", "application/*", "application/json"} & set(accepted):
        raise errors.not_acceptable()


def wants(request: Request, kind: str) -> bool:
    """Whether an answer is wanted as this kind of meta.k8s.io, which the first media type decides."""
    first = request.headers.get("accept", "").partition(",")[0]
    parameters = {part.strip() for part in first.split(";")[1:]}
    return {f"as={kind}", "g=meta.k8s.io", "v=v1"} <= parameters


def body_of(request: Request) -> Object:
    """The JSON object that a POST or PUT carries."""
    if request.content_type not in {"", "application/json"}:
        raise errors.unsupported_media(
            f"the simulated API server reads JSON only, not {request.content_type}; kubectl sends JSON for: "
            "kubectl create … --dry-run=client -o json | kubectl create -f -"
        )
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise errors.bad_request(f"the object provided is unrecognized: {error}") from error
    if not isinstance(body, dict):
        raise errors.bad_request("the object provided is unrecognized: it must be a JSON object")
    return body


def write_options(request: Request, kind: str) -> Write:
    """How a write is to be taken, as the query says; without a manager the client's name stands for one."""
    problems = []
    dry_run = request.query.get("dryRun")
    if dry_run not in {None, "All"}:
        problems.append(FieldError.unsupported("dryRun", [dry_run], ["All"]))
    validation = request.query.get("fieldValidation") or "Warn"
    if validation not in _VALIDATIONS:
        problems.append(FieldError.unsupported("fieldValidation", validation, _VALIDATIONS))
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
    return Write(
        dry_run=dry_run == "All",
        validation=_VALIDATIONS[validation],
        user=request.user,
        manager=manager or request.headers.get("user-agent", "").partition("/")[0] or "unknown",
    )


def delete_options(request: Request) -> DeleteOptions:
    """How to delete: from the body, or, where there is none, from the query."""
    if request.body:
        return DeleteOptions.parse(body_of(request))
    query = request.query
    options: Object = {}
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if query.get("gracePeriodSeconds", "").isdecimal():
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    return DeleteOptions.parse(options, dry_run=write_options(request, "DeleteOptions").dry_run)


def page_of(request: Request) -> Page:
    """Which part of a list is wanted."""
    text = request.query.get("limit") or "0"
    try:
        limit = int(text)
    except ValueError as error:
        raise errors.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error
    return Page(
        limit=max(limit, 0),
        token=request.query.get("continue", ""),
        resource_version=request.query.get("resourceVersion", ""),
        match=request.query.get("resourceVersionMatch", ""),
    )


_NAMESPACE_PARTS = {"status", "finalize"}


def parse_path(path: str) -> tuple[Target, bool] | None:
    """The target of a path, and whether it lists all namespaces; None for unknown paths."""
    steps = [step for step in path.split("/") if step]
    match steps:
        case ["api", version, *rest]:
            return _resolve("", version, rest)
        case ["apis", group, version, *rest]:
            return _resolve(group, version, rest)
        case _:
            return None


def _resolve(group: str, version: str, steps: list[str]) -> tuple[Target, bool] | None:
    namespace = ""
    match steps:
        case ["namespaces", _, part] if part in _NAMESPACE_PARTS:
            pass
        case ["namespaces", namespace, plural, *rest]:
            steps = [plural, *rest]
        case _:
            pass
    if not 1 <= len(steps) <= 3:  # noqa: PLR2004 - plural, name, subresource
        return None
    resource = by_path(group, version, steps[0])
    if resource is None or bool(namespace) > resource.namespaced:
        return None
    name, subresource = [*steps[1:], "", ""][:2]
    if resource.namespaced and name and not namespace:
        return None
    if subresource and subresource not in resource.subresources:
        return None
    return Target(resource, namespace, name, subresource), resource.namespaced and not namespace
