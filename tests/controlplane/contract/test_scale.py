"""The scale subresource of Deployments and StatefulSets."""

import pytest

from tests.controlplane.contract.objects import job, replicated
from tests.controlplane.contract.server import Api


@pytest.fixture(params=["deployments", "statefulsets", "replicasets"])
def path(api: Api, request: pytest.FixtureRequest) -> str:
    """The path of a workload with two running pods."""
    body = replicated(replicas=2)
    if request.param == "statefulsets":
        body["spec"]["serviceName"] = "w"
    api.create(f"{api.apps}/{request.param}", body)
    api.running(2)
    return f"{api.apps}/{request.param}/w"


def test_scale_has_spec_status_and_selector(api: Api, path: str) -> None:
    """As autoscaling/v1 Scale, with the workload's own metadata."""
    scale = api.eventually(lambda: api.get(f"{path}/scale"), lambda found: found["status"]["replicas"] == 2)
    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 2, "selector": "app=w"})
    assert scale["metadata"]["uid"] == api.get(path)["metadata"]["uid"]


def test_scale_of_zero_has_empty_spec(api: Api, path: str) -> None:
    """A Scale of zero replicas has an empty spec: absent means zero here, not one."""
    api.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    assert api.get(f"{path}/scale")["spec"] == {}
    assert api.get(path)["spec"]["replicas"] == 0
    api.running(0)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_scale_update_changes_replicas(api: Api, path: str, method: str) -> None:
    """Down to one: one pod goes, the other stays."""
    body = {"metadata": {"name": "w", "namespace": api.namespace}, "spec": {"replicas": 1}}
    headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
    reply = api(method, f"{path}/scale", body, headers=headers)
    assert (reply.status_code, reply.json()["spec"]) == (200, {"replicas": 1})
    assert api.get(path)["spec"]["replicas"] == 1
    api.running(1)


def test_scale_update_with_stale_version_is_409(api: Api, path: str) -> None:
    """The version that is checked is the workload's."""
    body = {
        "metadata": {"name": "w", "namespace": api.namespace, "resourceVersion": "1"},
        "spec": {"replicas": 1},
    }
    reply = api("PUT", f"{path}/scale", body)
    assert (reply.status_code, reply.json()["reason"]) == (409, "Conflict")
    assert api.get(path)["spec"]["replicas"] == 2


def test_scale_below_zero_is_422(api: Api, path: str) -> None:
    """422 with the field."""
    reply = api.patch(f"{path}/scale", {"spec": {"replicas": -1}})
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert reply.json()["details"]["causes"][0]["field"] == "spec.replicas"
    assert "must be greater than or equal to 0" in reply.json()["message"]


def test_scale_of_job_is_404(api: Api) -> None:
    """404: it is stopped by suspension."""
    api.create(f"{api.batch}/jobs", job(suspend=True))
    assert api("GET", f"{api.batch}/jobs/j/scale").status_code == 404
