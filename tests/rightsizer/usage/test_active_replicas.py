"""Busy replicas at the same time, on a real Prometheus."""

import datetime
import math

import pytest

from rightsizer.evidence.slot_table import KeptTables
from rightsizer.kube.pod_names import GROUPS, HASHES, ORDINALS, PodNames
from rightsizer.prometheus import promql
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.exporter_counters import POD_BUSY
from rightsizer.usage.recording_rules import RecordingRules
from tests.rightsizer.metrics import DAY, ENGINE, HOUR, UTIL, Metrics, Value, near, steadily, within
from tests.rightsizer.relay import Relay

pytestmark = pytest.mark.prometheus


MINUTE = datetime.timedelta(minutes=1)


EDGE = datetime.timedelta(seconds=5)
"""Away from the edges of minutes: Prometheus 2 counts the sample on the older one, 3 does not."""


IDLE_GPU = {UTIL: 0.0}


HASH = "7d9fc8b5b4"


NEW = "5f6b7c8d9f"


def _concurrency(metrics: Metrics, names: PodNames, *pods: str, age: datetime.timedelta = 9 * DAY) -> object:
    request = ReplicaQuery(
        "uid",
        metrics.space,
        names,
        dict.fromkeys(pods, metrics.at - age),
        window=10 * MINUTE,
    )
    return metrics.signal().concurrency([request], metrics.at).get("uid")


def _write(metrics: Metrics, pod: str, value: Value, **more: datetime.timedelta) -> None:
    metrics.write({UTIL: value}, pod=pod, step_s=15, **({"since": HOUR} | more))  # type: ignore[arg-type]


def test_concurrency_replicas_in_turn_count_one(metrics: Metrics) -> None:
    """Each minute is counted by itself."""
    pods = [f"web-{HASH}-bcdf{number}" for number in (2, 4, 5)]
    for number, pod in enumerate(pods):
        _write(metrics, pod, lambda left, number=number: 90.0 if 0 < left % 3 - number < 1 else 0.0)  # type: ignore[misc]
    found = _concurrency(metrics, HASHES, *pods)
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]
    assert found.unseen == (0,) * 10  # type: ignore[attr-defined]


def test_concurrency_idle_minutes_are_zero(metrics: Metrics) -> None:
    """Zero, not unknown."""
    for pod in ("db-0", "db-1"):
        _write(metrics, pod, within(4.9, 2.1, 50.0))
    assert _concurrency(metrics, ORDINALS, "db-0", "db-1").busy == (0,) * 5 + (2,) * 3 + (0,) * 2  # type: ignore[attr-defined]


def test_concurrency_replica_on_two_devices_counts_once(metrics: Metrics) -> None:
    """It is busy if any of its devices is."""
    metrics.write({UTIL: 90.0}, pod="db-0", UUID="GPU-1", since=HOUR)
    metrics.write({UTIL: 90.0}, pod="db-0", UUID="GPU-2", since=HOUR)
    assert _concurrency(metrics, ORDINALS, "db-0").busy == (1,) * 10  # type: ignore[attr-defined]


def test_concurrency_pod_without_samples_in_a_minute_is_unseen(metrics: Metrics) -> None:
    """In a gap, or after the last sample; the others are counted."""
    _write(metrics, "db-0", 90.0)
    _write(metrics, "db-1", 0.0, until=7 * MINUTE + EDGE)
    _write(metrics, "db-1", 0.0, since=4 * MINUTE + EDGE, until=2 * MINUTE + EDGE)
    found = _concurrency(metrics, ORDINALS, "db-0", "db-1")
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]
    assert found.unseen == (0,) * 3 + (1,) * 3 + (0,) * 2 + (1,) * 2  # type: ignore[attr-defined]


def test_concurrency_lost_scrape_of_a_node_leaves_only_its_pods_unseen(metrics: Metrics) -> None:
    """Gone pods too; a pod that never had samples is unseen as well, and counted once."""
    _write(metrics, "db-0", 90.0)
    for pod in ("db-1", "db-2"):
        _write(metrics, pod, 0.0, until=7 * MINUTE + EDGE)
        _write(metrics, pod, 0.0, since=6 * MINUTE + EDGE)
    found = _concurrency(metrics, ORDINALS, "db-0", "db-1", "db-2", "db-3")
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]
    assert found.unseen == (1,) * 3 + (3,) + (1,) * 6  # type: ignore[attr-defined]


