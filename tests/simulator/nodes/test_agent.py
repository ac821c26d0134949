"""A node follows the pods of a real API server and shows them on its kubelet and its GPUs."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from simulator.gpus import Process, ProcessSample, Reading
from simulator.kube import ApiServer, Fault
from simulator.kubeclient import Endpoint, KubeClient, KubeClientError
from simulator.manifests import node as node_object
from simulator.manifests import workload
from simulator.nodes.agent import NodeAgent
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.kubelet import SERVICE, messages
from simulator.nodes.machine import Machine
from simulator.spec import Archetype, GpuSpec, Kind, NodeSpec, Sharing, WorkloadSpec
from simulator.workloads.population import Population

WHOLE = NodeSpec("whole", (GpuSpec("H100-SXM5-80GB"),) * 4)
CUT = NodeSpec("cut", (GpuSpec("A100-SXM4-40GB"), GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "1g.5gb"))))
SHARED = NodeSpec("shared", (GpuSpec("L40S"),) * 2, sharing=Sharing.TIME_SLICING, replicas=3)

Listing = dict[str, tuple[str, ...]]


class Screen:
    """Sensors that remember what they were last told; samples are test_feed.py's."""

    def __init__(self) -> None:
        self.gpus: dict[int, Reading] = {}
        self.instances: dict[tuple[int, int], int] = {}
        self.processes: dict[int, list[Process]] = {}
        self.counted_us: set[int] = set()

    def set_gpu(self, index: int, reading: Reading) -> None:
        """Remember a GPU's reading."""
        self.gpus[index] = reading

    def set_instance(
        self, index: int, instance: int, *, memory_used_bytes: int, activity_percent: int
    ) -> None:
        """Remember an instance's memory."""
        del activity_percent
        self.instances[(index, instance)] = memory_used_bytes

    def set_processes(self, index: int, processes: Sequence[Process]) -> None:
        """Remember a GPU's processes."""
        self.processes[index] = list(processes)

    def set_samples(
        self, index: int, utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample]
    ) -> None:
        """Not looked at here."""

    def set_busy(self, index: int, *, busy_us: int, at_us: int, instance: int | None = None) -> None:
        """Remember until when work has been counted."""
        del index, busy_us, instance
        self.counted_us.add(at_us)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with its controllers."""
    with ApiServer(termination_delay_s=0.05) as running:
        yield running


def _endpoint(api: ApiServer) -> Endpoint:
    return Endpoint(api.url, token=api.kubeconfig()["users"][0]["user"]["token"])


@contextlib.contextmanager
def _node(
    api: ApiServer, spec: NodeSpec, directory: Path, *workloads: WorkloadSpec
) -> Iterator[tuple[NodeAgent, Screen]]:
    screen = Screen()
    api.create(node_object(spec))
    agent = NodeAgent(
        spec,
        KubeClient(_endpoint(api)),
        machine=Machine(spec, boot_s=time.time() - 86400),
        population=Population(workloads, seed=1),
        sensors=screen,
        host=HostFiles(directory / "proc", directory / "log"),
        socket=directory / "s.sock",
    )
    with agent:
        yield agent, screen


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose name is short enough for sockets."""
    return tmp_path_factory.mktemp("n")


def _listing(agent: NodeAgent) -> Listing:
    """Device ids by pod, sorted: the kubelet serves them in any order."""
    with grpc.insecure_channel(f"unix:{agent.kubelet.socket}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/List",
            request_serializer=lambda raw: raw,
            response_deserializer=messages().ListPodResourcesResponse.FromString,
        )
        pods = call(b"", timeout=5, wait_for_ready=True).pod_resources
    return {
        pod.name: tuple(
            sorted(i for box in pod.containers for group in box.devices for i in group.device_ids)
        )
        for pod in pods
    }


