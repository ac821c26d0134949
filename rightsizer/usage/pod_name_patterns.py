"""Stems of pods' names: what all of a workload's pods are called, also those that are gone. Asks nothing."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import SeriesGroup, Shard
from rightsizer.usage.quantities import Metric
from rightsizer.usage.series_labels import CLUSTER

# k8s.io/apimachinery/pkg/util/rand: the characters of generated names.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
HASHED = f"{_RANDOM}{{1,10}}-{_RANDOM}{{5}}"
"""What a Deployment puts behind its name: the hash of its ReplicaSet's template, and five characters."""
RANDOM = f"{_RANDOM}{{5}}"
"""What a ReplicaSet does."""
ORDINAL = "[0-9]+"
"""What a StatefulSet does."""
GROUPED = "([0-9]+)(?:-[0-9]+)?"
"""What a LeaderWorkerSet does: all pods of one number are one replica."""

SUFFIXES = {"StatefulSet": (ORDINAL,), "LeaderWorkerSet": (GROUPED,), "ReplicaSet": (RANDOM,)}
"""By kind; those of any other come from Deployments or StatefulSets below it."""
OTHERS = (HASHED, ORDINAL, RANDOM)

NamePrefix = tuple[str, str]
"""Namespace and stem."""

_ALL_TEXT = promql.MAX_TEXT * 3 // 2
"""All names in one question, in characters: in each matcher there are as many fewer as it has more of them."""

Members = dict[NamePrefix, dict[str, str]]
"""Of each stem the pods' names, and of which replica each is."""


def members_of(pods: Iterable[PodKey], stems: Mapping[str, Collection[NamePrefix]]) -> dict[str, Members]:
    """By suffix and stem the pods that are called so.

    Args:
        pods: Any.
        stems: Those that are sought, by suffix.
    """
    suffixes = {suffix: re.compile(suffix) for suffix in stems}
    found: dict[str, Members] = {suffix: {} for suffix in stems}
    for space, name in pods:
        for parts in (1, 2):
            stem = name.rsplit("-", parts)[0]
            for suffix, wanted in stems.items():
                match = suffixes[suffix].fullmatch(name, len(stem) + 1) if (space, stem) in wanted else None
                if match:
                    replica = match[match.lastindex or 0]
                    found[suffix].setdefault((space, stem), {})[name] = replica
    return found


def batches(members: Members, matchers: int) -> Iterator[Members]:
    """The stems in order, as many at a time as their pods' names fit into so many matchers; none is divided."""
    longest = _ALL_TEXT // max(matchers, 2)
    batch: Members = {}
    size = length = 0
    for stem in sorted(members):
        more = sum(map(len, members[stem])) + len(stem[0]) + len(stem[1])
        is_full = size + len(members[stem]) > promql.MOST_NAMES or length + more > longest
        if batch and is_full:
            yield batch
            batch, size, length = {}, 0, 0
        batch[stem] = members[stem]
        size, length = size + len(members[stem]), length + more
    if batch:
        yield batch


STEM, _REPLICA = "stem", "replica"


@dataclasses.dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods of certain stems, in one form of naming pods, and the metrics that tell of any."""

    label: str
    space_label: str
    absent: tuple[str, ...]
    members: Members
    suffix: str
    quantities: tuple[Metric, ...]

    def shards(self) -> list[Shard]:
        """Their namespaces, in one piece."""
        spaces = sorted({space for space, _ in self.members})
        return [Shard(tuple(SeriesGroup(self.space_label, space, 1, self.absent) for space in spaces))]

    def about(self, pod: PodKey) -> "PodSelection":
        """One pod alone."""
        stem = next(stem for stem, names in self.members.items() if stem[0] == pod[0] and pod[1] in names)
        return dataclasses.replace(self, members={stem: {pod[1]: self.members[stem][pod[1]]}})

    def only(self, stems: Collection[NamePrefix]) -> "PodSelection":
        """Those of some of the stems."""
        return dataclasses.replace(
            self, members={stem: pods for stem, pods in self.members.items() if stem in stems}
        )

    def parts(self, times: int) -> "Iterator[PodSelection]":
        """The same in parts that are few enough to be named so often for each metric."""
        for batch in batches(self.members, times * len(self.quantities)):
            yield dataclasses.replace(self, members=batch)

    @property
    def pod(self) -> tuple[str, ...]:
        """Labels that tell pods apart."""
        return CLUSTER, self.space_label, self.label

    @property
    def matcher(self) -> str:
        """Selects them."""
        return promql.one_of(self.label, sorted({name for pods in self.members.values() for name in pods}))

    @property
    def _names(self) -> str:
        return "|".join(promql.escaped(stem) for stem in sorted({stem for _, stem in self.members}))

    def _pattern(self, stems: str) -> str:
        """Of a pod's name: group 1 is the stem, group 2 the replica."""
        suffix = self.suffix if self.suffix.startswith("(") else f"({self.suffix})"
        return f"({stems})-{suffix}"

    def grouped(self, expression: str) -> str:
        """How many replicas of each stem the expression has."""
        is_grouped = self.suffix.startswith("(")
        # The other suffixes are so many parts of a name: what is before them is plain without saying the stems again.
        pattern = promql.quoted(self._pattern(self._names if is_grouped else ".+"))
        keys = (CLUSTER, self.space_label, STEM)
        # By pod first: names are then cut of few, not of every device.
        pods = promql.by("max", self.pod, expression)
        named = f'label_replace({pods}, "{STEM}", "$1", "{self.label}", {pattern})'
        if is_grouped:  # several pods are one replica
            named = f'label_replace({named}, "{_REPLICA}", "$2", "{self.label}", {pattern})'
            named = promql.by("max", (*keys, _REPLICA), named)
        return promql.by("count", keys, named)
