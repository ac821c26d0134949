"""Extracts from a pod of the API server what the exporter keeps: UID, whether it ended, requested labels. Pure.

Input is untrusted: only strings of bounded number and length that UTF-8 can hold are kept.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from exporter.errors import ApiServerError
from exporter.model import PodDetails
from exporter.pods.deviceids import DeviceKey, keys_of_annotations

Pod = tuple[str, str]
"""Namespace and name."""
PREFIX = "pod_label_"
_ENDED = ("Succeeded", "Failed")  # no set: what is no text need not be hashable
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_CONFIG_HASH = "kubernetes.io/config.hash"
_HASH = re.compile("[0-9a-f]{32}")  # MD5; the UID of a pod that is not static has another form
_MAX_CONTAINERS = 64  # of one pod and kind
_MAX_LABELS = 64  # of one pod; more would make series useless
_MAX_CHARACTERS = 317  # a label's key may be 253 + 1 + 63 characters long, a value 63


@dataclasses.dataclass(frozen=True, slots=True)
class WantedPodFacts:
    """The requested details of pods."""

    uid: bool = False
    labels: tuple[re.Pattern[str], ...] = ()  # patterns of label keys

    def __bool__(self) -> bool:
        """Whether any detail is requested."""
        return self.uid or bool(self.labels)


@dataclasses.dataclass(frozen=True, slots=True)
class PodFact:
    """Facts kept about a pod."""

    uid: str  # distinguishes a pod from its successor with the same name
    has_ended: bool  # its containers have ended for good
    details: PodDetails  # the details to publish
    config_hash: str = ""  # the kubelet's id of a static pod; any pod's annotation may claim it
    # container names by the runtime's ids
    containers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # that a scheduler chose; None without one
    gpus: tuple[DeviceKey, ...] | None = None


def pod_fact(pod: object, wanted: WantedPodFacts) -> tuple[Pod, PodFact]:
    """Namespace and name, and what is kept. Raises ApiServerError: it is not a pod."""
    metadata = _part(pod, "metadata")
    namespace, name, uid = (_text(metadata.get(key)) for key in ("namespace", "name", "uid"))
    if not namespace or not name or not uid:
        raise ApiServerError("a pod from the API server has no namespace, name or uid")
    labels = metadata.get("labels")
    details = PodDetails(
        uid=uid if wanted.uid else "",
        labels=_chosen(labels, wanted.labels) if isinstance(labels, Mapping) else (),
    )
    status, annotations = _part(pod, "status"), _part(metadata, "annotations")
    config_hash = _text(annotations.get(_CONFIG_HASH))
    fact = PodFact(
        uid=uid,
        has_ended=status.get("phase") in _ENDED,
        details=details,
        config_hash=config_hash if _HASH.fullmatch(config_hash) else "",
        containers={id_: name for kind in _STATUSES for id_, name in _containers(status.get(kind)).items()},
        gpus=keys_of_annotations(annotations),
    )
    return (namespace, name), fact


def label_names(keys: Iterable[str]) -> dict[str, str]:
    """Metric label names of pod labels, by key.

    Keys that differ only in invalid characters (`a.b` and `a/b`) get a number in order of the keys, as in
    kube-state-metrics.
    """
    by_name: dict[str, list[str]] = {}
    for key in sorted(keys):
        by_name.setdefault(PREFIX + _UNFIT.sub("_", key), []).append(key)
    names = {only[0]: name for name, only in by_name.items() if len(only) == 1}
    taken = set(by_name)
    for name, rivals in by_name.items():
        if len(rivals) > 1:
            free = (numbered for n in range(1, 10**6) if (numbered := f"{name}_conflict{n}") not in taken)
            names |= dict(zip(rivals, free, strict=False))
            taken.update(names.values())
    return names


def _chosen(labels: Mapping[Any, Any], patterns: Iterable[re.Pattern[str]]) -> tuple[tuple[str, str], ...]:
    patterns = tuple(patterns)
    found = {
        key: _text(value)
        for key, value in labels.items()
        if isinstance(key, str) and isinstance(value, str) and len(key) <= _MAX_CHARACTERS
        if any(pattern.search(key) for pattern in patterns)
    }
    names = label_names(sorted(found)[:_MAX_LABELS])
    return tuple(sorted((name, found[key]) for key, name in names.items()))


def _containers(statuses: object) -> dict[str, str]:
    """Names by ids, which are written as "containerd://<id>"."""
    found = {}
    for status in statuses[:_MAX_CONTAINERS] if isinstance(statuses, list) else ():
        if isinstance(status, Mapping):
            found[_text(status.get("containerID")).rpartition("//")[2]] = _text(status.get("name"))
    return {container_id: name for container_id, name in found.items() if container_id and name}


def _part(document: object, name: str) -> Mapping[str, Any]:
    part = document.get(name) if isinstance(document, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _text(value: object) -> str:
    """A string that UTF-8 can hold: JSON can encode half of a surrogate pair."""
    if not isinstance(value, str):
        return ""
    return value[:_MAX_CHARACTERS].encode(errors="replace").decode()
