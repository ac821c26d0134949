"""GPU performance monitoring: what happened between two samples, per GPU and per MIG instance."""

import pathlib

import pytest

from simulator.gpus import Board
from simulator.spec import GpuSpec, NodeSpec
from tests.simulator.gpus.conftest import NODE
from tests.simulator.gpus.nvml_program import NvmlProgram

pytestmark = pytest.mark.driver

NOT_SUPPORTED, NOT_FOUND, INVALID, MISMATCH = 3, 6, 2, 25
GRAPHICS, SM, DRAM, TENSOR = 1, 2, 10, 5


@pytest.fixture
def node() -> NodeSpec:
    """The usual node, with an H100 that is cut in place of the L40S."""
    h100, a100, _, t4 = NODE.gpus
    return NodeSpec("node-a", (h100, a100, GpuSpec("H100-SXM5-80GB", ("3g.40gb", "1g.10gb")), t4))


@pytest.fixture
def sampling(program: NvmlProgram) -> NvmlProgram:
    """A program with two samples to fill, and `between` to ask for one metric."""
    program.ask("a, b = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()")
    program.ask("request = nvml.c_nvmlGpmMetricsGet_t()")
    program.ask("request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1")
    program.ask("request.sample1, request.sample2 = a, b")
    return program


def _between(program: NvmlProgram, metric: int) -> tuple[int, float]:
    program.ask(f"request.metrics[0].metricId = {metric}")
    program.ask("nvml.nvmlGpmMetricsGet(request)")
    code, value = program.ask("(request.metrics[0].nvmlReturn, request.metrics[0].value)")
    return code, value


@pytest.mark.parametrize(("gpu", "expected"), [(0, 1), (1, 0), (2, 1), (3, 0)])
def test_gpm_before_hopper_is_unsupported(program: NvmlProgram, gpu: int, expected: int) -> None:
    """H100 has, A100 and T4 have not; and a sample of what has not is refused."""
    assert program.ask(f"nvml.nvmlGpmQueryDeviceSupport(gpus[{gpu}])")["isSupportedDevice"] == expected
    program.ask("sample = nvml.nvmlGpmSampleAlloc()")
    wanted = 0 if expected else NOT_SUPPORTED
    assert program.failure(f"nvml.nvmlGpmSampleGet(gpus[{gpu}], sample)") == wanted
    assert program.failure("nvml.nvmlGpmSampleFree(sample)") == 0


@pytest.mark.parametrize(("engine", "there"), [(30, 0), (36, 0), (37, 3), (40, 0), (47, 3), (50, 0), (51, 3)])
def test_gpm_media_engines_of_idle_h100_report_zero(sampling: NvmlProgram, engine: int, there: int) -> None:
    """An H100 has seven decoders for video, seven for JPEG, and one engine for optical flow."""
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], a)")
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], b)")
    code, value = _between(sampling, engine)
    assert code == there
    assert value == 0 or there


def test_gpm_metric_is_mean_of_two_samples(board: Board, sampling: NvmlProgram) -> None:
    """Here the mean of two instants; what the card does not say carries an error of its own."""
    board.set_gpm(0, GRAPHICS, 20)
    board.set_gpm(0, TENSOR, 12.5)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], a)")
    board.set_gpm(0, GRAPHICS, 60)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], b)")
    assert _between(sampling, GRAPHICS) == (0, 40)
    assert _between(sampling, TENSOR) == (0, 12.5)
    assert _between(sampling, 37)[0] == NOT_SUPPORTED
    assert _between(sampling, 9999)[0] == NOT_SUPPORTED


def test_gpm_activity_without_counter_follows_utilization(board: Board, sampling: NvmlProgram) -> None:
    """Where no test says otherwise: the GPU's utilization, an instance's share of its own engines."""
    board.set_instance(2, 1, memory_used_bytes=0, activity_percent=70)
    gpu_instance = sampling.ask(
        "nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[2], 1))"
    )
    for name in ("a", "b"):
        sampling.ask(f"nvml.nvmlGpmMigSampleGet(gpus[2], {gpu_instance}, {name})")
    assert _between(sampling, GRAPHICS) == (0, 70)
    assert _between(sampling, DRAM) == (0, 38.5)
    board.set_gpm(2, DRAM, 31, instance=1)
    for name in ("a", "b"):
        sampling.ask(f"nvml.nvmlGpmMigSampleGet(gpus[2], {gpu_instance}, {name})")
    assert _between(sampling, DRAM) == (0, 31)


def test_gpm_sample_of_missing_instance_is_not_found(sampling: NvmlProgram) -> None:
    """NOT_FOUND, and on a card without GPM NOT_SUPPORTED."""
    assert sampling.failure("nvml.nvmlGpmMigSampleGet(gpus[2], 99, a)") == NOT_FOUND
    instance = sampling.ask("nvml.nvmlDeviceGetGpuInstanceId(migs[0])")
    assert sampling.failure(f"nvml.nvmlGpmMigSampleGet(gpus[1], {instance}, a)") == NOT_SUPPORTED


