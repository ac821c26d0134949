"""The one door to Prometheus: the questions of its HTTP API v1. Knows nothing of GPUs, nor how a question travels.

Every answer is whole or an error: warnings, partial answers, redirects and oversized bodies are refused.
https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import collections
import dataclasses
import datetime
import functools
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from rightsizer.config import PrometheusSettings
from rightsizer.errors import PrometheusUnreachable, QueryRefused
from rightsizer.prometheus.responses import ResponseData, ResponseReader, TransientRefusal
from rightsizer.prometheus.transport import HttpTransport, Transport

T = TypeVar("T")


def gather(tasks: Sequence[Callable[[threading.Event], T]], width: int) -> Iterator[T]:
    """The results in the tasks' order, as they come; at most `width` tasks run, or have results that nobody took yet.

    The first error is raised as soon as it is known: what has not begun never does, and what is under way learns by its
    event that nobody waits any more. An interrupt does not wait for it either.

    Raises:
        Exception: What a task raised.
    """
    waiting = collections.deque(enumerate(tasks))
    outcomes: queue.SimpleQueue[tuple[int, T] | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    room = threading.Semaphore(width)

    def work() -> None:
        while room.acquire() and not stopped.is_set():
            try:
                number, task = waiting.popleft()
            except IndexError:
                return
            try:
                outcomes.put((number, task(stopped)))
            except BaseException as error:  # noqa: BLE001 - handed on, to whoever waits for it
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
            room.release()
    finally:
        stopped.set()
        room.release(width)  # whoever waits for room is to see that it is over


_DIGEST_BYTES = 16
"""Among a million texts two of one digest are as likely as one in 10^26."""
_MOST = 1_000_000


class ParseCache(Generic[T]):
    """Texts of JSON, and what they stand for.

    Args:
        read: Says what a text stands for. What it gives is shared, and must not be changed.
    """

    def __init__(self, read: Callable[[msgspec.Raw], T]) -> None:
        self._read = read
        self._known: dict[bytes, T] = {}

    def of(self, text: msgspec.Raw) -> T:
        """What a text stands for.

        Raises:
            msgspec.DecodeError, ValueError: It cannot be read.
        """
        digest = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
        try:
            return self._known[digest]
        except KeyError:
            pass
        if len(self._known) >= _MOST:
            self._known.clear()
        found = self._known[digest] = self._read(text)
        return found


log = logging.getLogger(__name__)

L = TypeVar("L")
V = TypeVar("V")

ATTEMPTS = 3
RETRY_PAUSE_S = 0.5
SERVER_SHARE = 0.95
"""The part of the deadline after which the server is asked to stop, so that we hear from itself why."""

COMPLETE_ANSWER: Mapping[str, str] = {
    # Thanos, docs/components/query.md: neither without a store that is away, nor from averages that hide peaks.
    "dedup": "true",
    "max_source_resolution": "0s",
    "partial_response": "false",
    # VictoriaMetrics, cluster and single: the same, no answers from its cache, and none as of half a minute ago.
    "deny_partial_response": "1",
    "latency_offset": "1ms",
    "nocache": "1",
}
"""Sent to every server: each knows its own and takes no notice of the others."""

# What JSON of another shape, a value that is no number, and a time that no calendar has come to.
_UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, OSError)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query's answer."""

    labels: Mapping[str, str]
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class RangeSeries:
    """One series of a range query's answer: value by Unix time in seconds, only where there is one."""

    labels: Mapping[str, str]
    points: Mapping[float, float]


@dataclasses.dataclass(frozen=True, slots=True)
class QueryRange:
    """The instants of a range query, both ends included."""

    start: datetime.datetime
    end: datetime.datetime
    step_s: float

    @property
    def count(self) -> int:
        """How many there are."""
        return int((self.end - self.start).total_seconds() / self.step_s) + 1

    @property
    def form(self) -> dict[str, str]:
        """As the API has it."""
        start, end = (f"{instant.timestamp():.3f}" for instant in (self.start, self.end))
        return {"start": start, "end": end, "step": f"{self.step_s:.3f}"}


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Text(msgspec.Struct):
    """A series whose parts are not read yet."""

    metric: msgspec.Raw
    value: tuple[float, str] | None = None
    values: msgspec.Raw = msgspec.Raw(b"[]")


class _Clock(msgspec.Struct):
    value: msgspec.Raw


