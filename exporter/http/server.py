"""The HTTP side: listens, gives each connection a place and a thread, and time for each step.

Must not know what is served. One request per connection: an idle Prometheus must not occupy a thread.
"""

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus

from exporter.errors import RequestError, StartError
from exporter.http import request as requests
from exporter.http import tls
from exporter.http.auth import Door
from exporter.http.connection import Connection
from exporter.http.handlers import Reply, Site, busy, text
from exporter.http.limits import MAX_ANSWERED, Places
from exporter.http.request import Request
from exporter.http.webfile import PLAIN, Web, WebFile
from exporter.settings import Address

_LOG = logging.getLogger(__name__)
_HEAD_S = 10.0  # for the TLS handshake and the request's head; Prometheus gives up on a scrape after as much
_ANSWER_S = 10.0  # for making the answer, after as much for its question
_SEND_S = 10.0  # for the client to take it
_SEND_BUFFER = 128 * 1024  # bytes; the kernel would take megabytes for a client that does not read
_QUEUE = 64
_PACE_S = 0.01  # between newcomers that cost others their place: 64 of them leave a TLS handshake 0.6 s
_PAUSE_S = 0.1  # when the kernel has no more file descriptors for us


def listen(address: Address) -> socket.socket:
    """A socket that listens there; on IPv6's wildcard address for IPv4, too.

    Raises:
        StartError: The address cannot be had.
    """
    host = address.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - what an empty host asks for
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host, address.port), family=family, backlog=_QUEUE, dualstack_ipv6=family == socket.AF_INET6
        )
    except (OSError, UnicodeError) as error:
        raise StartError(_why_not(address, error)) from error


class Server:
    """Serves a site until it is told to stop.

    Args:
        listener: Listens already.
        site: What is served.
        web: TLS and passwords; None for neither.
        clock: Monotonic seconds.
    """

    def __init__(
        self, listener: socket.socket, site: Site, web: WebFile | None, *, clock: Callable[[], float]
    ) -> None:
        self._listener = listener
        self._listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER
        )  # accepted ones inherit it
        self._site = site
        self._web = web
        self._clock = clock
        self._door = Door(clock)
        self._places = Places()
        self._stopping = threading.Event()
        self._said = ""  # of what keeps us from accepting
        self._woken, self._waker = socket.socketpair()

    @property
    def url(self) -> str:
        """Where it can be reached from this machine."""
        host, port = self._listener.getsockname()[:2]
        name = {"::": "localhost", "0.0.0.0": "localhost"}.get(str(host), str(host))  # noqa: S104 - as above
        scheme = "http" if self._current().context is None else "https"
        return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"

    def serve(self) -> None:
        """Accept connections until `stop`."""
        self._listener.settimeout(0)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                self._accept()

    def stop(self, grace_s: float) -> None:
        """Accept no more, and wait so many seconds for those who are being answered."""
        self._stopping.set()
        self._waker.send(b"\0")
        self._listener.close()
        self._places.wait_until_empty(grace_s)

    def _current(self) -> Web:
        return PLAIN if self._web is None else self._web.current()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            if not self._stopping.is_set() and str(error) != self._said:
                _LOG.warning("accepting a connection: %s; trying again", error.strerror)
                self._said = str(error)
            self._stopping.wait(_PAUSE_S)
            return
        self._said = ""
        connection = Connection(accepted, self._clock)
        is_crowded = self._places.enter(connection)
        try:
            arguments = (connection, self._clock())
            threading.Thread(target=self._serve, args=arguments, name="client", daemon=True).start()
        except RuntimeError:  # no more threads for us
            self._places.leave(connection)
            connection.close()
        if is_crowded:
            self._stopping.wait(_PACE_S)

    def _serve(self, connection: Connection, arrived: float) -> None:
        unread = False
        try:
            unread = self._converse(connection, self._current(), arrived)
        except OSError as error:
            _LOG.debug("a client went away: %s", error)  # or fell asleep, or cannot be trusted
        finally:
            connection.say_goodbye(unread=unread)
            self._places.leave(connection)
            connection.close()

    def _converse(self, connection: Connection, web: Web, arrived: float) -> bool:
        """Answer one request; whether the client may have sent more than was read."""
        until = arrived + _HEAD_S
        headers = web.config.headers
        if web.context is not None and web.config.tls is not None:
            if not connection.begins_tls(until=until):
                reply = text(HTTPStatus.BAD_REQUEST, "this is an HTTPS server; write https://")
                connection.send(_wire(reply, headers, head_only=False), until=until)
                return True
            certificate = connection.secure(web.context, until=until)
            if not tls.is_allowed(certificate, web.config.tls.client_allowed_sans):
                _LOG.debug("a client's certificate is for nobody in client_allowed_sans")
                return False
        try:
            head = connection.head(requests.MAX_HEAD, until=until)
            if not head:
                return False
            request = requests.parse(head)
        except RequestError as error:
            reply = text(error.status, str(error))
            connection.send(_wire(reply, headers, head_only=False), until=self._clock() + _SEND_S)
            return True
        if self._places.ask(connection):
            reply = self._answer(request, web, arrived)
        else:
            reply = busy(f"{MAX_ANSWERED} requests are being answered; come again")
        wire = _wire(reply, headers, head_only=request.method == "HEAD")
        connection.send(wire, until=self._clock() + _SEND_S)
        return request.has_body

    def _answer(self, request: Request, web: Web, arrived: float) -> Reply:
        until = arrived + min(_HEAD_S + _ANSWER_S, request.patience_s)
        refusal = self._door.refuses(request, web.config, until=until)
        if refusal is not None:
            return refusal
        late = busy("there was not enough time to answer")
        if self._clock() >= until:
            return late
        try:
            reply = self._site.answer(request, until=until)
        except Exception:  # noqa: BLE001 - the one broad catch of this side: logged, and the next is served
            _LOG.exception("answering %s: a defect of the exporter, please report it", request.path)
            return text(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of the exporter; its log has more")
        return late if self._clock() >= until else reply


def _wire(reply: Reply, headers: Mapping[str, str], *, head_only: bool) -> bytes:
    """A reply as it is sent, with these headers besides its own."""
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


def _why_not(address: Address, error: OSError | UnicodeError) -> str:
    where = f"{address.host or '*'}:{address.port}"
    hint = "choose another address with --listen"
    if isinstance(error, OSError) and error.errno is not None:
        reason = (error.strerror or str(error)).partition(" (while")[0].lower()
        if "in use" in reason:
            hint = "is another exporter running here? dcgm-exporter has this port, too. Choose another with --listen"
        return f"cannot listen on {where}: {reason}; {hint}"
    return f"cannot listen on {where}: {error}; {hint}"
