"""What clients learn about the server before they ask for anything."""

import pytest
from kubernetes import client, dynamic

from tests.simulator.kube.wire import Http


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
def test_health_without_token_is_ok(http: Http, path: str) -> None:
    """Health endpoints answer ok to anybody."""
    reply = http("GET", path, headers={"Authorization": ""})
    assert (reply.status_code, reply.text) == (200, "ok")


def test_version_is_readable_by_official_client(api: client.ApiClient) -> None:
    """The official client reads /version."""
    assert client.VersionApi(api).get_code().git_version.startswith("v1.")


def test_discovery_lists_groups_resources_and_subresources(http: Http) -> None:
    """Each group has its versions, each version its resources with verbs and subresources."""
    groups = {entry["name"] for entry in http("GET", "/apis").json()["groups"]}
    assert {"apps", "batch", "policy", "scheduling.k8s.io", "coordination.k8s.io", "autoscaling"} <= groups
    resources = {entry["name"]: entry for entry in http("GET", "/apis/apps/v1").json()["resources"]}
    assert "patch" in resources["deployments"]["verbs"]
    assert resources["deployments/scale"]["kind"] == "Scale"
    pods = {entry["name"] for entry in http("GET", "/api/v1").json()["resources"]}
    assert {"pods", "pods/eviction", "pods/status"} <= pods
    assert http("GET", "/apis/apps").json()["preferredVersion"]["version"] == "v1"
    assert http("GET", "/api").json()["versions"] == ["v1"]


def test_discovery_suffices_for_dynamic_client(api: client.ApiClient) -> None:
    """Discovery is complete enough for the official dynamic client."""
    resource = dynamic.DynamicClient(api).resources.get(api_version="apps/v1", kind="StatefulSet")
    assert resource.get(namespace="default").items == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/apis/apps/v1/namespaces/default/deployments/x/scale"),
        ("PUT", "/api/v1/namespaces/default/pods"),
    ],
)
def test_unsupported_verb_is_405(http: Http, method: str, path: str) -> None:
    """A method that nothing answers to is 405."""
    reply = http(method, path, {})
    assert (reply.status_code, reply.json()["reason"]) == (405, "MethodNotAllowed")


def test_client_without_json_is_406(http: Http) -> None:
    """Who accepts only something else gets 406."""
    assert (
        http("GET", "/api/v1/pods", headers={"Accept": "application/vnd.kubernetes.protobuf"}).status_code
        == 406
    )
