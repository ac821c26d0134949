"""Load of inference servers, on a real Prometheus."""

import datetime
import math
from collections.abc import Mapping, Sequence

import pytest

from rightsizer.model import AddressTable, ServingLoad, Whereabouts
from rightsizer.usage.serving_metrics import ENGINES
from tests.rightsizer.metrics import DAY, HOUR, Metrics, Value, idle, near, rising, steadily, within

pytestmark = pytest.mark.prometheus

POD, OTHER, ELSEWHERE, NODE = "10.0.1.7", "10.0.2.8", "10.0.3.9", "192.168.0.1"
VLLM: Mapping[str, Value] = {
    "vllm:request_success_total": 7,
    "vllm:prompt_tokens_total": 900,
    "vllm:num_requests_running": 0,
    "vllm:num_requests_waiting": 0,
    "vllm:kv_cache_usage_perc": 0,
}


def _load(metrics: Metrics, window: datetime.timedelta = 12 * HOUR, url: str = "") -> ServingLoad | None:
    """The load of pod a of n1, beside another pod of its namespace and one of another tenant."""
    addresses = AddressTable()
    addresses.add(metrics.space, "n1", NODE, [POD])
    addresses.add("tenant", "n1", NODE, [OTHER])
    addresses.add(metrics.space, "n2", "", [ELSEWHERE])
    pod = (metrics.space, "a")
    metrics.write(idle(), pod="a")
    signal = metrics.signal(url=url)
    signal.expect({pod}, {pod}, Whereabouts({pod: "n1"}, addresses))
    return signal.serving([pod, (metrics.space, "b")], window, metrics.at).get(pod)


