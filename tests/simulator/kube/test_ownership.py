"""What becomes of dependents, and of what is in a namespace."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import configmap, workload
from tests.simulator.kube.observing import get

pytestmark = pytest.mark.usefixtures("nodes")


def test_foreground_deletion_removes_owner_last(server: ApiServer) -> None:
    """With the policy Foreground a Deployment waits until its ReplicaSet is gone."""
    server.create(workload("Deployment", replicas=1))
    server.settle()
    [replica_set] = server.list("ReplicaSet")
    name = replica_set["metadata"]["name"]
    server.patch("ReplicaSet", "default", name, {"metadata": {"finalizers": ["example.com/hold"]}})
    server.delete("Deployment", "default", "w", policy="Foreground")
    server.settle()
    assert "deletionTimestamp" in get(server, "Deployment")["metadata"]
    server.patch("ReplicaSet", "default", name, {"metadata": {"finalizers": None}})
    server.settle()
    assert server.list("Deployment") == server.list("ReplicaSet") == server.list("Pod") == []


def test_object_with_missing_owner_is_collected(server: ApiServer) -> None:
    """An object whose owner's UID does not exist is deleted."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}
    server.create(configmap(ownerReferences=[owner]))
    server.settle()
    assert server.list("ConfigMap") == []


def test_deleted_namespace_is_emptied(server: ApiServer) -> None:
    """A namespace goes with all that is in it."""
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    deployment = workload("Deployment", replicas=2)
    deployment["metadata"]["namespace"] = "team"
    server.create(deployment)
    server.settle()
    server.delete("Namespace", None, "team")
    server.settle()
    assert server.get("Namespace", None, "team") is None
    assert server.list("Pod") == server.list("Deployment") == []
