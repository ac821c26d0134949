"""The buffers of the recent past: utilization of a GPU, and of each of its processes."""

import pytest

from simulator.gpus import Board, ProcessSample
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

H100, A100 = range(2)
INVALID, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE, MISMATCH = 2, 3, 6, 7, 25
T = 1_700_000_000_000_000
GPU_SAMPLES = "nvml.nvmlDeviceGetSamples({}, nvml.NVML_GPU_UTILIZATION_SAMPLES, {})"
PROCESS_SAMPLES = "nvml.nvmlDeviceGetProcessUtilization({}, {})"
PROCESSES_INFO = "nvml.nvmlDeviceGetProcessesUtilizationInfo({}, {})"
ALL = pytest.mark.parametrize("call", [GPU_SAMPLES, PROCESS_SAMPLES, PROCESSES_INFO])


@pytest.fixture
def busy(board: Board, program: NvmlProgram) -> NvmlProgram:
    """A program that sees an H100 with three samples of its own, and three of two processes."""
    utilization = [(T + 1, 10), (T + 2, 0), (T + 3, 100)]
    processes = [
        ProcessSample(T + 1, 4711, 10, 5, 2, 1),
        ProcessSample(T + 3, 4711, 60),
        ProcessSample(T + 3, 4712, 40),
    ]
    board.set_samples(H100, utilization, processes)
    return program


def test_gpu_samples_are_percent_oldest_first(busy: NvmlProgram) -> None:
    """Percentages as unsigned numbers, oldest first, stamped with Unix time in microseconds."""
    kind, samples = busy.ask(GPU_SAMPLES.format("gpus[0]", 0))
    assert kind == 1
    assert [(s["timeStamp"], s["sampleValue"]["uiVal"]) for s in samples] == [
        (T + 1, 10),
        (T + 2, 0),
        (T + 3, 100),
    ]


def test_process_samples_are_the_same_from_both_functions(busy: NvmlProgram) -> None:
    """Which process used which engine in which period, by either of the two functions."""
    expected = [
        {"timeStamp": T + 1, "pid": 4711, "smUtil": 10, "memUtil": 5, "encUtil": 2, "decUtil": 1},
        {"timeStamp": T + 3, "pid": 4711, "smUtil": 60, "memUtil": 0, "encUtil": 0, "decUtil": 0},
        {"timeStamp": T + 3, "pid": 4712, "smUtil": 40, "memUtil": 0, "encUtil": 0, "decUtil": 0},
    ]
    assert busy.ask(PROCESS_SAMPLES.format("gpus[0]", 0)) == expected
    further = {"jpgUtil": 0, "ofaUtil": 0}
    assert busy.ask(PROCESSES_INFO.format("gpus[0]", 0)) == [sample | further for sample in expected]


@pytest.mark.parametrize(("seen", "of_the_gpu", "of_processes"), [(T, 3, 3), (T + 1, 2, 2), (T + 2, 1, 2)])
def test_samples_since_timestamp_are_only_newer_ones(
    busy: NvmlProgram, seen: int, of_the_gpu: int, of_processes: int
) -> None:
    """Who says what was last seen gets what came after it, and not that again."""
    assert len(busy.ask(GPU_SAMPLES.format("gpus[0]", seen))[1]) == of_the_gpu
    for call in (PROCESS_SAMPLES, PROCESSES_INFO):
        samples = busy.ask(call.format("gpus[0]", seen))
        assert len(samples) == of_processes
        assert min(sample["timeStamp"] for sample in samples) > seen


@ALL
def test_samples_without_newer_are_not_found(busy: NvmlProgram, call: str) -> None:
    """Where all has been seen, NOT_FOUND says so."""
    assert busy.failure(call.format("gpus[0]", T + 3)) == NOT_FOUND


