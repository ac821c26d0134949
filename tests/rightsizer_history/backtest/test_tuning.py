"""Waiting times are chosen by what they cost on recorded gaps."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rightsizer.policy.effective import kind_defaults
from rightsizer.policy.schema import Policy
from rightsizer_history.backtest.recording import Recording
from rightsizer_history.backtest.standings import workload_of
from rightsizer_history.backtest.tuning import (
    FACTORS,
    WINDOWS_H,
    Gap,
    Life,
    Limits,
    Times,
    cost_of,
    gaps_of,
    tuned,
)
from tests.rightsizer_history.backtest.recordings import (
    BUSY,
    HOUR,
    IDLE,
    UNKNOWN,
    hours,
    policy,
    recording,
    workload,
)

DEPLOYMENTS = 8
FREE: dict[str, Any] = {"cooldown": "1m", "maxCooldown": "1m", "maxChanges": 1000}
"""Limits that never hold."""


def _fleet(pause_h: int, *, ended_h: int = 120) -> Recording:
    """Services that pause for about so long, again and again, and are then left behind."""
    draw = random.Random(pause_h)
    groups = []
    for number in range(DEPLOYMENTS):
        line = "".join(BUSY * 3 + IDLE * draw.randint(1, pause_h) for _ in range(8))
        groups.append(workload(f"web-{number}", [hours(line + BUSY + IDLE * ended_h)]))
    return recording(*groups)


def test_gaps_are_times_without_work() -> None:
    """With what was held, the longest before, and whether work followed; unknown steps end one uncounted."""
    lines = [hours(BUSY + IDLE * 2 + BUSY + IDLE * 3 + UNKNOWN + BUSY + IDLE * 5)] * 2
    one = recording(workload("notes", lines))
    (group,) = one.groups
    assert list(gaps_of(group, one, one.grid.steps)) == [
        Gap(2, 2, chance=1, before_h=0, at_h=1),
        Gap(5, 2, chance=None, before_h=2, at_h=9),
    ]
    assert list(gaps_of(group, one, 2 * 2)) == [Gap(1, 2, chance=None, before_h=0, at_h=1)]


def test_gap_of_pods_that_ended_has_no_chance() -> None:
    """Nobody stopped them: they ended while another workload goes on."""
    one = recording(workload("done", [hours(BUSY + IDLE * 3)]), workload("web", [hours(BUSY * 9)]))
    assert list(gaps_of(one.groups[0], one, one.grid.steps)) == [Gap(3, 1, chance=0, before_h=0, at_h=1)]


def test_tuned_expects_work_after_gaps_that_the_record_cuts_off() -> None:
    """Of 40 pauses of 10 h all ended with work, so those of 5 h at the end of the record most likely will."""
    line = "".join(BUSY + IDLE * 10 for _ in range(5))
    fleet = recording(*(workload(f"web-{number}", [hours(line + BUSY + IDLE * 5)]) for number in range(8)))
    (choice,) = tuned(fleet, policy(window="4h", **FREE), 0.01, stop=fleet.grid.steps)[1]
    assert choice.returned == 40
    assert choice.cost.returned == choice.cost.stops == 48


def test_tuned_expects_work_after_a_weekend_that_the_record_cuts_off() -> None:
    """It lasts longer than each night before it, but work begins in the morning, and no Saturday has brought any."""
    week = (IDLE * 9 + BUSY * 8 + IDLE * 7) * 5 + IDLE * 12
    fleet = recording(*(workload(f"lab-{number}", [hours(week)]) for number in range(8)))
    (choice,) = tuned(fleet, policy(window="4h", **FREE), 0.01, stop=fleet.grid.steps)[1]
    assert choice.gaps == 8 * 6
    assert choice.cost.returned > 8 * 5 + 7


@pytest.mark.parametrize(
    ("window_h", "factor", "idle", "stops", "returned"),
    [(1, 0, 6, 3, 2), (4, 0, 23, 2, 1), (4, 2, 33, 1, 1), (100, 0, 34, 0, 0)],
)
def test_cost_counts_waiting_and_mistakes(
    window_h: float, factor: float, idle: float, stops: int, returned: int
) -> None:
    """A longer wait idles more and is wrong less often."""
    gaps = [
        Gap(3, 1, chance=1, before_h=0),
        Gap(7, 1, chance=1, before_h=3),
        Gap(6, 4, chance=0, before_h=7),
    ]
    cost = cost_of([Life([gap]) for gap in gaps], Times(window_h, factor))
    assert (cost.idle, cost.stops, cost.returned) == (idle, stops, returned)
    assert cost.total(10) == idle + 10 * returned


def _daily(hours: float, days: int) -> list[Gap]:
    """A pause that begins each midnight and ends with work."""
    return [Gap(hours, 1, chance=1, before_h=hours if day else 0, at_h=24 * day) for day in range(days)]


@pytest.mark.parametrize(
    ("limits", "stops"),
    [
        (Limits(), 10),
        (Limits(changes=3), 3),
        (Limits(cooldown_h=24, longest_h=24), 5),  # what returned at eight is left alone until the next eight
        (Limits(cooldown_h=24, longest_h=168), 3),  # one day, two days, four days
        (Limits(changes=0), 0),
    ],
)
def test_cost_stops_no_more_often_than_rules_allow(limits: Limits, stops: int) -> None:
    """A short window wins nothing from the pauses that cooldowns and limits leave alone."""
    cost = cost_of([Life(_daily(8, 10), limits)], Times(1, 0))
    assert (cost.stops, cost.returned) == (stops, stops)
    assert cost.idle == 80 - 7 * stops


def test_cost_counts_changes_of_a_month() -> None:
    """After 30 days, there may be another."""
    gaps = [Gap(8, 1, chance=1, before_h=0, at_h=day * 24) for day in (0, 29, 31)]
    assert cost_of([Life(gaps, Limits(changes=1))], Times(1, 0)).stops == 2


@pytest.mark.parametrize(
    ("hours", "times", "stops", "void"),
    [
        (20, Times(8, 0, notice_after_h=4, notice_h=4), 1, 0),  # the notice is over when the window is
        (7, Times(8, 0, notice_after_h=4, notice_h=4), 0, 1),
        (3, Times(8, 0, notice_after_h=4, notice_h=4), 0, 0),  # it comes back before anybody is told
        (11, Times(8, 0, notice_after_h=4, notice_h=8), 0, 1),  # a longer notice delays the stop
        (
            20,
            Times(8, 0, notice_after_h=24, notice_h=4),
            1,
            0,
        ),  # it is given at half of the time at the latest
    ],
)
def test_cost_notice_that_work_makes_void_counts(hours: float, times: Times, stops: int, void: int) -> None:
    """A notice delays the stop only by what it lasts beyond the window."""
    cost = cost_of([Life([Gap(hours, 1, chance=1, before_h=0)])], times)
    assert (cost.stops, cost.void) == (stops, void)


def test_cost_notice_of_a_rule_holds_for_any_notice_of_the_kind() -> None:
    """Its owner promised so long."""
    gaps = [Gap(20, 1, chance=0, before_h=0)]
    ruled, by_kind = (
        cost_of([Life(gaps, limits)], Times(8, 0, notice_after_h=4, notice_h=4))
        for limits in (Limits(notice_h=12), Limits())
    )
    assert (ruled.idle, by_kind.idle) == (16, 8)


def _notebooks(pause_h: int, count: int = 8) -> Recording:
    line = (BUSY * 2 + IDLE * pause_h) * 8 + BUSY + IDLE * 200
    groups = (workload(f"nb-{number}", [hours(line)], kind="Notebook") for number in range(count))
    return recording(*groups)


def test_tuned_notice_is_never_shorter_and_ends_with_the_window() -> None:
    """Owners keep the time that they have to answer, and notices that work makes void are avoided."""
    fleet = _notebooks(20)
    kinds = [{"kinds": ["Notebook"], "idle": {"window": "24h", "idleFactor": 0}, "notifyBefore": "4h"}]
    base = Policy.model_validate({**policy(idle=None).model_dump(mode="json"), "defaults": {"kinds": kinds}})
    found, (choice,) = tuned(fleet, base, 1000.0, stop=fleet.grid.steps)
    (row,) = found.defaults.kinds
    assert row.idle is not None
    assert row.notifyBefore is not None
    assert row.notifyBefore.total_seconds() == choice.times.notice_h * 3600 >= 4 * 3600
    assert row.idle.shortest_s == choice.times.window_h * 3600
    assert row.idle.window <= row.idle.noticeAfter
    assert choice.cost.void == 0 == choice.cost.returned


def test_tuned_that_shortens_nothing_waits_and_warns_no_sooner() -> None:
    """Although mistakes cost next to nothing: an earlier notice could end the wait earlier, too."""
    fleet = _notebooks(3)
    idle = {"window": "24h", "idleFactor": 1.5, "noticeAfter": "24h"}
    kinds = [{"kinds": ["Notebook"], "idle": idle, "notifyBefore": "20h"}]
    base = Policy.model_validate({**policy(idle=None).model_dump(mode="json"), "defaults": {"kinds": kinds}})
    gap = Gap(500, 1, chance=1, before_h=3)
    due = []
    for shortens in (True, False):
        _, (choice,) = tuned(fleet, base, 0.01, stop=fleet.grid.steps, shortens=shortens)
        due.append((choice.times.notice_after_h, choice.times.of(gap, Limits())[1]))
    before = Times(24, 1.5, 24, 20).of(gap, Limits())[1]
    assert due[0][1] < before
    assert due[1][0] >= 24
    assert due[1][1] >= before


def test_tuned_waits_longer_than_the_usual_pauses() -> None:
    """Where mistakes are dear, the pauses are waited out; where they cost nothing, nobody waits."""
    fleet = _fleet(6)
    stop = fleet.grid.steps
    (dear,), (cheap,) = (tuned(fleet, policy(**FREE), price, stop=stop)[1] for price in (1000.0, 0.01))
    assert dear.cost.returned == 0
    assert 6 <= dear.times.window_h <= 12 or dear.times.factor
    assert (cheap.times.window_h, cheap.times.factor) == (min(WINDOWS_H), 0.0)
    assert dear.cost.total(1000) <= dear.before.total(1000)


def test_tuned_priority_class_with_other_pauses_has_a_row_of_its_own() -> None:
    """Before the row of all, and only where its own times cost less; its kinds are those that were recorded."""
    short, long = (hours((BUSY * 3 + IDLE * pause) * (200 // (3 + pause)) + IDLE * 60) for pause in (2, 30))
    fleet = recording(
        *(workload(f"quick-{n}", [short], priority_class="batch") for n in range(DEPLOYMENTS)),
        *(workload(f"slow-{n}", [long], priority_class="lab") for n in range(DEPLOYMENTS)),
    )
    found, _ = tuned(fleet, policy(**FREE), 50.0, stop=fleet.grid.steps)
    (row,) = (one for one in found.defaults.kinds if one.onlyPriorityClasses == ("lab",))
    assert row.kinds == ("Deployment.apps",)
    assert row.idle is not None
    assert row.idle.window > 30 * HOUR > found.defaults.idle.window
    by_class = {
        group.priority_class: kind_defaults(workload_of(group, fleet), found) for group in fleet.groups
    }
    assert by_class == {"batch": None, "lab": row}
    alike = recording(
        *(workload(f"w{n}", [short], priority_class=name) for n in range(4) for name in ("batch", "lab"))
    )
    assert all(one.part is None for one in tuned(alike, policy(**FREE), 50.0, stop=alike.grid.steps)[1])


def test_tuned_policy_has_the_chosen_times() -> None:
    """In the row of the kinds that were learned from; the others stay."""
    fleet, base = _fleet(6), policy()
    found, (choice,) = tuned(fleet, base, 50.0, stop=fleet.grid.steps)
    assert choice.row is None
    assert found.defaults.idle.window.total_seconds() == choice.times.window_h * 3600
    assert found.defaults.idle.idleFactor == choice.times.factor
    assert found.defaults.kinds == base.defaults.kinds
    assert found.rules == base.rules


def test_tuned_with_few_gaps_keeps_the_policy() -> None:
    """A handful of pauses proves nothing."""
    fleet = recording(workload("notes", [hours((BUSY + IDLE * 3) * 5)]))
    base = policy()
    assert tuned(fleet, base, 24.0, stop=fleet.grid.steps) == (base, ())


gaps = st.builds(
    Gap,
    hours=st.floats(0.5, 500),
    gpus=st.floats(0.1, 64),
    chance=st.floats(0, 1),
    before_h=st.floats(0, 200),
)


@given(st.lists(gaps, max_size=20), st.sampled_from(FACTORS), st.floats(0, 200), st.floats(0, 200))
def test_cost_longer_wait_is_wrong_no_more_often(
    found: list[Gap], factor: float, one: float, other: float
) -> None:
    """And idles no less."""
    lives = [Life([gap]) for gap in found]
    short, long = (cost_of(lives, Times(window_h, factor)) for window_h in sorted((one, other)))
    assert long.returned <= short.returned
    assert long.stops <= short.stops
    assert long.idle >= short.idle


@given(st.lists(gaps, max_size=20), st.floats(0.1, 100))
def test_cost_of_waiting_the_break_even_is_at_most_twice_the_best(found: list[Gap], price: float) -> None:
    """The bound of ski rental, for each gap of one GPU that is returned from."""
    for gap in found:
        one = Gap(gap.hours, 1.0, chance=1, before_h=0.0)
        best = min(one.hours, price)
        assert cost_of([Life([one])], Times(price, 0.0)).total(price) <= 2 * best + 1e-9
