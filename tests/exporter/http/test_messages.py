"""Parsing of request heads."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.errors import RequestError
from exporter.http.messages import parse


@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nA: b\r\n"]))
def test_request_of_any_bytes_is_parsed_or_refused(noise: bytes, before: bytes) -> None:
    """Any bytes are a request or are refused."""
    with contextlib.suppress(RequestError):
        assert parse(before + noise + b"\r\n\r\n").path.isprintable()


def test_request_headers_are_case_insensitive_and_joined() -> None:
    """Header names are case-insensitive; a repeated header has both values."""
    request = parse(b"GET /a?b HTTP/1.1\r\nACCEPT:text/plain\r\naccept:  */* \r\nX: \xff\r\n\r\n")
    assert (request.method, request.path, request.has_body) == ("GET", "/a", False)
    assert request.header("Accept") == "text/plain, */*"
    assert request.header("Nothing") == ""


@pytest.mark.parametrize(
    ("timeout", "timeout_s"),
    [
        ("10", 9.5), ("1", 0.9), ("0.1", 0.09), ("", math.inf), ("0", math.inf), ("-5", math.inf), ("nan", math.inf),
        ("inf", math.inf), ("1e9", math.inf), ("ten", math.inf),
    ],
)  # fmt: skip
def test_request_timeout_leaves_time_for_the_transfer(timeout: str, timeout_s: float) -> None:
    """Half a second, or a tenth of a short timeout, is reserved for the transfer; an invalid timeout is ignored."""
    head = f"GET / HTTP/1.1\r\nX-Prometheus-Scrape-Timeout-Seconds: {timeout}\r\n\r\n"
    assert parse(head.encode()).timeout_s == pytest.approx(timeout_s)
