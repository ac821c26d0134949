"""Busy, idle and unknown slots of pods, on a real Prometheus."""

import datetime

import pytest

from rightsizer.model import Slot, WorkLevel
from rightsizer.usage import exporter_counters
from tests.rightsizer.metrics import COPY, DAY, HOUR, POWER, UTIL, Metrics, rising, steadily, within

pytestmark = pytest.mark.prometheus


LETTERS = {Slot.IDLE: ".", Slot.BUSY: "#", Slot.UNKNOWN: "?"}


def _history(
    metrics: Metrics,
    pod: str,
    *others: str,
    span: datetime.timedelta = DAY,
    age: datetime.timedelta = 9 * DAY,
) -> str:
    """One letter for each hour (of a day, twelve slots of five minutes: the strongest); others are asked with it."""
    pods = {(metrics.space, name): metrics.at - age for name in (pod, *others)}
    history = metrics.signal().histories(pods, span, metrics.at, threshold=0.01)[metrics.space, pod]
    letters = "".join(LETTERS[Slot(slot)] for slot in history.slots)
    each = round(3600 / history.slot_s)
    return "".join(
        next(letter for letter in "#?." if letter in letters[max(end - each, 0) : end])
        for end in range(len(letters), 0, -each)
    )[::-1]


def test_history_slots_are_busy_idle_or_unknown(metrics: Metrics) -> None:
    """By the highest sample of each slot; without samples it is unknown."""
    metrics.write({UTIL: within(1197, 1083, 5)}, pod="a", until=6 * HOUR)
    metrics.write({UTIL: 0.0}, pod="a", since=3 * HOUR)
    assert _history(metrics, "a") == "....##............???..."


@pytest.mark.parametrize(("before_s", "after_s"), [(15, 120), (120, 15)])
def test_history_after_another_scrape_interval_is_known(
    metrics: Metrics, before_s: int, after_s: int
) -> None:
    """Fewer samples are no gap where everybody has as few from then on."""
    metrics.write({UTIL: 0.0}, pod="a", until=6 * HOUR, step_s=before_s)
    metrics.write({UTIL: 0.0}, pod="a", since=6 * HOUR, step_s=after_s)
    assert _history(metrics, "a") == "." * 24


def test_history_of_a_job_with_a_longer_scrape_interval_is_known(metrics: Metrics) -> None:
    """Each job has its own; another job's pods are no reason to miss samples of this one's."""
    metrics.write({UTIL: 0.0}, pod="a", step_s=60, job="slow")
    metrics.write({UTIL: 0.0}, pod="b", step_s=15, job="quick")
    assert _history(metrics, "a", "b") == _history(metrics, "b", "a") == "." * 24


def test_history_is_known_where_one_of_its_jobs_has_samples(metrics: Metrics) -> None:
    """Not where both lack some, nor by a job that has few of its own."""
    metrics.write({UTIL: 0.0}, pod="b", step_s=15, job="quick")
    metrics.write({UTIL: 0.0}, pod="a", step_s=60, job="slow", until=6 * HOUR)
    metrics.write({UTIL: 0.0}, pod="a", step_s=15, job="quick", since=9 * HOUR, until=3 * HOUR)
    metrics.write({UTIL: 0.0}, pod="a", step_s=300, job="quick", since=3 * HOUR)
    assert _history(metrics, "a", "b") == "." * 21 + "???"


def test_history_outage_of_everything_is_unknown(metrics: Metrics) -> None:
    """Also where a few samples are left."""
    for since, until, step_s in (
        (DAY, 6 * HOUR, 15),
        (6 * HOUR, 5.75 * HOUR, 150),
        (5.75 * HOUR, 0 * HOUR, 15),
    ):
        metrics.write({UTIL: 0.0}, pod="a", since=since, until=until, step_s=step_s)
    assert _history(metrics, "a") == "." * 18 + "?" + "." * 5


def test_history_one_busy_device_makes_the_slot_busy(metrics: Metrics) -> None:
    """If none is busy, a device without samples makes it unknown."""
    metrics.write({UTIL: 0.0}, pod="a", UUID="GPU-1")
    metrics.write({UTIL: within(297, 243, 50)}, pod="a", UUID="GPU-2", until=2 * HOUR)
    assert _history(metrics, "a") == "." * 19 + "#" + "..??"


