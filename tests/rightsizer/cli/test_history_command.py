"""`history` and `undo` of a time span: changes are read from the cluster itself."""

import json
from typing import Any

import msgspec
import pytest

from simulator.kube import Fault, Rule
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

UNDO = "gpu-rightsizer.io/undo"


def _apply(world: World, *flags: str) -> str:
    run = world.run("apply", "--yes", "-o", "json", "--verify-for", "0", *flags, policy=DEFAULT_POLICY)
    name: str = json.loads(run.out)["metadata"]["run"]
    return name


def _history(world: World, *flags: str) -> dict[str, Any]:
    run = world.run("history", "-o", "json", *flags)
    assert run.code == 0, run.err
    found: dict[str, Any] = json.loads(run.out)
    return found


def test_history_lists_changes_and_outcomes(world: World) -> None:
    """Of a Deployment by its own memory, of an evicted pod by its manifest; also once both were restored."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Pod", world.team, "shell", {})
    run = _apply(world)
    items = {item["name"]: item for item in _history(world)["items"]}
    assert {(name, item["action"], item["gpus"], item["run"]) for name, item in items.items()} == {
        ("idle", "scale-to-zero", 2, run),
        ("shell", "evict", 1, run),
    }
    assert items["idle"]["record"]["edits"] == [{"path": ["spec", "replicas"], "before": 2, "after": 0}]
    assert {event["reason"] for event in _history(world)["events"]} == {"ScaledToZero", "Evicted"}
    world.run("undo", "--all", "--yes")
    ends = {item["name"]: item["end"] for item in _history(world)["items"]}
    assert ends == {"idle": "undone", "shell": "undone"}
    text = world.run("history").out
    assert f"{world.team}/Deployment/idle" in text
    assert "undone at" in text


def test_history_replaced_object_is_read_from_own_record(world: World) -> None:
    """Whoever replaces an object drops its notes; each change is told once, and where from."""
    for name in ("kept", "replaced"):
        world.add("Deployment", world.team, name, {})
    run = _apply(world)
    notes = created(world.api, "Deployment", world.team, "replaced")["metadata"]["annotations"]
    gone = {key: None for key in notes if key.startswith("gpu-rightsizer.io/")}
    world.api.patch("Deployment", world.team, "replaced", {"metadata": {"annotations": gone}})
    found = [(item["name"], item["run"], item["isOnObject"]) for item in _history(world)["items"]]
    assert sorted(found) == [("kept", run, True), ("replaced", run, False)]
    assert "its object has no record of it" in world.run("history").out
    world.api.deny(Rule("*", resources=("configmaps",)))
    assert [item["name"] for item in _history(world)["items"]] == ["kept"]


def test_history_tells_what_freed_gpus_cost(world: World) -> None:
    """By the prices of the run that freed them, in hours and months, while the change is in effect."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Pod", world.team, "shell", {})
    prices = world.directory / "prices.yaml"
    head = "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Prices\nsource: ours\ndate: 2026-11-01\n"
    prices.write_text(head + "currency: EUR\nmodels: {'*': 2.5}\n")
    _apply(world, "--prices", str(prices))
    found = {item["name"]: (item["costPerHour"], item["currency"]) for item in _history(world)["items"]}
    assert found == {"idle": (5, "EUR"), "shell": (2.5, "EUR")}
    text = world.run("history").out
    assert "2 GPUs freed (5.00 EUR/h, 3,600 EUR/month), run" in " ".join(text.split())
    annotations = created(world.api, "Deployment", world.team, "idle")["metadata"]["annotations"]
    forged = json.loads(annotations[UNDO]) | {"costPerHour": 5e6, "currency": "USD"}
    text = json.dumps(forged, separators=(",", ":"), ensure_ascii=False)
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": {UNDO: text}}})
    forged_text = " ".join(world.run("history").out.split())
    assert "2 GPUs freed (5.00 EUR/h, 3,600 EUR/month), run" in forged_text
    assert "USD" not in forged_text
    world.run("undo", "--all", "--yes")
    assert "EUR" not in world.run("history").out


@pytest.mark.slow
def test_history_workload_run_and_time_filters_narrow(world: World) -> None:
    """Each narrows it down."""
    world.add("Deployment", world.team, "first", {})
    first = _apply(world)
    world.add("Deployment", world.team, "second", {})
    _apply(world)
    assert {item["name"] for item in _history(world, f"{world.team}/Deployment/second")["items"]} == {
        "second"
    }
    assert {item["name"] for item in _history(world, "--run", first)["items"]} == {"first"}
    assert len(_history(world, "--since", "1h")["items"]) == 2
    assert _history(world, "--since", "2199-01-01T00:00:00Z") == _history(world, "--run", "no-such-run")


def test_history_forbidden_source_is_skipped_with_warning(world: World) -> None:
    """Events and manifests are left out with a warning."""
    world.add("Deployment", world.team, "idle", {})
    _apply(world)
    world.api.deny(Rule("*", resources=("events", "secrets")))
    found = _history(world)
    assert ([item["name"] for item in found["items"]], found["events"]) == (["idle"], [])


def test_history_without_changes_exits_0_with_message(world: World) -> None:
    """In a sentence, and with success."""
    run = world.run("history")
    assert (run.code, run.out.splitlines()[1:]) == (
        0,
        ["The cluster has no record of a change by gpu-rightsizer."],
    )
    assert run.out.startswith("Cluster: context simulator (")
    chosen = world.run("history", "--since", "1h")
    assert chosen.out.splitlines()[1:] == [
        "The cluster has no record of a change by gpu-rightsizer that the flags choose."
    ]


def test_undo_time_span_reverts_only_its_changes(world: World) -> None:
    """What was changed in it comes back, in spite of writes that come between; the rest stays."""
    for name in ("early", "late"):
        world.add("Deployment", world.team, name, {"replicas": 2})
    _apply(world)
    record = json.loads(
        created(world.api, "Deployment", world.team, "early")["metadata"]["annotations"][UNDO]
    )
    text = msgspec.json.encode({**record, "at": "2026-01-01T10:00:00Z"}).decode()
    world.api.patch("Deployment", world.team, "early", {"metadata": {"annotations": {UNDO: text}}})
    world.api.inject(Fault("deployments/late", "PATCH", 1, status=409))
    run = world.run("undo", "--since", "2h", "--yes", "-o", "json")
    assert {name: item["result"] for name, item in run.items.items()} == {"late": "done"}, run.items
    span = ["--since", "2026-01-01T09:00:00Z", "--until", "2026-01-01T11:00:00Z"]
    run = world.run("undo", *span, "--yes", "-o", "json")
    assert {name: item["result"] for name, item in run.items.items()} == {"early": "done"}


def test_undo_time_span_keeps_later_manual_changes(world: World) -> None:
    """The difference is shown."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    _apply(world)
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 1}})
    run = world.run("undo", "--since", "1h", "--yes", "-o", "json")
    assert (run.code, run.items["idle"]["result"]) == (1, "changed")
    assert "spec.replicas is 1; gpu-rightsizer had set it to 0" in run.items["idle"]["detail"]
