"""A real VictoriaMetrics on this machine, in Prometheus's place."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from simulator.processes import Server
from simulator.series_store import Series, SeriesStore

PROGRAM = "victoria-metrics"


class VictoriaMetrics(SeriesStore):
    """A single-node server with nothing in it.

    Args:
        directory: For its data and log.
        binary: Name or path of the program.
        flags: More flags, such as search.maxUniqueTimeseries.
    """

    def __init__(
        self, directory: Path, *, binary: str = PROGRAM, flags: Mapping[str, object] | None = None
    ) -> None:
        self._binary = binary
        self._flags = {
            "storageDataPath": directory / "data",
            "retentionPeriod": "1y",
            **(flags or {}),
        }
        log = directory / "victoria-metrics.log"
        super().__init__(Server("victoria-metrics", self._command, ready_path="/health", log=log))

    def write(self, series: Iterable[Series]) -> int:
        """Store `series`, readable at once; how many samples that were."""
        total = super().write(series)
        self.flush()
        return total

    def flush(self) -> None:
        """Make what has been written readable."""
        self._server.get("/internal/force_flush")

    def _command(self, port: int) -> list[str]:
        flags = {"httpListenAddr": f"127.0.0.1:{port}", **self._flags}
        return [self._binary, *(f"-{name}={value}" for name, value in flags.items())]
