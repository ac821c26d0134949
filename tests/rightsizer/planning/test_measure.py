"""The rounds of queries of a plan."""

import dataclasses
import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from rightsizer.kube.pod_names import HASHES
from rightsizer.model import (
    BoardLevel,
    Boards,
    Concurrency,
    Decision,
    Device,
    FindingName,
    History,
    Measured,
    ObjectRef,
    PodKey,
    SecondSignal,
    Slot,
    Usage,
    Usages,
    Workload,
)
from rightsizer.planning.decide import decide
from rightsizer.planning.measure import activity_with_boards, measure
from rightsizer.planning.revalidate import RECENT
from rightsizer.planning.usage_signal import Signal
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.match import Match
from rightsizer.policy.thresholds import Thresholds
from rightsizer.usage.active_replicas import ReplicaQuery
from tests.rightsizer import build


class _Recorded(Signal):
    """Records in which a workload is idle, and the samples beside them."""

    def __init__(self, item: Workload, samples: Usages) -> None:
        self.records, self.samples = build.all_idle(item), samples
        self.counted: list[ReplicaQuery] = []
        self.nvlink_of: list[Mapping[str, str]] = []
        self.record: Boards = {}

    def usages(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        of: Collection[PodKey] | None = None,
    ) -> Usages:
        """By the records."""
        del window, at, of
        return self.records

    def sampled(self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey]) -> Usages:
        """By the samples."""
        del window, at
        return {pod: self.samples[pod] for pod in of if pod in self.samples}

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """Idle throughout, by the records."""
        del span, at, threshold
        return dict.fromkeys(pods, build.history())

    def boards(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        nodes: Mapping[str, str],
        models: Collection[str],
    ) -> Boards:
        """As it is set."""
        del window, at, nodes, models
        return self.record

    def recent(self, at: datetime.datetime) -> Usages:
        """None."""
        del at
        return {}

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Before everything."""
        del span, at
        return None

    def retention(self) -> datetime.timedelta | None:
        """Unknown."""
        return None

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """By the records, too: it is only asked before a write."""
        del with_coverage
        return self.usages(window, at)

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """Unknown."""
        del at
        self.counted += workloads
        return {}

    def nvlink(self, nodes: Mapping[str, str], at: datetime.datetime) -> Mapping[str, frozenset[str]]:
        """Unknown."""
        del at
        self.nvlink_of.append(dict(nodes))
        return {}


def _enforced(item: Workload, samples: Usages) -> bool:
    fleet = build.fleet(item)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    (decision,) = decide(measure(fleet, _Recorded(item, samples), book, build.AT), book)
    return decision.is_enforced


def test_measure_idle_records_are_compared_with_samples() -> None:
    """A workload that worked by its samples is not stopped, whatever the records say."""
    pod = build.pod()
    item = build.workload(pod)
    assert _enforced(item, {})
    assert not _enforced(item, build.usages((pod, (build.busy_usage(),))))


@pytest.mark.parametrize("moves_elsewhere", [False, True])
@pytest.mark.parametrize(
    ("board", "is_enforced"),
    [
        pytest.param({}, True, id="nothing-ever-ran"),
        pytest.param({"activity_peak": 0.9, "activity_mean": 0.1}, False, id="traffic-stood-still-at-work"),
        pytest.param({"activity_peak": 0.9, "traffic_peak": 0.2}, True, id="traffic-moved"),
    ],
)
def test_measure_second_signal_is_one_that_moved_in_the_record(
    board: dict[str, Any], is_enforced: bool, *, moves_elsewhere: bool
) -> None:
    """A board without idle power that is known is judged by memory traffic, if that moves when this board works."""
    pod = build.pod()
    item, used = build.workload(pod), build.idle_usage(device=dataclasses.replace(build.device(), model="x"))
    signal = _Recorded(item, {})
    other = dataclasses.replace(used.device, uuid="GPU-other")
    seen = [(build.pod("x"), (build.busy_usage(device=other, activity_mean=0.3),))] if moves_elsewhere else []
    signal.records = build.usages((pod, (used,)), *seen)
    signal.record = {used.device.uuid: dataclasses.replace(used, **board)}
    book = PolicyEvaluator(build.policy(build.rule("all")), build.fleet(item), at=build.AT)
    (decision,) = decide(measure(book.fleet, signal, book, build.AT), book)
    assert decision.is_enforced is is_enforced


@pytest.mark.parametrize("instance", ["", "1"])
def test_measure_asks_for_the_history_of_what_only_a_dead_gauge_calls_busy(instance: str) -> None:
    """Else it is unknown for lack of a history, though days of samples show when it worked."""
    item, other = build.workload(build.pod()), build.pod("x-0")
    still: dict[str, Any] = {"power_mean_w": 300.0, "power_peak_w": 300.0}
    of = (dataclasses.replace(build.device(index), instance=instance) for index in (0, 1))
    idle = build.idle_usage(device=next(of), **still)
    works = build.busy_usage(device=next(of), activity_mean=0.3, **still)
    signal = _Recorded(item, {})
    signal.records = build.usages((item.pods[0], (idle,)), (other, (works,)))
    fleet = build.fleet(item, build.workload(other, ref=dataclasses.replace(item.ref, name="x", uid="x")))
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    measured = measure(fleet, signal, book, build.AT)
    assert ("research", "w-0") in measured.histories
    assert {one.workload.ref.name: one.is_enforced for one in decide(measured, book)} == {
        "w": True,
        "x": False,
    }


def test_measure_unread_owner_with_the_uid_of_another_is_not_counted() -> None:
    """Replicas are counted by UID: whoever names another's as the owner of a pod replaces nothing of the other."""
    item = build.workload(build.pod("w-0"), build.pod("w-1"))
    claimed = build.workload(
        *(build.pod(ref=ObjectRef("v1", "Pod", "evil", name, f"uid-{name}")) for name in ("e-0", "e-1")),
        ref=dataclasses.replace(item.ref, namespace="evil"),
        resource_version="",
    )
    signal = _Recorded(item, {})
    signal.records = {**signal.records, **build.all_idle(claimed)}
    fleet = build.fleet(item, claimed)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    measure(fleet, signal, book, build.AT)
    (counted,) = signal.counted
    assert (counted.uid, counted.namespace, counted.names) == ("uid-w", "research", HASHES)
    assert set(counted.pods) == {"w-0", "w-1"}
    percent = book.evaluate(item).judged_by[0].tooManyReplicas.busyPercent
    assert counted.threshold == percent / 100


