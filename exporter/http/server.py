"""The HTTP server: bounds the number of connections and the time of each step. Must not know what is served.

One request per connection: an idle Prometheus must not occupy a thread. The accept loop is the standard library's;
its http.server has no deadlines and an unbounded number of threads, so requests are read and answered here.
"""

import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus

from exporter.errors import RequestError, StartError
from exporter.http import messages
from exporter.http.auth import Gatekeeper
from exporter.http.connection import Connection
from exporter.http.handlers import Handlers
from exporter.http.messages import Reply, Request, busy, text_reply
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
_PACE_S = 0.01  # pause after dropping a connection for a new one: 64 drops give a TLS handshake 0.6 s
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
        reason = (getattr(error, "strerror", None) or str(error)).partition(" (while")[0].lower()
        hint = "choose another address with --listen"
        if "in use" in reason:
            hint = (
                "is another exporter running? dcgm-exporter uses this port too; choose another with --listen"
            )
        raise StartError(
            f"cannot listen on {address.host or '*'}:{address.port}: {reason}; {hint}"
        ) from error


class _ConnectionLimits:
    """The open connections: many without a complete request, few that are answered.

    A connection without a complete request is dropped for a new one, so that silent clients block nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[Connection, bool] = {}  # whether it is answered; the oldest first

    def add(self, connection: Connection) -> bool:
        """Add a connection; True if the oldest waiting one was dropped for it."""
        with self._changed:
            waiting = [known for known, is_answered in self._open.items() if not is_answered]
            self._open[connection] = False
            if len(waiting) < _MAX_WAITING:
                return False
            del self._open[waiting[0]]
            waiting[0].abort()
            return True

    def admit(self, connection: Connection) -> bool:
        """Whether a connection with a complete request can be answered now."""
        with self._changed:
            if connection not in self._open or sum(self._open.values()) >= _MAX_ANSWERED:
                return False
            self._open[connection] = True
            return True

    def remove(self, connection: Connection) -> None:
        """Forget a connection: from now on only its own thread uses it."""
        with self._changed:
            self._open.pop(connection, None)
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> None:
        """Wait for all connections to end, at most `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout_s)


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
        name = "localhost" if host in {"::", "0.0.0.0"} else str(host)  # noqa: S104 - as above
        scheme = "http" if self._setup().context is None else "https"
        return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"

    def stop(self, grace_s: float) -> None:
        """Stop accepting, and wait up to `grace_s` seconds for requests in progress."""
        self.shutdown()
        self._listener.close()
        self._limits.wait_until_empty(grace_s)

    def fileno(self) -> int:
        """Number of the listening socket, for socketserver's accept loop."""
        return self._listener.fileno()

    def get_request(self) -> tuple[Connection, object]:
        """Accept a connection; for socketserver, which ignores an OSError and tries again."""
        try:
            accepted, address = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            if str(error) != self._logged:
                _LOG.warning("accepting a connection: %s; retrying", error.strerror)
                self._logged = str(error)
            threading.Event().wait(_PAUSE_S)
            raise
        self._logged = ""
        return Connection(accepted, self._clock), address

    def process_request(self, request: object, _address: object) -> None:
        """Start a thread for a connection, and drop the oldest waiting one if there are too many."""
        if not isinstance(request, Connection):
            raise TypeError  # get_request returns no other
        is_crowded = self._limits.add(request)
        try:
            threading.Thread(target=self._serve, args=(request,), name="client", daemon=True).start()
        except RuntimeError:  # the process has no threads left
            self._close(request)
        if is_crowded:
            threading.Event().wait(_PACE_S)

    def _serve(self, connection: Connection) -> None:
        try:
            self._answer_one(connection, self._setup())
        except OSError as error:
            _LOG.debug("a client disconnected, timed out or failed the TLS handshake: %s", error)
        finally:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        connection.finish()
        self._limits.remove(connection)
        connection.close()

    def _answer_one(self, connection: Connection, setup: WebSetup) -> None:
        head_only = False
        try:
            request = _read_request(connection, setup)
            head_only, connection.is_unread = request.method == "HEAD", request.has_body
            if self._limits.admit(connection):
                reply = self._answer(request, setup, connection.arrived)
            else:
                reply = busy(f"{_MAX_ANSWERED} requests are in progress; retry later")
        except RequestError as error:
            connection.is_unread = True
            reply = text_reply(error.status, str(error))
        content = _encode(reply, setup.config.headers, head_only=head_only)
        connection.send(content, until=self._clock() + _SEND_S)

    def _setup(self) -> WebSetup:
        return PLAIN if self._web is None else self._web.current()

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
            return text_reply(HTTPStatus.INTERNAL_SERVER_ERROR, "a bug in gpu-exporter; see its log")
        return late if self._clock() >= until else reply


def _read_request(connection: Connection, setup: WebSetup) -> Request:
    until = connection.arrived + _HEAD_S
    if setup.context is not None and not setup.admits(connection.secure(setup.context, until=until)):
        raise ConnectionAbortedError("its certificate matches none of client_allowed_sans")
    return messages.parse(connection.read_head(messages.MAX_HEAD, until=until))


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
