"""Framebuffer memory, of whole GPUs and of MIG instances. Free, used and reserved add up to the total."""

from collections.abc import Callable

from exporter.collectors import Row, split_by
from exporter.errors import ReadingError, Reason
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice

_MIB = 1024 * 1024


def _reserved(device: OpenDevice) -> float:
    reserved = device.memory().reserved
    if reserved is None:
        raise ReadingError(
            f"reading reserved memory of {device.name}", Reason.NOT_SUPPORTED, "needs driver 510 or later"
        )
    return reserved


def _used_ratio(device: OpenDevice) -> float:
    memory = device.memory()
    return memory.used / (memory.total - _reserved(device))


def _bar1(name: str, newer: str, words: str, read: Callable[[OpenDevice], float]) -> Row:
    metric = Metric(
        dcgm=MetricName(f"DCGM_FI_DEV_BAR1_{name}", "MiB", per=_MIB, whole=True),
        dcgm_49=MetricName(f"DCGM_FI_DEV_BAR1_{newer}_BYTES", "bytes"),
        kind=Kind.GAUGE,
        help=f"BAR1 memory {words}",
        source=f"nvmlDeviceGetBAR1MemoryInfo().bar1{name.capitalize()}",
        within=MetricSet.FULL,
    )
    return Row(metric, read)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FB_FREE", "MiB", per=_MIB, whole=True),
            dcgm_49=MetricName("DCGM_FI_DEV_FB_FREE_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory free",
            source="nvmlDeviceGetMemoryInfo_v2().free",
            within=MetricSet.MINIMAL,
        ),
        read=lambda device: device.memory().free,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FB_USED", "MiB", per=_MIB, whole=True),
            dcgm_49=MetricName("DCGM_FI_DEV_FB_USED_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory used",
            source="nvmlDeviceGetMemoryInfo_v2().used",
            within=MetricSet.MINIMAL,
        ),
        read=lambda device: device.memory().used,
        per_instance=True,
        split=split_by(lambda use: use.memory_bytes),
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FB_RESERVED", "MiB", per=_MIB, whole=True),
            dcgm_49=MetricName("DCGM_FI_DEV_FB_RESERVED_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory reserved for the driver",
            source="nvmlDeviceGetMemoryInfo_v2().reserved",
        ),
        read=_reserved,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FB_TOTAL", "MiB", per=_MIB, whole=True),
            dcgm_49=MetricName("DCGM_FI_DEV_FB_CAPACITY_BYTES", "bytes"),
            kind=Kind.GAUGE,
            help="Framebuffer memory in total",
            source="nvmlDeviceGetMemoryInfo_v2().total",
        ),
        read=lambda device: device.memory().total,
        per_instance=True,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_FB_USED_PERCENT", "ratio"),
            dcgm_49=MetricName("DCGM_FI_DEV_FB_USED_RATIO", "ratio"),
            kind=Kind.GAUGE,
            help="Framebuffer memory used, as a share of unreserved memory",
            source="nvmlDeviceGetMemoryInfo_v2(): used / (total - reserved)",
            within=MetricSet.FULL,
        ),
        read=_used_ratio,
        per_instance=True,
    ),
    _bar1("TOTAL", "CAPACITY", "in total", lambda device: device.bar1().total),
    _bar1("USED", "USED", "used", lambda device: device.bar1().used),
    _bar1("FREE", "FREE", "free", lambda device: device.bar1().free),
)
