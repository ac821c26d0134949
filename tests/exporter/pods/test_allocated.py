"""Allocatable and allocated devices and ended pods: gpu_allocated, gpu_replicas and resource names."""

import time

import pytest

from exporter.pods.podresources import Kubelet
from simulator.nodes.kubelet import Allocation, Failure, PodDevices
from simulator.spec import GpuSpec, NodeSpec, Sharing
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, eventually, h100, pod

pytestmark = pytest.mark.driver

UTIL = "DCGM_FI_DEV_GPU_UTIL"
ALLOCATED = "gpu_allocated"
REPLICAS = "gpu_replicas"
SHARES = "gpu_pod_shares"
UNATTRIBUTED = "gpu_exporter_unattributed_devices"
UP = "gpu_exporter_podresources_up"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two GPUs, the first of which pod "train" holds."""
    made = make_node(h100(2))
    made.pods.append(pod("train", made.spec.gpu_uuid(0)))
    return made


def _allocated(exporter: Exporter) -> dict[str, float]:
    return {gpu: value for (gpu,), value in exporter.series(ALLOCATED, "gpu").items()}


def _pods(exporter: Exporter) -> list[tuple[str, ...]]:
    return sorted(exporter.series(UTIL, "gpu", "pod"))


def test_gpu_allocated_is_one_or_zero(node: Node) -> None:
    """A held GPU is 1, a free one that the kubelet offers is 0, and one that it does not offer is absent."""
    with node.kubelet, node.exporting() as exporter:
        assert _allocated(exporter) == {"0": 1, "1": 0}
        node.pods.clear()
        eventually(lambda: _allocated(exporter) == {"0": 0, "1": 0})
        node.kubelet.capacity = (Allocation("nvidia.com/gpu", (node.spec.gpu_uuid(1),)),)
        eventually(lambda: _allocated(exporter) == {"1": 0})
        # an unhealthy GPU is offered no more; who had it has it still
        node.pods.append(pod("train", node.spec.gpu_uuid(0)))
        eventually(lambda: _allocated(exporter) == {"0": 1, "1": 0})


def test_gpu_allocated_has_device_labels_without_pods(node: Node) -> None:
    """Its labels are those of the device's other series that DCGM has no name for: it can be joined on all of them."""
    with node.kubelet, node.exporting("--naming=dcgm-4.9") as exporter:
        families = exporter.families()
        energy = {tuple(s.labels.items()) for s in families["gpu_energy_joules"].samples}
        assert {tuple(s.labels.items()) for s in families[ALLOCATED].samples} == energy
        util = [s.labels.items() for s in families["DCGM_FI_DEV_GPU_UTIL_RATIO"].samples]
        assert all(any(dict(own).items() <= labels for labels in util) for own in energy)


@pytest.mark.parametrize("sharing", [Sharing.NONE, Sharing.TIME_SLICING], ids=["mig", "time-sliced"])
def test_gpu_allocated_supports_other_id_forms(sharing: Sharing, make_node: MakeNode) -> None:
    """A GPU that is offered as replicas is one device; one that is offered as instances is only those."""
    mig = () if sharing is Sharing.TIME_SLICING else ("3g.20gb", "2g.10gb")
    replicas = 4 if sharing is Sharing.TIME_SLICING else 1
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", mig),), sharing=sharing, replicas=replicas))
    if mig:
        node.pods.append(pod("p", node.spec.mig_uuid(0, 1), resource="nvidia.com/mig-2g.10gb"))
        expected = {("3g.20gb", node.spec.mig_uuid(0, 0)): 0, ("2g.10gb", node.spec.mig_uuid(0, 1)): 1}
    else:
        node.pods.append(pod("p", f"{node.spec.gpu_uuid(0)}::3", resource="nvidia.com/gpu.shared"))
        expected = {("", ""): 1}
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series(ALLOCATED, "GPU_I_PROFILE", "mig_uuid") == expected
        node.pods.clear()
        eventually(lambda: set(exporter.series(ALLOCATED, "GPU_I_PROFILE").values()) == {0})


