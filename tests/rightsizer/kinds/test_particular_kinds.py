"""What is particular to a kind: orders to Volcano, Ray's idle workers, numbers that others own, unknown kinds."""

import dataclasses
import functools
import json
from typing import Any

import msgspec
import pytest

from rightsizer.kinds.change_edits import missing_field_reason
from simulator.kube import Fault, Rule
from tests.rightsizer.build import AT, workload
from tests.rightsizer.kind_cases import ray_cluster
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

UNDO = "gpu-rightsizer.io/undo"
VOLCANO = "Job.batch.volcano.sh"
RAY = "RayCluster.ray.io"
DYNAMO = "DynamoGraphDeployment.nvidia.com"
FEWER = f"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {{name: all, match: {{everything: true}}, mode: enforce, findings: {{too-many-replicas: enforce}}}}
{BUDGETS}"""

FOUR_WORKERS = {
    "usage": ["idle", "busy", "idle", "idle"],
    "spec": functools.partial(ray_cluster, workers=4),
}


def _item(world: World, name: str) -> dict[str, Any]:
    return world.run("plan", "-o", "json", policy=DEFAULT_POLICY).items[name]


def _apply(world: World, name: str, policy: str = DEFAULT_POLICY) -> dict[str, Any]:
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    assert name in run.items, run.err
    return run.items[name]


def _commands(world: World) -> list[str]:
    """What was ordered, with what else was written, in order; each as method and last part of the path."""
    writes = [
        entry
        for entry in world.api.requests.mutating()
        if "/batch.volcano.sh/" in entry.path or "/commands" in entry.path
    ]
    return [f"{entry.method} {entry.path.rpartition('/')[2]}" for entry in writes]


# --- Volcano


def test_volcano_job_record_is_written_before_the_command(world: World) -> None:
    """Cut short in between, a job runs on and says so; never is one stopped without a record. Undo orders first."""
    world.add(VOLCANO, world.team, "train", {})
    assert _apply(world, "train")["result"] == "done"
    assert _commands(world) == ["PATCH train", "POST commands"]
    assert world.run("undo", "--all", "--yes").code == 0
    after = _commands(world)[2:]
    assert (after[0], after[-1]) == ("POST commands", "PATCH train")


def test_volcano_job_refused_command_leaves_no_record(world: World) -> None:
    """What the dry run let through, but the order itself did not: the job is as it was."""
    world.add(VOLCANO, world.team, "train", {})
    world.api.inject(Fault("/commands", "POST"))  # the dry run, which is answered as ever
    world.api.inject(Fault("/commands", "POST", status=403))
    outcome = _apply(world, "train")
    assert outcome["result"] == "refused", outcome
    assert UNDO not in created(world.api, VOLCANO, world.team, "train")["metadata"]["annotations"]
    assert len(world.pods_of(world.team, "train")) == 2


def test_volcano_job_refused_command_leaves_the_record_of_another_run(world: World) -> None:
    """Another run changed the job meanwhile: without its record, nobody could undo that."""
    world.add(VOLCANO, world.team, "train", {})

    def replace_record() -> None:
        notes = created(world.api, VOLCANO, world.team, "train")["metadata"]["annotations"]
        other = msgspec.json.encode({**json.loads(notes[UNDO]), "run": "another"}).decode()
        world.api.patch(VOLCANO, world.team, "train", {"metadata": {"annotations": {UNDO: other}}})

    # The first request is the dry run.
    world.after("commands", lambda: world.after("commands", replace_record, method="POST"), method="POST")
    world.api.inject(Fault("/commands", "POST"))
    world.api.inject(Fault("/commands", "POST", status=403))
    outcome = _apply(world, "train")
    assert outcome["result"] == "refused", outcome["detail"]
    notes = created(world.api, VOLCANO, world.team, "train")["metadata"]["annotations"]
    assert json.loads(notes[UNDO])["run"] == "another"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "after_effect"),
    [("PATCH", "/jobs/train", True), ("POST", "/commands", True), ("POST", "/commands", False)],
)
def test_volcano_job_lost_response_is_read_back_and_retried(
    world: World, method: str, path: str, after_effect: bool
) -> None:
    """Whether the record's or the order's: it is read back, and ordered again, which is no second order."""
    world.add(VOLCANO, world.team, "train", {})
    world.api.inject(Fault(path, method))  # the dry run, which is answered as ever
    world.api.inject(Fault(path, method, drop=True, after_effect=after_effect))
    outcome = _apply(world, "train")
    assert outcome["result"] == "done", outcome
    assert world.pods_of(world.team, "train") == []


@pytest.mark.slow
def test_volcano_job_still_running_after_stop_drops_record(world: World) -> None:
    """Cut short before the order, or resumed by vcctl: the record goes, and it is not ordered again soon."""
    world.add(VOLCANO, world.team, "train", {})
    assert _apply(world, "train")["result"] == "done"
    job = created(world.api, VOLCANO, world.team, "train")
    record = json.loads(job["metadata"]["annotations"][UNDO])
    aged = {UNDO: msgspec.json.encode({**record, "at": "2026-01-01T00:00:00Z"}).decode()}
    world.api.patch(VOLCANO, world.team, "train", {"metadata": {"annotations": aged}})
    world.api.patch(
        VOLCANO, world.team, "train", {"status": {"state": {"phase": "Running"}}}, subresource="status"
    )
    outcome = _apply(world, "train")
    assert (outcome["action"], outcome["result"]) == ("record-revert", "done"), outcome
    assert "its state is Running" in outcome["detail"]
    assert UNDO not in created(world.api, VOLCANO, world.team, "train")["metadata"]["annotations"]


# --- Ray


def test_ray_cluster_shrink_removes_idle_workers_by_name(world: World) -> None:
    """Not the highest, but those that do nothing; the others stay ready. Undo gives back how many there were."""
    world.add(RAY, world.team, "ray", FOUR_WORKERS)
    before = created(world.api, RAY, world.team, "ray")["spec"]
    item = _apply(world, "ray", FEWER)
    assert (item["result"], item["effect"]["health"]) == ("done", "healthy"), item
    (group,) = created(world.api, RAY, world.team, "ray")["spec"]["workerGroupSpecs"]
    gone = group["scaleStrategy"]["workersToDelete"]
    assert (group["replicas"], group["minReplicas"], gone) == (2, 2, ["ray-0-0", "ray-0-2"])
    left = [pod["metadata"]["name"] for pod in world.pods_of(world.team, "ray")]
    assert left == ["ray-0-1", "ray-0-3"]
    assert world.run("undo", "--all", "--yes").code == 0
    assert created(world.api, RAY, world.team, "ray")["spec"] == before


# --- Dynamo


def _graph(template: dict[str, Any]) -> dict[str, Any]:
    return {
        "services": {
            "decode": {"componentType": "worker", "replicas": 2, "extraPodSpec": template["spec"]},
            "prefill": {"componentType": "worker", "replicas": 4, "extraPodSpec": template["spec"]},
        }
    }


@pytest.mark.parametrize("working", [None, "prefill"])
def test_dynamo_role_without_work_is_scaled_down_and_undone(world: World, working: str | None) -> None:
    """Prefill keeps a replica and decode all of its own; where any pod of the role works, nothing is done."""
    usage = ["busy", "busy", *(["busy"] if working else ["idle"]), "idle", "idle", "idle"]
    world.add(DYNAMO, world.team, "graph", {"usage": usage, "spec": _graph})
    before = created(world.api, DYNAMO, world.team, "graph")["spec"]
    item = _apply(world, "graph", FEWER)
    after = created(world.api, DYNAMO, world.team, "graph")["spec"]["services"]
    if working:
        assert (item["result"], after) == ("changed", before["services"])
        assert "the replicas of prefill that are removed are unknown" in item["detail"]
        return
    assert (item["result"], item["effect"]["podsGone"], item["effect"]["podsLeft"]) == ("done", 3, 0), item
    assert item["effect"]["message"].endswith("3 of 3 pods are ready"), item
    assert {role: service["replicas"] for role, service in after.items()} == {"decode": 2, "prefill": 1}
    assert len(world.pods_of(world.team, "graph")) == 3
    assert world.run("undo", "--all", "--yes").code == 0
    assert created(world.api, DYNAMO, world.team, "graph")["spec"] == before
    assert len(world.pods_of(world.team, "graph")) == 6


def test_dynamo_with_scaling_adapter_keeps_its_replicas(world: World) -> None:
    """The adapter owns the numbers, and Dynamo's webhook refuses others."""
    world.add(DYNAMO, world.team, "graph", {"spec": _graph})
    adapter = {"services": {"decode": {"scalingAdapter": {"enabled": True}}}}
    world.api.patch(DYNAMO, world.team, "graph", {"spec": adapter})
    _assert_advised(world, "graph", "spec.services.*.scalingAdapter.enabled is True")


