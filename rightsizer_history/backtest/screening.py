"""Steps at which a policy could change a workload, and those with the same evidence: by arrays over all steps. Pure.

Most of a replay needs no judgement: what works is kept, what idles waits. A screen errs towards judging.
"""

import bisect
import dataclasses
import datetime
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rightsizer.findings.replicas import ReplicaNeed, is_worth_it
from rightsizer.findings.second_signals import WORKED
from rightsizer.model import FindingName, Slot
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import Judging, Thresholds, TooManyReplicas
from rightsizer.text import GIB
from rightsizer.usage.exporter_counters import COMPLETE
from rightsizer.usage.sample_coverage import MAX_SLOTS
from rightsizer.usage.scrape_intervals import HALF
from rightsizer.usage.step_usage import MEMORY_UNIT, MISSING, PER_SHARE, PER_WATT
from rightsizer_history.backtest.recording import Grid, Member, Track

Row = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

_HOUR = datetime.timedelta(hours=1)
_ROUNDING = 1e-9


class Outlook(NamedTuple):
    """Findings that are possible for a workload at a step.

    Attributes:
        idle, other: Whether idleness, or another finding, could call for a change.
        evidence: Equal for equal evidence; empty if it shows use, None if only judging tells what follows from it.
    """

    idle: bool
    other: bool
    evidence: bytes | None


@dataclasses.dataclass(frozen=True, slots=True)
class Outlooks:
    """Outlooks of a workload, each from its step on."""

    starts: Sequence[int]
    found: Sequence[Outlook]

    def at(self, step: int) -> Outlook:
        """The one at the beginning of a step."""
        return self.found[bisect.bisect_right(self.starts, step) - 1]


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    """The least that criteria ask for before a finding calls for a change.

    Attributes:
        criteria: Those of one workload.
        enforced: Findings that its rules enforce.
        longest: The longest window of the policy.
        is_compared: Whether the policy enforces what follows from the power of other GPUs that idle.
    """

    criteria: Collection[Criteria]
    enforced: Collection[FindingName]
    grid: Grid
    longest: datetime.timedelta
    is_compared: bool

    def outlooks(self, members: Sequence[Member], since: int) -> Outlooks:
        """Outlooks of a workload with these pods; what was before `since` was others'."""
        first = max(since, min(member.first for member in members))
        end = max(member.end for member in members)
        pods = [_PodColumns(member, first, end, self.grid) for member in members]
        devices = [device for pod in pods for device in pod.devices]
        are_plain = [gpu.track.is_held and not gpu.track.is_own and gpu.track.device.model for gpu in devices]
        if not (devices and all(are_plain)):
            return Outlooks((first,), (Outlook(idle=True, other=True, evidence=None),))
        nothing = np.zeros(end - first + 1, bool)
        idle = rests = spare = unclear = nothing
        rows: list[Flags] = []
        for criteria in self.criteria:
            percent = criteria.idle.maxUtilizationPercent
            short = self.grid.steps_in(criteria.idle.short_window)
            is_idle = ~_any(gpu.count(gpu.active > percent, short) for gpu in devices)
            # No notice is given earlier, unless no process holds memory.
            reach = min(criteria.idle.noticeAfter, criteria.idle.history).total_seconds()
            least = max(short, int(min(criteria.idle.shortest_s / 2, reach) / self.grid.step_s) - 2)
            is_short = _any(gpu.count(gpu.active > percent + _ROUNDING, least) for gpu in devices)
            has_memory = _any(gpu.has_memory(criteria.idle.maxEmptyMemoryMiB, short) for gpu in devices)
            idle, rests = idle | is_idle, rests | (is_idle & ~(is_short & has_memory))
            parts: list[tuple[datetime.timedelta, Judging, float]] = [
                (window, criteria.idle, percent)
                for window in {criteria.idle.window, criteria.idle.short_window}
            ]
            if any(member.devices > 1 for member in members):
                many, percent = criteria.tooManyGpus, criteria.tooManyGpus.maxUtilizationPercent
                longer = max(many.window, criteria.idle.window)
                parts += [(window, many, percent) for window in {many.window, longer}]
                spare = spare | ~_any(pod.uses_all(percent, self.grid.steps_in(longer)) for pod in pods)
                unclear = unclear | _any(~pod.is_old(longer) for pod in pods)
            for window, part, percent in parts:
                for pod in pods:
                    is_old = pod.is_old(window + part.grace)
                    rows.append(is_old)
                    for device in pod.devices:
                        found, is_open = device.evidence(window, part.minCoverage, percent, criteria.idle)
                        rows += found
                        unclear = unclear | (is_open & is_old)
        windows = (window for criteria in self.criteria for window in criteria.wide_windows)
        widest = max(map(self.grid.steps_in, windows))
        longest = self.grid.steps_in(self.longest)
        tells = idle | spare
        unclear = (unclear | _any(gpu.may_lack_signals(widest, longest) for gpu in devices)) & tells
        if self.is_compared:
            unclear = unclear | _any(gpu.count(gpu.active > 0, widest) == 0 for gpu in devices)
        acts = rests if {FindingName.IDLE, FindingName.FINISHED} & set(self.enforced) else nothing
        other = _any((nothing, *self._others(pods, spare)))
        return _runs(first, (acts, other, tells, unclear), rows)

    def _others(self, pods: Sequence["_PodColumns"], spare: Flags) -> Iterator[Flags]:
        """Steps at which other findings than idleness could call for a change."""
        devices = [device for pod in pods for device in pod.devices]
        if FindingName.TOO_MANY_GPUS in self.enforced:
            yield spare
        for criteria in self.criteria:
            if FindingName.STUCK in self.enforced:
                limit = criteria.idle.maxMemoryTrafficPercent
                steps = self.grid.steps_in(criteria.stuck.window)
                yield ~_any(gpu.count(gpu.moved > limit, steps) for gpu in devices)
            if FindingName.TOO_MANY_REPLICAS in self.enforced and len(pods) > 1:
                yield self._may_shrink(pods, criteria.tooManyReplicas)

    def _may_shrink(self, pods: Sequence["_PodColumns"], part: TooManyReplicas) -> Flags:
        """Whether enough would be removed: all but the replicas of the busiest step, and headroom."""
        rows = np.broadcast_arrays(*(pod.works(part.busyPercent / 100) for pod in pods))
        most = _highest(np.sum(rows, axis=0), self.grid.steps_in(part.window))
        needs = [ReplicaNeed(part, number, 0).replicas() for number in range(len(pods) + 1)]
        return np.array([is_worth_it(part, len(pods), need) for need in needs])[most]


