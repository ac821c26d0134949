"""Usage of GPUs from one Prometheus: the one object that all other packages query."""

import contextlib
import dataclasses
import datetime
from collections.abc import Collection, Iterator, Mapping, Sequence

from rightsizer.errors import EvidenceIncomplete, PrometheusError
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.model import (
    ActivitySeries,
    BoardLevel,
    Boards,
    Concurrency,
    History,
    Ignored,
    NodeCoverage,
    PodKey,
    ServingLoads,
    Usage,
    Usages,
    Waits,
    Whereabouts,
    WorkLevel,
    strongest,
)
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus, retention
from rightsizer.usage.active_replicas import ReplicaQuery, busy_replicas
from rightsizer.usage.activity_history import (
    activity_histories,
    activity_profiles,
    histories_of_devices,
    work_levels,
)
from rightsizer.usage.device_usage import (
    peak_activity,
    recent_peaks,
    sampled,
    usages_of_devices,
    window_usages,
)
from rightsizer.usage.label_search import labels_hint
from rightsizer.usage.node_coverage import first_sample, named_shares, node_coverage, nvlink_neighbours
from rightsizer.usage.optional_metrics import waits
from rightsizer.usage.querier import RecordedWindows, SourceQuerier
from rightsizer.usage.serving_metrics import serving_loads
from rightsizer.usage.source_metrics import MetricKind, MetricSource
from rightsizer.usage.sources import SourceSettings, detect_source

MAX_SHOWN_PODS = 3
PERCENT = 0.01