def test_gpu_replicas_counts_offered_ids_of_a_device(make_node: MakeNode) -> None:
    """Whoever holds them; and absent where the kubelet does not list what it offers."""
    gpus = (GpuSpec("A100-SXM4-40GB"), GpuSpec("A100-SXM4-40GB"))
    node = make_node(NodeSpec("a100", gpus, sharing=Sharing.TIME_SLICING, replicas=4))
    node.pods.append(pod("p", f"{node.spec.gpu_uuid(0)}::3", resource="nvidia.com/gpu.shared"))
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series(REPLICAS, "gpu") == {("0",): 4, ("1",): 4}
        whole, shared = node.spec.gpu_uuid(0), [f"{node.spec.gpu_uuid(1)}::{n}" for n in range(3)]
        node.kubelet.capacity = (
            Allocation("nvidia.com/gpu", (whole, "mlx5_core.sf.4")),
            Allocation("nvidia.com/gpu.shared", tuple(shared)),
        )
        eventually(lambda: exporter.series(REPLICAS, "gpu") == {("0",): 1, ("1",): 3})
        node.kubelet.misbehave(Failure.UNIMPLEMENTED, method="GetAllocatableResources")
        eventually(lambda: exporter.series(REPLICAS, "gpu") == {})


def test_gpu_pod_shares_counts_the_ids_of_all_containers_of_a_pod(make_node: MakeNode) -> None:
    """Two containers with a replica each hold two, of neither alone; a pod on a whole GPU holds one."""
    gpus = tuple(GpuSpec("A100-SXM4-40GB") for _ in range(3))
    node = make_node(NodeSpec("a100", gpus, sharing=Sharing.TIME_SLICING, replicas=4))
    first, second, whole = (node.spec.gpu_uuid(number) for number in range(3))
    slots = [
        pod("p", f"{first}::0", f"{second}::2"),
        pod("p", f"{first}::3", container="side"),
        pod("q", whole),
    ]
    node.pods += slots
    with node.kubelet, node.exporting() as exporter:
        assert exporter.series(SHARES, "gpu", "pod", "container") == {
            ("0", "p", ""): 2,
            ("1", "p", "main"): 1,
            ("2", "q", "main"): 1,
        }


def test_gpu_allocated_without_a_kubelet_is_absent(node: Node) -> None:
    """Where there is no kubelet, or it stops answering, no GPU is called free."""
    assert ALLOCATED not in node.once("--once").out
    with node.kubelet, node.exporting() as exporter:
        assert _allocated(exporter) == {"0": 1, "1": 0}
        node.kubelet.stop()
        eventually(lambda: _allocated(exporter) == {})
        assert exporter.series(UNATTRIBUTED, "reason") == {
            ("ambiguous",): 0,
            ("unknown_claim",): 0,
            ("unknown_gpu",): 0,
            ("unknown_id",): 0,
        }


@pytest.mark.parametrize("failure", list(Failure), ids=lambda failure: failure.name.lower())
def test_gpu_allocated_without_allocatable_devices_shows_only_ones(failure: Failure, node: Node) -> None:
    """It costs the zeros only: labels stay, the kubelet counts as up, and it is said once."""
    node.kubelet.misbehave(failure, method="GetAllocatableResources")
    with node.kubelet, node.exporting("--interval=100ms") as exporter:
        assert _pods(exporter) == [("0", "train"), ("1", "")]
        assert _allocated(exporter) == {"0": 1}
        assert exporter.series(UP) == {(): 1}
        listed = node.kubelet.calls["List"]
        eventually(lambda: node.kubelet.calls["List"] > listed + 5)
        assert len(exporter.messages("allocatable devices")) == 1
        if failure is Failure.UNIMPLEMENTED:
            assert node.kubelet.calls["GetAllocatableResources"] == 1
            node.kubelet.misbehave()
            node.kubelet.restart()
        else:
            node.kubelet.misbehave()
        eventually(lambda: _allocated(exporter) == {"0": 1, "1": 0})


@pytest.mark.deep
def test_slow_allocatable_answer_keeps_pod_labels(node: Node) -> None:
    """Both calls share two seconds; when the second takes longer, the first one's answer is used."""
    node.kubelet.misbehave(delay_s=30, method="GetAllocatableResources")
    with node.kubelet, node.exporting() as exporter:
        while node.kubelet.calls.get("GetAllocatableResources", 0) < 3:
            assert _pods(exporter) == [("0", "train"), ("1", "")]
            assert exporter.series(UP) == {(): 1}
        assert _allocated(exporter) == {"0": 1}
        assert len(exporter.messages("allocatable devices")) == 1
        # asked less and less often: what is held is not to wait for it
        assert node.kubelet.calls["List"] > 6


