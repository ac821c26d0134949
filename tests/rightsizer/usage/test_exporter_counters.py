"""Usage of shared GPUs by gpu-exporter's counters, on a real Prometheus."""

import dataclasses
import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.model import AddressTable, Slot, Whereabouts
from rightsizer.usage import exporter_counters
from rightsizer.usage.recording_rules import RecordingRules
from tests.rightsizer.metrics import DAY, HOUR, UTIL, Metrics, idle, near, rising, steadily, within

pytestmark = pytest.mark.prometheus


MINUTE = datetime.timedelta(minutes=1)


@dataclasses.dataclass(frozen=True)
class Shared:
    """What a GPU that several pods share did in each minute, in seconds.

    Attributes:
        busy: It worked.
        lost: For nobody who is known, for this reason; None if that is not recorded.
        gap: Nobody knows.
        gauge: By the driver's utilization, if that says otherwise.
    """

    busy: float
    lost: float | None = 0.0
    reason: str = "gone"
    gap: float = 0.0
    gauge: float | None = None

    def write(self, metrics: Metrics, **pods: float) -> None:
        """Its gauges, the same for all pods, and everybody's counters."""
        device = {"UUID": "GPU-s", "hostname": "n1"}
        for pod, per_minute in pods.items():
            shown = self.busy if self.gauge is None else self.gauge
            gauges = {**idle(**{UTIL: shown / 60 * 100}), exporter_counters.POD_MEMORY: 7e9}
            metrics.write({**gauges, exporter_counters.POD_BUSY: steadily(per_minute)}, device, pod=pod)
        counters = {
            exporter_counters.DEVICE_BUSY: steadily(self.busy),
            exporter_counters.GAPS: steadily(self.gap),
        }
        metrics.write(counters, device, namespace="", modelName="")
        if self.lost is not None:
            for reason, lost in {"unsampled": 0.0, self.reason: self.lost}.items():
                counter = {exporter_counters.UNATTRIBUTED: steadily(lost)}
                metrics.write(counter, device, namespace="", modelName="", reason=reason)


@pytest.mark.covers("P16")
def test_usages_shared_gpu_without_counters_is_busy_for_every_pod(metrics: Metrics) -> None:
    """The gauge does not tell which pod is busy."""
    for pod in ("a", "b"):
        metrics.write(idle(**{UTIL: 90}), pod=pod, UUID="GPU-s")
    assert [metrics.usage(pod).activity_peak for pod in ("a", "b")] == [near(0.9)] * 2
    assert not metrics.usage("a").is_own


@pytest.mark.covers("P16")
def test_usages_shared_gpu_counters_tell_pods_apart(metrics: Metrics) -> None:
    """Each pod has its own activity and memory; an idle pod has no part in the device's peak."""
    Shared(30).write(metrics, a=30, b=0)
    busy, quiet = metrics.usage("a"), metrics.usage("b")
    assert (busy.is_own, quiet.is_own) == (True, True)
    assert busy.busy_s == near(0.5 * 86_400, rel=0.01)
    assert busy.activity_mean == near(0.5, rel=0.01)
    assert busy.activity_peak == near(0.5)
    assert (quiet.busy_s, quiet.activity_mean, quiet.activity_peak) == (0.0, 0.0, 0.0)
    assert quiet.memory_peak_bytes == 7e9


def _mean_of_line(metrics: Metrics, *pods: str) -> list[float | None]:
    """The mean of each pod's drawn line, where it has one; all of them may share their GPUs."""
    signal, keys = metrics.signal(), [(metrics.space, pod) for pod in pods]
    drawn = signal.profiles(DAY, metrics.at, usages=signal.usages(DAY, metrics.at), shared=keys)
    lines = [[value for value in drawn.get(key, ()) if value is not None] for key in keys]
    return [sum(line) / len(line) if line else None for line in lines]


def test_profile_shared_gpu_counters_give_each_pod_its_own(metrics: Metrics) -> None:
    """Its mean is that of the usage, whatever the device did."""
    Shared(30).write(metrics, a=30, b=0)
    assert _mean_of_line(metrics, "a", "b") == [near(0.5, rel=0.02), 0.0]


