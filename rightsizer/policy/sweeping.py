"""Whether patterns of a policy file, alone or together, match whatever may come: such a condition says nothing. Pure.

It is tried on names of every first character and of several lengths, rather than proven: whatever matches all of these
was not meant to choose.
"""

import fnmatch
import string
from collections.abc import Callable, Iterable

LOWER = string.ascii_lowercase + string.digits
"""First characters of namespaces and PriorityClasses: DNS names (RFC 1123)."""

ANY_CASE = string.ascii_letters + string.digits
"""Of the values of labels: models and node pools."""

LENGTHS = (3, 8, 63)
"""The longest is that of a label's value, and of a DNS label."""

_ON_PURPOSE = "leave it out, or, for all workloads on purpose, write match: {everything: true}"


def not_all(pattern: str) -> str:
    """Refuse a pattern that asks for nothing, or only for a length: `*`, `**`, `?*`.

    Raises:
        ValueError: It is one.
    """
    if "*" in pattern and set(pattern) <= {"*", "?"}:
        message = f"{pattern!r} matches everything; {_ON_PURPOSE}"
        raise ValueError(message)
    return pattern


def not_all_together(firsts: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """What refuses patterns of which every name matches one, where names begin with one of these characters."""
    names = tuple(_names(firsts))

    def check(patterns: tuple[str, ...]) -> tuple[str, ...]:
        if all(any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) for name in names):
            message = f"its patterns together match everything; {_ON_PURPOSE}"
            raise ValueError(message)
        return patterns

    return check


def _names(firsts: str) -> Iterable[str]:
    """Of the same characters in turn, so that none is made of one alone."""
    for start in range(len(firsts)):
        turned = firsts[start:] + firsts[:start]
        for length in LENGTHS:
            yield (turned * length)[:length]
