"""The exporter on a real node: whose GPUs it says which are, and whose use."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from simulator.realnode.deviceplugin import VISIBLE_DEVICES
from tests.node.cluster import Cluster, Object, container, gpus, pod
from tests.node.exporting import Exporter
from tests.node.gpus import MIG, OFFERED, SHARED, WHOLE, Gpus
from tests.waiting import wait_until

pytestmark = [pytest.mark.node, pytest.mark.helm, pytest.mark.driver]

_LONGEST = ".".join(["n" * 63] * 3)


def _with(extra: dict[str, str], count: int = 1) -> Object:
    resources = {**gpus(count)["limits"], **extra}
    return {"limits": resources}


_BURSTABLE = {**gpus(), "requests": {"cpu": "10m"}}
_GUARANTEED = _with({"cpu": "10m", "memory": "16Mi"})
_SIDECAR = container("helper", resources=gpus(), restartPolicy="Always")
_SETUP = container("setup", "/bin/sleep", "1", resources=gpus())

CASES: dict[str, tuple[Object, list[tuple[str, str]]]] = {
    "best-effort": (pod("a", container(resources=gpus())), [("a", "main")]),
    "burstable": (pod("a", container(resources=_BURSTABLE)), [("a", "main")]),
    "guaranteed": (pod("a", container(resources=_GUARANTEED)), [("a", "main")]),
    "two-gpus": (pod("a", container(resources=gpus(2))), [("a", "main")] * 2),
    "two-containers": (
        pod("a", container("left", resources=gpus()), container("right", resources=gpus())),
        [("a", "left"), ("a", "right")],
    ),
    "one-of-two-containers": (pod("a", container(), container("gpu", resources=gpus())), [("a", "gpu")]),
    "no-gpu": (pod("a"), []),
    "sidecar": (pod("a", container(), initContainers=[_SIDECAR]), [("a", "helper")]),
    "after-init-container": (pod("a", container(), initContainers=[_SETUP]), []),
    "init-container-leaves-its-gpu-to-main": (
        pod("a", container(resources=gpus()), initContainers=[_SETUP]),
        [("a", "main")],
    ),
    "shared": (pod("a", container(resources=gpus(1, SHARED))), [("a", "main")]),
    "mig": (pod("a", container(resources=gpus(1, MIG))), [("a", "main")]),
    "long-names": (
        pod(_LONGEST, container("c" * 30, resources=gpus())),
        [(_LONGEST, "c" * 30)],
    ),
    "host-network": (pod("a", container(resources=gpus()), hostNetwork=True), [("a", "main")]),
    "host-pid": (pod("a", container(resources=gpus()), hostPID=True), [("a", "main")]),
    "one-process-namespace": (
        pod("a", container(resources=gpus()), container("other"), shareProcessNamespace=True),
        [("a", "main")],
    ),
    "non-root": (
        pod("a", container(resources=gpus(), securityContext={"runAsUser": 1000})),
        [("a", "main")],
    ),
}


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES)
def test_labels_of_real_pod_name_its_containers(
    cluster: Cluster, exporter: Exporter, body: Object, expected: list[tuple[str, str]]
) -> None:
    """Labels of the GPUs and the measured use of processes agree on what each container sees; both end with the pod."""
    created = cluster.run(body)
    metrics = ("DCGM_FI_DEV_FB_USED", "gpu_pod_memory_used_bytes")

    def found() -> list[list[tuple[str, str]]]:
        return [exporter.holders(cluster.namespace, metric) for metric in metrics]

    _eventually(found, [expected, expected])
    seen = _seen(cluster, created)
    assert [exporter.devices(cluster.namespace, metric) for metric in metrics] == [seen, seen]
    cluster.delete(body["metadata"]["name"])
    _eventually(found, [[], []])


def _seen(cluster: Cluster, created: Object) -> list[tuple[str, str]]:
    """The devices that the device plugin told each running container, by their UUID."""
    found = []
    for name, processes in cluster.processes(created).items():
        entries = (cluster.node.root / "proc" / str(processes[0]) / "environ").read_text().split("\0")
        for entry in entries:
            if entry.startswith(f"{VISIBLE_DEVICES}="):
                found += [(name, uuid) for uuid in entry.partition("=")[2].split(",")]
    return sorted(found)


def _eventually(look: Any, expected: Any) -> None:
    deadline = time.monotonic() + 15
    while (found := look()) != expected:
        assert time.monotonic() < deadline, f"{found} instead of {expected}"
        time.sleep(0.2)


def test_running_init_container_makes_its_gpu_allocated(cluster: Cluster, exporter: Exporter) -> None:
    """The kubelet does not list it; its process shows that the GPU is not free, and whose it is."""
    setup = container("setup", "/bin/sleep", "1000", resources=gpus())
    cluster.run(pod("a", container(), initContainers=[setup]), phase="Pending")
    _eventually(lambda: exporter.holders(cluster.namespace, "gpu_pod_memory_used_bytes"), [("a", "setup")])
    assert sum(exporter.values("gpu_allocated").values()) == 1


def test_container_whose_link_to_its_log_lacks_its_id_is_unnamed(
    cluster: Cluster, exporter: Exporter
) -> None:
    """The kubelet cuts the link's name at the end of the container's; what the kubelet lists keeps its name."""
    cluster.run(pod(_LONGEST, container("c" * 63, resources=gpus())))
    _eventually(lambda: exporter.holders(cluster.namespace, "gpu_pod_memory_used_bytes"), [(_LONGEST, "")])
    assert exporter.holders(cluster.namespace) == [(_LONGEST, "c" * 63)]


def test_static_pod_has_its_labels(cluster: Cluster, exporter: Exporter) -> None:
    """Its UID is a hash, in its cgroup and in the kubelet's folders of logs."""
    body = {"apiVersion": "v1", "kind": "Pod", **pod("s", container(resources=gpus()))}
    body["metadata"]["namespace"] = cluster.namespace
    path = cluster.node.directory / "manifests" / "s.yaml"
    path.write_text(yaml.safe_dump(body))
    try:
        for metric in ("DCGM_FI_DEV_FB_USED", "gpu_pod_memory_used_bytes"):
            _eventually(
                lambda metric=metric: exporter.holders(cluster.namespace, metric), [("s-real-node", "main")]
            )
    finally:
        path.unlink()
    _eventually(lambda: exporter.holders(cluster.namespace), [])


