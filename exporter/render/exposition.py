"""Makes metric families of a Snapshot, afresh for each scrape, so that vanished devices disappear. Pure.

Must not know how anything was read; the caller passes the time.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client import Metric as Family

from exporter.model import (
    Device,
    DeviceSample,
    Health,
    Kind,
    Metric,
    MetricName,
    Naming,
    PodRef,
    Reading,
    ReloadStatus,
    SharedGpus,
    Snapshot,
)
from exporter.render.textformat import LabelSet


@dataclasses.dataclass(frozen=True, slots=True)
class BuildInfo:
    """Versions of this process."""

    version: str
    python_version: str


@dataclasses.dataclass(frozen=True, slots=True)
class Scrape:
    """Time and settings of one scrape."""

    now: float  # monotonic time in seconds
    hostname: str
    build: BuildInfo
    stale_after_s: float  # age in seconds from which readings are not served
    naming: Naming = Naming.DCGM
    hostname_labels: tuple[str, ...] = ("hostname",)  # names of the hostname label; may be empty
    blanks: str | None = None  # replaces blanks in the model's name
    shared_gpus: SharedGpus = SharedGpus.DCGM


_DCGM_ONLY = {"device", "modelName"}
"""Labels of DCGM's families only: gpu_info has them for joins with gpu-exporter's own."""


def families(snapshot: Snapshot | None, scrape: Scrape) -> list[Family]:
    """All families: the devices' first, then the exporter's own."""
    if snapshot is None:
        return [_build_info(scrape.build, nvml_version="")]
    devices = [] if is_stale(snapshot, scrape.now, scrape.stale_after_s) else _devices(snapshot, scrape)
    return [
        *devices,
        *_gpu_states(snapshot, scrape),
        *_own(snapshot.health),
        *_age(snapshot, scrape.now),
        _build_info(scrape.build, snapshot.nvml_version),
    ]


def _age(snapshot: Snapshot, now: float) -> Iterator[Family]:
    if snapshot.read_at is not None:
        help_ = "Time since the last reading of a GPU."
        yield _one("gpu_exporter_last_sample_age_seconds", help_, now - snapshot.read_at)


def is_stale(snapshot: Snapshot, now: float, stale_after_s: float) -> bool:
    """Whether the readings are too old to be served."""
    return now - snapshot.taken_at > stale_after_s


def _devices(snapshot: Snapshot, scrape: Scrape) -> Iterable[Family]:
    """The rows' families in catalogue order; series in order of devices, then pods."""
    found = {
        metric_name.name: _family(metric, metric_name)
        for metric in snapshot.metrics
        for metric_name in metric.names_in(scrape.naming)
    }
    for sample in (*snapshot.samples, *snapshot.lost):
        labels = _Labels(sample, scrape)
        for reading in sample.readings:
            for metric_name in reading.metric.names_in(scrape.naming):
                _add(found[metric_name.name], metric_name, reading, labels)
    yield from found.values()
    for name, help_, of in _OF_KUBELET:
        yield _of_kubelet(Family(name, help_, "gauge"), of, snapshot, scrape)


_KubeletValues: TypeAlias = Iterable[tuple[PodRef | None, int | None]]

_OF_KUBELET: tuple[tuple[str, str, Callable[[DeviceSample], _KubeletValues]], ...] = (
    (
        "gpu_allocated",
        "Whether a pod holds the device or has a process on it (1/0); absent if unknown.",
        lambda sample: [(None, sample.allocated)],
    ),
    (
        "gpu_replicas",
        "Replicas under which the kubelet offers the device, 1 if it is not shared; absent if unknown.",
        lambda sample: [(None, sample.replicas)],
    ),
    (
        "gpu_pod_shares",
        "Replicas of the device that the pod holds, 1 if it is not shared.",
        lambda sample: zip(sample.owners, sample.shares, strict=False),
    ),
)


