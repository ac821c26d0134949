"""A pod's number outlives nothing but the pod."""

from simulator.spec import Archetype, Kind, WorkloadSpec
from simulator.workloads.behavior import activity
from simulator.workloads.population import Population

SPEC = WorkloadSpec(Kind.DEPLOYMENT, "ml", "api", Archetype.TRAIN_STEADY, replicas=2, gpus=2)


def test_a_pods_number_is_free_again_once_it_is_gone() -> None:
    """Pods count up from 0, keep their number, and leave it to their successor."""
    population = Population([SPEC], seed=1)
    assert [population.join(SPEC, pod) for pod in ("a", "b", "a")] == [0, 1, 0]
    population.leave(SPEC, "a")
    assert [population.join(SPEC, pod) for pod in ("c", "d")] == [0, 2]
    population.leave(SPEC, "never-seen")


def test_a_successor_does_what_its_predecessor_would_have_done() -> None:
    """The same number, started at the same time, has the same course under another name."""
    population = Population([SPEC], seed=1)
    before = [activity(actor, 50_000) for actor in population.actors(SPEC, "a", start_s=0)]
    population.leave(SPEC, "a")
    after = [activity(actor, 50_000) for actor in population.actors(SPEC, "b", start_s=0)]
    assert before == after
    assert len(after) == 2


def test_a_stranger_trains() -> None:
    """A pod of no known workload works steadily on all of its devices."""
    population = Population([SPEC], seed=1)
    assert population.workload("ml", "api", pod="api-x", gpus=2) is SPEC
    stranger = population.workload("ml", "other", pod="other-x", gpus=3)
    assert (stranger.archetype, stranger.gpus, stranger.name) == (Archetype.TRAIN_STEADY, 3, "other-x")
