"""What public dashboards, consoles and autoscalers ask an exporter for: each metric and label is served.

Read from the dashboards' own JSON or source, at the versions of November 2026; DCGM_FI_ is left off.
"""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, eventually, pod

pytestmark = pytest.mark.driver

OFFICIAL = "DEV_GPU_TEMP DEV_POWER_USAGE DEV_SM_CLOCK DEV_GPU_UTIL DEV_FB_USED PROF_PIPE_TENSOR_ACTIVE"
DASHBOARDS = {
    "grafana.com 12239 and its copies": OFFICIAL,
    "NVIDIA deepops": "DEV_POWER_USAGE DEV_GPU_TEMP DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_FB_USED DEV_FB_FREE "
    "DEV_NVLINK_BANDWIDTH_TOTAL PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES DEV_SM_CLOCK DEV_MEM_CLOCK",
    "openobserve": "DEV_GPU_TEMP DEV_GPU_UTIL DEV_ENC_UTIL DEV_DEC_UTIL DEV_MEMORY_TEMP DEV_XID_ERRORS "
    "DEV_PCIE_REPLAY_COUNTER DEV_CORRECTABLE_REMAPPED_ROWS DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_FAILURE "
    "DEV_MEM_COPY_UTIL DEV_SM_CLOCK DEV_MEM_CLOCK DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION DEV_FB_FREE "
    "DEV_FB_USED",
    "Tiriyon dcgm-grafonnet": "DEV_FB_USED DEV_FB_FREE PROF_GR_ENGINE_ACTIVE PROF_DRAM_ACTIVE "
    "PROF_PIPE_TENSOR_ACTIVE PROF_PIPE_FP16_ACTIVE DEV_GPU_UTIL DEV_POWER_USAGE DEV_GPU_TEMP DEV_SM_CLOCK",
    "skypilot": "DEV_GPU_TEMP DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION DEV_FB_USED DEV_FB_FREE",
    "grafana.com 18288": "PROF_PIPE_FP64_ACTIVE PROF_PIPE_FP32_ACTIVE PROF_PIPE_FP16_ACTIVE PROF_SM_ACTIVE "
    "PROF_SM_OCCUPANCY DEV_FB_TOTAL",
    "grafana.com 25820": "DEV_PSTATE DEV_FAN_SPEED DEV_POWER_MGMT_LIMIT DEV_POWER_MGMT_LIMIT_MIN "
    "DEV_POWER_MGMT_LIMIT_MAX DEV_ENFORCED_POWER_LIMIT DEV_SLOWDOWN_TEMP DEV_SHUTDOWN_TEMP "
    "DEV_CLOCKS_EVENT_REASONS DEV_FB_TOTAL DEV_BAR1_TOTAL DEV_BAR1_USED DEV_BAR1_FREE DEV_PCIE_LINK_GEN "
    "DEV_PCIE_LINK_WIDTH DEV_PCIE_MAX_LINK_GEN DEV_PCIE_MAX_LINK_WIDTH DEV_POWER_VIOLATION DEV_THERMAL_VIOLATION "
    "DEV_SYNC_BOOST_VIOLATION DEV_BOARD_LIMIT_VIOLATION DEV_LOW_UTIL_VIOLATION DEV_RELIABILITY_VIOLATION "
    "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS "
    "DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS "
    "DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS DEV_ECC_MODE DEV_FB_USED_RATIO",
    "OpenShift console plugin": "DEV_GPU_TEMP DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_ENC_UTIL DEV_DEC_UTIL "
    "DEV_MEMORY_TEMP DEV_POWER_USAGE DEV_POWER_MGMT_LIMIT_MAX DEV_MEM_CLOCK DEV_MAX_MEM_CLOCK DEV_SM_CLOCK "
    "DEV_MAX_SM_CLOCK DEV_GPU_MAX_OP_TEMP DEV_MEM_MAX_OP_TEMP DEV_FAN_SPEED PROF_GR_ENGINE_ACTIVE",
    "autoscalers and chargeback": "DEV_GPU_UTIL DEV_FB_USED DEV_FB_FREE DEV_POWER_USAGE PROF_GR_ENGINE_ACTIVE "
    "PROF_DRAM_ACTIVE PROF_PIPE_TENSOR_ACTIVE",
}
LABELS = {
    "Hostname", "hostname", "gpu", "UUID", "device", "modelName", "pci_bus_id", "namespace", "pod", "container",
    "DCGM_FI_DRIVER_VERSION",
}  # fmt: skip
"""Those that panels group, match or are named by. `exported_pod` is what Prometheus makes of `pod`."""


def _names(exporter: Exporter) -> dict[str, set[str]]:
    """Label names by metric, both as the exporter writes them: the parser renames counters."""
    _, text = exporter.get("/metrics")
    plain = {line.partition("{")[0] for line in text.splitlines()}
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in plain else sample.name.removesuffix("_total")
            found.setdefault(name, set()).update(sample.labels)
    return found


def test_dashboard_queries_find_their_metrics(make_node: MakeNode) -> None:
    """On an H100 that a pod holds, with everything switched on; 25820 asks for names of both generations."""
    node = make_node(NodeSpec("n", (GpuSpec("H100-SXM5-80GB"), GpuSpec("H100-SXM5-80GB", ("3g.40gb",)))))
    node.board.set_answer(0, "nvmlDeviceGetFanSpeed", 42)  # the cards of a desk have fans
    node.board.raise_xid(0, 31)
    node.pods += [pod("llama", node.spec.gpu_uuid(0)), pod("small", node.spec.mig_uuid(1, 0))]
    node.kubelet.start()
    with node.exporting("--metrics=full", "--naming=both", "--hostname-label=both") as exporter:
        eventually(lambda: "DCGM_FI_PROF_SM_ACTIVE" in _names(exporter))
        node.board.raise_xid(0, 31)
        eventually(
            lambda: {"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_XID_ERRORS_TOTAL"} <= _names(exporter).keys()
        )
        served = _names(exporter)
    for dashboard, wanted in DASHBOARDS.items():
        missing = {f"DCGM_FI_{name}" for name in wanted.split()} - served.keys()
        assert not missing, dashboard
    assert served["DCGM_FI_DEV_GPU_UTIL"] >= LABELS
    assert served["DCGM_FI_DEV_FB_USED"] >= LABELS | {"GPU_I_PROFILE", "GPU_I_ID"}
    assert served["DCGM_FI_PROF_GR_ENGINE_ACTIVE"] >= LABELS | {"GPU_I_PROFILE", "GPU_I_ID"}


def test_default_metrics_serve_most_dashboards(make_node: MakeNode) -> None:
    """The official dashboard, its copies and autoscalers need no setting."""
    node = make_node(NodeSpec("n", (GpuSpec("H100-SXM5-80GB"),)))
    node.pods.append(pod("llama", node.spec.gpu_uuid(0)))
    node.kubelet.start()
    with node.exporting() as exporter:
        eventually(lambda: "DCGM_FI_PROF_DRAM_ACTIVE" in _names(exporter))
        served = _names(exporter)
    for dashboard in ("grafana.com 12239 and its copies", "NVIDIA deepops", "openobserve", "skypilot"):
        assert not {f"DCGM_FI_{name}" for name in DASHBOARDS[dashboard].split()} - served.keys(), dashboard
    assert (
        not {f"DCGM_FI_{name}" for name in DASHBOARDS["autoscalers and chargeback"].split()} - served.keys()
    )
    assert served["DCGM_FI_DEV_GPU_UTIL"] >= LABELS - {"Hostname"}
