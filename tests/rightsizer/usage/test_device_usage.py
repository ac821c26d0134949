"""Usage of each device by each pod, on a real Prometheus: copies, owners, impossible values, MIG."""

import datetime
import math
from collections.abc import Mapping

import pytest

from rightsizer.evidence.slot_table import KeptTables
from rightsizer.kube.pod_names import ORDINALS
from rightsizer.model import Slot
from rightsizer.usage.active_replicas import ReplicaQuery
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
    within,
)

pytestmark = pytest.mark.prometheus


MINUTE = datetime.timedelta(minutes=1)


def test_usages_statistics_are_shares_bytes_and_watts(metrics: Metrics) -> None:
    """Means and peaks of each quantity."""
    half = within(720, 0, 80.0)
    metrics.write({UTIL: half, COPY: half, MEMORY: 1000, POWER: within(720, 0, 600, 100)}, pod="a")
    usage = metrics.usage("a")
    assert (usage.activity_mean, usage.activity_peak) == (near(0.4, abs=0.001), near(0.8))
    assert usage.traffic_peak == near(0.8)
    assert (usage.power_mean_w, usage.power_peak_w) == (near(350, abs=1), 600)
    assert usage.memory_peak_bytes == 1000 * 1024 * 1024
    assert (usage.coverage, usage.holes, usage.is_fresh, usage.invalid) == (1.0, 0, True, ())
    assert (usage.busy_s, usage.is_own) == (None, False)


@pytest.mark.covers("P5")
def test_usages_copies_of_a_series_count_once(metrics: Metrics) -> None:
    """From a second Prometheus of an HA pair, or from a second scrape job."""
    for labels in ({"replica": "0"}, {"replica": "1"}, {"job": "again", "instance": "10.0.0.1:9400"}):
        metrics.write(idle(**{UTIL: 30}), pod="a", more=labels)
    usage = metrics.usage("a")
    assert (usage.activity_mean, usage.activity_peak) == (near(0.3), near(0.3))
    assert (usage.coverage, usage.samples_expected, usage.invalid) == (1.0, 1440, ())


@pytest.mark.covers("P5")
@pytest.mark.parametrize(
    ("second", "invalid"), [(8, ()), (35, ("sources disagree",))], ids=["close", "apart"]
)
def test_usages_sources_more_than_ten_points_apart_are_invalid(
    metrics: Metrics, second: float, invalid: tuple[str, ...]
) -> None:
    """Means of the last hour are compared."""
    metrics.write(idle(), pod="a", job="dcgm")
    metrics.write(
        {"DCGM_FI_DEV_GPU_UTIL_RATIO": second / 100, "DCGM_FI_DEV_FB_USED_BYTES": 1.0}, pod="a", job="ours"
    )
    usage = metrics.usage("a")
    assert usage.invalid == invalid
    assert usage.activity_peak == near(second / 100)


@pytest.mark.covers("P5")
def test_usages_replaced_exporter_is_no_disagreement(metrics: Metrics) -> None:
    """The old and the new exporter have samples of different times; together they cover the window."""
    metrics.write(idle(**{UTIL: 90}), pod="a", job="dcgm", until=8 * HOUR)
    metrics.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.0}, pod="a", job="ours", since=8 * HOUR)
    usage = metrics.usage("a")
    assert (usage.invalid, usage.coverage, usage.holes) == ((), 1.0, 0)
    assert usage.activity_peak == near(0.9)


@pytest.mark.parametrize(("moves", "addresses"), [(1, 9), (4, 9), (2, 2), (7, 2), (5, 3)])
def test_usages_mean_of_targets_that_follow_each_other_is_that_of_all_samples(
    metrics: Metrics, moves: int, addresses: int
) -> None:
    """Each restart of the exporter gives it another address, or an earlier one; the first saw an hour of work."""
    part = (DAY - 2 * MINUTE) / (moves + 1)
    values = idle(**{UTIL: within(1441, 1380, 80), POWER: within(1441, 1380, 600, 100)})
    for number in range(moves + 1):
        since, target = DAY - number * part, f"10.0.0.{number % addresses}:9400"
        metrics.write(values, pod="a", since=since, until=since - part, instance=target)
        metrics.write(idle(), pod="b", since=since, until=since - part, instance=target)
    usage = metrics.usage("a")
    assert usage.activity_mean == near(0.8 / 24, abs=0.002)
    assert usage.activity_floor == usage.activity_mean
    assert usage.power_mean_w == near(100 + 500 / 24, abs=1)
    assert (usage.invalid, usage.holes, usage.coverage) == ((), 0, near(1.0, abs=0.01))


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"modelName": "NVIDIA-H100"}, {"modelName": "NVIDIA H100 80GB HBM3"}),
        ({"cluster": ""}, {"cluster": "east"}),
        ({"pod": "a"}, {"exported_pod": "a", "exported_namespace": "space", "pod": "exporter"}),
    ],
    ids=["model", "cluster", "pod"],
)
def test_usages_mean_of_series_that_other_labels_continue_is_that_of_all_samples(
    metrics: Metrics, before: Mapping[str, str], after: Mapping[str, str], *, is_kept: bool
) -> None:
    """As of an exporter that is upgraded, or scraped in another way, at the same address."""
    values = idle(**{UTIL: within(1441, 1380, 80)})
    own = {"pod": "a", "UUID": "GPU-a", "instance": "10.0.0.1:9400"}
    metrics.write(values, {**own, **before}, until=12 * HOUR)
    more = {name: metrics.space if text == "space" else text for name, text in after.items()}
    metrics.write(values, {**own, **more}, since=12 * HOUR)
    usage = metrics.usage("a", tables=KeptTables(print, print, verified_every=9) if is_kept else None)
    assert usage.activity_mean == near(0.8 / 24, abs=0.002)


@pytest.mark.covers("P5")
@pytest.mark.parametrize("doubled", [DAY, DAY / 2, DAY / 8])
@pytest.mark.parametrize("lost_min", [0, 400])
def test_usages_mean_of_targets_at_the_same_time_is_the_highest(
    metrics: Metrics, doubled: datetime.timedelta, lost_min: int
) -> None:
    """Through the whole window or a part of it, also if the first one is lost for a while."""
    for until, since in ((lost_min * MINUTE + HOUR, DAY), (0 * HOUR, HOUR)):
        metrics.write(idle(**{UTIL: 10}), pod="a", since=since, until=until, instance="10.0.0.1:9400")
    metrics.write(idle(**{UTIL: 40}), pod="a", since=doubled, instance="10.0.0.2:9400")
    assert metrics.usage("a").activity_mean == near(0.4)


