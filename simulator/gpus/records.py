"""What a board holds of its GPUs: measurements, processes, MIG instances."""

import dataclasses
import enum
import math
from typing import Self

from simulator.gpus.cards import Card, MigProfile

_MAX_UINT = 2**32 - 1


class ProcessKind(enum.Enum):
    """How a process uses a GPU; NVML lists each kind by a function of its own."""

    COMPUTE = 0
    GRAPHICS = 1
    MPS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a context on a GPU; `instance` is the MIG instance (0-based), None without MIG."""

    pid: int
    memory_used_bytes: int
    kind: ProcessKind = ProcessKind.COMPUTE
    instance: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessSample:
    """What a process did with a GPU's engines in the period that ended at `at_us` (Unix time, microseconds)."""

    at_us: int
    pid: int
    sm_percent: int
    memory_percent: int = 0
    encoder_percent: int = 0
    decoder_percent: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BusyCounter:
    """For how long a GPU or a MIG instance has worked, as counted until `at_us`."""

    busy_us: int
    at_us: int


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a GPU measures at an instant; `energy_j` since the driver was loaded."""

    gpu_util_percent: int
    memory_util_percent: int
    memory_used_bytes: int
    temperature_c: int
    memory_temperature_c: int
    power_w: float
    energy_j: float
    sm_clock_mhz: int
    mem_clock_mhz: int

    @classmethod
    def idle(cls, card: Card) -> Self:
        """An idle card."""
        return cls(
            gpu_util_percent=0,
            memory_util_percent=0,
            memory_used_bytes=0,
            temperature_c=30,
            memory_temperature_c=34,
            power_w=card.idle_power_w,
            energy_j=0.0,
            sm_clock_mhz=card.idle_sm_clock_mhz,
            mem_clock_mhz=card.idle_mem_clock_mhz,
        )

    def problems(self, card: Card) -> list[str]:
        """What `card` could never measure, in words; nothing if it could."""
        limits: dict[str, float] = {
            "gpu_util_percent": 100,
            "memory_util_percent": 100,
            "memory_used_bytes": card.usable_bytes,
            "temperature_c": 200,
            "memory_temperature_c": 200,
            "power_w": _MAX_UINT / 1000,
            "energy_j": math.inf,
            "sm_clock_mhz": card.max_sm_clock_mhz,
            "mem_clock_mhz": card.max_mem_clock_mhz,
        }
        return [
            f"{name} is {getattr(self, name)}, not within 0 and {limit}"
            for name, limit in limits.items()
            if not 0 <= getattr(self, name) <= limit or math.isinf(getattr(self, name))
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance as it stands."""

    uuid: str
    profile: MigProfile
    gpu_instance_id: int
    start: int = 0
    memory_used_bytes: int = 0
    activity_percent: int = 0
    busy: BusyCounter | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as it stands; `generation` counts how often it was cut."""

    card: Card
    reading: Reading
    instances: tuple[Instance, ...]
    generation: int
    busy: BusyCounter | None = None

    def with_instance(self, number: int, instance: Instance) -> Self:
        """The GPU with another record of its MIG instance `number` (0-based)."""
        instances = (*self.instances[:number], instance, *self.instances[number + 1 :])
        return dataclasses.replace(self, instances=instances)
