"""Client of the Prometheus HTTP API v1: instant and range queries, in parallel. Knows nothing of GPUs.

Every response is complete or an error: partial responses, redirects and oversized bodies are refused. Series that the
server left out with a warning have the value NaN.
https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import functools
import hashlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from rightsizer.config import PrometheusSettings, parse_duration
from rightsizer.errors import PrometheusError, PrometheusUnreachable, QueryRefused
from rightsizer.prometheus import mixed_samples
from rightsizer.prometheus.responses import ResponseData, ResponseReader, TransientRefusal
from rightsizer.prometheus.transport import HttpTransport, Transport

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

ATTEMPTS = 3
RETRY_PAUSE_S = 0.5
_LAST_WAIT_S = 1.0
"""Wait for the response to a query in progress once the process has to end."""
SERVER_TIMEOUT_SHARE = 0.95
"""The server's timeout as a share of the client's deadline, so that the server says why it stopped."""

COMPLETE_RESPONSE: Mapping[str, str] = {
    # Thanos, docs/components/query.md: no partial response, and no downsampled averages, which hide peaks.
    "dedup": "true",
    "max_source_resolution": "0s",
    "partial_response": "false",
    # VictoriaMetrics, cluster and single: no partial response, no cache, and no offset of half a minute. 1.79 ignores
    # `latency_offset`, but leaves out no last seconds of what is not cached, unless steps are shorter than a minute.
    "deny_partial_response": "1",
    "latency_offset": "1ms",
    "nocache": "1",
}
"""Sent to every server: each one ignores the parameters of the others."""

DEFAULT_RETENTION = datetime.timedelta(days=15)
"""Prometheus's default if neither time nor size is set."""

NAN = "NaN"
"""NaN as the API writes it."""

_DIGEST_BYTES = 16
"""Among a million texts, two have the same digest with a probability of 10^-26."""
_MAX_CACHED = 1_000_000


def retention(flags: Mapping[str, Any]) -> datetime.timedelta | None:
    """Retention of samples by these flags of Prometheus; None if they do not tell."""
    kept = str(flags.get("storage.tsdb.retention.time", ""))
    try:
        return parse_duration(kept)
    except ValueError:  # missing, 0s, or in years
        is_by_size = str(flags.get("storage.tsdb.retention.size", "0B")) != "0B"
        return None if is_by_size or kept != "0s" else DEFAULT_RETENTION


