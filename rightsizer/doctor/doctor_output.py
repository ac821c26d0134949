"""What was found, for people in 80 columns and for programs as a document. Pure."""

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rightsizer.doctor.diagnosis import Check, Diagnosis, Family, Status
from rightsizer.report.terminal import WIDTH, Paint
from rightsizer.text import count, safe

Found = tuple[Family, Check, Diagnosis]
_COLUMN = 9
_NAME = 16
_COMMAND = " " * (_COLUMN + 2)
"""What is to be copied stands on a line of its own, as far to the left as can be."""


def text(found: Sequence[Found], *, colour: bool) -> str:
    """Every diagnosis on its own, below the name of its family; what is to be done stands under it."""
    paint = Paint(colour=colour)
    lines: list[str] = []
    for family, group in itertools.groupby(found, key=lambda one: one[0].name):
        lines += ["", paint.bold(family.upper())] if lines else [paint.bold(family.upper())]
        for names, one in _joined(group):
            lines += _lines(names, one, paint)
    return "\n".join([*lines, "", _summary(found)]) + "\n"


def _joined(group: Iterable[Found]) -> Iterator[tuple[list[str], Diagnosis]]:
    """Neighbours of which the same is to be said, as one."""
    for one, same in itertools.groupby(group, key=lambda found: found[2]):
        yield [check.name for _, check, _ in same], one


def _lines(names: Sequence[str], one: Diagnosis, paint: Paint) -> Iterator[str]:
    head = f"{paint.status(one.status, f'{one.status:<{_COLUMN}}')}"
    indent = " " * (_COLUMN + _NAME)
    name, *others = names
    words = one.words if not others else f"{one.words} (also {', '.join(others)})"
    first, *rest = _wrapped(words, indent)
    yield f"{head}{name:<{_NAME}}{first.lstrip()}"
    yield from rest
    if one.remedy:
        yield from (paint.dim(line) for line in _wrapped(f"→ {one.remedy}", indent))
    if one.command:
        yield _COMMAND + safe(one.command)


def _wrapped(words: str, indent: str) -> list[str]:
    """In 80 columns; names, flags and URLs are not cut where they have a hyphen."""
    found = textwrap.wrap(
        safe(words), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return found or [indent]


def _summary(found: Sequence[Found]) -> str:
    numbers = {status: sum(one.status is status for _, _, one in found) for status in Status}
    if not numbers[Status.ERROR]:
        rest = f"; {count(numbers[Status.WARNING], 'warning')}" if numbers[Status.WARNING] else ""
        dark = f"; {numbers[Status.UNKNOWN]} unknown" if numbers[Status.UNKNOWN] else ""
        return f"No errors{rest}{dark}."
    told = [count(numbers[Status.ERROR], "error"), count(numbers[Status.WARNING], "warning")]
    return f"{', '.join(told)}, {numbers[Status.UNKNOWN]} unknown, {numbers[Status.OK]} ok."


def document(found: Sequence[Found]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Diagnosis",
        "summary": {status.value: sum(one.status is status for _, _, one in found) for status in Status},
        "checks": [
            {
                "family": family.name,
                "check": check.name,
                "status": one.status.value,
                "words": safe(one.words),
                "remedy": safe(one.remedy) or None,
                "command": safe(one.command) or None,
            }
            for family, check, one in found
        ],
    }
