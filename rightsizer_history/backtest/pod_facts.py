"""Facts of kube-state-metrics about GPU pods: owners, nodes, classes and requests, also of pods that are gone.

Any scraped target can expose such series. Only those of one scrape job count, the one that tells of most pods. A fact
of which its targets tell different values at the same time is unknown. Seen on kube-state-metrics 2.20.
"""

import collections
import dataclasses
import datetime
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
"""API versions by kind, which is all that the metrics name; of two groups with one kind, the first."""
_CONTAINER = ("exported_container", "container")
_INFO, _REQUESTS = "kube_pod_info", "kube_pod_container_resource_requests"
_INIT_REQUESTS, _INIT_INFO = "kube_pod_init_container_resource_requests", "kube_pod_init_container_info"
_CLAIMS = "kube_pod_resourceclaim_info"
"""A series for each claim of a pod; whether it is of GPUs is not recorded."""
_GRAIN = datetime.timedelta(minutes=5)
"""Resolution at which the times of contested series are queried: as long as Prometheus looks back."""
_COUNTED = frozenset({ResourceUnit.DEVICES, ResourceUnit.SHARES})

K = TypeVar("K")
V = TypeVar("V")
_Span = tuple[float, float]
"""Times of the first and the last sample of a series."""
_Requests = Mapping[tuple[PodKey, str, str], Sequence[int]]
"""Amounts that each container of each pod requests, by resource."""
_ALWAYS: _Span = (-math.inf, math.inf)
_Object = tuple[str, str, str]
"""Namespace, kind and name."""


def _recorded_name(resource: str) -> str:
    """Name of a resource in kube-state-metrics, or of a pattern of them as a regular expression."""
    return re.sub(r"[^a-zA-Z0-9_*]", "_", resource).replace("*", ".+")


def _recorded_label(key: str) -> str:
    """Key of a label in kube-state-metrics; of keys that become one, none has this name."""
    return "label_" + re.sub("([a-z0-9])([A-Z])", r"\1_\2", re.sub("[^a-zA-Z0-9_]", "_", key)).lower()