def test_gpm_samples_unfilled_or_reversed_are_invalid(sampling: NvmlProgram) -> None:
    """Never filled, or the later one first: INVALID_ARGUMENT; another version of the structure: a mismatch."""
    ask = "nvml.nvmlGpmMetricsGet(request)"
    assert sampling.failure(ask) == INVALID
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], b)")
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], a)")
    assert sampling.failure(ask) == INVALID
    sampling.ask("request.version = 2")
    assert sampling.failure(ask) == MISMATCH


def test_instance_activity_above_100_percent_is_refused(board: Board, path: pathlib.Path) -> None:
    """An instance cannot be busier than whole."""
    del path
    with pytest.raises(ValueError, match="activity_percent is 101, not within 0 and 100"):
        board.set_instance(2, 0, memory_used_bytes=0, activity_percent=101)


def _instance_id(program: NvmlProgram, instance: int) -> int:
    handle = f"nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpus[2], {instance})"
    identity: int = program.ask(f"nvml.nvmlDeviceGetGpuInstanceId({handle})")
    return identity


def test_gpm_activity_with_counters_is_busy_time_over_elapsed_time(
    board: Board, sampling: NvmlProgram
) -> None:
    """Activity is the time worked between two samples as a share of the time between them, to its last digit."""
    board.set_gpm(0, TENSOR, 12.5)
    board.set_busy(0, busy_us=1_000, at_us=10_000)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], a)")
    board.set_busy(0, busy_us=2_000, at_us=13_000)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], b)")
    assert _between(sampling, GRAPHICS) == (0, 100 * 1_000 / 3_000)
    assert _between(sampling, SM) == (0, 100 * 1_000 / 3_000)
    assert _between(sampling, TENSOR) == (0, 12.5)


def test_gpm_counter_of_instance_is_separate_and_ends_with_new_cut(
    board: Board, sampling: NvmlProgram
) -> None:
    """Neither its GPU's nor its neighbour's; after a new cut nobody counts until told so."""
    board.set_busy(2, busy_us=0, at_us=1_000)
    board.set_busy(2, busy_us=0, at_us=1_000, instance=0)
    board.set_busy(2, busy_us=500, at_us=1_000, instance=1)
    sample = f"nvml.nvmlGpmMigSampleGet(gpus[2], {_instance_id(sampling, 1)}, {{}})"
    sampling.ask(sample.format("a"))
    board.set_busy(2, busy_us=1_250, at_us=2_000, instance=1)
    sampling.ask(sample.format("b"))
    assert _between(sampling, GRAPHICS) == (0, 75)
    board.set_mig(2, ("3g.40gb", "1g.10gb"))
    for name in ("a", "b"):
        sampling.ask(sample.format(name))
    assert _between(sampling, GRAPHICS) == (0, 0)


def test_gpm_samples_of_same_count_are_refused(board: Board, sampling: NvmlProgram) -> None:
    """Two samples of the same count are refused as samples of the same instant are, for every metric."""
    board.set_busy(0, busy_us=1, at_us=10)
    for name in ("a", "b"):
        sampling.ask(f"nvml.nvmlGpmSampleGet(gpus[0], {name})")
    for metric in (GRAPHICS, TENSOR):
        sampling.ask(f"request.metrics[0].metricId = {metric}")
        assert sampling.failure("nvml.nvmlGpmMetricsGet(request)") == INVALID


def test_gpm_activity_with_one_counter_is_mean_of_readings(board: Board, sampling: NvmlProgram) -> None:
    """Until both samples hold a count, activity is the mean of what the two instants say."""
    board.set_gpm(0, GRAPHICS, 20)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], a)")
    board.set_busy(0, busy_us=1_000, at_us=10_000)
    sampling.ask("nvml.nvmlGpmSampleGet(gpus[0], b)")
    assert _between(sampling, GRAPHICS) == (0, 20)


def test_busy_counter_out_of_bounds_is_refused(board: Board) -> None:
    """Nobody has worked for less than no time, nor before time began; and only instances that are there work."""
    for busy_us, at_us in ((-1, 5), (0, 0)):
        with pytest.raises(ValueError, match=f"no GPU has worked {busy_us} us at {at_us} us"):
            board.set_busy(0, busy_us=busy_us, at_us=at_us)
    with pytest.raises(ValueError, match="has no MIG instance 2; it has 2"):
        board.set_busy(2, busy_us=0, at_us=1, instance=2)


def test_busy_counter_on_a100_does_not_enable_gpm(board: Board, sampling: NvmlProgram) -> None:
    """A count makes no A100 have GPM."""
    board.set_busy(1, busy_us=1, at_us=10)
    assert sampling.failure("nvml.nvmlGpmSampleGet(gpus[1], a)") == NOT_SUPPORTED
