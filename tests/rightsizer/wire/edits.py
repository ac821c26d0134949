"""What people and kubelets write: fields as they were, templates as they like them, and containers that ended."""

import copy
import random
from collections.abc import Mapping
from typing import Any

from tests.rightsizer.wire.amounts import GPU
from tests.rightsizer.wire.form import TEMPLATES, containers_of, value_at
from tests.rightsizer.wire.recorder import Object


def written(obj: Object, values: Mapping[tuple[str, ...], object]) -> dict[str, Any]:
    """The merge patch by which whoever replaces an object sets fields of it."""
    after = copy.deepcopy(dict(obj))
    for path, value in values.items():
        here: Any = after
        for step in path[:-1]:
            below = value_at(here, (step,))
            here = below if below is not None else here.setdefault(step, {})
        here[path[-1]] = value
        if value is None and any("=" in step for step in path):  # in a list a null would stay
            del here[path[-1]]
    return _carrying(after, {path[:2] for path in values})


def redesigned(obj: Object, dice: random.Random) -> dict[str, Any]:
    """The merge patch by which an owner writes the template anew: another image, or other GPUs."""
    after = copy.deepcopy(dict(obj))
    for container in containers_of(after):
        if dice.random() < 0.5:
            container["image"] = f"y{dice.randrange(1000)}"
        else:
            container["resources"] = {"limits": {GPU: str(dice.choice([1, 2]))}}
    return _carrying(after, {path[:2] for path in TEMPLATES[str(obj["kind"])]})


def _carrying(obj: Object, tops: set[tuple[str, ...]]) -> dict[str, Any]:
    patch: dict[str, Any] = {}
    for root, key in tops:
        patch.setdefault(root, {})[key] = obj[root].get(key)
    return patch


def out_of_memory(pod: Object, at: str) -> dict[str, Any]:
    """The status of a pod all of whose containers ran out of memory then, and started again."""
    ended = {"reason": "OOMKilled", "exitCode": 137, "startedAt": at, "finishedAt": at}
    return {
        "containerStatuses": [
            {**one, "lastState": {"terminated": ended}, "restartCount": 1}
            for one in pod["status"].get("containerStatuses", ())
        ]
    }
