"""NVLink: errors of all links of a GPU, traffic of all and of each, the fabric; links between GPU and Grace CPU."""

from collections.abc import Callable, Sequence

from exporter.collectors import Point, Row, gauge, if_supported
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import LINKS, OF_LINKS, Field

_TRAFFIC = f"nvmlDeviceGetFieldValues({Field.NVLINK_TX_KIB.value}, {Field.NVLINK_RX_KIB.value})"


def _row(name: str, field: Field, what: str) -> Row:
    def read(device: OpenDevice) -> float:
        return device.field(field)

    spelling = MetricName(f"DCGM_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL", "errors")
    metric = Metric(
        spelling,
        spelling,
        kind=Kind.COUNTER,
        help=f"NVLink {what} errors",
        source=f"nvmlDeviceGetFieldValues({field.value})",
        within=MetricSet.FULL,
        needs="cards with NVLink before Blackwell",
    )
    return Row(metric, read)


def _bandwidth(device: OpenDevice) -> float:
    """KiB of data per second in both directions, without NVLink's protocol overhead."""
    return device.increase(Field.NVLINK_TX_KIB, Field.NVLINK_RX_KIB)


def _link(link: int) -> Row:
    def read(device: OpenDevice) -> float:
        return device.link_kib_per_s(link)

    metric = Metric(
        dcgm=MetricName(f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}", "MB/s", per=1000),
        dcgm_49=MetricName(f"DCGM_FI_DEV_NVLINK_THROUGHPUT_L{link}", "MB/s", per=1000),
        kind=Kind.GAUGE,
        help=f"Data sent and received over NVLink {link}",
        source=f"{_TRAFFIC} of the link",
        within=MetricSet.FULL,
        needs="cards with that link",
    )
    return Row(metric, if_supported(read))


def _links(
    of_nvml: str,
    what: str,
    name: str = "",
    newer: str = "",
    *,
    unit: str = "",
    over: Callable[[Sequence[float]], float] = sum,
) -> Row:
    """A value over all links: the sum of a counter, the worst of another. `name` is DCGM's, if not as in NVML."""
    name = name or of_nvml
    metric = Metric(
        MetricName(f"DCGM_FI_DEV_{name}", unit),
        MetricName(f"DCGM_FI_DEV_{newer or name}", unit),
        kind=Kind.COUNTER if over is sum else Kind.GAUGE,
        help=what,
        source=f"nvmlDeviceGetFieldValues({OF_LINKS[of_nvml]})",
        within=MetricSet.FULL,
        needs="Grace CPU" if of_nvml.startswith("C2C") else "Blackwell+",
    )
    return Row(metric, lambda device: over(device.of_links(of_nvml)))


def _fabric(name: str, what: str, read: Callable[[OpenDevice], float | Sequence[Point]]) -> Row:
    return gauge(MetricName(name, ""), what, "nvmlDeviceGetGpuFabricInfoV", read, needs="NVSwitch")


def _fabric_info(device: OpenDevice) -> Sequence[Point]:
    fabric = device.fabric()
    return [Point(1, {"cluster_uuid": fabric.cluster, "clique_id": str(fabric.clique)})]


