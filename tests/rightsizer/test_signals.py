"""What is made of series, by the real Prometheus: most of the ways in which evidence goes wrong (docs/bad-data.md)."""

import dataclasses
import datetime
import math

import pytest

from exporter.sampling import catalogue
from rightsizer.errors import EvidenceIncomplete, UsageError
from rightsizer.usage import exporter_counters
from rightsizer.usage.source_metrics import DCGM, DCGM_49
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import (
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
    once,
    rising,
    steadily,
    within,
)

pytestmark = pytest.mark.prometheus

MINUTE = datetime.timedelta(minutes=1)


@pytest.fixture
def metrics(prometheus: Prometheus) -> Metrics:
    """Series of this test's own."""
    return Metrics(prometheus)


def test_every_statistic_of_a_device(metrics: Metrics) -> None:
    """Means and peaks, in shares, bytes and watts."""
    half = within(720, 0, 80.0)
    metrics.write({UTIL: half, COPY: half, MEMORY: 1000, POWER: within(720, 0, 600, 100)}, pod="a")
    usage = metrics.usage("a")
    assert (usage.activity_mean, usage.activity_peak) == (near(0.4, abs=0.001), near(0.8))
    assert usage.traffic_peak == near(0.8)
    assert (usage.power_mean_w, usage.power_peak_w) == (near(350, abs=1), 600)
    assert usage.memory_peak_bytes == 1000 * 1024 * 1024
    assert (usage.coverage, usage.holes, usage.is_fresh, usage.invalid) == (1.0, 0, True, ())
    assert (usage.busy_s, usage.is_own) == (None, False)


# --- duplicate series


@pytest.mark.covers("P5")
def test_copies_from_a_second_prometheus_or_job_are_not_added(metrics: Metrics) -> None:
    """An HA pair, and a target that two jobs scrape, give what one gives."""
    for labels in ({"replica": "0"}, {"replica": "1"}, {"job": "again", "instance": "10.0.0.1:9400"}):
        metrics.write(idle(**{UTIL: 30}), pod="a", more=labels)
    usage = metrics.usage("a")
    assert (usage.activity_mean, usage.activity_peak) == (near(0.3), near(0.3))
    assert (usage.coverage, usage.samples_expected, usage.invalid) == (1.0, 1440, ())


@pytest.mark.covers("P5")
def test_a_copy_with_gaps_does_not_make_a_gap(metrics: Metrics) -> None:
    """Where one of a pair was down, the other one has the samples; nothing is said to be missing."""
    metrics.write(idle(), pod="a", replica="0", since=DAY, until=12 * HOUR)
    metrics.write(idle(), pod="a", replica="1", since=12 * HOUR)
    assert (metrics.usage("a").coverage, metrics.usage("a").holes) == (1.0, 0)


@pytest.mark.covers("P5")
@pytest.mark.parametrize(
    ("second", "invalid"), [(8, ()), (35, ("sources disagree",))], ids=["close", "apart"]
)
def test_two_exporters_that_disagree_are_doubted(
    metrics: Metrics, second: float, invalid: tuple[str, ...]
) -> None:
    """More than ten points apart over the last hour, and whose activity it is cannot be said."""
    metrics.write(idle(), pod="a", job="dcgm")
    metrics.write(
        {"DCGM_FI_DEV_GPU_UTIL_RATIO": second / 100, "DCGM_FI_DEV_FB_USED_BYTES": 1.0}, pod="a", job="ours"
    )
    usage = metrics.usage("a")
    assert usage.invalid == invalid
    assert usage.activity_peak == near(second / 100)


@pytest.mark.covers("P5")
def test_an_exporter_that_was_replaced_is_no_contradiction(metrics: Metrics) -> None:
    """The old one speaks of another time than the new one; together they cover the window."""
    metrics.write(idle(**{UTIL: 90}), pod="a", job="dcgm", until=8 * HOUR)
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.0}, pod="a", job="ours", since=8 * HOUR)
    usage = metrics.usage("a")
    assert (usage.invalid, usage.coverage, usage.holes) == ((), 1.0, 0)
    assert usage.activity_peak == near(0.9)


