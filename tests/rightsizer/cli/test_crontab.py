"""Schedules as Kubernetes reads them: macros, weekdays, steps, either kind of day; what cannot be meant is refused."""

import datetime
import zoneinfo

import hypothesis
import hypothesis.strategies as st
import pytest

from rightsizer.cli.crontab import Crontab, parse_schedule
from rightsizer.cli.scheduler import trigger_of

UTC = datetime.UTC
MINUTE = datetime.timedelta(minutes=1)
BEGIN = datetime.datetime(2026, 11, 21, 0, 0, tzinfo=UTC)  # a Saturday


def _fires(
    text: str, *, after: datetime.datetime = BEGIN, zone: datetime.tzinfo = UTC
) -> datetime.datetime | None:
    """The first moment after another."""
    trigger = trigger_of(parse_schedule(text), zone, jitter=None)
    found = trigger.get_next_fire_time(None, after)
    return found if isinstance(found, datetime.datetime) else None


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("0 0 * * 0", "2026-11-22T00:00"),  # Sunday, which to APScheduler is Monday
        ("0 0 * * 1-5", "2026-11-23T00:00"),
        ("0 0 * * fri", "2026-11-27T00:00"),
        ("0 0 * * MON-WED", "2026-11-23T00:00"),
        ("0 0 * * */2", "2026-11-21T00:00"),  # Sunday, Tuesday, Thursday, Saturday
        ("0 0 ? * ?", "2026-11-21T00:00"),
        ("30 4 1,15 * 5", "2026-11-27T04:30"),  # the 1st, the 15th, and every Friday
        (
            "0 0 */10 * 3",
            "2026-11-21T00:00",
        ),  # a step restricts: the 1st, 11th, 21st and 31st, and every Wednesday
        ("0 0 */2 * 1", "2026-11-21T00:00"),  # odd days, and Mondays
        ("0 0 5 * */2", "2026-11-21T00:00"),
        ("0 0 ?/40 * 3", "2026-11-25T00:00"),
        ("0 0 */1 * 3", "2026-11-25T00:00"),  # that is no step
        ("0 0 1,* * 3", "2026-11-25T00:00"),  # nor is one star in a list a restriction
        ("5/15 3 * * *", "2026-11-21T03:05"),
        ("0 12 31 */2 *", "2027-01-31T12:00"),
        ("0 0 1 JAN *", "2027-01-01T00:00"),
        ("@hourly", "2026-11-21T00:00"),
        ("@daily", "2026-11-21T00:00"),
        ("@Midnight", "2026-11-21T00:00"),
        ("@weekly", "2026-11-22T00:00"),
        ("@monthly", "2026-12-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("  0   3  *  *  * ", "2026-11-21T03:00"),
    ],
)
def test_crontab_next_after_saturday_is_expected_time(text: str, first: str) -> None:
    """After Saturday 2026-11-21 00:00, that minute included; robfig/cron 3.0.1 gives the same."""
    expected = datetime.datetime.fromisoformat(first).replace(tzinfo=UTC)
    assert _fires(text) == expected


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("*/15 * * * *", 0.25),
        ("@hourly", 1),
        ("@daily", 24),
        ("0 9-17 * * *", 16),  # over night
        ("0 9-17 * * 1-5", 64),  # over the weekend
        ("0 0 1,15 * *", 17 * 24),
        ("* * 1 * *", 30 * 24 + 1 / 60),
        ("@weekly", 7 * 24),
        ("0 0 1 * 1", 7 * 24),  # either suffices
        ("0 0 29 2 *", (4 * 365 + 1) * 24),
    ],
)
def test_crontab_longest_gap_is_found(text: str, hours: float) -> None:
    """From one moment to the next, wherever in the day, the week, the month or the years it is."""
    schedule = parse_schedule(text)
    assert isinstance(schedule, Crontab)
    assert schedule.longest_gap() == datetime.timedelta(hours=hours)


def test_crontab_at_every_is_fixed_interval() -> None:
    """As robfig/cron has it beside the fields."""
    assert parse_schedule("@every 1h30m") == datetime.timedelta(hours=1, minutes=30)


def test_crontab_time_zone_follows_dst() -> None:
    """Three o'clock in Berlin is another hour in Greenwich before and after the change."""
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    winter = _fires("0 3 * * *", after=datetime.datetime(2027, 3, 27, 0, 0, tzinfo=UTC), zone=berlin)
    summer = _fires("0 3 * * *", after=datetime.datetime(2027, 3, 28, 12, 0, tzinfo=UTC), zone=berlin)
    assert winter is not None
    assert summer is not None
    assert (winter.astimezone(UTC).hour, summer.astimezone(UTC).hour) == (2, 1)


_CHANGES = {
    # Zone, local day of the change, and what of it does not exist or comes twice.
    "berlin-spring": ("Europe/Berlin", datetime.date(2026, 3, 29), 2, -1),
    "berlin-autumn": ("Europe/Berlin", datetime.date(2026, 10, 25), 2, 1),
    "york-spring": ("America/New_York", datetime.date(2026, 3, 8), 2, -1),
    "york-autumn": ("America/New_York", datetime.date(2026, 11, 1), 1, 1),
}


def _all(text: str, zone: datetime.tzinfo, begin: datetime.datetime, days: int) -> list[datetime.datetime]:
    """Every moment from an instant on, as the scheduler asks for them."""
    trigger = trigger_of(parse_schedule(text), zone, jitter=None)
    end = begin + datetime.timedelta(days=days)
    found = []
    at = trigger.get_next_fire_time(None, begin)
    while at < end:
        found.append(at)
        at = trigger.get_next_fire_time(at, at + datetime.timedelta(seconds=1))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("change", _CHANGES)
