"""Stuck and not starting: workloads that hold GPUs without making progress. Pure.

Stuck: full utilization without memory traffic, at idle power or far below the workload's own power at work, as in a
hung collective. Not starting: pods that are pending, fail, or have ended beside a sidecar.
"""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from rightsizer.findings.data_quality import COMPLETENESS_CHECKS, first_issues
from rightsizer.findings.evidence import Candidate, DeviceEvidence, Evidence, has_replicas, is_batch, pod_key
from rightsizer.findings.idle_history import ActivityHistory
from rightsizer.model import BoardLevel, Boards, Finding, FindingName, Pod, Usage, Usages, Verdict
from rightsizer.text import gpus, span

RECENT = datetime.timedelta(minutes=10)
"""Devices that worked in the last minutes also worked in every longer window."""

CONTEXT_BYTES = 256 << 20
"""A CUDA context holds about 500 MiB; without one, a board draws less."""
MIN_COVERAGE = 0.9
"""Least share of the window for a board to count as idle throughout."""

_AT_WORK = 1.5
"""Times the power of an idle board, which no idle one draws."""

MANY_RESTARTS = 5
"""The kubelet waits 10 s, 20 s, 40 s ... before restarts: the fifth comes over five minutes after the first."""


def find_stuck(candidate: Candidate) -> Finding | None:
    """A workload without working devices, of which at least one spins; None if a signal is missing.

    Ranks wait for each other, so one that spins is enough; replicas are independent, so the others may be healthy.
    """
    part = candidate.criteria.stuck
    evidence = candidate.over(part)
    devices = evidence.devices
    spinning = sum(_spins(gpu, part.minMeanPercent) for gpu in devices)
    if not _moves_nothing(candidate, evidence):
        return None
    has_waited = _has_waited_long(candidate)
    is_at_idle_power = _is_at_idle_power(candidate, evidence)
    words = "drew idle power" if is_at_idle_power else has_waited and _below_its_work(candidate, evidence)
    if not words or first_issues(evidence, COMPLETENESS_CHECKS):
        return None
    subject = "its GPU" if len(devices) == 1 else f"{spinning} of its {len(devices)} GPUs"
    pods = [pod for pod, of_pod in evidence.held if any(_spins(gpu, part.minMeanPercent) for gpu in of_pod)]
    is_whole = len(pods) == len(evidence.held) or not has_replicas(candidate.workload)
    is_sure = has_waited or not _may_wait(candidate)
    notes = () if is_sure else (f"it may wait for requests: stuck after {span(_wait(candidate))}",)
    if not is_whole:
        notes = (f"other pods may work: delete only {', '.join(pod.ref.name for pod in pods)}",)
    spun = f"{subject} reported {part.minMeanPercent:g}% or more activity for {span(evidence.window)}"
    return evidence.finding(
        FindingName.STUCK,
        Verdict.ACT if is_whole and is_sure else Verdict.KEEP,
        f"{spun}, but {words} and moved no memory",
        f"{evidence.spin_cause}: restart the workload",
        *notes,
        evidence.levels,
    )


def could_be_stuck(candidate: Candidate, recent: Callable[[], Usages]) -> bool:
    """Whether it could be stuck over a window that was not measured, judging by a longer one.

    Excluded are devices that were never near full utilization, or that worked in the last minutes: `recent` returns
    the highest values of these.
    """
    part = candidate.criteria.stuck
    longer = min((span for span in candidate.wide_windows if span >= part.window), default=None)
    if longer is None:
        return True
    known = candidate.measured.usages[longer]
    if not any(
        _may_spin(usage, part.minMeanPercent)
        for pod in candidate.held
        for usage in known.get(pod_key(pod), ())
    ):
        return False
    if part.window < RECENT:
        return True
    return not any(
        gpu.moves_memory or (gpu.moves_memory is None and gpu.draws_power)
        for gpu in candidate.devices_in(recent())
    )


def needs_work_level(candidate: Candidate) -> bool:
    """Whether it is stuck unless that is how it works or waits: it spins without memory traffic."""
    evidence = candidate.over(candidate.criteria.stuck)
    if not _moves_nothing(candidate, evidence):
        return False
    if _is_at_idle_power(candidate, evidence):
        return _may_wait(candidate)
    return candidate.criteria.stuck.maxWorkPowerPercent > 0


