"""All collectors and metrics, found in the files of `collectors`, and all labels: to add one, add a row to LABELS."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import exporter.collectors
from exporter.collectors import Collector
from exporter.model import Label, Metric
from exporter.nvml import texts
from exporter.nvml.devices import OpenDevice
from exporter.nvml.session import Session


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRow:
    """A label. `read` returns its value for a GPU, constant while the driver is loaded, or raises ReadingError."""

    label: Label
    read: Callable[[Session, OpenDevice], str]


def _asked(what: str, ask: Callable[[Any], str]) -> Callable[[Session, OpenDevice], str]:
    return lambda _session, device: device.text(what, ask)


def _row(dcgm: str, dcgm_49: str, read: Callable[[Session, OpenDevice], str]) -> LabelRow:
    return LabelRow(Label(f"DCGM_FI_{dcgm}", f"DCGM_FI_{dcgm_49}"), read)


def _inforom(dcgm: str, dcgm_49: str, part: str, ask: Callable[[Any], str]) -> LabelRow:
    return _row(dcgm, dcgm_49, _asked(f"the InfoROM's {part} version", ask))


DRIVER_VERSION = _row("DRIVER_VERSION", "SYSTEM_DRIVER_VERSION", lambda session, _: session.driver_version)

LABELS = (
    DRIVER_VERSION,
    _row("NVML_VERSION", "SYSTEM_NVML_VERSION", lambda session, _: session.nvml_version),
    _row("DEV_NAME", "DEV_GPU_NAME", lambda _, device: device.record.model),
    _row("DEV_BRAND", "DEV_GPU_BRAND", _asked("the brand", texts.brand)),
    _row("DEV_SERIAL", "DEV_BOARD_SERIAL", _asked("the serial number", texts.serial)),
    _row("DEV_UUID", "DEV_GPU_UUID", lambda _, device: device.record.uuid),
    _row("DEV_PCI_BUSID", "DEV_PCI_BUS_ID", lambda _, device: device.record.pci_bus_id),
    _row("DEV_VBIOS_VERSION", "DEV_VBIOS_VERSION", _asked("the VBIOS version", texts.vbios)),
    _inforom("DEV_OEM_INFOROM_VER", "DEV_INFOROM_OEM_VERSION", "OEM", texts.inforom_oem),
    _inforom("DEV_ECC_INFOROM_VER", "DEV_INFOROM_ECC_VERSION", "ECC", texts.inforom_ecc),
    _inforom("DEV_POWER_INFOROM_VER", "DEV_INFOROM_POWER_VERSION", "power", texts.inforom_power),
    _inforom("DEV_INFOROM_IMAGE_VER", "DEV_INFOROM_IMAGE_VERSION", "image", texts.inforom_image),
)


@dataclasses.dataclass(frozen=True, slots=True)
class EnabledCollectors:
    """The collectors with their enabled rows, and the labels on every series of a device."""

    collectors: tuple[Collector, ...]
    labels: tuple[LabelRow, ...] = (DRIVER_VERSION,)


@functools.cache
def collectors() -> dict[str, Collector]:
    """Every collector by name, which is that of its file, in alphabetical order."""
    package = exporter.collectors
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return {
        name: Collector(name, importlib.import_module(f"{package.__name__}.{name}").ROWS) for name in names
    }


def metrics() -> tuple[Metric, ...]:
    """Every metric of a device, in the order of the exposition."""
    return tuple(row.metric for collector in collectors().values() for row in collector.rows)
