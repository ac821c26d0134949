"""Power and energy of the whole board."""

from collections.abc import Callable

from exporter.collectors import Row, gauge
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import Field

_CONSTRAINTS = "nvmlDeviceGetPowerManagementLimitConstraints"


def _limit(name: str, help_: str, source: str, read: Callable[[OpenDevice], float]) -> Row:
    spelling = MetricName(f"DCGM_FI_DEV_{name}", "W", per=1000)
    return gauge(spelling, help_, source, read)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_POWER_USAGE", "W", per=1000),
            dcgm_49=MetricName("DCGM_FI_DEV_BOARD_POWER_WATTS", "W", per=1000),
            kind=Kind.GAUGE,
            help="Power draw",
            source="nvmlDeviceGetPowerUsage",
            within=MetricSet.MINIMAL,
        ),
        read=OpenDevice.power_mw,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_POWER_USAGE_INSTANT", "W", per=1000),
            dcgm_49=MetricName("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS", "W", per=1000),
            kind=Kind.GAUGE,
            help="Power draw at the time of the reading",
            source=f"nvmlDeviceGetFieldValues({Field.POWER_INSTANT_MW.value})",
            within=MetricSet.FULL,
        ),
        read=lambda device: device.field(Field.POWER_INSTANT_MW),
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "mJ"),
            dcgm_49=MetricName("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", "J", per=1000),
            kind=Kind.COUNTER,
            help="Total energy consumption since the driver was loaded",
            source="nvmlDeviceGetTotalEnergyConsumption",
            within=MetricSet.MINIMAL,
        ),
        read=OpenDevice.energy_mj,
    ),
    Row(
        Metric(
            dcgm=MetricName("gpu_energy_joules_total", "J", per=1000),
            dcgm_49=MetricName("gpu_energy_joules_total", "J", per=1000),
            kind=Kind.COUNTER,
            help="Energy used by the GPU since the driver was loaded",
            source="nvmlDeviceGetTotalEnergyConsumption",
        ),
        read=OpenDevice.energy_mj,
    ),
    _limit("POWER_MGMT_LIMIT", "Power limit", "nvmlDeviceGetPowerManagementLimit", OpenDevice.power_limit_mw),
    _limit(
        "POWER_MGMT_LIMIT_MIN",
        "Minimum power limit",
        _CONSTRAINTS,
        lambda device: device.power_limit_bounds_mw().low,
    ),
    _limit(
        "POWER_MGMT_LIMIT_MAX",
        "Maximum power limit",
        _CONSTRAINTS,
        lambda device: device.power_limit_bounds_mw().high,
    ),
    _limit(
        "POWER_MGMT_LIMIT_DEF",
        "Default power limit",
        "nvmlDeviceGetPowerManagementDefaultLimit",
        OpenDevice.default_power_limit_mw,
    ),
    _limit(
        "ENFORCED_POWER_LIMIT",
        "Lowest of all active power limits",
        "nvmlDeviceGetEnforcedPowerLimit",
        OpenDevice.enforced_power_limit_mw,
    ),
)
