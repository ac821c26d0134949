"""Scenarios: given a cluster and its metrics, when commands are run, then this is what became of each workload.

Each file under scenarios/ is one; a new case is a new file. The whole true loop runs: the command line, a real
Prometheus, the API server over HTTP, its controllers.
"""

import pathlib
from typing import Any

import pytest
import yaml

from simulator.prometheus import Prometheus
from tests.rightsizer.world import World

FOLDER = pathlib.Path(__file__).parent / "scenarios"
DEFAULT_POLICY = (pathlib.Path(__file__).parents[2] / "deploy/examples/policy.yaml").read_text()
CHANGED = {"act": {"enforce"}}


@pytest.mark.prometheus
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: str(path.stem))
def test_scenario(path: pathlib.Path, tmp_path: pathlib.Path, prometheus: Prometheus) -> None:
    """What the scenario's `then` says holds after its `when`."""
    scenario: dict[str, Any] = yaml.safe_load(path.read_text())
    namespace = path.stem
    with World(tmp_path, prometheus, exported=scenario.get("labels", "exported") == "exported") as world:
        give(world, scenario["given"], namespace)
        policy = scenario.get("policy", DEFAULT_POLICY)
        plan = world.run("plan", "-o", "json", policy=policy)
        assert plan.code == 0, plan.err
        assert set(plan.items) == set(scenario["then"])
        for name, expected in scenario["then"].items():
            item = plan.items[name]
            assert {key: item[key] for key in expected.get("plan", {})} == expected.get("plan", {}), item
            for words in expected.get("says", []):
                assert words in " | ".join([*item["evidence"]["words"], *item["reasons"]])
        if "apply" in scenario.get("when", ["plan"]):
            _apply_and_undo(world, scenario, namespace, policy)
        else:
            assert not world.api.requests.mutating(include_dry_run=True)


def give(world: World, given: dict[str, Any], namespace: str) -> None:
    """Make what a scenario starts from."""
    for name, node in given.get("nodes", {}).items():
        world.node(name, resources=node.get("resources"), **node.get("labels", {}))
    for obj in given.get("objects", []):
        world.namespace(obj["metadata"].setdefault("namespace", namespace))
        world.api.create(obj)
    for name, workload in given["workloads"].items():
        world.add(workload["kind"], workload.get("namespace", namespace), name, workload)


def _apply_and_undo(world: World, scenario: dict[str, Any], namespace: str, policy: str) -> None:
    before = {name: _size(world, scenario, namespace, name) for name in scenario["then"]}
    apply = world.run("apply", "--yes", "-o", "json", policy=policy)
    for name, expected in scenario["then"].items():
        result = apply.items.get(name, {}).get("result")
        assert result == expected.get("result"), (name, apply.items.get(name), apply.err)
        pods = world.pods_of(scenario["given"]["workloads"][name].get("namespace", namespace), name)
        assert len(pods) == (0 if result == "done" else before[name]), name
    undo = world.run("undo", "--all", "--yes", "-o", "json")
    assert undo.code == 0, undo.out + undo.err
    assert {name: _size(world, scenario, namespace, name) for name in before} == before


def _size(world: World, scenario: dict[str, Any], namespace: str, name: str) -> int:
    """How many pods a workload has, and that its own object says the same."""
    workload = scenario["given"]["workloads"][name]
    namespace = workload.get("namespace", namespace)
    return len(world.pods_of(namespace, name))
