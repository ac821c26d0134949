"""PCIe: the link to the host."""

from collections.abc import Callable

from exporter.collectors import Row, gauge
from exporter.model import Kind, Metric, MetricName
from exporter.nvml.devices import OpenDevice


def _link(name: str, help_: str, source: str, read: Callable[[OpenDevice], float]) -> Row:
    return gauge(MetricName(f"DCGM_FI_DEV_PCIE_{name}", ""), f"PCIe {help_}", f"nvmlDeviceGet{source}", read)


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
    _link(
        "LINK_GEN", "generation that the link runs at", "CurrPcieLinkGeneration", OpenDevice.pcie_generation
    ),
    _link(
        "MAX_LINK_GEN",
        "generation that the link can run at",
        "MaxPcieLinkGeneration",
        OpenDevice.max_pcie_generation,
    ),
    _link("LINK_WIDTH", "lanes that the link runs on", "CurrPcieLinkWidth", OpenDevice.pcie_lanes),
    _link("MAX_LINK_WIDTH", "lanes that the link can run on", "MaxPcieLinkWidth", OpenDevice.max_pcie_lanes),
)
