"""How workloads are stopped in states other than running, through the real commands."""

import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.kind_cases import CASES, RUN_POLICY, SUSPENDED, value_at
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("states")]

UNDO = "gpu-rightsizer.io/undo"
CLEAN = ("spec", "runPolicy", "cleanPodPolicy")
INTERACTIVE = {"submissionMode": "InteractiveMode", "shutdownAfterJobFinishes": False}


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """A workload in one of its states.

    Attributes:
        status: Of its object.
        spec: What its spec has in addition.
        on: The kind of the object with the record; empty if nothing may stop it.
        says: Words of the reason for that.
    """

    kind: str
    status: Mapping[str, Any]
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    on: str = ""
    field: tuple[str, ...] = ()
    to: object = None
    says: str = ""


def _holds(*names: str) -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": "True"} for name in names]}


def _ended(kind: str, condition: str, policy: str | None = None) -> _State:
    spec = {} if policy is None else {"runPolicy": {"cleanPodPolicy": policy}}
    return _State(kind, _holds("Created", condition), spec, on=kind, field=CLEAN, to="Running")


def _ray_job(status: str, spec: Mapping[str, Any], *, on: str = "RayCluster.ray.io") -> _State:
    return _State("RayJob.ray.io", {"jobDeploymentStatus": status}, spec, on, SUSPENDED, to=True)


STATES = {
    **{
        f"{kind.lower()}-succeeded": _ended(f"{kind}.kubeflow.org", "Succeeded")
        for kind in ("PyTorchJob", "MPIJob")
    },
    **{
        f"{kind.lower()}-failed": _ended(f"{kind}.kubeflow.org", "Failed", "None")
        for kind in ("TFJob", "XGBoostJob")
    },
    "rayjob-waiting": _ray_job("Waiting", INTERACTIVE),
    "rayjob-complete": _ray_job("Complete", {"shutdownAfterJobFinishes": False}),
    "rayjob-failed": _ray_job("Failed", {"ttlSecondsAfterFinished": 86400}),
    "rayjob-invalid": _ray_job("ValidationFailed", {"suspend": True, "shutdownAfterJobFinishes": False}),
    "rayjob-initializing": _ray_job("Initializing", {}, on="RayJob.ray.io"),
    "rayjob-retrying": dataclasses.replace(_ray_job("Retrying", {}, on=""), says="jobDeploymentStatus"),
    "jobset-completed": _State("JobSet.jobset.x-k8s.io", _holds("Completed"), says="it has ended"),
    "trainjob-failed": _State("TrainJob.trainer.kubeflow.org", _holds("Failed"), says="it has ended"),
    "volcano-completed": _State(
        "Job.batch.volcano.sh", {"state": {"phase": "Completed"}}, says="it has ended"
    ),
    "workflow-error": _State("Workflow.argoproj.io", {"phase": "Error"}, says="it has ended"),
    "pytorchjob-running": _State(
        "PyTorchJob.kubeflow.org", _holds("Running"), on="PyTorchJob.kubeflow.org", field=RUN_POLICY, to=True
    ),
}
STOPPED = [name for name, state in STATES.items() if state.on]
ADVISED = [name for name, state in STATES.items() if not state.on]
LEFT_OVER = [name for name in STOPPED if STATES[name].field == CLEAN]


class _Story:
    """All of them in one world, planned, stopped and restored."""

    def __init__(self, world: World) -> None:
        self.world = world
        for name, state in STATES.items():
            world.add(state.kind, world.team, name, {})
            world.api.patch(state.kind, world.team, name, {"spec": state.spec})
            obj = created(world.api, state.kind, world.team, name)
            world.api.update({**obj, "status": dict(state.status)}, subresource="status")
        world.add("Deployment", world.team, "busy", {"usage": "busy"})
        self.before = self._look()
        self.plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
        self.applied = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
        self.stopped = self._look()
        self.listed = world.run("undo", "-o", "json")
        self.undone = world.run("undo", "--all", "--yes", "-o", "json")
        self.after = self._look()

    def _look(self) -> dict[str, tuple[Any, Any, int]]:
        """Each workload, the object that is changed, and how many pods there are."""
        team, found = self.world.team, {}
        for name, state in STATES.items():
            obj = created(self.world.api, state.kind, team, name)
            changed = created(self.world.api, state.on or state.kind, team, name)
            found[name] = copy.deepcopy((obj, changed, len(self.world.pods_of(team, name))))
        return found


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Story]:
    """What became of all of them."""
    with (
        Prometheus(tmp_path_factory.mktemp("prometheus")) as prometheus,
        World(tmp_path_factory.mktemp("world"), prometheus) as world,
    ):
        yield _Story(world)


@pytest.mark.parametrize("name", STOPPED)
def test_state_stop_sets_field_that_is_heeded_and_frees_pods(story: _Story, name: str) -> None:
    """The changed object is the one that its controller heeds in this state, and the pods go."""
    state = STATES[name]
    assert story.applied.items[name]["result"] == "done", story.applied.items[name]
    _, changed, pods = story.stopped[name]
    assert value_at(changed, state.field) == state.to
    assert json.loads(changed["metadata"]["annotations"][UNDO])["action"] == "suspend"
    assert pods == 0


@pytest.mark.parametrize("name", [name for name in STOPPED if STATES[name].on != STATES[name].kind])
def test_state_stop_of_owned_object_leaves_workload_alone(story: _Story, name: str) -> None:
    """No switch stays on the RayJob that would fire once it runs; undo lists its cluster."""
    assert story.stopped[name][0]["spec"] == story.before[name][0]["spec"]
    (item,) = [one for one in json.loads(story.listed.out)["items"] if one["name"] == name]
    assert item["kind"] == "RayCluster"


@pytest.mark.parametrize("name", STOPPED)
def test_state_undo_restores_object(story: _Story, name: str) -> None:
    """The old value is back; an ended job starts no pods again."""
    assert story.undone.items[name]["result"] == "done", story.undone.items[name]
    _, before, pods = story.before[name]
    _, after, again = story.after[name]
    changed = CASES.get(STATES[name].on)
    assert after["spec"] == (changed.restored(before["spec"]) if changed else before["spec"])
    assert again == (0 if name in LEFT_OVER else pods)


@pytest.mark.parametrize("name", ADVISED)
def test_state_without_a_stop_is_advised_on(story: _Story, name: str) -> None:
    """Nothing is written where no field frees the pods; the plan says why, and how to delete pods that are left."""
    state, item = STATES[name], story.plan.items[name]
    assert item["mode"] == "advise" or item["action"] is None, item
    assert state.says in " ".join(item["reasons"]), item
    assert name not in story.applied.items
    assert story.stopped[name][:2] == story.before[name][:2]
    if state.says == "it has ended":
        assert item["command"].startswith(f"kubectl -n {story.world.team} delete pod {name}-0-0")


@pytest.mark.parametrize("name", LEFT_OVER)
def test_state_stop_of_ended_job_loses_no_work(story: _Story, name: str) -> None:
    """The plan says so, whatever the job has computed since its last checkpoint."""
    item = story.plan.items[name]
    assert item["lost"].startswith("nothing of the job"), item
    assert "checkpoint" not in item["lost"]


def test_state_job_submitted_to_stopped_cluster_is_not_torn_down(story: _Story) -> None:
    """A person who submits after the undo keeps the cluster."""
    world = story.world
    world.api.patch("RayJob.ray.io", world.team, "rayjob-waiting", {"spec": {"jobId": "mine"}})
    assert len(world.pods_of(world.team, "rayjob-waiting")) == story.before["rayjob-waiting"][2]
