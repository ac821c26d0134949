"""What pods waited for, from the kubelet's cAdvisor, where Prometheus has it; absent otherwise."""

import dataclasses
import datetime
import math
from collections.abc import Callable, Collection, Iterator, Sequence

from rightsizer.model import PodKey, Waits
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Sample
from rightsizer.prometheus.sharding import SeriesGroup, Shard
from rightsizer.usage.querier import USUAL_INTERVAL_S, SourceQuerier, require_one_cluster

PERIODS = "container_cpu_cfs_periods_total"
THROTTLED = "container_cpu_cfs_throttled_periods_total"
CPU = "container_pressure_cpu_waiting_seconds_total"
IO = "container_pressure_io_waiting_seconds_total"

SERIES_PER_POD = 4
"""Containers, and the pod itself; assumed where queries are sized."""

_CONTAINERS = ("container!=''", "container!='POD'")
"""Not the pod's own cgroup, nor its sandbox's."""
_KEYS = ("cluster", "namespace", "pod")


def waits(
    asker: SourceQuerier, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
) -> dict[PodKey, Waits]:
    """What these pods waited for in the window; those of which nothing is known are left out.

    Raises:
        PrometheusError: Something could not be read whole.
    """
    names = f"{PERIODS}|{THROTTLED}|{CPU}|{IO}"
    selected = promql.selector("", (f"__name__=~{promql.quoted(names)}", *asker.given))
    present = {
        sample.labels.get("__name__", "")
        for sample in asker.prometheus.query(promql.by("count", ["__name__"], selected), at)
    }
    found: dict[PodKey, dict[str, float]] = {}
    question = _Question(asker, sorted(pods), window, at)
    if {PERIODS, THROTTLED} <= present:
        question.share(found, "cpu_throttled", question.throttled)
    if CPU in present:
        question.share(found, "cpu_pressure", lambda matchers: question.rate(CPU, matchers))
    if IO in present:
        question.share(found, "io_pressure", lambda matchers: question.rate(IO, matchers))
    return {pod: Waits(**values) for pod, values in sorted(found.items())}


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    asker: SourceQuerier
    pods: Sequence[PodKey]
    window: datetime.timedelta
    at: datetime.datetime

    def throttled(self, matchers: Sequence[str]) -> str:
        """Share of the periods in which a container was throttled, the worst of a pod's."""
        part, whole = (
            promql.by("max", (*_KEYS, "container"), self._over("increase", name, (*_CONTAINERS, *matchers)))
            for name in (THROTTLED, PERIODS)
        )
        return promql.by("max", _KEYS, f"{part} / {whole}")

    def rate(self, metric: str, matchers: Sequence[str]) -> str:
        """Share of the time in which something of a pod waited."""
        return promql.by("max", _KEYS, self._over("rate", metric, matchers))

    def share(
        self, found: dict[PodKey, dict[str, float]], field: str, build: Callable[[Sequence[str]], str]
    ) -> None:
        """Ask about all pods, and note what can be."""
        wanted = frozenset(self.pods)
        for sample in self._answers(build):
            pod = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
            if pod in wanted and math.isfinite(sample.value) and 0 <= sample.value <= 1:
                found.setdefault(pod, {})[field] = sample.value

    def _answers(self, build: Callable[[Sequence[str]], str]) -> Iterator[Sample]:
        territory = self.asker.territory(self.window, self.at)
        samples = self.window.total_seconds() / USUAL_INTERVAL_S * SERIES_PER_POD
        room = max(1, int(self.asker.most(samples)))
        for batch in promql.batches(sorted({name for _, name in self.pods}), promql.MAX_TEXT // 2):
            for begin in range(0, len(batch), room):
                names = batch[begin : begin + room]
                shards = [Shard(tuple(SeriesGroup("pod", name, SERIES_PER_POD) for name in names))]
                for answer in territory.ask(
                    shards, lambda matchers: self.asker.prometheus.query(build(matchers), self.at)
                ):
                    require_one_cluster(sample.labels for sample in answer)
                    yield from answer

    def _over(self, function: str, metric: str, matchers: Sequence[str]) -> str:
        return promql.over(function, promql.selector(metric, (*self.asker.given, *matchers)), self.window)
