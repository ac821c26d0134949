"""Scenarios: given a cluster and its metrics, when commands are run, then this is what became of each workload.

Each file under scenarios/ is one; a new case is a new file; `covers` names rows of docs/bad-data.md. The whole true
loop runs: the command line, a real Prometheus, the API server over HTTP, its controllers.
"""

import datetime
import json
import pathlib
import re
import time
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from simulator.prometheus import Prometheus
from tests.rightsizer.commands import Run
from tests.rightsizer.relay import Relay
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, gpus_of

FOLDER = pathlib.Path(__file__).parent / "scenarios"
QUICK = {
    *("idle-of-every-kind", "finished-and-underused", "too-many-gpus-are-given-back"),
    *("missing-data-is-not-idleness", "one-device-of-many", "protected-by-class", "notices-come-first"),
}
"""In every `make test`; the others by `make test-slow`."""


def _cases() -> list[Any]:
    return [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in sorted(FOLDER.glob("*.yaml"))
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize("path", _cases())
def test_scenario_steps_meet_expectations(
    path: pathlib.Path, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """What the scenario's `then` says holds after its `when`, step by step where there are several."""
    scenario: dict[str, Any] = yaml.safe_load(dated(path.read_text()))
    is_exported = scenario.get("labels", "exported") == "exported"
    with World(tmp_path, prometheus, exported=is_exported) as world, Relay(prometheus.url) as relay:
        world.relay = relay
        give(world, scenario["given"], path.stem)
        for step in scenario.get("steps", [scenario]):
            _spoil(relay, step.get("prometheus", {}))
            _Step(world, scenario, step, path.stem).walk()


def _spoil(relay: Relay, how: Mapping[str, Any]) -> None:
    """Let a Prometheus be gone, or its answers have a status, more fields or a clock of their own."""

    def spoil(status: int, body: bytes) -> tuple[int, bytes]:
        if "answers" in how:
            return how["answers"], b"no"
        return status, json.dumps({**json.loads(body), **how.get("adds", {})}).encode()

    relay.is_gone = how.get("gone", False)
    relay.clocks = [how.get("clock_h", 0) * 3600.0]
    relay.spoil = spoil


def dated(text: str) -> str:
    """Times of day and days relative to now: <+2h> and <-1d>."""
    now = datetime.datetime.now(datetime.UTC)
    hours = re.sub(
        r"<([+-]\d+)h>", lambda found: f"{now + datetime.timedelta(hours=int(found[1])):%H:%M}", text
    )
    return re.sub(
        r"<([+-]\d+)d>", lambda found: f"{now + datetime.timedelta(days=int(found[1])):%Y-%m-%d}", hours
    )


def give(world: World, given: dict[str, Any], namespace: str) -> None:
    """Make what a scenario starts from."""
    for name, annotations in given.get("classes", {}).items():
        world.api.patch("PriorityClass", None, name, {"metadata": {"annotations": annotations}})
    for name, node in given.get("nodes", {}).items():
        annotations = node.get("annotations")
        world.node(name, resources=node.get("resources"), annotations=annotations, **node.get("labels", {}))
    for obj in given.get("objects", []):
        if of := obj["metadata"].setdefault("namespace", namespace):  # empty: of the cluster
            world.namespace(of)
        made = world.api.create(obj)
        if "status" in obj:
            world.api.update({**made, "status": obj["status"]}, subresource="status")
    world.labels = given.get("series", {})
    for name, looks in given.get("gone", {}).items():
        world.record({"metadata": {"namespace": namespace, "name": name}}, looks, 1)
    for uuid, board in given.get("boards", {}).items():
        names = {"modelName": board["model"], "UUID": uuid, **board.get("series", {})}
        free = {"metadata": {"namespace": "", "name": ""}, "spec": {"nodeName": board["node"]}}
        world.record(free, board["usage"], 1, names)
    for name, workload in given["workloads"].items():
        world.add(workload["kind"], workload.get("namespace", namespace), name, workload)


def age(world: World, kind: str, namespace: str, name: str, hours: float) -> None:
    """Let our notes on a workload have been written earlier."""
    obj = world.api.get(kind, namespace, name) or {"metadata": {}}
    for key, text in obj["metadata"].get("annotations", {}).items():
        if key.startswith("gpu-rightsizer.io/"):
            aged = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", lambda found: _ago(found[0], hours), text)
            world.api.patch(kind, namespace, name, {"metadata": {"annotations": {key: aged}}})


class _Step:
    """One `when` and `then` of a scenario.

    Keys of a step: `when` (plan, or apply: where it is the only step it is undone, too; or undo), `then` by workload,
    `policy` and `flags` of the plan, `aged_h`: so long ago all our notes in the cluster seem to have been written,
    `long_ago_h`: so long ago undo seems to have been, `prometheus`: what is wrong with it, `fails`: instead of `then`,
    words of the error with which the command ends, `stranded`: by node why its free GPUs cannot be had, `problems`:
    words of the plan's problems.
    """

    def __init__(self, world: World, scenario: dict[str, Any], step: dict[str, Any], namespace: str) -> None:
        self.world = world
        self.given: dict[str, Any] = scenario["given"]["workloads"]
        self.step = step
        self.then: dict[str, dict[str, Any]] = step.get("then", {})
        self.policy: str = step.get("policy", scenario.get("policy", DEFAULT_POLICY))
        if "budgets:" not in self.policy:
            self.policy += BUDGETS
        self.is_only = step is scenario
        self.namespace = namespace

    def walk(self) -> None:
        """Do what the step says, and look."""
        if "fails" in self.step:
            self._fail(*self.step.get("when", ["plan"]))
            return
        match self.step.get("when", ["plan"]):
            case ["undo"]:
                self._undo(self.step["long_ago_h"])
            case ["apply"]:
                self._age(self.step.get("aged_h", 0))
                self._plan()
                self._apply()
            case ["plan"]:
                self._age(self.step.get("aged_h", 0))
                self._plan()
                assert not self.is_only or not self.world.api.requests.mutating(include_dry_run=True)

    def _fail(self, command: str) -> None:
        """It ends with an error, says why, and has changed nothing."""
        flags = ["--yes"] if command == "apply" else []
        run = self.world.run(command, *flags, *self.step.get("flags", []), policy=self.policy)
        assert (run.code, run.out) == (1, ""), run.out
        for words in self.step["fails"]:
            assert words in run.err
        writes = self.world.api.requests.mutating(include_dry_run=True)
        assert not [one for one in writes if "/leases" not in one.path]

    def _undo(self, hours: float) -> None:
        """Put everything back, as if that had been so long ago; its pods look idle since then."""
        self.world.clock.stand(time.time() - hours * 3600)
        assert self.world.run("undo", "--all", "--yes", "-o", "json").code == 0
        for name, workload in self.given.items():
            for pod in self.world.pods_of(workload.get("namespace", self.namespace), name):
                self.world.record(pod, "idle", workload.get("gpus", 1))
        self.world.clock.run()
        self._age(hours)

    def _age(self, hours: float) -> None:
        """Let our notes on all workloads have been written earlier."""
        for name, workload in self.given.items() if hours else ():
            age(self.world, workload["kind"], workload.get("namespace", self.namespace), name, hours)

    def _plan(self) -> None:
        plan = self.world.run("plan", "-o", "json", *self.step.get("flags", []), policy=self.policy)
        assert plan.code == 0, plan.err
        assert set(plan.items) == set(self.then) or not self.is_only
        for name, expected in self.then.items():
            item = plan.items[name]
            wanted = expected.get("plan", {})
            assert {key: _part(item[key], wanted[key]) for key in wanted} == wanted, str(item)
            assert [block["code"] for block in item["blockers"]] == expected.get("blocked", []), item
            reasons = [block["message"] for block in item["blockers"]] + item["reasons"]
            for words in expected.get("says", []):
                assert words in " | ".join([*item["evidence"]["reasons"], *reasons]), item
        for words in self.step.get("problems", []):
            assert words in " | ".join(json.loads(plan.out)["problems"])
        for name, expected in self.step.get("stranded", {}).items():
            (found,) = [one for one in json.loads(plan.out)["stranded"] if one["node"] == name]
            for words in expected:
                assert words in " | ".join([f"{found['free']} of {found['resource']}", *found["reasons"]]), (
                    found
                )

    def _apply(self) -> None:
        before = {name: self._size(name) for name in self.then}
        apply = self.world.run("apply", "--yes", "-o", "json", policy=self.policy)
        for name, expected in self.then.items():
            self._check_outcome(name, expected, before[name], apply)
        if self.is_only:
            undo = self.world.run("undo", "--all", "--yes", "-o", "json")
            assert undo.code == 0, undo.out + undo.err
            assert {name: self._size(name) for name in before} == before

    def _check_outcome(self, name: str, expected: dict[str, Any], before: int, apply: Run) -> None:
        outcome = apply.items.get(name, {})
        assert outcome.get("result") == expected.get("result"), (name, outcome, apply.err)
        is_stopped = outcome.get("result") == "done" and outcome["action"] != "notice"
        assert self._size(name) == (expected.get("left", 0) if is_stopped else before), name
        if "gpus" in expected:
            pods = self.world.pods_of(self.given[name].get("namespace", self.namespace), name)
            assert {gpus_of(pod) for pod in pods} == {expected["gpus"]}, pods
        if "asks" in expected:
            pods = self.world.pods_of(self.given[name].get("namespace", self.namespace), name)
            limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods]
            assert limits == [expected["asks"]] * len(pods)
        workload = self.given[name]
        events = self.world.api.list("Event", workload.get("namespace", self.namespace))
        told = [event["reason"] for event in events if event["involvedObject"]["name"] == name]
        assert "event" not in expected or expected["event"] in told, told

    def _size(self, name: str) -> int:
        """How many pods a workload has."""
        return len(self.world.pods_of(self.given[name].get("namespace", self.namespace), name))


def _part(value: Any, wanted: Any) -> Any:
    """Of a mapping only what is asked about."""
    return {key: value[key] for key in wanted} if isinstance(wanted, dict) else value


def _ago(text: str, hours: float) -> str:
    at = datetime.datetime.fromisoformat(text) - datetime.timedelta(hours=hours)
    return at.isoformat(timespec="seconds")
