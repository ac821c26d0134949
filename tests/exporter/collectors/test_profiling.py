"""Metrics of a card's performance counters (GPM, Hopper and later), per GPU and per MIG instance."""

import re

import pynvml
import pytest

from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, eventually, h100, reading

pytestmark = pytest.mark.driver

MIB = 1024 * 1024
GPM = {
    "GR_ENGINE_ACTIVE": (pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL, 81.25, 0.8125),
    "SM_ACTIVE": (pynvml.NVML_GPM_METRIC_SM_UTIL, 50, 0.5),
    "SM_OCCUPANCY": (pynvml.NVML_GPM_METRIC_SM_OCCUPANCY, 25, 0.25),
    "PIPE_TENSOR_ACTIVE": (pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 12.5, 0.125),
    "DRAM_ACTIVE": (pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 37.5, 0.375),
    "PIPE_FP64_ACTIVE": (pynvml.NVML_GPM_METRIC_FP64_UTIL, 1, 0.01),
    "PIPE_FP32_ACTIVE": (pynvml.NVML_GPM_METRIC_FP32_UTIL, 2, 0.02),
    "PIPE_FP16_ACTIVE": (pynvml.NVML_GPM_METRIC_FP16_UTIL, 3, 0.03),
    "PIPE_INT_ACTIVE": (pynvml.NVML_GPM_METRIC_INTEGER_UTIL, 4, 0.04),
    "PIPE_TENSOR_IMMA_ACTIVE": (pynvml.NVML_GPM_METRIC_IMMA_TENSOR_UTIL, 5, 0.05),
    "PIPE_TENSOR_HMMA_ACTIVE": (pynvml.NVML_GPM_METRIC_HMMA_TENSOR_UTIL, 6, 0.06),
    "PIPE_TENSOR_DFMA_ACTIVE": (pynvml.NVML_GPM_METRIC_DFMA_TENSOR_UTIL, 7, 0.07),
    "PCIE_TX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, 1.5, 1.5 * MIB),
    "PCIE_RX_BYTES": (pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, 2048, 2048 * MIB),
    "NVLINK_TX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, 1, MIB),
    "NVLINK_RX_BYTES": (pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, 2, 2 * MIB),
}
GPM |= {f"NVDEC{n}_ACTIVE": (30 + n, 8 + n, (8 + n) / 100) for n in range(8)}
GPM |= {f"NVJPG{n}_ACTIVE": (40 + n, 16 + n, (16 + n) / 100) for n in range(8)}
GPM |= {f"NVOFA{n}_ACTIVE": (50 + n, 24 + n, (24 + n) / 100) for n in range(2)}
"""Name without its prefix → NVML's number of the metric, its value there, and the served value."""
CUT = NodeSpec("cut", (GpuSpec("H100-SXM5-80GB", ("3g.40gb", "1g.10gb")),))


def _shown(exporter: Exporter, *labels: str) -> dict[str, dict[tuple[str, ...], float]]:
    found = {}
    for name, family in exporter.families().items():
        if name.startswith("DCGM_FI_PROF_"):
            found[name.removeprefix("DCGM_FI_PROF_")] = {
                tuple(sample.labels.get(label, "") for label in labels): sample.value
                for sample in family.samples
            }
    return found


def test_profiling_counters_have_dcgms_units(make_node: MakeNode) -> None:
    """Shares are ratios and traffic is in bytes per second; NVML has percent and MiB."""
    node = make_node(h100(1))
    for number, stated, _ in GPM.values():
        node.board.set_gpm(0, number, stated)
    with node.exporting("--metrics=full", pods=False) as exporter:
        shown = eventually(lambda: _shown(exporter, "gpu"))
    assert shown == {name: {("0",): value} for name, (_, _, value) in GPM.items()}


def test_profiling_default_is_dcgm_exporters_list(make_node: MakeNode) -> None:
    """As in dcgm-exporter's list."""
    node = make_node(h100(1))
    node.board.set_gpu(0, reading(gpu_util_percent=64, memory_util_percent=32))
    with node.exporting(pods=False) as exporter:
        shown = eventually(lambda: _shown(exporter, "gpu"))
    assert shown == {
        "GR_ENGINE_ACTIVE": {("0",): 0.64},
        "PIPE_TENSOR_ACTIVE": {("0",): 0.32},
        "DRAM_ACTIVE": {("0",): 0.32},
        "PCIE_TX_BYTES": {("0",): 512 * MIB},
        "PCIE_RX_BYTES": {("0",): 512 * MIB},
    }


def test_profiling_in_new_names_keeps_units(make_node: MakeNode) -> None:
    """Three of the default ones were renamed, and kept their unit."""
    node = make_node(h100(1))
    node.board.set_gpm(0, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, 12.5)
    with node.exporting("--naming=dcgm-4.9", pods=False) as exporter:
        shown = eventually(lambda: _shown(exporter, "gpu"))
    assert shown.keys() == {
        "GR_ENGINE_UTIL_RATIO",
        "TENSOR_UTIL_RATIO",
        "DRAM_UTIL_RATIO",
        "PCIE_TX_BYTES",
        "PCIE_RX_BYTES",
    }


