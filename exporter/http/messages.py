"""Requests and replies of HTTP. Pure. The parser is strict, because no scraper needs unusual syntax."""

import dataclasses
import math
import re
from collections.abc import Mapping
from http import HTTPStatus

from exporter.errors import RequestError

MAX_HEAD = 16 * 1024  # bytes; Prometheus sends about 400, and an OAuth proxy's cookies up to 8 KiB
_MAX_LINE = 8 * 1024  # bytes, of the request line
_MAX_FIELDS = 64
_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/(\d)\.(\d)")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00\r\n]*?)[ \t]*")
_TARGET = re.compile(r"(?:[Hh][Tt][Tt][Pp][Ss]?://[^/?#]*)?([^?#]*)")
_MAX_TIMEOUT_S = 3600.0
_LEAD_S = 0.5  # for the answer to arrive; less for short timeouts
_LEAD_SHARE = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A request; header names are in lower case, and repeated headers are joined by commas."""

    method: str
    path: str
    headers: Mapping[str, str]

    def header(self, name: str) -> str:
        """A header; empty if absent."""
        return self.headers.get(name.lower(), "")

    @property
    def has_body(self) -> bool:
        """Whether a body follows, which is never read."""
        return self.header("Content-Length") not in {"", "0"} or bool(self.header("Transfer-Encoding"))

    @property
    def timeout_s(self) -> float:
        """Prometheus's scrape timeout minus time for the transfer, in seconds; infinite without one."""
        try:
            timeout = float(self.header("X-Prometheus-Scrape-Timeout-Seconds"))
        except ValueError:
            return math.inf
        if not 0 < timeout <= _MAX_TIMEOUT_S:
            return math.inf
        return timeout - min(_LEAD_S, timeout * _LEAD_SHARE)


def parse(head: bytes) -> Request:
    """Parse a head that ends in an empty line."""
    first, *rest = head.decode("latin-1").rstrip("\r\n").replace("\r\n", "\n").split("\n")
    if len(first) > _MAX_LINE:
        raise RequestError(HTTPStatus.REQUEST_URI_TOO_LONG, "the request line is too long")
    line = _LINE.fullmatch(first)
    if line is None:
        raise RequestError(HTTPStatus.BAD_REQUEST, "not an HTTP request")
    if line[3] != "1":
        raise RequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 and HTTP/1.0")
    if len(rest) > _MAX_FIELDS:
        raise RequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header lines")
    headers: dict[str, str] = {}
    for text in rest:
        field = _FIELD.fullmatch(text)
        if field is None:
            raise RequestError(HTTPStatus.BAD_REQUEST, "a header line without a name")
        name = field[1].lower()
        headers[name] = f"{headers[name]}, {field[2]}" if name in headers else field[2]
    target = _TARGET.match(line[2])
    return Request(line[1], (target and target[1]) or "/", headers)


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The response to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def text_reply(status: HTTPStatus, message: str, **headers: str) -> Reply:
    """A reply of one line; underscores in header names become hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, "text/plain; charset=utf-8", f"{message}\n".encode(), named)


def busy(message: str) -> Reply:
    """A reply that asks the client to retry."""
    return text_reply(HTTPStatus.SERVICE_UNAVAILABLE, message, Retry_After="1")
