"""The link to the host."""

from exporter.collectors import Row
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice


def _link(name: str, help_: str, source: str) -> Metric:
    spelling = MetricName(f"DCGM_FI_DEV_{name}", "")
    return Metric(spelling, spelling, Kind.GAUGE, help_, source, within=MetricSet.FULL)


ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "retries"),
            dcgm_49=MetricName("DCGM_FI_DEV_PCIE_REPLAY_TOTAL", "retries"),
            kind=Kind.COUNTER,
            help="PCIe packets sent again",
            source="nvmlDeviceGetPcieReplayCounter",
        ),
        read=OpenDevice.pcie_replays,
    ),
    Row(
        _link(
            "PCIE_LINK_GEN", "PCIe generation that the link runs at", "nvmlDeviceGetCurrPcieLinkGeneration"
        ),
        read=OpenDevice.pcie_generation,
    ),
    Row(
        _link(
            "PCIE_MAX_LINK_GEN",
            "PCIe generation that the link can run at",
            "nvmlDeviceGetMaxPcieLinkGeneration",
        ),
        read=OpenDevice.max_pcie_generation,
    ),
    Row(
        _link("PCIE_LINK_WIDTH", "PCIe lanes that the link runs on", "nvmlDeviceGetCurrPcieLinkWidth"),
        read=OpenDevice.pcie_lanes,
    ),
    Row(
        _link("PCIE_MAX_LINK_WIDTH", "PCIe lanes that the link can run on", "nvmlDeviceGetMaxPcieLinkWidth"),
        read=OpenDevice.max_pcie_lanes,
    ),
)
