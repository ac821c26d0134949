"""Queries the API server for this node's pods: a JSON document or a stream of events, bounded in size and time.

Must not know the fields of a pod. Uses http.client because the exporter has it loaded anyway.
"""

import contextlib
import http.client
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.errors import ApiServerError, StartError, VersionExpiredError
from exporter.pods.apiaccess import ApiServerAccess

_NODE_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TIMEOUT_S = 10.0
_MAX_LIST_BYTES = 32 * 1024 * 1024
_MAX_EVENT_BYTES = 4 * 1024 * 1024  # etcd takes objects of 1.5 MiB
_MAX_REFUSAL_BYTES = 64 * 1024
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


class PodApi:
    """Queries the pods of one node only. One request at a time; any thread may call `interrupt`."""

    def __init__(self, access: ApiServerAccess, node: str) -> None:
        """Make no request yet."""
        if not _NODE_NAME.fullmatch(node):
            raise StartError(
                f'pod labels and UIDs need the node name, and "{node}" is not one: set --node-name or NODE_NAME '
                "(in a pod: fieldRef spec.nodeName)"
            )
        self._access = access
        self._node = node
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._interrupted = False

    def get(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        """A list, or a page of it. Raises VersionExpiredError if the requested version has expired."""
        with self._asking(query, _TIMEOUT_S) as response:
            body = response.read(_MAX_LIST_BYTES + 1)
        if len(body) > _MAX_LIST_BYTES:
            raise ApiServerError(f"the API server's answer is larger than {_MAX_LIST_BYTES >> 20} MiB")
        return _json(body)

    def watch(self, query: Mapping[str, str], *, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        """An empty event once the watch is established, then events until the server ends it.

        `timeout_s`: maximum silence in seconds. Raises VersionExpiredError: the requested version has expired. Raises
        ApiServerError: any other failure.
        """
        with self._asking({"watch": "1", **query}, timeout_s) as response:
            yield {}
            while line := response.readline(_MAX_EVENT_BYTES + 1):
                if not line.endswith(b"\n"):
                    raise ApiServerError("the API server's event is cut off or too large")
                event = _json(line)
                if event.get("type") == "ERROR":
                    status = event.get("object")
                    status = status if isinstance(status, Mapping) else {}
                    raise _error(status.get("code"), status)
                yield event

    def interrupt(self) -> None:
        """Abort the request in progress and all later ones."""
        with self._lock:
            self._interrupted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _asking(self, query: Mapping[str, str], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """The response to a GET, with status 200."""
        selected = {"fieldSelector": f"spec.nodeName={self._node}", **query}
        path = "/api/v1/pods?" + urllib.parse.urlencode(selected)
        try:
            with contextlib.closing(self._access.connect(_TIMEOUT_S)) as connection:
                connection.connect()
                with self._interruptible(connection.sock) as sock:
                    headers = {"Accept": "application/json", "User-Agent": "gpu-exporter"}
                    connection.request("GET", path, headers=headers | self._access.headers())
                    with connection.getresponse() as response:
                        if response.status != http.HTTPStatus.OK:
                            raise _refusal(response)
                        sock.settimeout(timeout_s)
                        yield response
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
            raise ApiServerError(
                f"querying {self._access.host}:{self._access.port} for pods: {str(error) or type(error).__name__}"
            ) from error

    @contextlib.contextmanager
    def _interruptible(self, sock: socket.socket) -> Iterator[socket.socket]:
        """Let `interrupt` shut this socket down, and the kernel detect a dead peer."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
        with self._lock:
            if self._interrupted:
                raise ApiServerError("interrupted")
            self._socket = sock
        try:
            yield sock
        finally:
            with self._lock:
                self._socket = None


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiServerError(f"the API server's answer is not JSON: {type(error).__name__}") from error
    if not isinstance(document, Mapping):
        raise ApiServerError("the API server's answer is not an object")
    return document


def _refusal(response: http.client.HTTPResponse) -> ApiServerError:
    try:
        document = _json(response.read(_MAX_REFUSAL_BYTES))
    except ApiServerError:
        document = {}
    error = _error(response.status, document)
    with contextlib.suppress(ValueError):
        error.retry_after_s = float(response.headers.get("Retry-After", ""))
    return error


def _error(code: object, status: Mapping[str, Any]) -> ApiServerError:
    words = str(status.get("message") or status.get("reason") or "")[:200]
    if code == http.HTTPStatus.GONE:
        return VersionExpiredError(f"the requested version has expired: {words}")
    hint = (
        "; the exporter's account needs list and watch of pods" if code == http.HTTPStatus.FORBIDDEN else ""
    )
    return ApiServerError(f"the API server answers {code}: {words}{hint}")
