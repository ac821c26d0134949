"""What stands in a page, by Python's own parser of HTML: elements with their attributes, in order."""

import re
from html.parser import HTMLParser

Element = tuple[str, dict[str, str]]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[Element] = []
        self.contents: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self._inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        shown = "".join(f" {name}={value}" for name, value in attrs)
        self.lines.append(" " * len(self._inside) + tag + re.sub(r"sha256-[\w+/=]+", "sha256-", shown))
        if tag not in {"meta", "input"}:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """End the element that was opened last."""
        assert self._inside.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text, with the element that was opened last before it."""
        if data.strip():
            self.contents.append((self.elements[-1][0] if self.elements else "", data))
        if not {"style", "script"} & set(self._inside):
            lines = data.splitlines() if "pre" in self._inside else [" ".join(data.split())]
            self.lines += [f"{' ' * len(self._inside)}| {line}" for line in lines if line]


def elements(page: str) -> list[Element]:
    """Every element, with its attributes."""
    return _read(page).elements


def contents(page: str, tag: str) -> list[str]:
    """The text that follows each opening of an element."""
    return [data for name, data in _read(page).contents if name == tag]


def skeleton(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every element with the names of its attributes."""
    return [(tag, tuple(attributes)) for tag, attributes in elements(page)]


def outline(page: str) -> str:
    """A line for each element and text; style and script, which are files of their own, are left out."""
    return "\n".join(_read(page).lines) + "\n"


def _read(page: str) -> _Reader:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader
