"""HTTP of `run` and `extend`: /metrics, /healthz (alive), /readyz (the last cycle succeeded), /report, links to them.

`extend` also answers POST requests, on an address of its own with TLS.
https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import collections
import contextlib
import http.server
import logging
import pathlib
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

_TIMEOUT_S = 10
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

    def server(place: tuple[str, int]) -> http.server.HTTPServer:
        return http.server.ThreadingHTTPServer(place, Pages)

    with _served("--listen", address, server) as found:
        yield found


@contextlib.contextmanager
def _served(
    flag: str, address: str, make: Callable[[tuple[str, int]], http.server.HTTPServer]
) -> Iterator[int]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - TCP's last port
        raise ConfigurationError(f'{flag} "{address}": write HOST:PORT, or :9401 for all addresses')
    try:
        server = make((host.strip("[]"), int(port)))
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


class _Plain(http.server.BaseHTTPRequestHandler):
    """What all servers share."""

    timeout = _TIMEOUT_S
    server_version = "gpu-rightsizer"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or a reply in two packets waits for 40 ms
    wbufsize = -1

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log requests only at level debug."""
        log.debug("%s %s", self.address_string(), format % args)


class _MetricsHandler(_Plain):
    """GET and HEAD of a few paths."""

    texts: dict[str, Callable[[], str]]
    metrics: CollectorRegistry
    answer: Report

    def do_GET(self) -> None:
        """Answer."""
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.metrics))
        elif path in self.texts:
            wrong = self.texts[path]()
            self._answer(503 if wrong else 200, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode())
        elif path == "/report":
            code, text = self.answer(urllib.parse.parse_qs(query))
            self._answer(
                code, f"text/{'html' if code == HTTPStatus.OK else 'plain'}; charset=utf-8", text.encode()
            )
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", _PAGE)
        else:
            self._answer(
                404, "text/plain; charset=utf-8", b"here are /metrics, /report, /healthz and /readyz\n"
            )

    do_HEAD = do_GET  # noqa: N815 - the library's name


# --- Questions by POST

MAX_BODY_BYTES = 8 << 20
"""A question about 5,000 nodes has 0.3 MB."""
MOST_CONNECTIONS = 128
"""At the same time, each with a thread; for one more, the one that was silent for longest is closed."""


class InvalidBody(ValueError):  # noqa: N818 - what it is
    """A question that cannot be answered; its words are the reply."""


class TlsFiles:
    """The certificate of a server, read again when its file changes, and who may ask.

    Args:
        certificate: Of the server, with its chain (PEM).
        key: Of the certificate.
        client_authority: CA certificates of clients; None lets anybody ask.

    Raises:
        ConfigurationError: One of the files cannot be used.
    """

    def __init__(
        self, certificate: pathlib.Path, key: pathlib.Path, client_authority: pathlib.Path | None
    ) -> None:
        self._files = (certificate, key)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._read_at = 0
        self._lock = threading.Lock()
        self._load()
        if client_authority is not None:
            try:
                self._context.load_verify_locations(client_authority)
            except OSError as error:
                raise ConfigurationError(f'"{client_authority}": {_why(error)}') from error
            self._context.verify_mode = ssl.CERT_REQUIRED

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """A connection before its handshake."""
        try:
            self._load()
        except ConfigurationError as error:
            log.warning("the certificate that was read before stays in use: %s", error)
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        certificate, key = self._files
        with self._lock:
            try:
                changed_at = max(file.stat().st_mtime_ns for file in self._files)
                if changed_at != self._read_at:
                    self._context.load_cert_chain(certificate, key)
                    self._read_at = changed_at
            except OSError as error:
                raise ConfigurationError(f'"{certificate}", "{key}": {_why(error)}') from error


def _why(error: OSError) -> str:
    """Of a file that cannot be used: ssl.SSLError is an OSError too."""
    if isinstance(error, ssl.SSLError):
        return f"no usable certificate and key (PEM): {error.reason or error}"
    return f"cannot be read: {error.strerror}"


@contextlib.contextmanager
def answering(
    address: str, routes: Mapping[str, Callable[[bytes], bytes]], tls: TlsFiles | None
) -> Iterator[int]:
    """While entered, an HTTP server that answers POST requests with JSON; yields its port.

    A route raises InvalidBody for a body that it cannot answer.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """

    class BoundQuestions(_Questions):
        answers = routes

    def server(place: tuple[str, int]) -> http.server.HTTPServer:
        return _QuestionServer(place, BoundQuestions, tls)

    with _served("--extender-listen", address, server) as port:
        yield port


class _QuestionServer(http.server.ThreadingHTTPServer):
    """A thread for each connection. Who opens many and is silent keeps nobody else out."""

    daemon_threads = False  # a reply in progress is sent before the process ends
    request_queue_size = MOST_CONNECTIONS  # with fewer, clients beyond them try again only after a second

    def __init__(self, place: tuple[str, int], handler: type["_Questions"], tls: TlsFiles | None) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[socket.socket, None] = collections.OrderedDict()
        """The one that was silent for longest comes first."""
        super().__init__(place, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection, before its handshake."""
        connection, address = super().get_request()
        connection.settimeout(_TIMEOUT_S)
        if self._tls is not None:
            connection = self._tls.wrap(connection)
        with self._lock:
            if len(self._open) == MOST_CONNECTIONS:
                oldest, _ = self._open.popitem(last=False)
                _end(oldest, socket.SHUT_RDWR)
            self._open[connection] = None
        return connection, address

    def finish_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has it
        """Answer all questions of a connection."""
        if isinstance(request, ssl.SSLSocket):
            request.do_handshake()
        super().finish_request(request, client_address)

    def answered(self, connection: socket.socket) -> None:
        """A connection was not silent."""
        with self._lock:
            if connection in self._open:
                self._open.move_to_end(connection)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - as the library has it
        """Close a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the library has it
        """Log what ended a connection."""
        del request
        error = sys.exception()
        if isinstance(error, OSError):  # it went away, or its handshake failed
            log.debug("%s: %s", client_address, error)
        else:
            log.error("a question could not be answered: a bug in gpu-rightsizer", exc_info=error)

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


class _Questions(_Plain):
    """POST of JSON."""

    server: _QuestionServer
    answers: Mapping[str, Callable[[bytes], bytes]]

    def do_POST(self) -> None:
        """Answer a question."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) <= len(str(MAX_BODY_BYTES))):
            self._refuse(411, "Content-Length is missing, or no number of bytes that is accepted")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        elif (answer := self.answers.get(self.path)) is None:
            self._refuse(404, f"here are {' and '.join(self.answers)}")
        else:
            body = self.rfile.read(int(length))
            try:
                self._answer(200, "application/json", answer(body))
            except InvalidBody as error:
                self._answer(400, "text/plain; charset=utf-8", f"{error}\n".encode())
            self.server.answered(self.connection)

    def _refuse(self, code: int, words: str) -> None:
        """Answer, and close the connection: the body stays unread."""
        self.close_connection = True
        self._answer(code, "text/plain; charset=utf-8", f"{words}\n".encode())
