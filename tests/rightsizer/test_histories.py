"""When pods were at work, how many at the same time, and what they waited for."""

import datetime

import pytest

from rightsizer.model import Slot
from rightsizer.prometheus import promql
from rightsizer.usage import exporter_counters
from rightsizer.usage.active_replicas import ReplicaQuery
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import (
    DAY,
    ENGINE,
    HOUR,
    UTIL,
    Metrics,
    Value,
    idle,
    near,
    rising,
    steadily,
    within,
)
from tests.rightsizer.relay import Relay

pytestmark = pytest.mark.prometheus

MINUTE = datetime.timedelta(minutes=1)
EDGE = datetime.timedelta(seconds=5)
"""Away from the edges of minutes: Prometheus 2 counts the sample on the older one, 3 does not."""
LETTERS = {Slot.IDLE: ".", Slot.BUSY: "#", Slot.UNKNOWN: "?"}
IDLE_GPU = {UTIL: 0.0}


@pytest.fixture
def metrics(prometheus: Prometheus) -> Metrics:
    """Series of this test's own."""
    return Metrics(prometheus)


def _history(
    metrics: Metrics, pod: str, *, span: datetime.timedelta = DAY, age: datetime.timedelta = 9 * DAY
) -> str:
    """One letter for each hour (of a day, twelve slots of five minutes: the strongest of them)."""
    pods = {(metrics.space, pod): metrics.at - age}
    history = metrics.signal().histories(pods, span, metrics.at, threshold=0.01)[metrics.space, pod]
    letters = "".join(LETTERS[Slot(slot)] for slot in history.slots)
    each = round(3600 / history.slot_s)
    return "".join(
        next(letter for letter in "#?." if letter in letters[max(end - each, 0) : end])
        for end in range(len(letters), 0, -each)
    )[::-1]


def test_slots_are_busy_idle_or_unknown(metrics: Metrics) -> None:
    """By the highest sample in each; without samples nothing is known."""
    metrics.write({UTIL: within(1197, 1083, 5)}, pod="a", until=6 * HOUR)
    metrics.write({UTIL: 0.0}, pod="a", since=3 * HOUR)
    assert _history(metrics, "a") == "....##............???..."


def test_one_busy_device_of_several_makes_a_slot_busy(metrics: Metrics) -> None:
    """And where none was, one without samples makes it unknown."""
    metrics.write({UTIL: 0.0}, pod="a", UUID="GPU-1")
    metrics.write({UTIL: within(297, 243, 50)}, pod="a", UUID="GPU-2", until=2 * HOUR)
    assert _history(metrics, "a") == "." * 19 + "#" + "..??"


def test_a_history_begins_with_the_pod(metrics: Metrics) -> None:
    """What one of the same name did before is another's."""
    metrics.write({UTIL: within(9999, 600, 90)}, pod="web-0")
    assert _history(metrics, "web-0", age=5 * HOUR) == "....."


def test_values_that_cannot_be_are_unknown(metrics: Metrics) -> None:
    """A blank is neither work nor idleness."""
    metrics.write({UTIL: within(297, 243, 2_147_483_632.0)}, pod="a")
    assert _history(metrics, "a") == "." * 19 + "?" + "...."


def test_a_pod_that_no_series_names_is_unknown_throughout(metrics: Metrics) -> None:
    """It is in the answer nevertheless."""
    metrics.write({UTIL: 0.0}, pod="a")
    assert _history(metrics, "other") == "?" * 24


def test_long_histories_have_few_slots(metrics: Metrics) -> None:
    """At most 400, of a length that people say."""
    metrics.write({UTIL: 0.0}, pod="a", step_s=900, since=14 * DAY)
    pods = {(metrics.space, "a"): metrics.at - 30 * DAY}
    history = metrics.signal().histories(pods, 14 * DAY, metrics.at, threshold=0.01)[metrics.space, "a"]
    assert (len(history.slots), history.slot_s, history.span_s) == (336, 3600, 14 * 86_400)
    assert set(history.slots[1:]) == {Slot.IDLE}


