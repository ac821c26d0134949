"""Checks of the metrics: source, pod labels, missing quantities, copies and implausible values. Pure."""

import collections
import datetime
from collections.abc import Iterator, Mapping

from rightsizer.config import format_duration
from rightsizer.doctor.diagnosis import Diagnosis, Facts, Failure, Message, Status, check, known, some
from rightsizer.model import Usage
from rightsizer.text import count, instant
from rightsizer.usage.device_usage import DISAGREEMENT
from rightsizer.usage.source_metrics import MetricKind

_RUNS = "check that an exporter runs and is scraped (Prometheus's /targets)"
_EXPORTERS = "kubectl get pods -A | grep -E 'dcgm|gpu-exporter'"
_ADD = "add {metric} to the exporter's metrics (dcgm-exporter: -f FILE)"
_NAMES = {
    MetricKind.ACTIVITY: ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"),
    MetricKind.TRAFFIC: ("DCGM_FI_DEV_MEM_COPY_UTIL", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"),
    MetricKind.MEMORY: ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES"),
    MetricKind.POWER: ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
}

FOUND = Message(Status.OK, "{name}: {metrics}")
ENDED = Message(
    Status.ERROR, "GPU series ({name}) ended {ended}, {ago} ago: every verdict is unknown", _RUNS, _EXPORTERS
)
NONE_FOUND = Message(
    Status.ERROR, "{why}", f"{_RUNS}; for another exporter's metrics: --signals FILE", _EXPORTERS
)


@check("signals", "source", "Available metrics: dcgm, dcgm-4.9, gpu-exporter or a table.")
def _source(facts: Facts) -> Iterator[Diagnosis]:
    known(facts.server)
    source = facts.source
    if isinstance(source, Failure):
        yield NONE_FOUND(why=source.words)
        return
    metrics = dict.fromkeys(metric.name for metric in source.metrics)
    if isinstance(facts.ended, datetime.datetime):
        ago = format_duration((known(facts.server).now - facts.ended).total_seconds())
        yield ENDED(name=source.name, ended=instant(facts.ended), ago=ago)
        return
    yield FOUND(name=source.name, metrics=some(metrics))


BY_LABEL = Message(Status.OK, "{series} series name pods of this cluster, by {forms}")
BY_ANY_LABEL = Message(
    Status.UNKNOWN,
    "{series} series name pods, by {forms}; whether they are in this cluster is unknown, because pods "
    "could not be read",
)
NO_POD = Message(
    Status.ERROR,
    "no series names a pod that holds a GPU{hint}",
    "mount /var/lib/kubelet/pod-resources into the exporter; dcgm-exporter also needs --kubernetes",
)
FOREIGN = Message(
    Status.ERROR,
    "series name {pods}, none of which holds a GPU here ({names}){hint}",
    "if they are exporters: mount /var/lib/kubelet/pod-resources (dcgm-exporter: --kubernetes); if "
    "Prometheus holds several clusters: --prometheus-label cluster=NAME; if it is another cluster's: "
    "--prometheus-url",
)
NO_HOLDERS = Message(Status.OK, "no pod holds a GPU now")


@check("signals", "labels", "Labels that name pods, and whether these pods are in the cluster.")
def _labels(facts: Facts) -> Iterator[Diagnosis]:
    naming = known(facts.naming)
    if naming.forms:
        forms = " and ".join(f"{label} ({number})" for label, number in sorted(naming.forms.items()))
        message = BY_ANY_LABEL if isinstance(facts.fleet, Failure) else BY_LABEL
        yield message(series=sum(naming.forms.values()), forms=forms)
    elif not any(workload.gpus for workload in known(facts.fleet).workloads):
        yield NO_HOLDERS()
    elif naming.foreign:
        names = some(f"{namespace}/{name}" for namespace, name in naming.foreign)
        yield FOREIGN(pods=count(len(naming.foreign), "pod"), names=names, hint=naming.hint)
    else:
        yield NO_POD(hint=naming.hint)


ALL_MEASURED = Message(Status.OK, "activity, memory traffic, memory in use and power are measured")
NO_ACTIVITY = Message(
    Status.ERROR,
    "activity is not measured ({metrics}): every verdict is unknown",
    _ADD,
)
NO_SECOND = Message(
    Status.ERROR,
    "neither memory traffic nor power is measured: without a second signal every verdict is unknown",
    "add {metric} or {other} to the exporter's metrics (dcgm-exporter: -f FILE)",
)
NO_TRAFFIC = Message(
    Status.WARNING,
    "memory traffic is not measured: models without a row in idlePowerWatts get no verdict",
    _ADD,
)
NO_POWER = Message(
    Status.WARNING,
    "power is not measured: only memory traffic confirms idle, and stuck is not detected",
    _ADD,
)
NO_MEMORY = Message(
    Status.WARNING,
    "memory in use is not measured: oversized-gpu is not detected, and idle does not show held memory",
    _ADD,
)
_MISSING: Mapping[MetricKind, Message] = {
    MetricKind.TRAFFIC: NO_TRAFFIC,
    MetricKind.POWER: NO_POWER,
    MetricKind.MEMORY: NO_MEMORY,
}


@check("signals", "metrics", "Measured quantities, and the effect of missing ones.")
def _quantities(facts: Facts) -> Iterator[Diagnosis]:
    source = known(facts.source)
    missing = [kind for kind in _NAMES if not source.of(kind)]
    is_new = any(metric.name == _NAMES[MetricKind.MEMORY][1] for metric in source.metrics)
    names = {kind: both[is_new] for kind, both in _NAMES.items()}
    if MetricKind.ACTIVITY in missing:
        yield NO_ACTIVITY(metrics=f"no {names[MetricKind.ACTIVITY]}", metric=names[MetricKind.ACTIVITY])
    if {MetricKind.TRAFFIC, MetricKind.POWER} <= set(missing):
        yield NO_SECOND(metric=names[MetricKind.POWER], other=names[MetricKind.TRAFFIC])
        missing = [kind for kind in missing if kind not in {MetricKind.TRAFFIC, MetricKind.POWER}]
    for kind in missing:
        if kind in _MISSING:
            yield _MISSING[kind](metric=names[kind])
    if all(map(source.of, _NAMES)):
        yield ALL_MEASURED()


MIG_MEASURED = Message(Status.OK, "all MIG instances that pods hold are measured, or there are none")
MIG_UNMEASURED = Message(
    Status.WARNING,
    "{devices} without utilization metric: idle only while the whole board is",
    "on Hopper and later run gpu-exporter, or add DCGM_FI_PROF_GR_ENGINE_ACTIVE to dcgm-exporter; before "
    "Hopper only the latter measures instances",
)


@check("signals", "mig", "MIG instances without utilization metrics.")
def _mig(facts: Facts) -> Iterator[Diagnosis]:
    dark = [
        usage
        for _, usage in _devices(facts)
        if usage.device.instance and usage.activity_mean is None and not usage.invalid
    ]
    if dark:
        yield MIG_UNMEASURED(devices=count(len(dark), "MIG instance"))
    else:
        yield MIG_MEASURED()


ONCE = Message(Status.OK, "each device of a pod has one series")
TWINS = Message(Status.OK, "copies of {devices}, as from a pair of Prometheus servers; each counts once")
TWICE = Message(
    Status.WARNING,
    "{devices} scraped by several jobs ({jobs}); each counts once, by its highest values",
    "run one exporter per node, scraped by one job or ServiceMonitor",
    "kubectl get servicemonitors,podmonitors -A | grep -iE 'dcgm|gpu'",
)


@check("signals", "duplicates", "Devices with several series.")
def _copies(facts: Facts) -> Iterator[Diagnosis]:
    naming = known(facts.naming)
    if len(naming.jobs) > 1:
        yield TWICE(devices=count(naming.copies, "device"), jobs=some(naming.jobs))
    elif naming.copies:
        yield TWINS(devices=count(naming.copies, "device"))
    else:
        yield ONCE()


FROM_EXPORTERS = Message(Status.OK, "all GPU series come from exporters{where}")
UNKNOWN_ORIGIN = Message(
    Status.WARNING,
    "{why}",
    "keep instance as the address of the exporter's pod or node, or its node's name (relabelings, honor_labels); until "
    "then, let Prometheus scrape only namespaces that you trust",
)
NOT_EXPORTERS = Message(
    Status.WARNING,
    "{words}",
    "let Prometheus scrape exporters only in their namespace (deploy/prometheus/scrape.yaml), and name it: "
    "--exporter-namespace NAME; what is scraped:",
    "kubectl get pods -A -o wide | grep -F -- {instance}",
)
NO_CLUSTER_KNOWN = Message(
    Status.UNKNOWN, "whether GPU series come from exporters is unknown, because pods could not be read"
)


@check("signals", "provenance", "Series that are not from the exporter of the pod's node.")
def _provenance(facts: Facts) -> Iterator[Diagnosis]:
    found = known(facts.provenance)
    if isinstance(facts.fleet, Failure):
        yield NO_CLUSTER_KNOWN()
    elif found.problem:
        yield UNKNOWN_ORIGIN(why=found.problem)
    elif words := list(found.words()):
        instance = found.ignored[0].instance if found.ignored else ""
        yield NOT_EXPORTERS(words="; ".join(words), instance=instance.rpartition(":")[0] or instance)
    else:
        names = ", ".join(sorted(filter(None, found.namespaces)))
        yield FROM_EXPORTERS(where=f" in {names}" if names else "")


AGREE = Message(Status.OK, "no two sources disagree")
DISAGREE = Message(
    Status.WARNING,
    "two activity metrics disagree on {devices} ({names}), so the verdict is unknown",
    "restart the exporter on their nodes, or use one source: --signals dcgm",
)


@check("signals", "agreement", "Sources that contradict each other.")
def _agreement(facts: Facts) -> Iterator[Diagnosis]:
    found = [key for key, usage in _devices(facts) if DISAGREEMENT in usage.invalid]
    if found:
        yield DISAGREE(devices=count(len(found), "device"), names=some(dict.fromkeys(found)))
    else:
        yield AGREE()


VALID = Message(Status.OK, "all values of the last hour are plausible")
INVALID = Message(
    Status.WARNING,
    "{devices} with impossible values (NaN, negative or above 100%) of {metrics}: the verdict is unknown",
    "restart the exporter on their nodes; node of the first pod:",
    "kubectl -n {namespace} get pod {pod} -o wide",
)


@check("signals", "values", "Impossible values.")
def _values(facts: Facts) -> Iterator[Diagnosis]:
    metrics: collections.Counter[str] = collections.Counter()
    places = []
    for key, usage in _devices(facts):
        invalid = [name for name in usage.invalid if name != DISAGREEMENT]
        metrics.update(invalid)
        places += [key] if invalid else []
    if places:
        namespace, _, pod = places[0].partition("/")
        yield INVALID(
            devices=count(len(places), "device"), metrics=some(sorted(metrics)), namespace=namespace, pod=pod
        )
    else:
        yield VALID()


def _devices(facts: Facts) -> list[tuple[str, Usage]]:
    """Usage of each device by each GPU pod (namespace/pod), in a stable order."""
    usages = known(facts.usages)
    return [(f"{key[0]}/{key[1]}", usage) for key in sorted(usages) for usage in usages[key]]
