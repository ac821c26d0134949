"""How many devices the metrics show on each node, and how many of them name a pod; the API server knows better."""

import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from rightsizer.model import NodeCoverage, PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import ParseCache
from rightsizer.usage.counter_meaning import DeviceKey
from rightsizer.usage.quantities import Metric, MetricKind
from rightsizer.usage.querier import SourceQuerier, require_one_cluster_name
from rightsizer.usage.recording_rules import RawQueries
from rightsizer.usage.series_labels import CLUSTER, JOB, LabelNames, first

RECENT = datetime.timedelta(minutes=10)


class _Series(NamedTuple):
    """What a series says of where a device is, and whose it is.

    Attributes:
        exporter: The pod that was scraped, where the series names another beside it.
    """

    device: DeviceKey
    nodes: tuple[str, ...]
    pod: PodKey | None
    exporter: PodKey | None
    cluster: str
    job: str


@dataclasses.dataclass(slots=True)
class _Device:
    nodes: set[str] = dataclasses.field(default_factory=set)
    is_owned: bool = False
    coverage: float = 0.0


def nodes(asker: SourceQuerier, at: datetime.datetime) -> dict[str, NodeCoverage]:
    """By each of the names that the series have for a node (Hostname and node may differ; one of them is the node's).

    A GPU that is cut into MIG instances is not counted beside them. A pod owns a device only if it is known to hold
    GPUs, where that is known: where an exporter's own labels were in the way, the pod of a free GPU is the exporter.
    """
    labels = asker.source.labels
    by = ("cluster", *labels.device, *labels.instance, *labels.node, *labels.owner[1:], JOB)
    territory = asker.territory(RECENT, at, of_devices=True)
    # To count what each node has costs more than a long answer.
    most = asker.most(asker.samples_per_series(RawQueries(), RECENT, at), at_once=math.inf)
    shards = territory.shards(most)
    samples: list[tuple[_Series, float]] = []
    memory = asker.source.of(MetricKind.MEMORY)
    series = ParseCache(functools.partial(_read, labels))
    for quantity in asker.markers():
        if quantity in memory or (asker.is_there(quantity, at) and _tells_more(asker, quantity, memory, at)):

            def ask(matchers: Sequence[str], quantity: Metric = quantity) -> list[tuple[_Series, float]]:
                counted = RawQueries().count(quantity, (*asker.given, *matchers), RECENT)
                return asker.prometheus.query_as(promql.by("max", by, counted), at, series)

            for answer in territory.ask(shards, ask):
                require_one_cluster_name({one.cluster for one, _ in answer})
                samples += answer
    return _summed(_devices(asker, samples))


def _read(labels: LabelNames, text: msgspec.Raw) -> _Series:
    found = msgspec.json.decode(text, type=dict[str, str])
    is_exported = len(labels.pod) > 1 and bool(found.get(labels.pod[0]))
    scraped = (sys.intern(found.get(labels.namespace[-1], "")), sys.intern(found.get(labels.pod[-1], "")))
    return _Series(
        (first(found, labels.device), first(found, labels.instance)),
        tuple(sys.intern(found[name]) for name in labels.node if found.get(name)),
        labels.pod_of(found),
        scraped if is_exported else None,
        sys.intern(found.get(CLUSTER, "")),
        sys.intern(found.get(JOB, "")),
    )


def _tells_more(
    asker: SourceQuerier, quantity: Metric, others: Sequence[Metric], at: datetime.datetime
) -> bool:
    """Whether anything has this metric that has none of the others."""
    labels = asker.source.labels
    use = f"on ({', '.join((*labels.use, *labels.node))})"
    mine, theirs = asker.selected([quantity], asker.given), asker.selected(others, asker.given)
    without = f" unless {use} ({theirs})" if others else ""
    return bool(asker.prometheus.query(f"count({mine}{without})", at))


def _devices(asker: SourceQuerier, samples: Sequence[tuple[_Series, float]]) -> dict[DeviceKey, _Device]:
    densest: dict[str, float] = {}
    for one, count in samples:
        densest[one.job] = max(densest.get(one.job, 0.0), count)
    # Pods that stand in `pod` beside another in `exported_pod`: they were scraped, and own nothing.
    exporters = {one.exporter for one, _ in samples}
    devices: dict[DeviceKey, _Device] = {}
    for one, count in samples:
        device = devices.setdefault(one.device, _Device())
        device.nodes.update(one.nodes)
        device.coverage = max(device.coverage, count / densest[one.job])
        is_known = one.pod is not None and (not asker.known or one.pod in asker.known)
        device.is_owned = device.is_owned or (is_known and one.pod not in exporters)
    return devices


def _summed(devices: Mapping[DeviceKey, _Device]) -> dict[str, NodeCoverage]:
    cut = {uuid for uuid, instance in devices if instance}
    sights: dict[str, NodeCoverage] = {}
    for (uuid, instance), device in sorted(devices.items()):
        if uuid in cut and not instance:
            continue
        for name in device.nodes:
            before = sights.get(name, NodeCoverage(0, 0, 1.0))
            sights[name] = NodeCoverage(
                before.devices + 1,
                before.owned + device.is_owned,
                min(before.coverage, device.coverage),
            )
    return dict(sorted(sights.items()))
