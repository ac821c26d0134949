"""The ConfigMaps of the memory in a simulated cluster: what they keep, and as if it had been written earlier."""

import datetime
import json
import re
from typing import Any

from rightsizer.changes.memory import NAME
from tests.rightsizer.world import World

OWN = "gpu-rightsizer"


def memory_maps(world: World) -> list[dict[str, Any]]:
    """The ConfigMaps, one for each part."""
    found = world.api.list("ConfigMap", OWN)
    return [one for one in found if one["metadata"]["name"].startswith(NAME)]


def remembered(world: World, name: str = "") -> list[dict[str, Any]]:
    """Every change of the memory, oldest first, with its workload; of one workload by name."""
    texts = [text for one in memory_maps(world) for text in one.get("data", {}).values()]
    every = map(json.loads, texts)
    found = [{"workload": one["owner"], **entry} for one in every for entry in one["changes"]]
    return sorted((one for one in found if name in {"", one["workload"]["name"]}), key=lambda one: one["at"])


def earlier(text: str, hours: float) -> str:
    """A text in which all instants are earlier."""

    def shifted(found: re.Match[str]) -> str:
        at = datetime.datetime.fromisoformat(found[0]) - datetime.timedelta(hours=hours)
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")

    return re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", shifted, text)


def age_memory(world: World, hours: float) -> None:
    """Let the memory have been written earlier."""
    for one in memory_maps(world):
        data = {key: earlier(text, hours) for key, text in one["data"].items()}
        world.api.patch("ConfigMap", OWN, one["metadata"]["name"], {"data": data})
