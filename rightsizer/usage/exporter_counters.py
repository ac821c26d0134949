"""Asks for our exporter's counters over one window; `counter_meaning.py` says what they mean."""

import dataclasses
import datetime
from collections.abc import Iterator

from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Sample
from rightsizer.prometheus.sharding import Shard, ShardPlan
from rightsizer.usage import counter_meaning
from rightsizer.usage.counter_meaning import CounterIncrease, Counters, DeviceKey
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.recording_rules import RawQueries
from rightsizer.usage.series_labels import JOB, first

REASON = "reason"
CONTAINER = ("exported_container", "container")
FIRST = 0.25
"""The window's beginning, in which a counter that was there all along has its part of the samples."""
PART = 0.9


@dataclasses.dataclass(frozen=True, slots=True)
class _Query:
    """One round of questions, about pods or about devices."""

    asker: SourceQuerier
    territory: ShardPlan
    shards: list[Shard]
    window: datetime.timedelta
    at: datetime.datetime
    matchers: tuple[str, ...]

    def increase(self, metric: str, *more: str) -> Iterator[Sample]:
        """How much counters rose, summed over everything but copies of the same."""
        owner = self._labels(*more)

        def build(matchers: tuple[str, ...]) -> str:
            risen = promql.over("increase", self._selector(metric, matchers), self.window)
            inner = promql.by("max", (*owner, *CONTAINER, REASON), risen)
            return promql.by("sum", owner, inner)

        return self.asker.samples(self.territory, self.shards, build, self.at)  # type: ignore[arg-type]

    def over(self, function: str, metric: str, *more: str) -> Iterator[Sample]:
        """A function of the samples, the highest of copies."""

        def build(matchers: tuple[str, ...]) -> str:
            inner = promql.over(function, self._selector(metric, matchers), self.window)
            return promql.by("max", self._labels(*more), inner)

        return self.asker.samples(self.territory, self.shards, build, self.at)  # type: ignore[arg-type]

    def _selector(self, metric: str, matchers: tuple[str, ...]) -> str:
        reasons = (
            (f"{REASON}!~{promql.quoted('|'.join(counter_meaning.NOBODYS))}",)
            if metric == counter_meaning.UNATTRIBUTED
            else ()
        )
        return promql.selector(metric, (*self.matchers, *reasons, *matchers))

    def _labels(self, *more: str) -> tuple[str, ...]:
        labels = self.asker.source.labels
        devices = ("cluster", *labels.device, *labels.instance)
        return (*(labels.use if self.matchers == self.asker.owned else devices), *more)


def ask(asker: SourceQuerier, window: datetime.timedelta, at: datetime.datetime) -> Counters:
    """Everything that the counters say over the window; nothing where the source has none."""
    counters = Counters()
    if asker.source.has_counters:
        most = asker.most(asker.samples_per_series(RawQueries(), window, at))
        _pods(counters, _query(asker, window, at, most, of_devices=False))
        _devices(counters, _query(asker, window, at, most, of_devices=True))
    return counters


def _query(
    asker: SourceQuerier,
    window: datetime.timedelta,
    at: datetime.datetime,
    most: float,
    *,
    of_devices: bool,
) -> _Query:
    territory = asker.territory(window, at, of_devices=of_devices)
    matchers = asker.given if of_devices else asker.owned
    return _Query(asker, territory, territory.shards(most), window, at, matchers)


def _pods(counters: Counters, query: _Query) -> None:
    key_of = query.asker.source.labels.key_of
    for sample in query.increase(counter_meaning.POD_BUSY):
        key = key_of(sample.labels)
        if key is not None:
            counters.pods.setdefault(key, CounterIncrease()).busy_s += sample.value
    for sample in query.over("count_over_time", counter_meaning.POD_BUSY):
        key = key_of(sample.labels)
        if key is not None and key in counters.pods:
            pod = counters.pods[key]
            pod.samples = max(pod.samples, sample.value)
    for sample in query.over("max_over_time", counter_meaning.POD_MEMORY, *CONTAINER):
        key = key_of(sample.labels)
        if key is not None:
            counters.memory_bytes[key] = counters.memory_bytes.get(key, 0.0) + sample.value


def _devices(counters: Counters, query: _Query) -> None:
    for sample in query.increase(counter_meaning.DEVICE_BUSY):
        counters.devices.setdefault(_device(query, sample), CounterIncrease()).busy_s += sample.value
    _complete(counters, query)
    for metric in (counter_meaning.UNATTRIBUTED, counter_meaning.GAPS):
        for sample in query.increase(metric):
            device = _device(query, sample)
            counters.doubt_s[device] = counters.doubt_s.get(device, 0.0) + sample.value
            if metric == counter_meaning.GAPS:
                counters.gap_s[device] = counters.gap_s.get(device, 0.0) + sample.value


def _complete(counters: Counters, query: _Query) -> None:
    """Note which devices' counters were there in the whole window, from its beginning on."""
    began = dataclasses.replace(query, window=query.window * FIRST, at=query.at - query.window * (1 - FIRST))
    early: dict[DeviceKey, float] = {}
    for sample in began.over("count_over_time", counter_meaning.DEVICE_BUSY):
        device = _device(query, sample)
        early[device] = max(early.get(device, 0.0), sample.value)
    counts = [
        (_device(query, sample), sample.labels.get(JOB, ""), sample.value)
        for sample in query.over("count_over_time", counter_meaning.DEVICE_BUSY, JOB)
    ]
    densest: dict[str, float] = {}
    for _, job, count in counts:
        densest[job] = max(densest.get(job, 0.0), count)
    for device, job, count in counts:
        counted = counters.devices.get(device)
        if counted is not None:
            counted.samples = max(counted.samples, count)
            is_early = early.get(device, 0.0) + 1 >= PART * FIRST * count
            counted.is_whole |= is_early and count >= counter_meaning.COMPLETE * densest[job]


def _device(query: _Query, sample: Sample) -> DeviceKey:
    labels = query.asker.source.labels
    return first(sample.labels, labels.device), first(sample.labels, labels.instance)
