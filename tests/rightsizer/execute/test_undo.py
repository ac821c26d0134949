"""Undo: which of several is meant, and what a record may ask for."""

import base64
import json
import time
from typing import Any

import pytest

from tests.rightsizer.test_scenarios import DEFAULT_POLICY
from tests.rightsizer.world import World, created

pytestmark = pytest.mark.prometheus

AT_ONCE = DEFAULT_POLICY.replace("name: scavengers\n", "name: scavengers\n    cooldown: 1s\n")
"""What comes again by its name may be stopped again nearly at once."""
UNDO = "gpu-rightsizer.io/undo"
CAME_BACK = "gpu-rightsizer.io/came-back-after"


def _evict(world: World, gpus: int) -> str:
    """Evict a bare pod with so many GPUs, one more than those before it of that name; the run that did it."""
    world.add("Pod", world.team, "shell", {"gpus": gpus, "usage": [["idle"]]})
    run = world.run("apply", "--yes", "-o", "json", policy=AT_ONCE)
    assert run.items["shell"]["result"] == "done", run.err
    assert world.pods_of(world.team, "shell") == []
    name: str = json.loads(run.out)["metadata"]["run"]
    return name


def _gpus(world: World) -> str:
    containers = created(world.api, "Pod", world.team, "shell")["spec"]["containers"]
    amount: str = containers[0]["resources"]["limits"]["nvidia.com/gpu"]
    return amount


def test_undo_pod_evicted_twice_restores_latest(world: World) -> None:
    """As it is listed: latest first."""
    _evict(world, 1)
    _age(world)
    _evict(world, 2)
    run = world.run("undo", f"{world.team}/Pod/shell", "--yes", "-o", "json")
    assert (run.code, _gpus(world)) == (0, "2")


def test_undo_run_flag_selects_earlier_eviction(world: World) -> None:
    """--run beside the workload's name chooses; the other manifest stays."""
    first = _evict(world, 1)
    _age(world)
    second = _evict(world, 2)
    run = world.run("undo", f"{world.team}/Pod/shell", "--run", first, "--yes", "-o", "json")
    assert (run.code, _gpus(world)) == (0, "1")
    (left,) = json.loads(world.run("undo", "-o", "json").out)["items"]
    assert left["record"]["run"] == second


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noted"), [("Deployment", "5h0m"), ("Deployment", "500h0m"), ("Pod", "")])
def test_undo_restored_workload_records_idle_duration(world: World, kind: str, noted: str) -> None:
    """How long it had been idle, and stopped; of several times the longest stays."""
    world.add(kind, world.team, "idle", {})
    world.run("apply", "--yes", policy=AT_ONCE)
    if noted:
        world.api.patch(kind, world.team, "idle", {"metadata": {"annotations": {CAME_BACK: noted}}})
    assert world.run("undo", "--all", "--yes").code == 0
    found = created(world.api, kind, world.team, "idle")["metadata"]["annotations"][CAME_BACK]
    assert found == noted if noted == "500h0m" else found.startswith("24h")


def _age(world: World) -> None:
    """Let what is there of an eviction be three days older: longer ago than the window, and than the cooldown."""
    (secret,) = world.api.list("Secret", "gpu-rightsizer")
    record = json.loads(_decoded(secret["data"]["record"]))
    record["at"] = "2026-01-01T00:00:00Z"
    secret["data"]["record"] = _encoded(json.dumps(record))
    world.api.delete("Secret", "gpu-rightsizer", secret["metadata"]["name"])
    del secret["metadata"]["resourceVersion"], secret["metadata"]["uid"]
    world.clock.stand(time.time() - 3 * 86400)
    world.api.create(secret)
    world.clock.run()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _edit(**changes: Any) -> dict[str, Any]:
    return {"edits": [{"path": ["spec", "replicas"], "before": 64, "after": 0, **changes}]}


FORGED: dict[str, dict[str, Any]] = {
    "another-field": _edit(path=["spec", "nothing"]),
    "no-field": {"edits": []},
    "false-for-zero": _edit(after=False),
    "negative": _edit(before=-1),
    "another-type": _edit(before=True),
}


