"""Which gauges are second signals: those that moved, or that nothing speaks against."""

import dataclasses
from typing import Any

import pytest

from rightsizer.findings.second_signals import (
    joined,
    movements,
    silent_of,
    silent_signals,
    without_silent,
)
from rightsizer.model import FindingName, SecondSignal, Usage, Verdict
from tests.rightsizer.build import busy_usage, device, findings, idle_usage, pod, usages, workload

THOR: dict[str, Any] = {"power_mean_w": None, "power_peak_w": None, "memory_peak_bytes": None}
DEAD: dict[str, Any] = {"activity_peak": 0.95, "activity_mean": 0.3, "traffic_peak": 0.0}
SPINS: dict[str, Any] = {"activity_mean": 1.0, "activity_peak": 1.0}
STILL: dict[str, Any] = {"power_mean_w": 30.0, "power_peak_w": 30.0}
CASES = {
    "traffic-moved": ((busy_usage(), idle_usage(1)), set()),
    "traffic-moved-elsewhere": ((busy_usage(), idle_usage(1, **THOR)), set()),
    "traffic-stood-still-at-work": ((idle_usage(**THOR, **DEAD),), {SecondSignal.TRAFFIC}),
    "traffic-stood-still-on-another-board": (
        (idle_usage(**THOR, **DEAD), idle_usage(1)),
        {SecondSignal.TRAFFIC},
    ),
    "spun-all-the-time": ((idle_usage(activity_peak=1.0, activity_mean=1.0, **STILL),), set()),
    "spun-beside-an-idle-board": ((idle_usage(**SPINS), idle_usage(1)), set()),
    "spun-beside-an-idle-instance": (
        tuple(
            idle_usage(device=dataclasses.replace(device(), instance=instance), **values)
            for instance, values in (("1", SPINS), ("2", {}))
        ),
        set(),
    ),
    "constant-power-of-each-board": (
        (busy_usage(activity_mean=0.3, **STILL), idle_usage(1, power_mean_w=40.0, power_peak_w=40.0)),
        {SecondSignal.POWER},
    ),
    "hardly-worked": ((idle_usage(activity_peak=0.05),), set()),
    "both-stood-still-at-work": ((idle_usage(**DEAD, **STILL),), {SecondSignal.TRAFFIC, SecondSignal.POWER}),
    "never-worked": ((idle_usage(),), set()),
    "never-worked-at-constant-power": ((idle_usage(**STILL),), set()),
    "never-worked-without-memory-of-its-own": ((idle_usage(**THOR),), {SecondSignal.TRAFFIC}),
    "impossible-values-show-nothing": ((idle_usage(**DEAD, invalid=("x",)),), set()),
    "judged-by-its-board": ((idle_usage(is_by_board=True, memory_peak_bytes=None),), set()),
}


@pytest.mark.parametrize("name", CASES)
def test_gauge_that_stood_still_while_gpus_worked_is_no_signal(name: str) -> None:
    """On any board of the model, whatever part of the fleet or of the record shows it."""
    seen, silent = CASES[name]
    found = joined(*(movements([one]) for one in seen))
    assert set(silent_of(seen[-1], silent_signals(found))) == silent
    assert found == movements(seen)


@pytest.mark.parametrize(
    ("own", "silent"),
    [
        pytest.param((idle_usage(**DEAD),), {SecondSignal.TRAFFIC}, id="traffic"),
        pytest.param(
            (idle_usage(), idle_usage(activity_peak=0.9, activity_mean=0.1)),
            {SecondSignal.TRAFFIC},
            id="in-the-record",
        ),
        pytest.param((busy_usage(activity_mean=0.3, **STILL),), {SecondSignal.POWER}, id="power"),
        pytest.param((idle_usage(),), set(), id="never-worked"),
        pytest.param((idle_usage(**THOR),), set(), id="never-worked-without-memory-or-power"),
        pytest.param((idle_usage(**{**DEAD, "activity_mean": 0.001}),), set(), id="one-burst"),
        pytest.param((idle_usage(**SPINS),), set(), id="spins-all-the-time"),
        pytest.param((idle_usage(**DEAD), idle_usage(traffic_peak=0.1)), set(), id="moved-at-times"),
    ],
)
@pytest.mark.parametrize("instance", ["", "1"])
def test_gauge_that_stood_still_on_its_board_is_no_signal_there_only(
    own: tuple[Usage, ...], silent: set[SecondSignal], instance: str
) -> None:
    """Whatever another board of the model shows; a board that never worked takes its word."""

    def on(one: Usage) -> Usage:
        return dataclasses.replace(one, device=dataclasses.replace(one.device, instance=instance))

    other, idle = on(busy_usage(1, activity_mean=0.3)), on(idle_usage(2))
    known = silent_signals(movements([other, *map(on, own), idle]))
    assert [set(silent_of(one, known)) for one in (on(own[0]), other, idle)] == [silent, set(), set()]


