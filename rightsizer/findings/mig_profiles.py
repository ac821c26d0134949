"""What a GPU can be cut into: the MIG profiles of each model. Pure.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html and supported-gpus.html (R580).
To add a card is to add a row. Profiles with media extensions (+me) are one per GPU, and left out.
"""

import dataclasses
import fnmatch
import functools

from rightsizer.model.offers import plain

USABLE = 0.9
"""Of a slice's share of the memory: drivers keep some (9.75 of 10 GB on an H100, 4.75 of 5 GB on an A100, by
nvidia-smi mig -lgip), and more with each instance."""

GIB = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """One way to cut a slice out of a GPU.

    Attributes:
        name: As in the resource `nvidia.com/mig-NAME`.
        compute: Share of the GPU's compute, 0 to 1.
        bandwidth: Share of the memory and of its bandwidth, 0 to 1.
        memory_bytes: What a process can allocate at most.
    """

    name: str
    compute: float
    bandwidth: float
    memory_bytes: float

    @property
    def share(self) -> float:
        """What it takes away from the GPU, 0 to 1: slices of compute and of memory are given out together."""
        return max(self.compute, self.bandwidth)

    @property
    def resource(self) -> str:
        """The extended resource that pods ask for."""
        return f"nvidia.com/mig-{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A model that can be cut.

    Attributes:
        models: Patterns of its names, in DCGM's spelling with spaces for hyphens.
        profiles: From the smallest.
    """

    models: tuple[str, ...]
    profiles: tuple[Profile, ...]


def _card(gigabytes: int, parts: tuple[int, int], names: str, *models: str) -> Card:
    """A card of so many GB, so many slices of compute and of memory; names as `1g.10gb:1`, with its memory slices."""
    compute, memory = parts
    profiles = []
    for word in names.split():
        name, slices = word.split(":")
        share = int(slices) / memory
        profiles.append(
            Profile(name, int(name.split("g")[0]) / compute, share, gigabytes * GIB * share * USABLE)
        )
    return Card(models, tuple(sorted(profiles, key=lambda profile: (profile.share, profile.memory_bytes))))


_SEVEN = (7, 8)
_FOUR = (4, 4)

CARDS = (
    _card(24, _FOUR, "1g.6gb:1 2g.12gb:2 4g.24gb:4", "*A30"),
    _card(40, _SEVEN, "1g.5gb:1 1g.10gb:2 2g.10gb:2 3g.20gb:4 4g.20gb:4 7g.40gb:8", "*A100*40GB*"),
    _card(80, _SEVEN, "1g.10gb:1 1g.20gb:2 2g.20gb:2 3g.40gb:4 4g.40gb:4 7g.80gb:8", "*A100*80GB*"),
    _card(
        94, _SEVEN, "1g.12gb:1 1g.24gb:2 2g.24gb:2 3g.47gb:4 4g.47gb:4 7g.94gb:8", "*H100*NVL*", "*H100*94GB*"
    ),
    _card(
        80,
        _SEVEN,
        "1g.10gb:1 1g.20gb:2 2g.20gb:2 3g.40gb:4 4g.40gb:4 7g.80gb:8",
        "*H100*80GB*",
        "*H100 PCIe*",
    ),
    _card(
        96, _SEVEN, "1g.12gb:1 1g.24gb:2 2g.24gb:2 3g.48gb:4 4g.48gb:4 7g.96gb:8", "*GH200*480GB*", "* H20"
    ),
    _card(144, _SEVEN, "1g.18gb:1 1g.36gb:2 2g.36gb:2 3g.72gb:4 4g.72gb:4 7g.144gb:8", "*GH200*144G*"),
    _card(141, _SEVEN, "1g.18gb:1 1g.35gb:2 2g.35gb:2 3g.71gb:4 4g.71gb:4 7g.141gb:8", "* H200*"),
    _card(180, _SEVEN, "1g.23gb:1 1g.45gb:2 2g.45gb:2 3g.90gb:4 4g.90gb:4 7g.180gb:8", "* B200*"),
    _card(96, _FOUR, "1g.24gb:1 2g.48gb:2 4g.96gb:4", "*RTX PRO 6000*"),
)


@functools.lru_cache(maxsize=1024)
def card_of(model: str) -> Card | None:
    """The row of a model, by DCGM's name or GPU Feature Discovery's; None where none is known."""
    name = plain(model)
    for card in CARDS:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in card.models):
            return card
    return None
