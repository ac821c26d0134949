"""What kube-state-metrics recorded of GPU pods: owners, nodes, classes and requests, also of pods that are gone.

Any scraped target can expose such series. Only those of one scrape job count, the one that tells of most pods, and a
fact of which its targets tell different values is unknown, with all others of the pod. Seen on kube-state-metrics 2.20.
"""

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from rightsizer.inventory.gpu_requests import CLASS_PREFIX, GPU_RESOURCES, ResourceUnit, parse_gpu_resource
from rightsizer.kube.owner_kinds import OWNERS
from rightsizer.model import ObjectRef, PodKey
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Sample
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.source_metrics import JOB, TARGET, LabelNames, first
from rightsizer.usage.step_usage import CHUNK

_LABELS = LabelNames()
_API_VERSIONS = {row.kind: row.api_version for row in reversed(OWNERS)}
"""By kind, which is all that the metrics name; of two groups with one kind, the first."""
_CONTAINER = ("exported_container", "container")
_INFO, _REQUESTS = "kube_pod_info", "kube_pod_container_resource_requests"
_INIT_REQUESTS = "kube_pod_init_container_resource_requests"
"""Those of sidecars, too, which it does not tell from other init containers."""
_COUNTED = frozenset({ResourceUnit.DEVICES, ResourceUnit.SHARES})

K = TypeVar("K")
V = TypeVar("V")
_Object = tuple[str, str, str]
"""Namespace, kind and name."""


def _recorded_name(resource: str) -> str:
    """As kube-state-metrics writes a resource, or a pattern of them as a regular expression."""
    return re.sub(r"[^a-zA-Z0-9_*]", "_", resource).replace("*", ".+")


def _recorded_label(key: str) -> str:
    """As kube-state-metrics writes the key of a label; of keys that become one, none has this name."""
    return "label_" + re.sub("([a-z0-9])([A-Z])", r"\1_\2", re.sub("[^a-zA-Z0-9_]", "_", key)).lower()


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
        gpus: GPUs, MIG instances or shares that it asked for; 0 if unknown, as where it asked for memory, or for some
            by init containers, too.
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
    for metric in (_INFO, _REQUESTS):
        counted = querier.prometheus.query(promql.by("count", (JOB,), _recorded(querier, metric)), querier.at)
        if counted:
            most = max(sample.value for sample in counted)
            jobs = sorted(sample.labels.get(JOB, "") for sample in counted if sample.value == most)
            return _Facts(querier, asked, promql.one_of(JOB, jobs)).of_all()
    return {}


def _recorded(querier: SourceQuerier, metric: str, *matchers: str) -> str:
    selected = promql.selector(metric, (*matchers, *querier.label_matchers))
    return promql.over("last_over_time", selected, CHUNK)


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    querier: SourceQuerier
    asked: AskedFacts
    of_source: str  # a matcher of the job that counts

    def of_all(self) -> dict[PodKey, PodFacts]:
        requests, of_init = self._requests(_REQUESTS), self._requests(_INIT_REQUESTS)
        pods = {pod for pod, *_ in (*requests, *of_init)}
        if not pods:
            return {}
        owners = _told(self._of("kube_pod_owner", pods), _pod, _owner)
        infos = self._of(_INFO, pods)
        nodes, classes = (_told(infos, _pod, _value(name)) for name in ("node", "priority_class"))
        labels = _told(self._of("kube_pod_labels", pods), _pod, self._labels) if self.asked.labels else {}
        images = _told(self._of("kube_pod_container_info", pods), _container, _image)
        above = self._above("kube_replicaset_owner", "replicaset", "ReplicaSet")
        above |= self._above("kube_job_owner", "job_name", "Job")
        disputed = _empty(owners) | _empty(nodes) | _empty(classes) | _empty(labels)
        disputed |= {key[0] for key in _empty(requests) | _empty(of_init)} | {
            key[0] for key in _empty(images)
        }
        gpus, found_images = collections.Counter[PodKey](), dict[PodKey, set[str]]()
        for (pod, *_), counts in requests.items():
            gpus[pod] += max(counts, default=0)
        # A sidecar's come on top, those of other init containers do not: only one alone is known.
        amounts = {pod: [count] for pod, count in gpus.items() if count}
        for (pod, *_), counts in of_init.items():
            if count := max(counts, default=0):
                amounts.setdefault(pod, []).append(count)
                gpus[pod] = count if len(amounts[pod]) == 1 else 0
        for (pod, _), names in images.items():
            found_images.setdefault(pod, set()).update(names)
        return {
            pod: PodFacts(
                _topmost(pod[0], *max(owners[pod], key=_is_controller), above) if pod in owners else None,
                max(nodes.get(pod, ()), default=""),
                max(classes.get(pod, ()), default=""),
                gpus[pod],
                dict(max(labels.get(pod, ()), default=())),
                tuple(sorted(found_images.get(pod, ()))),
            )
            for pod in pods - disputed
        }

    def _requests(self, metric: str) -> dict[tuple[PodKey, str, str], frozenset[int]]:
        """GPUs that each container of each pod asked for, by resource."""
        units = self.asked.units()
        asked = promql.quoted("|".join(pattern for pattern, _ in units))

        def request(sample: Sample) -> tuple[PodKey, str, str] | None:
            place = _container(sample)
            return place and (*place, sample.labels.get("resource", ""))

        def amount(sample: Sample) -> int | None:
            if not math.isfinite(sample.value):
                return None
            return sample.count if _unit(units, sample.labels.get("resource", "")) in _COUNTED else 0

        return _told(self._query(metric, f"resource=~{asked}"), request, amount)

    def _labels(self, sample: Sample) -> tuple[tuple[str, str], ...]:
        names = {key: _recorded_label(key) for key in self.asked.labels}
        return tuple(
            (key, sample.labels[name]) for key, name in sorted(names.items()) if sample.labels.get(name)
        )

    def _above(self, metric: str, label: str, kind: str) -> dict[_Object, frozenset[tuple[str, str]]]:
        """The controller of each object of a kind, by namespace, kind and name."""
        return _told(
            self._query(metric, "owner_is_controller='true'"),
            lambda one: (first(one.labels, _LABELS.namespace), kind, one.labels.get(label, "")),
            lambda one: (one.labels.get("owner_kind", ""), one.labels.get("owner_name", "")),
        )

    def _of(self, metric: str, pods: Collection[PodKey]) -> list[Sample]:
        return [sample for sample in self._query(metric) if _pod(sample) in pods]

    def _query(self, metric: str, *matchers: str) -> list[Sample]:
        recorded = _recorded(self.querier, metric, *matchers, self.of_source)
        return self.querier.prometheus.query(recorded, self.querier.at)


