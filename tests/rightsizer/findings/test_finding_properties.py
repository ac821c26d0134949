"""Properties of findings over random worlds: less data or more work never proposes more."""

import dataclasses
import datetime
import random
from collections.abc import Callable, Mapping
from typing import Any

import hypothesis
from hypothesis import strategies as st

from rightsizer.findings.finders import assess, freed
from rightsizer.findings.replicas import counted_window
from rightsizer.model import (
    Concurrency,
    Finding,
    FindingName,
    Fleet,
    History,
    Measured,
    Node,
    NodeCoverage,
    PodKey,
    Slot,
    Usage,
    Verdict,
    Waits,
    Workload,
)
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import Thresholds, TooManyReplicas
from tests.rightsizer.build import AT, DAY, MANY, SHRUNK, criteria, device, pod, workload

SLOT = datetime.timedelta(hours=2)
SLOTS = 120
COUNTED = counted_window(TooManyReplicas()) // datetime.timedelta(minutes=1)

MIXED = Node(
    "n9",
    model="NVIDIA H100 80GB HBM3",
    allocatable={"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-3g.40gb": 2},
)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """What one GPU truly did.

    Attributes:
        busy: In which slots it worked, oldest first.
        level: Its activity then.
        look: How it looks otherwise: "spins" at full activity and idle power, or is "hot" though nothing runs.
    """

    busy: tuple[bool, ...]
    level: float = 1.0
    look: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """A workload, what its GPUs truly did, and what else is known."""

    item: Workload
    devices: Mapping[str, tuple[Device, ...]]
    gaps: Mapping[str, frozenset[int]]
    by: Criteria
    counters: bool
    nodes: tuple[Node, ...]


def _usage(index: int, one: Device, gaps: frozenset[int], slots: int, counters: bool) -> Usage:
    last = range(SLOTS - slots, SLOTS)
    seen = [number for number in last if number not in gaps]
    work = sum(one.busy[number] for number in seen)
    is_spinning, is_hot = one.look == "spins", one.look == "hot"
    return Usage(
        device(index),
        activity_mean=0.99 if is_spinning else one.level * work / max(len(seen), 1),
        activity_peak=1.0 if is_spinning else one.level * bool(work),
        traffic_peak=one.level / 2 if work else 0.0,
        memory_peak_bytes=4e9,
        power_peak_w=500.0 if work or is_hot else 118.0,
        busy_s=(slots * SLOT.total_seconds() * one.level * work / slots) if counters else None,
        coverage=len(seen) / slots,
        holes=slots - len(seen),
        is_fresh=SLOTS - 1 in seen,
    )


def _measure(world: World) -> Measured:
    """What would be measured of it."""
    usages = {}
    for window in world.by.windows:
        slots = window // SLOT
        usages[window] = {
            ("research", name): [
                _usage(index, one, world.gaps[name], slots, world.counters)
                for index, one in enumerate(devices)
            ]
            for name, devices in world.devices.items()
        }
    return Measured(
        AT,
        usages,
        histories={("research", name): _history(world, name) for name in world.devices},
        concurrency={"uid-w": _concurrency(world)},
        nodes={"n1": NodeCoverage(8, world.item.devices, 1.0)},
    )


def _history(world: World, name: str) -> History:
    def state(slot: int) -> Slot:
        if slot in world.gaps[name]:
            return Slot.UNKNOWN
        works = any(one.busy[slot] or one.look == "spins" for one in world.devices[name])
        return Slot.BUSY if works else Slot.IDLE

    return History(AT, SLOT.total_seconds(), bytes(map(state, range(SLOTS))))