def test_profile_shared_gpu_without_complete_counters_is_missing(metrics: Metrics) -> None:
    """A GPU of one pod alone has a profile."""
    for pod in ("c", "d"):
        metrics.write(idle(**{UTIL: 90}), pod=pod, UUID="GPU-t")
    Shared(30, lost=1).write(metrics, a=29, b=0)
    assert _mean_of_line(metrics, "a", "b", "c", "d") == [None] * 4
    drawn = metrics.signal().profiles(DAY, metrics.at, usages={}, shared=())
    assert all(value == near(0.9) for value in drawn[metrics.space, "c"])


@pytest.mark.covers("P16")
@pytest.mark.parametrize("reason", ["gone", "shared", "off", "unsampled", "unnamed_pod", "a-new-one"])
def test_usages_unattributed_work_counts_for_every_pod(metrics: Metrics, reason: str) -> None:
    """Any pod may have done it, and none more than it: it is added to each, and the peak is unknown."""
    Shared(30, lost=1, reason=reason).write(metrics, a=29, b=0)
    busy, quiet = metrics.usage("a"), metrics.usage("b")
    assert (busy.is_own, quiet.is_own) == (True, True)
    assert (quiet.busy_s, quiet.unattributed_s) == (near(1440, rel=0.01), near(1440, rel=0.01))
    assert (quiet.activity_mean, quiet.activity_peak) == (near(1 / 60, rel=0.01), None)
    assert busy.busy_s == near(30 * 1440, rel=0.01)
    assert busy.activity_peak == near(0.5)


@pytest.mark.covers("P16")
def test_usages_work_of_no_pod_without_series_of_unattributed_work_counts_for_every_pod(
    metrics: Metrics,
) -> None:
    """Where relabeling or a list of metrics dropped these, what pods' counters leave over is unattributed."""
    Shared(30, lost=None).write(metrics, a=29, b=0)
    quiet, at = metrics.usage("b"), metrics.at
    assert (quiet.busy_s, quiet.unattributed_s) == (near(1440, rel=0.01), near(1440, rel=0.01))
    history = metrics.signal().histories({(metrics.space, "b"): at - DAY}, DAY, at, threshold=0.05)
    assert Slot.IDLE not in history[metrics.space, "b"].slots


@pytest.mark.covers("P21")
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (Shared(0, gauge=56), (near(56 / 60), 0.0)),
        (Shared(0, gauge=6.1), (near(6.1 / 60), 0.0)),
        (Shared(30, gauge=37), (near(37 / 60), near(0.5, rel=0.01))),
        (Shared(0, gauge=5.9), None),
        (Shared(30, gauge=35), None),
        (Shared(30, gauge=0), None),
        (Shared(0, gauge=30, gap=60), None),
    ],
    ids=["counters-stand-still", "barely", "far-below", "chance", "chance-at-work", "gauge-below", "gaps"],
)
def test_usages_gauges_far_above_counters_are_disputed(
    metrics: Metrics, device: Shared, expected: tuple[float, float] | None
) -> None:
    """By more than 10 points of the window; gauges below counters have only missed work between two scrapes."""
    device.write(metrics, a=0, b=0)
    assert [metrics.usage(pod).disputed for pod in "ab"] == [expected] * 2


@hypothesis.given(st.floats(0, 1), st.floats(0, 86_400), st.integers(18, 10_000), st.floats(0, 1))
def test_dispute_with_a_higher_gauge_or_less_counted_never_disappears(
    gauge: float, busy_s: float, samples: int, more: float
) -> None:
    """What contradicts the counters does so all the more if the contradiction is larger; few samples prove less."""

    def found(mean: float, counted_s: float, count: int) -> bool:
        device = exporter_counters.CounterIncrease(counted_s, count, is_complete=True)
        counters = exporter_counters.Counters(devices={("GPU-s", ""): device})
        return counters.dispute(("ns", "a", "GPU-s", ""), mean, DAY) is not None

    if found(gauge, busy_s, samples):
        assert found(gauge + (1 - gauge) * more, busy_s * (1 - more), samples + round(1000 * more))
        assert gauge - busy_s / 86_400 > exporter_counters.MAX_DIFFERENCE
    assert found(1.0, 0.0, samples)


def test_counters_without_samples_dispute_nothing() -> None:
    """No Prometheus counts none, but whatever answers in its place may."""
    device = exporter_counters.CounterIncrease(0.0, 0.0, is_complete=True)
    counters = exporter_counters.Counters(devices={("GPU-s", ""): device})
    assert counters.dispute(("ns", "a", "GPU-s", ""), 1.0, DAY) is None


