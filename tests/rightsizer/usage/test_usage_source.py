"""Series that cannot be the cluster's are refused, on a real Prometheus."""

import datetime
import math
import pathlib

import pytest

from rightsizer.errors import EvidenceIncomplete
from rightsizer.findings.stuck import is_dark
from rightsizer.kube.pod_names import PodNames
from rightsizer.model import AddressTable, BoardLevel, PartialSignal, SecondSignal, Slot, Whereabouts
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.exporter_counters import METRICS
from rightsizer.usage.node_coverage import SHARES
from rightsizer.usage.recording_rules import RecordingRules
from rightsizer.usage.source_metrics import MetricKind
from tests.rightsizer.metrics import (
    A100,
    CLOCK,
    COPY,
    DAY,
    ENGINE,
    HOUR,
    MEMORY,
    POWER,
    UTIL,
    Metrics,
    idle,
    near,
    within,
)

pytestmark = pytest.mark.prometheus


@pytest.mark.covers("P8")
def test_usages_series_of_exporter_pods_only_raise(metrics: Metrics) -> None:
    """If no named pod holds a GPU, the series would make every GPU look idle."""
    metrics.write(idle(), pod="dcgm-exporter-abc", namespace="monitoring")
    signal = metrics.signal()
    signal.expect([("team", "train-0")], [("team", "train-0")])
    with pytest.raises(EvidenceIncomplete, match=r"monitoring/dcgm-exporter-abc.*PodResources"):
        signal.usages(DAY, metrics.at)
    both = [("team", "train-0"), ("monitoring", "dcgm-exporter-abc")]
    signal.expect(both, both)
    assert len(signal.usages(DAY, metrics.at)) == 1


HOPS = {"pod": "prometheus-0", "exported_pod": "dcgm-exporter-abc", "exported_namespace": "monitoring"}
OTHERS = {"UUID": "GPU-1", "Hostname": "n1", "GPU_I_ID": "3"}


@pytest.mark.covers("P8")
@pytest.mark.parametrize(
    ("labels", "line"),
    [
        pytest.param(
            {**OTHERS, "pod_name": "train-0", "pod_namespace": "SPACE"},
            "namespace: pod_namespace, pod: pod_name, device: UUID, instance: GPU_I_ID, model: modelName, "
            "node: Hostname",
            id="other-names-of-pods",
        ),
        pytest.param(
            {"UUID": "", "uuid": "GPU-1", "pod": "train-0", "namespace": "SPACE"},
            "namespace: namespace, pod: pod, device: uuid, model: modelName",
            id="another-name-of-devices",
        ),
        pytest.param(
            {**OTHERS, **HOPS, "exported_exported_pod": "train-0", "exported_exported_namespace": "SPACE"},
            "namespace: exported_exported_namespace, pod: exported_exported_pod, device: UUID",
            id="two-hops-of-federation",
        ),
    ],
)
def test_usages_pods_in_other_labels_raise_with_the_table_that_reads_them(
    metrics: Metrics, tmp_path: pathlib.Path, labels: dict[str, str], line: str
) -> None:
    """The error names the label of a pod of this cluster and that of a GPU; the table finds the pod."""
    given = {name: metrics.space if value == "SPACE" else value for name, value in labels.items()}
    metrics.write(idle(), {"namespace": "", **given})
    key = (metrics.space, "train-0")
    signal = metrics.signal()
    signal.expect([key], [key])
    with pytest.raises(EvidenceIncomplete) as raised:
        signal.usages(DAY, metrics.at)
    assert "holds pod train-0 of this cluster; label " in str(raised.value)
    assert " holds GPU-1; with --signals FILE" in str(raised.value)
    assert line in str(raised.value)
    table = tmp_path / "table.yaml"
    table.write_text(
        "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Signals\n"
        f"labels: {str(raised.value).rpartition('labels: ')[2]}\n"
        "quantities: [{quantity: activity, selector: DCGM_FI_DEV_GPU_UTIL, scale: 0.01}]\n"
    )
    by_table = metrics.signal(str(table))
    by_table.expect([key], [key])
    assert set(by_table.usages(DAY, metrics.at)) == {key}