def _told(
    samples: Iterable[Sample], key: Callable[[Sample], K | None], value: Callable[[Sample], V | None]
) -> dict[K, frozenset[V]]:
    """The values that every target tells of a key, several where they changed; empty where the targets disagree."""
    by_target: dict[K, dict[tuple[str, ...], set[V]]] = {}
    for sample in samples:
        about, told = key(sample), value(sample)
        if about is not None and told is not None:
            target = sample.labels.get(JOB, ""), sample.labels.get(TARGET, "")
            by_target.setdefault(about, {}).setdefault(target, set()).add(told)
    return {about: frozenset.intersection(*map(frozenset, one.values())) for about, one in by_target.items()}


def _empty(told: Mapping[K, Collection[object]]) -> set[K]:
    return {about for about, values in told.items() if not values}


def _pod(sample: Sample) -> PodKey | None:
    return _LABELS.pod_of(sample.labels)


def _container(sample: Sample) -> tuple[PodKey, str] | None:
    pod = _pod(sample)
    return pod and (pod, first(sample.labels, _CONTAINER))


def _value(label: str) -> Callable[[Sample], str | None]:
    return lambda sample: sample.labels.get(label) or None


def _image(sample: Sample) -> str | None:
    return sample.labels.get("image_spec") or sample.labels.get("image") or None


def _owner(sample: Sample) -> tuple[str, str]:
    """Kind and name of a pod's controller: the pod itself where it is recorded that it has none."""
    labels = sample.labels
    if labels.get("owner_is_controller") == "true":
        return labels.get("owner_kind", ""), labels.get("owner_name", "")
    return "Pod", first(labels, _LABELS.pod)


def _is_controller(owner: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    return owner[0] != "Pod", owner


def _unit(units: Iterable[tuple[str, ResourceUnit]], recorded: str) -> ResourceUnit | None:
    return next((unit for pattern, unit in units if re.fullmatch(pattern, recorded)), None)


def _topmost(
    namespace: str, kind: str, name: str, above: Mapping[_Object, Collection[tuple[str, str]]]
) -> ObjectRef | None:
    for _ in range(3):
        owners = above.get((namespace, kind, name))
        if owners is not None and not owners:
            return None  # the targets disagree
        owner = max(owners or (), default=("", ""))
        if not all(owner) or owner[0] == "CronJob":
            break
        kind, name = owner
    return owner_ref(namespace, kind, name)


def owner_ref(namespace: str, kind: str, name: str) -> ObjectRef:
    """An object of which only this is recorded."""
    api_version = _API_VERSIONS.get(kind, "unknown/v1")
    return ObjectRef(api_version, kind, namespace, name, f"{namespace}/{kind}/{name}")
