"""What kube-state-metrics recorded of GPU pods: owners, nodes, classes and requests, also of pods that are gone."""

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping

from rightsizer.inventory.gpu_requests import CLASS_PREFIX, GPU_RESOURCES, ResourceUnit, parse_gpu_resource
from rightsizer.kube.owner_kinds import OWNERS
from rightsizer.model import ObjectRef, PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Sample
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.source_metrics import LabelNames, first
from rightsizer.usage.step_usage import CHUNK

_LABELS = LabelNames()
_API_VERSIONS = {row.kind: row.api_version for row in reversed(OWNERS)}
"""By kind, which is all that the metrics name; of two groups with one kind, the first."""
_CONTAINER = ("exported_container", "container")
_COUNTED = frozenset({ResourceUnit.DEVICES, ResourceUnit.SHARES})


def _recorded_name(resource: str) -> str:
    """As kube-state-metrics writes a resource, or a pattern of them as a regular expression."""
    return re.sub(r"[^a-zA-Z0-9_*]", "_", resource).replace("*", ".+")


@dataclasses.dataclass(frozen=True, slots=True)
class AskedFacts:
    """What is asked about pods beyond the usual.

    Attributes:
        labels: Keys of labels: kube-state-metrics writes others alike, and records none by default.
        resources: GPU resources beyond the known ones, as `--gpu-resource` takes them.
    """

    labels: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()

    def units(self) -> tuple[tuple[str, ResourceUnit], ...]:
        """The recorded names of resources that pods request, as patterns, and their units; the first match counts."""
        rows = (*map(parse_gpu_resource, sorted(self.resources)), *GPU_RESOURCES)
        return tuple(
            (_recorded_name(row.pattern), row.unit)
            for row in rows
            if not row.pattern.startswith(CLASS_PREFIX)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class PodFacts:
    """What was recorded of a pod beside its devices.

    Attributes:
        owner: Its topmost known controller; None if unknown.
        node, priority_class: Empty if unknown.
        gpus: GPUs, MIG instances or shares that it asked for; 0 if unknown, as where it asked for memory.
        labels: Those of the asked labels that are known.
        images: Of its containers, which tell notebooks; empty if unknown.
    """

    owner: ObjectRef | None = None
    node: str = ""
    priority_class: str = ""
    gpus: int = 0
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    images: tuple[str, ...] = ()


def pod_facts(querier: SourceQuerier, asked: AskedFacts) -> dict[PodKey, PodFacts]:
    """The facts of every pod that asked for GPUs in the day before `querier.at`; nothing without kube-state-metrics.

    Raises:
        PrometheusError: An answer was incomplete.
    """
    return _Facts(querier, asked).of_all()


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    querier: SourceQuerier
    asked: AskedFacts

    def of_all(self) -> dict[PodKey, PodFacts]:
        gpus = self._requested()
        if not gpus:
            return {}
        owners = self._owners(gpus)
        above = self._above("kube_replicaset_owner", "replicaset", "ReplicaSet")
        above |= self._above("kube_job_owner", "job_name", "Job")
        infos = {
            pod: sample.labels
            for sample in self._query("kube_pod_info")
            if (pod := _LABELS.pod_of(sample.labels)) in gpus
        }
        labels = self._labels(gpus) if self.asked.labels else {}
        images = self._images(gpus)
        return {
            pod: PodFacts(
                _topmost(pod[0], *owners[pod], above) if pod in owners else None,
                infos.get(pod, {}).get("node", ""),
                infos.get(pod, {}).get("priority_class", ""),
                count,
                labels.get(pod, {}),
                images.get(pod, ()),
            )
            for pod, count in gpus.items()
        }

    def _requested(self) -> dict[PodKey, int]:
        """GPUs that each pod asked for: of several series of one request, as after a restart, the largest."""
        units = self.asked.units()
        asked = promql.quoted("|".join(pattern for pattern, _ in units))
        found: dict[PodKey, dict[tuple[str, str], int]] = {}
        for sample in self._query("kube_pod_container_resource_requests", f"resource=~{asked}"):
            if (pod := _LABELS.pod_of(sample.labels)) is None:
                continue
            resource = sample.labels.get("resource", "")
            is_counted = _unit(units, resource) in _COUNTED and math.isfinite(sample.value)
            request = first(sample.labels, _CONTAINER), resource
            requests = found.setdefault(pod, {})
            requests[request] = max(requests.get(request, 0), sample.count if is_counted else 0)
        return {pod: sum(requests.values()) for pod, requests in found.items()}

    def _owners(self, pods: Collection[PodKey]) -> dict[PodKey, tuple[str, str]]:
        """Kind and name of each pod's controller: the pod itself where it is recorded that it has none."""
        found: dict[PodKey, tuple[str, str]] = {}
        for sample in self._query("kube_pod_owner"):
            pod = _LABELS.pod_of(sample.labels)
            if pod is None or pod not in pods:
                continue
            if sample.labels.get("owner_is_controller") == "true":
                found[pod] = sample.labels.get("owner_kind", ""), sample.labels.get("owner_name", "")
            else:
                found.setdefault(pod, ("Pod", pod[1]))
        return found

    def _images(self, pods: Collection[PodKey]) -> dict[PodKey, tuple[str, ...]]:
        found: dict[PodKey, set[str]] = {}
        for sample in self._query("kube_pod_container_info"):
            image = sample.labels.get("image_spec") or sample.labels.get("image", "")
            pod = _LABELS.pod_of(sample.labels)
            if image and pod is not None and pod in pods:
                found.setdefault(pod, set()).add(image)
        return {pod: tuple(sorted(images)) for pod, images in found.items()}

    def _labels(self, pods: Collection[PodKey]) -> dict[PodKey, Mapping[str, str]]:
        names = {key: f"label_{re.sub('[^a-zA-Z0-9_]', '_', key)}" for key in self.asked.labels}
        known = ((_LABELS.pod_of(sample.labels), sample) for sample in self._query("kube_pod_labels"))
        return {
            pod: {key: sample.labels[name] for key, name in names.items() if sample.labels.get(name)}
            for pod, sample in known
            if pod is not None and pod in pods
        }

    def _above(self, metric: str, label: str, kind: str) -> dict[tuple[str, str, str], tuple[str, str]]:
        """The controller of each object of a kind, by namespace, kind and name."""
        return {
            (first(one.labels, _LABELS.namespace), kind, one.labels.get(label, "")): (
                one.labels.get("owner_kind", ""),
                one.labels.get("owner_name", ""),
            )
            for one in self._query(metric, "owner_is_controller='true'")
        }

    def _query(self, metric: str, *matchers: str) -> Iterable[Sample]:
        selected = promql.selector(metric, (*matchers, *self.querier.label_matchers))
        recorded = promql.over("last_over_time", selected, CHUNK)
        return self.querier.prometheus.query(recorded, self.querier.at)


def _unit(units: Iterable[tuple[str, ResourceUnit]], recorded: str) -> ResourceUnit | None:
    return next((unit for pattern, unit in units if re.fullmatch(pattern, recorded)), None)


def _topmost(
    namespace: str, kind: str, name: str, above: Mapping[tuple[str, str, str], tuple[str, str]]
) -> ObjectRef:
    for _ in range(3):
        owner = above.get((namespace, kind, name))
        if owner is None or not all(owner) or owner[0] == "CronJob":
            break
        kind, name = owner
    return owner_ref(namespace, kind, name)


def owner_ref(namespace: str, kind: str, name: str) -> ObjectRef:
    """An object of which only this is recorded."""
    api_version = _API_VERSIONS.get(kind, "unknown/v1")
    return ObjectRef(api_version, kind, namespace, name, f"{namespace}/{kind}/{name}")
