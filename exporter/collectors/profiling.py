"""Activity of the engines by the card's counters: per GPU and per MIG instance, on Hopper and later.

Unlike the share of time in utilization.py, it shows the share of the card that was active.
"""

from collections.abc import Callable

from exporter.collectors import Row, if_supported, split_by
from exporter.model import Kind, Metric, MetricName, MetricSet, Split
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import Field
from exporter.nvml.gpm import GpmMetric

_MIB = 1024 * 1024
_NEEDS = "Hopper+"


def _reader(metric: GpmMetric) -> Callable[[OpenDevice], float]:
    return lambda device: device.rate(metric)


def _share(
    name: str,
    metric: GpmMetric,
    help_: str,
    *,
    newer: str = "",
    full: bool = True,
    split: Callable[[OpenDevice, float], Split | None] | None = None,
) -> Row:
    """A share of time or of capacity: percent in NVML, a ratio in both generations of DCGM."""
    described = Metric(
        dcgm=MetricName(f"DCGM_FI_PROF_{name}", "ratio", per=100),
        dcgm_49=MetricName(f"DCGM_FI_PROF_{newer or name}", "ratio", per=100),
        kind=Kind.GAUGE,
        help=help_,
        source=f"nvmlGpmMetricsGet({metric.value})",
        within=MetricSet.FULL if full else MetricSet.DEFAULT,
        needs=_NEEDS,
    )
    return Row(described, _reader(metric), per_instance=True, split=split)


def _engine(kind: str, number: int, metric: GpmMetric, what: str) -> Row:
    described = Metric(
        dcgm=MetricName(f"DCGM_FI_PROF_{kind}{number}_ACTIVE", "ratio", per=100),
        dcgm_49=MetricName(f"DCGM_FI_PROF_{kind}_UTIL_{number}_RATIO", "ratio", per=100),
        kind=Kind.GAUGE,
        help=f"Share of time in which {what} {number} was active",
        source=f"nvmlGpmMetricsGet({metric.value})",
        within=MetricSet.FULL,
        needs=f"{_NEEDS}, some cards",
    )
    return Row(described, if_supported(_reader(metric)), per_instance=True)


def _nvlink(name: str, metric: GpmMetric, help_: str) -> Row:
    spelling = MetricName(f"DCGM_FI_PROF_{name}", "bytes/s", times=_MIB)
    source = f"nvmlGpmMetricsGet({metric.value})"
    described = Metric(spelling, spelling, Kind.GAUGE, help_, source, within=MetricSet.FULL, needs=_NEEDS)
    return Row(described, _reader(metric), per_instance=True)


def _pcie(name: str, metric: GpmMetric, field: Field, help_: str) -> Row:
    """PCIe traffic by GPM, before Hopper by a counter; not by nvmlDeviceGetPcieThroughput, which takes 20 ms."""
    spelling = MetricName(f"DCGM_FI_PROF_{name}", "bytes/s")
    source = f"nvmlGpmMetricsGet({metric.value}), before Hopper nvmlDeviceGetFieldValues({field.value})"
    return Row(
        Metric(spelling, spelling, Kind.GAUGE, help_, source),
        lambda device: device.traffic(metric, field),
        per_instance=True,
    )


ROWS = (
    _share(
        "GR_ENGINE_ACTIVE",
        GpmMetric.GRAPHICS_UTIL,
        "Share of time in which the graphics or compute engine was active",
        newer="GR_ENGINE_UTIL_RATIO",
        full=False,
        split=split_by(lambda use: use.recent_percent, lambda entry: entry.total.recent_percent),
    ),
    _share(
        "SM_ACTIVE",
        GpmMetric.SM_UTIL,
        "Share of time with work on an SM, as the mean of all SMs",
        newer="SM_UTIL_RATIO",
    ),
    _share("SM_OCCUPANCY", GpmMetric.SM_OCCUPANCY, "Resident warps, as a share of the maximum"),
    _share(
        "PIPE_TENSOR_ACTIVE",
        GpmMetric.ANY_TENSOR_UTIL,
        "Share of cycles in which the tensor cores were active",
        newer="TENSOR_UTIL_RATIO",
        full=False,
    ),
    _share(
        "DRAM_ACTIVE",
        GpmMetric.DRAM_BW_UTIL,
        "Share of cycles in which the memory interface was active",
        newer="DRAM_UTIL_RATIO",
        full=False,
    ),
    _share("PIPE_FP64_ACTIVE", GpmMetric.FP64_UTIL, "Share of cycles with active FP64 pipe"),
    _share("PIPE_FP32_ACTIVE", GpmMetric.FP32_UTIL, "Share of cycles with active FP32 pipe"),
    _share("PIPE_FP16_ACTIVE", GpmMetric.FP16_UTIL, "Share of cycles with active FP16 pipe"),
    _share("PIPE_INT_ACTIVE", GpmMetric.INTEGER_UTIL, "Share of cycles with active integer pipe"),
    _share("PIPE_TENSOR_IMMA_ACTIVE", GpmMetric.IMMA_TENSOR_UTIL, "Share of cycles with integer tensor work"),
    _share("PIPE_TENSOR_HMMA_ACTIVE", GpmMetric.HMMA_TENSOR_UTIL, "Share of cycles with FP16 tensor work"),
    _share("PIPE_TENSOR_DFMA_ACTIVE", GpmMetric.DFMA_TENSOR_UTIL, "Share of cycles with FP64 tensor work"),
    _pcie("PCIE_TX_BYTES", GpmMetric.PCIE_TX, Field.PCIE_TX_BYTES, "PCIe data sent, with headers"),
    _pcie("PCIE_RX_BYTES", GpmMetric.PCIE_RX, Field.PCIE_RX_BYTES, "PCIe data received, with headers"),
    _nvlink("NVLINK_TX_BYTES", GpmMetric.NVLINK_TX, "NVLink data sent"),
    _nvlink("NVLINK_RX_BYTES", GpmMetric.NVLINK_RX, "NVLink data received"),
    *(_engine("NVDEC", number, GpmMetric[f"NVDEC{number}"], "video decoder") for number in range(8)),
    *(_engine("NVJPG", number, GpmMetric[f"NVJPG{number}"], "JPEG engine") for number in range(8)),
    *(_engine("NVOFA", number, GpmMetric[f"NVOFA{number}"], "optical flow engine") for number in range(2)),
)
