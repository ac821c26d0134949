"""What a server's answer to a query means: data that is whole, or an error that says what to do. Pure.

Prometheus, Thanos, Mimir, Cortex and VictoriaMetrics refuse in different words and under different HTTP statuses; the
table of what a smaller question would get past is here.
"""

import dataclasses
import http
import re
from typing import Any, TypeVar

import msgspec

from rightsizer.errors import (
    EvidenceIncomplete,
    PrometheusError,
    PrometheusUnreachable,
    QueryRefused,
    QueryTooLarge,
)

MAX_SHOWN = 300
"""How much of a server's words goes into a message, in characters."""

_NOT_ALLOWED = frozenset({401, 403})
_PASSING = frozenset({429, 502, 503})
_TOO_LARGE_STATUS = frozenset({413, 414, 431, 504})
"""Body, URL or headers too large; and a gateway that stopped waiting."""

_TOO_LARGE_WORDS = (
    # Prometheus, promql/engine.go, as all that embed its engine say it; in the queue is no matter of size.
    r"would load too many samples",
    r"query timed out in (?!query queue)",
    r"context deadline exceeded",
    # Thanos, pkg/store/limiter.go; Mimir, pkg/storegateway/limiter.go.
    r"exceeded (series|chunks|samples|bytes) limit",
    r"limit \S+ violated",
    # Mimir, pkg/util/globalerror/user.go; what limits the span of time is not among them.
    r"err-mimir-max-(series|chunks|chunks-bytes|estimated-chunks|estimated-memory-consumption)-per-query",
    r"err-mimir-max-query-expression-size-bytes",
    # Cortex, pkg/util/limiter/query_limiter.go; Amazon's service is built on it.
    r"the query hit the (max number of (series|chunks) limit|aggregated (chunks|data) size limit)",
    # gRPC, between the parts of all of them.
    r"message larger than max",
    # VictoriaMetrics, app/vmselect and lib/storage.
    r"-search\.max(SamplesPerQuery|UniqueTimeseries|QueryLen|ResponseSeries|QueryDuration|MemoryPerQuery)\b",
    r"matching (unique )?timeseries exceeds",
    r"not enough memory for processing",
    r"timeout exceeded",
)
_TOO_LARGE = re.compile("|".join(_TOO_LARGE_WORDS), re.IGNORECASE)

_INFO = "PromQL info: "
"""Remarks on a query, which Prometheus 2.48 to 2.55 and Thanos put among the warnings (thanos#7354)."""

T = TypeVar("T")


class ResponseData(msgspec.Struct, rename="camel"):
    """The part of a whole answer that holds the result, which is still to be decoded."""

    result_type: str
    result: msgspec.Raw


class _Answer(msgspec.Struct, rename="camel"):
    status: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    error_type: str = ""
    message: str = ""  # of an API server's Status
    warnings: list[str] = []
    is_partial: bool = False


class TransientRefusal(QueryRefused):
    """A refusal that another try may not meet."""


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseReader:
    """Reads the answers of one server.

    Attributes:
        attempted: What messages begin with.
        hint: What to look at where it says "not allowed".
    """

    attempted: str
    hint: str

    def read(self, status: int, body: bytes) -> ResponseData:
        """The data of a whole answer to a query.

        Raises:
            PrometheusError: It is an error, or not whole.
        """
        return self._decode(status, body, ResponseData)

    def page(self, status: int, body: bytes) -> dict[str, Any]:
        """The data of a whole answer about the server itself.

        Raises:
            PrometheusError: It is an error.
        """
        return self._decode(status, body, dict[str, Any])

    def _decode(self, status: int, body: bytes, kind: type[T]) -> T:
        data = self._whole(status, body)
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise self._foreign(status, body) from error

    def _whole(self, status: int, body: bytes) -> msgspec.Raw:
        if status in _NOT_ALLOWED:
            raise PrometheusError(f"{self.attempted}: HTTP {status}: not allowed; see {self.hint}")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except msgspec.DecodeError as error:
            raise self._foreign(status, body) from error
        if answer.status != "success" or len(memoryview(answer.data)) <= len(b"null"):
            raise self._refusal(status, answer, body)
        warnings = [words for words in answer.warnings if not words.startswith(_INFO)]
        if warnings or answer.is_partial:
            words = "; ".join(warnings)[:MAX_SHOWN] or "isPartial"
            raise EvidenceIncomplete(
                f"{self.attempted}: the answer may be incomplete, so it is not used: {words}"
            )
        return answer.data

    def _refusal(self, status: int, answer: _Answer, body: bytes) -> PrometheusError:
        """An error as Prometheus tells it, or the Status of an API server that stands in between."""
        words = f"{self.attempted}: HTTP {status}: "
        words += (
            f"{answer.error_type}: {answer.error[:MAX_SHOWN]}"
            if answer.error
            else answer.message or shown(body)
        )
        if _is_too_large(status, answer.error or shown(body)):
            return QueryTooLarge(words)
        if status in _PASSING:
            return PrometheusUnreachable(words)
        return (TransientRefusal if _may_pass(answer) else QueryRefused)(words)

    def _foreign(self, status: int, body: bytes) -> PrometheusError:
        """An answer that is none of Prometheus's: a proxy's in between, or of something else altogether."""
        if _is_too_large(status, shown(body)):
            return QueryTooLarge(f"{self.attempted}: HTTP {status}: {shown(body)}")
        if status in _PASSING:
            return PrometheusUnreachable(f"{self.attempted}: HTTP {status}: {shown(body)}")
        if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
            # Whoever fails does not always say so in its own way.
            return PrometheusError(f"{self.attempted}: HTTP {status}: {shown(body)}")
        return PrometheusError(
            f"{self.attempted}: HTTP {status}, but no Prometheus answers there: {shown(body)}"
        )


def _is_too_large(status: int, words: str) -> bool:
    return status in _TOO_LARGE_STATUS or (status >= 400 and _TOO_LARGE.search(words) is not None)  # noqa: PLR2004


def _may_pass(answer: _Answer) -> bool:
    """Whether the storage stumbled, as while a block is being cut, rather than the query asking too much."""
    return answer.error_type in {"execution", "internal"} and "not found" in answer.error


def shown(body: bytes) -> str:
    """The beginning of a body, on one line."""
    text = body[:MAX_SHOWN].decode(errors="replace")
    return " ".join(text.split()) or "(nothing)"
