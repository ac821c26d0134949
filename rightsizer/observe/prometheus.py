"""The one door to Prometheus: its HTTP API v1, asked with `requests`. Knows nothing of GPUs.

Every answer is whole or an error: warnings, partial answers, redirects and oversized bodies are refused.
https://prometheus.io/docs/prometheus/latest/querying/api/
"""

import dataclasses
import datetime
import logging
import time
from collections.abc import Mapping

import msgspec
import requests

from rightsizer.config import PrometheusSettings, read_secret
from rightsizer.errors import (
    ConfigurationError,
    EvidenceIncomplete,
    PrometheusError,
    PrometheusUnreachable,
    QueryRefused,
)

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 20
"""An answer beyond this is an attack or a mistake: 100,000 series of 96 points need about 200 MB."""

ATTEMPTS = 3
RETRY_PAUSE_S = 0.5
_PASSING = frozenset({429, 502, 503, 504})
_SHOWN = 300

# What JSON of another shape, a value that is no number, and a time that no calendar has come to.
_UNREADABLE = (msgspec.DecodeError, ValueError, OverflowError, OSError)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One series of an instant query's answer."""

    labels: Mapping[str, str]
    value: float


@dataclasses.dataclass(frozen=True, slots=True)
class Track:
    """One series of a range query's answer: value by Unix time in seconds, only where there is one."""

    labels: Mapping[str, str]
    points: Mapping[float, float]


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename="camel"):
    status: str = ""
    data: _Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] = []
    is_partial: bool = False


class _PassingError(QueryRefused):
    """A refusal that another try may not meet."""


