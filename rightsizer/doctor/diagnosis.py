"""Facts that the doctor collects, its checks and diagnoses, and their output as text and document. Pure."""

import dataclasses
import datetime
import enum
import itertools
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rightsizer.doctor.rights import Right
from rightsizer.kube.object_names import shell_command
from rightsizer.model import Fleet, NodeCoverage, PodKey, Usages
from rightsizer.policy.policy_file import LoadedPolicy
from rightsizer.report.terminal import WIDTH, Paint
from rightsizer.text import count, safe
from rightsizer.usage.provenance import Provenance
from rightsizer.usage.source_metrics import MetricSource


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why a fact is unknown, in one sentence.

    Attributes:
        summary: What checks that need the fact say, if another check reports the failure itself.
        is_unnamed: No Prometheus is named, and none, or more than one, was found.
    """

    words: str
    summary: str = ""
    is_unnamed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A Prometheus that responds.

    Attributes:
        now: Its clock.
        local: The local clock, half-way between request and response.
        took_s: Seconds between request and response.
        build: Its `buildinfo`.
        flags: Its command line.
    """

    where: str
    now: datetime.datetime
    local: datetime.datetime
    took_s: float
    build: Mapping[str, Any] | Failure
    flags: Mapping[str, Any] | Failure


@dataclasses.dataclass(frozen=True, slots=True)
class Naming:
    """Labels by which series name pods and devices.

    Attributes:
        forms: Number of series that name a GPU pod of this cluster, by the label with its name.
        foreign: Named pods that hold no GPU in this cluster.
        devices: Number of devices of these GPU pods.
        jobs: Scrape jobs of devices with several series.
        copies: Number of devices with several series.
        hint: Where no series names a pod of this cluster: labels that hold one, to add to a sentence.
    """

    forms: Mapping[str, int]
    foreign: tuple[PodKey, ...]
    devices: int
    jobs: tuple[str, ...] = ()
    copies: int = 0
    hint: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Recorded:
    """Recording rules of gpu-rightsizer, as (record, metric).

    Attributes:
        expected: Rules for the metrics of the source.
        present: Rules with values now.
        early: Rules with values at the beginning of the longest window.
        problem: Why recorded values may not be used; empty if they may.
    """

    expected: frozenset[tuple[str, str]]
    present: frozenset[tuple[str, str]]
    early: frozenset[tuple[str, str]]
    problem: str = ""


NO_SERVER = Failure("", summary="no Prometheus answers")


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """Everything that checks judge.

    Attributes:
        at: The local clock.
        host: The API server.
        own: The state namespace.
        max_samples: The assumed limit of samples per query.
        policy: The given policy, or the built-in one.
        evicts: Whether the policy allows evictions; true if it cannot be read.
        allowed: Whether each right is granted.
        source: The source, with the metrics that exist.
        interval_s: Seconds between two samples of the densest series.
        begins: When GPU series begin; None if they cover all that the policy looks at.
        ended: When GPU series ended; None if there are some now.
        naming: As of then, like `interval_s` and `usages`.
        usages: Of the last hour.
    """

    at: datetime.datetime
    own: str
    max_samples: int
    host: str | Failure
    policy: LoadedPolicy | Failure
    evicts: bool
    fleet: Fleet | Failure
    allowed: Mapping[Right, bool] | Failure
    server: Server | Failure = NO_SERVER
    source: MetricSource | Failure = NO_SERVER
    interval_s: float | Failure = NO_SERVER
    begins: datetime.datetime | Failure | None = NO_SERVER
    ended: datetime.datetime | Failure | None = NO_SERVER
    naming: Naming | Failure = NO_SERVER
    recorded: Recorded | Failure = NO_SERVER
    provenance: Provenance | Failure = NO_SERVER
    usages: Usages | Failure = NO_SERVER
    node_coverage: Mapping[str, NodeCoverage] | Failure = NO_SERVER


T = TypeVar("T")