def test_concurrency_pod_is_not_expected_before_its_start(metrics: Metrics) -> None:
    """Nor is a pod that has ended."""
    _write(metrics, f"web-{HASH}-bcdf2", 0.0)
    _write(metrics, f"web-{NEW}-bcdf4", 0.0, since=5 * MINUTE)
    _write(metrics, f"web-{HASH}-zzzz9", 90.0, until=6 * MINUTE + EDGE)
    request = ReplicaQuery(
        "uid",
        metrics.space,
        HASHES,
        {f"web-{HASH}-bcdf2": metrics.at - DAY, f"web-{NEW}-bcdf4": metrics.at - 5 * MINUTE},
        window=10 * MINUTE,
    )
    busy = metrics.signal().concurrency([request], metrics.at)["uid"].busy
    assert busy == (1,) * 4 + (0,) * 6


def test_concurrency_gap_leaves_only_its_workload_unseen(metrics: Metrics) -> None:
    """Also one of a pod that is gone."""
    for pod in ("db-0", "db-1", "web-0", "web-1"):
        _write(metrics, pod, 0.0, since=2 * HOUR)
    _write(metrics, "web-2", 0.0, since=50 * MINUTE, until=20 * MINUTE + EDGE)
    _write(metrics, "web-2", 0.0, since=17 * MINUTE + EDGE, until=6 * MINUTE)
    names = {"db": ("db-0", "db-1"), "web": ("web-0", "web-1")}
    requests = [
        ReplicaQuery(name, metrics.space, ORDINALS, dict.fromkeys(pods, metrics.at - DAY))
        for name, pods in names.items()
    ]
    found = metrics.signal().concurrency(requests, metrics.at)
    assert {uid: sum(one.unseen) for uid, one in found.items()} == {"db": 0, "web": near(2, abs=1)}


def test_concurrency_impossible_value_is_unseen(metrics: Metrics) -> None:
    """NaN and DCGM's blank value tell neither work nor idleness; NaN beside other values of a minute is none."""
    _write(metrics, "db-0", 0.0)
    _write(metrics, "db-1", within(4.9, 2.1, math.nan))
    _write(metrics, "db-2", within(6.9, 4.1, 2_147_483_632.0))
    found = _concurrency(metrics, ORDINALS, "db-0", "db-1", "db-2")
    assert found.busy == (0,) * 10  # type: ignore[attr-defined]
    assert found.unseen == (0,) * 3 + (1, 1, 2, 1) + (0,) * 3  # type: ignore[attr-defined]


def test_concurrency_metric_that_ended_counts_until_then(metrics: Metrics) -> None:
    """Only metrics without any sample in the period are left out of the queries."""
    _write(metrics, "db-0", 0.0)
    metrics.write({ENGINE: 0.9}, pod="db-0", step_s=15, since=9 * MINUTE, until=6 * MINUTE + EDGE)
    busy = _concurrency(metrics, ORDINALS, "db-0").busy  # type: ignore[attr-defined]
    assert (sum(busy), busy[-5:]) == (near(3, abs=1), (0,) * 5)


def test_concurrency_same_name_in_two_namespaces_counts_separately(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if one query covers both namespaces."""
    monkeypatch.setattr(promql, "MAX_TEXT", 400)
    long = "x" * 40
    spaces, names = (metrics.space, f"{metrics.space}-b"), (f"a{long}", f"web{long}")
    requests = [
        ReplicaQuery(
            f"{space} {name}",
            space,
            ORDINALS,
            {f"{name}-0": metrics.at - DAY},
            window=10 * MINUTE,
        )
        for space, name in ((spaces[0], names[1]), (spaces[1], names[0]), (spaces[1], names[1]))
    ]
    for request in requests:
        for pod in request.pods:
            metrics.write({UTIL: 90.0}, pod=pod, namespace=request.namespace, UUID=request.uid, since=HOUR)
    with Relay(metrics.prometheus.url) as relay:
        found = metrics.signal(url=relay.url).concurrency(requests, metrics.at)
        assert any(all(space in query.replace("\\", "") for space in spaces) for query in relay.asked)
    assert {uid: one.busy for uid, one in found.items()} == {one.uid: (1,) * 10 for one in requests}


def test_concurrency_leader_worker_set_counts_groups(metrics: Metrics) -> None:
    """A replica is a leader with its workers."""
    for pod in ("vllm-0", "vllm-0-1", "vllm-1", "vllm-1-1"):
        _write(metrics, pod, 90.0 if pod.startswith("vllm-0") else 0.0)
    found = _concurrency(metrics, GROUPS, "vllm-0", "vllm-0-1", "vllm-1", "vllm-1-1")
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]


def test_concurrency_unknown_name_pattern_is_left_out(metrics: Metrics) -> None:
    """Nothing is guessed about which pods are replicas."""
    _write(metrics, "shell", 90.0)
    assert _concurrency(metrics, HASHES, "shell") is None


@pytest.mark.covers("P22")
def test_concurrency_work_on_a_gpu_that_is_not_held_counts(metrics: Metrics) -> None:
    """Only a counter shows it; the replica's own GPU is idle."""
    for pod in ("db-0", "db-1", "db-2"):
        _write(metrics, pod, 0.0)
    for pod, per_minute in {"db-0": 30.0, "db-1": 0.0}.items():
        metrics.write({POD_BUSY: steadily(per_minute)}, pod=pod, UUID="GPU-of-another", since=HOUR, step_s=15)
    found = _concurrency(metrics, ORDINALS, "db-0", "db-1", "db-2")
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]
    assert found.unseen == (0,) * 10  # type: ignore[attr-defined]


