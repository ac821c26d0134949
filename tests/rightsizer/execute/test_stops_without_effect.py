"""A stop after which no pod goes is rolled back, by its own run or a later one, and is not called done."""

import contextlib
import datetime
import itertools
import json
import re
import time
from typing import Any

import pytest

from rightsizer.__main__ import parser
from rightsizer.cli.cycle import ActingCycle
from rightsizer.cli.plan_session import PlanSession
from rightsizer.execute.run_context import Deadline, RunContext
from rightsizer.model import Outcome, Result
from tests.rightsizer.commands import Run
from tests.rightsizer.readers import Readers
from tests.rightsizer.world import DEFAULT_POLICY, World, created, stamp

pytestmark = pytest.mark.prometheus

KIND, NAME = "PyTorchJob.kubeflow.org", "train"
UNDO, HISTORY = "gpu-rightsizer.io/undo", "gpu-rightsizer.io/history"
HOLD = "example.com/hold"


def _unattended(world: World) -> None:
    """A job whose operator does nothing: its pods are not those of the simulated one."""
    spec: dict[str, Any] = {"runPolicy": {}, "pytorchReplicaSpecs": {}}
    world.add(KIND, world.team, NAME, {"spec": lambda _: spec})
    uid = _job(world)["metadata"]["uid"]
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": NAME,
        "uid": uid,
        "controller": True,
    }
    for number in range(2):
        world.add("Pod", world.team, f"{NAME}-{number}", {"owners": [owner]})
    _others(world)


def _others(world: World) -> None:
    world.add("Deployment", world.team, "busy", {"usage": "busy"})


def _job(world: World) -> dict[str, Any]:
    return created(world.api, KIND, world.team, NAME)


def _ends(world: World) -> list[str | None]:
    past = json.loads(_job(world)["metadata"]["annotations"][HISTORY])
    return [entry.get("end") for entry in past]


def _followed(world: World, *, is_wanted: bool = False) -> list[Outcome]:
    """The outcomes of a run in which each check of the effect comes half a minute after the last."""
    flags = ["--kubeconfig", str(world.write_kubeconfig()), "--prometheus-url", world.prometheus.url]
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY)
    arguments = parser().parse_args(["apply", "--policy", str(world.directory / "policy.yaml"), *flags])
    waits = itertools.count(0.0, 30.0)
    deadline = Deadline(
        60.0, lambda: next(waits), lambda _: world.api.settle(), lambda: False, lambda: is_wanted
    )
    with contextlib.closing(PlanSession(arguments)) as session:
        own = session.own
        context = RunContext(
            session.cluster,
            session.run,
            own,
            session.instance,
            session.clock,
            evicts=False,
            bind_within=session.policy.policy.demand.bindWithin,
        )
        readers = Readers(deadline)
        ActingCycle(session, context, readers).run()
    return readers.outcomes


def _apply(world: World) -> Run:
    """A run that does not wait for any effect."""
    return world.run("apply", "--yes", "-o", "json", "--verify-for", "0", policy=DEFAULT_POLICY)


def _age(world: World, *, hours: float) -> None:
    """Let the job have been stopped so long ago."""
    then = stamp(datetime.datetime.fromtimestamp(time.time() - hours * 3600, datetime.UTC))
    for key, text in _job(world)["metadata"]["annotations"].items():
        aged = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", then, text)
        world.api.patch(KIND, world.team, NAME, {"metadata": {"annotations": {key: aged}}})


def test_stop_without_effect_is_rolled_back_by_its_run(world: World) -> None:
    """Nothing stays on the object that could take effect later, and the outcome has a word of its own."""
    _unattended(world)
    before = _job(world)["spec"]
    made, verified = _followed(world)
    assert (made.result, verified.result) == (Result.DONE, Result.NO_EFFECT)
    assert verified.effect is not None
    assert "none of its pods is gone or terminating" in verified.detail
    job = _job(world)
    assert job["spec"] == before
    assert UNDO not in job["metadata"]["annotations"]
    assert _ends(world) == ["no-effect"]
    assert "gpu-rightsizer.io/came-back-after" not in job["metadata"]["annotations"]
    events = [event["reason"] for event in world.api.list("Event", world.team)]
    assert "RolledBack" in events
    item = world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items[NAME]
    assert [block["code"] for block in item["blockers"]] == ["cooldown"]
    assert "rolled back because no pod went" in item["blockers"][0]["message"]


def test_stop_without_effect_yet_is_left_when_its_run_is_cut_short(world: World) -> None:
    """A run that pending pods end early has not waited long enough to know."""
    _unattended(world)
    _, verified = _followed(world, is_wanted=True)
    assert verified.result is Result.DONE
    assert _job(world)["spec"]["runPolicy"]["suspend"] is True


def test_stop_whose_pods_terminate_is_not_rolled_back(world: World) -> None:
    """However long their grace period is."""
    world.add(KIND, world.team, NAME, {})
    for pod in world.pods_of(world.team, NAME):
        held = {"metadata": {"finalizers": [HOLD]}}
        world.api.patch("Pod", world.team, pod["metadata"]["name"], held)
    _others(world)
    _, verified = _followed(world)
    assert verified.result is Result.DONE
    assert _job(world)["spec"]["runPolicy"]["suspend"] is True
    assert len(world.pods_of(world.team, NAME)) == 2


def test_stop_without_effect_is_rolled_back_by_a_later_run(world: World) -> None:
    """The plan's fleet shows pods that are older than the stop."""
    _unattended(world)
    before = _job(world)["spec"]
    assert _apply(world).items[NAME]["result"] == "done"
    assert NAME not in _apply(world).items  # it has had no time
    _age(world, hours=30.0)
    (item,) = [one for one in json.loads(_apply(world).out)["items"] if one["name"] == NAME]
    assert (item["action"], item["result"], item["reconciliation"]) == ("rollback", "done", True)
    assert _job(world)["spec"] == before
    assert _ends(world) == ["no-effect"]


def test_stop_in_effect_is_left_by_a_later_run(world: World) -> None:
    """Its pods are gone."""
    world.add(KIND, world.team, NAME, {})
    _others(world)
    assert _apply(world).items[NAME]["result"] == "done"
    _age(world, hours=30.0)
    assert NAME not in _apply(world).items
    assert _job(world)["spec"]["runPolicy"]["suspend"] is True
