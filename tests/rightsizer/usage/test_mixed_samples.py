"""Series that mix floats and native histograms, which Prometheus 3 leaves out with a warning."""

import contextlib
import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from rightsizer.errors import EvidenceIncomplete
from rightsizer.model import Slot
from rightsizer.usage.exporter_counters import DEVICE_BUSY, GAPS, POD_BUSY, POD_TRAFFIC, UNATTRIBUTED
from simulator.series_store import SeriesStore
from tests.rightsizer.fakeprometheus import Answer, Fake, serving
from tests.rightsizer.metrics import COPY, DAY, ENGINE, HOUR, POWER, UTIL, Metrics, idle, near
from tests.rightsizer.usage.test_serving_metrics import _load, _serve

_LOST = "avg_over_time", "sum_over_time", "rate", "increase"
MIX = "PromQL warning: encountered a mix of histograms and floats for"


@contextlib.contextmanager
def _third(prometheus: SeriesStore, metric: str, pod: str = "mixed", *, names: bool = True) -> Iterator[Fake]:
    """Answers as Prometheus 3.16 where the pod's series of the metric have a native histogram (promql/functions.go)."""
    call = re.compile(rf"\b(({'|'.join(_LOST)}|sum by \([^()]*\) )\({metric}\{{)")

    def respond(form: dict[str, str]) -> Answer:
        if "query" not in form:
            return Answer(404, "404 page not found")
        asked, number = call.subn(rf'\1pod!="{pod}", ', form["query"])
        end = "query_range" if "start" in form else "query"
        body = urllib.parse.urlencode({**form, "query": asked}).encode()
        with urllib.request.urlopen(f"{prometheus.url}/api/v1/{end}", body) as answer:
            found = json.load(answer)
        if number and names and "exported_pod=~" not in asked:  # which no series has
            is_sum = any(one[1].startswith("sum by") for one in call.finditer(form["query"]))
            what = "aggregation" if is_sum else f'metric name "{metric}"'
            found["warnings"] = [f"{MIX} {what} (1:20)"]
        return Answer(body=json.dumps(found))

    with serving() as fake:
        fake.respond = respond
        yield fake


@pytest.fixture
def mixed(metrics: Metrics) -> Metrics:
    """A pod whose series are mixed, and one at work."""
    metrics.write(idle(**{ENGINE: 0}), pod="mixed")
    metrics.write(idle(**{UTIL: 40, ENGINE: 0.4}), pod="other")
    return metrics


@pytest.mark.covers("P3")
@pytest.mark.prometheus
@pytest.mark.parametrize("metric", [UTIL, ENGINE, COPY, POWER])
def test_usages_mixed_series_is_invalid_and_others_count(
    mixed: Metrics, metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As if one of its values were no number."""
    with _third(mixed.prometheus, metric) as fake:
        found = mixed.usages(url=fake.url)
    said = [record.getMessage() for record in caplog.records if metric in record.getMessage()]
    assert len([words for words in said if MIX in words]) == 1
    (bad,), (good,) = found[mixed.space, "mixed"], found[mixed.space, "other"]
    assert bad.invalid == (metric,)
    assert good.invalid == ()
    assert good.activity_mean == near(0.4)


@pytest.mark.prometheus
def test_profiles_mixed_series_is_unknown_and_others_count(metrics: Metrics) -> None:
    """Step by step."""
    metrics.write({UTIL: 0}, pod="mixed")
    metrics.write({UTIL: 40}, pod="other")
    with _third(metrics.prometheus, UTIL) as fake:
        found = metrics.signal("dcgm", url=fake.url).profiles(DAY, metrics.at, usages={}, shared=())
    assert found[metrics.space, "other"] == [near(0.4)] * len(found[metrics.space, "other"])
    assert set(found.get((metrics.space, "mixed"), [None])) == {None}


@pytest.mark.prometheus
def test_serving_mixed_counters_are_unknown(metrics: Metrics) -> None:
    """They may hide requests; other counters of the pod do not replace them."""
    _serve(metrics)
    plain = _load(metrics)
    assert plain is not None
    assert plain.requests == 0
    with _third(metrics.prometheus, "vllm:request_success_total", "a") as fake:
        mixed = _load(metrics, url=fake.url)
    assert mixed is not None
    assert mixed.requests is None


COUNTERS = POD_BUSY, DEVICE_BUSY, UNATTRIBUTED, GAPS


@pytest.fixture
def counted(metrics: Metrics) -> Metrics:
    """Two pods that do nothing, with counters of both and of their devices."""
    for pod in ("mixed", "other"):
        metrics.write(idle(**dict.fromkeys((*COUNTERS, POD_TRAFFIC), 0)), pod=pod)
    return metrics


@pytest.mark.covers("P3")
@pytest.mark.prometheus
@pytest.mark.parametrize("metric", [*COUNTERS, POD_TRAFFIC])
def test_counters_that_are_mixed_are_invalid_and_others_count(
    counted: Metrics, metric: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing says how much work they hide: of the pod, or of all on the device."""
    with _third(counted.prometheus, metric) as fake:
        found = counted.usages(url=fake.url)
    assert any(MIX in record.getMessage() for record in caplog.records)
    (bad,), (good,) = found[counted.space, "mixed"], found[counted.space, "other"]
    assert bad.invalid == (metric,)
    assert (good.invalid, good.busy_s) == ((), 0)


@pytest.mark.prometheus
@pytest.mark.parametrize("metric", COUNTERS[:2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_counters_with_impossible_values_are_invalid_and_others_count(
    counted: Metrics, metric: str, value: float
) -> None:
    """As NaN of a gauge."""
    counted.write(idle(**{**dict.fromkeys(COUNTERS, 0), metric: value}), pod="bad")
    found = counted.usages()
    assert all(metric in usage.invalid for usage in found[counted.space, "bad"])
    assert not any(usage.invalid for pod in ("mixed", "other") for usage in found[counted.space, pod])


@pytest.mark.prometheus
@pytest.mark.parametrize("metric", COUNTERS)
def test_histories_mixed_counters_are_unknown_and_others_count(counted: Metrics, metric: str) -> None:
    """Slot by slot."""
    pods = {(counted.space, pod): counted.at - DAY for pod in ("mixed", "other")}
    with _third(counted.prometheus, metric) as fake:
        found = counted.signal("gpu-exporter", url=fake.url).histories(pods, DAY, counted.at, threshold=0.01)
    bad, good = (set(row.slots) for row in found.values())
    is_of_one = metric in {POD_BUSY, UNATTRIBUTED}
    assert (bad, good) == ({Slot.UNKNOWN} if is_of_one else {Slot.IDLE}, {Slot.IDLE})


@pytest.mark.prometheus
def test_usages_mixed_series_that_cannot_be_found_end_the_query(mixed: Metrics) -> None:
    """The server warns, but shows no series that it left out."""
    with (
        _third(mixed.prometheus, UTIL, "nobody") as fake,
        pytest.raises(EvidenceIncomplete, match="may be incomplete"),
    ):
        mixed.usages(HOUR, url=fake.url)
