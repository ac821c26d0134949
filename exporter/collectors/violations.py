"""For how long the clocks were held down, by what."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricSet, Spelling
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fields import Field

_NS_PER_S = 1_000_000_000


def _row(old: str, new: str, field: Field, reason: str) -> Row:
    def read(device: OpenDevice) -> float:
        return device.field(field)

    metric = Metric(
        dcgm=Spelling(f"DCGM_FI_DEV_{old}_VIOLATION", "ns"),
        dcgm_49=Spelling(f"DCGM_FI_DEV_GPU_{new}_THROTTLE_SECONDS_TOTAL", "s", per=_NS_PER_S),
        kind=Kind.COUNTER,
        help=f"Time in which the clocks were held down {reason}",
        source=f"nvmlDeviceGetFieldValues({field.value})",
        within=MetricSet.FULL,
    )
    return Row(metric, read)


ROWS = (
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
)
