"""The HTTP side: the last snapshot to whoever asks, whether the exporter is well, and a page for people.

Must not read a GPU: a request is answered from memory, whatever the driver does.
"""

import dataclasses
import gzip
import html
import http.server
import logging
import socket
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from prometheus_client import ProcessCollector

from exporter import exposition
from exporter.errors import StartError
from exporter.exposition import Scrape
from exporter.sampler import Sampler
from exporter.settings import Address
from exporter.textformat import Format, accepts_gzip, encode, negotiate

_LOG = logging.getLogger(__name__)
_MAX_CONNECTIONS = 16  # a few Prometheis, probes and a person; the rest are told to come again
_CLIENT_TIMEOUT_S = 10.0  # Prometheus gives up on a scrape after as much
_GZIP_LEVEL = 1  # of level 6's savings nearly all, in a third of its time
_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes


def _text(status: HTTPStatus, message: str) -> Reply:
    return Reply(status, "text/plain; charset=utf-8", f"{message}\n".encode())


class Site:
    """What is served under which path.

    Args:
        sampler: What was read.
        scrape: How each scrape is answered; its time is set anew each time.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        sampler: Sampler,
        scrape: Scrape,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._sampler = sampler
        self._scrape = scrape
        self._clock = clock
        self._process = ProcessCollector(registry=None)
        self._pages: dict[str, Callable[[str], Reply]] = {
            "/": self._landing,
            "/metrics": self.metrics,
            "/healthz": self._alive,
            "/health": self._alive,  # dcgm-exporter's name for it, which its manifests probe
            "/readyz": self._ready,
        }

    def answer(self, path: str, accept: str) -> Reply:
        """The reply to a GET of `path` by a client that accepts these media types."""
        page = self._pages.get(path.partition("?")[0])
        if page is None:
            return _text(HTTPStatus.NOT_FOUND, f"not found; there are {', '.join(self._pages)}")
        return page(accept)

    def metrics(self, accept: str) -> Reply:
        """The exposition as of now, in the format that the client prefers."""
        scrape = dataclasses.replace(self._scrape, now=self._clock())
        families = [*exposition.families(self._sampler.latest(), scrape), *self._process.collect()]
        form: Format = negotiate(accept)
        return Reply(HTTPStatus.OK, form.value, encode(families, form))

    def _alive(self, _accept: str) -> Reply:
        return _text(HTTPStatus.OK, "ok")

    def _ready(self, _accept: str) -> Reply:
        """Whether a scrape would tell of the GPUs as they are now."""
        snapshot, now = self._sampler.latest(), self._clock()
        if snapshot is None:
            problem = "the GPUs have not been read yet"
        elif exposition.is_stale(snapshot, now, self._scrape.stale_after_s):
            problem = f"the GPUs were last read {now - snapshot.taken_at:.1f} s ago"
        elif not snapshot.health.nvml_up:
            problem = "the NVIDIA driver does not answer"
        elif snapshot.health.gpus and not snapshot.samples:
            problem = f"none of {len(snapshot.health.gpus)} GPUs can be read"
        else:
            return _text(HTTPStatus.OK, "ok")
        return _text(HTTPStatus.SERVICE_UNAVAILABLE, problem)

    def _landing(self, _accept: str) -> Reply:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in self._pages if path != "/")
        page = (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>GPU exporter</title></head><body>'
            f"<h1>GPU exporter</h1><p>Version {html.escape(self._scrape.build.version)} "
            f"on {html.escape(self._scrape.hostname)}: what each GPU does, and for which pod.</p>"
            f"<ul>{links}</ul></body></html>\n"
        )
        return Reply(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())


class _Connection(http.server.BaseHTTPRequestHandler):
    """One request per connection: an idle Prometheus must not occupy a thread."""

    protocol_version = "HTTP/1.1"
    server_version = "gpu-exporter"
    sys_version = ""
    timeout = _CLIENT_TIMEOUT_S
    server: "Server"

    def do_GET(self) -> None:
        """Answer with headers and body."""
        self._send(self.server.site.answer(self.path, self.headers.get("Accept", "")))

    def do_HEAD(self) -> None:
        """Answer with headers only."""
        self.do_GET()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever http.server asks for
        """Answer all other methods alike: http.server would call them not implemented, but they are not allowed."""
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self._send(_text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD"), allow="GET, HEAD")

    def _send(self, reply: Reply, *, allow: str = "") -> None:
        body = reply.body
        zipped = accepts_gzip(self.headers.get("Accept-Encoding", ""))
        if zipped:
            body = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Vary", "Accept, Accept-Encoding")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        if allow:
            self.send_header("Allow", allow)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's parameter name
        """Say nothing: a line per scrape helps nobody."""


class Server(http.server.ThreadingHTTPServer):
    """Listens, with a bounded number of threads, until `shutdown`."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: Address, site: Site) -> None:
        """Bind.

        Raises:
            StartError: The address cannot be had.
        """
        self.site = site
        self._slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        host = address.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - what an empty host asks for
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, address.port), _Connection)
        except (OSError, UnicodeError) as error:
            raise StartError(_why_not(address, error)) from error

    @property
    def url(self) -> str:
        """Where it can be reached from this machine."""
        host, port = self.server_address[:2]
        name = {"::": "localhost", "0.0.0.0": "localhost"}.get(str(host), str(host))  # noqa: S104 - as above
        return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"

    def server_bind(self) -> None:
        """Bind; on IPv6's wildcard address for IPv4, too. Skips http.server's look-up of our own name in the DNS."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's signature
        """Start a thread, if there is one left to start."""
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        try:
            request.settimeout(0)  # a client that does not even take this gets nothing
            request.sendall(_BUSY)
        except OSError:
            pass
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - socketserver's signature
        """Answer, in a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, ARG002 - socketserver's signature
        """Say nothing of clients that hang up or fall asleep, and everything of mistakes of ours."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("answering %s: a defect of the exporter, please report it", client_address[0])


def _why_not(address: Address, error: OSError | UnicodeError) -> str:
    where = f"{address.host or '*'}:{address.port}"
    hint = "choose another address with --listen"
    if isinstance(error, OSError) and error.errno is not None:
        reason = (error.strerror or str(error)).lower()
        if "in use" in reason:
            hint = "is another exporter running here? dcgm-exporter has this port, too. Choose another with --listen"
        return f"cannot listen on {where}: {reason}; {hint}"
    return f"cannot listen on {where}: {error}; {hint}"
