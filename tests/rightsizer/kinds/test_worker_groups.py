"""Groups of workers of which each replica is several pods: whole ones go, and are counted as such."""

from typing import Any

import pytest

from rightsizer.kinds import KINDS
from rightsizer.kinds.change_edits import proposal_edits
from rightsizer.kinds.edits import value_at
from rightsizer.model import Action, Pod, Proposal
from tests.rightsizer.build import pod

GROUP = "ray.io/group"
REPLICA = "ray.io/worker-group-replica-name"
RAY = next(row for row in KINDS if row.kind == "RayCluster")
PLACE = ("spec", "workerGroupSpecs", "groupName=gpu")


def _pods(*, is_told: bool = True) -> list[Pod]:
    """Four replicas of two hosts."""
    labels = [{GROUP: "gpu", **({REPLICA: f"gpu-{n // 2}"} if is_told else {})} for n in range(8)]
    return [pod(f"w-{number}", labels=of) for number, of in enumerate(labels)]


def _edits(going: tuple[str, ...], pods: list[Pod], **group: Any) -> dict[str, Any]:
    """What is changed of the group, by field."""
    spec = {"groupName": "gpu", "replicas": 4, "minReplicas": 4, **group}
    obj = {"metadata": {}, "spec": {"workerGroupSpecs": [spec]}}
    proposal = Proposal(Action.SCALE_DOWN, 2.0, "", replicas=6, pods=going)
    edits = proposal_edits(RAY, obj, proposal, resources=["nvidia.com/gpu"], pods=pods)
    assert all(edit.before == value_at(obj, edit.path) for edit in edits)
    return {edit.path[-1]: edit.after for edit in edits}


def test_worker_groups_multi_host_counts_replicas_not_pods() -> None:
    """Two of eight pods are one of four replicas; with one less than that nothing at work goes along."""
    assert _edits(("w-6", "w-7"), _pods(), numOfHosts=2) == {
        "replicas": 3,
        "minReplicas": 3,
        "workersToDelete": ["w-6", "w-7"],
    }


@pytest.mark.parametrize("hosts", [{}, {"numOfHosts": 1}, {"numOfHosts": 0}])
def test_worker_groups_single_host_counts_each_pod_as_replica(hosts: dict[str, int]) -> None:
    """As it is where nothing is said."""
    assert _edits(("w-3",), _pods()[:4], **hosts)["replicas"] == 3


@pytest.mark.parametrize(
    ("going", "is_told", "hosts", "words"),
    [
        (("w-6",), True, 2, "not all of one are idle"),
        (("w-5", "w-6", "w-7"), True, 2, "not all of one are idle"),
        (("w-6", "w-7"), True, 4, "not all of one are idle"),
        (("w-6", "w-7"), False, 2, "have no label ray.io/worker-group-replica-name"),
        (("w-6", "w-7"), True, "2", "not all of one are idle"),
    ],
)
def test_worker_groups_partial_replica_is_not_counted(
    going: tuple[str, ...], is_told: bool, hosts: object, words: str
) -> None:
    """The other hosts would go with them; of which replica a pod is has to be known."""
    with pytest.raises(ValueError, match=words):
        _edits(going, _pods(is_told=is_told), numOfHosts=hosts)
