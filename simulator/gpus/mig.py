"""Where MIG instances lie on a card, as the real driver places them: in aligned runs of its eight memory slices."""

from collections.abc import Sequence
from typing import NamedTuple

from simulator.gpus.cards import Card, MigProfile

_MEMORY_SLICES = 8
_COMPUTE_SLICES = 7


class Placed(NamedTuple):
    """An instance on a card; `start` is its first memory slice."""

    profile: MigProfile
    gpu_instance_id: int
    start: int


def place(card: Card, profiles: Sequence[str]) -> tuple[Placed, ...]:
    """The placement of each instance, in the order given."""
    chosen = [_profile(card, name) for name in profiles]
    if sum(profile.slices for profile in chosen) > _COMPUTE_SLICES:
        raise ValueError(
            f"{card.name}: {_names(profiles)} take more than the {_COMPUTE_SLICES} compute slices"
        )
    largest_first = sorted(range(len(chosen)), key=lambda i: (-chosen[i].memory_slices, -chosen[i].slices))
    free = set(range(_MEMORY_SLICES))
    starts: dict[int, int] = {}
    for i in largest_first:
        start = next((s for s in _starts(chosen[i]) if free.issuperset(_run(s, chosen[i]))), None)
        if start is None:
            raise ValueError(
                f"{card.name}: {_names(profiles)} do not fit into its {_MEMORY_SLICES} memory slices"
            )
        free.difference_update(_run(start, chosen[i]))
        starts[i] = start
    return tuple(
        Placed(profile, _instance_id(starts[i], profile.memory_slices), starts[i])
        for i, profile in enumerate(chosen)
    )


def _profile(card: Card, name: str) -> MigProfile:
    profile = card.mig_profiles.get(name)
    if profile is None:
        known = ", ".join(card.mig_profiles) or "none, the card knows no MIG"
        raise ValueError(f"{card.name}: no MIG profile {name!r}; it has: {known}")
    return profile


def _starts(profile: MigProfile) -> Sequence[int]:
    """Where it may begin, as `nvidia-smi mig -lgipp` lists it, in the order in which the driver tries."""
    match profile.memory_slices, profile.slices:
        case 1, _:
            return range(_COMPUTE_SLICES)  # the eighth memory slice has no compute of its own
        case 2, 1:
            return (0, 2, 4, 6)
        case 2, _:
            return (0, 2, 4)
        case 4, 3:
            return (4, 0)
        case _:
            return (0,)


def _run(start: int, profile: MigProfile) -> range:
    return range(start, start + profile.memory_slices)


def _instance_id(start: int, size: int) -> int:
    """GPU instances are numbered by size, the upper half of the card first.

    As `nvidia-smi mig -lgi` shows on an A100: 3g at 4:4 is 1 and at 0:4 is 2; 1g at 4:1 is 7 and at 0:1 is 11.
    """
    count = _MEMORY_SLICES // size
    return count - 1 + (start // size + count // 2) % count


def _names(profiles: Sequence[str]) -> str:
    return " + ".join(profiles)
