"""DCGM's names for what is measured, as dcgm-exporter and our exporter serve them: before 4.9, and from it on. Pure.

Units: dcgm-exporter's etc/default-counters.csv; from 4.9 on every name ends in its unit.
"""

from rightsizer.usage.quantities import Kind, Quantity, Source

MIB = 1 << 20

DCGM = Source(
    "dcgm",
    (
        Quantity(Kind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL", 0.01, "utilization"),
        Quantity(Kind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, "engine"),
        Quantity(Kind.TRAFFIC, "DCGM_FI_DEV_MEM_COPY_UTIL", 0.01, "copy"),
        Quantity(Kind.TRAFFIC, "DCGM_FI_PROF_DRAM_ACTIVE", 1.0, "dram"),
        Quantity(Kind.MEMORY, "DCGM_FI_DEV_FB_USED", MIB, "framebuffer"),
        Quantity(Kind.POWER, "DCGM_FI_DEV_POWER_USAGE", 1.0, "board"),
    ),
)

DCGM_49 = Source(
    "dcgm-4.9",
    (
        Quantity(Kind.ACTIVITY, "DCGM_FI_DEV_GPU_UTIL_RATIO", 1.0, "utilization"),
        Quantity(Kind.ACTIVITY, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0, "engine"),
        Quantity(Kind.TRAFFIC, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 1.0, "copy"),
        Quantity(Kind.TRAFFIC, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 1.0, "dram"),
        Quantity(Kind.MEMORY, "DCGM_FI_DEV_FB_USED_BYTES", 1.0, "framebuffer"),
        Quantity(Kind.POWER, "DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0, "board"),
    ),
)
