"""The eviction subresource and PodDisruptionBudgets."""

import json

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, budget, job, pod, workload
from tests.simulator.kube.wire import Http

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def cluster(server: ApiServer, nodes: list[Object]) -> None:
    """A StatefulSet of two running pods, w-0 and w-1."""
    assert nodes
    server.create(workload("StatefulSet", replicas=2))
    server.settle()


def body(name: str = "w-0", **options: object) -> Object:
    """An Eviction."""
    whole: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**whole, "deleteOptions": options} if options else whole


def evict(http: Http, name: str = "w-0", **options: object) -> Object:
    """Evict a pod; the Status that comes back."""
    status: Object = http("POST", f"{PODS}/{name}/eviction", body(name, **options)).json()
    return status


def with_budget(server: ApiServer, **spec: str | int) -> Object:
    """A budget over the pods, once its status is computed."""
    server.create({**budget(), "spec": {**budget()["spec"], **spec}})
    server.settle()
    stored = server.get("PodDisruptionBudget", "default", "b")
    assert stored is not None
    return stored


def get_pod(server: ApiServer, name: str = "w-0") -> Object:
    """A pod."""
    stored = server.get("Pod", "default", name)
    assert stored is not None
    return stored


def test_eviction_with_failed_precondition_uses_no_budget(server: ApiServer, http: Http) -> None:
    """A refused eviction leaves the budget's status alone."""
    before = with_budget(server, maxUnavailable=1)
    assert evict(http, preconditions={"uid": "another"})["code"] == 409
    assert server.get("PodDisruptionBudget", "default", "b") == before


def test_eviction_granted_is_counted_in_budget_status(server: ApiServer, http: Http) -> None:
    """The budget's status counts the disruption down and names the pod at once."""
    with_budget(server, maxUnavailable=1)
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    since = http("GET", path).json()["metadata"]["resourceVersion"]
    evict(http, "w-0")
    query = {"watch": "true", "timeoutSeconds": "1", "resourceVersion": since}
    first = json.loads(next(iter(http("GET", path, params=query, stream=True).iter_lines())))
    assert first["object"]["status"]["disruptionsAllowed"] == 0
    assert first["object"]["status"]["disruptedPods"] == {"w-0": "2026-11-20T12:00:00Z"}


def test_eviction_under_unobserved_budget_is_429(server: ApiServer, http: Http) -> None:
    """While no controller has seen the budget's newest spec, evictions get 429 with Retry-After."""
    with_budget(server, maxUnavailable=1)
    server.patch("PodDisruptionBudget", "default", "b", {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete("PodDisruptionBudget", "default", "b")  # what is being deleted gets no new status
    server.patch("PodDisruptionBudget", "default", "b", {"spec": {"maxUnavailable": 2}})
    reply = http("POST", f"{PODS}/w-0/eviction", body())
    assert (reply.status_code, reply.headers["Retry-After"]) == (429, "10")
    [cause] = reply.json()["details"]["causes"]
    assert cause["message"] == "The disruption budget b is still being processed by the server."


@pytest.mark.parametrize("phase", ["Pending", "Succeeded", "Failed"])
def test_eviction_of_pod_not_running_ignores_budget(server: ApiServer, http: Http, phase: str) -> None:
    """A budget without room does not keep pods that do not run."""
    server.create(pod("idle", labels={"app": "w"}, nodeSelector={"no": "where"}))
    with_budget(server, maxUnavailable=0)
    server.patch("Pod", "default", "idle", {"status": {"phase": phase}}, subresource="status")
    assert evict(http, "idle")["code"] == 201
    server.settle()
    assert server.get("Pod", "default", "idle") is None


@pytest.mark.parametrize(
    ("policy", "minimum", "code"),
    [
        pytest.param(None, 1, 201, id="enough-others-are-healthy"),
        pytest.param("IfHealthyBudget", 2, 429, id="too-few-are-healthy"),
        pytest.param("AlwaysAllow", 2, 201, id="always"),
    ],
)
def test_eviction_of_unready_pod_follows_unhealthy_policy(
    server: ApiServer, http: Http, policy: str | None, minimum: int, code: int
) -> None:
    """An unready pod goes if the budget is met without it, or if its policy always allows it."""
    broken = [{"type": "Ready", "status": "False"}]
    kind = "application/strategic-merge-patch+json"
    server.patch(
        "Pod", "default", "w-0", {"status": {"conditions": broken}}, content_type=kind, subresource="status"
    )
    spec: dict[str, str] = {"unhealthyPodEvictionPolicy": policy} if policy else {}
    with_budget(server, minAvailable=minimum, **spec)
    assert evict(http, "w-0")["code"] == code


def test_budget_over_pods_without_scale_allows_no_disruption(server: ApiServer, http: Http) -> None:
    """MaxUnavailable over pods whose owner has no scale fails closed: no disruption is allowed."""
    server.create(job())
    server.create(
        {
            **budget(maxUnavailable=1),
            "spec": {"selector": {"matchLabels": {"job-name": "j"}}, "maxUnavailable": 1},
        }
    )
    server.settle()
    [name] = [
        obj["metadata"]["name"] for obj in server.list("Pod") if "job-name" in obj["metadata"]["labels"]
    ]
    stored = server.get("PodDisruptionBudget", "default", "b")
    assert stored is not None
    assert stored["status"]["conditions"][0]["reason"] == "SyncFailed"
    assert evict(http, name)["code"] == 429
