"""A server on this machine that stores series by remote write and answers PromQL."""

import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import struct
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

import cramjam

from simulator.processes import ProcessError, Server

MAX_SAMPLES = 60_000
"""Samples per request: about 1 MB before compression."""
_SAMPLE = 0x12
_DOUBLE, _VARINT = b"\x09", b"\x10"


Seconds: TypeAlias = "range | tuple[int, ...]"


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels with `__name__`, and a value for each of `seconds` (Unix time)."""

    labels: Mapping[str, str]
    seconds: Seconds
    values: Sequence[float]


def write_requests(series: Iterable[Series]) -> Iterator[bytes]:
    """Bodies of write requests that together carry `series`."""
    parts: list[bytes] = []
    samples = 0
    for one in series:
        if one.seconds:
            parts.append(_field(0x0A, _timeseries(one)))
            samples += len(one.seconds)
        if samples >= MAX_SAMPLES:
            yield _compressed(parts)
            parts, samples = [], 0
    if parts:
        yield _compressed(parts)


def _compressed(parts: list[bytes]) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"".join(parts)))


def _timeseries(series: Series) -> bytes:
    labels = b"".join(_label(name, value) for name, value in sorted(series.labels.items()))
    times, layout, head = _times(series.seconds)
    values = zip(itertools.repeat(head), series.values, times, strict=False)
    return labels + layout.pack(*itertools.chain.from_iterable(values))


@functools.lru_cache(maxsize=64)
def _label(name: str, value: str) -> bytes:
    return _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, value.encode()))


@functools.lru_cache(maxsize=64)
def _times(seconds: Seconds) -> tuple[list[bytes], struct.Struct, bytes]:
    """For each sample its timestamp field; how a whole column is packed; and what each sample begins with."""
    times = [_VARINT + _varint(second * 1000) for second in seconds]
    width = len(times[0])
    if any(len(time) != width for time in times):
        raise ValueError(f"timestamps of unequal length from {seconds[0]} to {seconds[-1]}")
    head = bytes([_SAMPLE, len(_DOUBLE) + 8 + width]) + _DOUBLE
    return times, struct.Struct("<" + f"{len(head)}sd{width}s" * len(times)), head


def _field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class SeriesStore:
    """A process with Prometheus's HTTP API, which also takes remote write."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def url(self) -> str:
        """Where its HTTP API is."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        return self._server.pid

    def start(self, *, timeout_s: float = 100.0) -> None:
        """Start it and wait until it answers."""
        self._server.start(timeout_s=timeout_s)

    def stop(self) -> None:
        """End it; its data stay."""
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def query(self, expression: str, *, at_s: float | None = None) -> list[dict[str, Any]]:
        """The result of an instant query at `at_s` (Unix seconds; now by default)."""
        return self._ask("query", {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"}))

    def query_range(self, expression: str, seconds: range) -> list[dict[str, Any]]:
        """The result of a range query at `seconds` (Unix time)."""
        span = {"start": f"{seconds[0]}", "end": f"{seconds[-1]}", "step": f"{seconds.step}"}
        return self._ask("query_range", {"query": expression, **span})

    def _ask(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        answer = json.loads(self._server.get(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")[1])
        if answer["status"] != "success":
            raise ProcessError(f"asking {self.url} for {parameters['query']}: {answer.get('error')}")
        return answer["data"]["result"]  # type: ignore[no-any-return]

    def write(self, series: Iterable[Series]) -> int:
        """Store `series` beside what is scraped; how many samples that were."""
        total = 0

        def counted() -> Iterable[Series]:
            nonlocal total
            for one in series:
                total += len(one.seconds)
                yield one

        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        ) as connection:
            for body in write_requests(counted()):
                self._post(connection, body)
        return total

    def wait_for(self, expression: str, *, timeout_s: float = 100.0) -> list[dict[str, Any]]:
        """The result of `expression` as soon as there is one."""
        deadline = time.monotonic() + timeout_s
        while not (result := self.query(expression)):
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.url} has no result for {expression} within {timeout_s:g} s")
            time.sleep(0.1)
        return result

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> None:
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        connection.request("POST", "/api/v1/write", body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ProcessError(f"writing history to {self.url}: {answer.status} {text}")