@pytest.mark.covers("P8")
def test_usages_metrics_with_a_prefix_raise_with_the_table_that_reads_them(
    metrics: Metrics, tmp_path: pathlib.Path
) -> None:
    """Its labels and its quantities, with their scales."""
    values = {f"nvidia_{name}": value for name, value in idle(**{UTIL: 30, ENGINE: 0.3}).items()}
    metrics.write(values, pod="train-0", UUID="GPU-1")
    key = (metrics.space, "train-0")
    signal = metrics.signal()
    signal.expect([key], [key])
    with pytest.raises(
        EvidenceIncomplete, match="holds nvidia_DCGM_FI_DEV_FB_USED: --signals FILE"
    ) as raised:
        signal.usages(DAY, metrics.at)
    said = str(raised.value)
    table = tmp_path / "table.yaml"
    table.write_text(
        "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Signals\n"
        f"labels: {said.rpartition('labels: ')[2]}\n"
        f"quantities: {said.partition('quantities: ')[2].partition(']')[0]}]\n"
    )
    by_table = metrics.signal(str(table))
    by_table.expect([key], [key])
    (usage,) = by_table.usages(DAY, metrics.at)[key]
    assert (usage.activity_peak, usage.power_peak_w, usage.invalid) == (near(0.3), 118, ())
    assert usage.memory_peak_bytes == 40_000 << 20


@pytest.mark.covers("P8")
def test_usages_young_pods_need_no_series(metrics: Metrics) -> None:
    """While all pods are young, other names or none at all are no error."""
    signal = metrics.signal()
    metrics.write(idle(), UUID="GPU-free")
    signal.expect([("team", "new-0")], [])
    assert signal.usages(DAY, metrics.at) == {}
    metrics.write(idle(), pod="ends-now")
    signal.expect([("team", "new-0")], [])
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "ends-now")}
    signal.expect([("team", "new-0"), ("team", "old-0")], [("team", "old-0")])
    with pytest.raises(EvidenceIncomplete, match="none of the 1 pods"):
        signal.usages(DAY, metrics.at)


@pytest.mark.covers("P11")
def test_usages_series_of_gone_pods_only_are_no_error(metrics: Metrics) -> None:
    """Stale series only lack the current pods."""
    metrics.write(idle(), pod="gone", until=HOUR)
    signal = metrics.signal()
    signal.expect([("team", "old-0")], [("team", "old-0")])
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "gone")}


def test_usages_of_a_pod_that_another_cluster_named_earlier_raise(metrics: Metrics) -> None:
    """Another cluster's pod of the same name is gone by now: nothing tells whose use it was."""
    metrics.write(idle(), pod="a", cluster="ours")
    metrics.write(idle(), pod="a", cluster="theirs", until=HOUR)
    with pytest.raises(EvidenceIncomplete, match=r"several clusters \(ours, theirs\)"):
        metrics.usages()


@pytest.mark.parametrize(
    ("since", "labels", "words"),
    [
        pytest.param(DAY, {"pod": "b"}, None, id="other-targets"),
        pytest.param(HOUR, {"pod": "b"}, None, id="other-targets-since-lately"),
        pytest.param(HOUR, {"pod": "a"}, None, id="added-lately"),
        pytest.param(HOUR, {"pod": "a", "UUID": "GPU-x"}, "pod .*/a .*of other GPUs", id="another-device"),
        pytest.param(
            DAY, {"pod": "a", "UUID": "GPU-x"}, "pod .*/a .*of other GPUs", id="another-device-always"
        ),
        pytest.param(DAY, {"pod": "a", "job": "b"}, "pod .*/a .*at the same time", id="both-at-the-end"),
    ],
)
def test_usages_cluster_of_some_series_is_refused_where_pods_may_be_confused(
    metrics: Metrics, since: datetime.timedelta, labels: dict[str, str], words: str | None
) -> None:
    """A label on some targets, or a new one, ends no plan; a pod that may be two does."""
    is_same = labels == {"pod": "a"}
    metrics.write(idle(**{UTIL: 30}), pod="a", until=since if is_same else datetime.timedelta())
    metrics.write(idle(), labels, since=since, cluster="ours")
    signal = metrics.signal()
    keys = [(metrics.space, name) for name in ("a", "b")]
    for whereabouts in (None, Whereabouts({}, AddressTable())):
        signal.expect(keys, keys, whereabouts)
        if words:
            with pytest.raises(EvidenceIncomplete, match=words):
                signal.usages(DAY, metrics.at)
            continue
        found = signal.usages(DAY, metrics.at)
        assert set(found) == {(metrics.space, "a"), (metrics.space, labels["pod"])}
        ((usage,),) = (found[metrics.space, "a"],)
        assert (usage.activity_peak, usage.invalid) == (near(0.3), ())
        assert (usage.coverage, usage.is_fresh) == (1.0, True)


