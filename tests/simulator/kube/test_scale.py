"""The scale subresource of workloads."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, workload
from tests.simulator.kube.wire import Http, Official

KINDS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "ReplicaSet": "replicasets"}


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, server: ApiServer, nodes: list[Object]) -> str:
    """The scale of a workload of two replicas, of each kind."""
    assert nodes
    server.create(workload(request.param, replicas=2))
    server.settle()
    return f"/apis/apps/v1/namespaces/default/{KINDS[request.param]}/w/scale"


def test_a_scale_shows_replicas_and_selector(http: Http, path: str) -> None:
    """GET answers with autoscaling/v1."""
    scale = http("GET", path).json()
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": "app=w"}


def test_scaling_to_zero_and_back(server: ApiServer, http: Http, path: str) -> None:
    """PATCH changes the replicas and the pods follow; zero is left out of the Scale, as Go's omitempty does."""
    assert http.patch(path, {"spec": {"replicas": 0}}).json()["spec"] == {}
    server.settle()
    assert server.list("Pod") == []
    assert http.patch(path, {"spec": {"replicas": 2}}).json()["spec"] == {"replicas": 2}
    server.settle()
    assert len(server.list("Pod")) == 2


def test_a_scale_is_replaced_under_its_version(http: Http, path: str) -> None:
    """PUT with the current resourceVersion succeeds; the same again is 409."""
    scale = http("GET", path).json()
    scale["spec"]["replicas"] = 1
    assert http("PUT", path, scale).status_code == 200
    scale["spec"]["replicas"] = 3
    assert http("PUT", path, scale).json()["reason"] == "Conflict"


@pytest.mark.parametrize(("replicas", "code"), [(-1, 422), ("two", 400)])
def test_impossible_scales_are_refused(http: Http, path: str, replicas: object, code: int) -> None:
    """Negative replicas are invalid, text is not decoded."""
    assert http.patch(path, {"spec": {"replicas": replicas}}).status_code == code


def test_the_official_client_scales(server: ApiServer, apps: Official) -> None:
    """The typed client reads, replaces and patches a Scale."""
    server.create(workload("Deployment", replicas=3))
    server.settle()
    scale = apps.read_namespaced_deployment_scale("w", "default")
    scale.spec.replicas = 1
    assert apps.replace_namespaced_deployment_scale("w", "default", scale).spec.replicas == 1
    patched = apps.patch_namespaced_deployment_scale("w", "default", {"spec": {"replicas": 4}})
    assert patched.spec.replicas == 4
