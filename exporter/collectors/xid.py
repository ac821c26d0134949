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
_TEXTS: Mapping[str, Sequence[int]] = {
    "No Error": (0,),
    "Invalid or corrupted push buffer stream": (1, 2, 3, 4, 6, 11, 25, 32),
    "Invalid or corrupted push buffer address": (7,),
    "GPU stopped processing": (8, 43, 46),
    "Driver error programming the GPU": (9,),
    "Driver error handling a GPU exception": (12,),
    "Graphics Engine Exception": (13,),
    "Display engine hung": (16,),
    "PCI bus mastering is disabled": (18,),
    "Display Engine error": (19, 56),
    "Invalid or corrupted push buffer of a video engine": (20, 21, 22),
    "GPU semaphore timeout": (24,),
    "Framebuffer timeout": (26,),
    "Video processor exception": (27, 28, 29, 34, 35, 36, 42, 47, 60, 65),
    "GPU semaphore access error": (30,),
    "GPU memory page fault": (31,),
    "Internal micro-controller error": (33, 59),
    "Driver firmware error": (37, 38),
    "Graphics Engine fault during context switch": (44,),
    "Preemptive cleanup, due to previous errors": (45,),
    "Double Bit ECC Error": (48,),
    "Auxiliary power is not connected to the GPU board": (54,),
    "Error programming video memory interface": (57,),
    "Unstable video memory interface detected": (58,),
    "Internal micro-controller breakpoint/warning": (61,),
    "Internal micro-controller halt": (62, 169),
    "ECC page retirement or row remapping recording event": (63,),
    "ECC page retirement or row remapper recording failure": (64,),
    "Illegal access by driver": (66, 67),
    "NVDEC0 Exception": (68,),
    "Graphics Engine class error": (69,),
    "Copy engine error": (*range(70, 73), *range(75, 78), 85, *range(126, 136)),
    "NVENC2 Error": (73,),
    "NVLINK Error": (74,),
    "vGPU start error": (78,),
    "GPU has fallen off the bus": (79,),
    "Corrupted data sent to GPU": (80,),
    "VGA subsystem error": (81,),
    "JPEG decoder error": (82, *range(99, 106)),
    "Video decoder error": (83, 84, 88, 89, *range(96, 99)),
    "Optical flow accelerator error": (86, 139),
    "High single-bit ECC error rate": (92,),
    "Non-fatal violation of provisioned InfoROM wear limit": (93,),
    "Contained ECC error": (94,),
    "Uncontained ECC error": (95,),
    "SMBus test message": (106, 107),
    "Context Switch Timeout Error": (109,),
    "Security fault": (110,),
    "Display pipeline error": range(111, 119),
    "GSP RPC Timeout": (119,),
    "GSP Error": (120,),
    "C2C Link Error": (121,),
    "Failed access of the power controller to the SPI flash": (122, 123, 124),
    "InfoROM file system failure": (125,),
    "NVLink training failed": (136,),
    "NVLink privilege error": (137,),
    "Deep learning accelerator error": (138, 152, 153),
    "Unrecovered ECC Error": (140,),
    "Fast path error": (141,),
    "NVENC3 error": (142,),
    "GPU Initialization Error": (143,),
    "NVLink hardware error": range(144, 151),
    "Key rotation error": (151,),
    "GPU Recovery Action Changed": (154,),
    "NVLink error defined by software": (155,),
    "Resource retired": (156,),
    "Resource retirement failed": (157,),
    "GPU fatal timeout": (158,),
    "CHI protocol error": (159,),
    "Memory channel retired": (160,),
    "Memory channel retirement failed": (161,),
    "Power smoothing enabled again": (162,),
    "Power smoothing disabled": (163,),
    "Power smoothing hardware is near its end of life": (164,),
    "Power smoothing hardware is at its end of life": (165,),
    "NVLink encryption error": (166,),
    "PCIe fatal timeout": (167,),
    "GPU memory capacity reduced by errors in the write-protected region": (168,),
    "NVLink interrupt in confidential computing mode": (170,),
    "Uncorrectable DRAM error": (171,),
    "Uncorrectable SRAM error": (172,),
}
"""The codes with a meaning in dcgm-exporter 4.8.2 (xid_errors.go), which leaves out those that NVIDIA reserves."""
_MEANING = {code: meaning for meaning, codes in _TEXTS.items() for code in codes}


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