@pytest.mark.parametrize("changes", FORGED.values(), ids=FORGED.keys())
@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_undo_forged_record_is_refused(world: World, changes: dict[str, Any], force: list[str]) -> None:
    """Whoever may annotate a workload does not scale it through whoever runs undo."""
    world.add("Deployment", world.team, "forged", {})
    record = {
        "run": "r",
        "at": "2026-01-01T00:00:00Z",
        "action": "scale-to-zero",
        "rule": "research",
        "finding": "idle",
        "reason": "",
        "version": 1,
    }
    annotations = {UNDO: json.dumps({**record, **changes})}
    world.api.patch("Deployment", world.team, "forged", {"metadata": {"annotations": annotations}})
    run = world.run("undo", "--all", "--yes", *force, "-o", "json")
    assert (run.code, run.items["forged"]["result"]) == (1, "refused"), run.items
    assert "was not written by gpu-rightsizer" in run.items["forged"]["detail"]
    assert created(world.api, "Deployment", world.team, "forged")["spec"]["replicas"] == 1


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
def test_undo_deployment_recreated_since_listing_is_skipped(world: World, force: list[str]) -> None:
    """A Deployment of the same name, at zero by its owner's will, is not the one that was stopped."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    world.run("apply", "--yes", policy=DEFAULT_POLICY)
    listed = world.api.requests.add
    waiting = [True]

    def noted(entry: Any) -> None:
        listed(entry)
        if waiting and entry.path == "/apis/apps/v1/deployments":
            waiting.pop()
            world.api.delete("Deployment", world.team, "idle")
            world.api.settle()
            world.add("Deployment", world.team, "idle", {"replicas": 0})

    world.api.requests.add = noted  # type: ignore[method-assign]
    run = world.run("undo", "--all", "--yes", *force, "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "changed"), run.items
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("times", "result"), [(2, "done"), (1000, "refused")], ids=["now-and-then", "always"]
)
def test_undo_write_conflict_is_retried_up_to_limit(world: World, times: int, result: str) -> None:
    """A controller that writes its status does not keep a workload from being restored; no end of writes does."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    world.run("apply", "--yes", policy=DEFAULT_POLICY)
    note, left = world.api.requests.add, iter(range(times))

    def noted(entry: Any) -> None:
        note(entry)
        if (
            entry.method == "GET"
            and entry.path.endswith("/deployments/idle")
            and (turn := next(left, None)) is not None
        ):
            world.api.patch("Deployment", world.team, "idle", {"metadata": {"labels": {"turn": str(turn)}}})

    world.api.requests.add = noted  # type: ignore[method-assign]
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert run.items["idle"]["result"] == result, run.items
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == (
        3 if result == "done" else 0
    )


def test_undo_writes_journal_and_holds_lease(world: World) -> None:
    """An intent before each, an outcome after it; the Lease is taken where it can be had, and given back."""
    world.add("Deployment", world.team, "idle", {})
    journal = world.directory / "journal"
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    world.api.delete("Lease", "gpu-rightsizer", "gpu-rightsizer")
    assert world.run("undo", "--all", "--yes", "--journal", str(journal)).code == 0
    steps = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [(one["step"], one["action"], one["name"]) for one in steps] == [
        ("intent", "undo", "idle"),
        ("outcome", "undo", "idle"),
    ]
    lease = created(world.api, "Lease", "gpu-rightsizer", "gpu-rightsizer")
    assert lease["spec"]["holderIdentity"] == ""


def test_undo_lease_held_by_other_is_reported_and_continues(world: World) -> None:
    """It says who holds the Lease, and restores all the same."""
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    held = {"spec": {"holderIdentity": "the-deployment", "leaseDurationSeconds": 15}}
    world.api.patch("Lease", "gpu-rightsizer", "gpu-rightsizer", held)
    run = world.run("undo", "--all", "--yes")
    assert (run.code, "the-deployment holds the Lease" in run.err) == (0, True), run.err
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 1


def test_undo_all_unrestorable_workload_does_not_fail(world: World) -> None:
    """It is told each time, and the rest is restored; only who names it gets a failure."""
    world.add("Workflow.argoproj.io", world.team, "flow", {})
    world.add("Deployment", world.team, "idle", {})
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["flow"]["result"], run.items["idle"]["result"]) == (0, "refused", "done")
    assert "cannot be undone" in run.items["flow"]["detail"]
    again = world.run("undo", "--since", "2h", "--yes", "-o", "json")
    assert (again.code, again.items["flow"]["result"]) == (0, "refused")
    assert world.run("undo", f"{world.team}/Workflow/flow", "--yes").code == 1
