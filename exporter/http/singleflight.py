"""Rendering that is shared: whoever asks while the same is being made gets that, and nothing is made twice at once.

A render is shared only by requests that came while it was being made, and is not kept: what each of them gets is older
than its arrival by no more than the making took. Must not know what is made.
"""

import gzip
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

from exporter.errors import RequestError
from exporter.render.textformat import Format

MAX_SCRAPES = 8  # being answered; of the server's places, the others are for probes and people
_GZIP_LEVEL = 1  # of level 6's savings nearly all, in a third of its time


class Renders:
    """Makes bodies.

    Args:
        render: The body in a format.
    """

    def __init__(self, render: Callable[[Format], bytes]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._running: dict[tuple[Format, bool], Future[bytes]] = {}
        self._places = threading.BoundedSemaphore(MAX_SCRAPES)

    def get(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        """The body in a format and coding.

        Raises:
            RequestError: Too many wait already.
            TimeoutError: Somebody else makes it, and does not come to an end.
        """
        if not self._places.acquire(blocking=False):
            words = f"{MAX_SCRAPES} scrapes are being answered; come again"
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, words)
        try:
            return self._shared(form, zipped=zipped, timeout_s=timeout_s)
        finally:
            self._places.release()

    def _shared(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        key = (form, zipped)
        with self._lock:
            running = self._running.get(key)
            if running is None:
                mine = self._running[key] = Future[bytes]()
        if running is not None:
            return running.result(timeout_s)
        try:
            made = self._make(form, zipped=zipped, timeout_s=timeout_s)
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        self._forget(key)
        mine.set_result(made)
        return made

    def _forget(self, key: tuple[Format, bool]) -> None:
        with self._lock:
            del self._running[key]

    def _make(self, form: Format, *, zipped: bool, timeout_s: float) -> bytes:
        if not zipped:
            return self._render(form)
        return gzip.compress(self._shared(form, zipped=False, timeout_s=timeout_s), _GZIP_LEVEL, mtime=0)