@pytest.mark.covers("P21")
def test_usages_young_pod_beside_counters_of_the_whole_window_is_not_disputed(metrics: Metrics) -> None:
    """Its gauges are of its own time only, in which the GPU worked more than before."""
    device = {"UUID": "GPU-s", "hostname": "n1"}
    work = within(120, 0, 60)
    for pod in ("a", "b"):
        gauges = {**idle(**{UTIL: 100}), exporter_counters.POD_BUSY: rising(work)}
        metrics.write(gauges, device, pod=pod, since=2 * HOUR)
    counters = {exporter_counters.DEVICE_BUSY: rising(work), exporter_counters.GAPS: steadily(0)}
    metrics.write(counters, device, namespace="", modelName="")
    assert metrics.usage("a").disputed is None


@pytest.mark.covers("P16")
def test_usages_memory_traffic_of_a_shared_gpu_is_the_pods(metrics: Metrics) -> None:
    """The time in which memory worked for each pod; unattributed time and work are added."""
    Shared(30, lost=0.01).write(metrics, a=30, b=0)
    device = {"UUID": "GPU-s", "hostname": "n1"}
    for name, per_minute in (("a", 12.0), ("b", 0.0)):
        metrics.write({exporter_counters.POD_TRAFFIC: steadily(per_minute)}, device, pod=name)
    lost = {exporter_counters.UNATTRIBUTED_TRAFFIC: steadily(0.01)}
    metrics.write(lost, device, namespace="", modelName="", reason="gone")
    assert metrics.usage("a").traffic_s == near(12 * 1440, rel=0.01)
    assert metrics.usage("b").traffic_s == near(28.8, rel=0.01)


@pytest.mark.covers("P16")
def test_usages_memory_traffic_that_no_pod_ever_has_is_unknown(metrics: Metrics) -> None:
    """The driver does not measure it if kernels run without any; without the counter it is unknown, too."""
    Shared(30).write(metrics, a=30, b=0)
    assert metrics.usage("b").traffic_s is None
    for name in ("a", "b"):
        metrics.write({exporter_counters.POD_TRAFFIC: 0.0}, {"UUID": "GPU-s", "hostname": "n1"}, pod=name)
    assert metrics.usage("b").traffic_s is None


@pytest.mark.slow
@pytest.mark.covers("P16")
@pytest.mark.parametrize("reason", ["host", "container", "mig"])
def test_usages_work_of_no_pod_counts_for_none(metrics: Metrics, reason: str) -> None:
    """Such as a display server's, or of a pod on a MIG instance."""
    Shared(30, lost=1, reason=reason).write(metrics, a=29, b=0)
    assert (metrics.usage("b").is_own, metrics.usage("b").activity_peak) == (True, 0.0)


@pytest.mark.covers("P16")
def test_usages_counter_gap_counts_for_every_pod(metrics: Metrics) -> None:
    """Any pod may have been busy in a gap."""
    Shared(30, gap=1).write(metrics, a=30, b=0)
    quiet = metrics.usage("b")
    assert (quiet.is_own, quiet.busy_s, quiet.activity_peak) == (True, near(1440, rel=0.01), None)
    assert quiet.unattributed_s == quiet.busy_s


@pytest.mark.covers("P16")
def test_usages_counters_younger_than_the_window_are_ignored(metrics: Metrics) -> None:
    """An exporter that was installed an hour ago has not counted the day."""
    for pod in ("a", "b"):
        metrics.write(idle(**{UTIL: within(900, 600, 80)}), pod=pod, UUID="GPU-s")
    counters = {
        exporter_counters.POD_BUSY: 0.0,
        exporter_counters.DEVICE_BUSY: 0.0,
        exporter_counters.GAPS: 0.0,
    }
    metrics.write({exporter_counters.POD_BUSY: 0.0}, pod="a", UUID="GPU-s", since=HOUR, job="ours")
    metrics.write(
        {name: 0.0 for name in counters if name != exporter_counters.POD_BUSY},
        UUID="GPU-s",
        namespace="",
        since=HOUR,
        job="ours",
    )
    usage = metrics.usage("a")
    assert (usage.is_own, usage.busy_s, usage.activity_peak) == (False, None, near(0.8))


