"""Coverage of the window, on a real Prometheus: gaps, stale series, scrape intervals."""

import datetime
import itertools
import random
from collections.abc import Iterable

import pytest

from rightsizer.model import Slot
from rightsizer.usage.sample_coverage import slot_length
from rightsizer.usage.scrape_intervals import expected_samples
from simulator.series_store import Series
from tests.rightsizer.metrics import DAY, H100, HOUR, UTIL, Metrics, idle, near

pytestmark = pytest.mark.prometheus


MINUTE = datetime.timedelta(minutes=1)

_OF_NO_POD = dict.fromkeys(("namespace", "UUID", "modelName"), "")


@pytest.mark.covers("P5")
def test_coverage_gap_in_one_copy_is_no_gap(metrics: Metrics) -> None:
    """If one Prometheus of a pair was down, the other one has the samples."""
    metrics.write(idle(), pod="a", replica="0", since=DAY, until=12 * HOUR)
    metrics.write(idle(), pod="a", replica="1", since=12 * HOUR)
    assert (metrics.usage("a").coverage, metrics.usage("a").holes) == (1.0, 0)


@pytest.mark.covers("P6")
def test_coverage_stale_series_is_not_fresh(metrics: Metrics) -> None:
    """Prometheus repeats the last value for five minutes, so samples are counted instead."""
    metrics.write(idle(), pod="a")
    metrics.write(idle(), pod="gone", until=15 * MINUTE)
    assert metrics.usage("a").is_fresh
    assert not metrics.usage("gone").is_fresh


@pytest.mark.covers("P13")
@pytest.mark.parametrize("minutes", [25, 39, 59, 300])
def test_coverage_new_exporter_is_low(metrics: Metrics, minutes: int) -> None:
    """Samples of the last minutes never cover the window, however dense they are."""
    metrics.write(idle(), pod="a", since=minutes * MINUTE)
    assert metrics.usage("a").coverage <= 0.55


def test_coverage_of_the_last_minutes_is_not_that_of_a_short_window(metrics: Metrics) -> None:
    """However few slots it has."""
    metrics.write(idle(), pod="a", since=5 * MINUTE)
    assert metrics.usage("a", 15 * MINUTE).coverage <= 0.55


@pytest.mark.covers("P14")
def test_coverage_gap_lowers_coverage_and_counts_slots(metrics: Metrics) -> None:
    """Each slot without any sample is counted; a slot with fewer samples lowers the coverage."""
    metrics.write(idle(), pod="whole")
    metrics.write(idle(), pod="a", until=12 * HOUR)
    metrics.write(idle(), pod="a", since=10 * HOUR)
    usage = metrics.usage("a")
    assert usage.coverage == near(22 / 24, abs=0.01)
    # 1440 samples, at least 20 to a slot: 72 slots of 20 minutes.
    assert usage.holes == near(6, abs=1)


@pytest.mark.covers("P18")
def test_coverage_two_scrape_intervals_are_both_full(metrics: Metrics) -> None:
    """Each job is compared with its own densest series."""
    metrics.write(idle(), pod="dense", step_s=15, since=4 * HOUR)
    metrics.write(idle(), pod="sparse", step_s=120, since=4 * HOUR, job="other")
    usages = metrics.usages(4 * HOUR)
    ((dense,), (sparse,)) = usages[metrics.space, "dense"], usages[metrics.space, "sparse"]
    assert (dense.coverage, dense.samples_expected) == (1.0, 960)
    assert (sparse.coverage, sparse.holes, sparse.samples_expected) == (near(1.0), 0, 120)


@pytest.mark.covers("P18")
def test_coverage_sparse_series_of_a_dense_job_is_partial(metrics: Metrics) -> None:
    """All series of one job are scraped equally often, so fewer samples are gaps."""
    metrics.write(idle(), pod="dense", step_s=60)
    metrics.write(idle(), pod="thin", step_s=240)
    assert metrics.usage("thin").coverage == near(0.25, abs=0.05)


