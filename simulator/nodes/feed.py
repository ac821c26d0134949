"""What a node's driver and host show at an instant: readings, processes and samples of each GPU, and /proc."""

import itertools
import threading
from collections.abc import Sequence
from typing import Protocol

from simulator.gpus import Process, ProcessSample, Reading
from simulator.gpus.cards import CARDS, Architecture
from simulator.nodes.gpuprocesses import GpuProcesses
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.machine import Machine
from simulator.nodes.sampling import Memory
from simulator.nodes.tenancy import Presence


class Sensors(Protocol):
    """The driver's side of the GPUs; `driver.Board` is one."""

    def set_gpu(self, index: int, reading: Reading) -> None:
        """What GPU `index` shows from now on."""

    def set_instance(
        self, index: int, instance: int, *, memory_used_bytes: int, activity_percent: int
    ) -> None:
        """What a MIG instance shows from now on."""

    def set_processes(self, index: int, processes: Sequence[Process]) -> None:
        """Who has a context on GPU `index` from now on."""

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
        """Who is on each GPU; who is new has its process before a sample is taken of it."""
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
