"""Records of the observations of a device in one sample, and of its usage."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

from exporter.errors import ReadingError
from exporter.model import Device

PERCENT_US_PER_S = 100_000_000
"""Busy time is a whole number of percent of microseconds, so that splitting it loses nothing to rounding."""


class BusySource(enum.Enum):
    """Source of a device's busy time.

    SAMPLES: the driver's buffer of samples. GPM: the card's own counters. TICKS: its utilization at each sample.
    """

    SAMPLES = "samples"
    GPM = "gpm"
    TICKS = "ticks"


class Slice(NamedTuple):
    """A stretch of Unix time in microseconds, and how busy the device was in it, in percent of microseconds."""

    from_us: int
    to_us: int
    busy: int


class ProcessSample(NamedTuple):
    """A process's share of the device's time, in percent, in the sampling period that ended at `at_us` (Unix time)."""

    at_us: int
    pid: int
    percent: int
    # the same for memory, encoders and decoders; above 100 is unknown
    engines: tuple[int, int, int] = (0, 0, 0)


class DeviceProcess(NamedTuple):
    """A process on a device. `memory_bytes` is None if the driver does not report it."""

    pid: int
    memory_bytes: int | None


class UsagePart(enum.Enum):
    """Parts of an observation, each of which can fail alone. SHARES: busy time by process."""

    BUSY = "busy"
    SHARES = "shares"
    PROCESSES = "processes"
    ENERGY = "energy"


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """Everything that one sample of a device returned since the previous sample."""

    key: str
    at_us: int  # monotonic time in microseconds
    source: BusySource | None = None  # source of the busy time; None if the driver does not report it
    slices: tuple[Slice, ...] = ()  # busy time in ascending order, without gaps
    gaps: int = 0  # number of lost periods: samples overwritten before they were read, or invalid
    gap_us: int = 0  # total length of the gaps in microseconds
    # busy time by process; None if the driver does not report it by process
    samples: tuple[ProcessSample, ...] | None = None
    # processes with a context on the device; None if the driver does not list them
    processes: tuple[DeviceProcess, ...] | None = None
    memory_used_bytes: int | None = None  # None if the driver does not report it
    # energy since the driver was loaded in millijoules; None if the driver does not report it
    energy_mj: int | None = None
    # reasons for missing parts
    errors: Mapping[UsagePart, ReadingError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceObservation:
    """A device and its observation."""

    device: Device
    observation: Observation


class Holder(NamedTuple):
    """A container of a pod; `container` is empty if unknown."""

    namespace: str
    pod: str
    container: str


UsageOwner = Holder | str
"""The container that used something, or the reason why no container is known."""

UNSAMPLED = "unsampled"
"""The device was busy, and the driver reported no process."""
SHARED = "shared"
"""Several containers share the device, and the driver does not report usage by process."""
GAP = "gap"
"""The driver did not say how busy the device was."""
MIG_INSTANCES = "mig"
"""The device's MIG instances were busy; their usage is counted separately."""
ATTRIBUTION_OFF = "off"
"""Process attribution does not work on this node."""
UNKNOWN_POD = "unnamed_pod"
"""A pod of which only the UID is known."""
MPS_SERVER = "mps_server"
"""The MPS server's own usage."""
NO_PROCESS = "no_process"
"""Memory that no listed process uses: the driver's own, or that of unlisted processes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a device by one owner since the owner or the exporter started, whichever was later; None is unknown."""

    busy_s: float | None = None  # time in which the device worked for the owner, in seconds
    recent_percent: float | None = None  # busy time as a share of the last cycle
    energy_j: float | None = None  # the device's energy in that busy time, in joules
    memory_bytes: int | None = None  # memory used now
    memory_byte_s: float | None = None  # integral of the memory over time, in byte seconds
    processes: int | None = None
    # time in which memory, encoders and decoders worked for the owner, in seconds
    engines_s: tuple[float, ...] | None = None
    last_active_s: float | None = None  # Unix time in seconds at which the device last worked for the owner


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Usage of one device."""

    source: BusySource | None  # source of the busy time; None if unknown
    # whether process samples give the shares of each period; None if there are no process samples
    is_exact: bool | None
    total: Usage
    idle_energy_j: float | None  # energy while the device was idle, in joules
    gaps: int  # number of lost periods
    gap_s: float  # total length of the gaps in seconds
    containers: Mapping[Holder, Usage]  # usage by container
    unattributed: Mapping[str, Usage]  # usage of no known container, by reason
    errors: Mapping[UsagePart, ReadingError]  # reasons for missing parts


@dataclasses.dataclass(slots=True)
class UsageTable:
    """Usage by device key; replaced as a whole, so that readers see one instant."""

    devices: Mapping[str, DeviceUsage] = dataclasses.field(default_factory=dict)