_NVLINK5 = {
    "MALFORMED_PACKET_ERRORS": (
        "RX_MALFORMED_PACKET_ERRORS",
        "RX_PACKET_MALFORMED_TOTAL",
        "malformed packets",
    ),
    "BUFFER_OVERRUN_ERRORS": ("RX_BUFFER_OVERRUN_ERRORS", "RX_PACKET_DROPPED_TOTAL", "buffer overruns"),
    "RCV_ERRORS": ("RX_ERRORS", "RX_ERROR_TOTAL", "packets with errors"),
    "RCV_REMOTE_ERRORS": ("RX_REMOTE_ERRORS", "RX_REMOTE_ERROR_TOTAL", "packets marked bad by the sender"),
    "RCV_GENERAL_ERRORS": ("RX_GENERAL_ERRORS", "RX_GENERAL_ERROR_TOTAL", "packets with bad headers"),
    "LOCAL_LINK_INTEGRITY_ERRORS": (
        "LOCAL_LINK_INTEGRITY_ERRORS",
        "INTEGRITY_ERROR_TOTAL",
        "integrity errors",
    ),
    "XMIT_DISCARDS": ("TX_DISCARDS", "TX_DISCARD_TOTAL", "discarded packets"),
    "LINK_RECOVERY_SUCCESSFUL_EVENTS": (
        "LINK_RECOVERY_SUCCESSFUL_EVENTS",
        "RECOVERY_SUCCESSFUL_TOTAL",
        "recoveries",
    ),
    "LINK_RECOVERY_FAILED_EVENTS": (
        "LINK_RECOVERY_FAILED_EVENTS",
        "RECOVERY_FAILED_TOTAL",
        "failed recoveries",
    ),
    "LINK_RECOVERY_EVENTS": ("LINK_RECOVERY_EVENTS", "RECOVERY_EVENT_TOTAL", "attempts of recovery"),
    "SYMBOL_ERRORS": ("RX_SYMBOL_ERRORS", "RX_SYMBOL_ERROR_TOTAL", "symbol errors"),
    "EFFECTIVE_ERRORS": ("EFFECTIVE_ERRORS", "EFFECTIVE_ERROR_TOTAL", "errors after correction (FEC)"),
}
"""Counters by their names in NVML: DCGM's names, and what they count."""

ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "MB/s", per=1000),
            dcgm_49=MetricName("DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", "bytes/s", times=1024),
            kind=Kind.GAUGE,
            help="NVLink data sent and received",
            source=_TRAFFIC,
            needs="cards with NVLink",
        ),
        _bandwidth,
    ),
    _row("CRC_FLIT", Field.NVLINK_CRC_FLIT_ERRORS, "flow-control CRC"),
    _row("CRC_DATA", Field.NVLINK_CRC_DATA_ERRORS, "data CRC"),
    _row("REPLAY", Field.NVLINK_REPLAY_ERRORS, "replay"),
    _row("RECOVERY", Field.NVLINK_RECOVERY_ERRORS, "recovery"),
    *map(_link, range(LINKS)),
    *(
        _links(f"NVLINK_COUNT_{nvml}", f"NVLink {what}", f"NVLINK_COUNT_{name}", f"NVLINK_{newer}")
        for nvml, (name, newer, what) in _NVLINK5.items()
    ),
    *(
        _links(
            f"NVLINK_COUNT_FEC_HISTORY_{number}",
            f"NVLink blocks with {number} symbols corrected (FEC)",
            newer=f"NVLINK_FEC_HISTORY_{number}_TOTAL",
        )
        for number in range(16)
    ),
    *(
        _links(
            f"NVLINK_COUNT_{kind}_BER",
            f"Highest {kind.lower()} bit error rate of an NVLink",
            f"NVLINK_COUNT_{kind}_BER_FLOAT",
            f"NVLINK_{kind}_BER_RATIO",
            unit="ratio",
            over=max,
        )
        for kind in ("SYMBOL", "EFFECTIVE")
    ),
    _links("C2C_LINK_GET_STATUS", "C2C links", "C2C_LINK_COUNT", "C2C_LINK_QUANTITY", over=len),
    _links("C2C_LINK_GET_STATUS", "Whether all C2C links are active (0 or 1)", "C2C_LINK_STATUS", over=min),
    _links(
        "C2C_LINK_GET_MAX_BW", "Lowest bandwidth of a C2C link", "C2C_MAX_BANDWIDTH", unit="MB/s", over=min
    ),
    _links("C2C_LINK_ERROR_INTR", "C2C CRC errors", newer="C2C_LINK_ERROR_TOTAL"),
    _links("C2C_LINK_ERROR_REPLAY", "C2C replays", newer="C2C_LINK_REPLAY_ERROR_TOTAL"),
    _links("C2C_LINK_ERROR_REPLAY_B2B", "C2C back-to-back replays", newer="C2C_LINK_REPLAY_ERROR_B2B_TOTAL"),
    _fabric(
        "DCGM_FI_DEV_FABRIC_MANAGER_STATUS",
        "Fabric (1 not started, 2 in progress, 3 ready, 4 failed)",
        lambda device: device.fabric().status,
    ),
    _fabric("DCGM_FI_DEV_FABRIC_CLIQUE_ID", "Clique in the fabric", lambda device: device.fabric().clique),
    _fabric(
        "DCGM_FI_DEV_FABRIC_HEALTH_MASK", "Fabric health, as bits", lambda device: device.fabric().health_mask
    ),
    _fabric(
        "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY",
        "Fabric health (1 healthy, 2 unhealthy, 3 limited)",
        lambda device: device.fabric().health,
    ),
    _fabric("gpu_fabric_info", "Fabric and clique of the GPU; always 1", _fabric_info),
)
