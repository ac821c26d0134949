"""What HAMi's device plugin writes on its node: which GPUs it hands out by amounts. Pure.

https://github.com/Project-HAMi/HAMi/blob/master/docs/develop/protocol.md and pkg/device/devices.go: a JSON list, in
older versions `UUID,count,MiB,cores,type,numa,healthy[,index,mode]:` for each GPU.
"""

import dataclasses

import msgspec

REGISTER = "hami.io/node-nvidia-register"

_BY_AMOUNT = frozenset({"", "hami-core", "mps"})
"""Modes in which a pod gets the memory that it asks for; with "mig" it gets an instance."""
_VENDOR = "NVIDIA-"
_LENGTHS = (7, 9)


class _Device(msgspec.Struct):
    """A GPU as it is registered; what is false or 0 is left out."""

    devmem: int = 0
    type: str = ""
    health: bool = False
    mode: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Registered:
    """The GPUs of a node that are handed out by amounts.

    Attributes:
        model: As NVML calls it.
        gpus: How many.
        memory_bytes: Of each, as HAMi counts it: with deviceMemoryScaling more than there is.
    """

    model: str
    gpus: int
    memory_bytes: int


def registered(text: str) -> Registered | None:
    """What the annotation says; None where it cannot be read, no GPU is healthy, or they are not all alike."""
    try:
        devices = msgspec.json.decode(text, type=list[_Device]) if text.startswith("[") else _old(text)
    except (msgspec.DecodeError, ValueError):
        return None
    usable = [one for one in devices if one.health and one.mode in _BY_AMOUNT and one.devmem > 0]
    if len({(one.type, one.devmem) for one in usable}) != 1:
        return None
    return Registered(usable[0].type.removeprefix(_VENDOR), len(usable), usable[0].devmem << 20)


def _old(text: str) -> list[_Device]:
    """Before it was JSON.

    Raises:
        ValueError: It is not of that form.
    """
    found = []
    for one in filter(None, text.split(":")):
        items = one.split(",")
        if len(items) not in _LENGTHS:
            message = f"{len(items)} items"
            raise ValueError(message)
        mode = items[8] if len(items) == max(_LENGTHS) else ""
        found.append(_Device(devmem=int(items[2]), type=items[4], health=items[6] == "true", mode=mode))
    return found
