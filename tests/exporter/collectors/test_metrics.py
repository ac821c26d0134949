"""The served metrics, and their values for a card's limits, links and counters."""

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Node, h100, reading

pytestmark = pytest.mark.driver

DCGM_DEFAULT = {
    "SM_CLOCK", "MEM_CLOCK", "MEMORY_TEMP", "GPU_TEMP", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION",
    "PCIE_REPLAY_COUNTER", "GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL", "FB_FREE", "FB_USED", "FB_RESERVED",
    "UNCORRECTABLE_REMAPPED_ROWS", "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE", "XID_ERRORS",
    "VGPU_LICENSE_STATUS", "NVLINK_BANDWIDTH_TOTAL",
}  # fmt: skip
"""dcgm-exporter's default list; test_profiling.py has its profiling metrics."""


def _served(node: Node, *flags: str) -> dict[str, float]:
    """The metrics of GPU 0, by name without DCGM_FI_DEV_."""
    done = node.once("--once", "--pod-resources-socket=", *flags)
    assert done.code == 0, done.err
    plain = {line.partition("{")[0] for line in done.out.splitlines()}
    found = {}
    for family in text_string_to_metric_families(done.out):
        for sample in family.samples:
            name = sample.name if sample.name in plain else sample.name.removesuffix("_total")
            if name.startswith("DCGM_FI_DEV_") and sample.labels["gpu"] == "0":
                found[name.removeprefix("DCGM_FI_DEV_")] = sample.value
    return found


def test_metric_sets_contain_each_other(make_node: MakeNode) -> None:
    """Minimal is within default, default within full; by default it is dcgm-exporter's list and the total memory."""
    node = make_node(h100(1))
    minimal, default, full = (
        _served(node, "--metrics", name).keys() for name in ("minimal", "default", "full")
    )
    assert minimal == {
        "GPU_UTIL",
        "FB_USED",
        "FB_FREE",
        "GPU_TEMP",
        "POWER_USAGE",
        "TOTAL_ENERGY_CONSUMPTION",
    }
    assert default == DCGM_DEFAULT | {"FB_TOTAL"} == _served(node).keys()
    assert minimal < default < full


def test_limits_links_and_modes_have_dcgms_units(make_node: MakeNode) -> None:
    """Of an idle H100, in DCGM's units."""
    found = _served(make_node(h100(1)), "--metrics=full")
    assert {name: found[name] for name in found.keys() & _IDLE_H100.keys()} == _IDLE_H100


_IDLE_H100 = {
    "MAX_SM_CLOCK": 1980,
    "MAX_MEM_CLOCK": 2619,
    "PSTATE": 0,
    "CLOCKS_EVENT_REASONS": 1,
    "POWER_MGMT_LIMIT": 700,
    "POWER_MGMT_LIMIT_MIN": 200,
    "POWER_MGMT_LIMIT_MAX": 700,
    "POWER_MGMT_LIMIT_DEF": 700,
    "ENFORCED_POWER_LIMIT": 700,
    "SHUTDOWN_TEMP": 95,
    "SLOWDOWN_TEMP": 90,
    "GPU_MAX_OP_TEMP": 85,
    "MEM_MAX_OP_TEMP": 95,
    "PCIE_LINK_GEN": 5,
    "PCIE_MAX_LINK_GEN": 5,
    "PCIE_LINK_WIDTH": 16,
    "PCIE_MAX_LINK_WIDTH": 16,
    "ECC_CURRENT": 1,
    "VIDEO_CLOCK": 269,
    "MAX_VIDEO_CLOCK": 1545,
    "MIG_MODE": 0,
    "ROW_REMAP_PENDING": 0,
    "NVLINK_BANDWIDTH_L0": 0,
    "NVLINK_BANDWIDTH_L17": 0,
    "BAR1_TOTAL": 131072,
    "BAR1_USED": 1,
    "BAR1_FREE": 131071,
}


