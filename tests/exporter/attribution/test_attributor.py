"""Attribution of usage: to pods on a shared GPU, with MPS, with MIG, to the host, or to a reason if unknown."""

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks._timelapse import BOOT_S, Sample, Timelapse, values
from exporter.attribution.attributor import Attributor, HostContext
from exporter.attribution.podnames import PodLogFolders
from exporter.attribution.procfs import ProcessScanner
from exporter.attribution.records import (
    BusySource,
    DeviceObservation,
    DeviceProcess,
    Observation,
    ProcessSample,
    UsageTable,
)
from exporter.model import Device, Instance, PodRef
from exporter.pods.allocations import AllocationMap
from exporter.pods.deviceids import keys_for
from exporter.pods.tracker import PodAssignments
from simulator.gpus import ProcessKind
from simulator.gpus.groundtruth import Work
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeLapse
from tests.exporter.rig import container

pytestmark = pytest.mark.driver

START_MS = (BOOT_S + 100_000) * 1000
MIB = 2**20
PID = 1000
H100 = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
WHOLE = H100.gpu_uuid(0)
TRAIN, SERVE, SIDECAR = container("train"), container("serve"), container("train", "sidecar")
DAEMON = container("mps-daemon")
MPS_SERVER = "nvidia-cuda-mps-server"
POD_BUSY, REST_BUSY = "gpu_pod_busy_seconds_total", "gpu_unattributed_busy_seconds_total"
MEMORY, REST_MEMORY = "gpu_pod_memory_used_bytes", "gpu_unattributed_memory_used_bytes"


def works(number: int, *, instance: int | None = None, kind: ProcessKind = ProcessKind.COMPUTE) -> Work:
    """A process that has had work all the time for a while, and goes on; its memory tells it from others."""
    start_ms = START_MS - 60_000
    bursts = ((start_ms + 20, START_MS + 60_000),)
    return Work(PID + number, start_ms, None, bursts, ((start_ms, number * MIB),), kind, instance)


def rests(number: int) -> Work:
    """A process that only holds memory."""
    return dataclasses.replace(works(number), bursts=())


def after_4_s(lapse: Timelapse) -> list[Sample]:
    """What is said after two looks more than the first, which only finds the devices."""
    for at_ms in (0, 2_000, 4_000):
        series = lapse.look(START_MS + at_ms)
    return series


def _busy(series: Sequence[Sample]) -> dict[tuple[str, ...], float]:
    """Busy time of the whole GPU in seconds, by pod and container, and by reason."""
    found = {**values(series, POD_BUSY, "pod", "container", "GPU_I_PROFILE")}
    found |= {
        (reason, "", profile): value
        for (reason, profile), value in values(series, REST_BUSY, "reason", "GPU_I_PROFILE").items()
    }
    return {
        (who, where): round(value, 1)
        for (who, where, profile), value in found.items()
        if not profile and value
    }


def _memory(series: Sequence[Sample]) -> dict[tuple[str, ...], float]:
    """Its memory in MiB, likewise."""
    found = {**values(series, MEMORY, "pod", "container", "mig_uuid")}
    found |= {
        (reason, "", mig): value
        for (reason, mig), value in values(series, REST_MEMORY, "reason", "mig_uuid").items()
    }
    return {(who, where): value / MIB for (who, where, mig), value in found.items() if value and not mig}


@dataclasses.dataclass(frozen=True)
class Case:
    """Processes on a GPU, pods that hold it, and the owners of its four seconds of work."""

    works: Mapping[Work, Container | None]
    pods: Mapping[str, Sequence[str]]
    busy: Mapping[tuple[str, str], float]
    commands: Mapping[int, str] = dataclasses.field(default_factory=dict)