def test_usages_cluster_that_was_named_before_this_one_is_another(metrics: Metrics) -> None:
    """As after the label was given another value: what it said before is less, and no error."""
    target, table = "10.0.1.1:9400", AddressTable()
    table.add("monitoring", "n1", "192.168.0.1", ["10.0.1.1"])
    metrics.write(idle(), pod="a", cluster="new", since=HOUR, instance=target)
    metrics.write(idle(**{UTIL: 30}), pod="a", cluster="old", until=HOUR, instance=target)
    signal, key = metrics.signal(), (metrics.space, "a")
    signal.expect([key], [key], Whereabouts({key: "n1"}, table))
    ((usage,),) = signal.usages(DAY, metrics.at).values()
    assert (usage.activity_peak, usage.coverage < 0.5) == (0, True)


BOARD = {POWER: 61, MEMORY: 40_000, CLOCK: 210}


def test_boards_are_named_by_their_uuid_whoever_uses_them(metrics: Metrics) -> None:
    """Without the series of their MIG instances, and only of the models that matter."""
    metrics.write({**BOARD, POWER: within(60, 30, 150, 61)}, UUID="GPU-a", modelName=A100)
    metrics.write({**BOARD, COPY: 3}, UUID="GPU-b", modelName=A100, pod="some-pod", since=DAY / 2)
    metrics.write({MEMORY: 9_000, POWER: 500}, UUID="GPU-a", modelName=A100, pod="p", GPU_I_ID="7")
    metrics.write({"DCGM_FI_DEV_SM_CLOCK_HERTZ": 1.41e9}, UUID="GPU-b", modelName=A100)
    metrics.write(BOARD, UUID="GPU-c")
    found = metrics.signal().boards(DAY, metrics.at, nodes={"GPU-a": "n1"}, models={A100})
    assert found.keys() == {"GPU-a", "GPU-b"}
    assert (found["GPU-a"].power_peak_w, found["GPU-a"].clock_peak_hz) == (150, 210e6)
    assert (found["GPU-a"].coverage, found["GPU-a"].activity_peak) == (1.0, None)
    assert (found["GPU-b"].traffic_peak, found["GPU-b"].clock_peak_hz) == (0.03, 1.41e9)
    assert found["GPU-b"].coverage == near(0.5, abs=0.02)


def test_board_history_is_idle_where_power_and_clock_were(metrics: Metrics) -> None:
    """Above the level of either it worked, and without samples nothing is known."""
    power, clock = within(20 * 60, 19 * 60, 150, 61), within(10 * 60, 9 * 60, 1410, 210)
    metrics.write({**BOARD, POWER: power, CLOCK: clock}, UUID="GPU-a", modelName=A100, since=DAY)
    metrics.write(BOARD, UUID="GPU-b", modelName=A100, until=HOUR)
    level, nodes = BoardLevel(70.0, 210e6), {"GPU-a": "n1", "GPU-b": "n1"}
    found = metrics.signal().board_histories(nodes, DAY, metrics.at, level)
    slots = found["GPU-a"].slots
    per_hour = len(slots) // 24
    for hours, state in ((19, Slot.BUSY), (9, Slot.BUSY), (14, Slot.IDLE), (1, Slot.IDLE)):
        assert slots[-hours * per_hour - 2] == state
    assert found["GPU-b"].slots[-1] == Slot.UNKNOWN
    only_power = metrics.signal().board_histories(nodes, DAY, metrics.at, BoardLevel(70.0, None))
    assert only_power["GPU-a"].slots[-9 * per_hour - 2] == Slot.IDLE


def test_usages_mig_instances_have_the_profiling_metrics_of_dcgm_exporter(metrics: Metrics) -> None:
    """On an A100, beside gpu-exporter, which has only their memory: activity and traffic of their own, no board's."""
    labels = {"UUID": "GPU-a", "GPU_I_ID": "7", "modelName": A100, "pod": "p"}
    metrics.write({MEMORY: 9_000}, labels, job="gpu-exporter")
    metrics.write({ENGINE: 0.2, "DCGM_FI_PROF_DRAM_ACTIVE": 0.1, MEMORY: 9_000}, labels, job="dcgm-exporter")
    used = metrics.usage("p")
    assert (used.activity_peak, used.traffic_peak, used.coverage) == (0.2, 0.1, 1.0)
    assert not is_dark(used)


