"""Usage counters of a GPU by pod, compared with the work of each simulated process."""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from benchmarks._timelapse import BOOT_S, Timelapse
from simulator.gpus.groundtruth import SAMPLE_PERIOD_US, Work
from simulator.gpus.records import ProcessKind
from simulator.nodes.devices import Container
from simulator.spec import GpuSpec, NodeSpec

pytestmark = pytest.mark.driver

START_MS = (BOOT_S + 100_000) * 1000
MIB = 2**20
NODE = NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),))
CUT = NodeSpec("cut", (GpuSpec("H100-SXM5-80GB", mig=("3g.40gb", "2g.20gb", "1g.10gb")),))
SEEN_AFTER_MS = 20
"""A process of more than this age is certainly older than the list that contains it."""
BUSY, REST, DEVICE = (
    "gpu_pod_busy_seconds_total",
    "gpu_unattributed_busy_seconds_total",
    "gpu_busy_seconds_total",
)
MEMORY = "gpu_pod_memory_used_byte_seconds_total"


def container(pod: str) -> Container:
    """The one of a pod."""
    number = sum(map(ord, pod))
    return Container("ml", pod, f"00000000-0000-4000-8000-{number:012d}", "main")


@dataclasses.dataclass(frozen=True)
class Schedule:
    """What happens on a GPU.

    Attributes:
        works: Each process, and its pod; None for one of the host.
        looks_ms: When the exporter looks, in milliseconds after the start.
    """

    works: tuple[tuple[Work, str | None], ...]
    looks_ms: tuple[int, ...]

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """In one line: written out, it is longer than anybody reads."""
        printer.text(f"{len(self.works)} processes, {len(self.looks_ms)} looks")

    @property
    def pods(self) -> list[str]:
        """All pods."""
        return sorted({pod for _, pod in self.works if pod is not None})