def test_hostile_names_are_only_names(metrics: Metrics) -> None:
    """They are quoted for PromQL and for its regular expressions; pods of other namespaces are not mixed in."""
    names = ['a"} or vector(1) #', "a.b", "a|b", "ä\\d+", "a.*"]
    metrics.write({UTIL: 90.0}, pod="axb")
    metrics.write({UTIL: 90.0}, pod="a.b", namespace="elsewhere", UUID="GPU-e")
    for name in names:
        metrics.write({UTIL: 0.0}, pod=name)
    pods = {(metrics.space, name): metrics.at - 9 * DAY for name in names}
    histories = metrics.signal(max_samples=20_000).histories(pods, 6 * HOUR, metrics.at, threshold=0.01)
    assert {name for _, name in histories} == set(names)
    assert all(set(history.slots[1:]) == {Slot.IDLE} for history in histories.values())


def test_work_between_two_samples_is_work(metrics: Metrics) -> None:
    """Our counters see what the gauge does not."""
    metrics.write(
        {UTIL: 0.0, exporter_counters.POD_BUSY: rising(lambda left: 5.0 if left == 290 else 0.0)}, pod="a"
    )
    metrics.write({exporter_counters.DEVICE_BUSY: 0.0}, UUID="GPU-a", namespace="")
    assert _history(metrics, "a").strip(".") in {"#", "##"}


@pytest.mark.parametrize(
    ("lost", "expected"), [(0.0, "."), (30.0, "#")], ids=["all-told-apart", "some-unattributed"]
)
def test_on_a_shared_gpu_each_pod_has_its_own_history(metrics: Metrics, lost: float, expected: str) -> None:
    """As far as all of the device's work is attributed."""
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


# --- concurrency

HASH = "7d9fc8b5b4"
NEW = "5f6b7c8d9f"


def _concurrency(
    metrics: Metrics, kind: str, *pods: str, days: int = 0, age: datetime.timedelta = 9 * DAY
) -> object:
    request = ReplicaQuery(
        "uid",
        metrics.space,
        kind,
        dict.fromkeys(pods, metrics.at - age),
        created=metrics.at - 3 * DAY,
        window=10 * MINUTE,
        days=days,
    )
    return metrics.signal().concurrency([request], metrics.at).get("uid")


def _write(metrics: Metrics, pod: str, value: Value, **more: datetime.timedelta) -> None:
    metrics.write({UTIL: value}, pod=pod, step_s=15, **({"since": HOUR} | more))  # type: ignore[arg-type]


def test_replicas_that_take_turns_are_busy_one_at_a_time(metrics: Metrics) -> None:
    """Each minute is counted by itself."""
    pods = [f"web-{HASH}-bcdf{number}" for number in (2, 4, 5)]
    for number, pod in enumerate(pods):
        _write(metrics, pod, lambda left, number=number: 90.0 if 0 < left % 3 - number < 1 else 0.0)  # type: ignore[misc]
    found = _concurrency(metrics, "Deployment", *pods)
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]
    assert found.earlier == ()  # type: ignore[attr-defined]


def test_two_at_once_are_two_and_none_is_none(metrics: Metrics) -> None:
    """Idle minutes are zero, not unknown."""
    for pod in ("db-0", "db-1"):
        _write(metrics, pod, within(4.9, 2.1, 50.0))
    assert _concurrency(metrics, "StatefulSet", "db-0", "db-1").busy == (0,) * 5 + (2,) * 3 + (0,) * 2  # type: ignore[attr-defined]


def test_a_replica_on_two_devices_counts_once(metrics: Metrics) -> None:
    """It is busy where any of them is."""
    metrics.write({UTIL: 90.0}, pod="db-0", UUID="GPU-1", since=HOUR)
    metrics.write({UTIL: 90.0}, pod="db-0", UUID="GPU-2", since=HOUR)
    assert _concurrency(metrics, "StatefulSet", "db-0").busy == (1,) * 10  # type: ignore[attr-defined]


