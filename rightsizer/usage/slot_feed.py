"""Statistics of a window, and samples in its slots, from slots of which a cycle only asks for the new ones."""

import dataclasses
import datetime
import functools
import math
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy.typing as npt

from rightsizer.evidence.slot_table import (
    IMPOSSIBLE,
    MEAN,
    MOST_SLOTS,
    PEAK,
    SAMPLES,
    SLOT,
    Answer,
    EvidenceTable,
    KeptTables,
    TooManySlotsError,
    Values,
    table_of,
)
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.querier import MIN_RECORDED_WINDOW, Build, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import METRIC, QueryForm
from rightsizer.usage.slot_grid import Counts, SlotGrid, counts_of
from rightsizer.usage.source_metrics import STATISTICS, Metric, MetricKind, SeriesLabels, Statistic

MOST_SERIES = 20_000
"""Of one metric: the slots of a day of all metrics of more would take over 300 MB."""

_WITH_MEAN = (MetricKind.ACTIVITY, MetricKind.POWER)


@dataclasses.dataclass(frozen=True, slots=True)
class WindowSlots:
    """The slots of all pods' series that end with the last whole slot of a window.

    Attributes:
        labels: Of each row.
        rows: All that is kept: a day, or the longest window that was asked for.
        tags: How the columns name the metrics.
        slots: The last ones that the window has.
    """

    labels: Sequence[SeriesLabels]
    rows: EvidenceTable
    tags: dict[Metric, str]
    slots: int

    def values(self, metric: Metric, statistic: Statistic) -> list[tuple[SeriesLabels, float]]:
        """The statistic of each series that has a sample; infinite where a value was impossible."""
        if statistic is Statistic.NEGATIVE or (statistic is Statistic.MEAN and metric.kind not in _WITH_MEAN):
            return []  # they only tell what is impossible, and then the peak is
        numbers_of = self.rows.peaks if statistic is Statistic.PEAK else self.rows.means
        numbers = numbers_of(self.tags[metric], self.slots)
        return [each for each in zip(self.labels, numbers, strict=True) if not math.isnan(each[1])]

    def arrays(self, metric: Metric, statistic: str) -> Iterator[tuple[SeriesLabels, npt.NDArray[Any]]]:
        """The statistic of each series in each slot; samples are 0 where it is not known what they were."""
        tag, rows = self.tags[metric], self.rows
        is_count = statistic == SAMPLES
        found = rows.samples(tag, self.slots) if is_count else rows.last(tag, statistic, self.slots)
        return zip(self.labels, found, strict=True)

    def counts(self, metric: Metric) -> Iterator[tuple[SeriesLabels, Counts]]:
        """The samples in each slot of each series that has any; equal rows are one."""
        shared: dict[bytes, Counts] = {}
        for one, row in zip(self.labels, self.rows.samples(self.tags[metric], self.slots), strict=True):
            if row.any():
                data = row.tobytes()
                if data not in shared:
                    shared[data] = counts_of(row)
                yield one, shared[data]


def has_slots(querier: SourceQuerier, window: datetime.timedelta) -> bool:
    """Whether slots are kept for windows of this length, and for fleets of this size."""
    return (
        querier.tables is not None
        and not querier.tables.is_full
        and MIN_RECORDED_WINDOW <= window <= MOST_SLOTS * SLOT
        and querier.shard_plan(window).size <= MOST_SERIES
    )


