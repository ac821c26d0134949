"""What a run says: each outcome as it happens, all of them however it ends, and nothing that is not so."""

import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from simulator.kube import Fault
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

ROOT = pathlib.Path(__file__).parents[3]


def _idle(world: World, *names: str) -> None:
    for name in names:
        world.add("Deployment", world.team, name, {})


def _sizes(world: World, *names: str) -> list[int]:
    return [created(world.api, "Deployment", world.team, name)["spec"]["replicas"] for name in names]


@pytest.mark.parametrize("command", [["plan"], ["apply", "--yes"], ["undo", "--all", "--yes"]], ids=" ".join)
def test_apply_unwritable_save_path_exits_2_without_requests(world: World, command: list[str]) -> None:
    """Exit code 2, and the API server has heard nothing."""
    path = world.directory / "nowhere" / "out.json"
    flags = {} if command[0] == "undo" else {"policy": DEFAULT_POLICY}
    _idle(world, "idle")
    world.api.requests.clear()
    run = world.run(*command, "--save", str(path), **flags)
    assert (run.code, world.api.requests.all()) == (2, [])
    assert f'--save "{path}": cannot be written: No such file or directory' in run.err


def test_apply_save_path_check_leaves_file_unchanged(world: World) -> None:
    """What was in the file stays until there is something to save, and no empty file appears."""
    old, new = world.directory / "old.json", world.directory / "new.json"
    old.write_text("mine")
    for path in (old, new):
        assert world.run("plan", "--save", str(path), policy="rules: 7").code == 2
        assert world.run("undo", "nobody/Pod/knows", "--yes", "--save", str(path)).code == 2
    assert (old.read_text(), new.exists()) == ("mine", False)


def test_apply_failed_save_still_prints_outcome(world: World) -> None:
    """The folder went away during the run: outcome and run id are printed, and then what failed."""
    _idle(world, "idle")
    folder = world.directory / "results"
    folder.mkdir()
    world.after("events", lambda: shutil.rmtree(folder))
    run = world.run("apply", "--yes", "--save", str(folder / "out.json"), policy=DEFAULT_POLICY)
    assert run.code == 1
    assert "done       scale-to-zero" in run.out
    assert "Undo: gpu-rightsizer undo --run " in run.out
    assert 'out.json": cannot be written' in run.err


def _start(world: World, *flags: str) -> subprocess.Popen[str]:
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY)
    command = [sys.executable, "-m", "rightsizer", "apply", "--yes", *flags]
    command += ["--kubeconfig", str(world.directory / "kubeconfig"), "--prometheus-url", world.prometheus.url]
    command += ["--policy", str(world.directory / "policy.yaml")]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, bufsize=1
    )


def _until(run: subprocess.Popen[str], words: str) -> str:
    """What a command says until it has said these words."""
    assert run.stdout is not None
    said = ""
    for line in run.stdout:
        said += line
        if words in line:
            return said
    raise AssertionError(said)


def _hold_the_write(world: World, name: str) -> None:
    """Let the dry run through, and the write itself wait."""
    world.api.inject(Fault(f"deployments/{name}", "PATCH", 1, delay_s=0.01))
    world.api.inject(Fault(f"deployments/{name}", "PATCH", 1, delay_s=60))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["-o", "json"]], ids=["table", "json"])
def test_apply_interrupted_twice_reports_done_and_unknown(world: World, flags: list[str]) -> None:
    """The first is told while the second is held up; ended there, run id and every outcome are told and saved."""
    _idle(world, "a", "b", "c")
    _hold_the_write(world, "b")
    saved = world.directory / "out.json"
    run = _start(world, "--save", str(saved), *flags)
    said = _until(run, "/Deployment/a")
    said += _until(run, "done       scale-to-zero")
    assert _sizes(world, "a", "b", "c") == [0, 1, 1]
    while world.api.armed_faults:  # earlier, the interrupt could fall into a finalizer, where Python drops it
        time.sleep(0.02)
    run.send_signal(signal.SIGINT)
    _until(run, "once more to stop at once")
    run.send_signal(signal.SIGINT)
    rest, _ = run.communicate(timeout=60)
    document: dict[str, Any] = json.loads(saved.read_text())
    assert run.returncode == 130, rest
    results = {item["name"]: item["result"] for item in document["items"]}
    assert results == {"a": "done", "b": "unknown", "c": "skipped"}
    assert f"Undo: gpu-rightsizer undo --run {document['metadata']['run']}" in rest
    assert "1 of 3 done, 1 GPU not verified as free, 1 unknown, 1 not attempted." in rest
    assert '"result": "unknown"' in rest if flags else "unknown    scale-to-zero" in rest


@pytest.mark.slow
def test_apply_closed_pipe_finishes_started_changes(world: World) -> None:
    """Piped into head: what was begun is finished, quietly."""
    _idle(world, "a", "b")
    run = _start(world)
    _until(run, "APPLY CHANGES")
    assert run.stdout is not None
    run.stdout.close()
    assert run.wait(timeout=60) == 0
    assert _sizes(world, "a", "b") == [0, 0]


@pytest.mark.slow
def test_apply_saved_plan_changes_only_approved_items(world: World) -> None:
    """What is said to be stopped is what is approved; approved items that are not there are named."""
    _idle(world, "a", "b", "c", "gone")
    path = world.directory / "plan.json"
    assert world.run("plan", "--save", str(path), policy=DEFAULT_POLICY).code == 0
    plan = json.loads(path.read_text())
    for item in plan["items"]:
        if item["name"] in {"b", "c"}:
            item["mode"] = "advise"
    elsewhere = {**plan["items"][0], "name": "elsewhere", "uid": "of-another-cluster"}
    plan["metadata"]["cluster"] |= {"context": "prod", "server": "https://prod.example.com"}
    path.write_text(json.dumps({**plan, "items": [*plan["items"], elsewhere]}))
    world.api.delete("Deployment", world.team, "gone")
    world.api.settle()
    run = world.run("apply", "--yes", "--plan", str(path), policy=DEFAULT_POLICY)
    said = " ".join(run.out.split())
    assert "plan.json is of context prod (https://prod.example.com); its workloads are looked for" in run.err
    assert "Applying the saved plan stops 1 workload and frees 1 GPU." in said
    assert "Left out, as the saved plan does not change them: 2 workloads." in said
    for name in ("gone", "elsewhere"):
        assert (
            f"changed scale-to-zero {world.team}/Deployment/{name} no workload of its UID holds GPUs here"
            in said
        )
    assert "1 of 3 done" in said
    assert _sizes(world, "a", "b", "c") == [0, 1, 1]