class _PodColumns:
    """A pod from the step `first` on."""

    def __init__(self, member: Member, first: int, end: int, grid: Grid) -> None:
        self._member = member
        self._ages = np.arange(first, end + 1) - max(first, member.first)
        self._step_s = grid.step_s
        self.devices = [
            _DeviceColumns(track, first, end, grid) for track in member.tracks if track.end > first
        ]

    def is_old(self, least: datetime.timedelta) -> Flags:
        """Whether it is at least as old."""
        return self._ages * self._step_s >= least.total_seconds()

    def uses_all(self, percent: float, steps: int) -> Flags:
        """Whether as many devices as it holds were active in the last steps."""
        active = [device.count(device.active > percent, steps) > 0 for device in self.devices]
        enough: Flags = np.sum(active, axis=0) >= self._member.devices
        return enough

    def works(self, threshold: float) -> Flags:
        """Activity of any device in each step."""
        rows = [gpu.aligned(np.frombuffer(gpu.track.states(threshold), np.uint8), 0) for gpu in self.devices]
        return _any(row == Slot.BUSY for row in rows)


class _DeviceColumns:
    """Activity of a device from the step `first` on; of a window, values are those at the end of each step before."""

    def __init__(self, track: Track, first: int, end: int, grid: Grid) -> None:
        self.track = track
        self._first, self._end, self._grid = first, end, grid
        peak, traffic, power, samples = (
            self.aligned(np.asarray(column), MISSING)
            for column in (track.peak, track.traffic, track.power_peak, track.samples)
        )
        # -1 is unknown. In percent and watts, as findings have them: in the same order of operations.
        self.active = np.where(peak == MISSING, -1.0, peak / PER_SHARE * 100)
        self.moved = np.where(traffic == MISSING, -1.0, traffic / PER_SHARE * 100)
        self._power_w = np.where(power == MISSING, -1.0, power / PER_WATT)
        self._samples = np.where(samples == MISSING, 0, samples)

    def aligned(self, values: Row, fill: int) -> Numbers:
        """The values of all steps; `fill` where it has none."""
        found = np.full(self._end - self._first, fill, np.int64)
        begin, skipped = max(0, self.track.first - self._first), max(0, self._first - self.track.first)
        part = values[skipped : skipped + len(found) - begin]
        found[begin : begin + len(part)] = part
        return found

    def count(self, values: Row, steps: int) -> Numbers:
        """The sum of the last steps, at the beginning of each step."""
        sums: Numbers = np.concatenate(([0], np.cumsum(values, dtype=np.int64)))
        sums[steps:] -= sums[:-steps].copy()
        return sums

    def evidence(
        self, window: datetime.timedelta, least: float, percent: float, idle: Thresholds
    ) -> tuple[list[Flags], Flags]:
        """Flags on which evidence of idleness over a window depends, and the steps at which they are not all."""
        steps, limit_w = self._grid.steps_in(window), idle.idle_power_w(self.track.device.model)
        expected = self.track.expected
        coverage = self.count(np.minimum(self._samples, expected), steps) / (expected * steps)
        has_gaps = self.count(self._samples > 0, steps) < steps
        is_listed = np.arange(self._first, self._end + 1) > self.track.first
        is_fresh = np.concatenate(([False], self._samples >= HALF * expected))
        flags = (
            *(self._samples > 0, self.active > percent, self.active >= 0, self.moved >= 0),
            *(self.moved > idle.maxMemoryTrafficPercent, self._power_w > 0),
            self._power_w > (np.inf if limit_w is None else limit_w),
        )
        rows = [self.count(flag, steps) > 0 for flag in flags]
        rows += [is_listed, is_fresh, coverage >= least, has_gaps, *self._counted(window, steps, idle)]
        return rows, (abs(coverage - least) < _ROUNDING) | (has_gaps & (steps > MAX_SLOTS))

    def has_memory(self, most_mib: float, steps: int) -> Flags:
        """Whether a process holds memory on it, or that is unknown."""
        memory = self.aligned(np.asarray(self.track.memory), MISSING)
        is_known = self.count(memory != MISSING, steps) > 0
        is_held = (memory != MISSING) & (memory / (1 / MEMORY_UNIT) > most_mib * GIB / 1024)
        return ~is_known | (self.count(is_held, steps) > 0)

    def _counted(self, window: datetime.timedelta, steps: int, idle: Thresholds) -> list[Flags]:
        """Whether counters show that a kernel ran."""
        if self.track.busy.count(MISSING) == len(self.track.busy):
            return []
        column = np.asarray(self.track.busy)
        lacking, length = (
            self.count(self.aligned(flags, 0), steps) for flags in (column == MISSING, column >= 0)
        )
        sums = self.count(self.aligned(np.where(column == MISSING, 0, column), 0), steps)
        limit_s = idle.maxBusySecondsPerHour * (window / _HOUR)
        is_known = (length > 0) & (lacking <= (1 - COMPLETE) * length)
        return [is_known & (sums / PER_SHARE * self._grid.step_s > limit_s)]

    def may_lack_signals(self, widest: int, longest: int) -> Flags:
        """Whether its power or memory traffic may have stood still while it worked, and so be no signals."""
        worked = self.count(self.active > WORKED * 100, longest) > 0
        power, weights = self.aligned(np.asarray(self.track.power_mean), MISSING), self._samples
        weights = np.where(power == MISSING, 0, weights)
        mean_w = self.count(power * weights, widest) / np.maximum(1, self.count(weights, widest)) / PER_WATT
        is_moving = (self.count(weights, widest) > 0) & (_highest(self._power_w, widest) > mean_w + 0.2)
        has_power = self.count(self._power_w > 0, longest) > 0
        return worked & ~((self.count(self.moved > 0, widest) > 0) & (is_moving | ~has_power))


