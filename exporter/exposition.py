"""A Snapshot as metric families, built afresh for each scrape, so that what has vanished is gone. Pure.

Must not know how anything was read; the time is passed in.
"""

import dataclasses
from collections.abc import Iterable

from prometheus_client import Metric as Family

from exporter.model import Device, DeviceSample, Health, Metric, Naming, PodRef, Snapshot, Spelling


@dataclasses.dataclass(frozen=True, slots=True)
class Build:
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
        hostname_labels: What the label with the hostname is called.
    """

    now: float
    hostname: str
    build: Build
    stale_after_s: float
    naming: Naming = Naming.DCGM
    hostname_labels: tuple[str, ...] = ("hostname",)


_DRIVER_LABELS = {True: "DCGM_FI_DRIVER_VERSION", False: "DCGM_FI_SYSTEM_DRIVER_VERSION"}
"""The label with the driver's version, up to dcgm-exporter 4.8 and from 4.9."""


def families(snapshot: Snapshot | None, scrape: Scrape) -> list[Family]:
    """Everything that the exporter has to say now: the devices' families, then its own."""
    if snapshot is None:
        return [_build_info(scrape.build, nvml_version="")]
    devices = [] if is_stale(snapshot, scrape.now, scrape.stale_after_s) else _devices(snapshot, scrape)
    return [
        *devices,
        *_gpu_states(snapshot, scrape),
        *_own(snapshot.health),
        _one(
            "gpu_exporter_last_sample_age_seconds",
            "Time since the GPUs were last read.",
            scrape.now - snapshot.taken_at,
        ),
        _build_info(scrape.build, snapshot.nvml_version),
    ]


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
        labels = {
            generation: _label_sets(sample, scrape, {generation: snapshot.driver_version})
            for generation in _DRIVER_LABELS.values()
        }
        for reading in sample.readings:
            for spelling in reading.metric.spellings(scrape.naming):
                is_old = spelling is reading.metric.dcgm
                value = spelling.value(reading.value)
                for labelled in labels[_DRIVER_LABELS[is_old]]:
                    found[spelling.name].add_sample(spelling.name, labelled, value)
    yield from found.values()
    yield _allocated(snapshot, scrape)


def _allocated(snapshot: Snapshot, scrape: Scrape) -> Family:
    """Of each device once: who holds it is in the other families' labels."""
    family = Family(
        "gpu_allocated",
        "1 where a pod holds the device, 0 where the kubelet offers it and nobody does.",
        "gauge",
    )
    driver = {_DRIVER_LABELS[scrape.naming is not Naming.DCGM_49]: snapshot.driver_version}
    for sample in snapshot.samples:
        if sample.allocated is not None:
            labels = _device_labels(sample.device, scrape, driver) | _own_labels(sample.device)
            family.add_sample(family.name, labels, float(sample.allocated))
    return family


def _family(metric: Metric, spelling: Spelling) -> Family:
    unit = f" (in {spelling.unit})" if spelling.unit else ""
    return Family(spelling.name, f"{metric.help}{unit}.", metric.kind.value)


def _label_sets(sample: DeviceSample, scrape: Scrape, driver: dict[str, str]) -> list[dict[str, str]]:
    """DCGM's labels in DCGM's order, then ours: once for each pod that holds the device, or once without pod labels."""
    labels, own = _device_labels(sample.device, scrape, driver), _own_labels(sample.device)
    return [
        {**labels, **_pod_labels(owner), **_claim_labels(owner, sample.device), **own}
        for owner in sample.owners
    ] or [labels | own]


def _device_labels(device: Device, scrape: Scrape, driver: dict[str, str]) -> dict[str, str]:
    return _identity(device) | dict.fromkeys(scrape.hostname_labels, scrape.hostname) | driver


def _identity(device: Device) -> dict[str, str]:
    labels = {
        "gpu": str(device.index),
        "UUID": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "device": f"nvidia{device.index}",
        "modelName": device.model,
    }
    if device.instance is not None:
        labels["GPU_I_PROFILE"] = device.instance.profile
        labels["GPU_I_ID"] = str(device.instance.gpu_instance_id)
    return labels


def _own_labels(device: Device) -> dict[str, str]:
    """What DCGM does not say: which MIG device it is; of several compute instances of a GPU instance, the first."""
    uuids = device.instance.uuids if device.instance is not None else ()
    return {"mig_uuid": uuids[0]} if uuids else {}


def _pod_labels(owner: PodRef) -> dict[str, str]:
    labels = {"container": owner.container, "namespace": owner.namespace, "pod": owner.pod}
    if owner.details is None:
        return labels
    if owner.details.uid:
        labels["pod_uid"] = owner.details.uid
    return labels | dict(owner.details.labels)


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
    for gpu in snapshot.health.gpus:
        labels = {"gpu": str(gpu.index), "hostname": scrape.hostname}
        if gpu.device is not None:
            labels |= {"uuid": gpu.device.uuid, "pci_bus_id": gpu.device.pci_bus_id}
        up.add_sample(up.name, labels, float(gpu.up))
        since = scrape.now if gpu.stuck_since is None else gpu.stuck_since
        stuck.add_sample(stuck.name, {"gpu": str(gpu.index)}, scrape.now - since)
    return up, stuck


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
        "gpu_exporter_reading_failures",
        "Readings that failed and whose series were omitted.",
        "counter",
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
    if health.podresources_up is not None:
        help_ = "Whether the kubelet said which pod holds which GPU."
        yield _one("gpu_exporter_podresources_up", help_, float(health.podresources_up))
    if health.pod_watch_up is not None:
        help_ = "Whether the API server's pods of this node are known and followed."
        yield _one("gpu_exporter_pod_watch_up", help_, float(health.pod_watch_up))
    unattributed = Family(
        "gpu_exporter_unattributed_devices",
        "Devices that pods hold and that are attributed to none of them.",
        "gauge",
    )
    for reason, count in health.unattributed:
        unattributed.add_sample(unattributed.name, {"reason": reason}, count)
    yield unattributed


def _gpu_counts(health: Health) -> Family:
    counts = Family(
        "gpu_exporter_gpus", "How many GPUs NVML shows, and how many the kernel's driver has.", "gauge"
    )
    counts.add_sample(counts.name, {"seen_by": "nvml"}, len(health.gpus))
    if health.gpus_in_kernel is not None:
        counts.add_sample(counts.name, {"seen_by": "kernel"}, health.gpus_in_kernel)
    return counts


def _build_info(build: Build, nvml_version: str) -> Family:
    family = Family("gpu_exporter_build_info", "What runs here; always 1.", "gauge")
    labels = {"version": build.version, "python_version": build.python_version, "nvml_version": nvml_version}
    family.add_sample(family.name, labels, 1)
    return family


def _one(name: str, help_: str, value: float) -> Family:
    family = Family(name, help_, "gauge")
    family.add_sample(name, {}, value)
    return family