def test_ephemeral_container_on_gpu_is_named(cluster: Cluster, exporter: Exporter) -> None:
    """A debugging container that sees the GPU of its pod by its environment uses it in its own name."""
    created = cluster.run(pod("a", container(resources=gpus())))
    (process,) = cluster.processes(created)["main"]
    environment = (cluster.node.root / "proc" / str(process) / "environ").read_text()
    value = environment.partition("NVIDIA_VISIBLE_DEVICES=")[2].partition("\0")[0]
    cluster.debug("a", container("debug", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]))
    _eventually(
        lambda: exporter.holders(cluster.namespace, "gpu_pod_memory_used_bytes"),
        [("a", "debug"), ("a", "main")],
    )
    assert exporter.holders(cluster.namespace) == [("a", "main")]


def test_restarted_container_keeps_its_labels(cluster: Cluster, exporter: Exporter) -> None:
    """Another id of the container, another process; the same pod."""
    created = cluster.run(pod("a", container(resources=gpus())))
    before = cluster.processes(created)
    cluster.kill(created, "main")
    wait_until(lambda: cluster.get("a")["status"]["containerStatuses"][0]["restartCount"] == 1)
    wait_until(lambda: cluster.processes(cluster.get("a")).get("main") not in (None, before["main"]))
    _eventually(lambda: exporter.holders(cluster.namespace, "gpu_pod_memory_used_bytes"), [("a", "main")])
    assert exporter.holders(cluster.namespace) == [("a", "main")]


def test_pods_of_one_name_are_told_apart_by_namespace(cluster: Cluster, exporter: Exporter) -> None:
    """Each has its own GPU."""
    with Cluster(cluster.node) as other:
        for team in (cluster, other):
            team.run(pod("a", container(resources=gpus())))
        for team in (cluster, other):
            for metric in ("DCGM_FI_DEV_FB_USED", "gpu_pod_memory_used_bytes"):
                _eventually(
                    lambda team=team, metric=metric: exporter.holders(team.namespace, metric), [("a", "main")]
                )


def test_recreated_pod_of_same_name_gets_its_own_use(cluster: Cluster, exporter: Exporter) -> None:
    """As the next pod of a StatefulSet does."""
    for _ in range(2):
        cluster.run(pod("a", container(resources=gpus())))
        _eventually(lambda: exporter.holders(cluster.namespace, "gpu_pod_memory_used_bytes"), [("a", "main")])
        cluster.delete("a")