class Prometheus:
    """A Prometheus server, or anything that speaks its query API.

    Raises:
        ConfigurationError: A file that the settings name cannot be read.
    """

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._session = requests.Session()
        self._session.headers.update({"User-Agent": "gpu-rightsizer", "Accept": "application/json"})
        self._session.headers.update({name: secret.reveal() for name, secret in settings.headers.items()})
        if settings.ca_file is not None and not settings.ca_file.is_file():
            raise ConfigurationError(f"--prometheus-ca-file {settings.ca_file}: no such file")

    def now(self) -> datetime.datetime:
        """Prometheus's own clock, the one that its samples' times are written by, to the second."""
        answer = self._ask("query", {"query": "time()"})
        try:
            instant = msgspec.json.decode(answer.result, type=tuple[float, str])[0]
            return datetime.datetime.fromtimestamp(int(instant), tz=datetime.UTC)
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def query(self, promql: str, at: datetime.datetime) -> list[Sample]:
        """An instant query.

        Raises:
            PrometheusError: There is no whole answer.
        """
        answer = self._ask("query", {"query": promql, "time": f"{at.timestamp():.3f}"})
        if answer.result_type != "vector":
            raise QueryRefused(
                f"querying Prometheus at {self._base}: a {answer.result_type} came for a vector: {promql}"
            )
        series = self._decode(answer)
        try:
            return [Sample(item.metric, float(item.value[1])) for item in series if item.value is not None]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def query_range(
        self, promql: str, *, start: datetime.datetime, end: datetime.datetime, step_s: float
    ) -> list[Track]:
        """A range query: both ends included.

        Raises:
            PrometheusError: There is no whole answer.
        """
        span = {"start": f"{start.timestamp():.3f}", "end": f"{end.timestamp():.3f}", "step": f"{step_s:.3f}"}
        answer = self._ask("query_range", {"query": promql, **span})
        series = self._decode(answer)
        try:
            return [
                Track(item.metric, {instant: float(value) for instant, value in item.values})
                for item in series
            ]
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _decode(self, answer: _Data) -> list[_Series]:
        try:
            return msgspec.json.decode(answer.result, type=list[_Series])
        except _UNREADABLE as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> QueryRefused:
        return QueryRefused(f"querying Prometheus at {self._base}: its answer cannot be read: {error}")

    def _ask(self, endpoint: str, form: Mapping[str, str]) -> _Data:
        """One question, asked again where the refusal is of a passing kind, within the deadline."""
        deadline = time.monotonic() + self._settings.timeout_s
        for attempt in range(1, ATTEMPTS + 1):
            pause_s = RETRY_PAUSE_S * attempt
            try:
                return self._ask_once(endpoint, form, max(deadline - time.monotonic(), 0.001))
            except (PrometheusUnreachable, _PassingError):
                if attempt == ATTEMPTS or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
        raise AssertionError  # the loop returns or raises

    def _ask_once(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> _Data:
        attempted = f"querying Prometheus at {self._base}"
        log.debug("%s: %s", endpoint, form["query"])
        began = time.monotonic()
        try:
            response = self._session.post(
                f"{self._base}/api/v1/{endpoint}",
                data={**form, "timeout": f"{round(timeout_s * 1000)}ms"},
                auth=self._authorize,
                timeout=timeout_s,
                # Said with each request: a session's own setting would yield to REQUESTS_CA_BUNDLE.
                verify=str(self._settings.ca_file) if self._settings.ca_file else True,
                allow_redirects=False,
                stream=True,
            )
            body = _body(response, attempted, deadline=time.monotonic() + timeout_s)
        except requests.exceptions.SSLError as error:
            raise PrometheusError(
                f"{attempted}: TLS failed: {_cause(error)}; see --prometheus-ca-file"
            ) from error
        except (
            requests.exceptions.InvalidURL,
            requests.exceptions.MissingSchema,
            requests.exceptions.InvalidSchema,
        ) as error:
            raise ConfigurationError(f"--prometheus-url {self._base}: {error}") from error
        except requests.exceptions.Timeout as error:
            raise PrometheusUnreachable(
                f"{attempted}: no answer within {timeout_s:.3g} s; is it overloaded?"
            ) from error
        except requests.exceptions.RequestException as error:
            words = f"{attempted}: {_cause(error)}; is the URL right, and reachable from here?"
            raise PrometheusUnreachable(words) from error
        took_ms = (time.monotonic() - began) * 1000
        log.info(
            "POST %s at %s: %d, %d bytes, %.0f ms",
            endpoint,
            self._base,
            response.status_code,
            len(body),
            took_ms,
        )
        return self._answer(response.status_code, body, attempted)

    def _answer(self, status: int, body: bytes, attempted: str) -> _Data:
        if status in _PASSING:
            raise PrometheusUnreachable(f"{attempted}: HTTP {status}: {_shown(body)}")
        if status in {401, 403}:
            raise PrometheusError(
                f"{attempted}: HTTP {status}: not allowed; see --prometheus-token-file and -header"
            )
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError as error:
            words = f"{attempted}: HTTP {status}, but no Prometheus answers there: {_shown(body)}"
            raise PrometheusError(words) from error
        if answer.status != "success" or answer.data is None:
            words = answer.error[:_SHOWN] or _shown(body)
            kind = _PassingError if _may_pass(answer) else QueryRefused
            raise kind(f"{attempted}: HTTP {status}: {answer.error_type}: {words}")
        if answer.warnings or answer.is_partial:
            words = "; ".join(answer.warnings)[:_SHOWN] or "isPartial"
            raise EvidenceIncomplete(f"{attempted}: the answer may be incomplete, so it is not used: {words}")
        return answer.data

    def _authorize(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Put the token on a request; where there is none, ~/.netrc is not asked either."""
        path = self._settings.token_file
        if path is not None:
            token = read_secret(path, f"--prometheus-token-file {path}")
            request.headers["Authorization"] = f"Bearer {token}"
        return request


def _may_pass(answer: _Answer) -> bool:
    """Whether the storage stumbled, as while a block is being cut, rather than the query asking too much."""
    return answer.error_type in {"execution", "internal"} and "not found" in answer.error


def _body(response: requests.Response, attempted: str, *, deadline: float) -> bytes:
    chunks, size = [], 0
    for chunk in response.iter_content(1 << 16):
        size += len(chunk)
        if size > MAX_BYTES:
            raise QueryRefused(f"{attempted}: the answer is longer than {MAX_BYTES >> 20} MiB")
        if time.monotonic() > deadline:
            raise PrometheusUnreachable(f"{attempted}: the answer did not end in time")
        chunks.append(chunk)
    return b"".join(chunks)


def _cause(error: BaseException) -> str:
    """The innermost reason: requests and urllib3 wrap it several times."""
    inner: BaseException | None = error
    while inner is not None:
        reason = getattr(inner, "reason", None)
        last, inner = (
            inner,
            reason if isinstance(reason, BaseException) else inner.__cause__ or inner.__context__,
        )
    if isinstance(last, OSError) and last.strerror:
        return last.strerror
    return str(last)[:_SHOWN]


def _shown(body: bytes) -> str:
    text = body[:_SHOWN].decode(errors="replace")
    return " ".join(text.split()) or "(nothing)"
