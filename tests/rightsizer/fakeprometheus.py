"""An HTTP server in place of Prometheus, for answers that a real one does not give on demand."""

import contextlib
import dataclasses
import http.server
import json
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator

GOOD = json.dumps(
    {
        "status": "success",
        "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [0, "1.5"]}]},
    }
)
SCALAR = '{"status":"success","data":{"resultType":"scalar","result":[0,"1"]}}'


@dataclasses.dataclass(slots=True)
class Answer:
    """The answer to the next requests."""

    status: int = 200
    body: str = GOOD
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    times: int = 99


class Fake(http.server.ThreadingHTTPServer):
    """Gives prepared answers, and records the requests.

    Attributes:
        answers: The answers in order.
        respond: If set, makes the answer from the form of the request.
        asked: The headers of each request, with its method, path and unparsed form.
        scheme: "https" if it has a certificate.
    """

    daemon_threads = True
    scheme = "http"

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.respond: Callable[[dict[str, str]], Answer] | None = None
        self.asked: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def forms(self) -> list[dict[str, str]]:
        """The parsed forms of all requests."""
        return [dict(urllib.parse.parse_qsl(one["form"])) for one in self.asked]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that reject the certificate."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Fake

    def do_POST(self) -> None:
        """Answer a form."""
        length = int(self.headers["Content-Length"])
        self._answer(self.rfile.read(length).decode())

    def do_GET(self) -> None:
        """Answer a query."""
        self._answer(urllib.parse.urlsplit(self.path).query)

    def _answer(self, form: str) -> None:
        server = self.server
        place = {"method": self.command, "path": urllib.parse.urlsplit(self.path).path, "form": form}
        server.asked.append({**self.headers, **place})
        if server.respond is not None:
            answer = server.respond(dict(urllib.parse.parse_qsl(form)))
        else:
            answer = server.answers[0]
            answer.times -= 1
            if answer.times == 0:
                server.answers.pop(0)
        body = answer.body.encode()
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(body)), **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Fake]:
    """One that runs, over TLS if there is a context."""
    with Fake() as server:
        if context is not None:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
            server.scheme = "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
