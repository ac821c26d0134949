"""The PromQL of random clusters answers as a real Prometheus does."""

import datetime
import json
import math
import time
from collections.abc import Mapping

import pytest

from rightsizer.prometheus.query_api import QueryRange
from simulator.prometheus import Prometheus
from simulator.series_store import Series as Written
from tests.rightsizer.metrics import Metrics
from tests.rightsizer.wire.promql import NAME, Series, Track, evaluate

pytestmark = pytest.mark.prometheus

MINUTE_S = 60
FUNCTIONS = ("max", "min", "avg", "sum", "count", "last")
OF = "{MARK}"
QUERIES = (
    *(f"{name}_over_time(gauge{OF}[30m])" for name in FUNCTIONS),
    *(f"{name} by (pod, none) (gauge{OF})" for name in ("max", "min", "avg", "sum", "count")),
    'sum without (pod, none) ({__name__=~"gauge|other", MARK})',
    f"count(gauge{OF})",
    f"count(gauge{OF} or other{OF})",
    'count by (__name__) ({__name__=~"gauge|other", MARK})',
    f"gauge{OF} > 1",
    f"gauge{OF} * 0.01 < 5e-02",
    f"clamp_min(clamp_max(avg_over_time(gauge{OF}[30m]), 0), 0) != 0",
    f"max by (pod) (gauge{OF}) - min by (pod) (other{OF}) > 0.1",
    f"max by (pod) (gauge{OF}) / max by (pod) (other{OF})",
    f"(max_over_time(gauge{OF}[9m]) and on (pod) other{OF}) unless on (pod) gauge{OF}",
    f'label_replace(max by (pod) (gauge{OF}), "stem", "$1", "pod", "(.+)-([0-9]+)")',
    'gauge{pod!~"a-.*|c", MARK}',
    "gauge{pod!='', none='', MARK}",
)


def _tracks(now: float) -> list[Track]:
    """Gauges with values that change, gaps, and NaN."""
    nan, hour = math.nan, now - 3600
    spans = {
        "a-1": ((hour, now, 0.0),),
        "a-2": ((hour, now - 1200, 2.0), (now - 1200, now, 99.0)),
        "b-1": ((hour, now - 900, 3.0),),
        "b-2": ((hour, now - 1500, 3.0), (now - 1500, now - 600, nan), (now - 300, now, 1.0)),
        "c": ((hour, now, nan),),
    }
    gauges = [Track({NAME: "gauge", "pod": pod, "node": "n"}, each) for pod, each in spans.items()]
    return [
        *gauges,
        *(Track({NAME: "other", "pod": pod, "node": "n"}, spans["a-2"]) for pod in ("a-1", "b-1")),
    ]


@pytest.mark.parametrize("query", QUERIES)
def test_evaluate_answers_as_prometheus_does(query: str, prometheus: Prometheus) -> None:
    """At an instant between two samples, so that the ends of ranges do not matter; and at each of several steps."""
    metrics = Metrics(prometheus)
    now = float(int(time.time()) // MINUTE_S * MINUTE_S)
    tracks = [Track({**one.labels, **metrics.labels}, one.spans) for one in _tracks(now)]
    prometheus.write(series for one in tracks for series in _written(one))
    text = query.replace("MARK", ", ".join(f'{name}="{value}"' for name, value in metrics.labels.items()))
    ends = [now + 30 - 300 * number for number in reversed(range(5))]
    steps = QueryRange(_instant(ends[0]), _instant(ends[-1]), 300.0)
    theirs = {_key(one.labels): dict(one.points) for one in metrics.client().query_range(text, steps)}
    ours = {
        _key(labels): {end: value for end, value in zip(ends, row, strict=True) if value is not None}
        for labels, row in evaluate(text, Series(tracks), tuple(ends))
    }
    assert theirs.keys() == ours.keys()
    for key, points in theirs.items():
        assert points == pytest.approx(ours[key], nan_ok=True)
    assert theirs


def _instant(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, tz=datetime.UTC)


def _key(labels: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(labels.items())))


def _written(track: Track) -> list[Written]:
    return [
        Written(
            track.labels,
            range(int(begin) + MINUTE_S, int(end) + 1, MINUTE_S),
            [value] * int((end - begin) / MINUTE_S),
        )
        for begin, end, value in track.spans
    ]
