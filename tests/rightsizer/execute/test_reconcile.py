"""What earlier runs, and those who meddle with what they changed, have left: found, told, mended, not repeated."""

import datetime
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from rightsizer.planning.kept_sizes import MOST, NAME
from simulator.kube import Fault, LoggedRequest
from tests.rightsizer.commands import Run
from tests.rightsizer.kubectl import claim
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

UNDO, HISTORY = "gpu-rightsizer.io/undo", "gpu-rightsizer.io/history"
AT_ONCE = DEFAULT_POLICY.replace("name: scavengers\n", "name: scavengers\n    cooldown: 1s\n")
SHRINK = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {name: all, match: {everything: true}, mode: enforce, healthyWithin: 10m, findings: {too-many-gpus: enforce}}
"""
    + BUDGETS
)


def _apply(world: World, *flags: str, policy: str = DEFAULT_POLICY) -> Run:
    return world.run("apply", "--yes", "-o", "json", "--log-format", "json", *flags, policy=policy).logged()


def _annotations(world: World, name: str) -> dict[str, str]:
    found: dict[str, str] = created(world.api, "Deployment", world.team, name)["metadata"]["annotations"]
    return found


def _history(world: World, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_annotations(world, name)[HISTORY])
    return found


def _reconciliations(run: Run) -> list[tuple[str, str]]:
    assert run.out, run.err
    return [(one["name"], one["action"]) for one in json.loads(run.out)["items"] if one["reconciliation"]]


def _events(world: World, name: str) -> list[str]:
    events = world.api.list("Event", world.team)
    return [event["reason"] for event in events if event["involvedObject"]["name"] == name]


def _aged(world: World, name: str, hours: float) -> None:
    """Let our notes on a workload have been written earlier."""

    def earlier(found: re.Match[str]) -> str:
        at = datetime.datetime.fromisoformat(found[0]) - datetime.timedelta(hours=hours)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    ours = {key: text for key, text in _annotations(world, name).items() if key in {UNDO, HISTORY}}
    aged = {key: re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", earlier, text) for key, text in ours.items()}
    world.api.patch("Deployment", world.team, name, {"metadata": {"annotations": aged}})


def test_history_entry_is_written_in_same_patch_as_change(world: World) -> None:
    """Also what is undone; the run and the instance are named."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    run = _apply(world, "--instance", "nightly")
    (patch,) = (one for one in world.api.requests.mutating() if one.path.endswith("deployments/idle"))
    assert HISTORY in patch.json["metadata"]["annotations"]
    (entry,) = _history(world, "idle")
    assert (entry["action"], entry["gpus"], entry["by"]) == ("scale-to-zero", 3, "nightly")
    assert entry["run"] == json.loads(run.out)["metadata"]["run"]
    assert "end" not in entry
    world.run("undo", "--all", "--yes")
    (entry,) = _history(world, "idle")
    assert entry["end"] == "undone"
    assert UNDO not in _annotations(world, "idle")


def _by_a_user(world: World) -> None:
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 2}})


def _by_self_heal(world: World) -> None:
    """Argo CD applies what Git says whenever it differs, and knows nothing of our annotations."""
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 3}})


def _by_an_autoscaler(world: World) -> None:
    """A HorizontalPodAutoscaler writes the scale alone."""
    obj = created(world.api, "Deployment", world.team, "idle")
    world.api.update({**obj, "spec": {**obj["spec"], "replicas": 1}})