@pytest.mark.parametrize(
    ("flags", "resource", "is_taken"),
    [
        pytest.param([], "nvidia.com/h100-nvl", True, id="nvidias"),
        pytest.param([], "example.com/gpu", False, id="anothers"),
        pytest.param(["--resource-names=example.com/gpu"], "example.com/gpu", True, id="named"),
        pytest.param(["--resource-names=example.com/gpu"], "nvidia.com/gpu", True, id="beside-nvidias"),
        pytest.param(["--resource-names=a.io/x, example.com/g*"], "example.com/gpu", True, id="wildcard"),
        pytest.param(["--resource-names=example.com/g*"], "example.org/gpu", False, id="not-covered"),
        pytest.param(["--resource-names=example.com/gpu"], "example.com/gpu-2", False, id="no-wildcard"),
    ],
)
def test_resource_names_match_with_wildcard(
    flags: list[str], resource: str, is_taken: bool, make_node: MakeNode
) -> None:
    """Devices of NVIDIA's and of named resources count; a star matches the rest of a name."""
    node = make_node(h100(1))
    node.pods.append(pod("p", node.spec.gpu_uuid(0), resource=resource))
    node.kubelet.capacity = (Allocation(resource, (node.spec.gpu_uuid(0),)),)
    with node.kubelet, node.exporting(*flags) as exporter:
        assert _pods(exporter) == [("0", "p" if is_taken else "")]
        assert _allocated(exporter) == ({"0": 1} if is_taken else {})


def test_dcgm_variable_for_resource_names_is_used(node: Node) -> None:
    """NVIDIA_RESOURCE_NAMES means what it means there."""
    node.pods[:] = [pod("p", node.spec.gpu_uuid(0), resource="example.com/gpu")]
    with (
        node.kubelet,
        node.exporting(variables={"NVIDIA_RESOURCE_NAMES": "example.com/gpu,example.com/x"}) as exporter,
    ):
        assert _pods(exporter) == [("0", "p"), ("1", "")]


def test_gpu_of_an_ended_pod_goes_to_the_next(node: Node) -> None:
    """A kubelet that goes on listing an ended pod does not let it keep the GPU's labels, nor get them back."""
    old, uuid = node.pods[0], node.spec.gpu_uuid(0)
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "train"), ("1", "")]
        for order in ([pod("next", uuid), old], [old, pod("next", uuid)]):
            node.pods[:] = order
            eventually(lambda: _pods(exporter) == [("0", "next"), ("1", "")])
        node.pods[:] = [old]
        eventually(lambda: _pods(exporter) == [("0", ""), ("1", "")])
        assert _allocated(exporter) == {"0": 0, "1": 0}
        assert exporter.series(UNATTRIBUTED, "reason")["ambiguous",] == 0


def test_indistinguishable_claimants_are_not_named(node: Node) -> None:
    """Two pods with one GPU from the start: neither has its labels, it is neither held nor free, and it is counted."""
    node.pods.append(pod("other", node.spec.gpu_uuid(0)))
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", ""), ("1", "")]
        assert _allocated(exporter) == {"1": 0}
        assert exporter.series(UNATTRIBUTED, "reason")["ambiguous",] == 1
        del node.pods[0]
        eventually(lambda: _pods(exporter) == [("0", "other"), ("1", "")])
        assert exporter.series(UNATTRIBUTED, "reason")["ambiguous",] == 0


def test_restarted_kubelet_keeps_ended_pods_known(node: Node) -> None:
    """An outage of the kubelet is no reason to believe an ended pod again."""
    node.pods.append(pod("other", node.spec.gpu_uuid(1)))
    with node.kubelet, node.exporting() as exporter:
        node.pods.append(pod("next", node.spec.gpu_uuid(0)))
        eventually(lambda: _pods(exporter) == [("0", "next"), ("1", "other")])
        node.kubelet.stop()
        eventually(lambda: _pods(exporter) == [("0", ""), ("1", "")])
        node.kubelet.start()
        eventually(lambda: _pods(exporter) == [("0", "next"), ("1", "other")])


@pytest.mark.slow
def test_twenty_megabyte_answer_delays_no_scrape(node: Node) -> None:
    """An answer of 20 MB is read completely, and requests are answered while the exporter reads it.

    Only the machine's speed decides whether the usual deadline suffices: the complete answer has a longer one.
    """
    node.kubelet.misbehave(padding=180_000)
    with node.kubelet, node.exporting("--interval=500ms") as exporter:
        answered, listed = 0, node.kubelet.calls["List"]

        def listed_again() -> bool:
            nonlocal answered
            answered += exporter.get("/healthz")[0] == 200
            return node.kubelet.calls["List"] >= listed + 2

        eventually(listed_again)
        assert answered > 2
    with node.kubelet:
        client = Kubelet(node.kubelet.socket, required=True, clock=time.monotonic, deadline_s=PATIENCE_S)
        answer = client.poll()
        client.close()
        assert (answer.up, [each.owner.pod for each in answer.allocations]) == (True, ["train"])