@pytest.mark.covers("P18")
@pytest.mark.parametrize("has_up", [True, False])
def test_coverage_pools_of_one_job_have_their_own_scrape_intervals(metrics: Metrics, *, has_up: bool) -> None:
    """Also where an exporter moved, or lost some samples; of the last pod every second sample is lost."""
    metrics.write(idle(), pod="dense", step_s=15, instance="10.0.0.1:9400")
    for place, step_s in ((1, 15), (3, 60), (4, 60)) if has_up else ():
        metrics.write({"up": 1}, _OF_NO_POD, step_s=step_s, instance=f"10.0.0.{place}:9400")
    for pod, begins in (("sparse", (DAY, HOUR)), ("young", (5 * HOUR,)), ("other", (20 * MINUTE,))):
        for number, (since, until) in enumerate(itertools.pairwise((*begins, 0 * HOUR))):
            target = f"10.0.0.{3 + (len(begins) + number) % 2}:9400"
            metrics.write(idle(), pod=pod, since=since, until=until, step_s=60, instance=target)
    metrics.write(idle(), pod="thin", step_s=120, instance="10.0.0.3:9400")
    found = {pod: usage for (_, pod), (usage,) in metrics.usages().items()}
    assert (found["sparse"].coverage, found["sparse"].holes) == (near(1.0, abs=0.005), 0)
    assert (found["young"].coverage, found["other"].coverage) == (
        near(5 / 24, abs=0.01),
        near(1 / 72, abs=0.005),
    )
    assert all(found[pod].is_fresh for pod in ("dense", "sparse", "young", "other"))
    assert found["thin"].coverage == near(0.5, abs=0.02)
    pods = {(metrics.space, pod): metrics.at - DAY for pod in ("dense", "sparse")}
    histories = metrics.signal().histories(pods, DAY, metrics.at, threshold=0.01)
    assert {bytes(history.slots).count(Slot.IDLE) for history in histories.values()} == {288}


@pytest.mark.covers("P18")
@pytest.mark.parametrize("is_regular", [False, True])
def test_coverage_of_an_exporter_that_loses_samples_of_all_its_pods_is_partial(
    metrics: Metrics, *, is_regular: bool
) -> None:
    """By chance, or regularly after two hours without loss: others of its job have more; it has no longer interval."""
    metrics.write(idle(), pod="whole", step_s=15, instance="10.0.0.1:9400")
    every = range(5760)
    kept = [*every[:480], *every[480::4]] if is_regular else sorted(random.Random(7).sample(every, 1920))
    _write_some(metrics, "a", kept)
    assert metrics.usage("a").coverage < 0.6


@pytest.mark.covers("P18")
@pytest.mark.parametrize("lost_by", ["one", "all"])
def test_coverage_of_samples_that_are_lost_regularly_is_partial(metrics: Metrics, lost_by: str) -> None:
    """Every third one, of one exporter for the whole day, or of all for half of it: each was scraped, as `up` tells."""
    every = range(5760)
    kept = [place for place in every if place % 3 or (lost_by == "all" and place < len(every) / 2)]
    for number, pod in enumerate(("a", "b")):
        _write_some(metrics, pod, every if (pod, lost_by) == ("b", "one") else kept)
        metrics.write({"up": 1}, _OF_NO_POD, step_s=15, instance=f"10.0.0.{number}:9400")
    assert metrics.usage("a").coverage == near(2 / 3 if lost_by == "one" else 5 / 6, abs=0.02)


def test_coverage_of_a_job_without_instances_asks_up_all_the_same(metrics: Metrics) -> None:
    """A store may drop that label of all series; the thin pod then is of the same target as the dense one."""
    metrics.write(idle(), pod="dense", step_s=15, until=12 * HOUR)
    metrics.write(idle(), pod="dense", step_s=60, since=12 * HOUR)
    metrics.write({"up": 1}, _OF_NO_POD, step_s=15)
    assert metrics.usage("dense").coverage == near(0.625, abs=0.02)


def _write_some(metrics: Metrics, pod: str, kept: Iterable[int]) -> None:
    """Samples of an idle pod at some of 5760 instants, of which the last is the end."""
    end = round(metrics.at.timestamp())
    seconds = tuple([end - (5759 - place) * 15 for place in kept])
    labels = {"namespace": metrics.space, "pod": pod, "UUID": f"GPU-{pod}", "modelName": H100}
    target = {"job": metrics.space, "instance": f"10.0.0.{'ab'.index(pod)}:9400"}
    of = {"__name__": UTIL, **metrics.labels, **labels, **target}
    metrics.prometheus.write([Series(of, seconds, [0.0] * len(seconds))])