def test_a_minute_that_lacks_samples_of_a_pod_is_unknown(metrics: Metrics) -> None:
    """Whether it has a gap, or has stopped being seen."""
    _write(metrics, "db-0", 0.0)
    _write(metrics, "db-1", 0.0, until=7 * MINUTE + EDGE)
    _write(metrics, "db-1", 0.0, since=4 * MINUTE + EDGE, until=2 * MINUTE + EDGE)
    found = _concurrency(metrics, "StatefulSet", "db-0", "db-1").busy  # type: ignore[attr-defined]
    assert [value is None for value in found] == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 2


def test_a_pod_that_came_later_is_not_missing_before(metrics: Metrics) -> None:
    """Nor is one that ended: its name fits no pod that is there now."""
    _write(metrics, f"web-{HASH}-bcdf2", 0.0)
    _write(metrics, f"web-{NEW}-bcdf4", 0.0, since=5 * MINUTE)
    _write(metrics, f"web-{HASH}-zzzz9", 90.0, until=6 * MINUTE + EDGE)
    request = ReplicaQuery(
        "uid",
        metrics.space,
        "Deployment",
        {f"web-{HASH}-bcdf2": metrics.at - DAY, f"web-{NEW}-bcdf4": metrics.at - 5 * MINUTE},
        window=10 * MINUTE,
        days=0,
    )
    busy = metrics.signal().concurrency([request], metrics.at)["uid"].busy
    assert busy == (1,) * 4 + (0,) * 6


def test_pods_of_earlier_days_count_for_their_workload(metrics: Metrics) -> None:
    """Though their names are gone: of each day before, the busiest minute of the hour that is coming."""
    _write(metrics, f"web-{HASH}-bcdf2", 0.0)
    for day, count in ((1, 3), (2, 1)):
        coming = {"since": day * DAY + HOUR, "until": day * DAY - 2 * HOUR}
        for number in range(4):
            busy = within(day * 1440 - 20, day * 1440 - 25, 90.0) if number < count else 0.0
            _write(
                metrics, f"web-{NEW}-dd{number}f{day}".translate(str.maketrans("013", "vwx")), busy, **coming
            )
    # What another workload of a similar name did is not this one's.
    _write(metrics, f"web-api-{NEW}-bcdf2", 90.0, since=DAY + HOUR, until=DAY - 2 * HOUR)
    found = _concurrency(metrics, "Deployment", f"web-{HASH}-bcdf2", days=7)
    # Of the third day nothing is on record; before that the workload did not exist.
    assert found.earlier == (3, 1, None)  # type: ignore[attr-defined]


def test_a_day_with_a_gap_in_that_hour_is_unknown(metrics: Metrics) -> None:
    """A replica that was there before and after was there, too, when nothing was heard of it."""
    _write(metrics, "db-0", 0.0, since=DAY + HOUR, until=DAY - 2 * HOUR)
    _write(metrics, "db-1", 0.0, since=DAY + HOUR, until=DAY - 10 * MINUTE)
    _write(metrics, "db-1", 0.0, since=DAY - 40 * MINUTE, until=DAY - 2 * HOUR)
    _write(metrics, "db-0", 0.0)
    assert _concurrency(metrics, "StatefulSet", "db-0", days=1).earlier == (None,)  # type: ignore[attr-defined]


def test_minutes_without_samples_are_sought_only_where_some_may_be(metrics: Metrics) -> None:
    """A pod with as many samples as the one with the most plainly misses none of a minute."""
    for pod in ("db-0", "db-1", "web-0", "web-1"):
        _write(metrics, pod, 0.0, since=2 * HOUR)
    names = {"db": ("db-0", "db-1"), "web": ("web-0", "web-1")}
    requests = [
        ReplicaQuery(name, metrics.space, "StatefulSet", dict.fromkeys(pods, metrics.at - DAY), days=0)
        for name, pods in names.items()
    ]
    asked = {}
    for case in ("whole", "one-with-a-gap"):
        with Relay(metrics.prometheus.url) as relay:
            found = metrics.signal(url=relay.url).concurrency(requests, metrics.at)
            asked[case] = [query for query in relay.asked if " unless on " in query]
            unknown = {uid: one.busy.count(None) for uid, one in found.items()}
        if case == "whole":
            assert unknown == {"db": 0, "web": 0}
            _write(metrics, "web-2", 0.0, since=50 * MINUTE, until=20 * MINUTE + EDGE)
            _write(metrics, "web-2", 0.0, since=17 * MINUTE + EDGE)
    assert asked["whole"] == []
    assert unknown["db"] == 0
    assert unknown["web"] == near(2, abs=1)
    assert all("web-2" in query and "db-0" not in query for query in asked["one-with-a-gap"])
    assert asked["one-with-a-gap"]