def _eventually(get: Callable[[], Any], wanted: Callable[[Any], bool], timeout_s: float = 300.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not wanted(got := get()):
        assert time.monotonic() < deadline, got
        time.sleep(0.02)
    return got


def _pod(name: str, gpus: int, resource: str = "nvidia.com/gpu") -> WorkloadSpec:
    return WorkloadSpec(Kind.POD, "default", name, Archetype.TRAIN_STEADY, gpus=gpus, resource=resource)


def test_pod_with_exponent_quantity_gets_its_gpus(api: ApiServer, short: Path) -> None:
    """2e0 GPUs are two, and the node goes on following its pods."""
    with _node(api, WHOLE, short) as (agent, _):
        for name, amount in (("one", "2e0"), ("two", "2000m")):
            manifest = workload(_pod(name, 2))
            manifest["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = amount
            manifest["spec"]["containers"][0]["resources"].pop("requests", None)
            api.create(manifest)
        found = _eventually(lambda: _listing(agent), lambda listing: listing.keys() == {"one", "two"})
        assert {name: len(ids) for name, ids in found.items()} == {"one": 2, "two": 2}


def test_pod_deleted_returns_its_gpus(api: ApiServer, short: Path) -> None:
    """The kubelet lists the pod's GPU UUIDs while it is there, and no longer once it is gone."""
    with _node(api, WHOLE, short) as (agent, _):
        assert _listing(agent) == {}
        api.create(workload(_pod("one", 2)))
        found = _eventually(lambda: _listing(agent), lambda listing: "one" in listing)
        assert found == {"one": tuple(sorted((WHOLE.gpu_uuid(0), WHOLE.gpu_uuid(1))))}
        api.delete("Pod", "default", "one")
        _eventually(lambda: _listing(agent), lambda listing: listing == {})
        api.create(workload(_pod("two", 4)))
        assert len(_eventually(lambda: _listing(agent), bool)["two"]) == 4


def test_agent_started_late_lists_only_its_own_pods(api: ApiServer, short: Path) -> None:
    """An agent that starts late lists what runs on its own node only."""
    api.create(node_object(CUT))
    api.create(workload(_pod("elsewhere", 1)))
    api.settle()
    with _node(api, WHOLE, short) as (agent, _):
        api.create(workload(_pod("here", 2)))
        assert set(_eventually(lambda: _listing(agent), bool)) == {"here"}


def test_allocation_is_stable_when_neighbours_change(api: ApiServer, short: Path) -> None:
    """A pod keeps its devices while its neighbours end, and freed devices go to the next one."""
    with _node(api, WHOLE, short) as (agent, _):
        for name in ("a", "b", "c"):
            api.create(workload(_pod(name, 1)))
        before = _eventually(lambda: _listing(agent), lambda listing: len(listing) == 3)
        api.delete("Pod", "default", "b")
        _eventually(lambda: _listing(agent), lambda listing: len(listing) == 2)
        api.create(workload(_pod("d", 2)))
        after = _eventually(lambda: _listing(agent), lambda listing: "d" in listing)
        assert (after["a"], after["c"]) == (before["a"], before["c"])
        assert before["b"][0] in after["d"]
        assert len({device for devices in after.values() for device in devices}) == 4


def test_mig_and_whole_gpus_are_allocated_separately(api: ApiServer, short: Path) -> None:
    """Instances are handed out by profile under their own UUIDs, and show memory of their own."""
    with _node(api, CUT, short) as (agent, screen):
        api.create(workload(_pod("slice", 1, "nvidia.com/mig-1g.5gb")))
        api.create(workload(_pod("card", 1)))
        found = _eventually(lambda: _listing(agent), lambda listing: len(listing) == 2)
        assert found == {"slice": (CUT.mig_uuid(1, 1),), "card": (CUT.gpu_uuid(0),)}
        _eventually(lambda: screen.instances.get((1, 1), 0), bool)
        assert screen.instances[(1, 0)] == 0
        with grpc.insecure_channel(f"unix:{agent.kubelet.socket}") as channel:
            offered = channel.unary_unary(
                f"/{SERVICE}/GetAllocatableResources",
                response_deserializer=messages().AllocatableResourcesResponse.FromString,
            )(b"", timeout=5)
        assert {group.resource_name: len(group.device_ids) for group in offered.devices} == {
            "nvidia.com/gpu": 1,
            "nvidia.com/mig-3g.20gb": 1,
            "nvidia.com/mig-1g.5gb": 1,
        }


def test_time_slices_are_spread_over_gpus(api: ApiServer, short: Path) -> None:
    """Replica ids are `<uuid>::<n>`, and sharers are put on the emptiest GPU."""
    with _node(api, SHARED, short) as (agent, _):
        for name in ("a", "b", "c"):
            api.create(workload(_pod(name, 1)))
            _eventually(lambda: name in _listing(agent), bool)  # noqa: B023 - called within the loop
        first, second = SHARED.gpu_uuid(0), SHARED.gpu_uuid(1)
        assert _listing(agent) == {"a": (f"{first}::0",), "b": (f"{second}::0",), "c": (f"{first}::1",)}


def test_gpu_readings_follow_pods(api: ApiServer, short: Path) -> None:
    """A GPU with a spinning pod shows 100 %, one without a pod nothing; both change with the pods."""
    zombie = WorkloadSpec(Kind.POD, "default", "zombie", Archetype.ZOMBIE, works_s=0.0, spins=True)
    with _node(api, WHOLE, short, zombie) as (_, screen):
        _eventually(lambda: len(screen.gpus), lambda count: count == 4)
        assert {reading.gpu_util_percent for reading in screen.gpus.values()} == {0}
        api.create(workload(zombie))
        _eventually(lambda: screen.gpus[0].gpu_util_percent, lambda value: value == 100)
        assert screen.gpus[1].memory_used_bytes == 0
        api.delete("Pod", "default", "zombie")
        gone = _eventually(lambda: screen.gpus[0], lambda reading: reading.gpu_util_percent == 0)
        assert gone.memory_used_bytes == 0


def _pod_uids_of(pids: set[int], proc: Path) -> set[str]:
    """In which pods' cgroups these processes are."""
    cgroups = [(proc / str(pid) / "cgroup").read_text() for pid in pids]
    return {text.partition("-pod")[2].partition(".slice")[0].replace("_", "-") for text in cgroups}


def test_processes_of_deleted_pod_end(api: ApiServer, short: Path) -> None:
    """One process per GPU of the pod, in the cgroup of its UID; with the pod go processes and logs."""
    with _node(api, WHOLE, short) as (_, screen):
        api.create(workload(_pod("one", 2)))
        pids = _eventually(
            lambda: {process.pid for listed in list(screen.processes.values()) for process in listed},
            lambda found: len(found) == 2,
        )
        pod = api.get("Pod", "default", "one")
        assert pod is not None
        uid = pod["metadata"]["uid"]
        assert _pod_uids_of(pids, short / "proc") == {uid}
        assert [path.name for path in (short / "log/pods").iterdir()] == [f"default_one_{uid}"]
        api.delete("Pod", "default", "one")
        _eventually(
            lambda: {path.name for path in (short / "proc").glob("[0-9]*")}, lambda names: names == {"1", "2"}
        )
        _eventually(lambda: list((short / "log/pods").iterdir()), lambda left: not left)
        assert not any(screen.processes.values())


def test_recreated_pod_has_its_own_uid_on_its_process(short: Path) -> None:
    """A pod of the same name that came while the API server was away has its own UID on its process."""

    def uids(screen: Screen) -> set[str]:
        with contextlib.suppress(FileNotFoundError):  # it ends while it is looked at
            pids = {one.pid for listed in list(screen.processes.values()) for one in listed}
            return _pod_uids_of(pids, short / "proc")
        return set()

    with ApiServer(termination_delay_s=0.05) as first, _node(first, WHOLE, short) as (_, screen):
        before = first.create(workload(_pod("one", 1)))["metadata"]["uid"]
        _eventually(lambda: uids(screen), lambda found: found == {before})
        port = int(first.url.rpartition(":")[2])
        first.stop()
        second = ApiServer(port=port, termination_delay_s=0.05)
        second.inject(Fault("/pods", "GET", times=None, status=503))
        with second:
            second.create(node_object(WHOLE))
            second.create(workload(_pod("one", 1)))  # the first of this name has the same UID on every server
            second.delete("Pod", "default", "one")
            second.settle()
            after = second.create(workload(_pod("one", 1)))["metadata"]["uid"]
            second.settle()
            second.clear_faults()
            _eventually(lambda: uids(screen), lambda found: found == {after})
    assert before != after


def test_busy_counters_move_several_times_a_second(api: ApiServer, short: Path) -> None:
    """Several counts a second, so that no two looks a second apart see the same one."""
    with _node(api, WHOLE, short) as (_, screen):
        seconds = _eventually(
            lambda: Counter(at_us // 1_000_000 for at_us in list(screen.counted_us)),
            lambda found: any(count > 2 for count in found.values()),
        )
    assert max(seconds.values()) <= 6


def test_agent_sends_only_get_requests(api: ApiServer, short: Path) -> None:
    """Nothing but GET ever reaches the API server from a node."""
    with _node(api, WHOLE, short) as (agent, _):
        api.create(workload(_pod("one", 2)))
        _eventually(lambda: _listing(agent), bool)
    seen = api.requests.all()
    assert {request.path for request in seen} == {"/api/v1/pods"}
    assert {request.method for request in seen} == {"GET"}


def test_agent_after_lost_watch_catches_up(short: Path) -> None:
    """After the API server was away, the node knows what happened in the meantime."""
    with ApiServer(termination_delay_s=0.05) as first:
        url = first.url
        with _node(first, WHOLE, short) as (agent, _):
            first.create(workload(_pod("before", 1)))
            _eventually(lambda: _listing(agent), bool)
            first.stop()
            with ApiServer(port=int(url.rpartition(":")[2]), termination_delay_s=0.05) as second:
                second.create(node_object(WHOLE))
                second.create(workload(_pod("after", 1)))
                found = _eventually(lambda: _listing(agent), lambda listing: set(listing) == {"after"})
                assert len(found["after"]) == 1


def test_agent_after_expired_watch_lists_again(api: ApiServer, short: Path) -> None:
    """A node whose resourceVersion is too old lists again and misses nothing."""
    with _node(api, WHOLE, short) as (agent, _):
        api.expire_history()
        api.create(workload(_pod("one", 1)))
        assert set(_eventually(lambda: _listing(agent), bool)) == {"one"}


def test_agent_without_access_fails_to_start(api: ApiServer, short: Path) -> None:
    """Without a first listing the start fails, naming node and server."""
    agent = NodeAgent(
        WHOLE,
        KubeClient(Endpoint(api.url, token="wrong")),
        machine=Machine(WHOLE, boot_s=time.time() - 10),
        population=Population((), seed=1),
        sensors=Screen(),
        host=HostFiles(short / "proc", short / "log"),
        socket=short / "s.sock",
    )
    with pytest.raises(TimeoutError, match=f"node whole: {api.url} has not listed its pods"):
        agent.start(timeout_s=0.3)


def test_client_error_carries_status_and_message(api: ApiServer) -> None:
    """An error of the client names the request, the status and the server's message."""
    client = KubeClient(_endpoint(api))
    with pytest.raises(
        KubeClientError, match=r'GET /api/v1/nodes/ghost: 404 .*nodes "ghost" not found'
    ) as caught:
        client.get("/api/v1/nodes/ghost")
    assert caught.value.status == 404


def test_endpoint_from_kubeconfig_uses_current_context(api: ApiServer, tmp_path: Path) -> None:
    """Server and token come from the kubeconfig's current context, and open the server."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(api.kubeconfig()))
    endpoint = Endpoint.from_kubeconfig(path)
    assert endpoint == _endpoint(api)
    assert KubeClient(endpoint).get("/api/v1/namespaces")["kind"] == "NamespaceList"
    assert endpoint.token is not None
    assert endpoint.token not in repr(endpoint)
