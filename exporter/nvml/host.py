"""What an open device shares with the others of its session, and what outlives the cycle that it was opened in."""

import dataclasses

from exporter.accounts.books import Books
from exporter.nvml.clockevents import ClockEvents
from exporter.nvml.gpm import Gpm
from exporter.nvml.increases import Increases
from exporter.nvml.meter import Meter
from exporter.nvml.topology import Topology
from exporter.nvml.xids import XidLog


@dataclasses.dataclass(slots=True)
class Host:
    """A node's driver, as the devices see it.

    Attributes:
        meter: Looks at what the devices do.
        books: Who used how much of them, as of the last cycle.
        gpm: Samples of performance counters.
        increases: Readings of counters whose rate is wanted.
        clock_events: Why clocks were held down, within the last minutes.
        topology: How the GPUs are connected.
        xids: XID errors so far.
        driver_version: Such as "570.133.20".
        cuda_version: Such as "12.8"; empty where the driver does not say.
        serial_numbers: Whether the GPUs may tell theirs.
    """

    meter: Meter
    books: Books = dataclasses.field(default_factory=Books)
    gpm: Gpm = dataclasses.field(default_factory=Gpm)
    increases: Increases = dataclasses.field(default_factory=Increases)
    clock_events: ClockEvents = dataclasses.field(default_factory=ClockEvents)
    topology: Topology = dataclasses.field(default_factory=Topology)
    xids: XidLog = dataclasses.field(default_factory=XidLog)
    driver_version: str = ""
    cuda_version: str = ""
    serial_numbers: bool = False

    def forget(self) -> None:
        """Give back what the driver library holds, before it is closed."""
        self.gpm.clear()
        self.meter.clear()
        self.increases.clear()
        self.topology.forget()
