"""Series of kube-state-metrics: ours are those that the real one writes of the same objects of a real API server."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import KUBE_STATE_METRICS, find, release
from simulator.kube_state import KINDS, exposition
from simulator.processes import Server
from tests.controlplane.world import RealWorld

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]

_Row = tuple[str, tuple[tuple[str, str], ...], float]
"""Name, labels and value of a series."""
_GPUS = {"nvidia.com/gpu": "2", "cpu": "500m", "memory": "1Gi"}
_LABELS = {"costCenter": "a", "app.kubernetes.io/partOf": "b", "x.y": "c", "x/y": "d"}


@pytest.fixture
def server(plane: ControlPlane, world: RealWorld, tmp_path: Path) -> Iterator[Server]:
    """The real one, of the team's namespace alone."""
    program = str(find((KUBE_STATE_METRICS,))[KUBE_STATE_METRICS.name])

    def command(port: int) -> list[str]:
        return [
            *(program, "--kubeconfig", str(plane.kubeconfig), "--host", "127.0.0.1", "--port", str(port)),
            *("--telemetry-host", "127.0.0.1", "--telemetry-port", "0", "--namespaces", world.team),
            *("--resources", "pods,replicasets,jobs", "--metric-labels-allowlist", "pods=[*]"),
        ]

    running = Server("kube-state-metrics", command, ready_path="/healthz", log=tmp_path / "state.log")
    running.start()
    yield running
    running.stop()


def _pod(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": _LABELS}, "spec": spec}


def _container(name: str, requests: Mapping[str, str], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"{name}:1",
        "resources": {"requests": requests, "limits": requests},
        **fields,
    }


def _rows(text: str) -> Iterator[_Row]:
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            yield one.name, tuple(sorted((k, v) for k, v in one.labels.items() if v)), one.value


def test_kube_state_series_are_those_of_the_real_one(world: RealWorld, server: Server) -> None:
    """Of pods that a Deployment, a CronJob's Job and nobody owns, with sidecars, MIG instances, claims and no node."""
    world.node(extra={"nvidia.com/mig-1g.10gb": "8"})
    world.create("Deployment", "web", replicas=2, gpus=1)
    world.create("Job", "train", gpus=4)
    core, select = f"{world.api.core}/pods", {"nodeSelector": world.labels}
    sidecar = _container("log", {"nvidia.com/mig-1g.10gb": "2"}, restartPolicy="Always")
    first = _container("first", _GPUS)
    world.api.create(
        core, _pod("alone", containers=[_container("main", _GPUS)], initContainers=[first, sidecar], **select)
    )
    claims = [
        {"name": "gpu", "resourceClaimName": "gpu-of-all"},
        {"name": "nic", "resourceClaimTemplateName": "nic"},
    ]
    world.api.create(
        core, _pod("claims", containers=[_container("main", {})], resourceClaims=claims, **select)
    )
    for name, count in (("web", 2), ("train", 1)):
        world.running(name, count)
    world.api.eventually(
        lambda: world.api.get(f"{core}/alone")["status"]["phase"], lambda phase: phase == "Running"
    )

    def told() -> tuple[set[_Row], set[_Row]]:
        """What only the real one and only ours says, of the metrics that ours has."""
        objects = {
            kind: world.api.items(re.sub("/([a-z]+)$", f"/namespaces/{world.team}/\\1", path))
            for kind, path in KINDS.items()
        }
        ours = set(_rows(exposition(objects)))
        names = {name for name, *_ in ours}
        assert {"kube_pod_resourceclaim_info", "kube_pod_init_container_resource_requests"} <= names
        real = {row for row in _rows(server.get("/metrics")[1]) if row[0] in names}
        return real - ours, ours - real

    world.api.eventually(told, lambda differing: not any(differing))


def test_kube_state_labels_are_in_snake_case(world: RealWorld, server: Server) -> None:
    """In lower case, too; where two keys become one, each has a suffix. No pod has them by default."""
    assert release("kube-state-metrics", "k8s.io/kube-state-metrics/v2").startswith("2.20.")
    world.api.create(f"{world.api.core}/pods", _pod("alone", containers=[_container("main", {})]))

    def labels() -> dict[str, str]:
        found = [dict(row[1]) for row in _rows(server.get("/metrics")[1]) if row[0] == "kube_pod_labels"]
        return {k: v for one in found for k, v in one.items() if k.startswith("label_")}

    written = world.api.eventually(labels, bool)
    conflicts = {written.pop(f"label_x_y_conflict{number}") for number in (1, 2)}
    assert conflicts == {"c", "d"}
    assert written == {"label_cost_center": "a", "label_app_kubernetes_io_part_of": "b"}
