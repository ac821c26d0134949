"""What becomes of workloads: pods, statuses, owners, namespaces."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, configmap, names, node, pod, pod_spec, workload
from tests.simulator.kube.wire import Clock

SIDE = {"name": "main", "image": "app:2"}


def get(server: ApiServer, kind: str, name: str = "w") -> Object:
    """An object of "default"."""
    stored = server.get(kind, "default", name)
    assert stored is not None, f"{kind} {name} is missing"
    return stored


def pods(server: ApiServer) -> list[Object]:
    """All pods, once nothing moves."""
    server.settle()
    return server.list("Pod")


@pytest.mark.usefixtures("nodes")
class TestDeployments:
    def test_pods_come_and_run(self, server: ApiServer) -> None:
        """A Deployment gets a ReplicaSet, which gets pods, which run; each says so in its status."""
        server.create(workload("Deployment", replicas=3))
        running = pods(server)
        [replica_set] = server.list("ReplicaSet")
        assert {entry["status"]["phase"] for entry in running} == {"Running"}
        assert all(
            entry["metadata"]["ownerReferences"][0]["uid"] == replica_set["metadata"]["uid"]
            for entry in running
        )
        assert replica_set["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
        status = get(server, "Deployment")["status"]
        counts = {"replicas": 3, "readyReplicas": 3, "updatedReplicas": 3, "availableReplicas": 3}
        assert counts.items() <= status.items()
        assert status["observedGeneration"] == 1
        assert "unavailableReplicas" not in status

    def test_zero_is_left_out_of_the_status(self, server: ApiServer) -> None:
        """At zero replicas the counts vanish from a Deployment's status, as Go's omitempty makes them."""
        server.create(workload("Deployment", replicas=2))
        server.settle()
        server.patch("Deployment", "default", "w", {"spec": {"replicas": 0}})
        assert pods(server) == []
        status = get(server, "Deployment")["status"]
        assert status["observedGeneration"] == 2
        assert not {"replicas", "readyReplicas", "availableReplicas"} & status.keys()

    def test_an_evicted_pod_is_replaced(self, server: ApiServer) -> None:
        """A deleted pod comes back under another name."""
        server.create(workload("Deployment", replicas=1))
        [first] = pods(server)
        server.delete("Pod", "default", first["metadata"]["name"])
        [second] = pods(server)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]

    @pytest.mark.parametrize("strategy", ["RollingUpdate", "Recreate"])
    def test_a_new_template_replaces_all_pods(self, server: ApiServer, strategy: str) -> None:
        """After a rollout only the new template's pods run; the old ReplicaSet stays at zero, numbered lower."""
        server.create(workload("Deployment", replicas=4, strategy={"type": strategy}))
        server.settle()
        server.patch("Deployment", "default", "w", {"spec": {"template": {"spec": {"containers": [SIDE]}}}})
        assert [entry["spec"]["containers"][0]["image"] for entry in pods(server)] == ["app:2"] * 4
        by_revision = {
            entry["metadata"]["annotations"]["deployment.kubernetes.io/revision"]: entry["spec"]["replicas"]
            for entry in server.list("ReplicaSet")
        }
        assert by_revision == {"1": 0, "2": 4}
        deployment = get(server, "Deployment")
        assert deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
        assert deployment["metadata"]["generation"] == deployment["status"]["observedGeneration"] == 2

    def test_an_old_template_takes_its_replica_set_back(self, server: ApiServer) -> None:
        """Rolling back makes no third ReplicaSet; the first becomes the newest."""
        server.create(workload("Deployment", replicas=1))
        server.settle()
        before = get(server, "Deployment")["spec"]["template"]
        server.patch("Deployment", "default", "w", {"spec": {"template": {"spec": {"containers": [SIDE]}}}})
        server.settle()
        server.patch("Deployment", "default", "w", {"spec": {"template": before}})
        assert [entry["spec"]["containers"][0]["image"] for entry in pods(server)] == ["app:1"]
        assert len(server.list("ReplicaSet")) == 2
        annotations = get(server, "Deployment")["metadata"]["annotations"]
        assert annotations["deployment.kubernetes.io/revision"] == "3"

    def test_a_rollout_without_room_waits(self, server: ApiServer) -> None:
        """With all GPUs taken, the surge pods stay pending and enough old ones keep running."""
        server.create(workload("Deployment", replicas=16))
        server.settle()
        template = {"spec": {"containers": [{**SIDE, "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}}
        server.patch("Deployment", "default", "w", {"spec": {"template": template}})
        images = [entry["spec"]["containers"][0]["image"] for entry in pods(server)]
        running = [entry for entry in pods(server) if entry["status"]["phase"] == "Running"]
        assert images.count("app:1") == 12, "a quarter of sixteen may be unavailable"
        assert len(running) == 12


@pytest.mark.usefixtures("nodes")
class TestReplicaSets:
    def test_the_cheapest_pods_go_first(self, server: ApiServer) -> None:
        """On scale-down, pods with the lowest pod-deletion-cost go."""
        server.create(workload("ReplicaSet", replicas=4))
        all_names = names(pods(server))
        idle = sorted(all_names)[1:3]
        for name in idle:
            cost = {"controller.kubernetes.io/pod-deletion-cost": "-100"}
            server.patch("Pod", "default", name, {"metadata": {"annotations": cost}})
        server.patch("ReplicaSet", "default", "w", {"spec": {"replicas": 2}})
        assert set(names(pods(server))) == set(all_names) - set(idle)

    def test_unscheduled_pods_go_before_running_ones(self, server: ApiServer) -> None:
        """What does not run is given up first."""
        server.create(workload("ReplicaSet", replicas=18))
        running = {
            entry["metadata"]["name"] for entry in pods(server) if entry["status"]["phase"] == "Running"
        }
        server.patch("ReplicaSet", "default", "w", {"spec": {"replicas": 16}})
        assert set(names(pods(server))) == running

    def test_orphans_are_adopted(self, server: ApiServer) -> None:
        """A pod without controller that the selector matches counts as a replica."""
        server.create(pod("stray", labels={"app": "w"}))
        server.settle()
        server.create(workload("ReplicaSet", replicas=2))
        assert "stray" in names(pods(server))
        assert len(server.list("Pod")) == 2

    def test_an_admission_failure_shows_and_heals(self, server: ApiServer) -> None:
        """Pods of an unknown class are not created, the status says why, and they come once the class exists."""
        server.create(workload("Deployment", replicas=2, pod=pod_spec(priorityClassName="late")))
        assert pods(server) == []
        [replica_set] = server.list("ReplicaSet")
        [failure] = replica_set["status"]["conditions"]
        assert (failure["type"], failure["reason"]) == ("ReplicaFailure", "FailedCreate")
        assert "no PriorityClass with name late was found" in failure["message"]
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "late"}}
        server.create({**kind, "value": 7})
        assert [entry["spec"]["priority"] for entry in pods(server)] == [7, 7]


@pytest.mark.usefixtures("nodes")
class TestStatefulSets:
    @pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
    def test_pods_are_numbered(self, server: ApiServer, policy: str) -> None:
        """Pods w-0, w-1, … come up, and the highest go first."""
        server.create(workload("StatefulSet", replicas=3, podManagementPolicy=policy))
        assert names(pods(server)) == ["w-0", "w-1", "w-2"]
        server.patch("StatefulSet", "default", "w", {"spec": {"replicas": 1}})
        assert names(pods(server)) == ["w-0"]
        status = get(server, "StatefulSet")["status"]
        assert (status["replicas"], status["readyReplicas"], status["availableReplicas"]) == (1, 1, 1)

    def test_order_waits_for_readiness(self, server: ApiServer) -> None:
        """While w-0 cannot run, w-1 is not made; in parallel both are."""
        nowhere = pod_spec(nodeSelector={"no": "where"})
        server.create(workload("StatefulSet", "w", replicas=2, pod=nowhere))
        server.create(workload("StatefulSet", "p", replicas=2, pod=nowhere, podManagementPolicy="Parallel"))
        assert names(pods(server)) == ["p-0", "p-1", "w-0"]

    def test_going_down_waits_for_each_pod_to_end(self, server: ApiServer) -> None:
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

    def test_a_new_template_rolls_from_the_top(self, server: ApiServer) -> None:
        """All pods get the new template; with OnDelete only those that someone deletes."""
        server.create(workload("StatefulSet", replicas=2))
        server.create(workload("StatefulSet", "o", replicas=2, updateStrategy={"type": "OnDelete"}))
        server.settle()
        for name in ("w", "o"):
            server.patch(
                "StatefulSet", "default", name, {"spec": {"template": {"spec": {"containers": [SIDE]}}}}
            )
        server.settle()
        server.delete("Pod", "default", "o-1")
        images = {
            entry["metadata"]["name"]: entry["spec"]["containers"][0]["image"] for entry in pods(server)
        }
        assert images == {"w-0": "app:2", "w-1": "app:2", "o-0": "app:1", "o-1": "app:2"}
        status = get(server, "StatefulSet")["status"]
        assert status["currentRevision"] == status["updateRevision"]

    def test_a_pod_is_reborn_under_its_name(self, server: ApiServer) -> None:
        """A deleted pod comes back with the same name and another UID."""
        server.create(workload("StatefulSet", replicas=1))
        [first] = pods(server)
        server.delete("Pod", "default", "w-0")
        [second] = pods(server)
        assert second["metadata"]["name"] == "w-0"
        assert second["metadata"]["uid"] != first["metadata"]["uid"]


class TestLifecycle:
    def test_a_bound_pod_starts(self, server: ApiServer, clock: Clock, nodes: list[Object]) -> None:
        """Start time, conditions and container states carry the server's clock."""
        clock.forward(-3600)
        server.create(pod())
        [running] = pods(server)
        assert running["spec"]["nodeName"] in names(nodes)
        assert running["metadata"]["creationTimestamp"] == "2026-11-20T11:00:00Z"
        assert running["status"]["startTime"] == "2026-11-20T11:00:00Z"
        [container] = running["status"]["containerStatuses"]
        assert container["ready"]
        assert container["state"] == {"running": {"startedAt": "2026-11-20T11:00:00Z"}}
        assert {"Ready", "PodScheduled"} <= {entry["type"] for entry in running["status"]["conditions"]}

    @pytest.mark.usefixtures("nodes")
    def test_a_deleted_pod_holds_its_node_until_it_is_gone(self, server: ApiServer) -> None:
        """A running pod gets a deletion timestamp with its grace, and its GPU is taken until it vanishes."""
        server.create(pod("a", gpus=8))
        server.create(pod("b", gpus=8))
        server.settle()
        server.patch("Pod", "default", "a", {"metadata": {"finalizers": ["example.com/hold"]}})
        server.create(pod("c", gpus=8))
        server.delete("Pod", "default", "a")
        server.settle()
        assert get(server, "Pod", "a")["metadata"]["deletionGracePeriodSeconds"] in {0, 30}
        assert get(server, "Pod", "c")["status"]["phase"] == "Pending"
        server.patch("Pod", "default", "a", {"metadata": {"finalizers": None}})
        server.settle()
        assert get(server, "Pod", "c")["status"]["phase"] == "Running"

    def test_an_unscheduled_pod_goes_at_once(self, server: ApiServer) -> None:
        """A pod without a node has nothing to end."""
        server.create(pod())
        server.settle()
        server.delete("Pod", "default", "p")
        assert server.get("Pod", "default", "p") is None

    def test_nodes_become_ready(self, server: ApiServer) -> None:
        """A node that says nothing of itself gets a Ready condition."""
        server.create(node("n"))
        server.settle()
        stored = server.get("Node", None, "n")
        assert stored is not None
        assert stored["status"]["conditions"][0]["type"] == "Ready"


@pytest.mark.usefixtures("nodes")
class TestOwnership:
    def test_dependents_follow_their_owner(self, server: ApiServer) -> None:
        """Deleting a Deployment takes its ReplicaSet and its pods along."""
        server.create(workload("Deployment", replicas=2))
        server.settle()
        server.delete("Deployment", "default", "w")
        assert pods(server) == []
        assert server.list("ReplicaSet") == []

    def test_orphaned_dependents_stay(self, server: ApiServer) -> None:
        """With the policy Orphan the ReplicaSet stays, runs on, and has no owner."""
        server.create(workload("Deployment", replicas=2))
        server.settle()
        server.delete("Deployment", "default", "w", policy="Orphan")
        assert len(pods(server)) == 2
        [replica_set] = server.list("ReplicaSet")
        assert "ownerReferences" not in replica_set["metadata"]
        assert server.list("Deployment") == []

    def test_in_the_foreground_the_owner_goes_last(self, server: ApiServer) -> None:
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

    def test_a_child_of_nobody_is_collected(self, server: ApiServer) -> None:
        """An object whose owner's UID does not exist is deleted."""
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}
        server.create(configmap(ownerReferences=[owner]))
        server.settle()
        assert server.list("ConfigMap") == []

    def test_a_deleted_namespace_is_emptied(self, server: ApiServer) -> None:
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


def test_a_thousand_pods_come_in_seconds(server: ApiServer) -> None:
    """A large Deployment settles within ten seconds, and goes as fast."""
    for index in range(10):
        server.create(node(f"big-{index}", gpus=110))
    server.create(workload("Deployment", replicas=1000))
    server.settle(10)
    assert sum(entry["status"]["phase"] == "Running" for entry in server.list("Pod")) == 1000
    server.delete("Deployment", "default", "w")
    server.settle(10)
    assert server.list("Pod") == []


def test_settling_gives_up_in_time(server: ApiServer) -> None:
    """What does not settle raises TimeoutError that names it."""
    with ApiServer(termination_delay_s=60) as slow:
        slow.create(node("n"))
        slow.create(pod())
        slow.settle()
        slow.delete("Pod", "default", "p")
        with pytest.raises(TimeoutError, match=r"Kubelet \('default', 'p'"):
            slow.settle(0.05)
    server.settle()