@pytest.mark.covers("P5")
@pytest.mark.parametrize("step_s", [60, 300, 600, 900])
@pytest.mark.parametrize("pattern", ["x", "AxB", "ABx", "AxBx", "AAxxBB"])
def test_usages_copies_that_lose_samples_in_turn_are_no_successors(
    metrics: Metrics, step_s: int, pattern: str
) -> None:
    """Both have samples in some cells, or are scraped so rarely that they never have in the same one."""
    part, window = max(5 * MINUTE, step_s * MINUTE / 60), 6 * HOUR
    for copy, value in (("A", 0), ("B", 40)):
        own = {"pod": "a", "instance": f"10.0.0.{copy}:9400"}
        offset = datetime.timedelta(seconds=step_s // 2) * (copy == "B")
        for number in range(window // part):
            if pattern[number % len(pattern)] in {copy, "x"}:
                until = number * part + offset
                metrics.write(idle(**{UTIL: value}), own, since=until + part, until=until, step_s=step_s)
    usage = metrics.usage("a", window)
    assert (usage.activity_mean, usage.invalid) == (near(0.4), ("sources disagree",))


def test_usages_mean_of_a_short_window_is_the_same_after_a_long_one(metrics: Metrics) -> None:
    """A target that ended before the short window is no part of it; the others follow each other."""
    for until, target, value in ((3 * HOUR, "1", 0), (30 * MINUTE, "2", 80), (0 * HOUR, "3", 0)):
        since = {"1": DAY, "2": 3 * HOUR, "3": 30 * MINUTE}[target]
        metrics.write(idle(**{UTIL: value}), pod="a", since=since, until=until, instance=target)
    signal = metrics.signal()
    (day,), (hour,) = (signal.usages(window, metrics.at)[metrics.space, "a"] for window in (DAY, HOUR))
    assert day.activity_mean == near(0.8 * 2.5 / 24, abs=0.002)
    assert hour.activity_mean == near(0.4, abs=0.01)


def test_usages_targets_that_followed_each_other_a_moment_ago_do_not_disagree(metrics: Metrics) -> None:
    """One saw the end of the work, the other what came after it."""
    metrics.write(idle(**{UTIL: within(1500, 20, 90)}), pod="a", until=20 * MINUTE, instance="10.0.0.1:9400")
    metrics.write(idle(), pod="a", since=20 * MINUTE, instance="10.0.0.2:9400")
    assert metrics.usage("a").invalid == ()


@pytest.mark.covers("P5")
def test_usages_two_spellings_of_a_model_are_one_device(metrics: Metrics) -> None:
    """One exporter replaces blanks in the model's name, the other does not."""
    metrics.write(idle(), pod="a", job="dcgm", modelName="NVIDIA-H100-80GB-HBM3")
    metrics.write(idle(), pod="a", job="ours")
    assert metrics.usage("a").device.model == "NVIDIA H100 80GB HBM3"


@pytest.mark.covers("P8")
def test_usages_exported_and_plain_pod_labels_are_read(metrics: Metrics) -> None:
    """With honor_labels and without."""
    metrics.write(idle(), pod="plain")
    metrics.write(
        idle(),
        pod="gpu-exporter-x",
        namespace="monitoring",
        exported_pod="moved",
        exported_namespace=metrics.space,
    )
    assert set(metrics.usages()) == {(metrics.space, "plain"), (metrics.space, "moved")}


EXPORTER = {"pod": "gpu-exporter-x", "namespace": "monitoring"}


@pytest.mark.covers("P8")
@pytest.mark.parametrize(
    ("pod", "namespace", "more"),
    [
        pytest.param("exported_pod", "exported_namespace", {}, id="only-exported"),
        pytest.param(
            "exported_pod", "namespace", {"pod": EXPORTER["pod"]}, id="exported-pod-beside-namespace"
        ),
        pytest.param("exported_pod", "namespace", {}, id="only-exported-pod-and-namespace"),
        pytest.param(
            "pod", "exported_namespace", {"namespace": "monitoring"}, id="pod-beside-exported-namespace"
        ),
        pytest.param("pod", "exported_namespace", {}, id="only-pod-and-exported-namespace"),
    ],
)
@pytest.mark.parametrize("is_alone", [True, False])
def test_series_whose_labels_are_of_different_places_are_found(
    metrics: Metrics, pod: str, namespace: str, more: dict[str, str], *, is_alone: bool
) -> None:
    """As where a scrape configuration drops some of its own labels; with and without pods of the usual forms."""
    odd = {"pod": "", "namespace": "", **more, pod: "odd-0", namespace: metrics.space}
    metrics.write(idle(**{UTIL: 30}), odd, UUID="GPU-odd", Hostname="n1")
    if not is_alone:
        usual = {"exported_pod": "moved-0", "exported_namespace": metrics.space, "Hostname": "n1"}
        metrics.write(idle(**{UTIL: 30}), {**EXPORTER, **usual}, UUID="GPU-moved")
        metrics.write(idle(**{UTIL: 30}), pod="plain-0", Hostname="n1")
    keys = [(metrics.space, name) for name in ("odd-0", *(() if is_alone else ("moved-0", "plain-0")))]
    signal = metrics.signal()
    signal.expect(keys, keys)
    found = signal.usages(DAY, metrics.at)
    assert set(found) == set(keys)
    assert all(usage.activity_peak == near(0.3) for (usage,) in found.values())
    assert set(signal.usages(HOUR, metrics.at, of=keys)) == set(keys)
    histories = signal.histories(dict.fromkeys(keys, metrics.at - DAY), DAY, metrics.at, threshold=0.01)
    assert {key: set(history.slots) for key, history in histories.items()} == {
        key: {Slot.BUSY} for key in keys
    }
    replicas = [ReplicaQuery(name, metrics.space, ORDINALS, {name: metrics.at - DAY}) for _, name in keys]
    assert {found.busy[-1] for found in signal.concurrency(replicas, metrics.at).values()} == {1}
    assert signal.nodes(metrics.at)["n1"].owned == len(keys)


@pytest.mark.covers("P11")
def test_usages_device_of_two_pods_in_turn_counts_for_each(metrics: Metrics) -> None:
    """Activity of the first pod is not the second one's."""
    metrics.write(idle(**{UTIL: 95}), pod="before", UUID="GPU-x", until=12 * HOUR)
    metrics.write(idle(), pod="after", UUID="GPU-x", since=12 * HOUR)
    assert metrics.usage("before").activity_peak == near(0.95)
    usage = metrics.usage("after")
    assert (usage.activity_peak, usage.coverage) == (0.0, near(0.5, abs=0.02))


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
def test_usages_one_impossible_activity_sample_is_invalid(metrics: Metrics, value: float) -> None:
    """It is reported, not clamped, and does not become a peak."""
    metrics.write(idle(**{UTIL: once(value)}), pod="a")
    usage = metrics.usage("a")
    assert usage.invalid == (UTIL,)
    assert usage.activity_peak in {0.0, None}


@pytest.mark.covers("P15")
@pytest.mark.parametrize("metric", [COPY, POWER])
@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 2_147_483_632.0])
def test_usages_one_impossible_traffic_or_power_sample_is_invalid(
    metrics: Metrics, metric: str, value: float
) -> None:
    """Every action depends on traffic and power, too."""
    metrics.write(idle(**{metric: once(value, 1.0)}), pod="a")
    assert metrics.usage("a").invalid == (metric,)


