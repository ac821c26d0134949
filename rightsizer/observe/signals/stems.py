"""Stems of pods' names: what all of a workload's pods are called, also those that are gone. Asks nothing."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from rightsizer.observe import promql
from rightsizer.observe.signals.labels import CLUSTER

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

Stem = tuple[str, str]
"""Namespace and stem."""


def batches(stems: Sequence[Stem]) -> Iterator[list[Stem]]:
    """The stems in order, as many at a time as their names, and those of their namespaces, fit into a question."""
    place = 0
    while place < len(stems):
        rest = stems[place:]
        names = next(promql.batches((stem for _, stem in rest), promql.MAX_TEXT // 4))
        spaces = next(promql.batches((space for space, _ in rest), promql.MAX_TEXT // 4))
        batch = list(rest[: min(len(names), len(spaces))])
        yield batch
        place += len(batch)


STEM, _REPLICA = "stem", "replica"


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Pods of certain stems, in one form of naming pods."""

    label: str
    space_label: str
    absent: tuple[str, ...]
    stems: frozenset[Stem]
    suffix: str

    @property
    def pod(self) -> tuple[str, ...]:
        """Labels that tell pods apart."""
        return CLUSTER, self.space_label, self.label

    @property
    def matcher(self) -> str:
        """Selects them."""
        return f"{self.label}=~{promql.quoted(self._pattern(self._names))}"

    @property
    def _names(self) -> str:
        return "|".join(re.escape(stem) for stem in sorted({stem for _, stem in self.stems}))

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
        # What is by pod already is so again: names are then cut of few, not of every device.
        pods = promql.by("max", self.pod, expression)
        named = f'label_replace({pods}, "{STEM}", "$1", "{self.label}", {pattern})'
        if is_grouped:  # several pods are one replica
            named = f'label_replace({named}, "{_REPLICA}", "$2", "{self.label}", {pattern})'
            named = promql.by("max", (*keys, _REPLICA), named)
        return promql.by("count", keys, named)
