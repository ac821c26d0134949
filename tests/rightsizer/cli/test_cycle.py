"""The order of a cycle, as API server, ledger and receiver of notifications see it: one for both commands."""

import itertools
import math
import pathlib
import re
import time
from collections.abc import Callable, Mapping

import pytest

from simulator.series_store import Series
from tests.rightsizer.cli.test_run_command import running, wait_for
from tests.rightsizer.commands import run_command
from tests.rightsizer.given import H100
from tests.rightsizer.metrics import COPY, MEMORY, POWER, UTIL
from tests.rightsizer.relay import Relay
from tests.rightsizer.world import DEFAULT_POLICY, World, created

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


def _series(world: World, seconds: range, used: Mapping[str, float]) -> None:
    """Samples of the one GPU of `eval-0`."""
    pod = {"exported_namespace": world.team, "exported_pod": "eval-0"}
    labels = {**pod, "UUID": "GPU-eval", "modelName": H100, "job": "gpu", "instance": "n1:9400"}
    world.prometheus.write(
        Series({"__name__": name, **labels}, seconds, [value] * len(seconds)) for name, value in used.items()
    )


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
    """Notifications are sent last: all changes are made by then, and recorded."""
    world.add("Deployment", world.team, "eval", {"gpus": 1, "usage": "idle"})
    address, ledger = world.directory / "address", tmp_path / "ledger"
    address.write_text(f"{world.api.url}/told")
    told = f"notifications: [{{type: webhook, urlFile: {address}}}]\n"
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY + told)
    command(world, "--ledger", str(ledger), "--cluster-name", "prod-eu", "--verify-for", "30s")
    assert _steps(world, ledger) == ORDER


@pytest.mark.parametrize(
    ("hours", "late", "is_forgotten"),
    [
        (6, {UTIL: 90.0, POWER: 500.0}, False),
        (3, {UTIL: 0.0, POWER: 400.0}, False),
        (3, {POWER: math.nan}, True),
    ],
    ids=["work", "power", "no-number"],
)
def test_run_asks_for_all_evidence_before_it_changes_anything(
    world: World, hours: int, late: Mapping[str, float], *, is_forgotten: bool
) -> None:
    """Samples came after cycles had read their hours, which none asks for again: only they tell of use.

    Kept slots are forgotten if they alone would have changed more; histories are not kept, late peaks are asked for.
    """
    world.add("StatefulSet", world.team, "eval", {"usage": "absent", "age_h": 20})
    world.add("StatefulSet", world.team, "busy", {"usage": "busy", "age_h": 20})
    now = int(time.time())
    begin, end = now - hours * 3600 - 240, now - hours * 3600
    idle = {UTIL: 0.0, COPY: 0.0, MEMORY: 40_000.0, POWER: 118.0}
    for seconds in (range(now - 26 * 3600, begin, 15), range(end, now + 600, 15)):
        _series(world, seconds, idle)
    with Relay(world.prometheus.url) as relay:
        flags = (
            "--every",
            "1h",
            "--prometheus-url",
            relay.url,
            "--state-file",
            str(world.directory / "kept"),
        )
        for before in (2, 1):
            relay.clocks = [-3600.0 * before]
            with running(world, *flags) as run:
                wait_for(lambda: run.cycles() == 1, run)
                assert run.end() == 0
        _series(world, range(begin, end, 15), {**idle, **late})
        relay.clocks = [0.0]
        with running(world, *flags, "--yes") as run:
            wait_for(lambda: run.cycles() == 1, run)
            assert run.end() == 0
            assert ("it is forgotten" in run.said) is is_forgotten
    assert created(world.api, "StatefulSet", world.team, "eval")["spec"]["replicas"] == 1
