"""XID errors from NVML's events: the last one, the number in the last minutes, and the total.

Their meaning: https://docs.nvidia.com/deploy/xid-errors/
"""

from collections.abc import Callable, Mapping, Sequence

from exporter.collectors import Point, Row
from exporter.model import Kind, Metric, MetricName
from exporter.nvml.devices import OpenDevice
from exporter.nvml.xids import WINDOW_S, XidCount

_SOURCE = "nvmlEventSetWait_v2"
_WINDOW = {"window_size_in_ms": str(round(WINDOW_S * 1000))}
_UNKNOWN = "Unknown Error"
_MEANING: Mapping[int, str] = {
    0: "No Error",
    8: "GPU stopped processing",
    13: "Graphics Engine Exception",
    16: "Display engine hung",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing",
    44: "Graphics Engine fault during context switch",
    45: "Preemptive cleanup, due to previous errors",
    46: "GPU stopped processing",
    48: "Double Bit ECC Error",
    54: "Auxiliary power is not connected to the GPU board",
    56: "Display Engine error",
    57: "Error programming video memory interface",
    58: "Unstable video memory interface detected",
    61: "Internal micro-controller breakpoint/warning",
    62: "Internal micro-controller halt",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    65: "Video processor exception",
    66: "Illegal access by driver",
    67: "Illegal access by driver",
    68: "NVDEC0 Exception",
    69: "Graphics Engine class error",
    73: "NVENC2 Error",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    92: "High single-bit ECC error rate",
    93: "Non-fatal violation of provisioned InfoROM wear limit",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    109: "Context Switch Timeout Error",
    119: "GSP RPC Timeout",
    120: "GSP Error",
    121: "C2C Link Error",
    140: "Unrecovered ECC Error",
    143: "GPU Initialization Error",
    154: "GPU Recovery Action Changed",
}


def _error(code: int) -> dict[str, str]:
    return {"err_code": str(code), "err_msg": _MEANING.get(code, _UNKNOWN)}


def _last(device: OpenDevice) -> Sequence[Point]:
    code = device.xids().last
    return [Point(code, _error(code))]


def _each(
    value: Callable[[XidCount], float], more: Mapping[str, str] | None = None
) -> Callable[[OpenDevice], Sequence[Point]]:
    def read(device: OpenDevice) -> Sequence[Point]:
        return [
            Point(value(count), {"xid": str(code), **_error(code), **(more or {})})
            for code, count in sorted(device.xids().by_code.items())
        ]

    return read


def _unchanged(name: str, kind: Kind, help_: str, read: Callable[[OpenDevice], Sequence[Point]]) -> Row:
    spelling = MetricName(name, "s" if name.endswith("seconds") else "")
    return Row(Metric(spelling, spelling, kind, help_, _SOURCE), read, per_instance=True)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_XID_ERRORS", ""),
            dcgm_49=MetricName("DCGM_FI_DEV_XID_ERROR", ""),
            kind=Kind.GAUGE,
            help="Code of the last XID error since the exporter started, 0 before the first",
            source=_SOURCE,
        ),
        _last,
        per_instance=True,
    ),
    _unchanged(
        "DCGM_EXP_XID_ERRORS_COUNT",
        Kind.GAUGE,
        "XID errors within the window",
        _each(lambda count: count.recent, _WINDOW),
    ),
    _unchanged(
        "DCGM_EXP_XID_ERRORS_TOTAL",
        Kind.COUNTER,
        "XID errors since the exporter started",
        _each(lambda count: count.total),
    ),
    _unchanged(
        "gpu_xid_last_timestamp_seconds",
        Kind.GAUGE,
        "Time of the last XID error of each code, in Unix time",
        _each(lambda count: count.last_s),
    ),
)
