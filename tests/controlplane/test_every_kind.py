"""Every kind of GPU workload on a real API server with its definition installed: planned, stopped, restored.

No operators run, so the test plays them: it makes and ends the pods.
"""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.thirdparty import third_party_kinds
from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld
from tests.rightsizer.given import manifest
from tests.rightsizer.kind_cases import CASES, Case, value_at

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]

OK = HTTPStatus.OK
UNDO = "gpu-rightsizer.io/undo"
BUILT_IN = {"ReplicationController"}
"""Its controller runs."""
FINAL = {"Workflow.argoproj.io"}


def _name(kind: str) -> str:
    return "w-" + kind.lower().replace(".", "-")


class _Story:
    """All kinds in one namespace, stopped and restored; each test looks at one of them."""

    def __init__(self, world: RealWorld) -> None:
        self.world = world
        world.node()
        world.add("Deployment", "busy", "busy")
        for kind, case in CASES.items():
            _make(world, kind, case)
        for kind, case in CASES.items():
            world.seen(_name(kind), replicas=case.pods)
        self.before = {kind: self._get(kind) for kind in CASES}
        self.plan = world.plan()
        with self._operators():
            self.applied = world.apply()
        self.stopped = {kind: self._get(kind) for kind in CASES}
        self.command = world.api.items(f"/apis/bus.volcano.sh/v1alpha1/namespaces/{world.team}/commands")
        self.undone = world.run("undo", "--all", "--yes", "-o", "json").items
        self.after = {kind: self._get(kind) for kind in CASES}

    @contextlib.contextmanager
    def _operators(self) -> Iterator[None]:
        """Operators that end the pods of what was stopped: a stop after which no pod goes is rolled back."""
        is_over = threading.Event()

        def play() -> None:
            left = set(CASES) - BUILT_IN
            while not is_over.wait(0.2):
                for kind in [
                    kind for kind in left if UNDO in self._get(kind)["metadata"].get("annotations", {})
                ]:
                    left.discard(kind)
                    for number in range(CASES[kind].pods):
                        self.world.api("DELETE", f"{self.world.api.core}/pods/{_name(kind)}-{number}")

        thread = threading.Thread(target=play)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _get(self, kind: str) -> Object:
        return copy.deepcopy(self.world.api.get(f"{_path(self.world, kind)}/{_name(kind)}"))


def _path(world: RealWorld, kind: str) -> str:
    case = CASES[kind]
    root = f"/apis/{case.api_version}" if "/" in case.api_version else f"/api/{case.api_version}"
    lower = case.kind.lower()
    return f"{root}/namespaces/{world.team}/{lower}" + ("es" if lower.endswith("ss") else "s")


def _make(world: RealWorld, kind: str, case: Case) -> None:
    """An object, and what its operator would make of it."""
    given = {"nodeSelector": world.labels}
    made = world.api.create(_path(world, kind), manifest(kind, world.team, _name(kind), given))
    if case.status:
        answer = world.api.patch(f"{_path(world, kind)}/{_name(kind)}/status", {"status": case.status})
        assert answer.status_code == OK, answer.text
    reference = {
        "apiVersion": case.api_version,
        "kind": case.kind,
        "name": _name(kind),
        "uid": made["metadata"]["uid"],
        "controller": True,
    }
    for number in range(0 if kind in BUILT_IN else case.pods):
        pod = manifest("Pod", world.team, _name(kind), given)
        pod["metadata"] |= {"name": f"{_name(kind)}-{number}", "ownerReferences": [reference]}
        world.api.create(f"{world.api.core}/pods", pod)


@pytest.fixture(scope="module")
def story(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[_Story]:
    """What became of all kinds."""
    with RealWorld(third_parties, prometheus, tmp_path_factory.mktemp("world")) as world:
        yield _Story(world)


@pytest.mark.parametrize("kind", CASES)
def test_workload_of_each_kind_is_stopped(story: _Story, kind: str) -> None:
    """The API server takes the one patch with the change and its record, as it was planned."""
    case = CASES[kind]
    item = story.plan[_name(kind)]
    assert (item["verdict"], item["mode"], item["action"]) == ("act", "enforce", case.action), item
    assert story.applied[_name(kind)]["result"] == "done", story.applied[_name(kind)]
    value = value_at(story.stopped[kind], case.field)
    assert value == case.to or (case.to is None and value)
    assert UNDO in story.stopped[kind]["metadata"]["annotations"]


@pytest.mark.parametrize("kind", CASES)
def test_workload_of_each_kind_is_restored_by_undo(story: _Story, kind: str) -> None:
    """Everything that its owner wrote is as before; what nothing brings back is refused in words."""
    outcome = story.undone[_name(kind)]
    assert outcome["result"] == ("refused" if kind in FINAL else "done"), outcome
    if kind not in FINAL:
        assert story.after[kind]["spec"] == CASES[kind].restored(story.before[kind]["spec"])
        assert _others(story.after[kind]) == _others(story.before[kind])


OLDER: dict[str, tuple[Callable[[Object], object], Object]] = {
    "RayService.ray.io": (lambda fields: fields.pop("suspend"), {"suspend": True}),
    "NIMService.apps.nvidia.com": (lambda fields: fields["replicas"].update(minimum=1), {"replicas": 0}),
}
"""Definitions before KubeRay 1.7 and NIM Operator 3.1: what they lack, and what they refuse."""


@pytest.mark.parametrize("kind", OLDER)
def test_definition_of_older_release_blocks_its_kind_alone(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path: Path, kind: str
) -> None:
    """The API server refuses the dry run; that opens no breaker, and the others are stopped."""
    (row,) = (one for one in third_party_kinds() if f"{one.kind}.{one.group}" == kind)
    definition, (reduce, refused) = row.definition, OLDER[kind]
    place = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    older = copy.deepcopy(definition["spec"]["versions"])
    for version in older:
        reduce(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    with RealWorld(third_parties, prometheus, tmp_path) as world:
        world.node()
        world.add("Deployment", "idle")
        _make(world, kind, CASES[kind])
        world.seen(_name(kind), replicas=CASES[kind].pods)
        dry_run = f"{_path(world, kind)}/{_name(kind)}?dryRun=All&fieldValidation=Strict"

        def define(versions: list[Object], *, is_taken: bool) -> None:
            assert world.api.patch(place, {"spec": {"versions": versions}}).status_code == OK
            world.api.eventually(
                lambda: (world.api.patch(dry_run, {"spec": refused}).status_code == OK) is is_taken or None
            )

        try:
            define(older, is_taken=False)
            applied = world.apply()
        finally:
            define(definition["spec"]["versions"], is_taken=True)
        assert {name: item["result"] for name, item in applied.items()} == {
            "idle": "done",
            _name(kind): "blocked",
        }, applied
        assert "\nbreaker: closed\n" in world.run("breaker").out


def test_volcano_job_is_stopped_by_command(story: _Story) -> None:
    """Which its controller would obey and delete."""
    (order,) = story.command
    assert (order["action"], order["target"]["name"]) == ("AbortJob", _name("Job.batch.volcano.sh"))


def _others(obj: Any) -> dict[str, str]:
    """Annotations that are not ours."""
    annotations = obj["metadata"].get("annotations") or {}
    return {key: text for key, text in annotations.items() if not key.startswith("gpu-rightsizer.io/")}
