"""From a request to its answer: discovery, authorization, then the verb. Must not know sockets, faults or the log."""

import contextlib
import dataclasses
import json
import random
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.kube import errors
from simulator.kube.decoding import Target, Write
from simulator.kube.deletion import Deleted, delete
from simulator.kube.discovery import discover
from simulator.kube.errors import FieldError
from simulator.kube.listing import Selection, WatchOptions, list_page, watch
from simulator.kube.objects import Object, name_of, parse_time
from simulator.kube.patch import apply_patch
from simulator.kube.policies import Attempt, enforce
from simulator.kube.proxying import Backends, ProxyPath, parse_proxy_path
from simulator.kube.rbac import Access, Action, User
from simulator.kube.registry import Registry
from simulator.kube.requests import (
    Request,
    body_of,
    delete_options,
    page_of,
    parse_path,
    require_json,
    verb_of,
    wants,
    write_options,
)
from simulator.kube.resources import by_kind
from simulator.kube.store import Record
from simulator.kube.subresources import change_scale, evict, scale_of
from simulator.kube.tables import has_table, table

_PRESERVED = (
    '299 - "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove '
    'them or set propagationPolicy=Orphan to suppress this warning"'
)
_HEALTH = {"/healthz", "/livez", "/readyz"}
_PUBLIC = {*_HEALTH, "/version"}
Interceptor = Callable[[Request, str], contextlib.AbstractContextManager[None]]
"""What is entered while a request of a user, by name, is carried out; a refusal passes through it."""

