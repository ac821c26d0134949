"""HTTP responses of the Prometheus API: complete data, or an error that says what to do. Pure.

Prometheus, Thanos, Mimir, Cortex and VictoriaMetrics refuse queries with different words and HTTP statuses. This module
has the table of refusals that a smaller query avoids.
"""

import contextlib
import dataclasses
import http
import re
from typing import Any, TypeVar

import msgspec

from rightsizer.errors import (
    INVALID_JSON,
    EvidenceIncomplete,
    PrometheusError,
    PrometheusUnreachable,
    QueryRefused,
    QueryTooLarge,
)
from rightsizer.prometheus.mixed_samples import leaves_out

MAX_SHOWN = 300
"""Characters of a server's text in a message."""

_NOT_ALLOWED = frozenset({401, 403})
_TRANSIENT = frozenset({429, 502, 503})
_TOO_LARGE_STATUS = frozenset({413, 414, 431, 504})
"""Body, URL or headers too large; gateway timeout."""

_TOO_LARGE_WORDS = (
    # Prometheus, promql/engine.go, and all that embed its engine; a timeout in the queue says nothing about size.
    r"would load too many samples",
    r"query timed out in (?!query queue)",
    r"context deadline exceeded",
    # Thanos, pkg/store/limiter.go; Mimir, pkg/storegateway/limiter.go.
    r"exceeded (series|chunks|samples|bytes) limit",
    r"limit \S+ violated",
    # Mimir, pkg/util/globalerror/user.go, without the limits of the time range.
    r"err-mimir-max-(series|chunks|chunks-bytes|estimated-chunks|estimated-memory-consumption)-per-query",
    r"err-mimir-max-query-expression-size-bytes",
    # Cortex, pkg/util/limiter/query_limiter.go; Amazon Managed Service for Prometheus builds on it.
    r"the query hit the (max number of (series|chunks) limit|aggregated (chunks|data) size limit)",
    # gRPC, between the components of all of them.
    r"message larger than max",
    # VictoriaMetrics, app/vmselect and lib/storage.
    r"-search\.max(SamplesPerQuery|UniqueTimeseries|QueryLen|ResponseSeries|QueryDuration|MemoryPerQuery)\b",
    r"matching (unique )?timeseries exceeds",
    r"not enough memory for processing",
    r"timeout exceeded",
)
_TOO_LARGE = re.compile("|".join(_TOO_LARGE_WORDS), re.IGNORECASE)

_FEWER_SAMPLES = (
    "; set --prometheus-max-samples to the server's limit, which gpu-rightsizer doctor names, or load the recording "
    "rules (docs/scaling.md)"
)

_NO_TENANT = b"no org id"
"""Answer of Mimir, Cortex and Loki to a request without a tenant (dskit, user/id.go)."""

_INFO = "PromQL info: "
"""Prefix of annotations that Prometheus 2.48 to 2.55 and Thanos list among the warnings (thanos#7354)."""

_TOLERATED_WORDS = (
    # util/annotations. They concern only values that are histograms, of which no query asks, or the order of series.
    r"this native histogram metric is not a (counter|gauge):",
    r"vector contains a mix of histograms with exponential and custom buckets schemas",
    r"incompatible bucket layout encountered for binary operator",
    r"conflicting counter resets during histogram",
    r"sort is ineffective for range queries",
    # The value is there.
    r"sample has start time that overlaps with previous sample timestamp",
)
_TOLERATED = re.compile(f"PromQL warning: (?:{'|'.join(_TOLERATED_WORDS)})")

T = TypeVar("T")


class ResponseData(msgspec.Struct, rename="camel"):
    """The `data` of a complete response to a query; the result is not decoded yet."""

    result_type: str
    result: msgspec.Raw
    warnings: tuple[str, ...] = ()  # warnings that make other series no less complete


class _Response(msgspec.Struct, rename="camel"):
    kind: str = ""  # of a Status of the API server
    status: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    error_type: str = ""
    message: str = ""
    warnings: list[str] = []
    is_partial: bool = False


