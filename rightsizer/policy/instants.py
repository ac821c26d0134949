"""Instants as people write them into annotations. Pure."""

import datetime
import re

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


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
            return midnight + datetime.timedelta(days=1)
        instant = datetime.datetime.fromisoformat(cleaned)
    except (ValueError, OverflowError):
        return None
    if instant.tzinfo is None:
        return instant.replace(tzinfo=zone) if zone else None
    return instant
