"""The HTTP server of `run` and `extend`: how much whoever reaches its port can take."""

import contextlib
import http.client
import socket
import threading

from prometheus_client import CollectorRegistry

from rightsizer.cli.http_endpoint import MOST_CONNECTIONS, TIMEOUT_S, serving


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_silent_connections_are_closed_for_others_before_they_time_out() -> None:
    """Liveness and metrics are answered while more connections than are served are silent or half-way."""
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(serving("127.0.0.1:0", CollectorRegistry(), alive=str, ready=str))
        silent = []
        for number in range(2 * MOST_CONNECTIONS):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)))
            silent[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"[: number % 36])
        for connection in silent[:MOST_CONNECTIONS]:
            connection.settimeout(TIMEOUT_S / 2)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert [_status(port, path) for path in ("/healthz", "/metrics", "/nothing")] == [200, 200, 404]
    threads = [thread for thread in threading.enumerate() if "process_request" in thread.name]
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