class TransientRefusal(QueryRefused):
    """A refusal that may pass on a retry."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseReader:
    """Reads the responses of one server."""

    attempted: str  # the beginning of each message
    hint: str  # what to check when access is denied

    def read(self, status: int, body: bytes) -> ResponseData:
        """The data of a complete response to a query; raises PrometheusError for an error or incomplete data."""
        data, warnings = self._decode(status, body, ResponseData)
        return msgspec.structs.replace(data, warnings=warnings)

    def page(self, status: int, body: bytes) -> dict[str, Any]:
        """The data of a response about the server itself; raises PrometheusError for an error."""
        return self._decode(status, body, dict[str, Any])[0]

    def incomplete(self, words: str) -> EvidenceIncomplete:
        """The error for a response without all series."""
        return EvidenceIncomplete(f"{self.attempted}: the response may be incomplete; not used: {words}")

    def _decode(self, status: int, body: bytes, kind: type[T]) -> tuple[T, tuple[str, ...]]:
        if status in _NOT_ALLOWED:
            remedy = f"see {self.hint}{_api_server(body)}"
            if _NO_TENANT in body:
                remedy = "it asks for a tenant: give --prometheus-header 'X-Scope-OrgID: TENANT'"
            raise PrometheusError(f"{self.attempted}: HTTP {status}: not allowed; {remedy}")
        try:
            response = msgspec.json.decode(body, type=_Response)
            if response.status != "success" or len(memoryview(response.data)) <= len(b"null"):
                raise self._refusal(status, response, body)
            warnings = tuple(text for text in response.warnings if not text.startswith(_INFO))
            refused = [text for text in warnings if not (_TOLERATED.match(text) or leaves_out(text))]
            if refused or response.is_partial:
                raise self.incomplete("; ".join(refused)[:MAX_SHOWN] or "isPartial")
            return msgspec.json.decode(response.data, type=kind), warnings
        except INVALID_JSON as error:
            raise self._foreign(status, body) from error

    def _refusal(self, status: int, response: _Response, body: bytes) -> PrometheusError:
        """An error as Prometheus sends it, or the Status of an API server in between."""
        words = response.message or excerpt(body)
        if response.error:
            words = f"{response.error_type}: {response.error[:MAX_SHOWN]}"
        kind = _error_kind(status, response.error or excerpt(body))
        # The storage failed, as while a block is being cut; the query itself is not at fault.
        is_transient = response.error_type in {"execution", "internal"} and "not found" in response.error
        kind = kind or (TransientRefusal if is_transient else QueryRefused)
        remedy = _FEWER_SAMPLES if kind is QueryTooLarge and "samples" in words else _api_server(body)
        return kind(f"{self.attempted}: HTTP {status}: {words}{remedy}")

    def _foreign(self, status: int, body: bytes) -> PrometheusError:
        """A response that is not the Prometheus API's: from a proxy in between, or from another kind of server."""
        kind = _error_kind(status, excerpt(body)) or PrometheusError
        is_failure = kind is not PrometheusError or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR
        where = "" if is_failure else ", but this is not a Prometheus API"
        remedy = ""
        if status == http.HTTPStatus.NOT_FOUND:
            remedy = "; give the base URL, such as http://prometheus:9090, with its path prefix if it has one"
        elif not is_failure and body.lstrip().startswith(b"<"):
            remedy = f"; if it is a login page, see {self.hint}"
        return kind(f"{self.attempted}: HTTP {status}{where}: {excerpt(body)}{remedy}")


def _api_server(body: bytes) -> str:
    """A hint where a Kubernetes API server replied in place of Prometheus."""
    with contextlib.suppress(*INVALID_JSON):
        if msgspec.json.decode(body, type=_Response).kind == "Status":
            return "; a Kubernetes API server replied, not Prometheus: is the URL right?"
    return ""


def _error_kind(status: int, words: str) -> type[PrometheusError] | None:
    """The error for a query that is too large or a server that is unavailable; None for others."""
    if status in _TOO_LARGE_STATUS or (status >= http.HTTPStatus.BAD_REQUEST and _TOO_LARGE.search(words)):
        return QueryTooLarge
    return PrometheusUnreachable if status in _TRANSIENT else None


def excerpt(body: bytes) -> str:
    """The beginning of a body, on one line."""
    text = body[:MAX_SHOWN].decode(errors="replace")
    return " ".join(text.split()) or "(nothing)"
