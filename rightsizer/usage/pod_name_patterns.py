"""Finds pods of a workload by name, also those that are gone: a prefix, and a suffix that its controller adds. Pure."""

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from rightsizer.model import PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.sharding import SeriesGroup, Shard
from rightsizer.usage.series_labels import CLUSTER
from rightsizer.usage.source_metrics import Metric

# k8s.io/apimachinery/pkg/util/rand: the characters of generated names.
_RANDOM = "[bcdfghjklmnpqrstvwxz2456789]"
HASHED = f"{_RANDOM}{{1,10}}-{_RANDOM}{{5}}"
"""Of a Deployment's pod: the hash of the pod template, and five characters."""
RANDOM = f"{_RANDOM}{{5}}"
"""Of a ReplicaSet's pod."""
ORDINAL = "[0-9]+"
"""Of a StatefulSet's pod."""
GROUPED = "([0-9]+)(?:-[0-9]+)?"
"""Of a LeaderWorkerSet's pod: all pods of one number are one replica."""

SUFFIXES = {"StatefulSet": (ORDINAL,), "LeaderWorkerSet": (GROUPED,), "ReplicaSet": (RANDOM,)}
"""By kind."""
OTHER_SUFFIXES = (HASHED, ORDINAL, RANDOM)
"""Of other kinds, whose pods belong to Deployments or StatefulSets."""

NamePrefix = tuple[str, str]
"""Namespace, and the part of a pod's name before the suffix."""

_MAX_QUERY_TEXT = promql.MAX_TEXT * 3 // 2
"""Characters of all names in one query; with more matchers, each has fewer names."""

PodsByPrefix = dict[NamePrefix, dict[str, str]]
"""The names of the pods of each prefix, with the replica of each."""

PREFIX_LABEL, _REPLICA_LABEL = "stem", "replica"


def pods_by_prefix(
    pods: Iterable[PodKey], prefixes: Mapping[str, Collection[NamePrefix]]
) -> dict[str, PodsByPrefix]:
    """The pods with these prefixes, which are given by suffix; by suffix, too."""
    suffixes = {suffix: re.compile(suffix) for suffix in prefixes}
    found: dict[str, PodsByPrefix] = {suffix: {} for suffix in prefixes}
    for namespace, name in pods:
        for parts in (1, 2):
            prefix = namespace, name.rsplit("-", parts)[0]
            for suffix, wanted in prefixes.items():
                begin = len(prefix[1]) + 1
                if prefix in wanted and (match := suffixes[suffix].fullmatch(name, begin)):
                    found[suffix].setdefault(prefix, {})[name] = match[match.lastindex or 0]
    return found


def batches(pods: PodsByPrefix, matchers: int) -> Iterator[PodsByPrefix]:
    """The prefixes in order, as many at a time as their pods' names fit into this many matchers; none is split."""
    longest = _MAX_QUERY_TEXT // max(matchers, 2)
    batch: PodsByPrefix = {}
    size = length = 0
    for prefix in sorted(pods):
        text = sum(map(len, pods[prefix])) + len(prefix[0]) + len(prefix[1])
        is_full = size + len(pods[prefix]) > promql.MOST_NAMES or length + text > longest
        if batch and is_full:
            yield batch
            batch, size, length = {}, 0, 0
        batch[prefix] = pods[prefix]
        size, length = size + len(pods[prefix]), length + text
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True, slots=True)
class PodSelection:
    """Pods of some prefixes, by one label that names pods, and the metrics that have series of them."""

    label: str
    namespace_label: str
    absent: tuple[str, ...]
    pods: PodsByPrefix
    suffix: str
    metrics: tuple[Metric, ...]

    def shards(self) -> list[Shard]:
        """Their namespaces, in one shard."""
        names = sorted({namespace for namespace, _ in self.pods})
        return [
            Shard(tuple(SeriesGroup(self.namespace_label, namespace, 1, self.absent) for namespace in names))
        ]

    def one_pod(self, pod: PodKey) -> "PodSelection":
        """One pod alone."""
        namespace, name = pod
        prefix = next(
            prefix for prefix, names in self.pods.items() if prefix[0] == namespace and name in names
        )
        return dataclasses.replace(self, pods={prefix: {name: self.pods[prefix][name]}})

    def only(self, prefixes: Collection[NamePrefix]) -> "PodSelection":
        """The pods of some of the prefixes."""
        return dataclasses.replace(
            self, pods={prefix: pods for prefix, pods in self.pods.items() if prefix in prefixes}
        )

    def split(self, times: int) -> "Iterator[PodSelection]":
        """The same in parts whose names fit into a query this many times for each metric."""
        for batch in batches(self.pods, times * len(self.metrics)):
            yield dataclasses.replace(self, pods=batch)

    @property
    def pod_labels(self) -> tuple[str, ...]:
        """Labels of the pod."""
        return CLUSTER, self.namespace_label, self.label

    @property
    def matcher(self) -> str:
        """A matcher for the pods."""
        return promql.one_of(self.label, sorted({name for pods in self.pods.values() for name in pods}))

    def replicas(self, expression: str) -> str:
        """PromQL: how many replicas of each prefix have a value."""
        is_grouped = self.suffix.startswith("(")
        # Other suffixes have a fixed number of parts, so the pattern need not list the prefixes.
        prefix = (
            "|".join(map(promql.escaped, sorted({name for _, name in self.pods}))) if is_grouped else ".+"
        )
        pattern = promql.quoted(f"({prefix})-{self.suffix if is_grouped else f'({self.suffix})'}")
        keys = (CLUSTER, self.namespace_label, PREFIX_LABEL)
        # By pod first: label_replace then runs on fewer series.
        pods = promql.by("max", self.pod_labels, expression)
        named = f'label_replace({pods}, "{PREFIX_LABEL}", "$1", "{self.label}", {pattern})'
        if is_grouped:  # several pods are one replica
            named = f'label_replace({named}, "{_REPLICA_LABEL}", "$2", "{self.label}", {pattern})'
            named = promql.by("max", (*keys, _REPLICA_LABEL), named)
        return promql.by("count", keys, named)