@dataclasses.dataclass(frozen=True, slots=True)
class IdlePower:
    """Power of GPUs that held memory while nothing ran for these pods.

    Attributes:
        watts: Mean power, by UUID and model.
        active: UUIDs of GPUs on which something may have run, perhaps for a neighbour of one of these pods.
    """

    watts: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    active: frozenset[str] = frozenset()

    @classmethod
    def of(cls, usages: Usages) -> "IdlePower":
        """Idle power by the usage of these pods."""
        every = list(itertools.chain.from_iterable(usages.values()))
        watts: dict[tuple[str, str], float] = {}
        for usage in every:
            is_idle = usage.activity_peak == 0 and usage.traffic_peak == 0 and usage.coverage >= MIN_COVERAGE
            is_loaded = (usage.memory_peak_bytes or 0) >= CONTEXT_BYTES
            is_whole = not (usage.invalid or usage.device.instance)
            if usage.power_mean_w and is_idle and is_loaded and is_whole:
                key = (usage.device.uuid, usage.device.model)
                watts[key] = min(usage.power_mean_w, watts.get(key, usage.power_mean_w))
        return cls(watts, frozenset(usage.device.uuid for usage in every if usage.activity_peak != 0))

    def joined(self, other: "IdlePower") -> "IdlePower":
        """Idle power by the pods of both."""
        watts = {
            key: min(level.watts[key] for level in (self, other) if key in level.watts)
            for key in self.watts.keys() | other.watts.keys()
        }
        return IdlePower(watts, self.active | other.active)

    @property
    def idle(self) -> frozenset[str]:
        """UUIDs of GPUs on which nothing ran, also not for a neighbour."""
        return frozenset(uuid for uuid, _ in self.watts) - self.active

    @property
    def lowest(self) -> dict[str, float]:
        """Lowest idle power of each model: invented series can only lower it, so that less is stuck."""
        found: dict[str, float] = {}
        for (uuid, model), power_w in self.watts.items():
            if uuid not in self.active:
                found[model] = min(power_w, found.get(model, power_w))
        return found


def board_levels(
    usages: Usages, boards: Boards, *, percent: float, empty_bytes: float
) -> dict[str, BoardLevel]:
    """Up to where a board of each model counts as idle: `percent` of the lowest mean power of those that did nothing.

    These hold memory while nothing runs, as in `IdlePower`; if there are none, no process has memory on them.
    """
    loaded = IdlePower.of(usages).idle
    levels: dict[tuple[str, bool], BoardLevel] = {}
    for uuid, board in boards.items():
        is_loaded, memory, power_w = uuid in loaded, board.memory_peak_bytes, board.power_mean_w
        did_nothing = is_loaded or (memory is not None and memory <= empty_bytes)
        is_known = power_w and board.coverage >= MIN_COVERAGE and not board.invalid
        if power_w and is_known and did_nothing and not board.traffic_peak:
            key = (board.device.model, is_loaded)
            lowest = levels.get(key, BoardLevel(power_w, board.clock_peak_hz))
            clocks = filter(None, (lowest.clock_hz, board.clock_peak_hz))
            levels[key] = BoardLevel(min(power_w, lowest.power_w), min(clocks, default=None))
    found = {
        model: BoardLevel(level.power_w * percent / 100, level.clock_hz)
        for (model, _), level in sorted(levels.items())  # those with a loaded model are last
    }
    by_model = {model: [board for board in boards.values() if board.device.model == model] for model in found}
    moving = {model: _with_moving(level, by_model[model]) for model, level in found.items()}
    return {model: level for model, level in moving.items() if level is not None}


def _with_moving(level: BoardLevel, boards: Sequence[Usage]) -> BoardLevel | None:
    """The level without a clock that stands still while boards work; None if their memory traffic does, too."""
    working = [board for board in boards if (board.power_peak_w or 0.0) > _AT_WORK * level.power_w]
    if not working or any((board.clock_peak_hz or 0.0) > (level.clock_hz or math.inf) for board in working):
        return level
    return BoardLevel(level.power_w, None) if any(board.traffic_peak for board in boards) else None


def by_boards(usages: Usages, boards: Boards, levels: Mapping[str, BoardLevel]) -> Usages:
    """The usages; MIG instances without an activity metric did nothing where their whole board was idle.

    A board that was not says nothing about any one device on it.
    """
    return {
        pod: tuple([_by_board(usage, boards.get(usage.device.uuid), levels) for usage in known])
        if any(map(is_dark, known))
        else known
        for pod, known in usages.items()
    }


def is_dark(usage: Usage) -> bool:
    """Whether it is a MIG instance without any activity metric, as before Hopper."""
    is_unmeasured = usage.activity_peak is None and usage.busy_s is None
    return usage.is_held and bool(usage.device.instance) and is_unmeasured


def _by_board(usage: Usage, board: Usage | None, levels: Mapping[str, BoardLevel]) -> Usage:
    if board is None or not is_dark(usage) or not _was_idle(board, levels.get(usage.device.model)):
        return usage
    return dataclasses.replace(
        board,
        device=usage.device,
        activity_mean=0.0,
        activity_peak=0.0,
        traffic_peak=0.0,
        memory_peak_bytes=usage.memory_peak_bytes,
        invalid=tuple(sorted({*usage.invalid, *board.invalid})),
        is_by_board=True,
    )


def _was_idle(board: Usage, level: BoardLevel | None) -> bool:
    """Whether a board idled by its power and its SM clock, or its memory traffic where no idle board shows a clock."""
    if level is None or board.traffic_peak or not _is_at_most(board.power_peak_w, level.power_w):
        return False
    if level.clock_hz is None:
        return board.traffic_peak == 0
    return _is_at_most(board.clock_peak_hz, level.clock_hz)


