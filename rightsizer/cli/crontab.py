"""A schedule as a CronJob of Kubernetes has it → the moments of wall clocks that match. Pure.

Kubernetes reads schedules with robfig/cron: Sunday is 0, a step may follow a single number, and `?` is `*`. Where both
the day of the month and the weekday are restricted, as by `*/2`, either suffices. cronsim finds the matching minutes.
It also knows weekday 7, `L` and `#`, which Kubernetes refuses, and moves jobs that the spring change skips.
https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax
"""

import dataclasses
import datetime
import functools
import itertools
import re
from collections.abc import Mapping

from cronsim import CronSim, CronSimError

from rightsizer.config import parse_duration

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Mapping[str, tuple[range, Mapping[str, int]]] = {
    "minute": (range(60), {}),
    "hour": (range(24), {}),
    "day of the month": (range(1, 32), {}),
    "month": (range(1, 13), {name: number for number, name in enumerate(_MONTHS, start=1)}),
    "weekday": (range(7), {name: number for number, name in enumerate(_WEEKDAYS)}),
}
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
_ALL = "*"
_PART = re.compile(r"(?:[*?]|([a-z]+|[0-9]{1,4})(?:-([a-z]+|[0-9]{1,4}))?)(?:/([0-9]{1,4}))?")
_DAY = datetime.timedelta(days=1)
_SECOND = datetime.timedelta(seconds=1)
_LEAP_YEAR = datetime.datetime(2024, 1, 1)  # noqa: DTZ001 - of a wall clock
_DAYS = 9 * 366
"""From one 29th of February to the next there may be eight years."""


@dataclasses.dataclass(frozen=True)
class Crontab:
    """All minutes of wall clocks that match five fields, as cronsim reads these."""

    fields: str

    @functools.cached_property
    def _first(self) -> CronSim:
        return CronSim(self.fields, _LEAP_YEAR)

    def matches(self, at: datetime.datetime) -> bool:
        """Whether a minute of a wall clock matches."""
        found = self._first
        return at.minute in found.minutes and at.hour in found.hours and self._is_day(at)

    def next_from(self, at: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
        """The first matching moment from an aware one on, in UTC; None if there is none in 50 years.

        As for robfig/cron, what the wall clock skips in spring does not come on that day, and what it shows twice in
        autumn comes twice.
        """
        found = end = None
        # A clock that goes back shows at most the day before again: an earlier moment may have a later time of day.
        for wall in CronSim(self.fields, at.astimezone(zone).replace(tzinfo=None) - _DAY - _SECOND):
            if end and wall > end:
                break
            for fold in (0, 1):
                moment = wall.replace(tzinfo=zone, fold=fold).astimezone(datetime.UTC)
                is_shown = moment.astimezone(zone).replace(tzinfo=None) == wall
                if is_shown and moment >= at and (found is None or moment < found):
                    found, end = moment, end or wall + _DAY
        return found

    def longest_gap(self) -> datetime.timedelta:
        """The longest time from one moment to the next, by wall clocks that never change."""
        minutes = sorted(60 * hour + minute for hour in self._first.hours for minute in self._first.minutes)
        within = max((after - before for before, after in itertools.pairwise(minutes)), default=0)
        days = [number for number in range(_DAYS) if self._is_day(_LEAP_YEAR + number * _DAY)]
        apart = max((after - before for before, after in itertools.pairwise(days)), default=_DAYS)
        over_night = apart * _DAY - datetime.timedelta(minutes=minutes[-1] - minutes[0])
        return max(datetime.timedelta(minutes=within), over_night)

    def _is_day(self, day: datetime.datetime) -> bool:
        return day.month in self._first.months and self._first.match_day(day.date())


def parse_schedule(text: str) -> Crontab | datetime.timedelta:
    """A schedule: five fields, a macro such as @daily, or `@every` and a duration.

    Raises:
        ValueError: It is invalid, or never matches; the message says what would be right.
    """
    cleaned = " ".join(text.lower().split())
    if cleaned.startswith(_EVERY):
        return parse_duration(cleaned[len(_EVERY) :])
    if "tz=" in cleaned:
        message = "set the zone with --time-zone"
        raise ValueError(message)
    parts = _MACROS.get(cleaned, cleaned).split()
    if len(parts) != len(_FIELDS):
        macros = ", ".join(_MACROS)
        message = f"{cleaned[:60]!r} has {len(parts)} fields; write minute, hour, day of the month, month and weekday, "
        raise ValueError(message + f"such as 0 3 * * 1-5, or one of {macros}, @every 15m")
    crontab = Crontab(" ".join(map(_field, parts, _FIELDS)))
    try:
        crontab.matches(_LEAP_YEAR)
    except CronSimError as error:
        message = f"{cleaned!r} never comes: no such month has that day"
        raise ValueError(message) from error
    return crontab


def _field(text: str, name: str) -> str:
    """As cronsim reads it: a star where all values match, else each value: it takes `*/2` for no restriction."""
    parts = [_part(part, name) for part in text.split(",")]
    return "*" if _ALL in parts else ",".join(parts)


def _part(text: str, name: str) -> str:
    found = _PART.fullmatch(text)
    if found is None:
        raise _unreadable(text)
    first, last, step = found.groups()
    if step and not int(step):
        message = f"{text!r}: a step is at least 1"
        raise ValueError(message)
    if not first and int(step or 1) == 1:
        return _ALL
    values = _FIELDS[name][0]
    low = _value(first, name) if first else values[0]
    high = _value(last, name) if last else values[-1] if step else low
    if low > high:
        message = f"{text!r}: the {name} goes from {low} to {high}, which is backwards"
        raise ValueError(message)
    return ",".join(map(str, range(low, high + 1, int(step or 1))))


def _value(text: str, name: str) -> int:
    values, names = _FIELDS[name]
    value = int(text) if text.isdecimal() else names.get(text)
    if value is None:
        raise _unreadable(text)
    if value not in values:
        also = "; Sunday is 0" if name == "weekday" else ""
        message = f"{text!r} is no {name}: {values[0]} to {values[-1]}{also}"
        raise ValueError(message)
    return value


def _unreadable(text: str) -> ValueError:
    return ValueError(f"{text[:40]!r} cannot be read; write numbers such as 5, 1-5, */15 or 1,15")
