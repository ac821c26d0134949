"""Metrics without a DCGM name: info, topology, energy in joules, throttling by reason; and rates."""

import re

import pytest

from exporter.nvml.driverstate import ClockEvents
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import eventually, h100, pod, reading

pytestmark = pytest.mark.driver

FIELDS = "nvmlDeviceGetFieldValues"
MIXED = NodeSpec(
    "mixed", (GpuSpec("H100-SXM5-80GB"), GpuSpec("H100-SXM5-80GB"), GpuSpec("T4"), GpuSpec("T4"))
)


def test_gpu_info_has_versions_and_an_optional_serial(make_node: MakeNode) -> None:
    """Driver, CUDA, firmware, capability and NUMA node: once per GPU, for any holder; the serial number on request."""
    node = make_node(h100(1))
    uuid = node.spec.gpu_uuid(0)
    node.pods += [pod("one", f"{uuid}::0"), pod("two", f"{uuid}::1")]
    node.kubelet.start()
    labels = ("UUID", "driver_version", "cuda_version", "vbios_version", "compute_capability", "numa_node")
    with node.exporting() as exporter:
        eventually(lambda: len(exporter.series("DCGM_FI_DEV_GPU_UTIL", "pod")) == 2)
        expected = (uuid, "570.133.20", "12.8", "96.00.74.00.01", "9.0", "0")
        assert exporter.series("gpu_info", *labels) == {expected: 1}
        (family,) = (found for found in exporter.families().values() if found.name == "gpu_info")
        (sample,) = family.samples
    assert sample.labels.keys() & {"serial", "pod", "DCGM_FI_DRIVER_VERSION"} == set()
    shown = node.once("--once", "--serial-numbers")
    assert re.search(r'^gpu_info\{.*serial="\d{13}"\} 1$', shown.out, re.MULTILINE)


def test_gpu_info_without_an_answer_has_empty_labels(make_node: MakeNode) -> None:
    """A reading without a value does not affect the others."""
    node = make_node(h100(1))
    node.board.fault("nvmlDeviceGetMemoryAffinity", code=3)
    done = node.once("--once", "--pod-resources-socket=")
    assert 'compute_capability="9.0",numa_node=""} 1' in done.out


def test_topology_lists_every_other_gpu(make_node: MakeNode) -> None:
    """Every other GPU of the node: NVLink with the number of links, else the way over PCIe."""
    node = make_node(MIXED)
    done = node.once("--once", "--pod-resources-socket=")
    found = re.findall(
        r'^gpu_topology\{gpu="(\d)".*peer_gpu="(\d)",.*connection="(\w+)",pcie_path="(\w+)"\} 1$',
        done.out,
        re.MULTILINE,
    )
    assert len(found) == 12
    assert {row[:2]: row[2:] for row in map(tuple, found) if row[0] in "02"} == {
        ("0", "1"): ("NV18", "NODE"),
        ("0", "2"): ("SYS", "SYS"),
        ("0", "3"): ("SYS", "SYS"),
        ("2", "0"): ("SYS", "SYS"),
        ("2", "1"): ("SYS", "SYS"),
        ("2", "3"): ("NODE", "NODE"),
    }
    assert "gpu_topology" not in node.once("--once", "--pod-resources-socket=", "--metrics=minimal").out


def test_p2p_status_has_dcgm_exporters_labels(make_node: MakeNode) -> None:
    """dcgm-exporter's labels and numbers, for every pair."""
    node = make_node(MIXED)
    with node.exporting("--metrics=full", pods=False) as exporter:
        labels = ("gpu", "peer_gpu", "link_status")
        found = eventually(lambda: exporter.series("DCGM_EXP_P2P_STATUS", *labels))
    assert len(found) == 12
    assert found["0", "1", "OK"] == 0
    assert found["0", "2", "NotSupported"] == 5


def test_nvlink_rate_of_each_link_is_separate(make_node: MakeNode) -> None:
    """In DCGM's MB/s of 1000 KiB, both ways together; the other links stay as they are."""
    node = make_node(h100(1))
    with node.exporting("--interval=100ms", "--metrics=full", pods=False) as exporter:
        eventually(lambda: exporter.series("DCGM_FI_DEV_NVLINK_BANDWIDTH_L3", "gpu") == {("0",): 0.0})
        kib = 0

        def grows() -> bool:
            nonlocal kib
            kib += 50_000
            node.board.set_answer(0, FIELDS, kib, selector=138 | 4 << 16)
            node.board.set_answer(0, FIELDS, kib, selector=139 | 4 << 16)
            return exporter.series("DCGM_FI_DEV_NVLINK_BANDWIDTH_L3", "gpu").get(("0",), 0) > 0

        eventually(grows)
        assert exporter.series("DCGM_FI_DEV_NVLINK_BANDWIDTH_L2", "gpu") == {("0",): 0.0}
        assert exporter.series("DCGM_FI_DEV_NVLINK_BANDWIDTH_L18", "gpu") == {}