@pytest.mark.covers("P16")
def test_usages_counter_counts_bursts_between_samples(metrics: Metrics) -> None:
    """The gauge of a GPU of one pod may miss them."""
    metrics.write(idle(), pod="a", UUID="GPU-s")
    bursts = rising(lambda left: 3.0 if left % 15 == 0 else 0.0)
    metrics.write({exporter_counters.POD_BUSY: bursts}, pod="a", UUID="GPU-s")
    metrics.write(
        {exporter_counters.DEVICE_BUSY: bursts, exporter_counters.GAPS: 0.0}, UUID="GPU-s", namespace=""
    )
    usage = metrics.usage("a")
    assert (usage.activity_peak, usage.is_own) == (0.0, True)
    assert usage.busy_s == near(96 * 3, rel=0.03)


@pytest.mark.covers("P16")
def test_activity_shared_gpu_counters_tell_pods_apart(metrics: Metrics) -> None:
    """The preflight check does not count a neighbour's activity."""
    Shared(30).write(metrics, a=30, b=0)
    looked = metrics.signal().activity(10 * MINUTE, metrics.at)
    ((busy,), (quiet,)) = looked[metrics.space, "a"], looked[metrics.space, "b"]
    assert (busy.activity_peak, quiet.activity_peak) == (near(0.5), 0.0)


@pytest.mark.covers("P16")
@pytest.mark.covers("P14")
@pytest.mark.parametrize("others", [(), ("b",)])
def test_usages_counters_that_lack_samples_prove_work(metrics: Metrics, others: tuple[str, ...]) -> None:
    """Between samples that do not show it; that some are lost makes nothing of it undone."""
    work, device = rising(within(700, 690, 30)), {"namespace": "", "modelName": ""}
    metrics.write({exporter_counters.DEVICE_BUSY: 0}, device, UUID="GPU-whole")
    for since, until in ((DAY, 12 * HOUR), (11 * HOUR, 0 * HOUR)):
        for labels, values in (
            (device, {exporter_counters.DEVICE_BUSY: work}),
            ({"pod": "a"}, {**idle(), exporter_counters.POD_BUSY: work}),
        ):
            metrics.write(values, labels, UUID="GPU-s", since=since, until=until)
    for pod in others:
        metrics.write({**idle(), exporter_counters.POD_BUSY: 0}, pod=pod, UUID="GPU-s", until=HOUR)
    usage = metrics.usage("a")
    assert (usage.busy_s, usage.is_own, usage.activity_peak) == (near(300, rel=0.2), False, 0)


_DEVICE, _GAPS = exporter_counters.DEVICE_BUSY, exporter_counters.GAPS
_UNATTRIBUTED = exporter_counters.UNATTRIBUTED


@dataclasses.dataclass(frozen=True)
class _Told:
    """Samples of the counters of a GPU that pods a and b share, by metric: from how long before the end until when.

    Attributes:
        per_minute: Seconds of work in each of the last hundreds of minutes, by metric.
        moved: Whether the exporter had another address for the first 14 hours.
        lost: Counters without samples in the last 10 hours; `a` is the counter of that pod.
        gauge: The driver's utilization meanwhile.
    """

    per_minute: dict[str, float]
    moved: bool = False
    lost: tuple[str, ...] = ()
    gauge: float = 0.0

    def write(self, metrics: Metrics) -> None:
        """All series, those of two targets if it moved."""
        device = {"UUID": "GPU-s", "namespace": "", "modelName": ""}
        told = [
            *((pod, exporter_counters.POD_BUSY, {"UUID": "GPU-s", "pod": pod}) for pod in ("a", "b")),
            (_DEVICE, _DEVICE, device),
            (_GAPS, _GAPS, device),
            (_UNATTRIBUTED, _UNATTRIBUTED, {**device, "reason": "shared"}),
        ]
        for since, until, instance in (
            (DAY, 10 * HOUR, "n1:1" if self.moved else "n1:2"),
            (10 * HOUR, 0 * HOUR, "n1:2"),
        ):
            times: Any = {"since": since, "until": until, "instance": instance}
            for pod in ("a", "b"):
                metrics.write(idle(**{UTIL: within(580, 0, self.gauge)}), pod=pod, UUID="GPU-s", **times)
            for key, metric, labels in told:
                if until or key not in self.lost:
                    counter = rising(within(580, 0, self.per_minute.get(key, 0.0)))
                    metrics.write({metric: counter}, labels, **times)