@pytest.mark.covers("P5")
def test_one_device_described_in_two_ways_is_one(metrics: Metrics) -> None:
    """Blanks in the model's name may be replaced by one exporter, and not by the other."""
    metrics.write(idle(), pod="a", job="dcgm", modelName="NVIDIA-H100-80GB-HBM3")
    metrics.write(idle(), pod="a", job="ours")
    assert metrics.usage("a").device.model == "NVIDIA H100 80GB HBM3"


# --- samples that are not there


@pytest.mark.covers("P6")
def test_a_value_that_lingers_is_not_fresh(metrics: Metrics) -> None:
    """Prometheus repeats the last value for five minutes; samples are counted instead."""
    metrics.write(idle(), pod="a")
    metrics.write(idle(), pod="gone", until=15 * MINUTE)
    assert metrics.usage("a").is_fresh
    assert not metrics.usage("gone").is_fresh


@pytest.mark.covers("P13")
@pytest.mark.parametrize("minutes", [25, 39, 59, 300])
def test_an_exporter_that_came_just_now_has_seen_little(metrics: Metrics, minutes: int) -> None:
    """However few samples there are of anything, they do not make up the window."""
    metrics.write(idle(), pod="a", since=minutes * MINUTE)
    assert metrics.usage("a").coverage <= 0.55


@pytest.mark.covers("P14")
def test_a_gap_is_a_hole(metrics: Metrics) -> None:
    """Each slot without any sample is counted; a slot with fewer lowers the coverage."""
    metrics.write(idle(), pod="whole")
    metrics.write(idle(), pod="a", until=12 * HOUR)
    metrics.write(idle(), pod="a", since=10 * HOUR)
    usage = metrics.usage("a")
    assert usage.coverage == near(22 / 24, abs=0.01)
    # 1440 samples, at least 20 to a slot: 72 slots of 20 minutes.
    assert usage.holes == near(6, abs=1)


@pytest.mark.covers("P18")
def test_jobs_of_two_intervals_are_each_whole(metrics: Metrics) -> None:
    """What one exporter is scraped every 15 s for is not missing from another that is every two minutes."""
    metrics.write(idle(), pod="dense", step_s=15, since=4 * HOUR)
    metrics.write(idle(), pod="sparse", step_s=120, since=4 * HOUR, job="other")
    usages = metrics.usages(4 * HOUR)
    ((dense,), (sparse,)) = usages[metrics.space, "dense"], usages[metrics.space, "sparse"]
    assert (dense.coverage, dense.samples_expected) == (1.0, 960)
    assert (sparse.coverage, sparse.holes, sparse.samples_expected) == (near(1.0), 0, 120)


@pytest.mark.covers("P18")
def test_a_thin_series_of_a_dense_job_is_partial(metrics: Metrics) -> None:
    """Of one job all are scraped equally often: fewer samples are missing ones."""
    metrics.write(idle(), pod="dense", step_s=60)
    metrics.write(idle(), pod="thin", step_s=240)
    assert metrics.usage("thin").coverage == near(0.25, abs=0.05)


# --- whose a series is


@pytest.mark.covers("P8")
def test_both_forms_of_naming_a_pod(metrics: Metrics) -> None:
    """A pod is found where the exporter's own labels were in the way, and where they were not."""
    metrics.write(idle(), pod="plain")
    metrics.write(
        idle(),
        pod="gpu-exporter-x",
        namespace="monitoring",
        exported_pod="moved",
        exported_namespace=metrics.space,
    )
    assert set(metrics.usages()) == {(metrics.space, "plain"), (metrics.space, "moved")}


