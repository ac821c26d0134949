"""The holder of each GPU, by a kubelet that restarts, hangs, refuses, exaggerates or is absent."""

import os
import re
import socket
import time
from pathlib import Path

import pytest

from exporter.pods.podresources import Kubelet
from simulator.gpus import Process
from simulator.nodes.devices import Container
from simulator.nodes.kubelet import Allocation, Failure, Known, PodDevices
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, Runs, container, ended, eventually, h100, pod

pytestmark = pytest.mark.driver

UTIL = "DCGM_FI_DEV_GPU_UTIL"
UP = "gpu_exporter_podresources_up"


def _pods(exporter: Exporter) -> list[tuple[str, ...]]:
    return sorted(exporter.series(UTIL, "gpu", "pod"))


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two GPUs, the first of which pod "train" holds."""
    made = make_node(h100(2))
    made.pods.append(pod("train", made.spec.gpu_uuid(0)))
    return made


def test_allocated_gpu_has_pod_labels(node: Node) -> None:
    """The holder's namespace, name and container are labels of its GPU's series; a free GPU has none of them."""
    with node.kubelet, node.exporting() as exporter:
        assert set(exporter.series(UTIL, "gpu", "namespace", "pod", "container")) == {
            ("0", "ml", "train", "main"),
            ("1", "", "", ""),
        }
        assert exporter.series(UP) == {(): 1}


def test_pod_changes_show_in_the_labels(node: Node) -> None:
    """A pod's labels leave with it, and the next holder's come."""
    with node.kubelet, node.exporting() as exporter:
        node.pods[:] = [pod("serve", node.spec.gpu_uuid(1))]
        eventually(lambda: _pods(exporter) == [("0", ""), ("1", "serve")])
        node.pods.clear()
        eventually(lambda: _pods(exporter) == [("0", ""), ("1", "")])


def test_each_form_of_device_id_is_matched(node: Node) -> None:
    """Whole GPUs are found under each form that a device plugin uses, under any resource of NVIDIA's domain."""
    uuid = node.spec.gpu_uuid(0)
    forms = {
        "whole": (uuid, "nvidia.com/gpu"),
        "replica": (f"{uuid}::3", "nvidia.com/gpu.shared"),
        "gke": ("nvidia0", "nvidia.com/gpu"),
        "gke-shared": ("nvidia0/vgpu1", "nvidia.com/gpu"),
        "renamed": (uuid, "nvidia.com/tensor-board"),
    }
    with node.kubelet, node.exporting() as exporter:
        for name, (device_id, resource) in forms.items():
            node.pods[:] = [pod(name, device_id, resource=resource)]
            expected = [("0", name), ("1", "")]
            eventually(lambda expected=expected: _pods(exporter) == expected)  # type: ignore[misc]


def test_each_form_of_mig_id_is_matched(make_node: MakeNode) -> None:
    """MIG instances are found by UUID and by GKE's form; their GPU is not labelled with them."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb", "2g.10gb")),)))
    with node.kubelet, node.exporting() as exporter:
        series = exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE", "GPU_I_ID")
        number = next(gi for profile, gi in series if profile == "2g.10gb")
        mig = node.spec.mig_uuid(0, 1)
        for name, form in enumerate((mig, f"{mig}::1", f"nvidia0/gi{number}", f"nvidia0/gi{number}/vgpu2")):
            node.pods[:] = [pod(f"p{name}", form, resource="nvidia.com/mig-2g.10gb")]
            expected = {("", ""), ("3g.20gb", ""), ("2g.10gb", f"p{name}")}
            eventually(
                lambda expected=expected: (  # type: ignore[misc]
                    set(exporter.series("DCGM_FI_DEV_FB_USED", "GPU_I_PROFILE", "pod")) == expected
                )
            )


def test_shared_gpu_has_one_series_per_pod(node: Node) -> None:
    """Replicas count once per pod, also over several containers, so that a sum over a pod's series is not inflated."""
    uuid = node.spec.gpu_uuid(0)
    both = tuple(
        (name, (Allocation("nvidia.com/gpu", (f"{uuid}::{n}",)),)) for n, name in enumerate(("one", "two"))
    )
    node.pods[:] = [pod("a", f"{uuid}::4", f"{uuid}::5"), PodDevices("ml", "b", both)]
    with node.kubelet, node.exporting() as exporter:
        _, text = exporter.get("/metrics")
        lines = [line for line in text.splitlines() if line.startswith(UTIL + "{")]
        assert len(lines) == 3
        assert set(exporter.series(UTIL, "gpu", "pod", "container")) == {
            ("0", "a", "main"),
            ("0", "b", ""),
            ("1", "", ""),
        }