class _AtTimes(_Recorded):
    """A device that worked for half of the window, not in the last day, without memory traffic."""

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Idle in all windows but the longest."""
        is_short = window == datetime.timedelta(days=1)
        worked: dict[str, Any] = {} if is_short else {"activity_mean": 0.5, "activity_peak": 0.95}
        return {
            pod: tuple(dataclasses.replace(one, **worked) for one in found)
            for pod, found in super().usages(window, at, of=of).items()
        }


def test_measure_gauge_moves_between_windows() -> None:
    """A board that worked for most of the longest window, and was idle in another, worked at times."""
    item = build.workload(build.pod())
    signal, fleet = _AtTimes(item, {}), build.fleet(item)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    week = [datetime.timedelta(days=days) for days in (1, 7)]
    assert {one for _, one in measure(fleet, signal, book, build.AT, week).silent} == {SecondSignal.TRAFFIC}


class _Spinning(_Recorded):
    """Devices that are all at full utilization without memory traffic."""

    def __init__(self, *items: Workload) -> None:
        super().__init__(items[0], {})
        spins = Usage(
            Device("GPU-s", model=A100), activity_mean=1.0, activity_peak=1.0, traffic_peak=0.0, coverage=1.0
        )
        self.records = build.usages(*((pod, (spins,)) for item in items for pod in item.pods))
        self.read = 0

    def recent(self, at: datetime.datetime) -> Usages:
        """As before."""
        del at
        self.read += 1
        return self.records


def test_measure_reads_the_last_minutes_once_however_many_workloads_spin() -> None:
    """They are of the whole fleet."""
    items = [
        dataclasses.replace(one, ref=dataclasses.replace(one.ref, name=name, uid=name))
        for name in "ab"
        for one in [build.workload(build.pod(f"{name}-0"))]
    ]
    signal, fleet = _Spinning(*items), build.fleet(*items)
    book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
    assert datetime.timedelta(hours=2) in measure(fleet, signal, book, build.AT).usages
    assert signal.read == 1


class _ByWindow(_Spinning):
    """Answers only for the pods that it is asked for, where these are named."""

    def __init__(self, *items: Workload) -> None:
        super().__init__(*items)
        self.asked: dict[datetime.timedelta, list[set[str] | None]] = {}

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """As if none of the other pods were cheaper to leave in."""
        del at
        self.asked.setdefault(window, []).append(None if of is None else {name for _, name in of})
        return {pod: found for pod, found in self.records.items() if of is None or pod in of}


@pytest.mark.parametrize("stuck", [2, 16])
def test_measure_asks_for_a_window_only_of_the_pods_that_it_judges(stuck: int) -> None:
    """Of all for the longest, and where most are judged; a later round adds pods to a window of the first."""
    first = build.workload(build.pod("w-0"))
    items = [
        dataclasses.replace(
            first,
            ref=dataclasses.replace(first.ref, name=name, uid=name, namespace=name),
            pods=(build.pod(f"{name}-0", ref=ObjectRef("v1", "Pod", name, f"{name}-0", name)),),
        )
        for name in "abcd"
    ]
    idle = Thresholds(window=datetime.timedelta(hours=16))
    rules = (build.rule("short", match=Match(namespaces=("a",)), idle=idle), build.rule("all"))
    defaults = {"stuck": {"window": f"{stuck}h"}}
    signal, fleet = _ByWindow(*items), build.fleet(*items)
    book = PolicyEvaluator(build.policy(*rules, defaults=defaults), fleet, at=build.AT)
    found = measure(fleet, signal, book, build.AT).usages
    short, all_pods = datetime.timedelta(hours=16), {"a-0", "b-0", "c-0", "d-0"}
    assert [of for window, of in signal.asked.items() if window > short] == [[None]]
    assert signal.asked[short][0] == {"a-0"}
    assert signal.asked[datetime.timedelta(hours=stuck)][-1] == all_pods - ({"a-0"} if stuck == 16 else set())
    assert {name for _, name in found[datetime.timedelta(hours=stuck)]} == all_pods


def test_measure_asks_for_nvlink_only_of_gpus_that_may_be_resized() -> None:
    """One of two GPUs is never used: the other pods keep theirs, and their neighbours do not matter."""
    item = build.workload(build.pod(devices=2))
    other = build.workload(build.pod("x-0"), ref=dataclasses.replace(item.ref, name="x", uid="uid-x"))
    for wide, asked in (
        (
            (build.busy_usage(0), build.idle_usage(1)),
            [{build.device(0).uuid: "n1", build.device(1).uuid: "n1"}],
        ),
        ((build.busy_usage(0), build.busy_usage(1)), []),
    ):
        signal = _Recorded(item, {})
        used = build.usages((item.pods[0], wide), (other.pods[0], (build.busy_usage(2),)))
        signal.records = signal.samples = used
        fleet = build.fleet(item, other)
        book = PolicyEvaluator(build.policy(build.rule("all")), fleet, at=build.AT)
        measure(fleet, signal, book, build.AT)
        assert signal.nvlink_of == asked


A100 = "NVIDIA A100-SXM4-80GB"
DARK = Usage(Device("GPU-a", "7", A100), memory_peak_bytes=9e9)


def _board(uuid: str, power_w: float, memory_bytes: float = 40e9) -> Usage:
    return Usage(
        Device(uuid, model=A100),
        memory_peak_bytes=memory_bytes,
        power_mean_w=power_w,
        power_peak_w=power_w,
        clock_peak_hz=210e6,
        coverage=1.0,
        is_fresh=True,
    )


class _Boards(_Recorded):
    """MIG instances without utilization on one board, beside a board without a process."""

    def __init__(self, item: Workload, *, past: str = ".", peak_w: float = 61.0, hours: int = 336) -> None:
        super().__init__(item, {})
        self.records = build.usages(*((pod, (DARK,)) for pod in item.pods))
        self.past, self.peak_w, self.wanted, self.hours = past, peak_w, dict[str, str](), hours

    def boards(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        nodes: Mapping[str, str],
        models: Collection[str],
    ) -> Boards:
        """The board of all, and an empty one at 55 W."""
        del window, at
        assert models == {A100}
        self.wanted = dict(nodes)
        return {"GPU-a": _board("GPU-a", self.peak_w), "GPU-b": _board("GPU-b", 55.0, 0.0)}

    def board_histories(
        self, nodes: Mapping[str, str], span: datetime.timedelta, at: datetime.datetime, level: BoardLevel
    ) -> Mapping[str, History]:
        """As given."""
        del span, at, level
        return {uuid: build.history(self.past, hours=self.hours) for uuid in nodes}

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """Unknown: they have no activity."""
        del span, at, threshold
        return dict.fromkeys(pods, build.history("?"))

    def activity(
        self, window: datetime.timedelta, at: datetime.datetime, *, with_coverage: bool = False
    ) -> Usages:
        """None."""
        del window, at, with_coverage
        return {}


def _by_board(signal: _Boards, item: Workload, **idle: Any) -> tuple[Decision, Measured]:
    strict = build.rule("other", match=Match(namespaces=("other",)), idle=Thresholds(**idle))
    fleet = build.fleet(item)
    book = PolicyEvaluator(build.policy(strict, build.rule("all")), fleet, at=build.AT)
    measured = measure(fleet, signal, book, build.AT)
    (decision,) = decide(measured, book)
    return decision, measured


def _mig(*nodes: str) -> Workload:
    return build.workload(*(build.pod(f"w-{index}", node=node) for index, node in enumerate(nodes)))


@pytest.mark.parametrize(
    ("idle", "is_enforced"),
    [
        pytest.param({}, True, id="up-to-115-percent"),
        pytest.param({"maxBoardPowerPercent": 110.0}, False, id="stricter"),
        pytest.param({"maxBoardPowerPercent": 0.0}, False, id="never"),
    ],
)
def test_measure_mig_instances_of_an_idle_board_are_idle(
    idle: dict[str, float], *, is_enforced: bool
) -> None:
    """61 W are 111 % of an empty board's 55 W; the strictest rule decides, since boards are not of one workload."""
    item = _mig("n1", "n1")
    signal = _Boards(item)
    decision, _ = _by_board(signal, item, **idle)
    assert decision.is_enforced is is_enforced
    assert signal.wanted == {"GPU-a": "n1"}


