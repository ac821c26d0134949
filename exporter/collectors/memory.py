"""Framebuffer memory, of whole GPUs and of MIG instances. Free, used and reserved add up to the total."""

from exporter.collectors import Row
from exporter.errors import ReadingError, Reason
from exporter.model import Kind, Metric, Spelling
from exporter.nvml.devices import OpenDevice

_MIB = 1024 * 1024


def _free(device: OpenDevice) -> float:
    return device.memory().free


def _used(device: OpenDevice) -> float:
    return device.memory().used


def _reserved(device: OpenDevice) -> float:
    reserved = device.memory().reserved
    if reserved is None:
        raise ReadingError(
            f"reading reserved memory of {device.name}", Reason.NOT_SUPPORTED, "needs driver 510 or later"
        )
    return reserved


def _total(device: OpenDevice) -> float:
    return device.memory().total


ROWS = (
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_FB_FREE", "MiB", per=_MIB, whole=True),
            dcgm_49=Spelling("DCGM_FI_DEV_FB_FREE_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory free",
            source="nvmlDeviceGetMemoryInfo_v2().free",
        ),
        read=_free,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_FB_USED", "MiB", per=_MIB, whole=True),
            dcgm_49=Spelling("DCGM_FI_DEV_FB_USED_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory used",
            source="nvmlDeviceGetMemoryInfo_v2().used",
        ),
        read=_used,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_FB_RESERVED", "MiB", per=_MIB, whole=True),
            dcgm_49=Spelling("DCGM_FI_DEV_FB_RESERVED_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory reserved for the driver",
            source="nvmlDeviceGetMemoryInfo_v2().reserved",
        ),
        read=_reserved,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=Spelling("DCGM_FI_DEV_FB_TOTAL", "MiB", per=_MIB, whole=True),
            dcgm_49=Spelling("DCGM_FI_DEV_FB_CAPACITY_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory in total",
            source="nvmlDeviceGetMemoryInfo_v2().total",
        ),
        read=_total,
        per_instance=True,
    ),
)
