"""The HTTP server: bounds the number of connections and the time of each step. Must not know what is served.

One request per connection: an idle Prometheus must not occupy a thread. The accept loop is the standard library's;
its http.server has no deadlines and an unbounded number of threads, so requests are read and answered here.
"""

import contextlib
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus

from exporter.errors import RequestError, StartError
from exporter.http import request as requests
from exporter.http import tls
from exporter.http.auth import Gatekeeper
from exporter.http.connection import Connection
from exporter.http.handlers import Handlers, Reply, busy, text
from exporter.http.request import Request
from exporter.http.webfile import PLAIN, WebFile, WebSetup
from exporter.settings import Address

_LOG = logging.getLogger(__name__)
_MAX_ANSWERED = 16  # a few Prometheus servers, probes and a person; others get 503
_MAX_WAITING = 64  # each has a thread, because it may be in the middle of a TLS handshake
_HEAD_S = 10.0  # for the TLS handshake and the request's head; Prometheus's default scrape timeout
_ANSWER_S = 10.0  # for the answer
_SEND_S = 10.0  # for the client to read it
_SEND_BUFFER = 128 * 1024  # bytes; by default the kernel buffers megabytes for a client that does not read
_QUEUE = 64
_PACE_S = 0.01  # after a connection was dropped for a new one: so 64 of them leave a TLS handshake 0.6 s
_PAUSE_S = 0.1  # when the process has no file descriptors left


def listen(address: Address) -> socket.socket:
    """A listening socket; the IPv6 wildcard address also serves IPv4."""
    host = address.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - an empty host means all
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, address.port), family=family, backlog=_QUEUE, dualstack_ipv6=family == socket.AF_INET6
        )
    except (OSError, UnicodeError) as error:
        raise StartError(_listen_error(address, error)) from error


