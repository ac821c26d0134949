"""Everything that one Prometheus can say of the fleet's use, behind one object; which source it has, it finds out."""

import datetime
from collections.abc import Collection, Mapping, Sequence

from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import ActivitySeries, Concurrency, History, NodeCoverage, PodKey, Usages, Waits
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.usage.active_replicas import ReplicaQuery, concurrency
from rightsizer.usage.activity_history import histories
from rightsizer.usage.device_usage import activity, recent, usages
from rightsizer.usage.node_coverage import nodes
from rightsizer.usage.profiles import profiles
from rightsizer.usage.quantities import MetricKind
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.record_start import begins
from rightsizer.usage.sources import SourceSettings, choose
from rightsizer.usage.waits import waits

SHOWN = 3
PERCENT = 0.01


class PrometheusUsage:
    """Use of GPUs, from a Prometheus.

    Which source it has is asked once, as of the first question. Every method raises PrometheusError where something
    could not be read whole.

    Args:
        prometheus: Where to ask.
        terms: What is given about the signals.
    """

    def __init__(self, prometheus: Prometheus, terms: SourceSettings) -> None:
        self._prometheus = prometheus
        self._terms = terms
        self._known: frozenset[PodKey] = frozenset()
        self._settled: frozenset[PodKey] | None = None
        self._asker: SourceQuerier | None = None

    def expect(self, pods: Collection[PodKey], settled: Collection[PodKey]) -> None:
        """Take note of the pods against which those that series name are checked from now on.

        Args:
            pods: Those that hold GPUs.
            settled: Those of them that have run for so long that series should name them.
        """
        self._known = frozenset(pods)
        self._settled = frozenset(settled)
        self._asker = None

    def source(self, at: datetime.datetime) -> str:
        """Which source there is: dcgm, dcgm-4.9, both of them, gpu-exporter, or a table's path."""
        return self._ask(at).source.name

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Usage of every device by every pod in the window that ends at `at`, or by these pods at least.

        Raises:
            EvidenceIncomplete: No series names a pod though one should by now, or they name pods of now, none of which
                holds GPUs.
        """
        found = usages(self._ask(at), window, at, of=of)
        if of is None:
            self._check(found)
        return found

    def recent(self, at: datetime.datetime) -> Usages:
        """The highest of everything in the last minutes, and nothing else."""
        return recent(self._ask(at), at)

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """Only the highest activity of every device by every pod, and its coverage: a last look before acting."""
        return activity(self._ask(at), window, at, with_coverage=with_coverage)

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """When each of these pods was at work, since the instant given with it; above `threshold` (0 to 1) is work."""
        return histories(self._ask(at), pods, span, at, threshold=threshold)

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """How many replicas of each of these workloads were at work at the same time, by UID."""
        return concurrency(self._ask(at), workloads, at)

    def waits(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> Mapping[PodKey, Waits]:
        """What these pods waited for, where that is on record."""
        return waits(self._ask(at), pods, window, at)

    def nodes(self, at: datetime.datetime) -> Mapping[str, NodeCoverage]:
        """Devices on each node, and how many of them name a pod."""
        return nodes(self._ask(at), at)

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Where the record of GPUs begins; None where it goes back over the whole span."""
        return begins(self._ask(at), span, at)

    def series(self, at: datetime.datetime) -> ActivitySeries | None:
        """Where autoscalers find activity; None where it is not in per cent, or where no series names a pod."""
        asker = self._ask(at)
        percents = [each for each in asker.source.of(MetricKind.ACTIVITY) if each.scale == PERCENT]
        for quantity in percents:
            for pod, namespace, _ in asker.source.labels.forms():
                selected = promql.selector(quantity.metric, [f"{pod}!=''", *asker.given])
                if self._prometheus.query(f"count({selected})", at):
                    return ActivitySeries(self._prometheus.where, quantity.metric, pod, namespace)
        return None

    def profiles(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        usages: Usages,
        shared: Collection[PodKey],
    ) -> Mapping[PodKey, Sequence[float | None]]:
        """Mean activity of each pod in equal steps of the window, for drawing; of a shared GPU the pod's own only."""
        return profiles(self._ask(at), window, at, usages=usages, shared=shared)

    def _ask(self, at: datetime.datetime) -> SourceQuerier:
        if self._asker is None:
            self._asker = choose(self._prometheus, self._terms, at=at, pods=self._known)
        return self._asker

    def _check(self, found: Usages) -> None:
        """Tell what is wrong with all series from what is only missing of some pods.

        Where every pod is too young to be named, or all that are named have gone, nothing speaks against the series:
        they say nothing of the pods that there are, and each of these is told so.
        """
        if self._settled is not None and not self._settled:
            return
        if not found:
            raise EvidenceIncomplete(
                "Prometheus holds GPU series, but none names a pod: run the exporter with the kubelet's PodResources "
                "socket mounted (dcgm-exporter: --kubernetes)"
            )
        is_of_now = any(usage.is_fresh for used in found.values() for usage in used)
        if self._known and not self._known & found.keys() and is_of_now:
            some = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(found)[:SHOWN])
            raise EvidenceIncomplete(
                f"none of the {len(found)} pods that Prometheus's GPU series name holds a GPU in this cluster "
                f"({some}): are they the exporter's own pods (run it with the kubelet's PodResources socket mounted; "
                "dcgm-exporter: --kubernetes), or is this another cluster's Prometheus?"
            )
