"""A real VictoriaMetrics, for tests that hold it beside Prometheus."""

import contextlib
import http.client
import pathlib
from collections.abc import Iterable
from typing import Self

from simulator.processes import Server
from simulator.prometheus import Series, write_requests

PROGRAM = "victoria-metrics"


class VictoriaMetrics:
    """A single-node server with nothing in it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._server = Server(PROGRAM, self._command, ready_path="/health", log=directory / "log")

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._server.url

    def __enter__(self) -> Self:
        self._directory.mkdir(exist_ok=True)
        self._server.start(timeout_s=100.0)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def write(self, series: Iterable[Series]) -> None:
        """Store series, and see to it that they can be read at once."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        ) as wire:
            for body in write_requests(series):
                self._send(wire, "POST", "/api/v1/write", body)
            self._send(wire, "GET", "/internal/force_flush", b"")

    @staticmethod
    def _send(wire: http.client.HTTPConnection, method: str, path: str, body: bytes) -> None:
        headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        wire.request(method, path, body=body, headers=headers)
        answer = wire.getresponse()
        text = answer.read()
        assert answer.status < http.HTTPStatus.BAD_REQUEST, text

    def _command(self, port: int) -> list[str]:
        return [
            PROGRAM,
            f"-httpListenAddr=127.0.0.1:{port}",
            f"-storageDataPath={self._directory / 'data'}",
            "-retentionPeriod=1y",
            "-search.latencyOffset=0s",
        ]
