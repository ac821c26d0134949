"""The watch for pods that wait for GPUs: each is found once, however often the watch begins again."""

import contextlib
import dataclasses
import functools
import time

import pytest

from rightsizer.cli.pending_watch import PendingWatch
from rightsizer.config import ClusterSettings
from rightsizer.errors import ClusterUnreachable
from rightsizer.inventory.demand_kinds import DEMAND_KINDS
from rightsizer.kube import watched
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.owner_kinds import OwnerKind
from tests.rightsizer.world import World
from tests.waiting import wait_until

URGENT = {"usage": "absent", "gpus": 1000, "age_h": 0}


def _watches(world: World) -> int:
    return sum(request.path == "/api/v1/pods" for request in world.api.requests.all())


@pytest.mark.prometheus
def test_pending_watch_finds_each_pod_with_gpus_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were there before, and after the server ended the watch; others and placed ones are not."""
    monkeypatch.setattr(watched, "LENGTH_S", 1.0)
    world.add("Pod", world.team, "before", URGENT)
    world.add("Pod", world.team, "cpu", {**URGENT, "gpus": 0, "cpu": "9000"})
    world.add("Pod", world.team, "nowhere", {**URGENT, "gpus": 1, "nodeSelector": {"pool": "nowhere"}})
    world.add("Pod", world.team, "placed", {"usage": "idle"})
    found: list[float] = []
    settings = ClusterSettings(world.write_kubeconfig())
    with PendingWatch(lambda: Cluster(settings), lambda: found.append(time.monotonic())):
        wait_until(lambda: found)
        seen = _watches(world)
        wait_until(lambda: _watches(world) >= seen + 3)
        assert len(found) == 1
        world.add("Pod", world.team, "after", URGENT)
        wait_until(lambda: len(found) == 2)
        seen = _watches(world)
        wait_until(lambda: _watches(world) >= seen + 2)
        assert len(found) == 2


@pytest.mark.prometheus
def test_pending_watch_goes_on_after_errors_and_says_each_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the API server is there, and the right to watch."""
    monkeypatch.setattr(watched, "SHORTEST_PAUSE_S", 0.05)
    world.add("Pod", world.team, "urgent", URGENT)
    settings, found, tries = ClusterSettings(world.write_kubeconfig()), list[bool](), list[bool]()

    def connect() -> Cluster:
        tries.append(True)
        if len(tries) <= 3:
            raise ClusterUnreachable("no answer")
        return Cluster(settings)

    with PendingWatch(connect, lambda: found.append(True)):
        wait_until(lambda: found)
    told = [one.getMessage() for one in caplog.records if one.name == watched.__name__]
    assert told == ["pending pods wait for the next scheduled cycle: no answer"]


@pytest.mark.prometheus
def test_pending_watch_finds_a_pod_of_claims_as_soon_as_they_exist(world: World) -> None:
    """The scheduler gives up on it before the controller has made them: a cycle then would not know the demand."""
    world.add("Pod", world.team, "urgent", {**URGENT, "claim": "two", "nodeSelector": {"pool": "nowhere"}})
    found: list[bool] = []
    settings = ClusterSettings(world.write_kubeconfig())
    with PendingWatch(lambda: Cluster(settings), lambda: found.append(True)):
        wait_until(lambda: _watches(world))
        world.add("Pod", world.team, "after", URGENT)
        wait_until(lambda: found)
        assert len(found) == 1
        made = {"resourceClaimStatuses": [{"name": "gpus", "resourceClaimName": "urgent-gpus"}]}
        world.api.patch("Pod", world.team, "urgent", {"status": made}, subresource="status")
        wait_until(lambda: len(found) == 2)


QUEUED = {"type": "QuotaReserved", "status": "False", "reason": "Pending"}


@pytest.mark.prometheus
def test_pending_watch_of_a_queue_finds_each_object_that_begins_towait_until(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kueue's Workloads without quota, and PodGroups that Volcano holds back; not those that run."""
    monkeypatch.setattr(watched, "LENGTH_S", 1.0)
    found: list[str] = []
    settings = ClusterSettings(world.write_kubeconfig())

    def add(version: str, kind: str, name: str, status: object) -> None:
        metadata = {"name": name, "namespace": world.team}
        made = world.api.create({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {}})
        world.api.update({**made, "status": status}, subresource="status")

    world.namespace(world.team)
    with contextlib.ExitStack() as stack:
        for row in DEMAND_KINDS[1:]:
            told = functools.partial(found.append, row.of.kind)
            stack.enter_context(PendingWatch(lambda: Cluster(settings), told, row))
        add("kueue.x-k8s.io/v1beta2", "Workload", "runs", {"conditions": [{**QUEUED, "status": "True"}]})
        add("kueue.x-k8s.io/v1beta2", "Workload", "waits", {"conditions": [QUEUED]})
        wait_until(lambda: found == ["Workload"])
        add("scheduling.volcano.sh/v1beta1", "PodGroup", "runs", {"phase": "Running"})
        add("scheduling.volcano.sh/v1beta1", "PodGroup", "waits", {"phase": "Pending"})
        wait_until(lambda: found == ["Workload", "PodGroup"])
        seen = sum(request.path.endswith("/workloads") for request in world.api.requests.all())
        wait_until(
            lambda: sum(one.path.endswith("/workloads") for one in world.api.requests.all()) >= seen + 2
        )
        assert found == ["Workload", "PodGroup"]


@pytest.mark.prometheus
def test_pending_watch_of_a_kind_that_is_not_served_says_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Most clusters have no queue; its definition may come later."""
    monkeypatch.setattr(watched, "LENGTH_S", 0.1)
    nowhere = dataclasses.replace(
        DEMAND_KINDS[1], of=OwnerKind("queues.example.com", ("v1",), "Workload", "workloads")
    )
    settings, tries = ClusterSettings(world.write_kubeconfig()), list[bool]()

    def connect() -> Cluster:
        tries.append(True)
        return Cluster(settings)

    with PendingWatch(connect, lambda: None, nowhere):
        wait_until(lambda: len(tries) >= 2)
    assert not [one for one in caplog.records if one.name == watched.__name__]
