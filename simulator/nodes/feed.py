"""What a node's driver and host show at an instant: readings, processes and samples of each GPU, and /proc."""

import dataclasses
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import Protocol, Self

from simulator.gpus import Process, ProcessKind, ProcessSample, Reading
from simulator.gpus.cards import CARDS, Architecture
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.machine import Machine
from simulator.nodes.physics import MPS_SERVER_BYTES
from simulator.nodes.sampling import Memory
from simulator.nodes.tenancy import Presence
from simulator.spec import NodeSpec, Sharing
from simulator.workloads import draws

_FIRST_PIDS = range(2_000, 32_000)
_MPS_SERVER, _MPS_UNIT = "nvidia-cuda-mps-server", "nvidia-mps.service"


@dataclasses.dataclass(frozen=True, slots=True)
class _ProcessKey:
    """What one process has: replicas of one device that one container holds are one."""

    container: Container
    gpu: int
    instance: int | None

    @classmethod
    def of(cls, presence: Presence) -> Self | None:
        """The place of the tenant's process; None without a context or a container."""
        tenant = presence.tenant
        if tenant.container is None or not presence.phase.context:
            return None
        return cls(tenant.container, tenant.device.gpu, tenant.device.instance)


class GpuProcesses:
    """The processes on the GPUs of `node`, a PID of its own for each that ever was."""

    def __init__(self, node: NodeSpec, host: HostFiles) -> None:
        self._host = host
        self._has_server = node.sharing is Sharing.MPS
        self._kind = ProcessKind.MPS if self._has_server else ProcessKind.COMPUTE
        self._unused = itertools.count(draws.seeded("pid", node.name).choice(_FIRST_PIDS))
        self._pids: dict[_ProcessKey, int] = {}
        self._server: int | None = None
        self._pods: set[str] = set()

    def begin(self, present: Iterable[Presence], *, now_s: float) -> None:
        """Start the missing processes of the tenants at `now_s`."""
        for one in present:
            if one.tenant.container is not None:
                self._host.admit(one.tenant.container)
                self._pods.add(one.tenant.container.uid)
            key = _ProcessKey.of(one)
            if key is None or key in self._pids:
                continue
            started_s = one.tenant.context_since_s(now_s)
            if self._has_server and self._server is None:
                self._server = next(self._unused)
                self._host.start_service(self._server, _MPS_SERVER, unit=_MPS_UNIT, started_s=started_s)
            self._pids[key] = next(self._unused)
            self._host.start(self._pids[key], key.container, started_s=started_s)

    def end(self, present: Iterable[Presence]) -> None:
        """End the processes of tenants that have gone or have lost their context."""
        here = list(present)
        keys = {_ProcessKey.of(one) for one in here}
        for key in [key for key in self._pids if key not in keys]:
            self._host.end(self._pids.pop(key))
        if self._server is not None and not self._pids:
            self._host.end(self._server)
            self._server = None
        pods = {one.tenant.container.uid for one in here if one.tenant.container is not None}
        for gone in self._pods - pods:
            self._host.forget(gone)
        self._pods = pods

    def pid(self, presence: Presence) -> int | None:
        """The process of a tenant; none where it has none."""
        key = _ProcessKey.of(presence)
        return None if key is None else self._pids.get(key)

    def on_gpu(self, present: Sequence[Presence]) -> list[Process]:
        """What the driver lists of a GPU: the processes of its tenants, the MPS server before those that it serves."""
        found: dict[_ProcessKey, int] = {}
        for one in present:
            if (key := _ProcessKey.of(one)) is not None:
                found[key] = found.get(key, 0) + one.held_bytes
        clients = [
            Process(self._pids[key], memory, self._kind, key.instance) for key, memory in found.items()
        ]
        if self._server is None:
            return clients
        served = dict.fromkeys(key.instance for key in found)
        servers = [Process(self._server, MPS_SERVER_BYTES, instance=instance) for instance in served]
        return servers + clients


class Sensors(Protocol):
    """The driver's side of the GPUs; `driver.Board` is one."""

    def set_gpu(self, index: int, reading: Reading) -> None:
        """What GPU `index` shows from now on."""

    def set_instance(
        self, index: int, instance: int, *, memory_used_bytes: int, activity_percent: int
    ) -> None:
        """What a MIG instance shows from now on."""

    def set_processes(self, index: int, processes: Sequence[Process]) -> None:
        """Sets the processes of GPU `index`."""

    def set_samples(
        self, index: int, utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample]
    ) -> None:
        """What GPU `index` remembers, oldest first: (Unix time in microseconds, percent), and of its processes."""

    def set_busy(self, index: int, *, busy_us: int, at_us: int, instance: int | None = None) -> None:
        """How long GPU `index`, or one of its MIG instances, had worked by `at_us` (Unix time in microseconds)."""


class Feed:
    """Updates what one node shows. Safe to use from several threads."""

    def __init__(self, machine: Machine, sensors: Sensors, host: HostFiles) -> None:
        self._machine = machine
        self._sensors = sensors
        self._processes = GpuProcesses(machine.node, host)
        self._memories = [
            Memory(machine, index, pid=self._processes.pid) for index in range(len(machine.node.gpus))
        ]
        self._lock = threading.Lock()

    def show(self, now_s: float) -> None:
        """Show what is at `now_s` (Unix seconds); a process is in /proc before and after the driver lists it."""
        with self._lock:
            gpus = self._begin(now_s)
            for index, gpu in enumerate(gpus):
                self._show_readings(index, now_s)
                self._sensors.set_processes(index, self._processes.on_gpu(gpu))
                self._show_counts(index, now_s)
                self._show_samples(index)
            self._processes.end(itertools.chain.from_iterable(gpus))

    def count(self, now_s: float) -> None:
        """Show how long the GPUs have worked by `now_s`, and nothing else of it."""
        with self._lock:
            self._begin(now_s)
            for index in range(len(self._memories)):
                self._show_counts(index, now_s)

    def _begin(self, now_s: float) -> list[tuple[Presence, ...]]:
        """The tenants of each GPU; new ones get their process before the first sample."""
        gpus = [self._machine.present(index, now_s) for index in range(len(self._memories))]
        self._processes.begin(itertools.chain.from_iterable(gpus), now_s=now_s)
        return gpus

    def _show_readings(self, index: int, now_s: float) -> None:
        self._sensors.set_gpu(index, self._machine.reading(index, now_s))
        for instance, shown in enumerate(self._machine.instances(index, now_s)):
            self._sensors.set_instance(
                index,
                instance,
                memory_used_bytes=shown.memory_used_bytes,
                activity_percent=shown.activity_percent,
            )

    def _show_samples(self, index: int) -> None:
        """Where the driver keeps them, which is not under MIG."""
        if not self._machine.node.gpus[index].mig:
            self._sensors.set_samples(
                index, self._memories[index].utilization, self._memories[index].processes
            )

    def _show_counts(self, index: int, now_s: float) -> None:
        """Of cards that have GPM to count."""
        memory = self._memories[index]
        memory.advance(now_s)
        if CARDS[self._machine.node.gpus[index].card].architecture < Architecture.HOPPER:
            return
        self._sensors.set_busy(index, busy_us=memory.busy_us, at_us=memory.at_us)
        for instance, busy_us in enumerate(memory.busy_instances_us):
            self._sensors.set_busy(index, busy_us=busy_us, at_us=memory.at_us, instance=instance)
