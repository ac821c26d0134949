"""Identity, setup and topology of a GPU: rarely changes while the driver is loaded."""

from collections.abc import Callable, Sequence

from exporter.collectors import Point, gauge
from exporter.errors import ReadingError, Reason
from exporter.model import MetricName, MetricSet
from exporter.nvml import texts
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import Field


def _info(device: OpenDevice) -> Sequence[Point]:
    labels = {
        "model": device.record.model,
        "driver_version": device.driver_version,
        "cuda_version": device.cuda_version,
        "vbios_version": _known(lambda: device.text("the VBIOS version", texts.vbios)),
        "compute_capability": _known(device.compute_capability),
        "numa_node": _known(lambda: ",".join(map(str, device.numa_nodes()))),
    }
    if device.shows_serial_number:
        labels["serial"] = _known(lambda: device.text("the serial number", texts.serial))
    return [Point(1, labels)]


def _known(ask: Callable[[], str]) -> str:
    """The answer; empty if the driver has none. Any other failure fails the row."""
    try:
        return ask()
    except ReadingError as error:
        if error.reason in {Reason.NOT_SUPPORTED, Reason.UNAVAILABLE}:
            return ""
        raise


def _topology(device: OpenDevice) -> Sequence[Point]:
    links = device.nvlinks()
    return [
        Point(
            1,
            {
                "peer_gpu": str(peer.gpu),
                "peer_UUID": peer.uuid,
                "connection": f"NV{links}" if peer.nvlink and links else peer.path,
                "pcie_path": peer.path,
            },
        )
        for peer in device.peers()
    ]


_LINK_STATUS = (
    "OK",
    "ChipsetNotSupported",
    "GPUNotSupported",
    "TopologyNotSupported",
    "DisabledByRegKey",
    "NotSupported",
    "Unknown",
)
"""NVML_P2P_STATUS_* in dcgm-exporter's words, by number."""


def _p2p(device: OpenDevice) -> Sequence[Point]:
    return [
        Point(peer.link, {"peer_gpu": str(peer.gpu), "link_status": _LINK_STATUS[min(peer.link, 6)]})
        for peer in device.peers()
        if peer.link is not None
    ]


ROWS = (
    gauge(
        MetricName("gpu_info", ""),
        "Model, driver and firmware of the GPU; always 1",
        "nvmlDeviceGetVbiosVersion, nvmlDeviceGetCudaComputeCapability, nvmlDeviceGetMemoryAffinity",
        _info,
        within=MetricSet.DEFAULT,
    ),
    gauge(
        MetricName("gpu_topology", ""),
        "A GPU of the same node, and how it is connected, as nvidia-smi topo -m says it; always 1",
        "nvmlDeviceGetTopologyCommonAncestor, nvmlDeviceGetP2PStatus, nvmlDeviceGetNvLinkState",
        _topology,
        within=MetricSet.DEFAULT,  # resizes need it; 56 series on a node of 8 GPUs
    ),
    gauge(
        MetricName("DCGM_FI_DEV_VGPU_LICENSE_STATUS", ""),
        "Whether the GPU is a licensed vGPU (0 or 1)",
        "nvmlDeviceGetGridLicensableFeatures_v4",
        OpenDevice.is_licensed,
        within=MetricSet.DEFAULT,
    ),
    gauge(
        MetricName("DCGM_EXP_P2P_STATUS", ""),
        "NVLink state to another GPU of the node (0 is OK)",
        "nvmlDeviceGetP2PStatus(NVML_P2P_CAPS_INDEX_NVLINK)",
        _p2p,
    ),
    gauge(
        MetricName("DCGM_FI_DEV_GPU_RECOVERY_ACTION", ""),
        "What the driver asks for (0 nothing, 1 reset, 2 reboot, 3 drain, 4 drain and reset)",
        f"nvmlDeviceGetFieldValues({Field.RECOVERY_ACTION.value})",
        lambda device: device.field(Field.RECOVERY_ACTION),
    ),
    gauge(
        MetricName("DCGM_FI_DEV_MIG_MODE", ""),
        "Whether MIG mode is on (0 or 1)",
        "nvmlDeviceGetMigMode",
        OpenDevice.mig_mode,
    ),
)
