"""Errors on the links between GPUs, over all links of a GPU."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricSet, Spelling
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fields import Field


def _row(name: str, field: Field, what: str) -> Row:
    def read(device: OpenDevice) -> float:
        return device.field(field)

    spelling = Spelling(f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL", "errors")
    metric = Metric(
        spelling,
        spelling,
        kind=Kind.COUNTER,
        help=f"NVLink {what} errors",
        source=f"nvmlDeviceGetFieldValues({field.value})",
        within=MetricSet.FULL,
        needs="cards with NVLink",
    )
    return Row(metric, read)


ROWS = (
    _row("CRC_FLIT", Field.NVLINK_CRC_FLIT_ERRORS, "flow-control CRC"),
    _row("CRC_DATA", Field.NVLINK_CRC_DATA_ERRORS, "data CRC"),
    _row("REPLAY", Field.NVLINK_REPLAY_ERRORS, "replay"),
    _row("RECOVERY", Field.NVLINK_RECOVERY_ERRORS, "recovery"),
)
