"""Errors, notes and logs. The one place that makes them safe to print.

Messages repeat what API servers, Prometheus and users wrote; none of it may reach a terminal as a command.
"""

import contextlib
import datetime
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rightsizer.text import safe, safe_lines


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()}"
        return safe_lines(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


class _Line(logging.Formatter):
    """A report of work, each of its lines with the time."""

    def format(self, record: logging.LogRecord) -> str:
        time = f"{_time(record)[:19]}Z"
        return "\n".join(f"{time} {safe(line)}" for line in record.getMessage().splitlines())


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": " ".join(record.getMessage().split()),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry | getattr(record, "change", {}))


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Write log lines of at least `level` to standard error, and as JSON each change.

    Of the libraries only warnings: their details have the bodies of responses, with Secrets among them.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    handler.setLevel(level.upper())  # progress makes loggers tell more than is asked for
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if isinstance(one.formatter, _Text | _Json)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()]))
    for package in ("rightsizer", "rightsizer_extender", "rightsizer_history"):
        logging.getLogger(package).setLevel(level.upper())
    log_work(sys.stderr if as_json else None, as_json=as_json)


def log_work(stream: TextIO | None, *, as_json: bool) -> None:
    """Write what the program does to a stream, whatever --log-level says; without a stream, that level applies."""
    log = logging.getLogger("gpu-rightsizer")
    log.handlers, log.propagate = [], stream is None
    log.setLevel(logging.INFO)
    if stream is not None:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Json() if as_json else _Line())
        log.addHandler(handler)


def complain(words: str) -> None:
    """Print why the program ends."""
    print(safe_lines(f"error: {words}"), file=sys.stderr)  # noqa: T201


def see_help(program: str) -> None:
    """Print where the flags are explained."""
    print(f"see {program} --help", file=sys.stderr)  # noqa: T201


def see_roles() -> None:
    """Print where the permissions are explained."""
    print("see gpu-rightsizer doctor --roles, the permissions of each command", file=sys.stderr)  # noqa: T201


def note(words: str) -> None:
    """Print something that a person should know while the program continues."""
    print(safe_lines(f"note: {words}"), file=sys.stderr)  # noqa: T201


def paced_note(every_s: float) -> Callable[[str], None]:
    """A `note` that prints the first time after this many seconds, and then no more often."""
    last = time.monotonic()

    def tell(words: str) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            note(words)

    return tell


_WORK = {"kube": "reading the API server", "prometheus": "asking Prometheus"}
"""What a package's log tells of."""
_PATIENCE_S = 1.0
_REFRESH_S = 0.1
_CLEAR = "\r\x1b[K"


class _ProgressLine(logging.Handler):
    """One line of a terminal, rewritten in place: what is under way, for how long, by how many requests."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(logging.INFO)
        self._stream = stream
        self._begun = self._shown = time.monotonic()
        self._requests = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.INFO:
            self.clear()
            return
        words = _WORK.get(record.name.split(".")[1])
        now = time.monotonic()
        self._requests += words is not None
        if words and now - self._begun >= _PATIENCE_S and now - self._shown >= _REFRESH_S:
            self._shown = now
            self._stream.write(f"{_CLEAR}{words}: {self._requests} requests, {now - self._begun:.0f} s")
            self._stream.flush()

    def clear(self) -> None:
        self._stream.write(_CLEAR)
        self._stream.flush()


@contextlib.contextmanager
def progress(stream: TextIO | None = None) -> Iterator[None]:
    """Show on a terminal how long work goes on; nothing where standard error is none, or has these log lines."""
    stream = stream or sys.stderr
    log = logging.getLogger("rightsizer")
    if not stream.isatty() or log.level <= logging.INFO:
        yield
        return
    line, level = _ProgressLine(stream), log.level
    log.addHandler(line)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(line)
        log.setLevel(level)
        line.clear()
