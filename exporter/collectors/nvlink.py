"""NVLink: errors of all links of a GPU together, traffic of all links and of each."""

from exporter.collectors import Row, if_supported
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import LINKS, Field

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
)
