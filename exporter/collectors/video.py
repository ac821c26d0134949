"""The video engines. Not available on a GPU with MIG enabled."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricName
from exporter.nvml.devices import OpenDevice

ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_ENC_UTIL", "%"),
            dcgm_49=MetricName("DCGM_FI_DEV_ENC_UTIL_RATIO", "ratio", per=100),
            kind=Kind.GAUGE,
            help="Encoder utilization",
            source="nvmlDeviceGetEncoderUtilization",
        ),
        read=OpenDevice.encoder_percent,
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_DEC_UTIL", "%"),
            dcgm_49=MetricName("DCGM_FI_DEV_DEC_UTIL_RATIO", "ratio", per=100),
            kind=Kind.GAUGE,
            help="Decoder utilization",
            source="nvmlDeviceGetDecoderUtilization",
        ),
        read=OpenDevice.decoder_percent,
    ),
)