def test_restarted_kubelet_is_reconnected(node: Node) -> None:
    """A new socket in the old one's place is used without a restart of the exporter, and nothing leaks on the way."""
    with node.kubelet, node.exporting() as exporter:
        fds = exporter.series("process_open_fds")
        for number in range(3):
            node.kubelet.restart()
            node.pods[:] = [pod(f"after-{number}", node.spec.gpu_uuid(0))]
            expected = [("0", f"after-{number}"), ("1", "")]
            eventually(lambda expected=expected: _pods(exporter) == expected)  # type: ignore[misc]
            eventually(lambda: exporter.series(UP) == {(): 1})
        eventually(lambda: exporter.series("process_open_fds") == fds)


def test_kubelet_connection_is_reused(node: Node) -> None:
    """One connection serves all calls: file descriptors and connections do not grow with the cycles."""
    with node.kubelet, node.exporting("--interval=100ms") as exporter:
        fds = exporter.series("process_open_fds")
        calls = node.kubelet.calls["List"]
        eventually(lambda: node.kubelet.calls["List"] > calls + 10)
        assert sum(exporter.series("process_open_fds").values()) <= sum(fds.values())
        assert exporter.messages("connection") == []


def test_missing_kubelet_costs_only_labels(node: Node) -> None:
    """A kubelet that is gone for good costs the pod labels after a cycle, never a GPU's series, and it is said once."""
    with node.kubelet, node.exporting() as exporter:
        node.kubelet.stop()
        eventually(lambda: _pods(exporter) == [("0", ""), ("1", "")])
        assert exporter.series(UP) == {(): 0}
        assert exporter.get("/readyz")[0] == 200
        assert len(exporter.messages("asking the kubelet")) == 1

        node.kubelet.start()
        eventually(lambda: _pods(exporter) == [("0", "train"), ("1", "")])
        eventually(lambda: exporter.messages("answers again"))


@pytest.mark.parametrize("failure", list(Failure), ids=lambda failure: failure.name.lower())
def test_refusing_kubelet_costs_only_labels(failure: Failure, node: Node) -> None:
    """Whatever status the kubelet answers with, GPUs are served, and the status is in the log."""
    node.kubelet.misbehave(failure)
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", ""), ("1", "")]
        assert exporter.series(UP) == {(): 0}
        assert failure.name in exporter.messages("asking the kubelet")[0]


def test_unimplemented_api_is_not_called_again(node: Node) -> None:
    """A kubelet without the API is left alone until it is replaced by one that has it."""
    node.kubelet.misbehave(Failure.UNIMPLEMENTED)
    with node.kubelet, node.exporting("--interval=100ms") as exporter:
        asked = node.kubelet.calls["List"]
        before = time.monotonic()
        eventually(lambda: time.monotonic() > before + 1)
        assert node.kubelet.calls["List"] == asked

        node.kubelet.misbehave()
        node.kubelet.restart()
        eventually(lambda: _pods(exporter) == [("0", "train"), ("1", "")])


