"""A VictoriaMetrics process that holds the samples of Prometheus's blocks; vmctl imports them."""

import json
import subprocess
import time
import urllib.parse
from pathlib import Path
from typing import Any, Self

from simulator.processes import ProcessError, Server

_POLL_S = 0.2


class VictoriaMetrics:
    """A single-node server.

    Args:
        directory: For its data and log.
        binary: Name or path of the program.
        blocks: The folder with Prometheus's blocks.
    """

    def __init__(self, directory: Path, binary: str, blocks: Path) -> None:
        self._directory, self._binary, self._blocks = directory, binary, blocks
        self._server = Server(
            "victoria-metrics", self._command, ready_path="/health", log=directory / "victoria-metrics.log"
        )

    @property
    def url(self) -> str:
        """Where its HTTP API is."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        return self._server.pid

    def __enter__(self) -> Self:
        self._server.start(timeout_s=60)
        command = f"vmctl prometheus -s --prom-snapshot={self._blocks} --vm-addr={self.url}"
        # Its progress bar needs a terminal.
        subprocess.run(["script", "-qec", command, "/dev/null"], check=True, stdout=subprocess.DEVNULL)
        self._server.get("/internal/force_flush")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def wait_for(self, expression: str, *, timeout_s: float) -> None:
        """Wait until there is a result."""
        deadline = time.monotonic() + timeout_s
        while not self._result(expression):
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.url} has no result for {expression} within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def _result(self, expression: str) -> list[Any]:
        answer = self._server.get(f"/api/v1/query?{urllib.parse.urlencode({'query': expression})}")[1]
        found: list[Any] = json.loads(answer)["data"]["result"]
        return found

    def _command(self, port: int) -> list[str]:
        flags = {
            "storageDataPath": self._directory / "data",
            "httpListenAddr": f"127.0.0.1:{port}",
            "retentionPeriod": "40d",
            "search.maxUniqueTimeseries": 2_000_000,
            "search.latencyOffset": "0s",
        }
        return [self._binary, *(f"-{name}={value}" for name, value in flags.items())]