@ALL
def test_samples_of_empty_buffer_are_not_found(board: Board, program: NvmlProgram, call: str) -> None:
    """A card that keeps samples has none yet: NOT_FOUND; one that keeps none says that it does not support them."""
    assert program.failure(call.format("gpus[0]", 0)) == NOT_SUPPORTED
    board.set_samples(H100, ())
    assert program.failure(call.format("gpus[0]", 0)) == NOT_FOUND
    assert program.failure(call.format("gpus[2]", 0)) == NOT_SUPPORTED


@ALL
def test_samples_under_mig_are_unsupported(board: Board, program: NvmlProgram, call: str) -> None:
    """Neither a GPU that is cut nor its instances say anything; made whole again, it does."""
    board.set_samples(A100, [(T, 50)], [ProcessSample(T, 1, 50)])
    assert program.failure(call.format("gpus[1]", 0)) == NOT_SUPPORTED
    assert program.failure(call.format("migs[0]", 0)) == NOT_SUPPORTED
    board.set_mig(A100, ())
    assert program.failure(call.format("gpus[1]", 0)) == 0


def test_samples_of_other_types_are_unsupported(busy: NvmlProgram) -> None:
    """Of power, memory, engines and clocks this card keeps none."""
    for kind in (0, *range(2, 10)):
        call = GPU_SAMPLES.replace("nvml.NVML_GPU_UTILIZATION_SAMPLES", str(kind)).format("gpus[0]", 0)
        assert busy.failure(call) == NOT_SUPPORTED


def test_set_samples_replaces_earlier_samples(board: Board, busy: NvmlProgram) -> None:
    """Buffers hold what was said last: what fell out of them is gone, for the GPU and for its processes."""
    board.set_samples(H100, [(T + 9, 7)])
    _, samples = busy.ask(GPU_SAMPLES.format("gpus[0]", 0))
    assert [sample["timeStamp"] for sample in samples] == [T + 9]
    assert busy.failure(PROCESS_SAMPLES.format("gpus[0]", 0)) == NOT_FOUND


def test_gpu_samples_with_small_buffer_return_needed_count(busy: NvmlProgram) -> None:
    """Too little room is refused with how much is needed; asking without room says the same and succeeds."""
    busy.ask("kind, count, samples = ctypes.c_uint(), ctypes.c_uint(2), (nvml.c_nvmlSample_t * 5)()")
    ask = "nvml.nvmlLib.nvmlDeviceGetSamples(gpus[0], 1, ctypes.c_ulonglong(0), ctypes.byref(kind), {}, {})"
    assert busy.ask(ask.format("ctypes.byref(count)", "samples")) == INSUFFICIENT_SIZE
    assert busy.ask("count") == 3
    busy.ask("count.value = 5")
    assert busy.ask(ask.format("ctypes.byref(count)", "samples")) == 0
    assert busy.ask("(count.value, samples[2].timeStamp, samples[3].timeStamp)") == [3, T + 3, 0]
    busy.ask("count.value = 0")
    assert busy.ask(ask.format("ctypes.byref(count)", "None")) == 0
    assert busy.ask("count") == 3
    assert busy.ask(ask.format("None", "samples")) == INVALID


def test_process_samples_with_small_buffer_return_needed_count(busy: NvmlProgram) -> None:
    """Too little room is refused with how much is needed, room that is said to be and is not as an argument."""
    busy.ask("count, samples = ctypes.c_uint(2), (nvml.c_nvmlProcessUtilizationSample_t * 5)()")
    ask = "nvml.nvmlLib.nvmlDeviceGetProcessUtilization(gpus[0], {}, {}, ctypes.c_ulonglong(0))"
    assert busy.ask(ask.format("None", "ctypes.byref(count)")) == INVALID
    assert busy.ask(ask.format("samples", "None")) == INVALID
    assert busy.ask(ask.format("samples", "ctypes.byref(count)")) == INSUFFICIENT_SIZE
    assert busy.ask("(count.value, samples[0].pid)") == [3, 0]
    busy.ask("count.value = 5")
    assert busy.ask(ask.format("samples", "ctypes.byref(count)")) == 0
    assert busy.ask("(count.value, samples[2].pid, samples[3].pid)") == [3, 4712, 0]


