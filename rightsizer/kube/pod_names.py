"""Names of pods as controllers make them: a prefix that a workload's pods share, and a suffix for each. Pure."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping

from rightsizer.model import PodKey

# k8s.io/apimachinery/pkg/util/rand: the characters of generated names.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
HASHED = f"{_RANDOM}{{1,10}}-{_RANDOM}{{5}}"
"""Suffix of a Deployment's pod: the hash of the pod template, and five characters."""
RANDOM = f"{_RANDOM}{{5}}"
"""Suffix of a ReplicaSet's pod."""
ORDINAL = "[0-9]+"
"""Suffix of a StatefulSet's pod."""
GROUPED = "([0-9]+)(?:-[0-9]+)?"
"""Suffix of a LeaderWorkerSet's pod: all pods of one number are one replica."""


@dataclasses.dataclass(frozen=True, slots=True)
class PodNames:
    """Patterns of the names of a kind's pods.

    Attributes:
        suffixes: Patterns of suffixes, the first one that fits; by default those of Deployments, StatefulSets and Jobs.
        is_group: Whether a replica is a group of pods with one number, and the workload's name their prefix.
    """

    suffixes: tuple[str, ...] = (HASHED, ORDINAL, RANDOM)
    is_group: bool = False


ANY_NAMES = PodNames()
HASHES, ORDINALS, FIVE_CHARACTERS = PodNames((HASHED,)), PodNames((ORDINAL,)), PodNames((RANDOM,))
GROUPS = PodNames((GROUPED,), is_group=True)

NamePrefix = tuple[str, str]
"""Namespace, and the part of a pod's name before the suffix."""


def replicas_by_prefix(
    pods: Iterable[PodKey], suffixes: Mapping[NamePrefix, Collection[str]]
) -> dict[PodKey, list[tuple[NamePrefix, str]]]:
    """The prefix of each pod that has one of these and one of its suffixes, and its replica.

    A name may fit several workloads: it then counts in each.
    """
    found: dict[PodKey, list[tuple[NamePrefix, str]]] = {}
    for namespace, name in pods:
        for parts in (1, 2):
            prefix = namespace, name.rsplit("-", parts)[0]
            for suffix in suffixes.get(prefix, ()):
                if match := re.compile(suffix).fullmatch(name, len(prefix[1]) + 1):
                    replica = prefix, match[match.lastindex or 0]
                    found.setdefault((namespace, name), []).append(replica)
    return found
