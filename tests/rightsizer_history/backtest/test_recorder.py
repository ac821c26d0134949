"""What is recorded of a real Prometheus answers as Prometheus itself."""

import dataclasses
import datetime
import math
from collections.abc import Mapping

import pytest

from rightsizer.config import PrometheusSettings
from rightsizer.model import PodKey, Slot, Usages
from rightsizer.policy.recognition import is_notebook
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.usage.exporter_counters import DEVICE_BUSY, POD_BUSY, POD_TRAFFIC
from rightsizer.usage.sources import SourceSettings, detect_source
from rightsizer.usage.step_usage import chunks, device_steps
from rightsizer_history.backtest.pod_facts import AskedFacts, PodFacts, pod_facts
from rightsizer_history.backtest.recorded_signal import Present, RecordedSignal
from rightsizer_history.backtest.recorder import Recorder, grid_of, owner_by_name
from rightsizer_history.backtest.recording import Member, Recording
from rightsizer_history.backtest.standings import workload_of
from tests.rightsizer.metrics import DAY, HOUR, UTIL, Metrics, idle, near, once, rising, steadily, within
from tests.rightsizer.usage.test_exporter_counters import Shared
from tests.rightsizer_history.backtest.recordings import recording, workload

STEP = datetime.timedelta(minutes=5)


NO_MORE = AskedFacts()


def _recorded(metrics: Metrics, span: datetime.timedelta = DAY, asked: AskedFacts = NO_MORE) -> Recording:
    client = Client(PrometheusSettings(url=metrics.prometheus.url))
    grid = grid_of(metrics.at, span, STEP)
    querier = detect_source(client, SourceSettings(metrics.labels), at=grid.end)
    recorder = Recorder(grid)
    facts: dict[PodKey, PodFacts] = {}
    for chunk in chunks(STEP, grid.steps):
        until = dataclasses.replace(querier, at=grid.time(chunk.stop), memo={})
        recorder.add(chunk, device_steps(until, step=STEP, steps=len(chunk)))
        facts |= pod_facts(until, asked)
    return recorder.recording(facts, source=querier.source.name)


def _members(recording: Recording) -> dict[str, Member]:
    return {member.key[1]: member for group in recording.groups for member in group.members}


def _usages(metrics: Metrics, window: datetime.timedelta) -> Usages:
    recording = _recorded(metrics)
    members = [member for group in recording.groups for member in group.members]
    present = {member.key: Present(member, member.first) for member in members}
    return RecordedSignal(recording.grid, present).usages(window, metrics.at)


@pytest.mark.prometheus
@pytest.mark.parametrize("window", [DAY, 4 * HOUR, HOUR], ids=str)
def test_recording_answers_as_prometheus_does(metrics: Metrics, window: datetime.timedelta) -> None:
    """Peaks, means, coverage and freshness of each window."""
    metrics.write(idle(), pod="idle-0")
    metrics.write(idle(**{UTIL: within(600, 100, 70)}), pod="worked-0")
    metrics.write(idle(**{UTIL: once(3)}), pod="once-0")
    metrics.write(idle(), pod="gaps-0", since=DAY, until=DAY / 2)
    metrics.write(idle(), pod="gaps-0", since=DAY / 4)
    metrics.write(idle(), pod="young-0", since=3 * HOUR)
    metrics.write(idle(), pod="stale-0", until=HOUR / 2)
    expected, found = metrics.usages(window), _usages(metrics, window)
    assert found.keys() == expected.keys()
    for pod, (truth,) in expected.items():
        (usage,) = found[pod]
        for field in (
            "activity_peak",
            "activity_mean",
            "traffic_peak",
            "power_peak_w",
            "power_mean_w",
            "coverage",
        ):
            assert getattr(usage, field) == near(getattr(truth, field), rel=0.02, abs=0.01), (pod, field)
        assert usage.memory_peak_bytes == near(truth.memory_peak_bytes or 0, rel=0.001), pod
        assert usage.is_fresh == truth.is_fresh, pod


@pytest.mark.prometheus
def test_recording_counts_parts_of_gpus(metrics: Metrics) -> None:
    """A MIG instance is its slices of seven, a share its part of those that held the GPU with it."""
    metrics.write(idle(), pod="mig-0", UUID="GPU-a", GPU_I_ID="1", GPU_I_PROFILE="3g.40gb")
    for pod in ("share-0", "share-1"):
        metrics.write(idle(), pod=pod, UUID="GPU-b")
    metrics.write(idle(), pod="whole-0", UUID="GPU-c")
    found = {name: round(member.gpus, 3) for name, member in _members(_recorded(metrics)).items()}
    assert found == {"mig-0": 0.429, "share-0": 0.5, "share-1": 0.5, "whole-0": 1.0}


