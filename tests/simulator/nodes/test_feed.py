"""Who is on the GPUs is shown as processes, in /proc and by the driver, with samples of what they did."""

import bisect
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from simulator.gpus import Process, ProcessKind, ProcessSample, Reading
from simulator.nodes.devices import Container
from simulator.nodes.feed import Feed
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.machine import Machine
from simulator.nodes.physics import MPS_SERVER_BYTES
from simulator.spec import Archetype, GpuSpec, Kind, NodeSpec, Sharing, WorkloadSpec
from simulator.workloads.archetypes import Actor
from simulator.workloads.draws import DAY_S, HOUR_S

NOW_S = 1_795_219_200.4
BOOT_S = NOW_S - 5 * DAY_S
PERIOD_US = 166_667
WHOLE = NodeSpec("whole", (GpuSpec("H100-SXM5-80GB"),) * 2)
SHARED = NodeSpec("shared", (GpuSpec("L40S"),), sharing=Sharing.TIME_SLICING, replicas=4)
MPS = NodeSpec("mps", (GpuSpec("A100-SXM4-40GB"),) * 2, sharing=Sharing.MPS, replicas=4)
CUT = NodeSpec("cut", (GpuSpec("H100-SXM5-80GB", mig=("3g.40gb", "1g.10gb")),))


class Screen:
    """Sensors that remember what they were last told."""

    def __init__(self) -> None:
        self.gpus: dict[int, Reading] = {}
        self.instances: dict[tuple[int, int], tuple[int, int]] = {}
        self.processes: dict[int, list[Process]] = {}
        self.utilization: dict[int, list[tuple[int, int]]] = {}
        self.samples: dict[int, list[ProcessSample]] = {}
        self.busy: dict[tuple[int, int | None], tuple[int, int]] = {}

    def set_gpu(self, index: int, reading: Reading) -> None:
        """Remember a GPU's reading."""
        self.gpus[index] = reading

    def set_instance(
        self, index: int, instance: int, *, memory_used_bytes: int, activity_percent: int
    ) -> None:
        """Remember what an instance shows."""
        self.instances[index, instance] = (memory_used_bytes, activity_percent)

    def set_processes(self, index: int, processes: Sequence[Process]) -> None:
        """Remember a GPU's processes."""
        self.processes[index] = list(processes)

    def set_samples(
        self, index: int, utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample]
    ) -> None:
        """Remember a GPU's samples."""
        self.utilization[index] = list(utilization)
        self.samples[index] = list(processes)

    def set_busy(self, index: int, *, busy_us: int, at_us: int, instance: int | None = None) -> None:
        """Remember how long a GPU or an instance had worked."""
        self.busy[index, instance] = (busy_us, at_us)


class Rig:
    """A node whose devices are handed out by the test, and which shows what the test asks for."""

    def __init__(self, spec: NodeSpec, folder: Path) -> None:
        self.spec = spec
        self.machine = Machine(spec, boot_s=BOOT_S)
        self.screen = Screen()
        self.host = HostFiles(folder / "proc", folder / "log", boot_s=BOOT_S)
        self._feed = Feed(self.machine, self.screen, self.host)

    def occupy(
        self, device: str, container: Container, archetype: Archetype, *, age_s: float = HOUR_S, **more: Any
    ) -> None:
        """Hand `device` to a pod that has been there for `age_s`."""
        spec = WorkloadSpec(Kind.JOB, container.namespace, container.pod, archetype, **more)
        actor = Actor(seed=3, spec=spec, ordinal=0, device=0, start_s=int(NOW_S) - age_s)
        self.machine.occupy(device, actor, container=container)

    def show(self, now_s: float = NOW_S) -> Screen:
        """What is shown at `now_s`."""
        self._feed.show(now_s)
        return self.screen

    def count(self, now_s: float) -> Screen:
        """What is shown when only the counts are shown anew at `now_s`."""
        self._feed.count(now_s)
        return self.screen

    def running(self) -> dict[int, str]:
        """Names of the processes in /proc by PID, but 1 and 2."""
        found = {
            int(path.name): (path / "stat").read_text().partition("(")[2].partition(")")[0]
            for path in self.host.proc.glob("[0-9]*")
        }
        return {pid: name for pid, name in found.items() if pid > 2}

    def cgroup(self, pid: int) -> str:
        """A process's cgroup."""
        return (self.host.proc / str(pid) / "cgroup").read_text()


