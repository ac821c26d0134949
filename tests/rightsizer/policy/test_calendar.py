"""Maintenance windows and freezes are open when the wall clock of their zone says so, whatever the zone does to it."""

import datetime
import functools
import zoneinfo
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.model import BlockerCode
from rightsizer.policy.limits import closed_reason, next_opening
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import rule

MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _policy(*windows: dict[str, Any], freezes: list[dict[str, Any]] | None = None) -> Policy:
    document: dict[str, Any] = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "maintenanceWindows": list(windows),
        "freezes": freezes or [],
        "rules": [rule("all")],
    }
    return Policy.model_validate(document)


def _berlin(text: str, fold: int = 0) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=BERLIN, fold=fold)


NIGHTS = {"days": ["mon-fri"], "from": "22:00", "to": "06:00", "zone": "Europe/Berlin"}
GAP = {"from": "02:30", "to": "03:30", "zone": "Europe/Berlin"}  # 2026-03-29: 02:00 becomes 03:00
FOLD = {"from": "02:30", "to": "02:45", "zone": "Europe/Berlin"}  # 2026-10-25: 03:00 becomes 02:00
OVER_FOLD = {"from": "01:00", "to": "04:00", "zone": "Europe/Berlin"}
WHOLE_DAY = {"days": ["sun"], "from": "00:00", "to": "24:00", "zone": "Europe/Berlin"}


@pytest.mark.parametrize(
    ("window", "at", "expected"),
    [
        pytest.param(NIGHTS, _berlin("2026-11-20T21:59"), False, id="a-minute-before"),
        pytest.param(NIGHTS, _berlin("2026-11-20T22:00"), True, id="its-first-minute"),
        pytest.param(NIGHTS, _berlin("2026-11-21T05:59"), True, id="friday's-night-ends-on-saturday"),
        pytest.param(NIGHTS, _berlin("2026-11-21T06:00"), False, id="its-end-is-outside"),
        pytest.param(NIGHTS, _berlin("2026-11-21T23:00"), False, id="saturday-begins-none"),
        pytest.param(NIGHTS, _berlin("2026-11-23T03:00"), False, id="sunday's-night-is-not-monday's"),
        pytest.param(GAP, _berlin("2026-03-29T01:59"), False, id="before-the-gap"),
        pytest.param(GAP, _berlin("2026-03-29T03:00"), True, id="begins-after-the-gap"),
        pytest.param(GAP, _berlin("2026-03-29T03:29"), True, id="ends-by-the-wall-clock"),
        pytest.param(GAP, _berlin("2026-03-29T03:30"), False, id="ended"),
        pytest.param(FOLD, _berlin("2026-10-25T02:30"), True, id="in-the-fold-the-first-time"),
        pytest.param(FOLD, _berlin("2026-10-25T02:30", 1), False, id="in-the-fold-not-again"),
        pytest.param(OVER_FOLD, _berlin("2026-10-25T02:30", 1), True, id="over-the-fold-it-lasts"),
        pytest.param(OVER_FOLD, _berlin("2026-10-25T04:00"), False, id="until-the-wall-clock-says"),
        pytest.param(WHOLE_DAY, _berlin("2026-03-29T00:00"), True, id="a-day-of-23-hours-begins"),
        pytest.param(WHOLE_DAY, _berlin("2026-03-29T23:59"), True, id="a-day-of-23-hours-ends"),
        pytest.param(WHOLE_DAY, _berlin("2026-03-30T00:00"), False, id="the-next-day"),
    ],
)
def test_window_by_wall_clock_is_open(window: dict[str, Any], at: datetime.datetime, expected: bool) -> None:
    """Begin and end stand on the zone's clock; the day is the one on which it begins."""
    block = closed_reason(_policy(window), at)
    assert (block is None) is expected
    assert block is None or block.code is BlockerCode.CALENDAR


def test_window_none_is_always_open() -> None:
    """Nobody who writes none means never."""
    assert closed_reason(_policy(), _berlin("2026-11-20T12:00")) is None
    assert next_opening(_policy(), _berlin("2026-11-20T12:00")) == _berlin("2026-11-20T12:00")


def test_window_one_of_several_suffices() -> None:
    """They add up."""
    lunch = {"from": "12:00", "to": "13:00", "zone": "UTC"}
    both = _policy(NIGHTS, lunch)
    assert closed_reason(both, datetime.datetime(2026, 11, 21, 12, 30, tzinfo=datetime.UTC)) is None
    assert closed_reason(both, _berlin("2026-11-20T22:30")) is None


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("2026-12-19T23:59", True),
        ("2026-12-20T00:00", False),
        ("2027-01-06T23:59", False),
        ("2027-01-07T00:00", True),
    ],
)
def test_freeze_includes_both_ends(at: str, expected: bool) -> None:
    """Whole days of its zone; the reason stands beside what it blocks."""
    freeze = {"from": "2026-12-20", "to": "2027-01-06", "zone": "Europe/Berlin", "reason": "year's end"}
    block = closed_reason(_policy(freezes=[freeze]), _berlin(at))
    assert (block is None) is expected
    if block:
        assert block.code is BlockerCode.CALENDAR
        assert block.message == (
            "frozen from 2026-12-20 to 2027-01-06 Europe/Berlin (year's end); next opening 2027-01-06 23:00 UTC"
        )