def test_hung_kubelet_delays_no_scrape(node: Node) -> None:
    """A kubelet that does not answer is given up after two seconds; scrapes are answered at once all the while."""
    with node.kubelet, node.exporting() as exporter:
        node.kubelet.misbehave(delay_s=60)
        slowest = 0.0

        def labels_gone() -> bool:
            nonlocal slowest
            before = time.monotonic()
            pods = _pods(exporter)
            slowest = max(slowest, time.monotonic() - before)
            return pods == [("0", ""), ("1", "")]

        eventually(labels_gone)
        assert slowest < 2
        # the server knows the deadline and may be the first to report that it has passed; two calls share it
        assert re.search(
            r"no answer within (2|1\.\d+) s|DEADLINE_EXCEEDED", exporter.messages("asking the kubelet")[0]
        )
        node.kubelet.misbehave()
        eventually(lambda: _pods(exporter) == [("0", "train"), ("1", "")])


def test_huge_kubelet_answer_is_read(node: Node) -> None:
    """An answer above gRPC's default limit of 4 MiB, as dense nodes give, is taken like any other."""
    node.kubelet.misbehave(padding=45_000)
    with node.kubelet, node.exporting("--interval=1s") as exporter:
        eventually(lambda: _pods(exporter) == [("0", "train"), ("1", "")])


def test_node_without_kubelet_exports_without_pods(node: Node) -> None:
    """Outside Kubernetes GPUs are exported without pods, without a metric of the kubelet, and it is said once."""
    done = node.once("--once")
    assert done.code == 0
    assert UP not in done.out
    assert done.err.count("exporting without pod labels") == 1


def test_late_kubelet_is_used(node: Node) -> None:
    """On a booting node the exporter may be there before the kubelet."""
    kubelet = Kubelet(node.kubelet.socket, required=False, clock=time.monotonic)
    assert kubelet.poll().up is None
    with node.kubelet:
        answer = kubelet.poll()
        kubelet.close()
    assert answer.up is True
    assert [allocation.owner.pod for allocation in answer.allocations] == ["train"]


def test_kubelets_last_answer_is_kept_for_one_cycle(node: Node) -> None:
    """A kubelet that restarts between two cycles does not make the labels blink; one that stays away loses them."""
    now = 1000.0
    kubelet = Kubelet(node.kubelet.socket, required=False, clock=lambda: now)
    with node.kubelet:
        assert kubelet.poll().up is True
    held = []
    for _ in range(3):
        now += 10
        answer = kubelet.poll()
        assert answer.up is False
        held.append(len(answer.allocations))
    assert held == [1, 0, 0]


def test_allocatable_devices_are_requested_once_per_cycle(node: Node) -> None:
    """Polls of usage between two cycles need the holders only; a new kubelet is asked at once."""
    now = 1000.0
    kubelet = Kubelet(node.kubelet.socket, required=False, clock=lambda: now, interval_s=10)
    with node.kubelet:
        offers = [kubelet.poll().offers]
        for _ in range(8):
            now += 1
            offers.append(kubelet.poll().offers)
        assert node.kubelet.calls == {"List": 9, "GetAllocatableResources": 1}
        node.kubelet.restart()
        offers.append(kubelet.poll().offers)
        now += 10
        offers.append(kubelet.poll().offers)
        assert node.kubelet.calls["GetAllocatableResources"] == 3
    kubelet.close()
    assert [len(found or ()) for found in offers] == [2] * 11


def test_kubelets_last_answer_is_kept_however_often_it_is_polled(node: Node) -> None:
    """Polls of usage between two cycles do not count as cycles."""
    now = 1000.0
    kubelet = Kubelet(node.kubelet.socket, required=False, clock=lambda: now, interval_s=10)
    with node.kubelet:
        assert kubelet.poll().up is True
    held = []
    for _ in range(16):
        now += 1
        held.append(len(kubelet.poll().allocations))
    assert held == [*[1] * 15, 0]


