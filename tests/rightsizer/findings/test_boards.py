"""MIG instances without utilization: idle while their whole board was, by idle boards of its model, else unknown."""

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.findings.stuck import board_levels, by_boards
from rightsizer.model import BoardLevel, Device, FindingName, Usage, Verdict
from simulator.gpus.cards import CARDS
from simulator.nodes.physics import Load, regime
from simulator.workloads.behavior import PERIOD_S
from tests.rightsizer.build import MANY, device, findings, idle_usage, pod, usages, workload
from tests.rightsizer.metrics import near

A100 = "NVIDIA A100-SXM4-80GB"
CARD = "A100-SXM4-80GB"
UUID = device(0).uuid
DARK = Usage(device(0, model=A100, instance="7"), memory_peak_bytes=9e9)
LEVEL = BoardLevel(70.0, 210e6)
EMPTY_BYTES = 64.0 * 2**20
ACT, UNKNOWN = (FindingName.IDLE, Verdict.ACT), (FindingName.NO_DATA, Verdict.UNKNOWN)


def _board(uuid: str = UUID, **changes: Any) -> Usage:
    values: dict[str, Any] = {
        "device": Device(uuid, model=A100),
        "memory_peak_bytes": 40e9,
        "power_mean_w": 61.0,
        "power_peak_w": 63.0,
        "clock_peak_hz": 210e6,
        "coverage": 1.0,
        "is_fresh": True,
    }
    return Usage(**{**values, **changes})


def _found(
    board: Usage | None, used: Usage = DARK, level: BoardLevel | None = LEVEL
) -> tuple[FindingName, Verdict]:
    item = workload(pod())
    boards, levels = {UUID: board} if board else {}, {A100: level} if level else {}
    finding = findings(item, by_boards(usages((item.pods[0], (used,))), boards, levels))[0]
    return finding.name, finding.verdict


@pytest.mark.parametrize(
    ("board", "level", "expected"),
    [
        (_board(), LEVEL, ACT),
        (_board(traffic_peak=0.0), LEVEL, ACT),
        (None, LEVEL, UNKNOWN),
        (_board(), None, UNKNOWN),
        (_board(power_peak_w=70.1), LEVEL, UNKNOWN),
        (_board(power_peak_w=None), LEVEL, UNKNOWN),
        (_board(clock_peak_hz=1.41e9), LEVEL, UNKNOWN),
        (_board(clock_peak_hz=None), LEVEL, UNKNOWN),
        (_board(clock_peak_hz=None, traffic_peak=0.0), LEVEL, UNKNOWN),
        (_board(traffic_peak=0.001), LEVEL, UNKNOWN),
        (_board(), BoardLevel(70.0, None), UNKNOWN),
        (_board(traffic_peak=0.0), BoardLevel(70.0, None), ACT),
        (_board(coverage=0.85), LEVEL, (FindingName.PARTIAL_DATA, Verdict.UNKNOWN)),
        (_board(holes=1), LEVEL, (FindingName.PARTIAL_DATA, Verdict.UNKNOWN)),
        (_board(is_fresh=False), LEVEL, (FindingName.STALE_DATA, Verdict.UNKNOWN)),
        (_board(invalid=("DCGM_FI_DEV_SM_CLOCK",)), LEVEL, (FindingName.INVALID_DATA, Verdict.UNKNOWN)),
        (_board(power_peak_w=115.0), BoardLevel(120.0, 210e6), (FindingName.CONFLICTING_SIGNALS, Verdict.UNKNOWN)),
    ],
    ids=[
        *("idle", "idle-by-traffic-too", "no-series", "idle-power-unknown", "power-above", "no-power"),
        *("clock-above", "no-clock", "no-clock-but-traffic", "memory-traffic", "one-signal-only", "by-traffic"),
        *("coverage", "gap", "stale", "impossible-values", "above-idle-power-watts"),
    ],
)  # fmt: skip
def test_verdict_of_mig_instances_without_utilization_follows_their_board(
    board: Usage | None, level: BoardLevel | None, expected: tuple[FindingName, Verdict]
) -> None:
    """All signals of the whole board over the whole window, each at the level of idle boards; else it is unknown."""
    assert _found(board, level=level) == expected


def test_by_boards_device_with_activity_keeps_it() -> None:
    """As of dcgm-exporter's profiling metrics; a whole GPU without a metric has lost it."""
    busy = Usage(DARK.device, activity_mean=0.5, activity_peak=0.9, coverage=1.0, is_fresh=True)
    whole = Usage(device(0, model=A100))
    counted = Usage(DARK.device, busy_s=30.0)
    found = {("research", "w-0"): (busy, whole, counted)}
    assert by_boards(found, {UUID: _board()}, {A100: LEVEL}) == found


def _levels(*boards: Usage, idle: tuple[Usage, ...] = (), percent: float = 100.0) -> BoardLevel | None:
    found = {("research", "w-0"): idle}
    by_uuid = {one.device.uuid: one for one in boards}
    return board_levels(found, by_uuid, percent=percent, empty_bytes=EMPTY_BYTES).get(A100)


