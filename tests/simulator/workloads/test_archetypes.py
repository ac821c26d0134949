"""Behaviour over time: deterministic, and with the statistics of the traces it is taken from."""

import datetime
import math
import statistics
import subprocess
import sys
from typing import Any

import pytest

from simulator.spec import Archetype, Kind, WorkloadSpec
from simulator.workloads.archetypes import Actor, busy_share
from simulator.workloads.behavior import activity, schedule, truth
from simulator.workloads.draws import DAY_S, HOUR_S, Quantiles, seeded

MONDAY_S = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC).timestamp()


def _actor(
    archetype: Archetype,
    *,
    n: int = 0,
    device: int = 0,
    ordinal: int = 0,
    start_s: float = MONDAY_S,
    **more: Any,
) -> Actor:
    spec = WorkloadSpec(Kind.JOB, "ns", f"w{n}", archetype, **more)
    return Actor(seed=7, spec=spec, ordinal=ordinal, device=device, start_s=start_s)


def _many(archetype: Archetype, count: int = 200, **more: Any) -> list[Actor]:
    return [_actor(archetype, n=n, **more) for n in range(count)]


def _lengths(actors: list[Actor], phase: str, *, days: float = 10) -> list[float]:
    """Minutes that each phase of that name lasted, whose beginning and end lie in the first `days`."""
    until = MONDAY_S + days * DAY_S
    return [
        (end - start) / 60
        for one in actors
        for start, end, what in schedule(one).between(MONDAY_S, until)
        if what.name == phase and end < until
    ]


def _utilizations(one: Actor, count: int = 4000) -> list[int]:
    """Utilization in seconds in which it works, from the third hour on."""
    found = (activity(one, MONDAY_S + 2 * HOUR_S + second) for second in range(0, 20 * count, 5))
    return [seen.utilization_percent for seen in found if seen.is_working]


def test_activity_in_another_process_is_the_same() -> None:
    """An activity depends on nothing but seed, workload, pod, device and time."""
    question = f"""
from simulator.workloads.behavior import activity
from simulator.workloads.archetypes import Actor
from simulator.spec import Archetype, Kind, WorkloadSpec
for archetype in Archetype:
    spec = WorkloadSpec(Kind.JOB, "ns", "w0", archetype)
    print(activity(Actor(7, spec, 0, 0, {MONDAY_S}), {MONDAY_S + 100_000.5}))
"""
    command = [sys.executable, "-c", question]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert elsewhere.splitlines() == [
        str(activity(_actor(archetype), MONDAY_S + 100_000.5)) for archetype in Archetype
    ]


@pytest.mark.parametrize("archetype", Archetype)
def test_activity_does_not_depend_on_query_order(archetype: Archetype) -> None:
    """Asking for the past after the future gives what asking for the past first would have given."""
    instants = [MONDAY_S + hour * HOUR_S for hour in range(0, 200, 7)]
    forward = [activity(_actor(archetype, n=1), t) for t in instants]
    schedule.cache_clear()
    backward = [activity(_actor(archetype, n=1), t) for t in reversed(instants)]
    assert forward == backward[::-1]


@pytest.mark.parametrize("archetype", Archetype)
def test_actors_with_other_seed_workload_or_replica_differ(archetype: Archetype) -> None:
    """Among many actors of an archetype no two have the same phases (the idle ones aside)."""
    courses = [
        tuple(schedule(one).between(MONDAY_S, MONDAY_S + 2 * DAY_S))
        for one in [
            *_many(archetype, 8, works_s=math.inf),
            _actor(archetype, ordinal=1, replicas=2, works_s=math.inf),
        ]
    ]
    assert len(set(courses)) == len(courses)


def test_train_steady_is_busy_except_checkpoints() -> None:
    """train_steady: 97 ± 2.5 %, a checkpoint of 1 to 4 minutes about every hour, a median start-up of 5 minutes."""
    actors = _many(Archetype.TRAIN_STEADY)
    assert statistics.median(_lengths(actors, "start-up")) == pytest.approx(5, rel=0.2)
    assert statistics.mean(_lengths(actors, "train")) == pytest.approx(60, rel=0.02)
    checkpoints = _lengths(actors, "checkpoint")
    assert min(checkpoints) >= 1
    assert max(checkpoints) <= 4
    seen = _utilizations(actors[0])
    assert statistics.mean(seen) == pytest.approx(97, abs=0.5)
    assert statistics.stdev(seen) == pytest.approx(2.5, abs=0.5)


