"""What is known of a device's use, and of each of its users, at one instant: what is published. Records only."""

import dataclasses
from collections.abc import Mapping

from exporter.accounts.records import Holder, Part, Source
from exporter.errors import ReadingError


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