def _moves_nothing(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether a device spins, and none has moved memory; a board's traffic is also that of other pods on it."""
    devices, least = evidence.devices, candidate.criteria.stuck.minMeanPercent
    has_stopped = all(gpu.moves_memory is False for gpu in devices)
    return has_stopped and not evidence.is_shared and any(_spins(gpu, least) for gpu in devices)


def _is_at_idle_power(candidate: Candidate, evidence: Evidence) -> bool:
    """Whether no device drew more than an idle one of its model."""
    return all(
        gpu.draws_power is False or _is_at_most(gpu.usage.power_peak_w, _idle_limit_w(candidate, gpu))
        for gpu in evidence.devices
    )


def _idle_limit_w(candidate: Candidate, gpu: DeviceEvidence) -> float | None:
    lowest_w = candidate.measured.idle_power.get(gpu.usage.device.model)
    return None if lowest_w is None else lowest_w * candidate.criteria.stuck.maxIdlePowerPercent / 100


def _is_at_most(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value <= limit


def _below_its_work(candidate: Candidate, evidence: Evidence) -> str:
    """Words if no device drew nearly what it does at work, with the time without memory traffic; else empty.

    It may have worked before in just this way: at about this power without memory traffic, until there was some again.
    """
    part, known = candidate.criteria.stuck, candidate.measured.work
    levels = [known.get(pod_key(pod)) for pod, _ in evidence.held]
    share = part.maxWorkPowerPercent / 100
    for level, (_, devices) in zip(levels, evidence.held, strict=True):
        limit = None if level is None or level.power_w is None else level.power_w * share
        # A device that was never used has no level of its own.
        powers = [gpu.usage.power_mean_w for gpu in devices if gpu.draws_power is not False]
        if not all(_is_at_most(power_w, limit) for power_w in powers):
            return ""
        quiet_w = (level and level.quiet_power_w) or 0.0
        if any(power_w is not None and quiet_w >= power_w * share for power_w in powers):
            return ""
    history = _without_traffic(candidate)
    if history is None or not history.worked:
        return ""
    return f"drew at most {part.maxWorkPowerPercent:g}% of its power at work, for {span(history.idle_s)},"


def _may_wait(candidate: Candidate) -> bool:
    """Whether it may spin while it waits for requests, as some servers of several GPUs do."""
    return not is_batch(candidate.workload)


def _has_waited_long(candidate: Candidate) -> bool:
    """Whether it moves no memory for longer than `idleFactor` times its longest earlier time without."""
    idle, history = candidate.criteria.idle, _without_traffic(candidate)
    if history is None:
        return False
    pause_s = min(idle.idleFactor * history.longest_return_s, idle.history.total_seconds())
    return history.idle_s >= max(pause_s, _wait(candidate).total_seconds())


def _wait(candidate: Candidate) -> datetime.timedelta:
    """Time that it has to be without memory traffic; as long as if it were idle, if it may wait for requests."""
    part, idle = candidate.criteria.stuck, candidate.criteria.idle
    return max(part.withoutTraffic, idle.window) if _may_wait(candidate) else part.withoutTraffic


def _without_traffic(candidate: Candidate) -> ActivityHistory | None:
    return candidate.history_by({key: level.traffic for key, level in candidate.measured.work.items()})


def _may_spin(usage: Usage, min_mean_percent: float) -> bool:
    peak = usage.activity_peak
    return bool(usage.invalid) or peak is None or peak * 100 >= min_mean_percent


def _spins(device: DeviceEvidence, min_mean_percent: float) -> bool:
    """Whether a device spins by every source of activity: one may be forged to get an idle workload stopped."""
    usage = device.usage
    mean = usage.activity_mean if usage.activity_floor is None else usage.activity_floor
    return bool(device.ran) and mean is not None and mean * 100 >= min_mean_percent


def find_not_starting(candidate: Candidate) -> Finding | None:
    """The pods that have held GPUs for long without running."""
    words = tuple(
        f"pod {pod.ref.name} has held {gpus(pod.devices)} for {span(candidate.at - _since(pod, candidate.at))} "
        f"and does not run: {_reason(pod)}"
        for pod in candidate.held
        if _is_stuck_before_start(pod, candidate)
    )
    if not words:
        return None
    return candidate.over_idle().finding(
        FindingName.NOT_STARTING, Verdict.KEEP, *words, "check its events and logs"
    )


def _is_stuck_before_start(pod: Pod, candidate: Candidate) -> bool:
    if pod.is_terminating or pod.started is not None:
        return False
    is_failing = pod.waiting != "" and (pod.restarts == 0 or pod.restarts >= MANY_RESTARTS)
    is_held_long = candidate.at - _since(pod, candidate.at) >= candidate.criteria.notStarting.after
    return is_held_long and (is_failing or pod.phase == "Pending")


def _since(pod: Pod, at: datetime.datetime) -> datetime.datetime:
    """Time of creation; now if unknown."""
    return pod.created or at


def _reason(pod: Pod) -> str:
    reason = pod.waiting or pod.phase
    return f"{reason}, {pod.restarts} restarts" if pod.restarts else reason
