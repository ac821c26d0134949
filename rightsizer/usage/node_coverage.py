"""Devices with series on each node, how NVLink connects them, which pods and shares they name, when there are any."""

import collections
import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from rightsizer.model import NodeCoverage, PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache, QueryRange, decode_labels
from rightsizer.usage.provenance import TARGET_LABELS
from rightsizer.usage.querier import LOOKBACK, SourceQuerier
from rightsizer.usage.recording_rules import RAW, raw_selector
from rightsizer.usage.source_metrics import (
    CLUSTER,
    JOB,
    TARGET,
    DeviceKey,
    LabelNames,
    Metric,
    MetricKind,
    UseKey,
)

RECENT = datetime.timedelta(minutes=10)
STEPS = 40
HALVINGS = 5
TOPOLOGY = "gpu_topology"
"""gpu-exporter's: one series for each ordered pair of GPUs of a node."""
SHARES = "gpu_pod_shares"
"""gpu-exporter's: how many shares of a device a pod holds."""
_SHARE = ("vgpu", "exported_container", "container")
_PAIR = (CLUSTER, JOB, TARGET, "UUID", "peer_UUID", "connection")


class _DeviceSeries(NamedTuple):
    """A device's series: `exporter` is the scraped pod if the series names another pod, too."""

    device: DeviceKey
    nodes: tuple[str, ...]
    pod: PodKey | None
    exporter: PodKey | None
    cluster: str
    job: str
    target: str


@dataclasses.dataclass(slots=True)
class _DeviceOnNodes:
    nodes: set[str] = dataclasses.field(default_factory=set)
    is_owned: bool = False
    coverage: float = 0.0


def node_coverage(querier: SourceQuerier) -> dict[str, NodeCoverage]:
    """Coverage by each name that the series have for a node: Hostname and node may differ.

    A GPU with MIG instances is not counted beside them. Only pods that hold GPUs own a device, if these are known: the
    series of a free GPU may name the exporter's pod.
    """
    labels = querier.source.labels
    by = (CLUSTER, *labels.device_key, *labels.node, *labels.owner[1:], JOB, TARGET)
    plan = querier.shard_plan(RECENT, of_devices=True)
    # No limit on the response: counting the series of each node costs more than a large response.
    shards = plan.shards(querier.max_series(RAW, RECENT, limit=math.inf))
    samples: list[tuple[_DeviceSeries, float]] = []
    memory = querier.source.of(MetricKind.MEMORY)
    cache = ParseCache(functools.partial(_parse, labels))
    for metric in querier.existing(querier.markers(), RECENT, [(plan, shards)], querier.matchers):
        if metric not in memory and not _has_more_devices(querier, metric, memory):
            continue

        def query(matchers: Sequence[str], metric: Metric = metric) -> list[tuple[_DeviceSeries, float]]:
            counted = RAW.count(metric, (*querier.matchers, *matchers), RECENT)
            return querier.prometheus.query_as(promql.by("max", by, counted), querier.at, cache)

        for result in plan.run(shards, query):
            ours = querier.of_one_cluster(result, lambda sample: sample[0].cluster)
            accepts = querier.provenance.accepts
            samples += (each for each in ours if accepts(None, each[0].job, each[0].target))
    return _by_node(_devices(querier, samples))


def _parse(labels: LabelNames, text: msgspec.Raw) -> _DeviceSeries:
    found = decode_labels(text)
    is_exported = len(labels.pod) > 1 and bool(found.get(labels.pod[0]))
    scraped = (sys.intern(found.get(labels.namespace[-1], "")), sys.intern(found.get(labels.pod[-1], "")))
    return _DeviceSeries(
        labels.device_of(found),
        tuple(sys.intern(found[name]) for name in labels.node if found.get(name)),
        labels.pod_of(found),
        scraped if is_exported else None,
        sys.intern(found.get(CLUSTER, "")),
        sys.intern(found.get(JOB, "")),
        sys.intern(found.get(TARGET, "")),
    )


def _has_more_devices(querier: SourceQuerier, metric: Metric, others: Sequence[Metric]) -> bool:
    """Whether an exporter has this metric of any device, and none of the others."""
    labels = querier.source.labels
    query, other = (querier.selected(each, querier.matchers) for each in ([metric], others))
    same = promql.listed((*labels.use, *labels.node, JOB, TARGET))
    without = f" unless on {same} ({other})" if others else ""
    return bool(querier.by_exporter("count", f"({query}{without})", querier.at))


def _devices(
    querier: SourceQuerier, samples: Sequence[tuple[_DeviceSeries, float]]
) -> dict[DeviceKey, _DeviceOnNodes]:
    densest: dict[str, float] = {}
    for one, count in samples:
        densest[one.job] = max(densest.get(one.job, 0.0), count)
    # If `exported_pod` names another pod, `pod` is an exporter, which owns nothing.
    exporters = {one.exporter for one, _ in samples}
    devices: dict[DeviceKey, _DeviceOnNodes] = {}
    for one, count in samples:
        device = devices.setdefault(one.device, _DeviceOnNodes())
        device.nodes.update(one.nodes)
        device.coverage = max(device.coverage, count / densest[one.job] if densest[one.job] else 0.0)
        is_gpu_pod = one.pod is not None and (not querier.gpu_pods or one.pod in querier.gpu_pods)
        device.is_owned |= is_gpu_pod and one.pod not in exporters
    return devices


