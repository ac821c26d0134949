"""Which pods get which nodes, and what the others are told."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, node, pod

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def placed(server: ApiServer) -> dict[str, str]:
    """The node of each pod that has one."""
    server.settle()
    return {
        entry["metadata"]["name"]: entry["spec"]["nodeName"]
        for entry in server.list("Pod")
        if "nodeName" in entry["spec"]
    }


def why(server: ApiServer, name: str = "p") -> tuple[str, str]:
    """Reason and message of a pod that waits."""
    server.settle()
    stored = server.get("Pod", "default", name)
    assert stored is not None
    [entry] = [entry for entry in stored["status"]["conditions"] if entry["type"] == "PodScheduled"]
    assert entry["status"] == "False"
    return entry["reason"], entry["message"]


def test_scheduler_never_overcommits_gpus(server: ApiServer) -> None:
    """A node takes no more pods than it has GPUs; who waits is told so, and comes when one is freed."""
    server.create(node("n", gpus=2))
    for name in "abc":
        server.create(pod(name))
    assert placed(server).keys() == {"a", "b"}
    assert why(server, "c") == ("Unschedulable", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
    server.delete("Pod", "default", "a")
    assert placed(server).keys() == {"b", "c"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"nodeSelector": {"x": "y"}}, "1 node(s) didn't match Pod's node affinity/selector", id="selector"
        ),
        pytest.param({}, "1 node(s) had untolerated taint {nvidia.com/gpu: present}", id="taint"),
    ],
)
def test_scheduler_honours_node_selector_and_taints(server: ApiServer, spec: Object, message: str) -> None:
    """A pod fits where selector and tolerations say; elsewhere it waits with the reason."""
    tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}] if spec else []
    server.create({**node("n", labels={"zone": "a"}), "spec": {"taints": [TAINT]}})
    server.create(pod(tolerations=tolerations, **spec))
    assert why(server) == ("Unschedulable", f"0/1 nodes are available: {message}.")
    fitting = [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}]
    server.create(pod("q", tolerations=fitting, nodeSelector={"zone": "a"}))
    assert placed(server) == {"q": "n"}


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "gen", "operator": "In", "values": ["hopper"]}, True),
        ({"key": "gen", "operator": "NotIn", "values": ["hopper"]}, False),
        ({"key": "count", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "count", "operator": "Lt", "values": ["4"]}, False),
        ({"key": "none", "operator": "Exists"}, False),
        ({"key": "none", "operator": "DoesNotExist"}, True),
    ],
)
def test_scheduler_honours_required_node_affinity(server: ApiServer, expression: Object, fits: bool) -> None:
    """Required node affinity terms are honoured with every operator."""
    server.create(node("n", labels={"gen": "hopper", "count": "8"}))
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    server.create(pod(affinity=affinity))
    assert bool(placed(server)) is fits


def test_scheduler_places_higher_priority_first(server: ApiServer) -> None:
    """Of several waiting pods, the one with the highest priority gets the node that appears."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    server.create({**kind, "value": 10})
    server.create(pod("a", gpus=8))
    server.create(pod("b", gpus=8, priorityClassName="high"))
    assert why(server, "a") == ("Unschedulable", "no nodes available to schedule pods")
    server.create(node("n"))
    assert placed(server) == {"b": "n"}


def test_scheduler_skips_cordoned_and_unready_nodes(server: ApiServer) -> None:
    """A node that is unschedulable or not ready is passed over."""
    server.create({**node("cordoned"), "spec": {"unschedulable": True}})
    away = node("away")
    away["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    server.create(away)
    server.create(pod())
    assert why(server)[1] == (
        "0/2 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }, "
        "1 node(s) were unschedulable."
    )


def test_scheduler_holds_gated_pod(server: ApiServer) -> None:
    """A pod with a scheduling gate stays until the gate is removed."""
    server.create(node("n"))
    server.create(pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]))
    assert why(server)[0] == "SchedulingGated"
    server.patch("Pod", "default", "p", {"spec": {"schedulingGates": None}})
    assert placed(server) == {"p": "n"}


def test_finished_pod_frees_its_node(server: ApiServer) -> None:
    """A pod that has ended no longer counts."""
    server.create(node("n", gpus=1))
    server.create(pod("a"))
    server.create(pod("b"))
    server.settle()
    server.patch("Pod", "default", "a", {"status": {"phase": "Succeeded"}}, subresource="status")
    assert placed(server)["b"] == "n"
