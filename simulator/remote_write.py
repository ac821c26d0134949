"""Prometheus remote write 1.0, encoded by hand: labelled columns of samples to compressed protobuf.

Knows neither Prometheus's address nor what the series mean. Fast because the samples of one request share their
timestamps, whose bytes are worked out once, and a series is then a single `struct.pack`.
"""

import dataclasses
import functools
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import cramjam

MAX_SAMPLES = 60_000
"""Samples per request: about 1 MB before compression."""
_SAMPLE = 0x12
_DOUBLE, _VARINT = b"\x09", b"\x10"


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels with `__name__`, and a value for each of `seconds` (Unix time)."""

    labels: Mapping[str, str]
    seconds: range
    values: Sequence[float]


def requests(series: Iterable[Series]) -> Iterator[bytes]:
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
def _times(seconds: range) -> tuple[list[bytes], struct.Struct, bytes]:
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
