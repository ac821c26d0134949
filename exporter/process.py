"""What the process as a whole does: its signals, its heap and its log lines. Must not know what it is used for."""

import ctypes
import datetime
import json
import logging
import signal
import sys

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
_ALL = STOPPING | {signal.SIGHUP}
_ARENA_MAX = -8  # M_ARENA_MAX (malloc.h)


class Signals:
    """The signals, for the main thread.

    Blocked in all threads and waited for: a handler can run between a check and a wait, and its signal be lost.
    """

    def __init__(self, *, once: bool) -> None:
        """Block them before there are other threads; with `once`, keep their default actions."""
        if not once:
            signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
            return
        for number in _ALL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ALL)

    def wait(self, seconds: float) -> int | None:
        """The next signal; None if none arrives in time."""
        found = signal.sigtimedwait(_ALL, seconds)
        return None if found is None else found.si_signo


def use_one_heap() -> None:
    """Make glibc use one heap for all threads; call before the second thread starts.

    By default glibc creates up to eight per core, and each grows to its own peak. They save threads from waiting for
    each other, which Python's threads do anyway. Other C libraries (musl) have no such function. See mallopt(3).
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):
        c_library.mallopt(_ARENA_MAX, 1)


def trim_heap() -> None:
    """Return free memory to the kernel, such as what only the start needed."""
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(ctypes.c_size_t(0))


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


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Write the exporter's log lines of at least `level` to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    logger = logging.getLogger("exporter")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
