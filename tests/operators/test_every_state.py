"""Kinds of real operators in every state: planned, stopped, left alone by their operators, restored."""

import copy
import time
from collections.abc import Sequence
from http import HTTPStatus

import pytest

from simulator.controlplane.programs import OPERATORS, missing
from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld
from tests.operators.conftest import SECOND
from tests.operators.rows import ROWS, Row, body
from tests.operators.running import Operators
from tests.rightsizer.kind_cases import value_at

pytestmark = [pytest.mark.operators, pytest.mark.prometheus, pytest.mark.xdist_group("operators")]

UNDO = "gpu-rightsizer.io/undo"
_REACHED_S = 120.0
_RECONCILES = 3
_RECONCILE_S = 1.0
"""Time in which an operator has reconciled what was just changed."""
_BUILT = {program.name for program in OPERATORS} - {program.name for program in missing(OPERATORS)}


class _Story:
    """All rows in one namespace, stopped and restored; each test looks at one of them."""

    def __init__(self, world: RealWorld, operators: Sequence[str]) -> None:
        self.world = world
        self.rows = [row for row in ROWS.values() if row.operator in operators]
        for row in self.rows:
            if row.runtime:
                runtime = body(world, row, kind="TrainingRuntime", spec=row.runtime)
                world.api.create(self._collection(row, "TrainingRuntime"), runtime)
            world.api.create(self._collection(row, row.kind), body(world, row))
        for row in self.rows:
            self._reach(row)
        self.before = {row.name: self._objects(row) for row in self.rows}
        self.plan = world.plan()
        self.applied = world.apply()
        self.stopped = {row.name: self._objects(row) for row in self.rows}
        for number in range(_RECONCILES):
            for row in self.rows:
                touched = {"metadata": {"annotations": {"touched": str(number)}}}
                assert world.api.patch(self._path(row), touched).status_code == HTTPStatus.OK
            time.sleep(_RECONCILE_S)
        self.left = {row.name: len(self._active(row)) for row in self.rows}
        self.waiting = {row.name: len(self._waiting(row)) for row in self.rows}
        self.kept = {row.name: self._objects(row) for row in self.rows}
        self.undone = world.run("undo", "--all", "--yes", "-o", "json").items
        self.back = {row.name: self._back(row) for row in self.rows}
        self.after = {row.name: self._objects(row) for row in self.rows}

    def _reach(self, row: Row) -> None:
        """Wait until a row is in its state and has its pods, which are idle since yesterday."""
        api = self.world.api
        if row.status:
            self._pods(row)
            path = f"{self._path(row)}/status"
            api.eventually(lambda: api.patch(path, {"status": row.status}).status_code == HTTPStatus.OK)
        if row.reached:
            field, wanted = row.reached
            api.eventually(
                lambda: _states(api.get(self._path(row)), field),
                lambda states: wanted in states,
                timeout_s=_REACHED_S,
            )
        if row.waits:
            api.eventually(lambda: self._waiting(row), bool, timeout_s=_REACHED_S)
        for pod in self._pods(row):
            self.world.since_yesterday(pod, ["idle"])

    def _pods(self, row: Row) -> list[Object]:
        return self.world.api.eventually(
            lambda: self._active(row), lambda pods: len(pods) == row.pods, timeout_s=_REACHED_S
        )

    def _back(self, row: Row) -> int:
        """The pods that run after undo, as soon as they are those that were expected."""
        deadline = time.monotonic() + _REACHED_S
        while len(self._active(row)) != row.back and time.monotonic() < deadline:
            time.sleep(0.2)
        return len(self._active(row))

    def _active(self, row: Row) -> list[Object]:
        return [pod for pod in self.world.pods(row.name) if pod["status"]["phase"] == "Running"]

    def _waiting(self, row: Row) -> list[Object]:
        return [pod for pod in self.world.pods(row.name) if pod["status"]["phase"] == "Pending"]

    def _objects(self, row: Row) -> list[Object]:
        """The object of a row, and the one that it owns if that is stopped in its place."""
        objects = [self.world.api.get(self._path(row))]
        if row.owned:
            owner = objects[0]["metadata"]["uid"]
            found = self.world.api.items(self._collection(row, row.owned))
            objects += [
                item
                for item in found
                if owner in [reference["uid"] for reference in item["metadata"].get("ownerReferences", ())]
            ]
        return copy.deepcopy(objects)

    def _path(self, row: Row) -> str:
        return f"{self._collection(row, row.kind)}/{row.name}"

    def _collection(self, row: Row, kind: str) -> str:
        return f"/apis/{row.api_version}/namespaces/{self.world.team}/{kind.lower()}s"


