"""The headroom of replicas is chosen by what it costs on recorded use."""

import dataclasses
import datetime
from typing import Any

import pytest

from rightsizer.policy.schema import Policy
from rightsizer.policy.thresholds import TooManyReplicas
from rightsizer_history.backtest.headroom import (
    LEAST_SERVICES,
    Service,
    Sized,
    service_of,
    sizes,
    tuned_headroom,
)
from rightsizer_history.backtest.recording import Recording
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

DAYS = 14
STEP_S = 1800
CALM = [BUSY * 24 * DAYS, *[IDLE * 24 * DAYS] * 5]
"""One of six replicas works."""
BURSTS = [BUSY * 24 * DAYS, *[(IDLE * 11 + BUSY + IDLE * 12) * DAYS] * 5]
"""For an hour of each day, all of six do."""


def _services(lines: list[str], *, count: int = LEAST_SERVICES, priority_class: str = "") -> Recording:
    name = priority_class or "web"
    return recording(
        *(
            workload(f"{name}-{n}", *[[hours(line)] for line in lines], priority_class=priority_class)
            for n in range(count)
        )
    )


def _chosen(fleet: Recording, base: Policy, price: float) -> tuple[Policy, dict[str, TooManyReplicas]]:
    found, choices = tuned_headroom(fleet, base, price, stop=fleet.grid.steps, every=HOUR)
    return found, {one.rule: one.part for one in choices}


def test_headroom_of_calm_services_is_the_least_that_frees_most() -> None:
    """Nothing is ever short, so headroom only costs."""
    found, chosen = _chosen(_services(CALM), policy(), 1000.0)
    assert chosen == {"": found.defaults.tooManyReplicas}
    assert chosen[""].jumpHistory == HOUR


def test_headroom_remembers_daily_bursts_where_mistakes_are_dear() -> None:
    """The jump of yesterday is held today; where mistakes cost nothing, it is forgotten."""
    fleet = _services(BURSTS)
    (_, dear), (_, cheap) = (_chosen(fleet, policy(), price) for price in (1000.0, 0.001))
    assert dear[""].jumpHistory == 24 * HOUR
    assert cheap[""].jumpHistory == HOUR


def test_headroom_of_each_class_is_its_own() -> None:
    """Where a rule has services enough, and another headroom costs less for them."""
    fleet = recording(
        *_services(CALM, priority_class="calm").groups, *_services(BURSTS, priority_class="bursts").groups
    )
    rules = [
        {"name": one, "match": {"priorityClasses": [one]}, "mode": "advise"} for one in ("calm", "bursts")
    ]
    base = Policy.model_validate({**policy().model_dump(mode="json"), "rules": rules})
    found, chosen = _chosen(fleet, base, 1000.0)
    assert chosen[""].jumpHistory == 24 * HOUR
    assert chosen.keys() == {"", "calm"}
    assert found.rules[0].tooManyReplicas == chosen["calm"]
    assert chosen["calm"].jumpHistory == HOUR
    assert found.rules[1].tooManyReplicas is None


@pytest.mark.parametrize(
    ("count", "more"),
    [
        (LEAST_SERVICES - 1, {}),
        (LEAST_SERVICES, {"tooManyReplicas": {"headroomPercent": 75}}),
        (LEAST_SERVICES, {"mode": "protect", "findings": {}}),
    ],
)
def test_headroom_stays_where_nothing_can_be_learned_or_changed(count: int, more: dict[str, Any]) -> None:
    """Few services, a headroom that somebody wrote, and what nobody may touch."""
    fleet, base = _services(CALM, count=count), policy(**more)
    assert tuned_headroom(fleet, base, 24.0, stop=fleet.grid.steps, every=HOUR) == (base, ())


def test_service_replica_that_was_not_seen_is_possible_but_not_certain() -> None:
    """It counts as active for what is kept, and as idle for what was short."""
    group = workload("web", [hours(BUSY * 2 + IDLE)], [hours(IDLE + UNKNOWN + IDLE)])
    service = service_of(group, 5)
    assert service.certain == [1, 1, 1, 1, 0]
    assert service.possible == [1, 1, 2, 2, 0]
    assert service.replicas == [0, 2, 2, 2, 2]
    assert service.gpus == [0, 2, 2, 2, 2]


def _of(active: list[int], replicas: int, least: int = 0) -> Service:
    count = len(active)
    return Service(0, active, active, [replicas] * count, [float(replicas)] * count, least)


@pytest.mark.parametrize(
    ("active", "least", "sized"),
    [
        ([1] * 48, 0, Sized(freed=4 * 22.0, days=1, short=0)),  # busy + 1 of 6 are kept, once 2 h are known
        ([1] * 47 + [6], 0, Sized(freed=4 * 22.0, days=1, short=1)),
        ([1] * 48, 5, Sized(freed=1 * 22.0, days=1, short=0)),
        ([6] * 48, 0, Sized(freed=0.0, days=0, short=0)),
    ],
)
def test_sizes_keeps_what_the_finding_would(active: list[int], least: int, sized: Sized) -> None:
    """And a day is short once, however often it was."""
    part = TooManyReplicas(
        window=datetime.timedelta(minutes=30), leadTime=datetime.timedelta(minutes=30), jumpHistory=HOUR
    )
    found = sizes([_of(active, 6, least)], part, 2, STEP_S)
    assert dataclasses.replace(found, freed=round(found.freed, 6)) == sized
