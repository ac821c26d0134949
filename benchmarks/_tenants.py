"""The processes of the pods on a simulated node: in its /proc, in the driver's lists, and in the driver's samples.

Each pod has some on every device that it holds. Knows neither the exporter nor what is measured.
"""

import pathlib
import random
import time
import uuid
from collections.abc import Sequence

from simulator.gpus import Board, Process, ProcessSample
from simulator.gpus.groundtruth import SAMPLE_DEPTH, SAMPLE_PERIOD_US
from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles
from simulator.nodes.kubelet import PodDevices
from simulator.spec import NodeSpec

_FIRST_PID = 10_000
_AGE_S = 60.0
_MEMORY_BYTES = 512 * 2**20
_BUSY_PERCENT = 84
_US_PER_S = 1_000_000
_Device = tuple[int, int | None]
"""A GPU, and of a MIG instance its number."""


class Tenants:
    """Who is on the GPUs of a node.

    Args:
        folder: For the host's files.
        each: How many processes each container has on a device.
    """

    def __init__(self, folder: pathlib.Path, spec: NodeSpec, board: Board, *, each: int) -> None:
        self.host = HostFiles(folder / "proc", folder / "log")
        self.cuts: dict[int, int] = {}
        self._spec = spec
        self._board = board
        self._each = each
        self._next = _FIRST_PID
        self._pids: dict[tuple[Container, _Device], list[int]] = {}
        self._pods: set[str] = set()
        for index, gpu in enumerate(spec.gpus):
            self._work(index, len(gpu.mig))

    def cut(self, gpu: int, profiles: tuple[str, ...]) -> None:
        """Another MIG layout for a GPU; the processes on it end."""
        for container, device in [key for key in self._pids if key[1][0] == gpu]:
            self._end(container, device)
        self._board.set_mig(gpu, profiles)
        self._work(gpu, len(profiles))

    def settle(self, pods: Sequence[PodDevices]) -> None:
        """Let every pod have its processes, and nobody else any."""
        devices = self._devices()
        wanted = {
            (_container(pod, name), devices[id_.partition("::")[0]])
            for pod in pods
            for name, allocations in pod.containers
            for allocation in allocations
            for id_ in allocation.device_ids
            if id_.partition("::")[0] in devices
        }
        for container, device in self._pids.keys() - wanted:
            self._end(container, device)
        for gone in self._pods - {container.uid for container, _ in wanted}:
            self.host.forget(gone)
        self._pods = {container.uid for container, _ in wanted}
        for container, device in sorted(wanted - self._pids.keys(), key=str):
            self._begin(container, device)
        for gpu in self.cuts:
            self._board.set_processes(gpu, self._on(gpu))
        self.advance()

    def restart(self, draw: random.Random) -> None:
        """The processes of one container end, and others begin in it."""
        if self._pids:
            container, device = draw.choice(sorted(self._pids, key=str))
            self._end(container, device)
            self._begin(container, device)
            self._board.set_processes(device[0], self._on(device[0]))

    def ids(self, gpu: int) -> list[str]:
        """The devices that a GPU is now: itself, or its MIG instances."""
        return [uuid for uuid, (index, _) in self._devices().items() if index == gpu]

    def advance(self) -> None:
        """Let the driver have the samples of the last seconds."""
        now_us = int(time.time() * _US_PER_S)
        last = now_us // SAMPLE_PERIOD_US
        ends = [number * SAMPLE_PERIOD_US for number in range(last - SAMPLE_DEPTH + 1, last + 1)]
        for gpu, instances in self.cuts.items():
            if instances:
                continue
            pids = [process.pid for process in self._on(gpu)]
            share = _BUSY_PERCENT // len(pids) if pids else 0
            samples = [ProcessSample(end, pid, share) for end in ends for pid in pids]
            self._board.set_samples(gpu, [(end, share * len(pids)) for end in ends], samples)

    def _work(self, gpu: int, instances: int) -> None:
        """Let a GPU's MIG instances be at work; GPM says so."""
        self.cuts[gpu] = instances
        for number in range(instances):
            self._board.set_instance(
                gpu, number, memory_used_bytes=_MEMORY_BYTES, activity_percent=_BUSY_PERCENT
            )

    def _begin(self, container: Container, device: _Device) -> None:
        pids = range(self._next, self._next + self._each)
        self._next = pids.stop
        for pid in pids:
            self.host.start(pid, container, started_s=time.time() - _AGE_S)
        self._pids[container, device] = list(pids)

    def _end(self, container: Container, device: _Device) -> None:
        for pid in self._pids.pop((container, device)):
            self.host.end(pid)

    def _on(self, gpu: int) -> list[Process]:
        return [
            Process(pid, _MEMORY_BYTES, instance=instance)
            for (_, (index, instance)), pids in self._pids.items()
            for pid in pids
            if index == gpu
        ]

    def _devices(self) -> dict[str, _Device]:
        """By their UUIDs, as they are cut now."""
        found: dict[str, _Device] = {}
        for gpu, instances in self.cuts.items():
            if not instances:
                found[self._spec.gpu_uuid(gpu)] = gpu, None
            found |= {self._spec.mig_uuid(gpu, number): (gpu, number) for number in range(instances)}
        return found


def _container(pod: PodDevices, name: str) -> Container:
    uid = uuid.uuid5(uuid.NAMESPACE_DNS, f"{pod.namespace}/{pod.name}")
    return Container(pod.namespace, pod.name, str(uid), name)
