"""What is observed of a device between two looks at it, and who a process turned out to be. Records only."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import NamedTuple

from exporter.errors import ReadingError
from exporter.model import Device

PERCENT_US_PER_S = 100_000_000
"""Busy time is counted in percent of microseconds, whole: so that nothing is lost to rounding, however it is shared."""


class Source(enum.Enum):
    """Where a device's busy time comes from.

    SAMPLES: the driver's buffer of samples. GPM: the card's own counters. TICKS: its utilization at each look.
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


class Listed(NamedTuple):
    """A process on a device. `memory_bytes` is None where the driver does not say."""

    pid: int
    memory_bytes: int | None


class Part(enum.Enum):
    """What can be known of a device, or fail, by itself. SHARES: what of its busy time is whose."""

    BUSY = "busy"
    SHARES = "shares"
    PROCESSES = "processes"
    ENERGY = "energy"


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """What a look at a device brought, since the look before.

    Attributes:
        key: Which device it is.
        at_us: When, in microseconds by a clock that is never set.
        source: Where its busy time comes from; None where the driver does not say how busy it is.
        slices: Its busy time, ascending; not those that were lost.
        gaps: How many stretches were lost: samples overwritten before they were read, or nonsensical.
        gap_us: How long they were together, in microseconds.
        samples: The processes' part in the slices; None where the driver does not say it by process.
        processes: Who has a context on it; None where the driver does not say.
        memory_used_bytes: In use; None where the driver does not say.
        energy_mj: Used since the driver was loaded, in millijoules; None where the driver does not say.
        errors: Why something is not known.
    """

    key: str
    at_us: int
    source: Source | None = None
    slices: tuple[Slice, ...] = ()
    gaps: int = 0
    gap_us: int = 0
    samples: tuple[ProcessSample, ...] | None = None
    processes: tuple[Listed, ...] | None = None
    memory_used_bytes: int | None = None
    energy_mj: int | None = None
    errors: Mapping[Part, ReadingError] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A device, and what it did since it was last observed."""

    device: Device
    observation: Observation


class Holder(NamedTuple):
    """A container of a pod; `container` is empty where it is not known which one it is."""

    namespace: str
    pod: str
    container: str


Who = Holder | str
"""Whose something is: a container's, or nobody's, for a reason."""

UNSAMPLED = "unsampled"
"""The device was busy, and the driver does not say with whose work."""
SHARED = "shared"
"""Several might have been at work, and the driver does not tell them apart."""
GAP = "gap"
"""Nobody knows how busy the device was."""
CUT = "mig"
"""The device's MIG instances were at work, which have accounts of their own."""
OFF = "off"
"""Processes cannot be told apart on this node."""
UNNAMED = "unnamed_pod"
"""A pod's, of which only the UID is known."""
MPS_SERVER = "mps_server"
"""What MPS needs for itself."""
NO_PROCESS = "no_process"
"""Memory in use that is no process's: the driver's own, or of processes that it does not list."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """How much somebody used of a device, since he or the exporter came, whichever was later.

    Attributes:
        busy_s: For how long the device worked for him, in seconds; None where that cannot be known.
        recent_percent: The same as a share of the last cycle, in percent.
        energy_j: Of the device's energy, the part of the time in which it worked for him, in joules.
        memory_bytes: Held now; None where the driver does not say.
        memory_byte_s: Its integral over time, in byte seconds.
        processes: How many; None where they are not known.
        last_active_s: When the device last worked for him, in Unix seconds; None where it has not.
    """

    busy_s: float | None = None
    recent_percent: float | None = None
    energy_j: float | None = None
    memory_bytes: int | None = None
    memory_byte_s: float | None = None
    processes: int | None = None
    last_active_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A device.

    Attributes:
        source: Where its busy time comes from; None where it is not known.
        is_exact: Whether samples of processes say each period's shares; None where there are none.
        whole: The device's own use; `energy_j` is all of it.
        idle_energy_j: The part of the time in which it did not work.
        gaps: How many stretches of time were lost.
        gap_s: How long they were together, in seconds.
        holders: Use by container.
        rest: Use by nobody who is known, by reason.
        errors: Why something is not known.
    """

    source: Source | None
    is_exact: bool | None
    whole: Use
    idle_energy_j: float | None
    gaps: int
    gap_s: float
    holders: Mapping[Holder, Use]
    rest: Mapping[str, Use]
    errors: Mapping[Part, ReadingError]


@dataclasses.dataclass(slots=True)
class Books:
    """All devices, by key; exchanged as a whole, so that readers see one instant."""

    entries: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
