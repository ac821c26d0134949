"""What stands in a page, by Python's own parser of HTML: elements with their attributes, in order."""

import re
from html.parser import HTMLParser

Element = tuple[str, dict[str, str]]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.contents: list[tuple[str, str]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._open.append(tag)

    def handle_data(self, data: str) -> None:
        """Note text, with the element that was opened last before it."""
        self.contents.append((self._open[-1] if self._open else "", data))


def elements(page: str) -> list[Element]:
    """Every element, with its attributes."""
    return _read(page).elements


def contents(page: str, tag: str) -> list[str]:
    """The text that follows each opening of an element."""
    return [data for name, data in _read(page).contents if name == tag]


def skeleton(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every element with the names of its attributes."""
    return [(tag, tuple(attributes)) for tag, attributes in elements(page)]


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader


def without_assets(page: str) -> str:
    """A page without the text of its style and script, which are files of their own, an element in each line."""
    page = re.sub(r"<(style|script)>.*?</\1>", r"<\1></\1>", page, flags=re.DOTALL)
    return re.sub(r"sha256-[\w+/=]+", "sha256-", page).replace("><", ">\n<")
