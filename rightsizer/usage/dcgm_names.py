"""DCGM's names for what is measured, as dcgm-exporter and our exporter serve them: before 4.9, and from it on. Pure.

Units: dcgm-exporter's etc/default-counters.csv; from 4.9 on every name ends in its unit.
"""

from rightsizer.usage.quantities import Metric, MetricKind, MetricSource

MIB = 1 << 20

DCGM = MetricSource(
    "dcgm",
    (
        Metric(MetricKind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL", 0.01, "utilization"),
        Metric(MetricKind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, "engine"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_DEV_MEM_COPY_UTIL", 0.01, "copy"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_PROF_DRAM_ACTIVE", 1.0, "dram"),
        Metric(MetricKind.MEMORY, "DCGM_FI_DEV_FB_USED", MIB, "framebuffer"),
        Metric(MetricKind.POWER, "DCGM_FI_DEV_POWER_USAGE", 1.0, "board"),
    ),
)

DCGM_49 = MetricSource(
    "dcgm-4.9",
    (
        Metric(MetricKind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL_RATIO", 1.0, "utilization"),
        Metric(MetricKind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0, "engine"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 1.0, "copy"),
        Metric(MetricKind.TRAFFIC, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 1.0, "dram"),
        Metric(MetricKind.MEMORY, "DCGM_FI_DEV_FB_USED_BYTES", 1.0, "framebuffer"),
        Metric(MetricKind.POWER, "DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0, "board"),
    ),
)
