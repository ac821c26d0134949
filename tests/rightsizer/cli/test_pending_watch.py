"""The watch for pods that wait for GPUs: each is found once, however often the watch begins again."""

import time
from collections.abc import Callable

import pytest

from rightsizer.cli import pending_watch
from rightsizer.cli.pending_watch import PendingWatch
from rightsizer.config import ClusterSettings
from rightsizer.errors import ClusterUnreachable
from rightsizer.kube.cluster import Cluster
from tests.rightsizer.world import World

URGENT = {"usage": "absent", "nodeSelector": {"pool": "nowhere"}, "age_h": 0}


def _wait(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _watches(world: World) -> int:
    return sum(request.path == "/api/v1/pods" for request in world.api.requests.all())


@pytest.mark.prometheus
def test_pending_watch_finds_each_pod_with_gpus_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were there before, and after the server ended the watch; others and placed ones are not."""
    monkeypatch.setattr(pending_watch, "LENGTH_S", 1.0)
    world.add("Pod", world.team, "before", URGENT)
    world.add("Pod", world.team, "cpu", {**URGENT, "gpus": 0})
    world.add("Pod", world.team, "placed", {"usage": "idle"})
    found: list[float] = []
    settings = ClusterSettings(world.write_kubeconfig())
    with PendingWatch(lambda: Cluster(settings), lambda: found.append(time.monotonic())):
        _wait(lambda: found)
        seen = _watches(world)
        _wait(lambda: _watches(world) >= seen + 3)
        assert len(found) == 1
        world.add("Pod", world.team, "after", URGENT)
        _wait(lambda: len(found) == 2)
        seen = _watches(world)
        _wait(lambda: _watches(world) >= seen + 2)
        assert len(found) == 2


@pytest.mark.prometheus
def test_pending_watch_goes_on_after_errors_and_says_each_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until the API server is there, and the right to watch."""
    monkeypatch.setattr(pending_watch, "_LONGEST_PAUSE_S", 0.1)
    world.add("Pod", world.team, "urgent", URGENT)
    settings, found, tries = ClusterSettings(world.write_kubeconfig()), list[bool](), list[bool]()

    def connect() -> Cluster:
        tries.append(True)
        if len(tries) <= 3:
            raise ClusterUnreachable("no answer")
        return Cluster(settings)

    with PendingWatch(connect, lambda: found.append(True)):
        _wait(lambda: found)
    told = [one.getMessage() for one in caplog.records if one.name == pending_watch.__name__]
    assert told == ["pending pods wait for the next scheduled cycle: no answer"]
