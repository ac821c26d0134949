"""dryRun=All on every kind of write: the full answer, no effect."""

import pytest

from tests.controlplane.contract.objects import config_map, pod, replicated
from tests.controlplane.contract.server import Api, Object

ALL = {"dryRun": "All"}
SCALE = {"metadata": {"name": "w"}, "spec": {"replicas": 5}}


@pytest.fixture
def objects(api: Api) -> None:
    """A Deployment with its pod, and a pod of its own."""
    api.create(f"{api.apps}/deployments", replicated())
    api.create(f"{api.core}/pods", pod())
    api.running(2)
    # A Deployment is at rest once its controller has written what it has seen.
    api.eventually(lambda: api.get(f"{api.apps}/deployments/w")["status"].get("availableReplicas") == 1)


def _everything(api: Api) -> list[Object]:
    paths = (f"{api.apps}/deployments", f"{api.core}/pods", f"{api.core}/configmaps")
    return [obj for path in paths for obj in api.items(path)]


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        pytest.param("POST", "{core}/configmaps", config_map(), 201, id="create"),
        pytest.param("PUT", "{apps}/deployments/w/scale", SCALE, 200, id="scale"),
        pytest.param("DELETE", "{apps}/deployments/w", None, 200, id="delete"),
        pytest.param("DELETE", "{core}/pods/p", None, 200, id="delete-pod"),
        pytest.param("POST", "{core}/pods/p/eviction", {"metadata": {"name": "p"}}, 201, id="evict"),
        pytest.param("DELETE", "{core}/pods", None, 200, id="delete-collection"),
    ],
)  # fmt: skip
def test_dry_run_of_each_write_changes_nothing(
    api: Api, method: str, path: str, body: object, code: int
) -> None:
    """Each write answers as the real one would, and leaves every object as it was."""
    before = _everything(api)
    url = path.format(core=api.core, apps=api.apps)
    assert api(method, url, body, params=ALL).status_code == code
    assert _everything(api) == before


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize("kind", ["merge-patch", "strategic-merge-patch"])
def test_dry_run_patch_returns_result(api: Api, kind: str) -> None:
    """The answer is the object as it would be, under its old resourceVersion and a new generation."""
    path = f"{api.apps}/deployments/w"
    before = api.get(path)
    answer = api.patch(path, {"spec": {"replicas": 0}}, kind, params=ALL).json()
    assert answer["spec"]["replicas"] == 0
    assert answer["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert answer["metadata"]["generation"] == before["metadata"]["generation"] + 1
    assert api.get(path) == before


@pytest.mark.usefixtures("objects")
def test_dry_run_of_invalid_write_is_refused(api: Api) -> None:
    """Validation, conflicts, patch tests and names."""
    path = f"{api.apps}/deployments/w"
    assert api.patch(path, {"spec": {"replicas": -1}}, params=ALL).status_code == 422
    assert api.patch(path, {"metadata": {"resourceVersion": "1"}}, params=ALL).status_code == 409
    operation = [{"op": "test", "path": "/spec/replicas", "value": 9}]
    assert api.patch(path, operation, "json-patch", params=ALL).status_code == 422
    assert api("POST", f"{api.core}/configmaps", config_map("Bad"), params=ALL).status_code == 422


@pytest.mark.usefixtures("objects")
def test_dry_run_in_body_changes_nothing(api: Api) -> None:
    """DELETE and eviction take it among their options."""
    before = _everything(api)
    assert api("DELETE", f"{api.core}/pods/p", {"dryRun": ["All"]}).status_code == 200
    body = {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}}
    assert api("POST", f"{api.core}/pods/p/eviction", body).status_code == 201
    assert _everything(api) == before


@pytest.mark.usefixtures("objects")
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "{core}/configmaps"), ("PATCH", "{apps}/deployments/w"), ("DELETE", "{core}/pods/p")],
)
def test_dry_run_with_unknown_value_is_refused(api: Api, method: str, path: str) -> None:
    """Only "All" is known: a misspelt dry run must not become a real write."""
    before = _everything(api)
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    url = path.format(core=api.core, apps=api.apps)
    body = {"POST": config_map(), "PATCH": {}}.get(method)
    reply = api(method, url, body, params={"dryRun": "Some"}, headers=headers)
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert 'Unsupported value: ["Some"]: supported values: "All"' in reply.json()["message"]
    assert _everything(api) == before


@pytest.mark.usefixtures("objects")
def test_delete_body_without_dry_run_overrides_query(api: Api) -> None:
    """A trap: `?dryRun=All` beside a body without it deletes for good."""
    assert api("DELETE", f"{api.core}/pods/p", {}, params=ALL).status_code == 200
    api.eventually(lambda: api("GET", f"{api.core}/pods/p").status_code == 404)


def test_dry_run_of_a_pod_reads_the_deprecated_name_of_its_account(api: Api) -> None:
    """It counts where serviceAccountName is missing; the answer has both."""
    api.create(f"{api.core}/serviceaccounts", {"metadata": {"name": "admin"}})
    reply = api("POST", f"{api.core}/pods", pod(serviceAccount="admin"), params=ALL)
    spec = reply.json()["spec"]
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("admin", "admin")
