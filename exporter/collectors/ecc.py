"""Memory errors, and the pages and rows that were retired because of them."""

from collections.abc import Callable

from exporter.collectors import Row, gauge
from exporter.model import Kind, Metric, MetricName, MetricSet
from exporter.nvml.devices import OpenDevice
from exporter.nvml.fieldvalues import Field

_AMPERE = "Ampere+"  # not with MIG instances
_BEFORE_AMPERE = "before Ampere"


def _counter(name: str, unit: str, field: Field, help_: str) -> Row:
    """A counter that is not in dcgm-exporter's default list, and was not renamed."""
    spelling = MetricName(f"DCGM_FI_DEV_{name}", unit)
    source = f"nvmlDeviceGetFieldValues({field.value})"
    return Row(
        Metric(spelling, spelling, Kind.COUNTER, help_, source, within=MetricSet.FULL), read=_reader(field)
    )


def _retired(name: str, name_49: str, unit: str, field: Field, help_: str) -> Row:
    """Older cards retire pages instead of remapping rows."""
    metric = Metric(
        MetricName(f"DCGM_FI_DEV_RETIRED_{name}", unit),
        MetricName(f"DCGM_FI_DEV_PAGE_RETIRED_{name_49}", unit),
        Kind.COUNTER,
        help_,
        f"nvmlDeviceGetFieldValues({field.value})",
        within=MetricSet.FULL,
        needs=_BEFORE_AMPERE,
    )
    return Row(metric, read=_reader(field))


def _reader(field: Field) -> Callable[[OpenDevice], float]:
    return lambda device: device.field(field)


_PENDING = MetricName("DCGM_FI_DEV_ROW_REMAP_PENDING", "")

ROWS = (
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows"),
            dcgm_49=MetricName("DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", "rows"),
            kind=Kind.COUNTER,
            help="Memory rows remapped after uncorrectable errors",
            source=f"nvmlDeviceGetFieldValues({Field.REMAPPED_UNCORRECTABLE.value})",
            needs=_AMPERE,
        ),
        read=_reader(Field.REMAPPED_UNCORRECTABLE),
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rows"),
            dcgm_49=MetricName("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", "rows"),
            kind=Kind.COUNTER,
            help="Memory rows remapped after correctable errors",
            source=f"nvmlDeviceGetFieldValues({Field.REMAPPED_CORRECTABLE.value})",
            needs=_AMPERE,
        ),
        read=_reader(Field.REMAPPED_CORRECTABLE),
    ),
    Row(
        Metric(
            dcgm=MetricName("DCGM_FI_DEV_ROW_REMAP_FAILURE", ""),
            dcgm_49=MetricName("DCGM_FI_DEV_ROW_REMAP_FAILED", ""),
            kind=Kind.GAUGE,
            help="Whether remapping of memory rows has failed (0 or 1)",
            source=f"nvmlDeviceGetFieldValues({Field.REMAP_FAILURE.value})",
            needs=_AMPERE,
        ),
        read=_reader(Field.REMAP_FAILURE),
    ),
    gauge(
        _PENDING,
        "Whether memory rows wait for a reset to be remapped (0 or 1)",
        f"nvmlDeviceGetFieldValues({Field.REMAP_PENDING.value})",
        _reader(Field.REMAP_PENDING),
        needs=_AMPERE,
    ),
    Row(
        Metric(
            MetricName("DCGM_FI_DEV_ECC_CURRENT", ""),
            MetricName("DCGM_FI_DEV_ECC_MODE", ""),
            Kind.GAUGE,
            "Whether ECC is enabled (0 or 1)",
            "nvmlDeviceGetEccMode",
            MetricSet.FULL,
        ),
        read=OpenDevice.ecc_mode,
    ),
    _counter(
        "ECC_SBE_VOL_TOTAL", "errors", Field.ECC_SBE_VOLATILE, "Single-bit errors since the driver was loaded"
    ),
    _counter(
        "ECC_DBE_VOL_TOTAL", "errors", Field.ECC_DBE_VOLATILE, "Double-bit errors since the driver was loaded"
    ),
    _counter(
        "ECC_SBE_AGG_TOTAL", "errors", Field.ECC_SBE_AGGREGATE, "Single-bit errors over the card's lifetime"
    ),
    _counter(
        "ECC_DBE_AGG_TOTAL", "errors", Field.ECC_DBE_AGGREGATE, "Double-bit errors over the card's lifetime"
    ),
    _retired("SBE", "SBE_TOTAL", "pages", Field.RETIRED_SBE, "Pages retired after single-bit errors"),
    _retired("DBE", "DBE_TOTAL", "pages", Field.RETIRED_DBE, "Pages retired after double-bit errors"),
    _retired(
        "PENDING",
        "PENDING",
        "",
        Field.RETIRED_PENDING,
        "Whether pages wait for a reboot to be retired (0 or 1)",
    ),
)
