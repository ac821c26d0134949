"""The small values of a policy file: durations, names and patterns, shares, times of day, dates, zones. Pure.

Each error says what would be right; `policy_file` adds the line.
"""

import datetime
import decimal
import difflib
import fnmatch
import functools
import re
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import pydantic

from rightsizer.config import parse_duration
from rightsizer.kube.owner_kinds import OWNERS


def not_all(pattern: str) -> str:
    """Refuse a pattern that matches everything, or every name of some length: `*`, `**`, `?*`.

    Raises:
        ValueError: It is one.
    """
    if "*" in pattern and set(pattern) <= {"*", "?"}:
        instead = "remove it; to match all workloads, write match: {everything: true}"
        message = f"{pattern!r} matches everything; {instead}"
        raise ValueError(message)
    return pattern


_OTHERS: Final = (
    # The scheduler's own, OpenShift's, KubeVirt's, Katib's, Dask's, OpenKruise's, Seldon's
    *(
        "Node",
        "PodGroup",
        "DeploymentConfig",
        "VirtualMachine",
        "VirtualMachineInstance",
        "Experiment",
        "Trial",
    ),
    *("DaskCluster", "CloneSet", "SeldonDeployment"),
)
KINDS: Final = tuple(sorted({*(row.kind for row in OWNERS), *_OTHERS}))
"""Kinds under which pods are found. Others are written with their API group, so that a slip is not taken for one."""

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_HOURS = 24
_TIME = re.compile(r"([01][0-9]|2[0-4]):([0-5][0-9])")
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HIGHEST_SHARE = 100
_YEARS = range(2020, 2100)
_GLOB = r"^(?![*?]*\*[*?]*$)(?!\s)(?!.*\s$)(?!.*(\.\*|\.\+))[^\\^$|()\[\]{}]*$"
"""The same rules as those of `Pattern`, as a regular expression for the schema."""


class Part(pydantic.BaseModel):
    """A mapping in the file, whose fields are known and strictly typed."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


def _duration(value: object) -> object:
    """Accept only Prometheus's notation: 24 alone could be seconds or hours."""
    if isinstance(value, datetime.timedelta):
        return value
    if not isinstance(value, str):
        message = "write a duration as text with a unit, such as 30m, 24h or 7d"
        raise ValueError(message)  # noqa: TRY004 - pydantic turns ValueErrors into problems
    return parse_duration(value)


def duration_text(span: datetime.timedelta) -> str:
    """A duration as files write it, in the largest unit that divides it: 24h rather than 1d, as people do."""
    seconds = round(span.total_seconds())
    for unit, size, least in (("d", 86_400, 2), ("h", 3_600, 1), ("m", 60, 1)):
        if seconds % size == 0 and seconds >= least * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


Duration = Annotated[
    datetime.timedelta,
    pydantic.BeforeValidator(_duration),
    pydantic.PlainSerializer(duration_text, when_used="json"),
    pydantic.WithJsonSchema({"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d|w))+$"}),
]


def within(low: datetime.timedelta, high: datetime.timedelta, advice: str = "") -> pydantic.AfterValidator:
    """A check that a duration is in a range."""
    ends = f"{duration_text(low)} to {duration_text(high)}" if low else f"at most {duration_text(high)}"

    def check(span: datetime.timedelta) -> datetime.timedelta:
        if not low <= span <= high:
            message = f"must be {ends}{advice}"
            raise ValueError(message)
        return span

    return pydantic.AfterValidator(check)


def one_of(names: Sequence[str], refusal: str) -> Callable[[object], object]:
    """A validator that refuses other names, and suggests the closest one."""

    def check(value: object) -> object:
        if value in names:
            return value
        close = difflib.get_close_matches(str(value), names, n=1)
        hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(names)}"
        message = f"{refusal}; {hint}"
        raise ValueError(message)

    return check


def known_kind(value: str) -> str:
    """Refuse unknown kinds: a rule for them would protect nothing."""
    if "." in value or any(fnmatch.fnmatchcase(kind, value) for kind in KINDS):
        return value
    close = difflib.get_close_matches(value, KINDS, n=1, cutoff=0.0)
    hint = f"did you mean {close[0]}? Write a custom kind as {value}.GROUP"
    message = f"unknown kind {value}; {hint}"
    raise ValueError(message)


def _readable(pattern: str) -> str:
    """Refuse regular expressions: as globs they match nothing."""
    if pattern != pattern.strip():
        message = f"{pattern!r} begins or ends with a space; remove it"
        raise ValueError(message)
    if re.search(r"\.\*|\.\+|[\^$|()\[\]{}\\]", pattern):
        message = (
            f"{pattern!r} looks like a regular expression; patterns only support * and ?, such as team-*"
        )
        raise ValueError(message)
    return pattern


Pattern = Annotated[
    str,
    pydantic.Field(max_length=253),
    pydantic.AfterValidator(_readable),
    pydantic.AfterValidator(not_all),
    pydantic.WithJsonSchema({"type": "string", "maxLength": 253, "pattern": _GLOB}),
]
"""A glob that does not match everything."""


def _not_empty(text: str) -> str:
    if not text:
        message = "is empty; write a name or a pattern such as team-*"
        raise ValueError(message)
    return text


