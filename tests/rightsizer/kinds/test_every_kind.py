"""Every kind of GPU workload, through the real commands: it is planned, stopped, and restored as it was."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.doctor.rights import RIGHTS, Purpose, needed
from simulator.kube import Rule
from simulator.prometheus import Prometheus
from tests.rightsizer.kind_cases import CASES, value_at
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("every-kind")]

UNDO = "gpu-rightsizer.io/undo"
FINAL = {"Workflow.argoproj.io"}


def _name(kind: str) -> str:
    return "w-" + kind.lower().replace(".", "-")


def _only(world: World, command: Purpose) -> None:
    """Be somebody who has the rights of a command by `doctor --roles`, and what its docs say of unknown kinds."""
    token = f"{command}-token"
    world.api.add_user(token, command)
    for right in needed(RIGHTS, command):
        namespaces = ("gpu-rightsizer",) if right.is_own else ("*",)
        world.api.allow(
            Rule(command, (right.verb,), (right.resource,), groups=(right.group,), namespaces=namespaces)
        )
    unknown = ("clonesets",)
    world.api.allow(Rule(command, ("get", "list", "patch"), unknown, groups=("apps.kruise.io",)))
    world.write_kubeconfig(token)


class _Story:
    """One world with all kinds, planned, stopped and restored with no more rights than that takes."""

    def __init__(self, world: World) -> None:
        self.world = world
        for kind in CASES:
            world.add(kind, world.team, _name(kind), {})
        world.add("Deployment", world.team, "busy", {"usage": "busy"})
        self.before = self._look()
        _only(world, Purpose.PLAN)
        self.plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
        _only(world, Purpose.APPLY)
        self.applied = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)
        self.stopped = self._look()
        _only(world, Purpose.UNDO)
        self.listed = world.run("undo", "-o", "json")
        self.undone = world.run("undo", "--all", "--yes", "-o", "json")
        self.after = self._look()

    def _look(self) -> dict[str, tuple[Any, list[str]]]:
        """Each object, and the names of its pods."""
        team = self.world.team
        return {
            kind: (
                copy.deepcopy(created(self.world.api, kind, team, _name(kind))),
                sorted(pod["metadata"]["name"] for pod in self.world.pods_of(team, _name(kind))),
            )
            for kind in CASES
        }


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Story]:
    """What became of all kinds."""
    with (
        Prometheus(tmp_path_factory.mktemp("prometheus")) as prometheus,
        World(tmp_path_factory.mktemp("world"), prometheus) as world,
    ):
        yield _Story(world)


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_plan_shows_action_command_and_losses(story: _Story, kind: str) -> None:
    """Before anything is done: the action that the kind has, a command that does it by hand, what is destroyed."""
    item = story.plan.items[_name(kind)]
    case = CASES[kind]
    assert (item["kind"], item["apiVersion"], item["gpus"]) == (case.kind, case.api_version, case.pods), item
    assert (item["verdict"], item["mode"], item["action"]) == ("act", "enforce", case.action), item
    assert item["lost"]
    assert _name(kind) in item["command"]


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_stop_sets_field_and_record_and_removes_pods(story: _Story, kind: str) -> None:
    """The one field is set, the record stands beside it, and its operator takes its pods away."""
    outcome = story.applied.items[_name(kind)]
    assert outcome["result"] == "done", outcome
    obj, pods = story.stopped[kind]
    case = CASES[kind]
    value = value_at(obj, case.field)
    assert value == case.to or (case.to is None and value)
    assert json.loads(obj["metadata"]["annotations"][UNDO])["action"] == case.action
    assert pods == []
    assert {item["name"] for item in json.loads(story.listed.out)["items"]} == {_name(one) for one in CASES}


@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in FINAL])
def test_every_kind_undo_restores_object_and_pods(story: _Story, kind: str) -> None:
    """Everything that its owner wrote is as before, and its pods are there again."""
    outcome = story.undone.items[_name(kind)]
    assert outcome["result"] == "done", outcome
    (before, pods), (after, again) = story.before[kind], story.after[kind]
    assert after["spec"] == CASES[kind].restored(before["spec"])
    assert UNDO not in after["metadata"]["annotations"]
    kept = {
        key: text
        for key, text in after["metadata"]["annotations"].items()
        if not key.startswith("gpu-rightsizer.io/")
    }
    assert kept == before["metadata"].get("annotations", {})
    assert again == pods


@pytest.mark.parametrize("kind", FINAL)
def test_every_kind_undo_of_irreversible_stop_is_refused(story: _Story, kind: str) -> None:
    """Undo refuses in words what was told before it was done."""
    outcome = story.undone.items[_name(kind)]
    assert outcome["result"] == "refused"
    assert story.plan.items[_name(kind)]["lost"] in outcome["detail"]
    assert story.after[kind] == story.stopped[kind]


def test_every_kind_printed_rbac_is_sufficient(story: _Story) -> None:
    """The rights that are printed suffice for every kind: nothing is left out, nothing is warned of."""
    assert (story.plan.err, story.listed.err) == ("", "")
    assert "left out" not in story.applied.err + story.undone.err
