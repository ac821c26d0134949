"""Load of inference servers by their own metrics: requests, queue, KV cache and time to first token of each pod.

A series counts only if its target has an address of its pod's namespace on its pod's node: no other tenant can say
that nobody uses a server. To add a server, add a row to ENGINES.
"""

import dataclasses
import datetime
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from rightsizer.model import PodKey, ServingLoad, Whereabouts
from rightsizer.prometheus import promql
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

_Key = tuple[PodKey, str, str]
"""Pod, job and target."""


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
        served = [self._growth(name) for name in engine.served if name in self._present()]
        running, queued, cache = (
            self._highest([name for name in names if name in self._present()])
            for names in (engine.running, engine.queued, engine.cache)
        )
        first_token = self._first_token(engine)
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

    def _growth(self, name: str) -> dict[PodKey, float | None]:
        """How much a counter grew in the window; None if it was reset, or has no value at its begin.

        Not `increase`: it misses the first request of a series that begins with it.
        """

        def build(matchers: Sequence[str]) -> str:
            return promql.by("sum", _POD, promql.selector(name, (*self.querier.label_matchers, *matchers)))

        def resets(matchers: Sequence[str]) -> str:
            selected = promql.selector(name, (*self.querier.label_matchers, *matchers))
            return promql.by("sum", _POD, promql.over("resets", selected, self.window))

        now = self._values(build, self.querier.at)
        before = self._values(build, self.querier.at - self.window)
        reset = self._values(resets, self.querier.at)
        found: dict[PodKey, float | None] = {}
        for key, value in now.items():
            grown = value - before[key] if key in before and not reset.get(key) else None
            if grown is not None and not grown >= 0:  # also NaN
                grown = None
            known = found.get(key[0], 0.0)
            found[key[0]] = None if grown is None or known is None else max(known, grown)
        return found

    def _first_token(self, engine: Engine) -> dict[PodKey, float]:
        """The mean time to the first token in the window, in seconds; of pods without requests none."""
        if not engine.histogram or not self._present().issuperset(engine.histogram):
            return {}
        total, count = map(self._growth, engine.histogram)
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
                selected = promql.selector(name, (*self.querier.label_matchers, *matchers))
                return promql.by("max", _POD, promql.over("max_over_time", selected, self.window))

            for (pod, _, _), value in self._values(build, self.querier.at).items():
                found[pod] = max(value, found.get(pod, value))
        return found

    def _values(self, build: Build, at: datetime.datetime) -> Mapping[_Key, float]:
        """The values of the pods' own series."""
        samples = self.window.total_seconds() / USUAL_INTERVAL_S * SERIES_PER_POD
        size = max(1, int(self.querier.series_within(samples)))
        names = sorted({name for _, name in self.pods})
        batches = promql.batches(names, promql.MAX_TEXT // 2, most=size)
        shards = [Shard.of("pod", batch, SERIES_PER_POD) for batch in batches]
        found: dict[_Key, float] = {}
        for sample in self.querier.samples(self.querier.shard_plan(self.window), shards, build, at):
            pod = (sample.labels.get("namespace", ""), sample.labels.get("pod", ""))
            target = sample.labels.get(TARGET, "")
            if self._is_own(pod, target):
                found[pod, sample.labels.get(JOB, ""), target] = sample.value
        return found

    def _is_own(self, pod: PodKey, target: str) -> bool:
        place = find_place(target, self.places)
        return (
            pod in self.pods
            and place is not None
            and has_port(target)
            and (place.namespace, place.node) == (pod[0], self.places.pods[pod])
        )
