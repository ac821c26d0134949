"""Windows from kept slots are those that Prometheus answers, on a real one."""

import dataclasses
import datetime
import json
import math
import pathlib
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import requests

from rightsizer.evidence import slot_table
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.model import Usage
from rightsizer.planning.measure import with_samples
from rightsizer.usage.recording_rules import RecordingRules
from simulator.prometheus import Prometheus
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics
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
            ({**idle(), COPY: within(300, 299, math.nan, 2)}, {"pod": "no-traffic"}),
            (idle(**{UTIL: within(300, 299, math.nan)}), {"pod": "nan"}),
            (idle(**{UTIL: within(300, 299, BLANK)}), {"pod": "blank"}),
            (idle(), {"pod": "gap", "until": 3 * HOUR}),
            (idle(), {"pod": "gap", "since": 2 * HOUR}),
            (idle(), {"pod": "gone", "until": 36 * MINUTE}),
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
    if COPY in usage.invalid:  # a peak that is none, once it is known
        values["traffic_peak"] = None
    values["samples_expected"] = near(usage.samples_expected or 0, rel=0.02)
    return tuple(sorted(values.items()))


@pytest.mark.prometheus
@pytest.mark.parametrize("recording", [RecordingRules.TRUSTED, RecordingRules.OFF])
def test_windows_of_kept_slots_are_those_from_scratch(metrics: Metrics, recording: RecordingRules) -> None:
    """Each cycle asks for the new slots and the late ones; the last minutes are no part of a slot, and seen too."""
    if recording is RecordingRules.TRUSTED:
        metrics.record(DAY + 2 * HOUR)
    compared: list[tuple[int, int]] = []
    kept = KeptTables(lambda *each: compared.append(each), print, verified_every=4)
    with Relay(metrics.prometheus.url) as relay:
        for ago in (60, 45, 40, 30, 15, 2, 0):
            at = metrics.at - ago * MINUTE + datetime.timedelta(seconds=0.1 * ago)
            relay.asked.clear()
            signal = metrics.signal(url=relay.url, tables=kept, recording=recording)
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
        "no-traffic": (COPY,),
        "nan": (UTIL,),
        "blank": (UTIL,),
    }
    assert compared
    assert not any(differing for _, differing in compared)


def _kept() -> KeptTables:
    """Not compared with anything but by the tests."""
    return KeptTables(print, print, verified_every=1_000_000)


@pytest.fixture
def busy(tmp_path: pathlib.Path) -> Iterator[Metrics]:
    """A pod that worked for eight minutes, and one that did not; alone in a Prometheus."""
    with Prometheus(tmp_path / "own") as own:
        found = Metrics(own, mark=False)
        for pod, values in (("busy", idle(**{UTIL: within(89, 81, 90)})), ("other", idle())):
            found.write(values, pod=pod, since=DAY + 5 * HOUR)
        yield found


@pytest.mark.prometheus
@pytest.mark.parametrize("lost", ["", "max_over_time", "count_over_time"])
@pytest.mark.parametrize("agos", [(90, 80, 70, 60, 50, 0), (90, 60, 30, 0), (80, 10, 0)])
def test_work_that_was_seen_is_not_forgotten(busy: Metrics, agos: Sequence[int], lost: str) -> None:
    """As by an answer of Thanos without one of its stores: HTTP 200, no warning, and none of the pod's series."""
    kept, asked, is_lost = _kept(), [""], [False]

    def without_pod(status: int, body: bytes) -> tuple[int, bytes]:
        answer = json.loads(body)
        if is_lost[0] and lost in asked[0] and answer["data"]["resultType"] in {"vector", "matrix"}:
            rows = answer["data"]["result"]
            answer["data"]["result"] = [row for row in rows if row["metric"].get("pod") != "busy"]
        return status, json.dumps(answer).encode()

    with Relay(busy.prometheus.url) as relay:
        relay.hook, relay.spoil = lambda query: asked.__setitem__(0, query), without_pod
        for ago in agos:
            is_lost[0] = ago == agos[-2]
            signal = busy.signal(url=relay.url, tables=kept, recording=RecordingRules.OFF)
            signal._prometheus.parallel = 1  # noqa: SLF001 - so that an answer belongs to the query before it
            found = signal.usages(DAY, busy.at - ago * MINUTE).get((busy.space, "busy"), ())
            peaks = [one.activity_peak for one in found]
            assert ago > 80 or peaks in ([near(0.9)], [None], []) or not found[0].is_fresh
    assert peaks == [near(0.9)]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("late", "peak"), [(UTIL, "activity_peak"), (COPY, "traffic_peak"), (POWER, "power_peak_w")]
)
def test_samples_that_came_too_late_are_met_by_the_second_look(busy: Metrics, late: str, peak: str) -> None:
    """It reads all samples of what looks idle; of others, work that was not seen changes nothing."""
    busy.write(idle(), pod="late", since=DAY + HOUR, until=84 * MINUTE)
    busy.write(idle(), pod="late", since=76 * MINUTE)
    kept, pod = _kept(), (busy.space, "late")
    for ago in (75, 60, 45, 30):
        busy.signal(tables=kept, recording=RecordingRules.OFF).usages(DAY, busy.at - ago * MINUTE)
    busy.write(idle(**{late: 90 if late != POWER else 400}), pod="late", since=84 * MINUTE, until=76 * MINUTE)
    signal = busy.signal(tables=kept, recording=RecordingRules.OFF)
    found, (scratch,) = (
        signal.usages(DAY, busy.at),
        busy.signal(recording=RecordingRules.OFF).usages(DAY, busy.at)[pod],
    )
    assert getattr(found[pod][0], peak) < getattr(scratch, peak)
    (usage,) = with_samples(found, signal.sampled(DAY, busy.at, of=[pod]))[pod]
    assert getattr(usage, peak) == near(getattr(scratch, peak))


