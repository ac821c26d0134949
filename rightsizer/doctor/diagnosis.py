"""Facts that the doctor collects, its checks and diagnoses, and their output as text and document. Pure."""

import dataclasses
import datetime
import enum
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rightsizer.doctor.rights import Right
from rightsizer.model import Fleet, NodeCoverage, PodKey, Usages
from rightsizer.policy.policy_file import LoadedPolicy
from rightsizer.report.terminal import WIDTH, Paint
from rightsizer.text import count, safe
from rightsizer.usage.source_metrics import MetricSource


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why something is not known, in one sentence.

    Attributes:
        told: What others say that need it, where a check of its own tells the words.
        is_unnamed: Of a Prometheus: none is named, and none, or more than one, was found.
    """

    words: str
    told: str = ""
    is_unnamed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus that answers.

    Attributes:
        now: Its clock.
        ours: This machine's, half-way between the question and the answer.
        took_s: How long that took, in seconds.
        build: Its `buildinfo`.
        flags: Its command line.
    """

    where: str
    now: datetime.datetime
    ours: datetime.datetime
    took_s: float
    build: Mapping[str, Any] | Failure
    flags: Mapping[str, Any] | Failure


@dataclasses.dataclass(frozen=True, slots=True)
class Naming:
    """How series name pods and devices.

    Attributes:
        forms: Number of series that name a pod of ours, by the label that does.
        foreign: Pods that are named, and hold no GPU here.
        devices: Devices of ours by which some series is.
        jobs: Of devices that several series are about: which scrape jobs these are from; empty where none is.
        copies: How many such devices there are.
    """

    forms: Mapping[str, int]
    foreign: tuple[PodKey, ...]
    devices: int
    jobs: tuple[str, ...] = ()
    copies: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """What of our recording rules is on record.

    Attributes:
        expected: Rules that the source's metrics should have, as (record, metric).
        present: Those that have values now.
        early: Those that had some at the beginning of the longest window.
    """

    expected: frozenset[tuple[str, str]]
    present: frozenset[tuple[str, str]]
    early: frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is judged.

    Attributes:
        at: This machine's clock.
        host: The API server.
        own: The namespace in which we run.
        max_samples: What we take for the most that Prometheus loads for one query.
        policy: As it was read; the built-in one where none is given.
        source: The metrics that there are.
        interval_s: Seconds between two samples of the densest series.
        begins: Where Prometheus's record of GPUs begins; None where it goes back as far as the policy looks.
        usages: Of the last hour.
        evicts: Whether the policy lets pods be evicted; also where it cannot be read.
        allowed: Each right, and whether we have it.
    """

    at: datetime.datetime
    own: str
    max_samples: int
    host: str | Failure
    policy: LoadedPolicy | Failure
    evicts: bool
    fleet: Fleet | Failure
    allowed: Mapping[Right, bool] | Failure
    server: Server | Failure
    source: MetricSource | Failure
    interval_s: float | Failure
    begins: datetime.datetime | Failure | None
    naming: Naming | Failure
    recorded: Recorded | Failure
    usages: Usages | Failure
    node_coverage: Mapping[str, NodeCoverage] | Failure


T = TypeVar("T")


class Status(enum.StrEnum):
    """How it stands with one thing that was looked at."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a check found.

    Attributes:
        words: One sentence.
        remedy: What to do about it; empty where nothing is to be done.
        command: To be copied for that; empty where none is.
    """

    status: Status
    words: str
    remedy: str = ""
    command: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What a check can say; `{...}` stands for what is found, in all three texts."""

    status: Status
    says: str
    remedy: str = ""
    command: str = ""

    def __call__(self, **found: object) -> Diagnosis:
        """The message about something."""
        texts = (text.format(**found) for text in (self.says, self.remedy, self.command))
        return Diagnosis(self.status, *texts)


Judge = Callable[[Facts], Iterable[Diagnosis]]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One row of the table.

    Attributes:
        about: What it looks at, for the documentation.
        judge: Gives at least one diagnosis, by messages of this row.
    """

    name: str
    about: str
    judge: Judge
    messages: tuple[Message, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """Checks that belong together."""

    name: str
    checks: tuple[Check, ...]


FOLLOWS = Message(Status.UNKNOWN, "unknown: {why}; fix that first")
FAILED = Message(
    Status.UNKNOWN,
    "unknown: {why}",
    "if too large or too slow: --prometheus-timeout 300s, a smaller --prometheus-max-samples, or "
    "recording rules; if Forbidden: see permissions",
)
"""What any check says where something that it needs could not be read: told by another check, or by none."""


class NotKnown(Exception):  # noqa: N818 - becomes a diagnosis, not an error
    """A check needs what could not be read."""

    def __init__(self, failure: Failure) -> None:
        self.diagnosis = FOLLOWS(why=failure.told) if failure.told else FAILED(why=failure.words)
        super().__init__(failure.words)


def known(fact: T | Failure) -> T:
    """A fact, where it is one.

    Raises:
        NotKnown: It could not be read.
    """
    if isinstance(fact, Failure):
        raise NotKnown(fact)
    return fact


def some(names: Iterable[str], most: int = 3) -> str:
    """The first few of some names, in words."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


Found = tuple[Family, Check, Diagnosis]
_COLUMN = 9
_NAME = 16
_COMMAND = " " * (_COLUMN + 2)
"""Text to copy is on a line of its own, with minimal indentation."""


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