def test_train_stall_stalls_several_times_a_day() -> None:
    """train_stall: 55 ± 22 %, a stall about every 240 minutes, of 12 minutes in the median and long ones at times."""
    actors = _many(Archetype.TRAIN_STALL)
    assert statistics.median(_lengths(actors, "start-up")) == pytest.approx(15, rel=0.2)
    assert statistics.mean(_lengths(actors, "train")) == pytest.approx(240, rel=0.05)
    stalls = _lengths(actors, "stall")
    assert statistics.median(stalls) == pytest.approx(12, rel=0.05)
    assert statistics.quantiles(stalls, n=100)[94] == pytest.approx(12 * math.exp(1.645), rel=0.15)
    assert statistics.mean(_utilizations(actors[0])) == pytest.approx(55, abs=1.5)


def test_notebook_works_in_bursts_in_office_hours() -> None:
    """notebook: bursts of 5 minutes in the median, 32 at p90; most work between 9 and 19 o'clock."""
    actors = _many(Archetype.NOTEBOOK, works_s=math.inf)
    quartiles = statistics.quantiles(_lengths(actors, "burst"), n=20)
    assert [quartiles[index] for index in (4, 9, 14, 17)] == [
        pytest.approx(m, rel=0.12) for m in (3, 5, 11, 32)
    ]
    day = MONDAY_S + 3 * DAY_S
    worked = sum(truth(one, day, day + DAY_S).busy_s for one in actors)
    at_desk = sum(truth(one, day + 9 * HOUR_S, day + 19 * HOUR_S).busy_s for one in actors)
    assert 0.6 < at_desk / worked < 0.95


def test_notebook_is_abandoned_in_two_of_five() -> None:
    """notebook: 40 % never work again after about a day and a half."""
    late = MONDAY_S + 10 * DAY_S
    silent = [not truth(one, late, late + 14 * DAY_S).ran for one in _many(Archetype.NOTEBOOK, 500)]
    assert statistics.mean(silent) == pytest.approx(0.4, abs=0.07)


def test_inference_diurnal_follows_the_hours() -> None:
    """inference_diurnal: busy 1 % of the quietest hour and 76 % of the busiest, half of that at weekends."""
    actors = _many(Archetype.INFERENCE_DIURNAL, 150)
    for day, factor in ((1, 1.0), (5, 0.5)):
        for hour in (4, 10, 16):
            middle = MONDAY_S + day * DAY_S + hour * HOUR_S
            share = statistics.mean(truth(one, middle - 1800, middle + 1800).busy_s / 3600 for one in actors)
            assert share == pytest.approx(busy_share(middle), abs=0.07), (day, hour)
            assert busy_share(middle) == pytest.approx({4: 0.01, 10: 0.28, 16: 0.76}[hour] * factor, abs=0.02)
    assert statistics.mean(_utilizations(actors[0], 8000)) == pytest.approx(22, abs=1)


def test_inference_diurnal_holds_more_memory_while_idle() -> None:
    """inference_diurnal: memory is always held, and more of it while waiting than while serving."""
    phases = {
        what.name: what
        for _, _, what in schedule(_actor(Archetype.INFERENCE_DIURNAL)).between(MONDAY_S, MONDAY_S + DAY_S)
    }
    assert phases["waiting"].memory > phases["serving"].memory > 0.4


def test_inference_longtail_waits_for_hours() -> None:
    """inference_longtail: gaps of 6, 26 and 180 minutes at p50, p75 and p90; bursts of about a minute."""
    actors = _many(Archetype.INFERENCE_LONGTAIL)
    assert statistics.median(_lengths(actors, "serving")) == pytest.approx(1, rel=0.1)
    # Long gaps are cut off by the end of any window, so look at the gaps that begin early in a long one.
    gaps = statistics.quantiles(
        [
            (end - start) / 60
            for one in actors
            for start, end, what in schedule(one).between(MONDAY_S, MONDAY_S + 30 * DAY_S)
            if what.name == "waiting" and start < MONDAY_S + 10 * DAY_S
        ],
        n=20,
    )
    assert [gaps[index] for index in (9, 14, 17, 18)] == [
        pytest.approx(m, rel=0.2) for m in (6, 26, 180, 910)
    ]


def test_abandoned_never_worked_in_half() -> None:
    """abandoned: half never used, the others for about 45 minutes, then nothing for ever."""
    found = [truth(one, MONDAY_S, MONDAY_S + 5 * DAY_S) for one in _many(Archetype.ABANDONED, 500)]
    assert statistics.mean(not one.ran for one in found) == pytest.approx(0.5, abs=0.07)
    worked = [one.busy[-1][1] - MONDAY_S for one in found if one.ran]
    assert statistics.median(worked) / 60 == pytest.approx(45, rel=0.15)


