"""Usage of each device by each pod, step by step over a long time: the history that a backtest replays."""

import array
import dataclasses
import datetime
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rightsizer.model import Device
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import decode_points
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.activity_history import unknown_seconds
from rightsizer.usage.exporter_counters import CONTAINER, POD_BUSY, POD_TRAFFIC
from rightsizer.usage.querier import Build, QueryShards, SourceQuerier
from rightsizer.usage.recording_rules import QueryForm
from rightsizer.usage.slot_grid import SlotGrid
from rightsizer.usage.source_metrics import Metric, MetricKind, Statistic, UseKey

CHUNK = datetime.timedelta(days=1)
"""Of a long history, this much is asked at once."""


Column: TypeAlias = "array.array[int]"
"""A value for each step, in units of 16 bits; MISSING where nothing was recorded. Millions of them fit into memory."""

MISSING = 0xFFFF
_HIGHEST = MISSING - 1
PER_SHARE = 10_000
"""Units in a share of 1: activity, memory traffic, and parts of a step."""
PER_WATT = 10
MEMORY_UNIT = 8 << 20
"""Bytes."""


@dataclasses.dataclass(slots=True)
class DeviceSteps:
    """One pod's use of one device in equal steps.

    Attributes:
        job: The scrape job that tells it.
        rank: Of the label that names the pod: 0 for the first choice. A later one may name the exporter's own pod.
        columns: By name, as in COLUMNS.
    """

    device: Device
    job: str
    rank: int
    columns: Mapping[str, Column]


StepsByUse = dict[UseKey, DeviceSteps]

COLUMNS = (
    *("peak", "mean", "traffic", "memory", "power_peak", "power_mean", "samples"),
    *("busy", "moving", "unknown"),
)
"""The last three are parts of a step by gpu-exporter's counters: a kernel of the pod ran, memory was moved for it, and
the device worked for nobody who is known."""

_STATISTICS = (
    (MetricKind.ACTIVITY, Statistic.PEAK, "peak", PER_SHARE),
    (MetricKind.ACTIVITY, Statistic.MEAN, "mean", PER_SHARE),
    (MetricKind.TRAFFIC, Statistic.PEAK, "traffic", PER_SHARE),
    (MetricKind.MEMORY, Statistic.PEAK, "memory", 1 / MEMORY_UNIT),
    (MetricKind.POWER, Statistic.PEAK, "power_peak", PER_WATT),
    (MetricKind.POWER, Statistic.MEAN, "power_mean", PER_WATT),
)


def missing(steps: int) -> Column:
    """A column of steps of which nothing is known."""
    return array.array("H", [MISSING]) * steps


def chunks(step: datetime.timedelta, steps: int) -> list[range]:
    """The steps of each chunk, oldest first: a day each, the last perhaps less."""
    per_chunk = max(1, CHUNK // step)
    return [range(first, min(first + per_chunk, steps)) for first in range(0, steps, per_chunk)]


def device_steps(querier: SourceQuerier, *, step: datetime.timedelta, steps: int) -> StepsByUse:
    """All pods' use of devices in the steps before `querier.at`.

    Raises:
        PrometheusError: An answer was incomplete.
    """
    return _ChunkQuery(querier, SlotGrid(querier.at, step, steps)).run()


def merge(into: StepsByUse, found: StepsByUse) -> None:
    """Add uses of the same steps; of one that is in both, the higher values."""
    for key, entry in found.items():
        known = into.setdefault(key, entry)
        if known is not entry:
            for name in COLUMNS:
                for place, value in enumerate(entry.columns[name]):
                    if value != MISSING:
                        _raise(known.columns[name], place, value)


@dataclasses.dataclass(frozen=True, slots=True)
class _ChunkQuery:
    querier: SourceQuerier
    grid: SlotGrid
    found: StepsByUse = dataclasses.field(default_factory=dict)

    def run(self) -> StepsByUse:
        span = self.grid.slot * self.grid.slots
        form = self.querier.query_form(span)
        shards = self._shards(form, span)
        for kind, statistic, name, units in _STATISTICS:
            for metric in self.querier.source.of(kind):
                build = functools.partial(self._statistic, form, metric, statistic)
                scale = form.scale(metric) * units
                self._add(shards, build, name, scale, highest=metric.highest * units)
        for metric in self.querier.source.of(self.querier.source.presence):
            self._add(shards, functools.partial(self._count, form, metric), "samples", 1.0)
        if self.querier.source.has_counters:
            for counter, name in ((POD_BUSY, "busy"), (POD_TRAFFIC, "moving")):
                self._add(shards, functools.partial(self._increase, counter), name, self._parts)
            self._add_unknown()
        return self.found

    @property
    def _parts(self) -> float:
        """Units in a second of a step."""
        return PER_SHARE / self.grid.slot.total_seconds()

    def _add_unknown(self) -> None:
        """Of devices, to each of their uses."""
        uuids = sorted({key[2] for key, one in self.found.items() if set(one.columns["busy"]) != {MISSING}})
        known = unknown_seconds(self.querier, self.grid, uuids)
        for key, entry in self.found.items():
            for slot, seconds in known.get(key[2:], {}).items():
                _raise(entry.columns["unknown"], slot, seconds * self._parts)

    def _shards(self, form: QueryForm, span: datetime.timedelta) -> QueryShards:
        plan = self.querier.shard_plan(span)
        return [(plan, plan.shards(min(self.querier.max_series(form, span), MAX_POINTS / self.grid.slots)))]

    def _statistic(
        self, form: QueryForm, metric: Metric, statistic: Statistic, matchers: Sequence[str]
    ) -> str:
        values = form.statistic(metric, statistic, matchers, self.grid.slot)
        return form.largest(self.querier.source.labels.described, values)

    def _count(self, form: QueryForm, metric: Metric, matchers: Sequence[str]) -> str:
        counted = form.count(metric, matchers, self.grid.slot)
        return form.largest(self.querier.source.labels.described, counted)

    def _increase(self, counter: str, matchers: Sequence[str]) -> str:
        use = self.querier.source.labels.described
        selected = promql.selector(counter, matchers)
        increase = promql.by("max", (*use, *CONTAINER), promql.over("increase", selected, self.grid.slot))
        return promql.by("sum", use, increase)

    def _add(
        self, shards: QueryShards, build: Build, name: str, scale: float, *, highest: float = math.inf
    ) -> None:
        """Add the values of each use; of several series of one use, the highest."""
        for labels, points in self.querier.range_uses(shards, build, self.grid.steps, decode_points):
            if labels.key is None:
                continue
            entry = self.found.get(labels.key)
            if entry is None:
                rank = self.querier.source.labels.pod.index(labels.pod_label)
                columns = {column: missing(self.grid.slots) for column in COLUMNS}
                entry = self.found[labels.key] = DeviceSteps(labels.device, labels.job, rank, columns)
            column = entry.columns[name]
            for instant, value in points:
                place = self.grid.slot_of(instant)
                if 0 <= value * scale <= highest and 0 <= place < len(column):
                    _raise(column, place, value * scale)


def _raise(column: Column, place: int, value: float) -> None:
    """Keep the higher of two values; a positive one never becomes 0."""
    units = min(_HIGHEST, math.ceil(value)) if value < _HIGHEST else _HIGHEST
    if column[place] == MISSING or units > column[place]:
        column[place] = units
