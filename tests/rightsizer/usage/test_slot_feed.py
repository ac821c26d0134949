"""Windows from kept slots are those that Prometheus answers, on a real one."""

import dataclasses
import datetime
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.model import Usage
from rightsizer.usage.kept_slots import KeptSlots
from rightsizer.usage.recording_rules import RecordingRules
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import COPY, DAY, ENGINE, HOUR, POWER, UTIL, Metrics, Value, idle, near, within
from tests.rightsizer.relay import Relay

MINUTE = datetime.timedelta(minutes=1)
BLANK = 2_147_483_632.0
"""DCGM's value for "unknown"."""


@pytest.fixture
def metrics(tmp_path: pathlib.Path) -> Iterator[Metrics]:
    """Pods at work, idle, lost, moved, gone and come, with values that cannot be; alone in a Prometheus."""
    with Prometheus(tmp_path / "own") as own:
        found = Metrics(own, mark=False)
        found.at = found.at.replace(second=0, microsecond=0)
        pods: list[tuple[dict[str, Value], dict[str, Any]]] = [
            (idle(**{UTIL: within(700, 600, 80), POWER: within(700, 600, 500, 118)}), {"pod": "a"}),
            (idle(**{UTIL: within(32, 28, 60)}), {"pod": "awake"}),
            (idle(**{UTIL: within(3.5, 2.5, 20)}), {"pod": "burst"}),
            ({**idle(), ENGINE: 0.3, COPY: within(300, 299, -5, 2)}, {"pod": "negative"}),
            (idle(**{UTIL: within(300, 299, math.nan)}), {"pod": "nan"}),
            (idle(**{UTIL: within(300, 299, BLANK)}), {"pod": "blank"}),
            (idle(), {"pod": "gap", "until": 3 * HOUR}),
            (idle(), {"pod": "gap", "since": 2 * HOUR}),
            (idle(), {"pod": "gone", "until": 40 * MINUTE}),
            (idle(), {"pod": "come", "since": 30 * MINUTE}),
            (idle(**{UTIL: 50}), {"pod": "moved", "instance": "1", "until": 10 * HOUR}),
            (idle(**{UTIL: 10}), {"pod": "moved", "instance": "2", "since": 10 * HOUR}),
        ]
        for values, more in pods:
            found.write(values, **{"since": DAY + 2 * HOUR, **more})
        yield found


def _rounded(usage: Usage) -> tuple[object, ...]:
    """Up to the five minutes by which a window of whole slots may end earlier."""
    values = {field.name: getattr(usage, field.name) for field in dataclasses.fields(usage)}
    values |= {"coverage": near(usage.coverage, abs=0.045), "holes": near(usage.holes, abs=1)}
    for name, width in (("activity_mean", 0.003), ("activity_floor", 0.003), ("power_mean_w", 1.0)):
        if values[name] is not None:
            values[name] = near(values[name], abs=width)
    values["samples_expected"] = near(usage.samples_expected or 0, rel=0.02)
    return tuple(sorted(values.items()))


@pytest.mark.prometheus
@pytest.mark.parametrize("recording", [RecordingRules.TRUSTED, RecordingRules.OFF])
def test_windows_of_kept_slots_are_those_from_scratch(metrics: Metrics, recording: RecordingRules) -> None:
    """Each cycle asks for the new slots and the late ones; the last minutes are no part of a slot, and seen too."""
    if recording is RecordingRules.TRUSTED:
        metrics.record(DAY + 2 * HOUR)
    kept, compared = KeptSlots(lambda *each: compared.append(each), verified_every=4), []
    with Relay(metrics.prometheus.url) as relay:
        for ago in (60, 45, 40, 30, 15, 2, 0):
            at = metrics.at - ago * MINUTE + datetime.timedelta(seconds=0.1 * ago)
            relay.asked.clear()
            signal = metrics.signal(url=relay.url, kept=kept, recording=recording)
            fresh = metrics.signal(recording=recording)
            for window in (DAY, 4 * HOUR, 2 * HOUR):
                found, scratch = signal.usages(window, at), fresh.usages(window, at)
                assert found.keys() == scratch.keys()
                for pod, usages in scratch.items():
                    assert [_rounded(one) for one in found[pod]] == [_rounded(one) for one in usages], pod
            ((burst,),) = (found[metrics.space, "burst"],)
            assert burst.activity_peak == near(0.2 if ago < 4 else 0)
            assert not any("[1440m]" in query and "over_time" in query for query in relay.asked)
    assert {pod: one.invalid for (_, pod), (one,) in signal.usages(DAY, at).items() if one.invalid} == {
        "negative": (COPY,),
        "nan": (UTIL,),
        "blank": (UTIL,),
    }
    assert compared
    assert not any(differing for _, differing in compared)
