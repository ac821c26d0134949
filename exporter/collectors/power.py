"""Power and energy of the whole board."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, Spelling
from exporter.nvml.devices import OpenDevice

ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_POWER_USAGE", "W", per=1000),
            dcgm_49=Spelling("DCGM_FI_DEV_BOARD_POWER_WATTS", "W", per=1000),
            kind=Kind.GAUGE,
            help="Power draw",
            source="nvmlDeviceGetPowerUsage",
        ),
        read=OpenDevice.power_mw,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ"),
            dcgm_49=Spelling("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "J", per=1000),
            kind=Kind.COUNTER,
            help="Total energy consumption since the driver was loaded",
            source="nvmlDeviceGetTotalEnergyConsumption",
        ),
        read=OpenDevice.energy_mj,
    ),
)
