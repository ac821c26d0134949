"""Statistics of a window, and samples in its slots, from slots of which a cycle only asks for the new ones."""

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterator, Sequence

from rightsizer.evidence.slot_table import (
    IMPOSSIBLE,
    MEAN,
    PEAK,
    SAMPLES,
    SLOT,
    Answer,
    KeptTables,
    SlotRows,
    Values,
)
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.querier import MIN_RECORDED_WINDOW, Build, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import QueryForm
from rightsizer.usage.slot_grid import Counts, SlotGrid, counts_of
from rightsizer.usage.source_metrics import STATISTICS, Metric, MetricKind, SeriesLabels, Statistic

MAX_SLOTS = 288
"""Of a day. Longer windows have samples counted in longer cells."""
MOST_SERIES = 20_000
"""Of one metric: the slots of a day of all metrics of more would take over 300 MB."""

_WITH_MEAN = (MetricKind.ACTIVITY, MetricKind.POWER)


@dataclasses.dataclass(frozen=True, slots=True)
class SlotFeed:
    """The slots of all pods' series in one form. Windows end with the last whole slot."""

    querier: SourceQuerier
    form: QueryForm
    kept: KeptTables

    def values(
        self, metric: Metric, statistic: Statistic, window: datetime.timedelta
    ) -> list[tuple[SeriesLabels, float]]:
        """The statistic of each series that has a sample; infinite where a value was impossible."""
        if statistic is Statistic.NEGATIVE or (statistic is Statistic.MEAN and metric.kind not in _WITH_MEAN):
            return []  # they only tell what is impossible, and then the peak is
        labels, rows = self._rows(metric, window)
        numbers = (rows.peaks if statistic is Statistic.PEAK else rows.means)(-(-window // SLOT))
        return [each for each in zip(labels, numbers, strict=True) if not math.isnan(each[1])]

    def counts(self, metric: Metric, window: datetime.timedelta) -> Iterator[tuple[SeriesLabels, Counts]]:
        """The samples of each series in each slot; equal rows are one."""
        labels, rows = self._rows(metric, window)
        shared: dict[bytes, Counts] = {}
        for one, row in zip(labels, rows.samples(-(-window // SLOT)), strict=True):
            data = row.tobytes()
            if data not in shared:
                shared[data] = counts_of(data)
            yield one, shared[data]

    def _rows(self, metric: Metric, window: datetime.timedelta) -> tuple[Sequence[SeriesLabels], SlotRows]:
        """The slots of a window or a longer one, read once for all windows of a plan."""
        querier, slots = self.querier, -(-window // SLOT)
        memo = ("slots", metric, self.form)
        known: tuple[Sequence[SeriesLabels], SlotRows] | None = querier.memo.get(memo)
        if known is None or known[1].slots < slots:
            queries = self._queries(metric)
            asked = [(name, build(querier.pod_matchers)) for name, build in queries]
            question = repr((querier.prometheus.where, asked))
            end = self.kept.begin(querier.at)

            def read(slots: int, of: Collection[bytes]) -> Answer:
                grid, shards = SlotGrid(end, SLOT, slots), self._shards(slots, of)
                return [(name, self._asked(metric, build, grid, shards)) for name, build in queries]

            columns = [name for name, _ in queries if name != IMPOSSIBLE]
            rows = self.kept.extended(question, columns, end, slots, read)
            known = querier.memo[memo] = querier.labels_of(rows.places), rows
        return known

    def _queries(self, metric: Metric) -> list[tuple[str, Build]]:
        """What is asked of each slot of a metric, by the column that it tells something of."""
        described = self.querier.source.labels.described

        def statistic(name: Statistic, *, is_check: bool = False) -> Build:
            def build(matchers: Sequence[str]) -> str:
                # A peak on an edge may be in two slots, so that no server loses it; its part in a mean may not.
                length = SLOT if name is Statistic.MEAN and not is_check else SLOT + promql.EDGE
                largest = self.form.largest(described, self.form.statistic(metric, name, matchers, length))
                return promql.only_nan(largest) if is_check else largest

            return build

        def samples(matchers: Sequence[str]) -> str:
            return self.form.largest(described, self.form.count(metric, matchers, SLOT))

        found = [(PEAK, statistic(Statistic.PEAK))]
        if Statistic.NEGATIVE in STATISTICS[metric.kind]:
            found.append((IMPOSSIBLE, statistic(Statistic.NEGATIVE)))
        if metric.kind in _WITH_MEAN:
            found.append((MEAN, statistic(Statistic.MEAN)))
        elif Statistic.MEAN in STATISTICS[metric.kind]:
            found.append((IMPOSSIBLE, statistic(Statistic.MEAN, is_check=True)))
        if metric.kind is self.querier.source.presence or (
            metric.kind in _WITH_MEAN and not self.form.is_recorded
        ):
            found.append((SAMPLES, samples))
        return found

    def _shards(self, slots: int, of: Collection[bytes]) -> QueryShards:
        querier, span = self.querier, slots * SLOT
        max_series = min(querier.max_series(self.form, span), MAX_POINTS / slots)
        if of:
            pods = {one.key[:2] for one in querier.labels_of(of) if one.key is not None}
            return querier.pod_shards(sorted(pods), max_series)
        plan = querier.shard_plan(span)
        return [(plan, plan.shards(max_series))]

    def _asked(
        self, metric: Metric, build: Build, grid: SlotGrid, shards: QueryShards
    ) -> Iterator[tuple[bytes, Values]]:
        own = f'"metric":"{metric.name}",'.encode()  # without it, all recorded metrics have the same labels
        texts, values = ParseCache(lambda text: bytes(text).replace(own, b"")), ParseCache(grid.values)

        def query(matchers: Sequence[str]) -> list[tuple[bytes, Values]]:
            expression = build((*self.querier.pod_matchers, *matchers))
            return self.querier.prometheus.query_range_as(expression, grid.steps, labels=texts, values=values)

        for plan, some in shards:
            for result in plan.run(some, query):
                yield from result


def slot_feed(querier: SourceQuerier, form: QueryForm, window: datetime.timedelta) -> SlotFeed | None:
    """The feed for a window; None if no slots are kept for its length or for the size of the fleet."""
    if querier.tables is None or not MIN_RECORDED_WINDOW <= window <= MAX_SLOTS * SLOT:
        return None
    if querier.shard_plan(window).size > MOST_SERIES:
        return None
    return SlotFeed(querier, form, querier.tables)
