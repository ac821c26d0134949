"""GPU performance monitoring (Hopper and later): rates between the samples of two cycles.

A sample is a copy of the card's counters; NVML turns two of them into rates. The last sample of each device is kept
from one cycle to the next. (NVML API Reference Guide, GPM Functions)
"""

import contextlib
import enum
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pynvml

from exporter.errors import ReadingError, Reason
from exporter.nvml.codes import asking, translate


class GpmMetric(enum.IntEnum):
    """nvmlGpmMetricId_t: shares in percent, traffic in MiB/s."""

    GRAPHICS_UTIL = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    SM_OCCUPANCY = pynvml.NVML_GPM_METRIC_SM_OCCUPANCY
    INTEGER_UTIL = pynvml.NVML_GPM_METRIC_INTEGER_UTIL
    ANY_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    DFMA_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL
    HMMA_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL
    IMMA_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL
    DRAM_BW_UTIL = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    FP64_UTIL = pynvml.NVML_GPM_METRIC_FP64_UTIL
    FP32_UTIL = pynvml.NVML_GPM_METRIC_FP32_UTIL
    FP16_UTIL = pynvml.NVML_GPM_METRIC_FP16_UTIL
    PCIE_TX = pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC
    PCIE_RX = pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC
    NVLINK_RX = pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC
    NVLINK_TX = pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC
    NVDEC0 = pynvml.NVML_GPM_METRIC_NVDEC_0_UTIL
    NVDEC1 = pynvml.NVML_GPM_METRIC_NVDEC_1_UTIL
    NVDEC2 = pynvml.NVML_GPM_METRIC_NVDEC_2_UTIL
    NVDEC3 = pynvml.NVML_GPM_METRIC_NVDEC_3_UTIL
    NVDEC4 = pynvml.NVML_GPM_METRIC_NVDEC_4_UTIL
    NVDEC5 = pynvml.NVML_GPM_METRIC_NVDEC_5_UTIL
    NVDEC6 = pynvml.NVML_GPM_METRIC_NVDEC_6_UTIL
    NVDEC7 = pynvml.NVML_GPM_METRIC_NVDEC_7_UTIL
    NVJPG0 = pynvml.NVML_GPM_METRIC_NVJPG_0_UTIL
    NVJPG1 = pynvml.NVML_GPM_METRIC_NVJPG_1_UTIL
    NVJPG2 = pynvml.NVML_GPM_METRIC_NVJPG_2_UTIL
    NVJPG3 = pynvml.NVML_GPM_METRIC_NVJPG_3_UTIL
    NVJPG4 = pynvml.NVML_GPM_METRIC_NVJPG_4_UTIL
    NVJPG5 = pynvml.NVML_GPM_METRIC_NVJPG_5_UTIL
    NVJPG6 = pynvml.NVML_GPM_METRIC_NVJPG_6_UTIL
    NVJPG7 = pynvml.NVML_GPM_METRIC_NVJPG_7_UTIL
    NVOFA0 = pynvml.NVML_GPM_METRIC_NVOFA_0_UTIL
    NVOFA1 = pynvml.NVML_GPM_METRIC_NVOFA_1_UTIL


_TRAFFIC = {GpmMetric.PCIE_TX, GpmMetric.PCIE_RX, GpmMetric.NVLINK_RX, GpmMetric.NVLINK_TX}
_MOST_PERCENT = 101  # two clocks that differ slightly
_MOST_MIB_PER_S = 10_000_000  # five times the bandwidth of all NVLinks of a Blackwell GPU
Rates = Callable[[GpmMetric], float]
"""Returns one metric or raises ReadingError: most are not served, and each costs as much as the driver's call."""


class Gpm:
    """The last sample of each device, by a key that changes if the device is recreated.

    The key begins with the GPU's UUID and a slash. Each GPU has its own cache, because each has a thread.
    """

    def __init__(self, metrics: Sequence[GpmMetric] = tuple(GpmMetric)) -> None:
        """`metrics`: what is computed."""
        self._positions = {metric: position for position, metric in enumerate(metrics)}
        self._request = pynvml.c_nvmlGpmMetricsGet_t()  # without samples
        self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(metrics)
        for metric, position in self._positions.items():
            self._request.metrics[position].metricId = metric
        self._last: dict[str, dict[str, Any]] = {}

    def rates(self, key: str, name: str, handle: Any, take: Callable[[Any], object]) -> Rates:  # noqa: ANN401
        """Activity of a device since the previous call. `take`: fills a sample from the device."""
        what = f"reading performance counters of {name}"
        asking(what, lambda: _require_support(handle))
        sample = asking(what, pynvml.nvmlGpmSampleAlloc)
        try:
            asking(what, lambda: take(sample))
        except ReadingError:
            _free(sample)
            raise
        last = self._last.setdefault(key.partition("/")[0], {})
        before = last.get(key)
        last[key] = sample
        if before is None:
            raise ReadingError(what, Reason.PENDING, "rates come with the second reading")
        try:
            return asking(what, lambda: self._between(what, before, sample))
        finally:
            _free(before)

    def _between(self, what: str, before: Any, after: Any) -> Rates:  # noqa: ANN401 - opaque
        found = type(self._request).from_buffer_copy(self._request)
        found.sample1, found.sample2 = before, after
        pynvml.nvmlGpmMetricsGet(found)
        return lambda metric: _rate(what, metric, found.metrics[self._positions[metric]])

    def retain(self, gpu: str, keys: Collection[str]) -> None:
        """Forget the devices of a GPU that are not among `keys`: they are gone."""
        last = self._last.get(gpu, {})
        for key in last.keys() - set(keys):
            _free(last.pop(key))

    def clear(self) -> None:
        """Forget all samples."""
        for gpu in list(self._last):
            self.retain(gpu, ())


def _require_support(handle: Any) -> None:  # noqa: ANN401 - pynvml's handles have no type
    if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _rate(what: str, metric: GpmMetric, found: Any) -> float:  # noqa: ANN401 - a C structure
    attempt = f"{what}: {metric.name}"
    if found.nvmlReturn != pynvml.NVML_SUCCESS:
        raise translate(attempt, pynvml.NVMLError(found.nvmlReturn))
    value: float = found.value
    if math.isnan(value):
        raise ReadingError(attempt, Reason.UNAVAILABLE, "the driver has no value for it")
    if not 0 <= value <= (_MOST_MIB_PER_S if metric in _TRAFFIC else _MOST_PERCENT):
        raise ReadingError(attempt, Reason.UNAVAILABLE, f"{value:g} cannot be")
    return value


def _free(sample: Any) -> None:  # noqa: ANN401 - opaque to everybody
    # The library owns the memory. It refuses only after it was closed, which freed the sample.
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlGpmSampleFree(sample)
