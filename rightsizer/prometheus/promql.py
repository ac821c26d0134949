"""PromQL text: selectors, matchers and durations, quoted so that no label value changes the query. Pure."""

import datetime
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

MAX_TEXT = 8_000
"""Characters of label values in one matcher: VictoriaMetrics refuses queries of over 16 KiB."""

MOST_NAMES = 250
"""Label values in one matcher: Prometheus looks up at most 256 values; for more it tests every known value."""

EDGE = datetime.timedelta(milliseconds=1)
"""Correction of a range's length: before 3.0, Prometheus has the samples at both ends, others none at the start."""

_PLAIN = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def quoted(text: str) -> str:
    """A string literal. PromQL uses Go's escapes, which include JSON's if non-ASCII text stays as it is."""
    return json.dumps(text, ensure_ascii=False)


def name(label: str) -> str:
    """A label's name. Prometheus 3 takes any text as one, in quotes."""
    return label if _PLAIN.fullmatch(label) else quoted(label)


def listed(labels: Iterable[str]) -> str:
    """Labels in parentheses, each once."""
    return f"({', '.join(map(name, dict.fromkeys(labels)))})"


def matcher(label: str, operator: str, text: str) -> str:
    """A matcher with one of PromQL's four operators."""
    return f"{name(label)}{operator}{quoted(text)}"


def equals(label: str, value: str) -> str:
    """A matcher for one value; the empty value matches series without the label."""
    return matcher(label, "=", value)


def is_set(label: str) -> str:
    """A matcher for series that have the label."""
    return f"{name(label)}!=''"


def without_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Matchers for series that have none of these labels."""
    return tuple(equals(label, "") for label in labels)


def one_of(label: str, values: Sequence[str]) -> str:
    """A matcher for any of these values."""
    if len(values) == 1:
        return equals(label, values[0])
    return matcher(label, "=~", "|".join(map(escaped, values)))


def none_of(label: str, values: Sequence[str]) -> str:
    """A matcher for none of these values."""
    if len(values) == 1:
        return matcher(label, "!=", values[0])
    return matcher(label, "!~", "|".join(map(escaped, values)))


def escaped(text: str) -> str:
    """Text for a regular expression; a hyphen needs no escape outside brackets, and names are full of them."""
    if text.replace("-", "").isalnum():
        return text  # as nearly all names are
    return re.escape(text).replace("\\-", "-")


def selector(metric: str, matchers: Iterable[str]) -> str:
    """An instant vector selector."""
    if metric and not _PLAIN.fullmatch(metric.replace(":", "_")):
        return f"{{{', '.join((quoted(metric), *matchers))}}}"
    return f"{metric}{{{', '.join(matchers)}}}"


def duration(length: datetime.timedelta) -> str:
    """A duration, as Prometheus prints it if it is shorter than an hour."""
    seconds, milliseconds = divmod(round(length.total_seconds() * 1000), 1000)
    parts = ((seconds // 60, "m"), (seconds % 60, "s"), (milliseconds, "ms"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)


def over(
    function: str,
    selected: str,
    length: datetime.timedelta,
    step: datetime.timedelta | None = None,
) -> str:
    """A function over a range, without a sample at its begin; with a step, of a subquery."""
    grain = f":{duration(step)}" if step else ""
    return f"{function}({selected}[{duration(length - EDGE)}{grain}])"


def by(aggregation: str, labels: Iterable[str], expression: str) -> str:
    """An aggregation that keeps these labels."""
    return f"{aggregation} by {listed(labels)} ({expression})"


def only_nan(expression: str) -> str:
    """The series with value NaN: clamping turns all others into zero."""
    return f"clamp_min(clamp_max({expression}, 0), 0) != 0"


def batches(names: Iterable[str], longest: int = MAX_TEXT, *, most: int = MOST_NAMES) -> Iterator[list[str]]:
    """The names in order, in batches of at most `most` that fit into one matcher."""
    return packed(names, lambda name: (len(escaped(name)) + 1, 1), (longest, min(most, MOST_NAMES)))


def packed(
    items: Iterable[T], costs_of: Callable[[T], Sequence[float]], limits: Sequence[float]
) -> Iterator[list[T]]:
    """The items in order, in batches that keep each sum of costs within its limit, or of one item."""
    batch: list[T] = []
    sums: Sequence[float] = ()
    for item in items:
        costs = costs_of(item)
        sums = [before + cost for before, cost in zip(sums or [0.0] * len(costs), costs, strict=True)]
        if batch and any(map(operator.gt, sums, limits)):
            yield batch
            batch, sums = [], costs
        batch.append(item)
    if batch:
        yield batch
