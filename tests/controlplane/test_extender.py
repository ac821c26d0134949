"""The scheduler extender on a real kube-scheduler: the idle pod goes, the busy one stays, and nothing waits for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Object
from tests.controlplane.extended import START_S, Extended
from tests.controlplane.world import RealWorld, uids

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("extender")]


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Extended]:
    """Its own, since the scheduler's configuration is read at its start."""
    made = Extended(tmp_path_factory.mktemp("extended"))
    with made.plane:
        yield made


@pytest.fixture
def world(extended: Extended, prometheus: Prometheus, tmp_path: Path) -> Iterator[RealWorld]:
    """A team on a node of 4 GPUs."""
    with RealWorld(extended.plane, prometheus, tmp_path) as made:
        made.node(gpus=4)
        yield made


def _fill(world: RealWorld) -> tuple[list[Object], list[Object]]:
    """An idle and a younger busy job of 2 GPUs each; their pods."""
    idle = world.add("Job", "idle", gpus=2, priorityClass="medium-priority")
    return idle, world.add("Job", "busy", "busy", gpus=2, priorityClass="medium-priority")


def _urgent(world: RealWorld) -> str:
    """A pending job of a higher priority that asks for 2 GPUs runs; whose pod went."""

    def there() -> dict[str, set[str]]:
        """Also of what went, the finalizer of its Job may still keep a pod."""
        pods = {name: world.pods(name) for name in ("idle", "busy")}
        return {
            name: uids([one for one in found if "deletionTimestamp" not in one["metadata"]])
            for name, found in pods.items()
        }

    before = there()
    world.create("Job", "urgent", gpus=2, priorityClass="high-priority")
    world.running("urgent", 1)
    after = there()
    (gone,) = (name for name, known in before.items() if not known & after[name])
    return gone


def test_scheduler_without_an_answer_preempts_the_busy_pod_and_goes_on(world: RealWorld) -> None:
    """The extender is configured, and does not run."""
    _fill(world)
    assert _urgent(world) == "busy"


def test_scheduler_with_extender_preempts_the_idle_pod(extended: Extended, world: RealWorld) -> None:
    """Also if the rule allows it only for pending pods; an Event tells of it, and so do history and metrics."""
    _fill(world)
    with extended.extending(world, world.on_demand_policy("suspend"), every="2m") as log:
        assert _urgent(world) == "idle"
        selector = "reason=NamedForPreemption"
        (event,) = world.api.eventually(
            lambda: world.api.items(f"{world.api.core}/events", fieldSelector=selector), bool
        )
        metrics = extended.get("/metrics")
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Job", "idle")
    assert "2 GPUs" in event["message"]
    assert "its controller creates pods again (idle; rule own)" in event["message"]
    assert 'gpu_rightsizer_scheduler_questions_total{answer="replaced"} 1.0' in metrics
    assert 'scheduler_victims_total{finding="idle",priority_class="medium-priority"} 1.0' in metrics
    assert "named to kube-scheduler" in log.read_text()
    shown = world.run("history")
    assert "NamedForPreemption" in shown.out, shown


def test_scheduler_with_an_extender_that_protects_the_idle_pod_takes_the_busy_one(
    extended: Extended, world: RealWorld
) -> None:
    """The rule only advises, so what the scheduler chose stands."""
    _fill(world)
    policy = world.policy_of("actions: [suspend]")
    policy.write_text(policy.read_text().replace("mode: enforce", "mode: advise"))
    with extended.extending(world, policy, every="2m"):
        assert _urgent(world) == "busy"
        assert 'scheduler_questions_total{answer="unchanged"} 1.0' in extended.get("/metrics")


@pytest.mark.slow
def test_scheduler_with_a_stale_extender_takes_the_busy_pod(extended: Extended, world: RealWorld) -> None:
    """After two cycles without a plan it answers for nobody."""
    _fill(world)
    policy = world.on_demand_policy("suspend")
    with extended.extending(world, policy, every="20s"):
        policy.write_text("nothing")
        world.api.eventually(lambda: "more than two cycles" in extended.get("/readyz"), timeout_s=START_S)
        assert _urgent(world) == "busy"
        assert 'scheduler_questions_total{answer="stale"} 1.0' in extended.get("/metrics")