def test_ray_cluster_with_autoscaler_keeps_its_workers(world: World) -> None:
    """Its autoscaler owns the number."""
    world.add(RAY, world.team, "ray", FOUR_WORKERS)
    world.api.patch(RAY, world.team, "ray", {"spec": {"enableInTreeAutoscaling": True}})
    _assert_advised(world, "ray", "spec.enableInTreeAutoscaling is True", FEWER)


def _assert_advised(world: World, name: str, words: str, policy: str = DEFAULT_POLICY) -> None:
    """It is told, not tried: there is nothing to do, and nothing that the breaker could count."""
    run = world.run("apply", "--yes", "-o", "json", policy=policy + "breaker: {maxErrors: 1}\n")
    assert (run.code, name in run.items) == (0, False), run.err
    item = world.run("plan", "-o", "json", policy=policy).items[name]
    assert (item["verdict"], item["mode"], item["command"]) == ("act", "advise", None)
    assert any(words in reason for reason in item["reasons"]), item
    assert "\nbreaker: closed\n" in world.run("breaker").out


def test_ray_cluster_with_groups_of_one_name_is_only_advised(world: World) -> None:
    """Which of them has the idle workers is unknown, and the admission guardrails refuse any change of the list."""
    world.add(RAY, world.team, "ray", FOUR_WORKERS)
    (group,) = created(world.api, RAY, world.team, "ray")["spec"]["workerGroupSpecs"]
    twice = [group, {**group, "replicas": 9, "suspend": True}]
    world.api.patch(RAY, world.team, "ray", {"spec": {"workerGroupSpecs": twice}})
    _assert_advised(world, "ray", "not each item of spec.workerGroupSpecs has a groupName of its own", FEWER)