class PrometheusUsage:
    """Usage of GPUs; the source is detected at the first query.

    Every window ends at `at`. Every method raises PrometheusError if there is no complete response.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        settings: SourceSettings,
        tables: KeptTables | None = None,
        recorded: RecordedWindows | None = None,
    ) -> None:
        self._recorded = {} if recorded is None else recorded
        self._tables = tables
        self._prometheus = prometheus
        self._settings = settings
        self._gpu_pods: frozenset[PodKey] = frozenset()
        self._settled: frozenset[PodKey] | None = None
        self._whereabouts: Whereabouts | None = None
        self._querier: SourceQuerier | None = None

    def expect(
        self,
        pods: Collection[PodKey],
        settled: Collection[PodKey],
        whereabouts: Whereabouts | None = None,
    ) -> None:
        """Set the pods that hold GPUs, those that have run long enough for series to name them, and where pods run."""
        self._gpu_pods = frozenset(pods)
        self._settled = frozenset(settled)
        self._whereabouts = whereabouts
        self._querier = None

    def source(self, at: datetime.datetime) -> str:
        """The source: dcgm, dcgm-4.9, both of them, gpu-exporter, or the path of a signals file."""
        return self._query(at).source.name

    def ignored(self, at: datetime.datetime) -> Ignored:
        """The ignored series that queries have met so far."""
        provenance = self._query(at).provenance
        return Ignored(provenance.series, tuple(provenance.words()))

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Usage of every device by every pod in the window, or at least by these pods.

        Raises:
            EvidenceIncomplete: No series names a pod that holds a GPU.
        """
        found = window_usages(self._query(at), window, of=of)
        if of is None:
            self._require_gpu_pods(found, at)
        return found

    def sampled(self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey]) -> Usages:
        """Second signals of these pods that lack samples, and their peak activity if `usages` read recorded series."""
        return sampled(self._query(at), window, of)

    def recent(self, at: datetime.datetime) -> Usages:
        """The peaks of the last minutes, and nothing else."""
        return recent_peaks(self._query(at))

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """Only the peak activity of every device by every pod, and its coverage."""
        return peak_activity(self._query(at), window, with_coverage=with_coverage)

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """When each of these pods was busy since its start; it is busy with activity above `threshold` (0 to 1)."""
        return activity_histories(self._query(at), pods, span, threshold=threshold)

    def boards(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        nodes: Mapping[str, str],
        models: Collection[str],
    ) -> Boards:
        """Usage and clock of the boards of these models; of those in `nodes` only from there."""
        querier = self._boards(at, nodes, models)
        # Boards with MIG instances may have a code for "unknown" as their activity.
        ignored = {metric.name for metric in querier.source.of(MetricKind.ACTIVITY)}
        return {
            uuid: dataclasses.replace(
                usage, invalid=tuple([name for name in usage.invalid if name not in ignored])
            )
            for (uuid, _), (usage,) in window_usages(querier, window).items()
        }

    def board_histories(
        self, nodes: Mapping[str, str], span: datetime.timedelta, at: datetime.datetime, level: BoardLevel
    ) -> Mapping[str, History]:
        """When the power or the clock of these boards, which are all of one model, was above the level."""
        querier = self._boards(at, nodes)
        found: dict[str, History] = {}
        for kind, limit in ((MetricKind.POWER, level.power_w), (MetricKind.CLOCK, level.clock_hz)):
            if limit is None:
                continue
            source = dataclasses.replace(querier.source, presence=kind)
            pods = {(uuid, uuid): at - span for uuid in nodes}
            rows = activity_histories(
                dataclasses.replace(querier, source=source), pods, span, threshold=limit
            )
            for (uuid, _), row in rows.items():
                both = strongest([row.slots, found[uuid].slots]) if uuid in found else row.slots
                found[uuid] = dataclasses.replace(row, slots=both)
        return found

    def devices(
        self, window: datetime.timedelta, at: datetime.datetime, *, nodes: Mapping[str, str]
    ) -> Mapping[str, Sequence[Usage]]:
        """Usage of these GPUs or of their MIG instances, whoever works there, by UUID; only from their nodes."""
        found: dict[str, Sequence[Usage]] = {}
        pods = self._query(at).source.labels
        for _, querier in self._devices(at, nodes):
            found |= {uuid: usages for (uuid, _), usages in usages_of_devices(querier, window, pods).items()}
        return found

    def device_histories(
        self, nodes: Mapping[str, str], span: datetime.timedelta, at: datetime.datetime, *, threshold: float
    ) -> Mapping[str, History]:
        """When no unknown pod can have worked on these GPUs: IDLE, else UNKNOWN."""
        found: dict[str, History] = {}
        pods = self._query(at).source.labels
        for uuids, querier in self._devices(at, nodes):
            found |= histories_of_devices(querier, uuids, span, threshold=threshold, pods=pods)
        return found

    def work_levels(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, WorkLevel]:
        """When the GPUs of each of these pods moved memory, above `threshold` (0 to 1), and their power then."""
        return work_levels(self._query(at), pods, span, threshold=threshold)

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """How many replicas of each workload were busy at the same time, by UID."""
        return busy_replicas(self._query(at), workloads)

    def waits(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> Mapping[PodKey, Waits]:
        """CPU throttling and pressure of these pods, if cAdvisor's metrics exist."""
        return waits(self._query(at), pods, window, self._whereabouts)

    def serving(
        self, pods: Collection[PodKey], window: datetime.timedelta, at: datetime.datetime
    ) -> ServingLoads:
        """Load of the inference servers in these pods; only those of which the pods' own series tell."""
        return serving_loads(self._query(at), pods, window, self._whereabouts)

    def nodes(self, at: datetime.datetime) -> Mapping[str, NodeCoverage]:
        """Devices on each node, and how many of them name a pod."""
        return node_coverage(self._query(at))

    def nvlink(self, nodes: Mapping[str, str], at: datetime.datetime) -> Mapping[str, frozenset[str]]:
        """The GPUs that NVLink connects with each of these, if the exporter on its node says so, by UUID."""
        return nvlink_neighbours(self._boards(at, nodes), nodes.keys())

    def shares(self, pods: Collection[PodKey], at: datetime.datetime) -> Mapping[PodKey, int]:
        """How many shares of GPUs series name for each of these pods."""
        return named_shares(self._query(at), pods)

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """When the GPU series begin; None if they are older than the span."""
        return first_sample(self._query(at), span)

    def retention(self) -> datetime.timedelta | None:
        """How long Prometheus keeps samples; None if it does not tell, as most other servers."""
        with contextlib.suppress(PrometheusError):
            return retention(self._prometheus.status("flags"))
        return None

    def series(self, at: datetime.datetime) -> ActivitySeries | None:
        """The activity series for autoscalers; None if none is in percent or none names a pod."""
        querier = self._query(at)
        for metric in querier.source.of(MetricKind.ACTIVITY):
            if metric.scale != PERCENT:
                continue
            for pod, namespace, absent in querier.source.labels.pod_labels():
                selected = promql.selector(metric.name, [promql.is_set(pod), *absent, *querier.matchers])
                if querier.count(selected, at):
                    where, interval_s = self._prometheus.where, querier.interval_s()
                    matchers = (*querier.label_matchers, *querier.provenance.lasting_matchers)
                    return ActivitySeries(where, metric.name, pod, namespace, interval_s, matchers)
        return None

    def profiles(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        usages: Usages,
        shared: Collection[PodKey],
    ) -> Mapping[PodKey, Sequence[float | None]]:
        """Mean activity of each pod in equal steps of the window; on a shared GPU only the pod's own."""
        return activity_profiles(self._query(at), window, usages=usages, shared=shared)

    def _query(self, at: datetime.datetime) -> SourceQuerier:
        if self._querier is None:
            found = detect_source(
                self._prometheus, self._settings, at=at, pods=self._gpu_pods, whereabouts=self._whereabouts
            )
            self._querier = dataclasses.replace(found, tables=self._tables, recorded=self._recorded)
        if self._querier.at != at:
            self._querier = dataclasses.replace(self._querier, at=at, memo={})
        return self._querier

    def _boards(
        self, at: datetime.datetime, nodes: Mapping[str, str], models: Collection[str] = ()
    ) -> SourceQuerier:
        """A querier of whole boards."""
        source, labels = self._query(at).source, self._query(at).source.labels
        of_models = (promql.one_of(labels.model[0], sorted(models)),) if models and labels.model else ()
        return self._of_nodes(
            at, nodes, source.of_boards(), *promql.without_labels(labels.instance), *of_models
        )

    def _devices(
        self, at: datetime.datetime, nodes: Mapping[str, str]
    ) -> Iterator[tuple[Sequence[str], SourceQuerier]]:
        """Queriers of these GPUs and their MIG instances, some at a time."""
        source = self._query(at).source
        for uuids in promql.batches(sorted(nodes)):
            some = {uuid: nodes[uuid] for uuid in uuids}
            of_devices = dataclasses.replace(source.of_devices(), has_counters=source.has_counters)
            yield uuids, self._of_nodes(at, some, of_devices, promql.one_of(source.labels.device[0], uuids))

    def _of_nodes(
        self, at: datetime.datetime, nodes: Mapping[str, str], source: MetricSource, *matchers: str
    ) -> SourceQuerier:
        """A querier of GPUs, whose series count only if they come from the exporter on the node of the GPU."""
        querier = self._query(at)
        provenance, where = querier.provenance, querier.provenance.whereabouts
        if where is not None:
            where = Whereabouts({(uuid, uuid): node for uuid, node in nodes.items()}, where.addresses)
        return dataclasses.replace(
            querier,
            source=source,
            matchers=(*querier.matchers, *matchers),
            provenance=dataclasses.replace(provenance, whereabouts=where, strangers=set()),
            tables=None,
            memo={},
        )

    def _require_gpu_pods(self, found: Usages, at: datetime.datetime) -> None:
        """Refuse series that cannot be the cluster's.

        They can be if all pods are too young to be named, or if all named pods are gone.
        """
        if self._settled is not None and not self._settled:
            return
        if not found:
            raise EvidenceIncomplete(
                "Prometheus holds GPU series, but none names a pod: run the exporter with the kubelet's PodResources "
                f"socket mounted (dcgm-exporter: --kubernetes){labels_hint(self._query(at), at)}"
            )
        is_current = any(usage.is_fresh for usages in found.values() for usage in usages)
        if self._gpu_pods and not self._gpu_pods & found.keys() and is_current:
            some = ", ".join(f"{namespace}/{name}" for namespace, name in sorted(found)[:MAX_SHOWN_PODS])
            raise EvidenceIncomplete(
                f"none of the {len(found)} pods that Prometheus's GPU series name holds a GPU in this cluster "
                f"({some}): are they the exporter's own pods (run it with the kubelet's PodResources socket mounted; "
                "dcgm-exporter: --kubernetes), or is this another cluster's Prometheus?"
                f"{labels_hint(self._query(at), at)}"
            )
