"""Colour where it is seen, and lines of 80 columns: what all texts for a terminal have in common. Pure."""

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence

from rightsizer.model import Result, Verdict
from rightsizer.text import safe

WIDTH = 80
INDENT = " " * 11

_COLOURS = {
    Verdict.ACT: "\x1b[33m",
    Verdict.KEEP: "\x1b[32m",
    Verdict.PROTECTED: "\x1b[34m",
    Verdict.UNKNOWN: "\x1b[35m",
}
_RESULT_COLOURS = {
    Result.DONE: "\x1b[32m",
    Result.CHANGED: "\x1b[32m",
    Result.NO_EFFECT: "\x1b[31m",
    Result.REFUSED: "\x1b[31m",
    Result.UNTRUSTED: "\x1b[31m",
    Result.UNKNOWN: "\x1b[31m",
}
_STATUS_COLOURS = {"ok": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "unknown": "\x1b[35m"}
_BETWEEN_FIELDS = re.compile(r"(?=[.\[])(?![^\[\]]*\])")
_DIM = "\x1b[2m"
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"


def wrapped(text: str, indent: str = INDENT, width: int = WIDTH) -> list[str]:
    """Indented lines; a number and its unit stay together (textwrap breaks at ASCII blanks only)."""
    joined = re.sub(r"(?<=\d) (?=[A-Za-z])", "\u00a0", safe(text))
    wrapper = _PathWrapper(width, initial_indent=indent, subsequent_indent=indent + "  ")
    return [line.replace("\u00a0", " ") for line in wrapper.wrap(joined)]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Heads and rows: the first cell of each names, the others are figures. Rows beyond them, `more`, are left out."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: int = 0


def table_lines(table: Table, widths: Sequence[int], indent: str = "") -> Iterator[str]:
    """Lines of a table; a first cell that is too long has lines of its own."""
    first, *others = widths
    for name, *cells in ([head.upper() for head in table.head], *table.rows):
        shown = safe(name)
        if len(shown) > first:
            yield from wrapped(shown, indent)
            shown = ""
        aligned = (f" {cell:>{width}}" for cell, width in zip(cells, others, strict=True))
        yield f"{indent}{shown:<{first}}{''.join(aligned)}".rstrip()
    if table.more:
        yield f"{indent}and {table.more} more"


class _PathWrapper(textwrap.TextWrapper):
    """Breaks a path of fields that is longer than a line between two of them, not within a name."""

    def _split(self, text: str) -> list[str]:
        room = self.width - len(self.subsequent_indent)
        return [
            part
            for chunk in super()._split(text)
            for part in (re.split(_BETWEEN_FIELDS, chunk) if len(chunk) > room else [chunk])
            if part
        ]


class Paint:
    """Colours, or none, and the width of the lines."""

    def __init__(self, *, colour: bool, width: int = WIDTH) -> None:
        self._colour = colour
        self.width = width

    def verdict(self, verdict: Verdict, text: str) -> str:
        """Text in the verdict's colour."""
        return self._in(_COLOURS[verdict], text)

    def result(self, result: Result, text: str) -> str:
        """Text in the result's colour."""
        return self._in(_RESULT_COLOURS.get(result, ""), text)

    def status(self, status: str, text: str) -> str:
        """Text in the colour of a diagnosis's status."""
        return self._in(_STATUS_COLOURS.get(status, ""), text)

    def bold(self, text: str) -> str:
        """A heading."""
        return self._in(_BOLD, text)

    def dim(self, text: str) -> str:
        """Text of second rank."""
        return self._in(_DIM, text)

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{_PLAIN}" if self._colour and code else text
