"""A pod's number outlives nothing but the pod."""

from simulator.spec import Archetype, Kind, WorkloadSpec
from simulator.workloads.behavior import activity
from simulator.workloads.population import Population

SPEC = WorkloadSpec(Kind.DEPLOYMENT, "ml", "api", Archetype.TRAIN_STEADY, replicas=2, gpus=2)


def test_ordinal_of_gone_pod_is_reused() -> None:
    """Pods count up from 0, keep their number, and leave it to their successor."""
    population = Population([SPEC], seed=1)
    assert [population.join(SPEC, pod) for pod in ("a", "b", "a")] == [0, 1, 0]
    population.leave(SPEC, "a")
    assert [population.join(SPEC, pod) for pod in ("c", "d")] == [0, 2]
    population.leave(SPEC, "never-seen")


def test_successor_behaves_like_its_predecessor() -> None:
    """The same number, started at the same time, has the same course under another name."""
    population = Population([SPEC], seed=1)
    before = [activity(actor, 50_000) for actor in population.actors(SPEC, "a", start_s=0)]
    population.leave(SPEC, "a")
    after = [activity(actor, 50_000) for actor in population.actors(SPEC, "b", start_s=0)]
    assert before == after
    assert len(after) == 2


def test_unknown_pod_trains_steadily() -> None:
    """A pod of no known workload works steadily on all of its devices."""
    population = Population([SPEC], seed=1)
    assert population.workload("ml", "api", pod="api-x", gpus=2) is SPEC
    stranger = population.workload("ml", "other", pod="other-x", gpus=3)
    assert (stranger.archetype, stranger.gpus, stranger.name) == (Archetype.TRAIN_STEADY, 3, "other-x")
