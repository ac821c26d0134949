"""What the processes of one GPU really did, to compare measurements with. Pure.

    Work (bursts, memory over time) ──► Truth ──► exact times, and what NVML would show at an instant

Processes that have work at the same instant share the GPU or the MIG instance evenly.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

from simulator.gpus.records import Process, ProcessKind, ProcessSample


class Curve:
    """Nothing before the first step; from each step on, its rate."""

    def __init__(self, steps: Iterable[tuple[int, int]]) -> None:
        """Steps are (time, rate), ascending; of steps at the same instant the last one counts."""
        self._times: list[int] = []
        self._rates: list[int] = []
        self._gathered: list[int] = []
        for at, rate in steps:
            self._gathered.append(self.until(at))
            self._times.append(at)
            self._rates.append(rate)

    def until(self, at: int) -> int:
        """What has gathered before `at`."""
        step = bisect.bisect_right(self._times, at) - 1
        return self._gathered[step] + self._rates[step] * (at - self._times[step]) if step >= 0 else 0

    def between(self, start: int, end: int) -> int:
        """What gathers from `start` until `end`; nothing where that is not later."""
        return self.until(end) - self.until(start) if start < end else 0

    def rate(self, at: int) -> int:
        """At which rate it gathers at `at`."""
        step = bisect.bisect_right(self._times, at) - 1
        return self._rates[step] if step >= 0 else 0


SAMPLE_PERIOD_US = 166_667
"""A sixth of a second: how often cards have been seen to sample their utilization."""
SAMPLE_DEPTH = 100
"""For how many periods cards have been seen to keep their samples."""
_US_PER_MS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A process on a GPU; times are in milliseconds.

    Attributes:
        pid: May be reused after the process ends.
        bursts: When it has work: [from, to) each, ascending, without overlap.
        memory: Steps of the memory that it holds: (from_ms, bytes).
        instance: MIG instance, 0-based; None on a whole GPU.
    """

    pid: int
    start_ms: int
    end_ms: int | None
    bursts: tuple[tuple[int, int], ...]
    memory: tuple[tuple[int, int], ...]
    kind: ProcessKind = ProcessKind.COMPUTE
    instance: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no process can do."""
        life = (self.start_ms, math.inf if self.end_ms is None else self.end_ms)
        edges = [self.start_ms, *itertools.chain.from_iterable(self.bursts), life[1]]
        if life[0] >= life[1] or any(start >= end for start, end in self.bursts):
            raise ValueError(
                f"process {self.pid}: its life from {life[0]} to {life[1]}, or a burst, is empty"
            )
        if any(before > after for before, after in itertools.pairwise(edges)):
            raise ValueError(f"process {self.pid}: its bursts overlap, or are out of order or of its life")
        times = [at for at, _ in self.memory]
        if any(before >= after for before, after in itertools.pairwise(times)) or any(
            not life[0] <= at < life[1] for at in times
        ):
            raise ValueError(f"process {self.pid}: its steps of memory are out of order or of its life")
        if any(held < 0 for _, held in self.memory):
            raise ValueError(f"process {self.pid}: it holds less memory than none")

    def lives(self, at_ms: int) -> bool:
        """Whether the process exists at an instant."""
        return self.start_ms <= at_ms and (self.end_ms is None or at_ms < self.end_ms)


class Truth:
    """The ground truth of one GPU. Spans are [from, to); one that ends before it begins holds nothing."""

    def __init__(self, works: Sequence[Work]) -> None:
        """All processes that ever use the GPU, in any order."""
        _check_together(works)
        self._cut = any(work.instance is not None for work in works)
        self._works = tuple(sorted(works, key=lambda work: (work.start_ms, work.pid)))
        self._active = Curve((at, int(n > 0)) for at, n in _crowd(works))
        self._sharing = {
            instance: _Sharing([work for work in works if work.instance == instance])
            for instance in {work.instance for work in works}
        }
        self._turns = {_key(work): _Turns(work, self._sharing[work.instance]) for work in works}
        self._memory = {_key(work): Curve(_memory_steps(work)) for work in works}

    def busy_ms(self, work: Work, from_ms: int, to_ms: int) -> Fraction:
        """For how long the GPU, or the MIG instance, worked for a process: exact, in milliseconds."""
        scale = self._sharing[work.instance].scale
        spent = self._turns[_key(work)].between(from_ms * _US_PER_MS, to_ms * _US_PER_MS)
        return Fraction(spent, scale * _US_PER_MS)

    def device_busy_ms(self, from_ms: int, to_ms: int, *, instance: int | None = None) -> int:
        """How long the GPU, or a MIG instance, was busy; exact."""
        return self._device(instance).between(from_ms * _US_PER_MS, to_ms * _US_PER_MS) // _US_PER_MS

    def memory_byte_ms(self, work: Work, from_ms: int, to_ms: int) -> int:
        """How much memory a process held for how long: bytes times milliseconds."""
        return self._memory[_key(work)].between(from_ms, to_ms)

    def processes(self, now_ms: int) -> list[Process]:
        """The processes that hold the GPU at an instant, as a board takes them."""
        return [
            Process(work.pid, self._memory[_key(work)].rate(now_ms), work.kind, work.instance)
            for work in self._works
            if work.lives(now_ms)
        ]

    def counters(self, now_us: int, instance: int | None = None) -> int:
        """The microseconds that the GPU, or one of its MIG instances, has worked until an instant."""
        return self._device(instance).until(now_us)

    def buffers(
        self, now_us: int, *, period_us: int = SAMPLE_PERIOD_US, depth: int = SAMPLE_DEPTH
    ) -> tuple[list[tuple[int, int]], list[ProcessSample]]:
        """What NVML's sample buffers hold at an instant; empty under MIG.

        A sample for each of the last `depth` whole periods, in percent with halves rounded up. Samples below half a
        percent are dropped, so that the processes' samples may not add up to the GPU's.
        """
        if self._cut:
            return [], []
        last = now_us // period_us
        ends = range(max(0, last - depth) * period_us, (last + 1) * period_us, period_us)
        utilization = list(zip(ends[1:], _percents(self._active, ends, 1), strict=True))
        samples = [
            ProcessSample(end, work.pid, percent)
            for work in self._works
            if self._turns[_key(work)].touches(ends[0], ends[-1])
            for end, percent in zip(
                ends[1:],
                _percents(self._turns[_key(work)], ends, self._sharing[None].scale),
                strict=True,
            )
            if percent > 0
        ]
        return utilization, sorted(samples, key=lambda sample: sample.at_us)

    def _device(self, instance: int | None) -> Curve:
        if instance is None:
            return self._active
        sharing = self._sharing.get(instance)
        return sharing.active if sharing else Curve(())


class _Sharing:
    """The processes that share a GPU or a MIG instance.

    Attributes:
        scale: A share of 1/n is `scale / n`, a whole number for every n that occurs.
        turn: The scaled time of a process that always has work.
        active: The time in which any process has work.
    """

    __slots__ = ("active", "scale", "turn")

    def __init__(self, works: Sequence[Work]) -> None:
        crowd = list(_crowd(works))
        self.scale = math.lcm(*{n for _, n in crowd if n > 0})
        self.turn = Curve((at, self.scale // n if n > 0 else 0) for at, n in crowd)
        self.active = Curve((at, int(n > 0)) for at, n in crowd)


class _Turns:
    """What a process is given of its GPU, in scaled time."""

    def __init__(self, work: Work, sharing: _Sharing) -> None:
        self._turn = sharing.turn
        self._starts = [start * _US_PER_MS for start, _ in work.bursts]
        self._ends = [end * _US_PER_MS for _, end in work.bursts]
        spent = (self._turn.between(*burst) for burst in zip(self._starts, self._ends, strict=True))
        self._spent = [0, *itertools.accumulate(spent)]

    def until(self, at_us: int) -> int:
        burst = bisect.bisect_right(self._starts, at_us) - 1
        if burst < 0:
            return 0
        return self._spent[burst] + self._turn.between(self._starts[burst], min(at_us, self._ends[burst]))

    def between(self, start_us: int, end_us: int) -> int:
        return self.until(end_us) - self.until(start_us) if start_us < end_us else 0

    def touches(self, start_us: int, end_us: int) -> bool:
        """Whether it has work in that span; quick."""
        burst = bisect.bisect_right(self._ends, start_us)
        return burst < len(self._starts) and self._starts[burst] < end_us


def _crowd(works: Sequence[Work]) -> Iterator[tuple[int, int]]:
    """From when on, in microseconds, how many processes have work at once."""
    changes: dict[int, int] = {}
    for start, end in itertools.chain.from_iterable(work.bursts for work in works):
        changes[start] = changes.get(start, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    count = 0
    for at in sorted(changes):
        count += changes[at]
        yield at * _US_PER_MS, count


def _memory_steps(work: Work) -> Iterator[tuple[int, int]]:
    yield from work.memory
    if work.end_ms is not None:
        yield work.end_ms, 0


def _percents(gathered: Curve | _Turns, ends: Sequence[int], scale: int) -> Iterator[int]:
    """Between each end and the next, how much of the time, in whole percents, halves up."""
    for (start, before), (end, after) in itertools.pairwise((at, gathered.until(at)) for at in ends):
        whole = (end - start) * scale
        yield (200 * (after - before) + whole) // (2 * whole)


def _key(work: Work) -> tuple[int, int]:
    return work.pid, work.start_ms


def _check_together(works: Sequence[Work]) -> None:
    if len({work.instance is None for work in works}) > 1:
        raise ValueError(
            "only some of the processes run on MIG instances; a GPU is cut for all of them or for none"
        )
    by_pid = sorted(works, key=_key)
    for before, after in itertools.pairwise(by_pid):
        if before.pid == after.pid and before.lives(after.start_ms):
            raise ValueError(
                f"process {after.pid} starts at {after.start_ms} ms while another of that PID lives"
            )