@pytest.mark.covers("P14")
@pytest.mark.parametrize(
    "told",
    [
        pytest.param(
            _Told({_DEVICE: 0.5, _UNATTRIBUTED: 0.5}, lost=(_UNATTRIBUTED,)), id="unattributed-work"
        ),
        pytest.param(_Told({_DEVICE: 0.5, "a": 0.5}, lost=("a",)), id="the-pod"),
        pytest.param(
            _Told({_DEVICE: 0.5, "a": 0.5}, lost=("a",), moved=True), id="the-pod-of-another-target"
        ),
        pytest.param(
            _Told(
                {_DEVICE: 12, "a": 12},
                lost=("a", "b", _DEVICE, _GAPS, _UNATTRIBUTED),
                gauge=20,
            ),
            id="all-of-the-job",
        ),
        pytest.param(_Told({_DEVICE: 12, "a": 12}, lost=(_GAPS,), gauge=20, moved=True), id="gaps"),
    ],
)
def test_usages_counters_without_their_end_make_nobody_idle(metrics: Metrics, told: _Told) -> None:
    """Whether the rest of what they miss is counted, or only shown by the gauge, a pod that worked is in use."""
    told.write(metrics)
    living = {_DEVICE: 0, _GAPS: 0, exporter_counters.POD_BUSY: 0}
    metrics.write(living, pod="c", UUID="GPU-o", job="other")
    usage = metrics.usage("a")
    assert (usage.busy_s or 0.0) > 200 or (not usage.is_own and usage.activity_peak == near(0.2))


@pytest.mark.parametrize("doubled", [False, True])
def test_usages_counters_of_an_exporter_with_a_new_address_are_complete(
    metrics: Metrics, *, doubled: bool
) -> None:
    """Its targets follow each other; of another device, two tell at the same time."""
    _Told({_DEVICE: 30, "a": 30}, moved=True, gauge=50).write(metrics)
    for instance in ("n2:1", "n2:2") if doubled else ("n2:1",):
        metrics.write({_DEVICE: 0, _GAPS: 0}, UUID="GPU-o", namespace="", instance=instance)
    usage = metrics.usage("b")
    assert (usage.is_own, usage.busy_s, usage.activity_peak) == (True, 0.0, 0.0)


def test_activity_counters_are_complete_with_one_sample_less_than_others(metrics: Metrics) -> None:
    """In a window of 10m 10s one exporter was scraped ten times, another of its job eleven times."""
    Shared(30).write(metrics, a=30, b=0)
    counters = {exporter_counters.DEVICE_BUSY: 0.0, _GAPS: 0.0}
    later = datetime.timedelta(seconds=25)
    metrics.write(counters, UUID="GPU-o", namespace="", since=HOUR + later, until=later, instance="n2")
    window, at = datetime.timedelta(seconds=610), metrics.at - datetime.timedelta(seconds=20)
    (quiet,) = metrics.signal().activity(window, at)[metrics.space, "b"]
    assert (quiet.activity_peak, quiet.is_own) == (0.0, True)


@pytest.mark.covers("P22")
@pytest.mark.parametrize("is_recorded", [False, True], ids=["samples", "records"])
def test_usages_work_on_a_gpu_that_is_not_held_is_the_pods(metrics: Metrics, is_recorded: bool) -> None:
    """Recording rules have gauges only, so counters are always read; the preflight check sees it, too."""
    Shared(30).write(metrics, holder=0)
    metrics.write(
        {exporter_counters.POD_BUSY: steadily(30)}, {"UUID": "GPU-s", "hostname": "n1"}, pod="visitor"
    )
    metrics.write(idle(), {"UUID": "GPU-own", "hostname": "n1"}, pod="visitor")
    if is_recorded:
        metrics.record(DAY)
    key, signal = (metrics.space, "visitor"), metrics.signal(recording=RecordingRules.TRUSTED)
    for found in (signal.usages(DAY, metrics.at), signal.activity(HOUR / 6, metrics.at)):
        other, own = sorted(found[key], key=lambda usage: usage.is_held)
        assert (own.device.uuid, own.is_held, own.activity_peak) == ("GPU-own", True, 0.0)
        assert (other.device.uuid, other.is_held, other.is_own) == ("GPU-s", False, True)
        assert other.activity_mean == near(0.5, rel=0.05)
        assert found[metrics.space, "holder"][0].is_visited


