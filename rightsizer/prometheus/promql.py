"""The text of PromQL: selectors, matchers and spans, quoted so that no name can be read as anything else. Pure."""

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence

MAX_TEXT = 8_000
"""Longest list of names in one matcher, in characters: VictoriaMetrics refuses queries of over 16 KiB."""

MOST_NAMES = 250
"""In one matcher: up to 256 Prometheus looks up, of more it tries each name that it knows."""


def quoted(text: str) -> str:
    """A string literal; Go's escapes, which PromQL uses, include JSON's where non-ASCII is left as it is."""
    return json.dumps(text, ensure_ascii=False)


def equals(label: str, value: str) -> str:
    """A matcher for one value; the empty one matches where there is no such label."""
    return f"{label}={quoted(value)}"


def one_of(label: str, values: Sequence[str]) -> str:
    """A matcher for any of these values, whatever characters they hold."""
    if len(values) == 1:
        return equals(label, values[0])
    return f"{label}=~{quoted('|'.join(map(escaped, values)))}"


def escaped(text: str) -> str:
    """For regular expressions; hyphens, of which names are full, mean nothing in them but between brackets."""
    if text.replace("-", "").isalnum():
        return text  # as nearly all names are
    return re.escape(text).replace("\\-", "-")


def selector(metric: str, matchers: Iterable[str]) -> str:
    """An instant vector selector."""
    return f"{metric}{{{', '.join(matchers)}}}"


def span(length: datetime.timedelta) -> str:
    """A duration, in the largest unit that gives a whole number."""
    milliseconds = round(length.total_seconds() * 1000)
    for size, unit in ((60_000, "m"), (1000, "s")):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def over(function: str, selected: str, length: datetime.timedelta) -> str:
    """A function over a range."""
    return f"{function}({selected}[{span(length)}])"


def by(aggregation: str, labels: Iterable[str], expression: str) -> str:
    """An aggregation that keeps these labels."""
    return f"{aggregation} by ({', '.join(labels)}) ({expression})"


def not_numbers(expression: str) -> str:
    """Only the series whose value is no number: of all values NaN alone stays what it is."""
    return f"clamp_min(clamp_max({expression}, 0), 0) != 0"


def batches(names: Iterable[str], longest: int = MAX_TEXT) -> Iterator[list[str]]:
    """The names in order, as many at a time as fit into one matcher."""
    batch: list[str] = []
    size = 0
    for name in names:
        length = len(escaped(name)) + 1
        if batch and (size + length > longest or len(batch) == MOST_NAMES):
            yield batch
            batch, size = [], 0
        batch.append(name)
        size += length
    if batch:
        yield batch
