"""The kubelets' part, and how the whole settles."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, names, node, pod, workload
from tests.simulator.kube.observing import get, pods
from tests.simulator.kube.wire import Clock


def test_bound_pod_starts_with_server_time(server: ApiServer, clock: Clock, nodes: list[Object]) -> None:
    """Start time, conditions and container states carry the server's clock."""
    clock.forward(-3600)
    server.create(pod())
    [running] = pods(server)
    assert running["spec"]["nodeName"] in names(nodes)
    assert running["metadata"]["creationTimestamp"] == "2026-11-20T11:00:00Z"
    assert running["status"]["startTime"] == "2026-11-20T11:00:00Z"
    [container] = running["status"]["containerStatuses"]
    assert container["ready"]
    assert container["state"] == {"running": {"startedAt": "2026-11-20T11:00:00Z"}}
    assert {"Ready", "PodScheduled"} <= {entry["type"] for entry in running["status"]["conditions"]}


@pytest.mark.usefixtures("nodes")
def test_terminating_pod_holds_its_gpu_until_gone(server: ApiServer) -> None:
    """A running pod gets a deletion timestamp with its grace, and its GPU is taken until it vanishes."""
    server.create(pod("a", gpus=8))
    server.create(pod("b", gpus=8))
    server.settle()
    server.patch("Pod", "default", "a", {"metadata": {"finalizers": ["example.com/hold"]}})
    server.create(pod("c", gpus=8))
    server.delete("Pod", "default", "a")
    server.settle()
    assert get(server, "Pod", "a")["metadata"]["deletionGracePeriodSeconds"] in {0, 30}
    assert get(server, "Pod", "c")["status"]["phase"] == "Pending"
    server.patch("Pod", "default", "a", {"metadata": {"finalizers": None}})
    server.settle()
    assert get(server, "Pod", "c")["status"]["phase"] == "Running"


def test_unscheduled_pod_is_deleted_immediately(server: ApiServer) -> None:
    """A pod without a node has nothing to end."""
    server.create(pod())
    server.settle()
    server.delete("Pod", "default", "p")
    assert server.get("Pod", "default", "p") is None


def test_node_without_status_becomes_ready(server: ApiServer) -> None:
    """A node that says nothing of itself gets a Ready condition."""
    server.create(node("n"))
    server.settle()
    stored = server.get("Node", None, "n")
    assert stored is not None
    assert stored["status"]["conditions"][0]["type"] == "Ready"


def test_deployment_of_a_thousand_pods_settles(server: ApiServer) -> None:
    """A large Deployment runs all its pods, and deletion removes them all."""
    for index in range(10):
        server.create(node(f"big-{index}", gpus=110))
    server.create(workload("Deployment", replicas=1000))
    server.settle(600)
    assert sum(entry["status"]["phase"] == "Running" for entry in server.list("Pod")) == 1000
    server.delete("Deployment", "default", "w")
    server.settle(600)
    assert server.list("Pod") == []


def test_settle_past_timeout_raises_timeout_error(server: ApiServer) -> None:
    """What does not settle raises TimeoutError that names it."""
    with ApiServer(termination_delay_s=60) as slow:
        slow.create(node("n"))
        slow.create(pod())
        slow.settle()
        slow.delete("Pod", "default", "p")
        with pytest.raises(TimeoutError, match=r"PodLifecycle \('default', 'p'"):
            slow.settle(0.05)
    server.settle()


def test_batch_holds_controllers_until_its_end(server: ApiServer) -> None:
    """While a batch is made nobody reacts; afterwards everything does."""
    server.settle()
    with server.batch():
        server.create(node("n"))
        for index in range(8):
            server.create(pod(f"p{index}"))
        assert all("nodeName" not in entry["spec"] for entry in server.list("Pod"))
    assert {entry["status"]["phase"] for entry in pods(server)} == {"Running"}
