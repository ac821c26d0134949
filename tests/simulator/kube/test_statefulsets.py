"""StatefulSets: numbers and order."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import workload
from tests.simulator.kube.observing import OTHER_IMAGE, get, pods

pytestmark = pytest.mark.usefixtures("nodes")


def test_stateful_set_scale_down_waits_for_each_pod(server: ApiServer) -> None:
    """The next pod is deleted only when the one above it is gone."""
    server.create(workload("StatefulSet", replicas=3))
    server.settle()
    server.patch("Pod", "default", "w-2", {"metadata": {"finalizers": ["example.com/hold"]}})
    server.patch("StatefulSet", "default", "w", {"spec": {"replicas": 0}})
    server.settle()
    terminating = [
        entry["metadata"]["name"] for entry in pods(server) if "deletionTimestamp" in entry["metadata"]
    ]
    assert terminating == ["w-2"]
    server.patch("Pod", "default", "w-2", {"metadata": {"finalizers": None}})
    assert pods(server) == []


def test_stateful_set_with_new_template_rolls_from_highest(server: ApiServer) -> None:
    """All pods get the new template; with OnDelete only those that someone deletes."""
    server.create(workload("StatefulSet", replicas=2))
    server.create(workload("StatefulSet", "o", replicas=2, updateStrategy={"type": "OnDelete"}))
    server.settle()
    for name in ("w", "o"):
        server.patch(
            "StatefulSet", "default", name, {"spec": {"template": {"spec": {"containers": [OTHER_IMAGE]}}}}
        )
    server.settle()
    server.delete("Pod", "default", "o-1")
    images = {entry["metadata"]["name"]: entry["spec"]["containers"][0]["image"] for entry in pods(server)}
    assert images == {"w-0": "app:2", "w-1": "app:2", "o-0": "app:1", "o-1": "app:2"}
    status = get(server, "StatefulSet")["status"]
    assert status["currentRevision"] == status["updateRevision"]