class _ConnectionLimits:
    """The open connections: many without a complete request, few that are answered.

    A connection without a complete request is dropped for a new one, so that silent clients block nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[Connection, None] = {}  # the oldest first
        self._answered: set[Connection] = set()

    def add(self, connection: Connection) -> bool:
        """Add a connection; True if the oldest waiting one was dropped for it."""
        with self._changed:
            is_full = len(self._waiting) >= _MAX_WAITING
            if is_full:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                oldest.abort()
            self._waiting[connection] = None
        return is_full

    def admit(self, connection: Connection) -> bool:
        """Whether a connection with a complete request can be answered now."""
        with self._changed:
            if connection not in self._waiting or len(self._answered) >= _MAX_ANSWERED:
                return False
            del self._waiting[connection]
            self._answered.add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection: from now on only its own thread uses it."""
        with self._changed:
            self._waiting.pop(connection, None)
            self._answered.discard(connection)
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait for all connections to end, at most `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._answered, timeout_s)


class Server(socketserver.BaseServer):
    """Serves the handlers' pages until it is stopped.

    `web`: TLS and passwords; None for neither. `clock`: monotonic seconds.
    """

    def __init__(
        self, listener: socket.socket, handlers: Handlers, web: WebFile | None, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(listener.getsockname(), socketserver.BaseRequestHandler)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)  # accepted sockets inherit it
        listener.settimeout(0)
        self._listener = listener
        self._handlers = handlers
        self._web = web
        self._clock = clock
        self._gatekeeper = Gatekeeper(clock)
        self._limits = _ConnectionLimits()
        self._logged = ""  # the last error of accept

    @property
    def url(self) -> str:
        """The URL on this machine."""
        host, port = self._listener.getsockname()[:2]
        name = {"::": "localhost", "0.0.0.0": "localhost"}.get(str(host), str(host))  # noqa: S104 - as above
        scheme = "http" if self._setup().context is None else "https"
        return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"

    def stop(self, grace_s: float) -> None:
        """Stop accepting, and wait up to `grace_s` seconds for requests in progress."""
        self.shutdown()
        self._listener.close()
        self._limits.wait_until_empty(grace_s)

    def fileno(self) -> int:
        """For socketserver's accept loop."""
        return self._listener.fileno()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection; for socketserver, which ignores an OSError and tries again."""
        try:
            accepted = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            if str(error) != self._logged:
                _LOG.warning("accepting a connection: %s; retrying", error.strerror)
                self._logged = str(error)
            threading.Event().wait(_PAUSE_S)
            raise
        self._logged = ""
        return accepted

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], _address: object) -> None:
        """Start a thread for a connection, and drop the oldest waiting one if there are too many."""
        if not isinstance(request, socket.socket):
            return  # socketserver's form for UDP
        connection = Connection(request, self._clock)
        is_crowded = self._limits.add(connection)
        try:
            arguments = (connection, self._clock())
            threading.Thread(target=self._serve, args=arguments, name="client", daemon=True).start()
        except RuntimeError:  # the process has no threads left
            self._limits.remove(connection)
            connection.close()
        if is_crowded:
            threading.Event().wait(_PACE_S)

    def _setup(self) -> WebSetup:
        return PLAIN if self._web is None else self._web.current()

    def _serve(self, connection: Connection, arrived: float) -> None:
        unread = False
        try:
            unread = self._converse(connection, self._setup(), arrived)
        except OSError as error:
            _LOG.debug("a client disconnected, timed out or failed the TLS handshake: %s", error)
        finally:
            with contextlib.suppress(OSError, ValueError):
                connection.finish(unread=unread)
            self._limits.remove(connection)
            connection.close()

    def _converse(self, connection: Connection, setup: WebSetup, arrived: float) -> bool:
        """Answer one request; True if the client may have sent more than was read."""
        until = arrived + _HEAD_S
        headers = setup.config.headers
        if setup.context is not None and setup.config.tls is not None:
            if not connection.starts_tls(until=until):
                reply = text(HTTPStatus.BAD_REQUEST, "this is an HTTPS server; use https://")
                connection.send(_encode(reply, headers, head_only=False), until=until)
                return True
            certificate = connection.secure(setup.context, until=until)
            if not tls.is_allowed(certificate, setup.config.tls.client_allowed_sans):
                _LOG.debug("a client's certificate matches none of client_allowed_sans")
                return False
        try:
            head = connection.read_head(requests.MAX_HEAD, until=until)
            if not head:
                return False
            request = requests.parse(head)
        except RequestError as error:
            reply = text(error.status, str(error))
            connection.send(_encode(reply, headers, head_only=False), until=self._clock() + _SEND_S)
            return True
        if self._limits.admit(connection):
            reply = self._answer(request, setup, arrived)
        else:
            reply = busy(f"{_MAX_ANSWERED} requests are in progress; retry later")
        content = _encode(reply, headers, head_only=request.method == "HEAD")
        connection.send(content, until=self._clock() + _SEND_S)
        return request.has_body

    def _answer(self, request: Request, setup: WebSetup, arrived: float) -> Reply:
        until = arrived + min(_HEAD_S + _ANSWER_S, request.timeout_s)
        refusal = self._gatekeeper.refusal(request, setup.config, until=until)
        if refusal is not None:
            return refusal
        late = busy("not enough time to answer")
        if self._clock() >= until:
            return late
        try:
            reply = self._handlers.answer(request, until=until)
        except Exception:  # noqa: BLE001 - the one broad catch of the server: logged, and the next request is served
            _LOG.exception("answering %s: a bug in gpu-exporter, please report it", request.path)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in gpu-exporter; see its log")
        return late if self._clock() >= until else reply


def _encode(reply: Reply, headers: Mapping[str, str], *, head_only: bool) -> bytes:
    """A reply as bytes, with the configured headers."""
    fields = {
        "Server": "gpu-exporter",
        "Date": formatdate(usegmt=True),
        "Content-Type": reply.content_type,
        "Content-Length": str(len(reply.body)),
        **reply.headers,
        **headers,
        "Connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\n{lines}\r\n".encode("latin-1")
    return head if head_only else head + reply.body


def _listen_error(address: Address, error: OSError | UnicodeError) -> str:
    where = f"{address.host or '*'}:{address.port}"
    hint = "choose another address with --listen"
    if isinstance(error, OSError) and error.errno is not None:
        reason = (error.strerror or str(error)).partition(" (while")[0].lower()
        if "in use" in reason:
            hint = (
                "is another exporter running? dcgm-exporter uses this port too; choose another with --listen"
            )
        return f"cannot listen on {where}: {reason}; {hint}"
    return f"cannot listen on {where}: {error}; {hint}"