Name = Annotated[
    Pattern,
    pydantic.AfterValidator(_not_empty),
    pydantic.WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 253, "pattern": _GLOB}),
]
"""A glob for objects that always have a name."""

Kind = Annotated[Name, pydantic.AfterValidator(known_kind)]
_Some = pydantic.Field(min_length=1, strict=False)
Classes = Annotated[tuple[Pattern, ...], _Some]
Names = Annotated[tuple[Name, ...], _Some]
Kinds = Annotated[tuple[Kind, ...], _Some]


def _share(value: object) -> object:
    if isinstance(value, decimal.Decimal):
        return value
    found = _SHARE.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < decimal.Decimal(found[1]) <= _HIGHEST_SHARE:
        message = "write a share as text above 0% and up to 100%, such as '10%'"
        raise ValueError(message)
    return decimal.Decimal(found[1])


Share = Annotated[
    decimal.Decimal,
    pydantic.BeforeValidator(_share),
    pydantic.PlainSerializer(lambda share: f"{share}%"),
    pydantic.WithJsonSchema(
        {"type": "string", "pattern": r"^(?!0+(\.0+)?%)(100(\.0+)?|[1-9]?[0-9](\.[0-9]+)?)%$"}
    ),
]
"""A percentage."""


def _time(value: object) -> object:
    """Minutes since midnight."""
    if not isinstance(value, str) or not (found := _TIME.fullmatch(value)):
        message = "write a time of day as hours and minutes, from 00:00 to 24:00, such as 22:00"
        raise ValueError(message)
    minutes = int(found[1]) * 60 + int(found[2])
    if minutes > _HOURS * 60:
        message = f"{value!r} is not a time of day; the latest is 24:00"
        raise ValueError(message)
    return minutes


Minutes = Annotated[
    int,
    pydantic.BeforeValidator(_time),
    pydantic.WithJsonSchema({"type": "string", "pattern": r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"}),
]
"""A time of day, as minutes since midnight by the wall clock."""


def _days(value: object) -> object:
    """Days and ranges of days → numbers, Monday is 0."""
    if not isinstance(value, (list, tuple)) or not value:
        message = "write a list of days or ranges of days, such as [mon-fri] or [sat, sun]"
        raise ValueError(message)
    return tuple(sorted({number for text in value for number in _range(text)}))


def _range(text: object) -> list[int]:
    first, dash, last = text.partition("-") if isinstance(text, str) else ("", "", "")
    last = last if dash else first
    if first not in DAYS or last not in DAYS:
        close = difflib.get_close_matches(str(text).lower()[:3], DAYS, n=1)
        hint = f", did you mean {close[0]}" if close else ""
        message = f"{text!r} is not a day{hint}; days are {', '.join(DAYS)}, or a range such as mon-fri"
        raise ValueError(message)
    begin, end = DAYS.index(first), DAYS.index(last)
    return [number % 7 for number in range(begin, end + 1 if begin <= end else end + 8)]


_DAY = f"({'|'.join(DAYS)})"
Days = Annotated[
    tuple[int, ...],
    pydantic.BeforeValidator(_days),
    pydantic.WithJsonSchema(
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "string", "pattern": rf"^{_DAY}(-{_DAY})?$"},
        }
    ),
]


def _date(value: object) -> object:
    if isinstance(value, datetime.date):
        return value
    try:
        found = isinstance(value, str) and _DATE.fullmatch(value) and datetime.date.fromisoformat(value)
    except ValueError:
        message = f"{value!r} is not a date; write year, month and day, such as 2026-12-20"
        raise ValueError(message) from None
    if not found:
        message = "write a date as year, month and day, such as 2026-12-20"
        raise ValueError(message)
    if found.year not in _YEARS:
        message = f"{value!r} is outside the years {_YEARS[0]} to {_YEARS[-1]}; check the year"
        raise ValueError(message)
    return found


Date = Annotated[
    datetime.date,
    pydantic.BeforeValidator(_date),
    pydantic.WithJsonSchema(
        {"type": "string", "pattern": r"^20[2-9]\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"}
    ),
]


@functools.lru_cache(maxsize=1)
def _zones() -> tuple[str, ...]:
    return tuple(sorted(name for name in zoneinfo.available_timezones() if "/" in name))


def _zone(name: str) -> str:
    """Refuse abbreviations such as EST: they have no daylight saving time."""
    if name == "UTC":
        return name
    if "/" in name and not name.startswith(("posix/", "right/")) and _exists(name):
        return name
    last = {zone.rpartition("/")[2].lower(): zone for zone in _zones()}
    close = difflib.get_close_matches(
        name.rpartition("/")[2].lower().replace(" ", "_"), last, n=1, cutoff=0.85
    )
    hint = f"; did you mean {last[close[0]]}?" if close else ""
    message = f"{name!r} is not a time zone; write UTC or an IANA name such as Europe/Berlin{hint}"
    raise ValueError(message)


def _exists(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False  # OSError: it is a folder of zones
    return True


Zone = Annotated[
    str,
    pydantic.AfterValidator(_zone),
    pydantic.WithJsonSchema({"type": "string", "pattern": r"^(UTC|[A-Z][A-Za-z_]+/[A-Za-z0-9_+/-]+)$"}),
]
