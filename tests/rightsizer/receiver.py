"""A receiver of messages."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any


class Receiver:
    """An HTTP server that keeps what it gets, and answers as the test says."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.code = 200
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.got.append((self.path, dict(self.headers), body))
                self.send_response(receiver.code)
                self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """While entered, one that answers 200."""
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()