def _of_kubelet(
    family: Family, of: Callable[[DeviceSample], _KubeletValues], snapshot: Snapshot, scrape: Scrape
) -> Family:
    """One series per device, or for each of its pods."""
    for sample in snapshot.samples:
        for owner, value in of(sample):
            if value is not None:
                labels = _own_labels(sample.device, _hostnames(scrape))
                if owner is not None:
                    named = {"namespace": owner.namespace, "pod": owner.pod, "container": owner.container}
                    labels = labels.joined(tuple(named.items()))
                family.add_sample(family.name, labels, float(value))
    return family


def _hostnames(scrape: Scrape) -> tuple[tuple[str, str], ...]:
    return tuple((name, scrape.hostname) for name in scrape.hostname_labels)


class _Labels:
    """The labels of a device's series in one scrape."""

    def __init__(self, sample: DeviceSample, scrape: Scrape) -> None:
        self._sample = sample
        self._scrape = scrape
        self._hostnames = _hostnames(scrape)
        self._of_generation: dict[bool, list[LabelSet]] = {}

    def of(self, reading: Reading, metric_name: MetricName) -> Iterable[tuple[LabelSet, float]]:
        """The series of a reading in the unit of a name.

        DCGM's families have one for each pod and job on the device, or one without their labels.
        """
        value = metric_name.value(reading.value)
        if reading.metric.is_own:
            return [(_own_labels(self._sample.device, self._hostnames), value)]
        is_old = self._scrape.naming is not Naming.DCGM_49 and metric_name is reading.metric.dcgm
        if self._scrape.shared_gpus is SharedGpus.ATTRIBUTED and len(self._sample.owners) > 1:
            return self._of_sharers(reading, metric_name, is_old=is_old)
        found = self._of_generation.get(is_old)
        if found is None:
            found = self._of_generation[is_old] = list(self._of_holders(self._sample.owners, is_old=is_old))
        return [(labels, value) for labels in found]

    def _of_sharers(
        self, reading: Reading, metric_name: MetricName, *, is_old: bool
    ) -> Iterable[tuple[LabelSet, float]]:
        """Each pod's part and the rest, which add up to the total; or the total alone."""
        split = reading.split
        if split is None:
            value = metric_name.value(reading.value)
            return [(labels, value) for labels in self._of_holders((), is_old=is_old)]
        whole = metric_name.value(split.rest + sum(part for _, part in split.pods))
        parts = {pod: metric_name.value(part) for pod, part in split.pods}
        shown = {
            owner: parts[owner.namespace, owner.pod]
            for owner in self._sample.owners
            if (owner.namespace, owner.pod) in parts
        }
        rest = max(0.0, whole - sum(shown.values()))
        return [
            *((labels, rest) for labels in self._of_holders((), is_old=is_old)),
            *(
                (labels, part)
                for owner, part in shown.items()
                for labels in self._of_holders((owner,), is_old=is_old)
            ),
        ]

    def _of_holders(self, owners: tuple[PodRef, ...], *, is_old: bool) -> Iterator[LabelSet]:
        texts = tuple(
            (text.label.dcgm if is_old else text.label.dcgm_49, text.value) for text in self._sample.texts
        )
        more = (*self._hostnames, *texts)
        for owner in owners or (None,):
            for job in self._sample.jobs or (None,):
                yield _dcgm_labels(self._sample.device, self._scrape.blanks, more, owner, job)


# Cached between scrapes: formatting a set of labels takes longer than the values.
_KEPT = 256
"""Sets of labels, each of 1.5 KiB. A set outside the cache costs a scrape 10 us."""


@functools.lru_cache(maxsize=_KEPT)
def _dcgm_labels(
    device: Device,
    blanks: str | None,
    more: tuple[tuple[str, str], ...],
    owner: PodRef | None,
    job: str | None,
) -> LabelSet:
    return LabelSet(_identity(device, blanks) | dict(more) | _holder(owner, job, device) | _mig_uuid(device))


