"""Small phrases that the evidence of several findings has in common. Pure."""

import datetime

from rightsizer.config import format_duration
from rightsizer.model import Usage

GIB = 1 << 30


def percent(ratio: float | None) -> str:
    """A share, 0 to 1, in per cent."""
    return "unknown" if ratio is None else f"{ratio * 100:.3g}%"


def span(length: datetime.timedelta | float) -> str:
    """A length of time; a float is in seconds."""
    return format_duration(length.total_seconds() if isinstance(length, datetime.timedelta) else length)


def instant(at: datetime.datetime) -> str:
    """A point in time, to the minute."""
    return f"{at.astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def device(usage: Usage) -> str:
    """A device as its metrics name it."""
    return f"{usage.device.uuid}/{usage.device.instance}" if usage.device.instance else usage.device.uuid


def gpus(number: float) -> str:
    """A number of GPUs, or a part of one."""
    return f"{number:g} GPU" if number == 1 else f"{number:.3g} GPUs"
