"""The metrics file: read at start, and reloaded when it changes or on request.

An invalid file is only logged and counted; the previous list stays. Must not know what a line means.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path

from exporter.errors import ConfigFileError
from exporter.model import ReloadStatus
from exporter.sampling.catalogue import EnabledCollectors
from exporter.sampling.metricslist import MetricSelection

_LOG = logging.getLogger(__name__)
_MAX_BYTES = 1024 * 1024  # a list of all DCGM fields has a tenth of it

_Identity = tuple[int, int, int, int]


class MetricsFile:
    """The list of metrics: `enabled` is its last valid content, `reload` the result of the last reload."""

    def __init__(
        self, path: Path, parse: Callable[[str, str], MetricSelection], *, unix_time: Callable[[], float]
    ) -> None:
        """Read it; `parse` parses its text, given also its name."""
        self._path = path
        self._parse = parse
        self._unix_time = unix_time
        self._identity = self._file_identity()
        self.enabled = self._read()
        self.reload = ReloadStatus(successful=True, succeeded_at=unix_time())

    def refresh(self, *, forced: bool) -> None:
        """Reload it if it has changed, or if `forced`; keep the old content if it is invalid."""
        identity = self._file_identity()
        if identity == self._identity and not forced:
            return
        self._identity = identity
        try:
            self.enabled = self._read()
        except ConfigFileError as error:
            self.reload = ReloadStatus(successful=False, succeeded_at=self.reload.succeeded_at)
            for problem in str(error).splitlines():
                _LOG.error("%s; keeping the previous list", problem)
            return
        self.reload = ReloadStatus(successful=True, succeeded_at=self._unix_time())
        _LOG.info("%s: reloaded", self._path)

    def _file_identity(self) -> _Identity | None:
        """Changes with the file: a ConfigMap's volume replaces links, an editor the file or its content."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> EnabledCollectors:
        found = self._parse(self._text(), str(self._path))
        for warning in found.warnings:
            _LOG.warning("%s", warning)
        return found.enabled

    def _text(self) -> str:
        if self._path.suffix.lower() in {".yaml", ".yml"}:
            words = "dcgm-exporter's YAML is not supported; list the metrics as CSV, a line each: field, type, help"
            raise ConfigFileError([f"{self._path}: {words}"])
        if os.path.exists(self._path) and not os.path.isfile(self._path):  # noqa: PTH110, PTH113 - raise nothing
            raise ConfigFileError([f"{self._path}: not a file"])
        try:
            with self._path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ConfigFileError(
                [f"{self._path}: cannot be read: {(error.strerror or str(error)).lower()}"]
            ) from error
        if len(content) > _MAX_BYTES:
            raise ConfigFileError([f"{self._path}: larger than {_MAX_BYTES // 1024} KiB"])
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ConfigFileError([f"{self._path}, line {line}: not UTF-8"]) from error
