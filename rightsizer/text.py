"""Limits of what is read where others can write: annotations and the state's ConfigMaps. Pure.

Anyone who may annotate an object can write anything there. What is longer, nested deeper, of another time or greater
than anything that gpu-rightsizer writes counts as unreadable; the reader decides what follows.
"""

import datetime
import re
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from rightsizer.config import format_duration
from rightsizer.model import Blocker, BlockerCode, Decision, Usage

T = TypeVar("T")

LONGEST_BYTES: Final = 16 << 10
"""Of a note: what gpu-rightsizer writes stays below 2 KiB."""
DEEPEST: Final = 16
"""Of lists and mappings in each other: what gpu-rightsizer writes has five."""
YEARS: Final = range(2000, 2201)
"""In these time zones do not overflow, nor does what is added or taken away."""


def tidy(gpus: float) -> float:
    """GPUs as they are rounded: parts of one to hundredths, whole ones without a point."""
    rounded = round(gpus, 2)
    return int(rounded) if rounded == int(rounded) else rounded


# A string without an end takes the rest: matching it again from each of its quotes would take time in the square.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def decoded(text: str, kind: type[T], *, longest: int = LONGEST_BYTES) -> T:
    """A note in JSON.

    Raises:
        ValueError: It is none, or beyond the bounds; the message says which.
    """
    if len(text) > longest or len(text.encode(errors="replace")) > longest:
        message = f"cannot be read: it is longer than {longest >> 10} KiB"
        raise ValueError(message)
    if _depth(text) > DEEPEST:
        message = f"cannot be read: it is nested more than {DEEPEST} deep"
        raise ValueError(message)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        message = f"cannot be read: {error}"
        raise ValueError(message) from error


def _depth(text: str) -> int:
    """How deep brackets stand in each other; what stands in strings are none."""
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest


def require_ours(*instants: datetime.datetime | None) -> None:
    """Check that times are in the years that gpu-rightsizer writes.

    Raises:
        ValueError: One of them has no zone, or is of another time.
    """
    for at in instants:
        if at is not None and (at.tzinfo is None or at.year not in YEARS):
            message = f"{at.isoformat()} names no time zone, or no year from {YEARS[0]} to {YEARS[-1]}"
            raise ValueError(message)


def read_instant(text: str, *, zone: datetime.tzinfo | None = None) -> datetime.datetime | None:
    """An instant in RFC 3339's notation, or the end of a day (UTC); None where it is neither.

    Args:
        text: As it stands in an annotation.
        zone: What an instant without an offset is read by; without one it cannot be read.
    """
    cleaned = text.strip()
    try:
        if _DAY.fullmatch(cleaned):
            day = datetime.date.fromisoformat(cleaned)
            midnight = datetime.datetime.combine(day, datetime.time(), tzinfo=datetime.UTC)
            instant = midnight + datetime.timedelta(days=1)
        else:
            instant = datetime.datetime.fromisoformat(cleaned)
            instant = instant if instant.tzinfo or zone is None else instant.replace(tzinfo=zone)
        require_ours(instant)
    except (ValueError, OverflowError):
        return None
    return instant


GIB = 1 << 30
_TENTHS_BELOW = 10
_WHOLE_FROM = 100
_MILLION = 1_000_000

NOT_NOW = {
    BlockerCode.BUDGET: "blocked by budget",
    BlockerCode.DISRUPTION_BUDGET: "blocked by PodDisruptionBudget",
    BlockerCode.CALENDAR: "the calendar is closed",
    BlockerCode.NOTICE: "waits for the end of its notice",
    BlockerCode.COOLDOWN: "waits after an earlier change",
    BlockerCode.OTHER_CONTROLLER: "managed by another controller",
    BlockerCode.ONLY_FOR_PENDING_PODS: "waits for pending pods",
    BlockerCode.NO_CAPACITY: "no free capacity",
    BlockerCode.PAUSED: "paused",
}
"""Codes of the blockers that delay an enforced change, as people read them."""


