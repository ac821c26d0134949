"""The kubelet's PodResources service as a real gRPC client sees it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from simulator.nodes.kubelet import SERVICE, Allocation, Failure, Known, Kubelet, PodDevices, messages

GPU = "nvidia.com/gpu"
CAPACITY = [Allocation(GPU, ("GPU-1", "GPU-2")), Allocation("nvidia.com/mig-1g.10gb", ("MIG-1",))]
TRAINER = PodDevices("ml", "trainer", (("main", (Allocation(GPU, ("GPU-1",)),)), ("sidecar", ())))
SHELL = PodDevices("ml", "shell", (("main", ()),))


@pytest.fixture
def kubelet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    """A kubelet with two pods."""
    socket = tmp_path_factory.mktemp("k") / "s.sock"
    with Kubelet(socket, capacity=CAPACITY, pods=lambda: [TRAINER, SHELL]) as running:
        yield running


def _call(socket: Path, method: str, answer: str, request: bytes = b"", **options: Any) -> Any:
    channel_options = [("grpc.max_receive_message_length", options.pop("limit", 4 << 20))]
    with grpc.insecure_channel(f"unix:{socket}", options=channel_options) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda raw: raw,
            response_deserializer=getattr(messages(), answer).FromString,
        )
        return call(request, timeout=10, wait_for_ready=True)


def test_list_returns_pods_containers_and_devices(kubelet: Kubelet) -> None:
    """List gives every pod of the node, with its devices by container and resource."""
    pods = _call(kubelet.socket, "List", "ListPodResourcesResponse").pod_resources
    assert [(pod.namespace, pod.name) for pod in pods] == [("ml", "trainer"), ("ml", "shell")]
    main, sidecar = pods[0].containers
    assert [(group.resource_name, list(group.device_ids)) for group in main.devices] == [(GPU, ["GPU-1"])]
    assert (sidecar.name, list(sidecar.devices)) == ("sidecar", [])


def test_list_bytes_have_kubelet_field_numbers(kubelet: Kubelet) -> None:
    """The bytes of a listing are those that a kubelet sends: numbers and wire types of the published table."""
    message = _call(kubelet.socket, "List", "ListPodResourcesResponse")
    devices = b"\x0a\x0envidia.com/gpu" + b"\x12\x05GPU-1"
    main = b"\x0a\x04main" + b"\x12" + bytes([len(devices)]) + devices
    trainer = (
        b"\x0a\x07trainer" + b"\x12\x02ml" + b"\x1a" + bytes([len(main)]) + main + b"\x1a\x09\x0a\x07sidecar"
    )
    shell = b"\x0a\x05shell" + b"\x12\x02ml" + b"\x1a\x06\x0a\x04main"
    expected = b"".join(b"\x0a" + bytes([len(pod)]) + pod for pod in (trainer, shell))
    assert message.SerializeToString() == expected


def test_allocatable_returns_all_devices(kubelet: Kubelet) -> None:
    """GetAllocatableResources gives what the node has, taken or not."""
    groups = _call(kubelet.socket, "GetAllocatableResources", "AllocatableResourcesResponse").devices
    found = sorted((group.resource_name, *group.device_ids) for group in groups)
    assert found == [(GPU, "GPU-1"), (GPU, "GPU-2"), ("nvidia.com/mig-1g.10gb", "MIG-1")]


def test_list_repeats_a_device_for_each_numa_node_in_any_order(kubelet: Kubelet) -> None:
    """As a kubelet of Kubernetes 1.36: an entry for each device and NUMA node, in the order of a Go map."""
    kubelet.capacity = (Allocation(GPU, ("GPU-1", "GPU-2", "GPU-3"), numa_nodes=(0, 1)),)
    orders = set()
    for _ in range(20):
        groups = _call(kubelet.socket, "GetAllocatableResources", "AllocatableResourcesResponse").devices
        found = [(*group.device_ids, group.topology.nodes[0].ID) for group in groups]
        assert sorted(found) == [(f"GPU-{number}", node) for number in (1, 2, 3) for node in (0, 1)]
        orders.add(tuple(found))
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("known", "pods", "devices"),
    [
        (Known.NOTHING, [], 0),
        (Known.STATIC, ["proxy"], 3),
        (Known.PLUGIN, ["trainer", "proxy"], 0),
        (Known.ALL, ["trainer", "proxy"], 3),
    ],
    ids=lambda value: value.value if isinstance(value, Known) else None,
)
def test_kubelet_after_a_restart_answers_successfully_and_incompletely(
    tmp_path_factory: pytest.TempPathFactory, known: Known, pods: list[str], devices: int
) -> None:
    """It has no error for what it does not know yet."""
    socket = tmp_path_factory.mktemp("k") / "s.sock"
    proxy = PodDevices("kube-system", "proxy", (("main", ()),), is_static=True)
    with Kubelet(socket, capacity=CAPACITY, pods=lambda: [TRAINER, proxy]) as kubelet:
        kubelet.known = known
        listed = _call(socket, "List", "ListPodResourcesResponse").pod_resources
        offered = _call(socket, "GetAllocatableResources", "AllocatableResourcesResponse").devices
    assert ([pod.name for pod in listed], len(offered)) == (pods, devices)


def test_get_of_unknown_pod_is_not_found(kubelet: Kubelet) -> None:
    """Get gives one pod; for an unknown one the status is NOT_FOUND."""
    request = messages().GetPodResourcesRequest(pod_name="trainer", pod_namespace="ml").SerializeToString()
    assert _call(kubelet.socket, "Get", "GetPodResourcesResponse", request).pod_resources.name == "trainer"
    with pytest.raises(grpc.RpcError) as caught:
        _call(kubelet.socket, "Get", "GetPodResourcesResponse")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("failure", Failure)
def test_misbehave_fails_calls_until_reset(kubelet: Kubelet, failure: Failure) -> None:
    """While told to misbehave every call ends with that status; afterwards all is well again."""
    kubelet.misbehave(failure)
    with pytest.raises(grpc.RpcError) as caught:
        _call(kubelet.socket, "List", "ListPodResourcesResponse")
    assert caught.value.code() is failure.value
    kubelet.misbehave()
    assert len(_call(kubelet.socket, "List", "ListPodResourcesResponse").pod_resources) == 2


def test_list_with_padding_exceeds_default_grpc_limit(kubelet: Kubelet) -> None:
    """With padding, a client with the default limit of 4 MiB fails and one with a raised limit succeeds."""
    kubelet.misbehave(padding=40_000)
    with pytest.raises(grpc.RpcError) as caught:
        _call(kubelet.socket, "List", "ListPodResourcesResponse")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    listing = _call(kubelet.socket, "List", "ListPodResourcesResponse", limit=64 << 20)
    assert len(listing.pod_resources) == 40_002


def test_misbehave_with_delay_postpones_answer(kubelet: Kubelet) -> None:
    """With a delay the answer takes that long; stopping does not wait for it."""
    kubelet.misbehave(delay_s=0.3)
    began = time.monotonic()
    _call(kubelet.socket, "List", "ListPodResourcesResponse")
    assert time.monotonic() - began >= 0.3
    kubelet.misbehave(delay_s=3600)
    with grpc.insecure_channel(f"unix:{kubelet.socket}") as channel:
        pending = channel.unary_unary(f"/{SERVICE}/List").future(b"", timeout=600)
        while kubelet.calls["List"] < 2:
            time.sleep(0.01)
        kubelet.stop()
        with pytest.raises(grpc.RpcError) as caught:
            pending.result()
    assert caught.value.code() is not grpc.StatusCode.DEADLINE_EXCEEDED


def test_restart_replaces_socket_inode(kubelet: Kubelet) -> None:
    """After a restart the path is the same and the inode another; a new call succeeds."""
    before = kubelet.socket.stat()
    kubelet.restart()
    after = kubelet.socket.stat()
    assert (after.st_ino, after.st_ctime_ns) != (before.st_ino, before.st_ctime_ns)
    assert len(_call(kubelet.socket, "List", "ListPodResourcesResponse").pod_resources) == 2
    kubelet.stop()
    assert not kubelet.socket.exists()


def test_socket_path_too_long_is_refused(tmp_path: Path) -> None:
    """Where the kernel would cut the path, an error says so beforehand."""
    with pytest.raises(ValueError, match="107 bytes"):
        Kubelet(tmp_path / ("x" * 108), capacity=[], pods=list)
