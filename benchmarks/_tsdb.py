"""Blocks of Prometheus's own storage, written as files: millions of samples a second, where it would take in thousands.

Series that have the same values can share the chunks that hold them, which Prometheus does not do itself: what it reads
is smaller on disk, and as much to decode. Knows nothing of what the series mean.
Formats: https://github.com/prometheus/prometheus/tree/v2.42.0/tsdb/docs/format
"""

import array
import dataclasses
import itertools
import json
import operator
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks._crc32c import crc32c

Labels = tuple[tuple[str, str], ...]
"""Names and values, by name."""

CHUNK = 120
"""Samples that Prometheus puts into one."""
_SEGMENT = 512 << 20
"""Bytes that Prometheus puts into one file."""
_ALIGNED = 16
_LOW_BITS = 0x7F
_ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """Values at regular instants, in Unix seconds."""

    seconds: range
    values: Sequence[float]


class _Chunk(NamedTuple):
    """A stored chunk: its first and last instants in milliseconds, and its bytes."""

    first_ms: int
    last_ms: int
    data: bytes


class Block:
    """A block that is being written.

    Args:
        data: Prometheus's folder.
        number: What makes its name differ from other blocks'.
        shares_chunks: Whether series of one column share its chunks.
    """

    def __init__(self, data: Path, number: int, *, shares_chunks: bool) -> None:
        self._ulid = "".join(_ULID_DIGITS[number >> 5 * place & 31] for place in reversed(range(26)))
        self._folder = data / self._ulid
        self._shares_chunks = shares_chunks
        self._columns: dict[int, tuple[Column, list[_Chunk]]] = {}
        self._references: dict[int, bytes] = {}
        self._first_ms, self._last_ms = sys.maxsize, 0
        self.samples = self.series = 0

    def write(self, series: Iterable[tuple[Labels, Column]]) -> None:
        """Write all series, which may come in any order."""
        with _Segments(self._folder / "chunks") as segments:
            ordered = sorted(series, key=operator.itemgetter(0))
            rows = [(labels, self._stored(column, segments)) for labels, column in ordered]
        with (self._folder / "index").open("wb") as out:
            index = _Index(out.write)
            index.write(rows)
        self.series = len(rows)
        meta = {
            "ulid": self._ulid,
            "minTime": self._first_ms,
            "maxTime": self._last_ms + 1,
            "stats": {"numSamples": self.samples, "numSeries": self.series, "numChunks": self.series},
            "compaction": {"level": 1, "sources": [self._ulid]},
            "version": 1,
        }
        (self._folder / "meta.json").write_text(json.dumps(meta))

    def _stored(self, column: Column, segments: "_Segments") -> bytes:
        """Where a column's chunks are, as a series has it."""
        self.samples += len(column.seconds)
        if id(column) not in self._columns:  # which keeps the column, or another may come to have its id
            self._columns[id(column)] = column, list(_chunks(column))
        chunks = self._columns[id(column)][1]
        if self._shares_chunks and id(column) in self._references:
            return self._references[id(column)]
        self._first_ms = min(self._first_ms, chunks[0].first_ms)
        self._last_ms = max(self._last_ms, chunks[-1].last_ms)
        out = bytearray(_uvarint(len(chunks)))
        last_ms = last_ref = 0
        for place, (first_ms, chunk_end_ms, data) in enumerate(chunks):
            ref = segments.put(data)
            if place:
                out += _uvarint(first_ms - last_ms) + _uvarint(chunk_end_ms - first_ms)
                out += _varint(ref - last_ref)
            else:
                out += _varint(first_ms) + _uvarint(chunk_end_ms - first_ms) + _uvarint(ref)
            last_ms, last_ref = chunk_end_ms, ref
        known = self._references[id(column)] = bytes(out)
        return known


