"""A question about the whole fleet, cut so that no part of it is more than Prometheus answers at once.

Parts are groups of namespaces, or of the nodes of one large namespace; a part that is refused all the same is cut in
two and asked again, never widened. Knows nothing of what is asked.
"""

import dataclasses
import datetime
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.errors import QueryTooLarge
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

MAX_POINTS = 600_000
"""Values in the answer to one range query: some 15 MB of JSON, and ten times that while it is read."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesGroup:
    """The series that carry one value of a label.

    Attributes:
        matchers: What they carry besides.
    """

    label: str
    value: str
    series: int
    matchers: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """Series that are asked about at once; all of them where there are no parts."""

    parts: tuple[SeriesGroup, ...] = ()

    @property
    def matchers(self) -> tuple[str, ...]:
        """What selects them."""
        if not self.parts:
            return ()
        head = self.parts[0]
        return (*head.matchers, promql.one_of(head.label, [part.value for part in self.parts]))

    @property
    def series(self) -> int:
        """How many there were when they were counted."""
        return sum(part.series for part in self.parts)


def pack(parts: Iterable[SeriesGroup], most: float) -> list[Shard]:
    """The parts in order, as many to a shard as hold `most` series; a larger part is a shard of its own."""
    shards: list[Shard] = []
    group: list[SeriesGroup] = []
    size = length = 0
    for part in sorted(parts, key=lambda one: (one.label, one.matchers, one.value)):
        joins = bool(group) and (part.label, part.matchers) == (group[0].label, group[0].matchers)
        is_short = length + len(part.value) < promql.MAX_TEXT and len(group) < promql.MOST_NAMES
        if group and not (joins and size + part.series <= most and is_short):
            shards.append(Shard(tuple(group)))
            group, size, length = [], 0, 0
        group.append(part)
        size += part.series
        length += 2 * len(part.value)
    if group:
        shards.append(Shard(tuple(group)))
    return shards


class ShardPlan:
    """The fleet's series as they can be divided.

    Args:
        metric: One that every device has, with what selects it.
        namespaces: Labels that may name a namespace, the first that is there meant, by pods' label of the same form.
        nodes: Labels that may name a node, likewise.
        instants: When to look for series; one that was alive at none of them belongs to no shard.
        size: About how many there are.
        count: How many there are by certain labels, of those that meet matchers, in PromQL.
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
        self._size = size
        self._count = count
        self._namespaces = namespaces
        self._nodes = nodes
        self._instants = instants
        self._total: int | None = None
        self._parts: list[SeriesGroup] | None = None

    def shards(self, most: float) -> list[Shard]:
        """The fleet in pieces of at most so many series; in one piece where it is no more."""
        if self._total is None:
            self._total = self._size()
        if self._total <= most:
            return [Shard()]
        return self._pieces(most)

    def ask(
        self, shards: list[Shard], question: Callable[[Sequence[str]], list[Answer]]
    ) -> Iterator[list[Answer]]:
        """The answers for each shard, a few at a time. What is refused is asked in smaller pieces.

        `shards` then holds these instead.

        Raises:
            PrometheusError: Something could not be read whole.
        """
        place = 0
        while place < len(shards):
            some = shards[place : place + self._prometheus.parallel]
            tasks = [functools.partial(_tried, question, shard) for shard in some]
            for answer in self._prometheus.at_once(tasks):
                if isinstance(answer, QueryTooLarge):
                    smaller = self.cut(shards[place])
                    if not smaller:
                        raise answer
                    log.info("asking %d parts instead of one: %s", len(smaller), answer)
                    shards[place : place + 1] = smaller
                    break  # those beside it are as large, and asked again if not
                yield answer
                place += 1

    def cut(self, shard: Shard) -> list[Shard]:
        """The same series in two pieces or more; none where that cannot be done."""
        if not shard.parts:
            self._total = self._total or self._size()
            smaller = self._pieces(self._total / 2)
        elif len(shard.parts) > 1:
            half = len(shard.parts) // 2
            smaller = [Shard(shard.parts[:half]), Shard(shard.parts[half:])]
        else:
            smaller = pack(self._by_node(shard.parts[0]), max(shard.series / 2, 1))
        return smaller if len(smaller) > 1 else []

    def _pieces(self, most: float) -> list[Shard]:
        if self._parts is None:
            self._parts = self._counted(self._namespaces, ())
        small = [part for part in self._parts if part.series <= most]
        large = [part for part in self._parts if part.series > most]
        shards = pack(small, most)
        for part in large:
            shards += pack(self._by_node(part), most) or [Shard((part,))]
        return shards

    def _by_node(self, part: SeriesGroup) -> list[SeriesGroup]:
        if part.label not in self._namespaces:
            return []
        return self._counted(self._nodes, Shard((part,)).matchers)

    def _counted(self, labels: Sequence[str], matchers: tuple[str, ...]) -> list[SeriesGroup]:
        """The series by the first of these labels that they carry; those that carry none by that."""
        if not labels:
            return []
        found: dict[tuple[str, str, tuple[str, ...]], int] = {}
        for at in self._instants:
            for sample in self._prometheus.query(self._count(labels, matchers), at):
                key = _form(sample.labels, labels)
                found[key] = max(found.get(key, 0), round(sample.value))
        return [
            SeriesGroup(label, value, series, (*matchers, *absent))
            for (label, value, absent), series in found.items()
        ]


def _tried(question: Callable[[Sequence[str]], list[Answer]], shard: Shard) -> list[Answer] | QueryTooLarge:
    try:
        return question(shard.matchers)
    except QueryTooLarge as error:
        return error


def _form(labels: Mapping[str, str], names: Sequence[str]) -> tuple[str, str, tuple[str, ...]]:
    for place, name in enumerate(names):
        if labels.get(name):
            return name, labels[name], tuple(promql.equals(before, "") for before in names[:place])
    return names[-1], "", tuple(promql.equals(before, "") for before in names[:-1])
