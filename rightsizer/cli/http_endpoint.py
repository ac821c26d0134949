"""HTTP of `run`: /metrics, /healthz (alive), /readyz (the last cycle succeeded), and a page of links.

https://kubernetes.io/docs/concepts/configuration/liveness-readiness-startup-probes/
"""

import contextlib
import http.server
import logging
import threading
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from rightsizer.errors import ConfigurationError

log = logging.getLogger(__name__)

_TIMEOUT_S = 10
_PAGE = b"""<!DOCTYPE html>
<title>gpu-rightsizer</title>
<h1>gpu-rightsizer</h1>
<p><a href="/metrics">Metrics</a>, <a href="/healthz">health</a>, <a href="/readyz">readiness</a></p>
"""


@contextlib.contextmanager
def serving(
    address: str, registry: CollectorRegistry, *, alive: Callable[[], str], ready: Callable[[], str]
) -> Iterator[int]:
    """While entered, an HTTP server in its own threads; yields its port.

    `alive` and `ready` return what is wrong, or nothing. The address is HOST:PORT or :PORT; port 0 takes any free port.

    Raises:
        ConfigurationError: The address cannot be listened on.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535:  # noqa: PLR2004 - TCP's last port
        raise ConfigurationError(f'--listen "{address}": write HOST:PORT, or :9401 for all addresses')

    class Handler(_Handler):
        texts = {"/healthz": alive, "/readyz": ready}  # noqa: RUF012 - of this server
        metrics = registry

    try:
        server = http.server.ThreadingHTTPServer((host.strip("[]"), int(port)), Handler)
    except OSError as error:
        raise ConfigurationError(f'--listen "{address}": cannot be used: {error.strerror}') from error
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET and HEAD of a few paths."""

    texts: dict[str, Callable[[], str]]
    metrics: CollectorRegistry
    timeout = _TIMEOUT_S
    server_version = "gpu-rightsizer"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.metrics))
        elif path in self.texts:
            wrong = self.texts[path]()
            self._answer(503 if wrong else 200, "text/plain; charset=utf-8", f"{wrong or 'ok'}\n".encode())
        elif path == "/":
            self._answer(200, "text/html; charset=utf-8", _PAGE)
        else:
            self._answer(404, "text/plain; charset=utf-8", b"here are /metrics, /healthz and /readyz\n")

    do_HEAD = do_GET  # noqa: N815 - the library's name

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
