"""What a GPU remembers of the last seconds: samples of its utilization and processes, and its busy time."""

import collections
import dataclasses
import math
from collections.abc import Callable

from simulator.gpus import ProcessSample
from simulator.nodes.machine import Division, Machine
from simulator.nodes.tenancy import Presence

PERIOD_US = 166_667
"""Between two samples: six a second, as the driver takes them."""
KEPT = 96
"""Samples that a GPU keeps: 16 s."""
MAX_PROCESS_SAMPLES = 8192
_US = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    at_us: int
    percent: int
    processes: tuple[ProcessSample, ...]


class Memory:
    """What one GPU remembers; `pid` returns the process of a tenant, if it has one."""

    def __init__(self, machine: Machine, index: int, *, pid: Callable[[Presence], int | None]) -> None:
        self._machine = machine
        self._index = index
        self._pid = pid
        self._tick = math.ceil(machine.boot_s * _US / PERIOD_US) - 1
        self._samples: collections.deque[_Sample] = collections.deque(maxlen=KEPT)
        # In percents of microseconds, so that nothing is lost by rounding.
        self._busy = 0
        self._busy_instances = [0] * len(machine.node.gpus[index].mig)

    def advance(self, now_s: float) -> None:
        """Take the samples that have fallen due by `now_s` (Unix seconds), of the last seconds only."""
        newest = int(now_s * _US) // PERIOD_US
        for tick in range(max(self._tick + 1, newest - KEPT + 1), newest + 1):
            self._take(tick * PERIOD_US)
        self._tick = max(self._tick, newest)

    @property
    def at_us(self) -> int:
        """When the newest sample was taken: Unix time in microseconds."""
        return self._tick * PERIOD_US

    @property
    def utilization(self) -> list[tuple[int, int]]:
        """Of the whole GPU, oldest first: Unix time in microseconds, and percent."""
        return [(sample.at_us, sample.percent) for sample in self._samples]

    @property
    def processes(self) -> list[ProcessSample]:
        """Of the processes that were at work, oldest first; none of a GPU that is cut by MIG."""
        kept = [of_process for sample in self._samples for of_process in sample.processes]
        return kept[-MAX_PROCESS_SAMPLES:]

    @property
    def busy_us(self) -> int:
        """How long the GPU has worked, in microseconds since the first sample."""
        return self._busy // 100

    @property
    def busy_instances_us(self) -> list[int]:
        """Likewise of each MIG instance."""
        return [busy // 100 for busy in self._busy_instances]

    def _take(self, at_us: int) -> None:
        division = self._machine.division(self._index, at_us / _US)
        self._busy += division.percent * PERIOD_US
        if self._busy_instances:
            shown = self._machine.instances(self._index, at_us / _US)
            for number, instance in enumerate(shown):
                self._busy_instances[number] += instance.activity_percent * PERIOD_US
        self._samples.append(_Sample(at_us, division.percent, self._of_processes(at_us, division)))

    def _of_processes(self, at_us: int, division: Division) -> tuple[ProcessSample, ...]:
        shares: dict[int, int] = {}
        for presence, percent in division.shares:
            if not self._busy_instances and percent and (pid := self._pid(presence)) is not None:
                shares[pid] = shares.get(pid, 0) + percent
        # Kernels move memory for about half of their time.
        return tuple(
            ProcessSample(at_us, pid, percent, (percent + 1) // 2) for pid, percent in shares.items()
        )