@pytest.mark.prometheus
@pytest.mark.parametrize("lost", [0.0, 6.0], ids=["all-known", "some-unattributed"])
def test_recording_knows_each_pods_part_of_a_shared_gpu(metrics: Metrics, lost: float) -> None:
    """As a plan does, by counters: the gauges are the device's."""
    Shared(busy=30.0, lost=lost).write(metrics, busy=24.0, quiet=0.0)
    for pod, per_minute in (("busy", 12.0), ("quiet", 0.0)):
        metrics.write({POD_TRAFFIC: steadily(per_minute)}, {"UUID": "GPU-s", "hostname": "n1"}, pod=pod)
    expected, found = metrics.usages(4 * HOUR), _usages(metrics, 4 * HOUR)
    for pod in ("busy", "quiet"):
        (truth,), (usage,) = expected[metrics.space, pod], found[metrics.space, pod]
        assert usage.is_own
        assert usage.is_own == truth.is_own
        for field in ("busy_s", "unattributed_s", "activity_mean", "traffic_s"):
            assert getattr(usage, field) == near(getattr(truth, field), rel=0.05, abs=1.0), (pod, field)
        assert (usage.activity_peak is None, usage.activity_peak == 0) == (
            truth.activity_peak is None,
            truth.activity_peak == 0,
        )


@pytest.mark.covers("P22")
@pytest.mark.prometheus
def test_recording_has_work_on_gpus_that_pods_do_not_hold(metrics: Metrics) -> None:
    """In usage, histories and counts of replicas; a holder's own counter decides what it did there itself."""
    Shared(busy=30.0).write(metrics, holder=0.0)
    metrics.write({POD_BUSY: steadily(30.0)}, {"UUID": "GPU-s", "hostname": "n1"}, pod="visitor-0")
    metrics.write(idle(), {"UUID": "GPU-own", "hostname": "n1"}, pod="visitor-0")
    recording = _recorded(metrics)
    visitor, holder = (_members(recording)[name] for name in ("visitor-0", "holder"))
    present = {member.key: Present(member, member.first) for member in (visitor, holder)}
    signal, live = RecordedSignal(recording.grid, present), metrics.usages(4 * HOUR)
    recorded = signal.usages(4 * HOUR, metrics.at)
    for usages in (live, recorded):
        (own,) = (one for one in usages[visitor.key] if one.is_held)
        (other,) = (one for one in usages[visitor.key] if not one.is_held)
        assert (own.device.uuid, own.activity_peak) == ("GPU-own", 0.0)
        assert (other.device.uuid, other.is_own) == ("GPU-s", True)
        assert other.busy_s == near(2 * 3600, rel=0.05)
        (held,) = usages[holder.key]
        assert (held.is_visited, held.activity_peak) == (True, 0.0)
    starts = dict.fromkeys((visitor.key, holder.key), metrics.at - 4 * HOUR)
    for source in (signal, metrics.signal()):
        found = source.histories(starts, 4 * HOUR, metrics.at, threshold=0.01)
        assert Slot.IDLE not in found[visitor.key].slots[:-1]
        assert Slot.BUSY not in found[holder.key].slots[:-1]
    assert (visitor.gpus, holder.gpus) == (1.0, 1.0)


@pytest.mark.prometheus
def test_recording_leaves_out_pods_of_exporters(metrics: Metrics) -> None:
    """Where a job tells the workload as `exported_pod`, `pod` is the exporter."""
    mine = {"exported_pod": "train-0", "exported_namespace": "team", "UUID": "GPU-a"}
    metrics.write(idle(), mine, pod="exporter-x", namespace="monitoring")
    metrics.write(idle(), pod="exporter-x", namespace="monitoring", UUID="GPU-b")
    metrics.write(idle(), pod="other-0", job="without-collisions")
    assert set(_members(_recorded(metrics))) == {"train-0", "other-0"}


@pytest.mark.prometheus
def test_recording_sees_bursts_between_scrapes_by_counters(metrics: Metrics) -> None:
    """The gauge shows none of them."""
    burst = rising(lambda left: 2.0 if 100 < left <= 105 else 0.0)
    device = {"UUID": "GPU-a", "hostname": "n1"}
    metrics.write({**idle(), POD_BUSY: burst}, device, pod="burst-0")
    metrics.write({DEVICE_BUSY: burst}, device, namespace="", modelName="")
    recording = _recorded(metrics)
    (group,) = recording.groups
    active = [step for step, state in enumerate(group.works, group.first) if state == Slot.BUSY]
    assert recording.has_counters
    assert {288 - step for step in active} <= {20, 21, 22}
    assert active


