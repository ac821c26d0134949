"""What one change of a run takes of what nodes have free is not offered to the next; people are told before."""

import pytest

from tests.rightsizer.test_scenarios import BUDGETS
from tests.rightsizer.world import World, created

pytestmark = pytest.mark.prometheus

SLICE = "nvidia.com/mig-1g.10gb"
_RULE = "{name: all, match: {everything: true}, mode: enforce, findings: {sliceable: enforce}%s}"
_POLICY = f"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {_RULE}
{BUDGETS}"""


def _slices(world: World, count: int) -> None:
    world.node("mig", resources={SLICE: count})
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    world.api.patch("Node", None, "mig", {"metadata": {"labels": labels}})


def _asks(world: World, namespace: str, name: str) -> set[str]:
    (container,) = created(world.api, "Deployment", namespace, name)["spec"]["template"]["spec"]["containers"]
    return set(container["resources"]["limits"])


def test_what_one_was_given_is_not_offered_to_another(world: World) -> None:
    """Two workloads of two namespaces, and one instance that is free: the second stays as it is."""
    _slices(world, 1)
    other = f"{world.team}-other"
    world.add("Deployment", world.team, "a", {"usage": "small"})
    world.add("Deployment", other, "b", {"usage": "small"})
    run = world.run("apply", "--yes", "-o", "json", policy=_POLICY % "")
    assert sorted(item["result"] for item in run.items.values()) == ["changed", "done"], run.items
    assert [SLICE in _asks(world, *one) for one in ((world.team, "a"), (other, "b"))].count(True) == 1


def test_its_people_are_told_before(world: World) -> None:
    """A notice is given of what a node offers that none of its pods is on."""
    _slices(world, 1)
    world.add("Deployment", world.team, "a", {"usage": "small"})
    run = world.run("apply", "--yes", "-o", "json", policy=_POLICY % ", notifyBefore: 4h")
    assert run.items["a"]["result"] == "done", run.items["a"]
