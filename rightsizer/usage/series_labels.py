"""By which labels a source's series name pods, devices and nodes. Pure.

A name may stand under one of several labels: in `exported_pod` where Prometheus found the exporter's own labels in the
way (honor_labels: false; `pod` is then the exporter itself), else in `pod`. The first that is there is meant.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence

import msgspec

from rightsizer.model import Device, PodKey
from rightsizer.prometheus import promql

CLUSTER = "cluster"
"""The label by which those who gather several clusters in one Prometheus usually tell them apart."""

JOB = "job"
"""The label that Prometheus gives to what it scrapes by one configuration, and so at one interval."""

UseKey = tuple[str, str, str, str]
"""One pod's use of one device: namespace, pod, UUID, instance."""


@dataclasses.dataclass(frozen=True, slots=True)
class SeriesLabels:
    """What a series is about, by its labels.

    Attributes:
        key: Whose use of which device; None where it does not say.
        form: The label that names the pod; empty where none does.
        job: That scraped it.
    """

    key: UseKey | None
    device: Device
    cluster: str
    job: str
    form: str


@dataclasses.dataclass(frozen=True, slots=True)
class LabelNames:
    """Names of labels, for each thing in the order in which they are looked for; none where the source has no such."""

    namespace: tuple[str, ...] = ("exported_namespace", "namespace")
    pod: tuple[str, ...] = ("exported_pod", "pod")
    device: tuple[str, ...] = ("UUID",)
    instance: tuple[str, ...] = ("GPU_I_ID",)
    profile: tuple[str, ...] = ("GPU_I_PROFILE",)
    model: tuple[str, ...] = ("modelName",)
    node: tuple[str, ...] = ("Hostname", "hostname", "node")

    @property
    def owner(self) -> tuple[str, ...]:
        """What names a pod."""
        return (CLUSTER, *self.namespace, *self.pod)

    @property
    def use(self) -> tuple[str, ...]:
        """What tells one pod's use of one device from another's.

        Copies from a second Prometheus, job or exporter differ in other labels only, and fall together under `max`.
        """
        return (*self.owner, *self.device, *self.instance)

    @property
    def described(self) -> tuple[str, ...]:
        """The same, with what the device is and who scraped it: those of all questions, so that they are read once."""
        return (*self.use, *self.profile, *self.model, JOB)

    @property
    def has_pod(self) -> str:
        """A matcher that series which name a pod meet, and as few others as one matcher can say.

        Where there is exported_pod, there is pod; of other alternatives nothing of the kind is known.
        """
        last = self.pod[-1]
        is_implied = all(name == f"exported_{last}" for name in self.pod[:-1])
        return f"{last if is_implied else self.device[0]}!=''"

    def forms(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """The ways of naming a pod: its label, its namespace's, and matchers that exclude the ways before."""
        found = []
        for place, label in enumerate(self.pod):
            earlier = tuple(promql.equals(name, "") for name in self.pod[:place])
            found.append((label, self.namespace[min(place, len(self.namespace) - 1)], earlier))
        return found

    def pod_of(self, labels: Mapping[str, str]) -> PodKey | None:
        """Whom a series is about; None where it does not say."""
        pod, namespace = first(labels, self.pod), first(labels, self.namespace)
        return (namespace, pod) if pod and namespace else None

    def key_of(self, labels: Mapping[str, str]) -> UseKey | None:
        """Whose use of which device a series is about; None where it does not say."""
        pod, namespace = first(labels, self.pod), first(labels, self.namespace)
        uuid = first(labels, self.device)
        if not (pod and namespace and uuid):
            return None
        # A pod's name stands in the series of each of its devices.
        return sys.intern(namespace), sys.intern(pod), uuid, first(labels, self.instance)

    def device_of(self, labels: Mapping[str, str]) -> Device:
        """The device, as its series describe it."""
        return Device(
            first(labels, self.device),
            first(labels, self.instance),
            sys.intern(first(labels, self.model)),
            first(labels, self.profile),
        )

    def describe(self, text: msgspec.Raw) -> SeriesLabels:
        """What a series' labels say, as JSON.

        Raises:
            msgspec.DecodeError: They are no labels.
        """
        labels = msgspec.json.decode(text, type=dict[str, str])
        cluster, job = labels.get(CLUSTER, ""), labels.get(JOB, "")
        form = next((name for name in self.pod if labels.get(name)), "")
        return SeriesLabels(
            self.key_of(labels), self.device_of(labels), sys.intern(cluster), sys.intern(job), form
        )


def first(labels: Mapping[str, str], names: Sequence[str]) -> str:
    """The first of these labels that is not empty."""
    for name in names:
        value = labels.get(name)
        if value:
            return value
    return ""
