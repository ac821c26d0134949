"""A file's text → the JSON of each document in it, whichever way it is written. Pure; knows nothing of Kubernetes."""

import codecs
import math
import re
from collections.abc import Iterator

import msgspec
import yaml

_BETWEEN = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Between two JSON documents and nowhere else: inside of one a comma would stand there; no string holds a newline."""
_SEPARATOR = re.compile(rb"^---[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_FIRST = re.compile(rb"\S")
_GROWTH = 10
"""So many values a byte of YAML may stand for; without aliases it is less than one."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Times stay text, as they are in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own way
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def documents(raw: bytes) -> Iterator[bytes]:
    """The JSON of every document in a file.

    Raises:
        ValueError: It is neither JSON nor YAML; the message says why.
    """
    for bom, encoding in (
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
        (codecs.BOM_UTF8, ""),
    ):
        if raw.startswith(bom):  # as PowerShell redirects
            raw = raw.decode(encoding, errors="replace").encode() if encoding else raw[len(bom) :]
    is_split = raw.startswith(b"---") or b"\n---" in raw
    for part in _SEPARATOR.split(raw) if is_split else (raw,):
        first = _FIRST.search(part)
        if first is not None and first.group() == b"{":
            yield from _json_documents(part)
        elif first is not None:
            yield from _yaml_documents(part)


def _yaml_documents(text: bytes) -> Iterator[bytes]:
    try:
        for document in yaml.load_all(text, _Loader):
            if problem := _problem(document, text):
                raise ValueError(problem)
            yield msgspec.json.encode(document)
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        message = f"is neither JSON nor YAML: {' '.join(str(error).split())}"
        raise ValueError(message) from error


def _json_documents(text: bytes) -> Iterator[bytes]:
    """A text, or its parts where it is several lists one after another."""
    begin = 0
    for match in _BETWEEN.finditer(text):
        yield text[begin : match.start() + 1]
        begin = match.end() - 1
    yield text[begin:] if begin else text


def _problem(document: object, text: bytes) -> str:
    if not isinstance(document, dict):
        return "is neither JSON nor YAML of Kubernetes objects"
    return "its YAML aliases (*name) make it endless" if _size(document, {}) > _GROWTH * len(text) else ""


def _size(value: object, known: dict[int, float]) -> float:
    """How many values there are with every alias written out; infinite where one contains itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]