def _states(obj: Object, path: str) -> set[str]:
    found = obj.get("status", {}).get(path, ())
    if isinstance(found, str):
        return {found}
    return {condition["type"] for condition in found or () if condition["status"] == "True"}


@pytest.fixture(scope="module")
def first_story(world: RealWorld, operators: Operators) -> _Story:
    """What became of the rows of most operators."""
    return _Story(world, operators.names)


@pytest.fixture(scope="module")
def second_story(second_world: RealWorld, second_operators: Operators) -> _Story:
    """What became of the others."""
    return _Story(second_world, [name for name in second_operators.names if name in SECOND])


@pytest.fixture
def story(request: pytest.FixtureRequest, name: str) -> _Story:
    """What became of the rows of one control plane."""
    is_second = ROWS[name].operator in SECOND
    found: _Story = request.getfixturevalue("second_story" if is_second else "first_story")
    return found


def _each(results: set[str]) -> pytest.MarkDecorator:
    names = [
        pytest.param(
            name,
            marks=()
            if row.operator in _BUILT
            else pytest.mark.skip(reason=f"no {row.operator}; `make operators` builds it, or says why not"),
        )
        for name, row in ROWS.items()
        if row.result in results
    ]
    return pytest.mark.parametrize("name", names)


@_each({"done"})
def test_workload_is_stopped_and_stays_stopped(story: _Story, name: str) -> None:
    """Its pods go, and none come back while its operator looks at it again."""
    row = ROWS[name]
    assert story.plan[row.name]["action"] == row.action, story.plan[row.name]
    assert story.applied[row.name]["result"] == "done", story.applied[row.name]
    path, value = row.stopped
    assert value_at(story.stopped[row.name][-1], path) == value
    assert value_at(story.kept[row.name][-1], path) == value
    assert (story.left[row.name], story.waiting[row.name]) == (0, 0)


@_each({"done"})
def test_workload_is_restored_by_undo(story: _Story, name: str) -> None:
    """Its pods come back unless it has ended, and its owner finds all that it wrote."""
    row = ROWS[name]
    changed = story.stopped[row.name][-1]["metadata"]["name"]
    assert story.undone[changed]["result"] == "done", story.undone
    assert story.back[row.name] == row.back
    *owners, before = [item["spec"] for item in story.before[row.name]]
    assert [item["spec"] for item in story.after[row.name]] == [*owners, {**row.restored, **before}]
    assert UNDO not in story.after[row.name][-1]["metadata"].get("annotations", {})


@_each({"blocked"})
def test_refused_stop_changes_nothing(story: _Story, name: str) -> None:
    """The API server refuses the field that this release does not have."""
    row = ROWS[name]
    assert story.applied[row.name]["result"] == "blocked", story.applied[row.name]
    assert story.left[row.name] == row.pods
    assert story.kept[row.name][-1]["spec"] == story.before[row.name][-1]["spec"]


@_each({""})
def test_workload_without_stop_is_left_alone(story: _Story, name: str) -> None:
    """It holds no GPUs, or its operator heeds no stop."""
    row = ROWS[name]
    assert row.name not in story.applied
    assert story.left[row.name] == row.pods
    assert bool(story.waiting[row.name]) == row.waits
    assert story.after[row.name][-1]["spec"] == story.before[row.name][-1]["spec"]
