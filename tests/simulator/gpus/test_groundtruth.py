"""The ground truth against the plainest way to reckon it: millisecond by millisecond."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import strategies as st

from simulator.gpus import Board, Process, ProcessKind, ProcessSample, environment
from simulator.gpus.groundtruth import Truth, Work
from simulator.spec import GpuSpec, NodeSpec
from tests.simulator.gpus.nvml_program import NvmlProgram

HORIZON_MS = 400
TIMES = st.integers(0, HORIZON_MS)
SPANS = st.tuples(TIMES, TIMES).map(lambda ends: (min(ends), max(ends)))
PERIOD_US = 10_000


@st.composite
def _work(draw: st.DrawFn, pid: int, instance: int | None) -> Work:
    """A process with up to six bursts and four steps of memory; some never end."""
    times = sorted(draw(st.sets(TIMES, min_size=3, max_size=14)))
    start, *middle, end = times
    bursts = tuple(zip(middle[::2], middle[1::2], strict=False))
    steps = draw(st.lists(st.sampled_from(times[:-1]), unique=True, max_size=4))
    memory = tuple((at, draw(st.integers(0, 80 << 30))) for at in sorted(steps))
    forever = draw(st.booleans())
    return Work(pid, start, None if forever else end, bursts, memory, instance=instance)


@st.composite
def _works(draw: st.DrawFn, *, cut: bool = False) -> list[Work]:
    """Processes of one GPU; where one has ended, its PID may come again."""
    works: list[Work] = []
    for number in range(draw(st.integers(1, 8))):
        work = draw(_work(number + 1, draw(st.integers(0, 2)) if cut else None))
        ended = [old.pid for old in works if old.end_ms is not None and old.end_ms <= work.start_ms]
        reused = dataclasses.replace(work, pid=draw(st.sampled_from(ended))) if ended else work
        works.append(work if any(_together(reused, old) for old in works) else reused)
    return works


ANY_WORKS = st.one_of(_works(), _works(cut=True))


def _together(work: Work, other: Work) -> bool:
    return work.pid == other.pid and (work.lives(other.start_ms) or other.lives(work.start_ms))


def _works_at(work: Work, at_ms: int) -> bool:
    return any(start <= at_ms < end for start, end in work.bursts)


def _share(work: Work, works: Sequence[Work], at_ms: int) -> Fraction:
    """What a process gets of the millisecond that begins at `at_ms`."""
    if not _works_at(work, at_ms):
        return Fraction(0)
    return Fraction(1, sum(_works_at(other, at_ms) for other in works if other.instance == work.instance))


def _held(work: Work, at_ms: int) -> int:
    steps = [held for at, held in work.memory if at <= at_ms]
    return steps[-1] if steps and work.lives(at_ms) else 0


@hypothesis.given(works=ANY_WORKS, span=SPANS)
def test_busy_time_of_overlapping_processes_is_shared_evenly(
    works: list[Work], span: tuple[int, int]
) -> None:
    """Whoever has work at an instant gets one part in as many as have, on the same GPU or the same MIG instance."""
    start, end = span
    truth = Truth(works)
    for work in works:
        assert truth.busy_ms(work, start, end) == sum(_share(work, works, at) for at in range(start, end))


@hypothesis.given(works=ANY_WORKS, span=SPANS)
def test_busy_times_of_processes_add_up_to_device(works: list[Work], span: tuple[int, int]) -> None:
    """To the last fraction: what a GPU or an instance worked, it worked for its processes."""
    start, end = span
    truth = Truth(works)
    for instance in {work.instance for work in works}:
        mine = [work for work in works if work.instance == instance]
        of_processes = sum(truth.busy_ms(work, start, end) for work in mine)
        assert of_processes == truth.device_busy_ms(start, end, instance=instance)


@hypothesis.given(works=ANY_WORKS, span=SPANS)
def test_device_busy_time_is_union_of_bursts(works: list[Work], span: tuple[int, int]) -> None:
    """The GPU's own time is the union of all bursts, and its counter is that time since the beginning."""
    start, end = span
    truth = Truth(works)
    union = sum(any(_works_at(work, at) for work in works) for at in range(start, end))
    assert truth.device_busy_ms(start, end) == union
    assert truth.counters(end * 1000) - truth.counters(start * 1000) == union * 1000
    if works:
        instance = works[0].instance
        counted = truth.counters(end * 1000, instance) - truth.counters(start * 1000, instance)
        assert counted == truth.device_busy_ms(start, end, instance=instance) * 1000