def test_profiling_of_instances_is_separate(make_node: MakeNode) -> None:
    """Under MIG activity is known per instance, beside the whole card's."""
    node = make_node(CUT)
    node.board.set_gpu(0, reading(gpu_util_percent=30))
    node.board.set_instance(0, 0, memory_used_bytes=0, activity_percent=75)
    node.board.set_gpm(0, pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL, 50, instance=1)
    with node.exporting(pods=False) as exporter:
        shown = eventually(lambda: _shown(exporter, "GPU_I_PROFILE"))
    assert shown["GR_ENGINE_ACTIVE"] == {("",): 0.3, ("3g.40gb",): 0.75, ("1g.10gb",): 0}
    assert shown["DRAM_ACTIVE"][("1g.10gb",)] == 0.5
    assert shown["DRAM_ACTIVE"][("3g.40gb",)] == pytest.approx(0.4125)


def test_profiling_counter_without_a_value_is_absent(make_node: MakeNode) -> None:
    """Each counter carries its own error; the others are not affected, and nothing has failed."""
    node = make_node(h100(1))
    node.board.set_gpm(0, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, float("nan"))
    done = node.once("--once", "--pod-resources-socket=")
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" not in done.out
    assert "DCGM_FI_PROF_DRAM_ACTIVE{" in done.out
    assert 'gpu_exporter_collector_success{collector="profiling"} 1' in done.out
    assert "reading performance counters of GPU 0" in done.err
    assert "ANY_TENSOR_UTIL: not supported by this device; series omitted" in done.err


def test_engines_of_a_card_without_them_are_absent(make_node: MakeNode) -> None:
    """Without a log line: an H100 has seven of the eight named video decoders, the smallest instance has one."""
    done = make_node(CUT).once("--once", "--pod-resources-socket=", "--metrics=full")
    found = re.findall(r"^DCGM_FI_PROF_(NV(?:DEC|JPG|OFA)\d)_ACTIVE\{(.*)\} 0", done.out, re.MULTILINE)
    whole = {name for name, labels in found if "GPU_I_ID" not in labels}
    small = {name for name, labels in found if "1g.10gb" in labels}
    assert whole == {*(f"NVDEC{n}" for n in range(7)), *(f"NVJPG{n}" for n in range(7)), "NVOFA0"}
    assert small == {"NVDEC0", "NVJPG0"}
    assert "NVDEC" not in done.err


@pytest.mark.slow
@pytest.mark.parametrize("card", ["A100-SXM4-40GB", "L40S", "T4"])
def test_profiling_of_older_cards_is_absent(make_node: MakeNode, card: str) -> None:
    """Absent, and no failure, except PCIe traffic, which has another source."""
    done = make_node(NodeSpec("old", (GpuSpec(card),))).once(
        "--once", "--pod-resources-socket=", "--metrics=full"
    )
    served = set(re.findall(r"^DCGM_FI_PROF_(\w+)\{", done.out, re.MULTILINE))
    assert served == {"PCIE_TX_BYTES", "PCIE_RX_BYTES"}
    assert 'gpu_exporter_collector_success{collector="profiling"} 1' in done.out
    assert 'collector_failures_total{collector="profiling"' not in done.out


def test_once_takes_two_samples_for_rates(make_node: MakeNode) -> None:
    """A rate needs two samples."""
    done = make_node(h100(2)).once("--once", "--pod-resources-socket=")
    assert done.code == 0
    assert len(re.findall(r"^DCGM_FI_PROF_GR_ENGINE_ACTIVE\{", done.out, re.MULTILINE)) == 2
    assert "pending" not in done.out


def test_first_cycle_without_rates_is_no_failure(make_node: MakeNode) -> None:
    """There is no earlier sample: no series, no failure, nothing in the log."""
    node = make_node(h100(1))
    with node.exporting("--interval=60s", pods=False) as exporter:
        status, text = exporter.get("/metrics")
        log = exporter.messages("performance")
    assert status == 200
    assert "DCGM_FI_PROF" not in text
    assert 'gpu_exporter_collector_success{collector="profiling"} 1' in text
    assert 'collector_failures_total{collector="profiling"' not in text
    assert log == []


def test_failing_profiling_collector_keeps_the_others(make_node: MakeNode) -> None:
    """The other collectors continue, and it recovers with its second sample."""
    node = make_node(h100(1))
    with node.exporting(pods=False) as exporter:
        eventually(lambda: _shown(exporter, "gpu"))
        node.board.fault("nvmlGpmSampleGet", code=pynvml.NVML_ERROR_NO_PERMISSION)
        eventually(lambda: not _shown(exporter, "gpu"))
        assert exporter.series("DCGM_FI_DEV_GPU_UTIL")
        assert exporter.series("gpu_exporter_collector_success", "collector")[("profiling",)] == 0
        assert exporter.messages("reading performance counters of GPU 0")
        node.board.clear_faults()
        eventually(lambda: _shown(exporter, "gpu"))