def _serve(metrics: Metrics, more: Mapping[str, Value] | None = None, **labels: str) -> None:
    metrics.write(
        {**VLLM, **(more or {})},
        {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8000", **labels},
    )


def test_server_without_requests_served_none(metrics: Metrics) -> None:
    """Its counters stand still, and its gauges stay at zero."""
    _serve(metrics)
    assert _load(metrics) == ServingLoad("vLLM", 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("more", "load"),
    [
        pytest.param({"vllm:request_success_total": steadily(2)}, (1440, 0, 0, 0), id="finished"),
        pytest.param(
            {"vllm:prompt_tokens_total": rising(lambda left: 5 * (left == 300))},
            (5, 0, 0, 0),
            id="one-prompt",
        ),
        pytest.param({"vllm:num_requests_running": within(40, 30, 3)}, (0, 3, 0, 0), id="running"),
        pytest.param({"vllm:num_requests_waiting": within(40, 39, 9)}, (0, 0, 9, 0), id="queued"),
        pytest.param({"vllm:kv_cache_usage_perc": within(40, 30, 0.25)}, (0, 0, 0, 0.25), id="cache"),
        pytest.param({"vllm:request_success_total": within(60, 0, 1, 7)}, (None, 0, 0, 0), id="reset"),
        pytest.param(
            {"vllm:request_success_total": within(40, 30, 40)}, (None, 0, 0, 0), id="reset-to-where-it-began"
        ),
    ],
)
def test_load_of_server_is_what_grew_and_the_highest(
    metrics: Metrics, more: Mapping[str, Value], load: tuple[float | None, float, float, float]
) -> None:
    """Of counters the growth, of gauges the highest value; a counter that was reset says nothing."""
    _serve(metrics, more)
    served, *gauges = load
    found = _load(metrics)
    assert found is not None
    assert (found.requests is None) if served is None else found.requests == near(served, abs=3)
    assert [found.running, found.queued, found.cache] == gauges


def test_counter_that_begins_within_the_window_is_unknown(metrics: Metrics) -> None:
    """What it counted before it was scraped is not known."""
    _serve(metrics)
    found = _load(metrics, window=DAY + HOUR)
    assert found is not None
    assert found.requests is None


@pytest.mark.parametrize(
    "instance", [f"{OTHER}:8000", f"{ELSEWHERE}:8000", f"{NODE}:9100", POD, "elsewhere:80", ""]
)
def test_series_of_other_targets_say_nothing(metrics: Metrics, instance: str) -> None:
    """Another tenant may name any pod, and any number of requests."""
    _serve(metrics, instance=instance)
    assert _load(metrics) is None


def test_forged_zeros_do_not_hide_requests(metrics: Metrics) -> None:
    """Beside the server's own series, those of others change nothing."""
    _serve(metrics, {"vllm:request_success_total": steadily(1)})
    _serve(metrics, instance=f"{OTHER}:8000")
    found = _load(metrics)
    assert found is not None
    assert found.requests == near(720, abs=3)


COPIES = [
    pytest.param(({"prometheus_replica": "k8s-0"}, {"prometheus_replica": "k8s-1"}), id="one-label"),
    pytest.param(({"replica": "a"}, {"replica": "b"}, {"replica": "c"}), id="three"),
    pytest.param(({"prometheus": "a", "site": "x"}, {"prometheus": "b", "site": "y"}), id="two-labels"),
    pytest.param(({}, {"receive": "b"}), id="one-has-none"),
]


@pytest.mark.parametrize("copies", COPIES)
def test_requests_are_counted_once_in_copies_of_several_prometheus(
    metrics: Metrics, copies: Sequence[Mapping[str, str]]
) -> None:
    """As where both of a pair are asked and nothing merges them; each model of the server counts."""
    tokens = {"vllm:prompt_tokens_total": steadily(0)}
    for labels in copies:
        for model, per_minute in (("m", 2), ("n", 1)):
            more = {"vllm:request_success_total": steadily(per_minute), **tokens}
            _serve(metrics, more, model_name=model, engine="0", **labels)
        _serve(
            metrics,
            {"vllm:request_success_total": steadily(1), **tokens},
            model_name="n",
            engine="1",
            **labels,
        )
    found = _load(metrics)
    assert found is not None
    assert found.requests == near(4 * 720, abs=9)


def test_requests_of_engines_of_one_server_are_added(metrics: Metrics) -> None:
    """They are no copies, although each of them has served as much."""
    for engine in ("0", "1"):
        _serve(metrics, {"vllm:request_success_total": steadily(2)}, engine=engine)
    found = _load(metrics)
    assert found is not None
    assert found.requests == near(2880, abs=6)


@pytest.mark.parametrize(
    ("grew", "hours", "requests"),
    [
        pytest.param(3, (DAY, 6 * HOUR), 3, id="went-and-hides-none"),
        pytest.param(0, (DAY, 6 * HOUR), 0, id="went"),
        pytest.param(0, (6 * HOUR, 0 * HOUR), 0, id="came"),
        pytest.param(3, (6 * HOUR, 0 * HOUR), 3, id="came-and-hides-none"),
    ],
)
def test_copy_that_comes_or_goes_changes_no_requests(
    metrics: Metrics, grew: float, hours: tuple[datetime.timedelta, datetime.timedelta], requests: float
) -> None:
    """One of two Prometheus that began or ended within the window: three requests before it, and as many since."""
    values: Mapping[str, Value] = {
        name: within(300, -1, 3 + grew, 3) for name in VLLM if name.endswith("_total")
    }
    gauges = {name: 0 for name in VLLM if name not in values}
    labels = {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8000"}
    metrics.write({**values, **gauges}, {**labels, "prometheus_replica": "k8s-0"})
    since, until = hours
    metrics.write({**values, **gauges}, {**labels, "prometheus_replica": "k8s-1"}, since=since, until=until)
    found = _load(metrics)
    assert found is not None
    assert found.requests == requests


@pytest.mark.parametrize(
    ("more", "mean_s"),
    [
        pytest.param({"_sum": steadily(1.5), "_count": steadily(3)}, 0.5, id="mean"),
        pytest.param({"_sum": 7, "_count": 9}, None, id="no-request"),
        pytest.param({"_sum": steadily(1.5)}, None, id="no-count"),
        pytest.param({"_sum": math.inf, "_count": steadily(3)}, None, id="infinite"),
        pytest.param({"_sum": within(60, 0, 1, 7), "_count": steadily(3)}, None, id="reset"),
    ],
)
def test_time_to_first_token_is_the_mean_of_the_window(
    metrics: Metrics, more: Mapping[str, Value], mean_s: float | None
) -> None:
    """By the sum and the count of the histogram; what was before the window does not count."""
    _serve(metrics, {f"vllm:time_to_first_token_seconds{key}": value for key, value in more.items()})
    found = _load(metrics)
    assert found is not None
    assert found.first_token_s == (None if mean_s is None else near(mean_s, abs=0.01))


def test_time_to_first_token_in_milliseconds_is_converted(metrics: Metrics) -> None:
    """Triton counts milliseconds."""
    name = "nv_inference_first_response_histogram_ms"
    more = {
        "nv_inference_request_success": steadily(3),
        f"{name}_sum": steadily(900),
        f"{name}_count": steadily(3),
    }
    metrics.write(more, {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8002"})
    found = _load(metrics)
    assert found is not None
    assert (found.engine, found.first_token_s) == ("Triton", near(0.3, abs=0.01))


TRITON: Mapping[str, Value] = {
    "nv_inference_request_success": steadily(5),
    "nv_inference_pending_request_count": 4,
}
NIM: Mapping[str, Value] = {
    "request_success_total": 7,
    "prompt_tokens_total": 900,
    "generation_tokens_total": 800,
    "num_requests_running": 0,
}


def test_load_of_two_servers_in_a_pod_is_that_of_both(metrics: Metrics) -> None:
    """One that nobody asks hides no other."""
    _serve(metrics, {"vllm:kv_cache_usage_perc": 0.25})
    metrics.write(TRITON, {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8002"})
    found = _load(metrics)
    assert found is not None
    assert (found.engine, found.requests, found.queued) == ("vLLM and Triton", near(3600, abs=12), 4)
    assert found.cache == 0.25


def test_queue_without_counter_of_requests_is_known(metrics: Metrics) -> None:
    """How many were served is not."""
    metrics.write(
        {"vllm:num_requests_waiting": 12},
        {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8000"},
    )
    assert _load(metrics) == ServingLoad("vLLM", None, None, 12)


@pytest.mark.parametrize("missing", [None, *NIM])
def test_metrics_without_prefix_are_a_server_only_together(metrics: Metrics, missing: str | None) -> None:
    """Other programs count successful requests, too."""
    values = {name: value for name, value in NIM.items() if name != missing}
    metrics.write(values, {"pod": "a", "UUID": "", "modelName": "", "instance": f"{POD}:8000"})
    assert _load(metrics) == (None if missing else ServingLoad("NIM", 0, 0))


def test_load_of_every_engine_is_read(metrics: Metrics) -> None:
    """By the names in its row: requests, running, queue, KV cache and time to first token."""
    addresses, pods = AddressTable(), [(metrics.space, f"e{number}") for number in range(len(ENGINES))]
    metrics.write(idle(), pod="e0")
    for number, (engine, pod) in enumerate(zip(ENGINES, pods, strict=True)):
        place = f"10.0.1.{number + 50}"
        addresses.add(metrics.space, "n1", NODE, [place])
        gauges = {name: 0.5 for names in (engine.running, engine.queued, engine.cache) for name in names}
        counters = {name: steadily(2) for name in (*engine.served, *engine.histogram)}
        labels = {"pod": pod[1], "UUID": "", "modelName": "", "instance": f"{place}:8000"}
        metrics.write({**gauges, **counters}, labels, since=2 * HOUR)
    signal = metrics.signal()
    signal.expect(pods, pods, Whereabouts(dict.fromkeys(pods, "n1"), addresses))
    loads = signal.serving(pods, HOUR, metrics.at)
    for engine, pod in zip(ENGINES, pods, strict=True):
        load = loads[pod]
        scale = 0.001 if engine.first_token.endswith("_ms") else 1.0
        assert (load.engine, load.requests) == (engine.name, near(120, abs=3))
        assert load.running == (0.5 if engine.running else None)
        assert load.queued == (0.5 if engine.queued else None)
        assert load.cache == (0.5 if engine.cache else None)
        assert load.first_token_s == (near(scale, abs=0.01 * scale) if engine.first_token else None)


def test_every_engine_has_counters_and_unique_names() -> None:
    """Only a counter misses no request between two scrapes."""
    names = [name for engine in ENGINES for name in engine.names]
    assert len(names) == len(set(names))
    assert all(engine.served for engine in ENGINES)
    assert all(engine.running or engine.queued for engine in ENGINES)