_SHORTEST_WATCH_S = 1800.0  # without timeoutSeconds, a watch lasts this long to twice this long


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """An answer: a body, or a stream of lines."""

    code: int
    body: bytes = b""
    stream: Iterator[bytes] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def answer(code: int, document: Mapping[str, Any], **headers: str) -> Response:
    """An answer with a JSON object."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(code, json.dumps(document, separators=(",", ":")).encode(), headers=named)


def refusal(error: errors.ApiError) -> Response:
    """An answer with the Status of a failure."""
    retry_after = error.details.get("retryAfterSeconds")
    return answer(error.code, error.status, **({"Retry_After": str(retry_after)} if retry_after else {}))


def is_public(path: str) -> bool:
    """Whether the path needs no authentication, such as health and version."""
    return path.rstrip("/") in _PUBLIC


class Api:
    """Handles every verb on every resource; `interceptor` is entered for each request."""

    def __init__(self, registry: Registry, access: Access, *, third_party: bool = True) -> None:
        self._third_party = third_party
        self.interceptor: Interceptor = lambda *_: contextlib.nullcontext()
        self._registry = registry
        self._access = access
        self.backends = Backends()
        self._random = random.Random(0)
        self._objects: Mapping[tuple[str, str], Callable[[Request, Target], Response]] = {
            ("", "get"): self._get,
            ("status", "get"): self._get,
            ("scale", "get"): self._get_scale,
            **{(part, "update"): self._update for part in ("", "status", "scale")},
            **{(part, "patch"): self._patch for part in ("", "status", "scale")},
            ("eviction", "create"): self._evict,
            ("", "delete"): self._delete,
        }

    def _discovered(self, path: str) -> Object | None:
        return discover(path, minor=self._registry.minor, third_party=self._third_party)

    def handle(self, request: Request, user: User | None) -> Response:
        """The answer to a request of a user."""
        if request.path.rstrip("/") in _HEALTH:
            return Response(200, b"ok", content_type="text/plain; charset=utf-8")
        document = self._discovered(request.path) if request.method == "GET" else None
        if document is not None:
            return answer(200, document)
        behind = parse_proxy_path(request.path)
        if behind is not None and user is not None:
            return self._proxy(request, behind, user)
        route = parse_path(request.path)
        if route is None or user is None or (route[0].resource.is_custom and not self._third_party):
            raise errors.no_such_path()
        request = dataclasses.replace(request, user=user)
        require_json(request)
        if len(request.body) > errors.MAX_BODY_BYTES:
            raise errors.too_large()
        target, _ = route
        verb = verb_of(request, target)
        if target.resource.kind == "SelfSubjectAccessReview":
            return self._review(request, target, user, verb)
        self._authorize(target, user, verb)
        if not target.subresource and verb not in target.resource.verbs:
            raise errors.method_not_allowed(target.resource, verb)
        if target.name:
            return self._handle_object(request, target, verb)
        return self._handle_collection(request, target, verb)

    def _authorize(self, target: Target, user: User, verb: str) -> None:
        resource = target.resource
        plural = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
        action = Action(verb, resource.group, plural, target.namespace, target.name)
        if resource.kind == "Namespace" and target.name:
            action = dataclasses.replace(action, namespace=target.name)
        self._access.require(user, action, resource)

    def _proxy(self, request: Request, path: ProxyPath, user: User) -> Response:
        """What stands behind a Service, by the verb of the method; RBAC knows it by its whole segment."""
        target = Target(by_kind("Service"), path.namespace, path.segment, "proxy")
        self._authorize(target, user, verb_of(request, target))
        self._registry.find(target.resource, path.namespace, path.name)
        query = f"?{urllib.parse.urlencode(request.query)}" if request.query else ""
        asked = dataclasses.replace(path, rest=path.rest + query)
        code, headers, body = self.backends.forward(asked, request.method, request.headers, request.body)
        return Response(code, body, content_type=headers.pop("Content-Type", ""), headers=headers)

    def _review(self, request: Request, target: Target, user: User, verb: str) -> Response:
        """Answer a SelfSubjectAccessReview."""
        if verb != "create":
            raise errors.method_not_allowed(target.resource, verb)
        body = body_of(request)
        asked = (body.get("spec") or {}).get("resourceAttributes")
        if not isinstance(asked, dict):
            problem = FieldError.invalid(
                "spec.resourceAttributes",
                "null",
                "exactly one of nonResourceAttributes or resourceAttributes must be specified",
            )
            raise errors.invalid(target.resource.kind, target.resource.group, "", [problem])
        parts = [part for part in (asked.get("resource", ""), asked.get("subresource", "")) if part]
        action = Action(
            asked.get("verb", ""),
            asked.get("group", ""),
            "/".join(parts),
            asked.get("namespace", ""),
            asked.get("name", ""),
        )
        kind = {"kind": target.resource.kind, "apiVersion": target.resource.api_version}
        status = {"allowed": self._access.may(user, action)}
        return answer(201, {**kind, "metadata": {}, "spec": body["spec"], "status": status})

    # --- collections

    def _handle_collection(self, request: Request, target: Target, verb: str) -> Response:
        if verb == "create":
            return self._create(request, target)
        selection = Selection.parse(
            target.resource,
            target.namespace or None,
            request.query.get("labelSelector", ""),
            request.query.get("fieldSelector", ""),
        )
        match verb:
            case "watch":
                return Response(200, stream=self._watch(request, selection))
            case "list":
                only = wants(request, "PartialObjectMetadataList")
                at = parse_time(self._registry.now()) if wants(request, "Table") else None
                found = list_page(
                    self._registry.store, selection, page_of(request), metadata_only=only, table_at=at
                )
                return Response(200, found)
            case "deletecollection":
                return self._delete_collection(request, selection)
            case _:
                raise errors.method_not_allowed(target.resource, verb)

    def _create(self, request: Request, target: Target) -> Response:
        write = write_options(request, "CreateOptions")
        namespace = target.namespace
        if target.resource.namespaced and not namespace:
            raise errors.bad_request("an empty namespace may not be set during creation")
        obj = self._registry.create(target.resource, namespace, body_of(request), write)
        return _written(201, obj, write)

    def _watch(self, request: Request, selection: Selection) -> Iterator[bytes]:
        timeout = request.query.get("timeoutSeconds", "")
        lasting_s = float(timeout) if timeout.isdecimal() else 0.0
        wanted = WatchOptions(
            selection,
            since=request.query.get("resourceVersion", ""),
            timeout_s=lasting_s or self._random.uniform(_SHORTEST_WATCH_S, 2 * _SHORTEST_WATCH_S),
            bookmarks=request.query.get("allowWatchBookmarks") in {"true", "True", "1"},
        )
        return watch(self._registry.store, wanted, request.alive)

    def _delete_collection(self, request: Request, selection: Selection) -> Response:
        options = delete_options(request)
        store = self._registry.store
        with store.lock:
            rows = [row for row in store.rows(selection.resource) if row in selection]
            for row in rows:
                delete(self._registry, Target(row.resource, row.namespace, row.name), options)
        kind = {"kind": f"{selection.resource.kind}List", "apiVersion": selection.resource.api_version}
        metadata = {"resourceVersion": str(store.revision)}
        return answer(200, {**kind, "metadata": metadata, "items": [row.obj for row in rows]})

    # --- single objects

    def _handle_object(self, request: Request, target: Target, verb: str) -> Response:
        serve = self._objects.get((target.subresource, verb))
        if serve is None:
            raise errors.method_not_allowed(target.resource, verb)
        return serve(request, target)

    def _get(self, request: Request, target: Target) -> Response:
        found = self._find(target)
        if wants(request, "Table") and has_table(target.resource.kind):
            at = parse_time(self._registry.now())
            return Response(200, table(target.resource.kind, {}, [found.obj], at))
        return Response(200, found.document)

    def _get_scale(self, request: Request, target: Target) -> Response:
        del request
        return answer(200, scale_of(self._find(target)))

    def _evict(self, request: Request, target: Target) -> Response:
        write = write_options(request, "CreateOptions")
        attempt = Attempt(write, target.resource, "CREATE", body_of(request), subresource="eviction")
        enforce(self._registry.store, attempt)
        status = evict(self._registry, target, body_of(request), dry_run=write.dry_run)
        return answer(int(status["code"]), status)

    def _delete(self, request: Request, target: Target) -> Response:
        options = delete_options(request)
        self._enforce_deletion(request, target, dry_run=options.dry_run)
        result = delete(self._registry, target, options)
        surprising = target.resource.orphans_by_default and options.policy is None
        return _deleted(target, result, {"Warning": _PRESERVED} if surprising else {})

    def _enforce_deletion(self, request: Request, target: Target, *, dry_run: bool) -> None:
        write = Write(dry_run=dry_run, user=request.user)
        old = self._find(target).obj
        enforce(self._registry.store, Attempt(write, target.resource, "DELETE", None, old))

    def _find(self, target: Target) -> Record:
        return self._registry.find(target.resource, target.namespace, target.name)

    def _update(self, request: Request, target: Target) -> Response:
        write = write_options(request, "UpdateOptions")
        body = body_of(request)
        if target.subresource == "scale":
            return answer(200, change_scale(self._registry, target, lambda _: body, write))
        return _written(200, self._registry.update(target, body, write), write)

    def _patch(self, request: Request, target: Target) -> Response:
        write = write_options(request, "PatchOptions")

        def edit(obj: Object) -> Object:
            return apply_patch(request.content_type, obj, request.body)

        if target.subresource == "scale":
            return answer(200, change_scale(self._registry, target, edit, write))
        return _written(200, self._registry.patch(target, edit, write), write)


def _written(code: int, obj: Object, write: Write) -> Response:
    """The stored object, with its warnings in a header (RFC 7234, section 5.5)."""
    quoted = ", ".join(f"299 - {json.dumps(words)}" for words in write.warnings)
    return answer(code, obj, **({"Warning": quoted} if quoted else {}))


def _deleted(target: Target, result: Deleted, headers: Mapping[str, str]) -> Response:
    """The object where it is still there or its kind says so, else a Status that names it."""
    resource = target.resource
    if not result.gone or resource.returns_deleted:
        return answer(200, result.obj, **headers)
    details = {"name": name_of(result.obj), "group": resource.group, "kind": resource.plural}
    details = {key: value for key, value in details.items() if value}
    details["uid"] = result.obj["metadata"]["uid"]
    success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return answer(200, {**success, "details": details}, **headers)