@pytest.mark.covers("P22")
def test_usages_process_that_rests_on_a_gpu_that_is_not_held_is_the_pods(metrics: Metrics) -> None:
    """It may hold memory there: a stop may lose that, though the pod's own GPU is empty."""
    Shared(30).write(metrics, holder=30)
    rests = {exporter_counters.POD_BUSY: 0.0, exporter_counters.POD_PROCESSES: 1.0}
    metrics.write(rests, {"UUID": "GPU-s", "hostname": "n1"}, pod="visitor")
    metrics.write(idle(), {"UUID": "GPU-own", "hostname": "n1"}, pod="visitor")
    found = metrics.signal().usages(DAY, metrics.at)[metrics.space, "visitor"]
    other, _ = sorted(found, key=lambda usage: usage.is_held)
    assert (other.device.uuid, other.is_held, other.busy_s) == ("GPU-s", False, 0.0)


@pytest.mark.covers("P22")
@pytest.mark.parametrize(
    ("lost", "pods", "left_s"),
    [
        pytest.param(10, {"holder": 20}, 14_400, id="lost"),
        pytest.param(None, {"holder": 20}, 14_400, id="lost-unrecorded"),
        pytest.param(None, {"holder": 0}, 43_200, id="nothing-recorded"),
        pytest.param(0, {"holder": 0}, 43_200, id="pods-unrecorded"),
        pytest.param(None, {"holder": 20, "other": 10}, 0, id="all-known"),
        pytest.param(0, {"holder": 29}, 0, id="inexact"),
    ],
)
def test_devices_counters_tell_whether_all_work_has_a_pod(
    metrics: Metrics, lost: float | None, pods: dict[str, float], left_s: float
) -> None:
    """A container outside of Kubernetes may have been started by a pod that can use any GPU."""
    Shared(30, lost=lost, reason="container").write(metrics, **pods)
    metrics.write(idle(**{UTIL: 50}), {"UUID": "GPU-s", "hostname": "n1"}, pod="")
    metrics.write(idle(**{UTIL: 80}), {"UUID": "GPU-t", "hostname": "n1"}, pod="another")
    signal = metrics.signal()
    signal.expect((), (), Whereabouts({}, AddressTable()))
    found = signal.devices(DAY, metrics.at, nodes={"GPU-s": "n1", "GPU-t": "n1"})
    (counted,), (dark,) = found["GPU-s"], found["GPU-t"]
    assert counted.busy_s == near(0.5 * 86_400, rel=0.01)
    assert counted.unattributed_s == near(left_s, rel=0.01)
    assert (dark.busy_s, dark.activity_peak) == (None, near(0.8))


@pytest.mark.covers("P22")
@pytest.mark.parametrize(
    ("lost", "own", "counted"),
    [
        (0.0, 30.0, Slot.IDLE),
        (None, 30.0, Slot.IDLE),
        (0.0, 29.0, Slot.IDLE),
        (10.0, 20.0, Slot.UNKNOWN),
        (None, 20.0, Slot.UNKNOWN),
        (0.0, 0.0, Slot.UNKNOWN),
    ],
)
def test_device_histories_are_idle_only_where_all_work_has_a_pod(
    metrics: Metrics, lost: float | None, own: float, counted: Slot
) -> None:
    """Work that counters give to a pod is in the history of that pod."""
    Shared(30, lost=lost).write(metrics, holder=own)
    metrics.write(idle(**{UTIL: 80}), {"UUID": "GPU-t", "hostname": "n1"}, pod="another")
    metrics.write(idle(), {"UUID": "GPU-u", "hostname": "n1"}, pod="quiet")
    signal, nodes = metrics.signal(), dict.fromkeys(("GPU-s", "GPU-t", "GPU-u"), "n1")
    signal.expect((), (), Whereabouts({}, AddressTable()))
    found = signal.device_histories(nodes, 4 * HOUR, metrics.at, threshold=0.01)
    states = {uuid: set(history.slots[1:-1]) for uuid, history in found.items()}
    assert states == {"GPU-s": {counted}, "GPU-t": {Slot.UNKNOWN}, "GPU-u": {Slot.IDLE}}
