"""The pages: the last snapshot as metrics, health endpoints, and a landing page.

Must not read a GPU: a request is answered from memory, whatever the driver does. Must not know sockets.
"""

import dataclasses
import html
from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client import ProcessCollector

from exporter.errors import RequestError
from exporter.http.request import Request
from exporter.http.singleflight import SingleFlight
from exporter.render import exposition
from exporter.render.exposition import Scrape
from exporter.render.textformat import Format, accepts_gzip, encode, negotiate
from exporter.sampling.sampler import Sampler


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def text(status: HTTPStatus, message: str, **headers: str) -> Reply:
    """A reply of one line; underscores in header names become hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, "text/plain; charset=utf-8", f"{message}\n".encode(), named)


def busy(message: str) -> Reply:
    """A reply that asks the client to retry."""
    return text(HTTPStatus.SERVICE_UNAVAILABLE, message, Retry_After="1")


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
            return text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", Allow="GET, HEAD")
        page = self._pages.get(request.path)
        if page is None:
            return text(HTTPStatus.NOT_FOUND, f"not found; available: {', '.join(self._pages)}")
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
        return text(HTTPStatus.OK, "ok")

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
            return text(HTTPStatus.OK, "ok")
        return text(HTTPStatus.SERVICE_UNAVAILABLE, problem)

    def _landing(self, _request: Request, _until: float) -> Reply:
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in self._pages if path != "/")
        page = (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>GPU exporter</title></head><body>'
            f"<h1>GPU exporter</h1><p>Version {html.escape(self._scrape.build.version)} "
            f"on {html.escape(self._scrape.hostname)}: GPU metrics per device and pod.</p>"
            f"<ul>{links}</ul></body></html>\n"
        )
        return Reply(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
