"""A schedule as a CronJob of Kubernetes has it → the moments that are meant. Pure.

Kubernetes reads schedules with robfig/cron: Sunday is 0, a step may follow a single number, `?` is `*`, and where both
the day of the month and the weekday are restricted, either suffices. APScheduler means other things by the same text
(Monday is 0, both must hold, no macros) and loses days to summer time, so all moments are worked out here.
https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/#schedule-syntax
"""

import dataclasses
import datetime
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from rightsizer.config import parse_duration

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
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
_DAY = datetime.timedelta(days=1)
MOST_DAYS = 9 * 366
"""From one 29th of February to the next there may be eight years."""
_LEAP_YEAR = datetime.date(2024, 1, 1)
_FEWEST_DAYS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: Mapping[str, int] = dataclasses.field(default_factory=dict)


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, {name: place for place, name in enumerate(_MONTHS, start=1)}),
    _Field("weekday", 0, 6, {name: place for place, name in enumerate(WEEKDAYS)}),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Crontab:
    """Moments of wall clocks: all that match every field; of days those of either kind where both are given.

    Attributes:
        days: Of the month; None where any will do.
        weekdays: By WEEKDAYS; None where any will do.
    """

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int] | None
    months: frozenset[int]
    weekdays: frozenset[int] | None
    is_either: bool

    def matches(self, at: datetime.datetime) -> bool:
        """Whether a minute of a wall clock is meant."""
        return self._is_day(at.date()) and at.minute in self.minutes and at.hour in self.hours

    def next_from(self, at: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime | None:
        """The first moment that is meant, in UTC, from an instant on; None where there is none in MOST_DAYS.

        As for robfig/cron, what the wall clock leaves out in spring does not come on that day, and what it shows twice
        in autumn comes twice.

        Args:
            at: Aware.
            zone: Whose wall clocks.
        """
        # A clock that goes back at midnight shows the day before once more.
        first = at.astimezone(zone).date() - _DAY
        for number in range(MOST_DAYS):
            day = first + number * _DAY
            left = [one for one in (*self._on(day, zone), *self._on(day + _DAY, zone)) if one >= at]
            if left:
                return min(left)
        return None

    def longest_gap(self) -> datetime.timedelta:
        """The longest time from one moment to the next, by wall clocks that never change."""
        minutes = sorted(60 * hour + minute for hour in self.hours for minute in self.minutes)
        within = max((after - before for before, after in itertools.pairwise(minutes)), default=0)
        days = [number for number in range(MOST_DAYS) if self._is_day(_LEAP_YEAR + number * _DAY)]
        apart = max((after - before for before, after in itertools.pairwise(days)), default=MOST_DAYS)
        return max(
            datetime.timedelta(minutes=within),
            apart * _DAY - datetime.timedelta(minutes=minutes[-1] - minutes[0]),
        )

    def _is_day(self, day: datetime.date) -> bool:
        by_day = self.days is None or day.day in self.days
        by_weekday = self.weekdays is None or day.isoweekday() % 7 in self.weekdays
        is_day = (by_day or by_weekday) if self.is_either else (by_day and by_weekday)
        return is_day and day.month in self.months

    def _on(self, day: datetime.date, zone: datetime.tzinfo) -> Iterator[datetime.datetime]:
        """All that are meant of one day of a wall clock, in UTC: between two the zone tells nothing apart."""
        if not self._is_day(day):
            return
        for hour in self.hours:
            for minute in self.minutes:
                wall = datetime.datetime.combine(day, datetime.time(hour, minute))
                for fold in (0, 1):
                    instant = wall.replace(tzinfo=zone, fold=fold).astimezone(datetime.UTC)
                    if instant.astimezone(zone).replace(tzinfo=None) == wall:
                        yield instant


def parse_schedule(text: str) -> Crontab | datetime.timedelta:
    """A schedule: five fields, a macro such as @daily, or `@every` and a duration.

    Raises:
        ValueError: It is invalid, or never matches; the message says what would be right.
    """
    cleaned = " ".join(text.split())
    if cleaned.lower().startswith(_EVERY):
        return parse_duration(cleaned[len(_EVERY) :])
    if "TZ=" in cleaned:
        message = "the zone is given apart, by --time-zone"
        raise ValueError(message)
    parts = _MACROS.get(cleaned.lower(), cleaned).split()
    if len(parts) != len(_FIELDS):
        macros = ", ".join(_MACROS)
        message = f"{cleaned[:60]!r} has {len(parts)} fields; write minute, hour, day of the month, month and weekday, "
        raise ValueError(message + f"such as 0 3 * * 1-5, or one of {macros}, @every 15m")
    minutes, hours, days, months, weekdays = (
        _values(part, field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    by_day, by_weekday = (not parts[place].startswith(("*", "?")) for place in (2, 4))
    found = Crontab(
        minutes,
        hours,
        days if days != _all(_FIELDS[2]) else None,
        months,
        weekdays if weekdays != _all(_FIELDS[4]) else None,
        is_either=by_day and by_weekday,
    )
    if not found.is_either and not any(min(days) <= _FEWEST_DAYS.get(month, 31) for month in months):
        message = f"{cleaned!r} never comes: no such month has a day {min(days)}"
        raise ValueError(message)
    return found


def _all(field: _Field) -> frozenset[int]:
    return frozenset(range(field.low, field.high + 1))


def _values(text: str, field: _Field) -> frozenset[int]:
    return frozenset(value for part in text.split(",") for value in _range(part, field))


def _range(text: str, field: _Field) -> Sequence[int]:
    """`*`, a value, a range, each with a step or without; a step after a value counts from there to the end."""
    span, slash, step_text = text.partition("/")
    step = _number(step_text, text) if slash else 1
    if step < 1:
        message = f"{text!r}: a step is at least 1"
        raise ValueError(message)
    if span in {"*", "?"}:
        low, high = field.low, field.high
    else:
        first, dash, last = span.partition("-")
        low = _value(first, field)
        high = _value(last, field) if dash else field.high if slash else low
    if low > high:
        message = f"{text!r}: the {field.name} goes from {low} to {high}, which is backwards"
        raise ValueError(message)
    return range(low, high + 1, step)


def _value(text: str, field: _Field) -> int:
    found = field.names.get(text.lower())
    value = _number(text, text) if found is None else found
    if not field.low <= value <= field.high:
        also = "; Sunday is 0" if field.name == "weekday" else ""
        message = f"{text!r} is no {field.name}: {field.low} to {field.high}{also}"
        raise ValueError(message)
    return value


def _number(text: str, whole: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text):
        message = f"{whole[:40]!r} cannot be read; write numbers such as 5, 1-5, */15 or 1,15"
        raise ValueError(message)
    return int(text)
