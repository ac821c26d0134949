"""Texts of a card: serial number, brand, firmware versions. Must not know their use."""

from collections.abc import Callable
from typing import Any

import pynvml

_BRANDS = {
    pynvml.NVML_BRAND_QUADRO: "Quadro",
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVS: "NVS",
    pynvml.NVML_BRAND_GRID: "Grid",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
    pynvml.NVML_BRAND_TITAN: "Titan",
    pynvml.NVML_BRAND_NVIDIA_VAPPS: "NVIDIA Virtual Applications",
    pynvml.NVML_BRAND_NVIDIA_VPC: "NVIDIA Virtual PC",
    pynvml.NVML_BRAND_NVIDIA_VCS: "NVIDIA Virtual Compute Server",
    pynvml.NVML_BRAND_NVIDIA_VWS: "NVIDIA RTX Virtual Workstation",
    pynvml.NVML_BRAND_NVIDIA_VGAMING: "NVIDIA vGaming",
    pynvml.NVML_BRAND_QUADRO_RTX: "Quadro RTX",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NVIDIA RTX",
    pynvml.NVML_BRAND_NVIDIA: "NVIDIA",
    pynvml.NVML_BRAND_GEFORCE_RTX: "GeForce RTX",
    pynvml.NVML_BRAND_TITAN_RTX: "Titan RTX",
}
"""Names of brands as DCGM writes them."""


def brand(handle: Any) -> str:  # noqa: ANN401 - pynvml's handles have no type
    """The brand of the card."""
    return _BRANDS.get(pynvml.nvmlDeviceGetBrand(handle), "Unknown")


def serial(handle: Any) -> str:  # noqa: ANN401
    """The serial number on the board."""
    return str(pynvml.nvmlDeviceGetSerial(handle))


def vbios(handle: Any) -> str:  # noqa: ANN401
    """The version of the card's BIOS."""
    return str(pynvml.nvmlDeviceGetVbiosVersion(handle))


def inforom_image(handle: Any) -> str:  # noqa: ANN401
    """The version of the InfoROM, the board's settings."""
    return str(pynvml.nvmlDeviceGetInforomImageVersion(handle))


def _inforom(part: int) -> Callable[[Any], str]:
    """Reads the version of a part of the InfoROM."""
    return lambda handle: str(pynvml.nvmlDeviceGetInforomVersion(handle, part))


inforom_oem = _inforom(pynvml.NVML_INFOROM_OEM)
inforom_ecc = _inforom(pynvml.NVML_INFOROM_ECC)
inforom_power = _inforom(pynvml.NVML_INFOROM_POWER)