@pytest.mark.parametrize("revert", [_by_a_user, _by_self_heal, _by_an_autoscaler])
def test_change_reverted_by_owner_is_reported_and_not_repeated(
    world: World, revert: Callable[[World], None]
) -> None:
    """By whatever means: it is remembered as reverted, its owner is told, and it is left alone."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    assert _apply(world, policy=AT_ONCE).items["idle"]["result"] == "done"
    _aged(world, "idle", 60)
    world.clock.stand(time.time() - 50 * 3600)
    revert(world)
    world.api.settle()
    world.clock.run()
    for pod in world.pods_of(world.team, "idle"):
        world.record(pod, "idle", 1)
    run = _apply(world)
    assert _reconciliations(run) == [("idle", "record-revert")]
    assert "had set it to 0" in run.items["idle"]["detail"]
    (entry,) = _history(world, "idle")
    assert entry["end"] == "reverted"
    assert UNDO not in _annotations(world, "idle")
    assert "Reverted" in _events(world, "idle")
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] > 0
    again = _apply(world)
    assert (_reconciliations(again), again.items) == ([], {})
    plan = world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items["idle"]
    assert plan["action"] is None or "reverted by someone" in str(plan["blockers"]), plan


def test_plan_recreated_pods_are_detected_read_only(world: World) -> None:
    """Before any apply has noted it: it only reads."""
    world.add("Deployment", world.team, "idle", {"replicas": 1})
    _apply(world, policy=AT_ONCE)
    _aged(world, "idle", 60)
    world.clock.stand(time.time() - 50 * 3600)
    _by_a_user(world)
    world.api.settle()
    world.clock.run()
    for pod in world.pods_of(world.team, "idle"):
        world.record(pod, "idle", 1)
    policy = """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: 6h, grace: 5m, history: 1d, idleFactor: 0}}
rules:
  - {name: all, match: {everything: true}, mode: enforce, cooldown: 60h}
"""
    blocks = world.run("plan", "-o", "json", policy=policy).items["idle"]["blockers"]
    assert any("reverted by someone" in block["message"] for block in blocks), blocks


def test_reconcile_owner_shrinking_further_is_not_reverted(world: World) -> None:
    """A workload that was shrunk and that its owner shrinks further, or stops, is the owner's business."""
    _shrunk(world)
    world.api.patch("Deployment", world.team, "half-used", {"spec": {"replicas": 0}})
    world.api.settle()
    assert _reconciliations(_apply(world, policy=SHRINK)) == []


def _shrunk(world: World, *flags: str) -> Run:
    """A Deployment of two pods with two GPUs each, of which one suffices."""
    usage = [["busy", "idle"], ["busy", "idle"]]
    world.add("Deployment", world.team, "half-used", {"replicas": 2, "gpus": 2, "usage": usage})
    run = _apply(world, *flags, policy=SHRINK)
    assert run.items["half-used"]["result"] == "done", run.out + run.err
    for pod in world.pods_of(world.team, "half-used"):
        world.record(pod, "busy", 1)
    return run


def _gpus(world: World) -> str:
    template = created(world.api, "Deployment", world.team, "half-used")["spec"]["template"]
    amount: str = template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    return amount


def _ends(
    world: World, reason: str, waiting: str | None = None, *, pod: dict[str, Any] | None = None
) -> None:
    """Let a container of the shrunk workload end now."""
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    pod = pod or world.pods_of(world.team, "half-used")[0]
    status = dict(pod["status"]["containerStatuses"][0])
    status["lastState"] = {
        "terminated": {"reason": reason, "exitCode": 137, "finishedAt": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    }
    if waiting:
        status["state"] = {"waiting": {"reason": waiting}}
    patch = {"status": {"containerStatuses": [status]}}
    world.api.patch("Pod", world.team, pod["metadata"]["name"], patch, subresource="status")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "waiting"),
    [("OOMKilled", None), ("OOMKilled", "CrashLoopBackOff"), ("Error", "CrashLoopBackOff")],
)
def test_reconcile_unhealthy_workload_is_rolled_back_with_warning(
    world: World, reason: str, waiting: str | None
) -> None:
    """By the next run, with an Event that is a warning; and then it is left alone."""
    run = _shrunk(world)
    assert run.items["half-used"]["effect"]["health"] == "healthy", run.out
    _ends(world, reason, waiting)
    again = _apply(world, policy=SHRINK)
    assert _reconciliations(again) == [("half-used", "rollback")]
    assert again.items["half-used"]["result"] == "done", again.out
    assert _gpus(world) == "2"
    (entry,) = _history(world, "half-used")
    assert entry["end"] == "rollback"
    (event,) = (one for one in world.api.list("Event", world.team) if one["reason"] == "RolledBack")
    assert event["type"] == "Warning"