def _concurrency(world: World) -> Concurrency:
    def count(slot: int) -> tuple[int, int]:
        seen = [pod for pod in world.devices if slot not in world.gaps.get(pod, ())]
        busy = sum(any(one.busy[slot] or one.look == "spins" for one in world.devices[pod]) for pod in seen)
        return busy, len(world.devices) - len(seen)

    minutes = SLOT // datetime.timedelta(minutes=1)
    counts = [count(SLOTS - 1 - ago // minutes) for ago in reversed(range(COUNTED))]
    return Concurrency(*zip(*counts, strict=True))


_RUNS = st.one_of(
    st.just((False,) * SLOTS),
    st.just((True,) * SLOTS),
    st.builds(
        lambda pause, ago: tuple(
            number in {SLOTS - ago, SLOTS - ago - 1 - pause} for number in range(1, SLOTS + 1)
        ),
        st.integers(0, 30),
        st.integers(0, 40),
    ),
    st.builds(lambda every: tuple(number % every == 0 for number in range(SLOTS)), st.integers(2, 20)),
)
_DEVICES = st.builds(
    Device,
    busy=_RUNS,
    level=st.sampled_from([1.0, 0.1, 0.3]),
    look=st.sampled_from(["", "", "", "", "", "spins", "hot"]),
)


@st.composite
def _worlds(draw: st.DrawFn) -> World:
    kind = draw(st.sampled_from(["Deployment", "Deployment", "Job", "LeaderWorkerSet", "RayCluster"]))
    count, each = draw(st.integers(1, 4)), draw(st.sampled_from([1, 1, 2, 4]))
    pods = [
        pod(
            f"w-{number}",
            devices=each,
            is_shared=draw(st.sampled_from([False] * 9 + [True])),
            started=AT - draw(st.sampled_from([10 * DAY] * 9 + [DAY])),
        )
        for number in range(count)
    ]
    quiet = draw(st.booleans())
    few = st.builds(Device, busy=_RUNS.filter(lambda busy: not any(busy[-12:])))
    devices = {
        one.ref.name: tuple(draw(st.lists(few if quiet else _DEVICES, min_size=each, max_size=each)))
        for one in pods
    }
    gaps = st.frozensets(st.integers(0, SLOTS - 1), max_size=3)
    annotations = draw(st.sampled_from([{}] * 4 + [SHRUNK]))
    return World(
        item=workload(*pods, kind=kind, created=AT - 30 * DAY, annotations=annotations),
        devices=devices,
        gaps={one.ref.name: draw(st.sampled_from([frozenset[int]()] * 5)) or draw(gaps) for one in pods}
        if draw(st.integers(0, 4)) == 0
        else {one.ref.name: frozenset() for one in pods},
        by=criteria(idle=Thresholds(window=draw(st.sampled_from([DAY, DAY, 2 * SLOT])))),
        counters=draw(st.booleans()),
        nodes=(MIXED,) if draw(st.booleans()) else (),
    )


def _assess(world: World, measured: Measured, item: Workload | None = None) -> tuple[Finding, ...]:
    judged = item or world.item
    return assess(judged, measured, world.by, Fleet((judged,), {node.name: node for node in world.nodes}, {}))


def _taken(found: tuple[Finding, ...], item: Workload) -> float:
    """GPUs that acting would take away; none where nothing calls for it."""
    return max(0.0, freed(found[0], item))


def _acts(found: tuple[Finding, ...]) -> bool:
    return any(finding.verdict is Verdict.ACT for finding in found)


Change = Callable[[Usage], dict[str, Any]]


def _one_usage(change: Change) -> Callable[[Measured, st.DataObject], Measured]:
    """One device of one pod measured otherwise, over one window or all."""

    def worsen(measured: Measured, data: st.DataObject) -> Measured:
        key = data.draw(st.sampled_from(sorted(measured.histories) or [("research", "w-0")]))
        windows = data.draw(st.sampled_from([*sorted(measured.usages), None]))
        place = data.draw(st.integers(0, 3))
        usages = {}
        for window, found in measured.usages.items():
            used = list(found.get(key, ()))
            if windows in {None, window} and place < len(used):
                used[place] = dataclasses.replace(used[place], **change(used[place]))
            usages[window] = {**found, key: used} if key in found else found
        return dataclasses.replace(measured, usages=usages)

    return worsen


def _without_usage(measured: Measured, data: st.DataObject) -> Measured:
    window = data.draw(st.sampled_from(sorted(measured.usages) or [DAY]))
    usages = {key: list(used) for key, used in measured.usages.get(window, {}).items()}
    key = data.draw(st.sampled_from(sorted(usages) or [("research", "none")]))
    left = usages.pop(key, [])
    is_one_device = data.draw(st.booleans())
    if left and is_one_device:
        left.pop(data.draw(st.integers(0, len(left) - 1)))
        usages[key] = left
    return dataclasses.replace(measured, usages={**measured.usages, window: usages})


def _without_window(measured: Measured, data: st.DataObject) -> Measured:
    gone = data.draw(st.sampled_from(sorted(measured.usages) or [DAY]))
    return dataclasses.replace(
        measured, usages={window: found for window, found in measured.usages.items() if window != gone}
    )


def _with_a_stranger(measured: Measured, data: st.DataObject) -> Measured:
    window = data.draw(st.sampled_from(sorted(measured.usages) or [DAY]))
    usages = {
        key: [*used, Usage(device(99), activity_peak=0.0)]
        for key, used in measured.usages.get(window, {}).items()
    }
    return dataclasses.replace(measured, usages={**measured.usages, window: usages})


def _without_history(measured: Measured, data: st.DataObject) -> Measured:
    gone: PodKey = data.draw(st.sampled_from(sorted(measured.histories) or [("research", "none")]))
    return dataclasses.replace(
        measured, histories={key: known for key, known in measured.histories.items() if key != gone}
    )


def _with_unknown_slots(measured: Measured, data: st.DataObject) -> Measured:
    begin, length = data.draw(st.integers(0, SLOTS - 1)), data.draw(st.integers(1, SLOTS))
    histories = {}
    for key, known in measured.histories.items():
        middle = bytes([Slot.UNKNOWN]) * len(known.slots[begin : begin + length])
        slots = known.slots[:begin] + middle + known.slots[begin + length :]
        histories[key] = dataclasses.replace(known, slots=slots)
    return dataclasses.replace(measured, histories=histories)


def _with_unknown_minutes(measured: Measured, data: st.DataObject) -> Measured:
    minute, lost = data.draw(st.integers(0, COUNTED - 1)), data.draw(st.integers(1, 8))
    concurrency = {}
    for uid, known in measured.concurrency.items():
        busy, unseen = [*known.busy, 0], [*known.unseen, 0]  # of less data already: the minute may be missing
        minute = min(minute, len(known.busy))
        was = busy[minute]
        busy[minute] = max(0, was - lost)
        unseen[minute] += was - busy[minute] + data.draw(st.integers(0, 2))
        concurrency[uid] = Concurrency(tuple(busy[:-1]), tuple(unseen[:-1]))
    return dataclasses.replace(measured, concurrency=concurrency)


def _without_counts(measured: Measured, data: st.DataObject) -> Measured:
    lost = data.draw(st.sampled_from([None, COUNTED, 30]))
    concurrency = {
        uid: Concurrency(known.busy[lost:], known.unseen[lost:])
        for uid, known in measured.concurrency.items()
    }
    return dataclasses.replace(measured, concurrency={} if lost is None else concurrency)


WORSE: dict[str, Callable[[Measured, st.DataObject], Measured]] = {
    "no-usage": _without_usage,
    "no-window": _without_window,
    "a-stranger": _with_a_stranger,
    "a-hole": _one_usage(lambda usage: {"holes": usage.holes + 1}),
    "thinned": _one_usage(lambda usage: {"coverage": usage.coverage * 0.9}),
    "stopped": _one_usage(lambda _: {"is_fresh": False}),
    "too-few": _one_usage(lambda _: {"samples_expected": 3}),
    "invalid": _one_usage(lambda _: {"invalid": ("x",)}),
    "disputed": _one_usage(lambda _: {"disputed": (0.9, 0.0)}),
    "activity-lost": _one_usage(lambda _: {"activity_peak": None}),
    "mean-lost": _one_usage(lambda _: {"activity_mean": None}),
    # Power or traffic alone is a second signal as well: a source need not have both.
    "second-signal-lost": _one_usage(lambda _: {"power_peak_w": None, "traffic_peak": None}),
    "memory-lost": _one_usage(lambda _: {"memory_peak_bytes": None}),
    "own-traffic-lost": _one_usage(lambda _: {"traffic_s": None}),
    "unattributed": _one_usage(
        lambda usage: {"busy_s": (usage.busy_s or 0.0) + 30, "unattributed_s": usage.unattributed_s + 30}
    ),
    "counters-lost": _one_usage(lambda _: {"busy_s": None}),
    "power-raised": _one_usage(lambda usage: {"power_peak_w": usage.power_peak_w and 700.0}),
    "traffic-raised": _one_usage(lambda usage: {"traffic_peak": None if usage.traffic_peak is None else 1.0}),
    "memory-raised": _one_usage(lambda _: {"memory_peak_bytes": 7e10}),
    "no-history": _without_history,
    "unknown-slots": _with_unknown_slots,
    "unknown-minutes": _with_unknown_minutes,
    "no-counts": _without_counts,
    "blind-node": lambda measured, _: dataclasses.replace(measured, nodes={"n1": NodeCoverage(8, 0, 1.0)}),
    "waits": lambda measured, _: dataclasses.replace(
        measured, waits={("research", "w-0"): Waits(io_pressure=0.9)}
    ),
}


@MANY
@hypothesis.given(_worlds(), st.lists(st.sampled_from(sorted(WORSE)), min_size=1, max_size=3), st.data())
def test_findings_with_less_data_never_propose_more(
    world: World, how: list[str], data: st.DataObject
) -> None:
    """Less data never frees more GPUs."""
    before = measured = _measure(world)
    for name in how:
        measured = WORSE[name](measured, data)
    first, then = _assess(world, before), _assess(world, measured)
    assert _acts(first) or not _acts(then)
    assert _taken(then, world.item) <= _taken(first, world.item)


@MANY
@hypothesis.given(_worlds(), st.data())
def test_findings_with_more_work_never_propose_more(world: World, data: st.DataObject) -> None:
    """A GPU that worked as well, when others did or since, takes nothing away that would have stayed.

    Work in a pause of the past is another matter: a workload that never paused has less reason to be waited for.
    What works in part is judged by its size, for which it is old enough earlier.
    """
    looks = {one.look for devices in world.devices.values() for one in devices}
    hypothesis.assume("hot" not in looks or not world.nodes)
    name = data.draw(st.sampled_from(sorted(world.devices)))
    devices = list(world.devices[name])
    place = data.draw(st.integers(0, len(devices) - 1))
    begin, length = data.draw(st.integers(0, SLOTS - 1)), data.draw(st.sampled_from([1, 1, 5, SLOTS]))
    one = devices[place]
    spins = any(other.look == "spins" for others in world.devices.values() for other in others)
    busy = [spins or _worked(world, number) for number in range(SLOTS)]
    # A slot that nobody saw may have ended a pause, too.
    worked = [number for number, is_busy in enumerate(busy) if is_busy]
    last = max([*worked, *(number for slots in world.gaps.values() for number in slots)], default=-1)
    more = [
        begin <= number < begin + length and (is_busy or number > last) for number, is_busy in enumerate(busy)
    ]
    devices[place] = dataclasses.replace(
        one,
        busy=tuple(map(any, zip(one.busy, more, strict=True))),
        level=max(one.level, data.draw(st.sampled_from([0.1, 1.0]))),
    )
    raised = dataclasses.replace(world, devices={**world.devices, name: tuple(devices)})
    first, then = _assess(world, _measure(world)), _assess(raised, _measure(raised))
    taken, before = _taken(then, world.item), _taken(first, world.item)
    if first[0].name in {FindingName.TOO_YOUNG, FindingName.IDLE_TOO_BRIEFLY} and then[0].proposal:
        assert taken < world.item.gpus
    else:
        assert taken <= before


def _worked(world: World, number: int) -> bool:
    """Whether a pod that was there worked in a slot: what was before it was a pause of the others."""
    begins = AT - (SLOTS - number) * SLOT
    return any(
        other.busy[number]
        for pod in world.item.pods
        for other in world.devices[pod.ref.name]
        if pod.started is not None and pod.started <= begins
    )


YOUNGER: dict[str, Callable[[Workload], Workload]] = {
    "just-restarted": lambda item: dataclasses.replace(
        item, pods=tuple(dataclasses.replace(one, started=AT - DAY / 288) for one in item.pods)
    ),
    "restarted": lambda item: dataclasses.replace(
        item, pods=tuple(dataclasses.replace(one, started=AT - DAY / 12) for one in item.pods)
    ),
    "restored": lambda item: dataclasses.replace(
        item, annotations={**item.annotations, "gpu-rightsizer.io/resumed-at": "just now"}
    ),
    "not-ready": lambda item: dataclasses.replace(
        item, pods=tuple(dataclasses.replace(one, is_ready=False) for one in item.pods)
    ),
    "uncountable": lambda item: dataclasses.replace(
        item, pods=tuple(dataclasses.replace(one, unreadable=("requests x",)) for one in item.pods)
    ),
}


@MANY
@hypothesis.given(_worlds(), st.sampled_from(sorted(YOUNGER)))
def test_findings_after_a_restart_or_resume_propose_nothing(world: World, how: str) -> None:
    """Nothing is freed from a workload that was restarted, resumed, is not ready or cannot be counted."""
    seen = _measure(world)
    if how == "restarted":  # replicas are counted minute by minute, and two hours are enough for that
        seen = dataclasses.replace(seen, concurrency={})
    assert _taken(_assess(world, seen, YOUNGER[how](world.item)), world.item) == 0


@MANY
@hypothesis.given(_worlds(), st.randoms(use_true_random=False))
def test_findings_do_not_depend_on_order(world: World, chance: random.Random) -> None:
    """Pods, devices and windows in any order give the same findings."""
    measured = _measure(world)
    pods = list(world.item.pods)
    chance.shuffle(pods)
    usages = {}
    for window in chance.sample(sorted(measured.usages), len(measured.usages)):
        keys = chance.sample(sorted(measured.usages[window]), len(pods))
        found = measured.usages[window]
        usages[window] = {key: chance.sample(found[key], len(found[key])) for key in keys}
    turned = dataclasses.replace(world.item, pods=tuple(pods))
    assert _assess(world, dataclasses.replace(measured, usages=usages), turned) == _assess(world, measured)


@hypothesis.given(_worlds())
def test_findings_with_a_working_gpu_never_free_everything(world: World) -> None:
    """One working GPU in the window keeps the workload."""
    slots = world.by.idle.window // SLOT
    name, (first, *others) = next(iter(world.devices.items()))
    works = any(any(one.busy[-slots:]) for devices in world.devices.values() for one in devices)
    at_work = first if works else dataclasses.replace(first, busy=(*first.busy[:-1], True))
    devices = {**world.devices, name: (at_work, *others)}
    sure = dataclasses.replace(world, devices=devices, gaps=dict.fromkeys(world.gaps, frozenset()))
    for finding in _assess(sure, _measure(sure)):
        if finding.verdict is Verdict.ACT and finding.name is not FindingName.STUCK:
            assert finding.proposal is not None
            assert freed(finding, sure.item) < sure.item.gpus