def test_hostile_pod_names_are_escaped(node: Node) -> None:
    """Quotes, backslashes and other alphabets in names are labels' values and nothing more; controls are replaced."""
    hostile, shown = (
        'p"} 1\ninjected{x="\\\x1b[31m\x00\r٣',
        'p"} 1\ufffdinjected{x="\\\ufffd[31m\ufffd\ufffd٣',
    )
    groups = (Allocation("nvidia.com/gpu", (node.spec.gpu_uuid(0), "nvidia" + "1" * 5000, "GPU-\x00")),)
    node.pods[:] = [PodDevices(hostile, hostile, ((hostile, groups),))]
    with node.kubelet, node.exporting() as exporter:
        labels = set(exporter.series(UTIL, "namespace", "pod", "container"))
        assert labels == {(shown,) * 3, ("", "", "")}
        assert "injected" not in exporter.families()


def test_unrecognized_device_id_makes_allocation_unknown(node: Node) -> None:
    """If a pod holds an unknown device, no GPU is reported as free."""
    node.pods[:] = [pod("train", node.spec.gpu_uuid(0)), pod("strange", "all")]
    with node.kubelet, node.exporting() as exporter:
        eventually(lambda: exporter.series(ALLOCATED, "gpu") == {("0",): 1})
        assert exporter.series("gpu_exporter_unattributed_devices", "reason")["unknown_id",] == 1


def test_network_card_of_nvidia_leaves_free_gpus_known(make_node: MakeNode) -> None:
    """NVIDIA's Network Operator calls NICs nvidia.com/hostdev; the ids are PCI addresses or subfunctions."""
    node = make_node(h100(2))
    cards = Allocation("nvidia.com/hostdev", ("0000:3b:00.2", "mlx5_core.sf.4"))
    gpus = Allocation("nvidia.com/gpu", (node.spec.gpu_uuid(0),))
    node.kubelet.capacity = (*node.kubelet.capacity, cards)
    node.pods[:] = [PodDevices("ml", "train", (("main", (gpus, cards)),))]
    with node.kubelet, node.exporting() as exporter:
        assert _allocated(exporter) == {"0": 1, "1": 0}
        assert exporter.series(UNATTRIBUTED, "reason")["unknown_id",] == 0


SCHEDULED = {
    "gpushare": ("aliyun.com/gpu-mem", "{}-_-{}"),
    "hami": ("nvidia.com/gpu", "{}-{}"),
    "volcano": ("volcano.sh/vgpu-number", "{}-{}"),
}
"""Resource and ids of plugins of which a scheduler chooses the GPU."""


@pytest.mark.parametrize("plugin", SCHEDULED)
def test_pod_on_a_gpu_that_only_its_annotation_names_is_unattributed(
    plugin: str, make_node: MakeNode
) -> None:
    """Without the API server no GPU gets its labels, and none is called free; it is counted."""
    node = make_node(h100(2))
    resource, form = SCHEDULED[plugin]
    ids = tuple(form.format(node.spec.gpu_uuid(gpu), n) for gpu in range(2) for n in range(10))
    node.kubelet.capacity = (Allocation(resource, ids),)
    with node.kubelet, node.exporting() as exporter:
        assert _allocated(exporter) == {"0": 0, "1": 0}
        node.pods[:] = [pod("serve", *ids[8:12], resource=resource)]
        eventually(lambda: exporter.series(UNATTRIBUTED, "reason")["unknown_gpu",] == 1)
        assert _pods(exporter) == [("0", ""), ("1", "")]
        assert _allocated(exporter) == {}
        asked = node.kubelet.calls["List"]
        eventually(lambda: node.kubelet.calls["List"] > asked + 1)
        assert len(exporter.messages("set --pod-uid")) == 1


@pytest.mark.parametrize("plugin", SCHEDULED)
def test_only_gpu_of_a_node_is_that_of_a_scheduled_pod(plugin: str, make_node: MakeNode) -> None:
    """Where all ids name one GPU, it is the pod's, without the API server."""
    node = make_node(h100(1))
    resource, form = SCHEDULED[plugin]
    ids = tuple(form.format(node.spec.gpu_uuid(0), n) for n in range(10))
    node.kubelet.capacity = (Allocation(resource, ids),)
    node.pods[:] = [pod("a", ids[0], resource=resource), pod("b", ids[7], resource=resource)]
    with node.kubelet, node.exporting() as exporter:
        eventually(lambda: _pods(exporter) == [("0", "a"), ("0", "b")])
        assert _allocated(exporter) == {"0": 1}