def test_dynamo_with_too_many_services_for_a_record_is_only_advised(world: World) -> None:
    """The admission guardrails refuse a record that long, which would open the breaker for everybody."""
    world.add(DYNAMO, world.team, "graph", {"spec": _graph})
    more = {f"{'s' * 50}{number}": {"replicas": 1} for number in range(150)}
    world.api.patch(DYNAMO, world.team, "graph", {"spec": {"services": more}})
    _assert_advised(world, "graph", "its undo record is longer than 15,872 characters")


def test_nim_service_with_autoscaling_is_only_advised(world: World) -> None:
    """With its own autoscaling on, the NIM Operator does not look at the number of replicas."""
    world.add("NIMService.apps.nvidia.com", world.team, "nim", {})
    world.api.patch("NIMService.apps.nvidia.com", world.team, "nim", {"spec": {"scale": {"enabled": True}}})
    _assert_advised(world, "nim", "spec.scale.enabled is True")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shutdownAfterJobFinishes": None}, "spec.shutdownAfterJobFinishes is not set"),
        ({"shutdownAfterJobFinishes": False}, "spec.shutdownAfterJobFinishes is False"),
        ({"clusterSelector": {"ray.io/cluster": "shared"}}, "spec.clusterSelector is set"),
    ],
)
def test_ray_job_invalid_when_suspended_is_only_advised(
    world: World, change: dict[str, Any], words: str
) -> None:
    """Suspended, it would be invalid for good, and its cluster would keep its GPUs."""
    world.add("RayJob.ray.io", world.team, "train", {})
    world.api.patch("RayJob.ray.io", world.team, "train", {"spec": change})
    _assert_advised(world, "train", words)


@pytest.mark.parametrize("selector", [None, {}])
def test_ray_job_with_empty_cluster_selector_is_suspended(
    world: World, selector: dict[str, str] | None
) -> None:
    """An empty selector selects nothing."""
    world.add("RayJob.ray.io", world.team, "train", {})
    world.api.patch("RayJob.ray.io", world.team, "train", {"spec": {"clusterSelector": selector}})
    assert _apply(world, "train")["result"] == "done"


@pytest.mark.parametrize(("status", "reason"), [(400, "BadRequest"), (422, "Invalid")])
def test_ray_service_crd_without_suspend_is_reported_not_failed(
    world: World, status: int, reason: str
) -> None:
    """A RayService of KubeRay before 1.7 has no `suspend`: it is told, and the breaker does not count it."""
    world.add("RayService.ray.io", world.team, "serve", {})
    detail = (
        'RayService.ray.io "serve" is invalid: patch: strict decoding error: unknown field "spec.suspend"'
    )
    body = {"kind": "Status", "status": "Failure", "reason": reason, "code": status, "message": detail}
    world.api.inject(Fault("/rayservices/serve", "PATCH", None, status=status, body=body))
    policy = DEFAULT_POLICY + "breaker: {maxErrors: 1}\n"
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    outcome = run.items["serve"]
    assert (outcome["result"], run.code) == ("blocked", 0), outcome
    assert "the object allows no such write" in outcome["detail"]
    assert 'unknown field "spec.suspend"' in outcome["detail"]
    assert "\nbreaker: closed\n" in world.run("breaker").out
    assert len(world.pods_of(world.team, "serve")) == 2