LENGTH_MS = 75_000
# a twelfth and less of what the profile says: each example is more than a minute on a node
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
_MANY = settings(max_examples=settings().max_examples // 8, deadline=None, suppress_health_check=_SLOW)
_SOME = settings(max_examples=settings().max_examples // 16, deadline=None, suppress_health_check=_SLOW)


@st.composite
def _bursts(draw: st.DrawFn, start_ms: int, end_ms: int) -> tuple[tuple[int, int], ...]:
    """From 20 ms to as long as the process lives, with pauses likewise."""
    length = draw(st.sampled_from((20, 50, 170, 400, 2_000, 30_000, 10**8)))
    pause = draw(st.sampled_from((20, 90, 300, 1_000, 13_000)))
    jitter = draw(st.integers(0, 200))
    at = start_ms + draw(st.integers(30, 3000))
    found: list[tuple[int, int]] = []
    while at < end_ms:
        end = min(at + length + (jitter * len(found)) % 97, end_ms)
        found.append((at, end))
        at = end + pause + (jitter * len(found)) % 89
    return tuple(found)


@st.composite
def _lives(draw: st.DrawFn, kind: ProcessKind, instance: int | None) -> list[Work]:
    """Processes one after the other, all of PID 1 yet."""
    found: list[Work] = []
    at = START_MS + draw(st.sampled_from((-500_000, 1_500, 9_700, 20_000))) + draw(st.integers(0, 999))
    for _ in range(draw(st.integers(1, 3))):
        life = draw(st.sampled_from((300, 2_500, 12_000, 10**7)))
        end = at + life
        burst_end = min(end, START_MS + LENGTH_MS + 10_000)
        begin = max(at, START_MS - 5_000)
        bursts = draw(_bursts(begin, burst_end)) if begin < burst_end else ()
        memory = ((at, draw(st.integers(0, 2000)) * MIB),)
        found.append(Work(1, at, end, bursts, memory, kind, instance))
        at = end + draw(st.sampled_from((1_100, 4_000, 30_000)))
    return found


def _numbered(works: Sequence[Work], spare: int) -> Iterator[Work]:
    """With PIDs as the kernel gives them out: the next that is free, from the beginning again after the last.

    Args:
        works: In order of their starts.
        spare: How many PIDs there are beyond those that are ever in use at once: the fewer, the sooner they come again.
    """
    busiest = max(sum(other.lives(work.start_ms) for other in works) for work in works)
    count, last = busiest + spare, -1
    taken: dict[int, int] = {}
    for work in works:
        last = next(
            number
            for step in range(1, count + 1)
            if taken.get(number := (last + step) % count, 0) <= work.start_ms
        )
        taken[last] = work.end_ms or 10**18
        yield dataclasses.replace(work, pid=1000 + last)


@st.composite
def schedules(draw: st.DrawFn, *, instances: int = 0) -> Schedule:
    """1 to 64 processes at once of some pods and of the host, which come and go; looks every second or so."""
    count = draw(st.one_of(st.integers(1, 8), st.integers(9, 64)))
    pods = [f"pod-{number}" for number in range(draw(st.integers(2, 6)))]
    kind = draw(st.sampled_from((ProcessKind.COMPUTE, ProcessKind.MPS)))
    found: list[Work] = []
    for _ in range(count):
        found += draw(_lives(kind, draw(st.integers(0, instances - 1)) if instances else None))
    found.sort(key=lambda work: work.start_ms)
    spare = max(_starts_within(found, 6_000), draw(st.integers(1, 200)))
    works = [
        (work, f"pod-{work.instance}" if instances else draw(st.sampled_from((*pods, *pods, None))))
        for work in _numbered(found, spare)
    ]
    step = draw(st.sampled_from((700, 1_000, 3_100, 5_000)))
    return Schedule(tuple(works), tuple(range(0, LENGTH_MS + 1, step)))


def _starts_within(works: Sequence[Work], span_ms: int) -> int:
    """How many start within so long at most: a kernel never comes round all PIDs between two looks."""
    starts = [work.start_ms for work in works]
    return max(sum(start <= other < start + span_ms for other in starts) for start in starts) + 1


class Increase:
    """What the counters said between two looks."""

    def __init__(self, series: Sequence[list[tuple[str, dict[str, str], float]]]) -> None:
        self._values = [
            {
                (name, *(labels.get(key, "") for key in ("mig_uuid", "pod", "reason"))): value
                for name, labels, value in one
            }
            for one in series
        ]

    def of(self, name: str, first: int, last: int, *, instance: str = "", pod: str = "") -> float:
        """How much a counter grew from look `first` to look `last`; what vanishes and comes back starts at 0."""
        key = name, instance, pod, ""
        return self._grown([values.get(key) for values in self._values[first : last + 1]])

    def of_all(self, name: str, first: int, last: int, *, instance: str = "") -> float:
        """The same of all of a metric's series of a device together."""
        keys = {key for values in self._values for key in values if key[:2] == (name, instance)}
        return sum(
            self._grown([values.get(key) for values in self._values[first : last + 1]]) for key in keys
        )

    @staticmethod
    def _grown(values: Sequence[float | None]) -> float:
        grown, before = 0.0, values[0] or 0.0
        for value in values[1:]:
            if value is not None:
                assert value >= before or before == 0, "a counter has decreased"
                grown += value - before
            before = value or 0.0
        return grown


def run(schedule: Schedule, *, spec: NodeSpec = NODE) -> tuple[Timelapse, Increase]:
    """Let the exporter sample the work."""
    works = {work: None if pod is None else container(pod) for work, pod in schedule.works}
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        ids = {pod: [f"{spec.gpu_uuid(0)}::{number}"] for number, pod in enumerate(schedule.pods)}
        if spec.gpus[0].mig:
            ids = {f"pod-{number}": [spec.mig_uuid(0, number)] for number in range(len(spec.gpus[0].mig))}
        lapse = Timelapse(Path(name) / "files", Path(name), spec=spec, works=works, pods=ids)
        with lapse.exporting():
            return lapse, Increase([lapse.look(START_MS + at) for at in schedule.looks_ms])


def _aligned(at_ms: int) -> int:
    """The end of the last period that was over, in whole milliseconds."""
    return (at_ms * 1000 // SAMPLE_PERIOD_US * SAMPLE_PERIOD_US) // 1000


def _windows(looks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Of 30 s and more; counting begins with the second look, as the first only finds the devices."""
    for first in range(1, len(looks), 7):
        for last in range(first + 1, len(looks), 5):
            if looks[last] - looks[first] >= 30_000:
                yield first, last


def _is_seen(work: Work, looks: Sequence[int]) -> bool:
    """Whether it lived at one of the looks."""
    return any(work.start_ms + SEEN_AFTER_MS < START_MS + at and work.lives(START_MS + at) for at in looks)


def _unseen(pid: int, start_ms: int) -> Work:
    """A process that has ended 300 ms later."""
    bursts = tuple((at, at + 20) for at in range(start_ms + 30, start_ms + 300, 40))
    return Work(pid, start_ms, start_ms + 300, bursts, ((start_ms, 0),))


_BETWEEN_LOOKS = Schedule(
    ((_unseen(1000, START_MS + 1_500), "pod-0"), (_unseen(1001, START_MS + 3_500), None)),
    tuple(range(0, 33_000, 1_000)),
)
"""One pod has the GPU for itself; no sample sees its process or the host's."""


@pytest.mark.slow
@_MANY
@example(_BETWEEN_LOOKS)
@given(schedules())
def test_pod_counters_over_any_window_match_simulated_work(schedule: Schedule) -> None:
    """Over any window of 30 s and more each pod's busy time is true within 2 %, and all together are the device's."""
    lapse, increase = run(schedule)
    looks = schedule.looks_ms
    event(f"{len(schedule.works) // 16 * 16}.. processes")
    for first, last in _windows(looks):
        span = _aligned(START_MS + looks[first]), _aligned(START_MS + looks[last])
        device = increase.of_all(DEVICE, first, last)
        assert device == pytest.approx(lapse.truth.device_busy_ms(*span) / 1000, rel=0.02, abs=0.02)
        parts = increase.of_all(BUSY, first, last) + increase.of_all(REST, first, last)
        assert parts == pytest.approx(device, abs=1e-6)
        for pod in schedule.pods:
            _check_pod(pod, schedule, lapse, span, increase.of(BUSY, first, last, pod=pod))
            _check_memory(pod, schedule, lapse, (first, last), increase.of(MEMORY, first, last, pod=pod))


def _check_pod(pod: str, schedule: Schedule, lapse: Timelapse, span: tuple[int, int], counted: float) -> None:
    works = [work for work, owner in schedule.works if owner == pod]
    most = sum(float(lapse.truth.busy_ms(work, *span)) for work in works) / 1000
    least = (
        sum(float(lapse.truth.busy_ms(work, *span)) for work in works if _is_seen(work, schedule.looks_ms))
        / 1000
    )
    rounding = 0.005 * sum(_touched_s(work, span) for work in works)
    assert counted <= most * 1.02 + rounding + 1e-6, pod
    assert counted >= least * 0.98 - rounding - _doubtful_s(pod, schedule, span), pod


def _check_memory(
    pod: str, schedule: Schedule, lapse: Timelapse, window: tuple[int, int], counted: float
) -> None:
    """What is held is known at the looks; a process that comes or goes between two of them did so halfway."""
    looks = schedule.looks_ms
    start, end = (START_MS + looks[number] for number in window)
    works = [work for work, owner in schedule.works if owner == pod]
    true = sum(lapse.truth.memory_byte_ms(work, start, end) for work in works) / 1000
    changed = sum(
        work.memory[0][1] * ((start <= work.start_ms <= end) + (start <= (work.end_ms or 0) <= end))
        for work in works
    )
    step_s = (looks[1] - looks[0]) / 1000
    assert abs(counted - true) <= 0.02 * true + 1.5 * step_s * changed + 1, pod


def _touched_s(work: Work, span: tuple[int, int]) -> float:
    """How long the sampling periods together are in which it does something, at most."""
    period = SAMPLE_PERIOD_US / 1000
    return (
        sum(
            min(to, span[1]) - max(from_, span[0]) + 2 * period
            for from_, to in work.bursts
            if from_ < span[1] and to > span[0]
        )
        / 1000
    )


def _doubtful_s(pod: str, schedule: Schedule, span: tuple[int, int]) -> float:
    """Work of uncertain owner: while a PID changes owner, or before a process ends whose PID may be reused."""
    doubtful_ms = 0.0
    for work, owner in schedule.works:
        if owner == pod and span[0] <= work.start_ms <= span[1]:
            doubtful_ms += SAMPLE_PERIOD_US / 1000
        if owner == pod and work.end_ms is not None and span[0] <= work.end_ms <= span[1]:
            doubtful_ms += SAMPLE_PERIOD_US / 1000 + _last_ms(work, work.end_ms, schedule)
    return doubtful_ms / 1000


def _last_ms(work: Work, end_ms: int, schedule: Schedule) -> float:
    """Time from the last sample of a process to its end, if its PID was reused or skipped before the next sample."""
    looks = [START_MS + at for at in schedule.looks_ms]
    before = max((at for at in looks if at <= end_ms), default=looks[0])
    after = min((at for at in looks if at > end_ms), default=looks[-1])
    newest = [_newest(schedule, at) for at in (before, after)]
    first, last = newest
    is_passed = first < work.pid <= last if first <= last else work.pid > first or work.pid <= last
    return end_ms - before if is_passed else 0


def _newest(schedule: Schedule, at_ms: int) -> int:
    """The PID that was given out last."""
    begun = [work for work, _ in schedule.works if work.start_ms <= at_ms]
    return max(begun, key=lambda work: work.start_ms).pid if begun else 2


@pytest.mark.slow
@_SOME
@given(schedules(instances=3))
def test_instance_counters_of_an_only_holder_match_simulated_work(schedule: Schedule) -> None:
    """A MIG instance that one pod holds works for that pod."""
    lapse, increase = run(schedule, spec=CUT)
    looks = schedule.looks_ms
    ids = {number: CUT.mig_uuid(0, number) for number in range(3)}
    for first, last in _windows(looks):
        span = START_MS + looks[first], START_MS + looks[last]
        for number, instance in ids.items():
            true = lapse.truth.device_busy_ms(*span, instance=number) / 1000
            assert increase.of_all(DEVICE, first, last, instance=instance) == pytest.approx(
                true, rel=0.02, abs=0.01
            )
            counted = increase.of(BUSY, first, last, instance=instance, pod=f"pod-{number}")
            assert counted == pytest.approx(true, rel=0.02, abs=0.01)
