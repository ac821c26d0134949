"""Log lines for people (text) or for machines (JSON), on standard error. Must not know what is logged."""

import datetime
import json
import logging
import sys

from exporter.settings import LogFormat, LogLevel


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def configure(form: LogFormat, level: LogLevel) -> None:
    """Send the exporter's log lines of at least `level` to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form is LogFormat.JSON else _Text())
    logger = logging.getLogger("exporter")
    logger.handlers[:] = [handler]
    logger.setLevel(level.name)
    logger.propagate = False
