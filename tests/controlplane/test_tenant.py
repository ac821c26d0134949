"""What a tenant with `edit` rights writes to a real API server changes nothing of others, and stops no change."""

import pytest

from tests.controlplane.world import RealWorld
from tests.rightsizer.given import manifest

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]


@pytest.mark.parametrize(
    "name", ["../../{}/deployments/web", "web"], ids=["path", "name-of-another-namespace"]
)
def test_pod_that_claims_another_namespaces_owner_changes_nothing_there(world: RealWorld, name: str) -> None:
    """The API server keeps the reference; the protected Deployment stays as it is, with its own pod alone."""
    world.node()
    world.add("Deployment", "web", priorityClass="high-priority")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
    owner |= {"name": name.format(world.team), "uid": world.get("Deployment", "web")["metadata"]["uid"]}
    forger = f"{world.team}-forger"
    world.api.create("/api/v1/namespaces", {"metadata": {"name": forger}})
    given = {"priorityClass": "low-priority", "nodeSelector": world.labels}
    pod = manifest("Pod", forger, "claims", given)
    pod["metadata"]["ownerReferences"] = [owner]
    world.api.create(f"/api/v1/namespaces/{forger}/pods", pod)
    try:
        item = world.plan()["web"]
        assert (item["verdict"], item["action"], item["gpus"]) == ("protected", None, 1)
        world.apply()
        assert world.get("Deployment", "web")["spec"]["replicas"] == 1
        assert "../" not in world.run("plan", "-o", "json").out
    finally:
        world.api("DELETE", f"/api/v1/namespaces/{forger}")


_MOST = 1_572_864  # of etcd: bytes of a request
NAMES = ("full-a", "full-b", "full-c")


def test_object_too_large_for_etcd_opens_no_breaker(world: RealWorld) -> None:
    """The dry run passes, and etcd refuses what the record adds to it (500)."""
    world.node()
    for name in (*NAMES, "idle"):
        world.add("Deployment", name)
    first = _MOST
    for name in NAMES:
        containers = world.get("Deployment", name)["spec"]["template"]["spec"]["containers"]
        for size in range(first, _MOST - 10_000, -400):
            containers[0]["env"] = [{"name": "A", "value": "x" * size}]
            spec = {"paused": True, "template": {"spec": {"containers": containers}}}
            reply = world.api.patch(f"{world.collection('Deployment')}/{name}", {"spec": spec})
            if reply.status_code == 200:
                first = size
                break
    results = {name: item["result"] for name, item in world.apply().items()}
    assert results == {**dict.fromkeys(NAMES, "blocked"), "idle": "done"}
    assert "\nbreaker: closed\n" in world.run("breaker").out


def test_object_full_of_annotations_opens_no_breaker(world: RealWorld) -> None:
    """The API server refuses every write to it (422); the next workload is changed, and so is the one after."""
    world.node()
    for name in (*NAMES, "idle"):
        world.add("Deployment", name)
    annotations = {"metadata": {"annotations": {"a": "x" * ((256 << 10) - 64)}}}
    for name in NAMES:
        assert world.api.patch(f"{world.collection('Deployment')}/{name}", annotations).status_code == 200
    results = {name: item["result"] for name, item in world.apply().items()}
    assert results == {"full-a": "blocked", "full-b": "blocked", "full-c": "blocked", "idle": "done"}
    assert "\nbreaker: closed\n" in world.run("breaker").out
