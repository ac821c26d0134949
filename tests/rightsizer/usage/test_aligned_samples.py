"""Samples exactly at the ends of ranges count once, on every version of Prometheus: beside others these lack none."""

import datetime
import functools
import pathlib
from collections.abc import Iterator

import pytest

from rightsizer.kube.pod_names import ORDINALS
from rightsizer.model import Slot
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.recording_rules import RecordingRules
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import DAY, HOUR, UTIL, Metrics, idle, within

pytestmark = pytest.mark.prometheus

MINUTE = datetime.timedelta(minutes=1)
ALIGNED, BETWEEN = "web-0", "web-1"
BEFORE = {ALIGNED: datetime.timedelta(), BETWEEN: MINUTE / 2}
"""By how much the samples of each of two pods, a minute apart, are before full minutes."""


def _write(metrics: Metrics) -> None:
    for pod, before in BEFORE.items():
        metrics.write(idle(), pod=pod, since=DAY + before, until=before, Hostname=f"node-of-{pod}")


@pytest.fixture
def recorded(tmp_path: pathlib.Path) -> Iterator[Metrics]:
    """Both pods alone in a Prometheus, and what the recording rules made of their samples."""
    with Prometheus(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        _write(metrics)
        metrics.record(DAY)
        yield metrics


@pytest.mark.parametrize("window", [10 * MINUTE, HOUR, DAY])
def test_coverage_beside_aligned_samples_is_whole(metrics: Metrics, window: datetime.timedelta) -> None:
    """One sample a minute is expected of both."""
    _write(metrics)
    found = [metrics.usage(pod, window) for pod in BEFORE]
    assert [(one.coverage, one.samples_expected) for one in found] == [(1.0, window / MINUTE)] * 2


def test_recorded_coverage_beside_aligned_samples_is_whole(recorded: Metrics) -> None:
    """The rules record five samples every five minutes of both."""
    found = [recorded.usage(pod, recording=RecordingRules.TRUSTED) for pod in BEFORE]
    assert [(one.coverage, one.samples_expected) for one in found] == [(1.0, DAY / MINUTE)] * 2


def test_node_coverage_beside_aligned_samples_is_whole(metrics: Metrics) -> None:
    """A node lacks no sample because that of another lies at the begin of the window, too."""
    _write(metrics)
    nodes = metrics.signal().nodes(metrics.at)
    assert {name: one.coverage for name, one in nodes.items()} == {f"node-of-{pod}": 1.0 for pod in BEFORE}


def test_history_with_every_other_sample_is_known_beside_aligned_samples(metrics: Metrics) -> None:
    """A slot of two samples has half of them, which is enough."""
    metrics.write({UTIL: 0}, pod=ALIGNED, step_s=150)
    until = BEFORE[BETWEEN]
    for hours, step_s in ((2, 150), (2, 300), (20, 150)):
        since = until + hours * HOUR
        metrics.write({UTIL: 0}, pod=BETWEEN, since=since, until=until, step_s=step_s)
        until = since
    begins = dict.fromkeys([(metrics.space, pod) for pod in BEFORE], metrics.at - 12 * HOUR)
    found = metrics.signal().histories(begins, 12 * HOUR, metrics.at, threshold=0.01)
    assert {state for history in found.values() for state in history.slots} == {Slot.IDLE}


def test_peak_at_the_begin_of_the_window_is_of_the_time_before(metrics: Metrics) -> None:
    """Each sample is in one of two windows that follow each other."""
    metrics.write(idle(**{UTIL: within(60.5, 59.5, 90)}), pod=ALIGNED)
    assert metrics.usage(ALIGNED, HOUR).activity_peak == 0
    metrics.at -= HOUR
    assert metrics.usage(ALIGNED, HOUR).activity_peak == 0.9


def _full_minutes(number: int, left: float) -> float:
    """Activity at every other full minute only."""
    return 90.0 if left % 2 == number else 0.0


def test_replicas_busy_in_turn_at_full_minutes_count_one(metrics: Metrics) -> None:
    """A sample at the end of a minute is none of the next one."""
    for number, pod in enumerate(BEFORE):
        in_turn = functools.partial(_full_minutes, number)
        metrics.write({UTIL: in_turn}, pod=pod, since=HOUR, step_s=15)
    pods = dict.fromkeys(BEFORE, metrics.at - 9 * DAY)
    request = ReplicaQuery("uid", metrics.space, ORDINALS, pods, window=10 * MINUTE)
    assert metrics.signal().concurrency([request], metrics.at)["uid"].busy == (1,) * 10
