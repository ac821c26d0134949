"""Load of inference servers by their own metrics: requests, queue, KV cache and time to first token of each pod.

A series counts only if its target has an address of its pod's namespace on its pod's node: no other tenant can say
that nobody uses a server. To add a server, add a row to ENGINES.
"""

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterator, Sequence

from rightsizer.model import PodKey, ServingLoad, Whereabouts
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Sample
from rightsizer.prometheus.sharding import Shard
from rightsizer.usage.provenance import find_place, has_port
from rightsizer.usage.querier import USUAL_INTERVAL_S, Build, SourceQuerier
from rightsizer.usage.source_metrics import JOB, TARGET


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """An inference server and its metrics; of several names in a row, those that exist are used."""

    name: str
    served: tuple[str, ...]  # counters that grow with each request
    running: tuple[str, ...] = ()  # requests in progress
    queued: tuple[str, ...] = ()  # requests that wait
    cache: tuple[str, ...] = ()  # share of the KV cache in use, 0 to 1
    first_token: str = ""  # histogram of the time to the first token in seconds, or in ms if its name says so
    # Other programs may use these names: a pod needs all counters and `running`.
    is_unprefixed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All of its metrics."""
        return (*self.served, *self.running, *self.queued, *self.cache, *self.histogram)

    @property
    def histogram(self) -> tuple[str, ...]:
        """The sum and the count of the time to the first token."""
        return (f"{self.first_token}_sum", f"{self.first_token}_count") if self.first_token else ()


ENGINES = (
    # https://docs.vllm.ai/en/stable/usage/metrics; gpu_cache_usage_perc until 0.10. Dynamo's workers pass them on.
    Engine(
        "vLLM",
        ("vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
        ("vllm:num_requests_running",),
        ("vllm:num_requests_waiting",),
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "vllm:time_to_first_token_seconds",
    ),
    # https://docs.sglang.io/docs/references/production_metrics; with --enable-metrics
    Engine(
        "SGLang",
        ("sglang:num_requests_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
        ("sglang:num_running_reqs",),
        ("sglang:num_queue_reqs",),
        ("sglang:token_usage",),
        "sglang:time_to_first_token_seconds",
    ),
    # https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve; Dynamo's workers pass them on.
    Engine(
        "TensorRT-LLM",
        ("trtllm_request_success_total",),
        ("trtllm_num_requests_running",),
        ("trtllm_num_requests_waiting",),
        ("trtllm_kv_cache_utilization",),
        "trtllm_time_to_first_token_seconds",
    ),
    # https://huggingface.co/docs/text-generation-inference/reference/metrics
    Engine("TGI", ("tgi_request_count",), ("tgi_batch_current_size",), ("tgi_queue_size",)),
    # https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/metrics.html
    Engine(
        "Triton",
        ("nv_inference_request_success", "nv_inference_request_failure"),
        queued=("nv_inference_pending_request_count",),
        first_token="nv_inference_first_response_histogram_ms",  # noqa: S106 - with --metrics-config
    ),
    # https://docs.nvidia.com/nim/large-language-models/latest/observability.html: vLLM's, without the prefix
    Engine(
        "NIM",
        ("request_success_total", "prompt_tokens_total", "generation_tokens_total"),
        ("num_requests_running",),
        ("num_requests_waiting",),
        ("gpu_cache_usage_perc",),
        "time_to_first_token_seconds",
        is_unprefixed=True,
    ),
    # https://docs.nvidia.com/dynamo/reference/observability/metrics-catalog
    Engine("Dynamo", ("dynamo_component_requests_total",), ("dynamo_component_inflight_requests",)),
    # https://docs.ray.io/en/latest/serve/monitoring.html
    Engine(
        "Ray Serve",
        ("ray_serve_deployment_request_counter_total",),
        ("ray_serve_replica_processing_queries",),
        ("ray_serve_deployment_queued_queries",),
    ),
    # https://knative.dev/docs/serving/services/service-metrics: the queue-proxy of KServe's serverless pods
    Engine("Knative", ("revision_app_request_count", "revision_request_count"), ("revision_queue_depth",)),
)

SERIES_PER_POD = 8
"""Models, ranks and results of requests; assumed for the size of queries."""

_POD = ("namespace", "pod", JOB, TARGET)

_OWN = (
    *(
        "application",
        "deployment",
        "engine",
        "engine_type",
        "finished_reason",
        "method",
        "model",
        "model_name",
    ),
    *("dp_rank", "moe_ep_rank", "pp_rank", "tp_rank", "route", "version", "response_code"),
    *("response_code_class", "dynamo_component", "dynamo_endpoint"),
)
"""Labels by which servers tell their own series apart: series that differ in one of these are no copies."""
_ALIKE = 0.98
"""Copies of a counter are scraped at different times: each has at least this share of the highest."""

_Place = tuple[PodKey, str, str]
"""Pod, job and target."""
_Copies = dict[tuple[str, ...], float]
"""The values of a counter in the copies of a target's series."""


