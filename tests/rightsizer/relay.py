"""A proxy before Prometheus that can shift its clock, change its answers or drop connections."""

import http.client
import http.server
import json
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Self


class Relay(http.server.ThreadingHTTPServer):
    """Forwards queries to Prometheus.

    Attributes:
        clocks: Offset of `time()` from the true time, in seconds: of the first query, the second, and so on; the
            last one stays.
        asked: The queries that were received.
        steps: Of those over a range, the number of steps, and the seconds of one.
        hook: Called with each query before it is answered.
        is_gone: Whether it closes connections without an answer.
        spoil: Changes each answer, a status and a body, before it is forwarded.
    """

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        self.upstream = urllib.parse.urlsplit(upstream)
        self.clocks = [0.0]
        self.asked: list[str] = []
        self.steps: list[tuple[int, float]] = []
        self.hook: Callable[[str], None] = lambda _: None
        self.is_gone = False
        self.spoil: Callable[[int, bytes], tuple[int, bytes]] = lambda status, body: (status, body)
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def now(self) -> float:
        """The next value of `time()`."""
        offset = self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]
        return time.time() + offset


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Relay

    def do_POST(self) -> None:
        """Answer `time()`, and forward every other query."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        form = {name: value[0] for name, value in urllib.parse.parse_qs(body.decode()).items()}
        query = form["query"]
        self.server.asked.append(query)
        if "step" in form:
            length = float(form["end"]) - float(form["start"])
            step_s = float(form["step"])
            self.server.steps.append((round(length / step_s) + 1, step_s))
        self.server.hook(query)
        if self.server.is_gone:
            return
        if query == "time()":
            now = self.server.now()
            answer = {"status": "success", "data": {"resultType": "scalar", "result": [now, str(now)]}}
            found = 200, json.dumps(answer).encode()
        else:
            found = self._upstream(body)
        self._answer(*self.server.spoil(*found))

    def _upstream(self, body: bytes) -> tuple[int, bytes]:
        host, port = self.server.upstream.hostname or "", self.server.upstream.port
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.request("POST", self.path, body, {"Content-Type": self.headers["Content-Type"]})
        reply = connection.getresponse()
        found = reply.status, reply.read()
        connection.close()
        return found

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""
