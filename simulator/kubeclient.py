"""A small Kubernetes client for the simulator: get, list, create, patch, delete, watch."""

import base64
import contextlib
import dataclasses
import http.client
import json
import socket
import ssl
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

TIMEOUT_S = 60.0
WATCH_S = 300
"""How long a watch is asked to last before it is renewed."""

Object = dict[str, Any]


class KubeClientError(Exception):
    """The API server refused a request; `status` is the HTTP status."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """URL and credentials of an API server; `tls` has its CA and the client certificate."""

    url: str
    token: str | None = dataclasses.field(default=None, repr=False)
    tls: ssl.SSLContext | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> "Endpoint":
        """The current context of the kubeconfig `path`: token or client certificate, authority by file or inline."""
        config = yaml.safe_load(path.read_text())
        named = {
            kind: {entry["name"]: entry.get(kind, {}) for entry in config.get(f"{kind}s", ())}
            for kind in ("context", "cluster", "user")
        }
        context = named["context"][config["current-context"]]
        cluster, user = named["cluster"][context["cluster"]], named["user"].get(context.get("user"), {})
        tls = _tls(cluster, user, path.parent) if cluster["server"].startswith("https:") else None
        return cls(url=cluster["server"], token=_token(user, path.parent), tls=tls)


class KubeClient:
    """Requests to one API server; each opens its own connection, so threads may share a client."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def get(self, path: str, **query: str) -> Object:
        """The object or list at `path`; raises KubeClientError and OSError."""
        return self._request("GET", _with(path, query))

    def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection `path`; raises KubeClientError and OSError."""
        return self._request("POST", path, body=body)

    def patch(self, path: str, body: Object) -> Object:
        """Merge `body` into the object at `path`; raises KubeClientError and OSError."""
        return self._request("PATCH", path, body=body, content_type="application/merge-patch+json")

    def delete(self, path: str) -> Object:
        """Delete the object at `path`; raises KubeClientError and OSError."""
        return self._request("DELETE", path)

    def watch(self, path: str, *, resource_version: str, **query: str) -> "Watch":
        """What happens in the collection `path` after `resource_version`; raises KubeClientError and OSError."""
        query |= {"watch": "true", "resourceVersion": resource_version, "timeoutSeconds": str(WATCH_S)}
        connection = self._connect(WATCH_S + TIMEOUT_S)
        try:
            connection.request("GET", _with(path, query), headers=self._headers())
            return Watch(connection, _checked(connection.getresponse(), f"watching {path}"))
        except BaseException:
            connection.close()
            raise

    def _request(
        self, method: str, path: str, *, body: Object | None = None, content_type: str = "application/json"
    ) -> Object:
        with contextlib.closing(self._connect(TIMEOUT_S)) as connection:
            headers = self._headers() | ({"Content-Type": content_type} if body is not None else {})
            connection.request(method, path, body=None if body is None else json.dumps(body), headers=headers)
            answer = _checked(connection.getresponse(), f"{method} {path}")
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def _headers(self) -> dict[str, str]:
        authorization = {"Authorization": f"Bearer {self.endpoint.token}"} if self.endpoint.token else {}
        return {"Accept": "application/json"} | authorization

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        url = urllib.parse.urlsplit(self.endpoint.url)
        host = url.hostname or "localhost"
        if url.scheme == "https":
            return http.client.HTTPSConnection(host, url.port, timeout=timeout_s, context=self.endpoint.tls)
        return http.client.HTTPConnection(host, url.port, timeout=timeout_s)


class Watch:
    """A stream of events; `close` ends it from any thread."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self._lock = threading.Lock()
        self._closed = False

    def events(self) -> Iterator[tuple[str, Object]]:
        """Type and object of each event, until the server ends the watch or `close` is called."""
        try:
            while line := self._response.readline():
                event = json.loads(line)
                yield event["type"], event["object"]
        except (OSError, ValueError, http.client.HTTPException, AttributeError):
            if not self._closed:
                raise
        finally:
            self._connection.close()

    def close(self) -> None:
        """End the stream; safe from any thread."""
        with self._lock:
            self._closed = True
            if self._connection.sock is not None:
                with contextlib.suppress(OSError):
                    self._connection.sock.shutdown(socket.SHUT_RDWR)


def _checked(response: http.client.HTTPResponse, what: str) -> http.client.HTTPResponse:
    if response.status < http.HTTPStatus.BAD_REQUEST:
        return response
    text = response.read().decode(errors="replace")
    try:
        reason = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        reason = text[:200]
    raise KubeClientError(f"{what}: {response.status} {response.reason}: {reason}", status=response.status)


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urllib.parse.urlencode(query)}" if query else path


def _tls(cluster: Object, user: Object, directory: Path) -> ssl.SSLContext:
    authority = _material(cluster, "certificate-authority", directory)
    context = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = _material(user, "client-certificate", directory)
    key = _material(user, "client-key", directory)
    if certificate and key:
        # ssl reads a certificate chain from a file only.
        with tempfile.NamedTemporaryFile() as chain:
            chain.write(certificate + b"\n" + key)
            chain.flush()
            context.load_cert_chain(chain.name)
    return context


def _token(user: Object, directory: Path) -> str | None:
    if "tokenFile" in user:
        return (directory / str(user["tokenFile"])).read_text().strip()
    token: str | None = user.get("token")
    return token


def _material(section: Object, key: str, directory: Path) -> bytes | None:
    if f"{key}-data" in section:
        return base64.b64decode(section[f"{key}-data"])
    return (directory / section[key]).read_bytes() if key in section else None
