"""The process as a whole: signals, heap, log lines and systemd. Must not know what the process is for."""

import ctypes
import datetime
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping

from exporter.errors import StartError

_LOG = logging.getLogger(__name__)
STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})
_ALL = STOPPING | {signal.SIGHUP}
_ARENA_MAX = -8  # M_ARENA_MAX (malloc.h)
_FIRST_SOCKET = 3  # SD_LISTEN_FDS_START
_NOTIFY_S = 1.0


class Signals:
    """The signals, for the main thread.

    All threads block them, and one waits: a handler would lose a signal between a check and a wait.
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


def inherited_socket(environment: Mapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd passed to this process, if any: sd_listen_fds(3)."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None  # meant for a parent process
    count = environment.get("LISTEN_FDS", "")
    if count != "1":
        raise StartError(
            f"systemd passed {count or 'no'} sockets; set one ListenStream= in gpu-exporter.socket"
        )
    try:
        found = socket.socket(fileno=_FIRST_SOCKET)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(
            "systemd passed a file that is not a socket; see ListenStream= in gpu-exporter.socket"
        ) from error
    is_tcp = found.type == socket.SOCK_STREAM and found.family in {socket.AF_INET, socket.AF_INET6}
    if not listens or not is_tcp:
        raise StartError(
            "systemd passed a socket that is not a listening TCP socket; set ListenStream=9400 and Accept=no in "
            "gpu-exporter.socket"
        )
    found.set_inheritable(False)
    return found


def notify_systemd(environment: Mapping[str, str], state: str) -> None:
    """Notify systemd, if it asks for it: sd_notify(3). A failure is only logged."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(_NOTIFY_S)
            sender.connect(name)
            sender.sendall(state.encode())
    except OSError as error:
        _LOG.warning("notifying systemd of %s: %s", state, error.strerror or error)
