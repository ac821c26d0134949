"""The HTTP server of `run` and `extend`: how much whoever reaches its port can take."""

import http.client
import socket
import threading

from prometheus_client import CollectorRegistry

from rightsizer.cli.http_endpoint import MOST_CONNECTIONS, serving


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_silent_connections_take_few_threads_and_keep_nobody_out() -> None:
    """Liveness and metrics are answered while more connections than are served are open, silent or half-way."""
    before = threading.active_count()
    with serving("127.0.0.1:0", CollectorRegistry(), alive=str, ready=str) as port:
        silent, most = [], 0
        for number in range(2 * MOST_CONNECTIONS):
            silent.append(socket.create_connection(("127.0.0.1", port), timeout=30))
            silent[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"[: number % 36])
            most = max(most, threading.active_count() - before)
        assert [_status(port, path) for path in ("/healthz", "/metrics", "/nothing")] == [200, 200, 404]
        assert most <= MOST_CONNECTIONS + 2
        for connection in silent:
            connection.close()
    assert threading.active_count() == before
