"""Temperatures of the GPU die and of its memory."""

from exporter.collectors import Row, gauge
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice, TemperatureThreshold


def _threshold(name: str, threshold: TemperatureThreshold, help_: str) -> Row:
    def read(device: OpenDevice) -> float:
        return device.threshold_c(threshold)

    spelling = MetricName(f"DCGM_FI_DEV_{name}", "C")
    source = f"nvmlDeviceGetTemperatureThreshold({threshold.value})"
    return gauge(spelling, help_, source, read)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_GPU_TEMP", "C"),
            dcgm_49=MetricName("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "C"),
            kind=Kind.GAUGE,
            help="GPU temperature",
            source="nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU)",
            within=MetricSet.MINIMAL,
        ),
        read=OpenDevice.temperature_c,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_MEMORY_TEMP", "C"),
            dcgm_49=MetricName("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", "C"),
            kind=Kind.GAUGE,
            help="Memory temperature",
            source="nvmlDeviceGetFieldValues(NVML_FI_DEV_MEMORY_TEMP)",
        ),
        read=OpenDevice.memory_temperature_c,
    ),
    _threshold(
        "SHUTDOWN_TEMP", TemperatureThreshold.SHUTDOWN, "GPU temperature at which the card shuts down"
    ),
    _threshold(
        "SLOWDOWN_TEMP", TemperatureThreshold.SLOWDOWN, "GPU temperature at which the card slows down"
    ),
    _threshold("GPU_MAX_OP_TEMP", TemperatureThreshold.GPU_MAXIMUM, "Maximum operating GPU temperature"),
    _threshold(
        "MEM_MAX_OP_TEMP", TemperatureThreshold.MEMORY_MAXIMUM, "Maximum operating memory temperature"
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FAN_SPEED", "%"),
            dcgm_49=MetricName("DCGM_FI_DEV_FAN_SPEED_RATIO", "ratio", per=100),
            kind=Kind.GAUGE,
            help="Fan speed",
            source="nvmlDeviceGetFanSpeed",
            within=MetricSet.FULL,
            needs="cards with a fan",
        ),
        read=OpenDevice.fan_percent,
    ),
)
