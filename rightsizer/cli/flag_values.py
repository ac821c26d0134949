"""Small values of flags: times, spans, names; a slip is told with what would be right."""

import argparse
import datetime
import re

from rightsizer.config import parse_duration
from rightsizer.errors import UsageError
from rightsizer.model.change_record import LONGEST_WORD

_INSTANCE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def instance_of(arguments: argparse.Namespace) -> str:
    """What tells this gpu-rightsizer from another one; empty where it is not said.

    Raises:
        UsageError: It is no name.
    """
    name: str = getattr(arguments, "instance", None) or ""
    if name and (len(name) > LONGEST_WORD or not _INSTANCE.fullmatch(name)):
        raise UsageError(f"--instance {name}: write up to {LONGEST_WORD} letters and digits, with -_. within")
    return name


def span_of(flag: str, text: str) -> datetime.timedelta:
    """A duration; 0 is one, too.

    Raises:
        UsageError: It is none.
    """
    if text.strip() == "0":
        return datetime.timedelta()
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def instant_of(flag: str, text: str, now: datetime.datetime) -> datetime.datetime:
    """A time with its zone, or a duration before now.

    Raises:
        UsageError: It is neither.
    """
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is not None:
        if at.tzinfo is None:
            raise UsageError(f"{flag} {text}: says no zone; write one, such as 2026-11-20T18:00:00Z")
        return at
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError) as error:
        message = "write a time with its zone, such as 2026-11-20T18:00:00Z, or how long ago, such as 2h"
        raise UsageError(f"{flag} {text}: {message}") from error