def test_clock_events_are_counted_by_reason(make_node: MakeNode) -> None:
    """By reason, with dcgm-exporter's labels; a reason without an event in the window is absent."""
    node = make_node(h100(1))
    node.board.set_answer(0, "nvmlDeviceGetCurrentClocksEventReasons", 0x24)
    labels = ("clock_event", "window_size_in_ms")
    with node.exporting("--interval=100ms", "--metrics=full", pods=False) as exporter:
        name = "DCGM_EXP_CLOCK_EVENTS_COUNT"
        eventually(lambda: min(exporter.series(name, *labels).values(), default=0) > 2)
        found = exporter.series(name, *labels)
        assert found.keys() == {("power_cap", "300000"), ("sw_thermal", "300000")}
        assert len(set(found.values())) == 1


def test_clock_events_outside_the_window_are_dropped() -> None:
    """Each device has its own count."""
    now = [0.0]
    events = ClockEvents(lambda: now[0])
    assert events.record("a", 0x5) == {1: 1, 4: 1}
    now[0] = 299.0
    assert events.record("a", 0x4) == {1: 1, 4: 2}
    assert events.record("b", 0) == {}
    now[0] = 301.0
    assert events.record("a", 0) == {4: 1}


def test_topology_with_a_lost_gpu_omits_it(make_node: MakeNode) -> None:
    """The topology of the other GPUs remains."""
    node = make_node(MIXED)
    node.board.fault("*", gpu=1, code=15)
    done = node.once("--once", "--pod-resources-socket=", "--metrics=full")
    pairs = re.findall(r'^gpu_topology\{gpu="(\d)".*peer_gpu="(\d)"', done.out, re.MULTILINE)
    assert set(pairs) == {("0", "2"), ("0", "3"), ("2", "0"), ("2", "3"), ("3", "0"), ("3", "2")}


def test_energy_and_throttling_have_base_units(make_node: MakeNode) -> None:
    """Base units, counters with their suffix, once per GPU."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading(energy_j=1234.5))
    node.board.set_answer(0, FIELDS, 2_500_000_000, selector=75)
    node.board.set_answer(0, FIELDS, selector=78)
    with node.exporting(pods=False) as exporter:
        eventually(lambda: exporter.series("gpu_energy_joules_total", "gpu") == {("0",): 1234.5})
        assert exporter.series("gpu_throttle_seconds_total", "reason") == {
            ("power",): 0,
            ("thermal",): 2.5,
            ("sync_boost",): 0,
            ("board_limit",): 0,
            ("reliability",): 0,
        }
        _, text = exporter.get("/metrics", Accept="application/openmetrics-text")
    assert "# TYPE gpu_energy_joules counter" in text


def test_nvlink_traffic_is_a_rate_from_the_second_reading(make_node: MakeNode) -> None:
    """In DCGM's unit, MB/s of 1000 KiB; both ways together, and only after two readings."""
    node = make_node(h100(1))
    with node.exporting("--interval=100ms", "--naming=both", pods=False) as exporter:
        eventually(lambda: exporter.series("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu") == {("0",): 0.0})
        for kib in range(0, 5_000_000, 50_000):
            node.board.set_answer(0, FIELDS, kib, selector=138)
            node.board.set_answer(0, FIELDS, 2 * kib, selector=139)
            families = exporter.families()
            old, new = (
                families[f"DCGM_FI_DEV_NVLINK_{name}"].samples[0].value
                for name in ("BANDWIDTH_TOTAL", "THROUGHPUT_BYTES_PER_SECOND")
            )
            if old > 0:
                break
    assert old > 0
    assert new == pytest.approx(old * 1000 * 1024)


def test_nvlink_rate_after_a_counter_reset_is_absent(make_node: MakeNode) -> None:
    """The increase is unknown: absent for a cycle, never negative."""
    node = make_node(NodeSpec("old", (GpuSpec("A100-SXM4-40GB"),)))
    name = "DCGM_FI_PROF_PCIE_TX_BYTES"
    node.board.set_answer(0, FIELDS, 10**12, selector=197)
    with node.exporting("--interval=100ms", pods=False) as exporter:
        eventually(lambda: exporter.series(name, "gpu") == {("0",): 0.0})
        seen: list[float] = []
        node.board.set_answer(0, FIELDS, 5, selector=197)
        for _ in range(30):
            seen += exporter.series(name, "gpu").values()
        eventually(lambda: exporter.series(name, "gpu") == {("0",): 0.0})
    assert set(seen) == {0.0}


def test_vgpu_license_status_is_read(make_node: MakeNode) -> None:
    """1 with a licence, 0 on bare metal, absent if the driver does not support it."""
    node = make_node(h100(3))
    node.board.set_answer(1, "nvmlDeviceGetGridLicensableFeatures_v4", 1, 1)
    node.board.set_answer(2, "nvmlDeviceGetGridLicensableFeatures_v4")
    with node.exporting(pods=False) as exporter:
        found = exporter.series("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gpu")
    assert found == {("0",): 0, ("1",): 1}
