"""Detection of the metric source, on a real Prometheus."""

import datetime
import json
import pathlib
import shutil

import pytest

from exporter.sampling import catalogue
from rightsizer.errors import EvidenceIncomplete, PrometheusError, UsageError
from rightsizer.usage import exporter_counters
from rightsizer.usage.source_metrics import DCGM, DCGM_49
from simulator.prometheus import Prometheus
from simulator.victoria_metrics import PROGRAM, VictoriaMetrics
from tests.rightsizer.metrics import HOUR, UTIL, Metrics, idle, near, within
from tests.rightsizer.relay import Relay

pytestmark = pytest.mark.prometheus


def test_source_dcgm_4_9_names_are_detected(metrics: Metrics) -> None:
    """Values have the same units as before."""
    values = dict.fromkeys(("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"), 0.5)
    more = {"DCGM_FI_DEV_FB_USED_BYTES": 5e9, "DCGM_FI_DEV_BOARD_POWER_WATTS": 300.0}
    metrics.write({**values, **more}, pod="a", hostname="n1")
    usage = metrics.usage("a")
    assert (usage.activity_peak, usage.traffic_peak) == (0.5, 0.5)
    assert (usage.memory_peak_bytes, usage.power_peak_w) == (5e9, 300.0)
    assert metrics.signal().source(metrics.at) == "dcgm-4.9"


def test_source_both_generations_of_names_are_detected(metrics: Metrics) -> None:
    """A fleet may have exporters of both versions."""
    metrics.write(idle(**{UTIL: 40}), pod="old")
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.6}, pod="new")
    assert metrics.usage("old").activity_peak == near(0.4)
    assert metrics.usage("new").activity_peak == near(0.6)
    assert metrics.signal().source(metrics.at) == "dcgm, dcgm-4.9"


@pytest.mark.parametrize("server", [Prometheus, VictoriaMetrics])
def test_metric_that_ended_minutes_ago_is_asked_for(
    server: type[Prometheus | VictoriaMetrics], tmp_path: pathlib.Path
) -> None:
    """As before an upgrade to other names; what has no sample in the window is only asked for together."""
    if server is VictoriaMetrics and shutil.which(PROGRAM) is None:
        pytest.skip(f"no {PROGRAM}")
    with server(tmp_path / "own") as own, Relay(own.url) as relay:
        metrics = Metrics(own, mark=False)
        ended = datetime.timedelta(seconds=390)
        metrics.write(idle(**{UTIL: within(8, 6, 80)}), pod="a", until=ended)
        renamed = {"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.0, "DCGM_FI_DEV_FB_USED_BYTES": 1e9}
        metrics.write(renamed, pod="a", since=ended)
        (usage,) = metrics.signal(url=relay.url).recent(metrics.at)[metrics.space, "a"]
        assert usage.activity_peak == near(0.8)
        assert sum("max_over_time" in query for query in relay.asked) == 6


def test_metrics_that_exist_are_not_found_out_by_a_partial_answer(metrics: Metrics) -> None:
    """A store that Thanos could not reach may have them."""
    metrics.write(idle(), pod="a")

    def partial(status: int, body: bytes) -> tuple[int, bytes]:
        is_last = "last_over_time" in relay.asked[-1]
        return status, json.dumps(json.loads(body) | {"warnings": ["no store"] * is_last}).encode()

    with Relay(metrics.prometheus.url) as relay:
        relay.spoil = partial
        with pytest.raises(PrometheusError, match="no store"):
            metrics.signal(url=relay.url).recent(metrics.at)


def test_source_given_is_the_only_one_queried(metrics: Metrics) -> None:
    """If it does not exist, the error says so."""
    metrics.write(idle(**{UTIL: 40}), pod="a")
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.6}, pod="b")
    assert set(metrics.usages(signals="dcgm")) == {(metrics.space, "a")}
    assert set(metrics.usages(signals="dcgm-4.9")) == {(metrics.space, "b")}
    with pytest.raises(
        EvidenceIncomplete, match=r"not gpu_busy_seconds_total and gpu_pod_busy_seconds_total"
    ):
        metrics.usages(signals="gpu-exporter")


def test_source_given_but_missing_raises_with_what_exists(metrics: Metrics) -> None:
    """The user can then leave the flag out."""
    metrics.write(idle(), pod="a")
    with pytest.raises(
        EvidenceIncomplete, match=r"none of DCGM_FI_DEV_GPU_UTIL_RATIO, .*it does hold DCGM_FI_DEV_FB"
    ):
        metrics.usages(signals="dcgm-4.9")


def test_source_unknown_name_raises(metrics: Metrics) -> None:
    """The error lists the names."""
    with pytest.raises(UsageError, match=r"neither one of auto, dcgm, dcgm-4.9, gpu-exporter, nor a file"):
        metrics.signal("dcmg")


def test_source_stopped_hours_ago_is_detected_and_stale(metrics: Metrics) -> None:
    """An exporter that has stopped is another finding than none."""
    metrics.write(idle(), pod="a", until=3 * HOUR)
    assert not metrics.usage("a").is_fresh


def test_source_metrics_match_the_exporter_catalog() -> None:
    """Both generations of names, with their units."""
    rows = {metric.dcgm.name: metric for metric in catalogue.metrics()}
    units = {"%": 0.01, "ratio": 1.0, "MiB": 1 << 20, "bytes": 1.0, "W": 1.0}
    assert len(DCGM.metrics) == len(DCGM_49.metrics)
    for older, newer in zip(DCGM.metrics, DCGM_49.metrics, strict=True):
        metric = rows[older.name]
        assert metric.dcgm_49 is not None
        assert (metric.dcgm_49.name, older.kind, older.alike) == (newer.name, newer.kind, newer.alike)
        assert (units[metric.dcgm.unit], units[metric.dcgm_49.unit]) == (older.scale, newer.scale)
    assert set(exporter_counters.METRICS) <= rows.keys()
