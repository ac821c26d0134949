"""What a change takes of each pod's GPUs: what is left, whether that is enough, and whether a node has it."""

import datetime
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from simulator.kube import ApiServer
from tests.rightsizer.wire.amounts import asked, holding, unequal, whole_gpus
from tests.rightsizer.wire.form import UNDO, containers_of
from tests.rightsizer.wire.law import annotations_of, seconds, starts_of
from tests.rightsizer.wire.recorder import Entry, Object
from tests.rightsizer.wire.room import is_offered
from tests.rightsizer.wire.truth import Truth


def too_little(
    entry: Entry, pods: Sequence[Object], parts: Sequence[Mapping[str, Any]], truth: Truth
) -> Iterator[str]:
    """Whether what each pod is left with is less than it was seen to need, as far as that was told."""
    key = key_of(entry)
    if key in truth.lies:
        yield f"the metrics were {truth.lies[key]}"
    amounts, containers = _left(entry)
    yield from unequal(containers)
    has, left = holding(_now(entry)), holding(amounts)
    if left.weight >= has.weight:
        yield f"leaves {left}, it has {has}"
    since = since_of(entry, pods, max((seconds(part["window"]) for part in parts), default=0.0))
    devices, load = truth.needed(key, since, has)
    if left.devices < devices:
        yield f"leaves {left.devices} of {has.devices} devices, {devices} were at work since {since}"
    share = left.share
    needs = (load.memory_bytes, load.activity[1], load.traffic)
    if left.devices == has.devices and any(
        need > got
        for need, got in zip(needs, (share.memory_bytes, share.compute, share.bandwidth), strict=True)
    ):
        yield f"leaves {share}, it needed {load} since {since}"


def out_of_room(entry: Entry, pods: Sequence[Object], api: ApiServer) -> Iterator[str]:
    """Whether no node has room for what each pod is to have instead; fewer GPUs fit where more of them were."""
    amounts, _ = _left(entry)
    if holding(amounts).devices < holding(_now(entry)).devices:
        return
    if not is_offered(amounts, len(pods), api.list("Node"), api.list("Pod")):
        yield f"no node has room for {len(pods)} pods more with {amounts}"


def _now(entry: Entry) -> dict[str, int]:
    """What each pod asks for before."""
    assert entry.scene.obj is not None
    return asked(containers_of(entry.scene.obj))


def _left(entry: Entry) -> tuple[dict[str, int], Sequence[Object]]:
    """What each pod is left to ask for, at once or once the others are gone; and its containers as they stand."""
    assert entry.after is not None
    amounts = _now(entry)
    for edit in json.loads(annotations_of(entry.after).get(UNDO, "{}")).get("pendingEdits", ()):
        if edit["path"][-2] == "limits":
            amounts[edit["path"][-1]] = int(edit.get("after") or 0)
            return amounts, []
    containers = containers_of(entry.after)
    return asked(containers), containers


def freed(entry: Entry, pods: Sequence[Object], what: str, left: float) -> float:
    """GPUs that others can have."""
    if what == "less":
        each = holding(_now(entry)).weight - holding(_left(entry)[0]).weight
        return len(pods) * each
    going = len(pods) - (left if left < math.inf else 0)
    return whole_gpus(pods) * going / len(pods) if pods else 0.0


def key_of(entry: Entry) -> tuple[str, str]:
    """As the truth knows a workload."""
    assert entry.scene.obj is not None
    meta = entry.scene.obj["metadata"]
    return meta["namespace"], (meta.get("labels") or {}).get("app", meta["name"])


def since_of(entry: Entry, pods: Sequence[Object], span_s: float) -> datetime.datetime:
    """When the time begins by which it is judged."""
    began = min(starts_of(pods), default=entry.at)
    return max(entry.at - datetime.timedelta(seconds=span_s), began)