def test_board_levels_are_the_lowest_of_boards_that_did_nothing() -> None:
    """Of boards whose GPU held memory while nothing ran, else of boards without a process: only these cannot work."""
    empty = [
        _board("a", memory_peak_bytes=0.0, power_mean_w=56.0, clock_peak_hz=345e6),
        _board("b", memory_peak_bytes=1e6, power_mean_w=52.0, clock_peak_hz=210e6),
        _board("c", memory_peak_bytes=9e9, power_mean_w=40.0),
        _board("d", memory_peak_bytes=None, power_mean_w=40.0),
        _board("e", memory_peak_bytes=0.0, power_mean_w=40.0, coverage=0.5),
        _board("f", memory_peak_bytes=0.0, power_mean_w=40.0, invalid=("x",)),
        _board("g", memory_peak_bytes=0.0, power_mean_w=40.0, traffic_peak=0.1),
        _board("h", memory_peak_bytes=0.0, power_mean_w=None),
    ]
    assert _levels(*empty) == BoardLevel(52.0, 210e6)
    assert _levels(*empty, percent=115.0) == BoardLevel(near(59.8), 210e6)
    loaded = idle_usage(0, device=Device("c", model=A100))
    assert _levels(*empty, idle=(loaded,)) == BoardLevel(40.0, 210e6)
    assert (
        _levels(_board("c"), idle=(idle_usage(0, device=Device("c", model=A100), activity_peak=0.1),)) is None
    )
    neighbour = idle_usage(0, device=Device("c", model=A100), activity_peak=0.9)
    assert _levels(_board("c"), idle=(loaded, neighbour)) is None
    assert _levels() is None


DAY_S = 86_400


def _watts(second: int, load: float, *, is_loaded: bool) -> float:
    loads = (Load(load, 0.0, spins=False, weight=1.0, offset_s=0),) if load else ()
    return regime(CARD, loads, is_loaded).power_w[second % PERIOD_S]


@MANY
@hypothesis.given(
    instances=st.lists(
        st.tuples(
            st.integers(0, DAY_S - 1),  # when it begins to work
            st.one_of(st.just(0), st.integers(DAY_S // 1000, DAY_S)),  # for how long
            st.integers(1, 100),  # its utilization
        ),
        min_size=1,
        max_size=7,
    ),
    is_loaded=st.booleans(),
    is_level_of_loaded=st.booleans(),
    interval_s=st.sampled_from([15, 30]),
)
def test_board_on_which_any_instance_worked_is_never_idle(
    instances: list[tuple[int, int, int]], *, is_loaded: bool, is_level_of_loaded: bool, interval_s: int
) -> None:
    """Simulated power and clocks of a day, 0.1 % of it at work at least, at the usual scrape intervals."""
    card = CARDS[CARD]
    idle = [_watts(second, 0, is_loaded=is_level_of_loaded) for second in range(PERIOD_S)]
    hz = {True: card.max_sm_clock_mhz * 1e6, False: card.idle_sm_clock_mhz * 1e6}
    level = BoardLevel(1.15 * sum(idle) / PERIOD_S, hz[is_level_of_loaded])
    slice_ = 1 / 7
    seen_w, works = [], False
    for second in range(0, DAY_S, interval_s):
        load = sum(use * slice_ for begin, length, use in instances if begin <= second < begin + length)
        works |= load > 0
        seen_w.append(_watts(second, min(load, 100.0), is_loaded=is_loaded or load > 0))
    board = _board(power_peak_w=max(seen_w), clock_peak_hz=hz[is_loaded or works])
    verdict = _found(board, level=level)[1]
    assert not works or verdict is Verdict.UNKNOWN
    if not any(length for _, length, _ in instances) and is_loaded == is_level_of_loaded:
        assert verdict is Verdict.ACT


@MANY
@hypothesis.given(st.floats(0, 150), st.floats(0, 150), st.floats(30, 200))
def test_board_levels_with_a_lower_percentage_never_free_more(
    one: float, other: float, power_w: float
) -> None:
    """The percentage is `maxBoardPowerPercent`."""
    careful, eager = sorted((one, other))
    acts = [
        _found(_board(power_peak_w=power_w), level=_levels(_board("b", memory_peak_bytes=0.0), percent=each))
        for each in (careful, eager)
    ]
    assert acts[1] == ACT or acts[0] != ACT


@pytest.mark.parametrize(
    ("working", "level"),
    [
        pytest.param({"clock_peak_hz": 1.41e9}, BoardLevel(70.15, 210e6), id="clock-moves"),
        pytest.param({"traffic_peak": 0.4}, BoardLevel(70.15, None), id="clock-stands-still"),
        pytest.param({"traffic_peak": 0.0}, None, id="clock-and-memory-traffic-stand-still"),
        pytest.param({"power_peak_w": 63.0}, BoardLevel(70.15, 210e6), id="no-board-works"),
    ],
)
def test_board_level_leaves_out_gauges_that_stand_still_while_a_board_works(
    working: dict[str, float], level: BoardLevel | None
) -> None:
    """Locked clocks show nothing of work, nor does memory traffic that never is any."""
    values = {"power_mean_w": 290.0, "power_peak_w": 300.0, **working}
    boards = {UUID: _board(memory_peak_bytes=0.0), "GPU-busy": _board("GPU-busy", **values)}
    assert board_levels({}, boards, percent=115.0, empty_bytes=EMPTY_BYTES) == (
        {A100: level} if level else {}
    )