@pytest.mark.prometheus
def test_kept_slots_of_a_series_that_ended_are_not_fresh(busy: Metrics) -> None:
    """Though the last whole slot has its samples."""
    busy.write(idle(), pod="ended", since=DAY + 2 * HOUR, until=13 * MINUTE)
    kept = _kept()
    for at in (busy.at - 64 * MINUTE, busy.at):
        found = busy.signal(tables=kept, recording=RecordingRules.OFF).usages(DAY, at)
    assert not found[busy.space, "ended"][0].is_fresh
    assert found[busy.space, "other"][0].is_fresh


@pytest.mark.prometheus
def test_window_that_is_shorter_than_any_of_slots_ends_now(busy: Metrics) -> None:
    """Also after a longer one, whose last slot ended before that, and which has no checks of its own."""
    busy.write(idle(), pod="ended", since=DAY, until=4 * MINUTE)
    busy.write({**idle(), COPY: lambda left: -(left % 2)}, pod="negative", since=DAY)
    busy.write({ENGINE: 0.5}, pod="renamed", since=3 * MINUTE)
    kept = _kept()
    for at in (busy.at - 21 * MINUTE, busy.at):
        signals = [busy.signal(tables=tables, recording=RecordingRules.OFF) for tables in (kept, None)]
        found = [[one.usages(window, at) for window in (DAY, MINUTE * 30)][-1] for one in signals]
    assert found[0] == found[1]
    assert found[0][busy.space, "ended"][0].coverage < 0.9
    assert found[0][busy.space, "negative"][0].invalid == (COPY,)
    assert found[0][busy.space, "renamed"][0].activity_peak == near(0.5)


@pytest.mark.prometheus
def test_windows_of_both_forms_are_kept(busy: Metrics) -> None:
    """While rules have not recorded the longest window yet; and a window of many days is asked as ever."""
    busy.record(8 * HOUR)
    kept = _kept()
    with Relay(busy.prometheus.url) as relay:
        for ago in (45, 30, 15, 0):
            signal = busy.signal(url=relay.url, tables=kept, recording=RecordingRules.TRUSTED)
            relay.asked.clear()
            relay.steps.clear()
            for window in (DAY, 4 * HOUR):
                signal.usages(window, busy.at - ago * MINUTE)
            assert max(relay.steps)[0] == (288 if ago >= 30 else 7)
        signal.usages(39 * DAY, busy.at)


@pytest.mark.prometheus
def test_windows_are_asked_whole_where_too_many_pods_come_and_go(
    busy: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their slots of a day would fill the memory."""
    monkeypatch.setattr(slot_table, "MOST_VALUES", 100)
    kept = _kept()
    for ago in (90, 60):
        at = busy.at - ago * MINUTE
        found = busy.signal(tables=kept, recording=RecordingRules.OFF).usages(2 * HOUR, at)
        assert found == busy.signal(recording=RecordingRules.OFF).usages(2 * HOUR, at)
    assert kept.is_full


@pytest.mark.prometheus
@pytest.mark.parametrize("recording", [RecordingRules.TRUSTED, RecordingRules.OFF])
@pytest.mark.parametrize("few", [1.0, 0.05])
def test_slots_of_new_pods_are_asked_for_by_queries_that_every_store_takes(
    busy: Metrics, monkeypatch: pytest.MonkeyPatch, few: float, recording: RecordingRules
) -> None:
    """VictoriaMetrics takes 16 KiB; where nearly all are new, as after a roll-out, no query names them."""
    monkeypatch.setattr(slot_table, "_FEW", few)
    new = [f"{'long-name-' * 18}{number}" for number in range(60)]
    for pod in new:
        busy.write(idle(), pod=pod, UUID=f"GPU-{pod[-2:]}", since=5 * HOUR, until=20 * MINUTE)
    if recording is RecordingRules.TRUSTED:
        busy.record(DAY)
    kept = _kept()
    with Relay(busy.prometheus.url) as relay:
        for hours in (6, 5.5, 1):
            relay.asked.clear()
            signal = busy.signal(url=relay.url, tables=kept, recording=recording)
            found = signal.usages(4 * HOUR, busy.at - hours * HOUR)
    assert {(busy.space, pod) for pod in new} <= found.keys()
    assert max(map(len, relay.asked)) <= 16_384
    assert any(new[0] in query for query in relay.asked) is (few == 1.0)


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM}")
@pytest.mark.prometheus
def test_samples_after_the_edge_of_a_slot_are_in_it_on_every_store(tmp_path: pathlib.Path) -> None:
    """VictoriaMetrics has no sample at the begin of a range in it, Prometheus 2 has."""
    with VictoriaMetrics(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        metrics.write(idle(), pod="other")
        edge_ms = round(metrics.at.replace(second=0, microsecond=0).timestamp()) * 1000
        times = [edge_ms - 10_000 * number + 1 for number in range(8640, 0, -1)]
        rows = [
            {
                "metric": {"__name__": name, "pod": "edge", "namespace": metrics.space, "UUID": "GPU-edge"},
                "timestamps": times,
                "values": [
                    90 if name == UTIL and (edge_ms + 1 - at) % 300_000 == 0 else value for at in times
                ],
            }
            for name, value in idle().items()
        ]
        text = "\n".join(map(json.dumps, rows))
        assert requests.post(f"{own.url}/api/v1/import", data=text, timeout=60).ok
        own.flush()
        signal = metrics.signal(tables=_kept(), recording=RecordingRules.OFF)
        assert signal.usages(DAY, metrics.at)[metrics.space, "edge"][0].activity_peak == near(0.9)
