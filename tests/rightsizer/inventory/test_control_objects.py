"""Workloads that are stopped by Kueue's Workload or KEDA's ScaledObject, and CronJobs."""

import datetime
import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from rightsizer.config import ClusterSettings
from rightsizer.execute.run_context import Deadline
from rightsizer.execute.undo import find_undoable, undo_changes
from rightsizer.kube.cluster import Cluster
from simulator.kube import Rule
from tests.rightsizer.given import manifest
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

NOW = datetime.datetime.now(datetime.UTC)
UNDO = "gpu-rightsizer.io/undo"
PAUSED = "autoscaling.keda.sh/paused-replicas"


def _owned(owner: Mapping[str, Any]) -> list[dict[str, Any]]:
    metadata = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
    return [{**reference, "name": metadata["name"], "uid": metadata["uid"], "controller": True}]


def queued(world: World, name: str = "queued") -> None:
    """A Job that Kueue has admitted."""
    world.add("Job", world.team, "train", {"replicas": 2})
    job = created(world.api, "Job", world.team, "train")
    world.api.patch(
        "Job", world.team, "train", {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "research"}}}
    )
    metadata = {"name": name, "namespace": world.team, "ownerReferences": _owned(job)}
    queued = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata}
    world.api.create({**queued, "spec": {"queueName": "research", "active": True}})
    world.api.settle()


def scaled(world: World, kind: str = "Deployment", least: int = 2, **metadata: Any) -> None:
    """A Deployment that KEDA scales."""
    world.add(kind, world.team, "web", {"replicas": 3})
    target = {"name": "web", "kind": kind, "apiVersion": "apps/v1"}
    world.api.create(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "web", "namespace": world.team, **metadata},
            "spec": {"scaleTargetRef": target, "minReplicaCount": least, "maxReplicaCount": 5},
        }
    )
    world.api.settle()


def _plan(world: World, name: str, policy: str = DEFAULT_POLICY) -> dict[str, Any]:
    return world.run("plan", "-o", "json", policy=policy).items[name]


def _apply(world: World, name: str, policy: str = DEFAULT_POLICY) -> dict[str, Any]:
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    assert name in run.items, run.err
    return run.items[name]


def test_kueue_job_is_stopped_by_its_workload(world: World) -> None:
    """Kueue suspends the Job itself; undo finds the change by the Job's name."""
    queued(world)
    before = created(world.api, "Job", world.team, "train")["spec"]
    item = _plan(world, "train")
    assert (item["action"], item["blockers"]) == ("suspend", []), item
    assert "workload.kueue.x-k8s.io queued" in item["command"]
    assert "its place in the queue" in item["lost"]
    assert _apply(world, "train")["result"] == "done"
    world.api.settle()
    stood, job = (
        created(world.api, kind, world.team, name)
        for kind, name in (("Workload", "queued"), ("Job", "train"))
    )
    assert (stood["spec"]["active"], job["spec"]["suspend"]) == (False, True)
    assert UNDO in stood["metadata"]["annotations"]
    assert UNDO not in job["metadata"].get("annotations", {})
    undone = world.run("undo", f"{world.team}/Job/train", "--yes", "-o", "json")
    assert (undone.code, len(world.pods_of(world.team, "train"))) == (0, 2), undone.out + undone.err
    assert created(world.api, "Job", world.team, "train")["spec"] == before
    assert created(world.api, "Workload", world.team, "queued")["spec"]["active"] is True


@pytest.mark.parametrize("way", ["kueue", "keda"])
def test_record_on_a_control_object_counts_for_the_workload(world: World, way: str) -> None:
    """Its cooldown applies."""
    name = "train" if way == "kueue" else "web"
    (queued if way == "kueue" else scaled)(world)
    assert _apply(world, name)["result"] == "done"
    assert world.run("undo", "--all", "--yes").code == 0
    for pod in world.pods_of(world.team, name):
        world.record(pod, "idle", 1)
    assert name not in world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items


def test_keda_deployment_is_stopped_by_its_scaled_object(world: World) -> None:
    """Undo returns it to KEDA's minimum."""
    scaled(world)
    item = _plan(world, "web")
    assert (item["action"], item["blockers"]) == ("scale-to-zero", []), item
    assert f"{PAUSED}=0" in item["command"]
    assert _apply(world, "web")["result"] == "done"
    assert world.pods_of(world.team, "web") == []
    scaler = created(world.api, "ScaledObject", world.team, "web")["metadata"]["annotations"]
    assert scaler[PAUSED] == "0"
    assert UNDO not in created(world.api, "Deployment", world.team, "web")["metadata"].get("annotations", {})
    listed = json.loads(world.run("undo", "-o", "json").out)["items"]
    assert [(item["kind"], item["record"]["workload"]["kind"]) for item in listed] == [
        ("ScaledObject", "Deployment")
    ]
    assert world.run("undo", f"{world.team}/Deployment/web", "--yes").code == 0
    assert len(world.pods_of(world.team, "web")) == 2
    assert PAUSED not in created(world.api, "ScaledObject", world.team, "web")["metadata"]["annotations"]


