"""Metrics of other exporters that may be missing: CPU and I/O waits (cAdvisor), and GPU prices of nodes (OpenCost)."""

import dataclasses
import datetime
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

from rightsizer.model import PodKey, Waits, Whereabouts
from rightsizer.prices import HIGHEST
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.prometheus.sharding import Shard
from rightsizer.usage.provenance import find_place
from rightsizer.usage.querier import USUAL_INTERVAL_S, Build, SourceQuerier
from rightsizer.usage.source_metrics import TARGET

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
# Without the cluster's label: any target could name another cluster, and end every plan.
_POD = ("namespace", "pod", TARGET)


def waits(
    querier: SourceQuerier, pods: Collection[PodKey], window: datetime.timedelta, places: Whereabouts | None
) -> dict[PodKey, Waits]:
    """Throttling and pressure of these pods in the window; pods without such metrics are left out.

    The kubelet exposes them at its node's address, so no series of another known address counts.
    """
    names = f"{PERIODS}|{THROTTLED}|{CPU}|{IO}"
    selected = promql.selector("", (f"__name__=~{promql.quoted(names)}", *querier.label_matchers))
    present = {
        sample.labels.get("__name__", "")
        for sample in querier.prometheus.query(promql.by("count", ["__name__"], selected), querier.at)
    }
    query = _WaitsQuery(querier, frozenset(pods), window, places)
    found: dict[PodKey, dict[str, float]] = {}
    for metrics, field, build in (
        ({PERIODS, THROTTLED}, "cpu_throttled", query.throttled),
        ({CPU}, "cpu_pressure", functools.partial(query.rate, CPU)),
        ({IO}, "io_pressure", functools.partial(query.rate, IO)),
    ):
        for pod, share in query.shares(build) if metrics <= present else ():
            values = found.setdefault(pod, {})
            values[field] = max(share, values.get(field, share))
    return {pod: Waits(**values) for pod, values in sorted(found.items())}


@dataclasses.dataclass(frozen=True, slots=True)
class _WaitsQuery:
    querier: SourceQuerier
    pods: frozenset[PodKey]
    window: datetime.timedelta
    places: Whereabouts | None

    def throttled(self, matchers: Sequence[str]) -> str:
        """Share of CFS periods in which a pod's most throttled container was throttled."""
        part, total = (
            promql.by("max", (*_POD, "container"), self._over("rate", name, (*_CONTAINERS, *matchers)))
            for name in (THROTTLED, PERIODS)
        )
        return promql.by("max", _POD, f"{part} / {total}")

    def rate(self, metric: str, matchers: Sequence[str]) -> str:
        """Share of time in which a pod waited."""
        return promql.by("max", _POD, self._over("rate", metric, matchers))

    def shares(self, build: Build) -> Iterator[tuple[PodKey, float]]:
        """The values of all pods, if they are from 0 to 1."""
        samples = self.window.total_seconds() / USUAL_INTERVAL_S * SERIES_PER_POD
        size = max(1, int(self.querier.series_within(samples)))
        names = sorted({name for _, name in self.pods})
        batches = promql.batches(names, promql.MAX_TEXT // 2, most=size)
        shards = [Shard.of("pod", batch, SERIES_PER_POD) for batch in batches]
        for sample in self.querier.samples(self.querier.shard_plan(self.window), shards, build):
            pod = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
            is_kubelets = self._is_of_node(pod, sample.labels.get(TARGET, ""))
            if pod in self.pods and is_kubelets and 0 <= sample.value <= 1:
                yield pod, sample.value

    def _is_of_node(self, pod: PodKey, target: str) -> bool:
        if self.places is None:
            return True
        place = find_place(target, self.places)
        return place is None or (place.namespace, place.node) == ("", self.places.pods.get(pod))

    def _over(self, function: str, metric: str, matchers: Sequence[str]) -> str:
        selected = promql.selector(metric, (*self.querier.label_matchers, *matchers))
        return promql.over(function, selected, self.window)


def node_prices(
    prometheus: Prometheus, at: datetime.datetime, labels: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Price of one GPU for one hour, by node, from series with these labels; empty without OpenCost.

    OpenCost reports zero for nodes without a price; these are left out, as are prices that no table may have.
    """
    matchers = [promql.equals(name, value) for name, value in sorted((labels or {}).items())]
    query = f"max by (node, exported_node) ({promql.selector(NODE_PRICE, matchers)} > 0 <= {HIGHEST})"
    prices: dict[str, float] = {}
    for sample in prometheus.query(query, at):
        node = sample.labels.get("exported_node") or sample.labels.get("node")
        if node:
            prices[node] = max(sample.value, prices.get(node, 0.0))
    return dict(sorted(prices.items()))
