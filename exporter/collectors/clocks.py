"""Current clock frequencies."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, Spelling
from exporter.nvml.devices import OpenDevice

_HZ_PER_MHZ = 1_000_000

ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_SM_CLOCK", "MHz"),
            dcgm_49=Spelling("DCGM_FI_DEV_SM_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="SM clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
        ),
        read=OpenDevice.sm_clock_mhz,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_MEM_CLOCK", "MHz"),
            dcgm_49=Spelling("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", "Hz", times=_HZ_PER_MHZ),
            kind=Kind.GAUGE,
            help="Memory clock frequency",
            source="nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
        ),
        read=OpenDevice.memory_clock_mhz,
    ),
)