@pytest.mark.parametrize("spec", [b"", b"[" * 100_000, b"{}]"])
def test_plan_with_unreadable_spec_is_still_made(spec: bytes) -> None:
    """The write finds out."""
    assert missing_field_reason(dataclasses.replace(workload(), spec=spec), None, AT) == ""


def test_pod_with_two_gpu_containers_is_only_advised(world: World) -> None:
    """Which of them is to have fewer is for its people to say."""
    policy = FEWER.replace("too-many-replicas", "too-many-gpus")
    given = {"gpus": 4, "usage": [["busy", "idle", "idle", "idle"]], "spec": _halved}
    world.add("Rollout.argoproj.io", world.team, "two", given)
    _assert_advised(world, "two", "2 of its containers declare nvidia.com/gpu", policy)


def _halved(template: dict[str, Any]) -> dict[str, Any]:
    """A spec of two containers, each with half of the GPUs."""
    first = template["spec"]["containers"][0]
    half = {**first, "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    template["spec"]["containers"] = [half, {**half, "name": "second"}]
    return {"replicas": 1, "selector": {"matchLabels": template["metadata"]["labels"]}, "template": template}


# --- kinds that we do not know


def test_unknown_kind_without_scale_is_advised_with_command(world: World) -> None:
    """A kind without a row and without a scale: its object is opened for whoever knows it."""
    world.add("TaskRun", world.team, "x", {})
    item = _item(world, "x")
    assert (item["verdict"], item["action"]) == ("act", None)
    assert item["command"] == f"kubectl -n {world.team} edit taskrun.tekton.dev x"


def test_unknown_kind_with_unknown_scale_field_is_only_advised(world: World) -> None:
    """Without the definition a change and its record could not be one write; the command is told."""
    world.add("CloneSet.apps.kruise.io", world.team, "x", {})
    world.api.deny(Rule("*", resources=("customresourcedefinitions",)))
    item = _item(world, "x")
    assert (item["verdict"], item["action"]) == ("act", None)
    assert item["command"] == f"kubectl -n {world.team} scale cloneset.apps.kruise.io x --replicas 0"


def test_daemonset_is_never_changed_and_gets_no_command(world: World) -> None:
    """It is the cluster's own machinery, and never touched."""
    world.add("DaemonSet", world.team, "agents", {})
    owner = created(world.api, "DaemonSet", world.team, "agents")["metadata"]["uid"]
    reference = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "name": "agents",
        "uid": owner,
        "controller": True,
    }
    world.add("Pod", world.team, "agent", {"owners": [reference]})
    item = _item(world, "agents")
    assert (item["verdict"], item["action"], item["command"]) == ("protected", None, None)


def test_undo_with_unserved_or_forbidden_kind_restores_the_rest(world: World) -> None:
    """A group may be served without one of its kinds, or without us being let in: the rest is restored."""
    world.add("PyTorchJob.kubeflow.org", world.team, "train", {})
    assert _apply(world, "train")["result"] == "done"
    world.api.inject(Fault("/jaxjobs", "GET", None, status=404))
    world.api.deny(Rule("*", resources=("paddlejobs",)))
    run = world.run("undo", "--all", "--yes", "-o", "json")
    assert (run.code, run.items["train"]["result"]) == (0, "done"), run.err


@pytest.mark.slow
def test_undo_ambiguous_kind_name_requires_api_group(world: World) -> None:
    """A Job of Volcano's and one of Kubernetes' own may have one name: undo asks which, and takes the group."""
    world.add(VOLCANO, world.team, "train", {})
    known = {pod["metadata"]["uid"] for pod in world.pods_of(world.team, "train")}
    world.add("Job", world.team, "train", {"usage": "absent"})
    for pod in world.pods_of(world.team, "train"):
        if pod["metadata"]["uid"] not in known:
            world.record(pod, "idle", 1)
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    asked = world.run("undo", f"{world.team}/Job/train", "--yes")
    assert asked.code == 2
    assert f"{world.team}/Job.batch.volcano.sh/train" in asked.err
    assert world.run("undo", f"{world.team}/Job.batch.volcano.sh/train", "--yes").code == 0
    assert created(world.api, "Job", world.team, "train")["spec"]["suspend"] is True
    assert UNDO not in created(world.api, VOLCANO, world.team, "train")["metadata"]["annotations"]
