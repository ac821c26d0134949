"""How many devices the metrics show on each node, and how many of them name a pod; the API server knows better."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from rightsizer.model import NodeSight, PodKey
from rightsizer.observe import promql
from rightsizer.observe.prometheus import Sample
from rightsizer.observe.signals.asking import Asker
from rightsizer.observe.signals.labels import JOB, first
from rightsizer.observe.signals.quantities import Kind, Quantity
from rightsizer.observe.signals.rules import Raw

RECENT = datetime.timedelta(minutes=10)


@dataclasses.dataclass(slots=True)
class _Device:
    nodes: set[str] = dataclasses.field(default_factory=set)
    owners: set[PodKey] = dataclasses.field(default_factory=set)
    coverage: float = 0.0


def nodes(asker: Asker, at: datetime.datetime) -> dict[str, NodeSight]:
    """By each of the names that the series have for a node (Hostname and node may differ; one of them is the node's).

    A GPU that is cut into MIG instances is not counted beside them. A pod owns a device only if it is known to hold
    GPUs, where that is known: where an exporter's own labels were in the way, the pod of a free GPU is the exporter.
    """
    labels = asker.source.labels
    by = ("cluster", *labels.device, *labels.instance, *labels.node, *labels.owner[1:], JOB)
    territory = asker.territory(RECENT, at, of_devices=True)
    shards = territory.shards(asker.most(asker.samples_per_series(Raw(), RECENT, at)))
    samples: list[Sample] = []
    memory = asker.source.of(Kind.MEMORY)
    for quantity in asker.markers():
        if quantity in memory or (asker.is_there(quantity, at) and _tells_more(asker, quantity, memory, at)):
            samples += asker.samples(
                territory,
                shards,
                lambda matchers, quantity=quantity: promql.by(  # type: ignore[misc]
                    "max", by, Raw().count(quantity, (*asker.given, *matchers), RECENT)
                ),
                at,
            )
    return _summed(_devices(asker, samples))


def _tells_more(asker: Asker, quantity: Quantity, others: Sequence[Quantity], at: datetime.datetime) -> bool:
    """Whether anything has this metric that has none of the others."""
    labels = asker.source.labels
    use = f"on ({', '.join((*labels.use, *labels.node))})"
    mine, theirs = asker.selected([quantity], asker.given), asker.selected(others, asker.given)
    without = f" unless {use} ({theirs})" if others else ""
    return bool(asker.prometheus.query(f"count({mine}{without})", at))


def _devices(asker: Asker, samples: list[Sample]) -> dict[tuple[str, str], _Device]:
    labels = asker.source.labels
    densest: dict[str, float] = {}
    for sample in samples:
        job = sample.labels.get(JOB, "")
        densest[job] = max(densest.get(job, 0.0), sample.value)
    devices: dict[tuple[str, str], _Device] = {}
    exporters = _exporters(asker, samples)
    for sample in samples:
        uuid = first(sample.labels, labels.device)
        device = devices.setdefault((uuid, first(sample.labels, labels.instance)), _Device())
        device.nodes |= {sample.labels[name] for name in labels.node if sample.labels.get(name)}
        device.coverage = max(device.coverage, sample.value / densest[sample.labels.get(JOB, "")])
        pod = labels.pod_of(sample.labels)
        if pod is not None and pod not in exporters and (not asker.known or pod in asker.known):
            device.owners.add(pod)
    return devices


def _exporters(asker: Asker, samples: list[Sample]) -> set[PodKey]:
    """Pods that stand in `pod` beside another in `exported_pod`: they were scraped, and own nothing."""
    labels = asker.source.labels
    found = set()
    for sample in samples:
        if len(labels.pod) > 1 and sample.labels.get(labels.pod[0]):
            found.add((sample.labels.get(labels.namespace[-1], ""), sample.labels.get(labels.pod[-1], "")))
    return found


def _summed(devices: Mapping[tuple[str, str], _Device]) -> dict[str, NodeSight]:
    cut = {uuid for uuid, instance in devices if instance}
    sights: dict[str, NodeSight] = {}
    for (uuid, instance), device in sorted(devices.items()):
        if uuid in cut and not instance:
            continue
        for name in device.nodes:
            before = sights.get(name, NodeSight(0, 0, 1.0))
            sights[name] = NodeSight(
                before.devices + 1,
                before.owned + bool(device.owners),
                min(before.coverage, device.coverage),
            )
    return dict(sorted(sights.items()))