def test_history_begins_with_the_pod(metrics: Metrics) -> None:
    """An earlier pod of the same name is another pod."""
    metrics.write({UTIL: within(9999, 600, 90)}, pod="web-0")
    assert _history(metrics, "web-0", age=5 * HOUR) == "....."


def test_history_impossible_value_is_unknown(metrics: Metrics) -> None:
    """A blank value is neither busy nor idle."""
    metrics.write({UTIL: within(297, 243, 2_147_483_632.0)}, pod="a")
    assert _history(metrics, "a") == "." * 19 + "?" + "...."


def test_history_pod_without_series_is_unknown(metrics: Metrics) -> None:
    """It is in the result all the same."""
    metrics.write({UTIL: 0.0}, pod="a")
    assert _history(metrics, "other") == "?" * 24


def test_history_long_span_has_at_most_400_slots(metrics: Metrics) -> None:
    """Of a length that is round for people."""
    metrics.write({UTIL: 0.0}, pod="a", step_s=900, since=14 * DAY)
    pods = {(metrics.space, "a"): metrics.at - 30 * DAY}
    history = metrics.signal().histories(pods, 14 * DAY, metrics.at, threshold=0.01)[metrics.space, "a"]
    assert (len(history.slots), history.slot_s, history.span_s) == (336, 3600, 14 * 86_400)
    assert set(history.slots[1:]) == {Slot.IDLE}


def test_history_longer_than_400_days_is_cut(metrics: Metrics) -> None:
    """No slot is longer than a day."""
    metrics.write({UTIL: 0.0}, pod="a")
    pods = {(metrics.space, "a"): metrics.at - 900 * DAY}
    history = metrics.signal().histories(pods, 900 * DAY, metrics.at, threshold=0.01)[metrics.space, "a"]
    assert (len(history.slots), history.slot_s) == (400, 86_400)


def test_history_special_characters_in_names_are_quoted(metrics: Metrics) -> None:
    """In PromQL and in its regular expressions; pods of other namespaces are not mixed in."""
    names = ['a"} or vector(1) #', "a.b", "a|b", "ä\\d+", "a.*"]
    metrics.write({UTIL: 90.0}, pod="axb")
    metrics.write({UTIL: 90.0}, pod="a.b", namespace="elsewhere", UUID="GPU-e")
    for name in names:
        metrics.write({UTIL: 0.0}, pod=name)
    pods = {(metrics.space, name): metrics.at - 9 * DAY for name in names}
    histories = metrics.signal(max_samples=20_000).histories(pods, 6 * HOUR, metrics.at, threshold=0.01)
    assert {name for _, name in histories} == set(names)
    assert all(set(history.slots[1:]) == {Slot.IDLE} for history in histories.values())


def test_history_counter_makes_bursts_between_samples_busy(metrics: Metrics) -> None:
    """The gauge misses them."""
    metrics.write(
        {UTIL: 0.0, exporter_counters.POD_BUSY: rising(lambda left: 5.0 if left == 290 else 0.0)}, pod="a"
    )
    metrics.write({exporter_counters.DEVICE_BUSY: 0.0}, UUID="GPU-a", namespace="")
    assert _history(metrics, "a").strip(".") in {"#", "##"}


def test_history_unattributed_work_is_that_of_the_only_pod_of_its_gpu(metrics: Metrics) -> None:
    """As in the usage of a window: which pod worked is unknown, but no other one has the GPU."""
    metrics.write({UTIL: 0.0, exporter_counters.POD_BUSY: 0.0}, pod="a")
    lost = rising(lambda left: 5.0 if left == 290 else 0.0)
    device = {"UUID": "GPU-a", "namespace": ""}
    metrics.write({exporter_counters.DEVICE_BUSY: lost, exporter_counters.GAPS: 0.0}, device)
    metrics.write({exporter_counters.UNATTRIBUTED: lost}, device, reason="gone")
    assert _history(metrics, "a").strip(".") in {"#", "##"}


