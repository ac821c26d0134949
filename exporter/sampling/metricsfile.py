"""The file that lists the metrics to serve: read at the start, and again when it changes or when told to.

A file that has become bad changes nothing but what is said about it. Must not know what a line means.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from exporter.errors import ConfigFileError
from exporter.model import ReloadStatus
from exporter.sampling.catalogue import EnabledCollectors
from exporter.sampling.metricslist import MetricSelection

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 1024 * 1024  # a list of all that DCGM knows has a tenth of it

_Identity = tuple[int, int, int, int]


class MetricsFile:
    """The list of metrics.

    Attributes:
        choice: What it said when it was last well.
        reload: How the last reading went.
    """

    def __init__(
        self, path: Path, understand: Callable[[str, str], MetricSelection], *, unix_time: Callable[[], float]
    ) -> None:
        """Read it.

        Args:
            path: The file; may be a link, as in a ConfigMap's volume.
            understand: Makes a choice of its text and its name.
            unix_time: The time of day in seconds.

        Raises:
            ConfigFileError: It cannot be read, or all that is wrong in it.
        """
        self._path = path
        self._understand = understand
        self._unix_time = unix_time
        self._identity = self._look()
        self.choice = self._read()
        self.reload = ReloadStatus(successful=True, succeeded_at=unix_time())

    def refresh(self, *, forced: bool) -> None:
        """Read it again where it has changed, or in any case; keep the old choice where it cannot be used."""
        identity = self._look()
        if identity == self._identity and not forced:
            return
        self._identity = identity
        try:
            self.choice = self._read()
        except ConfigFileError as error:
            self.reload = ReloadStatus(successful=False, succeeded_at=self.reload.succeeded_at)
            for problem in str(error).splitlines():
                _LOG.error("%s; the metrics that were served go on", problem)
            return
        self.reload = ReloadStatus(successful=True, succeeded_at=self._unix_time())
        _LOG.info("%s: read again and in force", self._path)

    def _look(self) -> _Identity | None:
        """What changes with the file: a ConfigMap's volume exchanges links, an editor the file or its content."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> EnabledCollectors:
        found = self._understand(self._text(), str(self._path))
        if found.skipped:
            _LOG.warning("%s", found.skipped)
        return found.choice

    def _text(self) -> str:
        if self._path.suffix.lower() in {".yaml", ".yml"}:
            words = "dcgm-exporter's YAML is not understood; list the metrics as CSV, a line each: field, type, help"
            raise ConfigFileError([f"{self._path}: {words}"])
        if self._path.exists() and not self._path.is_file():
            raise ConfigFileError([f"{self._path}: not a file"])
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ConfigFileError(
                [f"{self._path}: cannot be read: {(error.strerror or str(error)).lower()}"]
            ) from error
        if len(content) > _MAX_BYTES:
            raise ConfigFileError(
                [f"{self._path}: larger than {_MAX_BYTES // 1024} KiB, which no list of metrics is"]
            )
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ConfigFileError([f"{self._path}, line {line}: not UTF-8"]) from error