def _any(rows: Iterable[Row]) -> Flags:
    """Steps in which one of the rows is above zero."""
    found: Flags = functools.reduce(np.logical_or, (row > 0 for row in rows), np.zeros(1, bool))
    return found


def _highest(values: Row, width: int) -> Row:
    """The highest of the last values, at the beginning of each step; of ranges that overlap and double in length."""
    found, covered = np.concatenate((np.zeros(width, values.dtype), values)), 1
    while covered < width:
        step = min(covered, width - covered)
        found, covered = np.maximum(found[:-step], found[step:]), covered + step
    return found


def _runs(first: int, states: Sequence[Flags], rows: Sequence[Flags]) -> Outlooks:
    """The steps between which nothing changes; evidence changes nothing where it shows use."""
    acts, other, tells, unclear = states
    packed = np.packbits([*states, *(row & tells for row in rows)], axis=0)
    places = [0, *(np.flatnonzero((packed[:, 1:] != packed[:, :-1]).any(axis=0)) + 1).tolist()]
    known: dict[bytes, bytes] = {}
    found = []
    for place in places:
        column = packed[:, place].tobytes() if tells[place] else b""
        evidence = None if unclear[place] else known.setdefault(column, column)
        found.append(Outlook(bool(acts[place]), bool(other[place]), evidence))
    return Outlooks([first + place for place in places], found)
