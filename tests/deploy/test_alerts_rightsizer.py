"""Each alert about gpu-rightsizer fires on a real Prometheus that scrapes a real `run`, and ends with its cause."""

import json
import pathlib
from collections.abc import Iterator

import pytest

from simulator.kube import Fault
from simulator.prometheus import Prometheus
from tests.deploy.alerting import Alerting
from tests.rightsizer.cli.test_run_command import running, wait_for
from tests.rightsizer.execute.test_reconcile import SHRINK, _ends, _shrunk
from tests.rightsizer.world import World

pytestmark = [pytest.mark.deep, pytest.mark.prometheus, pytest.mark.timeout(600)]

STATE = ("ConfigMap", "gpu-rightsizer", "gpu-rightsizer-state")
SPARED = "spared"
"""A paused namespace, whose waste stays."""
WORLDLY = {
    "GpuRightsizerActionReverted",
    "GpuRightsizerRolledBack",
    "GpuWasteAboveBudget",
    "GpuRightsizerEvidenceLow",
}


@pytest.fixture
def world(tmp_path: pathlib.Path, prometheus: Prometheus) -> Iterator[World]:
    """An API server, and a Prometheus with the history of its pods."""
    with World(tmp_path, prometheus) as made:
        yield made


def _open_breaker(world: World) -> None:
    latch = {"trip": {"at": "2026-11-20T18:00:00Z", "cause": "refused", "reason": "3 errors in a row"}}
    world.api.patch(*STATE, {"data": {"breaker.json": json.dumps(latch)}})


def _meddle(world: World) -> None:
    """A user reverts a change, a reduced workload runs out of memory, GPUs are wasted, others unmeasured."""
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 2}})
    _ends(world, "OOMKilled")
    world.add("Deployment", SPARED, "wasted", {"replicas": 2})
    world.add("Deployment", SPARED, "dark", {"replicas": 12, "usage": "absent"})


def _mend(world: World) -> None:
    """Removes the wasted GPUs, and pods without metrics."""
    for name in ("wasted", "dark"):
        world.api.delete("Deployment", SPARED, name)
    for name in ("idle", "half-used"):
        world.api.delete("Deployment", world.team, name)


def test_rightsizer_alerts_on_each_cause_fire_and_end(world: World, tmp_path: pathlib.Path) -> None:
    """Each cause in turn fires its alert and no other; in the end none fires."""
    priced = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    world.api.patch("Node", None, "n1", {"metadata": {"labels": priced}})
    world.namespace(SPARED)
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    _shrunk(world)
    assert world.run("pause", "-n", SPARED, "--reason", "the owner's wish").code == 0
    policy = world.directory / "policy.yaml"
    with running(world, "--every", "1s", "--yes", "--verify-for", "0", policy=SHRINK) as run:
        address = run.url.removeprefix("http://")
        wait_for(lambda: run.cycles() >= 2, run)
        with Alerting(tmp_path / "alerting", {"gpu-rightsizer": [address]}) as alerting:
            wait_for(lambda: alerting.has("gpu_rightsizer_reconciliations_total"), run)
            _meddle(world)
            alerting.until_each(WORLDLY)
            _open_breaker(world)
            alerting.until(lambda names: "GpuRightsizerBreakerOpen refused" in names)
            assert world.run("breaker", "reset", "--reason", "looked").code == 0
            _mend(world)
            alerting.until(lambda names: not names)
            policy.write_text("rules: [{")
            alerting.until(lambda names: names == {"GpuRightsizerConfigInvalid", "GpuRightsizerFailing"})
            policy.write_text(SHRINK)
            alerting.until(lambda names: not names)
            world.api.inject(Fault("leases/gpu-rightsizer", "*", None, status=403))
            alerting.until(lambda names: "GpuRightsizerNoLeader" in names)
            world.api.clear_faults()
            alerting.until(lambda names: not names)
            run.end()
            alerting.until(lambda names: names == {"GpuRightsizerDown"})
            alerting.until(lambda names: names == {"GpuRightsizerDown", "GpuRightsizerSilent"})
            with running(world, "--listen", address, "--every", "1s", policy=SHRINK, name="again"):
                alerting.until(lambda names: not names)