def test_process_samples_structure_with_small_buffer_returns_needed_count(busy: NvmlProgram) -> None:
    """The same of the function whose structure says its version; another version is a mismatch."""
    busy.ask("infos = (nvml.c_nvmlProcessUtilizationInfo_v1_t * 5)()")
    busy.ask("request = nvml.c_nvmlProcessesUtilizationInfo_v1_t()")
    busy.ask("request.version, request.processSamplesCount = nvml.ProcessesUtilizationInfo_v1, 2")
    ask = "nvml.nvmlLib.nvmlDeviceGetProcessesUtilizationInfo(gpus[0], ctypes.byref(request))"
    assert busy.ask(ask) == INVALID
    busy.ask("request.procUtilArray = infos")
    assert busy.ask(ask) == INSUFFICIENT_SIZE
    assert busy.ask("(request.processSamplesCount, infos[0].pid)") == [3, 0]
    assert busy.ask(ask) == 0
    assert busy.ask("(request.processSamplesCount, infos[2].pid)") == [3, 4712]
    busy.ask("request.version = 1")
    assert busy.ask(ask) == MISMATCH


def test_full_sample_buffers_are_returned_whole(board: Board, program: NvmlProgram) -> None:
    """120 samples of a GPU and 8192 of its processes are kept, and come whole."""
    utilization = [(T + n, n % 101) for n in range(120)]
    board.set_samples(H100, utilization, [ProcessSample(T + n // 64, n % 64, n % 101) for n in range(8192)])
    _, samples = program.ask(GPU_SAMPLES.format("gpus[0]", 0))
    assert [(s["timeStamp"], s["sampleValue"]["uiVal"]) for s in samples] == utilization
    shares = program.ask(f"[(s.timeStamp, s.pid, s.smUtil) for s in {PROCESS_SAMPLES.format('gpus[0]', 0)}]")
    assert shares == [[T + n // 64, n % 64, n % 101] for n in range(8192)]


@pytest.mark.parametrize(
    ("utilization", "processes", "words"),
    [
        ([(T + n, 0) for n in range(121)], [], "GPU 0: 121 utilization samples; a board holds 120"),
        ([], [ProcessSample(T, 1, 1)] * 8193, "8193 samples of processes; a board holds 8192"),
        ([(T, 1), (T, 1)], [], f"the utilization sample at {T} us comes after that at {T} us"),
        (
            [],
            [ProcessSample(9, 1, 1), ProcessSample(8, 2, 1)],
            "process 2 at 8 us comes after that of process 1 at 9 us",
        ),
        ([(T, 101)], [], "is 101, not within 0 and 100"),
        ([(T, -1)], [], "is -1, not within 0 and 100"),
        ([], [ProcessSample(T, 1, 101)], "percentages are not all within 0 and 100"),
        ([], [ProcessSample(T, 1, 1, decoder_percent=-1)], "percentages are not all within 0 and 100"),
    ],
    ids=["too-many", "too-many-of-processes", "twice", "disorder", "above", "below", "sm", "decoder"],
)
def test_impossible_samples_are_refused(
    board: Board,
    busy: NvmlProgram,
    utilization: list[tuple[int, int]],
    processes: list[ProcessSample],
    words: str,
) -> None:
    """In words, and what was there before stays."""
    with pytest.raises(ValueError, match=words):
        board.set_samples(H100, utilization, processes)
    assert len(busy.ask(GPU_SAMPLES.format("gpus[0]", 0))[1]) == 3
    with pytest.raises(ValueError, match="has no GPU 9"):
        board.set_samples(9, ())


def test_sample_functions_obey_faults(board: Board, busy: NvmlProgram) -> None:
    """Faults strike these functions as they do all others."""
    board.fault("nvmlDeviceGetProcessUtilization", gpu=H100, code=15)
    assert busy.failure(PROCESS_SAMPLES.format("gpus[0]", 0)) == 15
    assert busy.failure(GPU_SAMPLES.format("gpus[0]", 0)) == 0
