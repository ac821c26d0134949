"""A Snapshot as metric families, built afresh for each scrape, so that what has vanished is gone. Pure.

Must not know how anything was read; the time is passed in.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator

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
    """What runs here."""

    version: str
    python_version: str


@dataclasses.dataclass(frozen=True, slots=True)
class Scrape:
    """The circumstances of one scrape.

    Attributes:
        now: Monotonic time in seconds.
        hostname: The value of the hostname label.
        build: What runs here.
        stale_after_s: The age in seconds at which readings are no longer served.
        naming: Which generation of DCGM's names the devices' families have.
        hostname_labels: What the label with the hostname is called; nothing where there shall be none.
        blanks: What stands for a blank in the model's name.
        shared_gpus: What DCGM's families say of a device that several pods share.
    """

    now: float
    hostname: str
    build: BuildInfo
    stale_after_s: float
    naming: Naming = Naming.DCGM
    hostname_labels: tuple[str, ...] = ("hostname",)
    blanks: str | None = None
    shared_gpus: SharedGpus = SharedGpus.DCGM


_DCGM_ONLY = {"device", "modelName"}
"""Labels that only DCGM's families carry: ours have them in gpu_info, which can be joined on the others."""


def families(snapshot: Snapshot | None, scrape: Scrape) -> list[Family]:
    """Everything that the exporter has to say now: the devices' families, then its own."""
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
        help_ = "Time since a GPU was last read."
        yield _one("gpu_exporter_last_sample_age_seconds", help_, now - snapshot.read_at)


def is_stale(snapshot: Snapshot, now: float, stale_after_s: float) -> bool:
    """Whether the readings are too old to be served."""
    return now - snapshot.taken_at > stale_after_s


def _devices(snapshot: Snapshot, scrape: Scrape) -> Iterable[Family]:
    """The rows' families in catalogue order; series in order of devices, then pods."""
    found = {
        spelling.name: _family(metric, spelling)
        for metric in snapshot.metrics
        for spelling in metric.spellings(scrape.naming)
    }
    for sample in snapshot.samples:
        labels = _Labels(sample, scrape)
        for reading in sample.readings:
            for spelling in reading.metric.spellings(scrape.naming):
                _add(found[spelling.name], spelling, reading, labels)
    yield from found.values()
    yield _allocated(snapshot, scrape)


def _allocated(snapshot: Snapshot, scrape: Scrape) -> Family:
    """Of each device once: who holds it is in the other families' labels."""
    family = Family(
        "gpu_allocated",
        "1 where a pod holds the device, 0 where the kubelet offers it and nobody does.",
        "gauge",
    )
    for sample in snapshot.samples:
        if sample.allocated is not None:
            labels = _own_labels(sample.device, _hostnames(scrape))
            family.add_sample(family.name, labels, float(sample.allocated))
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

    def of(self, reading: Reading, spelling: MetricName) -> Iterable[tuple[LabelSet, float]]:
        """The series of a reading, in the spelling's unit; DCGM's families with DCGM's labels in DCGM's order.

        Those stand once for each pod and each job on the device, or once without their labels.
        """
        value = spelling.value(reading.value)
        if reading.metric.is_own:
            return [(_own_labels(self._sample.device, self._hostnames), value)]
        is_old = self._scrape.naming is not Naming.DCGM_49 and spelling is reading.metric.dcgm
        if self._scrape.shared_gpus is SharedGpus.ATTRIBUTED and len(self._sample.owners) > 1:
            return self._of_sharers(reading, spelling, is_old=is_old)
        found = self._of_generation.get(is_old)
        if found is None:
            found = self._of_generation[is_old] = list(self._of_holders(self._sample.owners, is_old=is_old))
        return [(labels, value) for labels in found]

    def _of_sharers(
        self, reading: Reading, spelling: MetricName, *, is_old: bool
    ) -> Iterable[tuple[LabelSet, float]]:
        """Each holder's part and the rest, which add up to the whole, also if rounded; or the whole, once."""
        split = reading.split
        if split is None:
            value = spelling.value(reading.value)
            return [(labels, value) for labels in self._of_holders((), is_old=is_old)]
        whole = spelling.value(split.rest + sum(part for _, part in split.pods))
        parts = {pod: spelling.value(part) for pod, part in split.pods}
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


# Kept from scrape to scrape: writing a set of labels out takes longer than the values beside it.
_KEPT = 256
"""Sets of labels, each of 1.5 KiB, also of pods that are gone; where more are in use, each takes a scrape 10 us."""


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


def _add(family: Family, spelling: MetricName, reading: Reading, labels: _Labels) -> None:
    for labelled, value in labels.of(reading, spelling):
        complete = labelled.joined(reading.labels) if reading.labels else labelled
        family.add_sample(spelling.name, complete, value)


