"""HTTP/1.1 around the API: connections, bodies, chunks, faults and the wire log. Must not know what objects mean."""

import contextlib
import datetime
import http.server
import logging
import select
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

from simulator.kube import errors
from simulator.kube.errors import ApiError
from simulator.kube.faults import Fault, Faults
from simulator.kube.handlers import Api, Response, answer, is_public, refusal
from simulator.kube.rbac import Access
from simulator.kube.requestlog import LoggedRequest, RequestLog
from simulator.kube.requests import Request

_BACKLOG = 256
_PIECE = 65536  # bytes
_HANDSHAKE_S = 10.0
_LOG = logging.getLogger(__name__)


class HttpServer(http.server.ThreadingHTTPServer):
    """Serves an Api on loopback, with `tls` over HTTPS; `close` ends every connection and thread."""

    daemon_threads = False
    block_on_close = True
    request_queue_size = _BACKLOG
    allow_reuse_address = True

    def __init__(
        self,
        port: int,
        api: Api,
        access: Access,
        clock: Callable[[], datetime.datetime],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self.api = api
        self.access = access
        self.clock = clock
        self.faults = Faults()
        self.log = RequestLog()
        self.closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", port), _Connection)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        """Serve one connection, known to `close` while it lasts."""
        if self._tls:
            try:
                request = _secured(request, self._tls)
            except OSError:  # the client speaks no TLS, or went away
                self.shutdown_request(request)
                return
        with self._guard:
            if self.closing.is_set():  # too late for `close` to cut it
                self.shutdown_request(request)
                return
            self._connections.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._guard:
                self._connections.discard(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error; anything else is a bug and shows itself."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("serving %s failed: %s", client_address, request)

    def close(self) -> None:
        """Stop accepting, cut the connections, wait for the threads."""
        self.closing.set()
        self.shutdown()
        with self._guard:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Connection(http.server.BaseHTTPRequestHandler):
    """One kept-alive connection."""

    server: HttpServer
    protocol_version = "HTTP/1.1"
    server_version = "simulated-kube-apiserver"
    disable_nagle_algorithm = True
    wbufsize = -1

    def handle_one_request(self) -> None:
        """Read one request and answer it; every method goes the same way."""
        try:
            self.raw_requestline = self.rfile.readline(65537)
            if not self.raw_requestline:
                self.close_connection = True
            elif self.parse_request():
                self._serve()
                self.wfile.flush()
        except OSError:  # the client went away
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - BaseHTTPRequestHandler's name
        """Nothing on stderr: requests are in the wire log."""

    def _serve(self) -> None:
        request = self._read()
        user = ""
        fault = self.server.faults.take(request.method, request.path)
        if fault and fault.delay_s:
            self.server.closing.wait(fault.delay_s)
        if fault and _replaces(fault) and not fault.after_effect:
            response = self._faulty(fault)
        else:
            user, response = self._answer(request)
            if fault and _replaces(fault):
                response = self._faulty(fault)
        self._record(request, user, response.code if response else 0)
        if response is None:
            self.close_connection = True
        else:
            self._write(response)

    def _read(self) -> Request:
        url = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        return Request(
            method=self.command,
            path=unquote(url.path),
            query=dict(parse_qsl(url.query, keep_blank_values=True)),
            headers=headers,
            body=self._read_body(headers),
            alive=self._alive,
        )

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return b"".join(self._chunks())
        length = headers.get("content-length", "0")
        size = int(length) if length.isdecimal() else 0
        body = self.rfile.read(min(size, errors.MAX_BODY_BYTES + 1))
        # Read though not wanted: closing on unread data would reset the connection, and the client miss the answer.
        for start in range(len(body), size, _PIECE):
            self.rfile.read(min(_PIECE, size - start))
        return body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _answer(self, request: Request) -> tuple[str, Response]:
        user = ""
        try:
            known = None
            if not is_public(request.path):
                known = self.server.access.identify(request.headers)
                user = known.name
            with self.server.api.interceptor(request, user):
                return user, self.server.api.handle(request, known)
        except ApiError as error:
            return user, refusal(error)
        except Exception:  # noqa: BLE001 - a bug costs one request and says so
            _LOG.exception("%s %s failed; answered with 500", request.method, request.path)
            return user, refusal(errors.internal())

    def _faulty(self, fault: Fault) -> Response | None:
        if fault.drop:
            return None
        response = answer(fault.status or 500, fault.document())
        return Response(response.code, response.body, headers=fault.headers)

    def _record(self, request: Request, user: str, code: int) -> None:
        self.server.log.add(
            LoggedRequest(
                time=self.server.clock(),
                user=user,
                method=request.method,
                path=request.path,
                query=urlsplit(self.path).query,
                content_type=request.content_type,
                body=request.body,
                code=code,
            )
        )

    def _write(self, response: Response) -> None:
        self.send_response(response.code)
        self.send_header("Content-Type", response.content_type)
        for name, value in response.headers.items():
            self.send_header(name, value)
        if response.stream is None:
            self.send_header("Content-Length", str(len(response.body)))
            self.end_headers()
            self.wfile.write(response.body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for line in response.stream:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _alive(self) -> bool:
        """Whether the server runs on and the client has not hung up."""
        if self.server.closing.is_set():
            return False
        if isinstance(self.connection, ssl.SSLSocket):
            return _is_open(self.connection)
        readable, _, _ = select.select([self.connection], [], [], 0)
        return not readable or bool(self.connection.recv(1, socket.MSG_PEEK))


def _secured(connection: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
    """The connection after the handshake; raises OSError."""
    connection.settimeout(_HANDSHAKE_S)
    secured = tls.wrap_socket(connection, server_side=True)
    secured.settimeout(None)
    return secured


def _is_open(connection: ssl.SSLSocket) -> bool:
    """Whether a client that sends nothing while it is answered has not hung up."""
    connection.settimeout(0.0)
    try:
        return bool(connection.recv(1))
    except ssl.SSLWantReadError:
        return True
    finally:
        connection.settimeout(None)


def _replaces(fault: Fault) -> bool:
    return fault.drop or fault.status is not None