@pytest.mark.covers("P8")
def test_series_that_name_the_exporters_only_are_refused(metrics: Metrics) -> None:
    """Where no pod that they name holds a GPU, they speak of the exporter's own, and would say that all is idle."""
    metrics.write(idle(), pod="dcgm-exporter-abc", namespace="monitoring")
    signal = metrics.signal()
    signal.expect([("team", "train-0")], [("team", "train-0")])
    with pytest.raises(EvidenceIncomplete, match=r"monitoring/dcgm-exporter-abc.*PodResources"):
        signal.usages(DAY, metrics.at)
    both = [("team", "train-0"), ("monitoring", "dcgm-exporter-abc")]
    signal.expect(both, both)
    assert len(signal.usages(DAY, metrics.at)) == 1


@pytest.mark.covers("P8")
def test_pods_that_began_just_now_need_not_be_named(metrics: Metrics) -> None:
    """As long as all are too young for it, other names and none at all say nothing against the series."""
    signal = metrics.signal()
    metrics.write(idle(), UUID="GPU-free")
    signal.expect([("team", "new-0")], [])
    assert signal.usages(DAY, metrics.at) == {}
    metrics.write(idle(), pod="ends-now")
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "ends-now")}
    signal.expect([("team", "new-0"), ("team", "old-0")], [("team", "old-0")])
    with pytest.raises(EvidenceIncomplete, match="none of the 1 pods"):
        signal.usages(DAY, metrics.at)


@pytest.mark.covers("P11")
def test_series_of_pods_that_have_gone_are_no_other_clusters(metrics: Metrics) -> None:
    """Where all that series name has stopped, they only lack the pods that there are."""
    metrics.write(idle(), pod="gone", until=HOUR)
    signal = metrics.signal()
    signal.expect([("team", "old-0")], [("team", "old-0")])
    assert set(signal.usages(DAY, metrics.at)) == {(metrics.space, "gone")}


@pytest.mark.covers("P9")
def test_devices_without_an_owner_show_per_node(metrics: Metrics) -> None:
    """What names no pod, or the exporter's, is seen and not owned; a GPU in instances is counted by them."""
    exporter = {"pod": "gpu-exporter-x", "namespace": "monitoring", "Hostname": "n1"}
    moved = {"exported_pod": "a", "exported_namespace": metrics.space}
    metrics.write(idle(), {**moved, **exporter}, UUID="GPU-0")
    metrics.write(idle(), exporter, UUID="GPU-1")
    metrics.write(idle(), UUID="GPU-2", hostname="n2")
    metrics.write(idle(), UUID="GPU-3", hostname="n2", pod="b")
    metrics.write(idle(), UUID="GPU-4", hostname="n2")
    metrics.write({MEMORY: 1}, UUID="GPU-4", hostname="n2", GPU_I_ID="1", pod="c", until=5 * MINUTE)
    metrics.write({MEMORY: 1}, UUID="GPU-4", hostname="n2", GPU_I_ID="2")
    sights = metrics.signal().nodes(metrics.at)
    assert {name: (sight.devices, sight.owned) for name, sight in sights.items()} == {
        "n1": (2, 1),
        "n2": (4, 2),
    }
    assert (sights["n1"].coverage, sights["n2"].coverage) == (1.0, near(0.5, abs=0.1))


@pytest.mark.covers("P9")
def test_only_pods_that_hold_gpus_own_devices(metrics: Metrics) -> None:
    """Where it is known who they are, a free GPU under the exporter's name is free."""
    metrics.write(idle(), UUID="GPU-1", pod="gpu-exporter-x", hostname="n1")
    signal = metrics.signal()
    assert signal.nodes(metrics.at)["n1"].owned == 1
    signal.expect([(metrics.space, "a")], [])
    assert signal.nodes(metrics.at)["n1"].owned == 0


@pytest.mark.covers("P11")
def test_a_gpu_that_changed_hands_counts_for_each_apart(metrics: Metrics) -> None:
    """What the pod before did is not what the pod after did."""
    metrics.write(idle(**{UTIL: 95}), pod="before", UUID="GPU-x", until=12 * HOUR)
    metrics.write(idle(), pod="after", UUID="GPU-x", since=12 * HOUR)
    assert metrics.usage("before").activity_peak == near(0.95)
    usage = metrics.usage("after")
    assert (usage.activity_peak, usage.coverage) == (0.0, near(0.5, abs=0.02))


