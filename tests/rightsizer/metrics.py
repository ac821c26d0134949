"""Series of a test's own: all of them carry one label, by which it asks for them, as in a Prometheus of many clusters.

They end at an instant that lies a while back, by which everything is asked, so that no test depends on how fast it is.
"""

import datetime
import json
import math
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from rightsizer.config import PrometheusSettings
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.model import Usage, Usages
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.usage.querier import RecordedWindows
from rightsizer.usage.recording_rules import rule_groups
from rightsizer.usage.sources import SourceSettings, source_named
from rightsizer.usage.usage_source import PrometheusUsage
from simulator.series_store import Series, SeriesStore

UTIL, ENGINE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
COPY, MEMORY, POWER = "DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"
CLOCK = "DCGM_FI_DEV_SM_CLOCK"
MARK = "test"
H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"
HOUR = datetime.timedelta(hours=1)
DAY = datetime.timedelta(days=1)

Value = float | Callable[[float], float]
"""Of all samples, or by the minutes that are left until the end."""


class Metrics:
    """What one test has recorded.

    Attributes:
        at: The end, on a full hour of the rules' five minutes.
        space: A namespace of its own.
    """

    def __init__(self, prometheus: SeriesStore, *, mark: bool = True) -> None:
        self.prometheus = prometheus
        # On a full five minutes: the recording rules' tiles then end with the slots.
        self.at = datetime.datetime.fromtimestamp((time.time() // 300 - 1) * 300, tz=datetime.UTC)
        self.space = f"space-{uuid.uuid4().hex[:8]}"
        self.labels = {MARK: self.space} if mark else {}

    def write(
        self,
        values: Mapping[str, Value],
        more: Mapping[str, str] | None = None,
        *,
        since: datetime.timedelta = DAY,
        until: datetime.timedelta = datetime.timedelta(),
        step_s: int = 60,
        **labels: str,
    ) -> None:
        """Samples of each of these metrics from so long before the end until so long before it.

        Args:
            values: By metric.
            more: Labels, like those that follow: `pod` and `namespace` are the workload's, `UUID` is the pod's name
                unless it is given; an empty one is left out.
            since: Before the end.
            until: Likewise.
            step_s: Seconds from one sample to the next.
            labels: See `more`.
        """
        end = int((self.at - until).timestamp())
        seconds = range(end - int((since - until).total_seconds()) + step_s, end + 1, step_s)
        self.prometheus.write(self._series(values, seconds, {**labels, **(more or {})}))

    def _series(
        self, values: Mapping[str, Value], seconds: range, labels: Mapping[str, str]
    ) -> Iterable[Series]:
        end = self.at.timestamp()
        given = {
            "namespace": self.space,
            "UUID": f"GPU-{labels.get('pod', 'none')}",
            "modelName": H100,
            "job": self.space,
        }
        merged = {name: text for name, text in {**given, **self.labels, **labels}.items() if text}
        for metric, value in values.items():
            column = [value((end - second) / 60) if callable(value) else value for second in seconds]
            yield Series({"__name__": metric, **merged}, seconds, column)

    def client(self, url: str = "") -> Client:
        """Our client of it."""
        return Client(PrometheusSettings(url=url or self.prometheus.url))

    def record(self, since: datetime.timedelta, until: datetime.timedelta = datetime.timedelta()) -> None:
        """Evaluate every recording rule as Prometheus would have, every five minutes, and keep what comes of it."""
        start, end = ((self.at - before).timestamp() for before in (since, until))
        for group in rule_groups():
            for rule in group["rules"]:
                query = {"query": rule["expr"], "start": start, "end": end, "step": 300}
                address = f"{self.prometheus.url}/api/v1/query_range?{urllib.parse.urlencode(query)}"
                with urllib.request.urlopen(address) as answer:
                    tracks = json.load(answer)["data"]["result"]
                self.prometheus.write(_recorded(rule, tracks))

    def signal(
        self,
        signals: str = "auto",
        *,
        url: str = "",
        tables: KeptTables | None = None,
        recorded: RecordedWindows | None = None,
        **more: Any,
    ) -> PrometheusUsage:
        """What judges by them."""
        settings = SourceSettings(self.labels, source_named(signals), **more)
        return PrometheusUsage(self.client(url), settings, tables, recorded)

    def usages(self, window: datetime.timedelta = DAY, **more: Any) -> Usages:
        """What was used in the window."""
        return self.signal(**more).usages(window, self.at)

    def usage(self, pod: str, window: datetime.timedelta = DAY, **more: Any) -> Usage:
        """What a pod used of its one device."""
        (found,) = self.usages(window, **more)[self.space, pod]
        return found


def _recorded(rule: Mapping[str, Any], tracks: Iterable[Mapping[str, Any]]) -> Iterator[Series]:
    for track in tracks:
        labels = {**track["metric"], **rule["labels"], "__name__": rule["record"]}
        for instant, value in track["values"]:
            yield Series(labels, range(int(instant), int(instant) + 1), [float(value)])


def idle(**more: Value) -> dict[str, Value]:
    """A device that has a model loaded and does nothing."""
    return {UTIL: 0, COPY: 0, MEMORY: 40_000, POWER: 118, **more}


def within(
    begin_min: float, end_min: float, value: float, otherwise: float = 0.0
) -> Callable[[float], float]:
    """A value from so many minutes before the end until so many, and another otherwise."""
    return lambda left: value if end_min <= left < begin_min else otherwise


def once(value: float, otherwise: float = 0.0) -> Callable[[float], float]:
    """One sample in the middle of the day that is something else."""
    return lambda left: value if math.isclose(left, 720) else otherwise


def rising(per_minute: Callable[[float], float]) -> Callable[[float], float]:
    """A counter of a day that rises by so much in each minute."""
    total, sums = 0.0, {}
    for left in range(1500, -1, -1):
        total += per_minute(left)
        sums[left] = total
    return lambda left: sums[round(left)]


def steadily(per_minute: float) -> Callable[[float], float]:
    """A counter that rises by as much in every minute."""
    return rising(lambda _: per_minute)


def near(value: float, **tolerance: Any) -> Any:
    """As pytest.approx; of no type that mypy would hold against a float."""
    return pytest.approx(value, **tolerance)