class Status(enum.StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """One sentence that a check found, with a remedy and a command to copy, if there are any."""

    status: Status
    words: str
    remedy: str = ""
    command: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A sentence that a check can say; `{...}` are its parameters, in all three texts."""

    status: Status
    says: str
    remedy: str = ""
    command: str = ""

    def __call__(self, **found: object) -> Diagnosis:
        """The diagnosis with these parameters."""
        words = {name: shell_command(str(value)) for name, value in found.items()}
        says, remedy = (text.format(**found) for text in (self.says, self.remedy))
        return Diagnosis(self.status, says, remedy, self.command.format(**words))


Judge = Callable[[Facts], Iterable[Diagnosis]]


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        family: Its subject, such as the policy; output is grouped by it.
        about: What it checks, for the documentation.
        judge: Returns at least one diagnosis, made from the messages above it.
    """

    family: str
    name: str
    about: str
    judge: Judge


def check(family: str, name: str, about: str) -> Callable[[Judge], Check]:
    """The check that a function makes."""
    return lambda judge: Check(family, name, about, judge)


FOLLOWS = Message(Status.UNKNOWN, "unknown: {why}; fix that first")
FAILED = Message(
    Status.UNKNOWN,
    "unknown: {why}",
    "if too large or too slow: --prometheus-timeout 300s, a smaller --prometheus-max-samples, or "
    "recording rules; if Forbidden: see permissions",
)
"""Messages of any check that lacks a fact: one that another check reports, or none does."""


class NotKnown(Exception):  # noqa: N818 - becomes a diagnosis, not an error
    """A check needs an unknown fact."""

    def __init__(self, failure: Failure) -> None:
        self.diagnosis = FOLLOWS(why=failure.summary) if failure.summary else FAILED(why=failure.words)
        super().__init__(failure.words)


def known(fact: T | Failure) -> T:
    """A fact that must be known.

    Raises:
        NotKnown: It is not.
    """
    if isinstance(fact, Failure):
        raise NotKnown(fact)
    return fact


def some(names: Iterable[str], most: int = 3) -> str:
    """The first names, and the number of the others."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


Found = tuple[Check, Diagnosis]
_COLUMN = 9
_NAME = 16
_COMMAND = " " * (_COLUMN + 2)
"""Text to copy is on a line of its own, with minimal indentation."""


def text(found: Sequence[Found], *, colour: bool) -> str:
    """Diagnoses by family, each with its remedy below."""
    paint = Paint(colour=colour)
    lines: list[str] = []
    for family, group in itertools.groupby(found, key=lambda pair: pair[0].family):
        lines += ["", paint.bold(family.upper())] if lines else [paint.bold(family.upper())]
        for names, diagnosis in _joined(group):
            lines += _lines(names, diagnosis, paint)
    return "\n".join([*lines, "", _summary(found)]) + "\n"


def _joined(group: Iterable[Found]) -> Iterator[tuple[list[str], Diagnosis]]:
    """Neighbouring checks with equal diagnoses, as one."""
    for diagnosis, same in itertools.groupby(group, key=lambda found: found[1]):
        yield [found.name for found, _ in same], diagnosis


def _lines(names: Sequence[str], diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    head = f"{paint.status(diagnosis.status, f'{diagnosis.status:<{_COLUMN}}')}"
    indent = " " * (_COLUMN + _NAME)
    name, *others = names
    words = diagnosis.words if not others else f"{diagnosis.words} (also {', '.join(others)})"
    first, *rest = _wrapped(words, indent)
    yield f"{head}{name:<{_NAME}}{first.lstrip()}"
    yield from rest
    if diagnosis.remedy:
        yield from (paint.dim(line) for line in _wrapped(f"→ {diagnosis.remedy}", indent))
    if diagnosis.command:
        yield _COMMAND + safe(diagnosis.command)


def _wrapped(words: str, indent: str) -> list[str]:
    """Wrap to 80 columns; names, flags and URLs are not split at hyphens."""
    found = textwrap.wrap(
        safe(words), WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return found or [indent]


def _numbers(found: Sequence[Found]) -> dict[Status, int]:
    return {status: sum(diagnosis.status is status for _, diagnosis in found) for status in Status}


def _summary(found: Sequence[Found]) -> str:
    numbers = _numbers(found)
    warnings, unknown = count(numbers[Status.WARNING], "warning"), f"{numbers[Status.UNKNOWN]} unknown"
    if numbers[Status.ERROR]:
        return f"{count(numbers[Status.ERROR], 'error')}, {warnings}, {unknown}, {numbers[Status.OK]} ok."
    parts = {warnings: numbers[Status.WARNING], unknown: numbers[Status.UNKNOWN]}
    return "; ".join(["No errors", *(words for words, number in parts.items() if number)]) + "."


def document(found: Sequence[Found]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Diagnosis",
        "summary": {status.value: number for status, number in _numbers(found).items()},
        "checks": [
            {
                "family": row.family,
                "check": row.name,
                "status": diagnosis.status.value,
                "message": safe(diagnosis.words),
                "remedy": safe(diagnosis.remedy) or None,
                "command": safe(diagnosis.command) or None,
            }
            for row, diagnosis in found
        ],
    }