@pytest.mark.parametrize(
    "speech", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64], ids=["silent", "http1", "zeros"]
)
def test_another_server_on_the_socket_costs_only_labels(speech: bytes, node: Node) -> None:
    """A server that is no kubelet is reported and does no harm."""
    path: Path = node.kubelet.socket
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(20)
        with node.exporting(ready=False) as exporter:
            client, _ = server.accept()
            with client:
                client.sendall(speech)
                client.shutdown(socket.SHUT_WR)
                eventually(lambda: exporter.get("/readyz")[0] == 200)
                assert _pods(exporter) == [("0", ""), ("1", "")]
                assert exporter.series(UP) == {(): 0}


PROXY = PodDevices("kube-system", "kube-proxy-node-1", (("main", ()),), is_static=True)
OWN = PodDevices("monitoring", "gpu-exporter-x7x2p", (("exporter", ()),))
KNOWS_ALL = [("0", "train"), ("1", "")]
INCOMPLETE = [Known.NOTHING, Known.STATIC]


@pytest.mark.parametrize("known", INCOMPLETE, ids=lambda known: known.value)
def test_answer_without_the_exporters_pod_keeps_the_last_one(node: Node, known: Known) -> None:
    """A restarted kubelet answers successfully and knows no pod: it is not up, and no GPU is free for that."""
    node.pods += [PROXY, OWN]
    with node.kubelet, node.exporting("--own-pod=monitoring/gpu-exporter-x7x2p") as exporter:
        assert (_pods(exporter), exporter.series(UP)) == (KNOWS_ALL, {(): 1})
        allocated = exporter.series("gpu_allocated", "gpu")
        node.kubelet.known = known
        node.kubelet.restart()
        eventually(lambda: exporter.messages("own pod monitoring/gpu-exporter-x7x2p is not listed"))
        eventually(lambda: exporter.series(UP) == {(): 0})
        asked = node.kubelet.calls["List"]
        eventually(
            lambda: node.kubelet.calls["List"] > asked + 4
        )  # longer than a silent kubelet's answer is kept
        assert _pods(exporter) == KNOWS_ALL
        assert exporter.series("gpu_allocated", "gpu") == allocated

        node.pods[:] = [PROXY, OWN]
        node.kubelet.known = Known.PLUGIN
        eventually(lambda: exporter.series(UP) == {(): 1})
        assert _pods(exporter) == [("0", ""), ("1", "")]
        assert exporter.series("gpu_allocated", "gpu") == {}  # nothing is offered yet
        node.kubelet.known = Known.ALL
        eventually(lambda: exporter.series("gpu_allocated", "gpu") == {("0",): 0, ("1",): 0})
        assert len(exporter.messages("is not listed")) == 1


def test_first_answer_without_the_exporters_pod_shows_no_free_gpu(node: Node) -> None:
    """An exporter that starts together with the kubelet knows nothing, and says nothing."""
    node.pods += [PROXY, OWN]
    node.kubelet.known = Known.STATIC
    with node.kubelet, node.exporting("--own-pod=monitoring/gpu-exporter-x7x2p") as exporter:
        assert exporter.series(UP) == {(): 0}
        assert exporter.series("gpu_allocated", "gpu") == {}
        node.kubelet.known = Known.ALL
        eventually(lambda: exporter.series("gpu_allocated", "gpu") == {("0",): 1, ("1",): 0})


@pytest.mark.parametrize("known", INCOMPLETE, ids=lambda known: known.value)
def test_answer_without_the_pods_of_log_folders_keeps_the_last_one(node: Node, known: Known) -> None:
    """Outside of a pod, the folders of the pods' logs show that there are pods of the API server."""
    node.pods.append(PROXY)
    node.host.admit(container("train"))
    node.host.admit(Container("kube-system", "kube-proxy-node-1", "0" * 32, "main"))
    with node.kubelet, node.exporting() as exporter:
        node.kubelet.known = known
        eventually(lambda: exporter.messages("none but static pods are listed"))
        assert (_pods(exporter), exporter.series(UP)) == (KNOWS_ALL, {(): 0})
        node.host.forget(container("train").uid)
        eventually(lambda: exporter.series(UP) == {(): 1})
        assert _pods(exporter) == [("0", ""), ("1", "")]