def run_parallel(tasks: Sequence[Callable[[threading.Event], T]], width: int) -> Iterator[T]:
    """The results in the order of the tasks; at most `width` tasks run, or have results that are not consumed yet.

    The first error of a task is raised at once. Pending tasks never start; running tasks see it in their
    event. An interrupt does not wait for them either.
    """
    waiting = collections.deque(enumerate(tasks))
    outcomes: queue.SimpleQueue[tuple[int, T] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    slots = threading.Semaphore(width)

    def work() -> None:
        while slots.acquire() and not stopped.is_set():
            try:
                number, task = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes.put((number, task(stopped)))
            except BaseException as error:  # noqa: BLE001 - raised again by the consumer
                stopped.set()
                outcomes.put(error)

    for _ in range(min(width, len(tasks))):
        threading.Thread(target=work, name="prometheus-query", daemon=True).start()
    results: dict[int, T] = {}
    try:
        for number in range(len(tasks)):
            while number not in results:
                outcome = outcomes.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                results[outcome[0]] = outcome[1]
            yield results.pop(number)
            slots.release()
    finally:
        stopped.set()
        slots.release(width)  # so that waiting threads end


class ParseCache(Generic[T]):
    """Parses JSON texts of which many are the same, each once; the results are shared and must not be changed."""

    def __init__(self, parse: Callable[[msgspec.Raw], T]) -> None:
        self._parse = parse
        self._parsed: dict[bytes, T] = {}

    def get(self, text: msgspec.Raw) -> T:
        """The parsed text."""
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        try:
            return self._parsed[digest]
        except KeyError:
            pass
        if len(self._parsed) >= _MAX_CACHED:
            self._parsed.clear()
        parsed = self._parsed[digest] = self._parse(text)
        return parsed


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query's result."""

    labels: Mapping[str, str]
    value: float

    @property
    def count(self) -> int:
        """The value as a number of series. Raises QueryRefused if it is none."""
        if not math.isfinite(self.value):
            raise QueryRefused(f"expected a number of series from Prometheus, got {self.value}")
        return round(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class RangeSeries:
    """One series of a range query's result: value by Unix time in seconds, only at steps that have one."""

    labels: Mapping[str, str]
    points: Mapping[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class QueryRange:
    """The steps of a range query, from start to end inclusive."""

    start: datetime.datetime
    end: datetime.datetime
    step_s: float

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters of the API."""
        start, end = (f"{instant.timestamp():.3f}" for instant in (self.start, self.end))
        return {"start": start, "end": end, "step": f"{self.step_s:.3f}"}


class _Series(msgspec.Struct):
    metric: msgspec.Raw = msgspec.Raw(b"{}")
    value: tuple[float, str] | None = None
    values: msgspec.Raw = msgspec.Raw(b"[]")


class _ClockSample(msgspec.Struct):
    value: msgspec.Raw


def _spoilt(by: _Series, series: _Series | None) -> _Series:
    """A series, with NaN in place of each value that another one has as NaN."""
    value, values = (None, msgspec.Raw(b"[]")) if series is None else (series.value, series.values)
    points, others = (
        dict(msgspec.json.decode(text, type=list[tuple[float, str]])) for text in (values, by.values)
    )
    points |= {instant: text for instant, text in others.items() if text == NAN}
    is_spoilt = by.value is not None and by.value[1] == NAN
    return _Series(
        by.metric, by.value if is_spoilt else value, msgspec.Raw(msgspec.json.encode(sorted(points.items())))
    )


def decode_labels(text: msgspec.Raw) -> dict[str, str]:
    """Labels of a series, from JSON."""
    return msgspec.json.decode(text, type=dict[str, str])


def decode_points(text: msgspec.Raw) -> list[tuple[float, float]]:
    """Points of a range query's series, from JSON: Unix time and value."""
    return [
        (instant, float(value)) for instant, value in msgspec.json.decode(text, type=list[tuple[float, str]])
    ]


class Prometheus:
    """A Prometheus server, or anything that implements its query API.

    Every query raises PrometheusError if there is no complete response.

    Attributes:
        ending: Once it is set, queries are abandoned that get no response within a second; None: they never are.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.
    """

    def __init__(self, settings: PrometheusSettings, transport: Transport | None = None) -> None:
        self._timeout_s = settings.timeout_s
        self.parallel = settings.parallel
        self.ending: threading.Event | None = None
        self._local = threading.local()
        self._warned: set[str] = set()
        self._slots = threading.BoundedSemaphore(settings.parallel)
        self._transport = transport or HttpTransport(settings)
        # A server found in the cluster is named after its kind; a URL does not tell the kind.
        self._attempted = f"querying {self.where if ' at ' in self.where else f'Prometheus at {self.where}'}"
        self._reader = ResponseReader(self._attempted, self._transport.hint)

    @property
    def where(self) -> str:
        """The server, as messages name it."""
        return self._transport.where

    def now(self) -> datetime.datetime:
        """The time of the server's own clock, to the second."""
        data = self._request("query", {"query": "time()"})
        with self._parsing():
            result = data.result
            if data.result_type == "vector":  # VictoriaMetrics has no scalars
                result = msgspec.json.decode(result, type=tuple[_ClockSample])[0].value
            instant = msgspec.json.decode(result, type=tuple[float, str])[0]
            return datetime.datetime.fromtimestamp(int(instant), tz=datetime.UTC)

    def status(self, page: str) -> Mapping[str, Any]:
        """A status page of the server, `buildinfo` or `flags`; not every server has them."""
        return self._page(f"status/{page}")

    def rules(self) -> Mapping[str, Any]:
        """The rules that the server evaluates; not every server tells."""
        return self._page("rules")

    def _page(self, path: str) -> Mapping[str, Any]:
        with self._slots:
            return self._reader.page(*self._response(path, {}, self._timeout_s))

    def query(self, promql: str, at: datetime.datetime) -> list[Sample]:
        """An instant query."""
        found = self.query_as(promql, at, ParseCache(decode_labels))
        return [Sample(labels, value) for labels, value in found]

    def query_as(self, promql: str, at: datetime.datetime, labels: ParseCache[T]) -> list[tuple[T, float]]:
        """An instant query: the parsed labels and the value of each series."""
        series = self._series("query", {"query": promql, "time": f"{at.timestamp():.3f}"})
        with self._parsing():
            return [(labels.get(row.metric), float(row.value[1])) for row in series if row.value is not None]

    def query_range(self, promql: str, steps: QueryRange) -> list[RangeSeries]:
        """A range query."""
        caches = ParseCache(decode_labels), ParseCache(decode_points)
        found = self.query_range_as(promql, steps, labels=caches[0], values=caches[1])
        return [RangeSeries(labels, dict(points)) for labels, points in found]

    def query_range_as(
        self, promql: str, steps: QueryRange, *, labels: ParseCache[T], values: ParseCache[V]
    ) -> list[tuple[T, V]]:
        """A range query: the parsed labels and the parsed points of each series."""
        series = self._series("query_range", {"query": promql, **steps.parameters})
        with self._parsing():
            return [(labels.get(row.metric), values.get(row.values)) for row in series]

    def _series(self, endpoint: str, form: Mapping[str, str]) -> list[_Series]:
        """All series of a response; those that mix floats and native histograms have the value NaN."""
        data = self._request(endpoint, form)
        found = self._decoded(endpoint, form, data)
        for warning in data.warnings:
            words = warning.rpartition(" (")[0] or warning  # without the place in the query
            if words not in self._warned:
                self._warned.add(words)
                log.warning("%s: %s", self._attempted, words)
            if mixed_samples.leaves_out(warning):
                found = self._with_mixed(found, endpoint, form, warning)
        return found

    def _with_mixed(
        self, found: list[_Series], endpoint: str, form: Mapping[str, str], warning: str
    ) -> list[_Series]:
        """The series with those that the server left out, as if each had the value NaN."""

        def asked(query: str) -> list[_Series]:
            changed = {**form, "query": query}
            return self._decoded(endpoint, changed, self._request(endpoint, changed))

        queries = list(mixed_samples.rewritten(form["query"], warning))
        rows = {bytes(row.metric): row for query, _ in queries for row in asked(query)}
        # A comparison in the query leaves NaN out, too.
        if not rows and not any(asked(left_out) for _, left_out in queries):
            raise self._reader.incomplete(warning)
        with self._parsing():
            known = {bytes(row.metric): row for row in found}
            return list((known | {key: _spoilt(row, known.get(key)) for key, row in rows.items()}).values())

    def _decoded(self, endpoint: str, form: Mapping[str, str], data: ResponseData) -> list[_Series]:
        if endpoint == "query" and data.result_type != "vector":
            raise QueryRefused(
                f"{self._attempted}: expected a vector, got a {data.result_type}: {form['query']}"
            )
        with self._parsing():
            return msgspec.json.decode(data.result, type=list[_Series])

    def run_in_order(self, queries: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Run several queries, `parallel` at a time; yield the results in their order, each as soon as it is there.

        Each query has its own deadline. The first error ends all: pending queries are not sent.
        """
        if len(queries) == 1:
            yield queries[0]()
            return
        yield from run_parallel([functools.partial(self._run, query) for query in queries], self.parallel)

    def _run(self, query: Callable[[], T], stopped: threading.Event) -> T:
        self._local.stopped = stopped
        return query()

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        """Translate errors about JSON of another shape, values that are not numbers, and times outside the calendar."""
        try:
            yield
        except (msgspec.DecodeError, ValueError, OverflowError, OSError, RecursionError) as error:
            raise QueryRefused(f"{self._attempted}: its response cannot be parsed: {error}") from error

    def _request(self, endpoint: str, form: Mapping[str, str]) -> ResponseData:
        """One request, repeated after transient errors within the deadline."""
        # Set by run_in_order when the result is no longer needed.
        stopped: threading.Event = getattr(self._local, "stopped", None) or threading.Event()
        with self._slots:
            deadline = time.monotonic() + self._timeout_s
            for attempt in range(1, ATTEMPTS + 1):
                pause_s = RETRY_PAUSE_S * attempt
                try:
                    return self._send(endpoint, form, max(deadline - time.monotonic(), 0.001))
                except (PrometheusUnreachable, TransientRefusal):
                    if attempt == ATTEMPTS or time.monotonic() + pause_s > deadline or stopped.wait(pause_s):
                        raise
        raise AssertionError  # the loop returns or raises

    def _send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> ResponseData:
        log.debug("%s: %s", endpoint, form["query"])
        began = time.monotonic()
        server_timeout = f"{max(round(timeout_s * SERVER_TIMEOUT_SHARE * 1000), 1)}ms"
        form = {**form, **COMPLETE_RESPONSE, "timeout": server_timeout}
        status, body = self._response(endpoint, form, timeout_s)
        took_ms = (time.monotonic() - began) * 1000
        log.info("%s at %s: %d, %d bytes, %.0f ms", endpoint, self.where, status, len(body), took_ms)
        return self._reader.read(status, body)

    def _response(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """Status and body of a response.

        Raises:
            PrometheusError: There is none yet, and the process ends.
        """
        if self.ending is None:
            return self._transport.send(endpoint, form, timeout_s)
        found: concurrent.futures.Future[tuple[int, bytes]] = concurrent.futures.Future()

        def send() -> None:
            try:
                found.set_result(self._transport.send(endpoint, form, timeout_s))
            except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
                found.set_exception(error)

        threading.Thread(target=send, name="prometheus-request", daemon=True).start()
        while not concurrent.futures.wait([found], _LAST_WAIT_S).done:
            if self.ending.is_set():
                raise PrometheusError(f"{self._attempted}: no response yet, and the process is ending")
        return found.result()
