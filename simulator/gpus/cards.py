"""The models of GPU that can be simulated; to add one, write a row in cards.yaml. Must not know load or driver."""

import dataclasses
import enum
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

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
    """A MIG profile: compute in sevenths of a card, memory in eighths."""

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
    """A model of GPU; power limits from `min_power_w` to `max_power_w`, which is the default."""

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
    mig_profiles: Mapping[str, MigProfile]

    @property
    def usable_bytes(self) -> int:
        """What programs can allocate."""
        return self.memory_bytes - self.reserved_bytes


def _mig_profile(name: str, row: Sequence[float]) -> MigProfile:
    slices, memory_gib, *others = row
    return MigProfile(name, int(slices), int(memory_gib * GIB), *map(int, others))


def _card(row: Mapping[str, Any], mig: Mapping[str, Mapping[str, Sequence[float]]]) -> Card:
    memory, power, sm_clock, mem_clock = row["memory"], row["power"], row["sm_clock"], row["mem_clock"]
    profiles = mig[row["mig"]] if "mig" in row else {}
    return Card(
        name=row["name"],
        architecture=Architecture[row["architecture"]],
        compute_capability=tuple(row["compute_capability"]),
        memory_bytes=memory["total"] * MIB,
        reserved_bytes=memory["reserved"] * MIB,
        multiprocessors=row["multiprocessors"],
        idle_power_w=float(power["idle"]),
        loaded_power_w=float(power["loaded"]),
        min_power_w=float(power["min"]),
        max_power_w=float(power["max"]),
        idle_sm_clock_mhz=sm_clock["idle"],
        max_sm_clock_mhz=sm_clock["max"],
        idle_mem_clock_mhz=mem_clock["idle"],
        max_mem_clock_mhz=mem_clock["max"],
        memory_temperature=memory["thermometer"],
        pci_device_id=row["pci"]["device"],
        pci_subsystem_id=row["pci"]["subsystem"],
        vbios=row["vbios"],
        mig_profiles={name: _mig_profile(name, columns) for name, columns in profiles.items()},
    )


def _cards() -> dict[str, Card]:
    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return {key: _card(row, table["mig"]) for key, row in table["cards"].items()}


CARDS: Mapping[str, Card] = types.MappingProxyType(_cards())
