"""Usage of each device by each pod, step by step over a long time: the history that a backtest replays."""

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterator, Sequence

from rightsizer.model import Device
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import decode_points
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.activity_history import unknown_seconds
from rightsizer.usage.exporter_counters import CONTAINER, POD_BUSY, POD_TRAFFIC
from rightsizer.usage.querier import Build, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import QueryForm
from rightsizer.usage.sample_coverage import SlotGrid
from rightsizer.usage.source_metrics import Metric, MetricKind, Statistic, UseKey

CHUNK = datetime.timedelta(days=1)
"""Of a long history, this much is asked at once."""


@dataclasses.dataclass(slots=True)
class DeviceSteps:
    """One pod's use of one device: values by the number of the step; those without samples are missing.

    Attributes:
        job: The scrape job that tells it.
        rank: Of the label that names the pod: 0 for the first choice. A later one may name the exporter's own pod.
        activity_peak, activity_mean, traffic_peak: 0 to 1, of the device, whoever uses it.
        memory_peak_bytes, power_peak_w, power_mean_w: Likewise.
        samples: Samples of activity.
        busy_s: Seconds in which a kernel of the pod ran, by gpu-exporter's counters.
        traffic_s: Seconds in which memory was read or written for the pod, likewise.
        unknown_s: Seconds in which the device worked and no pod is known, likewise.
    """

    device: Device
    job: str = ""
    rank: int = 0
    activity_peak: dict[int, float] = dataclasses.field(default_factory=dict)
    activity_mean: dict[int, float] = dataclasses.field(default_factory=dict)
    traffic_peak: dict[int, float] = dataclasses.field(default_factory=dict)
    memory_peak_bytes: dict[int, float] = dataclasses.field(default_factory=dict)
    power_peak_w: dict[int, float] = dataclasses.field(default_factory=dict)
    power_mean_w: dict[int, float] = dataclasses.field(default_factory=dict)
    samples: dict[int, float] = dataclasses.field(default_factory=dict)
    busy_s: dict[int, float] = dataclasses.field(default_factory=dict)
    traffic_s: dict[int, float] = dataclasses.field(default_factory=dict)
    unknown_s: dict[int, float] = dataclasses.field(default_factory=dict)


StepsByUse = dict[UseKey, DeviceSteps]

_STATISTICS = (
    (MetricKind.ACTIVITY, Statistic.PEAK, "activity_peak"),
    (MetricKind.ACTIVITY, Statistic.MEAN, "activity_mean"),
    (MetricKind.TRAFFIC, Statistic.PEAK, "traffic_peak"),
    (MetricKind.MEMORY, Statistic.PEAK, "memory_peak_bytes"),
    (MetricKind.POWER, Statistic.PEAK, "power_peak_w"),
    (MetricKind.POWER, Statistic.MEAN, "power_mean_w"),
)


def device_steps(
    querier: SourceQuerier, *, step: datetime.timedelta, steps: int
) -> Iterator[tuple[range, StepsByUse]]:
    """All pods' use of devices in the steps before `querier.at`, a day at a time, oldest first.

    Raises:
        PrometheusError: An answer was incomplete.
    """
    per_chunk = max(1, CHUNK // step)
    for first in range(0, steps, per_chunk):
        stop = min(first + per_chunk, steps)
        at = querier.at - (steps - stop) * step
        part = dataclasses.replace(querier, at=at, memo={})
        yield range(first, stop), _ChunkQuery(part, SlotGrid(at, step, stop - first), first).run()


@dataclasses.dataclass(frozen=True, slots=True)
class _ChunkQuery:
    querier: SourceQuerier
    grid: SlotGrid
    first: int
    found: StepsByUse = dataclasses.field(default_factory=dict)

    def run(self) -> StepsByUse:
        span = self.grid.slot * self.grid.slots
        form = self.querier.query_form(span)
        shards = self._shards(form, span)
        for kind, statistic, field in _STATISTICS:
            for metric in self.querier.source.of(kind):
                build = functools.partial(self._statistic, form, metric, statistic)
                self._add(shards, build, field, form.scale(metric), metric.highest)
        for metric in self.querier.source.of(self.querier.source.presence):
            self._add(shards, functools.partial(self._count, form, metric), "samples", 1.0, math.inf)
        if self.querier.source.has_counters:
            for counter, field in ((POD_BUSY, "busy_s"), (POD_TRAFFIC, "traffic_s")):
                self._add(shards, functools.partial(self._increase, counter), field, 1.0, math.inf)
            self._add_unknown()
        return self.found

    def _add_unknown(self) -> None:
        """Of devices, to each of their uses."""
        uuids = sorted({key[2] for key, entry in self.found.items() if entry.busy_s})
        known = unknown_seconds(self.querier, self.grid, uuids)
        for key, entry in self.found.items():
            row = known.get(key[2:], {})
            entry.unknown_s = {self.first + slot: seconds for slot, seconds in row.items()}

    def _shards(self, form: QueryForm, span: datetime.timedelta) -> QueryShards:
        plan = self.querier.shard_plan(span)
        return [(plan, plan.shards(min(self.querier.max_series(form, span), MAX_POINTS / self.grid.slots)))]

    def _statistic(
        self, form: QueryForm, metric: Metric, statistic: Statistic, matchers: Sequence[str]
    ) -> str:
        values = form.statistic(metric, statistic, matchers, self.grid.slot)
        return promql.by("max", self.querier.source.labels.described, values)

    def _count(self, form: QueryForm, metric: Metric, matchers: Sequence[str]) -> str:
        counted = form.count(metric, matchers, self.grid.slot)
        return promql.by("max", self.querier.source.labels.described, counted)

    def _increase(self, counter: str, matchers: Sequence[str]) -> str:
        use = self.querier.source.labels.described
        selected = promql.selector(counter, matchers)
        increase = promql.by("max", (*use, *CONTAINER), promql.over("increase", selected, self.grid.slot))
        return promql.by("sum", use, increase)

    def _add(self, shards: QueryShards, build: Build, field: str, scale: float, highest: float) -> None:
        """Add the values of each use; of several series of one use, the highest."""
        for labels, points in self.querier.range_uses(shards, build, self.grid.steps, decode_points):
            if labels.key is None:
                continue
            entry = self.found.get(labels.key)
            if entry is None:
                rank = self.querier.source.labels.pod.index(labels.pod_label)
                entry = self.found[labels.key] = DeviceSteps(labels.device, labels.job, rank)
            row: dict[int, float] = getattr(entry, field)
            for instant, value in points:
                step, scaled = self.first + self.grid.slot_of(instant), value * scale
                if 0 <= scaled <= highest:
                    row[step] = max(scaled, row.get(step, 0.0))
