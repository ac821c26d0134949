"""Which GPUs the kernel's NVIDIA driver knows, by its directory in /proc: a check on what NVML shows.

Must not know NVML: the point of the comparison is that the two are independent.
"""

from pathlib import Path


def gpus_in_kernel(proc_root: Path) -> frozenset[str] | None:
    """PCI bus ids, such as "0000:07:00.0", of the GPUs that the kernel's driver has bound.

    Args:
        proc_root: The host's /proc.

    Returns:
        None where the directory cannot be read: no driver there, or the host's /proc is not visible.
    """
    try:
        return frozenset(entry.name.lower() for entry in (proc_root / "driver/nvidia/gpus").iterdir())
    except OSError:
        return None


def same_bus(nvml_bus_id: str) -> str:
    """NVML's form of a bus id, which has a domain of eight digits, in the kernel's form, which has four."""
    domain, _, rest = nvml_bus_id.partition(":")
    return f"{domain[-4:]}:{rest}".lower()
