"""Writes changes into the memory, as whoever writes in gpu-rightsizer's own namespace can."""

import json
from typing import Any

import msgspec

from rightsizer.changes.memory import NAMES, key_of, part_of
from rightsizer.model import ObjectRef
from simulator.kube import ApiServer


def remember(
    api: ApiServer, owner: ObjectRef, change: dict[str, Any], *, namespace: str = "gpu-rightsizer"
) -> None:
    """Keep a change of an owner; what is there of the same run is amended."""
    name = NAMES[part_of(key_of(owner))]
    found = api.get("ConfigMap", namespace, name)
    texts = found["data"] if found else {}
    kept = json.loads(texts.get(key_of(owner), "{}")) or {"owner": msgspec.to_builtins(owner), "changes": []}
    for one in kept["changes"]:
        one.update(change if one["run"] == change["run"] else {})
    if not any(one["run"] == change["run"] for one in kept["changes"]):
        kept["changes"].append(change)
    data = {"data": {**texts, key_of(owner): json.dumps(kept)}}
    if found:
        api.patch("ConfigMap", namespace, name, data)
    else:
        metadata = {"namespace": namespace, "name": name}
        api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **data})
