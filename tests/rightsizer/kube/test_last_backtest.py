"""The figures of the last backtest, as a ConfigMap keeps them: what is read is what was written, or nothing."""

import datetime

import msgspec
import pytest

from rightsizer.kube.last_backtest import LastBacktest, PolicyFigures, parse

AT = datetime.datetime(2026, 11, 23, 4, tzinfo=datetime.UTC)
LAST = LastBacktest(
    AT, 480.0, (PolicyFigures("mine.yaml", 1234.5, 3086.25, 40, 3), PolicyFigures("b.yaml", 0, None, 0, 0))
)
WRITTEN = msgspec.json.encode(LAST).decode()


def test_last_backtest_written_is_read_as_it_was() -> None:
    """A price that is not known stays unknown."""
    assert parse(WRITTEN) == LAST


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{", "["),
        ('"freedGpuHours":1234.5', '"freedGpuHours":-1'),
        ('"freedGpuHours":1234.5', '"freedGpuHours":"many"'),
        ('"saved":3086.25', '"saved":1e999'),
        ('"replayedHours":480.0', '"replayedHours":0'),
        ("2026-11-23T04:00:00Z", "2026-11-23T04:00:00"),
        ("2026-11-23T04:00:00Z", "9026-11-23T04:00:00Z"),
        ('"stops":40', '"stops":null'),
        ('"name":"mine.yaml"', '"name":""'),
        ('"name":"mine.yaml"', f'"name":"{"x" * 70_000}"'),
    ],
)
def test_last_backtest_that_was_edited_is_invalid(before: str, after: str) -> None:
    """Whoever edits it makes no series of nonsense."""
    text = WRITTEN.replace(before, after)
    assert text != WRITTEN
    with pytest.raises(ValueError, match=r"cannot be read|no time zone"):
        parse(text)


def test_last_backtest_of_too_many_policies_is_invalid() -> None:
    """Each is a time series of `run`."""
    many = msgspec.structs.replace(LAST, policies=LAST.policies[1:] * 101)
    with pytest.raises(ValueError, match="length <= 100"):
        parse(msgspec.json.encode(many).decode())
