"""The catalogue of metrics: complete for this depth, consistent, and right about both generations of DCGM's names."""

from exporter.model import Kind, MetricSet, Naming
from exporter.sampling import catalogue

# facts of DCGM 4.7 and dcgm-exporter's default-counters.csv: name, 4.9 name, and one NVML value in both units
EXPECTED = {
    "DCGM_FI_DEV_GPU_UTIL": ("DCGM_FI_DEV_GPU_UTIL_RATIO", 37, 37, 0.37),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", 37, 37, 0.37),
    "DCGM_FI_DEV_FB_USED": ("DCGM_FI_DEV_FB_USED_BYTES", 2**20 + 1, 1, 2**20 + 1),
    "DCGM_FI_DEV_FB_FREE": ("DCGM_FI_DEV_FB_FREE_BYTES", 2**21 - 1, 1, 2**21 - 1),
    "DCGM_FI_DEV_FB_RESERVED": ("DCGM_FI_DEV_FB_RESERVED_BYTES", 2**20, 1, 2**20),
    "DCGM_FI_DEV_FB_TOTAL": ("DCGM_FI_DEV_FB_CAPACITY_BYTES", 80 * 2**30, 81920, 80 * 2**30),
    "DCGM_FI_DEV_GPU_TEMP": ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 61, 61, 61),
    "DCGM_FI_DEV_MEMORY_TEMP": ("DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", 70, 70, 70),
    "DCGM_FI_DEV_POWER_USAGE": ("DCGM_FI_DEV_BOARD_POWER_WATTS", 61234, 61.234, 61.234),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 98765, 98765, 98.765),
    "DCGM_FI_DEV_SM_CLOCK": ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1980, 1980, 1_980_000_000),
    "DCGM_FI_DEV_MEM_CLOCK": ("DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 2619, 2619, 2_619_000_000),
    "DCGM_FI_DEV_ENC_UTIL": ("DCGM_FI_DEV_ENC_UTIL_RATIO", 37, 37, 0.37),
    "DCGM_FI_DEV_DEC_UTIL": ("DCGM_FI_DEV_DEC_UTIL_RATIO", 37, 37, 0.37),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", 3, 3, 3),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", 3, 3, 3),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", 3, 3, 3),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("DCGM_FI_DEV_ROW_REMAP_FAILED", 1, 1, 1),
    "DCGM_FI_DEV_RETIRED_SBE": ("DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", 3, 3, 3),
    "DCGM_FI_DEV_RETIRED_DBE": ("DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", 3, 3, 3),
    "DCGM_FI_DEV_RETIRED_PENDING": ("DCGM_FI_DEV_PAGE_RETIRED_PENDING", 1, 1, 1),
    "DCGM_FI_DEV_FB_USED_PERCENT": ("DCGM_FI_DEV_FB_USED_RATIO", 0.5, 0.5, 0.5),
    "DCGM_FI_DEV_POWER_VIOLATION": ("DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", 10**9, 10**9, 1),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", 10**9, 10**9, 1),
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION": (
        "DCGM_FI_DEV_GPU_SYNC_BOOST_THROTTLE_SECONDS_TOTAL",
        10**9,
        10**9,
        1,
    ),
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": ("DCGM_FI_DEV_GPU_LIMIT_THROTTLE_SECONDS_TOTAL", 10**9, 10**9, 1),
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION": ("DCGM_FI_DEV_GPU_LOW_UTIL_THROTTLE_SECONDS_TOTAL", 10**9, 10**9, 1),
    "DCGM_FI_DEV_RELIABILITY_VIOLATION": (
        "DCGM_FI_DEV_GPU_RELIABILITY_THROTTLE_SECONDS_TOTAL",
        10**9,
        10**9,
        1,
    ),
    "DCGM_FI_DEV_XID_ERRORS": ("DCGM_FI_DEV_XID_ERROR", 79, 79, 79),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (
        "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND",
        2000,
        2,
        2_048_000,
    ),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 37.5, 0.375, 0.375),
    "DCGM_FI_PROF_SM_ACTIVE": ("DCGM_FI_PROF_SM_UTIL_RATIO", 37.5, 0.375, 0.375),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 37.5, 0.375, 0.375),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("DCGM_FI_PROF_DRAM_UTIL_RATIO", 37.5, 0.375, 0.375),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("DCGM_FI_DEV_BOARD_POWER_RAW_WATTS", 61234, 61.234, 61.234),
    "DCGM_FI_DEV_ECC_CURRENT": ("DCGM_FI_DEV_ECC_MODE", 1, 1, 1),
    "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION": (
        "DCGM_FI_DEV_GPU_APP_THROTTLE_SECONDS_TOTAL",
        10**9,
        10**9,
        1,
    ),
    "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION": (
        "DCGM_FI_DEV_GPU_BASE_THROTTLE_SECONDS_TOTAL",
        10**9,
        10**9,
        1,
    ),
    **{
        f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{n}": (f"DCGM_FI_DEV_NVLINK_THROUGHPUT_L{n}", 2000, 2, 2)
        for n in range(18)
    },
    **{
        f"DCGM_FI_PROF_{kind}{n}_ACTIVE": (f"DCGM_FI_PROF_{kind}_UTIL_{n}_RATIO", 37.5, 0.375, 0.375)
        for kind, count in (("NVDEC", 8), ("NVJPG", 8), ("NVOFA", 2))
        for n in range(count)
    },
    **{
        f"DCGM_FI_DEV_{old}": (f"DCGM_FI_DEV_{new}", 5, 5, 5)
        for old, new in (
            ("NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "NVLINK_RX_PACKET_MALFORMED_TOTAL"),
            ("NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", "NVLINK_RX_PACKET_DROPPED_TOTAL"),
            ("NVLINK_COUNT_RX_ERRORS", "NVLINK_RX_ERROR_TOTAL"),
            ("NVLINK_COUNT_RX_REMOTE_ERRORS", "NVLINK_RX_REMOTE_ERROR_TOTAL"),
            ("NVLINK_COUNT_RX_GENERAL_ERRORS", "NVLINK_RX_GENERAL_ERROR_TOTAL"),
            ("NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "NVLINK_INTEGRITY_ERROR_TOTAL"),
            ("NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", "NVLINK_RECOVERY_SUCCESSFUL_TOTAL"),
            ("NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "NVLINK_RECOVERY_FAILED_TOTAL"),
            ("NVLINK_COUNT_LINK_RECOVERY_EVENTS", "NVLINK_RECOVERY_EVENT_TOTAL"),
            ("NVLINK_COUNT_RX_SYMBOL_ERRORS", "NVLINK_RX_SYMBOL_ERROR_TOTAL"),
            ("NVLINK_COUNT_EFFECTIVE_ERRORS", "NVLINK_EFFECTIVE_ERROR_TOTAL"),
            ("NVLINK_COUNT_SYMBOL_BER_FLOAT", "NVLINK_SYMBOL_BER_RATIO"),
            ("NVLINK_COUNT_EFFECTIVE_BER_FLOAT", "NVLINK_EFFECTIVE_BER_RATIO"),
            ("NVLINK_COUNT_TX_DISCARDS", "NVLINK_TX_DISCARD_TOTAL"),
            *((f"NVLINK_COUNT_FEC_HISTORY_{n}", f"NVLINK_FEC_HISTORY_{n}_TOTAL") for n in range(16)),
            ("C2C_LINK_COUNT", "C2C_LINK_QUANTITY"),
            ("C2C_LINK_ERROR_INTR", "C2C_LINK_ERROR_TOTAL"),
            ("C2C_LINK_ERROR_REPLAY", "C2C_LINK_REPLAY_ERROR_TOTAL"),
            ("C2C_LINK_ERROR_REPLAY_B2B", "C2C_LINK_REPLAY_ERROR_B2B_TOTAL"),
        )
    },
    **{
        f"DCGM_FI_DEV_{old}_CLOCK": (f"DCGM_FI_DEV_{new}_CLOCK_HERTZ", 1980, 1980, 1_980_000_000)
        for old, new in (
            ("MAX_SM", "SM_MAX"),
            ("MAX_MEM", "MEMORY_MAX"),
            ("VIDEO", "VIDEO"),
            ("MAX_VIDEO", "VIDEO_MAX"),
        )
    },
    **{
        f"DCGM_FI_DEV_BAR1_{old}": (f"DCGM_FI_DEV_BAR1_{new}_BYTES", 3 << 20, 3, 3 << 20)
        for old, new in (("TOTAL", "CAPACITY"), ("USED", "USED"), ("FREE", "FREE"))
    },
    "DCGM_FI_DEV_FAN_SPEED": ("DCGM_FI_DEV_FAN_SPEED_RATIO", 37, 37, 0.37),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("DCGM_FI_PROF_PCIE_TX_BYTES", 1.5, 1.5, 1.5),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("DCGM_FI_PROF_PCIE_RX_BYTES", 1.5, 1.5, 1.5),
}


def test_metric_has_both_names_and_units() -> None:
    """Each renamed metric has DCGM's old and new name, and a value of NVML comes out in the unit of each."""
    found = {metric.dcgm.name: metric for metric in catalogue.metrics()}
    for name, (newer, raw, old_value, new_value) in EXPECTED.items():
        metric = found[name]
        assert (metric.dcgm_49.name, metric.dcgm.value(raw), metric.dcgm_49.value(raw)) == (
            newer,
            old_value,
            new_value,
        )


def test_unrenamed_metric_has_one_name() -> None:
    """Of dcgm-exporter's default list all but one were; metrics without a DCGM name keep gpu-exporter's."""
    others = [metric for metric in catalogue.metrics() if metric.dcgm.name not in EXPECTED]
    assert all(metric.dcgm_49 == metric.dcgm for metric in others)
    default = {
        metric.dcgm.name
        for metric in others
        if metric.within is not MetricSet.FULL and not metric.is_own and "_EXP_" not in metric.dcgm.name
    }
    assert default == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}


def test_metric_names_are_distinct() -> None:
    """Names are unique, also where both generations are served."""
    names = [spelling.name for metric in catalogue.metrics() for spelling in metric.names_in(Naming.BOTH)]
    assert len(names) == len(set(names))


def test_metric_has_help_source_and_matching_kind() -> None:
    """Meaning and NVML source are there for the docs; what counts up is a counter, what can fall is a gauge."""
    for metric in catalogue.metrics():
        assert metric.help
        assert not metric.help.endswith(".")
        assert metric.source.startswith(("nvmlDeviceGet", "nvmlGpm", "nvmlEventSetWait"))
    counters = {metric.dcgm.name for metric in catalogue.metrics() if metric.kind is Kind.COUNTER}
    counting = (
        "_total",
        "TOTAL",
        "COUNTER",
        "VIOLATION",
        "ROWS",
        "ENERGY_CONSUMPTION",
        "RETIRED",
        "_NS",
        "LINK_COUNT",
        "LINK_ERROR",
    )
    assert all(any(word in name for word in counting) for name in counters)
    assert "DCGM_FI_DEV_FB_TOTAL" not in counters
    assert "DCGM_FI_DEV_ROW_REMAP_FAILURE" not in counters