def test_activity_with_coverage_counts_minutes_without_samples(metrics: Metrics) -> None:
    """Samples of the first minutes do not cover the last ones."""
    metrics.write(idle(), pod="a")
    metrics.write(idle(), pod="gone", until=6 * MINUTE)
    looked = metrics.signal().activity(10 * MINUTE, metrics.at, with_coverage=True)
    ((whole,), (gone,)) = looked[metrics.space, "a"], looked[metrics.space, "gone"]
    assert (whole.is_fresh, whole.holes, whole.coverage) == (True, 0, 1.0)
    assert (gone.is_fresh, gone.holes) == (False, 1)


@pytest.mark.parametrize(("before_s", "after_s"), [(15, 60), (60, 15), (15, 120), (180, 15), (60, 5)])
def test_coverage_after_another_scrape_interval_is_full(
    metrics: Metrics, before_s: int, after_s: int
) -> None:
    """However much longer or shorter it is, nothing is missing."""
    for pod in ("a", "b"):
        metrics.write(idle(), pod=pod, until=3 * HOUR, step_s=before_s)
        metrics.write(idle(), pod=pod, since=3 * HOUR, step_s=after_s)
    usage = metrics.usage("a")
    assert (usage.coverage, usage.holes, usage.is_fresh) == (near(1.0, abs=0.03), 0, True)


def test_coverage_outage_of_everything_is_a_gap(metrics: Metrics) -> None:
    """Nobody has more samples, but there were more before and after it."""
    for pod in ("a", "b"):
        metrics.write(idle(), pod=pod, until=3 * HOUR, step_s=15)
        metrics.write(idle(), pod=pod, since=3 * HOUR - 13 * MINUTE, step_s=15)
    usage = metrics.usage("a")
    assert usage.coverage == near(1 - 13 / 1440, abs=0.004)
    assert usage.coverage < 0.997


def test_coverage_of_next_to_no_samples_is_a_gap(metrics: Metrics) -> None:
    """However long they are as few, a burst between them would not be seen."""
    for pod in ("a", "b"):
        metrics.write(idle(), pod=pod, until=6 * HOUR, step_s=15)
        metrics.write(idle(), pod=pod, since=6 * HOUR, step_s=300)
    usage = metrics.usage("a")
    assert usage.coverage == near(0.775, abs=0.03)


def test_coverage_of_samples_at_the_edges_of_slots_is_full(metrics: Metrics) -> None:
    """Those that Prometheus 2 would count twice, as they are aligned, are no measure for others."""
    metrics.write(idle(), pod="aligned", step_s=60)
    for pod in ("b", "c"):
        metrics.write(idle(), pod=pod, step_s=60, until=datetime.timedelta(seconds=7))
    assert min(metrics.usage(pod).coverage for pod in ("aligned", "b", "c")) > 0.999


@pytest.mark.parametrize(
    ("counts", "lacks"),
    [
        pytest.param([20] * 144 + [5] * 144, 0, id="another-interval"),
        pytest.param([3] * 100 + [20] * 100, 0, id="the-other-way-round"),
        pytest.param([20, 19, 21] * 40, 0, id="by-chance"),
        pytest.param([20] * 100 + [3] * 11, 11, id="too-short-to-be-one"),
        pytest.param([20] * 100 + [1] * 100, 100, id="next-to-none"),
        pytest.param(([20] + [2] * 8) * 10, 80, id="flapping"),
        pytest.param([20] * 60 + [4, 9, 2, 7, 1, 8] * 10, 60, id="lost-here-and-there"),
        pytest.param([20] * 60 + [0] * 60, 60, id="outage"),
    ],
)
def test_expected_samples_of_cells_that_everything_lacks(counts: list[int], lacks: int) -> None:
    """Fewer are no gap only where they are as many in each of a dozen cells."""
    expected = expected_samples(counts)
    assert sum(count < full for count, full in zip(counts, expected, strict=True)) == lacks


@pytest.mark.parametrize(
    ("window", "samples", "minutes"),
    [(DAY, 5760, 15), (25 * HOUR, 6000, 15.6), (7 * DAY, 40_320, 105), (45 * MINUTE, 45, 22.5)],
)
def test_slot_length_is_a_part_of_the_window(
    window: datetime.timedelta, samples: int, minutes: float
) -> None:
    """A 96th where there are samples enough, at most a half."""
    assert slot_length(window, samples) / MINUTE == near(minutes, rel=0.01)
