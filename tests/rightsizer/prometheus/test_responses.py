"""Responses of each kind of server: parameters that make them complete, and refusals that a smaller query avoids."""

import dataclasses
import datetime
import functools
import json
import pathlib
import shutil
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
import requests

from rightsizer.config import PrometheusSettings
from rightsizer.errors import (
    EvidenceIncomplete,
    PrometheusError,
    PrometheusUnreachable,
    QueryRefused,
    QueryTooLarge,
)
from rightsizer.prometheus.query_api import Prometheus, QueryRange, Sample
from simulator.prometheus import Prometheus as RealPrometheus
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics
from tests.rightsizer.fakeprometheus import GOOD, Answer, Fake, serving

AT = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server whose responses the test sets."""
    with serving() as server:
        yield server


def _asking(url: str, **more: float) -> Prometheus:
    return Prometheus(dataclasses.replace(PrometheusSettings(url, timeout_s=30.0), **more))  # type: ignore[arg-type]


def _refusal(status: int, kind: str, words: str) -> Answer:
    return Answer(status, json.dumps({"status": "error", "errorType": kind, "error": words}))


# As the servers say it: Prometheus and VictoriaMetrics recorded, the others from their sources.
TOO_LARGE = {
    "prometheus-samples": _refusal(
        422, "execution", "query processing would load too many samples into memory in query execution"
    ),
    "prometheus-timeout": _refusal(503, "timeout", "query timed out in expression evaluation"),
    "thanos-series": _refusal(
        422,
        "execution",
        "proxy Series(): rpc error: code = Unknown desc = fetch series for block 01H: exceeded series limit: rpc "
        "error: code = ResourceExhausted desc = limit 10000 violated (got 12000)",
    ),
    "thanos-deadline": _refusal(
        422, "execution", "proxy Series(): rpc error: code = Aborted desc = context deadline exceeded"
    ),
    "mimir-chunks": _refusal(
        422,
        "execution",
        "the query exceeded the maximum number of chunks (limit: 2000000 chunks) (err-mimir-max-chunks-per-query). "
        "Consider reducing the time range and/or number of series selected by the query.",
    ),
    "mimir-memory": _refusal(
        422,
        "execution",
        "the query exceeded the maximum allowed estimated amount of memory consumed by a single query (limit: 11 "
        "bytes) (err-mimir-max-estimated-memory-consumption-per-query)",
    ),
    "cortex-series": _refusal(
        422, "execution", "the query hit the max number of series limit (limit: 100000 series)"
    ),
    "grpc-message": _refusal(
        500,
        "internal",
        "rpc error: code = ResourceExhausted desc = grpc: received message larger than max (9 vs 4)",
    ),
    "victoriametrics-samples": _refusal(
        422,
        "422",
        'error when executing query="max_over_time(x[1h])": cannot select more than -search.maxSamplesPerQuery=1000 '
        "samples; possible solutions: to increase the -search.maxSamplesPerQuery",
    ),
    "victoriametrics-series": _refusal(
        422,
        "422",
        "error when searching tsids: the number of matching timeseries exceeds 50; either narrow down the search or "
        "increase -search.max* command-line flag values at vmselect",
    ),
    "victoriametrics-length": _refusal(
        422, "422", "too long query; got 20000 bytes; mustn't exceed `-search.maxQueryLen=16384` bytes"
    ),
    "victoriametrics-timeout": _refusal(
        503, "503", "cannot fetch data block: timeout exceeded during the query: 30.000 seconds"
    ),
    "body-too-large": Answer(413, "<html>413 Request Entity Too Large</html>"),
    "url-too-long": Answer(414, ""),
    "headers-too-long": Answer(431, ""),
    "gateway-timeout": Answer(504, "<html>504 Gateway Time-out</html>"),
    "in-plain-text": Answer(422, "the query hit the aggregated chunks size limit (limit: 1 bytes)"),
}
OTHERWISE: dict[str, tuple[Answer, type[PrometheusError]]] = {
    "a-wrong-query": (_refusal(400, "bad_data", "1:9: parse error"), QueryRefused),
    "mimir-length": (
        _refusal(
            422,
            "execution",
            "the total query time range exceeds the limit (query length: 769h, limit: 768h) "
            "(err-mimir-max-total-query-length)",
        ),
        QueryRefused,
    ),
    "in-the-queue": (_refusal(503, "timeout", "query timed out in query queue"), PrometheusUnreachable),
    "mimir-outstanding": (Answer(429, "too many outstanding requests"), PrometheusUnreachable),
    "victoriametrics-queue": (
        _refusal(
            503,
            "503",
            "couldn't start executing the request, since -search.maxConcurrentRequests=8 are executed",
        ),
        PrometheusUnreachable,
    ),
}


@pytest.mark.parametrize("answer", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_query_refused_as_too_large_raises_query_too_large(fake: Fake, answer: Answer) -> None:
    """Each server's wording is recognised, and the query is not retried as it is."""
    fake.answers.append(dataclasses.replace(answer))
    with pytest.raises(QueryTooLarge):
        _asking(fake.url).query("x", AT)
    assert len(fake.asked) == 1


