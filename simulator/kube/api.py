"""The simulated API server as one object: store, access, controllers and HTTP wired together."""

import base64
import contextlib
import datetime
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import trustme

from simulator.controlplane.thirdparty import third_party_kinds
from simulator.kube.controllers import CONTROLLERS
from simulator.kube.controllers.context import Context
from simulator.kube.controllers.loop import Loop
from simulator.kube.decoding import Target
from simulator.kube.deletion import DeleteOptions, delete
from simulator.kube.faults import Fault
from simulator.kube.handlers import Api, Interceptor
from simulator.kube.objects import Object, namespace_of, rfc3339
from simulator.kube.patch import MERGE_PATCH, apply_patch
from simulator.kube.rbac import ADMIN, ADMIN_TOKEN, Access, Rule, User
from simulator.kube.registry import Registry
from simulator.kube.requestlog import RequestLog
from simulator.kube.resources import by_kind, of_object
from simulator.kube.server import HttpServer
from simulator.kube.store import Store
from simulator.kube.validation import SYSTEM_CLASSES

_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_POLL_S = 0.02  # how soon `stop` is noticed
_HOST = "127.0.0.1"


def utc_now() -> datetime.datetime:
    """The real time."""
    return datetime.datetime.now(datetime.UTC)


class ApiServer:
    """A Kubernetes API server with its controllers, on loopback; a context manager.

    Calls in process pass the same admission and validation as HTTP, but need no token and are not logged.

    Args:
        clock: The current time.
        port: On loopback; 0 takes a free one.
        termination_delay_s: How long a pod takes to terminate.
        third_party: Whether third-party kinds are served; each costs gpu-rightsizer a request.
        tls: Whether it serves HTTPS, with an authority of its own. kubectl sends a token to no other server.
        seed: Of UIDs and generated names.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], datetime.datetime] = utc_now,
        port: int = 0,
        termination_delay_s: float = 0.2,
        third_party: bool = True,
        tls: bool = False,
        seed: int = 1,
    ) -> None:
        self._third_party = third_party
        self._authority = trustme.CA(organization_name="gpu-rightsizer simulator") if tls else None
        self._store = Store()
        self._registry = Registry(self._store, lambda: rfc3339(clock()), seed)
        self.access = Access()
        api = Api(self._registry, self.access, third_party=third_party)
        self.backends = api.backends
        self._api = api
        serving = _serving(self._authority) if self._authority else None
        self._http = HttpServer(port, api, self.access, clock, tls=serving)
        self.requests: RequestLog = self._http.log
        self.url = f"{'https' if tls else 'http'}://{_HOST}:{self._http.server_address[1]}"
        self._loop = Loop(self._store)
        self._context = Context(self._registry, self._loop.after, self._loop.later, termination_delay_s)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_S,), name="kube-apiserver", daemon=True
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serve, with the namespaces and PriorityClasses that every cluster has."""
        self._loop.start([make(self._context) for make in CONTROLLERS])
        for name in _NAMESPACES:
            self._registry.create(by_kind("Namespace"), "", {"metadata": {"name": name}})
        for kind in third_party_kinds() if self._third_party else ():
            self._registry.create(by_kind("CustomResourceDefinition"), "", kind.definition)
        for name, value in SYSTEM_CLASSES.items():
            self._registry.create(by_kind("PriorityClass"), "", {"metadata": {"name": name}, "value": value})
        self._thread.start()

    def stop(self) -> None:
        """End every connection and thread."""
        self._loop.stop()
        self._http.close()
        self._thread.join()

    def serve_version(self, minor: int) -> None:
        """Behave from now on as Kubernetes 1.minor."""
        self._registry.minor = minor

    def settle(self, timeout_s: float = 100.0) -> None:
        """Wait until the controllers have nothing left to do, terminations included."""
        self._loop.settle(timeout_s)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Hold everybody else back, so that many objects are created several times faster; then all react at once."""
        with self._store.lock:
            yield

    def intercept(self, interceptor: Interceptor) -> None:
        """Enter this with each request over HTTP that is carried out; within `batch` nothing comes in between."""
        self._api.interceptor = interceptor

    # --- objects, in process

    def create(self, obj: Mapping[str, Any]) -> Object:
        """Create an object; a namespaced one without a namespace goes to "default"."""
        resource = of_object(obj)
        namespace = (namespace_of(obj) or "default") if resource.namespaced else ""
        return self._registry.create(resource, namespace, obj)

    def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """A copy of an object, or None where it does not exist."""
        record = self._store.get(by_kind(kind), namespace or "", name)
        return record.copy() if record else None

    def list(self, kind: str, namespace: str | None = None) -> list[Object]:
        """Copies of all objects of a kind, of one namespace or of all."""
        return [record.copy() for record in self._store.rows(by_kind(kind), namespace or None)]

    def update(self, obj: Mapping[str, Any], *, subresource: str = "") -> Object:
        """Replace an object, or only its status."""
        resource = of_object(obj)
        target = Target(resource, namespace_of(obj), str(obj["metadata"]["name"]), subresource)
        return self._registry.update(target, obj)

    def patch(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        patch: object,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Object:
        """Patch an object, or only its status."""
        target = Target(by_kind(kind), namespace or "", name, subresource)
        body = json.dumps(patch).encode()
        return self._registry.change(target, lambda obj: apply_patch(content_type, obj, body))

    def delete(
        self,
        kind: str,
        namespace: str | None,
        name: str,
        *,
        grace_s: int | None = None,
        policy: str | None = None,
    ) -> None:
        """Delete an object, or begin to."""
        target = Target(by_kind(kind), namespace or "", name)
        delete(self._registry, target, DeleteOptions(grace_s=grace_s, policy=policy))

    # --- users, faults, history

    def add_user(self, token: str, name: str, groups: Sequence[str] = ()) -> None:
        """Let a token authenticate as a user without grants."""
        self.access.add_user(token, User(name, tuple(groups)))

    def allow(self, rule: Rule) -> None:
        """Let a user or group do what the rule covers."""
        self.access.allow(rule)

    def deny(self, rule: Rule) -> None:
        """Refuse what the rule covers, even to the administrator."""
        self.access.deny(rule)

    def inject(self, fault: Fault) -> None:
        """Let the next requests that match go wrong."""
        self._http.faults.inject(fault)

    @property
    def armed_faults(self) -> int:
        """How many injected faults are still to happen, or to happen again."""
        return len(self._http.faults)

    def clear_faults(self) -> None:
        """Disarm all faults."""
        self._http.faults.clear()

    def expire_history(self) -> None:
        """Make all continue tokens and earlier resourceVersions expire, as compaction does."""
        self._store.compact()

    def kubeconfig(self, token: str = ADMIN_TOKEN) -> Object:
        """A kubeconfig document for this server."""
        cluster = {"server": self.url}
        if self._authority:
            pem = self._authority.cert_pem.bytes()
            cluster["certificate-authority-data"] = base64.b64encode(pem).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "simulator",
            "clusters": [{"name": "simulator", "cluster": cluster}],
            "users": [{"name": ADMIN, "user": {"token": token}}],
            "contexts": [{"name": "simulator", "context": {"cluster": "simulator", "user": ADMIN}}],
        }


def _serving(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(_HOST).configure_cert(context)
    return context
