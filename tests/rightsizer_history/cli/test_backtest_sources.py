"""`backtest` and `tune` on gauges alone, counters, VictoriaMetrics, 36 hours of history, and other GPU resources."""

import datetime
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.both_stores import EACH_OTHER, BothStores, Start
from tests.rightsizer.commands import run_command
from tests.rightsizer.metrics import COPY, DAY, HOUR, MEMORY, POWER, UTIL, Metrics, Value

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("backtest")]

SHORT = 36 * HOUR
NO_GPU = {"UUID": "", "modelName": ""}


def _told(metrics: Metrics, *arguments: str, url: str = "", command: str = "backtest") -> Mapping[str, Any]:
    given = (
        "--prometheus-url",
        url or metrics.prometheus.url,
        "--prometheus-label",
        f"test={metrics.space}",
    )
    last = (*arguments, *(("-o", "json") if command == "backtest" else ()))
    done = run_command(
        command, *given, "--at", metrics.at.isoformat(), "--from", "36h", "--every", "2h", *last
    )
    assert done.code == 0, done.err
    return json.loads(done.out) if command == "backtest" else {"text": done.out}


def _judge(document: Mapping[str, Any], name: str = "idle 24h") -> Mapping[str, Any]:
    (found,) = (one for one in document["judges"] if one["name"] == name)
    return found  # type: ignore[no-any-return]


def _counter(per_minute: float) -> Value:
    """That rises by as much in every minute."""
    return lambda left: per_minute * (SHORT.total_seconds() / 60 - left)


def _used(activity: Value) -> dict[str, Value]:
    power = (lambda left: 120 + 5 * activity(left)) if callable(activity) else 120 + 5 * activity
    return {UTIL: activity, COPY: activity, MEMORY: 40_000, POWER: power}


def _one_day_off(metrics: Metrics) -> None:
    """Of 36 hours: a notebook that paused for 26 hours, and a service that was left behind before.

    No sample lies on an edge of steps: a peak there is in both of them, except on Prometheus 3 and VictoriaMetrics.
    """
    off_edge = datetime.timedelta(minutes=2)
    pods: dict[str, Value] = {
        "notes-0": lambda left: 50 if left > 34 * 60 or left < 4 * 60 else 0,
        "left-6d4cf56db6-bvx8k": 0,
    }
    for number, (pod, activity) in enumerate(pods.items()):
        labels = {"pod": pod, "UUID": f"GPU-{number}"}
        metrics.write(_used(activity), labels, since=SHORT + off_edge, until=off_edge, step_s=300)


def test_backtest_of_36_hours_on_gauges_alone_says_what_it_cannot_say(prometheus: Prometheus) -> None:
    """It has figures all the same: both were stopped, and one came back."""
    metrics = Metrics(prometheus)
    _one_day_off(metrics)
    document = _told(metrics)
    assert (_judge(document)["stops"]["value"], _judge(document)["returned"]["value"]) == (2, 1)
    unknown = " ".join(document["unknown"])
    assert "weekends, and pauses of more than 1d 12h" in unknown
    assert "bursts between two scrapes: dcgm has no counters of busy time" in unknown
    assert "their kinds are guessed" in unknown


def test_tune_of_36_hours_keeps_the_policy_and_says_why(prometheus: Prometheus) -> None:
    """Two pauses prove nothing."""
    metrics = Metrics(prometheus)
    _one_day_off(metrics)
    text = _told(metrics, "--price-of-a-mistake", "24", command="tune")["text"]
    assert "6 of 6 rows have too few gaps" in text
    assert "Headroom of replicas stays" in text


