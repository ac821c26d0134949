"""What the simulated GPUs are: one row per card, from public data sheets and the output of nvidia-smi.

Knows nothing of load or of the driver: how a card behaves under work is behaviour, how it is asked is the driver.
"""

import dataclasses
import enum
import types
from collections.abc import Mapping

MIB = 1 << 20
GIB = 1 << 30


class Architecture(enum.IntEnum):
    """NVML_DEVICE_ARCH_*, as far as there are cards of it here."""

    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9


@dataclasses.dataclass(frozen=True, slots=True)
class MigProfile:
    """A way to cut an instance out of a card.

    Attributes:
        name: As in the instance's device name, "3g.20gb".
        slices: Seventh parts of the card's compute.
        memory_bytes: What NVML gives as the instance's total.
        multiprocessors: Its streaming multiprocessors.
        profile_id: NVML's id of the GPU instance profile.
        memory_slices: Eighth parts of the card's memory; they decide where an instance fits.
        copy_engines: Its copy engines, and so on for `decoders`, `jpegs` (JPEG engines) and `ofas` (optical flow).
    """

    name: str
    slices: int
    memory_bytes: int
    multiprocessors: int
    profile_id: int
    memory_slices: int
    copy_engines: int
    decoders: int
    jpegs: int = 0
    ofas: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A model of GPU.

    Attributes:
        name: What NVML calls it, "NVIDIA H100 80GB HBM3".
        architecture: NVML_DEVICE_ARCH_*.
        compute_capability: CUDA's, (major, minor).
        memory_bytes: All of its memory, of which `reserved_bytes` belong to driver and firmware (how much differs by
            a few hundred MiB between driver versions).
        multiprocessors: Streaming multiprocessors.
        idle_power_w: Draw without any context on it; `loaded_power_w` with a model loaded and nothing running.
        min_power_w: The lowest limit that can be set; `max_power_w` the highest, which is the default.
        idle_sm_clock_mhz: Clocks without load; HBM keeps its memory clock.
        memory_temperature: Whether its memory has a thermometer of its own (HBM).
        pci_device_id: Device and vendor, as in NVML; `pci_subsystem_id` likewise.
        vbios: A firmware version that such cards were seen with.
        mig_profiles: By name; empty where the card knows no MIG.
    """

    name: str
    architecture: int
    compute_capability: tuple[int, int]
    memory_bytes: int
    reserved_bytes: int
    multiprocessors: int
    idle_power_w: float
    loaded_power_w: float
    min_power_w: float
    max_power_w: float
    idle_sm_clock_mhz: int
    max_sm_clock_mhz: int
    idle_mem_clock_mhz: int
    max_mem_clock_mhz: int
    memory_temperature: bool
    pci_device_id: int
    pci_subsystem_id: int
    vbios: str
    mig_profiles: Mapping[str, MigProfile] = dataclasses.field(
        default_factory=lambda: types.MappingProxyType({})
    )

    @property
    def usable_bytes(self) -> int:
        """What programs can allocate."""
        return self.memory_bytes - self.reserved_bytes


def _by_name(*profiles: MigProfile) -> Mapping[str, MigProfile]:
    return types.MappingProxyType({profile.name: profile for profile in profiles})


def _gib(amount: float) -> int:
    return int(amount * GIB)


# The profiles' columns: name, compute slices, memory, SMs, profile id, memory slices, copy engines, decoders, JPEG,
# OFA; as `nvidia-smi mig -lgip` prints them and the MIG User Guide ("Supported MIG Profiles") tabulates them. The
# variants with media extensions ("+me") are left out: the same memory and compute under a further name.
_A100_40GB = _by_name(
    MigProfile("1g.5gb", 1, _gib(4.75), 14, 19, 1, 1, 0),
    MigProfile("1g.10gb", 1, _gib(9.75), 14, 15, 2, 1, 1),
    MigProfile("2g.10gb", 2, _gib(9.75), 28, 14, 2, 2, 1),
    MigProfile("3g.20gb", 3, _gib(19.625), 42, 9, 4, 3, 2),
    MigProfile("4g.20gb", 4, _gib(19.625), 56, 5, 4, 4, 2),
    MigProfile("7g.40gb", 7, _gib(39.5), 98, 0, 8, 7, 5, 1, 1),
)
_A100_80GB = _by_name(
    MigProfile("1g.10gb", 1, _gib(9.5), 14, 19, 1, 1, 0),
    MigProfile("1g.20gb", 1, _gib(19.5), 14, 15, 2, 1, 1),
    MigProfile("2g.20gb", 2, _gib(19.5), 28, 14, 2, 2, 1),
    MigProfile("3g.40gb", 3, _gib(39.25), 42, 9, 4, 3, 2),
    MigProfile("4g.40gb", 4, _gib(39.25), 56, 5, 4, 4, 2),
    MigProfile("7g.80gb", 7, _gib(79.0), 98, 0, 8, 7, 5, 1, 1),
)
_H100_80GB = _by_name(
    MigProfile("1g.10gb", 1, _gib(9.75), 16, 19, 1, 1, 1, 1),
    MigProfile("1g.20gb", 1, _gib(19.625), 26, 15, 2, 1, 1, 1),
    MigProfile("2g.20gb", 2, _gib(19.625), 32, 14, 2, 2, 2, 2),
    MigProfile("3g.40gb", 3, _gib(39.5), 60, 9, 4, 3, 3, 3),
    MigProfile("4g.40gb", 4, _gib(39.5), 64, 5, 4, 4, 4, 4),
    MigProfile("7g.80gb", 7, _gib(79.0), 132, 0, 8, 8, 7, 7, 1),
)
_H200_141GB = _by_name(
    MigProfile("1g.18gb", 1, _gib(16.0), 16, 19, 1, 1, 1, 1),
    MigProfile("1g.35gb", 1, _gib(32.5), 26, 15, 2, 1, 1, 1),
    MigProfile("2g.35gb", 2, _gib(32.5), 32, 14, 2, 2, 2, 2),
    MigProfile("3g.71gb", 3, _gib(69.75), 60, 9, 4, 3, 3, 3),
    MigProfile("4g.71gb", 4, _gib(69.75), 64, 5, 4, 4, 4, 4),
    MigProfile("7g.141gb", 7, _gib(140.0), 132, 0, 8, 8, 7, 7, 1),
)

CARDS: Mapping[str, Card] = types.MappingProxyType(
    {
        "H100-SXM5-80GB": Card(
            name="NVIDIA H100 80GB HBM3",
            architecture=Architecture.HOPPER,
            compute_capability=(9, 0),
            memory_bytes=81559 * MIB,
            reserved_bytes=551 * MIB,
            multiprocessors=132,
            idle_power_w=70.0,
            loaded_power_w=120.0,
            min_power_w=200.0,
            max_power_w=700.0,
            idle_sm_clock_mhz=345,
            max_sm_clock_mhz=1980,
            idle_mem_clock_mhz=2619,
            max_mem_clock_mhz=2619,
            memory_temperature=True,
            pci_device_id=0x233010DE,
            pci_subsystem_id=0x16C110DE,
            vbios="96.00.74.00.01",
            mig_profiles=_H100_80GB,
        ),
        "H200-SXM5-141GB": Card(
            name="NVIDIA H200",
            architecture=Architecture.HOPPER,
            compute_capability=(9, 0),
            memory_bytes=143771 * MIB,
            reserved_bytes=400 * MIB,
            multiprocessors=132,
            idle_power_w=76.0,
            loaded_power_w=125.0,
            min_power_w=200.0,
            max_power_w=700.0,
            idle_sm_clock_mhz=345,
            max_sm_clock_mhz=1980,
            idle_mem_clock_mhz=3201,
            max_mem_clock_mhz=3201,
            memory_temperature=True,
            pci_device_id=0x233510DE,
            pci_subsystem_id=0x18BE10DE,
            vbios="96.00.BC.00.01",
            mig_profiles=_H200_141GB,
        ),
        "A100-SXM4-80GB": Card(
            name="NVIDIA A100-SXM4-80GB",
            architecture=Architecture.AMPERE,
            compute_capability=(8, 0),
            memory_bytes=81920 * MIB,
            reserved_bytes=619 * MIB,
            multiprocessors=108,
            idle_power_w=62.0,
            loaded_power_w=85.0,
            min_power_w=100.0,
            max_power_w=400.0,
            idle_sm_clock_mhz=210,
            max_sm_clock_mhz=1410,
            idle_mem_clock_mhz=1593,
            max_mem_clock_mhz=1593,
            memory_temperature=True,
            pci_device_id=0x20B210DE,
            pci_subsystem_id=0x146310DE,
            vbios="92.00.45.00.05",
            mig_profiles=_A100_80GB,
        ),
        "A100-SXM4-40GB": Card(
            name="NVIDIA A100-SXM4-40GB",
            architecture=Architecture.AMPERE,
            compute_capability=(8, 0),
            memory_bytes=40960 * MIB,
            reserved_bytes=424 * MIB,
            multiprocessors=108,
            idle_power_w=50.0,
            loaded_power_w=75.0,
            min_power_w=100.0,
            max_power_w=400.0,
            idle_sm_clock_mhz=210,
            max_sm_clock_mhz=1410,
            idle_mem_clock_mhz=1215,
            max_mem_clock_mhz=1215,
            memory_temperature=True,
            pci_device_id=0x20B010DE,
            pci_subsystem_id=0x134F10DE,
            vbios="92.00.19.00.10",
            mig_profiles=_A100_40GB,
        ),
        "L40S": Card(
            name="NVIDIA L40S",
            architecture=Architecture.ADA,
            compute_capability=(8, 9),
            memory_bytes=46068 * MIB,
            reserved_bytes=599 * MIB,
            multiprocessors=142,
            idle_power_w=34.0,
            loaded_power_w=82.0,
            min_power_w=100.0,
            max_power_w=350.0,
            idle_sm_clock_mhz=210,
            max_sm_clock_mhz=2520,
            idle_mem_clock_mhz=405,
            max_mem_clock_mhz=9001,
            memory_temperature=False,
            pci_device_id=0x26B910DE,
            pci_subsystem_id=0x185110DE,
            vbios="95.02.66.00.02",
        ),
        "L4": Card(
            name="NVIDIA L4",
            architecture=Architecture.ADA,
            compute_capability=(8, 9),
            memory_bytes=23034 * MIB,
            reserved_bytes=539 * MIB,
            multiprocessors=58,
            idle_power_w=16.0,
            loaded_power_w=28.0,
            min_power_w=40.0,
            max_power_w=72.0,
            idle_sm_clock_mhz=210,
            max_sm_clock_mhz=2040,
            idle_mem_clock_mhz=405,
            max_mem_clock_mhz=6251,
            memory_temperature=False,
            pci_device_id=0x27B810DE,
            pci_subsystem_id=0x16CA10DE,
            vbios="95.04.29.00.06",
        ),
        "T4": Card(
            name="Tesla T4",
            architecture=Architecture.TURING,
            compute_capability=(7, 5),
            memory_bytes=15360 * MIB,
            reserved_bytes=450 * MIB,
            multiprocessors=40,
            idle_power_w=9.5,
            loaded_power_w=26.0,
            min_power_w=60.0,
            max_power_w=70.0,
            idle_sm_clock_mhz=300,
            max_sm_clock_mhz=1590,
            idle_mem_clock_mhz=405,
            max_mem_clock_mhz=5001,
            memory_temperature=False,
            pci_device_id=0x1EB810DE,
            pci_subsystem_id=0x12A210DE,
            vbios="90.04.38.00.03",
        ),
    }
)