def _by_node(devices: Mapping[DeviceKey, _DeviceOnNodes]) -> dict[str, NodeCoverage]:
    with_instances = {uuid for uuid, instance in devices if instance}
    found: dict[str, NodeCoverage] = {}
    boards: dict[str, set[str]] = {}
    for (uuid, instance), device in sorted(devices.items()):
        if uuid in with_instances and not instance:
            continue
        for name in device.nodes:
            before = found.get(name, NodeCoverage(0, 0, 1.0))
            found[name] = NodeCoverage(
                before.devices + 1, before.owned + device.is_owned, min(before.coverage, device.coverage)
            )
            boards.setdefault(name, set()).add(uuid)
    return {
        name: dataclasses.replace(one, boards=frozenset(boards[name])) for name, one in sorted(found.items())
    }


def nvlink_neighbours(querier: SourceQuerier, boards: Collection[str]) -> dict[str, frozenset[str]]:
    """The GPUs that NVLink connects with each of these, by UUID; those without a known topology are left out."""
    found: dict[str, set[str]] = {}
    if not querier.count(promql.selector(TOPOLOGY, querier.matchers), querier.at):
        return {}
    for batch in promql.batches(sorted(boards), promql.MAX_TEXT * 3 // 4):
        selected = promql.selector(TOPOLOGY, (*querier.matchers, promql.one_of("UUID", batch)))
        samples = querier.prometheus.query(promql.by("max", _PAIR, selected), querier.at)
        ours = querier.of_one_cluster(samples, lambda sample: sample.labels.get(CLUSTER, ""))
        for labels in (sample.labels for sample in ours):
            uuid = labels["UUID"]
            if querier.provenance.accepts((uuid, uuid), labels.get(JOB, ""), labels.get(TARGET, "")):
                peers = found.setdefault(uuid, set())
                peers.update(
                    {labels.get("peer_UUID", "")} if labels.get("connection", "").startswith("NV") else ()
                )
    return {uuid: frozenset(peers) for uuid, peers in sorted(found.items())}


def named_shares(querier: SourceQuerier, pods: Collection[PodKey]) -> dict[PodKey, int]:
    """How many shares of GPUs series name for each of these pods.

    gpu-exporter counts them. dcgm-exporter has a series for each, which differ in their container and `vgpu`.
    """
    described = querier.source.labels.described
    found: dict[UseKey, float] = {}

    def counted(matchers: Sequence[str], metric: Metric) -> str:
        each = promql.by("count", (*described, *_SHARE), raw_selector(metric, matchers))
        return promql.by("count", described, each)

    def published(matchers: Sequence[str]) -> str:
        return promql.by("max", described, promql.selector(SHARES, matchers))

    shards = querier.pod_shards(sorted(pods), querier.max_series(RAW, RECENT))
    builds = [functools.partial(counted, metric=metric) for metric in querier.markers()]
    for build in (*builds, *([published] if querier.source.has_counters else ())):
        for labels, number in querier.uses(shards, build):
            if labels.key is not None and 0 <= number < math.inf:
                found[labels.key] = max(number, found.get(labels.key, 0.0))
    shares: collections.Counter[PodKey] = collections.Counter()
    for key, number in found.items():
        shares[key[:2]] += int(number)
    return {pod: number for pod, number in sorted(shares.items()) if pod in pods}


def first_sample(querier: SourceQuerier, span: datetime.timedelta) -> datetime.datetime | None:
    """When the GPU series begin, to about a thousandth of the span; None if they are older than the span.

    A gap in them, however long, is not the beginning.
    """
    step = span / STEPS
    start = querier.at - span
    for metric in querier.markers():
        if querier.by_exporter("count", querier.selected([metric], querier.matchers), start):
            return None
    selected = querier.selected(querier.markers(), querier.matchers)
    series = querier.prometheus.query_range(
        promql.by("count", TARGET_LABELS, selected), QueryRange(start, querier.at, step.total_seconds())
    )
    accepts = querier.provenance.accepts_target
    instants = [instant for one in series if accepts(one.labels) for instant in one.points]
    first = datetime.datetime.fromtimestamp(min(instants), tz=datetime.UTC) if instants else querier.at
    if first - start < step / 2:
        return None
    before = first - step
    for _ in range(HALVINGS):
        middle = before + (first - before) / 2
        if querier.by_exporter("count", selected, middle):
            first = middle
        else:
            before = middle
    return first


def last_sample(querier: SourceQuerier, span: datetime.timedelta) -> datetime.datetime | None:
    """When the GPU series ended; None if there are some now, or none in the span."""
    selected = querier.selected(querier.markers(), querier.matchers)
    if querier.by_exporter("count", selected, querier.at):
        return None
    times = " or ".join(
        f"timestamp({raw_selector(metric, querier.matchers)})" for metric in querier.markers()
    )
    steps = QueryRange(querier.at - span, querier.at, LOOKBACK.total_seconds())
    series = querier.prometheus.query_range(promql.by("max", TARGET_LABELS, times), steps)
    accepts = querier.provenance.accepts_target
    ends = [max(one.points.values()) for one in series if one.points and accepts(one.labels)]
    return datetime.datetime.fromtimestamp(max(ends), tz=datetime.UTC) if ends else None