def test_pods_on_replicas_of_one_gpu_both_have_their_use(cluster: Cluster, exporter: Exporter) -> None:
    """The plugin's ids GPU-uuid::n lead to one GPU, the processes to the pods."""
    for name in ("a", "b", "c"):
        cluster.run(pod(name, container(resources=gpus(1, SHARED))))
    for metric in ("gpu_pod_shares", "gpu_pod_memory_used_bytes"):
        _eventually(
            lambda metric=metric: exporter.holders(cluster.namespace, metric),
            [(name, "main") for name in ("a", "b", "c")],
        )


@pytest.fixture
def held(cluster: Cluster, exporter: Exporter) -> Cluster:
    """A cluster in which pod "a" holds a GPU, as the exporter knows."""
    cluster.run(pod("a", container(resources=gpus())))
    _eventually(lambda: exporter.holders(cluster.namespace), [("a", "main")])
    return cluster


@pytest.fixture
def steady(held: Cluster) -> Iterator[Exporter]:
    """An exporter with the chart's interval of 10 s, which keeps a silent kubelet's answer for 15 s."""
    with Cluster(held.node) as apart, Exporter(apart, interval="10s") as running:
        _eventually(lambda: running.holders(held.namespace), [("a", "main")])
        yield running


def _watch(held: Cluster, exporter: Exporter, seconds: float) -> None:
    """In no scrape has the GPU lost its pod, nor is it said to be free."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert exporter.holders(held.namespace) == [("a", "main")]
        allocated = exporter.values("gpu_allocated")
        assert [value for key, value in allocated.items() if value] == [1], allocated
        time.sleep(0.2)


def test_kubelet_restart_loses_no_pod(held: Cluster, steady: Exporter) -> None:
    """It answers not at all, then for two to three seconds that there are no pods."""
    held.node.stop_program("kubelet")
    held.node.start_program("kubelet")
    _watch(held, steady, 25)


def test_kubelet_restart_without_api_server_loses_no_pod(held: Cluster, steady: Exporter) -> None:
    """Such a kubelet lists no pod but static ones until the API server answers."""
    held.node.stop_program("kubelet")
    held.node.disconnect()
    try:
        held.node.start_program("kubelet")
        _watch(held, steady, 35)
    finally:
        held.node.connect()
    _watch(held, steady, 10)


def test_container_runtime_restart_loses_no_pod(held: Cluster, exporter: Exporter) -> None:
    """Pods go on without containerd."""
    held.node.stop_program("containerd")
    try:
        _watch(held, exporter, 3)
    finally:
        held.node.start_program("containerd")
    _watch(held, exporter, 5)


def test_plugin_restart_loses_no_pod(held: Cluster, exporter: Exporter, gpus: Gpus) -> None:
    """Without its plugin no GPU is allocatable; the pods go on."""
    gpus.stop_plugin(WHOLE)
    try:
        wait_until(lambda: _allocatable(held) == "0")
        assert exporter.holders(held.namespace) == [("a", "main")]
    finally:
        gpus.start_plugin(WHOLE)
    wait_until(lambda: _allocatable(held) == "4")
    _watch(held, exporter, 3)


def test_unhealthy_device_keeps_its_pod(held: Cluster, exporter: Exporter, gpus: Gpus) -> None:
    """The kubelet offers it to no other pod; the one that has it goes on."""
    gpus.plugins[WHOLE].set_unhealthy(OFFERED[WHOLE])
    try:
        wait_until(lambda: _allocatable(held) == "0")
        _watch(held, exporter, 3)
    finally:
        gpus.plugins[WHOLE].set_unhealthy(())
    wait_until(lambda: _allocatable(held) == "4")


def _allocatable(cluster: Cluster) -> str:
    found: str = cluster.client.get("/api/v1/nodes/real-node")["status"]["allocatable"][WHOLE]
    return found


def test_exporter_without_host_pids_has_labels_only(held: Cluster) -> None:
    """The kubelet's answer is enough for them; whose processes they are cannot be known."""
    with Cluster(held.node) as apart, Exporter(apart, attribution={"enabled": False}) as exporter:
        _eventually(lambda: exporter.holders(held.namespace), [("a", "main")])
        assert exporter.holders(held.namespace, "gpu_pod_memory_used_bytes") == []
