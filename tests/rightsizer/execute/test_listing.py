"""Wherever the record stands, on a Deployment, on what stops it, or on what only has a scale, all is the same."""

import dataclasses
import datetime
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.rightsizer.commands import Run
from tests.rightsizer.execute.test_reconcile import AT_ONCE
from tests.rightsizer.inventory.test_control_objects import queued, scaled
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

UNDO, HISTORY = "gpu-rightsizer.io/undo", "gpu-rightsizer.io/history"
PAUSED = "autoscaling.keda.sh/paused-replicas"
ONE_A_DAY = AT_ONCE + "  - {scope: namespace, per: day, workloads: 1}\n"


@dataclasses.dataclass(frozen=True)
class Way:
    """What is stopped, and what carries the record of it.

    Attributes:
        kind: Of the workload; so is `name`.
        bearer: Kind and name of what carries the record.
        add: Makes it.
        back: What somebody writes to the bearer to have the workload back.
    """

    kind: str
    name: str
    bearer: tuple[str, str]
    add: Callable[[World], None]
    back: Mapping[str, Any]

    def notes(self, world: World) -> dict[str, str]:
        """Annotations of what carries the record."""
        found: dict[str, str] = created(world.api, self.bearer[0], world.team, self.bearer[1])[
            "metadata"
        ].get("annotations", {})
        return found

    def write(self, world: World, patch: Mapping[str, Any]) -> None:
        """Change what carries the record."""
        world.api.patch(self.bearer[0], world.team, self.bearer[1], patch)
        world.api.settle()

    def age(self, world: World, hours: float) -> None:
        """Let our notes have been written earlier."""

        def earlier(found: re.Match[str]) -> str:
            at = datetime.datetime.fromisoformat(found[0]) - datetime.timedelta(hours=hours)
            return at.strftime("%Y-%m-%dT%H:%M:%SZ")

        ours = {key: text for key, text in self.notes(world).items() if key in {UNDO, HISTORY}}
        aged = {key: re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", earlier, text) for key, text in ours.items()}
        self.write(world, {"metadata": {"annotations": aged}})


_BACK = {"spec": {"replicas": 2}}
WAYS = {
    "itself": Way(
        "Deployment", "web", ("Deployment", "web"), lambda w: w.add("Deployment", w.team, "web", {}), _BACK
    ),
    "kueue": Way("Job", "train", ("Workload", "queued"), queued, {"spec": {"active": True}}),
    "keda": Way(
        "Deployment", "web", ("ScaledObject", "web"), scaled, {"metadata": {"annotations": {PAUSED: None}}}
    ),
    "scale": Way(
        "CloneSet",
        "x",
        ("CloneSet.apps.kruise.io", "x"),
        lambda world: world.add("CloneSet.apps.kruise.io", world.team, "x", {}),
        _BACK,
    ),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, world: World) -> Way:
    """Each of them, there and idle."""
    found = WAYS[request.param]
    found.add(world)
    return found


def _apply(world: World, policy: str = DEFAULT_POLICY) -> Run:
    run = world.run("apply", "--yes", "-o", "json", "--verify-for", "0", policy=policy)
    assert run.out, run.err
    return run


def _stopped(world: World, way: Way, policy: str = DEFAULT_POLICY) -> str:
    """Stop it; the run that did."""
    run = _apply(world, policy)
    assert run.items[way.name]["result"] == "done", run.out
    assert UNDO in way.notes(world)
    name: str = json.loads(run.out)["metadata"]["run"]
    return name


def _history(world: World, *flags: str) -> list[tuple[str, str, str | None]]:
    run = world.run("history", "-o", "json", *flags)
    assert (run.code, run.err) == (0, "")
    return [(one["kind"], one["name"], one["end"]) for one in json.loads(run.out)["items"]]


def _parked(world: World, way: Way) -> None:
    for pod in world.pods_of(world.team, way.name):
        world.record(pod, "idle", 1)


def test_history_and_undo_find_stopped_workload_by_name(world: World, way: Way) -> None:
    """`history` names the workload, while it is stopped and afterwards; `undo` of the run finds it, and `--all`."""
    run = _stopped(world, way)
    named = f"{world.team}/{way.kind}/{way.name}"
    assert _history(world) == _history(world, named) == [(way.kind, way.name, None)]
    listed = json.loads(world.run("undo", "-o", "json").out)["items"]
    assert [one["name"] for one in listed] == [way.bearer[1]]
    assert world.run("undo", "--run", run, "--yes").code == 0
    assert world.pods_of(world.team, way.name)
    assert _history(world, named) == [(way.kind, way.name, "undone")]
    assert f"{named}" in world.run("history").out
    assert {event["involvedObject"]["name"] for event in world.api.list("Event", world.team)} >= {way.name}
    assert world.run("undo", "--all", "--yes").code == 0


def test_change_reverted_by_owner_is_reported_and_not_repeated(world: World, way: Way) -> None:
    """The next run finds it, remembers it where the record stood, and leaves the workload alone."""
    _stopped(world, way, AT_ONCE)
    way.age(world, 60)
    world.clock.stand(time.time() - 50 * 3600)
    way.write(world, way.back)
    world.clock.run()
    _parked(world, way)
    run = _apply(world)
    reconciliations = [
        (one["name"], one["action"]) for one in json.loads(run.out)["items"] if one["reconciliation"]
    ]
    assert reconciliations == [(way.bearer[1], "record-revert")]
    assert [one["end"] for one in json.loads(way.notes(world)[HISTORY])] == ["reverted"]
    assert UNDO not in way.notes(world)
    told = [one for one in world.api.list("Event", world.team) if one["reason"] == "Reverted"]
    assert [one["involvedObject"]["name"] for one in told] == [way.name]
    plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items[way.name]
    assert plan["action"] is None or "reverted by someone" in str(plan["blockers"]), plan


def test_change_limit_two_in_thirty_days_blocks_more(world: World, way: Way) -> None:
    """Wherever they are remembered."""
    now = datetime.datetime.now(datetime.UTC)
    entries = [
        {
            "at": f"{now - datetime.timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}",
            "run": f"r{days}",
            "action": "suspend",
            "gpus": 1,
        }
        for days in (9, 15)
    ]
    way.write(world, {"metadata": {"annotations": {HISTORY: json.dumps(entries)}}})
    item = world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items[way.name]
    assert item["action"] is None, item
    assert "2 times in 30 days" in str(item["reasons"])


def test_change_budget_counts_undone_changes(world: World, way: Way) -> None:
    """A budget over time counts it, though no record is left."""
    _stopped(world, way, ONE_A_DAY)
    assert world.run("undo", "--all", "--yes").code == 0
    world.add("Deployment", world.team, "next", {})
    item = world.run("plan", "-o", "json", policy=ONE_A_DAY).items["next"]
    assert "1 of 1 workloads are used up" in str(item["blockers"]), item
