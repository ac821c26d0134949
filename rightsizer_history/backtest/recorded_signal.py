"""A recording as a source of usage: what Prometheus would have answered at a moment of the past. Pure."""

import dataclasses
import datetime
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from rightsizer.model import (
    Concurrency,
    History,
    PartialSignal,
    PodKey,
    Slot,
    Usage,
    Usages,
    WorkLevel,
    strongest,
)
from rightsizer.planning.usage_signal import Signal
from rightsizer.usage.active_replicas import ReplicaQuery
from rightsizer.usage.exporter_counters import COMPLETE, SLACK_S
from rightsizer.usage.sample_coverage import MAX_SLOTS
from rightsizer.usage.scrape_intervals import HALF
from rightsizer.usage.step_usage import MEMORY_UNIT, MISSING, PER_SHARE, PER_WATT, Column
from rightsizer_history.backtest.recording import SIGNALS, Grid, Member, Track

RECENT = datetime.timedelta(minutes=10)


@dataclasses.dataclass(frozen=True, slots=True)
class Present:
    """A pod that runs at the moment, and since which step: its earlier samples are another pod's after a return."""

    member: Member
    since: int


class RecordedSignal(Signal):
    """Record of the pods that run at one moment; it answers for no other.

    Nothing is recorded of whole boards, so MIG instances without activity stay unknown; nor of what only explains:
    waits, the load of servers, nodes.

    Args:
        pods: The pods, by their keys.
    """

    def __init__(self, grid: Grid, pods: Mapping[PodKey, Present]) -> None:
        self._grid = grid
        self._pods = pods

    def usages(
        self, window: datetime.timedelta, at: datetime.datetime, *, of: Collection[PodKey] | None = None
    ) -> Usages:
        """Usage of every device by every pod in the window, or of these pods."""
        stop = self._grid.step(at)
        first = stop - self._grid.steps_in(window)
        return {
            key: tuple(
                filter(
                    None, (self._usage(track, max(first, pod.since), stop, stop - first) for track in found)
                )
            )
            for key, pod in self._pods.items()
            if (of is None or key in of) and (found := list(_alive(pod, stop)))
        }

    def recent(self, at: datetime.datetime) -> Usages:
        """The peaks of the last step, which is no shorter than ten minutes."""
        return self.usages(RECENT, at)

    def activity(
        self,
        window: datetime.timedelta,
        at: datetime.datetime,
        *,
        with_coverage: bool = False,  # noqa: ARG002 - it is always there
    ) -> Usages:
        """The same as `usages`."""
        return self.usages(window, at)

    def histories(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, History]:
        """Activity of each of these pods, step by step."""
        stop = self._grid.step(at)
        first = stop - self._grid.steps_in(span)
        found: dict[PodKey, History] = {}
        for key in pods:
            pod = self._pods[key]
            slots = _slots(
                pod, max(first, pod.since), stop, functools.partial(Track.states, threshold=threshold)
            )
            found[key] = History(at, self._grid.step_s, slots)
        return found

    def work_levels(
        self,
        pods: Mapping[PodKey, datetime.datetime],
        span: datetime.timedelta,
        at: datetime.datetime,
        *,
        threshold: float,
    ) -> Mapping[PodKey, WorkLevel]:
        """Memory traffic of the GPUs of each of these pods, and their power at work."""
        stop = self._grid.step(at)
        first = stop - self._grid.steps_in(span)
        found: dict[PodKey, WorkLevel] = {}
        for key in pods:
            pod = self._pods[key]
            since = max(first, pod.since)
            slots = _slots(
                pod, since, stop, functools.partial(Track.moved, threshold=threshold), only_held=True
            )
            levels = (
                _power_at_work(track, track.moved(threshold), since, stop) for track in _alive(pod, stop)
            )
            found[key] = WorkLevel(
                History(at, self._grid.step_s, slots), min(filter(None, levels), default=None)
            )
        return found

    def begins(self, span: datetime.timedelta, at: datetime.datetime) -> datetime.datetime | None:
        """Beginning of the recording; None if that is earlier than the span."""
        return self._grid.begin if self._grid.begin > at - span else None

    def concurrency(
        self, workloads: Sequence[ReplicaQuery], at: datetime.datetime
    ) -> Mapping[str, Concurrency]:
        """Number of replicas that were active in the same step: an upper bound of those active in the same minute."""
        stop, minutes = self._grid.step(at), max(1, self._grid.step_s // 60)
        found: dict[str, Concurrency] = {}
        for query in workloads:
            steps = max(1, self._grid.steps_in(query.window))
            busy, unseen = [0] * steps, [0] * steps
            for name in query.pods:
                pod = self._pods[query.namespace, name]
                since = max(stop - steps, pod.since)
                slots = _slots(pod, since, stop, functools.partial(Track.states, threshold=query.threshold))
                for place, state in enumerate(slots, steps - len(slots)):
                    busy[place] += state == Slot.BUSY
                    unseen[place] += state == Slot.UNKNOWN
            found[query.uid] = Concurrency(
                tuple(value for value in busy for _ in range(minutes)),
                tuple(value for value in unseen for _ in range(minutes)),
            )
        return found

    def _usage(self, track: Track, first: int, stop: int, steps: int) -> Usage | None:
        """Usage of a device; None of one that the kubelet did not give to the pod, if it did not work there."""
        part = slice(max(0, first - track.first), max(0, stop - track.first))
        samples = _known(track.samples[part])
        if not track.is_held:
            busy, unknown = (_known(column[part]) for column in (track.busy, track.unknown))
            share, unknown_s = sum(busy) / PER_SHARE / steps, sum(unknown) / PER_SHARE * self._grid.step_s
            busy_s = share * steps * self._grid.step_s + unknown_s
            found = Usage(
                track.device,
                share,
                share,
                busy_s=busy_s,
                is_own=True,
                unattributed_s=unknown_s,
                is_held=False,
            )
            return found if busy_s > SLACK_S else None
        if not any(samples):
            return Usage(track.device, is_fresh=False)
        usage = Usage(
            device=track.device,
            activity_mean=_mean(track.mean[part], samples, PER_SHARE),
            activity_peak=_peak(track.peak[part], PER_SHARE),
            traffic_peak=_peak(track.traffic[part], PER_SHARE),
            memory_peak_bytes=_peak(track.memory[part], 1 / MEMORY_UNIT),
            power_mean_w=_mean(track.power_mean[part], samples, PER_WATT),
            power_peak_w=_peak(track.power_peak[part], PER_WATT),
            busy_s=self._seconds(track.busy[part]),
            coverage=_covered(samples, track.expected) / steps,
            holes=_holes(samples, steps),
            is_fresh=samples[-1] >= HALF * track.expected and track.end >= stop,
            samples_expected=track.expected * steps,
            lacking=tuple(self._partial_signals(track, part, steps)),
        )
        return self._own(usage, track, part, stop - first) if track.is_own else usage

    def _partial_signals(self, track: Track, part: slice, steps: int) -> Iterator[PartialSignal]:
        """The second signals that some steps have, and others do not."""
        for signal, name in SIGNALS.items():
            column: Column = getattr(track, name)[part]
            if 0 < (known := len(column) - column.count(MISSING)) < steps:
                seen = [value != MISSING for value in column]
                since = self._grid.time(track.first + part.start + seen.index(True))
                yield PartialSignal(signal, known / steps, _holes(seen, steps), since)

    def _own(self, usage: Usage, track: Track, part: slice, steps: int) -> Usage:
        """Usage by the pod itself on a shared device, as plans have it; the device's where the counters have gaps."""
        own_s, unknown_s = usage.busy_s, self._seconds(track.unknown[part])
        if own_s is None or unknown_s is None:
            return usage
        moving_s = self._seconds(track.moving[part])
        peak = usage.activity_peak if own_s > SLACK_S else (0.0 if own_s + unknown_s <= SLACK_S else None)
        return dataclasses.replace(
            usage,
            activity_mean=min(1.0, (own_s + unknown_s) / (steps * self._grid.step_s)),
            activity_peak=peak,
            busy_s=own_s + unknown_s,
            unattributed_s=unknown_s,
            is_own=True,
            is_visited=track.holders == 1,
            traffic_s=None if moving_s is None else moving_s + unknown_s,
        )

    def _seconds(self, parts: Column) -> float | None:
        """Seconds of a counter; None where it has gaps, as plans see them."""
        missing = parts.count(MISSING)
        if not parts or missing > (1 - COMPLETE) * len(parts):
            return None
        return (sum(parts) - missing * MISSING) / PER_SHARE * self._grid.step_s


def _alive(pod: Present, stop: int) -> Iterator[Track]:
    """Devices of the pod that had begun by then."""
    return (track for track in pod.member.tracks if track.first < stop and track.end > pod.since)


def _slots(
    pod: Present, since: int, stop: int, states: Callable[[Track], bytes], *, only_held: bool = False
) -> bytes:
    """The states of these steps, of all of its devices together."""
    tracks = [track for track in _alive(pod, stop) if track.is_held or not only_held]
    rows = [_row(states(track), track, since, stop) for track in tracks]
    is_known = any(track.is_held for track in tracks)
    return strongest([*rows, *([] if is_known else [bytes([Slot.UNKNOWN]) * (stop - since)])])


def _row(slots: bytes, track: Track, first: int, stop: int) -> bytes:
    """The states of these steps; UNKNOWN where the track has none."""
    known = slots[max(0, first - track.first) : max(0, stop - track.first)]
    before = max(0, min(track.first, stop) - first)
    return track.elsewhen * before + known + track.elsewhen * (stop - first - before - len(known))


def _known(samples: Column) -> Sequence[int]:
    """Samples of each step; 0 where none is known."""
    return [0 if value == MISSING else value for value in samples] if MISSING in samples else samples


def _peak(values: Column, per_unit: float) -> float | None:
    highest = max(values, default=MISSING)
    if highest == MISSING:  # it is the highest of all units
        highest = max((value for value in values if value != MISSING), default=MISSING)
    return None if highest == MISSING else highest / per_unit


def _mean(values: Column, samples: Sequence[int], per_unit: float) -> float | None:
    """The mean of the samples, from those of the steps."""
    if MISSING in values:
        pairs = [(value, count) for value, count in zip(values, samples, strict=True) if value != MISSING]
        total, weight = sum(value * count for value, count in pairs), sum(count for _, count in pairs)
    else:
        total, weight = sum(map(operator.mul, values, samples)), sum(samples)
    return total / weight / per_unit if weight else None


def _covered(samples: Sequence[int], expected: int) -> float:
    """Number of steps that have all of their samples; one with a part of them counts as that part."""
    if min(samples) >= expected:
        return float(len(samples))
    return sum(min(1.0, count / expected) for count in samples)


def _holes(samples: Sequence[int], steps: int) -> int:
    """Slots of the window without a sample."""
    if len(samples) == steps and all(samples):
        return 0
    slots = min(MAX_SLOTS, steps)
    row = [*[0] * (steps - len(samples)), *samples]
    edges = [round(number * steps / slots) for number in range(slots + 1)]
    return sum(not any(row[a:b]) for a, b in itertools.pairwise(edges))


def _power_at_work(track: Track, moved: bytes, first: int, stop: int) -> float:
    """Highest mean power in a step in which it moved memory, in watts; 0 if it never did."""
    powers = track.part(track.power_mean, first, stop)
    states_of = moved[max(0, first - track.first) : max(0, stop - track.first)]
    known = (
        power
        for power, state in zip(powers, states_of, strict=True)
        if state == Slot.BUSY and power != MISSING
    )
    return max(known, default=0) / PER_WATT
