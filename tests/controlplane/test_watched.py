"""Watched pods and nodes on a real API server are as it lists them."""

import contextlib
import time
from typing import Any

import pytest

from rightsizer.config import ClusterSettings
from rightsizer.inventory.cluster_reader import KEPT
from rightsizer.kube import watched
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import KeptObjects
from tests.controlplane.world import RealWorld

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]
PODS = "/api/v1/pods"


def _pods(kept: KeptObjects, cluster: Cluster) -> list[Any]:
    return kept.reduce(cluster, PODS, KEPT[PODS], list[Any], add=list[Any].extend)


def test_watched_pods_of_a_real_server_are_as_it_lists_them(
    world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were there, that came, and that went, also after a watch ended and began again."""
    monkeypatch.setattr(watched, "LENGTH_S", 3.0)
    settings = ClusterSettings(world.kubeconfig)
    world.node(gpus=4)
    world.add("Deployment", "before", gpus=1)
    found = list[int]()
    with (
        contextlib.closing(Cluster(settings)) as cluster,
        KeptObjects(KEPT, lambda: Cluster(settings), found.append, verified_every=1) as kept,
    ):
        names = [one.metadata.name for one in _pods(kept, cluster)]
        assert any(name.startswith("before-") for name in names)
        time.sleep(5)
        world.add("Deployment", "after", gpus=1)
        world.api("DELETE", f"{world.collection('Deployment')}/before")
        for _ in range(5):
            listed = _pods(kept, cluster)
            time.sleep(0.5)
        assert [one.metadata.name for one in listed if one.metadata.name.startswith("after-")]
    assert found == []
