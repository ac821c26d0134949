"""The order of a cycle, as API server, ledger and receiver of notifications see it: one for both commands."""

import itertools
import pathlib
import re
from collections.abc import Callable

import pytest

from tests.rightsizer.cli.test_run_command import running, wait_for
from tests.rightsizer.commands import run_command
from tests.rightsizer.test_scenarios import DEFAULT_POLICY
from tests.rightsizer.world import World

pytestmark = pytest.mark.prometheus

STEPS = {
    "POST .*/leases": "take the Lease",
    "GET .*/configmaps/gpu-rightsizer-state": "read the state",
    "GET .*/replicasets/eval-.*": "read the workload",
    "POST .*/configmaps": "write a ConfigMap",  # of the scope and of the memory
    "PATCH .*/eval dry": "try the change",
    "PATCH .*/eval": "make the change",
    "POST .*/events": "write an Event",
    "GET .*/nodes/n1": "read the node",
    "POST /told": "tell people",
}
"""By method and path; what else a plan reads is left out."""
LEDGER = "record it in the ledger"
ORDER = [
    "take the Lease",
    "read the state",
    "read the workload",
    "read the state",
    "write a ConfigMap",
    "read the state",
    "read the node",
    "read the workload",
    "try the change",
    "write a ConfigMap",
    "make the change",
    "write an Event",
    "read the state",
    "read the node",
    LEDGER,
    "tell people",
]


def _apply(world: World, *flags: str) -> None:
    given = ("--prometheus-url", world.prometheus.url, "--kubeconfig", str(world.directory / "kubeconfig"))
    done = run_command("apply", *given, "--policy", str(world.directory / "policy.yaml"), "--yes", *flags)
    assert done.code == 0, done.err


def _run(world: World, *flags: str) -> None:
    policy = (world.directory / "policy.yaml").read_text()
    with running(world, "--every", "1h", "--yes", *flags, policy=policy) as run:
        wait_for(lambda: run.cycles() == 1, run)
        assert run.end() == 0


def _steps(world: World, ledger: pathlib.Path) -> list[str]:
    """What happened, from the Lease on until people were told."""
    found = []
    for one in world.api.requests.all():
        words = f"{one.method} {one.path}{' dry' if one.dry_run else ''}"
        step = next((step for path, step in STEPS.items() if re.fullmatch(path, words)), "")
        found.append((one.time.timestamp(), step))
    found += [(path.stat().st_mtime, LEDGER) for path in ledger.glob("*/*.parquet")]
    steps = [step for _, step in sorted(found) if step]
    steps = [step for step, _ in itertools.groupby(steps)]
    return steps[steps.index(ORDER[0]) : steps.index(ORDER[-1]) + 1]


@pytest.mark.parametrize("command", [_apply, _run])
def test_cycle_order_is_one_for_apply_and_run(
    world: World, tmp_path: pathlib.Path, command: Callable[..., None]
) -> None:
    """People are told last, when nothing can change any more and the ledger has it."""
    world.add("Deployment", world.team, "eval", {"gpus": 1, "usage": "idle"})
    address, ledger = world.directory / "address", tmp_path / "ledger"
    address.write_text(f"{world.api.url}/told")
    told = f"notifications: [{{type: webhook, urlFile: {address}}}]\n"
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY + told)
    command(world, "--ledger", str(ledger), "--cluster-name", "prod-eu", "--verify-for", "30s")
    assert _steps(world, ledger) == ORDER