def test_custom_resource_is_stopped_by_its_operators_scaled_object(world: World) -> None:
    """As VLLMRuntimes of vLLM's production stack are; KEDA starts it again."""
    world.add("CloneSet.apps.kruise.io", world.team, "llama", {})
    owner = created(world.api, "CloneSet.apps.kruise.io", world.team, "llama")
    target = {"name": "llama", "kind": "CloneSet", "apiVersion": "apps.kruise.io/v1alpha1"}
    world.api.create(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "llama", "namespace": world.team, "ownerReferences": _owned(owner)},
            "spec": {"scaleTargetRef": target, "minReplicaCount": 2},
        }
    )
    assert _plan(world, "llama")["blockers"] == []
    assert _apply(world, "llama")["result"] == "done"
    assert world.pods_of(world.team, "llama") == []
    assert world.run("undo", f"{world.team}/CloneSet/llama", "--yes").code == 0
    assert len(world.pods_of(world.team, "llama")) == 2


@pytest.mark.parametrize(
    ("paused", "least", "words"),
    [
        ("no", 2, "KEDA starts no replicas: its owner set autoscaling.keda.sh/paused: 'no'"),
        (None, 0, "KEDA starts replicas once a trigger is active"),
        ("false", 2, ""),
    ],
)
def test_undo_says_that_keda_starts_no_replicas(
    world: World, paused: str | None, least: int, words: str
) -> None:
    """The owner's pause since the stop stays."""
    scaled(world, least=least)
    assert _apply(world, "web")["result"] == "done"
    marks = {} if paused is None else {"autoscaling.keda.sh/paused": paused}
    world.api.patch("ScaledObject", world.team, "web", {"metadata": {"annotations": marks}})
    (undone,) = world.run("undo", "--all", "--yes", "-o", "json").items.values()
    assert undone["result"] == "done"
    assert words in undone["detail"]
    assert ("KEDA" in undone["detail"]) is bool(words)
    assert len(world.pods_of(world.team, "web")) == (0 if words else 2)
    left = created(world.api, "ScaledObject", world.team, "web")["metadata"]["annotations"]
    assert left.get("autoscaling.keda.sh/paused") == paused


@pytest.mark.parametrize("left", ["pods", "workload", ""])
def test_undo_of_a_queued_stateful_set_waits_for_what_kueue_waits_for(world: World, left: str) -> None:
    """Its webhook allows no replicas while the former pods or Workload are there."""
    world.add("StatefulSet", world.team, "set", {"labels": {"kueue.x-k8s.io/queue-name": "q"}, "replicas": 2})
    if left == "pods":
        kept = {"metadata": {"finalizers": ["kueue.x-k8s.io/managed"]}}
        world.api.patch("Pod", world.team, "set-0", kept)
    assert _apply(world, "set")["result"] == "done"
    stopped = created(world.api, "StatefulSet", world.team, "set")
    if left == "workload":
        labels = {"kueue.x-k8s.io/job-uid": stopped["metadata"]["uid"]}
        head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {}}
        world.api.create({**head, "metadata": {"name": "x", "namespace": world.team, "labels": labels}})
    cluster = Cluster(ClusterSettings(kubeconfig=world.directory / "kubeconfig"))
    items = find_undoable(cluster, "gpu-rightsizer", at=NOW)
    waits = itertools.count(step=200.0)
    deadline = Deadline(0.0, lambda: next(waits), lambda _: None, lambda: False)
    (undone,) = undo_changes(items, cluster, force=False, clock=lambda: NOW, deadline=deadline)
    expected = f"its former {'pods are' if left == 'pods' else 'Workload is'} gone; undo it again then"
    assert (undone.result == "done") is not bool(left)
    assert not left or expected in undone.detail