def _container(pod: str, name: str = "main") -> Container:
    return Container("team", pod, f"0f3c2a9e-1b2d-4c3e-8f4a-{pod.encode().hex():0>12}", name)


A, B = _container("a"), _container("b")


def test_container_device_has_one_process_each(tmp_path: Path) -> None:
    """A process per GPU, of its container's cgroup, that holds what the GPU's sensors show."""
    rig = Rig(WHOLE, tmp_path)
    for index in range(2):
        rig.occupy(WHOLE.gpu_uuid(index), A, Archetype.TRAIN_STEADY)
    screen = rig.show()
    [[first], [second]] = screen.processes[0], screen.processes[1]
    assert rig.running() == {first.pid: "python", second.pid: "python"}
    assert A.id in rig.cgroup(first.pid)
    assert rig.cgroup(first.pid) == rig.cgroup(second.pid)
    for index, process in enumerate((first, second)):
        assert process.kind is ProcessKind.COMPUTE
        assert process.instance is None
        assert process.memory_used_bytes == screen.gpus[index].memory_used_bytes > 0


def test_process_start_time_is_pod_start(tmp_path: Path) -> None:
    """Its start time in /proc is the pod's, however late it is shown."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.TRAIN_STEADY, age_s=HOUR_S)
    [process] = rig.show().processes[0]
    stat = (rig.host.proc / str(process.pid) / "stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])
    assert ticks == pytest.approx((int(NOW_S) - HOUR_S - BOOT_S) * 100, abs=1)


def test_replicas_in_one_container_share_one_process(tmp_path: Path) -> None:
    """It holds the memory of both and has the samples of both; another container has its own."""
    rig = Rig(SHARED, tmp_path)
    for replica, container in enumerate((A, A, B)):
        device = f"{SHARED.gpu_uuid(0)}::{replica}"
        rig.occupy(device, container, Archetype.ZOMBIE, works_s=0.0, spins=True)
    screen = rig.show()
    own, other = screen.processes[0]
    assert own.memory_used_bytes + other.memory_used_bytes == screen.gpus[0].memory_used_bytes
    assert (A.id in rig.cgroup(own.pid), B.id in rig.cgroup(other.pid)) == (True, True)
    at_us = screen.samples[0][-1].at_us
    shares = {one.pid: one.sm_percent for one in screen.samples[0] if one.at_us == at_us}
    assert shares[own.pid] + shares[other.pid] == 100
    assert shares[own.pid] == pytest.approx(2 * shares[other.pid], abs=2)


def test_pod_without_context_has_no_process(tmp_path: Path) -> None:
    """A process ends when its phase has no context any more; the pod's logs stay until the pod goes."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.OVERALLOCATED, age_s=HOUR_S, works_s=HOUR_S)
    assert len(rig.show(NOW_S - 1).processes[0]) == 1
    assert rig.show(NOW_S).processes[0] == []
    assert rig.running() == {}
    assert [path.name for path in (rig.host.logs / "pods").iterdir()] == [f"team_a_{A.uid}"]
    rig.machine.release(WHOLE.gpu_uuid(0), at_s=NOW_S + 1)
    rig.show(NOW_S + 2)
    assert not any((rig.host.logs / "pods").iterdir())


