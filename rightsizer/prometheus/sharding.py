"""Splits a query over the whole fleet into shards, so that each stays within the limits of Prometheus.

Shards are groups of namespaces, or of the nodes of one large namespace. A shard that is refused as too large is halved
and queried again, never widened. Knows nothing of the queries themselves.
"""

import dataclasses
import datetime
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.errors import QueryTooLarge
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_POINTS = 600_000
"""Values in the response to one range query: some 15 MB of JSON, and ten times that in memory while it is parsed."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesGroup:
    """The series with one value of a label, and with the `matchers`."""

    label: str
    value: str
    series: int
    matchers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """Series of one query; without groups, all series."""

    groups: tuple[SeriesGroup, ...] = ()

    @classmethod
    def of(cls, label: str, values: Iterable[str], series: int, matchers: tuple[str, ...] = ()) -> "Shard":
        """The series with one of these values; `series` is the number for each value."""
        return cls(tuple(SeriesGroup(label, value, series, matchers) for value in values))

    @property
    def matchers(self) -> tuple[str, ...]:
        """Matchers that select these series."""
        if not self.groups:
            return ()
        head = self.groups[0]
        return (*head.matchers, promql.one_of(head.label, [group.value for group in self.groups]))

    @property
    def series(self) -> int:
        """The number of series when they were counted."""
        return sum(group.series for group in self.groups)


def pack(groups: Iterable[SeriesGroup], max_series: float) -> list[Shard]:
    """Shards of at most `max_series`, in order; a larger group is a shard of its own."""
    shards: list[Shard] = []
    ordered = sorted(groups, key=lambda value: (value.label, value.matchers, value.value))
    for _, alike in itertools.groupby(ordered, key=lambda value: (value.label, value.matchers)):
        limits = (max_series, promql.MAX_TEXT, promql.MOST_NAMES)
        batches = promql.packed(alike, lambda shard: (shard.series, 2 * len(shard.value), 1), limits)
        shards += [Shard(tuple(batch)) for batch in batches]
    return shards


class ShardPlan:
    """Shards of the fleet's series: by namespace, and large namespaces by node.

    `size` returns the approximate number of series, `count` PromQL that counts series by labels, of those that meet
    matchers. Several labels may name a namespace or a node; the first that a series has counts. A series without a
    sample at any of the instants is in no shard.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        *,
        size: Callable[[], int],
        count: Callable[[Sequence[str], Sequence[str]], str],
        namespaces: Sequence[str],
        nodes: Sequence[str],
        instants: Sequence[datetime.datetime],
    ) -> None:
        self._prometheus = prometheus
        self._size = functools.cache(size)
        self._count = count
        self._namespaces = namespaces
        self._nodes = nodes
        self._instants = instants
        self._groups: list[SeriesGroup] | None = None

    @property
    def size(self) -> int:
        """The approximate number of series."""
        return self._size()

    def shards(self, max_series: float) -> list[Shard]:
        """Shards of at most `max_series`; one if the fleet has no more."""
        return [Shard()] if self._size() <= max_series else self._split(max_series)

    def run(self, shards: list[Shard], query: Callable[[Sequence[str]], list[T]]) -> Iterator[list[T]]:
        """The result of each shard, several in parallel; `query` takes a shard's matchers.

        A shard that is too large is replaced by smaller ones, at the end also in `shards`, which queries share.

        Raises:
            PrometheusError: A shard has no complete response.
        """
        place, own = 0, list(shards)
        while place < len(own):
            some = own[place : place + self._prometheus.parallel]
            tasks = [functools.partial(_result_or_too_large, query, shard) for shard in some]
            for result in list(self._prometheus.run_in_order(tasks)):
                if isinstance(result, QueryTooLarge):
                    smaller = self._halve(own[place])
                    if not smaller:
                        raise result
                    log.info("query too large; split into %d shards: %s", len(smaller), result)
                    own[place : place + 1] = smaller
                    break  # the shards after it are as large
                yield result
                place += 1
        if len(own) > len(shards):
            shards[:] = own

    def _halve(self, shard: Shard) -> list[Shard]:
        """The same series in two shards or more; none if they cannot be split."""
        if not shard.groups:
            smaller = self._split(self._size() / 2)
        elif len(shard.groups) > 1:
            half = len(shard.groups) // 2
            smaller = [Shard(shard.groups[:half]), Shard(shard.groups[half:])]
        else:
            smaller = pack(self._by_node(shard.groups[0]), max(shard.series / 2, 1))
        return smaller if len(smaller) > 1 else []

    def _split(self, max_series: float) -> list[Shard]:
        if self._groups is None:
            self._groups = self._counted(self._namespaces, ())
        shards = pack((group for group in self._groups if group.series <= max_series), max_series)
        for group in self._groups:
            if group.series > max_series:
                shards += pack(self._by_node(group), max_series) or [Shard((group,))]
        return shards

    def _by_node(self, group: SeriesGroup) -> list[SeriesGroup]:
        if group.label not in self._namespaces:
            return []
        return self._counted(self._nodes, Shard((group,)).matchers)

    def _counted(self, labels: Sequence[str], matchers: tuple[str, ...]) -> list[SeriesGroup]:
        """The series by the first of these labels that they have."""
        found: dict[tuple[str, str, tuple[str, ...]], int] = {}
        for at in self._instants if labels else ():
            for sample in self._prometheus.query(self._count(labels, matchers), at):
                key = _first_label(sample.labels, labels)
                found[key] = max(found.get(key, 0), sample.count)
        return [
            SeriesGroup(label, value, series, (*matchers, *absent))
            for (label, value, absent), series in found.items()
        ]


def _result_or_too_large(query: Callable[[Sequence[str]], list[T]], shard: Shard) -> list[T] | QueryTooLarge:
    try:
        return query(shard.matchers)
    except QueryTooLarge as error:
        return error


def _first_label(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    """The first label that is set, its value, and matchers that exclude the labels before it; else the last label."""
    place = next((place for place, name in enumerate(names) if labels.get(name)), len(names) - 1)
    return names[place], labels.get(names[place], ""), promql.without_labels(names[:place])