def test_freeze_over_window_is_closed() -> None:
    """Nothing opens in it, and the next opening is a window after it, over freezes that follow upon each other."""
    freezes = [{"from": "2026-11-16", "to": "2026-11-18"}, {"from": "2026-11-19", "to": "2026-11-21"}]
    frozen = _policy(NIGHTS, freezes=freezes)
    block = closed_reason(frozen, _berlin("2026-11-20T23:00"))
    assert block is not None
    assert block.code is BlockerCode.CALENDAR
    assert next_opening(frozen, _berlin("2026-11-17T12:00")) == _berlin("2026-11-23T22:00")


def test_window_closed_names_next_opening() -> None:
    """The windows, and when the next one begins."""
    block = closed_reason(_policy(NIGHTS), _berlin("2026-11-21T12:00"))
    assert block is not None
    assert block.message == (
        "outside the maintenance windows (mon, tue, wed, thu, fri 22:00-06:00 Europe/Berlin); "
        "next opening 2026-11-23 21:00 UTC"
    )


@functools.cache
def _zones() -> list[str]:
    return sorted(name for name in zoneinfo.available_timezones() if "/" in name)


@functools.cache
def _transitions(name: str) -> list[datetime.datetime]:
    """The instants at which a zone's clocks are changed, 2020 to 2040; its first one where they never are."""
    zone = zoneinfo.ZoneInfo(name)
    instant = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    found = []
    while instant.year < 2040:
        if instant.astimezone(zone).utcoffset() != (instant + DAY).astimezone(zone).utcoffset():
            low, high = 0, 24 * 60
            while low < high:
                middle = (low + high) // 2
                is_new = (instant + middle * MINUTE).astimezone(zone).utcoffset() != instant.astimezone(
                    zone
                ).utcoffset()
                low, high = (low, middle) if is_new else (middle + 1, high)
            found.append(instant + low * MINUTE)
        instant += DAY
    return found or [datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[dict[str, Any], datetime.datetime]:
    """A window, and an instant at which its zone's clocks are changed; its times lie near that one half of the time."""
    name = draw(st.sampled_from(_zones()))
    transition = draw(st.sampled_from(_transitions(name)))
    local = transition.astimezone(zoneinfo.ZoneInfo(name))
    near = (local.hour * 60 + local.minute) % 1440
    times = st.integers(0, 1439) | st.integers(-150, 150).map(lambda offset: (near + offset) % 1440)
    begin = draw(times)
    end = draw((times | st.just(1440)).filter(lambda minute: minute != begin))
    days = draw(st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True))
    window = {"days": days, "from": _clock(begin), "to": _clock(end), "zone": name}
    return window, transition


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _open_minutes(window: dict[str, Any], first: datetime.datetime, count: int) -> list[bool]:
    """By walking the wall clock minute by minute: a window begins when it first shows its begin or more."""
    zone = zoneinfo.ZoneInfo(window["zone"])
    walls = [(first + number * MINUTE).astimezone(zone).replace(tzinfo=None) for number in range(count)]
    begin, end = (int(text[:2]) * 60 + int(text[3:]) for text in (window["from"], window["to"]))
    states = [False] * count
    for offset in range(-1, count // 1440 + 3):
        day = datetime.datetime.combine(walls[0].date(), datetime.time()) + offset * DAY
        if DAYS[day.weekday()] not in window["days"]:
            continue
        opens = day + begin * MINUTE
        closes = day + (end if end > begin else end + 1440) * MINUTE
        is_open_now, has_been = False, False
        for number, wall in enumerate(walls):
            if wall >= closes:
                break
            is_open_now = is_open_now or wall >= opens
            states[number] = states[number] or is_open_now
            has_been = True
        assert has_been or closes <= walls[0]
    return states


@hypothesis.given(_cases())
def test_window_over_zones_agrees_with_wall_clock(
    case: tuple[dict[str, Any], datetime.datetime],
) -> None:
    """Over zones and changes of their clocks: open and closed, minute by minute for a day on both sides."""
    window, transition = case
    rules = _policy(window)
    first = transition - 3 * DAY
    expected = _open_minutes(window, first, 5 * 1440)
    edges = [number for number in range(1, 5 * 1440) if expected[number] != expected[number - 1]]
    near = {number + offset for number in edges for offset in (-1, 0, 1)} | set(
        range(3 * 1440 - 90, 3 * 1440 + 90, 7)
    )
    for number in sorted(number for number in near | set(range(2880, 5760, 60)) if 2880 <= number < 5760):
        at = first + number * MINUTE
        assert (closed_reason(rules, at) is None) is expected[number], (
            at,
            at.astimezone(zoneinfo.ZoneInfo(window["zone"])),
        )


@hypothesis.given(_cases(), st.lists(st.tuples(st.integers(-5, 12), st.integers(0, 6)), max_size=3))
def test_next_opening_is_the_first_instant(
    case: tuple[dict[str, Any], datetime.datetime], frozen: list[tuple[int, int]]
) -> None:
    """It is open then, and was at no tried instant before."""
    window, transition = case
    day = transition.date()
    freezes = [
        {"from": str(day + begin * DAY), "to": str(day + (begin + length) * DAY), "zone": window["zone"]}
        for begin, length in frozen
    ]
    rules = _policy(window, freezes=freezes)
    opening = next_opening(rules, transition)
    assert opening is not None
    assert closed_reason(rules, opening) is None
    assert opening == transition or closed_reason(rules, opening - datetime.timedelta(seconds=1)) is not None
    span = opening - transition
    for part in range(20):
        at = transition + span * part / 20
        assert at == opening or closed_reason(rules, at) is not None
