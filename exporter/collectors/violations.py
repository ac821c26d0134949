"""Time with reduced clocks, by reason."""

from collections.abc import Sequence

from exporter.collectors import Point, Row
from exporter.errors import ReadingError
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import Field

_NS_PER_S = 1_000_000_000


_REASONS = {
    "power": Field.VIOLATION_POWER,
    "thermal": Field.VIOLATION_THERMAL,
    "sync_boost": Field.VIOLATION_SYNC_BOOST,
    "board_limit": Field.VIOLATION_BOARD_LIMIT,
    "low_utilization": Field.VIOLATION_LOW_UTILIZATION,
    "reliability": Field.VIOLATION_RELIABILITY,
}


def _throttled(device: OpenDevice) -> Sequence[Point]:
    """One value for each reason that the card counts."""
    found: list[Point] = []
    missing: list[ReadingError] = []
    for reason, field in _REASONS.items():
        try:
            found.append(Point(device.field(field), {"reason": reason}))
        except ReadingError as error:
            missing.append(error)
    if missing and (not found or any(error.reason.is_failure for error in missing)):
        raise missing[0]
    return found


def _counter(old: MetricName, new: MetricName, field: Field, reason: str) -> Row:
    source = f"nvmlDeviceGetFieldValues({field.value})"
    metric = Metric(old, new, Kind.COUNTER, f"Time with clocks reduced {reason}", source, MetricSet.FULL)
    return Row(metric, lambda device: device.field(field))


def _row(old: str, new: str, field: Field, reason: str) -> Row:
    return _counter(
        MetricName(f"DCGM_FI_DEV_{old}_VIOLATION", "ns"),
        MetricName(f"DCGM_FI_DEV_GPU_{new}_THROTTLE_SECONDS_TOTAL", "s", per=_NS_PER_S),
        field,
        reason,
    )


def _event(name: str, field: Field, reason: str) -> Row:
    """One value for each clocks' event reason; newer drivers count them."""
    spelling = MetricName(f"DCGM_FI_DEV_CLOCKS_EVENT_REASON_{name}_NS", "ns")
    return _counter(spelling, spelling, field, reason)


_SECONDS = MetricName("gpu_throttle_seconds_total", "s", per=_NS_PER_S)
ROWS = (
    Row(
        Metric(
            _SECONDS,
            _SECONDS,
            Kind.COUNTER,
            help="Time with reduced clocks, by reason",
            source=f"nvmlDeviceGetFieldValues({', '.join(str(field.value) for field in _REASONS.values())})",
        ),
        _throttled,
    ),
    _row("POWER", "POWER", Field.VIOLATION_POWER, "by the power limit"),
    _row("THERMAL", "THERMAL", Field.VIOLATION_THERMAL, "by heat"),
    _row(
        "SYNC_BOOST",
        "SYNC_BOOST",
        Field.VIOLATION_SYNC_BOOST,
        "to stay with the other GPUs of a sync boost group",
    ),
    _row("BOARD_LIMIT", "LIMIT", Field.VIOLATION_BOARD_LIMIT, "by a limit of the board"),
    _row("LOW_UTIL", "LOW_UTIL", Field.VIOLATION_LOW_UTILIZATION, "for want of work"),
    _row("RELIABILITY", "RELIABILITY", Field.VIOLATION_RELIABILITY, "for reliability"),
    _row(
        "TOTAL_APP_CLOCKS",
        "APP",
        Field.BELOW_APPLICATION_CLOCKS,
        "below the application clocks, for any reason",
    ),
    _row("TOTAL_BASE_CLOCKS", "BASE", Field.BELOW_BASE_CLOCKS, "below the base clocks, for any reason"),
    _event("SW_POWER_CAP", Field.VIOLATION_POWER, "by the power limit"),
    _event("SYNC_BOOST", Field.VIOLATION_SYNC_BOOST, "to stay with the other GPUs of a sync boost group"),
    _event(
        "SW_THERM_SLOWDOWN", Field.SW_THERMAL_SLOWDOWN, "to stay below the highest temperature to work at"
    ),
    _event("HW_THERM_SLOWDOWN", Field.HW_THERMAL_SLOWDOWN, "by half or more because of heat"),
    _event(
        "HW_POWER_BRAKE_SLOWDOWN", Field.HW_POWER_BRAKE, "by half or more by the power brake of the machine"
    ),
)
