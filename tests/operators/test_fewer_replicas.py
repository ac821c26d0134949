"""Fewer replicas of kinds of real controllers: idle pods go, busy ones stay, and undo brings back as many."""

import time

import pytest

from simulator.controlplane.programs import OPERATORS, missing
from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld
from tests.operators.rows import Row, Spec, body, groups, ray_cluster

pytestmark = [pytest.mark.operators, pytest.mark.prometheus, pytest.mark.xdist_group("operators")]

_REVERT_S = 3.0
"""Time in which an operator would have reverted a change."""


def _controller(template: Object) -> Object:
    return {"replicas": 4, "selector": template["metadata"]["labels"], "template": template}


def _ray_cluster(least: int) -> Spec:
    return lambda template: ray_cluster(template, workers=4, least=least)


ROWS = {
    row.name: row
    for row in (
        Row("kuberay", "ray.io/v1", "RayCluster", "four", _ray_cluster(0), 5),
        Row("kuberay", "ray.io/v1", "RayCluster", "four-at-least", _ray_cluster(4), 5),
        Row("lws", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "four", groups(4), 8),
        Row("", "v1", "ReplicationController", "four", _controller, 4),
    )
}
_BUSY = {"RayCluster": 2, "LeaderWorkerSet": 2, "ReplicationController": 1}
"""Busy pods: the head and one worker, the first group, or one of them all; one more replica is headroom."""


class _Story:
    """All rows with most of their replicas idle, scaled down and restored."""

    def __init__(self, world: RealWorld) -> None:
        self.world = world
        absent = {program.name for program in missing(OPERATORS)}
        self.rows = [row for row in ROWS.values() if row.operator not in absent]
        for row in self.rows:
            world.api.create(self._collection(row), body(world, row))
        self.busy = {row.name: self._seen(row) for row in self.rows}
        self.before = self._objects()
        findings = "findings: {too-many-replicas: enforce}, actions: [scale-down, scale-up]"
        self.applied = world.apply("--policy", str(world.policy_of(findings)))
        time.sleep(_REVERT_S)
        self.left = {row.name: [pod["metadata"]["name"] for pod in self._active(row)] for row in self.rows}
        self.undone = world.run("undo", "--all", "--yes", "-o", "json").items
        for row in self.rows:
            world.running(row.name, row.pods)
        self.after = self._objects()

    def _seen(self, row: Row) -> list[str]:
        """The names of a row's busy pods, the first of those that its controller keeps first."""
        pods = self.world.api.eventually(lambda: self._active(row), lambda found: len(found) == row.pods)
        pods.sort(key=_rank)
        for number, pod in enumerate(pods):
            self.world.since_yesterday(pod, ["busy" if number < _BUSY[row.kind] else "idle"])
        return [pod["metadata"]["name"] for pod in pods[: _BUSY[row.kind]]]

    def _active(self, row: Row) -> list[Object]:
        return [pod for pod in self.world.pods(row.name) if pod["status"]["phase"] == "Running"]

    def _objects(self) -> dict[str, Object]:
        return {row.name: self.world.api.get(f"{self._collection(row)}/{row.name}") for row in self.rows}

    def _collection(self, row: Row) -> str:
        root = "/apis" if "/" in row.api_version else "/api"
        return f"{root}/{row.api_version}/namespaces/{self.world.team}/{row.kind.lower()}s"


def _rank(pod: Object) -> tuple[bool, str]:
    name = pod["metadata"]["name"]
    return "-head" not in name, name


@pytest.fixture(scope="module")
def story(world: RealWorld) -> _Story:
    """What became of all rows."""
    return _Story(world)


@pytest.mark.parametrize("name", ROWS)
def test_idle_replicas_go_and_come_back(story: _Story, name: str) -> None:
    """Half of them go for good, none that was busy; undo leaves the object as it was."""
    row = ROWS[name]
    if row not in story.rows:
        pytest.skip(f"no {row.operator}; `make operators` builds it, or says why not")
    outcome = story.applied[name]
    assert (outcome["action"], outcome["result"]) == ("scale-down", "done"), outcome
    assert len(story.left[name]) == row.pods - (4 if row.kind == "LeaderWorkerSet" else 2)
    assert set(story.busy[name]) <= set(story.left[name])
    assert story.undone[name]["result"] == "done", story.undone[name]
    assert story.after[name]["spec"] == story.before[name]["spec"]
