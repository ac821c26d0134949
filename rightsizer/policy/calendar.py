"""Maintenance windows and freezes at an instant: may anything be changed now, and if not, when again? Pure.

Times are the wall clock's of their zone. A time that does not exist on a day (clocks go forward) is the first instant
after it; one that comes twice (clocks go back) is the first of the two. So a window that begins in the gap begins after
it, one in the fold happens once, and each lasts as long as the wall clock says.
"""

import datetime
import functools
import zoneinfo
from collections.abc import Iterator

from rightsizer.model import Blocker, BlockerCode
from rightsizer.policy.limits import Freeze, MaintenanceWindow
from rightsizer.policy.schema import Policy

_DAY = datetime.timedelta(days=1)
_NOW = range(-2, 2)
"""Days, from today's, on which a window may begin that is open now."""
_SOON = range(-2, 15)
"""The same, with the next beginning of any weekly window, even where a zone left out a day."""


def closed_reason(policy: Policy, at: datetime.datetime) -> Blocker | None:
    """Why nothing may be changed at an instant; None in an open maintenance window."""
    for freeze in policy.freezes:
        if _contains(_frozen(freeze), at):
            return Blocker(
                BlockerCode.FREEZE,
                f"frozen from {freeze}{_again(policy, at)}",
                until=next_opening(policy, at),
            )
    windows = policy.maintenanceWindows
    if not windows or any(_contains(span, at) for window in windows for span in _spans(window, at, _NOW)):
        return None
    told = "; ".join(map(str, windows))
    return Blocker(BlockerCode.WINDOW, f"outside the maintenance windows ({told}){_again(policy, at)}")


def next_opening(policy: Policy, at: datetime.datetime) -> datetime.datetime | None:
    """The first instant, not before this one, at which changes may be made; None where there will be none."""
    instant = at.astimezone(datetime.UTC)
    # Each turn leaves a freeze for good, or comes to the beginning of a window.
    for _ in range(2 * len(policy.freezes) + 2):
        ends = [
            end
            for begin, end in map(_frozen, policy.freezes)
            if begin <= instant < end  # several may follow upon each other
        ]
        if ends:
            instant = max(ends)
            continue
        windows = policy.maintenanceWindows
        if not windows or any(
            _contains(span, instant) for window in windows for span in _spans(window, instant, _NOW)
        ):
            return instant
        starts = [
            begin for window in windows for begin, _ in _spans(window, instant, _SOON) if begin > instant
        ]
        if not starts:
            return None
        instant = min(starts)
    return None


def _again(policy: Policy, at: datetime.datetime) -> str:
    opening = next_opening(policy, at)
    return f"; next opening {opening:%Y-%m-%d %H:%M} UTC" if opening else ""


_Span = tuple[datetime.datetime, datetime.datetime]


def _contains(span: _Span, at: datetime.datetime) -> bool:
    return span[0] <= at < span[1]


def _frozen(freeze: Freeze) -> _Span:
    zone = _zone(freeze.zone)
    return instant_of(freeze.from_, 0, zone), instant_of(freeze.to + _DAY, 0, zone)


def _spans(window: MaintenanceWindow, at: datetime.datetime, days: range) -> Iterator[_Span]:
    """When the window is open, of those that begin on these days from today's; empty ones are left out."""
    zone = _zone(window.zone)
    today = at.astimezone(zone).date()
    minutes = window.to if window.to > window.from_ else window.to + _DAY // datetime.timedelta(minutes=1)
    for offset in days:
        day = today + offset * _DAY
        if day.weekday() in window.days:
            begin, end = instant_of(day, window.from_, zone), instant_of(day, minutes, zone)
            if begin < end:
                yield begin, end


def instant_of(day: datetime.date, minutes: int, zone: datetime.tzinfo) -> datetime.datetime:
    """The first instant (UTC) at which a zone's wall clock shows so many minutes after a day's midnight, or more."""
    wall = datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(minutes=minutes)
    instant = wall.replace(tzinfo=zone).astimezone(datetime.UTC)
    if _wall(instant, zone) == wall:
        return instant
    # It is left out. With fold=1 the offset after the gap is taken, which leads to an instant before it (PEP 495).
    before = wall.replace(tzinfo=zone, fold=1).astimezone(datetime.UTC)
    seconds = round((instant - before).total_seconds())
    low, high = 0, seconds
    while low < high:
        middle = (low + high) // 2
        if _wall(before + datetime.timedelta(seconds=middle), zone) >= wall:
            high = middle
        else:
            low = middle + 1
    return before + datetime.timedelta(seconds=low)


def _wall(instant: datetime.datetime, zone: datetime.tzinfo) -> datetime.datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo(name)