def test_verify_rollback_while_old_pods_still_terminate_is_reported(world: World) -> None:
    """It is not taken for a change that was made, once they are gone."""
    usage = [["busy", "idle"], ["busy", "idle"]]
    world.add("Deployment", world.team, "half-used", {"replicas": 2, "gpus": 2, "usage": usage})
    old = {pod["metadata"]["name"] for pod in world.pods_of(world.team, "half-used")}
    for name in old:
        world.api.patch("Pod", world.team, name, {"metadata": {"finalizers": ["example.com/hold"]}})
    written, add = threading.Event(), world.api.requests.add

    def noted(entry: LoggedRequest) -> None:
        add(entry)
        if entry.method == "PATCH" and entry.path.endswith("deployments/half-used") and not entry.dry_run:
            written.set()

    def fail() -> None:
        written.wait(60)
        world.api.settle()
        new = next(
            one for one in world.pods_of(world.team, "half-used") if one["metadata"]["name"] not in old
        )
        _ends(world, "OOMKilled", "CrashLoopBackOff", pod=new)

    world.api.requests.add = noted  # type: ignore[method-assign]
    failing = threading.Thread(target=fail)
    failing.start()
    run = _apply(world, "--verify-for", "20s", policy=SHRINK)
    failing.join()
    assert _reconciliations(run) == [("half-used", "rollback")], run.out
    assert _gpus(world) == "2"


@pytest.mark.slow
def test_reconcile_pod_not_starting_is_rolled_back_after_deadline(world: World) -> None:
    """Not before: an image may have to be pulled."""
    _shrunk(world)
    pod = world.pods_of(world.team, "half-used")[0]["metadata"]["name"]
    at = _minutes_ago(0)
    not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": at}]}}
    world.api.patch("Pod", world.team, pod, not_ready, subresource="status")
    assert _reconciliations(_apply(world, policy=SHRINK)) == []
    _aged(world, "half-used", 0.2)
    assert _reconciliations(_apply(world, policy=SHRINK)) == [("half-used", "rollback")]
    assert _gpus(world) == "2"


def test_reconcile_healthy_after_deadline_is_no_longer_watched(world: World) -> None:
    """Until then it may run out of memory yet; afterwards it is its own business."""
    _shrunk(world)
    assert _reconciliations(_apply(world, policy=SHRINK)) == []
    _aged(world, "half-used", 0.2)
    # The pods that have less now began after the change, as far as the notes go.
    assert _reconciliations(_apply(world, policy=SHRINK)) == [("half-used", "confirm")]
    assert "Confirmed" in _events(world, "half-used")
    _ends(world, "OOMKilled")
    assert _reconciliations(_apply(world, policy=SHRINK)) == []
    assert _gpus(world) == "1"
    assert world.run("undo", "--all", "--yes").code == 0
    assert _gpus(world) == "2"


@pytest.mark.parametrize("hours", [0.5, 2.0])
def test_reconcile_manifest_of_pod_never_evicted_is_deleted(world: World, hours: float) -> None:
    """A run that crashed between saving it and evicting is reconciled by the next; one under way is not disturbed."""
    world.add("Pod", world.team, "shell", {})
    world.api.inject(Fault("shell/eviction", "POST", 1, delay_s=0.01))
    world.api.inject(Fault("shell/eviction", "POST", 1, drop=True))
    world.clock.stand(time.time() - hours * 3600)
    assert _apply(world).items["shell"]["result"] == "refused"
    world.clock.run()
    assert len(world.api.list("Secret", "gpu-rightsizer")) == 1
    protect = DEFAULT_POLICY.replace("mode: enforce", "mode: advise")
    run = _apply(world, policy=protect)
    assert _reconciliations(run) == ([("shell", "delete-manifest")] if hours > 1 else [])
    assert len(world.api.list("Secret", "gpu-rightsizer")) == (0 if hours > 1 else 1)
    assert len(world.pods_of(world.team, "shell")) == 1


@pytest.mark.slow
def test_reconcile_manifest_left_by_crashed_undo_is_deleted(world: World) -> None:
    """The pod is back; the crash came before the end."""
    world.add("Pod", world.team, "shell", {})
    _apply(world)
    world.api.inject(Fault("/secrets/", "DELETE", 1, drop=True))
    world.run("undo", "--all", "--yes")
    assert len(world.api.list("Secret", "gpu-rightsizer")) == 1
    assert _reconciliations(_apply(world)) == [("shell", "delete-manifest")]
    assert world.api.list("Secret", "gpu-rightsizer") == []
    assert len(world.pods_of(world.team, "shell")) == 1