# --- values that cannot be


@pytest.mark.covers("P15")
@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -1.0,
        100.5,
        808_334_905.0,
        2_147_483_632.0,
        4_294_967_295.0,
        9_223_372_036_854_775_794.0,
        140_737_488_355_328.0,
        1.4e16,
    ],
)
def test_one_impossible_sample_of_a_day_is_noticed(metrics: Metrics, value: float) -> None:
    """It is told, not clamped; and it does not become a peak."""
    metrics.write(idle(**{UTIL: once(value)}), pod="a")
    usage = metrics.usage("a")
    assert usage.invalid == (UTIL,)
    assert usage.activity_peak in {0.0, None}


@pytest.mark.covers("P15")
@pytest.mark.parametrize("metric", [COPY, POWER])
@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 2_147_483_632.0])
def test_so_is_one_of_the_second_signal(metrics: Metrics, metric: str, value: float) -> None:
    """Traffic and power stand behind every write."""
    metrics.write(idle(**{metric: once(value, 1.0)}), pod="a")
    assert metrics.usage("a").invalid == (metric,)


@pytest.mark.covers("P15")
def test_dcgm_blanks_of_memory_are_noticed(metrics: Metrics) -> None:
    """No GPU holds two petabytes."""
    metrics.write(idle(**{MEMORY: once(2_147_483_632.0, 500)}), pod="a")
    assert metrics.usage("a").invalid == (MEMORY,)


# --- shared GPUs and MIG


@dataclasses.dataclass(frozen=True)
class Shared:
    """What a GPU that several pods share did in each minute, in seconds.

    Attributes:
        busy: It worked.
        lost: For nobody who is known, for this reason.
        gap: Nobody knows.
    """

    busy: float
    lost: float = 0.0
    reason: str = "gone"
    gap: float = 0.0

    def write(self, metrics: Metrics, **pods: float) -> None:
        """Its gauges, the same for all pods, and everybody's counters."""
        device = {"UUID": "GPU-s", "hostname": "n1"}
        for pod, per_minute in pods.items():
            gauges = {**idle(**{UTIL: self.busy / 60 * 100}), exporter_counters.POD_MEMORY: 7e9}
            metrics.write({**gauges, exporter_counters.POD_BUSY: steadily(per_minute)}, device, pod=pod)
        counters = {
            exporter_counters.DEVICE_BUSY: steadily(self.busy),
            exporter_counters.GAPS: steadily(self.gap),
        }
        metrics.write(counters, device, namespace="", modelName="")
        lost = {exporter_counters.UNATTRIBUTED: steadily(self.lost)}
        metrics.write(lost, device, namespace="", modelName="", reason=self.reason)


@pytest.mark.covers("P16")
def test_on_a_shared_gpu_a_device_that_works_makes_everyone_busy(metrics: Metrics) -> None:
    """Without our counters nobody knows whose work it is."""
    for pod in ("a", "b"):
        metrics.write(idle(**{UTIL: 90}), pod=pod, UUID="GPU-s")
    assert [metrics.usage(pod).activity_peak for pod in ("a", "b")] == [near(0.9)] * 2
    assert not metrics.usage("a").is_own


@pytest.mark.covers("P16")
def test_our_counters_tell_the_pods_of_a_shared_gpu_apart(metrics: Metrics) -> None:
    """Each has its own work and memory; none of the device's peak is a pod's that did nothing."""
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


def test_on_a_shared_gpu_a_pods_line_is_its_own(metrics: Metrics) -> None:
    """It says what the mean says, whatever the device did."""
    Shared(30).write(metrics, a=30, b=0)
    assert _mean_of_line(metrics, "a", "b") == [near(0.5, rel=0.02), 0.0]


