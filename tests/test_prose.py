"""`make check` measures prose: what it counts, and what it refuses."""

from pathlib import Path

import pytest

from scripts import prose

LONG = "This sentence has " + "many " * 40 + "words."


def problems(tmp_path: Path, text: str) -> list[str]:
    """What is wrong with a page, each problem without the page's path."""
    page = tmp_path / "page.md"
    page.write_text(text)
    return [one.removeprefix(f"{page}:") for one in prose.shortcomings([prose.measured(page)])]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("One `a b c` two [three four](https://example.com/five).", [5]),
        ("Short. It is e.g. Prometheus. Done!", [1, 4, 1]),
        ("- one two\n- three: four\n\n## A heading of five words\n", [2, 2]),
        ("```\nnot counted. At all.\n```\n", []),
        ("A line\nand the next. `code` begins another.", [5, 3]),
    ],
)
def test_prose_of_a_page_counts_words_of_sentences(tmp_path: Path, text: str, words: list[int]) -> None:
    """Inline code counts as one word; code blocks and headings are not sentences."""
    (tmp_path / "page.md").write_text(text)
    assert list(prose.measured(tmp_path / "page.md").sentences) == words


def test_prose_with_a_long_sentence_names_its_line(tmp_path: Path) -> None:
    """The line is that of the paragraph."""
    first, *_ = problems(tmp_path, f"# Title\n\nFine.\n\n{LONG}\n")
    assert first.startswith("5: 44 words: This sentence has")


def test_prose_with_a_long_sentence_in_a_cell_names_its_line(tmp_path: Path) -> None:
    """Cells are held to the longest sentence and to their own length."""
    found = problems(tmp_path, f"| a |\n|---|\n| fine |\n| {LONG} |\n")
    assert [one.split(":")[:2] for one in found] == [["4", " 44 words"], ["4", " cell of 224 characters"]]


def test_prose_with_long_sentences_on_average_is_refused(tmp_path: Path) -> None:
    """Mean and 90 % are limits of all pages together."""
    found = problems(tmp_path, "Word " * 19 + "end. " + "Word " * 29 + "end.")
    assert found == [
        "sentences have 25.0 words on average; at most 16 are allowed",
        "one sentence in ten has more than 29 words; at most 26 are allowed",
    ]


def test_prose_with_too_many_words_is_refused(tmp_path: Path) -> None:
    """All words of a page count; bars of tables do not."""
    (one,) = problems(tmp_path, "A short | one.\n" * 14_000)
    assert one == "the pages have 42,000 words; at most 38,800 are allowed"


def test_prose_with_a_retired_phrase_over_two_lines_says_what_to_write(tmp_path: Path) -> None:
    """Retired phrases are found wherever lines break."""
    assert problems(tmp_path, "Fine.\n\nIt comes\nto this.") == ['3: "comes to": is, reaches, or results in']


def test_retired_phrase_over_two_strings_is_found() -> None:
    """As Python joins them."""
    source = 'raise ValueError("there are so "\n    f"many {things}")'
    assert [line for line, _, _ in prose.found_retired(source)] == [1]