@dataclasses.dataclass(frozen=True, slots=True)
class AskedFacts:
    """Facts to query beyond the usual.

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
    """Record of a pod beside its devices.

    Attributes:
        owner: Its topmost known controller; None if unknown.
        node, priority_class: Empty if unknown.
        gpus: GPUs, MIG instances or shares that it asked for; 0 if unknown, as where it asked for memory, by claims,
            or by init containers beside others.
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
    """The facts of pods that requested GPUs or claims in the day before `querier.at`; none without kube-state-metrics.

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
        claiming = {pod for sample in self._query(_CLAIMS) if (pod := _pod(sample))}
        pods = claiming | {pod for pod, *_ in (*requests, *of_init)}
        if not pods:
            return {}
        owners = self._of("kube_pod_owner", pods, _pod, _owner)
        nodes, classes = (self._of(_INFO, pods, _pod, _value(name)) for name in ("node", "priority_class"))
        names = {key: _recorded_label(key) for key in sorted(self.asked.labels)}
        labels = {key: self._of("kube_pod_labels", pods, _pod, _text(name)) for key, name in names.items()}
        images = self._of("kube_pod_container_info", pods, _container, _image)
        above = self._above("kube_replicaset_owner", "replicaset", "ReplicaSet")
        above |= self._above("kube_job_owner", "job_name", "Job")
        gpus, found_images = self._gpus(requests, of_init, pods), dict[PodKey, set[str]]()
        for (pod, _), specs in images.items():
            found_images.setdefault(pod, set()).update(specs or ("",))
        return {
            pod: PodFacts(
                _topmost(pod[0], *max(owners[pod], key=_is_controller), above) if owners.get(pod) else None,
                _latest(nodes.get(pod)),
                _latest(classes.get(pod)),
                0 if pod in claiming else gpus.get(pod, 0),
                {key: value for key, told in labels.items() if (value := _latest(told.get(pod)))},
                tuple(sorted(found_images.get(pod, ()))) if all(found_images.get(pod, ())) else (),
            )
            for pod in pods
        }

    def _gpus(
        self, requests: "_Requests", of_init: "_Requests", pods: Collection[PodKey]
    ) -> dict[PodKey, int]:
        """GPUs of each pod, where its containers and sidecars, or one init container alone, request some."""
        policies = self._of(_INIT_INFO, pods, _container, _value("restart_policy")) if of_init else {}
        lasting = collections.Counter[PodKey]()
        passing = collections.defaultdict[PodKey, list[int]](list)
        for counted, is_init in ((requests, False), (of_init, True)):
            for (pod, container, _), counts in counted.items():
                count = max(counts, default=0)
                if is_init and _latest(policies.get((pod, container))) != "Always":
                    passing[pod].append(count)
                else:
                    lasting[pod] += count
        amounts = {pod: [amount for amount in (lasting[pod], *passing[pod]) if amount] for pod in pods}
        disputed = {pod for pod, *_ in _empty(requests) | _empty(of_init)}
        return {pod: found[0] for pod, found in amounts.items() if len(found) == 1 and pod not in disputed}

    def _requests(self, metric: str) -> "_Requests":
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

        return self._told(metric, request, amount, f"resource=~{asked}")

    def _above(self, metric: str, label: str, kind: str) -> dict[_Object, Sequence[tuple[str, str]]]:
        """The controller of each object of a kind, by namespace, kind and name."""
        return self._told(
            metric,
            lambda sample: (first(sample.labels, _LABELS.namespace), kind, sample.labels.get(label, "")),
            lambda sample: (sample.labels.get("owner_kind", ""), sample.labels.get("owner_name", "")),
            "owner_is_controller='true'",
            names=(label,),
        )

    def _of(
        self,
        metric: str,
        pods: Collection[PodKey],
        key: Callable[[Sample], K | None],
        value: Callable[[Sample], V | None],
    ) -> dict[K, Sequence[V]]:
        return self._told(metric, lambda sample: key(sample) if _pod(sample) in pods else None, value)

    def _told(
        self,
        metric: str,
        key: Callable[[Sample], K | None],
        value: Callable[[Sample], V | None],
        *matchers: str,
        names: Sequence[str] = _LABELS.pod,
    ) -> dict[K, Sequence[V]]:
        """The values of each key, the latest first; none where targets tell different ones at the same time."""
        by_key: dict[K, list[tuple[V, Sample]]] = {}
        for sample in self._query(metric, *matchers):
            about, told = key(sample), value(sample)
            if about is not None and told is not None:
                by_key.setdefault(about, []).append((told, sample))
        contested = {about for about, pairs in by_key.items() if len({told for told, _ in pairs}) > 1}
        series = [sample for about in contested for _, sample in by_key[about]]
        spans = self._spans(metric, matchers, series, names)
        return {
            about: _undisputed(
                [(told, _target(sample), spans.get(_series(sample), _ALWAYS)) for told, sample in pairs]
            )
            if about in contested
            else [pairs[0][0]]
            for about, pairs in by_key.items()
        }

    def _spans(
        self, metric: str, matchers: Sequence[str], series: Iterable[Sample], names: Sequence[str]
    ) -> dict[frozenset[tuple[str, str]], _Span]:
        """Times at which series have samples; the first of `names` that is set names what a series is about."""
        by_name: dict[str, set[str]] = {}
        for sample in series:
            if name := next((name for name in names if sample.labels.get(name)), ""):
                by_name.setdefault(name, set()).add(sample.labels[name])
        found: dict[frozenset[tuple[str, str]], _Span] = {}
        for name, values in by_name.items():
            for batch in promql.batches(sorted(values)):
                every = (*matchers, self.of_source, promql.one_of(name, batch), *self.querier.label_matchers)
                times = f"timestamp({promql.selector(metric, every)})"
                begins, ends = (
                    {
                        _series(sample): sample.value
                        for sample in self._ask(promql.over(f"{extreme}_over_time", times, CHUNK, _GRAIN))
                    }
                    for extreme in ("min", "max")
                )
                found |= {labels: (begin, ends.get(labels, math.inf)) for labels, begin in begins.items()}
        return found

    def _query(self, metric: str, *matchers: str) -> list[Sample]:
        return self._ask(_recorded(self.querier, metric, *matchers, self.of_source))

    def _ask(self, query: str) -> list[Sample]:
        return self.querier.once(query, lambda: self.querier.prometheus.query(query, self.querier.at))


def _undisputed(told: Sequence[tuple[V, tuple[str, str], _Span]]) -> Sequence[V]:
    """Values that targets tell, the latest first; none where one tells another with samples at the same time."""
    tellers: dict[V, set[tuple[str, str]]] = {}
    for value, target, _ in told:
        tellers.setdefault(value, set()).add(target)
    is_disputed = any(
        other not in tellers[value] and first_at <= end and begin <= last_at
        for value, _, (begin, end) in told
        for _, other, (first_at, last_at) in told
    )
    latest = sorted(told, key=lambda entry: (entry[2][1], entry[2][0]), reverse=True)
    return [] if is_disputed else list(dict.fromkeys(value for value, *_ in latest))


def _empty(told: Mapping[K, Collection[object]]) -> set[K]:
    return {about for about, values in told.items() if not values}


def _series(sample: Sample) -> frozenset[tuple[str, str]]:
    return frozenset((name, text) for name, text in sample.labels.items() if name != "__name__")


def _target(sample: Sample) -> tuple[str, str]:
    return sample.labels.get(JOB, ""), sample.labels.get(TARGET, "")


def _latest(told: Sequence[str] | None) -> str:
    return told[0] if told else ""


def _pod(sample: Sample) -> PodKey | None:
    return _LABELS.pod_of(sample.labels)


def _container(sample: Sample) -> tuple[PodKey, str] | None:
    pod = _pod(sample)
    return pod and (pod, first(sample.labels, _CONTAINER))


def _value(label: str) -> Callable[[Sample], str | None]:
    return lambda sample: sample.labels.get(label) or None


def _text(label: str) -> Callable[[Sample], str]:
    return lambda sample: sample.labels.get(label, "")


def _image(sample: Sample) -> str | None:
    return sample.labels.get("image_spec") or sample.labels.get("image") or None


def _owner(sample: Sample) -> tuple[str, str]:
    """Kind and name of a pod's controller: the pod itself where it is recorded that it has none."""
    labels = sample.labels
    if labels.get("owner_is_controller") == "true":
        return labels.get("owner_kind", ""), labels.get("owner_name", "")
    return "Pod", first(labels, _LABELS.pod)


def _is_controller(owner: tuple[str, str]) -> bool:
    return owner[0] != "Pod"


def _unit(units: Iterable[tuple[str, ResourceUnit]], recorded: str) -> ResourceUnit | None:
    return next((unit for pattern, unit in units if re.fullmatch(pattern, recorded)), None)


def _topmost(
    namespace: str, kind: str, name: str, above: Mapping[_Object, Sequence[tuple[str, str]]]
) -> ObjectRef | None:
    for _ in range(3):
        owners = above.get((namespace, kind, name))
        if owners is not None and not owners:
            return None  # the targets disagree
        owner = owners[0] if owners else ("", "")
        if not all(owner) or owner[0] == "CronJob":
            break
        kind, name = owner
    return owner_ref(namespace, kind, name)


def owner_ref(namespace: str, kind: str, name: str) -> ObjectRef:
    """An object of which only this is recorded."""
    api_version = _API_VERSIONS.get(kind, "unknown/v1")
    return ObjectRef(api_version, kind, namespace, name, f"{namespace}/{kind}/{name}")