@pytest.mark.parametrize(("answer", "kind"), OTHERWISE.values(), ids=OTHERWISE.keys())
def test_query_refused_for_another_reason_raises_another_error(
    fake: Fake, answer: Answer, kind: type[PrometheusError]
) -> None:
    """A smaller query would not help."""
    fake.answers.append(dataclasses.replace(answer))
    with pytest.raises(PrometheusError) as caught:
        _asking(fake.url, timeout_s=30.0).query("x", AT)
    assert type(caught.value) is kind


def test_query_limit_words_in_a_label_are_no_refusal(fake: Fake) -> None:
    """Only an error is a refusal."""
    fake.answers.append(Answer(body=GOOD.replace('"b"', '"timeout exceeded"')))
    assert _asking(fake.url).query("x", AT)[0].labels == {"a": "timeout exceeded"}


@pytest.mark.covers("P20")
def test_query_oversized_body_raises_query_too_large(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body beyond the client's limit is dropped; smaller queries may succeed."""
    monkeypatch.setattr("rightsizer.prometheus.transport.MAX_BYTES", 1000)
    fake.answers.append(Answer(body=" " * 5000))
    with pytest.raises(QueryTooLarge, match="larger than"):
        _asking(fake.url).query("x", AT)


@pytest.mark.covers("P3", "P18")
def test_query_sends_every_server_complete_response_parameters(fake: Fake) -> None:
    """Instant and range queries carry each server's parameters, and a timeout below the deadline."""
    fake.answers.append(Answer())
    prometheus = _asking(fake.url, timeout_s=100.0)
    prometheus.query("x", AT)
    prometheus.query_range("x", QueryRange(AT, AT, 60))
    for form in fake.forms():
        assert form["partial_response"] == "false"
        assert form["deny_partial_response"] == "1"
        assert form["max_source_resolution"] == "0s"
        assert form["dedup"] == "true"
        assert form["nocache"] == "1"
        assert 90_000 <= int(form["timeout"].removesuffix("ms")) < 100_000


@pytest.mark.covers("P3")
@pytest.mark.parametrize(
    ("more", "is_whole"),
    [
        ('"infos": ["PromQL info: metric might not be a counter"]', True),
        ('"warnings": ["PromQL info: metric might not be a counter"]', True),
        ('"warnings": []', True),
        ('"isPartial": false', True),
        ('"warnings": ["PromQL warning: sort is ineffective for range queries since ..."]', True),
        ('"warnings": ["PromQL warning: this native histogram metric is not a gauge: \\"x\\" (1:6)"]', True),
        ('"warnings": ["PromQL warning: this native histogram metric is new", "PromQL info: x"]', False),
        ('"warnings": ["PromQL warning: quantile value should be between 0 and 1, got 2 (1:6)"]', False),
        ('"warnings": ["1 more warning annotations omitted"]', False),
        ('"warnings": ["PromQL info: fine", "no StoreAPIs matched"]', False),
        ('"warnings": ["receive series from Addr: x: sort is ineffective for range queries"]', False),
        ('"warnings": ["PromQL warning: encountered a mix of histograms and floats"]', False),
        ('"isPartial": true', False),
    ],
)
def test_query_info_annotation_is_no_warning(fake: Fake, more: str, *, is_whole: bool) -> None:
    """Prometheus 3 has a field for annotations; other servers put them among the warnings."""
    fake.answers.append(Answer(body=f"{GOOD[:-1]}, {more}}}"))
    if is_whole:
        assert len(_asking(fake.url).query("x", AT)) == 1
    else:
        with pytest.raises(EvidenceIncomplete, match="may be incomplete"):
            _asking(fake.url).query("x", AT)


# --- several queries


def _value(form: dict[str, str]) -> Answer:
    return Answer(body=GOOD.replace('"1.5"', f'"{form["query"]}"'))


def _all(client: Prometheus, questions: Sequence[tuple[str, datetime.datetime]]) -> list[list[Sample]]:
    return list(client.run_in_order([functools.partial(client.query, *question) for question in questions]))


def test_run_in_order_results_follow_the_queries(fake: Fake) -> None:
    """Results come in the order of the queries, and each query is sent once."""
    fake.respond = _value
    found = _all(_asking(fake.url), [(str(number), AT) for number in range(20)])
    assert [[sample.value for sample in samples] for samples in found] == [[number] for number in range(20)]
    assert len(fake.asked) == 20
    assert _all(_asking(fake.url), []) == []


@pytest.mark.covers("P2")
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_run_in_order_sends_at_most_parallel_queries(fake: Fake, parallel: int) -> None:
    """Exactly `parallel` queries run at the same time."""
    barrier = threading.Barrier(parallel)
    lock = threading.Lock()
    under_way: list[int] = [0, 0]

    def respond(form: dict[str, str]) -> Answer:
        with lock:
            under_way[0] += 1
            under_way[1] = max(under_way)
        barrier.wait(60)
        with lock:
            under_way[0] -= 1
        return _value(form)

    fake.respond = respond
    _all(_asking(fake.url, parallel=parallel, timeout_s=60.0), [("1", AT)] * 3 * parallel)
    assert under_way == [0, parallel]


def test_run_in_order_first_error_is_raised_at_once(fake: Fake) -> None:
    """Another query is still running; queries that were not sent never are."""
    held = threading.Event()

    def respond(form: dict[str, str]) -> Answer:
        if form["query"] == "0":
            held.wait(60)
            return _value(form)
        return _refusal(422, "execution", "would load too many samples")

    fake.respond = respond
    with pytest.raises(QueryTooLarge):
        _all(_asking(fake.url, parallel=2), [(str(number), AT) for number in range(9)])
    assert not held.is_set()
    held.set()
    _wait_for_those_left()
    assert max(form["query"] for form in fake.forms()) == "1"


def test_run_in_order_abandoned_query_is_not_retried(fake: Fake) -> None:
    """The error of another query ends its retries."""
    begun = threading.Event()

    def respond(form: dict[str, str]) -> Answer:
        if form["query"] == "0":
            begun.set()
            return Answer(503, "shed")
        begun.wait(60)
        return Answer(401, "nope")

    fake.respond = respond
    with pytest.raises(PrometheusError, match="401"):
        _all(_asking(fake.url, parallel=2, timeout_s=60.0), [("0", AT), ("1", AT)])
    _wait_for_those_left()
    assert sorted(form["query"] for form in fake.forms()) == ["0", "1"]


def _wait_for_those_left() -> None:
    """Wait until no query of an earlier call is running."""
    for thread in threading.enumerate():
        if thread.name == "prometheus-query":
            thread.join(20)


def test_query_threads_share_the_parallel_limit(fake: Fake) -> None:
    """Callers in several threads share the limit."""
    lock = threading.Lock()
    under_way: list[int] = [0, 0]

    def respond(form: dict[str, str]) -> Answer:
        with lock:
            under_way[0] += 1
            under_way[1] = max(under_way)
        threading.Event().wait(0.05)
        with lock:
            under_way[0] -= 1
        return _value(form)

    fake.respond = respond
    asking = _asking(fake.url, parallel=1, timeout_s=60.0)
    threads = [threading.Thread(target=asking.query, args=("1", AT)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert under_way == [0, 1]
    assert len(fake.asked) == 4


# --- real servers


@pytest.mark.prometheus
def test_real_prometheus_ignores_parameters_of_other_servers(prometheus: RealPrometheus) -> None:
    """Parameters of Thanos and VictoriaMetrics do not disturb it."""
    asking = _asking(prometheus.url, timeout_s=30.0)
    assert [sample.value for sample in asking.query("vector(7)", asking.now())] == [7.0]
    assert abs(asking.now().timestamp() - time.time()) < 60
    track = asking.query_range("vector(7)", QueryRange(AT, AT + datetime.timedelta(minutes=2), 60))
    assert list(track[0].points.values()) == [7.0, 7.0, 7.0]


@pytest.mark.prometheus
def test_real_prometheus_too_many_samples_raises_query_too_large(
    prometheus: RealPrometheus, tmp_path: pathlib.Path
) -> None:
    """A query that is wrong raises another error."""
    with RealPrometheus(tmp_path / "small", flags={"query.max-samples": "1000"}) as small:
        asking = _asking(small.url, timeout_s=30.0)
        assert len(asking.query("max_over_time(vector(1)[300s:1s])", AT)) == 1
        with pytest.raises(QueryTooLarge, match=r"HTTP 422: execution: .* would load too many samples"):
            asking.query("max_over_time(vector(1)[2000s:1s])", AT)
    with pytest.raises(QueryRefused, match="HTTP 400: bad_data") as caught:
        _asking(prometheus.url, timeout_s=60.0).query("rate(up[", AT)
    assert type(caught.value) is QueryRefused


@pytest.mark.covers("P2")
@pytest.mark.prometheus
def test_real_prometheus_timeout_raises_query_too_large(prometheus: RealPrometheus, fake: Fake) -> None:
    """The server's own timeout; the fake forwards the query with a shorter one."""

    def respond(form: dict[str, str]) -> Answer:
        body = {**form, "timeout": "200ms"}
        reply = requests.post(f"{prometheus.url}/api/v1/query", data=body, timeout=60)
        return Answer(reply.status_code, reply.text)

    fake.respond = respond
    with pytest.raises(QueryTooLarge, match="HTTP 503: timeout: query timed out in"):
        _asking(fake.url, timeout_s=60.0).query("max_over_time(vector(time())[40000000s:1s])", AT)


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason=f"no {PROGRAM} on the path")
def test_real_victoriametrics_accepts_queries_and_its_refusals_are_known(tmp_path: pathlib.Path) -> None:
    """It ignores parameters of other servers, and its refusals are recognised."""
    flags = {"search.maxSamplesPerQuery": 1000, "search.maxUniqueTimeseries": 50}
    with VictoriaMetrics(tmp_path, flags=flags) as server:
        asking = _asking(server.url, timeout_s=30.0)
        assert [sample.value for sample in asking.query("vector(7)", asking.now())] == [7.0]
        with pytest.raises(QueryTooLarge, match="too long query"):
            asking.query("vector(1)" + " + 1" * 5000, asking.now())
        with pytest.raises(QueryRefused) as caught:
            asking.query("rate(up[", asking.now())
        assert type(caught.value) is QueryRefused
