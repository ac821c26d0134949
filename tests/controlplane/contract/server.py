"""What a contract test speaks to: an API server, the simulator's or a real one; which must not matter."""

import base64
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

import requests
import yaml

from rightsizer.config import FIELD_MANAGER
from simulator.kube import ADMIN_TOKEN, ApiServer, Rule

Object = dict[str, Any]
Found = TypeVar("Found")

POOL = {"pool": "contract"}
"""Selects the nodes that these tests' pods run on."""
TIMEOUT_S = 60.0


class Options(TypedDict, total=False):
    """What a request may carry besides its body."""

    params: Mapping[str, str | int]
    headers: Mapping[str, str]
    user: str


class Server(Protocol):
    """An API server with controllers, a scheduler, two nodes of POOL with eight GPUs each, and running kubelets."""

    @property
    def url(self) -> str:
        """Where it serves."""
        ...

    def session(self) -> requests.Session:
        """A session of an administrator."""
        ...

    def grant(self, user: str, namespace: str, *, verbs: Sequence[str], resources: Sequence[str]) -> None:
        """Let a user do that in a namespace, and nothing else."""
        ...


class Simulated:
    """The simulator's."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.url = server.url

    def session(self) -> requests.Session:
        """A session of its administrator."""
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {ADMIN_TOKEN}"
        return session

    def grant(self, user: str, namespace: str, *, verbs: Sequence[str], resources: Sequence[str]) -> None:
        """Add a rule."""
        rule = Rule(user, verbs=tuple(verbs), resources=tuple(resources), namespaces=(namespace,))
        self._server.allow(rule)


class Real:
    """That of a real control plane."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.url = str(cluster["server"])
        self._files = {
            name: _file(directory / f"{name}.pem", section[f"{name}-data"])
            for section, name in (
                (cluster, "certificate-authority"),
                (user, "client-certificate"),
                (user, "client-key"),
            )
        }

    def session(self) -> requests.Session:
        """A session with the administrator's certificate."""
        session = requests.Session()
        session.verify = self._files["certificate-authority"]
        session.cert = (self._files["client-certificate"], self._files["client-key"])
        session.trust_env = False
        return session

    def grant(self, user: str, namespace: str, *, verbs: Sequence[str], resources: Sequence[str]) -> None:
        """Create a Role, bind it, and wait until the server knows: its refusals before that are no policy's."""
        api = "rbac.authorization.k8s.io"
        rule = {"apiGroups": ["*"], "verbs": list(verbs), "resources": list(resources)}
        role = {"metadata": {"name": user}, "rules": [rule]}
        subject = {"kind": "User", "name": user, "apiGroup": api}
        binding = {
            "metadata": {"name": user},
            "subjects": [subject],
            "roleRef": {"kind": "Role", "name": user, "apiGroup": api},
        }
        with self.session() as session:
            for plural, body in (("roles", role), ("rolebindings", binding)):
                path = f"{self.url}/apis/{api}/v1/namespaces/{namespace}/{plural}"
                session.post(path, json=body, timeout=TIMEOUT_S).raise_for_status()
            resource, _, subresource = resources[0].partition("/")
            asked = {
                "namespace": namespace,
                "verb": verbs[0],
                "resource": resource,
                "subresource": subresource,
            }
            review = {"spec": {"user": user, "resourceAttributes": asked}}
            deadline = time.monotonic() + TIMEOUT_S
            while not self._is_allowed(session, review):
                assert time.monotonic() < deadline, f"{user} is not allowed after {TIMEOUT_S:g} s"
                time.sleep(0.05)

    def _is_allowed(self, session: requests.Session, review: Object) -> bool:
        path = f"{self.url}/apis/authorization.k8s.io/v1/subjectaccessreviews"
        reply = session.post(path, json=review, timeout=TIMEOUT_S)
        reply.raise_for_status()
        return bool(reply.json()["status"]["allowed"])


def _file(path: Path, data: str) -> str:
    path.write_bytes(base64.b64decode(data))
    return str(path)


class Api:
    """Plain HTTP to a server, in a namespace of its own.

    Attributes:
        namespace: Made for this test, so that nothing else is in it.
        core, apps, batch, policy: Paths of those groups in the namespace.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.namespace = f"contract-{uuid.uuid4().hex[:8]}"
        self.session = server.session()
        scope = f"namespaces/{self.namespace}"
        self.core = f"/api/v1/{scope}"
        self.apps = f"/apis/apps/v1/{scope}"
        self.batch = f"/apis/batch/v1/{scope}"
        self.policy = f"/apis/policy/v1/{scope}"
        self.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        # Pods are refused until the namespace has its service account.
        self.eventually(lambda: self("GET", f"{self.core}/serviceaccounts/default").status_code == 200)

    def __call__(
        self, method: str, path: str, body: object = None, **options: Unpack[Options]
    ) -> requests.Response:
        """Send one request, with a JSON body where there is one; as `user` by impersonation."""
        headers = dict(options.get("headers", {}))
        if "user" in options:
            headers["Impersonate-User"] = options["user"]
        return self.session.request(
            method,
            self.server.url + path,
            params=options.get("params"),
            json=body,
            headers=headers,
            timeout=TIMEOUT_S,
        )

    def patch(
        self, path: str, body: object, kind: str = "merge-patch", **options: Unpack[Options]
    ) -> requests.Response:
        """Send a patch of a kind such as "json-patch"."""
        options["headers"] = {**options.get("headers", {}), "Content-Type": f"application/{kind}+json"}
        if "user" in options:  # who the guardrails are about
            options["params"] = {"fieldManager": FIELD_MANAGER, **options.get("params", {})}
        return self("PATCH", path, body, **options)

    def create(self, path: str, body: object) -> Object:
        """Create an object that must be accepted."""
        return _accepted(self("POST", path, body))

    def get(self, path: str) -> Object:
        """An object or list that must be there."""
        return _accepted(self("GET", path))

    def items(self, path: str, **params: str | int) -> list[Object]:
        """The items of a list."""
        items: list[Object] = _accepted(self("GET", path, params=params))["items"]
        return items

    def pods(self, *, phase: str = "") -> list[Object]:
        """The namespace's pods, by name."""
        found = (pod for pod in self.items(f"{self.core}/pods") if phase in {"", pod["status"]["phase"]})
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def running(self, count: int) -> list[Object]:
        """The namespace's pods, once exactly `count` of them run and there are no others."""
        return self.eventually(
            self.pods, lambda found: [pod["status"]["phase"] for pod in found] == ["Running"] * count
        )

    def eventually(
        self,
        look: Callable[[], Found],
        holds: Callable[[Found], object] = bool,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> Found:
        """What `look` finds, as soon as `holds` says that it is what was waited for."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = look()
            if holds(found):
                return found
            assert time.monotonic() < deadline, f"in vain for {timeout_s:g} s; the last was {found!r}"
            time.sleep(0.05)


def _accepted(reply: requests.Response) -> Object:
    assert reply.status_code in {200, 201, 202}, f"{reply.request.method} {reply.url}: {reply.text}"
    answer: Object = reply.json()
    return answer
