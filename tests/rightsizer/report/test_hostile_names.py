"""Names from a cluster that is not ours: none becomes markup, a link, a formula or a command."""

import base64
import collections
import csv
import functools
import hashlib
import io
import re

import pytest
from markdown_it import MarkdownIt

from rightsizer.report import form
from rightsizer.text import safe
from tests.rightsizer.hostile import ATTRIBUTES, EVERYTHING, FORMULAS, MARKDOWN, XSS
from tests.rightsizer.markup import contents, elements, skeleton
from tests.rightsizer.reported import accounted, full_plan, named_plan

HARMLESS = "x"
ADDRESSES = {"href", "src", "action", "formaction", "data", "xlink:href", "style"}
ADDRESSES |= {"srcdoc", "background", "poster"}
LOADS = {"link", "img", "iframe", "object", "embed", "base", "a", "form"}


@functools.cache
def _printed(name: str, word: str) -> str:
    return form(name)(*accounted(named_plan(word)))


def test_hostile_corpus_has_over_100_unique_names() -> None:
    """More than a hundred attempts, none twice."""
    assert len(set(XSS)) == len(XSS) > 100


@pytest.mark.parametrize("word", [*XSS, *ATTRIBUTES, *MARKDOWN], ids=repr)
def test_html_report_hostile_names_are_escaped(word: str) -> None:
    """A real parser sees the same elements as with a harmless name, and the name as text."""
    page = _printed("html", word)
    assert skeleton(page) == skeleton(_printed("html", HARMLESS))
    assert safe(f"{word}/{word}") in contents(page, "b")


def test_html_report_loads_no_external_content() -> None:
    """No address, no handler, no inline style; the policy names its style and script by their hashes, and only them."""
    page = form("html")(*accounted(full_plan()))
    found = elements(page)
    used = {name for _, attributes in found for name in attributes}
    assert used & ADDRESSES == set()
    assert [name for name in used if name.startswith("on")] == []
    assert {tag for tag, _ in found} & LOADS == set()
    [policy] = [
        attributes["content"]
        for _, attributes in found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules["default-src"] == ["'none'"]
    for tag in ("style", "script"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == [f"'sha256-{digest}'"]


@pytest.mark.parametrize("word", FORMULAS, ids=repr)
def test_csv_report_hostile_names_are_not_formulas(word: str) -> None:
    """A cell that would be one begins with an apostrophe, and every name stays in its own cell."""
    rows = list(csv.DictReader(io.StringIO(_printed("csv", word), newline="")))
    assert len(rows) == 1
    cells = {key: cell for key, cell in rows[0].items() if key != "frees"}
    assert [cell for cell in cells.values() if cell.startswith(tuple("=+-@\t\r\uff1d"))] == []
    assert cells["name"].removeprefix("'") == safe(word)


@pytest.mark.parametrize("word", EVERYTHING, ids=repr)
def test_markdown_report_hostile_names_add_no_markup(word: str) -> None:
    """A real parser sees the same blocks, rows and cells, and neither HTML, links, images nor emphasis."""
    assert _tokens(_printed("markdown", word)) == _tokens(_printed("markdown", HARMLESS))


_TEXT = {"text", "text_special", "code_inline"}


def _tokens(text: str) -> collections.Counter[str]:
    """How often each kind of token stands there; a name may stand between backticks or as text."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    kinds = collections.Counter[str]()
    for block in parser.parse(text):
        kinds[block.type] += 1
        kinds.update(inline.type for inline in block.children or () if inline.type not in _TEXT)
    return kinds


@pytest.mark.parametrize("word", MARKDOWN, ids=repr)
def test_markdown_report_escaped_names_render_unchanged(word: str) -> None:
    """What the escapes stand for is what is read."""
    parser = MarkdownIt("commonmark").enable("table")
    inline = [child for block in parser.parse(_printed("markdown", word)) for child in block.children or ()]
    told = "".join(child.content for child in inline)
    assert safe(f"{word}/{word}/{word}") in told