def test_pid_is_never_reused(tmp_path: Path) -> None:
    """A pod that takes over a GPU has another PID than all before it; one that stays keeps its own."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(1), B, Archetype.TRAIN_STEADY)
    seen: list[int] = []
    for number in range(20):
        rig.occupy(WHOLE.gpu_uuid(0), _container(f"p{number}"), Archetype.ZOMBIE, works_s=0.0, spins=False)
        seen += [process.pid for process in rig.show(NOW_S + number).processes[0]]
        rig.machine.release(WHOLE.gpu_uuid(0), at_s=NOW_S + number + 0.5)
    [stays] = rig.screen.processes[1]
    assert len({*seen, stays.pid}) == 21
    assert stays.pid == next(iter(rig.running()))


def test_mps_clients_have_a_server_process(tmp_path: Path) -> None:
    """Clients are MPS's; the server, of no pod, is on the GPUs that have clients, and goes with the last one."""
    rig = Rig(MPS, tmp_path)
    for replica, container in enumerate((A, B)):
        rig.occupy(f"{MPS.gpu_uuid(0)}::{replica}", container, Archetype.TRAIN_STEADY)
    screen = rig.show()
    server, *clients = screen.processes[0]
    assert [process.kind for process in clients] == [ProcessKind.MPS] * 2
    assert (server.kind, server.memory_used_bytes) == (ProcessKind.COMPUTE, MPS_SERVER_BYTES)
    assert rig.running()[server.pid] == "nvidia-cuda-mps"
    assert rig.cgroup(server.pid) == "0::/system.slice/nvidia-mps.service\n"
    assert sum(one.memory_used_bytes for one in screen.processes[0]) == screen.gpus[0].memory_used_bytes
    assert screen.processes[1] == []
    assert server.pid not in {sample.pid for sample in screen.samples[0]}
    for replica in range(2):
        rig.machine.release(f"{MPS.gpu_uuid(0)}::{replica}", at_s=NOW_S + 1)
    assert rig.show(NOW_S + 2).processes[0] == []
    assert rig.running() == {}
    rig.occupy(f"{MPS.gpu_uuid(1)}::0", _container("c"), Archetype.TRAIN_STEADY)
    anew, _ = rig.show(NOW_S + 3).processes[1]
    assert rig.running()[anew.pid] == "nvidia-cuda-mps"
    assert anew.pid > server.pid


def test_samples_cover_16_seconds_of_gpu_and_processes(tmp_path: Path) -> None:
    """Six samples a second: the utilization of that second, which the processes' whole percents add up to."""
    rig = Rig(SHARED, tmp_path)
    for replica, container in enumerate((A, B)):
        rig.occupy(f"{SHARED.gpu_uuid(0)}::{replica}", container, Archetype.TRAIN_STALL, age_s=3 * HOUR_S)
    screen = rig.show()
    utilization = screen.utilization[0]
    times = [at_us for at_us, _ in utilization]
    assert len(times) == 96
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {PERIOD_US}
    assert 0 <= NOW_S * 1e6 - times[-1] < PERIOD_US
    for at_us, percent in utilization:
        assert percent == rig.machine.reading(0, at_us / 1e6).gpu_util_percent
        of_processes = [one.sm_percent for one in screen.samples[0] if one.at_us == at_us]
        assert sum(of_processes) == percent
    assert {sample.pid for sample in screen.samples[0]} <= {one.pid for one in screen.processes[0]}
    assert [sample.at_us for sample in screen.samples[0]] == sorted(
        sample.at_us for sample in screen.samples[0]
    )