def test_measure_board_that_pods_of_two_nodes_name_is_nobodys() -> None:
    """One of them has invented it."""
    item = _mig("n1", "n2")
    decision, _ = _by_board(_Boards(item), item)
    assert decision.finding.name is FindingName.NO_DATA


def test_measure_board_that_worked_earlier_may_have_worked_for_any_pod() -> None:
    """So nobody knows how long its pods were idle before, and they wait."""
    item = _mig("n1")
    decision, measured = _by_board(_Boards(item, past="#" * 90 + "." * 30), item)
    assert not decision.is_enforced
    history = measured.histories["research", "w-0"]
    assert set(history.slots) == {Slot.IDLE, Slot.UNKNOWN}
    assert len(history.slots) == 240


def test_measure_other_devices_of_the_pod_count_too() -> None:
    """A pod with one MIG instance by its board, and one whose own history is unknown."""
    item = build.workload(build.pod(devices=2))
    signal = _Boards(item)
    signal.records = build.usages((item.pods[0], (DARK, build.idle_usage(1))))
    decision, measured = _by_board(signal, item)
    assert set(measured.histories["research", "w-0"].slots) == {Slot.UNKNOWN}
    assert not decision.is_enforced


def test_measure_history_of_a_board_may_be_shorter_than_the_pods() -> None:
    """As where slots end before the cycle begins: what is missing is unknown, and no slot is moved."""
    item = build.workload(build.pod(devices=2))
    signal = _Boards(item, hours=239)
    signal.records = build.usages((item.pods[0], (DARK, build.idle_usage(1))))
    decision, measured = _by_board(signal, item)
    assert measured.histories["research", "w-0"].slots == bytes([Slot.UNKNOWN]) * 240
    assert not decision.is_enforced


