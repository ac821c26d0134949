"""GPU utilization as in DCGM: the share of the driver's last sampling period in which anything ran."""

from exporter.collectors import Row, split_by
from exporter.model import Kind, Metric, MetricName, MetricSet

ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_GPU_UTIL", "%"),
            dcgm_49=MetricName("DCGM_FI_DEV_GPU_UTIL_RATIO", "ratio", per=100),
            kind=Kind.GAUGE,
            help="GPU utilization",
            source="nvmlDeviceGetUtilizationRates().gpu",
            within=MetricSet.MINIMAL,
        ),
        read=lambda device: device.utilization().gpu,
        split=split_by(lambda use: use.recent_percent, lambda entry: entry.total.recent_percent),
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_MEM_COPY_UTIL", "%"),
            dcgm_49=MetricName("DCGM_FI_DEV_MEMORY_UTIL_RATIO", "ratio", per=100),
            kind=Kind.GAUGE,
            help="Memory utilization",
            source="nvmlDeviceGetUtilizationRates().memory",
        ),
        read=lambda device: device.utilization().memory,
    ),
)