@pytest.mark.prometheus
def test_recording_step_with_an_impossible_value_is_unknown(metrics: Metrics) -> None:
    """Not idle by its other samples; nor are the steps around it anything but idle."""
    metrics.write(idle(**{UTIL: once(-1)}), pod="train-0")
    (track,) = _members(_recorded(metrics))["train-0"].tracks
    assert 1 <= track.states().count(Slot.UNKNOWN) <= 2  # on the edge of two steps
    assert set(track.states()) == {Slot.IDLE, Slot.UNKNOWN}


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "nobody", [{}, dict.fromkeys(("owner_kind", "owner_name", "owner_is_controller"), "<none>")], ids=len
)
def test_recording_knows_bare_pods_and_images(metrics: Metrics, nobody: dict[str, str]) -> None:
    """kube-state-metrics says that a pod has no owner, in words or by nothing: its name is no Job's then."""
    pod = {"pod": "lab-x7k2p"}
    metrics.write(idle(), pod, UUID="GPU-a")
    for metric, labels in {
        "kube_pod_container_resource_requests": {"resource": "nvidia_com_gpu", "container": "c"},
        "kube_pod_owner": nobody,
        "kube_pod_container_info": {"container": "c", "image_spec": "quay.io/jupyter/scipy-notebook:latest"},
    }.items():
        metrics.write({metric: 1}, {**pod, **labels, "UUID": "", "modelName": ""})
    recording = _recorded(metrics)
    (group,) = recording.groups
    assert (group.ref.kind, group.ref.name, group.is_guessed) == ("Pod", "lab-x7k2p", False)
    assert is_notebook(workload_of(group, recording))


@pytest.mark.prometheus
def test_recording_counts_requests_of_restarted_kube_state_metrics_once(metrics: Metrics) -> None:
    """Its series of before and after the restart are of the same request; those of two containers add up."""
    pod = {"pod": "web-0"}
    metrics.write(idle(), pod, UUID="GPU-a")
    request = {**pod, "resource": "nvidia_com_gpu", "UUID": "", "modelName": ""}
    for labels, asked in (
        ({"container": "c", "instance": "10.0.0.7:8080"}, 1),
        ({"container": "c", "instance": "10.0.0.8:8080"}, 1),
        ({"container": "d", "instance": "10.0.0.8:8080"}, 2),
        ({"container": "d", "instance": "10.0.0.9:8080"}, math.nan),
    ):
        metrics.write({"kube_pod_container_resource_requests": asked}, {**request, **labels})
    ((member,),) = (group.members for group in _recorded(metrics).groups)
    assert member.devices == 3


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        pytest.param({"first": 2}, 2, id="init-container-alone"),
        pytest.param({"first": 2, "main": 1}, 1, id="unknown-beside-a-container"),
        pytest.param({"a": 2, "b": 2, "c": 2}, 1, id="unknown-of-several"),
        pytest.param({"sidecar": 2, "main": 1}, 3, id="sidecar-beside-a-container"),
        pytest.param({"sidecar": 2, "sidecar-2": 2}, 4, id="sidecars"),
        pytest.param({"sidecar": 2, "first": 2}, 1, id="unknown-beside-a-sidecar"),
    ],
)
def test_recording_counts_requests_of_init_containers(
    metrics: Metrics, asked: Mapping[str, int], devices: int
) -> None:
    """kube-state-metrics records sidecars among init containers; where it cannot be known, the devices count."""
    metrics.write(idle(), pod="web-0", UUID="GPU-a")
    metrics.write({"kube_pod_info": 1}, {**STATE, "node": "n1"})
    for container, amount in asked.items():
        part = "container" if container == "main" else "init_container"
        policy = {"restart_policy": "Always"} if container.startswith("sidecar") else {}
        metrics.write({f"kube_pod_{part}_info": 1}, {**STATE, **policy, "container": container})
        metric = {f"kube_pod_{part}_resource_requests": amount}
        metrics.write(metric, {**STATE, "resource": "nvidia_com_gpu", "container": container})
    ((member,),) = (group.members for group in _recorded(metrics).groups)
    assert member.devices == devices