def test_what_a_metric_told_before_it_ended_counts(metrics: Metrics) -> None:
    """Only metrics that are nowhere in the span are left out of the questions."""
    _write(metrics, "db-0", 0.0)
    metrics.write({ENGINE: 0.9}, pod="db-0", step_s=15, since=9 * MINUTE, until=6 * MINUTE + EDGE)
    busy = _concurrency(metrics, "StatefulSet", "db-0").busy  # type: ignore[attr-defined]
    assert (sum(busy), busy[-5:]) == (near(3, abs=1), (0,) * 5)


def test_workloads_of_one_name_are_counted_each_for_itself(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the questions are cut: one that is about two namespaces finds all of both."""
    monkeypatch.setattr(promql, "MAX_TEXT", 400)
    long = "x" * 40
    spaces, names = (metrics.space, f"{metrics.space}-b"), (f"a{long}", f"web{long}")
    requests = [
        ReplicaQuery(
            f"{space} {name}",
            space,
            "StatefulSet",
            {f"{name}-0": metrics.at - DAY},
            window=10 * MINUTE,
            days=0,
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


def test_groups_are_counted_not_their_pods(metrics: Metrics) -> None:
    """A LeaderWorkerSet's replica is a leader with its workers."""
    for pod in ("vllm-0", "vllm-0-1", "vllm-1", "vllm-1-1"):
        _write(metrics, pod, 90.0 if pod.startswith("vllm-0") else 0.0)
    found = _concurrency(metrics, "LeaderWorkerSet", "vllm-0", "vllm-0-1", "vllm-1", "vllm-1-1")
    assert found.busy == (1,) * 10  # type: ignore[attr-defined]


def test_names_that_fit_no_pattern_are_not_counted(metrics: Metrics) -> None:
    """Nothing is guessed about which pods are alike."""
    _write(metrics, "shell", 90.0)
    assert _concurrency(metrics, "Deployment", "shell") is None


# --- waits


def test_what_containers_waited_for(metrics: Metrics) -> None:
    """Throttled is the worst container; pressure is the pod's; both as shares."""
    pod = {"pod": "a", "UUID": "", "modelName": ""}
    metrics.write(idle(), pod="a")
    for container, share in (("main", 0.6), ("side", 0.1)):
        labels = {**pod, "container": container}
        metrics.write({"container_cpu_cfs_periods_total": steadily(600)}, labels)
        metrics.write({"container_cpu_cfs_throttled_periods_total": steadily(600 * share)}, labels)
    metrics.write({"container_pressure_io_waiting_seconds_total": steadily(15)}, pod)
    metrics.write({"container_pressure_io_waiting_seconds_total": steadily(15)}, pod, replica="1")
    asked = [(metrics.space, "a"), (metrics.space, "b")]
    waits = metrics.signal().waits(asked, 6 * HOUR, metrics.at)
    assert set(waits) == {(metrics.space, "a")}
    found = waits[metrics.space, "a"]
    assert (found.cpu_throttled, found.io_pressure, found.cpu_pressure) == (near(0.6), near(0.25), None)


def test_without_cadvisor_nothing_is_said_of_waiting(metrics: Metrics) -> None:
    """Absent, not zero."""
    metrics.write(idle(), pod="a")
    assert metrics.signal().waits([(metrics.space, "a")], HOUR, metrics.at) == {}