@hypothesis.given(works=_works(), span=SPANS)
def test_memory_of_process_follows_its_steps(works: list[Work], span: tuple[int, int]) -> None:
    """A process holds what its last step says, from its first step until its end."""
    start, end = span
    truth = Truth(works)
    for work in works:
        assert truth.memory_byte_ms(work, start, end) == sum(_held(work, at) for at in range(start, end))


@hypothesis.given(works=ANY_WORKS, now=TIMES)
def test_processes_at_instant_are_those_alive(works: list[Work], now: int) -> None:
    """A board is shown who lives at the instant, with what it holds then and where it runs."""
    expected = [
        Process(work.pid, _held(work, now), work.kind, work.instance) for work in works if work.lives(now)
    ]
    found = Truth(works).processes(now)
    assert sorted(found, key=lambda process: process.pid) == sorted(expected, key=lambda process: process.pid)


def _percent(busy_ms: Fraction | int) -> int:
    """Of a period, halves up."""
    return math.floor(Fraction(busy_ms) * 100_000 / PERIOD_US + Fraction(1, 2))


@hypothesis.given(works=_works(), now=TIMES, depth=st.integers(1, 50))
def test_sample_buffers_have_one_sample_per_ended_period(works: list[Work], now: int, depth: int) -> None:
    """Of each of the last periods that have ended: the GPU's share, and of each process that had one its own."""
    truth = Truth(works)
    ended = now * 1000 // PERIOD_US
    periods = [
        ((end - 1) * PERIOD_US // 1000, end * PERIOD_US // 1000)
        for end in range(max(0, ended - depth) + 1, ended + 1)
    ]
    utilization, processes = truth.buffers(now * 1000, period_us=PERIOD_US, depth=depth)
    assert utilization == [(period[1] * 1000, _percent(truth.device_busy_ms(*period))) for period in periods]
    shares = [
        (period[1] * 1000, work.pid, _percent(truth.busy_ms(work, *period)))
        for period in periods
        for work in works
    ]
    seen = [(sample.at_us, sample.pid, sample.sm_percent) for sample in processes]
    assert sorted(seen) == sorted(share for share in shares if share[2] > 0)
    assert [at for at, _, _ in seen] == sorted(at for at, _, _ in seen)


@hypothesis.given(works=_works(), first=st.integers(0, 20), count=st.integers(1, 20))
def test_sample_buffers_integrate_to_truth_within_rounding(works: list[Work], first: int, count: int) -> None:
    """What a reader who integrates the samples gets is what happened, within the rounding of each sample."""
    truth = Truth(works)
    start_us, end_us = first * PERIOD_US, (first + count) * PERIOD_US
    utilization, processes = truth.buffers(end_us, period_us=PERIOD_US)
    rounding_us = count * PERIOD_US * len(works) / 200
    counted = sum(percent for at, percent in utilization if at > start_us) * PERIOD_US / 100
    true = truth.device_busy_ms(start_us // 1000, end_us // 1000) * 1000
    assert abs(counted - true) <= count * PERIOD_US / 200
    counted = sum(sample.sm_percent for sample in processes if sample.at_us > start_us) * PERIOD_US / 100
    assert abs(counted - true) <= rounding_us


def test_sample_percent_rounds_halves_up_and_drops_less() -> None:
    """And less than half a percent is nothing: the process is not seen at all."""
    works = [Work(1, 0, None, ((0, 5), (1000, 1004)), ())]
    truth = Truth(works)
    assert truth.buffers(2_000_000, period_us=1_000_000) == (
        [(1_000_000, 1), (2_000_000, 0)],
        [ProcessSample(1_000_000, 1, 1)],
    )


def test_sample_periods_do_not_depend_on_query_time() -> None:
    """Whenever one looks, a period has the same bounds, and the same sample once it has ended."""
    truth = Truth([Work(1, 0, None, ((0, 100), (250, 3000)), ())])
    first, _ = truth.buffers(2_000_000)
    second, _ = truth.buffers(2_500_001)
    assert first[0] == (166_667, 60)
    assert second[: len(first)] == first
    assert [at for at, _ in second[len(first) :]] == [166_667 * n for n in range(12, 15)]


def test_sample_buffers_under_mig_are_empty() -> None:
    """As NVML, which supports none under MIG."""
    assert Truth([Work(1, 0, None, ((0, 100),), (), instance=0)]).buffers(10_000_000) == ([], [])


def test_unused_gpu_has_zero_busy_time() -> None:
    """A GPU that nobody ever uses has worked for no time, and its samples say so."""
    truth = Truth([])
    assert truth.device_busy_ms(0, 1000) == 0
    assert truth.counters(10**6, 3) == 0
    assert truth.processes(0) == []
    assert truth.buffers(400_000) == ([(166_667, 0), (333_334, 0)], [])


def test_reversed_span_is_empty() -> None:
    """Nothing happens in it, rather than less than nothing."""
    work = Work(1, 0, None, ((0, 100),), ((0, 1),))
    truth = Truth([work])
    assert truth.device_busy_ms(50, 20) == 0
    assert truth.busy_ms(work, 50, 20) == 0
    assert truth.memory_byte_ms(work, 50, 20) == 0


def test_unknown_process_raises_key_error() -> None:
    """Of a process that is none of the GPU's nothing is known, not even that it did nothing."""
    work = Work(1, 0, 100, (), ())
    truth = Truth([work])
    for stranger in (dataclasses.replace(work, pid=2), dataclasses.replace(work, instance=0)):
        with pytest.raises(KeyError):
            truth.busy_ms(stranger, 0, 100)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"end_ms": 0}, "its life from 0 to 0, or a burst, is empty"),
        ({"bursts": ((5, 5),)}, "or a burst, is empty"),
        ({"bursts": ((0, 5), (4, 8))}, "its bursts overlap"),
        ({"bursts": ((-1, 5),)}, "or are out of order or of its life"),
        ({"bursts": ((90, 101),)}, "or are out of order or of its life"),
        ({"memory": ((5, 1), (5, 2))}, "steps of memory are out of order"),
        ({"memory": ((100, 1),)}, "or of its life"),
        ({"memory": ((5, -1),)}, "holds less memory than none"),
    ],
)
def test_impossible_work_is_refused_with_pid(change: dict[str, object], words: str) -> None:
    """In words, with its PID."""
    fields: dict[str, object] = {"pid": 7, "start_ms": 0, "end_ms": 100, "bursts": (), "memory": ()}
    with pytest.raises(ValueError, match=f"process 7: .*{words}"):
        Work(**fields | change)  # type: ignore[arg-type]


