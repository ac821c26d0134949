"""Prometheus's text format, read as Prometheus reads it: names as they stand.

(prometheus_client's parser renames counters to end in `_total`, which DCGM's do not.)
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)",?')
_ESCAPE = re.compile(r"\\(.)")


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One line of an exposition."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> Iterator[Sample]:
    """The samples of an exposition; raises ValueError on a line that is none."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.fullmatch(line)
        if found is None:
            raise ValueError(f"not a line of an exposition: {line}")
        name, labels, value = found.groups(default="")
        yield Sample(name, {key: _unescaped(raw) for key, raw in _LABEL.findall(labels)}, float(value))


def _unescaped(raw: str) -> str:
    return _ESCAPE.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), raw)