MPS = ProcessKind.MPS
CASES = {
    "one pod": Case({works(1): TRAIN}, {"train": [WHOLE]}, {("train", "main"): 4}),
    "beside a process of the host": Case(
        {works(1): TRAIN, works(2): None}, {"train": [WHOLE]}, {("train", "main"): 2, ("host", ""): 2}
    ),
    "two containers of a pod": Case(
        {works(1): TRAIN, works(2): SIDECAR},
        {"train": [WHOLE]},
        {("train", "main"): 2, ("train", "sidecar"): 2},
    ),
    "time-slicing": Case(
        {works(1): TRAIN, works(2): SERVE, works(3): SERVE, works(4): SERVE},
        {"train": [f"{WHOLE}::0"], "serve": [f"{WHOLE}::1", f"{WHOLE}::2"]},
        {("train", "main"): 1, ("serve", "main"): 3},
    ),
    "a pod that holds no GPU": Case(
        {works(1): TRAIN, works(2): SERVE},
        {"train": [WHOLE]},
        {("train", "main"): 2, ("serve", "main"): 2},
    ),
    "MPS, with the server on the host": Case(
        {works(1, kind=MPS): TRAIN, works(2, kind=MPS): SERVE, rests(3): None},
        {"train": [f"{WHOLE}::0"], "serve": [f"{WHOLE}::1"]},
        {("train", "main"): 2, ("serve", "main"): 2},
        commands={PID + 3: MPS_SERVER},
    ),
    "MPS, with the server in a pod of its own": Case(
        {works(1, kind=MPS): TRAIN, works(3): DAEMON},
        {"train": [f"{WHOLE}::0"]},
        {("train", "main"): 2, (DAEMON.pod, "main"): 2},
        commands={PID + 3: MPS_SERVER},
    ),
    "MPS, with a server that the pod has started": Case(
        {works(1, kind=MPS): TRAIN, works(3): SIDECAR},
        {"train": [WHOLE]},
        {("train", "main"): 2, ("train", "sidecar"): 2},
        commands={PID + 3: MPS_SERVER},
    ),
    "a static pod": Case(
        {works(1): Container("ml", "static-node-1", "0123456789abcdef0123456789abcdef", "main")},
        {"static-node-1": [WHOLE]},
        {("static-node-1", "main"): 4},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_attributor_with_known_processes_gives_each_pod_its_usage(make_lapse: MakeLapse, case: Case) -> None:
    """Each pod gets the usage of its processes; usage without a pod has a reason; no other pod appears."""
    lapse = make_lapse(works=case.works, pods=case.pods, commands=case.commands)
    with lapse.exporting():
        series = after_4_s(lapse)
    assert _busy(series) == {who: pytest.approx(seconds, abs=0.2) for who, seconds in case.busy.items()}
    memory: dict[tuple[str, str], float] = {}
    for work, where in case.works.items():
        nobody = "mps_server" if case.commands.get(work.pid) else "host"
        owner = (where.pod, where.name) if where is not None else (nobody, "")
        memory[owner] = memory.get(owner, 0) + work.pid - PID
    assert _memory(series) == memory
    assert values(series, "gpu_exporter_process_attribution_up") == {(): 1}


def test_attributor_with_a_nameless_pod_reports_its_usage_by_reason(make_lapse: MakeLapse) -> None:
    """For a pod without a folder only the UID is known: its usage has that reason, and no other pod gets it."""
    lapse = make_lapse(
        works={works(1): TRAIN, works(2): SERVE}, pods={"train": [f"{WHOLE}::0"], "serve": [f"{WHOLE}::1"]}
    )
    shutil.rmtree(lapse.host.logs / "pods" / f"ml_serve_{SERVE.uid}")
    with lapse.exporting():
        series = after_4_s(lapse)
    assert _busy(series) == {
        ("train", "main"): pytest.approx(2, abs=0.2),
        ("unnamed_pod", ""): pytest.approx(2, abs=0.2),
    }


def test_container_whose_name_is_cut_has_its_own_name_or_none(make_lapse: MakeLapse) -> None:
    """Links of more than 255 characters lack part of the id, or all of it; no other container gets the work."""
    long = "x" * 210
    whole, cut = container(long), container(long, "y" * 63)
    lapse = make_lapse(works={works(1): whole, works(2): cut}, pods={long: [WHOLE]})
    with lapse.exporting():
        series = after_4_s(lapse)
    assert _busy(series) == {(long, "main"): pytest.approx(2, abs=0.2), (long, ""): pytest.approx(2, abs=0.2)}


EXCLUSIVE, SHARED = {"train": [WHOLE]}, {"train": [f"{WHOLE}::0"], "serve": [f"{WHOLE}::1"]}


@pytest.mark.slow
@pytest.mark.parametrize("pods", [EXCLUSIVE, SHARED], ids=["exclusive", "shared"])
@pytest.mark.parametrize(
    ("missing", "reason"),
    [("proc/2", "no_host_proc"), ("log/pods", "no_pod_names")],
    ids=["no-proc", "no-names"],
)
def test_attributor_without_host_proc_attributes_only_unshared_gpus(
    make_lapse: MakeLapse,
    capfd: pytest.CaptureFixture[str],
    pods: dict[str, list[str]],
    missing: str,
    reason: str,
) -> None:
    """One message; a pod with a GPU of its own keeps busy time, sharers have none, the device's continues."""
    lapse = make_lapse(works={works(1): TRAIN, works(2): SERVE}, pods=pods)
    shutil.rmtree(lapse.host.proc.parent / missing)
    with lapse.exporting():
        series = after_4_s(lapse)
    assert values(series, "gpu_exporter_process_attribution_off", "reason") == {(reason,): 1}
    assert values(series, "gpu_exporter_process_attribution_up") == {(): 0}
    assert capfd.readouterr().err.count("attributing processes to pods is off") == 1
    assert _busy(series) == {("train", "main") if pods is EXCLUSIVE else ("off", ""): 4}
    assert set(values(series, POD_BUSY, "pod")) == ({("train",)} if pods is EXCLUSIVE else set())
    assert values(series, "gpu_busy_seconds_total") == {(): pytest.approx(4, abs=0.2)}
    assert values(series, MEMORY, "pod") == {}


def test_attributor_after_host_proc_returns_attributes_again(make_lapse: MakeLapse) -> None:
    """Attribution starts as soon as processes can be distinguished."""
    lapse = make_lapse(works={works(1): TRAIN, works(2): SERVE}, pods=SHARED)
    hidden = lapse.host.proc.parent / "hidden"
    with lapse.exporting():
        (lapse.host.proc / "2").rename(hidden)
        after_4_s(lapse)
        hidden.rename(lapse.host.proc / "2")
        lapse.look(START_MS + 6_000)
        series = lapse.look(START_MS + 8_000)
    assert values(series, POD_BUSY, "pod").keys() == {("train",), ("serve",)}
    assert values(series, "gpu_exporter_process_attribution_off", "reason") == {}


def cut(card: str, profile: str) -> NodeSpec:
    """A node with a GPU that is cut into two instances."""
    return NodeSpec("cut", (GpuSpec(card, mig=(profile, profile)),))


def _on_instances(make_lapse: MakeLapse, spec: NodeSpec) -> list[Sample]:
    """Instance 0 is held by "train", instance 1 by two pods through replicas; all have work."""
    where = {works(1, instance=0): TRAIN, works(2, instance=1): TRAIN, works(3, instance=1): SERVE}
    first, second = (spec.mig_uuid(0, number) for number in range(2))
    lapse = make_lapse(
        spec=spec, works=where, pods={"train": [first, f"{second}::0"], "serve": [f"{second}::1"]}
    )
    with lapse.exporting():
        return after_4_s(lapse)


def test_attributor_on_hopper_instances_splits_memory_but_not_busy_time(make_lapse: MakeLapse) -> None:
    """An instance works for whoever holds it alone; of several holders each has memory and none has busy time."""
    spec = cut("H100-SXM5-80GB", "3g.40gb")
    series = _on_instances(make_lapse, spec)
    first, second = (spec.mig_uuid(0, number) for number in range(2))
    busy = values(series, POD_BUSY, "mig_uuid", "pod", "container")
    assert busy == {(first, "train", "main"): pytest.approx(4, abs=0.1)}
    rest = values(series, REST_BUSY, "mig_uuid", "reason")
    assert {key for key, value in rest.items() if value} == {(second, "shared"), ("", "mig")}
    assert rest[second, "shared"] == pytest.approx(4, abs=0.1)
    held = values(series, MEMORY, "mig_uuid", "pod")
    assert held == {(first, "train"): MIB, (second, "train"): 2 * MIB, (second, "serve"): 3 * MIB}
    assert values(series, "gpu_busy_seconds_total", "mig_uuid").keys() == {("",), (first,), (second,)}
    grown = values(series, "gpu_pod_memory_used_byte_seconds_total", "mig_uuid", "pod")
    assert grown == {key: value * 4 for key, value in held.items()}


def test_attributor_on_ampere_instances_has_memory_only(make_lapse: MakeLapse) -> None:
    """Of the instances of an A100 there is memory only: no busy time of anybody, rather than none."""
    spec = cut("A100-SXM4-40GB", "3g.20gb")
    series = _on_instances(make_lapse, spec)
    assert not [
        name for name, _, _ in series if "busy" in name or "last_active" in name or "energy_joules" in name
    ]
    assert len(values(series, MEMORY, "mig_uuid", "pod")) == 3
    assert (
        values(series, "gpu_pod_processes", "mig_uuid", "pod").keys()
        == values(series, MEMORY, "mig_uuid", "pod").keys()
    )


def test_attributor_without_the_kubelet_keeps_all_counters(make_lapse: MakeLapse) -> None:
    """Without an answer of the kubelet no counter ends or falls, and processes still get their work."""
    lapse = make_lapse(works={works(1): TRAIN, works(2): SERVE}, pods=SHARED)
    with lapse.exporting():
        after_4_s(lapse)
        lapse.kubelet.stop()
        for at_ms in range(5_000, 11_000, 1_000):
            series = lapse.look(START_MS + at_ms)
        assert values(series, "gpu_exporter_podresources_up") == {(): 0}
    assert _busy(series) == {(pod, "main"): pytest.approx(5, abs=0.2) for pod in ("train", "serve")}


def _without_reasons(series: Sequence[Sample]) -> list[str]:
    return [name for name, labels, _ in series if "reason" not in labels]


@pytest.mark.slow
def test_attributor_after_a_hundred_short_pods_names_none(make_lapse: MakeLapse) -> None:
    """A hundred pods come, work and go, some of which hold the GPU; what is said afterwards names none."""
    storm = {}
    for number in range(100):
        start_ms = START_MS + number * 1_000
        end_ms = start_ms + 3_000
        work = Work(PID + number, start_ms, end_ms, ((start_ms + 50, end_ms),), ((start_ms, MIB),))
        storm[work] = container(f"storm-{number}")
    lapse = make_lapse(works=storm, pods={})
    named = set()
    with lapse.exporting():
        lapse.look(START_MS - 2_000)
        before = _without_reasons(lapse.look(START_MS - 1_000))
        for now_ms in range(START_MS, START_MS + 105_000, 1_000):
            present = {pod.pod: pod for work, pod in storm.items() if work.lives(now_ms)}
            for pod in set(storm.values()) - set(present.values()):
                lapse.host.forget(pod.uid)
            lapse.pods.clear()
            lapse.pods.update(
                {name: [f"{WHOLE}::{number}"] for number, name in enumerate(present) if number % 2}
            )
            series = lapse.look(now_ms)
            named |= {labels["pod"] for _, labels, _ in series if "pod" in labels}
    assert named == {pod.pod for pod in storm.values()}
    assert [labels for _, labels, _ in series if "pod" in labels or "storm" in str(labels)] == []
    assert _without_reasons(series) == before


def begins_at(number: int, ms: int) -> Work:
    """A process that has work from its start on."""
    start_ms = START_MS + ms
    return Work(
        PID + number, start_ms, None, ((start_ms + 20, START_MS + 60_000),), ((start_ms, number * MIB),)
    )


def test_work_is_exact_from_the_moment_a_gpu_is_shared(make_lapse: MakeLapse) -> None:
    """Looks are five seconds apart, as on a node without shared GPUs; a second pod begins between two."""
    lapse = make_lapse(works={works(1): TRAIN, begins_at(2, 7_000): SERVE}, pods=SHARED)
    with lapse.exporting():
        for at_ms in (0, 5_000, 10_000, 15_000):
            series = lapse.look(START_MS + at_ms)
    assert _busy(series) == {
        ("train", "main"): pytest.approx(11, abs=0.2),
        ("serve", "main"): pytest.approx(4, abs=0.2),
    }


GPU = Device(0, 0, "GPU-0", "00000000:07:00.0", "H100")
INSTANCE = dataclasses.replace(GPU, instance=Instance("1g.10gb", 7, ("MIG-0",)))
Use = Mapping[str, Sequence[int]]
"""PIDs by what a poll knows of them: "listed" as processes on the device, "sampled" as at work."""


@dataclasses.dataclass
class _Node:
    """A node with one GPU in time that is made."""

    folder: Path
    now_s: int = 1_000
    use: Use = dataclasses.field(default_factory=dict)
    source: BusySource | None = BusySource.SAMPLES
    has_instances: bool = False

    def __post_init__(self) -> None:
        self.host = HostFiles(self.folder / "proc", self.folder / "log", boot_s=BOOT_S)
        scanner = ProcessScanner(self.folder / "proc", ticks_per_s=100)
        names = PodLogFolders(self.folder / "log")
        clocks = (lambda: self.now_s * 10**9, lambda: (BOOT_S + self.now_s) * 10**9)
        self.attributor = Attributor(self._observe, HostContext(scanner, names, *clocks, 100), UsageTable())

    def _observe(self, *, until: float) -> Mapping[str, DeviceObservation]:  # noqa: ARG002 - the protocol's
        at_us = self.now_s * 10**6
        listed, sampled = self.use.get("listed"), self.use.get("sampled")
        seen = Observation(
            "gpu",
            at_us,
            source=self.source,
            samples=None if sampled is None else tuple(ProcessSample(at_us, pid, 50) for pid in sampled),
            processes=None if listed is None else tuple(DeviceProcess(pid, MIB) for pid in listed),
        )
        if not self.has_instances:
            return {"gpu": DeviceObservation(GPU, seen)}
        whole = dataclasses.replace(seen, key="whole", processes=None)
        return {"whole": DeviceObservation(GPU, whole), "gpu": DeviceObservation(INSTANCE, seen)}

    def is_calm_with(self, pods: PodAssignments, after_s: int, **use: Sequence[int]) -> bool:
        """Whether polls may be rare after one that finds this use."""
        self.now_s, self.use = self.now_s + after_s, use
        self.attributor.poll(pods, until=0)
        return self.attributor.is_calm


@pytest.mark.parametrize(
    ("use", "calm"),
    [
        ({"listed": [1001], "sampled": [1001]}, True),
        ({"listed": [1001, 1002], "sampled": [1001]}, True),
        ({"listed": [], "sampled": []}, True),
        ({"listed": [1001, 1003], "sampled": [1001]}, False),
        ({"listed": [1001, 1004], "sampled": []}, False),
        ({"listed": [1001], "sampled": [1001, 1009]}, False),
        ({"listed": [1001]}, True),
        ({"sampled": [1001]}, False),
    ],
    ids=["one-pod", "containers-of-a-pod", "idle", "two-pods", "host", "ended", "no-samples", "no-list"],
)
def test_polls_are_rare_only_if_one_pod_uses_each_gpu(
    tmp_path: Path, use: dict[str, list[int]], calm: bool
) -> None:
    """And the processes are listed: what one did that ended between two polls has no owner, or the only holder."""
    node = _Node(tmp_path)
    for pid, owner in ((1001, TRAIN), (1002, SIDECAR), (1003, SERVE)):
        node.host.start(pid, owner, started_s=BOOT_S + 500)
    node.host.start_service(1004, "Xorg", unit="x.service", started_s=BOOT_S + 500)
    alone = PodAssignments(up=None)
    assert node.is_calm_with(alone, 1, **use) is calm
    is_shared = not calm and len(use) > 1
    assert node.is_calm_with(alone, 5, listed=[1001], sampled=[1001]) is not is_shared
    assert node.is_calm_with(alone, 60, listed=[1001], sampled=[1001])
    holders = {("ml", name): PodRef("ml", name, "main") for name in ("train", "serve")}
    shared = PodAssignments(up=True, allocations=AllocationMap(owners={keys_for(GPU)[0]: holders}))
    assert not node.is_calm_with(shared, 5, listed=[1001], sampled=[1001])


@pytest.mark.parametrize(
    ("source", "has_instances", "calm"),
    [
        (BusySource.GPM, False, True),
        (BusySource.GPM, True, True),
        (BusySource.TICKS, False, False),
        (None, False, True),
    ],
    ids=["gpm", "mig", "ticks", "none"],
)
def test_polls_are_rare_only_if_busy_time_covers_the_time_between_them(
    tmp_path: Path, source: BusySource | None, has_instances: bool, calm: bool
) -> None:
    """The driver's current value is that of a moment: work between two polls would be lost."""
    node = _Node(tmp_path, source=source, has_instances=has_instances)
    node.host.start(1001, TRAIN, started_s=BOOT_S + 500)
    assert node.is_calm_with(PodAssignments(up=None), 1, listed=[1001]) is calm