def test_conflicting_processes_are_refused() -> None:
    """Two processes of one PID at a time; a GPU that is cut for some of its processes only."""
    work = Work(7, 0, 100, (), ())
    Truth([work, dataclasses.replace(work, start_ms=100, end_ms=200)])
    with pytest.raises(ValueError, match="process 7 starts at 99 ms while another of that PID lives"):
        Truth([work, dataclasses.replace(work, start_ms=99, end_ms=200)])
    with pytest.raises(ValueError, match="cut for all of them or for none"):
        Truth([work, dataclasses.replace(work, pid=8, instance=0)])


@pytest.mark.driver
def test_truth_on_board_is_what_nvml_reports(tmp_path: pathlib.Path) -> None:
    """A board takes the truth as it is, and NVML tells it: samples, processes, and activity between two instants."""
    node = NodeSpec("node-a", (GpuSpec("H100-SXM5-80GB"),))
    works = [
        Work(1, 0, None, ((0, 40_000),), ((0, 1 << 30),)),
        Work(2, 0, 19_000, ((10_000, 19_000),), (), ProcessKind.GRAPHICS),
    ]
    truth = Truth(works)
    with Board(tmp_path / "board", node) as board:
        program = NvmlProgram(environment(tmp_path / "board"))
        try:
            program.ask("nvml.nvmlInit()")
            program.ask("gpu = nvml.nvmlDeviceGetHandleByIndex(0)")
            program.ask("samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]")
            for number, now_ms in enumerate((5_000, 20_000)):
                _show(board, truth, now_ms)
                program.ask(f"nvml.nvmlGpmSampleGet(gpu, samples[{number}])")
            assert program.ask("[p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(gpu)]") == [1]
            found = program.ask("[(s.pid, s.smUtil) for s in nvml.nvmlDeviceGetProcessUtilization(gpu, 0)]")
            assert {(pid, percent) for pid, percent in found} == {(1, 100), (1, 50), (2, 50)}
            program.ask("ask = nvml.c_nvmlGpmMetricsGet_t()")
            program.ask("ask.version, ask.numMetrics, ask.metrics[0].metricId = 1, 1, 1")
            program.ask("ask.sample1, ask.sample2 = samples")
            program.ask("nvml.nvmlGpmMetricsGet(ask)")
            assert program.ask("ask.metrics[0].value") == 100
        finally:
            program.close()


def _show(board: Board, truth: Truth, now_ms: int) -> None:
    board.set_samples(0, *truth.buffers(now_ms * 1000))
    board.set_busy(0, busy_us=truth.counters(now_ms * 1000), at_us=now_ms * 1000)
    board.set_processes(0, truth.processes(now_ms))