class _Segments:
    """The files that hold chunks."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._number = -1
        self._next()

    def _next(self) -> None:
        self._number += 1
        self._file = (self._folder / f"{self._number + 1:06}").open("wb")
        self._place = self._file.write(b"\x85\xbd\x40\xdd\x01\0\0\0")

    def put(self, data: bytes) -> int:
        """Write a chunk; its reference."""
        if self._place + len(data) > _SEGMENT:
            self._file.close()
            self._next()
        place = self._place
        self._place += self._file.write(data)
        return self._number << 32 | place

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _chunks(column: Column) -> Iterator[_Chunk]:
    for begin in range(0, len(column.seconds), CHUNK):
        seconds, values = column.seconds[begin : begin + CHUNK], column.values[begin : begin + CHUNK]
        body = b"\x01" + _gorilla(seconds, values)
        yield _Chunk(seconds[0] * 1000, seconds[-1] * 1000, _uvarint(len(body) - 1) + body + crc32c(body))


def _gorilla(seconds: range, values: Sequence[float]) -> bytes:
    """A chunk's samples: XOR encoding, at instants of one distance."""
    bits: list[str] = []
    previous = struct.unpack(">Q", struct.pack(">d", values[0]))[0]
    head = struct.pack(">H", len(seconds)) + _varint(seconds[0] * 1000) + struct.pack(">Q", previous)
    leading = trailing = -1
    for place, value in enumerate(values[1:], start=1):
        bits.append(
            "".join(f"{byte:08b}" for byte in _uvarint((seconds[1] - seconds[0]) * 1000))
            if place == 1
            else "0"
        )
        current = struct.unpack(">Q", struct.pack(">d", value))[0]
        differs, previous = current ^ previous, current
        if not differs:
            bits.append("0")
            continue
        new_leading = min(64 - differs.bit_length(), 31)
        new_trailing = (differs & -differs).bit_length() - 1
        if leading >= 0 and new_leading >= leading and new_trailing >= trailing:
            bits.append("10")
        else:
            leading, trailing = new_leading, new_trailing
            bits.append(f"11{leading:05b}{(64 - leading - trailing) & 63:06b}")
        width = 64 - leading - trailing
        bits.append(f"{differs >> trailing:0{width}b}")
    text = "".join(bits)
    text += "0" * (-len(text) % 8)
    return head + (int(text, 2).to_bytes(len(text) // 8, "big") if text else b"")


class _Index:
    """A block's index, written from its beginning to its end."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write_bytes = write
        self._place = 0

    def write(self, rows: Sequence[tuple[Labels, bytes]]) -> None:
        self._put(b"\xba\xaa\xd7\x00\x02")
        symbols = sorted({text for labels, _ in rows for text in itertools.chain.from_iterable(labels)})
        symbols_at = self._section(len(symbols), (_text(symbol) for symbol in symbols))
        self._pad(_ALIGNED)
        series_at = self._place
        postings = self._series(rows, {symbol: _uvarint(place) for place, symbol in enumerate(symbols)})
        self._pad(4)
        postings_at = self._place
        offsets = []
        for pair, references in sorted(postings.items()):
            offsets.append(b"\x02" + _text(pair[0]) + _text(pair[1]) + _uvarint(self._place))
            references.byteswap()
            self._section(len(references), (references.tobytes(),))
        table_at = self._section(len(offsets), offsets)
        # The tables of label names are for readers of older formats: empty here.
        toc = struct.pack(">6Q", symbols_at, series_at, postings_at, postings_at, postings_at, table_at)
        self._put(toc + crc32c(toc))

    def _series(
        self, rows: Sequence[tuple[Labels, bytes]], numbers: Mapping[str, bytes]
    ) -> "dict[tuple[str, str], array.array[int]]":
        everything = array.array("I")
        postings: dict[tuple[str, str], array.array[int]] = {("", ""): everything}
        for labels, chunks in rows:
            self._pad(_ALIGNED)
            reference = self._place // _ALIGNED
            everything.append(reference)
            parts = [_uvarint(len(labels))]
            for pair in labels:
                parts += (numbers[pair[0]], numbers[pair[1]])
                found = postings.get(pair)
                if found is None:
                    found = postings[pair] = array.array("I")
                found.append(reference)
            body = b"".join((*parts, chunks))
            self._put(_uvarint(len(body)) + body + crc32c(body))
        return postings

    def _section(self, count: int, parts: Iterable[bytes]) -> int:
        """A section with its length and checksum; where it begins."""
        place = self._place
        body = struct.pack(">I", count) + b"".join(parts)
        self._put(struct.pack(">I", len(body)) + body + crc32c(body))
        return place

    def _pad(self, size: int) -> None:
        self._put(bytes(-self._place % size))

    def _put(self, data: bytes) -> None:
        self._write_bytes(data)
        self._place += len(data)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _uvarint(len(encoded)) + encoded


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > _LOW_BITS:
        out.append(value & _LOW_BITS | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    return _uvarint(value << 1 if value >= 0 else (-value << 1) - 1)