def count(number: float, thing: str = "GPU") -> str:
    """A number of things in words; of GPUs there may be parts."""
    shown = gpus_number(number) if thing == "GPU" else str(tidy(number))
    return f"1 {thing}" if shown == "1" else f"{shown} {thing}s"


def block_words(block: Blocker) -> str:
    """A blocker in words, each kind with its own."""
    return f"{NOT_NOW[block.code]}: {block.message}"


def wanted_words(decision: Decision) -> Iterator[str]:
    """For whom something is done that is done only on demand."""
    if decision.wanted_by:
        first, *others = decision.wanted_by
        more = f" and {len(others)} more" if others else ""
        wait = "wait" if others else "waits"
        yield f"for {first.namespace}/{first.name}{more}, of a higher priority, which {wait} for GPUs"


def number(value: float) -> str:
    """A number with as many digits as say something: 3, 0.5, 12.3, 1,234."""
    digits = 2 if abs(value) < _TENTHS_BELOW else 1 if abs(value) < _WHOLE_FROM else 0
    text = f"{value:,.{digits}f}"
    text = text.rstrip("0").rstrip(".") if digits else text
    return "0" if text == "-0" else text


def gpus_number(value: float) -> str:
    """A number of GPUs: whole ones without a point, else to the decimal, so that all outputs agree."""
    text = f"{value:,.1f}" if abs(value) >= 1 else f"{value:,.2f}"
    return "0" if float(value) == 0 else text.removesuffix(".0")


def short(value: float) -> str:
    """A large number in at most seven characters: 0.85, 1,234, 16.8M."""
    return f"{value / _MILLION:.1f}M" if abs(value) >= _MILLION - 1 else number(value)


def money(value: float) -> str:
    """An amount, with cents where they matter."""
    return f"{value:,.2f}" if abs(value) < _WHOLE_FROM else f"{value:,.0f}"


_HOURS_PER_MONTH = 730
_HUNDREDS_FROM = 1_000


def per_hour_and_month(hourly: float, currency: str) -> str:
    """A price in an hour and in a month, as headlines have it: 76 USD/h, 55,600 USD/month."""
    monthly = hourly * _HOURS_PER_MONTH
    rounded = round(monthly, -2 if abs(monthly) >= _HUNDREDS_FROM else 0)
    return f"{per_hour(hourly, currency)}, {rounded:,.0f} {currency}/month"


def per_hour(hourly: float, currency: str) -> str:
    """A price in an hour, with cents where they matter."""
    return f"{hourly:,.{0 if abs(hourly) >= _TENTHS_BELOW else 2}f} {currency}/h"


def percent(ratio: float | None, unknown: str = "?") -> str:
    """A share from 0 to 1 in percent; what is not zero never reads as 0%."""
    if ratio is None:
        return unknown
    value = ratio * 100
    if 0 < value < 0.1:  # noqa: PLR2004 - a tenth is the last digit shown
        return "<0.1%"
    return f"{value:.1f}".removesuffix(".0") + "%"


def memory(value: float | None, unknown: str = "?") -> str:
    """Bytes in GiB."""
    return unknown if value is None else f"{value / GIB:.1f} GiB"


def power(value: float | None, unknown: str = "?") -> str:
    """Watts."""
    return unknown if value is None else f"{value:.0f} W"


def span(length: datetime.timedelta | float | None, unknown: str = "?") -> str:
    """A duration; a float is in seconds."""
    if isinstance(length, datetime.timedelta):
        length = length.total_seconds()
    return unknown if length is None else format_duration(length)


def safe(text: str) -> str:
    """Text without control characters, which a terminal would obey (CSI, OSC, carriage return)."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def safe_lines(text: str) -> str:
    """The same, of a text whose lines gpu-rightsizer wrote."""
    return "\n".join(map(safe, text.split("\n")))


def instant(at: datetime.datetime) -> str:
    """A point in time, to the minute."""
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def device(usage: Usage) -> str:
    """A device as its metrics name it."""
    return f"{usage.device.uuid}/{usage.device.instance}" if usage.device.instance else usage.device.uuid


def gpus(number: float) -> str:
    """A number of GPUs, or a part of one."""
    return count(number)