def test_verify_outcome_reports_pods_and_freed_gpus(world: World) -> None:
    """And who has them now."""
    world.node("small", resources={"nvidia.com/gpu": 2}, pool="small")
    world.add("Deployment", world.team, "idle", {"gpus": 2, "nodeSelector": {"pool": "small"}})
    world.add(
        "Deployment", world.team, "waiting", {"gpus": 1, "nodeSelector": {"pool": "small"}, "usage": "absent"}
    )
    run = _apply(world)
    effect = run.items["idle"]["effect"]
    assert (effect["podsGone"], effect["podsLeft"], effect["health"]) == (1, 0, None), run.out
    (pod,) = world.pods_of(world.team, "waiting")
    assert effect["usedBy"] == [f"{world.team}/Pod/{pod['metadata']['name']}"]
    assert effect["gpusFree"] == 1
    assert "1 of 1 pod gone" in effect["message"]


def test_verify_pod_held_by_finalizer_is_reported(world: World) -> None:
    """A finalizer holds one: the outcome and an Event of the owner say that its GPU is not free."""
    world.add("Deployment", world.team, "idle", {})
    (pod,) = world.pods_of(world.team, "idle")
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    world.api.patch("Pod", world.team, pod["metadata"]["name"], held)
    run = _apply(world, "--verify-for", "300ms")
    effect = run.items["idle"]["effect"]
    assert (run.items["idle"]["result"], effect["podsLeft"], effect["gpusFree"]) == ("done", 1, 0)
    assert "NotFreed" in _events(world, "idle")


def test_verify_for_0_ends_run_after_last_change(world: World) -> None:
    """--verify-for 0 ends with the last change."""
    world.add("Deployment", world.team, "idle", {})
    assert _apply(world, "--verify-for", "0").items["idle"]["effect"] is None


def test_grow_lost_response_without_record_is_confirmed_by_history(world: World) -> None:
    """Its patch removes the record, so that a lost answer is told by the history alone."""
    policy = SHRINK.replace("too-many-gpus: enforce", "too-many-replicas: enforce")
    world.add("Deployment", world.team, "grows", {"replicas": 2, "usage": "busy"})
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    record = {
        "version": 1,
        "run": "r",
        "at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "action": "scale-down",
        "rule": "all",
        "finding": "too-many-replicas",
        "reason": "",
        "confirmed": True,
        "edits": [{"path": ["spec", "replicas"], "before": 3, "after": 2}],
    }
    world.api.patch(
        "Deployment",
        world.team,
        "grows",
        {"metadata": {"annotations": {UNDO: msgspec.json.encode(record).decode()}}},
    )
    world.api.inject(Fault("deployments/grows", "PATCH", 1, delay_s=0.01))
    world.api.inject(Fault("deployments/grows", "PATCH", 1, drop=True, after_effect=True))
    run = _apply(world, policy=policy)
    assert (run.items["grows"]["action"], run.items["grows"]["result"]) == ("scale-up", "done"), run.out
    assert UNDO not in _annotations(world, "grows")
    assert [(one["action"], one.get("end")) for one in _history(world, "grows")][-1] == (
        "scale-up",
        "scale-up",
    )


@pytest.mark.slow
def test_apply_recent_change_by_other_instance_is_skipped(world: World) -> None:
    """What it changed within the hour is not ours to change, whatever our cooldown says."""
    world.add("Deployment", world.team, "idle", {"replicas": 1})
    _apply(world, "--instance", "one", policy=AT_ONCE)
    world.run("undo", "--all", "--yes")
    _aged(world, "idle", 0.1)
    annotations = {"gpu-rightsizer.io/resumed-at": None, "gpu-rightsizer.io/came-back-after": None}
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": annotations}})
    world.api.delete("Deployment", world.team, "idle")
    for kept in world.api.list("ConfigMap", "gpu-rightsizer"):
        world.api.delete("ConfigMap", "gpu-rightsizer", kept["metadata"]["name"])
    world.api.settle()
    notes = json.dumps([{"at": _minutes_ago(30), "run": "r", "action": "resize", "by": "one"}])
    world.add("Deployment", world.team, "idle", {"annotations": {HISTORY: notes}})
    plan = world.run("plan", "-o", "json", "--instance", "two", policy=AT_ONCE).items["idle"]
    assert (plan["verdict"], plan["action"]) == ("act", None), plan
    assert "another instance, one" in plan["reasons"][0]
    assert world.run("plan", "-o", "json", "--instance", "one", policy=AT_ONCE).items["idle"]["action"]