@pytest.mark.parametrize(
    ("text", "days"),
    [
        *(("@daily", 9), ("@hourly", 4), ("*/15 * * * *", 3), ("30 2 * * *", 5), ("30 1 * * *", 5)),
        *(("@weekly", 60), ("@monthly", 200), ("0 22 * * *", 5), ("0 3 * * 1-5", 12)),
    ],
)
def test_crontab_dst_change_matches_each_wall_clock_minute(change: str, text: str, days: int) -> None:
    """Every minute that the wall clock shows and that is meant comes, as often as it shows it, and no other."""
    name, day, _, _ = _CHANGES[change]
    zone = zoneinfo.ZoneInfo(name)
    begin = datetime.datetime.combine(day, datetime.time(12), UTC) - datetime.timedelta(days=days / 2)
    crontab = parse_schedule(text)
    assert isinstance(crontab, Crontab)
    minutes = (begin + number * MINUTE for number in range(days * 24 * 60))
    expected = [one for one in minutes if crontab.matches(one.astimezone(zone))]
    assert [one.astimezone(UTC) for one in _all(text, zone, begin, days)] == expected
    assert expected


@pytest.mark.parametrize("change", _CHANGES)
def test_crontab_dst_day_daily_once_hourly_23_or_25_times(change: str) -> None:
    """One @daily; 23 or 25 of @hourly; what is left out does not come that day, what is shown twice comes twice."""
    name, day, hour, more = _CHANGES[change]
    zone = zoneinfo.ZoneInfo(name)
    begin = datetime.datetime.combine(day, datetime.time(), zone).astimezone(UTC)
    hours = datetime.timedelta(hours=24 + more) / datetime.timedelta(days=1)

    def count(text: str) -> int:
        trigger = trigger_of(parse_schedule(text), zone, jitter=None)
        found, at = 0, trigger.get_next_fire_time(None, begin)
        while (at - begin) / datetime.timedelta(days=1) < hours:
            found, at = found + 1, trigger.get_next_fire_time(at, at)
        return found

    assert (count("@daily"), count("@hourly")) == (1, 24 + more)
    assert count("*/15 * * * *") == 4 * (24 + more)
    assert count(f"30 {hour} * * *") == 1 + more


@pytest.mark.parametrize("end", [0, 1], ids=["least", "most"])
def test_crontab_jitter_delays_without_repeating(monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """However much is drawn."""
    jitter = datetime.timedelta(minutes=5)
    monkeypatch.setattr("random.uniform", lambda *ends: ends[end])
    trigger = trigger_of(parse_schedule("@hourly"), UTC, jitter=jitter)
    first = trigger.get_next_fire_time(None, BEGIN)
    second = trigger.get_next_fire_time(first, first)
    assert first - BEGIN == end * jitter
    assert second - first == datetime.timedelta(hours=1)


def test_crontab_february_29_waits_for_leap_year() -> None:
    """Also over 2100, which has none."""
    after = datetime.datetime(2096, 3, 1, tzinfo=UTC)
    assert _fires("0 0 29 2 *", after=after) == datetime.datetime(2104, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 0 * * 7", "Sunday is 0"),
        ("0 0 * * 8", "no weekday"),
        ("60 * * * *", "no minute"),
        ("0 24 * * *", "no hour"),
        ("0 0 0 * *", "no day of the month"),
        ("0 0 * 13 *", "no month"),
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4,6,9,11 *", "never comes"),
        ("0 0 * *", "has 4 fields"),
        ("0 0 * * * *", "has 6 fields"),
        ("", "has 0 fields"),
        ("@fortnightly", "has 1 fields"),
        ("@reboot", "has 1 fields"),
        ("*/0 * * * *", "at least 1"),
        ("5-1 * * * *", "backwards"),
        ("a * * * *", "cannot be read"),
        ("-5 * * * *", "cannot be read"),
        ("1,,2 * * * *", "cannot be read"),
        ("TZ=Europe/Berlin 0 0 * * *", "--time-zone"),
        ("@every soon", "not a duration"),
        ("@every 0s", "longer than zero"),
    ],
)
def test_crontab_invalid_expression_is_refused_with_hint(text: str, words: str) -> None:
    """It is refused with what would be right."""
    with pytest.raises(ValueError, match=words):
        parse_schedule(text)


_PARTS = st.tuples(
    st.sampled_from(["*", "0", "*/20", "7,51", "10-12", "50/4"]),
    st.sampled_from(["*", "0", "*/7", "3-5", "23"]),
    st.sampled_from(["*", "?", "1", "29", "*/9", "10-20/5", "31"]),
    st.sampled_from(["*", "2", "jan-mar", "*/5", "12"]),
    st.sampled_from(["*", "?", "0", "sun", "1-5", "*/3", "sat,wed"]),
)


@hypothesis.given(_PARTS, st.integers(0, 4 * 365 * 86_400))
def test_crontab_next_is_first_matching_minute(parts: tuple[str, ...], second: int) -> None:
    """Never at another, and at none between."""
    try:
        crontab = parse_schedule(" ".join(parts))
    except ValueError:
        hypothesis.reject()
    assert isinstance(crontab, Crontab)
    after = BEGIN + datetime.timedelta(seconds=second)
    found = _fires(" ".join(parts), after=after)
    assert found is not None
    assert crontab.matches(found)
    minute = after.replace(second=0)
    minute += MINUTE if minute < after else datetime.timedelta()
    for _ in range(2_000):
        if minute >= found:
            break
        assert not crontab.matches(minute)
        minute += MINUTE
