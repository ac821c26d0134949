"""Deployments and StatefulSets: to zero and back, and in what order."""

from tests.controlplane.contract.objects import names, replicated
from tests.controlplane.contract.server import Api


def test_deployment_scaled_to_zero_and_back_keeps_its_replica_set(api: Api) -> None:
    """To zero and back: the same ReplicaSet and template hash, other pods."""
    path = f"{api.apps}/deployments"
    api.create(path, replicated(replicas=2))
    before = api.running(2)
    (owner,) = api.items(f"{api.apps}/replicasets")
    api.patch(f"{path}/w", {"spec": {"replicas": 0}})
    api.running(0)
    api.patch(f"{path}/w", {"spec": {"replicas": 2}})
    after = api.running(2)
    assert names(api.items(f"{api.apps}/replicasets")) == names([owner])
    assert not set(names(before)) & set(names(after))
    hashes = {pod["metadata"]["labels"]["pod-template-hash"] for pod in before + after}
    assert hashes == {owner["metadata"]["labels"]["pod-template-hash"]}


def test_owner_references_lead_from_pod_to_deployment(api: Api) -> None:
    """Pod → ReplicaSet → Deployment, each the controller of the next, by UID."""
    made = api.create(f"{api.apps}/deployments", replicated())
    (pod,) = api.running(1)
    (middle,) = pod["metadata"]["ownerReferences"]
    assert (middle["apiVersion"], middle["kind"], middle["controller"]) == ("apps/v1", "ReplicaSet", True)
    (top,) = api.get(f"{api.apps}/replicasets/{middle['name']}")["metadata"]["ownerReferences"]
    assert (top["kind"], top["name"], top["uid"]) == ("Deployment", "w", made["metadata"]["uid"])
    assert top["controller"] is True


def test_deployment_status_follows_generation(api: Api) -> None:
    """Its observedGeneration follows generation; replicas that are none are absent from the status."""
    path = f"{api.apps}/deployments/w"
    api.create(f"{api.apps}/deployments", replicated(replicas=2))
    api.running(2)
    changed = api.patch(path, {"spec": {"replicas": 0}}).json()
    seen = api.eventually(
        lambda: api.get(path),
        lambda found: (
            found["status"]["observedGeneration"] == changed["metadata"]["generation"]
            and "replicas" not in found["status"]
        ),
    )
    assert "readyReplicas" not in seen["status"]


def test_deployment_with_new_template_gets_new_replica_set(api: Api) -> None:
    """A changed template rolls over to new pods of another hash."""
    api.create(f"{api.apps}/deployments", replicated())
    (before,) = api.running(1)
    patch = {"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}}
    api.patch(f"{api.apps}/deployments/w", patch)
    key = "pod-template-hash"
    api.eventually(
        lambda: [pod["metadata"]["labels"][key] for pod in api.pods()],
        lambda found: len(found) == 1 and found[0] != before["metadata"]["labels"][key],
    )
    assert len(api.items(f"{api.apps}/replicasets")) == 2


def test_stateful_set_starts_in_order_and_scales_down_from_highest(api: Api) -> None:
    """w-0 before w-1; scaled down, the highest ordinal goes."""
    api.create(f"{api.apps}/statefulsets", replicated(replicas=3, serviceName="w"))
    pods = api.running(3)
    assert names(pods) == ["w-0", "w-1", "w-2"]
    starts = [pod["status"]["startTime"] for pod in pods]
    assert starts == sorted(starts)
    created = [int(pod["metadata"]["creationTimestamp"][-3:-1]) for pod in pods]
    assert len(created) == 3
    api.patch(f"{api.apps}/statefulsets/w", {"spec": {"replicas": 1}})
    assert names(api.running(1)) == ["w-0"]


def test_stateful_set_waits_for_previous_pod(api: Api) -> None:
    """Where w-0 finds no node there is no w-1; under the Parallel policy there is."""
    nowhere = {"containers": [{"name": "main", "image": "x"}], "nodeSelector": {"nowhere": "yes"}}
    ordered = replicated("ordered", 3, pod=nowhere, serviceName="w")
    parallel = replicated("parallel", 3, pod=nowhere, serviceName="w", podManagementPolicy="Parallel")
    for body in (ordered, parallel):
        api.create(f"{api.apps}/statefulsets", body)
    api.eventually(lambda: len(api.pods()) == 4)
    assert names(api.pods()) == ["ordered-0", "parallel-0", "parallel-1", "parallel-2"]


def test_stateful_set_scaled_to_zero_and_back_keeps_names(api: Api) -> None:
    """To zero and back: the same names, other UIDs."""
    path = f"{api.apps}/statefulsets/w"
    api.create(f"{api.apps}/statefulsets", replicated(replicas=2, serviceName="w"))
    before = api.running(2)
    api.patch(path, {"spec": {"replicas": 0}})
    api.running(0)
    api.patch(path, {"spec": {"replicas": 2}})
    after = api.running(2)
    assert names(after) == names(before)
    assert not {pod["metadata"]["uid"] for pod in after} & {pod["metadata"]["uid"] for pod in before}


def test_stateful_set_pods_have_owner_and_labels(api: Api) -> None:
    """And carry their own name and ordinal as labels."""
    api.create(f"{api.apps}/statefulsets", replicated(serviceName="w"))
    (pod,) = api.running(1)
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("StatefulSet", "w", True)
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "w-0"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"


def test_deleted_owner_takes_dependents_unless_orphaned(api: Api) -> None:
    """Deployments, ReplicaSets and pods go; with Orphan the ReplicaSet stays."""
    for name in ("w", "kept"):
        api.create(f"{api.apps}/deployments", replicated(name))
    api.running(2)
    api("DELETE", f"{api.apps}/deployments/w")
    api("DELETE", f"{api.apps}/deployments/kept", {"propagationPolicy": "Orphan"})
    (left,) = api.running(1)
    assert left["metadata"]["labels"]["app"] == "kept"
    (owner,) = api.items(f"{api.apps}/replicasets")
    assert "ownerReferences" not in owner["metadata"]
