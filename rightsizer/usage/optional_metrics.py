"""Metrics of other exporters that may be missing: CPU and I/O waits (cAdvisor), and GPU prices of nodes (OpenCost)."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from rightsizer.model import PodKey, Waits
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus, Sample
from rightsizer.prometheus.sharding import SeriesGroup, Shard
from rightsizer.usage.querier import USUAL_INTERVAL_S, SourceQuerier

NODE_PRICE = "node_gpu_hourly_cost"
"""OpenCost's price of one GPU of a node for one hour (https://opencost.io/docs/integrations/metrics)."""

PERIODS = "container_cpu_cfs_periods_total"
THROTTLED = "container_cpu_cfs_throttled_periods_total"
CPU = "container_pressure_cpu_waiting_seconds_total"
IO = "container_pressure_io_waiting_seconds_total"

SERIES_PER_POD = 4
"""Containers and the pod itself; assumed for the size of queries."""

_CONTAINERS = ("container!=''", "container!='POD'")
"""Excludes the cgroups of the pod and of its sandbox."""
_POD = ("cluster", "namespace", "pod")


def waits(
    querier: SourceQuerier, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
) -> dict[PodKey, Waits]:
    """Throttling and pressure of these pods in the window; pods without such metrics are left out."""
    names = f"{PERIODS}|{THROTTLED}|{CPU}|{IO}"
    selected = promql.selector("", (f"__name__=~{promql.quoted(names)}", *querier.matchers))
    present = {
        sample.labels.get("__name__", "")
        for sample in querier.prometheus.query(promql.by("count", ["__name__"], selected), at)
    }
    found: dict[PodKey, dict[str, float]] = {}
    query = _WaitsQuery(querier, sorted(pods), window, at)
    if {PERIODS, THROTTLED} <= present:
        query.add_shares(found, "cpu_throttled", query.throttled)
    if CPU in present:
        query.add_shares(found, "cpu_pressure", lambda matchers: query.rate(CPU, matchers))
    if IO in present:
        query.add_shares(found, "io_pressure", lambda matchers: query.rate(IO, matchers))
    return {pod: Waits(**values) for pod, values in sorted(found.items())}


@dataclasses.dataclass(frozen=True, slots=True)
class _WaitsQuery:
    querier: SourceQuerier
    pods: Sequence[PodKey]
    window: datetime.timedelta
    at: datetime.datetime

    def throttled(self, matchers: Sequence[str]) -> str:
        """Share of CFS periods in which a pod's most throttled container was throttled."""
        part, total = (
            promql.by("max", (*_POD, "container"), self._over("increase", name, (*_CONTAINERS, *matchers)))
            for name in (THROTTLED, PERIODS)
        )
        return promql.by("max", _POD, f"{part} / {total}")

    def rate(self, metric: str, matchers: Sequence[str]) -> str:
        """Share of time in which a pod waited."""
        return promql.by("max", _POD, self._over("rate", metric, matchers))

    def add_shares(
        self, found: dict[PodKey, dict[str, float]], field: str, build: Callable[[Sequence[str]], str]
    ) -> None:
        """Query all pods; keep values from 0 to 1."""
        wanted = frozenset(self.pods)
        for sample in self._samples(build):
            pod = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
            if pod in wanted and math.isfinite(sample.value) and 0 <= sample.value <= 1:
                found.setdefault(pod, {})[field] = sample.value

    def _samples(self, build: Callable[[Sequence[str]], str]) -> Iterator[Sample]:
        plan = self.querier.shard_plan(self.window, self.at)
        samples = self.window.total_seconds() / USUAL_INTERVAL_S * SERIES_PER_POD
        size = max(1, int(self.querier.max_series(samples)))
        for batch in promql.batches(sorted({name for _, name in self.pods}), promql.MAX_TEXT // 2):
            for begin in range(0, len(batch), size):
                names = batch[begin : begin + size]
                shard = Shard(tuple(SeriesGroup("pod", name, SERIES_PER_POD) for name in names))
                yield from self.querier.samples(plan, [shard], build, self.at)

    def _over(self, function: str, metric: str, matchers: Sequence[str]) -> str:
        return promql.over(
            function, promql.selector(metric, (*self.querier.matchers, *matchers)), self.window
        )


def node_prices(
    prometheus: Prometheus, at: datetime.datetime, labels: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Price of one GPU for one hour, by node; empty without OpenCost.

    OpenCost reports zero for nodes without a price; these are left out.

    Args:
        prometheus: The server.
        at: The instant.
        labels: Labels of every series.
    """
    matchers = [promql.equals(name, value) for name, value in sorted((labels or {}).items())]
    query = f"max by (node, exported_node) ({promql.selector(NODE_PRICE, matchers)} > 0)"
    prices: dict[str, float] = {}
    for sample in prometheus.query(query, at):
        node = sample.labels.get("exported_node") or sample.labels.get("node")
        if node and math.isfinite(sample.value) and sample.value > 0:
            prices[node] = max(sample.value, prices.get(node, 0.0))
    return dict(sorted(prices.items()))