@functools.lru_cache(maxsize=_KEPT)
def _own_labels(device: Device, hostnames: tuple[tuple[str, str], ...]) -> LabelSet:
    identity = _identity(device, None) | dict(hostnames) | _mig_uuid(device)
    return LabelSet({name: value for name, value in identity.items() if name not in _DCGM_ONLY})


def _add(family: Family, metric_name: MetricName, reading: Reading, labels: _Labels) -> None:
    for labelled, value in labels.of(reading, metric_name):
        complete = labelled.joined(reading.labels) if reading.labels else labelled
        family.add_sample(metric_name.name, complete, value)


def _family(metric: Metric, metric_name: MetricName) -> Family:
    unit = f" (in {metric_name.unit})" if metric_name.unit else ""
    # A family has the name of its samples without the suffix of counters; DCGM's have none.
    name = metric_name.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric_name.name
    return Family(name, metric_name.help or f"{metric.help}{unit}.", metric.kind.value)


def _identity(device: Device, blanks: str | None) -> dict[str, str]:
    labels = {
        "gpu": str(device.index),
        "UUID": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "device": f"nvidia{device.index}",
        "modelName": device.model if blanks is None else blanks.join(device.model.split()),
    }
    if device.instance is not None:
        labels["GPU_I_PROFILE"] = device.instance.profile
        labels["GPU_I_ID"] = str(device.instance.gpu_instance_id)
    return labels


def _holder(owner: PodRef | None, job: str | None, device: Device) -> dict[str, str]:
    """Labels of job and pod, sorted as DCGM's; then the pod's own."""
    labels = {} if job is None else {"hpc_job": job}
    if owner is None:
        return labels
    labels |= {"container": owner.container} if owner.container else {}
    labels |= {"namespace": owner.namespace, "pod": owner.pod}
    labels |= _claim_labels(owner, device)
    if owner.details is None:
        return dict(sorted(labels.items()))
    if owner.details.uid:
        labels["pod_uid"] = owner.details.uid
    return dict(sorted(labels.items())) | dict(owner.details.labels)


def _mig_uuid(device: Device) -> dict[str, str]:
    """The label mig_uuid, which DCGM lacks: of several compute instances, the first."""
    uuids = device.instance.uuids if device.instance is not None else ()
    return {"mig_uuid": uuids[0]} if uuids else {}


def _claim_labels(owner: PodRef, device: Device) -> dict[str, str]:
    """dcgm-exporter's labels of a claimed device."""
    claim = owner.claim
    if claim is None:
        return {}
    labels = {
        "dra_claim_name": claim.name,
        "dra_claim_namespace": claim.namespace,
        "dra_device_name": claim.device,
        "dra_driver_name": claim.driver,
        "dra_pool_name": claim.pool,
    }
    if device.instance is not None:
        labels["dra_mig_profile"] = device.instance.profile
        if device.instance.uuids:
            labels["dra_mig_device_uuid"] = device.instance.uuids[0]
    return labels


def _gpu_states(snapshot: Snapshot, scrape: Scrape) -> Iterable[Family]:
    up = Family("gpu_up", "Whether the GPU answered in the last cycle (1/0).", "gauge")
    stuck = Family(
        "gpu_exporter_gpu_stuck_seconds",
        "Duration of a hung driver call for this GPU; 0 if none hangs.",
        "gauge",
    )
    down = Family("gpu_down", "Reason why a GPU did not answer in the last cycle; always 1.", "gauge")
    for gpu in snapshot.health.gpus:
        labels = {"gpu": str(gpu.index)} | ({"hostname": scrape.hostname} if scrape.hostname_labels else {})
        if gpu.device is not None:
            labels |= {"UUID": gpu.device.uuid, "pci_bus_id": gpu.device.pci_bus_id}
        up.add_sample(up.name, labels, float(gpu.up))
        if not gpu.up:
            down.add_sample(down.name, {**labels, "reason": gpu.reason}, 1)
        since = scrape.now if gpu.stuck_since is None else gpu.stuck_since
        stuck.add_sample(stuck.name, {"gpu": str(gpu.index)}, scrape.now - since)
    return up, down, stuck


