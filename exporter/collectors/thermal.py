"""Temperatures of the GPU die and of its memory."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricSet, Spelling
from exporter.nvml.devices import OpenDevice, Threshold

_FAN = Spelling("DCGM_FI_DEV_FAN_SPEED", "%")


def _threshold(name: str, threshold: Threshold, help_: str) -> Row:
    def read(device: OpenDevice) -> float:
        return device.threshold_c(threshold)

    spelling = Spelling(f"DCGM_FI_DEV_{name}", "C")
    source = f"nvmlDeviceGetTemperatureThreshold({threshold.value})"
    return Row(Metric(spelling, spelling, Kind.GAUGE, help_, source, within=MetricSet.FULL), read)


ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_GPU_TEMP", "C"),
            dcgm_49=Spelling("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "C"),
            kind=Kind.GAUGE,
            help="GPU temperature",
            source="nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU)",
            within=MetricSet.MINIMAL,
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
    _threshold("SHUTDOWN_TEMP", Threshold.SHUTDOWN, "GPU temperature at which the card shuts down"),
    _threshold("SLOWDOWN_TEMP", Threshold.SLOWDOWN, "GPU temperature at which the card slows down"),
    _threshold("GPU_MAX_OP_TEMP", Threshold.GPU_MAXIMUM, "Highest GPU temperature to work at"),
    _threshold("MEM_MAX_OP_TEMP", Threshold.MEMORY_MAXIMUM, "Highest memory temperature to work at"),
    Row(
        Metric(
            _FAN,
            _FAN,
            Kind.GAUGE,
            "Fan speed",
            "nvmlDeviceGetFanSpeed",
            MetricSet.FULL,
            needs="cards with a fan of their own",
        ),
        read=OpenDevice.fan_percent,
    ),
)
