"""dryRun=All on every kind of write: the full answer, no effect."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, configmap, pod, workload
from tests.simulator.kube.wire import Http

DEPLOYMENT = "/apis/apps/v1/namespaces/default/deployments/w"
MAPS = "/api/v1/namespaces/default/configmaps"
POD = "/api/v1/namespaces/default/pods/p"
ALL = {"dryRun": "All"}
SCALE = {"metadata": {"name": "w"}, "spec": {"replicas": 5}}


@pytest.fixture(autouse=True)
def objects(server: ApiServer, nodes: list[Object]) -> None:
    """A Deployment and a running pod."""
    assert nodes
    server.create(workload("Deployment", replicas=1))
    server.create(pod())
    server.settle()


def everything(server: ApiServer) -> list[Object]:
    """All that a write could have touched."""
    return [obj for kind in ("Deployment", "ReplicaSet", "Pod", "ConfigMap") for obj in server.list(kind)]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        pytest.param("POST", MAPS, configmap(), 201, id="create"),
        pytest.param("PUT", f"{DEPLOYMENT}/scale", SCALE, 200, id="scale"),
        pytest.param("DELETE", DEPLOYMENT, None, 200, id="delete"),
        pytest.param("DELETE", POD, None, 200, id="delete-pod"),
        pytest.param("POST", f"{POD}/eviction", {"metadata": {"name": "p"}}, 201, id="evict"),
        pytest.param("DELETE", "/api/v1/namespaces/default/pods", None, 200, id="delete-collection"),
    ],
)  # fmt: skip
def test_a_dry_run_answers_but_changes_nothing(
    server: ApiServer, http: Http, method: str, path: str, body: object, code: int
) -> None:
    """Each write answers as the real one would, and leaves every object as it was."""
    before = everything(server)
    assert http(method, path, body, params=ALL).status_code == code
    server.settle()
    assert everything(server) == before


@pytest.mark.parametrize("kind", ["merge-patch", "strategic-merge-patch"])
def test_a_dry_run_patch_shows_its_result(server: ApiServer, http: Http, kind: str) -> None:
    """The answer is the object as it would be, under its old resourceVersion."""
    before = everything(server)
    reply = http.patch(DEPLOYMENT, {"spec": {"replicas": 0}}, kind, params=ALL)
    assert reply.json()["spec"]["replicas"] == 0
    assert reply.json()["metadata"]["resourceVersion"] == before[0]["metadata"]["resourceVersion"]
    assert everything(server) == before


def test_a_dry_run_is_validated(http: Http) -> None:
    """What would be refused is refused in a dry run too: validation, conflicts and patch tests."""
    assert http.patch(DEPLOYMENT, {"spec": {"replicas": -1}}, params=ALL).status_code == 422
    assert http.patch(DEPLOYMENT, {"metadata": {"resourceVersion": "1"}}, params=ALL).status_code == 409
    operation = [{"op": "test", "path": "/spec/replicas", "value": 9}]
    assert http.patch(DEPLOYMENT, operation, "json-patch", params=ALL).status_code == 422
    assert http("POST", MAPS, configmap("Bad"), params=ALL).status_code == 422


def test_a_dry_run_may_be_asked_for_in_delete_options(server: ApiServer, http: Http) -> None:
    """DELETE and eviction take dryRun in their bodies; the wire log sees both as dry runs."""
    server.requests.clear()
    http("DELETE", POD, {"dryRun": ["All"]})
    http("POST", f"{POD}/eviction", {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}})
    assert server.requests.mutating() == []
    assert len(server.requests.mutating(include_dry_run=True)) == 2
    stored = server.get("Pod", "default", "p")
    assert stored is not None
    assert "deletionTimestamp" not in stored["metadata"]


@pytest.mark.parametrize(("method", "path"), [("POST", MAPS), ("PATCH", DEPLOYMENT), ("DELETE", POD)])
def test_other_values_of_dry_run_are_refused(http: Http, method: str, path: str) -> None:
    """Only "All" is known; anything else is 422 and has no effect, as in the real server."""
    headers = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
    reply = http(method, path, configmap(), params={"dryRun": "Some"}, headers=headers)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert 'dryRun: Unsupported value: "Some": supported values: "All"' in reply.json()["message"]
