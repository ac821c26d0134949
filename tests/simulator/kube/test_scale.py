"""The scale subresource of workloads."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, workload
from tests.simulator.kube.wire import Official

KINDS = {"Deployment": "deployments", "StatefulSet": "statefulsets", "ReplicaSet": "replicasets"}


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, server: ApiServer, nodes: list[Object]) -> str:
    """The scale of a workload of two replicas, of each kind."""
    assert nodes
    server.create(workload(request.param, replicas=2))
    server.settle()
    return f"/apis/apps/v1/namespaces/default/{KINDS[request.param]}/w/scale"


def test_scale_by_official_client_changes_replicas(server: ApiServer, apps: Official) -> None:
    """The typed client reads, replaces and patches a Scale."""
    server.create(workload("Deployment", replicas=3))
    server.settle()
    scale = apps.read_namespaced_deployment_scale("w", "default")
    scale.spec.replicas = 1
    assert apps.replace_namespaced_deployment_scale("w", "default", scale).spec.replicas == 1
    patched = apps.patch_namespaced_deployment_scale("w", "default", {"spec": {"replicas": 4}})
    assert patched.spec.replicas == 4