@pytest.mark.prometheus
def test_recording_names_labels_as_kube_state_metrics_does(metrics: Metrics) -> None:
    """In snake case and lower case; where two keys become one, each has a suffix, and their values are unknown."""
    metrics.write(idle(), pod="web-0", UUID="GPU-a")
    request = {"resource": "nvidia_com_gpu", "container": "c"}
    metrics.write({"kube_pod_container_resource_requests": 1}, {**STATE, **request})
    written = {"label_cost_center": "a", "label_app_kubernetes_io_part_of": "b", "label_x_y_conflict1": "c"}
    metrics.write({"kube_pod_labels": 1}, {**STATE, **written})
    asked = AskedFacts(frozenset({"costCenter", "app.kubernetes.io/partOf", "x.y"}))
    ((member,),) = (group.members for group in _recorded(metrics, asked=asked).groups)
    assert member.labels == {"costCenter": "a", "app.kubernetes.io/partOf": "b"}


STATE = {"pod": "web-0", "job": "kube-state-metrics", "UUID": "", "modelName": ""}
FORGED: Mapping[str, tuple[Mapping[str, str], float]] = {
    "kube_pod_container_resource_requests": ({"resource": "nvidia_com_gpu", "container": "c"}, 8),
    "kube_pod_owner": ({"owner_kind": "Job", "owner_name": "other", "owner_is_controller": "true"}, 1),
    "kube_pod_info": ({"node": "n9", "priority_class": "low"}, 1),
    "kube_pod_container_info": ({"container": "c", "image_spec": "jupyter/minimal-notebook"}, 1),
    "kube_replicaset_owner": (
        {"replicaset": "web-1", "owner_kind": "Deployment", "owner_name": "x", "owner_is_controller": "true"},
        1,
    ),
}


def _with_state(metrics: Metrics) -> None:
    """What two kube-state-metrics tell of a pod, of which one was restarted before the pod had a node."""
    metrics.write(idle(), pod="web-0", UUID="GPU-a")
    true: dict[str, dict[str, str]] = {
        "kube_pod_container_resource_requests": {"resource": "nvidia_com_gpu", "container": "c"},
        "kube_pod_owner": {"owner_kind": "ReplicaSet", "owner_name": "web-1", "owner_is_controller": "true"},
        "kube_pod_info": {"node": "n1", "priority_class": "high"},
        "kube_pod_container_info": {"container": "c", "image_spec": "web:1"},
        "kube_replicaset_owner": {
            "replicaset": "web-1",
            "owner_kind": "Deployment",
            "owner_name": "web",
            "owner_is_controller": "true",
        },
    }
    for metric, labels in true.items():
        for instance in ("10.0.0.7:8080", "10.0.0.8:8080"):
            metrics.write({metric: 1}, {**STATE, **labels, "instance": instance})
    metrics.write({"kube_pod_info": 1}, {**STATE, "node": "", "instance": "10.0.0.6:8080"}, until=DAY / 2)


def _facts(metrics: Metrics) -> tuple[object, ...]:
    (group,) = _recorded(metrics).groups
    (member,) = group.members
    return (
        str(group.ref.kind),
        group.ref.name,
        member.devices,
        member.node,
        member.priority_class,
        member.images,
    )


@pytest.mark.prometheus
@pytest.mark.parametrize("metric", FORGED)
def test_facts_of_another_job_than_kube_state_metrics_do_not_count(metrics: Metrics, metric: str) -> None:
    """Any scraped pod can expose them; the job that tells of most pods is believed."""
    _with_state(metrics)
    before = _facts(metrics)
    assert before == ("Deployment", "web", 1, "n1", "high", ("web:1",))
    labels, value = FORGED[metric]
    metrics.write({metric: value}, {**STATE, **labels, "job": "pods", "instance": "10.0.2.66:8000"})
    assert _facts(metrics) == before


KNOWN = ("Deployment", "web", 1, "n1", "high", ("web:1",))
GUESSED = ("StatefulSet", "web", 1, "n1", "high", ("web:1",))
DISPUTED: Mapping[str, tuple[object, ...]] = {
    "kube_pod_container_resource_requests": KNOWN,
    "kube_pod_owner": GUESSED,
    "kube_pod_info": ("Deployment", "web", 1, "", "", ("web:1",)),
    "kube_pod_container_info": ("Deployment", "web", 1, "n1", "high", ()),
    "kube_replicaset_owner": GUESSED,
}


@pytest.mark.prometheus
@pytest.mark.parametrize("since", [DAY, DAY / 2, datetime.timedelta(hours=12, minutes=1)], ids=str)
@pytest.mark.parametrize("metric", FORGED)
def test_facts_that_targets_of_one_job_dispute_are_unknown(
    metrics: Metrics, metric: str, since: datetime.timedelta
) -> None:
    """Neither the larger nor the later value counts, for however short a time; all other facts of the pod do."""
    _with_state(metrics)
    labels, value = FORGED[metric]
    until = datetime.timedelta() if since == DAY else DAY / 2 - datetime.timedelta(minutes=1)
    rival = {**STATE, **labels, "instance": "10.0.2.66:8000"}
    metrics.write({metric: value}, rival, since=since, until=until)
    assert _facts(metrics) == DISPUTED[metric]


