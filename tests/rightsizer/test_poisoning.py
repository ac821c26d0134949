"""What a tenant forges changes no decision about others: series on a real Prometheus, both in random clusters."""

import pathlib
from collections.abc import Iterator

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.poisoning import FORGERIES, JOBS, Victims, by_tenant
from tests.rightsizer.world import World

pytestmark = pytest.mark.slow


@pytest.fixture
def victims(tmp_path: pathlib.Path) -> Iterator[Victims]:
    """A Prometheus of its own, since what is forged there stays."""
    with Prometheus(tmp_path / "own") as own, World(tmp_path, own) as world:
        yield Victims(world)


@pytest.mark.prometheus
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", FORGERIES)
def test_plan_series_of_a_tenants_pod_change_no_decision(victims: Victims, name: str, job: str) -> None:
    """Under any policy; the plan says what it ignored."""
    before = victims.decisions()
    assert len({verdict for found in before.values() for verdict in found.values()}) > 3
    victims.forge(name, job)
    assert victims.decisions() == before
    if name not in {"idle-records-of-a-busy-pod", "another-cluster-and-address"}:
        assert "ignored: not from an exporter" in victims.plan("stop")["problems"][0]


@pytest.mark.parametrize("seed", range(6))
def test_cycles_objects_and_series_of_a_tenant_change_nothing_of_others(
    seed: int, tmp_path: pathlib.Path
) -> None:
    """No reclaim of others is caused, and none is delayed by more than a cycle."""
    assert by_tenant(tmp_path, seed) == (0, 0)
