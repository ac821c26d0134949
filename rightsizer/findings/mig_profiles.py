"""The MIG profiles of each GPU model. Pure.

https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html and supported-gpus.html (R580).
To add a card is to add a row. Profiles with media extensions (+me) exist once per GPU, and are left out.
"""

import dataclasses
import fnmatch
import functools

from rightsizer.model.offers import plain

USABLE = 0.9
"""Usable fraction of a slice's memory: drivers reserve some, and more with each instance (nvidia-smi mig
-lgip shows 9.75 of 10 GB on an H100, and 4.75 of 5 GB on an A100)."""

GIB = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile.

    Attributes:
        name: As in the resource `nvidia.com/mig-NAME`.
        compute: Fraction of the GPU's compute.
        bandwidth: Fraction of the GPU's memory and its bandwidth.
        memory_bytes: What a process can allocate.
    """

    name: str
    compute: float
    bandwidth: float
    memory_bytes: float

    @property
    def share(self) -> float:
        """Fraction of the GPU that it occupies: compute and memory are allocated together."""
        return max(self.compute, self.bandwidth)

    @property
    def resource(self) -> str:
        """The extended resource that pods request."""
        return f"nvidia.com/mig-{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A GPU model with MIG.

    Attributes:
        models: Patterns of its names, as DCGM writes them, with spaces for hyphens.
        profiles: Smallest first.
    """

    models: tuple[str, ...]
    profiles: tuple[Profile, ...]


def _card(gigabytes: int, parts: tuple[int, int], names: str, *models: str) -> Card:
    """A card with its memory in GB and its compute and memory slices; `1g.10gb:1` has one memory slice."""
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
    """The row of a model, named by DCGM or GPU Feature Discovery; None if it is unknown."""
    name = plain(model)
    for card in CARDS:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in card.models):
            return card
    return None