@pytest.mark.covers("P15")
def test_usages_blank_memory_value_is_invalid(metrics: Metrics) -> None:
    """No GPU has two petabytes of memory."""
    metrics.write(idle(**{MEMORY: once(2_147_483_632.0, 500)}), pod="a")
    assert metrics.usage("a").invalid == (MEMORY,)


@pytest.mark.covers("P17")
def test_usages_mig_instances_have_their_own_activity(metrics: Metrics) -> None:
    """They have no utilization, only engine activity; without it, activity is unknown."""
    for instance, pod in (("3", "a"), ("5", "b")):
        metrics.write({MEMORY: 1000}, pod=pod, UUID="GPU-m", GPU_I_ID=instance, GPU_I_PROFILE="1g.10gb")
    metrics.write({ENGINE: 0.25}, pod="a", UUID="GPU-m", GPU_I_ID="3", GPU_I_PROFILE="1g.10gb")
    first, second = metrics.usage("a"), metrics.usage("b")
    assert (first.device.instance, first.device.instance_profile) == ("3", "1g.10gb")
    assert (first.activity_peak, second.activity_peak) == (0.25, None)
    assert second.coverage == 0.0


def test_usages_forged_activity_beside_an_idle_device_is_no_spinning(metrics: Metrics) -> None:
    """The highest activity counts as work, but only what every source shows counts as spinning."""
    metrics.write(idle(), pod="a")
    metrics.write({ENGINE: 0.99}, pod="a", job="forger")
    usage = metrics.usage("a")
    assert (usage.activity_mean, usage.activity_floor) == (near(0.99), 0)
    metrics.write({UTIL: 100, ENGINE: 0.99}, pod="b")
    assert metrics.usage("b").activity_floor == near(0.99)