def test_zombie_spins_in_a_quarter() -> None:
    """zombie: works about 240 minutes, then keeps its memory; a quarter shows 100 % without working."""
    actors = _many(Archetype.ZOMBIE, 400)
    late = [activity(one, MONDAY_S + 5 * DAY_S) for one in actors]
    assert not any(one.is_working for one in late)
    assert all(one.memory >= 0.5 for one in late)
    spinning = [one for one in late if one.spins]
    assert {one.utilization_percent for one in spinning} == {100}
    assert len(spinning) / len(late) == pytest.approx(0.25, abs=0.07)
    ends = [truth(one, MONDAY_S, MONDAY_S + 5 * DAY_S).idle_since_s or 0 for one in actors]
    assert statistics.median(end - MONDAY_S for end in ends) / 60 == pytest.approx(240, rel=0.1)


def test_overallocated_uses_half_of_its_gpus() -> None:
    """overallocated: of 8 GPUs 4 work, together; the rest hold nothing. `busy_gpus` says another number."""
    at = MONDAY_S + DAY_S
    eight = [activity(_actor(Archetype.OVERALLOCATED, gpus=8, device=n), at) for n in range(8)]
    assert [one.is_working for one in eight] == [True] * 4 + [False] * 4
    assert not any(one.context for one in eight[4:])
    two = [activity(_actor(Archetype.OVERALLOCATED, gpus=8, busy_gpus=2, device=n), at) for n in range(8)]
    assert sum(one.is_working for one in two) == 2


def test_busy_replicas_limits_working_replicas() -> None:
    """`busy_replicas` of the replicas work, the others wait with their model loaded."""
    day = (MONDAY_S + DAY_S, MONDAY_S + 2 * DAY_S)
    spec = {"replicas": 3, "busy_replicas": 2}
    replicas = [_actor(Archetype.INFERENCE_DIURNAL, ordinal=n, **spec) for n in range(3)]
    assert [truth(one, *day).ran for one in replicas] == [True, True, False]
    assert activity(replicas[2], day[0]).memory > 0.5


@pytest.mark.parametrize(
    ("works_s", "idle_since"),
    [(0.0, 0.0), (3 * HOUR_S, 3 * HOUR_S)],
    ids=["never", "three-hours"],
)
def test_works_s_overrides_archetype(works_s: float, idle_since: float) -> None:
    """`works_s` overrides what the archetype draws, and the truth says so."""
    one = _actor(Archetype.TRAIN_STEADY, works_s=works_s)
    found = truth(one, MONDAY_S, MONDAY_S + 2 * DAY_S)
    assert found.idle_since_s == pytest.approx(MONDAY_S + idle_since, abs=1)
    assert found.ran == (works_s > 0)


def test_truth_of_window_knows_earlier_idle_start() -> None:
    """A window sees only its own work, but `idle_since` reaches back behind it."""
    one = _actor(Archetype.TRAIN_STEADY, works_s=5 * HOUR_S)
    window = truth(one, MONDAY_S + 2 * HOUR_S, MONDAY_S + 3 * HOUR_S)
    assert 0.9 * HOUR_S < window.busy_s <= HOUR_S
    later = truth(one, MONDAY_S + 20 * HOUR_S, MONDAY_S + 30 * HOUR_S)
    assert not later.ran
    assert later.idle_since_s == pytest.approx(MONDAY_S + 5 * HOUR_S)


def test_activity_before_start_is_vacant() -> None:
    """Before its pod started, an actor holds nothing."""
    before = activity(_actor(Archetype.ZOMBIE), MONDAY_S - 1)
    assert (before.phase, before.context, before.utilization_percent) == ("vacant", False, 0)


def test_quantiles_of_draws_match_input() -> None:
    """A distribution made from quantiles has these quantiles."""
    known = {0.5: 6.0, 0.9: 180.0}
    made = Quantiles(known, lowest=1, highest=1000)
    draw = seeded("test")
    drawn = sorted(made.draw(draw) for _ in range(20_000))
    assert [drawn[int(p * len(drawn))] for p in known] == [pytest.approx(v, rel=0.08) for v in known.values()]
    assert 1 <= drawn[0] <= drawn[-1] <= 1000
    with pytest.raises(ValueError, match="between 0 and 1"):
        made.at(1.5)