@pytest.mark.slow
@pytest.mark.parametrize(("of", "blocked"), [("", True), ("other", False), ("set", True)])
def test_queued_object_of_an_unknown_kind_may_be_suspended_by_another_framework(
    world: World, of: str, *, blocked: bool
) -> None:
    """Kueue then has a Workload for it; without any Workload, that is unknown."""
    world.add("CloneSet.apps.kruise.io", world.team, "set", {"labels": {"kueue.x-k8s.io/queue-name": "q"}})
    uid = created(world.api, "CloneSet.apps.kruise.io", world.team, "set")["metadata"]["uid"]
    if of:
        labels = {"kueue.x-k8s.io/job-uid": uid if of == "set" else "of-another"}
        head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {}}
        world.api.create({**head, "metadata": {"name": "x", "namespace": world.team, "labels": labels}})
    codes = [block["code"] for block in _plan(world, "set")["blockers"]]
    assert codes == (["other-controller"] if blocked else [])


def test_workload_with_two_control_objects_is_left_alone(world: World) -> None:
    """Kueue would revert a direct change."""
    queued(world)
    other = created(world.api, "Workload", world.team, "queued")
    metadata = {
        "name": "another",
        "namespace": world.team,
        "ownerReferences": other["metadata"]["ownerReferences"],
    }
    world.api.create({**{key: other[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})
    assert [block["code"] for block in _plan(world, "train")["blockers"]] == ["other-controller"]


def test_workload_with_an_unreadable_control_object_is_left_alone(world: World) -> None:
    """A missing permission is no reason to change it directly."""
    queued(world)
    world.api.deny(Rule("*", resources=("workloads",)))
    assert [block["code"] for block in _plan(world, "train")["blockers"]] == ["other-controller"]


def test_workload_scaled_by_keda_since_the_plan_is_skipped(world: World) -> None:
    """The planned change would be reverted."""
    world.add("Deployment", world.team, "web", {"replicas": 3})
    target = {"name": "web", "kind": "Deployment", "apiVersion": "apps/v1"}
    scaler = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": "web", "namespace": world.team},
        "spec": {"scaleTargetRef": target},
    }
    asked = world.api.requests.add
    waiting = [scaler]

    def noted(entry: Any) -> None:
        asked(entry)
        if waiting and entry.path == "/apis/policy/v1/poddisruptionbudgets":  # the last that a plan reads
            world.api.create(waiting.pop())

    world.api.requests.add = noted  # type: ignore[method-assign]
    outcome = _apply(world, "web")
    assert outcome["result"] == "changed"
    assert "changed since the plan" in outcome["detail"]
    assert len(world.pods_of(world.team, "web")) == 3


@pytest.mark.slow
def test_scaled_object_of_an_inference_service_is_not_a_control_object(world: World) -> None:
    """The InferenceService is stopped, and its ScaledObject goes with it."""
    world.add("InferenceService.serving.kserve.io", world.team, "llm", {})
    owner = created(world.api, "InferenceService.serving.kserve.io", world.team, "llm")
    target = {"name": "llm", "kind": "InferenceService", "apiVersion": "serving.kserve.io/v1beta1"}
    metadata = {"name": "llm", "namespace": world.team, "ownerReferences": _owned(owner)}
    world.api.create(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": metadata,
            "spec": {"scaleTargetRef": target},
        }
    )
    assert _plan(world, "llm")["blockers"] == []
    assert _apply(world, "llm")["result"] == "done"
    stopped = created(world.api, "InferenceService.serving.kserve.io", world.team, "llm")
    assert stopped["metadata"]["annotations"]["serving.kserve.io/stop"] == "true"


# --- what starts the next one


def _job_of(world: World, cron_job: Mapping[str, Any], name: str) -> None:
    """A Job that a CronJob made."""
    world.add("Job", world.team, name, {"owners": _owned(cron_job)})


AT_ONCE = DEFAULT_POLICY.replace("name: scavengers\n", "name: scavengers\n    cooldown: 1h\n")


def _long_ago(world: World, name: str) -> None:
    """Let our notes on a Job be older than cooldown and window, which are one for all Jobs of a CronJob."""

    def earlier(found: re.Match[str]) -> str:
        return (datetime.datetime.fromisoformat(found[0]) - datetime.timedelta(hours=26)).isoformat()

    annotations = created(world.api, "Job", world.team, name)["metadata"]["annotations"]
    ours = {key: text for key, text in annotations.items() if key.startswith("gpu-rightsizer.io/")}
    aged = {key: re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)", earlier, text) for key, text in ours.items()}
    world.api.patch("Job", world.team, name, {"metadata": {"annotations": aged}})


def _cron_job(world: World) -> dict[str, Any]:
    world.namespace(world.team)
    template = manifest("Job", world.team, "x", {})["spec"]
    metadata = {"name": "nightly", "namespace": world.team}
    spec = {"schedule": "0 3 * * *", "jobTemplate": {"spec": template}}
    return world.api.create({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec})