def test_where_only_the_whole_device_is_known_a_shared_gpu_has_no_line(metrics: Metrics) -> None:
    """Neither without counters nor where they miss something; a GPU of one's own has its line."""
    for pod in ("c", "d"):
        metrics.write(idle(**{UTIL: 90}), pod=pod, UUID="GPU-t")
    Shared(30, lost=1).write(metrics, a=29, b=0)
    assert _mean_of_line(metrics, "a", "b", "c", "d") == [None] * 4
    drawn = metrics.signal().profiles(DAY, metrics.at, usages={}, shared=())
    assert all(value == near(0.9) for value in drawn[metrics.space, "c"])


@pytest.mark.covers("P16")
@pytest.mark.parametrize("reason", ["gone", "shared", "off", "unsampled", "unnamed_pod", "a-new-one"])
def test_work_that_could_be_anybodys_is_everybodys(metrics: Metrics, reason: str) -> None:
    """Then what the device did counts for each of its pods."""
    Shared(30, lost=1, reason=reason).write(metrics, a=29, b=0)
    quiet = metrics.usage("b")
    assert not quiet.is_own
    assert quiet.busy_s == near(0.5 * 86_400, rel=0.01)
    assert quiet.activity_peak == near(0.5)


@pytest.mark.covers("P16")
@pytest.mark.parametrize("reason", ["host", "container", "mig"])
def test_work_that_is_no_pods_is_nobodys(metrics: Metrics, reason: str) -> None:
    """A display server or a MIG instance's pod is not this one."""
    Shared(30, lost=1, reason=reason).write(metrics, a=29, b=0)
    assert (metrics.usage("b").is_own, metrics.usage("b").activity_peak) == (True, 0.0)


@pytest.mark.covers("P16")
def test_time_of_which_nothing_is_known_is_unknown(metrics: Metrics) -> None:
    """In a gap anybody may have worked."""
    Shared(30, gap=1).write(metrics, a=30, b=0)
    quiet = metrics.usage("b")
    assert (quiet.is_own, quiet.busy_s) == (False, None)
    assert quiet.activity_peak == near(0.5)


@pytest.mark.covers("P16")
def test_counters_that_came_later_than_the_gauges_prove_nothing(metrics: Metrics) -> None:
    """An exporter that was put beside another an hour ago has not seen the day."""
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
def test_a_burst_between_two_samples_is_counted(metrics: Metrics) -> None:
    """Of a GPU that one pod holds, the gauge may miss what the counter does not."""
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
def test_the_last_look_knows_whose_work_it_is(metrics: Metrics) -> None:
    """What neighbours did since the plan was made is not held against a pod that did nothing."""
    Shared(30).write(metrics, a=30, b=0)
    looked = metrics.signal().activity(10 * MINUTE, metrics.at)
    ((busy,), (quiet,)) = looked[metrics.space, "a"], looked[metrics.space, "b"]
    assert (busy.activity_peak, quiet.activity_peak) == (near(0.5), 0.0)


def test_the_last_look_knows_of_which_minutes_nothing_is_known(metrics: Metrics) -> None:
    """Samples of its first minutes are none of its last ones."""
    metrics.write(idle(), pod="a")
    metrics.write(idle(), pod="gone", until=6 * MINUTE)
    looked = metrics.signal().activity(10 * MINUTE, metrics.at, with_coverage=True)
    ((whole,), (gone,)) = looked[metrics.space, "a"], looked[metrics.space, "gone"]
    assert (whole.is_fresh, whole.holes, whole.coverage) == (True, 0, 1.0)
    assert (gone.is_fresh, gone.holes) == (False, 1)


