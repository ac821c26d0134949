"""Undo records that tenants wrote or changed: they end no run, open no breaker and hold up nobody else."""

import datetime
import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from rightsizer.changes.record_codec import LONGEST_NOTE
from rightsizer.execute.reconcile import MOST_UNKNOWN
from rightsizer.model import ObjectRef
from simulator.kube.requestlog import LoggedRequest
from tests.rightsizer.guardrails.test_admission import POLICY, become_the_account
from tests.rightsizer.memory import remember
from tests.rightsizer.world import World, created

pytestmark = [pytest.mark.slow, pytest.mark.prometheus]

UNDO = "gpu-rightsizer.io/undo"
SUSPENDED = {"path": ["spec", "suspend"], "before": False, "after": True}


def _limit(container: str, before: str | None, after: str | None) -> dict[str, Any]:
    path = ["spec", "template", "spec", "containers", f"name={container}", "resources", "limits"]
    return {"path": [*path, "nvidia.com/gpu"], "before": before, "after": after}


def _record(edits: Iterable[dict[str, Any]], **changes: Any) -> str:
    values = {"at": "2026-01-01T00:00:00Z", "run": "r1", "action": "resize", "edits": list(edits), **changes}
    return json.dumps(values, separators=(",", ":"))


JOBS = {
    "no-such-container": _record([SUSPENDED], pendingEdits=[_limit("nope", "2", "1")]),
    "no-such-container-to-restore": _record([SUSPENDED, _limit("nope", "2", None)], pendingEnd="undone"),
    "more-than-it-had": _record([SUSPENDED], pendingEdits=[_limit("main", "2", "64")]),
    "twice": _record([SUSPENDED], pendingEdits=[_limit("main", "2", "1"), _limit("main", "9", "8")]),
}


def _bait(world: World, kind: str, text: str, *, is_known: bool, **spec: Any) -> None:
    """An object of a tenant with this record, of a run that the memory knows or not; and another's idle workload."""
    world.add(kind, world.team, "bait", {"gpus": 2, "usage": ["busy"]})
    world.add("Deployment", world.team, "other", {})
    world.api.patch(kind, world.team, "bait", {"spec": spec, "metadata": {"annotations": {UNDO: text}}})
    if is_known:
        group = "apps/v1" if kind == "Deployment" else "batch/v1"
        change = {"run": "r1", "at": "2026-01-01T00:00:00Z", "action": "resize"}
        remember(world.api, ObjectRef(group, kind, world.team, "bait"), change)
    world.api.settle()


def _is_open(world: World) -> bool:
    state = world.api.get("ConfigMap", "gpu-rightsizer", "gpu-rightsizer-state")
    return state is not None and bool(json.loads(state["data"]["breaker.json"])["trip"])


@pytest.mark.parametrize("is_known", [True, False], ids=["changed", "forged"])
@pytest.mark.parametrize("text", JOBS.values(), ids=JOBS.keys())
def test_record_of_a_suspended_job_holds_up_nobody_else(world: World, text: str, *, is_known: bool) -> None:
    """Whether its owner changed it since, or its change never was: the Job is resumed without it."""
    _bait(world, "Job", text, is_known=is_known, suspend=True)
    become_the_account(world)
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    assert run.items["other"]["result"] == "done", run.out + run.err
    assert not _is_open(world)
    assert created(world.api, "Job", world.team, "bait")["spec"]["suspend"] is False


def test_longest_record_that_cannot_be_confirmed_opens_no_breaker(world: World) -> None:
    """What is added to it is too much for the guardrails."""
    edits = [_limit(f"b{number:03}", "2", None) for number in range(129)]
    text = _record(edits, reason="x" * (LONGEST_NOTE - len(_record(edits, reason=""))))
    assert len(text) == LONGEST_NOTE
    _bait(world, "Deployment", text, is_known=True)
    become_the_account(world)
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    assert run.items["bait"]["result"] == "refused"
    assert run.items["other"]["result"] == "done", run.out + run.err
    assert not _is_open(world)


def test_job_that_is_deleted_while_it_is_reconciled_ends_no_run(world: World) -> None:
    """Its owner may delete it at any time."""
    _bait(world, "Job", JOBS["twice"], is_known=True, suspend=True)
    noted, is_deleted = world.api.requests.add, False

    def note(entry: LoggedRequest) -> None:
        nonlocal is_deleted
        noted(entry)
        if entry.method == "GET" and entry.path.split("?")[0].endswith("/batch/v1/jobs") and not is_deleted:
            is_deleted = True
            world.api.delete("Job", world.team, "bait")

    world.api.requests.add = note  # type: ignore[method-assign]
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    assert is_deleted
    assert run.items["other"]["result"] == "done", run.out + run.err


def test_many_forged_records_are_reconciled_few_at_a_time(world: World) -> None:
    """What waits takes places, too; other namespaces get their turn."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    waiting = [{"path": ["spec", "replicas"], "before": 2, "after": 1}]
    ways = {
        "is-reverted": _reverted(),
        "waits": _record(waiting, action="scale-down", at=now, healthyWithinSeconds=3_000),
    }
    for way, text in ways.items():
        for namespace, number in ((world.team, 2 * MOST_UNKNOWN), ("other", 1)):
            for each in range(number):
                _deployment(world, namespace, f"{way}-{each}", text)
    found = _reconciled(world)
    assert [one["name"] for one in found if one["namespace"] == "other"] == ["is-reverted-0"]
    assert len(found) < MOST_UNKNOWN


def test_records_that_are_blocked_keep_no_place_for_ever(world: World) -> None:
    """The draw differs from run to run."""
    places = {f"team-{number}" for number in range(MOST_UNKNOWN + 1)}
    for namespace in places:
        _deployment(world, namespace, "web", _reverted(), **{"gpu-rightsizer.io/mode": "off"})
    seen: set[str] = set()
    for _ in range(20):
        found = _reconciled(world)
        assert {one["result"] for one in found} == {"blocked"}
        seen |= {one["namespace"] for one in found}
        if seen == places:
            break
    assert seen == places


def _reverted() -> str:
    return _record([{"path": ["spec", "replicas"], "before": 2, "after": 0}], action="scale-down")


def test_only_one_object_has_the_record_of_a_change(world: World) -> None:
    """A CronJob may have that of its Job; many with the same one are as good as forged."""
    world.namespace(world.team)
    job = ObjectRef("batch/v1", "Job", world.team, "train", "uid")
    remember(world.api, job, {"run": "r1", "at": "2026-01-01T00:00:00Z", "action": "suspend"})
    text = _record([SUSPENDED], action="suspend", workload=msgspec.to_builtins(job))
    template = {"spec": {"containers": [{"name": "main", "image": "i"}], "restartPolicy": "Never"}}
    for number in range(MOST_UNKNOWN + 5):
        metadata = {"name": f"c{number:02}", "namespace": world.team, "annotations": {UNDO: text}}
        spec = {"schedule": "@yearly", "suspend": False, "jobTemplate": {"spec": {"template": template}}}
        world.api.create({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec})
    assert len(_reconciled(world)) == 1 + MOST_UNKNOWN


def _reconciled(world: World) -> list[dict[str, Any]]:
    world.api.settle()
    run = world.run("apply", "--yes", "-o", "json", policy=POLICY)
    return [one for one in json.loads(run.out)["items"] if one["reconciliation"]]


def _deployment(world: World, namespace: str, name: str, text: str, **annotations: str) -> None:
    world.namespace(namespace)
    labels = {"app": name}
    world.api.create(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace, "annotations": {UNDO: text, **annotations}},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": "main", "image": "i"}]},
                },
            },
        }
    )