def test_retention_is_what_the_flags_of_prometheus_say(metrics: Metrics) -> None:
    """The tests' own Prometheus keeps 40 days."""
    assert metrics.signal().retention() == 40 * DAY


@pytest.mark.covers("P15")
@pytest.mark.parametrize("recording", [RecordingRules.OFF, RecordingRules.TRUSTED])
@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, 0.5, 1e300])
def test_series_of_any_value_ends_no_question(
    metrics: Metrics, value: float, recording: RecordingRules
) -> None:
    """Of gauges, of counters, and of what rules record: only its own pod is unknown."""
    counters = dict.fromkeys((*METRICS, SHARES), 0.0)
    metrics.write(idle(**counters), pod="a-good")
    metrics.record(DAY + HOUR)
    metrics.write(dict.fromkeys((*idle(**counters), ENGINE, CLOCK), value), pod="a-bad")
    recorded = (f"gpu_rightsizer:{kind}:{name}5m" for kind in MetricKind for name in ("count", "mean", "max"))
    metrics.write(dict.fromkeys(recorded, value), pod="a-bad", metric=UTIL)
    good, at = (metrics.space, "a-good"), metrics.at
    pods = dict.fromkeys((good, (metrics.space, "a-bad")), at - DAY)
    signal = metrics.signal(recording=recording)
    usages = signal.usages(DAY, at)
    (usage,) = usages[good]
    assert (usage.invalid, usage.coverage, usage.activity_peak) == ((), 1, 0)
    assert set(signal.histories(pods, DAY, at, threshold=0.01)[good].slots) == {Slot.IDLE}
    names = PodNames(("[a-z]+",))
    starts = {name: start for (_, name), start in pods.items()}
    signal.concurrency([ReplicaQuery("uid", metrics.space, names, starts)], at)
    signal.work_levels(pods, DAY, at, threshold=0.01)
    signal.profiles(DAY, at, usages=usages, shared=pods)
    assert signal.shares(pods, at)[good] == 1
    for question in (signal.recent, signal.nodes):
        question(at)
    signal.activity(HOUR, at, with_coverage=True)
    signal.sampled(DAY, at, of=pods)
    signal.devices(DAY, at, nodes={"GPU-a-bad": "n1", "GPU-a-good": "n1"})
    signal.device_histories({"GPU-a-bad": "n1", "GPU-a-good": "n1"}, DAY, at, threshold=0.01)
    signal.boards(DAY, at, nodes={"GPU-a-bad": "n1"}, models=[])


@pytest.mark.covers("P13")
@pytest.mark.parametrize("signal", SecondSignal)
def test_sampled_tells_which_second_signals_lack_samples(metrics: Metrics, signal: SecondSignal) -> None:
    """From when on they cover the window, and how much of it; not of those that cover all, nor of those without any."""
    name = {SecondSignal.POWER: POWER, SecondSignal.TRAFFIC: COPY}[signal]
    metrics.write(idle(), pod="whole")
    rest = {one: value for one, value in idle().items() if one != name}
    for pod in ("late", "none"):
        metrics.write(rest, pod=pod)
    metrics.write({name: idle()[name]}, pod="late", since=HOUR)
    pods = {(metrics.space, pod) for pod in ("whole", "late", "none")}
    asked = metrics.signal()
    asked.usages(DAY, metrics.at)
    ((_, (usage,)),) = asked.sampled(DAY, metrics.at, of=pods).items()
    assert usage.device.uuid == "GPU-late"
    assert usage.lacking == (PartialSignal(signal, near(1 / 24, rel=0.1), 23 * 3, metrics.at - HOUR),)


def test_sampled_expects_a_second_signal_as_often_as_activity(metrics: Metrics) -> None:
    """Nobody else tells that every second sample of its power is lost: only it is asked for."""
    rest = {name: value for name, value in idle().items() if name != POWER}
    metrics.write(rest, pod="a", step_s=15)
    metrics.write({POWER: 118}, pod="a", step_s=30)
    asked = metrics.signal()
    asked.usages(DAY, metrics.at)
    ((usage,),) = asked.sampled(DAY, metrics.at, of={(metrics.space, "a")}).values()
    ((signal, share),) = ((part.signal, part.share) for part in usage.lacking)
    assert (signal, share) == (SecondSignal.POWER, near(0.5, abs=0.02))
