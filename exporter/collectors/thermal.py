"""Temperatures of the GPU die and of its memory."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, Spelling
from exporter.nvml.devices import OpenDevice

ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_GPU_TEMP", "C"),
            dcgm_49=Spelling("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "C"),
            kind=Kind.GAUGE,
            help="GPU temperature",
            source="nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU)",
        ),
        read=OpenDevice.temperature_c,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_MEMORY_TEMP", "C"),
            dcgm_49=Spelling("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "C"),
            kind=Kind.GAUGE,
            help="Memory temperature",
            source="nvmlDeviceGetFieldValues(NVML_FI_DEV_MEMORY_TEMP)",
        ),
        read=OpenDevice.memory_temperature_c,
    ),
)