MOVED = {
    "kube_pod_info": ({"node": "n9", "priority_class": "low"}, {"node": "n1", "priority_class": "high"}),
    "kube_pod_owner": tuple(
        {"owner_kind": "StatefulSet", "owner_name": name, "owner_is_controller": "true"}
        for name in ("zebra", "web")
    ),
    "kube_pod_container_resource_requests": ({"resource": "nvidia_com_gpu", "container": "c"},) * 2,
    "kube_pod_container_info": tuple({"container": "c", "image_spec": f"web:{tag}"} for tag in (1, 2)),
    "kube_pod_labels": ({"label_team": "old"}, {"label_team": "new"}),
}
NAMES = [{"pod": "web-0"}, {"exported_pod": "web-0", "pod": "kube-state-metrics-7d4-x2k9p"}]


@pytest.mark.prometheus
@pytest.mark.parametrize("names", NAMES, ids=len)
@pytest.mark.parametrize("instances", [("a", "b"), ("a", "a")], ids=["restarted", "the-same"])
@pytest.mark.parametrize("is_twice", [False, True], ids=["alone", "beside-another"])
def test_facts_of_a_pod_that_moved_are_its_latest(
    metrics: Metrics, names: Mapping[str, str], instances: tuple[str, str], *, is_twice: bool
) -> None:
    """Also where kube-state-metrics was restarted meanwhile: its targets tell different values, not at once."""
    metrics.write(idle(), pod="web-0", UUID="GPU-a")
    spans = (DAY, DAY / 2), (DAY / 2, datetime.timedelta())
    for metric, both in MOVED.items():
        for labels, instance, (since, until) in zip(both, instances, spans, strict=True):
            for target in (instance, *(["c"] if is_twice else [])):
                metrics.write(
                    {metric: 1}, {**STATE, **names, **labels, "instance": target}, since=since, until=until
                )
    ((member,),) = (
        group.members for group in _recorded(metrics, asked=AskedFacts(frozenset({"team"}))).groups
    )
    assert _facts(metrics) == ("StatefulSet", "web", 1, "n1", "high", ("web:1", "web:2"))
    assert member.labels == {"team": "new"}


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "more", [{}, {"kube_pod_container_resource_requests": "c"}], ids=["alone", "and-asks"]
)
def test_facts_of_pods_with_claims_are_known(metrics: Metrics, more: Mapping[str, str]) -> None:
    """How many GPUs a claim is of is not recorded, so those with series count."""
    for device in ("GPU-a", "GPU-b"):
        metrics.write(idle(), pod="web-0", UUID=device)
    for metric, labels in {
        "kube_pod_info": {"node": "n1", "priority_class": "high"},
        "kube_pod_owner": {"owner_kind": "StatefulSet", "owner_name": "x", "owner_is_controller": "true"},
        "kube_pod_resourceclaim_info": {"claim_name": "gpu", "resourceclaim_template_name": "one-gpu"},
        **{metric: {"container": name, "resource": "nvidia_com_gpu"} for metric, name in more.items()},
    }.items():
        metrics.write({metric: 1}, {**STATE, **labels})
    assert _facts(metrics) == ("StatefulSet", "x", 2, "n1", "high", ())


@pytest.mark.parametrize(
    ("pod", "kind", "name"),
    [
        ("web-6d4cf56db6-bvx8k", "Deployment", "web"),
        ("db-0", "StatefulSet", "db"),
        ("train-x7k2p", "Job", "train"),
        ("bare", "Pod", "bare"),
    ],
)
def test_owner_by_name_guesses_by_the_suffix(pod: str, kind: str, name: str) -> None:
    """As controllers make names."""
    owner = owner_by_name(("team", pod))
    assert (owner.kind, owner.name, owner.namespace) == (kind, name, "team")


def test_recording_counts_a_replaced_pod_once() -> None:
    """In the step in which one pod ends and the next one starts; pods that run at once count each."""
    first, second = workload("first", ["##"]), workload("second", ["##"], first=1)
    assert recording(first, second).most_gpus == 1
    assert recording(first, second, workload("other", ["###"])).most_gpus == 2
    assert recording(workload("short", ["#"]), first).most_gpus == 2
