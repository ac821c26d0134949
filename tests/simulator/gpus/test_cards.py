"""The cards are possible ones."""

import itertools

import pytest

from simulator.gpus.cards import CARDS, Card


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_card_power_and_memory_limits_are_ordered(card: Card) -> None:
    """Idle is below loaded is below the limit, and reserved memory below all memory."""
    assert 0 < card.idle_power_w < card.loaded_power_w < card.max_power_w
    assert card.min_power_w < card.max_power_w
    assert 0 < card.idle_sm_clock_mhz < card.max_sm_clock_mhz
    assert 0 < card.idle_mem_clock_mhz <= card.max_mem_clock_mhz
    assert 0 < card.reserved_bytes < card.usable_bytes < card.memory_bytes
    assert card.pci_device_id & 0xFFFF == card.pci_subsystem_id & 0xFFFF == 0x10DE


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_card_memory_type_decides_thermometer_clock_and_mig(card: Card) -> None:
    """HBM cards have a memory thermometer and a fixed memory clock; GDDR cards have neither, nor MIG."""
    assert card.memory_temperature == (card.idle_mem_clock_mhz == card.max_mem_clock_mhz)
    assert card.memory_temperature == bool(card.mig_profiles)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_mig_profile_name_matches_its_slices_and_memory(card: Card) -> None:
    """A profile's name tells its compute slices and, to a rounding, its memory; as many as there is room for fit."""
    for name, profile in card.mig_profiles.items():
        compute, memory = name.removesuffix("gb").split("g.")
        assert profile.name == name
        assert profile.slices == int(compute)
        assert profile.memory_bytes / (1 << 30) == pytest.approx(int(memory), rel=0.12)
        assert profile.memory_bytes * (8 // profile.memory_slices) <= card.usable_bytes
        assert profile.multiprocessors <= card.multiprocessors
        assert profile.slices <= profile.copy_engines <= 8


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS.keys())
def test_mig_profile_ids_of_a_card_are_unique(card: Card) -> None:
    """Each profile of a card has an id of its own, and more slices never mean less memory."""
    ids = [profile.profile_id for profile in card.mig_profiles.values()]
    assert len(set(ids)) == len(ids)
    ordered = sorted(card.mig_profiles.values(), key=lambda profile: profile.memory_slices)
    assert all(a.memory_bytes <= b.memory_bytes for a, b in itertools.pairwise(ordered))