def test_samples_once_taken_never_change(tmp_path: Path) -> None:
    """Whether shown every second or several times within one, samples follow each other on one grid."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.ZOMBIE, works_s=0.0, spins=True)
    known: dict[int, int] = {}
    of_processes: dict[int, int] = {}
    for step in range(60):
        screen = rig.show(NOW_S + step * 0.4)
        if step == 30:
            rig.machine.release(WHOLE.gpu_uuid(0), at_s=NOW_S + 12)
        for at_us, percent in screen.utilization[0]:
            assert known.setdefault(at_us, percent) == percent
        for sample in screen.samples[0]:
            assert of_processes.setdefault(sample.at_us, sample.pid) == sample.pid
    times = sorted(known)
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {PERIOD_US}
    end = bisect.bisect_left(times, (NOW_S + 12) * 1e6)
    assert all(known[at_us] == 0 for at_us in times[end:])
    assert set(of_processes) == set(times[:end])


def test_samples_include_ended_process(tmp_path: Path) -> None:
    """What it did since the last look is its own, also when it is gone by the next one."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.ZOMBIE, works_s=0.0, spins=True)
    [process] = rig.show().processes[0]
    rig.machine.release(WHOLE.gpu_uuid(0), at_s=NOW_S + 0.8)
    rig.occupy(WHOLE.gpu_uuid(0), B, Archetype.ZOMBIE, age_s=-1.3, works_s=0.0, spins=True)
    screen = rig.show(NOW_S + 1)
    since_us = NOW_S * 1e6
    late = [sample.pid for sample in screen.samples[0] if since_us < sample.at_us <= since_us + 800_000]
    assert set(late) == {process.pid}
    assert process.pid not in rig.running()


def test_hopper_busy_counter_matches_samples(tmp_path: Path) -> None:
    """Between two looks a whole GPU's count grows by its samples' periods times their utilization."""
    rig = Rig(WHOLE, tmp_path)
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.TRAIN_STEADY)
    before_us, from_us = rig.show().busy[0, None]
    screen = rig.show(NOW_S + 10)
    after_us, until_us = screen.busy[0, None]
    worked = sum(percent for at_us, percent in screen.utilization[0] if from_us < at_us <= until_us)
    assert after_us - before_us == pytest.approx(worked * PERIOD_US / 100, abs=1)
    assert until_us == screen.utilization[0][-1][0]
    assert screen.busy[1, None][0] == 0


def test_count_updates_busy_counters_only(tmp_path: Path) -> None:
    """Only the counts are those of now; whoever came in between is in the samples that are shown later."""
    rig = Rig(WHOLE, tmp_path)
    before_us, from_us = rig.show().busy[0, None]
    rig.occupy(WHOLE.gpu_uuid(0), A, Archetype.ZOMBIE, age_s=0, works_s=0.0, spins=True)
    screen = rig.count(NOW_S + 0.25)
    after_us, until_us = screen.busy[0, None]
    assert after_us - before_us == until_us - from_us > 0
    assert (screen.gpus[0].gpu_util_percent, screen.processes[0], screen.samples[0]) == (0, [], [])
    screen = rig.show(NOW_S + 0.3)
    assert [one.at_us for one in screen.samples[0]][-1] == until_us
    assert {one.pid for one in screen.samples[0]} == {one.pid for one in screen.processes[0]}


def test_mig_instance_has_busy_counter_and_no_samples(tmp_path: Path) -> None:
    """An instance's count follows its own activity; the processes are on their instances."""
    rig = Rig(CUT, tmp_path)
    rig.occupy(CUT.mig_uuid(0, 1), A, Archetype.ZOMBIE, works_s=0.0, spins=True)
    before_us, from_us = rig.show().busy[0, 1]
    screen = rig.show(NOW_S + 10)
    after_us, until_us = screen.busy[0, 1]
    assert after_us - before_us == until_us - from_us > 0
    assert screen.busy[0, 0][0] == 0
    assert 0 in screen.gpus
    assert screen.utilization == {}
    [process] = screen.processes[0]
    assert (process.instance, process.memory_used_bytes) == (1, screen.instances[0, 1][0])


def test_card_before_hopper_has_no_busy_counter(tmp_path: Path) -> None:
    """Without GPM there are samples, and no count."""
    screen = Rig(SHARED, tmp_path).show()
    assert screen.busy == {}
    assert set(screen.utilization) == {0}