def serving_loads(
    querier: SourceQuerier, pods: Collection[PodKey], window: datetime.timedelta, places: Whereabouts | None
) -> dict[PodKey, ServingLoad]:
    """The load of each of these pods that has a known server; of several servers, all together."""
    if places is None or not pods:
        return {}
    query = _LoadQuery(querier, frozenset(pods), window, places)
    found: dict[PodKey, ServingLoad] = {}
    for engine in ENGINES:
        for pod, load in query.loads(engine):
            found[pod] = _both(found[pod], load) if pod in found else load
    return dict(sorted(found.items()))


def _both(one: ServingLoad, other: ServingLoad) -> ServingLoad:
    """The load of two servers in a pod; requests are known if they are of both."""

    def highest(*values: float | None) -> float | None:
        return max((value for value in values if value is not None), default=None)

    return ServingLoad(
        f"{one.engine} and {other.engine}",
        None if one.requests is None or other.requests is None else one.requests + other.requests,
        highest(one.running, other.running),
        highest(one.queued, other.queued),
        highest(one.cache, other.cache),
        highest(one.first_token_s, other.first_token_s),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _LoadQuery:
    querier: SourceQuerier
    pods: frozenset[PodKey]
    window: datetime.timedelta
    places: Whereabouts

    def loads(self, engine: Engine) -> Iterator[tuple[PodKey, ServingLoad]]:
        """The load of each pod with this server."""
        names = [name for name in engine.served if name in self._present()]
        copies = self._copy_labels(names) if names else ()
        served = [self._growth(name, copies) for name in names]
        running, queued, cache = (
            self._highest([name for name in names if name in self._present()])
            for names in (engine.running, engine.queued, engine.cache)
        )
        first_token = self._first_token(engine, copies)
        for pod in sorted({pod for each in served for pod in each} | running.keys() | queued.keys()):
            grown = [each[pod] for each in served if pod in each]
            known = [value for value in grown if value is not None]
            if engine.is_unprefixed and (len(grown) < len(engine.served) or pod not in running):
                continue
            yield (
                pod,
                ServingLoad(
                    engine.name,
                    max(known) if known and len(known) == len(grown) else None,
                    running.get(pod),
                    queued.get(pod),
                    cache.get(pod),
                    first_token.get(pod),
                ),
            )

    def _present(self) -> frozenset[str]:
        """The metrics of all servers that Prometheus has now."""
        names = "|".join(name for engine in ENGINES for name in engine.names)
        selected = promql.selector("", (f"__name__=~{promql.quoted(names)}", *self.querier.label_matchers))
        expression = promql.by("count", ["__name__"], selected)

        def present() -> frozenset[str]:
            samples = self.querier.prometheus.query(expression, self.querier.at)
            return frozenset(sample.labels.get("__name__", "") for sample in samples)

        return self.querier.once(expression, present)

    def _selected(self, name: str, matchers: Sequence[str]) -> str:
        return promql.selector(name, (*self.querier.label_matchers, *matchers))

    def _copy_labels(self, names: Sequence[str]) -> tuple[str, ...]:
        """The labels by which several Prometheus keep copies of a target's counters, whatever their names.

        All series of the target then have a copy that differs in these alone, and stands at the same value.
        """
        either = promql.matcher("__name__", "=~", "|".join(names))

        def build(matchers: Sequence[str]) -> str:
            return f"sum without {promql.listed(_OWN)} ({self._selected('', (either, *matchers))})"

        found: set[str] = set()
        for at in (self.querier.at, self.querier.at - self.window):
            rows: dict[_Place, list[Sample]] = {}
            for place, sample in self._rows(build, at):
                rows.setdefault(place, []).append(sample)
            for samples in rows.values():
                found.update(*_differing(samples))
        return tuple(sorted(found))

    def _growth(self, name: str, copies: Sequence[str]) -> dict[PodKey, float | None]:
        """How much a counter grew in the window; None if it was reset, or has no value at its begin.

        Not `increase`: it misses the first request of a series that begins with it.
        """

        def build(matchers: Sequence[str]) -> str:
            return promql.by("sum", (*_POD, *copies), self._selected(name, matchers))

        def resets(matchers: Sequence[str]) -> str:
            return promql.by("sum", _POD, promql.over("resets", self._selected(name, matchers), self.window))

        now, before = dict[_Place, _Copies](), dict[_Place, _Copies]()
        for values, at in ((now, self.querier.at), (before, self.querier.at - self.window)):
            for place, sample in self._rows(build, at):
                copy = tuple([sample.labels.get(label, "") for label in copies])
                values.setdefault(place, {})[copy] = sample.value
        reset = {place for place, sample in self._rows(resets, self.querier.at) if sample.value}
        found: dict[PodKey, float | None] = {}
        for place, copied in now.items():
            grown = None if place in reset else _grown(copied, before.get(place, {}))
            known = found.get(place[0], 0.0)
            found[place[0]] = None if grown is None or known is None else max(known, grown)
        return found

    def _first_token(self, engine: Engine, copies: Sequence[str]) -> dict[PodKey, float]:
        """The mean time to the first token in the window, in seconds; of pods without requests none."""
        if not engine.histogram or not self._present().issuperset(engine.histogram):
            return {}
        total, count = (self._growth(name, copies) for name in engine.histogram)
        scale = 0.001 if engine.first_token.endswith("_ms") else 1.0
        means = {
            pod: scale * sum_ / number for pod, number in count.items() if number and (sum_ := total.get(pod))
        }
        return {pod: mean for pod, mean in means.items() if math.isfinite(mean)}

    def _highest(self, names: Sequence[str]) -> dict[PodKey, float]:
        """The highest value of any of these gauges in the window."""
        found: dict[PodKey, float] = {}
        for name in names:

            def build(matchers: Sequence[str], name: str = name) -> str:
                highest = promql.over("max_over_time", self._selected(name, matchers), self.window)
                return promql.by("max", _POD, highest)

            for (pod, _, _), sample in self._rows(build, self.querier.at):
                found[pod] = max(sample.value, found.get(pod, sample.value))
        return found

    def _rows(self, build: Build, at: datetime.datetime) -> Iterator[tuple[_Place, Sample]]:
        """The pods' own series."""
        samples = self.window.total_seconds() / USUAL_INTERVAL_S * SERIES_PER_POD
        size = max(1, int(self.querier.series_within(samples)))
        names = sorted({name for _, name in self.pods})
        batches = promql.batches(names, promql.MAX_TEXT // 2, most=size)
        shards = [Shard.of("pod", batch, SERIES_PER_POD) for batch in batches]
        for sample in self.querier.samples(self.querier.shard_plan(self.window), shards, build, at):
            pod = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
            target = sample.labels.get(TARGET, "")
            if self._is_own(pod, target):
                yield (pod, sample.labels.get(JOB, ""), target), sample

    def _is_own(self, pod: PodKey, target: str) -> bool:
        place = find_place(target, self.places)
        return (
            pod in self.pods
            and place is not None
            and has_port(target)
            and (place.namespace, place.node) == (pod[0], self.places.pods[pod])
        )


def _differing(samples: Sequence[Sample]) -> Iterator[set[str]]:
    """The labels that tell copies of a target's series apart: each series has some that differ in these alone."""
    first, *others = samples if any(one.value for one in samples) else samples[:1]
    for other in others:
        names = {label for label, _ in first.labels.items() ^ other.labels.items()}
        alike: dict[frozenset[tuple[str, str]], list[float]] = {}
        for one in samples:
            rest = frozenset(item for item in one.labels.items() if item[0] not in names)
            alike.setdefault(rest, []).append(one.value)
        if all(len(values) > 1 and _are_alike(values) for values in alike.values()):
            yield names


def _are_alike(values: Collection[float]) -> bool:
    return min(values) >= _ALIKE * max(values)


def _grown(now: _Copies, before: _Copies) -> float | None:
    """How much a counter grew by its copies; None if it is unknown.

    A copy that came or went says nothing, if it stands at the value of another; else it may be of other requests.
    """
    both = now.keys() & before.keys()
    came, went = (
        [
            value
            for copy, value in values.items()
            if not any(copy == one or _are_alike((value, values[one])) for one in both)
        ]
        for values in (now, before)
    )
    grown = [now[copy] - before[copy] for copy in both]
    if not grown or went or not all(value >= 0 for value in grown):  # also NaN
        return None
    return max(grown) + sum(came)