@pytest.mark.parametrize(("peak_w", "activity"), [(61.0, 0.0), (150.0, None)], ids=["idle", "works"])
def test_preflight_activity_of_mig_instances_is_their_boards(peak_w: float, activity: float | None) -> None:
    """What works after the plan was made is not known to be idle any more, and blocks the write."""
    item = _mig("n1")
    signal = _Boards(item)
    _, measured = _by_board(signal, item)
    signal.peak_w = peak_w
    plan = (measured, build.fleet(item))
    (found,) = activity_with_boards(signal, RECENT, build.AT, plan=plan, with_coverage=True)[
        "research", "w-0"
    ]
    assert found.activity_peak == activity
    assert found.is_fresh is (activity is not None)


class _Young(_Recorded):
    """A record of two days, and how long the server keeps samples."""

    def __init__(self, item: Workload, kept: datetime.timedelta | None) -> None:
        super().__init__(item, {})
        self.kept = kept

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Two days ago."""
        del span
        return at - datetime.timedelta(days=2)

    def retention(self) -> datetime.timedelta | None:
        """As given."""
        return self.kept


@pytest.mark.parametrize(
    ("days", "is_full"), [(2, True), (2.05, True), (15, False), (0.5, False), (None, False)]
)
def test_measure_record_is_full_once_it_is_as_long_as_the_retention(
    days: float | None, is_full: bool
) -> None:
    """A younger one will grow, a longer one is in another store; where the server does not tell, nobody knows."""
    item = build.workload(build.pod())
    book = PolicyEvaluator(build.policy(), build.fleet(item), at=build.AT)
    kept = None if days is None else datetime.timedelta(days=days)
    measured = measure(build.fleet(item), _Young(item, kept), book, build.AT)
    assert measured.begins is not None
    assert measured.is_full is is_full
