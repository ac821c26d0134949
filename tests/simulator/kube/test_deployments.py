"""Deployments and ReplicaSets: pods come, are replaced, and the right ones go."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import names, pod, pod_spec, workload
from tests.simulator.kube.observing import OTHER_IMAGE, get, pods

pytestmark = pytest.mark.usefixtures("nodes")


def test_deployment_created_runs_its_pods(server: ApiServer) -> None:
    """A Deployment gets a ReplicaSet, which gets pods, which run; each says so in its status."""
    server.create(workload("Deployment", replicas=3))
    running = pods(server)
    [replica_set] = server.list("ReplicaSet")
    assert {entry["status"]["phase"] for entry in running} == {"Running"}
    assert all(
        entry["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"] for entry in running
    )
    assert replica_set["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
    status = get(server, "Deployment")["status"]
    counts = {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "availableReplicas": 3}
    assert counts.items() <= status.items()
    assert status["observedGeneration"] == 1
    assert "unavailableReplicas" not in status


def test_deployment_at_zero_replicas_omits_counts(server: ApiServer) -> None:
    """At zero replicas the counts vanish from a Deployment's status, as Go's omitempty makes them."""
    server.create(workload("Deployment", replicas=2))
    server.settle()
    server.patch("Deployment", "default", "w", {"spec": {"replicas": 0}})
    assert pods(server) == []
    status = get(server, "Deployment")["status"]
    assert status["observedGeneration"] == 2
    assert not {"replicas", "readyReplicas", "availableReplicas"} & status.keys()


@pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
def test_deployment_with_new_template_replaces_all_pods(server: ApiServer, strategy: str) -> None:
    """After a rollout only the new template's pods run; the old ReplicaSet stays at zero, numbered lower."""
    server.create(workload("Deployment", replicas=4, strategy={"type": strategy}))
    server.settle()
    server.patch(
        "Deployment", "default", "w", {"spec": {"template": {"spec": {"containers": [OTHER_IMAGE]}}}}
    )
    assert [entry["spec"]["containers"][0]["image"] for entry in pods(server)] == ["app:2"] * 4
    by_revision = {
        entry["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: entry["spec"]["replicas"]
        for entry in server.list("ReplicaSet")
    }
    assert by_revision == {"1": 0, "2": 4}
    deployment = get(server, "Deployment")
    assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
    assert deployment["metadata"]["generation"] == deployment["status"]["observedGeneration"] == 2


def test_deployment_rolled_back_reuses_its_replica_set(server: ApiServer) -> None:
    """Rolling back makes no third ReplicaSet; the first becomes the newest."""
    server.create(workload("Deployment", replicas=1))
    server.settle()
    before = get(server, "Deployment")["spec"]["template"]
    server.patch(
        "Deployment", "default", "w", {"spec": {"template": {"spec": {"containers": [OTHER_IMAGE]}}}}
    )
    server.settle()
    server.patch("Deployment", "default", "w", {"spec": {"template": before}})
    assert [entry["spec"]["containers"][0]["image"] for entry in pods(server)] == ["app:1"]
    assert len(server.list("ReplicaSet")) == 2
    annotations = get(server, "Deployment")["metadata"]["annotations"]
    assert annotations["deployment.kubernetes.io/revision"] == "3"


def test_rollout_without_free_gpus_keeps_old_pods(server: ApiServer) -> None:
    """With all GPUs taken, the surge pods stay pending and enough old ones keep running."""
    server.create(workload("Deployment", replicas=16))
    server.settle()
    template = {"spec": {"containers": [{**OTHER_IMAGE, "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
    server.patch("Deployment", "default", "w", {"spec": {"template": template}})
    images = [entry["spec"]["containers"][0]["image"] for entry in pods(server)]
    running = [entry for entry in pods(server) if entry["status"]["phase"] == "Running"]
    assert images.count("app:1") == 12, "a quarter of sixteen may be unavailable"
    assert len(running) == 12


def test_scale_down_deletes_lowest_deletion_cost_first(server: ApiServer) -> None:
    """On scale-down, pods with the lowest pod-deletion-cost go."""
    server.create(workload("ReplicaSet", replicas=4))
    all_names = names(pods(server))
    idle = sorted(all_names)[1:3]
    for name in idle:
        cost = {"controller.kubernetes.io/pod-deletion-cost": "-100"}
        server.patch("Pod", "default", name, {"metadata": {"annotations": cost}})
    server.patch("ReplicaSet", "default", "w", {"spec": {"replicas": 2}})
    assert set(names(pods(server))) == set(all_names) - set(idle)


def test_scale_down_deletes_unscheduled_pods_first(server: ApiServer) -> None:
    """What does not run is given up first."""
    server.create(workload("ReplicaSet", replicas=18))
    running = {entry["metadata"]["name"] for entry in pods(server) if entry["status"]["phase"] == "Running"}
    server.patch("ReplicaSet", "default", "w", {"spec": {"replicas": 16}})
    assert set(names(pods(server))) == running


def test_orphan_matching_selector_is_adopted(server: ApiServer) -> None:
    """A pod without controller that the selector matches counts as a replica."""
    server.create(pod("stray", labels={"app": "w"}))
    server.settle()
    server.create(workload("ReplicaSet", replicas=2))
    assert "stray" in names(pods(server))
    assert len(server.list("Pod")) == 2


def test_admission_failure_is_in_status_until_fixed(server: ApiServer) -> None:
    """Pods of an unknown class are not created, the status says why, and they come once the class exists."""
    server.create(workload("Deployment", replicas=2, pod=pod_spec(priorityClassName="late")))
    assert pods(server) == []
    [replica_set] = server.list("ReplicaSet")
    [failure] = replica_set["status"]["conditions"]
    assert (failure["type"], failure["reason"]) == ("ReplicaFailure", "FailedCreate")
    assert "no PriorityClass with name late was found" in failure["message"]
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "late"}}
    server.create({**kind, "value": 7})
    assert [entry["spec"]["priority"] for entry in pods(server)] == [7, 7]
