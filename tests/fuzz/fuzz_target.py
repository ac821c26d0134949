"""What is fuzzed: a parser, the errors that it documents, and the bounds within which it must end."""

import ast
import contextlib
import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterator

LARGEST = 64 << 10
"""Bytes of an input."""
YAML_S = 5.0
"""CPU time for LARGEST bytes of YAML: PyYAML reads some 50 KB in a second."""
CORPUS = pathlib.Path(__file__).parent / "corpus"
_PART = re.compile(rb"[^\n]*\n|[^\n]+")
_WORD = re.compile(rb"\w+")
_TOKEN = re.compile(rb"[A-Za-z0-9_./:-]{2,60}")


class TooSlowError(Exception):
    """An input took longer than a target allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class FuzzTarget:
    """A parser of bytes.

    Attributes:
        name: As `make fuzz TARGET=` takes it, and the name of its corpus.
        parse: Gives it an input.
        refusals: The errors that it documents; every other one is a find.
        longest_s: CPU time for one input: on a busy machine the time of the wall says little.
    """

    name: str
    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    longest_s: float = 1.0

    def run(self, data: bytes) -> None:
        """Parse an input.

        Raises:
            Exception: It is not refused as documented.
            TooSlowError: It takes too long.
        """
        began = time.process_time()
        with contextlib.suppress(*self.refusals):
            self.parse(data)
        took_s = time.process_time() - began
        if took_s > self.longest_s:
            raise TooSlowError(f"{took_s:.1f} s for {len(data)} bytes")

    def corpus(self) -> list[bytes]:
        """The inputs in its corpus: one Python literal a line, after comments."""
        lines = (CORPUS / f"{self.name}.txt").read_text().splitlines()
        return [ast.literal_eval(line) for line in lines if line.startswith("b")]

    def dictionary(self) -> list[bytes]:
        """Words that a mutation may insert."""
        words = {word for data in self.corpus() for word in _TOKEN.findall(data)}
        return sorted(words | _NASTY)


_NASTY = frozenset(
    {
        *(b"null", b"true", b"[]", b"{}", b"NaN", b"1e999", b"-1", b"9" * 40, b"\\ud800", b"\\u0000"),
        *(
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\xe2\x80\xa8",
            b'"',
            b"\\",
            b"../..",
            b"&a",
            b"*a",
            b"!!int ",
            b"<<: ",
        ),
        *(b"9999-12-31T23:59:59-14:00", b"0001-01-01T00:00:00+14:00"),
    }
)


def stretched(data: bytes) -> Iterator[bytes]:
    """Large inputs made from a small one: what is slow or deep in proportion to its size shows in them alone."""
    if not data:
        return
    yield data * (LARGEST // len(data))
    for part in dict.fromkeys(_PART.findall(data)):
        before, _, after = data.partition(part)
        many = max((LARGEST - len(data)) // (len(part) + 4), 1)
        yield before + part * many + after
        yield before + b"".join(_WORD.sub(rb"\g<0>%d" % number, part, 1) for number in range(many)) + after
    middle = len(data) // 2
    for filler in _FILLERS:
        for place in (0, middle, len(data)):
            yield data[:place] + filler * ((LARGEST - len(data)) // len(filler)) + data[place:]


_FILLERS = (b"[", b'{"a":', b" ", b"9", b'"', b'\\"', b"a", b",", b"- ", b"\n", b"\x00", b"\x0a\x01")


_SCRATCH: list[int] = []


def as_file(data: bytes) -> pathlib.Path:
    """A file in memory with this content, until the next call."""
    if not _SCRATCH:
        _SCRATCH.append(os.memfd_create("fuzz"))
    os.truncate(_SCRATCH[0], 0)
    os.pwrite(_SCRATCH[0], data, 0)
    return pathlib.Path(f"/proc/self/fd/{_SCRATCH[0]}")
