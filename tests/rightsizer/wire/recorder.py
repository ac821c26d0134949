"""Every request that reaches the simulated API server, with the server's own state at the instant it is carried out.

A request that changes something is carried out under the server's lock, so that the state beside it is what it met.
Knows no rule: what a recording means is the checker's business.
"""

import contextlib
import dataclasses
import datetime
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.kube import ApiServer
from simulator.kube.requests import Request, parse_path
from simulator.kube.resources import Resource, by_kind

Object = Mapping[str, Any]
OWN = "gpu-rightsizer"


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """What the server held.

    Attributes:
        obj: What the request is about; None where it is not there.
        pods: Of its namespace.
        classes: PriorityClasses' values by name.
        disruptions: PodDisruptionBudgets of its namespace.
        lease: Spec of our Lease.
        state: Data of our ConfigMap.
    """

    obj: Object | None
    pods: tuple[Object, ...]
    namespace: Object | None
    classes: Mapping[str, int]
    disruptions: tuple[Object, ...]
    lease: Object
    state: Mapping[str, str]
    secrets: tuple[Object, ...]


@dataclasses.dataclass(slots=True)
class Entry:
    """One request that may change something.

    Attributes:
        at: The server's clock.
        kind: Of what it is about.
        is_dry: Whether it asked to change nothing.
        after: What it is about, once it was carried out; None where it was refused, or is gone.
        is_done: Whether it was carried out.
    """

    at: datetime.datetime
    user: str
    method: str
    path: str
    query: Mapping[str, str]
    content_type: str
    text: str
    kind: str
    namespace: str
    name: str
    subresource: str
    scene: Scene
    is_dry: bool
    after: Object | None = None
    is_done: bool = False

    @property
    def body(self) -> Any:
        """As JSON."""
        return json.loads(self.text) if self.text else {}

    def __str__(self) -> str:
        """For people."""
        dry = " (dry run)" if self.is_dry else ""
        return f"{self.at:%m-%d %H:%M:%S} {self.user}: {self.method} {self.path}{dry} {self.text[:300]}"


class Recorder:
    """Stands around each request.

    Args:
        api: Whose.
        clock: The server's.
        heard: Told each entry right after it was carried out, still before anything else happens.

    Attributes:
        before: Called with user, method and path before a request that only reads; may let something happen.
        reads: How many there were.
        failed: Reads of what no plan can do without that were refused, by user.
    """

    def __init__(
        self, api: ApiServer, clock: Callable[[], datetime.datetime], heard: Callable[[Entry], None]
    ) -> None:
        self._api = api
        self._clock = clock
        self._heard = heard
        self.before: Callable[[str, str], None] = lambda *_: None
        self.reads = 0
        api.intercept(self._around)

    @contextlib.contextmanager
    def _around(self, request: Request, user: str) -> Iterator[None]:
        if request.method == "GET" or request.path.endswith("accessreviews"):
            self.reads += 1
            self.before(user, request.path)
            yield
            return
        with self._api.batch():
            entry = self._entry(request, user)
            try:
                yield
                entry.is_done = True
                entry.after = self._get(entry.kind, entry.namespace, entry.name)
            finally:
                self._heard(entry)

    def _entry(self, request: Request, user: str) -> Entry:
        route = parse_path(request.path)
        assert route is not None, request.path
        target = route[0]
        kind = _name_of(target.resource)
        text = request.body.decode()
        return Entry(
            self._clock(),
            user,
            request.method,
            request.path,
            request.query,
            request.content_type,
            text,
            kind,
            target.namespace,
            target.name,
            target.subresource,
            self._scene(kind, target.namespace, target.name),
            is_dry=_is_dry(request, text),
        )

    def _scene(self, kind: str, namespace: str, name: str) -> Scene:
        api = self._api
        lease = api.get("Lease", OWN, "gpu-rightsizer")
        state = api.get("ConfigMap", OWN, "gpu-rightsizer-state")
        return Scene(
            obj=self._get(kind, namespace, name),
            pods=tuple(api.list("Pod", namespace)),
            namespace=api.get("Namespace", None, namespace),
            classes={str(one["metadata"]["name"]): int(one["value"]) for one in api.list("PriorityClass")},
            disruptions=tuple(api.list("PodDisruptionBudget", namespace)),
            lease=lease["spec"] if lease else {},
            state=(state.get("data") or {}) if state else {},
            secrets=tuple(api.list("Secret", OWN)),
        )

    def _get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._api.get(kind, namespace, name) if name else None


def _name_of(resource: Resource) -> str:
    """As `by_kind` takes it."""
    with contextlib.suppress(KeyError):
        if by_kind(resource.kind) == resource:
            return resource.kind
    return f"{resource.kind}.{resource.group}"


def _is_dry(request: Request, text: str) -> bool:
    """By the query, or by the body of an eviction."""
    if request.query.get("dryRun") == "All":
        return True
    return request.path.endswith("/eviction") and "All" in (
        json.loads(text).get("deleteOptions", {}).get("dryRun") or ()
    )