def slots_of(querier: SourceQuerier, form: QueryForm, window: datetime.timedelta) -> WindowSlots | None:
    """The slots of a window, of which those of earlier cycles are not asked for again; None if none are kept."""
    if querier.tables is None or not has_slots(querier, window):
        return None
    known: dict[QueryForm, WindowSlots] = querier.once("slots", dict)
    slots = -(-window // SLOT)
    if form not in known or known[form].rows.slots < slots:
        try:
            known[form] = _SlotFeed(querier, form, SLOT).kept(querier.tables, slots)
        except TooManySlotsError:
            return None
    return dataclasses.replace(known[form], slots=slots)


def all_slots(querier: SourceQuerier, form: QueryForm, grid: SlotGrid) -> WindowSlots:
    """The slots of a grid; all are asked for, and none kept."""
    feed = _SlotFeed(querier, form, grid.slot)
    return feed.of(table_of(feed.answer(grid), grid.end, grid.slots, is_kept=False))


@dataclasses.dataclass(frozen=True, slots=True)
class _Query:
    """What is asked of each slot.

    Attributes:
        metric: How columns name it, unless each series names its own.
    """

    statistic: str
    metric: str
    build: Build


@dataclasses.dataclass(frozen=True, slots=True)
class _SlotFeed:
    querier: SourceQuerier
    form: QueryForm
    slot: datetime.timedelta

    def kept(self, tables: KeptTables, slots: int) -> WindowSlots:
        """The last slots, of which only those are asked for that no earlier cycle read."""
        querier = self.querier
        question = repr(
            (querier.prometheus.where, [one.build(querier.pod_matchers) for one in self.queries()])
        )
        end = tables.begin(querier.at)

        def read(slots: int, of: Collection[bytes]) -> Answer:
            return self.answer(SlotGrid(end, self.slot, slots), of)

        return self.of(tables.extended(question, end, slots, read))

    def of(self, rows: EvidenceTable) -> WindowSlots:
        """All slots of a table."""
        return WindowSlots(self.querier.labels_of(rows.places), rows, self._tags, rows.slots)

    def answer(self, grid: SlotGrid, of: Collection[bytes] = ()) -> Answer:
        """What Prometheus says of these slots, of all series, or at least of those given."""
        shards = self._shards(grid.slots, of)
        # Names of pods are long, and there is one more list of them for each part of a query.
        asked = [functools.partial(self._asked, one, grid, shards) for one in self.queries(joined=not of)]
        for each in self.querier.prometheus.run_in_order(asked):
            yield from each

    @property
    def _tags(self) -> dict[Metric, str]:
        """How columns name the metrics; several rows of a signals table may have the same name."""
        return {
            one: promql.selector(one.name, one.matchers) if one.matchers else one.name
            for one in self.querier.source.metrics
        }

    def queries(self, *, joined: bool = True) -> Iterator[_Query]:
        """The queries of each slot: each statistic of the metrics that one of them reads.

        Those for impossible values are few and long if they are `joined`.
        """
        # A peak on an edge may be in two slots, so that no server loses it; its part in a mean may not.
        form, slot, wide = self.form, self.slot, self.slot + promql.EDGE
        for first, *more in form.together(self.querier.source.metrics):
            kind, tag, asked = first.kind, self._tags[first], functools.partial(form.statistic, first)
            yield _Query(PEAK, tag, functools.partial(asked, Statistic.PEAK, window=wide, more=more))
            if kind in _WITH_MEAN:
                yield _Query(MEAN, tag, functools.partial(asked, Statistic.MEAN, window=slot, more=more))
            if kind is self.querier.source.presence or (kind in _WITH_MEAN and not form.is_recorded):
                samples = functools.partial(form.count, first, window=slot, more=more)
                yield _Query(SAMPLES, tag, samples)
        for tag, builds in self._checks(joined=joined):
            yield _Query(IMPOSSIBLE, tag, functools.partial(_any_of, builds))

    def _checks(self, *, joined: bool) -> Iterator[tuple[str, Sequence[Build]]]:
        """PromQL for impossible values. Recorded series name their metric, so one joined query finds all."""
        form, wide, every = self.form, self.slot + promql.EDGE, list[tuple[str, list[Build]]]()
        metrics = [one for one in self.querier.source.metrics if Statistic.NEGATIVE in STATISTICS[one.kind]]
        for first, *more in form.together(metrics):
            asked = functools.partial(form.statistic, first, window=wide, more=more)
            builds: list[Build] = [functools.partial(asked, Statistic.NEGATIVE)]
            if first.kind not in _WITH_MEAN:
                builds.append(functools.partial(_no_number, functools.partial(asked, Statistic.MEAN)))
            every.append((self._tags[first], builds))
        if not joined:
            yield from ((tag, [build]) for tag, builds in every for build in builds)
        elif form.is_recorded and every:
            yield every[0][0], [build for _, builds in every for build in builds]
        else:
            yield from every

    def _shards(self, slots: int, of: Collection[bytes]) -> QueryShards:
        querier, span = self.querier, slots * self.slot
        max_series = min(querier.max_series(self.form, span), MAX_POINTS / slots)
        if of:
            pods = {one.key[:2] for one in querier.labels_of(of) if one.key is not None}
            return querier.pod_shards(sorted(pods), max_series)
        plan = querier.shard_plan(span)
        return [(plan, plan.shards(max_series))]

    def _asked(self, query: _Query, grid: SlotGrid, shards: QueryShards) -> Answer:
        querier, described = self.querier, self.querier.source.labels.described

        def parse(text: msgspec.Raw) -> tuple[str, bytes]:
            """The metric, and the labels without it."""
            data = bytes(text)
            found = _RECORDED.search(data) if self.form.is_recorded else None
            if found is None:
                return query.metric, data
            return found[1].decode(), data[: found.start()] + data[found.end() :]

        def asked(matchers: Sequence[str]) -> list[tuple[tuple[str, bytes], Values]]:
            expression = self.form.largest(described, query.build((*querier.pod_matchers, *matchers)))
            return querier.prometheus.query_range_as(expression, grid.steps, labels=labels, values=values)

        labels, values = ParseCache(parse), ParseCache(grid.values)
        return [
            ((metric, query.statistic), text, row)
            for plan, some in shards
            for result in plan.run(some, asked)
            for (metric, text), row in result
        ]


def _any_of(builds: Sequence[Build], matchers: Sequence[str]) -> str:
    return " or ".join(build(matchers) for build in builds)


def _no_number(build: Build, matchers: Sequence[str]) -> str:
    return promql.only_nan(build(matchers))


_RECORDED = re.compile(rf'"{METRIC}":"([^"]*)",'.encode())