CHANGES: tuple[tuple[str, int, tuple[int, ...], dict[str, float]], ...] = (
    ("nvmlDeviceGetPcieReplayCounter", 0, (17,), {"PCIE_REPLAY_COUNTER": 17}),
    ("nvmlDeviceGetEncoderUtilization", 0, (42, 100000), {"ENC_UTIL": 42}),
    ("nvmlDeviceGetDecoderUtilization", 0, (7, 100000), {"DEC_UTIL": 7}),
    ("nvmlDeviceGetFanSpeed", 0, (55,), {"FAN_SPEED": 55}),
    ("nvmlDeviceGetCurrentClocksEventReasons", 0, (0x24,), {"CLOCKS_EVENT_REASONS": 0x24}),
    ("nvmlDeviceGetFieldValues", 3, (22,), {"ECC_SBE_VOL_TOTAL": 22}),
    ("nvmlDeviceGetFieldValues", 4, (2,), {"ECC_DBE_VOL_TOTAL": 2}),
    ("nvmlDeviceGetFieldValues", 5, (3,), {"ECC_SBE_AGG_TOTAL": 3}),
    ("nvmlDeviceGetFieldValues", 6, (4,), {"ECC_DBE_AGG_TOTAL": 4}),
    ("nvmlDeviceGetFieldValues", 142, (5,), {"CORRECTABLE_REMAPPED_ROWS": 5}),
    ("nvmlDeviceGetFieldValues", 143, (6,), {"UNCORRECTABLE_REMAPPED_ROWS": 6}),
    ("nvmlDeviceGetFieldValues", 145, (1,), {"ROW_REMAP_FAILURE": 1}),
    ("nvmlDeviceGetFieldValues", 38, (8,), {"NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": 8}),
    ("nvmlDeviceGetFieldValues", 45, (9,), {"NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 9}),
    ("nvmlDeviceGetFieldValues", 52, (10,), {"NVLINK_REPLAY_ERROR_COUNT_TOTAL": 10}),
    ("nvmlDeviceGetFieldValues", 59, (11,), {"NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 11}),
    (
        "nvmlDeviceGetFieldValues",
        74,
        (2**40,),
        {"POWER_VIOLATION": 2**40, "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": 2**40},
    ),
    ("nvmlDeviceGetFieldValues", 75, (12,), {"THERMAL_VIOLATION": 12}),
    (
        "nvmlDeviceGetFieldValues",
        76,
        (13,),
        {"SYNC_BOOST_VIOLATION": 13, "CLOCKS_EVENT_REASON_SYNC_BOOST_NS": 13},
    ),
    ("nvmlDeviceGetFieldValues", 77, (14,), {"BOARD_LIMIT_VIOLATION": 14}),
    ("nvmlDeviceGetFieldValues", 78, (15,), {"LOW_UTIL_VIOLATION": 15}),
    ("nvmlDeviceGetFieldValues", 79, (16,), {"RELIABILITY_VIOLATION": 16}),
    ("nvmlDeviceGetFieldValues", 80, (24,), {"TOTAL_APP_CLOCKS_VIOLATION": 24}),
    ("nvmlDeviceGetFieldValues", 81, (18,), {"TOTAL_BASE_CLOCKS_VIOLATION": 18}),
    ("nvmlDeviceGetFieldValues", 269, (19,), {"CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": 19}),
    ("nvmlDeviceGetFieldValues", 270, (20,), {"CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": 20}),
    ("nvmlDeviceGetFieldValues", 271, (21,), {"CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": 21}),
    ("nvmlDeviceGetFieldValues", 144, (23,), {"ROW_REMAP_PENDING": 23}),
    ("nvmlDeviceGetFieldValues", 230, (25,), {"GPU_RECOVERY_ACTION": 25}),
    ("nvmlDeviceGetMaxClockInfo", 3, (1980,), {"MAX_VIDEO_CLOCK": 1980, "VIDEO_CLOCK": 345}),
)
"""An NVML function, its selector, its value, and the metric's value: each value occurs once."""


def test_counter_of_each_field_is_independent(make_node: MakeNode) -> None:
    """A change of a driver value changes its own metrics only."""
    node = make_node(h100(1))
    before = _served(node, "--metrics=full")
    expected: dict[str, float] = {}
    for function, selector, values, metrics in CHANGES:
        node.board.set_answer(0, function, *values, selector=selector)
        expected |= metrics
    after = _served(node, "--metrics=full")
    assert {name: value for name, value in after.items() if before.get(name) != value} == expected


LINKS: Mapping[int, Sequence[int]] = {
    206: (1, 2),
    221: (5, 6),
    222: (3 << 8 | 12, 15 << 8 | 9),
    220: (0, 1 << 8 | 15),
    238: (7, 8),
    171: (1, 0),
    172: (50_000, 40_000),
    233: (9, 1),
}
"""Field values of links 0 and 1: NVLink 5 as on Blackwell, and the links to a Grace CPU."""


def test_values_of_single_links_are_summed_or_worst(make_node: MakeNode) -> None:
    """Counters add up, a bit error rate is the highest, and a link to the CPU that is down shows."""
    node = make_node(h100(1))
    for field, values in LINKS.items():
        for link, value in enumerate(values):
            node.board.set_answer(0, "nvmlDeviceGetFieldValues", value, selector=field | (link + 1) << 16)
    node.board.set_answer(0, "nvmlDeviceGetGpuFabricInfoV", 3, 0, 7, 5, selector=0)
    node.board.set_answer(0, "nvmlDeviceGetGpuFabricInfoV", 2, 0xAB, selector=1)
    found = _served(node, "--metrics=full")
    expected = {
        "NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS": 3,
        "NVLINK_COUNT_RX_SYMBOL_ERRORS": 11,
        "NVLINK_COUNT_SYMBOL_BER_FLOAT": 1.5e-8,
        "NVLINK_COUNT_EFFECTIVE_BER_FLOAT": 1e-15,
        "NVLINK_COUNT_FEC_HISTORY_3": 15,
        "C2C_LINK_COUNT": 2,
        "C2C_LINK_STATUS": 0,
        "C2C_MAX_BANDWIDTH": 40_000,
        "C2C_LINK_ERROR_REPLAY_B2B": 10,
        "FABRIC_MANAGER_STATUS": 3,
        "FABRIC_CLIQUE_ID": 7,
        "FABRIC_HEALTH_MASK": 5,
        "FABRIC_HEALTH_SUMMARY": 2,
    }
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)
    assert "NVLINK_COUNT_EFFECTIVE_ERRORS" not in found


def test_fabric_registration_that_failed_has_dcgms_status(make_node: MakeNode) -> None:
    """NVML calls it completed, with an error; a GPU without a fabric has no series."""
    node = make_node(h100(2))
    node.board.set_answer(1, "nvmlDeviceGetGpuFabricInfoV", 3, 999, 7, 0, selector=0)
    node.board.set_answer(1, "nvmlDeviceGetGpuFabricInfoV", 1, 0xAB, selector=1)
    with node.exporting("--metrics=full", pods=False) as exporter:
        assert exporter.series("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "gpu") == {("1",): 4}
        cluster = exporter.series("gpu_fabric_info", "gpu", "cluster_uuid", "clique_id")
        assert cluster == {("1", "ab" + 30 * "0", "7"): 1}


@pytest.mark.parametrize(
    ("card", "there", "absent"),
    [
        (
            "H100-SXM5-80GB",
            {"CORRECTABLE_REMAPPED_ROWS", "NVLINK_BANDWIDTH_L17", "MIG_MODE"},
            {"RETIRED_SBE"},
        ),
        (
            "T4",
            {"RETIRED_SBE", "VIDEO_CLOCK", "POWER_USAGE_INSTANT"},
            {
                "MIG_MODE",
                "NVLINK_BANDWIDTH_L0",
                "ROW_REMAP_PENDING",
                "CORRECTABLE_REMAPPED_ROWS",
                "NVLINK_REPLAY_ERROR_COUNT_TOTAL",
                "MEMORY_TEMP",
            },
        ),
    ],
)
def test_unsupported_metrics_of_a_card_are_absent(
    make_node: MakeNode, card: str, there: set[str], absent: set[str]
) -> None:
    """Cards before Ampere retire pages, later ones remap rows; neither card has a fan speed."""
    found = _served(make_node(NodeSpec("n", (GpuSpec(card),))), "--metrics=full").keys()
    assert there <= found
    assert not (absent | {"FAN_SPEED"}) & found


def test_unsupported_metrics_of_a_card_are_logged_in_one_line_each_gpu(make_node: MakeNode) -> None:
    """An H100 lacks forty of the full set: NVLink 5, links to a CPU, retired pages, a fan."""
    node = make_node(h100(2))
    done = node.once("--once", "--pod-resources-socket=", "--metrics=full")
    lines = [line for line in done.err.splitlines() if "not supported by this device" in line]
    assert len(lines) == 2
    for words in (
        "reading retired sbe, ",
        ", NVLink 5 counters, C2C links, ",
        f" of GPU 1 ({node.spec.gpu_uuid(1)}): ",
    ):
        assert words in lines[1]


def test_memory_ratio_excludes_reserved_memory(make_node: MakeNode) -> None:
    """DCGM's FB_USED_PERCENT is a ratio, and leaves out what is reserved."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading())
    found = _served(node, "--metrics=full")
    usable = found["FB_TOTAL"] - found["FB_RESERVED"]
    assert found["FB_USED_PERCENT"] == pytest.approx(found["FB_USED"] / usable, rel=1e-3)


def test_throttle_time_in_new_names_is_in_seconds(make_node: MakeNode) -> None:
    """1.5 s, from nanoseconds."""
    node = make_node(h100(1))
    node.board.set_answer(0, "nvmlDeviceGetFieldValues", 1_500_000_000, selector=75)
    found = _served(node, "--metrics=full", "--naming=dcgm-4.9")
    assert found["GPU_THERMAL_THROTTLE_SECONDS_TOTAL"] == 1.5


def test_instant_power_is_in_watts(make_node: MakeNode) -> None:
    """In watts, under the names of both generations."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading(power_w=312.5))
    found = _served(node, "--metrics=full", "--naming=both")
    assert found["POWER_USAGE_INSTANT"] == found["BOARD_POWER_RAW_WATTS"] == 312.5


def test_mig_mode_of_a_mig_gpu_is_one(make_node: MakeNode) -> None:
    """1 on a GPU with MIG instances."""
    node = make_node(NodeSpec("n", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)),)))
    assert _served(node, "--metrics=full")["MIG_MODE"] == 1


def test_unknown_field_of_an_old_driver_is_absent(make_node: MakeNode) -> None:
    """It is not supported there, which is no failure."""
    node = make_node(h100(1))
    invalid_argument = 2
    node.board.set_answer(0, "nvmlDeviceGetFieldValues", 0, invalid_argument, selector=271)
    done = node.once("--once", "--pod-resources-socket=", "--metrics=full")
    assert "CLOCKS_EVENT_REASON_HW_POWER_BRAKE" not in done.out
    assert "reading hw power brake of GPU 0" in done.err
    assert "not known to this version of the driver; series omitted" in done.err
    assert 'gpu_exporter_collector_success{collector="violations"} 1' in done.out
