"""The loop on a real control plane: real scheduler, controllers and admission, a real Prometheus, our commands."""

import pathlib

import pytest

from simulator.controlplane.certificates import ClientIdentity
from simulator.controlplane.programs import KUBERNETES
from tests.controlplane.world import RealWorld, uids

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]

UNDO = "gpu-rightsizer.io/undo"


@pytest.mark.parametrize(
    ("kind", "replicas", "action"),
    [
        ("Deployment", 3, "scale-to-zero"),
        ("StatefulSet", 2, "scale-to-zero"),
        ("Job", 2, "suspend"),
        ("Pod", 1, "evict"),
    ],
)
def test_idle_workload_is_stopped_and_restored_by_undo(
    world: RealWorld, kind: str, replicas: int, action: str
) -> None:
    """Planned, applied, its pods end; undone, as many others run, and the record is gone."""
    world.node()
    world.add("Deployment", "busy", "busy")  # of a cluster in which no pod had series there would be no plan
    before = world.add(kind, "idle", replicas=replicas, gpus=2)
    spec = world.get(kind, "idle")["spec"]
    item = world.plan()["idle"]
    assert (item["verdict"], item["action"], item["gpus"]) == ("act", action, 2 * replicas)
    assert world.apply()["idle"]["result"] == "done"
    world.gone("idle")
    assert "idle" not in world.plan()
    undone = world.undo(kind, "idle")
    assert undone["result"] == "done", undone
    after = world.running("idle", replicas)
    assert not uids(before) & uids(after)
    back = world.get(kind, "idle")
    assert UNDO not in back["metadata"].get("annotations", {})
    if kind != "Pod":
        assert back["spec"] == spec
    else:
        assert back["spec"]["containers"][0]["resources"] == spec["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("kind", "reason"), [("Deployment", "ScaledToZero"), ("Job", "Suspended"), ("Pod", "Evicted")]
)
def test_applied_change_leaves_event(world: RealWorld, kind: str, reason: str) -> None:
    """`kubectl describe` shows what was done and how to get it back: the API server accepted the Event."""
    world.node()
    world.add(kind, "idle")
    assert world.apply()["idle"]["result"] == "done"
    selector = "involvedObject.name=idle,reportingComponent=gpu-rightsizer"
    (event,) = world.api.items(f"{world.api.core}/events", fieldSelector=selector)
    assert (event["reason"], event["involvedObject"]["kind"]) == (reason, kind)
    assert f"gpu-rightsizer undo {world.team}/{kind}/idle" in event["message"]


def test_protected_workload_is_reported_and_not_changed(world: RealWorld) -> None:
    """An idle workload of the protected class is told about and not written to, beside one that is stopped."""
    world.node()
    pods = world.add("Deployment", "precious", priorityClass="high-priority")
    world.add("Deployment", "idle")
    before = world.get("Deployment", "precious")
    assert world.plan()["precious"]["verdict"] == "protected"
    assert set(world.apply()) == {"idle"}
    world.gone("idle")
    assert world.get("Deployment", "precious") == before
    assert uids(world.running("precious", 1)) == uids(pods)


def test_workload_changed_after_plan_is_left_alone(world: RealWorld, tmp_path: pathlib.Path) -> None:
    """Each change counts: another template, another size, an opt-out; the untouched one is stopped."""
    world.node()
    for name in ("same", "edited", "scaled", "opted-out"):
        world.add("Deployment", name, replicas=2)
    plan = tmp_path / "plan.json"
    world.plan("--save", str(plan))
    deployments = world.collection("Deployment")
    edit = {"spec": {"template": {"metadata": {"annotations": {"touched": "yes"}}}}}
    world.api.patch(f"{deployments}/edited", edit)
    world.api.patch(f"{deployments}/scaled/scale", {"spec": {"replicas": 3}})
    opt_out = {"metadata": {"annotations": {"gpu-rightsizer.io/mode": "off"}}}
    world.api.patch(f"{deployments}/opted-out", opt_out)
    results = {name: item["result"] for name, item in world.apply("--plan", str(plan)).items()}
    assert results == {"same": "done", "edited": "changed", "scaled": "changed", "opted-out": "changed"}
    replicas = {name: world.get("Deployment", name)["spec"]["replicas"] for name in results}
    assert replicas == {"same": 0, "edited": 2, "scaled": 3, "opted-out": 2}