@pytest.mark.covers("P22")
def test_concurrency_counters_by_another_label_than_gauges_count(metrics: Metrics) -> None:
    """A second exporter may name pods by exported_pod."""
    _write(metrics, "db-0", 0.0)
    _write(metrics, "db-1", 0.0)
    labels = {"exported_pod": "db-0", "exported_namespace": metrics.space, "UUID": "GPU-of-another"}
    metrics.write({POD_BUSY: steadily(30.0)}, labels, pod="exporter", namespace="m", since=HOUR, step_s=15)
    assert _concurrency(metrics, ORDINALS, "db-0", "db-1").busy == (1,) * 10  # type: ignore[attr-defined]


@pytest.mark.covers("P22")
def test_concurrency_gone_pod_that_only_a_counter_names_counts(metrics: Metrics) -> None:
    """It worked on a GPU that it did not hold."""
    _write(metrics, "db-0", 0.0)
    for pod, per_minute, until in (("db-0", 0.0, 0), ("db-1", 60.0, 2)):
        values = {POD_BUSY: steadily(per_minute)}
        metrics.write(values, pod=pod, UUID=f"GPU-not-of-{pod}", since=HOUR, until=until * MINUTE, step_s=15)
    assert _concurrency(metrics, ORDINALS, "db-0").busy[:8] == (1,) * 8  # type: ignore[attr-defined]


def test_concurrency_pods_that_fit_two_workloads_count_in_both(metrics: Metrics) -> None:
    """Those that are gone do not say whose they were."""
    _write(metrics, "llm-0", 0.0)
    for pod, until in (("llm-2-0", 0), ("llm-2-1", 2), ("llm-2-2", 2)):
        _write(metrics, pod, 90.0, until=until * MINUTE)
    requests = [
        ReplicaQuery(name, metrics.space, names, {pod: metrics.at - DAY}, window=10 * MINUTE, name=name)
        for names, pod, name in ((GROUPS, "llm-0", "llm"), (ORDINALS, "llm-2-0", "llm-2"))
    ]
    found = metrics.signal().concurrency(requests, metrics.at)
    assert found["llm-2"].busy[:8] == (3,) * 8
    assert found["llm"].busy == (1,) * 10


def test_concurrency_name_that_ends_in_a_number_is_no_group(metrics: Metrics) -> None:
    """Leaders without workers, as `llama-3-0`, are not the third group of another."""
    pods = {f"llama-3-{number}": metrics.at - DAY for number in range(3)}
    for pod in pods:
        _write(metrics, pod, 90.0)
    request = ReplicaQuery("uid", metrics.space, GROUPS, pods, window=10 * MINUTE, name="llama-3")
    assert metrics.signal().concurrency([request], metrics.at)["uid"].busy == (3,) * 10


def test_concurrency_pod_after_the_last_kept_slot_counts(metrics: Metrics) -> None:
    """It came, worked for three minutes and went since the last five minutes that are kept ended."""
    _write(metrics, "db-0", 0.0, since=3 * HOUR)
    _write(metrics, "db-1", 90.0, since=4 * MINUTE, until=1 * MINUTE)
    tables = KeptTables(print, print, verified_every=1000)
    request = ReplicaQuery("uid", metrics.space, ORDINALS, {"db-0": metrics.at - DAY})
    for ago in (34, 4, 0):
        at = metrics.at - ago * MINUTE
        signal = metrics.signal(tables=tables, recording=RecordingRules.OFF)
        signal.usages(2 * HOUR, at)
        found = signal.concurrency([request], at)["uid"]
    assert sum(found.busy) == near(3, abs=1)
