"""Measures the prose of README.md and docs/: sentence lengths, table cells, total words, retired words.

`make check` runs it on all pages; `python -m scripts.prose docs/policy.md` on some of them.
"""

import argparse
import dataclasses
import re
import statistics
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
MEAN, USUAL, LONGEST = 16, 26, 40
"""Words of a sentence: mean at most, 90 % at most, none over."""
CELL = 160
TOTAL = 38_800
_END = re.compile(r"(?<=[.!?])[)\"”]?\s+(?=[\"“(]?[A-Z0-9])")
_ABBREVIATION = re.compile(r"\b(?:e\.g|i\.e|etc|vs|approx|No)\.$")
_BETWEEN = r"(?:[\s>#|]+|\s*[\"']\s+f?[\"']\s*)"  # what may stand between two words of a phrase
_CODE = "Code"  # inline code counts as one word, and can begin a sentence


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, list item, heading or table cell.

    Attributes:
        words: Its text, with inline code replaced by one word.
        shown: Its text as a reader sees it.
    """

    line: int
    kind: str
    words: str
    shown: str


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """What was measured on one page."""

    path: Path
    sentences: Sequence[int]
    words: int
    problems: Sequence[str]


def texts(source: str) -> Iterator[Text]:
    """Every text of a Markdown page outside of code blocks."""
    line, kind = 0, "p"
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        if token.map:
            line = token.map[0] + 1
        if token.type in {"paragraph_open", "heading_open", "td_open", "th_open"}:
            kind = token.tag
        elif token.type == "inline":
            parts = token.children or []
            yield Text(line, kind, _plain(parts, code=_CODE), _plain(parts))


def _plain(parts: Sequence[Token], code: str | None = None) -> str:
    def one(part: Token) -> str:
        match part.type:
            case "code_inline":
                return part.content if code is None else code
            case "softbreak" | "hardbreak":
                return " "
            case "text" | "text_special":
                return part.content
            case _:
                return ""

    return "".join(map(one, parts))


def sentences(text: str) -> Iterator[str]:
    """A text's sentences; a full stop inside an abbreviation ends none."""
    begun = ""
    for part in _END.split(text):
        begun = f"{begun} {part}".strip()
        if not _ABBREVIATION.search(begun):
            yield begun
            begun = ""
    if begun:
        yield begun


def count(text: str) -> int:
    """Words: whatever has a letter or digit, so no rules and bars of tables."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def retired() -> dict[str, str]:
    """Patterns of words and phrases that are no longer used, with what replaces each."""
    table: dict[str, str] = tomllib.loads((ROOT / "scripts" / "retired.toml").read_text())["instead"]
    return table


def found_retired(source: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and replacement of each retired word in a text; a phrase may be broken over lines or strings."""
    for pattern, instead in retired().items():
        for found in re.finditer(pattern.replace(" ", _BETWEEN), source, re.IGNORECASE):
            yield source.count("\n", 0, found.start()) + 1, " ".join(found[0].split()), instead


def measured(path: Path) -> Page:
    """Measure one page."""
    source = path.read_text()
    name = _name(path)
    lengths: list[int] = []
    problems: list[tuple[int, str]] = []
    for text in texts(source):
        for sentence in sentences(text.words):
            words = count(sentence)
            if text.kind == "p" and words:
                lengths.append(words)
            if words > LONGEST:
                problems.append((text.line, f"{words} words: {sentence[:90]}..."))
        if text.kind in {"td", "th"} and len(text.shown) > CELL:
            problems.append((text.line, f"cell of {len(text.shown)} characters: {text.shown[:90]}..."))
    problems += [(line, f'"{phrase}": {instead}') for line, phrase, instead in found_retired(source)]
    told = [f"{name}:{line}: {problem}" for line, problem in sorted(problems)]
    return Page(path, lengths, count(source), told)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def shortcomings(pages: Sequence[Page]) -> Iterator[str]:
    """What is above the limits."""
    for page in pages:
        yield from page.problems
    lengths = [length for page in pages for length in page.sentences]
    if lengths and statistics.fmean(lengths) > MEAN:
        yield f"sentences have {statistics.fmean(lengths):.1f} words on average; at most {MEAN} are allowed"
    if lengths and _usual(lengths) > USUAL:
        yield f"one sentence in ten has more than {_usual(lengths) - 1} words; at most {USUAL} are allowed"
    if (words := sum(page.words for page in pages)) > TOTAL:
        yield f"the pages have {words:,} words; at most {TOTAL:,} are allowed"


def _usual(lengths: Sequence[int]) -> int:
    """The length that 90 % of sentences do not exceed."""
    return sorted(lengths)[-(-len(lengths) * 9 // 10) - 1]


def _summary(name: str, pages: Sequence[Page]) -> str:
    lengths = [length for page in pages for length in page.sentences] or [0]
    return (
        f"{sum(page.words for page in pages):7,} words, {len(lengths):5,} sentences: mean "
        f"{statistics.fmean(lengths):4.1f}, 90 % <= {_usual(lengths):2}, longest {max(lengths):3}  {name}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure pages; 1 if any limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m scripts.prose", description=__doc__.split("\n")[0])
    parser.add_argument("page", nargs="*", type=Path, help="pages to measure (default: README.md and docs/)")
    parser.add_argument("--long", type=int, metavar="N", help="also list sentences of more than N words")
    given = parser.parse_args(arguments)
    paths = [path.resolve() for path in given.page] or [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
    ]
    pages = [measured(path) for path in paths]
    out = list(shortcomings(pages))
    if given.long:
        out += [line for path in paths for line in _longer(path, given.long)]
    out += [_summary(_name(page.path), [page]) for page in pages if out]
    sys.stdout.write("\n".join([*out, _summary("all", pages)]) + "\n")
    return int(any(shortcomings(pages)))


def _longer(path: Path, limit: int) -> Iterator[str]:
    for text in texts(path.read_text()):
        for sentence in sentences(text.words):
            if limit < count(sentence) <= LONGEST:
                yield f"{_name(path)}:{text.line}: {count(sentence)} words: {sentence}"


if __name__ == "__main__":
    sys.exit(main())