def _family(metric: Metric, spelling: MetricName) -> Family:
    unit = f" (in {spelling.unit})" if spelling.unit else ""
    # A family is called like its samples, but for the suffix of counters; DCGM's have none.
    name = spelling.name.removesuffix("_total") if metric.kind is Kind.COUNTER else spelling.name
    return Family(name, spelling.help or f"{metric.help}{unit}.", metric.kind.value)


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
    """Labels of what is on the device, sorted, as DCGM's are; then the pod's own."""
    labels = {} if job is None else {"hpc_job": job}
    if owner is None:
        return labels
    labels |= {"container": owner.container, "namespace": owner.namespace, "pod": owner.pod}
    labels |= _claim_labels(owner, device)
    if owner.details is None:
        return dict(sorted(labels.items()))
    if owner.details.uid:
        labels["pod_uid"] = owner.details.uid
    return dict(sorted(labels.items())) | dict(owner.details.labels)


def _mig_uuid(device: Device) -> dict[str, str]:
    """What DCGM does not say: which MIG device it is; of several compute instances of a GPU instance, the first."""
    uuids = device.instance.uuids if device.instance is not None else ()
    return {"mig_uuid": uuids[0]} if uuids else {}


def _claim_labels(owner: PodRef, device: Device) -> dict[str, str]:
    """dcgm-exporter's labels of a device that a resource claim gave to a pod."""
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
    up = Family("gpu_up", "Whether the GPU answered when it was last read.", "gauge")
    stuck = Family(
        "gpu_exporter_gpu_stuck_seconds",
        "How long a driver call for this GPU has not returned; 0 when none hangs.",
        "gauge",
    )
    down = Family("gpu_down", "Why a GPU did not answer when it was last read; always 1.", "gauge")
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
        "Time spent in a collector in the last cycle, summed over the GPUs.",
        "gauge",
    )
    success = Family(
        "gpu_exporter_collector_success",
        "Whether all readings of a collector succeeded in the last cycle, but for those that a GPU does not support.",
        "gauge",
    )
    failures = Family(
        "gpu_exporter_reading_failures", "Readings that failed and whose series were omitted.", "counter"
    )
    for collector in health.collectors:
        labels = {"collector": collector.name}
        duration.add_sample(duration.name, labels, collector.duration_s)
        success.add_sample(success.name, labels, float(collector.success))
    for failed in health.failures:
        labels = {"collector": failed.collector, "reason": failed.reason}
        failures.add_sample(f"{failures.name}_total", labels, failed.count)
    yield from (duration, success, failures)
    yield _one(
        "gpu_exporter_nvml_up", "Whether the driver said how many GPUs there are.", float(health.nvml_up)
    )
    yield _gpu_counts(health)
    if health.reload is not None:
        yield from _reload(health.reload)
    if health.podresources_up is not None:
        help_ = "Whether the kubelet said which pod holds which GPU."
        yield _one("gpu_exporter_podresources_up", help_, float(health.podresources_up))
    if health.pod_watch_up is not None:
        help_ = "Whether the API server's pods of this node are known and followed."
        yield _one("gpu_exporter_pod_watch_up", help_, float(health.pod_watch_up))
    if health.no_telling is not None:
        yield from _telling(health.no_telling)
    unattributed = Family(
        "gpu_exporter_unattributed_devices",
        "Devices that pods hold and that are attributed to none of them.",
        "gauge",
    )
    for reason, count in health.unattributed:
        unattributed.add_sample(unattributed.name, {"reason": reason}, count)
    yield unattributed


def _telling(why_not: str) -> Iterable[Family]:
    prefix = "gpu_exporter_process_attribution"
    yield _one(f"{prefix}_up", "Whether processes can be told apart by pod.", float(not why_not))
    off = Family(f"{prefix}_off", "Why processes cannot be told apart by pod; always 1.", "gauge")
    if why_not:
        off.add_sample(off.name, {"reason": why_not}, 1)
    yield off


def _reload(reload: ReloadStatus) -> Iterable[Family]:
    prefix = "gpu_exporter_config_last_reload_success"
    yield _one(f"{prefix}ful", "Whether the metrics file as it is now is in force.", float(reload.successful))
    yield _one(
        f"{prefix}_timestamp_seconds",
        "When the metrics file was last read with success.",
        reload.succeeded_at,
    )


def _gpu_counts(health: Health) -> Family:
    counts = Family(
        "gpu_exporter_gpus", "How many GPUs NVML shows, and how many the kernel's driver has.", "gauge"
    )
    if health.nvml_up:
        counts.add_sample(counts.name, {"seen_by": "nvml"}, len(health.gpus))
    if health.gpus_in_kernel is not None:
        counts.add_sample(counts.name, {"seen_by": "kernel"}, health.gpus_in_kernel)
    return counts


def _build_info(build: BuildInfo, nvml_version: str) -> Family:
    family = Family("gpu_exporter_build_info", "What runs here; always 1.", "gauge")
    labels = {"version": build.version, "python_version": build.python_version, "nvml_version": nvml_version}
    family.add_sample(family.name, labels, 1)
    return family


def _one(name: str, help_: str, value: float) -> Family:
    family = Family(name, help_, "gauge")
    family.add_sample(name, {}, value)
    return family
