"""Labels by which a source's series name pods, devices and nodes. Pure.

Prometheus renames labels of the exporter that collide with its own (honor_labels: false): `exported_pod` is then the
workload's pod and `pod` the exporter's. So each thing has several label names, and the first that is set counts.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import msgspec

from rightsizer.model import Device, PodKey
from rightsizer.prometheus import promql

CLUSTER = "cluster"
"""The usual label of the cluster in a Prometheus that has series of several."""

JOB = "job"
"""The scrape job; it has one scrape interval."""

UseKey = tuple[str, str, str, str]
"""A pod's use of a device: namespace, pod, UUID, MIG instance."""

DeviceKey = tuple[str, str]
"""UUID and MIG instance."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesLabels:
    """The parsed labels of a series.

    Attributes:
        key: None if the series names no pod or no device.
        pod_label: The label that names the pod; empty if none does.
    """

    key: UseKey | None
    device: Device
    cluster: str
    job: str
    pod_label: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelNames:
    """Names of labels, in order of preference; empty if the source has none."""

    namespace: tuple[str, ...] = ("exported_namespace", "namespace")
    pod: tuple[str, ...] = ("exported_pod", "pod")
    device: tuple[str, ...] = ("UUID",)
    instance: tuple[str, ...] = ("GPU_I_ID",)
    profile: tuple[str, ...] = ("GPU_I_PROFILE",)
    model: tuple[str, ...] = ("modelName",)
    node: tuple[str, ...] = ("Hostname", "hostname", "node")

    @property
    def owner(self) -> tuple[str, ...]:
        """Labels of the pod."""
        return (CLUSTER, *self.namespace, *self.pod)

    @property
    def device_key(self) -> tuple[str, ...]:
        """Labels of the device."""
        return (*self.device, *self.instance)

    @property
    def use(self) -> tuple[str, ...]:
        """Labels of a pod's use of a device.

        Copies from a second Prometheus, job or exporter differ in other labels only, so `max` merges them.
        """
        return (*self.owner, *self.device_key)

    @property
    def described(self) -> tuple[str, ...]:
        """The same with the device's description and the job. All queries keep these, so that each is parsed once."""
        return (*self.use, *self.profile, *self.model, JOB)

    @property
    def has_pod(self) -> str:
        """A matcher for series that name a pod; it may match others, too.

        `exported_pod` implies `pod`; other alternatives imply nothing.
        """
        last = self.pod[-1]
        is_implied = all(name == f"exported_{last}" for name in self.pod[:-1])
        return f"{last if is_implied else self.device[0]}!=''"

    def pod_labels(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """For each label that may name a pod: it, its namespace's label, and matchers that exclude earlier labels."""
        found = []
        for place, label in enumerate(self.pod):
            absent = tuple(promql.equals(name, "") for name in self.pod[:place])
            found.append((label, self.namespace[min(place, len(self.namespace) - 1)], absent))
        return found

    def pod_of(self, labels: Mapping[str, str]) -> PodKey | None:
        """The pod of a series; None if it names none."""
        pod, namespace = first(labels, self.pod), first(labels, self.namespace)
        # The same names are in the series of each device.
        return (sys.intern(namespace), sys.intern(pod)) if pod and namespace else None

    def device_of(self, labels: Mapping[str, str]) -> DeviceKey:
        """The device of a series."""
        return first(labels, self.device), first(labels, self.instance)

    def key_of(self, labels: Mapping[str, str]) -> UseKey | None:
        """The pod and the device of a series; None if it does not name both."""
        pod, device = self.pod_of(labels), self.device_of(labels)
        return (*pod, *device) if pod and device[0] else None

    def parse(self, text: msgspec.Raw) -> SeriesLabels:
        """Parse the labels of a series.

        Raises:
            msgspec.DecodeError: They are not labels.
        """
        labels = decode_labels(text)
        model, profile = sys.intern(first(labels, self.model)), first(labels, self.profile)
        return SeriesLabels(
            self.key_of(labels),
            Device(*self.device_of(labels), model, profile),
            sys.intern(labels.get(CLUSTER, "")),
            sys.intern(labels.get(JOB, "")),
            next((name for name in self.pod if labels.get(name)), ""),
        )


def decode_labels(text: msgspec.Raw) -> dict[str, str]:
    """Labels of a series, from JSON."""
    return msgspec.json.decode(text, type=dict[str, str])


def decode_points(text: msgspec.Raw) -> list[tuple[float, float]]:
    """Points of a range query's series, from JSON: Unix time and value."""
    return [
        (instant, float(value)) for instant, value in msgspec.json.decode(text, type=list[tuple[float, str]])
    ]


def first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The value of the first of these labels that is set."""
    for name in names:
        value = labels.get(name)
        if value:
            return value
    return ""