def test_autoscaler_does_not_restart_stopped_workload(world: RealWorld) -> None:
    """At zero replicas a HorizontalPodAutoscaler stands still, whatever its minimum; after undo it acts again."""
    world.node()
    world.add("Deployment", "idle", replicas=3)
    autoscalers = f"/apis/autoscaling/v2/namespaces/{world.team}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "idle"}
    spec = {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5}
    world.api.create(autoscalers, {"metadata": {"name": "idle"}, "spec": spec})

    def state() -> tuple[str, str]:
        conditions = world.api.get(f"{autoscalers}/idle").get("status", {}).get("conditions", [])
        found = {entry["type"]: (entry["status"], entry["reason"]) for entry in conditions}
        return found.get("ScalingActive", ("", ""))

    world.api.eventually(state, lambda found: found[1] == "FailedGetResourceMetric")
    assert world.apply()["idle"]["result"] == "done"
    world.gone("idle")
    world.api.eventually(state, lambda found: found == ("False", "ScalingDisabled"))
    assert world.get("Deployment", "idle")["spec"]["replicas"] == 0
    assert world.undo("Deployment", "idle")["result"] == "done"
    world.running("idle", 3)
    world.api.eventually(state, lambda found: found[1] == "FailedGetResourceMetric")


@pytest.mark.skipif(
    KUBERNETES == "kubernetes", reason="since Kubernetes 1.37: make test-controlplane KUBERNETES=1.37"
)
def test_autoscaler_that_tells_its_own_zero_does_not_restart_stopped_workload(world: RealWorld) -> None:
    """Also with `minReplicas: 0`, by the condition that it writes when it rescales (KEP-2021); before that, advice."""
    world.node()
    world.add("Deployment", "idle", replicas=2)
    autoscalers = f"/apis/autoscaling/v2/namespaces/{world.team}/horizontalpodautoscalers"
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "idle"}
    metric = {"metric": {"name": "queue"}, "target": {"type": "Value", "value": "1"}}
    spec = {"scaleTargetRef": target, "minReplicas": 0, "maxReplicas": 5}
    external = {**spec, "metrics": [{"type": "External", "external": metric}]}
    world.api.create(autoscalers, {"metadata": {"name": "idle"}, "spec": external})
    assert [one["reverts"] for one in world.plan()["idle"]["managers"]] == [True]
    assert world.apply() == {}

    def told() -> dict[str, str]:
        conditions = world.api.get(f"{autoscalers}/idle").get("status", {}).get("conditions", [])
        return {entry["type"]: entry["reason"] for entry in conditions}

    # It rescales without any metric, and tells that this was no zero.
    world.api.patch(f"{autoscalers}/idle", {"spec": {"maxReplicas": 1}})
    world.api.eventually(told, lambda found: found.get("ScaledToZero") == "NotScaledToZero")
    world.running("idle", 1)
    assert world.apply()["idle"]["result"] == "done"
    world.gone("idle")
    world.api.eventually(told, lambda found: found["ScalingActive"] == "ScalingDisabled")
    assert world.get("Deployment", "idle")["spec"]["replicas"] == 0


def test_pending_job_of_higher_priority_gets_freed_gpus(world: RealWorld) -> None:
    """On RDMA nodes chosen by nodeSelector: the idle medium-priority job is suspended, the high-priority one runs."""
    rdma = {"feature.node.kubernetes.io/rdma.available": "true"}
    world.node(gpus=8)
    world.node(gpus=4, labels=rdma)
    patient = world.priority_class("patient-high", 100_000, preemptionPolicy="Never")
    busy = world.add("Job", "busy", "busy", gpus=2, priorityClass="medium-priority", nodeSelector=rdma)
    world.add("Job", "idle", gpus=2, priorityClass="medium-priority", nodeSelector=rdma)
    world.create("Job", "urgent", gpus=2, priorityClass=patient, nodeSelector=rdma)
    world.unschedulable("urgent")
    assert {name: item["result"] for name, item in world.apply().items()} == {"idle": "done"}
    (urgent,) = world.running("urgent", 1)
    assert urgent["spec"]["nodeName"] == busy[0]["spec"]["nodeName"]
    assert uids(world.running("busy", 1)) == uids(busy)
    assert world.pods("idle") == []