class Prometheus:
    """A Prometheus server, or anything that speaks its query API.

    Args:
        settings: How to reach it, and how patient to be.
        transport: Another way to it than its URL.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.
    """

    def __init__(self, settings: PrometheusSettings, transport: Transport | None = None) -> None:
        self._timeout_s = settings.timeout_s
        self.parallel = settings.parallel
        self._mine = threading.local()
        self._slots = threading.BoundedSemaphore(settings.parallel)
        self._transport = transport or HttpTransport(settings)
        # What was found in the cluster is called by its flavour; a URL says nothing of the kind.
        self._attempted = f"querying {self.where if ' at ' in self.where else f'Prometheus at {self.where}'}"
        self._reader = ResponseReader(self._attempted, self._transport.hint)

    @property
    def where(self) -> str:
        """The server, as messages name it."""
        return self._transport.where

    def now(self) -> datetime.datetime:
        """Prometheus's own clock, the one that its samples' times are written by, to the second."""
        answer = self._ask("query", {"query": "time()"})
        try:
            if answer.result_type == "vector":  # VictoriaMetrics knows no scalars
                answer = ResponseData(
                    "scalar", msgspec.json.decode(answer.result, type=tuple[_Clock])[0].value
                )
            instant = msgspec.json.decode(answer.result, type=tuple[float, str])[0]
            return datetime.datetime.fromtimestamp(int(instant), tz=datetime.UTC)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def status(self, page: str) -> Mapping[str, Any]:
        """What the server says of itself: `buildinfo` or `flags`; not every server that answers queries has these.

        Raises:
            PrometheusError: It does not say.
        """
        with self._slots:
            return self._reader.page(*self._transport.ask(f"status/{page}", {}, self._timeout_s))

    def query(self, promql: str, at: datetime.datetime) -> list[Sample]:
        """An instant query.

        Raises:
            PrometheusError: There is no whole answer.
        """
        series = self._decode(self._ask_instant(promql, at))
        try:
            return [Sample(item.metric, float(item.value[1])) for item in series if item.value is not None]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def at_once(self, questions: Sequence[Callable[[], L]]) -> list[L]:
        """Several questions to this client, a few at a time: the answers in their order.

        Each has the deadline of its own. The first error ends it all: what has not been asked by then never is.

        Raises:
            PrometheusError: There is no whole answer to one of them.
        """
        return list(self.in_turn(questions))

    def in_turn(self, questions: Sequence[Callable[[], L]]) -> Iterator[L]:
        """The same, each answer as soon as those before it are there: few are kept at a time.

        Raises:
            PrometheusError: There is no whole answer to one of them.
        """
        if len(questions) == 1:
            yield questions[0]()
            return
        tasks = [functools.partial(self._answer, question) for question in questions]
        yield from gather(tasks, self.parallel)

    def _answer(self, question: Callable[[], L], stopped: threading.Event) -> L:
        self._mine.stopped = stopped
        return question()

    def query_as(self, promql: str, at: datetime.datetime, labels: ParseCache[L]) -> list[tuple[L, float]]:
        """An instant query: for each series what its labels stand for, and its value.

        Raises:
            PrometheusError: There is no whole answer.
        """
        answer = self._ask_instant(promql, at)
        try:
            series = msgspec.json.decode(answer.result, type=list[_Text])
            return [
                (labels.of(item.metric), float(item.value[1])) for item in series if item.value is not None
            ]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def query_range(
        self, promql: str, *, start: datetime.datetime, end: datetime.datetime, step_s: float
    ) -> list[RangeSeries]:
        """A range query: both ends included.

        Raises:
            PrometheusError: There is no whole answer.
        """
        answer = self._ask("query_range", {"query": promql, **QueryRange(start, end, step_s).form})
        series = self._decode(answer)
        try:
            return [
                RangeSeries(item.metric, {instant: float(value) for instant, value in item.values})
                for item in series
            ]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def query_range_as(
        self, promql: str, span: QueryRange, *, labels: ParseCache[L], values: ParseCache[V]
    ) -> list[tuple[L, V]]:
        """A range query: for each series what its labels stand for, and what its points do.

        Raises:
            PrometheusError: There is no whole answer.
        """
        answer = self._ask("query_range", {"query": promql, **span.form})
        try:
            series = msgspec.json.decode(answer.result, type=list[_Text])
            return [(labels.of(item.metric), values.of(item.values)) for item in series]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _ask_instant(self, promql: str, at: datetime.datetime) -> ResponseData:
        answer = self._ask("query", {"query": promql, "time": f"{at.timestamp():.3f}"})
        if answer.result_type != "vector":
            raise QueryRefused(f"{self._attempted}: a {answer.result_type} came for a vector: {promql}")
        return answer

    def _decode(self, answer: ResponseData) -> list[_Series]:
        try:
            return msgspec.json.decode(answer.result, type=list[_Series])
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> QueryRefused:
        return QueryRefused(f"{self._attempted}: its answer cannot be read: {error}")

    def _ask(self, endpoint: str, form: Mapping[str, str]) -> ResponseData:
        """One question, asked again where the refusal is of a passing kind, within the deadline."""
        # Of a thread that asks for others, as soon as nobody waits for its answer any more.
        stopped: threading.Event = getattr(self._mine, "stopped", None) or threading.Event()
        with self._slots:
            deadline = time.monotonic() + self._timeout_s
            for attempt in range(1, ATTEMPTS + 1):
                pause_s = RETRY_PAUSE_S * attempt
                try:
                    return self._ask_once(endpoint, form, max(deadline - time.monotonic(), 0.001))
                except (PrometheusUnreachable, TransientRefusal):
                    if attempt == ATTEMPTS or time.monotonic() + pause_s > deadline or stopped.wait(pause_s):
                        raise
        raise AssertionError  # the loop returns or raises

    def _ask_once(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> ResponseData:
        log.debug("%s: %s", endpoint, form["query"])
        began = time.monotonic()
        server_timeout = f"{max(round(timeout_s * SERVER_SHARE * 1000), 1)}ms"
        form = {**form, **COMPLETE_ANSWER, "timeout": server_timeout}
        status, body = self._transport.ask(endpoint, form, timeout_s)
        took_ms = (time.monotonic() - began) * 1000
        log.info("%s at %s: %d, %d bytes, %.0f ms", endpoint, self.where, status, len(body), took_ms)
        return self._reader.read(status, body)