def test_gauge_of_a_model_says_nothing_about_others() -> None:
    """Nor do whole GPUs about MIG instances, nor GPUs of an unknown model about each other."""

    def of(index: int, **names: str) -> Usage:
        one = idle_usage(index, **DEAD) if index == 0 else idle_usage(index)
        return dataclasses.replace(one, device=dataclasses.replace(one.device, **names))

    for names in ({"model": "other"}, {"instance": "1"}):
        silent = silent_signals(movements([of(0), of(1, **names)]))
        assert [bool(silent_of(of(index, **names if index else {}), silent)) for index in (0, 1)] == [
            True,
            False,
        ]
    nameless = silent_signals(movements([of(0, model=""), of(1, model="")]))
    assert {key for key, _ in nameless} == {("", of(0).device.uuid, False)}


def _board(usage: Usage) -> tuple[str, str, bool]:
    return usage.device.model, usage.device.uuid, False


@pytest.mark.parametrize(
    ("usage", "silent", "name"),
    [
        pytest.param(idle_usage(), {SecondSignal.TRAFFIC}, FindingName.IDLE, id="power-is-left"),
        pytest.param(idle_usage(), {SecondSignal.POWER}, FindingName.IDLE, id="traffic-is-left"),
        pytest.param(idle_usage(), set(SecondSignal), FindingName.NO_DATA, id="none-is-left"),
        pytest.param(
            idle_usage(**THOR), {SecondSignal.TRAFFIC}, FindingName.NO_DATA, id="there-was-no-other"
        ),
        pytest.param(
            idle_usage(power_mean_w=0.0, power_peak_w=0.0),
            {SecondSignal.TRAFFIC},
            FindingName.NO_DATA,
            id="no-board-draws-0-watts",
        ),
        pytest.param(idle_usage(**SPINS), set(), FindingName.STUCK, id="stuck-by-both"),
        pytest.param(
            idle_usage(**SPINS), {SecondSignal.TRAFFIC}, FindingName.CONFLICTING_SIGNALS, id="not-stuck"
        ),
    ],
)
def test_verdict_needs_a_second_signal_that_moves(
    usage: Usage, silent: set[SecondSignal], name: FindingName
) -> None:
    """Whatever finding asks for it; the reason names the gauges."""
    one = pod()
    known = {(_board(usage), signal) for signal in silent}
    seen = without_silent(usages((one, (usage,))), known)
    found = findings(workload(one, kind="Job"), seen, silent=known)
    assert found[0].name is name or (name is FindingName.IDLE and found[0].verdict is Verdict.ACT)
    if name is FindingName.NO_DATA:
        assert "no second signal: " in found[0].words[0]


def test_dead_gauge_is_not_a_missing_one() -> None:
    """A board is judged by its other signal, although this one moves on its neighbours."""
    item = workload(pod(), pod("w-1"), kind="Job")
    seen = usages((item.pods[0], (idle_usage(),)), (item.pods[1], (idle_usage(1),)))
    known = {(_board(idle_usage()), SecondSignal.TRAFFIC)}
    for silent, verdict in ((known, Verdict.ACT), (set[Any](), Verdict.UNKNOWN)):
        assert findings(item, without_silent(seen, known), silent=silent)[0].verdict is verdict