@pytest.mark.parametrize(
    ("lost", "expected"), [(0.0, "."), (30.0, "?")], ids=["all-told-apart", "some-unattributed"]
)
def test_history_shared_gpu_counters_tell_pods_apart(metrics: Metrics, lost: float, expected: str) -> None:
    """If all of the device's work is attributed."""
    for pod, busy in (("a", 20.0), ("b", 0.0)):
        metrics.write({UTIL: 40.0, exporter_counters.POD_BUSY: steadily(busy)}, pod=pod, UUID="GPU-s")
    metrics.write(
        {exporter_counters.DEVICE_BUSY: steadily(20 + lost), exporter_counters.GAPS: 0.0},
        UUID="GPU-s",
        namespace="",
    )
    metrics.write({exporter_counters.UNATTRIBUTED: steadily(lost)}, UUID="GPU-s", namespace="", reason="gone")
    assert set(_history(metrics, "a", span=6 * HOUR)) == {"#"}
    assert _history(metrics, "b", span=6 * HOUR)[1:] == expected * 5


def _level(metrics: Metrics, pod: str) -> WorkLevel:
    pods = {(metrics.space, pod): metrics.at - 9 * DAY}
    return metrics.signal().work_levels(pods, 14 * DAY, metrics.at, threshold=0.01)[metrics.space, pod]


def _work_level(metrics: Metrics, pod: str) -> tuple[str, float | None]:
    """A letter for each hour, and the power at work."""
    level = _level(metrics, pod)
    return "".join(LETTERS[Slot(slot)] for slot in level.traffic.slots[-8:]), level.power_w


def test_work_level_is_the_power_of_the_best_hour_with_memory_traffic(metrics: Metrics) -> None:
    """Of two GPUs that worked it is the lower one's; one that never did does not count."""
    for device, power_w in (("GPU-1", 600.0), ("GPU-2", 500.0)):
        busy = {COPY: within(360, 180, 40), POWER: within(360, 180, power_w, 200.0)}
        metrics.write(busy, pod="a", since=8 * HOUR, UUID=device)
    metrics.write({COPY: 0.0, POWER: 90.0}, pod="a", since=8 * HOUR, UUID="GPU-3")
    slots, highest_w = _work_level(metrics, "a")
    assert slots in {"..###...", "..####.."}
    assert highest_w == pytest.approx(500, abs=6)


def test_work_level_quiet_power_is_of_hours_before_the_last_traffic(metrics: Metrics) -> None:
    """Hours without memory traffic at the end may be a hang; of two sources the higher power counts."""
    moved = {COPY: within(180, 60, 40), POWER: within(480, 300, 430.0, 300.0)}
    metrics.write(moved, pod="a", since=8 * HOUR)
    metrics.write({COPY: within(180, 60, 40), POWER: 100.0}, pod="a", since=8 * HOUR, job="other")
    assert _level(metrics, "a").quiet_power_w == pytest.approx(430, abs=6)
    metrics.write({COPY: 0.0, POWER: 430.0}, pod="b", since=8 * HOUR)
    assert _level(metrics, "b").quiet_power_w is None


def test_work_level_invented_by_one_source_is_no_work(metrics: Metrics) -> None:
    """Memory traffic must be seen by every source, and the lowest power counts."""
    metrics.write({COPY: 0.0, POWER: 300.0}, pod="a", since=8 * HOUR)
    metrics.write({COPY: within(360, 180, 40), POWER: 690.0}, pod="a", since=8 * HOUR, job="other")
    assert _work_level(metrics, "a") == ("........", None)
    metrics.write({COPY: 40.0, POWER: 300.0}, pod="b", since=8 * HOUR)
    metrics.write({COPY: 40.0, POWER: 690.0}, pod="b", since=8 * HOUR, job="other")
    assert _work_level(metrics, "b")[1] == pytest.approx(300)


def test_work_level_hour_without_samples_is_unknown(metrics: Metrics) -> None:
    """It may have worked then."""
    metrics.write({COPY: 40.0, POWER: 600.0}, pod="a", since=8 * HOUR, until=4.1 * HOUR)
    metrics.write({COPY: 0.0, POWER: 300.0}, pod="a", since=2 * HOUR)
    metrics.write({COPY: 0.0, POWER: 300.0}, pod="b", since=8 * HOUR)
    assert _work_level(metrics, "a")[0] == "####??.."
