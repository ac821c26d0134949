"""HTTP of `run` and `extend`: /metrics, /healthz (alive), /readyz (the last cycle succeeded), /report, links to them.

https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import contextlib
import http.server
import logging
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rightsizer.errors import ConfigurationError

log = logging.getLogger(__name__)

TIMEOUT_S = 10
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

    with listening("--listen", address, server) as found:
        yield found


@contextlib.contextmanager
def listening(
    flag: str, address: str, make: Callable[[tuple[str, int]], http.server.HTTPServer]
) -> Iterator[int]:
    """While entered, a server on the address of a flag, in a thread; yields its port.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """
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


class AnswerHandler(http.server.BaseHTTPRequestHandler):
    """What the handlers of all servers share."""

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
