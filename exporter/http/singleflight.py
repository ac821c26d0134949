"""Shares a body among all requests that arrive while it is rendered, and renders nothing twice at once.

A body is not cached: it is older than a request's arrival by at most its rendering time. Must not know its content.
"""

import gzip
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

from exporter.errors import RequestError
from exporter.render.textformat import Format

MAX_SCRAPES = 8  # at once; the server's other connections are for probes and people
_GZIP_LEVEL = 1  # nearly the size of level 6, in a third of its time


class SingleFlight:
    """Renders bodies by `render`, each format and coding at most once at a time."""

    def __init__(self, render: Callable[[Format], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._running: dict[tuple[Format, bool], Future[bytes]] = {}
        self._slots = threading.BoundedSemaphore(MAX_SCRAPES)

    def get(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        """The body in a format and coding."""
        if not self._slots.acquire(blocking=False):
            message = f"{MAX_SCRAPES} scrapes are in progress; retry later"
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, message)
        try:
            return self._shared(form, zipped=zipped, timeout_s=timeout_s)
        finally:
            self._slots.release()

    def _shared(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        key = (form, zipped)
        with self._lock:
            running = self._running.get(key)
            if running is None:
                own = self._running[key] = Future[bytes]()
        if running is not None:
            return running.result(timeout_s)
        try:
            body = self._make(form, zipped=zipped, timeout_s=timeout_s)
        except BaseException as error:
            self._remove(key)
            own.set_exception(error)
            raise
        self._remove(key)
        own.set_result(body)
        return body

    def _remove(self, key: tuple[Format, bool]) -> None:
        with self._lock:
            del self._running[key]

    def _make(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        if not zipped:
            return self._render(form)
        return gzip.compress(self._shared(form, zipped=False, timeout_s=timeout_s), _GZIP_LEVEL, mtime=0)