@pytest.mark.covers("P17")
def test_mig_instances_are_judged_by_their_own_activity(metrics: Metrics) -> None:
    """Utilization is not supported on them; without the engine's activity nothing is known."""
    for instance, pod in (("3", "a"), ("5", "b")):
        metrics.write({MEMORY: 1000}, pod=pod, UUID="GPU-m", GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb")
    metrics.write({ENGINE: 0.25}, pod="a", UUID="GPU-m", GPU_I_ID="3", GPU_I_PROFILE="1g.10gb")
    first, second = metrics.usage("a"), metrics.usage("b")
    assert (first.device.instance, first.device.instance_profile) == ("3", "1g.10gb")
    assert (first.activity_peak, second.activity_peak) == (0.25, None)
    assert second.coverage == 0.0


# --- which source there is


def test_names_from_4_9_are_found_out(metrics: Metrics) -> None:
    """They give the same in their units."""
    values = dict.fromkeys(("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_MEMORY_UTIL_RATIO"), 0.5)
    more = {"DCGM_FI_DEV_FB_USED_BYTES": 5e9, "DCGM_FI_DEV_BOARD_POWER_WATTS": 300.0}
    metrics.write({**values, **more}, pod="a", hostname="n1")
    usage = metrics.usage("a")
    assert (usage.activity_peak, usage.traffic_peak) == (0.5, 0.5)
    assert (usage.memory_peak_bytes, usage.power_peak_w) == (5e9, 300.0)
    assert metrics.signal().source(metrics.at) == "dcgm-4.9"


def test_a_fleet_with_names_of_both_kinds(metrics: Metrics) -> None:
    """Half of it is of one version, half of the other; each is found."""
    metrics.write(idle(**{UTIL: 40}), pod="old")
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.6}, pod="new")
    assert metrics.usage("old").activity_peak == near(0.4)
    assert metrics.usage("new").activity_peak == near(0.6)
    assert metrics.signal().source(metrics.at) == "dcgm, dcgm-4.9"


def test_a_source_can_be_forced(metrics: Metrics) -> None:
    """Then no other is looked at; and that it is not there is said."""
    metrics.write(idle(**{UTIL: 40}), pod="a")
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.6}, pod="b")
    assert set(metrics.usages(signals="dcgm")) == {(metrics.space, "a")}
    assert set(metrics.usages(signals="dcgm-4.9")) == {(metrics.space, "b")}
    with pytest.raises(
        EvidenceIncomplete, match=r"not gpu_busy_seconds_total and gpu_pod_busy_seconds_total"
    ):
        metrics.usages(signals="gpu-exporter")


def test_a_forced_source_that_is_not_there_names_what_is(metrics: Metrics) -> None:
    """So that the flag can be left out."""
    metrics.write(idle(), pod="a")
    with pytest.raises(
        EvidenceIncomplete, match=r"none of DCGM_FI_DEV_GPU_UTIL_RATIO, .*it does hold DCGM_FI_DEV_FB"
    ):
        metrics.usages(signals="dcgm-4.9")


def test_a_source_that_does_not_exist_is_refused(metrics: Metrics) -> None:
    """With those that do."""
    with pytest.raises(UsageError, match=r"neither one of auto, dcgm, dcgm-4.9, gpu-exporter, nor a file"):
        metrics.signal("dcmg")


def test_series_that_stopped_hours_ago_are_stale_not_absent(metrics: Metrics) -> None:
    """An exporter that is down now has been there."""
    metrics.write(idle(), pod="a", until=3 * HOUR)
    assert not metrics.usage("a").is_fresh


def test_our_tables_name_what_the_exporter_serves() -> None:
    """Under both generations of names, with units that the factors turn into ours."""
    rows = {metric.dcgm.name: metric for metric in catalogue.metrics()}
    units = {"%": 0.01, "ratio": 1.0, "MiB": 1 << 20, "bytes": 1.0, "W": 1.0}
    assert len(DCGM.metrics) == len(DCGM_49.metrics)
    for older, newer in zip(DCGM.metrics, DCGM_49.metrics, strict=True):
        metric = rows[older.name]
        assert metric.dcgm_49 is not None
        assert (metric.dcgm_49.name, older.kind, older.alike) == (newer.name, newer.kind, newer.alike)
        assert (units[metric.dcgm.unit], units[metric.dcgm_49.unit]) == (older.scale, newer.scale)
    assert set(exporter_counters.METRICS) <= rows.keys()
