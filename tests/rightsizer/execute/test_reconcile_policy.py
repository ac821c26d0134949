"""Records that somebody wrote by hand, or that are too old: what reconciliation does not do because of them."""

import datetime
import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rightsizer.changes.found_changes import speaks_for
from rightsizer.model import ObjectRef
from tests.rightsizer.commands import Run
from tests.rightsizer.memory import remember
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, created

UNDO = "gpu-rightsizer.io/undo"
_HEAD = "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Policy\n"
_ALL = "  - {name: all, match: {everything: true}, mode: enforce}\n"
PROTECTED = {
    "by-namespace": _HEAD + "protectedNamespaces: ['team-*']\nrules:\n" + _ALL + BUDGETS,
    "by-a-rule": _HEAD
    + "rules:\n  - {name: hands-off, match: {namespaces: ['team-*']}, mode: protect}\n"
    + _ALL
    + BUDGETS,
}


def _record(minutes: float, **changes: Any) -> dict[str, Any]:
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
    values: dict[str, Any] = {
        "run": "r1",
        "at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "action": "scale-down",
        "rule": "x",
        "finding": "idle",
        "reason": "x",
        "healthyWithinSeconds": 60,
        "edits": [{"path": ["spec", "replicas"], "before": 40, "after": 1}],
    }
    return {**values, **changes}


def _carries(
    world: World,
    name: str,
    record: dict[str, Any],
    notes: Mapping[str, str] | None = None,
    *,
    is_known: bool = True,
) -> None:
    """A workload of one pod that is not ready, and that carries a record of a change that the memory has."""
    if is_known:
        kept = {key: value for key, value in record.items() if key not in {"edits", "pendingEdits"}}
        remember(world.api, ObjectRef("apps/v1", "Deployment", world.team, name), kept)
    world.add("Deployment", world.team, name, {"replicas": 1})
    metadata = {"annotations": {UNDO: msgspec.json.encode(record).decode(), **(notes or {})}}
    world.api.patch("Deployment", world.team, name, {"metadata": metadata})
    (pod,) = world.pods_of(world.team, name)
    not_ready = {
        "status": {
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
        }
    }
    world.api.patch("Pod", world.team, pod["metadata"]["name"], not_ready, subresource="status")


def _apply(world: World, policy: str = DEFAULT_POLICY) -> Run:
    return world.run("apply", "--yes", "-o", "json", "--verify-for", "0", policy=policy)


def _replicas(world: World, name: str) -> int:
    replicas: int = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    return replicas


@pytest.mark.prometheus
@pytest.mark.parametrize("policy", PROTECTED.values(), ids=PROTECTED.keys())
def test_rollback_protected_workload_is_refused(world: World, policy: str) -> None:
    """Even with a record of forty replicas, written by its owner: nothing is written, and the outcome says why."""
    _carries(world, "victim", _record(30))
    before = created(world.api, "Deployment", world.team, "victim")
    run = _apply(world, policy)
    item = run.items["victim"]
    assert (item["action"], item["result"]) == ("rollback", "blocked"), run.out
    assert "not reconciled" in item["detail"]
    after = created(world.api, "Deployment", world.team, "victim")
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert after["spec"] == before["spec"]


@pytest.mark.prometheus
def test_rollback_opted_out_workload_is_skipped(world: World) -> None:
    """Also where a record says that he would get something back; without the opt-out he does."""
    _carries(world, "victim", _record(30), {"gpu-rightsizer.io/mode": "off"})
    assert _apply(world).items["victim"]["result"] == "blocked"
    assert _replicas(world, "victim") == 1
    notes = {"metadata": {"annotations": {"gpu-rightsizer.io/mode": None}}}
    world.api.patch("Deployment", world.team, "victim", notes)
    assert _apply(world).items["victim"]["result"] == "done"
    assert _replicas(world, "victim") == 40


@pytest.mark.slow
@pytest.mark.prometheus
def test_rollback_breaker_open_is_blocked(world: World) -> None:
    """Until a person has closed it; a pause alone does not keep what is not well from being restored."""
    _carries(world, "victim", _record(30))
    texts = {"breaker.json": "{"}
    state = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "gpu-rightsizer-state"},
        "data": texts,
    }
    state["metadata"]["namespace"] = "gpu-rightsizer"  # type: ignore[index]
    world.api.create(state)
    item = _apply(world).items["victim"]
    assert item["result"] == "blocked"
    assert "the breaker is open" in item["detail"]
    assert _replicas(world, "victim") == 1
    assert world.run("breaker", "reset", "--reason", "looked").code == 0
    assert world.run("pause", "--reason", "incident").code == 0
    assert _apply(world).items["victim"]["result"] == "done"
    assert _replicas(world, "victim") == 40


@pytest.mark.prometheus
def test_rollback_change_past_deadline_is_reported_and_settled(world: World) -> None:
    """That it is not well now says nothing about a change of twenty days ago; that is told, and it is settled."""
    _carries(world, "victim", _record(20 * 24 * 60))
    item = _apply(world).items["victim"]
    assert (item["action"], item["result"]) == ("confirm", "done")
    assert "later problems may have other causes" in item["detail"]
    assert _replicas(world, "victim") == 1


OF = {
    "keda": ("keda.sh/v1alpha1", "ScaledObject", "prod", True),
    "kueue": ("kueue.x-k8s.io/v1beta2", "Workload", "prod", True),
    "starter": ("batch/v1", "CronJob", "prod", True),
    "another-namespace": ("keda.sh/v1alpha1", "ScaledObject", "evil", False),
    "another-kind": ("apps/v1", "Deployment", "prod", False),
}


@pytest.mark.parametrize(("version", "kind", "namespace", "can"), OF.values(), ids=OF.keys())
def test_record_for_other_object_is_limited_to_same_namespace(
    version: str, kind: str, namespace: str, *, can: bool
) -> None:
    """What stops a workload in its place and what made it, in the same namespace."""
    victim = ObjectRef("apps/v1", "Deployment", "prod", "victim")
    assert speaks_for(ObjectRef(version, kind, namespace, "x"), victim) is can


@pytest.mark.prometheus
def test_undo_record_in_other_namespace_is_ignored(world: World) -> None:
    """Whose record names the workload, but stands in another namespace."""
    of = {"api_version": "apps/v1", "kind": "Deployment", "namespace": "prod", "name": "victim", "uid": "u"}
    _carries(world, "evil", _record(30, workload=of), is_known=False)
    assert world.run("undo", "prod/Deployment/victim", "--yes").code != 0
    assert _replicas(world, "evil") == 1
    plan = json.loads(world.run("plan", "-o", "json", policy=DEFAULT_POLICY).out)
    assert any("for which it cannot speak" in problem for problem in plan["problems"]), plan["problems"]