def _own(health: Health) -> Iterable[Family]:
    duration = Family(
        "gpu_exporter_collector_duration_seconds",
        "Time of a collector in the last cycle, summed over the GPUs.",
        "gauge",
    )
    success = Family(
        "gpu_exporter_collector_success",
        "Whether all supported readings of a collector succeeded in the last cycle (1/0).",
        "gauge",
    )
    failures = Family("gpu_exporter_reading_failures", "Failed readings, which have no series.", "counter")
    for collector in health.collectors:
        labels = {"collector": collector.name}
        duration.add_sample(duration.name, labels, collector.duration_s)
        success.add_sample(success.name, labels, float(collector.success))
    for failed in health.failures:
        labels = {"collector": failed.collector, "reason": failed.reason}
        failures.add_sample(f"{failures.name}_total", labels, failed.count)
    yield from (duration, success, failures)
    yield _one(
        "gpu_exporter_nvml_up", "Whether the driver reported its number of GPUs (1/0).", float(health.nvml_up)
    )
    yield _gpu_counts(health)
    if health.reload is not None:
        yield from _reload(health.reload)
    if health.podresources_up is not None:
        help_ = "Whether the kubelet reported the GPUs of all its pods (1/0)."
        yield _one("gpu_exporter_podresources_up", help_, float(health.podresources_up))
    if health.pod_watch_up is not None:
        help_ = "Whether the watch for this node's pods works (1/0)."
        yield _one("gpu_exporter_pod_watch_up", help_, float(health.pod_watch_up))
    if health.attribution_disabled_reason is not None:
        yield from _attribution_status(health.attribution_disabled_reason)
    unattributed = Family(
        "gpu_exporter_unattributed_devices",
        "Allocated devices that could not be attributed to a pod, by reason.",
        "gauge",
    )
    for reason, count in health.unattributed:
        unattributed.add_sample(unattributed.name, {"reason": reason}, count)
    yield unattributed


def _attribution_status(reason: str) -> Iterable[Family]:
    prefix = "gpu_exporter_process_attribution"
    yield _one(f"{prefix}_up", "Whether process-to-pod attribution works (1/0).", float(not reason))
    off = Family(f"{prefix}_off", "Reason why process-to-pod attribution does not work; always 1.", "gauge")
    if reason:
        off.add_sample(off.name, {"reason": reason}, 1)
    yield off


def _reload(reload: ReloadStatus) -> Iterable[Family]:
    prefix = "gpu_exporter_config_last_reload_success"
    yield _one(
        f"{prefix}ful",
        "Whether the last reload of the metrics file succeeded (1/0).",
        float(reload.successful),
    )
    yield _one(
        f"{prefix}_timestamp_seconds",
        "Unix time of the last successful reload of the metrics file.",
        reload.succeeded_at,
    )


def _gpu_counts(health: Health) -> Family:
    counts = Family("gpu_exporter_gpus", "Number of GPUs by NVML and by the kernel's driver.", "gauge")
    if health.nvml_up:
        counts.add_sample(counts.name, {"seen_by": "nvml"}, len(health.gpus))
    if health.gpus_in_kernel is not None:
        counts.add_sample(counts.name, {"seen_by": "kernel"}, health.gpus_in_kernel)
    return counts


def _build_info(build: BuildInfo, nvml_version: str) -> Family:
    family = Family(
        "gpu_exporter_build_info", "Versions of gpu-exporter, Python and NVML; always 1.", "gauge"
    )
    labels = {"version": build.version, "python_version": build.python_version, "nvml_version": nvml_version}
    family.add_sample(family.name, labels, 1)
    return family


def _one(name: str, help_: str, value: float) -> Family:
    family = Family(name, help_, "gauge")
    family.add_sample(name, {}, value)
    return family
