"""The pages: the last snapshot as metrics, health endpoints, and a landing page.

Must not read a GPU: a request is answered from memory, whatever the driver does. Must not know sockets.
"""

import dataclasses
import gzip
import html
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

from prometheus_client import ProcessCollector

from exporter.errors import RequestError
from exporter.http.messages import Reply, Request, busy, text_reply
from exporter.render import exposition
from exporter.render.exposition import Scrape
from exporter.render.textformat import Format, accepts_gzip, encode, negotiate
from exporter.sampling.sampler import Sampler

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


class Handlers:
    """Answers requests by path. `clock`: monotonic seconds."""

    def __init__(self, sampler: Sampler, scrape: Scrape, *, clock: Callable[[], float]) -> None:
        self._sampler = sampler
        self._scrape = scrape
        self._clock = clock
        self._process = ProcessCollector(registry=None)
        self._bodies = SingleFlight(self.metrics)
        self._pages: dict[str, Callable[[Request, float], Reply]] = {
            "/": self._landing,
            "/metrics": self._scraped,
            "/healthz": self._alive,
            "/health": self._alive,  # dcgm-exporter's name, which its manifests probe
            "/readyz": self._ready,
        }

    def answer(self, request: Request, *, until: float) -> Reply:
        """The reply to a request, or a request to retry if there is none by `until`."""
        if request.method not in {"GET", "HEAD"}:
            return text_reply(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")
        page = self._pages.get(request.path)
        if page is None:
            return text_reply(HTTPStatus.NOT_FOUND, f"not found; available: {', '.join(self._pages)}")
        return page(request, until)

    def metrics(self, form: Format) -> bytes:
        """The exposition of the last snapshot."""
        scrape = dataclasses.replace(self._scrape, now=self._clock())
        return encode([*exposition.families(self._sampler.latest(), scrape), *self._process.collect()], form)

    def _scraped(self, request: Request, until: float) -> Reply:
        form = negotiate(request.header("Accept"))
        zipped = accepts_gzip(request.header("Accept-Encoding"))
        try:
            body = self._bodies.get(form, zipped=zipped, timeout_s=max(0.0, until - self._clock()))
        except RequestError as error:
            return busy(str(error))
        except TimeoutError:
            return busy("not enough time to answer")
        headers = {"Vary": "Accept, Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
        return Reply(HTTPStatus.OK, form.value, body, headers)

    def _alive(self, _request: Request, _until: float) -> Reply:
        return text_reply(HTTPStatus.OK, "ok")

    def _ready(self, _request: Request, _until: float) -> Reply:
        """Whether a scrape would return current readings."""
        snapshot, now = self._sampler.latest(), self._clock()
        if snapshot is None:
            problem = "the GPUs have not been read yet"
        elif exposition.is_stale(snapshot, now, self._scrape.stale_after_s):
            problem = f"the GPUs were last read {now - snapshot.taken_at:.1f} s ago"
        elif not snapshot.health.nvml_up and not snapshot.samples:
            problem = "the NVIDIA driver does not answer"
        elif snapshot.health.gpus and not snapshot.samples:
            problem = f"none of {len(snapshot.health.gpus)} GPUs can be read"
        else:
            return text_reply(HTTPStatus.OK, "ok")
        return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, problem)

    def _landing(self, _request: Request, _until: float) -> Reply:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in self._pages if path != "/")
        page = (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>GPU exporter</title></head><body>'
            f"<h1>GPU exporter</h1><p>Version {html.escape(self._scrape.build.version)} "
            f"on {html.escape(self._scrape.hostname)}: GPU metrics per device and pod.</p>"
            f"<ul>{links}</ul></body></html>\n"
        )
        return Reply(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