def _minutes_ago(minutes: int) -> str:
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["apply", "undo"])
def test_rollback_and_undo_too_many_requests_stops_writes(world: World, command: str) -> None:
    """Nothing more is written in that run, not even what would be taken back; what it asks for is told."""
    for name in ("a", "b", "c"):
        world.add("Deployment", world.team, name, {})
    assert _apply(world).code == 0
    for name in ("a", "b", "c") if command == "apply" else ():
        world.api.patch("Deployment", world.team, name, {"spec": {"replicas": 1}})
    world.api.settle()
    world.api.inject(Fault("deployments/", "PATCH", None, status=429, headers={"Retry-After": "30"}))
    before = len(world.api.requests.mutating(include_dry_run=True))
    run = _apply(world) if command == "apply" else world.run("undo", "--all", "--yes", "-o", "json")
    sent = [
        one for one in world.api.requests.mutating(include_dry_run=True)[before:] if "/leases" not in one.path
    ]
    assert [one.code for one in sent] == [429]
    items = json.loads(run.out)["items"]
    assert (run.code, [one["result"] for one in items]) == (1, ["refused", "skipped", "skipped"]), run.out
    assert "Retry-After: 30 s" in items[0]["detail"]
    assert all("the API server throttled an earlier request" in one["detail"] for one in items[1:])
    world.api.clear_faults()
    assert _apply(world).code == 0


def test_kept_size_is_written_once_healthy_and_ends_before_undo(world: World) -> None:
    """It is nothing before the resize is confirmed, or without room; undo removes it first: new pods come at once."""
    policy = SHRINK.replace("rules:", "keepSizes: 30d\nrules:")
    world.add("Deployment", world.team, "wide", {"gpus": 2, "usage": [["busy", "idle"]]})
    assert _apply(world, policy=policy).items["wide"]["action"] == "resize"

    def kept() -> dict[str, str]:
        found = world.api.get("ConfigMap", "gpu-rightsizer", "gpu-rightsizer-sizes") or {}
        return {key: text for key, text in found.get("data", {}).items() if key != "policy"}

    assert kept() == {}
    record = {**json.loads(_annotations(world, "wide")[UNDO]), "confirmed": True}
    annotations = {UNDO: msgspec.json.encode(record).decode()}
    world.api.patch("Deployment", world.team, "wide", {"metadata": {"annotations": annotations}})
    others = [f"{world.team}.Deployment.w{number}" for number in range(MOST)]
    other = "nvidia.com/gpu\n1\n2\n2099-01-01T00:00:00Z\nlow-priority\nmain\nserve\nrun\n--"
    world.api.patch("ConfigMap", "gpu-rightsizer", NAME, {"data": dict.fromkeys(others, other)})
    full = f'sizes that are not kept: {world.team}/Deployment/wide: {MOST} others are kept"}}\n'
    assert full in _apply(world, policy=policy).err
    world.api.patch("ConfigMap", "gpu-rightsizer", NAME, {"data": dict.fromkeys(others)})
    assert _apply(world, policy=policy).code == 0
    ((key, text),) = kept().items()
    assert key == f"{world.team}.Deployment.wide"
    assert text.split("\n")[:3] == ["nvidia.com/gpu", "1", "2"]
    run = world.run("undo", f"{world.team}/Deployment/wide", "--yes")
    assert run.code == 0, run.err
    assert kept() == {}
    paths = [one.path.rpartition("/")[2] for one in world.api.requests.mutating()]
    last = {name: place for place, name in enumerate(paths)}
    assert last["gpu-rightsizer-sizes"] < last["wide"]


def test_undo_is_made_even_if_kept_sizes_cannot_be_changed(world: World) -> None:
    """They only concern pods of manifests that somebody applies."""
    world.add("Deployment", world.team, "idle", {"replicas": 3})
    assert _apply(world).items["idle"]["result"] == "done"
    world.api.inject(Fault("configmaps/gpu-rightsizer-sizes", "GET", 1, status=403))
    assert world.run("undo", f"{world.team}/Deployment/idle", "--yes").code == 0
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 3


