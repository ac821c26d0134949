"""HTTP of `run` and `extend`: /metrics, /healthz (alive), /readyz (the last cycle succeeded), /report, links to them.

https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import collections
import contextlib
import http.server
import logging
import socket
import ssl
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rightsizer.errors import ConfigurationError

log = logging.getLogger(__name__)

TIMEOUT_S = 10
MOST_CONNECTIONS = 128
"""Connections at the same time, each with a thread; for one more, the one that was silent for longest is closed."""
_PAGE = b"""<!DOCTYPE html>
<title>gpu-rightsizer</title>
<h1>gpu-rightsizer</h1>
<p><a href="/report">Report</a>, <a href="/metrics">metrics</a>,
<a href="/healthz">health</a>, <a href="/readyz">readiness</a></p>
"""


Report = Callable[[Mapping[str, list[str]]], tuple[int, str]]
"""From the fields of a query to an HTTP status, and a page or words."""


def _without_report(_query: Mapping[str, list[str]]) -> tuple[int, str]:
    return HTTPStatus.NOT_FOUND, "only `run` serves a report\n"


@contextlib.contextmanager
def serving(
    address: str,
    registry: CollectorRegistry,
    *,
    alive: Callable[[], str],
    ready: Callable[[], str],
    report: Report = _without_report,
) -> Iterator[int]:
    """While entered, an HTTP server in its own threads; yields its port.

    `alive` and `ready` return what is wrong, or nothing. The address is HOST:PORT or :PORT; port 0 takes any free port.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """

    class Pages(_MetricsHandler):
        texts = {"/healthz": alive, "/readyz": ready}  # noqa: RUF012 - of this server
        metrics = registry
        answer = staticmethod(report)

    with listening("--listen", address, Pages) as port:
        yield port


Wrap = Callable[[socket.socket], socket.socket]
"""From a new connection to one with TLS, before its handshake."""


@contextlib.contextmanager
def listening(
    flag: str, address: str, handler: type["AnswerHandler"], wrap: Wrap | None = None
) -> Iterator[int]:
    """While entered, a server on the address of a flag, in threads; yields its port.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - TCP's last port
        raise ConfigurationError(f'{flag} "{address}": write HOST:PORT, or :9401 for all addresses')
    try:
        server = _BoundedServer((host.strip("[]"), int(port)), handler, wrap)
    except OSError as error:
        raise ConfigurationError(f'{flag} "{address}": cannot be used: {error.strerror}') from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _BoundedServer(http.server.ThreadingHTTPServer):
    """A thread for each connection, of which there are few. Who opens many and is silent keeps nobody else out."""

    daemon_threads = False  # a reply in progress is sent before the process ends
    request_queue_size = MOST_CONNECTIONS  # with fewer, clients beyond them try again only after a second

    def __init__(self, place: tuple[str, int], handler: type["AnswerHandler"], wrap: Wrap | None) -> None:
        self._wrap = wrap
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[socket.socket, None] = collections.OrderedDict()
        """The one that was silent for longest comes first."""
        super().__init__(place, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection, before its handshake."""
        connection, address = super().get_request()
        connection.settimeout(TIMEOUT_S)
        if self._wrap is not None:
            connection = self._wrap(connection)
        with self._lock:
            if len(self._open) == MOST_CONNECTIONS:
                oldest, _ = self._open.popitem(last=False)
                _end(oldest, socket.SHUT_RDWR)
            self._open[connection] = None
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has it
        """Answer all requests of a connection."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)

    def answered(self, connection: socket.socket) -> None:
        """Note that a connection was not silent."""
        with self._lock:
            if connection in self._open:
                self._open.move_to_end(connection)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as the library has it
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has it
        """Log the error that ended a connection."""
        del request
        error = sys.exception()
        if isinstance(error, OSError):  # it went away, or its handshake failed
            log.debug("%s: %s", client_address, error)
        else:
            log.error("a request could not be answered: a bug in gpu-rightsizer", exc_info=error)

    def server_close(self) -> None:
        """Let connections end after a reply in progress, and wait for that."""
        with self._lock:
            for connection in self._open:
                _end(connection, socket.SHUT_RD)
        super().server_close()


def _end(connection: socket.socket, how: int) -> None:
    """End reading or both, below TLS: its thread sees it, and closes the connection."""
    with contextlib.suppress(OSError):  # it has ended
        socket.socket.shutdown(connection, how)


class AnswerHandler(http.server.BaseHTTPRequestHandler):
    """Base of the handlers of all servers."""

    server: _BoundedServer
    timeout = TIMEOUT_S
    server_version = "gpu-rightsizer"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a reply in two packets waits for 40 ms
    wbufsize = -1

    def reply(self, code: int, kind: str, body: bytes) -> None:
        """Send a whole answer."""
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.server.answered(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log requests only at level debug."""
        log.debug("%s %s", self.address_string(), format % args)


class _MetricsHandler(AnswerHandler):
    """GET and HEAD of a few paths."""

    texts: dict[str, Callable[[], str]]
    metrics: CollectorRegistry
    answer: Report

    def do_GET(self) -> None:
        """Answer."""
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self.reply(200, kind, encode(self.metrics))
        elif path in self.texts:
            wrong = self.texts[path]()
            self.reply(503 if wrong else 200, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode())
        elif path == "/report":
            code, text = self.answer(urllib.parse.parse_qs(query))
            self.reply(
                code, f"text/{'html' if code == HTTPStatus.OK else 'plain'}; charset=utf-8", text.encode()
            )
        elif path == "/":
            self.reply(200, "text/html; charset=utf-8", _PAGE)
        else:
            self.reply(
                404, "text/plain; charset=utf-8", b"here are /metrics, /report, /healthz and /readyz\n"
            )

    do_HEAD = do_GET  # noqa: N815 - the library's name
