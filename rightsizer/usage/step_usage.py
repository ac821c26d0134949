"""Usage of each device by each pod, step by step over a long time: the history that a backtest replays."""

import array
import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rightsizer.evidence.slot_table import MEAN, PEAK, SAMPLES
from rightsizer.model import Device
from rightsizer.prometheus.sharding import MAX_POINTS
from rightsizer.usage.activity_history import unknown_seconds
from rightsizer.usage.exporter_counters import POD_BUSY, POD_TRAFFIC, pod_busy
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.slot_feed import all_slots
from rightsizer.usage.slot_grid import SlotGrid
from rightsizer.usage.source_metrics import MetricKind, SeriesLabels, UseKey

CHUNK = datetime.timedelta(days=1)
"""Of a long history, this much is asked at once."""


Numbers: TypeAlias = npt.NDArray[Any]
Units: TypeAlias = npt.NDArray[np.uint16]
Column: TypeAlias = "array.array[int]"
"""A value for each step, in units of 16 bits; MISSING where nothing was recorded. Millions of them fit into memory."""

MISSING = 0xFFFF
_HIGHEST = MISSING - 1
PER_SHARE = 10_000
"""Units in a share of 1: activity, memory traffic, and parts of a step."""
_EXACT = 1 + 1e-6
"""Arrays of 32 bits have seven digits."""
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
    (MetricKind.ACTIVITY, PEAK, "peak", PER_SHARE),
    (MetricKind.ACTIVITY, MEAN, "mean", PER_SHARE),
    (MetricKind.TRAFFIC, PEAK, "traffic", PER_SHARE),
    (MetricKind.MEMORY, PEAK, "memory", 1 / MEMORY_UNIT),
    (MetricKind.POWER, PEAK, "power_peak", PER_WATT),
    (MetricKind.POWER, MEAN, "power_mean", PER_WATT),
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
                _raise(known.columns[name], np.frombuffer(entry.columns[name], np.uint16))


@dataclasses.dataclass(frozen=True, slots=True)
class _ChunkQuery:
    querier: SourceQuerier
    grid: SlotGrid
    found: StepsByUse = dataclasses.field(default_factory=dict)

    def run(self) -> StepsByUse:
        source, span = self.querier.source, self.grid.slot * self.grid.slots
        form = self.querier.query_form(span)
        slots = all_slots(self.querier, form, self.grid)
        for kind, statistic, name, units in _STATISTICS:
            for metric in source.of(kind):
                scale, highest = form.scale(metric) * units, metric.highest * units
                self._add(slots.arrays(metric, statistic), name, scale, highest=highest)
        for metric in source.of(source.presence):
            self._add(slots.arrays(metric, SAMPLES), "samples", 1.0)
        if source.has_counters:
            size = min(self.querier.max_series(form, span), MAX_POINTS / self.grid.slots)
            plan = self.querier.shard_plan(span)
            shards = [(plan, plan.shards(size))]
            for counter, name in ((POD_BUSY, "busy"), (POD_TRAFFIC, "moving")):
                build = functools.partial(
                    pod_busy, self.querier, self.grid.slot, counter=counter, labels=source.labels.described
                )
                rows = self.querier.range_uses(shards, build, self.grid.steps, self.grid.values)
                self._add(rows, name, self._parts)
            self._add_unknown()
        return self.found

    @property
    def _parts(self) -> float:
        """Units in a second of a step."""
        return PER_SHARE / self.grid.slot.total_seconds()

    def _add_unknown(self) -> None:
        """Of devices, to each of their uses."""
        uuids = sorted({key[2] for key, one in self.found.items() if set(one.columns["busy"]) != {MISSING}})
        _, known = unknown_seconds(self.querier, self.grid, uuids)
        for key, entry in self.found.items():
            seconds = known.get(key[2:], {})
            row = np.array([seconds.get(slot, math.nan) for slot in range(self.grid.slots)])
            _raise(entry.columns["unknown"], _units(row, self._parts, math.inf))

    def _add(
        self,
        rows: Iterable[tuple[SeriesLabels, Numbers]],
        name: str,
        scale: float,
        *,
        highest: float = math.inf,
    ) -> None:
        """Add the values of each use; of several series of one use, the highest."""
        for labels, row in rows:
            if labels.key is None:
                continue
            entry = self.found.get(labels.key)
            if entry is None:
                rank = self.querier.source.labels.pod.index(labels.pod_label)
                columns = {column: missing(self.grid.slots) for column in COLUMNS}
                entry = self.found[labels.key] = DeviceSteps(labels.device, labels.job, rank, columns)
            _raise(entry.columns[name], _units(row, scale, highest))


def _units(row: Numbers, scale: float, highest: float) -> Units:
    """Values in units, rounded up, so that a positive one never becomes 0; MISSING where one is impossible."""
    values = row.astype(np.float64) * scale
    with np.errstate(invalid="ignore"):
        is_possible = (values >= 0) & (values <= highest * _EXACT) & np.isfinite(values)
        units = np.ceil(np.minimum(values / _EXACT, _HIGHEST))
    found: Units = np.where(is_possible, units, MISSING).astype(np.uint16)
    return found


def _raise(column: Column, units: Units) -> None:
    """Keep the higher of two values of each step."""
    known = np.frombuffer(column, np.uint16)
    is_higher = (units != MISSING) & ((known == MISSING) | (units > known))
    known[is_higher] = units[is_higher]