@pytest.mark.slow
def test_cron_job_is_suspended_with_its_second_idle_job(world: World) -> None:
    """The first may be an exception. Undo resumes both."""
    cron_job = _cron_job(world)
    _job_of(world, cron_job, "nightly-1")
    assert _plan(world, "nightly-1")["along"] == []
    assert _apply(world, "nightly-1", AT_ONCE)["result"] == "done"
    _long_ago(world, "nightly-1")
    assert not created(world.api, "CronJob", world.team, "nightly")["spec"].get("suspend")
    _job_of(world, cron_job, "nightly-2")
    item = _plan(world, "nightly-2", AT_ONCE)
    assert item["along"] == [f"{world.team}/CronJob/nightly"]
    assert "cronjob.batch nightly" in item["command"]
    assert "runs that would start meanwhile" in item["lost"]
    assert (got := _apply(world, "nightly-2", AT_ONCE))["result"] == "done", got["detail"]
    stopped = created(world.api, "CronJob", world.team, "nightly")
    assert stopped["spec"]["suspend"] is True
    undone = world.run("undo", f"{world.team}/Job/nightly-2", "--yes", "-o", "json")
    assert set(undone.items) == {"nightly-2", "nightly"}
    assert not created(world.api, "CronJob", world.team, "nightly")["spec"].get("suspend")
    assert created(world.api, "Job", world.team, "nightly-1")["spec"]["suspend"] is True


@pytest.mark.slow
def test_reverted_job_does_not_suspend_its_cron_job(world: World) -> None:
    """Its owner needed it."""
    cron_job = _cron_job(world)
    _job_of(world, cron_job, "nightly-1")
    assert _apply(world, "nightly-1", AT_ONCE)["result"] == "done"
    _long_ago(world, "nightly-1")
    assert world.run("undo", "--all", "--yes").code == 0
    _job_of(world, cron_job, "nightly-2")
    assert _plan(world, "nightly-2", AT_ONCE)["along"] == []


def test_cron_job_that_cannot_be_suspended_is_reported(world: World) -> None:
    """The Job stays stopped."""
    cron_job = _cron_job(world)
    _job_of(world, cron_job, "nightly-1")
    assert _apply(world, "nightly-1", AT_ONCE)["result"] == "done"
    _long_ago(world, "nightly-1")
    _job_of(world, cron_job, "nightly-2")
    world.api.deny(Rule("*", verbs=("patch",), resources=("cronjobs",)))
    outcome = _apply(world, "nightly-2", AT_ONCE)
    assert outcome["result"] == "done"
    assert "CronJob nightly is not suspended" in outcome["detail"]
    assert created(world.api, "Job", world.team, "nightly-2")["spec"]["suspend"] is True


def test_cron_job_replaced_since_the_plan_is_not_suspended(world: World) -> None:
    """Another one has its name, and its owner may need it."""
    cron_job = _cron_job(world)
    _job_of(world, cron_job, "nightly-1")
    assert _apply(world, "nightly-1", AT_ONCE)["result"] == "done"
    _long_ago(world, "nightly-1")
    _job_of(world, cron_job, "nightly-2")

    def replace() -> None:
        world.api.delete("CronJob", world.team, "nightly")
        _cron_job(world)

    # The first patch of the Job is a dry run.
    change = "jobs/nightly-2"
    world.after(change, lambda: world.after(change, replace, method="PATCH"), method="PATCH")
    outcome = _apply(world, "nightly-2", AT_ONCE)
    assert "not the one that created the workload" in outcome["detail"], outcome
    assert not created(world.api, "CronJob", world.team, "nightly")["spec"].get("suspend")


def test_control_object_replaced_since_preflight_is_not_changed(world: World) -> None:
    """A ScaledObject of the same name, which may scale another workload."""
    scaled(world)
    uid = created(world.api, "ScaledObject", world.team, "web")["metadata"]["uid"]

    def replace() -> None:
        found = created(world.api, "ScaledObject", world.team, "web")
        world.api.delete("ScaledObject", world.team, "web")
        metadata = {key: found["metadata"][key] for key in ("name", "namespace")}
        spec = {**found["spec"], "scaleTargetRef": {"name": "other"}}
        world.api.create({**found, "metadata": metadata, "spec": spec})

    world.after("poddisruptionbudgets", replace)
    assert _apply(world, "web", DEFAULT_POLICY)["result"] == "changed"
    after = created(world.api, "ScaledObject", world.team, "web")["metadata"]
    assert after["uid"] != uid
    assert not after.get("annotations")