def test_empty_answer_to_an_exporter_in_a_pod_is_incomplete(node: Node) -> None:
    """Without its name and without folders: the kubelet must list it at least."""
    with (
        node.kubelet,
        node.exporting(variables={"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) as exporter,
    ):
        node.kubelet.known = Known.NOTHING
        eventually(lambda: exporter.series(UP) == {(): 0})
        assert _pods(exporter) == KNOWS_ALL


def test_static_exporters_pod_does_not_show_that_an_answer_is_complete(node: Node) -> None:
    """The kubelet lists it, whose name ends with the node's, before it knows others."""
    own = PodDevices("monitoring", "gpu-exporter-node-1", (("exporter", ()),), is_static=True)
    node.pods.append(own)
    node.host.admit(container("train"))
    with node.kubelet, node.exporting("--own-pod=monitoring/gpu-exporter-node-1") as exporter:
        node.kubelet.known = Known.STATIC
        eventually(lambda: exporter.series(UP) == {(): 0})
        assert _pods(exporter) == KNOWS_ALL


def test_socket_that_the_user_may_not_reach_costs_only_labels(node: Node) -> None:
    """The kubelet makes its directory for root alone; the log says what to do, and it is no bug."""
    folder = node.kubelet.socket.parent
    # root passes every check of permissions by its capabilities
    wrapper = ["setpriv", "--bounding-set=-all"] if os.getuid() == 0 else []
    with node.kubelet:
        folder.chmod(0)
        command = node.command("--once", f"--pod-resources-socket={node.kubelet.socket}")
        done = ended([*wrapper, *command], node.environment())
        folder.chmod(0o700)
    assert done.code == 0, done.err
    assert 'DCGM_FI_DEV_GPU_UTIL{gpu="0"' in done.out
    assert "a bug" not in done.err
    assert f"{UP} 0" in done.out
    assert "Permission denied, which belongs to root: run as user 0, which needs no capability" in done.err


def test_gpu_that_an_init_container_uses_is_not_free(node: Node) -> None:
    """The kubelet lists its pod, without devices; its process shows that the GPU is in use, and whose work it is."""
    node.pods.append(PodDevices("ml", "loads", (("main", ()),)))
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series("gpu_allocated", "gpu") == {("0",): 1, ("1",): 0}
        node.run(1, Runs(Process(4711, 2**30), pod="loads", container="init"))
        eventually(lambda: exporter.series("gpu_allocated", "gpu") == {("0",): 1, ("1",): 1})
        held = exporter.series("gpu_pod_memory_used_bytes", "gpu", "pod", "container")
        assert held["1", "loads", "init"] == 2**30
        node.run(1, Runs(Process(4712, 2**30)))
        eventually(lambda: exporter.series("gpu_allocated", "gpu") == {("0",): 1, ("1",): 0})


def test_device_on_two_numa_nodes_is_one_device(node: Node) -> None:
    """The kubelet repeats it for each of them."""
    uuids = tuple(node.spec.gpu_uuid(number) for number in range(2))
    node.kubelet.capacity = (Allocation("nvidia.com/gpu", uuids, numa_nodes=(0, 1)),)
    held = Allocation("nvidia.com/gpu", uuids[:1], numa_nodes=(0, 1))
    node.pods[:] = [PodDevices("ml", "train", (("main", (held,)),))]
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series("gpu_replicas", "gpu") == {("0",): 1, ("1",): 1}
        assert set(exporter.series(UTIL, "gpu", "pod", "container")) == {
            ("0", "train", "main"),
            ("1", "", ""),
        }