def test_backtest_knows_work_between_scrapes_by_counters_alone(prometheus: Prometheus) -> None:
    """Two seconds in each minute fall between the samples of a gauge: by gauges alone it would have been stopped."""
    gauges, counters = Metrics(prometheus), Metrics(prometheus)
    for metrics in (gauges, counters):
        metrics.write(_used(0), pod="probe-0", since=SHORT, step_s=60, UUID="GPU-p")
    busy: dict[str, Value] = {
        "gpu_busy_seconds_total": _counter(2),
        "gpu_pod_busy_seconds_total": _counter(2),
    }
    moved: dict[str, Value] = {
        "gpu_pod_memory_busy_seconds_total": _counter(1),
        "gpu_busy_gap_seconds_total": 0,
    }
    counters.write({**busy, **moved}, pod="probe-0", since=SHORT, step_s=60, UUID="GPU-p")
    by_gauges, by_counters = _told(gauges), _told(counters)
    assert [_judge(one)["stops"]["value"] for one in (by_gauges, by_counters)] == [1, 0]
    assert [any("bursts" in words for words in one["unknown"]) for one in (by_gauges, by_counters)] == [
        True,
        False,
    ]


def test_backtest_own_gpu_resource_names_the_owners_of_its_pods(
    prometheus: Prometheus, tmp_path: pathlib.Path
) -> None:
    """Pods that ask for another resource are known as GPU pods only by --gpu-resource, in files of history too."""
    metrics = Metrics(prometheus)
    pod = {"pod": "odd-name", "since": SHORT, "step_s": 300}
    metrics.write(_used(0), {"UUID": "GPU-v"}, **pod)  # type: ignore[arg-type]
    for metric, labels in {
        "kube_pod_container_resource_requests": {"resource": "example_com_vgpu", "container": "c"},
        "kube_pod_owner": {"owner_kind": "StatefulSet", "owner_name": "odd", "owner_is_controller": "true"},
        "kube_pod_info": {"node": "n1", "priority_class": "high"},
    }.items():
        metrics.write({metric: 1}, {**NO_GPU, **labels}, **pod)  # type: ignore[arg-type]
    own = ("--gpu-resource", "example.com/vgpu=shares")
    guessed, known = _told(metrics), _told(metrics, *own)
    assert any("kinds are guessed" in words for words in guessed["unknown"])
    assert not any("kinds are guessed" in words for words in known["unknown"])
    assert _judge(known)["by"]["class"].keys() == {"high"}
    assert _judge(known)["by"]["owner"].keys() == {f"{metrics.space}/StatefulSet/odd"}
    kept = ("--history", str(tmp_path / "kept"), "--from", "1d")
    kinds = [_judge(_told(metrics, *kept, *more), "oracle")["by"]["kind"].keys() for more in ((), own)]
    assert kinds == [{"Pod"}, {"StatefulSet"}]


def test_backtest_impossible_gpu_resource_is_told(prometheus: Prometheus) -> None:
    """Before anything is read."""
    done = run_command("backtest", "--prometheus-url", prometheus.url, "--gpu-resource", "a=b")
    assert done.code == 2
    assert "--gpu-resource" in done.err


@EACH_OTHER
def test_backtest_of_the_same_history_is_equal_on_every_store(
    start: Start, prometheus: Prometheus, tmp_path: pathlib.Path
) -> None:
    """Gauges, counters and the facts of pods alike."""
    with start(tmp_path / "other") as other:
        metrics = Metrics(BothStores(prometheus, other))
        _one_day_off(metrics)
        metrics.write(
            {"gpu_busy_seconds_total": _counter(2), "gpu_pod_busy_seconds_total": _counter(2)},
            {"UUID": "GPU-p"},
            pod="probe-0",
            since=SHORT,
        )
        metrics.write(_used(0), {"UUID": "GPU-p"}, pod="probe-0", since=SHORT)
        first, second = (_told(metrics, url=store.url) for store in (prometheus, other))
        assert _judge(first)["stops"]["value"] == 2
        assert _judge(first, "oracle")["freedGpuHours"]["value"] > 0
        assert first == second


def test_backtest_older_than_a_day_of_history_is_no_error(prometheus: Prometheus) -> None:
    """A Prometheus that keeps a day has no pause of a day: nothing is stopped, and why is said."""
    metrics = Metrics(prometheus)
    metrics.write(_used(0), pod="left-0", since=DAY, step_s=300)
    document = _told(metrics)
    assert _judge(document)["stops"]["value"] == 0
    assert any("when the record begins" in words for words in document["unknown"])