def test_verify_outcome_of_a_claim_that_others_use_frees_nothing(world: World) -> None:
    """The pod is gone, but its GPU is not free."""
    made = claim("both", devices=1, users=["other"])
    made["metadata"] = {"name": "both", "namespace": world.team}
    world.namespace(world.team)
    world.api.create(made)
    world.api.patch("ResourceClaim", world.team, "both", {"status": made["status"]}, subresource="status")
    world.add("Deployment", world.team, "idle", {"claim_name": "both"})
    effect = _apply(world).items["idle"]["effect"]
    assert (effect["podsGone"], effect["gpusFree"]) == (1, 0)
    assert "still allocated: both" in effect["message"]


ON_DEMAND = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {name: lenders, match: {everything: true}, mode: enforce, onlyForPendingPods: [scale-to-zero]}
"""
    + BUDGETS
)


def _never_bound(world: World) -> None:
    """Two idle Deployments fill a node, and a pod waits for one of them whose scheduler never binds it."""
    world.node("full", resources={"nvidia.com/gpu": 2}, pool="full")
    there = {"nodeSelector": {"pool": "full"}, "gpus": 1}
    world.add("Deployment", world.team, "idle", {**there, "priorityClass": "low-priority"})
    world.add("Deployment", world.team, "next", {**there, "priorityClass": "medium-priority"})
    lacks = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": lacks}
    waits = {"usage": "absent", "priorityClass": "high-priority", "age_h": 0}
    elsewhere = {"podSpec": {"schedulerName": "volcano"}, "podStatus": {"conditions": [condition]}}
    world.add("Pod", world.team, "waits", {**there, **waits, **elsewhere})


def test_reconcile_victim_of_a_pod_that_is_not_bound_comes_back(world: World) -> None:
    """One victim, then nothing until the pod is bound; if it is not, the victim comes back, and no other goes."""
    _never_bound(world)
    assert {name: one["result"] for name, one in _apply(world, policy=ON_DEMAND).items.items()} == {
        "idle": "done"
    }
    (again,) = [json.loads(_apply(world, policy=ON_DEMAND).out)]
    assert again["items"] == []
    plan = world.run("plan", "-o", "json", policy=ON_DEMAND)
    assert "waits: no GPUs are freed for it: 1 workload made room for it" in plan.out
    assert plan.items["next"]["action"] is None or plan.items["next"]["blockers"]
    _aged(world, "idle", 0.3)
    run = _apply(world, policy=ON_DEMAND)
    assert _reconciliations(run) == [("idle", "rollback")]
    assert "after room was made" in run.items["idle"]["detail"]
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 1
    assert created(world.api, "Deployment", world.team, "next")["spec"]["replicas"] == 1
    (entry,) = _history(world, "idle")
    assert entry["end"] == "rollback"
    said = world.run("plan", "-o", "json", policy=ON_DEMAND).out
    assert "it was not bound after 1 time that room was made for it; nobody is stopped for it until" in said


def test_reconcile_victim_stays_until_the_policy_calls_it_vain(world: World) -> None:
    """With a longer `demand.bindWithin` it is still awaited; with a shorter one it comes back sooner."""
    _never_bound(world)
    _apply(world, policy=ON_DEMAND)
    _aged(world, "idle", 0.3)
    assert _reconciliations(_apply(world, policy=f"{ON_DEMAND}demand: {{bindWithin: 1h}}\n")) == []
    run = _apply(world, policy=f"{ON_DEMAND}demand: {{bindWithin: 5m}}\n")
    assert _reconciliations(run) == [("idle", "rollback")]


def test_reconcile_victim_of_a_pod_that_was_bound_stays(world: World) -> None:
    """However long ago: the pod took what the victim had."""
    _never_bound(world)
    assert _apply(world, policy=ON_DEMAND).items["idle"]["result"] == "done"
    world.api.delete("Pod", world.team, "waits")
    _aged(world, "idle", 0.3)
    assert _reconciliations(_apply(world, policy=ON_DEMAND)) == []
    assert created(world.api, "Deployment", world.team, "idle")["spec"]["replicas"] == 0