def test_run_serves_a_pod_that_begins_to_wait_within_seconds(world: RealWorld) -> None:
    """An hour between cycles, but the watch begins one. The busy job stays, the idle one goes."""
    world.node(gpus=4)
    patient = world.priority_class("patient-high", 100_000, preemptionPolicy="Never")
    busy = world.add("Job", "busy", "busy", gpus=2, priorityClass="medium-priority")
    world.add("Job", "idle", gpus=2, priorityClass="medium-priority")
    with world.loop(world.on_demand_policy("suspend")) as log:
        world.create("Job", "urgent", gpus=2, priorityClass=patient)
        world.gone("idle")
    world.running("urgent", 1)
    assert "a pod waits for GPUs: a cycle begins" in log.read_text()
    assert uids(world.running("busy", 1)) == uids(busy)
    assert world.pods("idle") == []


def test_eviction_blocked_by_budget_is_reported(world: RealWorld) -> None:
    """The eviction that a PodDisruptionBudget refuses is `blocked`, in its words, and no manifest stays behind."""
    world.node()
    world.add("Pod", "shell")
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "shell"}}}
    world.api.create(
        f"{world.api.policy}/poddisruptionbudgets", {"metadata": {"name": "keep"}, "spec": budget}
    )
    world.api.eventually(
        lambda: world.api.get(f"{world.api.policy}/poddisruptionbudgets/keep"),
        lambda found: found.get("status", {}).get("expectedPods") == 1,
    )
    item = world.plan()["shell"]
    (block,) = item["blockers"]
    assert block["code"] == "disruption-budget"
    assert "PodDisruptionBudget keep allows 0" in block["message"]
    assert world.apply() == {}
    world.running("shell", 1)


def test_admission_denial_is_reported_with_its_message(world: RealWorld) -> None:
    """A ValidatingAdmissionPolicy denies the dry run: only that object is blocked, its message is shown."""
    world.node()
    world.add("Deployment", "idle", replicas=2)
    _forbid_zero(world)
    before = world.get("Deployment", "idle")
    result = world.apply()["idle"]
    assert result["result"] == "blocked"
    assert "ask the owner first" in result["detail"]
    assert (
        world.get("Deployment", "idle")["metadata"]["resourceVersion"]
        == before["metadata"]["resourceVersion"]
    )


def test_read_only_account_can_plan_but_not_apply(world: RealWorld) -> None:
    """`plan` needs get and list; `apply` by the same account is told what it may not, and changes nothing."""
    world.node()
    world.add("Deployment", "idle")
    reader = ClientIdentity(f"reader-{world.team}")
    _let_read(world, reader.name)
    world.become(reader)
    assert world.plan()["idle"]["verdict"] == "act"
    refused = world.run("apply", "--yes")
    assert (refused.code, "forbidden" in refused.err, "doctor --roles" in refused.err) == (2, True, True)
    assert world.get("Deployment", "idle")["spec"]["replicas"] == 1


def _forbid_zero(world: RealWorld) -> None:
    """Install a ValidatingAdmissionPolicy for the team's namespace, and wait until it is in force."""
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["deployments"],
    }
    validation = {"expression": "object.spec.replicas > 0", "message": "ask the owner first"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": world.team}}}
    binding = {"policyName": world.team, "validationActions": ["Deny"], "matchResources": selector}
    group = "/apis/admissionregistration.k8s.io/v1"
    world.api.create(f"{group}/validatingadmissionpolicies", {"metadata": {"name": world.team}, "spec": spec})
    world.api.create(
        f"{group}/validatingadmissionpolicybindings", {"metadata": {"name": world.team}, "spec": binding}
    )
    path, zero = f"{world.collection('Deployment')}/idle", {"spec": {"replicas": 0}}
    world.api.eventually(lambda: world.api.patch(path, zero, params={"dryRun": "All"}).status_code == 422)


def _let_read(world: RealWorld, user: str) -> None:
    """Grant what the documentation says that `plan` needs."""
    group = "rbac.authorization.k8s.io"
    core = ["pods", "nodes", "namespaces"]
    kinds = ["deployments", "statefulsets", "replicasets", "jobs", "poddisruptionbudgets", "priorityclasses"]
    kinds += ["replicationcontrollers", "cronjobs"]
    rule = {"apiGroups": ["*"], "resources": [*core, *kinds], "verbs": ["get", "list"]}
    reference = {"kind": "ClusterRole", "name": user, "apiGroup": group}
    subject = {"kind": "User", "name": user, "apiGroup": group}
    path = f"/apis/{group}/v1"
    world.api.create(f"{path}/clusterroles", {"metadata": {"name": user}, "rules": [rule]})
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
    world.api.create(f"{path}/clusterrolebindings", binding)
