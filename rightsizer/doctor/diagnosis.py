"""The records of the doctor: a check, the messages that it can give, and what was found. Pure."""

import dataclasses
import enum
from collections.abc import Callable, Iterable
from typing import TypeVar

from rightsizer.doctor.facts import Facts, Failure

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
