"""Statistics of a window, and samples in its slots, from slots of which a cycle only asks for the new ones."""

import dataclasses
import datetime
import math
from collections.abc import Iterator, Sequence

import numpy as np

from rightsizer.evidence.slot_columns import SLOT, KeptColumns, Rows, Values
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.querier import MIN_RECORDED_WINDOW, Build, SourceQuerier
from rightsizer.usage.recording_rules import COUNT, QueryForm
from rightsizer.usage.slot_grid import EDGE, MOST, Counts, SlotGrid, counts_of
from rightsizer.usage.source_metrics import Metric, SeriesLabels, Statistic

MOST_SERIES = 30_000
"""Of one metric: a day of all metrics of more would take over 400 MB."""


@dataclasses.dataclass(frozen=True, slots=True)
class SlotFeed:
    """The slots of all pods' series in one form. Windows end with the last whole slot."""

    querier: SourceQuerier
    form: QueryForm
    kept: KeptColumns

    def values(
        self, metric: Metric, statistic: Statistic, window: datetime.timedelta, *, is_check: bool
    ) -> list[tuple[SeriesLabels, float]]:
        """The statistic of each series that has a sample; infinite where a value was impossible.

        With `is_check`, only of series with such a value.
        """

        def build(matchers: Sequence[str]) -> str:
            found = self.form.statistic(metric, statistic, matchers, SLOT - EDGE)
            largest = self.form.largest(self.querier.source.labels.described, found)
            return promql.only_nan(largest) if is_check else largest

        labels, rows = self._rows(metric, statistic, window, build)
        is_mean = statistic is Statistic.MEAN and not is_check
        numbers = (rows.means if is_mean else rows.peaks)(_slots(window))
        return [each for each in zip(labels, numbers, strict=True) if not math.isnan(each[1])]

    def counts(self, metric: Metric, window: datetime.timedelta) -> Iterator[tuple[SeriesLabels, Counts]]:
        """The samples of each series in each slot; equal rows are one."""

        def build(matchers: Sequence[str]) -> str:
            count = self.form.count(metric, matchers, SLOT - EDGE)
            return self.form.largest(self.querier.source.labels.described, count)

        labels, rows = self._rows(metric, COUNT, window, build)
        last = np.nan_to_num(rows.values[:, -_slots(window) :], nan=0.0, posinf=0.0).clip(0, MOST)
        distinct, places = np.unique(last.astype(np.uint16), axis=0, return_inverse=True)
        shared = [counts_of(row.tobytes()) for row in distinct]
        return zip(labels, (shared[place] for place in places.reshape(-1)), strict=True)

    def _rows(
        self, metric: Metric, name: str, window: datetime.timedelta, build: Build
    ) -> tuple[Sequence[SeriesLabels], Rows]:
        """The slots of a window or a longer one, read once for all windows of a plan."""
        querier, slots = self.querier, _slots(window)
        end = self.kept.end(querier.at)

        def read(slots: int) -> Iterator[tuple[bytes, Values]]:
            grid, span = SlotGrid(end, SLOT, slots), slots * SLOT
            plan = querier.shard_plan(span)
            shards = plan.shards(min(querier.max_series(self.form, span), MAX_POINTS / slots))
            own = (
                f'"metric":"{metric.name}",'.encode()
            )  # without it, all recorded metrics have the same labels
            texts, values = ParseCache(lambda text: bytes(text).replace(own, b"")), ParseCache(grid.values)

            def query(matchers: Sequence[str]) -> list[tuple[bytes, Values]]:
                expression = build((*querier.pod_matchers, *matchers))
                return querier.prometheus.query_range_as(expression, grid.steps, labels=texts, values=values)

            for result in plan.run(shards, query):
                yield from result

        memo = ("slots", metric, name, self.form)
        known: tuple[Sequence[SeriesLabels], Rows] | None = querier.memo.get(memo)
        if known is None or known[1].values.shape[1] < slots:
            question = repr((*querier.question(metric.kind), metric, name, self.form))
            rows = self.kept.extended(question, end, slots, read)
            known = querier.memo[memo] = querier.labels_of(rows.labels), rows
        return known


def _slots(window: datetime.timedelta) -> int:
    """How many slots hold a window; the oldest may begin before it."""
    return -(-window // SLOT)


def slot_feed(querier: SourceQuerier, form: QueryForm, window: datetime.timedelta) -> SlotFeed | None:
    """The feed for a window; None if no slots are kept, or if the window is too short or the fleet too large."""
    if (
        querier.columns is None
        or window < MIN_RECORDED_WINDOW
        or querier.shard_plan(window).size > MOST_SERIES
    ):
        return None
    return SlotFeed(querier, form, querier.columns)
